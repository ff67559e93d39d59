// The shard's actor: one thread that owns the job and the journal. It takes a bounded batch of events, judges all pushes in it, writes one journal
// batch, applies, and only then answers.
//
// Invariant: an answer APPLIED leaves this thread only after the journal batch that holds the push was written at the job's durability level (or, at
// durability `snapshot`, after it was applied in memory). After the first failed write nothing is answered any more: `fatal` is called and the thread ends.
#ifndef EBB_PS_SHARD_H
#define EBB_PS_SHARD_H

#include "core/net.h"
#include "ps/event.h"
#include "ps/job.h"

#define EBB_SHARD_REQUESTS_MAX 256               // waiting requests; more are answered TRYLATER
#define EBB_SHARD_REQUEST_BYTES_MAX (512u << 20) // their payload, unless it is a single one

typedef struct ebb_shard_options {
    const char *dir;
    const char *endpoint; // as reported to the coordinator; may be set later, before start
    uint32_t shard;
    uint64_t incarnation;
    uint64_t disk_reserve_bytes; // pushes are refused with DISKLOW when the folder's disk has less (RocksDB aborts on a full one); 0: never
    uint32_t sync_ms;            // durability journal: sync at most this much later (0: 250)
    // Called on the shard's thread. reply takes the frames. report takes env (free by ebb_pb_free) and says its number.
    void (*reply)(void *arg, const ebb_peer *peer, ebb_frames *frames);
    void (*report)(void *arg, Ebb__Envelope *env, uint64_t report);
    void (*news)(void *arg);                                  // something new to report
    void (*shutdown)(void *arg);                              // the coordinator wants the process to end
    void (*fatal)(void *arg, int exit_code, const char *why); // nothing is answered from now on
    void *arg;
} ebb_shard_options;

typedef struct ebb_shard ebb_shard;

// Opens the folder and recovers what it holds. Strings of options are copied. why (>= 512 bytes). Errors: as ebb_recover_open and ebb_recover_job.
ebb_status ebb_shard_new(const ebb_shard_options *options, ebb_shard **out, char *why);
void ebb_shard_set_endpoint(ebb_shard *s, const char *endpoint); // before start
ebb_status ebb_shard_start(ebb_shard *s);

// What the thread does, for a caller that is the thread itself (tests/sim): never after start. A turn takes what is in the queue, waiting at most wait_ms
// for something to come; judges, writes, applies, answers; and looks at the timers. False: told to stop. The next turn is due after wait_ms at the latest.
bool ebb_shard_turn(ebb_shard *s, int wait_ms);
int ebb_shard_wait_ms(const ebb_shard *s);
bool ebb_shard_is_closed(ebb_shard *s); // what EBB_EVENT_CLOSE asks for is done, or the shard is dead

// Any thread. Takes the event on success. A request beyond the bounds: AGAIN; events of our own threads have room kept for them.
ebb_status ebb_shard_submit_take(ebb_shard *s, ebb_event **e);

// Refuses pushes from now on, writes what is not yet in a snapshot, and returns when that is on disk (or the shard is dead). Pulls and reports still work.
void ebb_shard_close(ebb_shard *s);
// Ends the thread without any further write; joins. Idempotent.
void ebb_shard_stop(ebb_shard *s);
void ebb_shard_free(ebb_shard **s);

// The job, for tests; only while the thread is not running.
ebb_job *ebb_shard_job(ebb_shard *s);

#endif
