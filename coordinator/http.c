#include "coordinator/http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/dashboard.h"
#include "coordinator/handlers.h"
#include "coordinator/metrics.h"
#include "core/assert.h"
#include "core/clock.h"
#include "core/json.h"
#include "core/log.h"

#define CONNECTIONS_MAX 64
#define IDLE_S 15
#define CONNECTION_BYTES (32 * 1024)
#define SILENT_MS 10000

typedef struct page {
    char *text; // malloc
    size_t len;
} page;

struct ebb_http {
    struct MHD_Daemon *daemon;
    uint16_t port;
    pthread_mutex_t lock; // of all below
    page status, metrics;
    json_t *event[EBB_HTTP_EVENTS]; // ring, oldest first from `first`
    size_t first, n_events;
    uint64_t last_event, published_ms;
};

static void s_take(page *p, char *text, size_t len)
{
    free(p->text);
    p->text = text;
    p->len = len;
}

// ---- the coordinator's thread ----

static void s_on_event(void *arg, Ebb__Event *event)
{
    ebb_http *h = arg;
    json_t *o = ebb_json_message(&event->base);
    pthread_mutex_lock(&h->lock);
    if (h->n_events == EBB_HTTP_EVENTS) {
        json_decref(h->event[h->first]);
        h->first = (h->first + 1) % EBB_HTTP_EVENTS;
        h->n_events--;
    }
    h->event[(h->first + h->n_events++) % EBB_HTTP_EVENTS] = o;
    h->last_event = event->id;
    pthread_mutex_unlock(&h->lock);
    ebb_pb_free(&event->base);
}

void ebb_http_publish(ebb_http *h, ebb_coordinator *c, uint64_t now_ms)
{
    Ebb__Envelope reply = EBB__ENVELOPE__INIT;
    ebb_trash trash = {0};
    ebb_handle_status(c, now_ms, &reply, &trash);
    json_t *o = ebb_json_message(&reply.status_reply->base);
    char *status = json_dumps(o, JSON_COMPACT), *metrics = NULL;
    json_decref(o);
    size_t len = 0;
    FILE *f = open_memstream(&metrics, &len);
    EBB_ASSERT(f != NULL && status != NULL);
    ebb_metrics_print(f, reply.status_reply);
    fclose(f);
    ebb_trash_fini(&trash);
    // The first time only the newest: those before have been told to somebody, or are in the log.
    uint64_t after = h->last_event == 0 && c->event_id > EBB_HTTP_EVENTS ? c->event_id - EBB_HTTP_EVENTS : h->last_event;
    if (c->event_id > after && ebb_statestore_load_events(c->store, after, EBB_HTTP_EVENTS, s_on_event, h) != EBB_OK) {
        EBB_LOG(WARN, "http", "events-not-read", "after=%llu", (unsigned long long)after);
    }
    pthread_mutex_lock(&h->lock);
    s_take(&h->status, status, strlen(status));
    s_take(&h->metrics, metrics, len);
    h->published_ms = now_ms;
    pthread_mutex_unlock(&h->lock);
}

// ---- libmicrohttpd's thread ----

static enum MHD_Result s_send(struct MHD_Connection *connection, unsigned code, const char *type, char *text, size_t len,
                              enum MHD_ResponseMemoryMode mode)
{
    struct MHD_Response *r = MHD_create_response_from_buffer(len, text, mode);
    if (r == NULL) {
        if (mode == MHD_RESPMEM_MUST_FREE) {
            free(text);
        }
        return MHD_NO;
    }
    MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(r, "Content-Security-Policy",
                            "default-src 'self'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; frame-ancestors 'none'");
    if (code == MHD_HTTP_METHOD_NOT_ALLOWED) {
        MHD_add_response_header(r, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    }
    enum MHD_Result ok = MHD_queue_response(connection, code, r);
    MHD_destroy_response(r);
    return ok;
}

static enum MHD_Result s_error(struct MHD_Connection *connection, unsigned code, const char *why)
{
    json_t *o = json_pack("{s:s}", "error", why);
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o);
    return text == NULL ? MHD_NO : s_send(connection, code, "application/json", text, strlen(text), MHD_RESPMEM_MUST_FREE);
}

