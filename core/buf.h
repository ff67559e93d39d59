// Reference-counted byte buffers: the only way payload bytes travel between threads and sockets.
//
// A buffer's data never moves. Whoever holds a reference may read it; only a sole owner (ebb_buf_is_sole) may write.
// Reference counts are atomic, since ZeroMQ drops its references on its own threads.
#ifndef EBB_CORE_BUF_H
#define EBB_CORE_BUF_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/status.h"

typedef void ebb_buf_free_fn(void *data, void *hint);

typedef struct ebb_buf {
    uint8_t *data;
    size_t len;
    // private from here on
    _Atomic uint32_t refs;
    ebb_buf_free_fn *free_fn;
    void *hint;
} ebb_buf;

// New buffer of len bytes, 64-byte aligned, contents undefined. NOMEM.
ebb_status ebb_buf_new(size_t len, ebb_buf **out);
// Copies data into a new buffer.
ebb_status ebb_buf_dup(const void *data, size_t len, ebb_buf **out);
// Wraps memory that free_fn(data, hint) gives back when the last reference goes (free_fn may be NULL: static memory).
ebb_status ebb_buf_wrap(void *data, size_t len, ebb_buf_free_fn *free_fn, void *hint, ebb_buf **out);
// A view into parent (holds a reference to it).
ebb_status ebb_buf_slice(ebb_buf *parent, size_t offset, size_t len, ebb_buf **out);
ebb_buf *ebb_buf_ref(ebb_buf *buf);
// Drops one reference and nulls the pointer; NULL inside is fine.
void ebb_buf_unref(ebb_buf **buf);
// Before a reference is handed to code that is not ours (libzmq), which drops it on another thread: whatever this thread read of the buffer happens before
// anybody's free of it, by our own count and not by what that code does inside. Returns buf.
ebb_buf *ebb_buf_hand_over(ebb_buf *buf);
bool ebb_buf_is_sole(const ebb_buf *buf);

#endif
