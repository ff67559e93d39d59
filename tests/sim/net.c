// The network: messages as core/wire packs them. Each one may be lost, doubled, late by seconds (so: reordered), damaged, or blocked by a partition, which is
// one-way. After the last fault it only takes its time. Payload buffers travel by reference, as with ZeroMQ: whoever writes one that is under way changes
// what arrives.
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "tests/sim/sim.h"

#define LOST_IN_STORM_PPM 300000

uint32_t sim_node(const proc *p)
{
    return p->role == ROLE_COORDINATOR ? 0 : p->role == ROLE_SHARD ? 1 + p->index : 1 + SIM_SHARDS + p->index;
}

static uint32_t s_node_of(const sim *s, uint32_t to)
{
    return to == SERVICE_COORDINATOR ? 0 : to >= SERVICE_SHARD ? 1 + (to - SERVICE_SHARD) : sim_node(s->procs[to]);
}

static void s_copy(const ebb_frames *from, ebb_frames *to)
{
    ebb_frames_init(to);
    for (size_t i = 0; i < from->n; i++) {
        ebb_buf *ref = ebb_buf_ref(from->frame[i]);
        ebb_status st = ebb_frames_add_take(to, &ref);
        EBB_ASSERT(st == EBB_OK);
    }
}

// One frame is not what was sent. A payload or its table loses a bit, which their checksums tell; an envelope, which has none, becomes noise or loses its end.
static void s_damage(sim *s, ebb_frames *frames)
{
    size_t i = dice_below(&s->dice, frames->n);
    ebb_buf *old = frames->frame[i], *bad = NULL;
    size_t len = i == 0 ? dice_below(&s->dice, old->len + 1) : old->len;
    ebb_status st = ebb_buf_new(len, &bad);
    EBB_ASSERT(st == EBB_OK);
    if (i == 0) {
        for (size_t k = 0; k < len; k++) {
            bad->data[k] = (uint8_t)dice_next(&s->dice);
        }
    } else {
        memcpy(bad->data, old->data, len);
        if (len > 0) {
            bad->data[dice_below(&s->dice, len)] ^= (uint8_t)(1u << dice_below(&s->dice, 8));
        }
    }
    frames->bytes = frames->bytes - old->len + len;
    ebb_buf_unref(&frames->frame[i]);
    frames->frame[i] = bad;
}

static void s_deliver(sim *s, uint32_t from, uint32_t to, ebb_frames *frames)
{
    const sim_config *c = &s->config;
    event e = {.kind = EVENT_MESSAGE, .to = to, .from = from};
    uint64_t delay = 20 + dice_below(&s->dice, 2ull * c->delay_us);
    if (!s->healed) {
        delay += dice_ppm(&s->dice, c->late_ppm) ? dice_below(&s->dice, c->late_ms) * MS : 0;
        if (dice_ppm(&s->dice, c->damage_ppm)) {
            s_damage(s, frames);
        }
    }
    e.at = s->now + delay;
    e.frames = *frames;
    ebb_frames_init(frames);
    sim_push_event(s, &e);
}

void sim_send(proc *from, uint32_t to, ebb_frames *frames)
{
    sim *s = from->world;
    bool lost = from->dying != DEATH_NONE;
    if (!lost && !s->healed) {
        lost = s->blocked_until[sim_node(from)][s_node_of(s, to)] > s->now || dice_ppm(&s->dice, s->config.drop_ppm) ||
               (s->storm_until > s->now && dice_ppm(&s->dice, LOST_IN_STORM_PPM));
        if (!lost && dice_ppm(&s->dice, s->config.dup_ppm)) {
            ebb_frames twin;
            s_copy(frames, &twin);
            s_deliver(s, from->uid, to, &twin);
        }
    }
    if (!lost) {
        s_deliver(s, from->uid, to, frames);
    }
    ebb_frames_fini(frames);
}

void sim_send_env(proc *from, uint32_t to, Ebb__Envelope *env, const ebb_part *parts, size_t n_parts)
{
    ebb_frames frames;
    ebb_frames_init(&frames);
    ebb_status st = ebb_msg_pack(env, parts, n_parts, &frames);
    EBB_ASSERT(st == EBB_OK);
    sim_send(from, to, &frames);
}

