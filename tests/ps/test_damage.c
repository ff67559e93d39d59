#define _GNU_SOURCE // nftw
// Damage of a shard's folder on disk: a flipped bit, a file cut short, a file gone. It is found and named, or what comes back is the same to the last bit.
// EBB_FLIPS and EBB_CUTS set how many (of each folder).
#include "tests/support/countershard.h"
#include "tests/support/damage.h"
#include "tests/support/scratch.h"

#include "ps/check.h"

typedef struct folder {
    const char *name, *durability;
    bool killed; // as kill -9 leaves it: the store was never closed
} folder;

static const folder s_folders[] = {{"journal", "journal", false}, {"fsync, killed", "fsync", true}, {"snapshot", "snapshot", false}};

static const folder *s_folder;
static damage_image s_image;

static void s_take_image(void *arg)
{
    damage_load(&s_image, arg);
    damage_case none = {.kind = DAMAGE_NONE};
    char copy[256];
    snprintf(copy, sizeof(copy), "%s.killed", (const char *)arg);
    damage_write(&s_image, copy, &none);
    damage_free(&s_image);
}

// Not a trial, but likewise in a process of its own.
static void s_build(const char *dir, damage_result *out)
{
    counterjob_write_shard(dir, s_folder->durability, s_folder->killed ? s_take_image : NULL, (void *)(uintptr_t)dir);
    out->recover = EBB_OK;
}

static uint64_t s_hash_job(const ebb_job *job)
{
    const uint64_t numbers[] = {job->id,      job->epoch,       job->version,   job->lsn,
                                job->skipped, job->chunk_count, job->streams.n, job->streams.retired_below};
    uint64_t h = damage_hash(0, numbers, sizeof(numbers));
    for (uint32_t i = 0; i < job->chunk_count; i++) {
        const ebb_chunk_state *c = &job->chunks[i];
        const uint64_t of_chunk[] = {c->id, c->numel, c->n_bufs, c->version, c->lsn, c->steps};
        h = damage_hash(h, of_chunk, sizeof(of_chunk));
        for (uint32_t k = 0; k < c->n_bufs; k++) {
            h = damage_hash(h, c->buf[k]->data, c->buf[k]->len);
        }
    }
    for (size_t i = 0; i < job->streams.n; i++) {
        const uint64_t of_stream[] = {job->streams.at[i].id, job->streams.at[i].applied};
        h = damage_hash(h, of_stream, sizeof(of_stream));
    }
    return damage_hash(h, job->streams.retired, job->streams.n_retired * sizeof(uint64_t));
}

static void s_trial(const char *dir, damage_result *out)
{
    ebb_kvstore *kv = NULL;
    ebb_journal journal;
    ebb_job *job = NULL;
    FILE *null = fopen("/dev/null", "w");
    uint64_t before = damage_hash_folder(dir);
    out->check = ebb_check(dir, EBB_ROWLINE_LOGFMT, null, null);
    out->changed_by_check = damage_hash_folder(dir) != before;
    out->recover = ebb_recover_open(dir, 0, &kv, out->why);
    if (out->recover == EBB_OK) {
        out->recover = ebb_journal_init(&journal, kv);
        assert_int_equal(out->recover, EBB_OK);
        out->recover = ebb_recover_job(dir, kv, &journal, &job, out->why);
        out->state = job != NULL ? s_hash_job(job) : 1;
        ebb_job_free(&job);
        ebb_journal_fini(&journal);
        ebb_kvstore_close(&kv);
    }
    fclose(null);
}

static void test_damage_is_named_or_harmless(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed(), flips = damage_count("EBB_FLIPS", 80), cuts = damage_count("EBB_CUTS", 40);
    for (size_t i = 0; i < sizeof(s_folders) / sizeof(s_folders[0]); i++) {
        scratch s;
        damage_result r;
        char dir[128], killed[160];
        scratch_init(&s);
        s_folder = &s_folders[i];
        snprintf(dir, sizeof(dir), "%s", scratch_path(&s, "shard"));
        damage_run(s_build, dir, "building", &r);
        snprintf(killed, sizeof(killed), "%s.killed", dir);
        damage_load(&s_image, s_folder->killed ? killed : dir);
        damage_rounds(s_folder->name, &s_image, scratch_path(&s, "trial"), s_trial, seed + i, flips, cuts);
        damage_free(&s_image);
        scratch_fini(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damage_is_named_or_harmless),
    };
    return cmocka_run_group_tests_name("ps.damage", tests, NULL, NULL);
}
