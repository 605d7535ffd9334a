/* rdma.c - the transport: device, port, GID, registered pools, and the turns of the event loop.
 *
 * What is missing at the start is returned with a sentence; later a device that fails makes queue
 * pairs fail, which rdma_qp.c handles. Events of the completion channel and of the device are
 * acknowledged as soon as they are read: destroying a queue waits for that. */
#include "rdma.h"
#include "rdma_qp.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH_MIN 8u
#define DEPTH_MAX 16384u
#define TELLS_A_TURN 1024 /* hooks called before the loop gets its turn again */
#define SYSFS_GID_ROCE_V2 IBV_GID_TYPE_ROCE_V2

/* --- turns ----------------------------------------------------------------- */

uint64_t rdma_now(const struct rdma *t)
{
	return t->opts.now_us ? t->opts.now_us() : clock_us();
}

void rdma_soon(struct rdma *t)
{
	event_active(t->soon, 0, 0);
}

int rdma_is_time(struct rdma *t, uint64_t at_us)
{
	if (at_us <= t->now_us)
		return 1;
	if (at_us < t->next_us)
		t->next_us = at_us;
	return 0;
}

void rdma_tell(struct rdma *t, struct rdma_due *d)
{
	if (!list_empty(&d->node))
		return;
	list_push_back(&t->due, &d->node);
	rdma_soon(t);
}

static void tell_all(struct rdma *t)
{
	for (int i = 0; i < TELLS_A_TURN && !list_empty(&t->due); i++) {
		struct rdma_due *d = list_entry(t->due.next, struct rdma_due, node);
		list_remove(&d->node);
		d->tell(d);
	}
	if (!list_empty(&t->due))
		rdma_soon(t);
}

void rdma_turn(struct rdma *t)
{
	t->now_us = rdma_now(t);
	t->next_us = UINT64_MAX;
	list_each(it, &t->qps) {
		struct rdma_qp *q = list_entry(it, struct rdma_qp, node);
		rdma_qp_poll(q);
		rdma_qp_step(q, RDMA_QP_ON_TURN);
		q->end->turn(q);
		if (q->say_at_us && rdma_is_time(t, q->say_at_us)) {
			q->say_at_us = 0;
			rdma_qp_owes(q);
		}
	}
	tell_all(t);
	if (t->next_us == UINT64_MAX) {
		event_del(t->timer);
		return;
	}
	uint64_t now = rdma_now(t);
	struct timeval tv = clock_timeval(t->next_us > now ? t->next_us - now : 0);
	event_add(t->timer, &tv);
}

static void on_turn(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	rdma_turn(arg);
}

static void on_channel(evutil_socket_t fd, short what, void *arg)
{
	struct rdma *t = arg;
	struct ibv_cq *cq;
	void *q;
	(void)fd;
	(void)what;
	while (t->v->get_cq_event(t->channel, &cq, &q) == 0) {
		t->v->ack_cq_events(cq, 1);
		((struct rdma_qp *)q)->notify = 1;
	}
	rdma_turn(t);
}

/* --- device, port, GID ------------------------------------------------------- */

/* The higher the better; 0: not usable. */
static int gid_rank(const struct rdma *t, const struct ibv_gid_entry *g, const struct ifaddrs *all)
{
	static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
	if (t->port.link_layer != IBV_LINK_LAYER_ETHERNET)
		return 1;
	if (g->gid_type != SYSFS_GID_ROCE_V2)
		return 1;
	if (memcmp(g->gid.raw, mapped, sizeof mapped) != 0)
		return g->gid.raw[0] == 0xfe ? 2 : 3;
	for (const struct ifaddrs *i = all; i; i = i->ifa_next)
		if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET &&
		    memcmp(&((const struct sockaddr_in *)i->ifa_addr)->sin_addr, g->gid.raw + 12, 4) == 0)
			return 5;
	return 4;
}

