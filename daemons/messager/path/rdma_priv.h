/* rdma_priv.h - the transport, as its paths and intakes see it.
 *
 * Everything is moved by rdma_turn, which the event loop calls after a completion, at a time that
 * was asked for (rdma_is_time), and after a call from outside (rdma_soon). Hooks are called at its
 * end only, one after another from the list `due`: each is the last thing that is done with its
 * object, which it may destroy. */
#ifndef MESSAGER_RDMA_PRIV_H
#define MESSAGER_RDMA_PRIV_H

#include "rdma.h"
#include "rdma_wire.h"
#include "util/list.h"

#define RDMA_CANARY_BYTES 65536u
#define RDMA_FLUSH_BYTES 8u /* of a READ that ends a list of writes */

/* Something that has a hook to call. */
struct rdma_due {
	struct list node; /* in rdma.due, or in no list */
	/* Calls one hook at most, at its end; before, it puts itself back if there is more. */
	void (*tell)(struct rdma_due *d);
};

#define RDMA_LIST_SEPARATORS ", \t"
#define RDMA_DEPTH_MIN 8u
#define RDMA_NICS_MAX 16u

struct rdma_nic;

struct rdma_pool {
	struct list in; /* rdma.pools */
	const struct kv_region *region;
	unsigned lane; /* its number: of the queue pair of each intake that it is written by */
	int node;      /* NUMA node of its memory; -1: of several, or unknown */
	/* with each NIC that needs it, by rdma_nic.index; one for both purposes if the device has
	 * windows: then neither gives remote rights. dest: NULL until the pool is first written */
	struct {
		struct ibv_mr *source, *dest;
	} mr[RDMA_NICS_MAX];
};

struct rdma {
	/* constant */
	struct {
		const struct verbs *v;
		struct rdma_opts opts;
		struct rdma_nic *nics[RDMA_NICS_MAX];
		unsigned n_nics;
		struct event *timer, *soon;
	};
	struct list qps, pools, due;
	struct list intakes; /* sides that have a queue pair for each pool */
	uint64_t now_us;     /* of the present turn */
	uint64_t next_us;    /* when the next is needed */
	uint64_t leases;     /* numbers given */
	struct list *told;   /* the qp whose `say` is being called; NULL: it was destroyed meanwhile */
};

uint64_t rdma_now(const struct rdma *t);
void rdma_turn(struct rdma *t);
void rdma_soon(struct rdma *t); /* a turn, in the loop's next round */
/* 1 if `at_us` has come; else a turn is asked for at that time. */
int rdma_is_time(struct rdma *t, uint64_t at_us);
void rdma_tell(struct rdma *t, struct rdma_due *d);

/* The pool of a region, which becomes known at its first use. NULL: err says why. */
struct rdma_pool *rdma_pool_get(struct rdma *t, const struct kv_region *r, struct err *err);
/* Its registration with a NIC, made at the first use. NULL: err says why. */
struct ibv_mr *rdma_pool_source(struct rdma_pool *p, const struct rdma_nic *n, struct err *err);
struct ibv_mr *rdma_pool_dest(struct rdma_pool *p, const struct rdma_nic *n, struct err *err);

/* rdma_path.c, rdma_intake.c */
struct path *rdma_path_new(void *transport, const struct path_peer *peer,
                           const struct path_hooks *hooks);
void rdma_path_destroy(struct path **p);
int rdma_path_said(struct path *p, const void *bytes, size_t n, struct err *err);
void rdma_path_state(const struct path *p, struct path_state *ret);
int rdma_outgoing_new(struct path *p, const struct outgoing_opts *o, struct outgoing **ret,
                      struct err *err);
void rdma_outgoing_send(struct outgoing *o, uint32_t layer, uint32_t first, uint32_t n);
void rdma_outgoing_end(struct outgoing **o);
struct intake *rdma_intake_new(void *transport, const struct path_peer *peer,
                               const struct path_hooks *hooks);
void rdma_intake_destroy(struct intake **i);
int rdma_intake_said(struct intake *i, const void *bytes, size_t n, struct err *err);
void rdma_intake_state(const struct intake *i, struct path_state *ret);
int rdma_incoming_new(struct intake *i, const struct incoming_opts *o, struct incoming **ret,
                      unsigned char *handle, size_t *ret_handle_bytes, struct err *err);
int rdma_incoming_complete(const struct incoming *n);
int rdma_incoming_close(struct incoming *n);
void rdma_incoming_free(struct incoming **n);
void rdma_incoming_drop(struct incoming **n);
/* Each intake gets a queue pair for this pool; or has none any more. */
void rdma_intakes_add(struct rdma *t, struct rdma_pool *p);
void rdma_intakes_remove(struct rdma *t, const struct rdma_pool *p);

#endif
