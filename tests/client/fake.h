// A fake shard and a fake coordinator for tests of the client and the worker: real sockets and the real wire, an honest little parameter server (plain
// SGD, watermarks per stream, pins) that misbehaves only as told.
#ifndef EBB_TESTS_CLIENT_FAKE_H
#define EBB_TESTS_CLIENT_FAKE_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/manifest.h"
#include "core/net.h"

typedef enum fake_action {
    FAKE_OBEY = 0,
    FAKE_DROP,       // as if the request never came
    FAKE_DROP_REPLY, // do it, but the answer is lost
    FAKE_SLOW,       // answer 300 ms later
    FAKE_TRYLATER,
    FAKE_STALE,
    FAKE_BAD_VALUE,
    FAKE_WRONGSHARD,
    FAKE_CORRUPT, // do it, but a byte of the first part flips on the way back
    FAKE_GARBAGE, // answer with bytes that are no message
} fake_action;

// Decides about each request (not pings). Runs on the shard's thread.
typedef fake_action fake_decide(void *arg, const Ebb__Envelope *env);

#define FAKE_STREAMS 256
#define FAKE_LOG 4096

typedef struct fake_push {
    uint64_t stream, seq, base_version;
    int verdict;
    uint32_t attempt;
    bool want_pull;
    double look_ahead;
} fake_push;

typedef struct fake_shard {
    ebb_net *net;
    char endpoint[EBB_ENDPOINT_MAX];
    const ebb_manifest *manifest;
    uint32_t shard;
    _Atomic uint32_t first_chunk, chunk_count; // what other threads may look at or change while it runs is atomic; the rest only while it is stopped
    float lr;
    float *params; // whole vector; only the range is used
    float *pinned;
    uint64_t pin, pinned_version;
    uint64_t version;
    _Atomic uint64_t incarnation, epoch;
    _Atomic uint64_t applied[FAKE_STREAMS]; // by stream id
    uint64_t chunk_version[EBB_PARTS_MAX];
    _Atomic(fake_decide *) decide; // set decide_arg first
    void *decide_arg;
    _Atomic uint32_t credit;
    fake_push log[FAKE_LOG]; // pushes in order of arrival (obeyed or refused by verdict)
    _Atomic uint32_t n_log;
    _Atomic uint64_t pulls, whole_pulls;
    _Atomic bool stop, mute; // mute: reads and ignores everything, pings too
    bool running;
    pthread_t thread;
} fake_shard;

// Parameters start as the manifest's initial values for `seed`.
void fake_shard_init(fake_shard *s, ebb_net *net, const char *endpoint, const ebb_manifest *m, uint32_t shard, uint32_t first, uint32_t count,
                     uint64_t seed);
void fake_shard_start(fake_shard *s); // new incarnation, state kept
void fake_shard_stop(fake_shard *s);  // as kill -9: unanswered requests are lost
void fake_shard_fini(fake_shard *s);

#define FAKE_LEASES 64
typedef struct fake_coordinator {
    ebb_net *net;
    char endpoint[EBB_ENDPOINT_MAX];
    Ebb__JobSpec *spec;           // borrowed
    const ebb_manifest *manifest; // what is registered; NULL: nothing until a worker registers
    uint64_t manifest_hash;
    fake_shard **shards;
    _Atomic uint32_t n_shards;
    _Atomic uint64_t epoch;
    // leases handed out in this order, then LEASE_FINISHED (or, with hold, LEASE_NONE)
    struct {
        int kind;
        uint64_t stream, seq_first, seq_last, eval_id;
    } lease[FAKE_LEASES];
    _Atomic uint32_t n_leases, next_lease;
    bool hold;
    bool skip_answer;
    // what was heard: read the atomic count before what it counts
    _Atomic uint32_t joins, maps, beats, returns, evals, leaves, skips, manifests;
    uint64_t returned_lease[FAKE_LEASES], returned_seq[FAKE_LEASES];
    char returned_reason[FAKE_LEASES][64];
    double eval_loss, eval_accuracy;
    uint64_t eval_samples;
    double loss_sum;
    uint64_t loss_count, steps;
    uint64_t first_gradient_ms, samples, tokens;
    // orders
    _Atomic bool drain;
    _Atomic uint64_t lose_lease; // told as lost in the next beats
    _Atomic bool stop;
    bool running;
    pthread_t thread;
} fake_coordinator;

void fake_coordinator_init(fake_coordinator *c, ebb_net *net, const char *endpoint, Ebb__JobSpec *spec, const ebb_manifest *m, fake_shard **shards,
                           uint32_t n_shards);
void fake_coordinator_start(fake_coordinator *c);
void fake_coordinator_stop(fake_coordinator *c);

// A small manifest: tensors of odd sizes, cut into chunks of at most chunk_elems.
ebb_manifest *fake_manifest(uint32_t chunk_elems);

// Spec with every submessage present; static storage, fields to be changed by the test.
typedef struct fake_spec {
    Ebb__JobSpec job;
    Ebb__ModelSpec model;
    Ebb__DataSpec data;
    Ebb__OptimizerSpec optimizer;
    Ebb__ConsistencySpec consistency;
} fake_spec;
void fake_spec_init(fake_spec *s);

#endif
