#include "ps/recover.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/assert.h"
#include "core/clock.h"
#include "core/crc32c.h"
#include "core/log.h"
#include "core/process.h"
#include "ps/row.h"
#include "ps/snapshot.h"

#define WHY 512

#define FORMAT_FILE "SHARD"
#define FORMAT_LINE "ebbtide shard folder format %u shard %u"

static uint32_t s_format_line(char line[128], uint32_t format, uint32_t shard)
{
    int n = snprintf(line, 128, FORMAT_LINE, (unsigned)format, (unsigned)shard);
    uint32_t crc = ebb_crc32c(0, line, (size_t)n);
    snprintf(line + n, 128 - (size_t)n, " crc %08x\n", crc);
    return (uint32_t)n;
}

ebb_status ebb_recover_read_format(const char *dir, uint32_t *format, uint32_t *shard, char *why)
{
    char path[4096], line[128] = "", want[128];
    *format = *shard = 0;
    snprintf(path, sizeof(path), "%s/" FORMAT_FILE, dir);
    FILE *f = fopen(path, "re");
    if (f == NULL) {
        int err = errno;
        snprintf(why, WHY, "cannot read %.300s: %s", path, strerror(err));
        return err == ENOENT ? EBB_NOENT : EBB_IO;
    }
    size_t len = fread(line, 1, sizeof(line) - 1, f);
    fclose(f);
    if (sscanf(line, FORMAT_LINE, format, shard) != 2) {
        snprintf(why, WHY, "%.300s is not the format file of a shard's folder: give the shard a folder of its own", path);
        return EBB_CONFIG;
    }
    if (*format > EBB_SHARD_FORMAT) {
        snprintf(why, WHY, "%.300s was written by a newer Ebbtide (folder format %u, this program knows up to %d): use that version or a new folder",
                 dir, (unsigned)*format, EBB_SHARD_FORMAT);
        return EBB_NEWER;
    }
    uint32_t bare = s_format_line(want, *format, *shard); // its first `bare` bytes and a newline: what the first versions wrote
    bool whole = len == strlen(want) && memcmp(line, want, len) == 0;
    bool old = len == bare + 1 && memcmp(line, want, bare) == 0 && line[bare] == '\n';
    if (!whole && !old) {
        snprintf(why, WHY, "%.300s is damaged: its line or its checksum is not right", path);
        return EBB_CONFIG;
    }
    return EBB_OK;
}

// Reads the format file. NOENT: there is none. Nothing in the folder is changed.
static ebb_status s_check_format(const char *dir, uint32_t shard, char *why)
{
    uint32_t format, number;
    EBB_TRY(ebb_recover_read_format(dir, &format, &number, why));
    if (number != shard) {
        snprintf(why, WHY, "%.300s is the folder of shard %u, not of shard %u: check --dir and --shard", dir, number, shard);
        return EBB_CONFIG;
    }
    return EBB_OK;
}

static ebb_status s_is_empty(const char *dir, bool *empty)
{
    DIR *d = opendir(dir);
    if (d == NULL) {
        return EBB_IO;
    }
    *empty = true;
    struct dirent *e;
    while ((e = readdir(d)) != NULL) {
        *empty &= strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || strcmp(e->d_name, FORMAT_FILE ".tmp") == 0;
    }
    closedir(d);
    return EBB_OK;
}

// Written whole or not at all: temporary file, sync, rename, sync of the folder.
static ebb_status s_write_format(const char *dir, uint32_t shard, char *why)
{
    char path[4096], tmp[4096], line[128];
    s_format_line(line, EBB_SHARD_FORMAT, shard);
    snprintf(path, sizeof(path), "%s/" FORMAT_FILE, dir);
    snprintf(tmp, sizeof(tmp), "%s/" FORMAT_FILE ".tmp", dir);
    FILE *f = fopen(tmp, "we");
    bool ok = f != NULL && fputs(line, f) >= 0 && fflush(f) == 0 && fsync(fileno(f)) == 0;
    if (f != NULL) {
        ok &= fclose(f) == 0;
    }
    ok = ok && rename(tmp, path) == 0;
    int fd = ok ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    ok = fd >= 0 && fsync(fd) == 0;
    int err = errno;
    if (fd >= 0) {
        close(fd);
    }
    if (!ok) {
        snprintf(why, WHY, "cannot write %.300s: %s", path, strerror(err));
        return EBB_IO;
    }
    return EBB_OK;
}

