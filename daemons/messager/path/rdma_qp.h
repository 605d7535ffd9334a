/* rdma_qp.h - one end of a lane: the queue pairs, one after another, for one pool of the receiver.
 *
 *   RESET -> INIT                there is none. Waits for the pause after a failure to end; the
 *                                sender also for an OFFER that it has not answered
 *   INIT -> RTR, ERR             made; the receiver repeats OFFER and waits for ACCEPT
 *   RTR -> RTS, ERR              it has the other end's address
 *   RTS -> UP, ERR               the sender repeats ACCEPT and waits for READY
 *   UP -> ERR                    carries bytes
 *   ERR -> DRAINED               it has failed, or is given up: waits for the completions of all
 *                                that is outstanding, drain_us at most
 *   DRAINED -> RESET             nothing is written or read any more once it has been destroyed;
 *                                what was not delivered is sent again over the next one
 *
 * What always holds: no more work requests are outstanding than the send queue holds, and
 * completions are taken from the completion queue before anything is posted. Each queue pair has a
 * completion queue of its own, so that completions of an earlier one cannot be mistaken for its
 * own. A completion is of all work requests up to its own: only the last of each list asks for
 * one. */
#ifndef MESSAGER_RDMA_QP_H
#define MESSAGER_RDMA_QP_H

#include "rdma_priv.h"

#define RDMA_QP_STATES(X) \
	X(RESET, "reset")     \
	X(INIT, "init") X(RTR, "rtr") X(RTS, "rts") X(UP, "up") X(ERR, "err") X(DRAINED, "drained")
enum rdma_qp_state {
#define X(name, text) RDMA_QP_##name,
	RDMA_QP_STATES(X)
#undef X
		RDMA_QP_STATE_COUNT
};

enum rdma_qp_event {
	RDMA_QP_ON_ENTER, /* its state was just entered */
	RDMA_QP_ON_TURN,  /* time has passed, or something has arrived */
	RDMA_QP_ON_FAIL   /* rdma_qp.why says what */
};

/* What a work request that is outstanding was for. */
enum rdma_work {
	RDMA_WORK_WRITE,
	RDMA_WORK_FLUSH, /* the READ that ends a list of writes */
	RDMA_WORK_CANARY_WRITE,
	RDMA_WORK_CANARY,
	RDMA_WORK_BIND,
	RDMA_WORK_UNBIND
};

struct rdma_note {
	enum rdma_work work;
	void *of;                 /* its outgoing or incoming */
	uint32_t layer, first, n; /* WRITE: blocks of the outgoing's list */
};

struct rdma_qp;
struct rdma_side;

/* The two kinds of ends. */
struct rdma_qp_end {
	const char *role;
	int access; /* of the queue pair: what the other end may do */
	/* a queue pair that fails before anything has completed counts against its NIC */
	int blames_nic;
	/* RESET: may a queue pair be made? If so, session, round and nic have been set */
	int (*may_begin)(struct rdma_qp *q);
	/* a work request has completed; or it may not have, and its queue pair is in ERR */
	void (*completed)(struct rdma_qp *q, const struct rdma_note *w);
	void (*lost)(struct rdma_qp *q, const struct rdma_note *w);
	/* all notes are dealt with; the queue pair is destroyed next; has been destroyed */
	void (*drained)(struct rdma_qp *q);
	void (*destroyed)(struct rdma_qp *q);
	/* the next one is on another NIC: what belongs to the present one is freed */
	void (*leaves_nic)(struct rdma_qp *q);
	void (*turn)(struct rdma_qp *q);
	/* Fills m with the next message that is owed to the other end. 0: none is */
	int (*say)(struct rdma_qp *q, struct rdma_msg *m);
	void (*unsaid)(struct rdma_qp *q, const struct rdma_msg *m); /* that one could not be sent */
};

