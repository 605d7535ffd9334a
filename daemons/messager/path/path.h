/* path.h - KV bytes between this messager and those of other hosts, over TCP (tcp.h) or RDMA
 * (rdma.h).
 *
 * Two messagers that have a control link (msg/chan.h) move KV in one direction over it: from the
 * side that connected, the sender, to the side that is bound, the receiver. The receiver has an
 * intake for each link, the sender a path; both are made when the link comes up, before any lease
 * needs them, and end with it. `say` hooks carry what the two tell each other to set up (message
 * PATH), so all secrets pass over the authenticated and encrypted link only.
 *
 *   sender                                    receiver (writes D's pool)
 *   path_new  ◀──── said by either ────▶      intake_new
 *   outgoing_new(handle)  ◀── LEASE_OPENED ── incoming_new: a handle for exactly one lease's blocks
 *   outgoing_send(layer, first, n) ═══════▶   bytes are written into the lease's blocks
 *   delivered(bytes)  ◀── acknowledged
 *   outgoing_end                              incoming_close: nothing is written from then on
 *
 * What always holds, whatever the peer or the network does:
 *  - Bytes of a lease go to its blocks, and only while the lease is open (incoming_close has not
 *    returned 1, or `closed` was not called) and the block has its generation.
 *  - `delivered` counts only bytes that are in the receiver's pool, unchanged, once each.
 *  - A cut is no failure: the path reconnects and sends again what was not acknowledged. Only the
 *    mover's limits end a transfer that makes no progress.
 *  - Each pair has state of its own: a slow, dead or hostile peer delays no other.
 *  - The lease is the credit: its blocks are reserved at the receiver, so the receiver buffers
 *    nothing, and a sender has at most `window_bytes` of a lease unacknowledged.
 *
 * Everything runs on the event loop's thread. No hook is called within a call of these functions.
 */
#ifndef MESSAGER_PATH_H
#define MESSAGER_PATH_H

#include "kv/layout.h"
#include "kv/region.h"
#include "util/buf.h"
#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

#define PATH_HANDLE_MAX 64u /* bytes of a handle, sent in LEASE_OPENED */
#define PATH_SAY_MAX 4096u  /* bytes of one message to the other end */

struct path;     /* sender: the way to one other messager */
struct outgoing; /* sender: one lease's bytes on their way */
struct intake;   /* receiver: the way from one other messager */
struct incoming; /* receiver: one lease that the other end may write */

struct path_hooks {
	void *arg;
	/* Sends these bytes to the other end's path_said or intake_said, in order. 0 or ERR_*. */
	int (*say)(void *arg, const void *bytes, size_t n);
	/* The path can carry bytes now (1), or cannot (0) and why. */
	void (*up)(void *arg, int up, const char *why);
};

/* Who the other end is, for logs and counters. */
struct path_peer {
	char name[48];
	uint64_t epoch;
	char host[256]; /* sender: the host that its control link connects to, best as an address */
};

struct outgoing_opts {
	const unsigned char *handle; /* (handle_bytes), as from incoming_new */
	size_t handle_bytes;
	/* Whence: both must outlive the outgoing. The caller may reuse the blocks after outgoing_end */
	const struct kv_layout *layout;
	const struct kv_region *from;
	const uint32_t *src; /* (blocks), below from->blocks; copied */
	/* Whither, as LEASE_OPENED says: D's blocks, its pool's size; copied */
	const uint32_t *dst; /* (blocks), below to_blocks */
	uint32_t blocks, to_blocks;
	void *arg;
	/* that many more bytes are in the receiver's pool */
	void (*delivered)(void *arg, uint64_t bytes);
	/* No more will be: the receiver has closed the lease (ERR_STALE), or reading the pool failed
	 * (ERR_IO, ERR_CLOSED). Called once; then only outgoing_end is allowed. */
	void (*failed)(void *arg, int code, const char *why);
};

struct incoming_opts {
	const struct kv_layout *layout; /* of the pool; both must outlive the incoming */
	const struct kv_region *to;
	const uint32_t *dst;         /* (blocks), below to->blocks; copied */
	const uint64_t *generations; /* (blocks); copied */
	uint32_t blocks;
	void *arg;
	/* after incoming_close returned 0: now nothing is written any more */
	void (*closed)(void *arg);
};

/* What `pdctl links` shows of one path or intake. Times in microseconds, 0: not known. */
struct path_state {
	const char *transport;   /* "tcp", "rdma" */
	const char *up;          /* NULL, or why it cannot carry bytes */
	char via[640];           /* addresses, connections, encryption; device, port, GID, rate */
	uint64_t bytes, frames;  /* delivered */
	uint64_t repeated_bytes; /* sent again */
	uint64_t restarts;       /* connections or queue pairs made after the first */
	uint64_t errors;         /* frames refused, authentication, completions */
	uint64_t canary_us;      /* the last canary's round trip */
	uint64_t canary_mbit_s;  /* its rate */
	uint64_t canaries, canaries_lost;
	char last_error[160];
	uint64_t last_error_at_us; /* CLOCK_MONOTONIC */
};

struct path_ops {
	const char *name;
	/* --- sender --- */
	struct path *(*path_new)(void *transport, const struct path_peer *peer,
	                         const struct path_hooks *hooks);
	void (*path_destroy)(struct path **p); /* every outgoing has ended */
	/* From the peer, trusted in nothing. ERR_INVALID: not acceptable, why in err. */
	int (*path_said)(struct path *p, const void *bytes, size_t n, struct err *err);
	void (*path_state)(const struct path *p, struct path_state *ret);
	/* ERR_INVALID: the handle is malformed. */
	int (*outgoing_new)(struct path *p, const struct outgoing_opts *o, struct outgoing **ret,
	                    struct err *err);
	/* Blocks [first, first + n) of the list are computed in this layer: send them when possible.
	 * Each (layer, block) once. */
	void (*outgoing_send)(struct outgoing *o, uint32_t layer, uint32_t first, uint32_t n);
	/* Nothing reads the source blocks after it returns. */
	void (*outgoing_end)(struct outgoing **o);
	/* --- receiver --- */
	struct intake *(*intake_new)(void *transport, const struct path_peer *peer,
	                             const struct path_hooks *hooks);
	/* Nothing is written after it returns; frees every incoming that is left, calls no hook. */
	void (*intake_destroy)(struct intake **i);
	int (*intake_said)(struct intake *i, const void *bytes, size_t n, struct err *err);
	void (*intake_state)(const struct intake *i, struct path_state *ret);
	/* handle has PATH_HANDLE_MAX bytes. 0 or ERR_* */
	int (*incoming_new)(struct intake *i, const struct incoming_opts *o, struct incoming **ret,
	                    unsigned char *handle, size_t *ret_handle_bytes, struct err *err);
	/* 1: all bytes of all layers have arrived, or this transport cannot tell (the sender's
	 * `delivered` is then the proof). */
	int (*incoming_complete)(const struct incoming *n);
	/* 1: nothing is written from now on. 0: `closed` will be called. */
	int (*incoming_close)(struct incoming *n);
	void (*incoming_free)(struct incoming **n); /* closed */
	/* Frees it; nothing is written afterwards, whatever that costs other leases. For memory that is
	 * about to be unmapped. */
	void (*incoming_drop)(struct incoming **n);
};

#endif