ebb_status ebb_recover_open(const char *dir, uint32_t shard, ebb_kvstore **out, char *why)
{
    why[0] = '\0';
    if (ebb_mkdirs(dir) != EBB_OK) {
        snprintf(why, WHY, "cannot create the folder %.300s: %s", dir, strerror(errno));
        return EBB_IO;
    }
    ebb_status st = s_check_format(dir, shard, why);
    if (st == EBB_NOENT) {
        bool empty = false;
        if (s_is_empty(dir, &empty) != EBB_OK) {
            snprintf(why, WHY, "cannot read the folder %.300s: %s", dir, strerror(errno));
            return EBB_IO;
        }
        if (!empty) {
            snprintf(why, WHY, "%.300s holds files, but is not a shard's folder (no file " FORMAT_FILE "): give the shard a folder of its own", dir);
            return EBB_CONFIG;
        }
        st = s_write_format(dir, shard, why);
    }
    EBB_TRY(st);
    const ebb_kvstore_options options = {.create = true, .memtable_bytes = 64u << 20, .wal_bytes_max = 512u << 20, .big_values = true};
    return ebb_kvstore_open(dir, &options, out, why);
}

ebb_status ebb_recover_open_read(const char *dir, uint32_t *format, uint32_t *shard, ebb_kvstore **out, char *why)
{
    struct stat info;
    uint32_t found;
    why[0] = '\0';
    if (stat(dir, &info) != 0) {
        int err = errno;
        snprintf(why, WHY, "cannot read the folder %.300s: %s", dir, strerror(err));
        return err == ENOENT || err == ENOTDIR ? EBB_NOENT : EBB_IO;
    }
    ebb_status st = ebb_recover_read_format(dir, format != NULL ? format : &found, shard, why);
    if (st != EBB_OK) {
        return st == EBB_NOENT ? EBB_CONFIG : st; // the folder is there, but not a shard's
    }
    const ebb_kvstore_options options = {.read_only = true, .big_values = true};
    return ebb_kvstore_open(dir, &options, out, why);
}

ebb_status ebb_recover_install(ebb_kvstore *kv, const ebb_job *job)
{
    EBB_ASSERT(job->lsn == 0 && job->version == 0);
    uint8_t *install = NULL, *manifest = NULL;
    size_t install_len = 0, manifest_len = 0;
    ebb_kvbatch *b = NULL;
    ebb_status st;
    EBB_TRY_GOTO(ebb_pb_pack(&job->install->base, &install, &install_len), st, out);
    EBB_TRY_GOTO(ebb_manifest_pack(job->manifest, &manifest, &manifest_len), st, out);
    EBB_TRY_GOTO(ebb_kvbatch_new(&b), st, out);
    ebb_row_put(b, "I", 1, install, install_len);
    ebb_row_put(b, "M", 1, manifest, manifest_len);
    ebb_snapshot_put_state(b, job->generation, 0, 0, 0);
    st = ebb_kvstore_write(kv, b, true);
out:
    free(install);
    free(manifest);
    ebb_kvbatch_free(&b);
    return st;
}

void ebb_recover_put_retired(ebb_kvbatch *b, const ebb_streams *s)
{
    size_t len = 16 + s->n_retired * 8;
    uint8_t *v = malloc(len);
    EBB_ASSERT(v != NULL);
    ebb_put_le64(v, s->retired_below);
    ebb_put_le64(v + 8, s->n_retired);
    for (size_t i = 0; i < s->n_retired; i++) {
        ebb_put_le64(v + 16 + 8 * i, s->retired[i]);
    }
    ebb_row_put(b, "R", 1, v, len);
    free(v);
}

