/* mover.h - moves KV blocks from one worker's pool into another's: the workers of this host, their
 * transfer rings, and the open transfers. D may be on another host: then its messager stands
 * between us and D, and the bytes take a path (path/path.h); see remote.h.
 *
 * Life of a transfer (the messager process of the model; P and we share the slot's word, see
 * kv/ring.h):
 *
 *   FOUND -> ASKED, CLOSED           waits for D's memory and both links, then sends LEASE_OPEN
 *   RESUMED -> MARKED, CLOSED        found with the slot SENT: an earlier messager delivered it
 *   ASKED -> FOUND, OPEN, CLOSED     waits for LEASE_OPENED; a new link to D: asks again
 *   OPEN -> MARKED, CLOSED           copies what P has computed, or sends it on the path; when all
 *                                    is delivered, marks the slot SENT
 *   MARKED -> POSTED, CLOSED         sends KV_READY to D
 *   POSTED -> MARKED, ACKED, CLOSED  waits for KV_READY_ACK; the link is down or new: posts again
 *   ACKED -> CLOSED                  sends KV_SENT to P
 *   CLOSED                           reported; P gets TRANSFER_FAILED if it waits for one; freed
 *
 * Every state becomes CLOSED when the transfer is cancelled, revoked, refused, stalled, malformed,
 * past its deadline, or when a worker or the messager ends.
 *
 * What always holds: nothing is written before D has answered LEASE_OPENED for exactly this lease
 * to this process, only the blocks that D names there are written, and none after a revocation, the
 * mark, or CLOSED. No write of ours is in flight between calls, so each LEASE_REVOKE is answered at
 * once and finally; one about a lease that another host's messager writes, when that is fenced off
 * (inbound.h). Everything read from shared memory is checked before it is used; a malformed
 * transfer fails.
 *
 * One thread. System calls, sockets and the clock are behind struct mover_out, so that tests can
 * drive every order of events. */
#ifndef MESSAGER_MOVER_H
#define MESSAGER_MOVER_H

#include "kv/layout.h"
#include "kv/region.h"
#include "kv/ring.h"
#include "msg/chan.h"
#include "path/path.h"
#include "util/buf.h"

#include <stdint.h>

struct lease_key;
struct mover;
struct mover_worker;

#define TRANSFER_STATES(X) \
	X(FOUND, "found")      \
	X(RESUMED, "resumed")  \
	X(ASKED, "asked")      \
	X(OPEN, "open") X(MARKED, "marked") X(POSTED, "posted") X(ACKED, "acked") X(CLOSED, "closed")
enum transfer_state {
#define X(name, text) TRANSFER_##name,
	TRANSFER_STATES(X)
#undef X
		TRANSFER_STATE_COUNT
};

/* How a transfer ended. */
/* clang-format off */
#define TRANSFER_ENDS(X) \
	X(SENT, "sent") X(CANCELLED, "cancelled") X(REVOKED, "revoked") X(REFUSED, "refused") \
	X(STALLED, "stalled") X(DEADLINE, "deadline") X(PEER_GONE, "peer_gone") \
	X(MALFORMED, "malformed") X(COPY_FAILED, "copy_failed")
/* clang-format on */
enum transfer_end {
#define X(name, text) END_##name,
	TRANSFER_ENDS(X)
#undef X
		END_COUNT
};

/* What is reported of a transfer when it ends. */
struct transfer_report {
	struct reqid req;
	const char *from, *to; /* names of the workers; valid during the call */
	enum transfer_end end;
	/* tail: last layer seen computed until all was delivered; life: found until closed */
	uint64_t bytes, copy_us, tail_us, life_us;
	/* (layer, block) pieces, and the copies that they were coalesced into */
	uint32_t pieces, runs;
};

struct mover_out {
	void *arg;
	uint64_t (*now_us)(void *arg);
	/* Is the link to this epoch of that worker up? */
	int (*linked)(void *arg, const char *name, uint64_t epoch);
	/* 0, or ERR_FULL or ERR_CLOSED: the mover tries again at a later turn. */
	int (*send)(void *arg, const char *name, uint64_t epoch, enum msg_type type,
	            const struct msg_head *head, const ProtobufCMessage *body);
	void (*ended)(void *arg, const struct transfer_report *r); /* may be NULL */
	/* This process has lost a device: every copy of its pools would fail. May end the process; may
	 * be NULL */
	void (*lost)(void *arg, const char *why);
	/* Call mover_turn soon: something came over a path. May be NULL if no pool is remote */
	void (*wake)(void *arg);
	/* D has revoked this lease: stops other hosts' messagers from writing under it. 1: none can.
	 * 0: one still can; call mover_revoke_fenced when it cannot. May be called again; NULL: 1. */
	int (*fence)(void *arg, const struct lease_key *lease);
	/* This worker's memory is about to be unmapped; no transfer uses it any more. May be NULL */
	void (*unmap)(void *arg, const struct kv_region *region);
	/* The memory of D is not known. Why it is not to be expected soon, valid until the next call:
	 * transfers to D fail at once. NULL: they wait. May itself be NULL */
	const char *(*unreachable)(void *arg, const char *decode);
};