static int s_describe_report(const Ebb__ShardReport *r, char *out, size_t size)
{
    int n = snprintf(out, size, "report %" PRIu64 " of shard-%u", (uint64_t)r->report, r->shard);
    for (size_t j = 0; j < r->n_jobs; j++) {
        n += snprintf(out + n, size - (size_t)n, " version=%" PRIu64 "%s", (uint64_t)r->jobs[j]->version, r->jobs[j]->full ? " full" : "");
        for (size_t i = 0; i < r->jobs[j]->n_watermarks && (size_t)n < size - 40; i++) {
            const Ebb__Watermark *w = r->jobs[j]->watermarks[i];
            n += snprintf(out + n, size - (size_t)n, " %" PRIu64 ":%" PRIu64 "/%" PRIu64, (uint64_t)w->stream, (uint64_t)w->applied,
                          (uint64_t)w->durable);
        }
    }
    return n;
}

void sim_describe(const ebb_msg *msg, char out[SIM_TEXT])
{
    static const char *const verdicts[] = {"NONE", "APPLIED", "DUPLICATE", "GAP", "STALE", "BAD_VALUE"};
    const size_t size = SIM_TEXT / 2;
    const Ebb__Envelope *e = msg->env;
    switch (e->body_case) {
    case EBB__ENVELOPE__BODY_PUSH_REQUEST:
        snprintf(out, size, "push %" PRIu64 ".%" PRIu64 " attempt=%u base=%" PRIu64, (uint64_t)e->push_request->stream,
                 (uint64_t)e->push_request->seq, e->push_request->attempt, (uint64_t)e->push_request->base_version);
        break;
    case EBB__ENVELOPE__BODY_PUSH_REPLY:
        snprintf(out, size, "push-reply %s status=%u version=%" PRIu64 " applied=%" PRIu64 " durable=%" PRIu64, verdicts[e->push_reply->verdict % 6],
                 e->status, (uint64_t)e->push_reply->version, (uint64_t)e->push_reply->applied, (uint64_t)e->push_reply->durable);
        break;
    case EBB__ENVELOPE__BODY_LEASE_REPLY:
        snprintf(out, size, "lease-reply kind=%d lease=%" PRIu64 " unit=%" PRIu64 " steps %" PRIu64 "..%" PRIu64, (int)e->lease_reply->kind,
                 (uint64_t)e->lease_reply->lease, (uint64_t)e->lease_reply->stream, (uint64_t)e->lease_reply->seq_first,
                 (uint64_t)e->lease_reply->seq_last);
        break;
    case EBB__ENVELOPE__BODY_LEASE_RETURN:
        snprintf(out, size, "lease-return %" PRIu64 " done=%" PRIu64, (uint64_t)e->lease_return->lease, (uint64_t)e->lease_return->seq_done);
        break;
    case EBB__ENVELOPE__BODY_SKIP_REQUEST:
        snprintf(out, size, "skip-request %" PRIu64 ".%" PRIu64, (uint64_t)e->skip_request->stream, (uint64_t)e->skip_request->seq);
        break;
    case EBB__ENVELOPE__BODY_SHARD_REPORT:
        s_describe_report(e->shard_report, out, size);
        break;
    case EBB__ENVELOPE__BODY_SHARD_REPORT_REPLY:
        snprintf(out, size, "orders%s retired_below=%" PRIu64 " retired=%zu skips=%zu%s%s", e->shard_report_reply->install != NULL ? " install" : "",
                 (uint64_t)e->shard_report_reply->retired_below, e->shard_report_reply->n_retired, e->shard_report_reply->n_skips,
                 e->shard_report_reply->want_full ? " want_full" : "", e->shard_report_reply->snapshot ? " snapshot" : "");
        break;
    default: {
        const ProtobufCFieldDescriptor *f = protobuf_c_message_descriptor_get_field(&ebb__envelope__descriptor, (unsigned)e->body_case);
        snprintf(out, size, "%s status=%u parts=%zu", f != NULL ? f->name : "no-body", e->status, msg->n_parts);
        break;
    }
    }
}