ebb_status ebb_recover_load_retired(ebb_kvstore *kv, ebb_streams *s, char *why)
{
    uint8_t *v = NULL;
    size_t len = 0;
    ebb_status st = ebb_row_get(kv, "R", 1, &v, &len);
    if (st == EBB_NOENT) {
        return EBB_OK;
    }
    if (st == EBB_OK && (len < 16 || (len - 16) / 8 != ebb_get_le64(v + 8) || len % 8 != 0)) {
        st = EBB_CORRUPT;
    }
    if (st == EBB_OK) {
        size_t n = (len - 16) / 8;
        uint64_t *list = malloc((n + 1) * sizeof(*list));
        bool changed;
        if (list == NULL) {
            st = EBB_NOMEM;
        } else {
            for (size_t i = 0; i < n; i++) {
                list[i] = ebb_get_le64(v + 16 + 8 * i);
            }
            st = ebb_streams_retire(s, ebb_get_le64(v), list, n, &changed, NULL, NULL);
            free(list);
        }
    }
    if (st != EBB_OK) {
        snprintf(why, 256, "the retired set: %s", ebb_status_str(st));
    }
    free(v);
    return st;
}

typedef struct loader {
    ebb_job *job;
    uint64_t watermark_lsn; // highest
    uint64_t records, applied;
    char *why;
} loader;

static ebb_status s_on_watermark(void *arg, uint64_t stream, uint64_t applied, uint64_t lsn)
{
    loader *l = arg;
    if (lsn > l->watermark_lsn) {
        l->watermark_lsn = lsn;
    }
    return ebb_streams_restore(&l->job->streams, stream, applied, lsn);
}

static ebb_status s_on_record(void *arg, const ebb_record *r, const ebb_replay_part *part)
{
    loader *l = arg;
    ebb_job *job = l->job;
    if (part == NULL) {
        if (r->job != job->id || (r->kind == EBB_RECORD_PUSH && r->n_parts != job->chunk_count)) {
            snprintf(l->why, 256, "journal record %llu does not belong to this job", (unsigned long long)r->lsn);
            return EBB_CORRUPT;
        }
        l->records++;
        job->lsn = r->lsn;
        job->version = r->version > job->version ? r->version : job->version;
        return EBB_OK;
    }
    if (part->chunk < job->first_chunk || part->chunk - job->first_chunk >= job->chunk_count ||
        part->numel != job->chunks[part->chunk - job->first_chunk].numel) {
        snprintf(l->why, 256, "journal record %llu: chunk %u is not this shard's, or of another size", (unsigned long long)r->lsn, part->chunk);
        return EBB_CORRUPT;
    }
    ebb_chunk_state *c = &job->chunks[part->chunk - job->first_chunk];
    if (c->lsn >= r->lsn) {
        return EBB_OK; // the chunk's row is newer than this record
    }
    if (c->version + 1 != r->version) { // every push carries every chunk
        snprintf(l->why, 256, "journal record %llu makes version %llu, but chunk %u stands at version %llu before it", (unsigned long long)r->lsn,
                 (unsigned long long)r->version, part->chunk, (unsigned long long)c->version);
        return EBB_CORRUPT;
    }
    l->applied++;
    return ebb_chunk_state_apply(c, &job->optimizer, part->data, r->version, r->weight, r->lsn);
}

// Without an install row there must be no other: else the job would begin anew, as if nothing had been.
static ebb_status s_check_empty(ebb_kvstore *kv, char *why)
{
    const uint8_t *key, *value;
    size_t key_len, len;
    ebb_kviter *it = NULL;
    EBB_TRY(ebb_kviter_open(kv, NULL, 0, &it));
    bool any = ebb_kviter_next(it, &key, &key_len, &value, &len);
    ebb_status st = any ? EBB_CORRUPT : ebb_kviter_status(it);
    ebb_kviter_close(&it);
    if (st != EBB_OK) {
        snprintf(why, 256, "the install row is missing, though there are others");
    }
    return st;
}

