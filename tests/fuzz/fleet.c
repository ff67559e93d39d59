#include "tests/fuzz/fleet.h"

#include <stdlib.h>
#include <string.h>

static Ebb__JobSpec *s_spec(const fleet_options *o)
{
    Ebb__JobSpec spec = EBB__JOB_SPEC__INIT;
    Ebb__ModelSpec model = EBB__MODEL_SPEC__INIT;
    Ebb__DataSpec data = EBB__DATA_SPEC__INIT;
    Ebb__OptimizerSpec optimizer = EBB__OPTIMIZER_SPEC__INIT;
    Ebb__OptimizerGroup group = EBB__OPTIMIZER_GROUP__INIT, *groups[2] = {&group, &group};
    Ebb__ConsistencySpec consistency = EBB__CONSISTENCY_SPEC__INIT;
    Ebb__AutoscaleSpec scale = EBB__AUTOSCALE_SPEC__INIT;
    ProtobufCMessage *copy = NULL;
    model.family = "counter";
    model.numel = FLEET_NUMEL;
    data.format = "none";
    data.train_samples = o->train_samples;
    data.val_samples = o->val_samples;
    optimizer.name = "sgd";
    optimizer.groups = groups;
    optimizer.n_groups = 2;
    optimizer.schedule = "constant";
    consistency.mode = "async";
    consistency.staleness_weight = "off";
    scale.up_at = 0.8;
    scale.down_at = 0.4;
    scale.up_step = 4;
    scale.down_step = 2;
    scale.down_window_ms = 5000;
    spec.name = "fuzz";
    spec.model = &model;
    spec.data = &data;
    spec.optimizer = &optimizer;
    spec.consistency = &consistency;
    spec.autoscale = &scale;
    spec.durability = o->snapshot ? "snapshot" : "journal";
    spec.shards = o->shards;
    spec.workers_min = o->workers_min;
    spec.workers_max = o->workers_max;
    spec.steps = o->steps;
    spec.batch = o->batch;
    spec.unit_steps = o->unit_steps;
    spec.seed = 1;
    spec.eval_every = o->eval_every;
    spec.lease_ms = o->lease_ms;
    spec.chunk_elems = FLEET_CHUNK_ELEMS;
    FUZZ_OK(ebb_pb_dup(&spec.base, &copy));
    return (Ebb__JobSpec *)copy;
}

ebb_status fleet_open(fleet *f, const fleet_options *options, char *why)
{
    Ebb__JobSpec *spec = options != NULL ? s_spec(options) : NULL;
    f->c = malloc(sizeof(*f->c));
    FUZZ_CHECK(f->c != NULL);
    ebb_status st = ebb_coordinator_open(f->c, FLEET_DIR, &spec, f->now, why);
    if (spec != NULL) {
        ebb_pb_free(&spec->base);
    }
    if (st != EBB_OK) {
        free(f->c);
        f->c = NULL;
    }
    return st;
}

void fleet_close(fleet *f)
{
    if (f->c != NULL) {
        ebb_coordinator_close(f->c);
        free(f->c);
        f->c = NULL;
    }
}

bool fleet_ask_message(fleet *f, const ebb_msg *request, ebb_msg *reply)
{
    Ebb__Envelope answer = EBB__ENVELOPE__INIT;
    const ebb_part *part = NULL;
    ebb_trash trash = {0};
    ebb_frames frames;
    const char *why = NULL;
    answer.request_id = request->env->request_id;
    ebb_coordinator_handle(f->c, request, f->now, &answer, &part, &trash);
    bool said = f->c->failure == EBB_OK; // after a failed write nothing more is said
    if (said) {
        ebb_frames_init(&frames);
        FUZZ_OK(ebb_msg_pack(&answer, part, part != NULL, &frames));
        FUZZ_OK(ebb_msg_unpack(&frames, true, reply, &why));
        ebb_frames_fini(&frames);
        FUZZ_CHECK(reply->env->request_id == request->env->request_id && ebb_status_name((int)reply->env->status)[0] != '?');
        FUZZ_CHECK(reply->env->status == EBB_OK || reply->env->detail[0] != '\0'); // a refusal says why
    }
    ebb_trash_fini(&trash);
    return said;
}

bool fleet_ask(fleet *f, Ebb__Envelope *env, const ebb_part *part, ebb_msg *reply)
{
    ebb_frames frames;
    ebb_msg request;
    const char *why = NULL;
    ebb_frames_init(&frames);
    env->request_id = f->request_id != 0 ? f->request_id : 1;
    if (ebb_msg_pack(env, part, part != NULL, &frames) != EBB_OK) {
        return false;
    }
    ebb_status st = ebb_msg_unpack(&frames, true, &request, &why);
    ebb_frames_fini(&frames);
    if (st != EBB_OK) {
        return false;
    }
    bool said = fleet_ask_message(f, &request, reply);
    ebb_msg_fini(&request);
    return said;
}

void fleet_manifest(uint32_t chunks, ebb_part *part)
{
    ebb_manifest *m = NULL;
    uint8_t *bytes = NULL;
    size_t len = 0;
    uint64_t numel = (uint64_t)chunks * FLEET_CHUNK_ELEMS;
    FUZZ_OK(ebb_manifest_new(&m, FLEET_CHUNK_ELEMS));
    FUZZ_OK(ebb_manifest_add(m, "count", 1, &numel, EBB_INIT_ZEROS, 0, 1));
    FUZZ_OK(ebb_manifest_seal(m));
    FUZZ_OK(ebb_manifest_pack(m, &bytes, &len));
    *part = (ebb_part){.kind = EBB_PART_MANIFEST, .dtype = EBB_DTYPE_BYTES, .numel = len};
    FUZZ_OK(ebb_buf_dup(bytes, len, &part->buf));
    ebb_part_seal(part);
    free(bytes);
    ebb_manifest_free(&m);
}
