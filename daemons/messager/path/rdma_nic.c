/* rdma_nic.c - see rdma_nic.h.
 *
 * What is missing at the start is returned with a sentence; later a device that fails makes its
 * queue pairs fail, which rdma_qp.c handles. Events of the completion channel and of the device are
 * acknowledged as soon as they are read: destroying a queue waits for that. */
#include "rdma_nic.h"
#include "util/check.h"
#include "util/log.h"
#include "util/mem.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <ifaddrs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- the choice --------------------------------------------------------------- */

int rdma_nic_is_active(const struct rdma_nic *n)
{
	return n->port.state == IBV_PORT_ACTIVE;
}

int rdma_nic_reaches(const struct rdma_nic *n, const struct rdma_address *a)
{
	return n->port.link_layer == a->link_layer &&
	       (a->link_layer == IBV_LINK_LAYER_ETHERNET ||
	        n->gid.global.subnet_prefix == a->gid.global.subnet_prefix);
}

int rdma_nic_distance(const struct rdma_nic *n, const struct rdma_pool *p)
{
	return n->node >= 0 && p->node >= 0 && n->node != p->node;
}

static unsigned distance_to(const struct rdma_nic *n, const struct rdma_pool *pool)
{
	unsigned sum = 0;
	if (pool)
		return (unsigned)rdma_nic_distance(n, pool);
	list_each(it, &n->t->pools)
		sum += (unsigned)rdma_nic_distance(n, list_entry(it, struct rdma_pool, in));
	return sum;
}

static unsigned queue_pairs_of(const struct rdma_nic *n)
{
	unsigned sum = 0;
	list_each(it, &n->t->qps) {
		const struct rdma_qp *q = list_entry(it, struct rdma_qp, node);
		sum += q->nic == n && q->qp;
	}
	return sum;
}

struct rdma_nic *rdma_nic_choose(const struct rdma_qp *q, const struct rdma_pool *pool,
                                 const struct rdma_address *reach, int *ret_tried)
{
	struct rdma_nic *best = NULL;
	unsigned best_distance = 0, best_load = 0;
	*ret_tried = 0;
	for (unsigned i = 0; i < q->t->n_nics; i++) {
		struct rdma_nic *n = q->t->nics[i];
		if (!rdma_nic_is_active(n) || (reach && !rdma_nic_reaches(n, reach)))
			continue;
		if (q->tried >> i & 1) {
			*ret_tried = 1;
			continue;
		}
		unsigned distance = distance_to(n, pool), load = queue_pairs_of(n);
		if (best && (distance > best_distance || (distance == best_distance && load >= best_load)))
			continue;
		best = n;
		best_distance = distance;
		best_load = load;
	}
	return best;
}

void rdma_nic_show(const struct rdma_nic *n, enum ibv_mtu other_mtu, char *out, size_t size)
{
	static const char *const mtu[] = {"0", "256", "512", "1024", "2048", "4096"};
	static const int widths[][2] = {{1, 1}, {2, 4}, {4, 8}, {8, 12}, {16, 2}};
	static const int speeds[][2] = {{1, 250},   {2, 500},   {4, 1000},  {8, 1000},
	                                {16, 1406}, {32, 2578}, {64, 5313}, {128, 10625}};
	int width = 0, speed = 0;
	for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
		width = widths[i][0] == n->port.active_width ? widths[i][1] : width;
	for (size_t i = 0; i < sizeof speeds / sizeof *speeds; i++)
		speed = speeds[i][0] == n->port.active_speed ? speeds[i][1] : speed;
	enum ibv_mtu m = n->port.active_mtu < other_mtu ? n->port.active_mtu : other_mtu;
	snprintf(out, size, "%.32s port %u, GID %u %s, MTU %s, %.1f Gbit/s, %s", n->device, n->port_num,
	         n->gid_index, n->gid_text, mtu[m <= IBV_MTU_4096 ? m : 0], width * speed / 100.0,
	         n->windows ? "windows" : "no windows");
}

/* --- port and GID --------------------------------------------------------------- */

