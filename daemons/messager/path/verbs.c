/* verbs.c - see verbs.h. The program is compiled with libibverbs' headers but not linked with
 * it. */
#include "verbs.h"

#include <dlfcn.h>
#include <linux/mempolicy.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NODE_SAMPLES 16u /* pages of a memory that are looked at */
#define VERBS_LIBRARY "libibverbs.so.1"

static struct {
	int (*query_port)(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *ret);
	int (*query_gid)(struct ibv_context *c, uint32_t port, uint32_t index,
	                 struct ibv_gid_entry *ret, uint32_t flags, size_t bytes);
} library;

/* As the headers' inline function, which calls the library by name. */
static int verbs_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *ret)
{
	struct verbs_context *v = verbs_get_ctx_op(c, query_port);
	if (v)
		return v->query_port(c, port, ret, sizeof *ret);
	memset(ret, 0, sizeof *ret);
	return library.query_port(c, port, (struct _compat_ibv_port_attr *)ret);
}

static int verbs_query_gid(struct ibv_context *c, uint32_t port, uint32_t index,
                           struct ibv_gid_entry *ret)
{
	return library.query_gid(c, port, index, ret, 0, sizeof *ret);
}

static int sysfs_device_node(struct ibv_device *d)
{
	char path[sizeof d->ibdev_path + 32];
	int node = -1;
	snprintf(path, sizeof path, "%s/device/numa_node", d->ibdev_path);
	FILE *f = fopen(path, "re");
	if (f && fscanf(f, "%d", &node) != 1)
		node = -1;
	if (f)
		fclose(f);
	return node;
}

/* Of some pages. Looking at a page gives it memory if it has none; registering does so anyway. */
static int kernel_memory_node(const void *at, size_t bytes)
{
	int all = -1;
	for (size_t i = 0; i < NODE_SAMPLES; i++) {
		const char *page = (const char *)at + bytes / NODE_SAMPLES * i;
		int node;
		if (syscall(SYS_get_mempolicy, &node, NULL, 0UL, page,
		            (unsigned long)(MPOL_F_NODE | MPOL_F_ADDR)) != 0 ||
		    (i > 0 && node != all))
			return -1;
		all = node;
	}
	return all;
}

static struct verbs table = {
	.device_node = sysfs_device_node,
	.memory_node = kernel_memory_node,
	.query_port = verbs_query_port,
	.query_gid = verbs_query_gid,
	.alloc_mw = ibv_alloc_mw,
	.dealloc_mw = ibv_dealloc_mw,
	.req_notify_cq = ibv_req_notify_cq,
	.poll_cq = ibv_poll_cq,
	.post_send = ibv_post_send,
};

/* clang-format off */
#define SYMBOL(name) {"ibv_" #name, &table.name}
/* clang-format on */
static const struct {
	const char *name;
	void *at; /* of the function's pointer */
} symbols[] = {
	SYMBOL(get_device_list),
	SYMBOL(free_device_list),
	SYMBOL(get_device_name),
	SYMBOL(open_device),
	SYMBOL(close_device),
	SYMBOL(query_device),
	SYMBOL(get_async_event),
	SYMBOL(ack_async_event),
	SYMBOL(alloc_pd),
	SYMBOL(dealloc_pd),
	SYMBOL(reg_mr),
	SYMBOL(dereg_mr),
	SYMBOL(create_comp_channel),
	SYMBOL(destroy_comp_channel),
	SYMBOL(create_cq),
	SYMBOL(destroy_cq),
	SYMBOL(get_cq_event),
	SYMBOL(ack_cq_events),
	SYMBOL(create_qp),
	SYMBOL(modify_qp),
	SYMBOL(destroy_qp),
	SYMBOL(wc_status_str),
	SYMBOL(event_type_str),
	{"ibv_query_port", &library.query_port},
	{"_ibv_query_gid_ex", &library.query_gid},
};

const struct verbs *verbs_load(struct err *err)
{
	static int loaded;
	if (loaded)
		return &table;
	void *lib = dlopen(VERBS_LIBRARY, RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		err_set(err, ERR_NOTFOUND,
		        "cannot load " VERBS_LIBRARY ": %s; install Debian's ibverbs-providers", dlerror());
		return NULL;
	}
	for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
		void *f = dlsym(lib, symbols[i].name);
		if (!f) {
			err_set(err, ERR_NOTFOUND, VERBS_LIBRARY " has no %s: RDMA needs rdma-core 32 or later",
			        symbols[i].name);
			dlclose(lib);
			return NULL;
		}
		memcpy(symbols[i].at, &f, sizeof f);
	}
	loaded = 1;
	return &table;
}
