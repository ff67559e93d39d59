#define _GNU_SOURCE // nftw
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/bytes.h"
#include "core/log.h"

_Noreturn void fuzz_fail(const char *file, int line, const char *what, const char *more)
{
    dprintf(STDERR_FILENO, "%s:%d: does not hold: %s%s%s\n", file, line, what, more != NULL ? ": " : "", more != NULL ? more : "");
    abort();
}

// ---- bytes ----

static uint64_t s_take(fuzz_in *in, size_t n)
{
    uint8_t word[8] = {0};
    size_t got = n < in->left ? n : in->left;
    if (got > 0) {
        memcpy(word, in->at, got);
        in->at += got;
        in->left -= got;
    }
    return ebb_get_le64(word);
}

uint8_t fuzz_u8(fuzz_in *in)
{
    return (uint8_t)s_take(in, 1);
}

uint32_t fuzz_u32(fuzz_in *in)
{
    return (uint32_t)s_take(in, 4);
}

uint64_t fuzz_u64(fuzz_in *in)
{
    return s_take(in, 8);
}

uint64_t fuzz_number(fuzz_in *in)
{
    static const uint64_t edges[] = {UINT64_MAX, UINT64_MAX - 1, 1ull << 63, INT64_MAX,  UINT32_MAX, 1ull << 32, INT32_MAX,  1ull << 31,
                                     1ull << 40, UINT16_MAX,     1ull << 20, 1000000000, 4096,       4097,       1ull << 52, 1ull << 48};
    uint8_t b = fuzz_u8(in);
    if (b < 0xe0) {
        return b;
    }
    return b < 0xf0 ? edges[b - 0xe0] : fuzz_u64(in);
}

const uint8_t *fuzz_bytes(fuzz_in *in, size_t *len)
{
    size_t n = (size_t)s_take(in, 2);
    const uint8_t *at = in->at;
    *len = n < in->left ? n : in->left;
    in->at += *len;
    in->left -= *len;
    return at;
}

void fuzz_text(fuzz_in *in, char *out, size_t size)
{
    size_t n;
    const uint8_t *bytes = fuzz_bytes(in, &n);
    n = n < size - 1 ? n : size - 1;
    n = strnlen((const char *)bytes, n);
    memcpy(out, bytes, n);
    out[n] = '\0';
}

// ---- quiet ----

static void s_no_line(void *arg, ebb_log_level level, const char *line)
{
    (void)arg;
    (void)level;
    (void)line;
}

void fuzz_quiet(void)
{
    static bool done;
    if (done) {
        return;
    }
    done = true;
    ebb_log_set_level(EBB_LOG_ERROR);
    ebb_log_set_sink(s_no_line, NULL);
    if (freopen("/dev/null", "w", stdout) == NULL) {
        fuzz_fail(__FILE__, __LINE__, "stdout can be turned away", NULL);
    }
}

// ---- files ----

static char s_folder[PATH_MAX / 2];

static int s_remove_one(const char *path, const struct stat *info, int kind, struct FTW *ftw)
{
    (void)info, (void)kind, (void)ftw;
    return remove(path);
}

static void s_remove_folder(void)
{
    nftw(s_folder, s_remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

const char *fuzz_folder(void)
{
    if (s_folder[0] == '\0') {
        const char *base = getenv("TMPDIR");
        snprintf(s_folder, sizeof(s_folder), "%.1000s/ebb-fuzz-XXXXXX", base != NULL && base[0] == '/' ? base : "/tmp");
        if (mkdtemp(s_folder) == NULL) {
            fuzz_fail(__FILE__, __LINE__, "a scratch folder can be made in", s_folder);
        }
        atexit(s_remove_folder);
    }
    return s_folder;
}

const char *fuzz_file(const char *leaf, const void *data, size_t len)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", fuzz_folder(), leaf);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || write(fd, data, len) != (ssize_t)len || close(fd) != 0) {
        fuzz_fail(__FILE__, __LINE__, "a scratch file can be written", path);
    }
    return path;
}

void fuzz_unlink(const char *leaf)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", fuzz_folder(), leaf);
    unlink(path);
}