/* The higher the better; 0: not usable. */
static int gid_rank(const struct rdma_nic *n, const struct ibv_gid_entry *g,
                    const struct ifaddrs *all)
{
	static const unsigned char mapped[12] = {[10] = 0xff, [11] = 0xff};
	if (n->port.link_layer != IBV_LINK_LAYER_ETHERNET)
		return 1;
	if (g->gid_type != IBV_GID_TYPE_ROCE_V2)
		return 1;
	if (memcmp(g->gid.raw, mapped, sizeof mapped) != 0)
		return g->gid.raw[0] == 0xfe ? 2 : 3;
	for (const struct ifaddrs *i = all; i; i = i->ifa_next)
		if (i->ifa_addr && i->ifa_addr->sa_family == AF_INET &&
		    memcmp(&((const struct sockaddr_in *)i->ifa_addr)->sin_addr, g->gid.raw + 12, 4) == 0)
			return 5;
	return 4;
}

static int take_gid(struct rdma_nic *n, const struct ibv_gid_entry *g)
{
	static const union ibv_gid none;
	if (memcmp(&g->gid, &none, sizeof none) == 0)
		return 0;
	n->gid = g->gid;
	n->gid_index = g->gid_index;
	if (g->gid.raw[10] == 0xff && g->gid.raw[11] == 0xff && g->gid.global.subnet_prefix == 0)
		inet_ntop(AF_INET, g->gid.raw + 12, n->gid_text, sizeof n->gid_text);
	else
		inet_ntop(AF_INET6, g->gid.raw, n->gid_text, sizeof n->gid_text);
	return 1;
}

static int choose_gid(struct rdma_nic *n, struct err *err)
{
	static const union ibv_gid none;
	struct ibv_gid_entry g, best = {0};
	struct ifaddrs *all = NULL;
	int rank = 0, wanted = n->t->opts.gid_index;
	if (wanted < 0 && getifaddrs(&all) < 0)
		all = NULL;
	for (int i = 0; i < n->port.gid_tbl_len && i <= UINT8_MAX; i++) {
		if ((wanted >= 0 && i != wanted) ||
		    n->t->v->query_gid(n->ctx, n->port_num, (uint32_t)i, &g) != 0 ||
		    memcmp(&g.gid, &none, sizeof none) == 0)
			continue;
		int r = gid_rank(n, &g, all);
		if (r > rank) {
			rank = r;
			best = g;
		}
	}
	if (all)
		freeifaddrs(all);
	if (rank > 0 && take_gid(n, &best))
		return 0;
	if (wanted >= 0)
		return err_set(err, ERR_NOTFOUND,
		               "RDMA device %s port %u has no GID of index %d (table: %d)", n->device,
		               n->port_num, wanted, n->port.gid_tbl_len);
	return err_set(err, ERR_NOTFOUND,
	               "RDMA device %s port %u has no GID: give its network interface an address",
	               n->device, n->port_num);
}

/* Finds the port of an open device: the one asked for, or the first that is active. */
static int choose_port(struct rdma_nic *n, struct err *err)
{
	const struct rdma *t = n->t;
	uint8_t first = t->opts.port ? t->opts.port : 1;
	uint8_t last = t->opts.port ? t->opts.port : n->attr.phys_port_cnt;
	if (first > n->attr.phys_port_cnt)
		return err_set(err, ERR_NOTFOUND, "RDMA device %s has no port %u: it has %u", n->device,
		               first, n->attr.phys_port_cnt);
	for (n->port_num = first;; n->port_num++) {
		if (t->v->query_port(n->ctx, n->port_num, &n->port) != 0) {
			n->port.state = IBV_PORT_DOWN;
			return err_set(err, ERR_IO, "cannot query port %u of RDMA device %s", n->port_num,
			               n->device);
		}
		if (rdma_nic_is_active(n))
			return choose_gid(n, err);
		if (n->port_num == last)
			return err_set(err, ERR_NOTFOUND, "RDMA device %s has no active port%s", n->device,
			               t->opts.port ? " of that number: is its cable plugged in?" : "");
	}
}

/* --- events ------------------------------------------------------------------------ */

static void fail_all(struct rdma_nic *n, const struct ibv_qp *qp, const struct ibv_cq *cq,
                     const char *what)
{
	list_each(it, &n->t->qps) {
		struct rdma_qp *q = list_entry(it, struct rdma_qp, node);
		if (q->nic == n && (!qp || q->qp == qp) && (!cq || q->cq == cq))
			rdma_qp_fail(q, "device %s: %s", n->device, what);
	}
}

