#include "core/buf.h"

#include <stdlib.h>
#include <string.h>

#include "core/assert.h"

#define BUF_ALIGN 64

// The bytes follow the header in one allocation, aligned for vector loads.
static size_t s_header_bytes(void)
{
    return (sizeof(ebb_buf) + BUF_ALIGN - 1) / BUF_ALIGN * BUF_ALIGN;
}

ebb_status ebb_buf_new(size_t len, ebb_buf **out)
{
    EBB_ASSERT(out != NULL);
    size_t header = s_header_bytes();
    if (len > SIZE_MAX - header - BUF_ALIGN) {
        return EBB_NOMEM;
    }
    size_t total = (header + len + BUF_ALIGN - 1) / BUF_ALIGN * BUF_ALIGN;
    ebb_buf *buf = aligned_alloc(BUF_ALIGN, total);
    if (buf == NULL) {
        return EBB_NOMEM;
    }
    buf->data = (uint8_t *)buf + header;
    buf->len = len;
    atomic_init(&buf->refs, 1);
    buf->free_fn = NULL;
    buf->hint = NULL;
    *out = buf;
    return EBB_OK;
}

ebb_status ebb_buf_dup(const void *data, size_t len, ebb_buf **out)
{
    EBB_TRY(ebb_buf_new(len, out));
    if (len > 0) {
        memcpy((*out)->data, data, len);
    }
    return EBB_OK;
}

ebb_status ebb_buf_wrap(void *data, size_t len, ebb_buf_free_fn *free_fn, void *hint, ebb_buf **out)
{
    ebb_buf *buf = malloc(sizeof(*buf));
    if (buf == NULL) {
        return EBB_NOMEM;
    }
    buf->data = data;
    buf->len = len;
    atomic_init(&buf->refs, 1);
    buf->free_fn = free_fn;
    buf->hint = hint;
    *out = buf;
    return EBB_OK;
}

static void s_drop_parent(void *data, void *hint)
{
    (void)data;
    ebb_buf *parent = hint;
    ebb_buf_unref(&parent);
}

ebb_status ebb_buf_slice(ebb_buf *parent, size_t offset, size_t len, ebb_buf **out)
{
    EBB_ASSERT(offset <= parent->len && len <= parent->len - offset);
    EBB_TRY(ebb_buf_wrap(parent->data + offset, len, s_drop_parent, parent, out));
    ebb_buf_ref(parent);
    return EBB_OK;
}

ebb_buf *ebb_buf_ref(ebb_buf *buf)
{
    uint32_t before = atomic_fetch_add_explicit(&buf->refs, 1, memory_order_relaxed);
    EBB_ASSERT(before > 0 && before < UINT32_MAX);
    return buf;
}

void ebb_buf_unref(ebb_buf **bufp)
{
    ebb_buf *buf = *bufp;
    if (buf == NULL) {
        return;
    }
    *bufp = NULL;
    uint32_t before = atomic_fetch_sub_explicit(&buf->refs, 1, memory_order_acq_rel);
    EBB_ASSERT(before > 0);
    if (before == 1) {
        if (buf->free_fn != NULL) {
            buf->free_fn(buf->data, buf->hint);
        }
        free(buf);
    }
}

ebb_buf *ebb_buf_hand_over(ebb_buf *buf)
{
    atomic_fetch_add_explicit(&buf->refs, 0, memory_order_release);
    return buf;
}

bool ebb_buf_is_sole(const ebb_buf *buf)
{
    return atomic_load_explicit(&((ebb_buf *)buf)->refs, memory_order_acquire) == 1;
}
