#define _GNU_SOURCE // nftw, open_memstream
// Damage of a coordinator's folder on disk: a flipped bit, a file cut short, a file gone. It is found and named, or what comes back is the same row for row.
// EBB_FLIPS and EBB_CUTS set how many.
#include "tests/support/counterstore.h"
#include "tests/support/damage.h"
#include "tests/support/scratch.h"

#include "coordinator/statecheck.h"

// Not a trial, but likewise in a process of its own.
static void s_build(const char *dir, damage_result *out)
{
    counterstore_write(dir);
    out->recover = EBB_OK;
}

static void s_trial(const char *dir, damage_result *out)
{
    ebb_statestore *s = NULL;
    char *text = NULL;
    size_t len = 0;
    FILE *null = fopen("/dev/null", "w"), *memory = open_memstream(&text, &len);
    uint64_t before = damage_hash_folder(dir);
    out->check = ebb_statecheck(dir, EBB_ROWLINE_LOGFMT, null, null);
    out->changed_by_check = damage_hash_folder(dir) != before;
    out->recover = ebb_statestore_open(dir, &s, out->why);
    if (out->recover == EBB_OK) {
        ebb_statestore_close(&s);
        out->recover = ebb_statedump(dir, EBB_ROWLINE_JSON, memory, null);
        snprintf(out->why, sizeof(out->why), "the rows cannot all be read");
        fflush(memory);
        out->state = damage_hash(0, text, len);
    }
    fclose(memory);
    fclose(null);
    free(text);
}

static void test_damage_is_named_or_harmless(void **state)
{
    (void)state;
    scratch s;
    damage_image image;
    damage_result r;
    char dir[128];
    uint64_t seed = ebb_test_seed();
    scratch_init(&s);
    snprintf(dir, sizeof(dir), "%s", scratch_path(&s, "coordinator"));
    damage_run(s_build, dir, "building", &r);
    damage_load(&image, dir);
    damage_rounds("coordinator", &image, scratch_path(&s, "trial"), s_trial, seed, damage_count("EBB_FLIPS", 120), damage_count("EBB_CUTS", 60));
    damage_free(&image);
    scratch_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_damage_is_named_or_harmless),
    };
    return cmocka_run_group_tests_name("coordinator.damage", tests, NULL, NULL);
}