static enum MHD_Result s_page(ebb_http *h, struct MHD_Connection *connection, const page *p, const char *type)
{
    pthread_mutex_lock(&h->lock);
    size_t len = p->len;
    char *text = len > 0 ? malloc(len) : NULL;
    if (text != NULL) {
        memcpy(text, p->text, len);
    }
    pthread_mutex_unlock(&h->lock);
    if (text == NULL) {
        return s_error(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "the coordinator has not published anything yet");
    }
    return s_send(connection, MHD_HTTP_OK, type, text, len, MHD_RESPMEM_MUST_FREE);
}

static enum MHD_Result s_events(ebb_http *h, struct MHD_Connection *connection)
{
    const char *given = MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "after");
    char *end = NULL;
    errno = 0;
    uint64_t after = given != NULL ? strtoull(given, &end, 10) : 0;
    if (given != NULL && (end == given || *end != '\0' || errno != 0 || given[0] == '-')) {
        return s_error(connection, MHD_HTTP_BAD_REQUEST, "after: expected the id of an event, a whole number");
    }
    json_t *list = json_array();
    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < h->n_events; i++) {
        json_t *e = h->event[(h->first + i) % EBB_HTTP_EVENTS];
        if ((uint64_t)json_integer_value(json_object_get(e, "id")) > after) {
            json_array_append(list, e);
        }
    }
    json_t *o = json_pack("{s:o,s:I}", "events", list, "last", (json_int_t)h->last_event);
    char *text = json_dumps(o, JSON_COMPACT);
    json_decref(o); // under the lock: jansson's counts of the events are not atomic
    pthread_mutex_unlock(&h->lock);
    return text == NULL ? MHD_NO : s_send(connection, MHD_HTTP_OK, "application/json", text, strlen(text), MHD_RESPMEM_MUST_FREE);
}

static enum MHD_Result s_health(ebb_http *h, struct MHD_Connection *connection)
{
    pthread_mutex_lock(&h->lock);
    bool well = h->published_ms != 0 && ebb_clock_ms() - h->published_ms < SILENT_MS;
    pthread_mutex_unlock(&h->lock);
    return well ? s_send(connection, MHD_HTTP_OK, "text/plain; charset=utf-8", "ok\n", 3, MHD_RESPMEM_PERSISTENT)
                : s_error(connection, MHD_HTTP_SERVICE_UNAVAILABLE, "the coordinator's thread has not published for 10 s");
}

// A page of another origin may make a browser ask us (DNS rebinding): only names of this machine are answered.
static bool s_host_ok(struct MHD_Connection *connection)
{
    const char *host = MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST);
    return host == NULL || strncmp(host, "127.", 4) == 0 || strncmp(host, "localhost", 9) == 0;
}

static enum MHD_Result s_handle(void *arg, struct MHD_Connection *connection, const char *url, const char *method, const char *version,
                                const char *upload, size_t *upload_len, void **state)
{
    ebb_http *h = arg;
    static int seen;
    (void)version, (void)upload;
    if (*state == NULL) { // headers only so far
        *state = &seen;
        return MHD_YES;
    }
    if (*upload_len > 0) { // a body nobody asked for: read past it
        *upload_len = 0;
        return MHD_YES;
    }
    if (strcmp(method, MHD_HTTP_METHOD_GET) != 0 && strcmp(method, MHD_HTTP_METHOD_HEAD) != 0) {
        return s_error(connection, MHD_HTTP_METHOD_NOT_ALLOWED, "only GET and HEAD");
    }
    if (!s_host_ok(connection)) {
        return s_error(connection, MHD_HTTP_FORBIDDEN, "Host: expected localhost or a loopback address");
    }
    if (strcmp(url, "/") == 0) {
        return s_send(connection, MHD_HTTP_OK, "text/html; charset=utf-8", (char *)ebb_dashboard_html, ebb_dashboard_html_len,
                      MHD_RESPMEM_PERSISTENT);
    }
    if (strcmp(url, "/api/v1/status") == 0) {
        return s_page(h, connection, &h->status, "application/json");
    }
    if (strcmp(url, "/api/v1/events") == 0) {
        return s_events(h, connection);
    }
    if (strcmp(url, "/metrics") == 0) {
        return s_page(h, connection, &h->metrics, "text/plain; version=0.0.4; charset=utf-8");
    }
    if (strcmp(url, "/healthz") == 0) {
        return s_health(h, connection);
    }
    return s_error(connection, MHD_HTTP_NOT_FOUND, "known: /, /api/v1/status, /api/v1/events, /metrics, /healthz");
}

