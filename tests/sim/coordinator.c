// A coordinator process: the product's core, fed with messages and ticks as coordinator/rpc.c feeds it.
#include "coordinator/coordinator.h"

#include <stdlib.h>
#include <string.h>

#include "core/assert.h"
#include "core/clock.h"
#include "tests/sim/sim.h"

#define DIR "coordinator"
#define TICK_MS 50

enum { TIMER_TICK = 1 };

struct ebb_coordinator *sim_coordinator_core(proc *p)
{
    return p->self;
}

// After a failed write nothing more is said, and the process ends.
static void s_look(proc *p)
{
    const ebb_coordinator *c = p->self;
    if (c->failure != EBB_OK) {
        if (!p->excused && p->dying == DEATH_NONE) {
            sim_violate(p->world, "the coordinator gave up (%s) although its disk is fine", ebb_status_name(c->failure));
        }
        sim_die(p, DEATH_EXIT);
    }
}

static void s_message(proc *p, uint32_t from, ebb_msg *msg, ebb_status st, const ebb_frames *frames)
{
    (void)st;
    (void)frames;
    if (msg == NULL) {
        return; // nobody to answer
    }
    ebb_coordinator *c = p->self;
    Ebb__Envelope reply = EBB__ENVELOPE__INIT;
    ebb_trash trash = {0};
    const ebb_part *part = NULL;
    reply.request_id = msg->env->request_id;
    ebb_coordinator_handle(c, msg, ebb_clock_ms(), &reply, &part, &trash);
    s_look(p);
    if (p->dying == DEATH_NONE) {
        if (reply.body_case == EBB__ENVELOPE__BODY_LEASE_REPLY) {
            check_lease(p, reply.lease_reply, msg->env->body_case == EBB__ENVELOPE__BODY_LEASE_REQUEST ? msg->env->lease_request->incarnation : 0);
        }
        sim_send_env(p, from, &reply, part, part != NULL ? 1 : 0);
    }
    ebb_trash_fini(&trash);
}

static void s_timer(proc *p, uint32_t timer, uint64_t arg)
{
    (void)timer;
    (void)arg;
    ebb_coordinator_tick(p->self, ebb_clock_ms());
    s_look(p);
    if (p->dying == DEATH_NONE) {
        sim_timer(p->world, p->uid, TICK_MS * MS, TIMER_TICK, 0);
    }
}

static void s_end(proc *p)
{
    ebb_coordinator *c = p->self;
    if (c != NULL) {
        ebb_coordinator_close(c);
        free(c);
    }
}

bool sim_coordinator_start(proc *p)
{
    sim *s = p->world;
    char why[512] = "";
    ProtobufCMessage *spec = NULL;
    ebb_coordinator *c = malloc(sizeof(*c));
    ebb_status st = ebb_pb_dup(&s->spec->base, &spec);
    EBB_ASSERT(c != NULL && st == EBB_OK);
    Ebb__JobSpec *mine = (Ebb__JobSpec *)spec;
    sim_disk_mount(DIR, s->coordinator_disk, sim_disk_hook, p);
    st = ebb_coordinator_open(c, DIR, &mine, ebb_clock_ms(), why);
    if (mine != NULL) {
        ebb_pb_free(&mine->base);
    }
    if (st != EBB_OK) {
        free(c);
        if (!p->excused && p->dying == DEATH_NONE) {
            sim_violate(s, "the coordinator does not come back: %s", why);
        }
        return false;
    }
    p->self = c;
    s->recoveries++;
    s_look(p); // the first event is written during open
    sim_timer(s, p->uid, 0, TIMER_TICK, 0);
    return p->dying == DEATH_NONE;
}

const role_ops sim_coordinator_ops = {s_message, s_timer, s_end};
