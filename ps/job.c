#include "ps/job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"

static ebb_status s_check_install(const Ebb__ShardInstall *in, const ebb_manifest *m, char *why)
{
    if (in->job == 0 || in->spec == NULL) {
        snprintf(why, 256, "the install order has no job or no spec");
        return EBB_INVAL;
    }
    uint64_t hash = ebb_manifest_hash(m);
    if (hash != in->manifest_hash) {
        snprintf(why, 256, "the manifest's hash is %016llx, the install order says %016llx", (unsigned long long)hash,
                 (unsigned long long)in->manifest_hash);
        return EBB_INVAL;
    }
    if (in->first_chunk > m->n_chunks || in->chunk_count > m->n_chunks - in->first_chunk) {
        snprintf(why, 256, "chunks %u + %u are beyond the model's %zu", in->first_chunk, in->chunk_count, m->n_chunks);
        return EBB_INVAL;
    }
    if (in->chunk_count > EBB_PARTS_MAX) {
        snprintf(why, 256, "%u chunks on one shard do not fit one message (%d parts): use more shards or a larger chunk_elems", in->chunk_count,
                 EBB_PARTS_MAX);
        return EBB_CONFIG;
    }
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < in->chunk_count; i++) {
        bytes += (uint64_t)m->chunks[in->first_chunk + i].numel * sizeof(float);
    }
    if (bytes > EBB_MESSAGE_BYTES_MAX) {
        snprintf(why, 256, "%llu bytes of parameters on one shard do not fit one message (%llu): use more shards", (unsigned long long)bytes,
                 (unsigned long long)EBB_MESSAGE_BYTES_MAX);
        return EBB_CONFIG;
    }
    return EBB_OK;
}

static ebb_status s_durability(const char *word, ebb_durability *out, char *why)
{
    if (word[0] == '\0' || strcmp(word, "journal") == 0) {
        *out = EBB_DURABILITY_JOURNAL;
    } else if (strcmp(word, "fsync") == 0) {
        *out = EBB_DURABILITY_FSYNC;
    } else if (strcmp(word, "snapshot") == 0) {
        *out = EBB_DURABILITY_SNAPSHOT;
    } else {
        snprintf(why, 256, "durability \"%.60s\" is not known (known: fsync, journal, snapshot)", word);
        return EBB_CONFIG;
    }
    return EBB_OK;
}

ebb_status ebb_job_new(const Ebb__ShardInstall *install, const uint8_t *manifest, size_t manifest_len, ebb_job **out, char *why)
{
    ebb_status st;
    ebb_job *job = calloc(1, sizeof(*job));
    if (job == NULL) {
        return EBB_NOMEM;
    }
    ebb_streams_init(&job->streams);
    ebb_pins_init(&job->pins);
    ProtobufCMessage *copy = NULL;
    st = ebb_manifest_unpack(manifest, manifest_len, &job->manifest);
    if (st != EBB_OK) {
        snprintf(why, 256, "the manifest cannot be read: %s", ebb_status_str(st));
        goto fail;
    }
    EBB_TRY_GOTO(s_check_install(install, job->manifest, why), st, fail);
    EBB_TRY_GOTO(ebb_pb_dup(&install->base, &copy), st, fail);
    job->install = (Ebb__ShardInstall *)copy;
    job->id = install->job;
    job->epoch = install->epoch;
    job->first_chunk = install->first_chunk;
    job->generation = 1;
    EBB_TRY_GOTO(s_durability(install->spec->durability, &job->durability, why), st, fail);
    EBB_TRY_GOTO(ebb_optimizer_init(&job->optimizer, install->spec->optimizer, install->spec->steps, why), st, fail);
    EBB_TRY_GOTO(ebb_consistency_init(&job->consistency, install->spec->consistency, why), st, fail);
    for (size_t i = 0; i < job->manifest->n_tensors; i++) {
        if (job->manifest->tensors[i].group >= job->optimizer.n_groups) {
            snprintf(why, 256, "tensor %.100s is in optimizer group %u, but the job has %u groups", job->manifest->tensors[i].name,
                     job->manifest->tensors[i].group, job->optimizer.n_groups);
            st = EBB_CONFIG;
            goto fail;
        }
    }
    job->chunks = calloc(install->chunk_count > 0 ? install->chunk_count : 1, sizeof(*job->chunks));
    if (job->chunks == NULL) {
        st = EBB_NOMEM;
        goto fail;
    }
    for (uint32_t i = 0; i < install->chunk_count; i++) {
        EBB_TRY_GOTO(ebb_chunk_state_init(&job->chunks[i], job->manifest, install->spec->seed, install->first_chunk + i, job->optimizer.slots), st,
                     fail);
        job->chunk_count = i + 1;
    }
    *out = job;
    return EBB_OK;
fail:
    if (st == EBB_NOMEM) {
        snprintf(why, 256, "out of memory");
    }
    ebb_job_free(&job);
    return st;
}

void ebb_job_free(ebb_job **jp)
{
    ebb_job *job = *jp;
    if (job == NULL) {
        return;
    }
    *jp = NULL;
    for (uint32_t i = 0; i < job->chunk_count; i++) {
        ebb_chunk_state_fini(&job->chunks[i]);
    }
    free(job->chunks);
    ebb_pins_fini(&job->pins);
    ebb_streams_fini(&job->streams);
    ebb_manifest_free(&job->manifest);
    if (job->install != NULL) {
        ebb_pb_free(&job->install->base);
    }
    free(job);
}

