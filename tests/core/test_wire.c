#include "tests/support/check.h"

#include <string.h>

#include "core/manifest.h"
#include "core/wire.h"

static void s_build(ebb_frames *frames, size_t n_parts)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__PushRequest push = EBB__PUSH_REQUEST__INIT;
    ebb_part parts[8];
    env.request_id = 77;
    env.body_case = EBB__ENVELOPE__BODY_PUSH_REQUEST;
    env.push_request = &push;
    push.stream = 5;
    push.seq = 9;
    push.worker = "w0";
    for (size_t i = 0; i < n_parts; i++) {
        parts[i] = (ebb_part){.kind = EBB_PART_GRAD, .dtype = EBB_DTYPE_F32, .chunk = (uint32_t)i, .version = i + 1, .numel = 3 + i};
        CHECK_OK(ebb_buf_new((3 + i) * 4, &parts[i].buf));
        memset(parts[i].buf->data, (int)i + 1, parts[i].buf->len);
        ebb_part_seal(&parts[i]);
    }
    ebb_frames_init(frames);
    CHECK_OK(ebb_msg_pack(&env, parts, n_parts, frames));
    for (size_t i = 0; i < n_parts; i++) {
        ebb_buf_unref(&parts[i].buf);
    }
}

static void test_wire_round_trip(void **state)
{
    (void)state;
    for (size_t n = 0; n <= 8; n++) {
        ebb_frames frames;
        ebb_msg msg;
        const char *why = NULL;
        s_build(&frames, n);
        assert_int_equal(frames.n, n == 0 ? 1 : n + 2);
        CHECK_OK(ebb_msg_unpack(&frames, true, &msg, &why));
        ebb_frames_fini(&frames); // the message keeps what it needs
        assert_int_equal(msg.env->request_id, 77);
        assert_int_equal(msg.env->push_request->seq, 9);
        assert_string_equal(msg.env->push_request->worker, "w0");
        assert_int_equal(msg.n_parts, n);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(msg.parts[i].chunk, i);
            assert_int_equal(msg.parts[i].version, i + 1);
            assert_int_equal(msg.parts[i].numel, 3 + i);
            assert_int_equal(msg.parts[i].buf->data[0], i + 1);
        }
        ebb_msg_fini(&msg);
    }
}

// A flipped bit anywhere in table or parts is refused; in the envelope it is refused or another message, never a crash.
static void test_wire_flips_are_seen(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    for (uint64_t k = 0; k < 2000; k++) {
        ebb_frames frames;
        ebb_msg msg;
        s_build(&frames, 3);
        size_t f = ebb_rng_at(seed, 1, k) % frames.n;
        ebb_buf *copy = NULL;
        CHECK_OK(ebb_buf_dup(frames.frame[f]->data, frames.frame[f]->len, &copy));
        size_t at = ebb_rng_at(seed, 2, k) % copy->len;
        copy->data[at] ^= (uint8_t)(1u << (ebb_rng_at(seed, 3, k) % 8));
        ebb_buf_unref(&frames.frame[f]);
        frames.frame[f] = copy;
        const char *why = NULL;
        ebb_status st = ebb_msg_unpack(&frames, true, &msg, &why);
        if (f > 0) {
            assert_int_not_equal(st, EBB_OK);
            assert_non_null(why);
        }
        if (st == EBB_OK) {
            ebb_msg_fini(&msg);
        }
        ebb_frames_fini(&frames);
    }
}

static void test_wire_garbage_is_refused(void **state)
{
    (void)state;
    uint64_t seed = ebb_test_seed();
    for (uint64_t k = 0; k < 2000; k++) {
        ebb_frames frames;
        ebb_msg msg;
        ebb_frames_init(&frames);
        size_t n = ebb_rng_at(seed, 1, k) % 5;
        for (size_t i = 0; i < n; i++) {
            ebb_buf *buf = NULL;
            size_t len = ebb_rng_at(seed, 10 + i, k) % 200;
            CHECK_OK(ebb_buf_new(len, &buf));
            for (size_t b = 0; b < len; b++) {
                buf->data[b] = (uint8_t)ebb_rng_at(seed, 1000 * k + i, b);
            }
            CHECK_OK(ebb_frames_add_take(&frames, &buf));
        }
        assert_int_not_equal(ebb_msg_unpack(&frames, true, &msg, NULL), EBB_OK);
        ebb_frames_fini(&frames);
    }
}

// 64 KiB of empty repeated submessages would take megabytes: the budget refuses them.
static void test_wire_amplification_is_bounded(void **state)
{
    (void)state;
    ebb_frames frames;
    ebb_msg msg;
    ebb_buf *buf = NULL;
    ebb_frames_init(&frames);
    CHECK_OK(ebb_buf_new(EBB_CONTROL_BYTES_MAX, &buf));
    // field 21..: an EventsReply (63) whose body is `0a 00` repeated (empty Event)
    uint8_t head[] = {0x08, 0x01, 0xfa, 0x03, 0xf0, 0xff, 0x03};
    memcpy(buf->data, head, sizeof(head));
    size_t body = 0xfff0;
    buf->len = sizeof(head) + body;
    if (buf->len > EBB_CONTROL_BYTES_MAX) {
        body = EBB_CONTROL_BYTES_MAX - sizeof(head);
    }
    body &= ~(size_t)1;
    buf->data[4] = (uint8_t)(0x80 | (body & 0x7f));
    buf->data[5] = (uint8_t)(0x80 | ((body >> 7) & 0x7f));
    buf->data[6] = (uint8_t)(body >> 14);
    buf->len = sizeof(head) + body;
    for (size_t i = 0; i < body; i += 2) {
        buf->data[sizeof(head) + i] = 0x0a;
        buf->data[sizeof(head) + i + 1] = 0x00;
    }
    CHECK_OK(ebb_frames_add_take(&frames, &buf));
    CHECK_ERR(ebb_msg_unpack(&frames, true, &msg, NULL), EBB_PROTO);
    ebb_frames_fini(&frames);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wire_round_trip),
        cmocka_unit_test(test_wire_flips_are_seen),
        cmocka_unit_test(test_wire_garbage_is_refused),
        cmocka_unit_test(test_wire_amplification_is_bounded),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
