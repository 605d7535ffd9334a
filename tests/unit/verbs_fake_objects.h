/* verbs_fake_objects.h - the objects of verbs_fake.h's fabric: devices with their ports,
 * registrations, windows, completion queues; and its state, by which a test makes it unkind. */
#ifndef VERBS_FAKE_OBJECTS_H
#define VERBS_FAKE_OBJECTS_H

#include "daemons/messager/path/verbs.h"

#include <check.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { FAKE_DEVICES = 4, FAKE_MAX = 256, FAKE_DEPTH = 64, FAKE_CQE = 64, FAKE_EVENTS = 1024 };

struct fake_context {
	struct ibv_context v;      /* first, here and below */
	enum ibv_event_type event; /* of its port */
	unsigned events;
};

struct fake_mr {
	struct ibv_mr v;
	int access, windows;
};

struct fake_mw {
	struct ibv_mw v;
	uint32_t key;
	struct fake_mr *mr; /* NULL: not bound */
	struct fake_qp *qp;
	uint64_t at, bytes;
};

struct fake_cq {
	struct ibv_cq v;
	struct ibv_wc wc[FAKE_CQE];
	struct fake_qp *of[FAKE_CQE];
	unsigned n, qps, unacked;
	int armed;
};

struct fake_channel {
	struct ibv_comp_channel v;
	struct fake_cq *events[FAKE_EVENTS];
	unsigned n;
};

struct fake_wqe {
	struct ibv_send_wr wr;
	struct ibv_sge sge;
	uint64_t placed; /* bytes, from the start */
	uint32_t mw_key; /* BIND_MW: what the caller takes for the window's key */
};

/* Bytes that the receiving device has, but memory does not. */
struct fake_pending {
	struct fake_pending *next;
	struct fake_mw *mw;
	uint64_t to;
	uint32_t bytes;
	unsigned char data[];
};

struct fake_qp {
	struct ibv_qp v;
	enum ibv_qp_state state;
	unsigned depth, access, windows;
	uint32_t dest, rq_psn, sq_psn;
	struct fake_wqe q[FAKE_DEPTH];
	uint64_t posted, arrived, done, freed; /* numbers of work requests */
	int hangs;
	unsigned reports, unacked; /* asynchronous events of it */
	struct fake_pending *pending;
};

struct fake_knobs { /* chances in 1024 */
	unsigned kill, hang, spurious, refuse;
};

static struct {
	uint64_t seed, us;
	struct fake_knobs knobs;
	int no_windows, devices, slow; /* slow: to place what has arrived */
	struct {
		int down, node, link_layer;
		unsigned char subnet;
		int cut;  /* a bit for each device that it does not reach */
		int gone; /* it cannot be read any more */
		int full; /* it registers no pools */
	} device[FAKE_DEVICES];
	struct {
		const void *at;
		int node;
	} memory[8]; /* other memory is in no node */
	struct fake_context *context[FAKE_MAX];
	int corrupts; /* large READs that bring a wrong byte */
	uint32_t keys, qpns;
	struct fake_mr *mr[FAKE_MAX];
	struct fake_mw *mw[FAKE_MAX];
	struct fake_qp *qp[FAKE_MAX];
	unsigned live;
	uint64_t posts, writes, doorbells, kills, hangs, late,
		port_events;              /* writes: WRITEs among the posts */
	const unsigned char *no_read; /* a range that no device may read any more; NULL: none */
	size_t no_read_bytes;
} fake;