static void nic_down(struct rdma_nic *n, const char *what)
{
	n->port.state = IBV_PORT_DOWN;
	log_warn("rdma_device_down", "device=%s why=%s", n->device, log_quote(what));
	fail_all(n, NULL, NULL, what);
}

/* Reading its events has failed. Without this the loop would wake up for them for ever. */
static void check_lost(struct rdma_nic *n, struct event *ev)
{
	if (errno == EAGAIN || errno == EINTR)
		return;
	event_del(ev);
	nic_down(n, strerror(errno));
}

static void on_channel(evutil_socket_t fd, short what, void *arg)
{
	struct rdma_nic *n = arg;
	const struct verbs *v = n->t->v;
	struct ibv_cq *cq;
	void *q;
	(void)fd;
	(void)what;
	while (v->get_cq_event(n->channel, &cq, &q) == 0) {
		v->ack_cq_events(cq, 1);
		((struct rdma_qp *)q)->notify = 1;
	}
	check_lost(n, n->on_channel);
	rdma_turn(n->t);
}

/* The port's state, LID or GID may be another now. A device whose port is down may have another. */
static void look_again(struct rdma_nic *n, const char *what)
{
	const struct verbs *v = n->t->v;
	struct err err;
	int was_active = rdma_nic_is_active(n);
	if (was_active && v->query_port(n->ctx, n->port_num, &n->port) == 0 && rdma_nic_is_active(n) &&
	    choose_gid(n, &err) == 0)
		return;
	if (was_active)
		nic_down(n, what);
	if (choose_port(n, &err) == 0)
		log_notice("rdma_device_up", "device=%s port=%u gid=%u address=%s", n->device, n->port_num,
		           n->gid_index, n->gid_text);
	else
		n->port.state = IBV_PORT_DOWN;
}

static void device_event(struct rdma_nic *n, const struct ibv_async_event *e, const char *what)
{
	switch (e->event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR: fail_all(n, e->element.qp, NULL, what); break;
	case IBV_EVENT_CQ_ERR: fail_all(n, NULL, e->element.cq, what); break;
	case IBV_EVENT_DEVICE_FATAL: nic_down(n, what); break;
	case IBV_EVENT_PORT_ERR:
	case IBV_EVENT_PORT_ACTIVE:
	case IBV_EVENT_LID_CHANGE:
	case IBV_EVENT_GID_CHANGE: look_again(n, what); break;
	default: break;
	}
}

static void on_async(evutil_socket_t fd, short what, void *arg)
{
	struct rdma_nic *n = arg;
	const struct verbs *v = n->t->v;
	struct ibv_async_event e;
	(void)fd;
	(void)what;
	while (v->get_async_event(n->ctx, &e) == 0) {
		const char *text = v->event_type_str(e.event_type);
		log_notice("rdma_device_event", "device=%s what=%s", n->device, log_quote(text));
		/* first: what follows may destroy the queue pair, which waits for this */
		v->ack_async_event(&e);
		device_event(n, &e, text);
	}
	check_lost(n, n->on_async);
	rdma_turn(n->t);
}

/* --- registration -------------------------------------------------------------------- */

