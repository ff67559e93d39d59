// Writes the seed corpus: fuzz_seeds FOLDER makes FOLDER/<noun>/<name>, with the encoders that the programs use. Run after a format has changed:
//
//   build/debug/tests/fuzz/fuzz_seeds tests/fuzz/corpus
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/bytes.h"
#include "core/manifest.h"
#include "core/process.h"
#include "core/wire.h"
#include "tests/fuzz/fuzz.h"
#include "tools/ebb/rundir.h"
#include "tools/ebb/safetensors.h"
#include "worker/models/model.h"

typedef struct bytes {
    uint8_t at[1 << 16];
    size_t n;
} bytes;

static const char *s_root;

static void s_u8(bytes *b, unsigned v)
{
    FUZZ_CHECK(b->n < sizeof(b->at));
    b->at[b->n++] = (uint8_t)v;
}

static void s_raw(bytes *b, const void *data, size_t len)
{
    for (size_t i = 0; i < len; i++) {
        s_u8(b, ((const uint8_t *)data)[i]);
    }
}

// As fuzz_bytes takes them.
static void s_counted(bytes *b, const void *data, size_t len)
{
    FUZZ_CHECK(len <= UINT16_MAX);
    s_u8(b, len & 255);
    s_u8(b, len >> 8);
    s_raw(b, data, len);
}

static void s_write(const char *noun, const char *name, const void *data, size_t len)
{
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", s_root, noun);
    FUZZ_OK(ebb_mkdirs(path));
    snprintf(path, sizeof(path), "%s/%s/%s", s_root, noun, name);
    FILE *f = fopen(path, "wbe");
    if (f == NULL || fwrite(data, 1, len, f) != len || fclose(f) != 0) {
        fprintf(stderr, "fuzz_seeds: cannot write %s: %s\n", path, strerror(errno));
        exit(73);
    }
}

static void s_keep(const char *noun, const char *name, const bytes *b)
{
    s_write(noun, name, b->at, b->n);
}

static void s_text(const char *noun, const char *name, const char *text)
{
    s_write(noun, name, text, strlen(text));
}

// ---- wire: each kind of message with each of its fields set ----

static void s_varint(bytes *b, uint64_t v)
{
    for (; v >= 128; v >>= 7) {
        s_u8(b, (unsigned)(v & 127) | 128);
    }
    s_u8(b, (unsigned)v);
}

static void s_fields(bytes *b, const ProtobufCMessageDescriptor *desc);

static void s_field(bytes *b, const ProtobufCFieldDescriptor *f)
{
    static const double real = 1.5;
    static const float small = 0.5f;
    static bytes inner[8];
    static int depth;
    bool scalar = f->type != PROTOBUF_C_TYPE_STRING && f->type != PROTOBUF_C_TYPE_BYTES && f->type != PROTOBUF_C_TYPE_MESSAGE;
    switch (f->type) {
    case PROTOBUF_C_TYPE_DOUBLE:
        s_varint(b, f->id << 3 | 1);
        s_raw(b, &real, sizeof(real));
        break;
    case PROTOBUF_C_TYPE_FLOAT:
        s_varint(b, f->id << 3 | 5);
        s_raw(b, &small, sizeof(small));
        break;
    case PROTOBUF_C_TYPE_STRING:
        s_varint(b, f->id << 3 | 2);
        s_u8(b, 2);
        s_raw(b, "w0", 2);
        break;
    case PROTOBUF_C_TYPE_MESSAGE: {
        bytes *sub = &inner[depth++];
        FUZZ_CHECK(depth <= 8);
        sub->n = 0;
        s_fields(sub, f->descriptor);
        s_varint(b, f->id << 3 | 2);
        s_varint(b, sub->n);
        s_raw(b, sub->at, sub->n);
        depth--;
        break;
    }
    default:
        FUZZ_CHECK(scalar);
        s_varint(b, f->id << 3);
        s_varint(b, f->type == PROTOBUF_C_TYPE_BOOL || f->type == PROTOBUF_C_TYPE_ENUM ? 1 : f->id);
        break;
    }
}