static inline uint64_t fake_random(void)
{
	uint64_t x = fake.seed += 0x9e3779b97f4a7c15ull;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
	x = (x ^ x >> 27) * 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static inline unsigned fake_below(unsigned n)
{
	return (unsigned)(fake_random() % n);
}

static inline int fake_chance(unsigned in_1024)
{
	return in_1024 && fake_below(1024) < in_1024;
}

static inline uint64_t fake_us(void)
{
	return ++fake.us;
}

static inline void *fake_new(size_t bytes)
{
	if (fake_chance(fake.knobs.refuse)) {
		errno = ENOMEM;
		return NULL;
	}
	fake.live++;
	return calloc(1, bytes);
}

static inline int fake_free(void *p)
{
	fake.live--;
	free(p);
	return 0;
}

static inline unsigned fake_place(void *table)
{
	void **t = table;
	for (unsigned i = 0; i < FAKE_MAX; i++)
		if (!t[i])
			return i;
	ck_abort_msg("more than %d objects of a kind", FAKE_MAX);
	return 0;
}

static inline void fake_forget(void *table, void *p)
{
	void **t = table;
	for (unsigned i = 0; i < FAKE_MAX; i++)
		if (t[i] == p)
			t[i] = NULL;
}

static struct ibv_device fake_device[FAKE_DEVICES];

static inline struct ibv_device **fake_get_device_list(int *ret_n)
{
	struct ibv_device **list = calloc((size_t)fake.devices + 1, sizeof(struct ibv_device *));
	for (int i = 0; i < fake.devices; i++)
		list[i] = &fake_device[i];
	*ret_n = fake.devices;
	return list;
}

static inline void fake_free_device_list(struct ibv_device **list)
{
	free(list);
}

static inline const char *fake_get_device_name(struct ibv_device *d)
{
	static const char *const names[] = {"fake0", "fake1", "fake2", "fake3"};
	return names[d - fake_device];
}

static inline struct ibv_context *fake_open_device(struct ibv_device *d)
{
	struct fake_context *c = fake_new(sizeof *c);
	if (!c)
		return NULL;
	c->v.device = d;
	c->v.async_fd = eventfd(0, EFD_NONBLOCK);
	fake.context[fake_place(fake.context)] = c;
	return &c->v;
}

static inline int fake_close_device(struct ibv_context *c)
{
	close(c->async_fd);
	fake_forget(fake.context, c);
	return fake_free(c);
}

static inline int fake_device_node(struct ibv_device *d)
{
	return fake.device[d - fake_device].node;
}

static inline int fake_memory_node(const void *at, size_t bytes)
{
	(void)bytes;
	for (size_t i = 0; i < sizeof fake.memory / sizeof *fake.memory; i++)
		if (fake.memory[i].at == at)
			return fake.memory[i].node;
	return -1;
}

/* Tells all that have opened the device. */
static inline void fake_event(unsigned device, enum ibv_event_type e)
{
	uint64_t one = 1;
	for (int i = 0; i < FAKE_MAX; i++) {
		struct fake_context *c = fake.context[i];
		if (!c || c->v.device != &fake_device[device])
			continue;
		c->event = e;
		c->events = 1;
		ck_assert(write(c->v.async_fd, &one, sizeof one) == sizeof one);
	}
}

static inline void fake_port(unsigned device, int up)
{
	fake.device[device].down = !up;
	fake.port_events++;
	fake_event(device, up ? IBV_EVENT_PORT_ACTIVE : IBV_EVENT_PORT_ERR);
}

static inline int fake_query_device(struct ibv_context *c, struct ibv_device_attr *ret)
{
	(void)c;
	*ret = (struct ibv_device_attr){.phys_port_cnt = 2,
	                                .max_qp_wr = FAKE_DEPTH,
	                                .max_cqe = FAKE_CQE,
	                                .max_qp_rd_atom = 4,
	                                .max_qp_init_rd_atom = 4,
	                                .max_mw = FAKE_MAX};
	if (!fake.no_windows)
		ret->device_cap_flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B;
	return 0;
}

/* Port 1 of device 0 is never active. */
static inline int fake_query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *ret)
{
	size_t device = (size_t)(c->device - fake_device);
	int down = fake.device[device].down || (device == 0 && port == 1);
	*ret = (struct ibv_port_attr){.state = down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE,
	                              .active_mtu = IBV_MTU_1024,
	                              .gid_tbl_len = 5,
	                              .lid = 7,
	                              .active_width = 2,
	                              .active_speed = 32,
	                              .link_layer = (uint8_t)fake.device[device].link_layer};
	return 0;
}

