/* mover_priv.h - shared by mover.c (workers, rings, links) and transfer.c (the life of one
 * transfer). */
#ifndef MESSAGER_MOVER_PRIV_H
#define MESSAGER_MOVER_PRIV_H

#include "mover.h"
#include "revoked.h"
#include "util/list.h"
#include "util/once.h"

#define LAYOUT_TEXT_MAX 96
/* limit for a transfer without a plausible deadline */
#define TRANSFER_LIFE_MAX_US (3600ull * 1000000u)

/* What the mover knows of one slot of a ring: the generation, its open transfer, or how that
 * failed. */
struct slot_note {
	int known; /* gen became a transfer */
	uint64_t gen;
	struct transfer *transfer; /* NULL: closed */
	int failed, untold;        /* it failed; TRANSFER_FAILED could not be sent yet */
	Pds__Fault fault;
	char *text;
	struct msg_head head;
};

struct mover_worker {
	struct list node;
	char name[RING_NAME_MAX];
	uint64_t epoch;
	struct mover_via *via; /* NULL: of this host */
	char layout_text[LAYOUT_TEXT_MAX];
	uint32_t blocks; /* of its pool */
	/* of this host only */
	struct kv_layout layout;
	struct kv_region region;
	struct ring *ring;       /* NULL: does not prefill */
	struct slot_note *notes; /* (slots of ring) */
	uint64_t progress_us;    /* last progress of any of its transfers */
};

/* What a transfer acts on. */
enum transfer_event {
	TRANSFER_ON_ENTER,    /* its state was just entered */
	TRANSFER_ON_FOUND,    /* it is new */
	TRANSFER_ON_TURN,     /* it may move on, within the turn's budget */
	TRANSFER_ON_TURN_END, /* all have: everything that P has computed is known */
	TRANSFER_ON_OPENED,   /* LEASE_OPENED: mover.opened */
	TRANSFER_ON_REVOKED,
	TRANSFER_ON_ACKED,     /* KV_READY_ACK */
	TRANSFER_ON_RELINKED,  /* the link to D restarted; what was sent may be lost */
	TRANSFER_ON_CANCELLED, /* P has taken the slot back */
	TRANSFER_ON_PREFILL_GONE,
	TRANSFER_ON_DECODE_GONE,
	TRANSFER_ON_SHUTDOWN
};

struct transfer {
	struct list node; /* in mover.transfers */
	/* constant: what the slot said when the transfer was found */
	const struct {
		struct mover *m;
		struct mover_worker *p;
		uint32_t slot;
		uint64_t gen;
		struct msg_head head; /* request, attempt, deadline (never 0) */
		struct lease_key lease;
		uint32_t first_token, tokens, blocks;
		uint32_t *src, *dst; /* (blocks) */
		uint64_t found_us;
	};
	/* how far it is */
	struct {
		enum transfer_state state;
		uint64_t since_us;      /* of the present state */
		struct mover_worker *d; /* from ASKED on; NULL: before, or D has ended */
		/* from LEASE_OPENED, else NULL: D's blocks' generations (blocks), or the way to another
		 * host */
		uint64_t *dst_gen;
		struct outgoing *outgoing;
		uint32_t *sent;       /* (layers) blocks delivered, or given to the path */
		uint32_t *seen;       /* (layers) tokens seen computed, at most tokens */
		uint64_t given_us;    /* OPEN: the path last got something to send */
		uint64_t progress_us; /* OPEN: progress was last seen, or its turn was waited for */
		uint64_t computed_us; /* all was seen computed; 0: not yet */
	};
	/* what the path reported: failed is 0 or ERR_*, with the reason */
	struct {
		int failed;
		char why[160];
	} path;
	/* what it cost; bytes: delivered */
	struct {
		uint64_t bytes, copy_us, tail_us;
		uint32_t pieces, runs;
	};
	/* why it is CLOSED; recorded before that state is entered */
	struct {
		enum transfer_end how;
		Pds__Fault fault;       /* FAULT_NONE: P is not told */
		enum transfer_state in; /* the state that it ended in */
		char why[384];
	} end;
};

struct mover {
	struct mover_out out;
	struct mover_limits limits;
	struct list workers, transfers;
	uint32_t n_transfers, n_untold, n_owed;
	struct revoked *revoked;
	struct once logged;
	uint64_t bytes, now_us;         /* now: of the present call */
	size_t budget;                  /* bytes left in this turn */
	int more;                       /* the budget did not suffice */
	struct transfer *cut;           /* the first transfer that it cut short */
	const Pds__LeaseOpened *opened; /* of the present call */
	int in_order;                   /* of the present revocation */
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
/* The slot's transfer failed, or was malformed: sends TRANSFER_FAILED to P, now or later. */
void note_fail(struct mover *m, struct mover_worker *w, uint32_t slot, Pds__Fault fault,
               const char *text);

/* transfer.c */
/* Makes a transfer of m->scratch and takes its first step. */
void transfer_found(struct mover *m, struct mover_worker *p, uint32_t slot, uint64_t gen,
                    enum ring_state word);
/* The only function that changes a transfer's state. It may be freed afterwards. */
void transfer_step(struct transfer *t, enum transfer_event e);

#endif
