#include "core/net.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "core/assert.h"

#define ROUTER_HWM 64 // whole messages queued per peer
#define DEALER_HWM 64
#define FRAMES_PER_MESSAGE_MAX (EBB_PARTS_MAX + 2)

struct ebb_net {
    void *ctx;
};

struct ebb_socket {
    void *zmq;
    bool router;
    char endpoint[EBB_ENDPOINT_MAX];
};

ebb_status ebb_net_new(ebb_net **out)
{
    int major, minor, patch;
    zmq_version(&major, &minor, &patch);
    if (major < 4 || (major == 4 && (minor < 3 || (minor == 3 && patch < 3)))) {
        return EBB_INVAL; // older ones have remotely reachable overflows
    }
    ebb_net *net = calloc(1, sizeof(*net));
    if (net == NULL) {
        return EBB_NOMEM;
    }
    net->ctx = zmq_ctx_new();
    if (net->ctx == NULL) {
        free(net);
        return EBB_NOMEM;
    }
    *out = net;
    return EBB_OK;
}

void ebb_net_free(ebb_net **np)
{
    ebb_net *net = *np;
    if (net == NULL) {
        return;
    }
    *np = NULL;
    while (zmq_ctx_term(net->ctx) != 0 && errno == EINTR) {
    }
    free(net);
}

static void s_set_int(void *zmq, int option, int value)
{
    int rc = zmq_setsockopt(zmq, option, &value, sizeof(value));
    EBB_ASSERT(rc == 0);
}

static ebb_status s_socket_new(ebb_net *net, int type, ebb_socket **out)
{
    ebb_socket *s = calloc(1, sizeof(*s));
    if (s == NULL) {
        return EBB_NOMEM;
    }
    s->zmq = zmq_socket(net->ctx, type);
    if (s->zmq == NULL) {
        free(s);
        return EBB_NOMEM;
    }
    s->router = type == ZMQ_ROUTER;
    int64_t message_max = EBB_FRAME_BYTES_MAX; // per frame
    int rc = zmq_setsockopt(s->zmq, ZMQ_MAXMSGSIZE, &message_max, sizeof(message_max));
    EBB_ASSERT(rc == 0);
    s_set_int(s->zmq, ZMQ_LINGER, 0);
    s_set_int(s->zmq, ZMQ_HEARTBEAT_IVL, 0);
    s_set_int(s->zmq, ZMQ_HANDSHAKE_IVL, 3000);
    s_set_int(s->zmq, ZMQ_SNDHWM, s->router ? ROUTER_HWM : DEALER_HWM);
    s_set_int(s->zmq, ZMQ_RCVHWM, s->router ? ROUTER_HWM : DEALER_HWM);
    *out = s;
    return EBB_OK;
}

// Is somebody listening on this Unix socket? libzmq would silently take the path from a living process.
static bool s_ipc_alive(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(addr.sun_path)) {
        return false;
    }
    strcpy(addr.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        return false;
    }
    bool alive = connect(fd, (struct sockaddr *)&addr, sizeof(addr)) == 0;
    close(fd);
    return alive;
}

static bool s_is_loopback(const char *endpoint)
{
    return strncmp(endpoint, "ipc://", 6) == 0 || strncmp(endpoint, "inproc://", 9) == 0 || strncmp(endpoint, "tcp://127.", 10) == 0 ||
           strncmp(endpoint, "tcp://[::1]", 11) == 0 || strncmp(endpoint, "tcp://localhost:", 16) == 0;
}

