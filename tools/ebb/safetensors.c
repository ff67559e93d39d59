#include "tools/ebb/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HEADER_MAX (64u << 20)

static json_t *s_header(const ebb_st_tensor *tensors, size_t n, const ebb_st_meta *meta, size_t n_meta)
{
    json_t *header = json_object(), *about = json_object();
    uint64_t at = 0;
    for (size_t i = 0; i < n_meta; i++) {
        json_object_set_new(about, meta[i].key, json_string(meta[i].value));
    }
    json_object_set_new(header, "__metadata__", about);
    for (size_t i = 0; i < n; i++) {
        json_t *shape = json_array(), *offsets = json_array(), *entry = json_object();
        for (uint32_t d = 0; d < tensors[i].ndim; d++) {
            json_array_append_new(shape, json_integer((json_int_t)tensors[i].ne[d]));
        }
        json_array_append_new(offsets, json_integer((json_int_t)at));
        at += tensors[i].numel * 4;
        json_array_append_new(offsets, json_integer((json_int_t)at));
        json_object_set_new(entry, "dtype", json_string("F32"));
        json_object_set_new(entry, "shape", shape);
        json_object_set_new(entry, "data_offsets", offsets);
        json_object_set_new(header, tensors[i].name, entry);
    }
    return header;
}

