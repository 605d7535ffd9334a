/* pipeline.h - stages of this worker's pipeline that run on other hosts. At its start the worker
 * waits until as many ranks (pdrank, with a configuration of its own) have connected to it as
 * stages are missing, takes them, and gets a connection to each (util/wire.h).
 *
 *   rank                                         worker
 *   HELLO (program, build)                 ──▶   admits it, if it is of the same build
 *                                                enough are there:
 *                                          ◀──   PIPELINE_TAKE(stage, stages, port, ticket, secret)
 *   connects to the port: HELLO, ...       ◀═▶   the stage is connected
 *
 * Ranks are taken in the order of their names, so that the same ones become the same stages again.
 * One that does not connect within TAKE_LIMIT_US, or whose connection ends while others are waited
 * for, loses its place: the next one gets it, or it offers itself again. Who does not know the
 * secret of a ticket gets no further than one read of WIRE_HELLO_BYTES. */
#ifndef WORKER_LINKS_PIPELINE_H
#define WORKER_LINKS_PIPELINE_H

#include "engine/tp.h"
#include "svc/svc.h"
#include "util/wire.h"

/* Waits for the last n of `stages`; their wires are the caller's. Listens for their connections
 * where `listen` does (127.0.0.1 without one), on this port (0: any free one). 0, or ERR_IO: it
 * cannot listen. */
int pipeline_gather(struct svc *s, unsigned stages, unsigned n, unsigned port,
                    struct tp_remote *ret, struct err *err);

#endif