// ---- opening ----

static ebb_status s_address(const char *address, struct sockaddr_in *out, char *why)
{
    char host[64];
    const char *colon = strrchr(address, ':');
    char *end = NULL;
    errno = 0;
    unsigned long port = colon != NULL ? strtoul(colon + 1, &end, 10) : 0;
    size_t n = colon != NULL ? (size_t)(colon - address) : 0;
    *out = (struct sockaddr_in){.sin_family = AF_INET};
    if (colon == NULL || n >= sizeof(host) || end == colon + 1 || *end != '\0' || errno != 0 || port > 65535) {
        snprintf(why, 512, "http: expected HOST:PORT, like 127.0.0.1:8080, not \"%.200s\"", address);
        return EBB_CONFIG;
    }
    memcpy(host, address, n);
    host[n] = '\0';
    if (inet_pton(AF_INET, strcmp(host, "localhost") == 0 ? "127.0.0.1" : host, &out->sin_addr) != 1) {
        snprintf(why, 512, "http: expected an IPv4 address or localhost, not \"%.60s\"", host);
        return EBB_CONFIG;
    }
    if ((ntohl(out->sin_addr.s_addr) >> 24) != 127) {
        snprintf(why, 512,
                 "http: %.60s is not a loopback address: there is no authentication yet, so nothing else is served (a reverse proxy can add it)",
                 host);
        return EBB_CONFIG;
    }
    out->sin_port = htons((uint16_t)port);
    return EBB_OK;
}

ebb_status ebb_http_open(const char *address, ebb_http **out, char *why)
{
    struct sockaddr_in at;
    EBB_TRY(s_address(address, &at, why));
    ebb_http *h = calloc(1, sizeof(*h));
    if (h == NULL) {
        return EBB_NOMEM;
    }
    pthread_mutex_init(&h->lock, NULL);
    errno = 0;
    h->daemon = MHD_start_daemon(MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_AUTO, ntohs(at.sin_port), NULL, NULL, s_handle, h, MHD_OPTION_SOCK_ADDR,
                                 &at, MHD_OPTION_CONNECTION_LIMIT, (unsigned)CONNECTIONS_MAX, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S,
                                 MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES, MHD_OPTION_END);
    if (h->daemon == NULL) {
        bool used = errno == EADDRINUSE;
        snprintf(why, 512, "http: cannot serve on %.100s: %s", address, errno != 0 ? strerror(errno) : "the address may be in use");
        ebb_http_close(&h);
        return used ? EBB_EXISTS : EBB_IO;
    }
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_BIND_PORT);
    h->port = info != NULL ? info->port : ntohs(at.sin_port);
    *out = h;
    return EBB_OK;
}

void ebb_http_close(ebb_http **hp)
{
    ebb_http *h = *hp;
    if (h == NULL) {
        return;
    }
    if (h->daemon != NULL) {
        MHD_stop_daemon(h->daemon);
    }
    for (size_t i = 0; i < h->n_events; i++) {
        json_decref(h->event[(h->first + i) % EBB_HTTP_EVENTS]);
    }
    free(h->status.text);
    free(h->metrics.text);
    pthread_mutex_destroy(&h->lock);
    free(h);
    *hp = NULL;
}

uint16_t ebb_http_port(const ebb_http *h)
{
    return h->port;
}
