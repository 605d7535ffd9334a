/* rdma_side.h - what a path and an intake have in common: their lanes, one for each pool of the
 * receiver, each with a queue pair on the NIC that suits this pool best. The receiver makes lanes
 * as its pools come, the sender as it is offered them. */
#ifndef MESSAGER_RDMA_SIDE_H
#define MESSAGER_RDMA_SIDE_H

#include "rdma_qp.h"

struct rdma_side {
	struct list node; /* intakes: in rdma.intakes */
	/* constant */
	struct {
		struct rdma *t;
		const struct rdma_qp_end *end;
		struct path_peer peer;
		struct path_hooks hooks;
	};
	struct rdma_qp *lanes[RDMA_LANES_MAX]; /* by rdma_pool.lane of the receiver; NULL: none */
	uint64_t ended[RDMA_LANES_MAX];        /* sessions of which END is owed; 0: none */
	uint64_t errors;                       /* malformed messages */
	struct rdma_due due;                   /* it is up or down, or owes an END */
	int told_up;
};

void rdma_side_init(struct rdma_side *s, struct rdma *t, const struct rdma_qp_end *end,
                    const struct path_peer *peer, const struct path_hooks *hooks);
/* All lanes have ended. */
void rdma_side_fini(struct rdma_side *s);
/* What hooks.say returns. */
int rdma_side_say(struct rdma_side *s, const struct rdma_msg *m);
/* The other end hears that this lane has ended. */
void rdma_side_owe_end(struct rdma_side *s, unsigned lane, uint64_t session);
/* The sum of its lanes. It is up if all of them are; latency and rate are the slowest lane's. */
void rdma_side_show(const struct rdma_side *s, struct path_state *ret);

#endif
