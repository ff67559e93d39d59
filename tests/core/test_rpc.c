#include "tests/support/check.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/rpc.h"

// A server that answers Ping with Pong, ignores the first `drop` requests and then lives for `answers` answers.
typedef struct server {
    ebb_net *net;
    const char *endpoint;
    int drop, answers, seen;
} server;

static void *s_serve(void *arg)
{
    server *s = arg;
    ebb_socket *router = NULL;
    char why[256];
    // libzmq lets go of the last server's path in the background: in one process it may still be taken for a moment.
    ebb_status opened = EBB_EXISTS;
    for (int tries = 0; opened == EBB_EXISTS && tries < 500; tries++) {
        opened = ebb_router_open(s->net, s->endpoint, false, &router, why);
        if (opened == EBB_EXISTS) {
            ebb_clock_sleep_ms(10);
        }
    }
    if (opened != EBB_OK) {
        fprintf(stderr, "%s\n", why);
        return NULL;
    }
    uint64_t give_up = ebb_clock_ms() + 10000;
    while (s->answers > 0 && ebb_clock_ms() < give_up) {
        ebb_poll item = {.socket = router};
        ebb_net_poll(&item, 1, 100);
        ebb_peer peer;
        ebb_frames frames;
        if (ebb_socket_recv(router, &peer, &frames) != EBB_OK) {
            continue;
        }
        s->seen++;
        ebb_msg msg;
        ebb_status st = ebb_msg_unpack(&frames, true, &msg, NULL);
        ebb_frames_fini(&frames);
        if (st != EBB_OK) {
            continue;
        }
        if (s->drop > 0) {
            s->drop--;
        } else {
            Ebb__Envelope env = EBB__ENVELOPE__INIT;
            Ebb__Pong pong = EBB__PONG__INIT;
            env.request_id = msg.env->request_id;
            env.body_case = EBB__ENVELOPE__BODY_PONG;
            env.pong = &pong;
            pong.nonce = msg.env->ping->nonce;
            ebb_frames out;
            ebb_frames_init(&out);
            if (ebb_msg_pack(&env, msg.parts, msg.n_parts, &out) == EBB_OK && ebb_socket_send(router, &peer, &out) == EBB_OK) {
                s->answers--;
            }
            ebb_frames_fini(&out);
        }
        ebb_msg_fini(&msg);
    }
    ebb_clock_sleep_ms(50); // let the last answer out
    ebb_socket_close(&router);
    return NULL;
}

static ebb_status s_ping(ebb_rpc *rpc, uint64_t nonce, uint32_t timeout_ms, uint32_t resend_ms)
{
    Ebb__Envelope env = EBB__ENVELOPE__INIT;
    Ebb__Ping ping = EBB__PING__INIT;
    env.body_case = EBB__ENVELOPE__BODY_PING;
    env.ping = &ping;
    ping.nonce = nonce;
    ebb_part part = {.kind = EBB_PART_MANIFEST, .dtype = 4, .numel = 5};
    CHECK_OK(ebb_buf_dup("bytes", 5, &part.buf));
    ebb_part_seal(&part);
    ebb_msg reply;
    ebb_status st = ebb_rpc_call(rpc, &env, &part, 1, timeout_ms, resend_ms, NULL, &reply);
    ebb_buf_unref(&part.buf);
    if (st == EBB_OK) {
        assert_int_equal(reply.env->pong->nonce, nonce);
        assert_int_equal(reply.n_parts, 1);
        assert_memory_equal(reply.parts[0].buf->data, "bytes", 5);
        ebb_msg_fini(&reply);
    }
    return st;
}

static void test_rpc_survives_drops_and_restarts(void **state)
{
    (void)state;
    char dir[] = "/tmp/ebb-rpc-XXXXXX", endpoint[64], path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(endpoint, sizeof(endpoint), "ipc://%s/s", dir);
    snprintf(path, sizeof(path), "%s/s", dir);
    ebb_net *net = NULL;
    ebb_rpc *rpc = NULL;
    CHECK_OK(ebb_net_new(&net));
    CHECK_OK(ebb_rpc_new(net, endpoint, &rpc));
    CHECK_ERR(s_ping(rpc, 1, 200, 50), EBB_TIMEDOUT); // nobody there
    for (int round = 0; round < 3; round++) {
        server s = {.net = net, .endpoint = endpoint, .drop = 2, .answers = 3};
        pthread_t thread;
        pthread_create(&thread, NULL, s_serve, &s);
        for (uint64_t i = 0; i < 3; i++) {
            CHECK_OK(s_ping(rpc, i, 8000, 60));
        }
        pthread_join(thread, NULL);
        assert_true(s.seen >= 5);
    }
    ebb_rpc_free(&rpc);
    ebb_net_free(&net);
    unlink(path);
    rmdir(dir);
}

static void test_rpc_port_in_use_is_said(void **state)
{
    (void)state;
    char dir[] = "/tmp/ebb-rpc-XXXXXX", endpoint[64], why[256], path[64];
    assert_non_null(mkdtemp(dir));
    snprintf(endpoint, sizeof(endpoint), "ipc://%s/s", dir);
    snprintf(path, sizeof(path), "%s/s", dir);
    ebb_net *net = NULL;
    ebb_socket *first = NULL, *second = NULL, *tcp = NULL;
    CHECK_OK(ebb_net_new(&net));
    CHECK_OK(ebb_router_open(net, endpoint, false, &first, why));
    CHECK_ERR(ebb_router_open(net, endpoint, false, &second, why), EBB_EXISTS);
    assert_non_null(strstr(why, "in use"));
    ebb_socket_close(&first);
    CHECK_OK(ebb_router_open(net, "tcp://127.0.0.1:0", false, &tcp, why));
    assert_null(strstr(ebb_socket_endpoint(tcp), ":0"));
    CHECK_ERR(ebb_router_open(net, ebb_socket_endpoint(tcp), false, &second, why), EBB_EXISTS);
    ebb_socket_close(&tcp);
    CHECK_ERR(ebb_router_open(net, "tcp://0.0.0.0:0", false, &tcp, why), EBB_INVAL);
    assert_non_null(strstr(why, "loopback"));
    CHECK_ERR(ebb_router_open(net, "ipc:///nonexistent/folder/s", false, &tcp, why), EBB_IO);
    ebb_net_free(&net);
    unlink(path);
    rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_survives_drops_and_restarts),
        cmocka_unit_test(test_rpc_port_in_use_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