ebb_status ebb_router_open(ebb_net *net, const char *endpoint, bool plaintext_ok, ebb_socket **out, char *why)
{
    char ignored[256];
    if (why == NULL) {
        why = ignored;
    }
    if (strlen(endpoint) >= EBB_ENDPOINT_MAX) {
        snprintf(why, 256, "endpoint is longer than %d characters", EBB_ENDPOINT_MAX - 1);
        return EBB_INVAL;
    }
    if (!s_is_loopback(endpoint) && !plaintext_ok) {
        snprintf(why, 256, "%.150s is not on this machine's loopback and traffic is not encrypted: use ipc:// or tcp://127.0.0.1", endpoint);
        return EBB_INVAL;
    }
    if (strncmp(endpoint, "ipc://", 6) == 0) {
        if (strlen(endpoint + 6) >= sizeof(((struct sockaddr_un *)0)->sun_path)) {
            snprintf(why, 256, "socket path is too long for the system (%zu characters, at most 107)", strlen(endpoint + 6));
            return EBB_INVAL;
        }
        if (s_ipc_alive(endpoint + 6)) {
            snprintf(why, 256, "%.150s is in use by a running program", endpoint);
            return EBB_EXISTS;
        }
    }
    ebb_socket *s = NULL;
    EBB_TRY(s_socket_new(net, ZMQ_ROUTER, &s));
    s_set_int(s->zmq, ZMQ_ROUTER_MANDATORY, 1);
    if (zmq_bind(s->zmq, endpoint) != 0) {
        int err = errno;
        snprintf(why, 256, "cannot listen on %.150s: %s", endpoint, zmq_strerror(err));
        ebb_socket_close(&s);
        return err == EADDRINUSE ? EBB_EXISTS : err == EINVAL || err == EPROTONOSUPPORT ? EBB_INVAL : EBB_IO;
    }
    size_t len = sizeof(s->endpoint);
    if (zmq_getsockopt(s->zmq, ZMQ_LAST_ENDPOINT, s->endpoint, &len) != 0) {
        snprintf(s->endpoint, sizeof(s->endpoint), "%s", endpoint);
    }
    *out = s;
    return EBB_OK;
}

ebb_status ebb_dealer_open(ebb_net *net, const char *endpoint, ebb_socket **out)
{
    if (strlen(endpoint) >= EBB_ENDPOINT_MAX) {
        return EBB_INVAL;
    }
    ebb_socket *s = NULL;
    EBB_TRY(s_socket_new(net, ZMQ_DEALER, &s));
    s_set_int(s->zmq, ZMQ_IMMEDIATE, 1);
    s_set_int(s->zmq, ZMQ_RECONNECT_IVL, 50);
    s_set_int(s->zmq, ZMQ_RECONNECT_IVL_MAX, 1000);
    s_set_int(s->zmq, ZMQ_CONNECT_TIMEOUT, 5000);
    if (zmq_connect(s->zmq, endpoint) != 0) {
        ebb_socket_close(&s);
        return EBB_INVAL;
    }
    snprintf(s->endpoint, sizeof(s->endpoint), "%s", endpoint);
    *out = s;
    return EBB_OK;
}

void ebb_socket_close(ebb_socket **sp)
{
    ebb_socket *s = *sp;
    if (s == NULL) {
        return;
    }
    *sp = NULL;
    zmq_close(s->zmq);
    free(s);
}

const char *ebb_socket_endpoint(const ebb_socket *s)
{
    return s->endpoint;
}

static void s_msg_free(void *data, void *hint)
{
    (void)data;
    zmq_msg_t *msg = hint;
    zmq_msg_close(msg);
    free(msg);
}

// One frame as a buffer, without copying. EBB_AGAIN: nothing there.
static ebb_status s_recv_frame(ebb_socket *s, ebb_buf **out, bool *more)
{
    zmq_msg_t *msg = malloc(sizeof(*msg));
    if (msg == NULL) {
        return EBB_NOMEM;
    }
    zmq_msg_init(msg);
    int rc;
    do {
        rc = zmq_msg_recv(msg, s->zmq, ZMQ_DONTWAIT);
    } while (rc < 0 && errno == EINTR);
    if (rc < 0) {
        int err = errno;
        zmq_msg_close(msg);
        free(msg);
        return err == EAGAIN ? EBB_AGAIN : err == ETERM ? EBB_CLOSED : EBB_IO;
    }
    *more = zmq_msg_more(msg) != 0;
    ebb_status st = ebb_buf_wrap(zmq_msg_data(msg), zmq_msg_size(msg), s_msg_free, msg, out);
    if (st != EBB_OK) {
        s_msg_free(NULL, msg);
    }
    return st;
}

ebb_status ebb_socket_recv(ebb_socket *s, ebb_peer *peer, ebb_frames *out)
{
    ebb_buf *buf = NULL;
    bool more = true;
    ebb_frames_init(out);
    EBB_TRY(s_recv_frame(s, &buf, &more));
    ebb_status st = EBB_OK;
    if (s->router) {
        EBB_ASSERT(peer != NULL);
        peer->len = 0;
        if (buf->len <= sizeof(peer->id)) {
            memcpy(peer->id, buf->data, buf->len);
            peer->len = (uint8_t)buf->len;
        } else {
            st = EBB_PROTO; // its message is read to the end and dropped
        }
        ebb_buf_unref(&buf);
    } else {
        st = ebb_frames_add_take(out, &buf);
    }
    // libzmq hands over whole messages only, so the rest is there; a message beyond the bounds is read to its end and dropped.
    while (more) {
        ebb_buf_unref(&buf);
        ebb_status got = s_recv_frame(s, &buf, &more);
        if (got != EBB_OK) {
            st = got;
            break;
        }
        if (st != EBB_OK) {
            continue;
        }
        if (out->n >= FRAMES_PER_MESSAGE_MAX || out->bytes + buf->len > EBB_MESSAGE_BYTES_MAX + EBB_CONTROL_BYTES_MAX) {
            st = EBB_PROTO;
            continue;
        }
        st = ebb_frames_add_take(out, &buf);
    }
    ebb_buf_unref(&buf);
    if (st != EBB_OK) {
        ebb_frames_fini(out);
    }
    return st;
}

