// One shard process, wired: recover, listen, report. Staged shutdown: refuse -> last snapshot -> last report -> stop.
#ifndef EBB_PS_SERVER_H
#define EBB_PS_SERVER_H

#include "core/net.h"
#include "ps/shard.h"

typedef struct ebb_server_options {
    const char *coordinator, *bind, *dir;
    uint32_t shard;
    uint64_t disk_reserve_bytes;
    uint32_t sync_ms; // 0: default
    // On the shard's thread: the coordinator wants the process to end; or nothing can be acknowledged any more (exit_code: EBB_EXIT_RESTART or 65).
    void (*shutdown)(void *arg);
    void (*fatal)(void *arg, int exit_code, const char *why);
    void *arg;
} ebb_server_options;

typedef struct ebb_server ebb_server;

// Recovers, binds, starts. why (>= 512 bytes). Errors: as ebb_shard_new and ebb_router_open. net must outlive it.
ebb_status ebb_server_start(ebb_net *net, const ebb_server_options *options, ebb_server **out, char *why);
const char *ebb_server_endpoint(const ebb_server *s);
uint64_t ebb_server_incarnation(const ebb_server *s);
// Clean end: everything acknowledged is in a snapshot on disk when this returns.
void ebb_server_stop(ebb_server **s);
// Ends without any further write, as a crash would (tests).
void ebb_server_abandon(ebb_server **s);

#endif
