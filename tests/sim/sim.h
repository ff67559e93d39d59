// One run: a coordinator, shards and workers in one process, on a virtual clock, from one seed.
//
// Invariant: a run is a function of its seed and the planted bug, bit for bit. So: no wall clock, no address, no thread, no chance but `dice`; events are
// ordered by (time, number). The hash over all events says whether two runs were the same.
//
//   world    sim.c       events, processes that die and come back, the trace
//   network  net.c       real packed messages; lost, late, doubled, reordered, damaged
//   faults   faults.c    what goes wrong, and when
//   checks   check.c     what must hold after every event
//   roles    shard.c, coordinator.c (the product, driven), worker.c (a model of the client and the trainer)
#ifndef EBB_TESTS_SIM_SIM_H
#define EBB_TESTS_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/manifest.h"
#include "core/shardmap.h"
#include "core/units.h"
#include "core/wire.h"
#include "tests/sim/dice.h"
#include "tests/sim/disk.h"

#define SIM_SHARDS 4
#define SIM_SEATS 6
#define SIM_UNITS 64
#define SIM_UNIT_STEPS 8
#define SIM_NODES (1 + SIM_SHARDS + SIM_SEATS)
#define SIM_TRACE 40
#define SIM_TEXT 200
#define MS 1000ull // the world counts microseconds

typedef struct sim sim;
typedef struct proc proc;

// ---- processes ----

typedef enum role { ROLE_COORDINATOR, ROLE_SHARD, ROLE_WORKER } role;

// How a process ends. EXIT: by itself, after a failed write or because it is done; to its disk that is a kill.
typedef enum death { DEATH_NONE, DEATH_EXIT, DEATH_KILL, DEATH_POWER } death;

// A fault that waits in a process's store for its `in`th operation from now; in 0: none waits.
typedef struct armed {
    uint32_t in;
    bool after;  // the operation is done first
    death death; // DEATH_NONE: an error of the disk, the process lives and has to notice
    bool reads;  // counts reads (else writes and syncs)
} armed;

struct proc {
    sim *world;
    role role;
    uint32_t uid, index; // index: shard's number, worker's seat
    uint64_t incarnation;
    bool up;
    death dying; // from here on nothing it does has an effect; it is gone when the event ends
    uint64_t paused_until;
    armed armed;
    bool excused;   // its disk failed: it may give up
    bool succeeded; // a worker that was told that the job is over
    void *self;     // the role's own
};

typedef struct role_ops {
    // msg: unpacked and checked; NULL: it could not be, and st says why (frames are as they came).
    void (*message)(proc *p, uint32_t from, ebb_msg *msg, ebb_status st, const ebb_frames *frames);
    void (*timer)(proc *p, uint32_t timer, uint64_t arg);
    void (*end)(proc *p); // frees self
} role_ops;

extern const role_ops sim_coordinator_ops, sim_shard_ops, sim_worker_ops;
// Start a process in p->self; false: it ended at once (p->dying says how).
bool sim_coordinator_start(proc *p);
bool sim_shard_start(proc *p);
bool sim_worker_start(proc *p);

// ---- the world ----

typedef struct sim_config {
    uint32_t shards, workers;
    const char *durability;
    bool survives_kill, survives_power; // what an acknowledgement promises at this level
    uint64_t steps;
    uint32_t train_samples, unit_steps, chunk_elems, lease_ms, inflight_max, snapshot_bytes, snapshot_ms, sync_ms;
    uint64_t numel, staleness_max;
    uint32_t bad_ppm;                       // steps nobody can compute
    uint32_t drop_ppm, dup_ppm, damage_ppm; // of messages, while faults last
    uint32_t late_ppm, late_ms;             // of these, some come that much later
    uint32_t delay_us;                      // the usual way takes up to twice this
    uint64_t fault_every_us, faults_until;
    uint32_t recovery_ppm; // chance that a fault waits for a process that starts
} sim_config;

// What one shard's processes have promised, and what was seen of the one that runs.
typedef struct shard_truth {
    uint64_t told_applied[SIM_UNITS], told_durable[SIM_UNITS];
    bool power, clean; // since the last recovery: a power loss; a clean end
    uint64_t seen_applied[SIM_UNITS], seen_durable[SIM_UNITS];
} shard_truth;

typedef struct lease_truth {
    uint64_t stream, incarnation;
} lease_truth;

typedef enum event_kind { EVENT_MESSAGE, EVENT_TIMER } event_kind;

