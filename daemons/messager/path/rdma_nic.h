/* rdma_nic.h - the NICs of a transport: device, port and GID, and which one a queue pair takes.
 *
 * The choice. Of the NICs whose port is active and that reach the other end (same link layer, and
 * on InfiniBand the same subnet), the one that is nearest to the memory; of several that are
 * equally near the one with the fewest queue pairs, so that pairs of hosts spread over all. A NIC
 * is near memory of its own NUMA node; where either node is unknown, it is as near as can be. The
 * memory is the lane's pool at the receiver. At the sender it is all pools, since each may be sent
 * over each lane: the nearest NIC is the one that is near most of them.
 *
 * A NIC that dies fails its queue pairs, and the next set-up chooses among the others. One whose
 * port is active but that carries nothing is found out by trying: rdma_qp.tried are the NICs that
 * have failed. The sender tries all of its own with the receiver's, then says REFUSE, and the
 * receiver goes on to its next one. A completion at the sender shows that its NIC works; the
 * receiver has no such proof, and returns to a NIC that was refused when it has tried all. */
#ifndef MESSAGER_RDMA_NIC_H
#define MESSAGER_RDMA_NIC_H

#include "rdma_qp.h"

struct rdma_nic {
	/* constant */
	struct {
		struct rdma *t;
		unsigned index; /* in rdma.nics */
		int node;       /* NUMA node; -1: unknown */
		char device[64];
		struct ibv_context *ctx;
		struct ibv_device_attr attr;
		struct ibv_pd *pd;
		struct ibv_comp_channel *channel;
		int windows; /* memory windows are used */
		struct event *on_channel, *on_async;
		unsigned char scratch[RDMA_FLUSH_BYTES]; /* where flushing READs go; never looked at */
		struct ibv_mr *scratch_mr;
	};
	/* looked up again when the port changes */
	struct {
		uint8_t port_num;
		struct ibv_port_attr port;
		uint32_t gid_index;
		union ibv_gid gid;
		char gid_text[48];
	};
};

/* Opens those that opts.device names, into t->nics; t->opts.depth becomes what all of them can do.
 * On failure t->nics has what was opened. */
int rdma_nics_open(struct rdma *t, struct event_base *base, struct err *err);
void rdma_nics_close(struct rdma *t);
/* Nearest to the pool; pool NULL: to most of all pools. reach NULL: no address is known. NULL if
 * there is none that q has not tried; *ret_tried: whether there is one that it has. */
struct rdma_nic *rdma_nic_choose(const struct rdma_qp *q, const struct rdma_pool *pool,
                                 const struct rdma_address *reach, int *ret_tried);
int rdma_nic_is_active(const struct rdma_nic *n);
int rdma_nic_reaches(const struct rdma_nic *n, const struct rdma_address *a);
/* 0: the pool is in the NIC's NUMA node, or either node is unknown. */
int rdma_nic_distance(const struct rdma_nic *n, const struct rdma_pool *p);
/* n bytes of the caller's, for as long as the registration exists. NULL: err says why. */
struct ibv_mr *rdma_register(const struct rdma_nic *n, void *at, size_t bytes, int access,
                             const char *what, struct err *err);
void rdma_unregister(struct rdma *t, struct ibv_mr **mr);
/* As pdctl links shows it. */
void rdma_nic_show(const struct rdma_nic *n, enum ibv_mtu mtu, char *out, size_t size);

#endif