static ebb_status s_load_job(ebb_kvstore *kv, ebb_job **out, char *why)
{
    uint8_t *install = NULL, *manifest = NULL;
    size_t install_len = 0, manifest_len = 0;
    ProtobufCMessage *msg = NULL;
    const char *row = "install";
    ebb_status st = ebb_row_get(kv, "I", 1, &install, &install_len);
    if (st == EBB_NOENT) {
        return s_check_empty(kv, why);
    }
    if (st == EBB_OK) {
        row = "manifest";
        st = ebb_row_get(kv, "M", 1, &manifest, &manifest_len);
    }
    if (st == EBB_OK) {
        row = "install";
        st = ebb_pb_unpack(&ebb__shard_install__descriptor, install, install_len, &msg);
    }
    if (st != EBB_OK) {
        snprintf(why, 256, "the %s row cannot be read: %s", row, ebb_status_str(st));
        st = st == EBB_NOENT || st == EBB_PROTO ? EBB_CORRUPT : st;
    } else {
        st = ebb_job_new((const Ebb__ShardInstall *)msg, manifest, manifest_len, out, why);
    }
    ebb_pb_free(msg);
    free(install);
    free(manifest);
    return st;
}

// All chunks of a snapshot without journal are of one instant.
static ebb_status s_check_instant(const ebb_job *job, uint32_t loaded, uint64_t watermark_lsn, char *why)
{
    if (watermark_lsn > job->lsn) {
        snprintf(why, 256, "a watermark names lsn %llu, the snapshot ends at %llu", (unsigned long long)watermark_lsn, (unsigned long long)job->lsn);
        return EBB_CORRUPT;
    }
    if (job->version > 0 && loaded != job->chunk_count) {
        snprintf(why, 256, "the snapshot of version %llu has %u chunks of %u", (unsigned long long)job->version, loaded, job->chunk_count);
        return EBB_CORRUPT;
    }
    for (uint32_t i = 0; i < job->chunk_count; i++) {
        if (job->chunks[i].version != job->version || job->chunks[i].lsn > job->lsn) {
            snprintf(why, 256, "chunk %u is of version %llu and lsn %llu, the snapshot of %llu and %llu", job->chunks[i].id,
                     (unsigned long long)job->chunks[i].version, (unsigned long long)job->chunks[i].lsn, (unsigned long long)job->version,
                     (unsigned long long)job->lsn);
            return EBB_CORRUPT;
        }
    }
    return EBB_OK;
}

static ebb_status s_replay(ebb_journal *journal, loader *l, char *why)
{
    ebb_job *job = l->job;
    uint64_t floor = job->lsn; // of the state row: a journal that ends before it was cut
    uint64_t after = UINT64_MAX, newest = 0;
    for (uint32_t i = 0; i < job->chunk_count; i++) {
        after = job->chunks[i].lsn < after ? job->chunks[i].lsn : after;
        newest = job->chunks[i].lsn > newest ? job->chunks[i].lsn : newest;
        job->version = job->chunks[i].version > job->version ? job->chunks[i].version : job->version;
    }
    if (job->chunk_count == 0) {
        after = newest = floor; // no chunk says what the journal held: the state row does
    }
    uint64_t last = 0;
    EBB_TRY(ebb_journal_replay(journal, after, s_on_record, l, &last, why));
    if (last < newest && last != 0) {
        snprintf(why, 256, "the journal ends at record %llu, but a chunk holds record %llu", (unsigned long long)last, (unsigned long long)newest);
        return EBB_CORRUPT;
    }
    if (last == 0 && after != newest) {
        snprintf(why, 256, "journal records %llu to %llu are missing", (unsigned long long)after + 1, (unsigned long long)newest);
        return EBB_CORRUPT;
    }
    job->lsn = last > newest ? last : newest;
    if (floor > job->lsn) {
        snprintf(why, 256, "the state row names journal record %llu, but the journal ends at %llu", (unsigned long long)floor,
                 (unsigned long long)job->lsn);
        return EBB_CORRUPT;
    }
    if (l->watermark_lsn > job->lsn) {
        snprintf(why, 256, "a watermark names journal record %llu, but the journal ends at %llu", (unsigned long long)l->watermark_lsn,
                 (unsigned long long)job->lsn);
        return EBB_CORRUPT;
    }
    for (uint32_t i = 0; i < job->chunk_count; i++) {
        if (job->chunks[i].version != job->version) {
            snprintf(why, 256, "chunk %u ends at version %llu, the shard at %llu", job->chunks[i].id, (unsigned long long)job->chunks[i].version,
                     (unsigned long long)job->version);
            return EBB_CORRUPT;
        }
    }
    return EBB_OK;
}