struct ibv_mr *rdma_register(const struct rdma_nic *n, void *at, size_t bytes, int access,
                             const char *what, struct err *err)
{
	struct ibv_mr *mr = n->t->v->reg_mr(n->pd, at, bytes, access);
	if (!mr)
		err_set(err, errno == ENOMEM ? ERR_NOMEM : ERR_IO,
		        "cannot register %zu bytes of %s with RDMA device %s: %s%s", bytes, what, n->device,
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
		log_error("rdma_dereg_failed", "error=%s", strerror(e));
	*mr = NULL;
}

/* --- opening --------------------------------------------------------------------------- */

static int check_device(struct rdma_nic *n, struct err *err)
{
	const struct ibv_device_attr *a = &n->attr;
	if (a->max_qp_rd_atom < 1 || a->max_qp_init_rd_atom < 1)
		return err_set(err, ERR_UNSUPPORTED, "RDMA device %s cannot execute RDMA READs", n->device);
	if (a->max_qp_wr < (int)RDMA_DEPTH_MIN || a->max_cqe < (int)RDMA_DEPTH_MIN)
		return err_set(err, ERR_UNSUPPORTED,
		               "RDMA device %s has send queues of at most %d work requests and completion "
		               "queues of %d: %u are needed",
		               n->device, a->max_qp_wr, a->max_cqe, RDMA_DEPTH_MIN);
	n->windows = !n->t->opts.no_windows && a->device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B &&
	             a->max_mw > 0;
	return 0;
}

static int make_objects(struct rdma_nic *n, struct err *err)
{
	const struct verbs *v = n->t->v;
	if (!(n->pd = v->alloc_pd(n->ctx)))
		return err_set(err, ERR_IO, "cannot allocate a protection domain on %s: %s", n->device,
		               strerror(errno));
	if (!(n->channel = v->create_comp_channel(n->ctx)))
		return err_set(err, ERR_IO, "cannot create a completion channel on %s: %s", n->device,
		               strerror(errno));
	n->scratch_mr = rdma_register(n, n->scratch, sizeof n->scratch, IBV_ACCESS_LOCAL_WRITE,
	                              "scratch memory", err);
	if (!n->scratch_mr)
		return err->code;
	for (int i = 0; i < 2; i++) {
		int fd = i ? n->ctx->async_fd : n->channel->fd, flags = fcntl(fd, F_GETFL);
		if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0)
			return err_set(err, ERR_IO, "cannot set a descriptor of %s to non-blocking: %s",
			               n->device, strerror(errno));
	}
	return 0;
}

static int make_events(struct rdma_nic *n, struct event_base *base, struct err *err)
{
	n->on_channel = event_new(base, n->channel->fd, EV_READ | EV_PERSIST, on_channel, n);
	n->on_async = event_new(base, n->ctx->async_fd, EV_READ | EV_PERSIST, on_async, n);
	if (!n->on_channel || !n->on_async || event_add(n->on_channel, NULL) < 0 ||
	    event_add(n->on_async, NULL) < 0)
		return err_set(err, ERR_NOMEM, "cannot add RDMA device %s to the event loop", n->device);
	return 0;
}

static void nic_close(struct rdma_nic *n)
{
	const struct verbs *v = n->t->v;
	if (n->on_channel)
		event_free(n->on_channel);
	if (n->on_async)
		event_free(n->on_async);
	rdma_unregister(n->t, &n->scratch_mr);
	if (n->channel)
		v->destroy_comp_channel(n->channel);
	if (n->pd)
		v->dealloc_pd(n->pd);
	if (n->ctx)
		v->close_device(n->ctx);
	free(n);
}

/* ERR_NOTFOUND: also if it has no active port yet; then the NIC is returned as well. */
static int nic_open(struct rdma *t, struct event_base *base, struct ibv_device *d,
                    struct rdma_nic **ret, struct err *err)
{
	struct rdma_nic *n = mem_zalloc(sizeof *n);
	n->t = t;
	n->index = t->n_nics;
	n->node = t->v->device_node(d);
	snprintf(n->device, sizeof n->device, "%s", t->v->get_device_name(d));
	*ret = NULL;
	int e = 0;
	if (!(n->ctx = t->v->open_device(d)))
		e = err_set(err, ERR_IO, "cannot open RDMA device %s: %s", n->device, strerror(errno));
	else if ((e = t->v->query_device(n->ctx, &n->attr)))
		e = err_set(err, ERR_IO, "cannot query RDMA device %s: %s", n->device, strerror(e));
	else if ((e = check_device(n, err)) == 0 && (e = make_objects(n, err)) == 0 &&
	         (e = make_events(n, base, err)) == 0) {
		e = choose_port(n, err);
		if (e == 0 || (e == ERR_NOTFOUND && n->port_num && !rdma_nic_is_active(n))) {
			*ret = n;
			return e;
		}
	}
	nic_close(n);
	return e;
}

static void log_nic(const struct rdma_nic *n)
{
	log_notice("rdma_device",
	           "device=%s port=%u active=%d gid=%u address=%s node=%d windows=%d depth=%u",
	           n->device, n->port_num, rdma_nic_is_active(n), n->gid_index, n->gid_text, n->node,
	           n->windows, n->t->opts.depth);
}

static void limit_depth(uint32_t *depth, int device_max)
{
	if (*depth > (uint32_t)device_max)
		*depth = (uint32_t)device_max;
}

