// Status codes: the one error type of every Ebbtide function that can fail.
//
// Invariant: a number, once given, is never reused or changed, since statuses travel in replies.
#ifndef EBB_CORE_STATUS_H
#define EBB_CORE_STATUS_H

// X(NAME, number, text)
#define EBB_STATUS_LIST(X)                                                  \
    X(OK, 0, "ok")                                                          \
    X(NOMEM, 1, "out of memory")                                            \
    X(INVAL, 2, "invalid argument")                                         \
    X(PROTO, 3, "malformed message from peer")                              \
    X(AGAIN, 4, "try again: nothing ready or queue full")                   \
    X(TIMEDOUT, 5, "deadline passed")                                       \
    X(CLOSED, 6, "closed")                                                  \
    X(NOENT, 7, "not found")                                                \
    X(WRONGSHARD, 8, "chunk is not on this shard, or the shard map is old") \
    X(STALE, 9, "gradient is staler than the job allows")                   \
    X(CORRUPT, 10, "checksum or format damaged")                            \
    X(IO, 11, "input/output error")                                         \
    X(CUDA, 12, "CUDA error")                                               \
    X(REMOTE, 13, "peer refused")                                           \
    X(GAP, 14, "an earlier step of this stream is missing")                 \
    X(DUPLICATE, 15, "step already applied")                                \
    X(BADVALUE, 16, "values are not finite or of the wrong shape or type")  \
    X(DISKLOW, 17, "disk is nearly full")                                   \
    X(NOTAUTH, 18, "not authorized")                                        \
    X(TRYLATER, 19, "busy, try later")                                      \
    X(EXISTS, 20, "exists already")                                         \
    X(NEWER, 21, "written by a newer version of Ebbtide")                   \
    X(CONFIG, 22, "configuration is wrong")                                 \
    X(INTERNAL, 23, "internal error")

typedef enum ebb_status {
#define X(name, number, text) EBB_##name = number,
    EBB_STATUS_LIST(X)
#undef X
} ebb_status;

// Short English text of a status, or "unknown status". Static storage.
const char *ebb_status_str(int status);

// Name of a status without its prefix ("STALE"), for logs and JSON. Static storage.
const char *ebb_status_name(int status);

// Returns from the calling function with the status of `expr` unless it is EBB_OK.
#define EBB_TRY(expr)                    \
    do {                                 \
        ebb_status ebb_try_st_ = (expr); \
        if (ebb_try_st_ != EBB_OK) {     \
            return ebb_try_st_;          \
        }                                \
    } while (0)

// Stores the status of `expr` in `st` and jumps to `label` unless it is EBB_OK.
#define EBB_TRY_GOTO(expr, st, label) \
    do {                              \
        (st) = (expr);                \
        if ((st) != EBB_OK) {         \
            goto label;               \
        }                             \
    } while (0)

#endif
