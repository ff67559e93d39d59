// The table of outstanding requests. Private to client/.
//
// A request is for all shards; a `sub` is the one message of it for one shard (or one piece of a large pull). Life of a request:
//   FREE -> (caller fills it) -> SUBMITTED, the io thread's -> (all subs done) DONE, the caller's -> FREE.
// A caller that frees a SUBMITTED request marks it cancelled and sends it to the io thread a second time; only that second arrival frees the slot, so
// a slot is never reused while the io thread may still come upon it.
#ifndef EBB_CLIENT_REQUESTS_H
#define EBB_CLIENT_REQUESTS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "client/ebb.h"

typedef enum ebb_request_kind { EBB_REQUEST_PUSH, EBB_REQUEST_PULL, EBB_REQUEST_PIN, EBB_REQUEST_UNPIN } ebb_request_kind;
typedef enum ebb_request_state { EBB_REQUEST_FREE, EBB_REQUEST_SUBMITTED, EBB_REQUEST_DONE } ebb_request_state;
typedef enum ebb_sub_state { EBB_SUB_WAITING, EBB_SUB_SENT, EBB_SUB_DONE } ebb_sub_state;

// What the caller's view knew of one shard when it submitted.
typedef struct ebb_base {
    uint64_t incarnation, version;
    bool known;
} ebb_base;

typedef struct ebb_sub ebb_sub;
struct ebb_sub {
    ebb_request *request;
    ebb_sub *prev, *next; // in its shard's list, in order of submission
    uint32_t route, first_chunk, chunk_count;
    ebb_sub_state state;
    uint64_t id; // request_id of every sending of it
    uint64_t due_ns, sent_ns;
    uint32_t sends, later_ms, silence_ms;
    // the answer
    ebb_status status; // OK, DUPLICATE, GAP, STALE, BADVALUE or a refusal
    bool answered;
    uint64_t version, applied, staleness, incarnation, step_count;
    uint32_t slots;
    ebb_msg reply;
};

struct ebb_request {
    ebb_session *session;
    // under the table's lock
    ebb_request_state state;
    bool cancelled;
    // the caller's until submitted, then the io thread's until done
    bool active; // the io thread has it
    ebb_request_kind kind;
    uint64_t stream, seq, pin, layout;
    uint32_t attempt, slot, ttl_ms;
    double look_ahead;
    bool whole; // a pull that is not relative to a view
    uint32_t n_routes;
    ebb_base *base;  // (n_routes)
    ebb_part *parts; // pushes: (n_chunks), buffers referenced until the chunk's shard is done
    size_t n_parts;
    ebb_sub *subs;
    uint32_t n_subs, pending;
    ebb_result result;
    char why[256];
    uint32_t base_cap, sub_cap; // capacities that stay with the slot
    size_t part_cap;
};

typedef struct ebb_requests {
    pthread_mutex_t lock;
    pthread_cond_t done;
    ebb_request *slot; // (max)
    uint32_t max;
    uint32_t used; // under lock
} ebb_requests;

ebb_status ebb_requests_init(ebb_requests *table, ebb_session *session, uint32_t max);
void ebb_requests_fini(ebb_requests *table); // the io thread must be gone
// A FREE slot, now the caller's to fill (state SUBMITTED already, so that nobody else takes it). AGAIN: none.
ebb_status ebb_requests_take(ebb_requests *table, ebb_request **out);
// Gives a slot back that is with nobody else: drops its buffers.
void ebb_requests_give(ebb_requests *table, ebb_request *request);
// io thread: the request is finished with this result; wakes waiters.
void ebb_requests_finish(ebb_requests *table, ebb_request *request);

// Room in the slot's arrays. NOMEM.
ebb_status ebb_request_reserve(ebb_request *request, uint32_t n_routes, size_t n_parts);
ebb_status ebb_request_reserve_subs(ebb_request *request, uint32_t n_subs);
// Works out request->result from its subs.
void ebb_request_summarize(ebb_request *request);

// What a view knows: (*n) entries, valid until the view changes.
void ebb_view_base(const ebb_view *view, uint32_t *n, uint64_t *layout, const ebb_base **base);

#endif