static int take_gid(struct rdma *t, const struct ibv_gid_entry *g)
{
	static const union ibv_gid none;
	if (memcmp(&g->gid, &none, sizeof none) == 0)
		return 0;
	t->gid = g->gid;
	t->gid_index = g->gid_index;
	if (g->gid.raw[10] == 0xff && g->gid.raw[11] == 0xff && g->gid.global.subnet_prefix == 0)
		inet_ntop(AF_INET, g->gid.raw + 12, t->gid_text, sizeof t->gid_text);
	else
		inet_ntop(AF_INET6, g->gid.raw, t->gid_text, sizeof t->gid_text);
	return 1;
}

static int choose_gid(struct rdma *t, struct err *err)
{
	static const union ibv_gid none;
	struct ibv_gid_entry g, best = {0};
	struct ifaddrs *all = NULL;
	int rank = 0, wanted = t->opts.gid_index;
	if (wanted < 0 && getifaddrs(&all) < 0)
		all = NULL;
	for (int i = 0; i < t->port.gid_tbl_len && i <= UINT8_MAX; i++) {
		if ((wanted >= 0 && i != wanted) ||
		    t->v->query_gid(t->ctx, t->opts.port, (uint32_t)i, &g) != 0 ||
		    memcmp(&g.gid, &none, sizeof none) == 0)
			continue;
		int r = gid_rank(t, &g, all);
		if (r > rank) {
			rank = r;
			best = g;
		}
	}
	if (all)
		freeifaddrs(all);
	if (rank > 0 && take_gid(t, &best))
		return 0;
	if (wanted >= 0)
		return err_set(err, ERR_NOTFOUND,
		               "RDMA device %s port %u has no GID of index %d (table: %d)", t->device,
		               t->opts.port, wanted, t->port.gid_tbl_len);
	return err_set(err, ERR_NOTFOUND,
	               "RDMA device %s port %u has no GID: give its network interface an address",
	               t->device, t->opts.port);
}

/* Finds the port of an open device: the one asked for, or the first that is active. */
static int choose_port(struct rdma *t, struct err *err)
{
	uint8_t first = t->opts.port ? t->opts.port : 1;
	uint8_t last = t->opts.port ? t->opts.port : t->attr.phys_port_cnt;
	if (first > t->attr.phys_port_cnt)
		return err_set(err, ERR_NOTFOUND, "RDMA device %s has no port %u: it has %u", t->device,
		               first, t->attr.phys_port_cnt);
	for (uint8_t p = first; p <= last; p++) {
		if (t->v->query_port(t->ctx, p, &t->port) != 0)
			return err_set(err, ERR_IO, "cannot query port %u of RDMA device %s", p, t->device);
		if (t->port.state == IBV_PORT_ACTIVE) {
			t->opts.port = p;
			return 0;
		}
	}
	return err_set(err, ERR_NOTFOUND, "RDMA device %s has no active port%s", t->device,
	               t->opts.port ? " of that number: is its cable plugged in?" : "");
}

static int open_device(struct rdma *t, struct ibv_device *d, struct err *err)
{
	snprintf(t->device, sizeof t->device, "%s", t->v->get_device_name(d));
	if (!(t->ctx = t->v->open_device(d)))
		return err_set(err, ERR_IO, "cannot open RDMA device %s: %s", t->device, strerror(errno));
	int e = t->v->query_device(t->ctx, &t->attr);
	e = e ? err_set(err, ERR_IO, "cannot query RDMA device %s: %s", t->device, strerror(e))
	      : choose_port(t, err);
	if (e < 0) {
		t->v->close_device(t->ctx);
		t->ctx = NULL;
	}
	return e;
}

/* The device asked for, or the first that has an active port. */
static int find_device(struct rdma *t, struct err *err)
{
	const char *wanted = t->opts.device;
	char names[160] = "";
	int n = 0, e = ERR_NOTFOUND, tried = 0;
	struct ibv_device **list = t->v->get_device_list(&n);
	for (int i = 0; list && i < n && e < 0; i++) {
		const char *name = t->v->get_device_name(list[i]);
		size_t at = strlen(names);
		snprintf(names + at, sizeof names - at, "%s%s", at ? ", " : "", name);
		if (*wanted && strcmp(name, wanted) != 0)
			continue;
		tried = 1;
		e = open_device(t, list[i], err);
	}
	if (list)
		t->v->free_device_list(list);
	if (tried)
		return e;
	if (n == 0)
		return err_set(
			err, ERR_NOTFOUND,
			"no RDMA device on this host: a NIC with its driver and the modules ib_core and "
			"ib_uverbs are needed");
	return err_set(err, ERR_NOTFOUND, "no RDMA device %s on this host: it has %s", wanted, names);
}

