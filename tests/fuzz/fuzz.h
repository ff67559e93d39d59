// What every fuzz target stands on: bytes in, checks that end the process, stores and files that cost nothing.
//
// A target is one file with LLVMFuzzerTestOneInput, and keeps nothing from one input to the next. Built by clang it is a fuzzer; linked with replay.c it is
// a test that any compiler builds.
#ifndef EBB_TESTS_FUZZ_FUZZ_H
#define EBB_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/kvstore.h"
#include "core/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

// A property that does not hold: says which, and aborts, so that the fuzzer keeps the input.
#define FUZZ_CHECK(cond)                                \
    do {                                                \
        if (!(cond)) {                                  \
            fuzz_fail(__FILE__, __LINE__, #cond, NULL); \
        }                                               \
    } while (0)
#define FUZZ_OK(expr)                                                             \
    do {                                                                          \
        ebb_status fuzz_st_ = (expr);                                             \
        if (fuzz_st_ != EBB_OK) {                                                 \
            fuzz_fail(__FILE__, __LINE__, #expr, ebb_status_name((int)fuzz_st_)); \
        }                                                                         \
    } while (0)
_Noreturn void fuzz_fail(const char *file, int line, const char *what, const char *more);

// ---- bytes of the input, from the front; what is not there reads as zero ----

typedef struct fuzz_in {
    const uint8_t *at;
    size_t left;
} fuzz_in;

uint8_t fuzz_u8(fuzz_in *in);
uint32_t fuzz_u32(fuzz_in *in); // little-endian, as everything here
uint64_t fuzz_u64(fuzz_in *in);
// A number as a state machine meets them: mostly small, sometimes at an edge (2^32, 2^63, 2^64 - 1, ...), sometimes any.
uint64_t fuzz_number(fuzz_in *in);
// Length (u16), then that many bytes, or those that are left; borrowed from the input.
const uint8_t *fuzz_bytes(fuzz_in *in, size_t *len);
// The same as text: copied, with a NUL behind it and none in it. At most size - 1 bytes.
void fuzz_text(fuzz_in *in, char *out, size_t size);

// ---- quiet ----

// No log lines, and nothing on stdout (once per process): what is printed costs more than what is tested.
void fuzz_quiet(void);

// ---- files, for what is only read from a path ----

// Writes the bytes as the file `leaf` in the process's scratch folder (made at the first call, removed at exit). Returns its path: valid until the next call.
const char *fuzz_file(const char *leaf, const void *data, size_t len);
const char *fuzz_folder(void);
void fuzz_unlink(const char *leaf);

// ---- the store in memory (memstore.c) ----
// memstore.c defines all of core/kvstore.h, so that a target linked with it has no RocksDB. A store is found again under its folder's name after it was
// closed, as on a disk.

void memstore_reset(void); // all stores are gone; none may be open
// The next write fails and latches its store; with effect: it is on the "disk" all the same, as an unknown outcome may be. After close and open it works again.
void memstore_fail_next(bool effect);

#endif
