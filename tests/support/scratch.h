// A scratch folder per test, and files in it.
#ifndef EBB_TESTS_SUPPORT_SCRATCH_H
#define EBB_TESTS_SUPPORT_SCRATCH_H

#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/check.h"

typedef struct scratch {
    char dir[64];
    char path[256]; // of the last file named
} scratch;

static inline void scratch_init(scratch *s)
{
    strcpy(s->dir, "/tmp/ebb-test-XXXXXX");
    assert_non_null(mkdtemp(s->dir));
}

static inline const char *scratch_path(scratch *s, const char *leaf)
{
    snprintf(s->path, sizeof(s->path), "%s/%s", s->dir, leaf);
    return s->path;
}

static inline void scratch_bytes(scratch *s, const char *leaf, const void *data, size_t len)
{
    FILE *f = fopen(scratch_path(s, leaf), "w");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static inline const char *scratch_text(scratch *s, const char *leaf, const char *text)
{
    scratch_bytes(s, leaf, text, strlen(text));
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