static void s_fields(bytes *b, const ProtobufCMessageDescriptor *desc)
{
    for (unsigned i = 0; i < desc->n_fields; i++) {
        s_field(b, &desc->fields[i]);
    }
}

static void s_message(const char *name, Ebb__Envelope *env, const ebb_part *parts, size_t n_parts)
{
    static bytes out;
    ebb_frames frames;
    ebb_frames_init(&frames);
    FUZZ_OK(ebb_msg_pack(env, parts, n_parts, &frames));
    out.n = 0;
    s_u8(&out, 3);
    for (size_t i = 0; i < frames.n; i++) {
        s_counted(&out, frames.frame[i]->data, frames.frame[i]->len);
    }
    s_keep("wire", name, &out);
    ebb_frames_fini(&frames);
}

static void s_wire(void)
{
    static bytes b;
    const ProtobufCMessageDescriptor *desc = &ebb__envelope__descriptor;
    float values[2] = {1, -2};
    ebb_part parts[2];
    for (int i = 0; i < 2; i++) {
        parts[i] = (ebb_part){.kind = EBB_PART_GRAD, .chunk = (uint32_t)i, .version = 5, .numel = 2};
        FUZZ_OK(ebb_buf_dup(values, sizeof(values), &parts[i].buf));
        ebb_part_seal(&parts[i]);
    }
    for (unsigned i = 0; i < desc->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &desc->fields[i];
        ProtobufCMessage *msg = NULL;
        if (f->type != PROTOBUF_C_TYPE_MESSAGE || ((const ProtobufCMessageDescriptor *)f->descriptor)->n_fields < 3) {
            continue; // what is in the short ones is in the long ones too
        }
        b.n = 0;
        s_field(&b, f);
        FUZZ_OK(ebb_pb_unpack(desc, b.at, b.n, &msg));
        ((Ebb__Envelope *)msg)->request_id = 7;
        s_message(f->name, (Ebb__Envelope *)msg, parts, f->id >= 40 && f->id < 44 ? 2 : 0);
        ebb_pb_free(msg);
    }
    for (int i = 0; i < 2; i++) {
        ebb_buf_unref(&parts[i].buf);
    }
}

// ---- manifests ----

static void s_manifest(const char *name, const ebb_model_config *config, uint32_t chunk_elems)
{
    static bytes out;
    ebb_manifest *m = NULL;
    uint8_t *packed = NULL;
    size_t len = 0;
    char why[256];
    FUZZ_OK(ebb_model_manifest(config, chunk_elems, &m, why));
    FUZZ_OK(ebb_manifest_pack(m, &packed, &len));
    out.n = 0;
    s_u8(&out, 1);
    s_raw(&out, packed, len);
    s_keep("manifest", name, &out);
    free(packed);
    ebb_manifest_free(&m);
}

static void s_manifests(void)
{
    s_manifest("counter", &(ebb_model_config){.family = "counter", .numel = 50}, 16);
    s_manifest("mlp", &(ebb_model_config){.family = "mlp", .sizes = {4, 3, 2}, .n_sizes = 3}, 16);
    s_manifest("gpt", &(ebb_model_config){.family = "gpt", .layers = 1, .width = 8, .heads = 2, .context = 4, .vocab = 256}, 1024);
}

// ---- files ----