/* --- device events ------------------------------------------------------------ */

static void fail_all(struct rdma *t, const struct ibv_qp *qp, const struct ibv_cq *cq,
                     const char *what)
{
	list_each(it, &t->qps) {
		struct rdma_qp *q = list_entry(it, struct rdma_qp, node);
		if ((!qp || q->qp == qp) && (!cq || q->cq == cq))
			rdma_qp_fail(q, "device %s: %s", t->device, what);
	}
}

static void device_event(struct rdma *t, const struct ibv_async_event *e, const char *what)
{
	switch (e->event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR: fail_all(t, e->element.qp, NULL, what); break;
	case IBV_EVENT_CQ_ERR: fail_all(t, NULL, e->element.cq, what); break;
	case IBV_EVENT_DEVICE_FATAL: fail_all(t, NULL, NULL, what); break;
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_GID_CHANGE: {
		struct ibv_port_attr port;
		struct err err;
		if (t->v->query_port(t->ctx, t->opts.port, &port) == 0)
			t->port = port;
		if (choose_gid(t, &err) < 0)
			log_warn("rdma_gid_lost", "device=%s error=%s", t->device, log_quote(err.text));
		break;
	}
	default: break;
	}
}

static void on_async(evutil_socket_t fd, short what, void *arg)
{
	struct rdma *t = arg;
	struct ibv_async_event e;
	(void)fd;
	(void)what;
	while (t->v->get_async_event(t->ctx, &e) == 0) {
		const char *text = t->v->event_type_str(e.event_type);
		log_info("rdma_device_event", "device=%s what=%s", t->device, log_quote(text));
		/* first: what follows may destroy the queue pair, which waits for this */
		t->v->ack_async_event(&e);
		device_event(t, &e, text);
	}
	rdma_turn(t);
}

/* --- pools ---------------------------------------------------------------------- */

struct ibv_mr *rdma_register(struct rdma *t, void *at, size_t bytes, int access, const char *what,
                             struct err *err)
{
	struct ibv_mr *mr = t->v->reg_mr(t->pd, at, bytes, access);
	if (!mr)
		err_set(err, errno == ENOMEM ? ERR_NOMEM : ERR_IO,
		        "cannot register %zu bytes of %s with RDMA device %s: %s%s", bytes, what, t->device,
		        strerror(errno),
		        errno == ENOMEM ? "; raise the limit of locked memory (LimitMEMLOCK=infinity)"
		                        : "");
	return mr;
}

void rdma_unregister(struct rdma *t, struct ibv_mr **mr)
{
	int e = *mr ? t->v->dereg_mr(*mr) : 0;
	CHECK(e != EBUSY && e != EINVAL); /* a window is bound to it: our bug */
	if (e)
		log_error("rdma_dereg_failed", "device=%s error=%s", t->device, strerror(e));
	*mr = NULL;
}

static struct rdma_pool *pool_find(struct rdma *t, const struct kv_region *r)
{
	list_each(it, &t->pools) {
		struct rdma_pool *p = list_entry(it, struct rdma_pool, node);
		if (p->region == r)
			return p;
	}
	return NULL;
}

static struct rdma_pool *pool_get(struct rdma *t, const struct kv_region *r, struct err *err)
{
	struct rdma_pool *p = pool_find(t, r);
	if (p)
		return p;
	if (!r->pool->host) {
		err_set(err, ERR_UNSUPPORTED,
		        "RDMA device %s cannot reach a KV pool in memory of %s: only pools in host memory",
		        t->device, r->pool->by->name);
		return NULL;
	}
	int access = t->windows ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND : 0;
	struct ibv_mr *mr = rdma_register(t, r->pool->host, r->pool->bytes, access, "a KV pool", err);
	if (!mr)
		return NULL;
	p = mem_zalloc(sizeof *p);
	p->region = r;
	p->source = mr;
	p->dest = t->windows ? mr : NULL;
	list_push_back(&t->pools, &p->node);
	return p;
}

