/* mover_priv.h - shared by mover.c (workers, rings, links) and transfer.c (the life of one
 * transfer). */
#ifndef MESSAGER_MOVER_PRIV_H
#define MESSAGER_MOVER_PRIV_H

#include "mover.h"
#include "revoked.h"
#include "util/list.h"

#define LAYOUT_TEXT_MAX 96
/* a transfer without a believable deadline ends after this */
#define TRANSFER_LIFE_MAX_US (3600ull * 1000000u)

/* What is known of one slot of a ring: which generation was looked at, its open transfer, or how it
 * failed. */
struct slot_note {
	int known; /* gen has been taken up */
	uint64_t gen;
	struct transfer *transfer; /* NULL: closed */
	int failed, untold;        /* it failed; and P could not be told yet */
	Pds__Fault fault;
	char *text;
	struct msg_head head;
};

struct mover_worker {
	struct list node;
	char name[RING_NAME_MAX];
	uint64_t epoch;
	struct kv_layout layout;
	char layout_text[LAYOUT_TEXT_MAX];
	struct kv_region region;
	struct ring *ring;       /* NULL: does not prefill */
	struct slot_note *notes; /* (slots of ring) */
	uint64_t progress_us;    /* one of its transfers was last seen to progress */
};

struct transfer {
	struct list node; /* in mover.transfers */
	struct mover *m;
	struct mover_worker *p, *d; /* d: NULL until its memory is needed and here */
	uint32_t slot;
	uint64_t gen;
	struct msg_head head; /* request, attempt, deadline (never 0) */
	struct lease_key lease;
	uint32_t first_token, tokens, blocks;
	uint32_t *src, *dst; /* (blocks) */
	uint64_t *dst_gen;   /* (blocks) of D's blocks, as D has said; from OPEN on */
	uint32_t *sent;      /* (layers) blocks delivered */
	uint32_t *seen;      /* (layers) tokens seen computed, at most tokens */
	enum transfer_state state;
	int was_sent;                /* an earlier messager marked it */
	int said;                    /* ASKED: LEASE_OPEN is out on the present link */
	uint32_t watched;            /* tokens seen in layer 0 before it is OPEN */
	uint64_t found_us, since_us; /* since: of the present state */
	uint64_t progress_us;        /* OPEN: it was last seen to progress, or to wait for its turn */
	uint64_t computed_us, unlinked_us; /* 0: not yet, not now */
	uint64_t bytes, copy_us, tail_us;
	uint32_t pieces, runs;
};

struct mover {
	struct mover_out out;
	struct mover_limits limits;
	struct list workers, transfers;
	uint32_t n_workers, n_transfers, n_untold, n_owed;
	struct revoked *revoked;
	uint64_t bytes, now_us; /* now: of the present call */
	size_t budget;          /* bytes left in this turn */
	int more;               /* the budget ended before the work did */
	struct transfer *cut;   /* the first transfer that it cut short */
	struct ring_transfer scratch;
};

/* mover.c */
int mover_is_linked(const struct mover *m, const char *name, uint64_t epoch);
int mover_send(const struct mover *m, const char *name, uint64_t epoch, enum msg_type type,
               const struct msg_head *head, const ProtobufCMessage *body);
void mover_lease_fill(Pds__Lease *out, const struct lease_key *k);
/* The transfer in p's ring that names the lease. */
struct transfer *mover_transfer_of_lease(struct mover *m, const struct mover_worker *p,
                                         const struct lease_key *k);
/* The slot's transfer, or what would be one, failed: P is told, now or later. */
void note_fail(struct mover *m, struct mover_worker *w, uint32_t slot, Pds__Fault fault,
               const char *text);

/* transfer.c */
/* Makes a transfer of m->scratch, or fails it. */
void transfer_found(struct mover *m, struct mover_worker *p, uint32_t slot, uint64_t gen,
                    enum ring_state state);
/* As far as it goes. The transfer may be gone afterwards. */
void transfer_run(struct transfer *t);
/* Of one that is OPEN, when all have run and so all that P has computed is known: is it time to
 * give it up? The transfer may be gone afterwards. */
void transfer_waits(struct transfer *t);
void transfer_opened(struct transfer *t, const Pds__LeaseOpened *b);
void transfer_revoked(struct transfer *t);
void transfer_acked(struct transfer *t);
/* The link to D is up anew: what this state says is said again. */
void transfer_relinked(struct transfer *t);
void transfer_peer_gone(struct transfer *t, const char *who);
/* Closes without telling anybody. */
void transfer_drop(struct transfer *t, enum transfer_end end, const char *why);

#endif