static inline int fake_query_gid(struct ibv_context *c, uint32_t port, uint32_t index,
                                 struct ibv_gid_entry *ret)
{
	static const struct {
		unsigned type;
		unsigned char gid[16];
	} table[] = {{IBV_GID_TYPE_ROCE_V1, {0xfe, 0x80, [15] = 1}},
	             {IBV_GID_TYPE_ROCE_V2, {0xfe, 0x80, [15] = 1}},
	             {IBV_GID_TYPE_ROCE_V2, {[10] = 0xff, [11] = 0xff, 10, 9, 8, 7}},
	             {IBV_GID_TYPE_ROCE_V2, {[10] = 0xff, [11] = 0xff, 127, 0, 0, 1}}};
	size_t device = (size_t)(c->device - fake_device);
	if (index >= sizeof table / sizeof *table)
		return ENODATA;
	*ret = (struct ibv_gid_entry){.gid_index = index,
	                              .port_num = port,
	                              .gid_type = table[index].type};
	memcpy(ret->gid.raw, table[index].gid, 16);
	if (fake.device[device].link_layer == IBV_LINK_LAYER_INFINIBAND)
		ret->gid.raw[1] = fake.device[device].subnet;
	return 0;
}

static inline struct ibv_pd *fake_alloc_pd(struct ibv_context *c)
{
	struct ibv_pd *pd = fake_new(sizeof *pd);
	if (pd)
		pd->context = c;
	return pd;
}

static inline int fake_dealloc_pd(struct ibv_pd *pd)
{
	return fake_free(pd);
}

static inline struct ibv_mr *fake_reg_mr(struct ibv_pd *pd, void *at, size_t bytes, int access)
{
	int pool = 0;
	for (size_t i = 0; i < sizeof fake.memory / sizeof *fake.memory; i++)
		pool |= fake.memory[i].at == at;
	if (pool && fake.device[pd->context->device - fake_device].full) {
		errno = ENOMEM;
		return NULL;
	}
	struct fake_mr *m = fake_new(sizeof *m);
	if (!m)
		return NULL;
	ck_assert(!(access & IBV_ACCESS_REMOTE_WRITE) || access & IBV_ACCESS_LOCAL_WRITE);
	m->v = (struct ibv_mr){.pd = pd, .addr = at, .length = bytes};
	m->v.lkey = m->v.rkey = ++fake.keys << 8;
	m->access = access;
	fake.mr[fake_place(fake.mr)] = m;
	return &m->v;
}

static inline int fake_dereg_mr(struct ibv_mr *v)
{
	struct fake_mr *m = (struct fake_mr *)v;
	ck_assert_msg(m->windows == 0, "a registration ends under %d windows", m->windows);
	fake_forget(fake.mr, m);
	return fake_free(m);
}

static inline struct ibv_mw *fake_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct fake_mw *w = fake_new(sizeof *w);
	if (!w)
		return NULL;
	ck_assert(type == IBV_MW_TYPE_2 && !fake.no_windows);
	w->v = (struct ibv_mw){.pd = pd, .rkey = ++fake.keys << 8, .type = type};
	w->key = w->v.rkey;
	fake.mw[fake_place(fake.mw)] = w;
	return &w->v;
}

/* Bytes on their way through the window: placed or dropped, now or never. */
static inline void fake_settle(struct fake_qp *q, const struct fake_mw *mw)
{
	struct fake_pending **at = &q->pending;
	while (*at) {
		struct fake_pending *p = *at;
		if (mw && p->mw != mw) {
			at = &p->next;
			continue;
		}
		if (fake_below(2)) {
			memcpy((void *)(uintptr_t)p->to, p->data, p->bytes);
			fake.late++;
		}
		*at = p->next;
		free(p);
	}
}

