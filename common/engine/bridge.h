/* bridge.h - a stage of a group on another host. All processes of a group work as if it were on
 * their own host; the bridge has an end on each of the two hosts, which stands for the processes of
 * the other one. On rank 0's host it has the ranks' ends of their sockets to rank 0, and of the
 * ring of rows; on the stage's host a mapping of its own, and rank 0's ends of the sockets:
 *
 *   rank 0's host                                      the stage's host
 *   tp_start                        ── HELLO ──▶       makes the mapping, starts the ranks
 *   tp_order, and what of the       ── ORDER ──▶       tp_order
 *     shared bytes it is about
 *   tp_await_done                   ◀── DONE ──        all its ranks have done it
 *   tp_exchange                     ◀─ EXCHANGE ──     of all its ranks; descriptors stay there
 *                                   ── EXCHANGE ─▶     the reply, which is the same for all ranks
 *   tp_send, tp_recv of neighbours  ◀── ROWS ──▶       tp_recv, tp_send of its first rank
 *   tp_fail                         ◀── FAILED ──      a rank has ended or failed
 *
 * Each end sends ALIVE every second. An end that receives nothing for BRIDGE_SILENCE_S, or whose
 * connection ends, fails the group on its host; on the stage's host that ends the process. This
 * limit finds hosts, networks and bridges that have stopped; the limits of tp.h find ranks. Rows
 * between two other hosts pass through rank 0's. */
#ifndef ENGINE_BRIDGE_H
#define ENGINE_BRIDGE_H

#include "engine/tp.h"
#include "util/wire.h"

enum { BRIDGE_SILENCE_S = 10, BRIDGE_SHARED_MB_MAX = 4096 };

struct bridge;
struct tp_ring;

/* Rank 0's host, called by tp.c for a stage whose ranks it does not start. Takes the wire and the
 * stage's sockets of the ring over. `tp` has the mapping. 0, ERR_IO. */
int bridge_start(struct tp *tp, unsigned stage, struct tp_remote *remote, struct tp_ring *ring,
                 const void *hello, size_t hello_bytes, struct err *err);
void bridge_end(struct bridge **b);

/* The process of the stage's host: runs the stage until its group has ended, and writes the reason
 * to err, ERR_CLOSED if the worker has ended the connection. `adapt` may change the hello for this
 * host, whose ranks are [first, first + n). Destroys the wire. */
void bridge_run(struct wire *w, void *hello, size_t hello_bytes,
                void (*adapt)(void *arg, unsigned first, unsigned n), void *arg, struct err *err);

#endif
