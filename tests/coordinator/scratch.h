// A scratch folder per test, and files in it.
#ifndef EBB_TESTS_COORDINATOR_SCRATCH_H
#define EBB_TESTS_COORDINATOR_SCRATCH_H

#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/check.h"

typedef struct scratch {
    char dir[64];
    char path[128]; // of the last file named
} scratch;

static inline void scratch_init(scratch *s)
{
    strcpy(s->dir, "/tmp/ebb-coord-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
}

static inline const char *scratch_path(scratch *s, const char *leaf)
{
    snprintf(s->path, sizeof(s->path), "%s/%s", s->dir, leaf);
    return s->path;
}

static inline const char *scratch_file(scratch *s, const char *leaf, const char *text)
{
    FILE *f = fopen(scratch_path(s, leaf), "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
    return s->path;
}

static inline int scratch_remove_one(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info, (void)kind, (void)ftw;
    return remove(path);
}

static inline void scratch_fini(scratch *s)
{
    nftw(s->dir, scratch_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

#endif