static void s_safetensors(void)
{
    static bytes out;
    float values[6] = {1, 2, 3, 4, 5, 6};
    ebb_st_tensor t[3] = {{.name = "a", .ndim = 2, .ne = {2, 3}, .data = values, .numel = 6},
                          {.name = "b.bias", .ndim = 1, .ne = {3}, .data = values, .numel = 3},
                          {.name = "s", .ndim = 0, .data = values, .numel = 1}};
    ebb_st_meta meta = {.key = "format", .value = "pt"};
    char why[512], path[PATH_MAX];
    ebb_rundir r;
    size_t len = 0;
    snprintf(path, sizeof(path), "%s/seed.safetensors", fuzz_folder());
    FUZZ_OK(ebb_safetensors_write(path, t, 3, &meta, 1, why));
    ebb_rundir_name(&r, fuzz_folder());
    char *file = ebb_rundir_read(&r, "seed.safetensors", &len);
    FUZZ_CHECK(file != NULL && len > 8);
    out.n = 0;
    s_u8(&out, 0);
    s_raw(&out, file, len);
    s_keep("safetensors", "whole", &out);
    size_t header = (size_t)ebb_get_le64((const uint8_t *)file);
    out.n = 0;
    s_u8(&out, 1);
    s_counted(&out, file + 8, header);
    s_raw(&out, file + 8 + header, len - 8 - header);
    s_keep("safetensors", "parts", &out);
    free(file);
}

static void s_datasets(void)
{
    static bytes out;
    static const char csv[] = "1,2,0\n3,4.5,1\r\n\n-5e3,6,2\n7,8,0\n.5,1,1\n2,3,9\n4,5,1";
    out.n = 0;
    s_raw(&out, "\0\0\x14\2", 4);
    s_raw(&out, csv, sizeof(csv) - 1);
    s_keep("dataset", "csv", &out);
    out.n = 0;
    s_raw(&out, "\1\3\x14\2", 4);
    s_raw(&out, "In the beginning God created the heaven and the earth.\n\xff And", 60);
    s_keep("dataset", "bytes", &out);
}

static void s_rundirs(void)
{
    static bytes out;
    static const char job[] = EBB_RUNDIR_MARK "name: c\n", sock[] = "/tmp/ebb-abc\n";
    static const char result[] =
        "{\"state\":\"STOPPED\",\"reason\":\"interrupted\",\"steps_done\":12,\"steps_total\":40,\"evals\":[{\"step\":10,\"loss\":1.25}]}";
    static const char events[] =
        "{\"kind\":\"event\",\"event\":\"job-created\",\"id\":1,\"unix_ms\":1700000000000,\"subject\":\"c\",\"text\":\"steps=40\"}\n"
        "{\"kind\":\"event\",\"event\":\"eval\",\"id\":2,\"unix_ms\":1700000000500,\"subject\":\"w0\",\"text\":\"loss=1.2\"}\n";
    static const char metrics[] = "{\"steps_done\":1,\"loss\":2.5}\n";
    out.n = 0;
    s_u8(&out, 31);
    s_counted(&out, job, sizeof(job) - 1);
    s_counted(&out, sock, sizeof(sock) - 1);
    s_counted(&out, result, sizeof(result) - 1);
    s_counted(&out, events, sizeof(events) - 1);
    s_counted(&out, metrics, sizeof(metrics) - 1);
    s_keep("rundir", "stopped", &out);
}

static void s_jobs(void)
{
    s_text("jobspec", "counter.yaml",
           "name: counter\nseed: 1\nmodel: {family: counter, numel: 100000}\ndata: {format: none}\noptimizer: {name: sgd, lr: 1.0}\nshards: 2\n"
           "workers: {min: 2, max: 2}\nbatch: 1\nsteps: 2000\nunit_steps: 20\nlease: 2s\nchunk_elems: 10000 # several\n");
    s_text("jobspec", "mlp.yaml",
           "name: mlp\nmodel: {family: mlp, sizes: [2, 5, 2]}\ndata: {path: digits.csv, format: csv, val_fraction: 0.2, scale: 0.0625}\n"
           "optimizer:\n  name: adam\n  lr: 2.0e-3\n  schedule: {kind: linear, warmup_steps: 20, min_lr_ratio: 0.1}\nbatch: 2\npasses: 40\n"
           "unit_steps: 8\neval: {every: 500}\n");
    s_text("jobspec", "gpt.yaml",
           "name: gpt\nmodel: {family: gpt, layers: 2, width: 16, heads: 4, context: 4, vocab: 256}\ndata: {path: kjv.txt}\n"
           "optimizer:\n  name: adamw\n  betas: [0.9, 0.95]\n  weight_decay: 0.1\n  clip_norm: 1.0\n"
           "  groups: {vectors: {lr_scale: 0.5, weight_decay: 1e-3}}\nbatch: 2\nsteps: 400\ndurability: fsync\n"
           "consistency: {staleness_weight: inverse, look_ahead: 0.5}\nautoscale: {up_window: 1m, down_at: 0.25}\n"
           "checkpoint: {journal_bytes: 1MiB, interval: 1.5s}\nworkers: {min: 1, max: 4}\n");
}