// Exactly this shard's chunks, each once, of the right shape, all finite. Fills by_chunk. NULL: good.
static const char *s_check_parts(const ebb_job *job, const ebb_part *parts, size_t n, const ebb_part **by_chunk)
{
    if (n != job->chunk_count) {
        return "the number of parts is not the number of chunks on this shard";
    }
    for (size_t i = 0; i < n; i++) {
        const ebb_part *p = &parts[i];
        if (p->chunk < job->first_chunk || p->chunk - job->first_chunk >= job->chunk_count) {
            return "a part is for a chunk of another shard";
        }
        uint32_t at = p->chunk - job->first_chunk;
        if (by_chunk[at] != NULL) {
            return "two parts are for the same chunk";
        }
        if (p->kind != EBB_PART_GRAD || p->codec != EBB_CODEC_RAW || p->dtype != EBB_DTYPE_F32) {
            return "a part is not a raw float32 gradient";
        }
        if (p->numel != job->chunks[at].numel || p->buf->len != (size_t)p->numel * sizeof(float)) {
            return "a part has the wrong number of elements";
        }
        by_chunk[at] = p;
    }
    for (size_t i = 0; i < n; i++) {
        if (!ebb_optimizer_all_finite((const ebb_unaligned_f32 *)parts[i].buf->data, parts[i].numel)) {
            return "the gradient has a value that is not finite";
        }
    }
    return NULL;
}

ebb_status ebb_job_judge(ebb_job *job, const Ebb__PushRequest *req, const ebb_part *parts, size_t n_parts, ebb_push *out)
{
    memset(out, 0, sizeof(*out));
    if (req->job != job->id || req->epoch != job->epoch) {
        return EBB_WRONGSHARD;
    }
    out->parts = parts;
    if (req->seq == 0) {
        out->verdict = EBB__VERDICT__VERDICT_BAD_VALUE;
        out->why = "seq is 0, steps count from 1";
        return EBB_OK;
    }
    ebb_stream_verdict v = ebb_streams_verdict(&job->streams, req->stream, req->seq, &out->applied);
    if (v != EBB_STREAM_NEXT) {
        out->verdict = v == EBB_STREAM_DUPLICATE ? EBB__VERDICT__VERDICT_DUPLICATE : EBB__VERDICT__VERDICT_GAP;
        return EBB_OK;
    }
    float weight;
    if (ebb_consistency_judge(&job->consistency, job->version, req->base_version, &out->staleness, &weight) != EBB_OK) {
        out->verdict = EBB__VERDICT__VERDICT_STALE;
        out->why = req->base_version > job->version ? "computed at a version this shard does not have (it was rolled back)"
                                                    : "older than consistency.staleness_max";
        return EBB_OK;
    }
    out->by_chunk = calloc(job->chunk_count > 0 ? job->chunk_count : 1, sizeof(*out->by_chunk));
    if (out->by_chunk == NULL) {
        return EBB_NOMEM;
    }
    out->why = s_check_parts(job, parts, n_parts, out->by_chunk);
    if (out->why != NULL) {
        out->verdict = EBB__VERDICT__VERDICT_BAD_VALUE;
        return EBB_OK;
    }
    EBB_TRY(ebb_streams_advance(&job->streams, req->stream, req->seq, job->lsn + 1));
    job->lsn++;
    job->version++;
    out->verdict = EBB__VERDICT__VERDICT_APPLIED;
    out->applied = req->seq;
    out->record = (ebb_record){.kind = EBB_RECORD_PUSH,
                               .job = job->id,
                               .lsn = job->lsn,
                               .version = job->version,
                               .stream = req->stream,
                               .seq = req->seq,
                               .attempt = req->attempt,
                               .n_parts = (uint32_t)n_parts,
                               .staleness = out->staleness,
                               .weight = weight};
    return EBB_OK;
}

void ebb_push_fini(ebb_push *p)
{
    free(p->by_chunk);
    memset(p, 0, sizeof(*p));
}

ebb_status ebb_job_apply(ebb_job *job, const ebb_push *const *pushes, size_t n)
{
    for (uint32_t c = 0; c < job->chunk_count; c++) { // chunks outside, so that one chunk stays in cache over all pushes of the group
        for (size_t i = 0; i < n; i++) {
            const ebb_record *r = &pushes[i]->record;
            EBB_ASSERT(pushes[i]->verdict == EBB__VERDICT__VERDICT_APPLIED);
            EBB_TRY(ebb_chunk_state_apply(&job->chunks[c], &job->optimizer, pushes[i]->by_chunk[c]->buf->data, r->version, r->weight, r->lsn));
        }
    }
    return EBB_OK;
}

ebb_status ebb_job_skip(ebb_job *job, uint64_t stream, uint64_t seq, ebb_record *record)
{
    ebb_stream_verdict v = ebb_streams_verdict(&job->streams, stream, seq, NULL);
    if (seq == 0 || v == EBB_STREAM_DUPLICATE) {
        return EBB_DUPLICATE;
    }
    if (v == EBB_STREAM_GAP) {
        return EBB_GAP;
    }
    EBB_TRY(ebb_streams_advance(&job->streams, stream, seq, job->lsn + 1));
    job->lsn++;
    job->skipped++;
    *record =
        (ebb_record){.kind = EBB_RECORD_SKIP, .job = job->id, .lsn = job->lsn, .version = job->version, .stream = stream, .seq = seq, .weight = 1.0f};
    return EBB_OK;
}