/* The way to the workers of another host: its messager's link and path. */
struct mover_via {
	void *arg;
	const char *name; /* of that messager */
	int (*linked)(void *arg);
	/* as mover_out.send; the message is for the messager, or passed on by it */
	int (*send)(void *arg, enum msg_type type, const struct msg_head *head,
	            const ProtobufCMessage *body);
	const struct path_ops *ops;
	struct path *path;
	uint64_t progress_us; /* bytes of any transfer last arrived; the mover's */
};

struct mover_limits {
	/* longest wait for progress of P, for D's memory, a link or LEASE_OPENED */
	uint64_t stall_us;
	size_t slice_bytes; /* copied in one turn at most (but at least one piece) */
};

struct mover *mover_new(const struct mover_out *out, const struct mover_limits *limits);
/* Closes all transfers; nobody is told. Slots stay as they are for the next messager. */
void mover_shutdown(struct mover *m);
void mover_destroy(struct mover **m);
void mover_set_limits(struct mover *m, const struct mover_limits *limits);

/* A worker attaches its memory. The mover owns region and ring (NULL: the worker does not prefill)
 * from now on. name is shorter than RING_NAME_MAX and unused. */
struct mover_worker *mover_add(struct mover *m, const char *name, uint64_t epoch,
                               const struct kv_layout *layout, const struct kv_region *region,
                               struct ring *ring);
/* A worker of another host, which its messager has named. via outlives it. Replaces an earlier life
 * of it. NULL, logged: a worker of this host has that name, or another host's of this epoch or a
 * later one. */
struct mover_worker *mover_add_remote(struct mover *m, const char *name, uint64_t epoch,
                                      const char *layout_text, uint32_t blocks,
                                      struct mover_via *via);
/* Iterates over the workers of one messager: start with NULL. */
struct mover_worker *mover_next_of(const struct mover *m, const struct mover_via *via,
                                   const struct mover_worker *after);
/* NULL: the worker is of this host. */
const struct mover_via *mover_worker_via(const struct mover_worker *w);
uint64_t mover_worker_epoch(const struct mover_worker *w);
const char *mover_worker_name(const struct mover_worker *w);
/* A worker of this host, as long as it is attached. */
struct mover_local {
	const char *name;
	uint64_t epoch;
	const char *layout_text;
	const struct kv_layout *layout;
	const struct kv_region *region;
};
void mover_each_local(const struct mover *m, void (*fn)(void *arg, const struct mover_local *w),
                      void *arg);
/* Of this epoch; 0 if there is none. */
int mover_find_local(const struct mover *m, const char *name, uint64_t epoch,
                     struct mover_local *ret);
/* The worker's connection has ended: transfers from it close, transfers to it fail, its memory is
 * unmapped. */
void mover_remove(struct mover *m, struct mover_worker *w);
struct mover_worker *mover_find(const struct mover *m, const char *name);

/* Messages from this epoch of a worker. A message that fits no transfer is ignored; LEASE_REVOKE is
 * always answered. */
void mover_lease_opened(struct mover *m, const char *name, uint64_t epoch,
                        const Pds__LeaseOpened *b);
void mover_lease_revoke(struct mover *m, const char *name, uint64_t epoch,
                        const struct msg_head *head, const Pds__LeaseRevoke *b);
void mover_kv_ready_ack(struct mover *m, const char *name, uint64_t epoch,
                        const Pds__KvReadyAck *b);
/* Nobody writes under the lease any more: answers a LEASE_REVOKE that waited for that, if any. */
void mover_revoke_fenced(struct mover *m, const struct lease_key *lease);
/* The remote worker w has revoked a lease; its messager has closed it. */
void mover_remote_revoked(struct mover *m, const struct mover_worker *w, const Pds__LeaseRevoke *b);
/* 1: its D has given it back in order */
int mover_revoked_in_order(const struct mover *m, const struct lease_key *lease);
/* A link came up: messages that may have been lost with the previous one are sent again. */
void mover_linked(struct mover *m, const char *name, uint64_t epoch);

enum mover_turn { MOVER_IDLE, MOVER_OPEN, MOVER_BUSY };
/* Checks all rings and moves every transfer as far as possible, within slice_bytes. IDLE: nothing
 * is open. OPEN: transfers wait; call again after each event and every few tens of milliseconds.
 * BUSY: there is more to copy, call again at once. */
enum mover_turn mover_turn(struct mover *m);
/* The doorbell protocol of kv/ring.h for all rings: after mover_sleeping(m, 1) take one more turn
 * before sleeping. */
void mover_sleeping(struct mover *m, int sleeping);

uint32_t mover_open_transfers(const struct mover *m);
uint32_t mover_revoked(const struct mover *m); /* leases remembered as revoked */
uint64_t mover_bytes(const struct mover *m);   /* copied since start */
/* To a worker of this host: as mover_out.send, and ERR_CLOSED without a link to this epoch. */
int mover_tell(const struct mover *m, const char *name, uint64_t epoch, enum msg_type type,
               const struct msg_head *head, const ProtobufCMessage *body);
void mover_transfers_json(const struct mover *m, struct buf *out); /* array */
void mover_workers_json(const struct mover *m, struct buf *out);   /* array */

const char *transfer_state_name(enum transfer_state s);

#endif
