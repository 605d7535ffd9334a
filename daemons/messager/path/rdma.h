/* rdma.h - paths over RDMA (path.h): the sender's NIC writes into the receiver's pool by itself,
 * over reliably connected (RC) queue pairs: for each pair of messagers and direction a lane for
 * each of the receiver's pools, which is one queue pair after another.
 *
 *   sender: rdma_path.c                           receiver: rdma_intake.c
 *           ◀── OFFER: address, queue pair, canary ──
 *           ── ACCEPT: its own ──▶
 *           ◀── READY ──
 *           ◀── KEYS: a remote key for each lease ── incoming_new
 *   WRITE, WRITE, ... READ ═══════════════════════▶
 *           ── DONE: it writes this lease no more ──▶
 *           ◀── CLOSE: it must not ──                incoming_close
 *           ── RESET: its queue pair has failed ──▶   a new OFFER
 *           ── REFUSE: its NICs do not reach that ──▶  an OFFER of another NIC
 *           ◀── END: the lane has ended              rdma_pool_gone
 *           ── ASK: for the key of a lease ──▶        KEYS, or CLOSE
 *
 * rdma_qp.h draws the life of a queue pair, rdma_intake.h that of a lease at the receiver,
 * rdma_wire.h the messages, rdma_nic.h how each end chooses among its NICs. Any message may be lost
 * or repeated: each end repeats what it waits for.
 *
 * Delivered. The completion of a WRITE says that the other NIC has acknowledged it, not that the
 * bytes are in memory. So each list of writes of a lease ends with a READ of the last bytes
 * written: it is executed behind the writes of the same queue pair, and what it reads passes the
 * bus behind them. `delivered` counts the writes when that READ has completed. Immediates and
 * receives are not used. incoming_complete is always 1: a receiver cannot tell.
 *
 * Memory windows. Where the device has them (type 2B), a lease gets a window over D's pool that
 * only this queue pair may use; incoming_close invalidates it. A window spans the whole pool,
 * because the blocks of a lease are spread over it: until the lease is closed the sender is trusted
 * to write its blocks only. Without windows the sender gets the key of the pool's registration,
 * which is valid while the queue pair lives: incoming_close of a lease for which no DONE has
 * arrived ends the queue pair, and the pool's other leases go on over the next one. Pools that only
 * send have no remote rights.
 *
 * How the messager uses it:
 *
 *   const struct verbs *v = verbs_load(&err);
 *   struct rdma_opts o = RDMA_OPTS_DEFAULT;
 *   if (!v || rdma_transport_new(base, v, &o, &rdma, &err) < 0)
 *       err.text says what is missing (ERR_NOTFOUND: library, device, port or GID). This never
 *       falls back by itself: with require_rdma the messager ends; else it logs that it uses TCP
 *   rdma_pool_add(rdma, &w->region, &err)
 *       when a worker attaches: registering a large pool takes seconds, which its first lease would
 *       wait for otherwise. ERR_UNSUPPORTED: the pool is not in host memory
 *   rdma_path_ops.path_new(rdma, ...), rdma_path_ops.intake_new(rdma, ...)
 *       when a control link comes up. What `say` is given goes to the other end as a PATH message
 *       of transport "rdma", for path_said (sender) or intake_said (receiver). An end that gets one
 *       before it has made its path or intake may drop it
 *   path_destroy, intake_destroy
 *       when the link has ended
 *   rdma_pool_gone(rdma, &w->region)
 *       before the region is unmapped: its outgoings have ended, its incomings have been freed
 *   rdma_transport_destroy(&rdma)
 *       all paths and intakes have been destroyed
 *
 * A region is known by its address: it must not move while it is registered. */
#ifndef MESSAGER_RDMA_H
#define MESSAGER_RDMA_H

#include "path.h"
#include "verbs.h"

#include <event2/event.h>

struct rdma;

struct rdma_opts {
	const char *device; /* names, "mlx5_0, mlx5_1"; "": all that have an active port */
	uint8_t port;       /* of each; 0: the first active one */
	/* -1: chooses; RoCE v2 with the IPv4 address of a local interface before others */
	int gid_index;
	uint8_t traffic_class; /* of RoCE packets */
	int no_windows;        /* does without memory windows on a device that has them */
	uint32_t depth; /* work requests outstanding on one queue pair, 8 to 16384; less if a device
	                 * cannot do as many */
	/* bytes outstanding on one queue pair (at least one piece is): more than the link carries in a
	 * round trip, less than in drain_us and close_us */
	uint64_t window_bytes;
	uint64_t timeout_us; /* without a completion, or an answer: the queue pair is given up */
	uint64_t drain_us;   /* the longest that a call waits for outstanding work requests */
	uint64_t retry_us;   /* until a message is repeated; doubles, as after a failure, to 64 times */
	uint64_t close_us;   /* incoming_close waits that long for DONE */
	uint64_t canary_us;  /* from one canary to the next; 0: none */
	uint64_t (*now_us)(void); /* NULL: clock_us; tests have their own */
};

/* clang-format off */
#define RDMA_OPTS_DEFAULT \
	{.device = "", .gid_index = -1, .depth = 256, .window_bytes = 4u << 20, .timeout_us = 3000000, \
	 .drain_us = 2000, .retry_us = 20000, .close_us = 50000, .canary_us = 5000000}
/* clang-format on */

/* Strings of o are copied. 0, ERR_INVALID (a value out of its range), ERR_NOTFOUND (no such device,
 * port or GID; err says what there is), ERR_UNSUPPORTED (the device lacks something), ERR_NOMEM or
 * ERR_IO. */
int rdma_transport_new(struct event_base *base, const struct verbs *v, const struct rdma_opts *o,
                       struct rdma **ret, struct err *err);
void rdma_transport_destroy(struct rdma **t);

/* Registers the pool with its nearest NICs; with one of them if its NUMA node is not known. 0, also
 * if one of several NICs cannot, and if it is
 * registered already; ERR_UNSUPPORTED: the pool is not in host memory; ERR_FULL: there are
 * RDMA_LANES_MAX; ERR_NOMEM or ERR_IO. */
int rdma_pool_add(struct rdma *t, const struct kv_region *region, struct err *err);
void rdma_pool_gone(struct rdma *t, const struct kv_region *region);

/* transport: a struct rdma */
extern const struct path_ops rdma_path_ops;

#endif