static void s_buf_sent(void *data, void *hint)
{
    (void)data;
    ebb_buf *buf = hint;
    ebb_buf_unref(&buf);
}

static int s_send(ebb_socket *s, zmq_msg_t *msg, int flags)
{
    int rc;
    do {
        rc = zmq_msg_send(msg, s->zmq, flags | ZMQ_DONTWAIT);
    } while (rc < 0 && errno == EINTR);
    return rc;
}

// A refused first frame leaves everything with the caller; libzmq accepts the following frames of a message whose first one it took.
ebb_status ebb_socket_send(ebb_socket *s, const ebb_peer *peer, ebb_frames *frames)
{
    EBB_ASSERT(frames->n > 0 && (peer != NULL) == s->router);
    zmq_msg_t msg;
    if (s->router) {
        if (zmq_msg_init_size(&msg, peer->len) != 0) {
            return EBB_NOMEM;
        }
        memcpy(zmq_msg_data(&msg), peer->id, peer->len);
        if (s_send(s, &msg, ZMQ_SNDMORE) < 0) {
            int err = errno;
            zmq_msg_close(&msg);
            return err == EAGAIN ? EBB_AGAIN : err == EHOSTUNREACH ? EBB_CLOSED : EBB_IO;
        }
    }
    for (size_t i = 0; i < frames->n; i++) {
        ebb_buf *buf = frames->frame[i];
        uint8_t *data = buf->data;
        size_t len = buf->len;
        if (zmq_msg_init_data(&msg, data, len, s_buf_sent, ebb_buf_hand_over(buf)) != 0) {
            EBB_PANIC("out of memory in the middle of a message");
        }
        if (s_send(s, &msg, i + 1 < frames->n ? ZMQ_SNDMORE : 0) < 0) {
            int err = errno;
            if (i == 0 && !s->router) {
                // Nothing was sent: take the buffer back by holding a reference over the close.
                ebb_buf_ref(buf);
                zmq_msg_close(&msg);
                return err == EAGAIN ? EBB_AGAIN : EBB_IO;
            }
            // The peer vanished in mid-message: libzmq drops the rest by itself, so we drop ours.
            zmq_msg_close(&msg);
            frames->frame[i] = NULL;
            for (size_t j = i + 1; j < frames->n; j++) {
                ebb_buf_unref(&frames->frame[j]);
            }
            break;
        }
        frames->frame[i] = NULL;
    }
    ebb_frames_fini(frames);
    return EBB_OK;
}

ebb_status ebb_net_poll(ebb_poll *items, size_t n, int timeout_ms)
{
    zmq_pollitem_t stack[16], *poll = stack;
    if (n > 16) {
        poll = malloc(n * sizeof(*poll));
        if (poll == NULL) {
            return EBB_NOMEM;
        }
    }
    for (size_t i = 0; i < n; i++) {
        poll[i] = (zmq_pollitem_t){.socket = items[i].socket != NULL ? items[i].socket->zmq : NULL,
                                   .fd = items[i].fd,
                                   .events = (short)(ZMQ_POLLIN | (items[i].want_write ? ZMQ_POLLOUT : 0))};
        items[i].readable = items[i].writable = false;
    }
    int rc = zmq_poll(poll, (int)n, timeout_ms);
    ebb_status st = rc >= 0 || errno == EINTR ? EBB_OK : errno == ETERM ? EBB_CLOSED : EBB_IO;
    for (size_t i = 0; rc > 0 && i < n; i++) {
        items[i].readable = (poll[i].revents & (ZMQ_POLLIN | ZMQ_POLLERR)) != 0;
        items[i].writable = (poll[i].revents & ZMQ_POLLOUT) != 0;
    }
    if (poll != stack) {
        free(poll);
    }
    return st;
}