ebb_status ebb_safetensors_write(const char *path, const ebb_st_tensor *tensors, size_t n, const ebb_st_meta *meta, size_t n_meta, char *why)
{
    // A file is replaced as a whole; a link's target is what is meant; a device or pipe must not be replaced by a file.
    char part[PATH_MAX], target[PATH_MAX];
    struct stat info;
    if (stat(path, &info) == 0 && !S_ISREG(info.st_mode)) {
        snprintf(why, 512, "%.400s is not a regular file: name a file to write", path);
        return EBB_CONFIG;
    }
    if (realpath(path, target) != NULL) {
        path = target;
    }
    snprintf(part, sizeof(part), "%.4000s.part", path);
    json_t *header = s_header(tensors, n, meta, n_meta);
    char *text = json_dumps(header, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(header);
    if (text == NULL) {
        return EBB_NOMEM;
    }
    size_t len = strlen(text), padded = (len + 7) / 8 * 8;
    uint8_t head[8];
    for (int i = 0; i < 8; i++) {
        head[i] = (uint8_t)((uint64_t)padded >> (8 * i));
    }
    FILE *f = fopen(part, "wbe");
    bool ok = f != NULL && fwrite(head, 1, 8, f) == 8 && fwrite(text, 1, len, f) == len && fwrite("        ", 1, padded - len, f) == padded - len;
    for (size_t i = 0; ok && i < n; i++) {
        ok = fwrite(tensors[i].data, 4, tensors[i].numel, f) == tensors[i].numel;
    }
    ok = ok && fflush(f) == 0 && fsync(fileno(f)) == 0;
    int err = errno;
    if (f != NULL && fclose(f) != 0) {
        ok = false;
        err = errno;
    }
    free(text);
    if (ok && rename(part, path) != 0) {
        ok = false;
        err = errno;
    }
    if (!ok) {
        snprintf(why, 512, "cannot write %.400s: %s", path, strerror(err));
        unlink(part);
        return EBB_IO;
    }
    return EBB_OK;
}

static int s_by_offset(const void *a, const void *b)
{
    const ebb_st_tensor *x = a, *y = b;
    if (x->data == y->data) {
        return (x->numel > y->numel) - (x->numel < y->numel); // an empty tensor lies before the one at its place
    }
    return (x->data > y->data) - (x->data < y->data);
}

// One entry of the header; the data pointer is set from its offsets.
static const char *s_entry(const char *name, json_t *entry, const uint8_t *data, uint64_t data_len, ebb_st_tensor *t)
{
    json_t *dtype = json_object_get(entry, "dtype"), *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    if (strlen(name) == 0 || strlen(name) >= sizeof(t->name)) {
        return "a tensor name is empty or too long";
    }
    if (!json_is_string(dtype) || strcmp(json_string_value(dtype), "F32") != 0) {
        return "a tensor is not of dtype F32";
    }
    if (!json_is_array(shape) || json_array_size(shape) > EBB_TENSOR_NDIM_MAX || !json_is_array(offsets) || json_array_size(offsets) != 2 ||
        !json_is_integer(json_array_get(offsets, 0)) || !json_is_integer(json_array_get(offsets, 1))) {
        return "shape or data_offsets is malformed";
    }
    strcpy(t->name, name);
    t->ndim = (uint32_t)json_array_size(shape);
    t->numel = 1;
    for (uint32_t d = 0; d < t->ndim; d++) {
        json_t *ne = json_array_get(shape, d);
        if (!json_is_integer(ne) || json_integer_value(ne) < 0) {
            return "a shape is not made of whole numbers";
        }
        t->ne[d] = (uint64_t)json_integer_value(ne);
        if (__builtin_mul_overflow(t->numel, t->ne[d], &t->numel)) {
            return "a shape is too large";
        }
    }
    json_int_t begin = json_integer_value(json_array_get(offsets, 0)), end = json_integer_value(json_array_get(offsets, 1));
    uint64_t bytes;
    if (begin < 0 || end < begin || (uint64_t)end > data_len || begin % 4 != 0 || __builtin_mul_overflow(t->numel, 4, &bytes) ||
        (uint64_t)(end - begin) != bytes) {
        return "data_offsets do not fit the shape or the file";
    }
    t->data = (const float *)(data + begin);
    return NULL;
}

static const char *s_check(ebb_st_file *f)
{
    const uint8_t *bytes = f->map;
    uint64_t header_len = 0;
    if (f->len < 8) {
        return "shorter than its length field";
    }
    for (int i = 0; i < 8; i++) {
        header_len |= (uint64_t)bytes[i] << (8 * i);
    }
    if (header_len > HEADER_MAX || header_len > f->len - 8 || header_len < 2 || bytes[8] != '{') {
        return "the header's length is wrong or it does not begin with {";
    }
    json_error_t error;
    json_t *header = json_loadb((const char *)bytes + 8, header_len, JSON_REJECT_DUPLICATES, &error);
    if (!json_is_object(header)) {
        json_decref(header);
        return "the header is not valid JSON";
    }
    const char *why = json_object_size(header) > EBB_TENSORS_MAX * 4 ? "too many tensors" : NULL, *name;
    json_t *entry;
    f->tensors = calloc(json_object_size(header) + 1, sizeof(*f->tensors));
    if (f->tensors == NULL) {
        why = "out of memory";
    }
    const uint8_t *data = bytes + 8 + header_len;
    uint64_t data_len = f->len - 8 - header_len;
    if (why == NULL && ((uintptr_t)data % 4) != 0) {
        why = "the data is not aligned to its elements";
    }
    json_t *about = json_object_get(header, "__metadata__"), *value;
    const char *key;
    if (why == NULL && about != NULL && !json_is_object(about)) {
        why = "__metadata__ is not an object";
    }
    json_object_foreach(about, key, value)
    {
        why = why == NULL && !json_is_string(value) ? "__metadata__ holds something other than text" : why;
    }
    json_object_foreach(header, name, entry)
    {
        if (why == NULL && strcmp(name, "__metadata__") != 0) {
            why = s_entry(name, entry, data, data_len, &f->tensors[f->n]);
            f->n += why == NULL;
        }
    }
    json_decref(header);
    if (why != NULL) {
        return why;
    }
    qsort(f->tensors, f->n, sizeof(*f->tensors), s_by_offset);
    uint64_t at = 0;
    for (size_t i = 0; i < f->n; i++) {
        if ((const uint8_t *)f->tensors[i].data != data + at) {
            return "tensors overlap or leave a gap";
        }
        at += f->tensors[i].numel * 4;
    }
    return at == data_len ? NULL : "there are bytes behind the last tensor";
}

ebb_status ebb_safetensors_open(const char *path, ebb_st_file *out, char *why)
{
    memset(out, 0, sizeof(*out));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0 || st.st_size == 0) {
        int err = fd < 0 ? errno : 0;
        snprintf(why, 512, "%.400s: %s", path, err ? strerror(err) : "empty file");
        if (fd >= 0) {
            close(fd);
        }
        return err == ENOENT ? EBB_NOENT : err ? EBB_IO : EBB_CORRUPT;
    }
    out->len = (size_t)st.st_size;
    out->map = mmap(NULL, out->len, PROT_READ, MAP_PRIVATE, fd, 0);
    close(fd);
    if (out->map == MAP_FAILED) {
        out->map = NULL;
        snprintf(why, 512, "%.400s: cannot be mapped: %s", path, strerror(errno));
        return EBB_IO;
    }
    const char *wrong = s_check(out);
    if (wrong != NULL) {
        snprintf(why, 512, "%.400s is not a usable safetensors file: %s", path, wrong);
        ebb_safetensors_close(out);
        return EBB_CORRUPT;
    }
    return EBB_OK;
}

void ebb_safetensors_close(ebb_st_file *f)
{
    if (f->map != NULL) {
        munmap(f->map, f->len);
    }
    free(f->tensors);
    memset(f, 0, sizeof(*f));
}

const ebb_st_tensor *ebb_safetensors_find(const ebb_st_file *f, const char *name)
{
    for (size_t i = 0; i < f->n; i++) {
        if (strcmp(f->tensors[i].name, name) == 0) {
            return &f->tensors[i];
        }
    }
    return NULL;
}