typedef struct event {
    uint64_t at, no;
    event_kind kind;
    uint32_t to, from; // a process, or a service that whoever runs it now answers
    uint32_t timer;
    uint64_t arg;
    ebb_frames frames;
} event;

#define SERVICE_COORDINATOR 0xF0000000u
#define SERVICE_SHARD 0xF1000000u // + number
#define WORLD 0                   // uid of the world's own timers

struct sim {
    uint64_t seed, now, event_no, hash;
    dice dice;
    bool tracing; // every line goes to stdout
    sim_config config;
    ebb_plan plan;
    ebb_manifest *manifest;
    Ebb__JobSpec *spec;

    event *queue; // heap
    size_t n_queue, cap_queue;
    uint64_t next_no;

    proc **procs; // by uid; [0] is nobody
    uint32_t n_procs;
    proc *coordinator, *shard[SIM_SHARDS], *seat[SIM_SEATS]; // who runs now, or NULL
    sim_disk *coordinator_disk, *shard_disk[SIM_SHARDS];

    bool someone_dies; // in this event
    bool healed;       // faults are over
    uint64_t blocked_until[SIM_NODES][SIM_NODES];
    uint64_t storm_until;

    shard_truth truth[SIM_SHARDS];
    bool retired[SIM_UNITS];
    lease_truth *leases; // by lease id
    uint64_t n_leases;
    bool succeeded, finished;

    bool violated;
    char violation[512];
    char (*trace)[SIM_TEXT]; // ring
    uint64_t n_trace;
    // for the summary
    uint64_t messages, deaths, recoveries, pushes, skips;
};

typedef struct sim_result {
    bool violated;
    uint64_t hash, events, virtual_ms, messages, deaths, recoveries, steps;
} sim_result;

// Plays one seed to its end. A violation is printed (sentence, seed, event number, configuration, the last SIM_TRACE events) unless quiet; its sentence is
// copied to why (512 bytes, may be NULL).
sim_result sim_run(uint64_t seed, bool tracing, bool quiet, char *why);

extern sim *sim_now; // the run under way: what the shims ask

// ---- for the roles ----

void sim_violate(sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sim_note(sim *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *sim_name(const proc *p, char out[32]);
void sim_timer(sim *s, uint32_t uid, uint64_t in_us, uint32_t timer, uint64_t arg);
// The process ends with this event. The first death counts.
void sim_die(proc *p, death how);
proc *sim_who(const sim *s, uint32_t to); // the process that answers there now, or NULL
void sim_push_event(sim *s, event *e);    // takes its frames

// net.c: takes the frames. Nothing is sent by a process that is dying.
void sim_send(proc *from, uint32_t to, ebb_frames *frames);
// Packs and sends; env->request_id is set.
void sim_send_env(proc *from, uint32_t to, Ebb__Envelope *env, const ebb_part *parts, size_t n_parts);
void sim_describe(const ebb_msg *msg, char out[SIM_TEXT]);
uint32_t sim_node(const proc *p);

// faults.c
disk_fault sim_disk_hook(void *arg, disk_op op); // arg: the process
void sim_faults_begin(sim *s);
void sim_faults_timer(sim *s, uint32_t timer, uint64_t arg);
void sim_faults_arm(sim *s, proc *p); // a process starts

enum { WORLD_FAULT = 1, WORLD_START_COORDINATOR, WORLD_START_SHARD, WORLD_START_SEAT, WORLD_HEAL, WORLD_GIVE_UP };

// shard.c
struct ebb_job *sim_shard_job(proc *p); // NULL: none installed
void sim_shard_close(proc *p);          // SIGTERM
// worker.c
void sim_worker_stop(proc *p); // SIGTERM
// coordinator.c
struct ebb_coordinator *sim_coordinator_core(proc *p);

// check.c
void check_shard(proc *p);           // after each of its events
void check_shard_recovered(proc *p); // before it says anything
void check_coordinator(proc *p);
void check_told(proc *p, uint64_t stream, uint64_t applied); // an answer that says so leaves the shard
void check_reported(proc *p, const Ebb__ShardReport *r);     // and a report
void check_lease(proc *p, const Ebb__LeaseReply *r, uint64_t incarnation);
bool check_finished(sim *s); // is the job over, with everything where it should be?
void check_after_power_loss(sim *s);

// A step nobody can compute. 0: fine; 1: no gradient comes of it; 2: its gradient is not finite.
int sim_step_is_bad(const sim *s, uint64_t stream, uint64_t seq);

#endif
