/* verbs.h - the functions of libibverbs that the RDMA transport calls, as a table: the real ones
 * are loaded at run time, so that one build runs with and without the library; tests put a fabric
 * of their own behind it (tests/unit/verbs_fake.h).
 *
 * Each function means what its namesake ibv_* means, errors included (errno, or the errno as a
 * result). What the library has as inline functions is taken from its headers. Where devices and
 * memory are, the kernel says. */
#ifndef MESSAGER_VERBS_H
#define MESSAGER_VERBS_H

#include "util/err.h"

#include <infiniband/verbs.h>

struct verbs {
	struct ibv_device **(*get_device_list)(int *ret_n);
	void (*free_device_list)(struct ibv_device **list);
	const char *(*get_device_name)(struct ibv_device *d);
	struct ibv_context *(*open_device)(struct ibv_device *d);
	int (*close_device)(struct ibv_context *c);
	int (*query_device)(struct ibv_context *c, struct ibv_device_attr *ret);
	int (*query_port)(struct ibv_context *c, uint8_t port, struct ibv_port_attr *ret);
	int (*query_gid)(struct ibv_context *c, uint32_t port, uint32_t index,
	                 struct ibv_gid_entry *ret);
	int (*get_async_event)(struct ibv_context *c, struct ibv_async_event *ret);
	void (*ack_async_event)(struct ibv_async_event *e);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *c);
	int (*dealloc_pd)(struct ibv_pd *pd);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *pd, void *at, size_t bytes, int access);
	int (*dereg_mr)(struct ibv_mr *mr);
	struct ibv_mw *(*alloc_mw)(struct ibv_pd *pd, enum ibv_mw_type type);
	int (*dealloc_mw)(struct ibv_mw *mw);
	struct ibv_comp_channel *(*create_comp_channel)(struct ibv_context *c);
	int (*destroy_comp_channel)(struct ibv_comp_channel *ch);
	struct ibv_cq *(*create_cq)(struct ibv_context *c, int entries, void *arg,
	                            struct ibv_comp_channel *ch, int vector);
	int (*destroy_cq)(struct ibv_cq *cq);
	int (*req_notify_cq)(struct ibv_cq *cq, int solicited_only);
	int (*get_cq_event)(struct ibv_comp_channel *ch, struct ibv_cq **ret_cq, void **ret_arg);
	void (*ack_cq_events)(struct ibv_cq *cq, unsigned n);
	int (*poll_cq)(struct ibv_cq *cq, int n, struct ibv_wc *ret);
	struct ibv_qp *(*create_qp)(struct ibv_pd *pd, struct ibv_qp_init_attr *attr);
	int (*modify_qp)(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask);
	int (*destroy_qp)(struct ibv_qp *qp);
	int (*post_send)(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **ret_bad);
	const char *(*wc_status_str)(enum ibv_wc_status s);
	const char *(*event_type_str)(enum ibv_event_type e);
	/* NUMA node; -1: unknown, or no NUMA machine */
	int (*device_node)(struct ibv_device *d);
	int (*memory_node)(const void *at, size_t bytes); /* -1: also if it is in several nodes */
};

/* The functions of the installed library, loaded at the first call. NULL: err says what is missing
 * (ERR_NOTFOUND). */
const struct verbs *verbs_load(struct err *err);

#endif