/* Is the device one of the list "mlx5_0, mlx5_1"? */
static int is_named(const char *list, const char *name)
{
	size_t n = strlen(name);
	for (list += strspn(list, RDMA_LIST_SEPARATORS); *list;
	     list += strspn(list, RDMA_LIST_SEPARATORS)) {
		size_t item = strcspn(list, RDMA_LIST_SEPARATORS);
		if (item == n && memcmp(list, name, n) == 0)
			return 1;
		list += item;
	}
	return 0;
}

/* Each name of the list must be a device's. */
static int check_names(const struct rdma *t, struct ibv_device **list, int n, struct err *err)
{
	char has[256] = "";
	for (int i = 0; i < n; i++) {
		size_t at = strlen(has);
		snprintf(has + at, sizeof has - at, "%s%s", at ? ", " : "", t->v->get_device_name(list[i]));
	}
	const char *at = t->opts.device + strspn(t->opts.device, RDMA_LIST_SEPARATORS);
	while (*at) {
		int bytes = (int)strcspn(at, RDMA_LIST_SEPARATORS), found = 0;
		for (int i = 0; i < n; i++) {
			const char *name = t->v->get_device_name(list[i]);
			found |= strlen(name) == (size_t)bytes && memcmp(name, at, (size_t)bytes) == 0;
		}
		if (!found)
			return err_set(err, ERR_NOTFOUND, "no RDMA device %.*s on this host: it has %s", bytes,
			               at, has);
		at += bytes;
		at += strspn(at, RDMA_LIST_SEPARATORS);
	}
	return 0;
}

/* Without a list a device that cannot be used is left out. With one, every device is needed, but
 * not every port: a host with a bad cable starts with its other NICs. */
static int open_listed(struct rdma *t, struct event_base *base, struct ibv_device **list, int n,
                       struct err *err)
{
	int named = t->opts.device[strspn(t->opts.device, RDMA_LIST_SEPARATORS)] != 0, active = 0;
	for (int i = 0; i < n; i++) {
		struct rdma_nic *nic;
		if (named && !is_named(t->opts.device, t->v->get_device_name(list[i])))
			continue;
		if (t->n_nics == RDMA_NICS_MAX && named)
			return err_set(err, ERR_INVALID, "rdma_device names more than %u RDMA devices",
			               RDMA_NICS_MAX);
		if (t->n_nics == RDMA_NICS_MAX) {
			log_warn("rdma_devices_unused", "devices=%d limit=%u why=%s", n, RDMA_NICS_MAX,
			         log_quote("rdma_device can name those to use"));
			break;
		}
		int e = nic_open(t, base, list[i], &nic, err);
		if (e < 0 && named && !nic)
			return e;
		if (e < 0 && named)
			log_warn("rdma_device_down", "device=%s why=%s", nic->device, log_quote(err->text));
		else if (e < 0)
			log_notice("rdma_device_unused", "why=%s", log_quote(err->text));
		if (e < 0 && nic && !named)
			nic_close(nic);
		else if (nic)
			t->nics[t->n_nics++] = nic;
		active += e == 0;
	}
	return active ? 0 : err->code;
}

int rdma_nics_open(struct rdma *t, struct event_base *base, struct err *err)
{
	int n = 0;
	struct ibv_device **list = t->v->get_device_list(&n);
	int e = !list || n == 0
	            ? err_set(err, ERR_NOTFOUND,
	                      "no RDMA device on this host: a NIC with its driver and the modules "
	                      "ib_core and ib_uverbs are needed")
	            : check_names(t, list, n, err);
	if (e == 0)
		e = open_listed(t, base, list, n, err);
	if (list)
		t->v->free_device_list(list);
	for (unsigned i = 0; e == 0 && i < t->n_nics; i++) {
		limit_depth(&t->opts.depth, t->nics[i]->attr.max_qp_wr);
		limit_depth(&t->opts.depth, t->nics[i]->attr.max_cqe);
	}
	for (unsigned i = 0; e == 0 && i < t->n_nics; i++)
		log_nic(t->nics[i]);
	return e;
}

void rdma_nics_close(struct rdma *t)
{
	while (t->n_nics > 0)
		nic_close(t->nics[--t->n_nics]);
}
