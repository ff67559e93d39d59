// What a peer may do to a socket before any of its bytes are understood.
#include "tests/support/check.h"

#include <string.h>
#include <zmq.h>

#include "core/clock.h"
#include "core/net.h"

// A client of its own making: a routing id of `len` bytes, then one frame of text.
static void s_send_as(void *context, const char *endpoint, size_t len, const char *text)
{
    uint8_t id[255];
    int linger = 1000;
    void *dealer = zmq_socket(context, ZMQ_DEALER);
    memset(id, 'x', sizeof(id));
    id[0] = (uint8_t)len;
    zmq_setsockopt(dealer, ZMQ_LINGER, &linger, sizeof(linger));
    assert_int_equal(zmq_setsockopt(dealer, ZMQ_ROUTING_ID, id, len), 0);
    assert_int_equal(zmq_connect(dealer, endpoint), 0);
    assert_int_equal(zmq_send(dealer, text, strlen(text), 0), (int)strlen(text));
    zmq_close(dealer);
}

// libzmq takes routing ids of up to 255 bytes from a peer: every length arrives, and can be answered.
static void test_net_takes_any_routing_id(void **state)
{
    (void)state;
    ebb_net *net;
    ebb_socket *router = NULL;
    char why[256];
    CHECK_OK(ebb_net_new(&net));
    CHECK_OK(ebb_router_open(net, "tcp://127.0.0.1:0", false, &router, why));
    void *context = zmq_ctx_new();
    static const size_t lengths[] = {1, 5, 15, 16, 17, 32, 64, 254, 255};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        s_send_as(context, ebb_socket_endpoint(router), lengths[i], "hello");
        ebb_peer peer;
        ebb_frames frames;
        ebb_status st = EBB_AGAIN;
        for (uint64_t end = ebb_clock_ms() + 10000; st == EBB_AGAIN && ebb_clock_ms() < end;) {
            ebb_poll item = {.socket = router};
            ebb_net_poll(&item, 1, 100);
            st = ebb_socket_recv(router, &peer, &frames);
        }
        CHECK_OK(st);
        assert_int_equal(peer.len, lengths[i]);
        assert_int_equal(peer.id[0], lengths[i]);
        assert_int_equal(frames.n, 1);
        ebb_frames_fini(&frames);
        ebb_frames_init(&frames);
        ebb_buf *buf = NULL;
        CHECK_OK(ebb_buf_dup("answer", 6, &buf));
        CHECK_OK(ebb_frames_add_take(&frames, &buf));
        st = ebb_socket_send(router, &peer, &frames); // it may be gone already: an error then, never an abort
        assert_true(st == EBB_OK || st == EBB_CLOSED || st == EBB_NOENT || st == EBB_AGAIN || st == EBB_IO);
        ebb_frames_fini(&frames);
    }
    zmq_ctx_term(context);
    ebb_socket_close(&router);
    ebb_net_free(&net);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_net_takes_any_routing_id)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
