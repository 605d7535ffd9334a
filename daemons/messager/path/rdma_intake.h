/* rdma_intake.h - the receiver of RDMA: the life of a lease that the other end may write.
 *
 *   WAIT -> BIND, OPEN, CLOSED         it cannot be written: no queue pair is up, or no window was
 *                                      free; or the sender has said DONE
 *   BIND -> OPEN, LEAVE, WAIT          its memory window is being bound
 *   OPEN -> LEAVE, UNBIND, CLOSED, WAIT    the sender is told its key, and may write
 *   LEAVE -> UNBIND, CLOSED            to be closed: CLOSE is said, DONE awaited for close_us
 *   UNBIND -> CLOSED                   its memory window is being invalidated
 *   CLOSED                             nothing is written any more
 *
 * BIND and OPEN become WAIT, LEAVE and UNBIND CLOSED, when the queue pair has been destroyed. DONE
 * spares the other leases: a write that meets a closed window ends the queue pair. It is waited
 * for, but nothing depends on it: a sender that does not answer loses the window, or the queue
 * pair. */
#ifndef MESSAGER_RDMA_INTAKE_H
#define MESSAGER_RDMA_INTAKE_H

#include "rdma_qp.h"

#define RDMA_LEASE_STATES(X) \
	X(WAIT, "wait")          \
	X(BIND, "bind") X(OPEN, "open") X(LEAVE, "leave") X(UNBIND, "unbind") X(CLOSED, "closed")
enum rdma_lease_state {
#define X(name, text) RDMA_LEASE_##name,
	RDMA_LEASE_STATES(X)
#undef X
		RDMA_LEASE_STATE_COUNT
};

enum rdma_lease_event {
	RDMA_LEASE_ON_ENTER,
	RDMA_LEASE_ON_TURN,
	RDMA_LEASE_ON_BOUND,
	RDMA_LEASE_ON_UNBOUND,
	RDMA_LEASE_ON_CLOSE, /* incoming_close */
	RDMA_LEASE_ON_GONE   /* the queue pair writes nothing any more, and is destroyed next */
};

#define RDMA_SPARE_WINDOWS 64u

struct rdma_window {
	struct ibv_mw *mw; /* NULL: none */
	uint32_t key;      /* of the last binding */
};

/* A lane. */
struct rdma_receiver {
	struct rdma_qp q;
	struct rdma_pool *pool;
	struct list leases;
	/* messages owed */
	int offer_owed, ready_owed;
	uint64_t close[RDMA_LEASES_MAX];
	uint32_t n_close;
	struct rdma_window spare[RDMA_SPARE_WINDOWS]; /* not bound */
	uint32_t n_spare;
	unsigned char *canary; /* (RDMA_CANARY_BYTES) the sender writes and reads it */
	struct ibv_mr *canary_mr;
};

struct rdma_lease {
	struct list node;
	struct rdma_due due;
	/* constant */
	const struct {
		struct rdma_receiver *i;
		uint64_t number;
		void *arg;
		void (*closed)(void *arg);
	};
	enum rdma_lease_state state;
	uint64_t since_us, retry_at_us; /* retry: WAIT: no window or registration is asked for before */
	struct rdma_window window;
	uint32_t key;
	int key_owed; /* OPEN: the sender has not been told, or asked again */
	int done;     /* the sender has said that it writes no more */
};

#endif
