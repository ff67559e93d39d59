// Any file into ebb_safetensors_open. What is accepted lies within the file: every tensor, end to end, in order and nothing behind.
//
// Input: flags u8, then the file. flags 1: the length field is put in front: the rest is header length u16, header, data. That way the header is reached
// and its length need not be guessed.
#include <stdlib.h>
#include <string.h>

#include "core/bytes.h"
#include "tests/fuzz/fuzz.h"
#include "tools/ebb/safetensors.h"

static void s_check(const ebb_st_file *f)
{
    const uint8_t *map = f->map, *end = map + f->len;
    uint64_t header = ebb_get_le64(map);
    const uint8_t *next = map + 8 + header;
    for (size_t i = 0; i < f->n; i++) {
        const ebb_st_tensor *t = &f->tensors[i];
        const uint8_t *from = (const uint8_t *)t->data;
        uint64_t numel = 1;
        FUZZ_CHECK(t->ndim <= EBB_TENSOR_NDIM_MAX && t->name[0] != '\0' && strlen(t->name) < sizeof(t->name));
        for (uint32_t d = 0; d < t->ndim; d++) {
            numel *= t->ne[d];
        }
        FUZZ_CHECK(numel == t->numel);
        FUZZ_CHECK(from == next && t->numel <= (size_t)(end - from) / sizeof(float));
        FUZZ_CHECK((uintptr_t)from % sizeof(float) == 0);
        FUZZ_CHECK(ebb_safetensors_find(f, t->name) == t);
        next = from + t->numel * sizeof(float);
    }
    FUZZ_CHECK(next == end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_in in = {data, size};
    uint8_t flags = fuzz_u8(&in);
    const char *path;
    if ((flags & 1) != 0) {
        size_t len;
        const uint8_t *header = fuzz_bytes(&in, &len);
        uint8_t *file = malloc(8 + len + in.left);
        FUZZ_CHECK(file != NULL);
        ebb_put_le64(file, len);
        memcpy(file + 8, header, len + in.left); // the data follow the header
        path = fuzz_file("f.safetensors", file, 8 + len + in.left);
        free(file);
    } else {
        path = fuzz_file("f.safetensors", in.at, in.left);
    }
    ebb_st_file f;
    char why[512] = "";
    ebb_status st = ebb_safetensors_open(path, &f, why);
    if (st == EBB_OK) {
        s_check(&f);
    } else {
        FUZZ_CHECK(st == EBB_CORRUPT && strstr(why, path) != NULL && f.map == NULL && f.tensors == NULL);
    }
    ebb_safetensors_close(&f);
    return 0;
}