/* One end of a lane. */
struct rdma_qp {
	struct list node; /* in rdma.qps */
	/* constant */
	struct {
		struct rdma *t;
		struct rdma_side *side;
		const struct rdma_qp_end *end; /* of the side */
		unsigned lane;                 /* in rdma_side.lanes */
		struct rdma_note *notes;       /* (depth) of outstanding work requests, by number % depth */
	};
	/* the state, and what belongs to the present queue pair */
	struct {
		enum rdma_qp_state state;
		uint64_t since_us; /* of the state */
		struct ibv_qp *qp; /* NULL in RESET */
		struct ibv_cq *cq;
		uint64_t session;
		uint32_t round, psn;
		int other_known; /* `other`: the address of the other end's */
		struct rdma_address other;
		int ready;                  /* sender: READY has arrived */
		uint64_t head, tail;        /* work requests posted; completed */
		uint64_t flushed;           /* those with a completion of any kind */
		uint64_t progress_us;       /* of the last completion, or post on an idle queue */
		int notify;                 /* the completion queue must be armed again */
		char broken[RDMA_TEXT_MAX]; /* why it fails at the next poll; "": it does not */
	};
	/* from one queue pair to the next */
	struct {
		struct rdma_nic *nic;    /* of the present or last one; NULL: none yet */
		uint32_t tried;          /* NICs, by index: not to be used before all have been tried */
		char why[RDMA_TEXT_MAX]; /* it cannot carry bytes */
		uint32_t fails;          /* in a row */
		uint64_t not_before_us;  /* no new one */
		uint64_t repeat_us, repeat_at_us;
		struct rdma_due due; /* it has messages to say */
		uint64_t say_at_us;  /* a message could not be sent: not again before; 0: all could be */
		struct path_state shown;
	};
};

void rdma_qp_init(struct rdma_qp *q, struct rdma_side *side, unsigned lane);
/* Ends the queue pair, if there is one, within drain_us: nothing is outstanding any more. */
void rdma_qp_fini(struct rdma_qp *q);
/* The only function that changes the state. */
void rdma_qp_step(struct rdma_qp *q, enum rdma_qp_event e);
/* It has failed: counts that, and pauses before the next one. Does nothing if there is none, or it
 * has failed already. */
void rdma_qp_fail(struct rdma_qp *q, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* The same without a pause: it is replaced on purpose. */
void rdma_qp_give_up(struct rdma_qp *q, const char *why);
/* Gives it up, and returns when it is destroyed, after drain_us at most. */
void rdma_qp_finish(struct rdma_qp *q, const char *why);
/* Takes completions. Before anything is posted. */
void rdma_qp_poll(struct rdma_qp *q);
uint32_t rdma_qp_room(const struct rdma_qp *q); /* work requests that may be posted */
/* The note for the next work request of a list, whose number it returns: the caller fills it in. */
struct rdma_note *rdma_qp_note(struct rdma_qp *q, uint32_t at, uint64_t *ret_number);
/* Posts a list of n, with one doorbell. If that fails, what was not posted counts as lost, and the
 * queue pair fails at its next poll. */
void rdma_qp_post(struct rdma_qp *q, struct ibv_send_wr *list, uint32_t n);
void rdma_qp_address(const struct rdma_qp *q, struct rdma_address *ret);
/* It has something to tell. */
void rdma_qp_owes(struct rdma_qp *q);
void rdma_qp_count_error(struct rdma_qp *q, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Is it time to repeat what the other end has not answered? The pause doubles each time. */
int rdma_qp_repeats(struct rdma_qp *q);
/* The next queue pair will be on this NIC. */
void rdma_qp_use(struct rdma_qp *q, struct rdma_nic *nic);
/* For the choice of the next one: the present NIC has failed. */
void rdma_qp_mark_tried(struct rdma_qp *q);
/* The same in RESET, where no queue pair can be made on it: counts that, and pauses. */
void rdma_qp_blame_nic(struct rdma_qp *q, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
