// The thread that talks to the coordinator: it sends a report about every 100 ms (sooner when there is news) and hands the orders in the answer to the
// shard's thread. The coordinator never has to reach a shard by itself.
#ifndef EBB_PS_LINK_H
#define EBB_PS_LINK_H

#include "core/net.h"
#include "ps/shard.h"

typedef struct ebb_link ebb_link;

// The shard must outlive it.
ebb_status ebb_link_new(ebb_net *net, const char *coordinator, ebb_shard *shard, ebb_link **out);
ebb_status ebb_link_start(ebb_link *l);
// The shard's callbacks, any thread: a report to send (takes env; NULL: none could be built), and something new to report.
void ebb_link_report(ebb_link *l, Ebb__Envelope *env, uint64_t report);
void ebb_link_news(ebb_link *l);
// Ends the thread; with last_report, after one more report (at most half a second). Joins. Idempotent.
void ebb_link_stop(ebb_link *l, bool last_report);
void ebb_link_free(ebb_link **l);

#endif