ebb_status ebb_recover_job(const char *dir, ebb_kvstore *kv, ebb_journal *journal, ebb_job **out, char *why)
{
    char text[256] = "";
    uint64_t start = ebb_clock_ms();
    ebb_job *job = NULL;
    loader l = {.why = text};
    uint32_t loaded = 0;
    *out = NULL;
    ebb_status st;
    EBB_TRY_GOTO(s_load_job(kv, &job, text), st, fail);
    if (job == NULL) {
        return EBB_OK;
    }
    l.job = job;
    st = ebb_snapshot_get_state(kv, &job->generation, &job->lsn, &job->version, &job->skipped);
    if (st != EBB_OK) {
        snprintf(text, sizeof(text), "the state row: %s", ebb_status_str(st));
        st = st == EBB_NOENT ? EBB_CORRUPT : st;
        goto fail;
    }
    EBB_TRY_GOTO(ebb_snapshot_load(kv, job->generation, job->chunks, job->first_chunk, job->chunk_count, &loaded, text), st, fail);
    EBB_TRY_GOTO(ebb_recover_load_retired(kv, &job->streams, text), st, fail);
    EBB_TRY_GOTO(ebb_journal_watermarks(kv, s_on_watermark, &l, text), st, fail);
    if (job->durability == EBB_DURABILITY_SNAPSHOT) {
        EBB_TRY_GOTO(s_check_instant(job, loaded, l.watermark_lsn, text), st, fail);
        if (!ebb_kvstore_is_read_only(kv)) {
            EBB_TRY_GOTO(ebb_kvstore_sync(kv), st, fail); // a process killed within the flip may have left it in the page cache only
            EBB_TRY_GOTO(ebb_snapshot_drop_below(kv, job->generation), st, fail); // a crash may have left an older one
        }
    } else {
        EBB_TRY_GOTO(s_replay(journal, &l, text), st, fail);
        // What a killed process wrote may still be in the page cache only; the watermarks are reported as durable, so make them so.
        if (!ebb_kvstore_is_read_only(kv)) {
            EBB_TRY_GOTO(ebb_kvstore_sync(kv), st, fail);
        }
    }
    EBB_LOG(INFO, "recover", "recovered", "job=%016llx version=%llu lsn=%llu chunks=%u rows=%u records=%llu applied=%llu streams=%zu ms=%llu",
            (unsigned long long)job->id, (unsigned long long)job->version, (unsigned long long)job->lsn, job->chunk_count, loaded,
            (unsigned long long)l.records, (unsigned long long)l.applied, job->streams.n, (unsigned long long)(ebb_clock_ms() - start));
    *out = job;
    return EBB_OK;
fail:
    snprintf(why, WHY, "%.200s: %s", dir, text[0] != '\0' ? text : ebb_status_str(st));
    ebb_job_free(&job);
    return st;
}
