// Changes to the rows of a store: what a disk, or an encoder with a bug, may hold.
#ifndef EBB_TESTS_FUZZ_ROWS_H
#define EBB_TESTS_FUZZ_ROWS_H

#include "tests/fuzz/fuzz.h"

typedef struct fuzz_row {
    uint8_t key[64], value[1024];
    size_t key_len, len;
} fuzz_row;

// One change, from the input: kind u8, row u8 (counted round), and
//   0 flip     at u16, bits u8, repair u8        1 field    of the value: at u8, width u8, number, repair u8
//   2 rekey    field of the key, as 1            3 resize   bytes u8 (from 128: longer), repair u8
//   4 delete                                     5 copy     to another key, as 2
//   6 a row of its own: key, value (no row u8)
// repair (may be NULL) makes the checksums right again, unless the repair byte says 3.
void fuzz_change_row(ebb_kvstore *kv, fuzz_in *in, void (*repair)(fuzz_row *row));

#endif