// ---- sequences ----

static void s_sequences(void)
{
    static bytes out;
    // job: pushes of two streams, damaged ones between, snapshots, crashes, a skip, a retired stream; for each durability and optimizer
    static const uint8_t ops[] = {0, 1, 0, 0, 0,   3,  0,  0, 1, 0,  0, 1,  5,  0, 0, 2, 0, 0, 2, 251, 0, 15, 0,  1,  255, 0, 0,
                                  3, 0, 0, 1, 1,   0,  12, 3, 0, 10, 1, 0,  11, 8, 2, 0, 0, 2, 0, 1,   1, 7,  0,  12, 1,   0, 0,
                                  0, 0, 0, 0, 240, 63, 14, 0, 9, 64, 1, 11, 13, 3, 0, 0, 4, 0, 0, 0,   2, 0,  15, 10, 7,   0, 11};
    for (unsigned config = 0; config < 3; config++) {
        char name[32];
        out.n = 0;
        s_u8(&out, config | (config == 1 ? 4 : 0) | (config + 1) << 3);
        s_u8(&out, config == 1 ? 2 : 0);
        s_raw(&out, ops, sizeof(ops));
        snprintf(name, sizeof(name), "mixed%u", config);
        s_keep("job", name, &out);
    }
    // row: each kind of change once
    static const uint8_t changes[] = {0, 0, 9, 0, 1, 0, 1, 3, 8, 3, 5, 0, 3, 9, 4, 0, 4, 2, 5, 7, 4, 0, 9, 0, 2, 6, 1, 7, 2, 0};
    out.n = 0;
    s_u8(&out, 0);
    s_keep("row", "untouched", &out);
    s_raw(&out, changes, sizeof(changes));
    s_keep("row", "changed", &out);
    s_keep("statestore", "changed", &out);
    out.n = 1;
    s_keep("statestore", "untouched", &out);
    // coordinator: a job from its beginning to its end, with a death, a restart and a return; honest and not, with and without evaluations
    static const uint8_t start[] = {0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 16};
    static const uint8_t life[] = {2, 0, 0, 0, 2, 1, 0, 0, 10, 0, 0, 10, 0, 0, 10, 1,  0,  13, 0, 0,  13, 0, 4, 17, 19, 2, 4, 0,  2, 0, 0, 0,  0, 0,
                                   0, 0, 0, 5, 0, 0, 0, 0, 0,  0, 0, 7,  1, 1, 22, 16, 13, 0,  1, 16, 8,  0, 3, 0,  0,  0, 0, 21, 0, 0, 0, 19, 5};
    for (unsigned config = 0; config < 3; config++) {
        char name[32];
        out.n = 0;
        s_u8(&out, (config != 2) | 2 | (config == 1 ? 16 | 8 : 0));
        s_raw(&out, "\x06\x01\x10", 3);
        s_raw(&out, start, sizeof(start));
        for (int i = 0; i < 4; i++) {
            s_raw(&out, life, sizeof(life));
        }
        snprintf(name, sizeof(name), "life%u", config);
        s_keep("coordinator", name, &out);
    }
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
        return 64;
    }
    s_root = argv[1];
    s_wire();
    s_manifests();
    s_safetensors();
    s_datasets();
    s_rundirs();
    s_jobs();
    s_sequences();
    return 0;
}