static inline void fake_unbind(struct fake_mw *w)
{
	if (!w->mr)
		return;
	for (int i = 0; i < FAKE_MAX; i++)
		if (fake.qp[i])
			fake_settle(fake.qp[i], w);
	w->mr->windows--;
	w->qp->windows--;
	w->mr = NULL;
	w->qp = NULL;
}

static inline int fake_dealloc_mw(struct ibv_mw *v)
{
	struct fake_mw *w = (struct fake_mw *)v;
	fake_unbind(w);
	fake_forget(fake.mw, w);
	return fake_free(w);
}

static inline struct ibv_comp_channel *fake_create_comp_channel(struct ibv_context *c)
{
	struct fake_channel *ch = fake_new(sizeof *ch);
	if (!ch)
		return NULL;
	ch->v.context = c;
	ch->v.fd = eventfd(0, EFD_NONBLOCK);
	return &ch->v;
}

static inline int fake_destroy_comp_channel(struct ibv_comp_channel *v)
{
	ck_assert_int_eq(v->refcnt, 0);
	close(v->fd);
	return fake_free(v);
}

static inline struct ibv_cq *fake_create_cq(struct ibv_context *c, int entries, void *arg,
                                            struct ibv_comp_channel *ch, int vector)
{
	struct fake_cq *q = fake_new(sizeof *q);
	if (!q)
		return NULL;
	(void)vector;
	q->v = (struct ibv_cq){.context = c, .channel = ch, .cq_context = arg, .cqe = entries};
	ch->refcnt++;
	return &q->v;
}

static inline void fake_channel_level(struct fake_channel *ch)
{
	uint64_t n;
	if (ch->n == 0 && read(ch->v.fd, &n, sizeof n) < 0)
		return;
}

static inline int fake_destroy_cq(struct ibv_cq *v)
{
	struct fake_cq *q = (struct fake_cq *)v;
	struct fake_channel *ch = (struct fake_channel *)v->channel;
	unsigned n = 0;
	ck_assert_uint_eq(q->qps, 0);
	ck_assert_msg(q->unacked == 0, "would wait for ever for %u acknowledgements", q->unacked);
	for (unsigned i = 0; i < ch->n; i++)
		if (ch->events[i] != q)
			ch->events[n++] = ch->events[i];
	ch->n = n;
	fake_channel_level(ch);
	ch->v.refcnt--;
	return fake_free(q);
}

static inline int fake_req_notify_cq(struct ibv_cq *v, int solicited_only)
{
	ck_assert_int_eq(solicited_only, 0);
	((struct fake_cq *)v)->armed = 1;
	return 0;
}

static inline void fake_wake(struct fake_cq *q)
{
	struct fake_channel *ch = (struct fake_channel *)q->v.channel;
	uint64_t one = 1;
	if (ch->n == FAKE_EVENTS)
		return;
	ch->events[ch->n++] = q;
	ck_assert(write(ch->v.fd, &one, sizeof one) == sizeof one);
}

static inline int fake_get_cq_event(struct ibv_comp_channel *v, struct ibv_cq **ret_cq,
                                    void **ret_arg)
{
	struct fake_channel *ch = (struct fake_channel *)v;
	if (ch->n == 0) {
		fake_channel_level(ch);
		errno = EAGAIN;
		return -1;
	}
	struct fake_cq *q = ch->events[0];
	memmove(ch->events, ch->events + 1, --ch->n * sizeof ch->events[0]);
	q->unacked++;
	*ret_cq = &q->v;
	*ret_arg = q->v.cq_context;
	return 0;
}

static inline void fake_ack_cq_events(struct ibv_cq *v, unsigned n)
{
	((struct fake_cq *)v)->unacked -= n;
}

#endif
