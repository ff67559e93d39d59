// The io thread: the one owner of the sockets to the shards. Private to client/.
//
// In: requests through an inbox (each at most twice: submitted, then perhaps cancelled). Out: finished requests, through the table.
#ifndef EBB_CLIENT_IO_H
#define EBB_CLIENT_IO_H

#include "client/requests.h"
#include "client/router.h"

typedef struct ebb_io ebb_io;

// Starts the thread; takes the routes on success.
ebb_status ebb_io_start(ebb_session *session, ebb_routes *routes, ebb_io **out);
// Any thread: hands over a request. Never refuses (the inbox has room for every slot twice).
void ebb_io_submit(ebb_io *io, ebb_request *request);
// Ends and joins the thread; what is outstanding finishes as CLOSED.
void ebb_io_stop(ebb_io **io);

#endif