struct ibv_mr *rdma_pool_source(struct rdma *t, const struct kv_region *r, struct err *err)
{
	struct rdma_pool *p = pool_get(t, r, err);
	return p ? p->source : NULL;
}

struct ibv_mr *rdma_pool_dest(struct rdma *t, const struct kv_region *r, struct err *err)
{
	struct rdma_pool *p = pool_get(t, r, err);
	if (p && !p->dest)
		p->dest = rdma_register(t, r->pool->host, r->pool->bytes,
		                        IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		                            IBV_ACCESS_REMOTE_READ,
		                        "a KV pool", err);
	return p ? p->dest : NULL;
}

/* The rights to be written are given only when a lease needs them, unless there are windows. */
int rdma_pool_add(struct rdma *t, const struct kv_region *region, struct err *err)
{
	struct err own;
	if (!err)
		err = &own;
	return rdma_pool_source(t, region, err) ? 0 : err->code;
}

static void pool_free(struct rdma *t, struct rdma_pool *p)
{
	list_remove(&p->node);
	if (p->dest == p->source)
		p->dest = NULL;
	rdma_unregister(t, &p->dest);
	rdma_unregister(t, &p->source);
	free(p);
}

void rdma_pool_gone(struct rdma *t, const struct kv_region *region)
{
	struct rdma_pool *p = pool_find(t, region);
	if (p)
		pool_free(t, p);
}

/* --- life -------------------------------------------------------------------------- */

static int check_opts(const struct rdma_opts *o, struct err *err)
{
	if (o->depth < DEPTH_MIN || o->depth > DEPTH_MAX)
		return err_set(err, ERR_INVALID, "RDMA send queues of %u work requests (must be %u to %u)",
		               o->depth, DEPTH_MIN, DEPTH_MAX);
	if (o->gid_index > UINT8_MAX)
		return err_set(err, ERR_INVALID, "GID index %d (limit %d)", o->gid_index, UINT8_MAX);
	if (!o->window_bytes || !o->timeout_us || !o->retry_us || !o->drain_us)
		return err_set(err, ERR_INVALID,
		               "RDMA window, time-out, drain and retry times must not be 0");
	return 0;
}

static int check_device(struct rdma *t, struct err *err)
{
	if (t->attr.max_qp_rd_atom < 1 || t->attr.max_qp_init_rd_atom < 1)
		return err_set(err, ERR_UNSUPPORTED, "RDMA device %s cannot execute RDMA READs", t->device);
	if (t->attr.max_qp_wr < (int)DEPTH_MIN || t->attr.max_cqe < (int)DEPTH_MIN)
		return err_set(err, ERR_UNSUPPORTED,
		               "RDMA device %s has send queues of at most %d work requests and completion "
		               "queues of %d: %u are needed",
		               t->device, t->attr.max_qp_wr, t->attr.max_cqe, DEPTH_MIN);
	if (t->opts.depth > (uint32_t)t->attr.max_qp_wr)
		t->opts.depth = (uint32_t)t->attr.max_qp_wr;
	if (t->opts.depth > (uint32_t)t->attr.max_cqe)
		t->opts.depth = (uint32_t)t->attr.max_cqe;
	t->windows = !t->opts.no_windows && t->attr.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B &&
	             t->attr.max_mw > 0;
	return 0;
}

