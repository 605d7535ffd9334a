/* inbound.h - leases of this host's decode workers that the messagers of other hosts write: the
 * receiver's end of links and paths (path/path.h). remote.h is the sender's end.
 *
 * D knows nothing of other hosts: this messager asks it for the lease, is its registered writer,
 * and answers its revocations, so the fence is on D's host whatever the other host does.
 *
 * Life of an inbound lease:
 *
 *   NEW -> ASKED, CLOSED               LEASE_OPEN came; waits for the link to D, passes it on
 *   ASKED -> NEW, OPEN, FENCING, CLOSED
 *                                      waits for LEASE_OPENED; a new link to D: asks again
 *   OPEN -> SEALING, SEALED, FENCING, CLOSED
 *                                      the other end writes, over the path
 *   SEALING -> SEALED, FENCING, CLOSED
 *                                      KV_READY came: waits until the path has closed the lease
 *   FENCING -> CLOSED                  the lease was revoked, or the link has ended: waits until
 *                                      the path has closed it
 *   SEALED -> POSTED, CLOSED           passes KV_READY on to D
 *   POSTED -> SEALED, ACKED, CLOSED    waits for KV_READY_ACK; a new link to D: passes it on again
 *   ACKED -> CLOSED                    passes KV_READY_ACK back
 *   CLOSED                             freed; the other end was told if it must know
 *
 * What always holds: KV_READY is passed on, and a revocation answered, only when the path writes
 * nothing more under the lease. A link that ends takes its leases along: those without KV_READY
 * close. A KV_READY for an unknown lease is passed on: an earlier process of this messager, or
 * of the sender, may have seen it complete; D counts it only if the lease was opened for the same
 * messager. A lease belongs to the messager that asked
 * for it first: no other one's question or KV_READY touches it. */
#ifndef MESSAGER_INBOUND_H
#define MESSAGER_INBOUND_H

#include "mover.h"
#include "revoked.h"
#include "transport.h"

/* of one link, and in all; LEASE_OPEN beyond is refused */
#define INBOUND_LEASES_MAX 1024u
#define INBOUND_ALL_MAX 4096u

#define INBOUND_STATES(X) \
	X(NEW, "new")         \
	X(ASKED, "asked")     \
	X(OPEN, "open")       \
	X(SEALING, "sealing") \
	X(FENCING, "fencing") \
	X(SEALED, "sealed") X(POSTED, "posted") X(ACKED, "acked") X(CLOSED, "closed")
enum inbound_state {
#define X(name, text) INBOUND_##name,
	INBOUND_STATES(X)
#undef X
		INBOUND_STATE_COUNT
};

struct inbounds;
struct inbound_link; /* from one messager that connected to this one */

struct inbound_out {
	void *arg;
	/* To the messager at the other end of the link; 0 or ERR_*. `peer` as given to inbound_up */
	int (*send)(void *arg, void *peer, enum msg_type type, const struct msg_head *head,
	            const ProtobufCMessage *body);
	/* call inbound_turn soon */
	void (*wake)(void *arg);
};

/* mover and transports outlive it. */
struct inbounds *inbound_new(const struct inbound_out *out, struct mover *m,
                             const struct transports *t);
/* Nothing is written afterwards. */
void inbound_destroy(struct inbounds **b);

/* A messager has connected. NULL: this messager has no transport. */
struct inbound_link *inbound_up(struct inbounds *b, void *peer, const char *name, uint64_t epoch);
void inbound_down(struct inbound_link *l);
/* The workers of this host have changed. */
void inbound_pools_changed(struct inbounds *b);
/* A worker is about to be unmapped. */
void inbound_worker_gone(struct inbounds *b, const char *name, uint64_t epoch);

/* Messages from the other end. */
void inbound_path(struct inbound_link *l, const Pds__Path *b);
void inbound_lease_open(struct inbound_link *l, const struct msg_head *head,
                        const Pds__LeaseOpen *b);
void inbound_kv_ready(struct inbound_link *l, const struct msg_head *head, const Pds__KvReady *b);
/* Messages from D; those about no inbound lease are ignored. */
void inbound_lease_opened(struct inbounds *b, const char *name, uint64_t epoch,
                          const Pds__LeaseOpened *m);
void inbound_kv_ready_ack(struct inbounds *b, const char *name, uint64_t epoch,
                          const Pds__KvReadyAck *m);
/* The link to D is new. */
void inbound_linked(struct inbounds *b, const char *name, uint64_t epoch);
/* mover_out.fence */
int inbound_fence(struct inbounds *b, const struct lease_key *lease);

/* Sends what could not be sent before. 1: something still waits; call again soon. */
int inbound_turn(struct inbounds *b);

uint32_t inbound_count(const struct inbounds *b);
/* pdctl links: array members, without brackets; `first`: no comma before the first one. */
void inbound_json(const struct inbounds *b, struct buf *out, int first);

#endif