static int make_objects(struct rdma *t, struct err *err)
{
	if (!(t->pd = t->v->alloc_pd(t->ctx)))
		return err_set(err, ERR_IO, "cannot allocate a protection domain on %s: %s", t->device,
		               strerror(errno));
	if (!(t->channel = t->v->create_comp_channel(t->ctx)))
		return err_set(err, ERR_IO, "cannot create a completion channel on %s: %s", t->device,
		               strerror(errno));
	t->scratch_mr = rdma_register(t, t->scratch, sizeof t->scratch, IBV_ACCESS_LOCAL_WRITE,
	                              "scratch memory", err);
	if (!t->scratch_mr)
		return err ? err->code : ERR_IO;
	for (int i = 0; i < 2; i++) {
		int fd = i ? t->ctx->async_fd : t->channel->fd, flags = fcntl(fd, F_GETFL);
		if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
			return err_set(err, ERR_IO, "cannot set a descriptor of %s to non-blocking: %s",
			               t->device, strerror(errno));
	}
	return 0;
}

static int make_events(struct rdma *t, struct event_base *base)
{
	t->soon = event_new(base, -1, 0, on_turn, t);
	t->timer = event_new(base, -1, EV_TIMEOUT, on_turn, t);
	t->on_channel = event_new(base, t->channel->fd, EV_READ | EV_PERSIST, on_channel, t);
	t->on_async = event_new(base, t->ctx->async_fd, EV_READ | EV_PERSIST, on_async, t);
	if (!t->soon || !t->timer || !t->on_channel || !t->on_async)
		return ERR_NOMEM;
	return event_add(t->on_channel, NULL) < 0 || event_add(t->on_async, NULL) < 0 ? ERR_IO : 0;
}

static void free_all(struct rdma *t)
{
	struct event *events[] = {t->soon, t->timer, t->on_channel, t->on_async};
	for (size_t i = 0; i < sizeof events / sizeof *events; i++)
		if (events[i])
			event_free(events[i]);
	rdma_unregister(t, &t->scratch_mr);
	if (t->channel)
		t->v->destroy_comp_channel(t->channel);
	if (t->pd)
		t->v->dealloc_pd(t->pd);
	if (t->ctx)
		t->v->close_device(t->ctx);
	free((char *)t->opts.device);
	free(t);
}

int rdma_transport_new(struct event_base *base, const struct verbs *v, const struct rdma_opts *o,
                       struct rdma **ret, struct err *err)
{
	int e = check_opts(o, err);
	if (e < 0)
		return e;
	struct rdma *t = mem_zalloc(sizeof *t);
	t->v = v;
	t->opts = *o;
	t->opts.device = mem_strdup(o->device ? o->device : "");
	list_init(&t->qps);
	list_init(&t->pools);
	list_init(&t->due);
	e = find_device(t, err);
	if (e == 0)
		e = check_device(t, err);
	if (e == 0)
		e = choose_gid(t, err);
	if (e == 0)
		e = make_objects(t, err);
	if (e == 0 && (e = make_events(t, base)) < 0)
		err_set(err, e, "cannot add RDMA device %s to the event loop", t->device);
	if (e < 0) {
		free_all(t);
		return e;
	}
	log_info("rdma_device", "device=%s port=%u gid=%u address=%s windows=%d depth=%u", t->device,
	         t->opts.port, t->gid_index, t->gid_text, t->windows, t->opts.depth);
	*ret = t;
	return 0;
}

void rdma_transport_destroy(struct rdma **pt)
{
	struct rdma *t = *pt;
	if (!t)
		return;
	CHECK(list_empty(&t->qps));
	while (!list_empty(&t->pools))
		pool_free(t, list_entry(t->pools.next, struct rdma_pool, node));
	free_all(t);
	*pt = NULL;
}

const struct path_ops rdma_path_ops = {
	.name = "rdma",
	.path_new = rdma_path_new,
	.path_destroy = rdma_path_destroy,
	.path_said = rdma_path_said,
	.path_state = rdma_path_state,
	.outgoing_new = rdma_outgoing_new,
	.outgoing_send = rdma_outgoing_send,
	.outgoing_end = rdma_outgoing_end,
	.intake_new = rdma_intake_new,
	.intake_destroy = rdma_intake_destroy,
	.intake_said = rdma_intake_said,
	.intake_state = rdma_intake_state,
	.incoming_new = rdma_incoming_new,
	.incoming_complete = rdma_incoming_complete,
	.incoming_close = rdma_incoming_close,
	.incoming_free = rdma_incoming_free,
	.incoming_drop = rdma_incoming_drop,
};
