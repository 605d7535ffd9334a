/* rdma.c - the transport: registered pools, and the turns of the event loop. */
#include "rdma_nic.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <stdlib.h>

#define DEPTH_MAX 16384u
#define TELLS_A_TURN 1024 /* hooks called before the loop gets its turn again */

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

/* --- pools ---------------------------------------------------------------------- */

static struct rdma_pool *pool_find(struct rdma *t, const struct kv_region *r)
{
	list_each(it, &t->pools) {
		struct rdma_pool *p = list_entry(it, struct rdma_pool, in);
		if (p->region == r)
			return p;
	}
	return NULL;
}

/* A number that no other pool has, or RDMA_LANES_MAX. */
static unsigned free_lane(const struct rdma *t)
{
	uint64_t used = 0;
	list_each(it, &t->pools)
		used |= 1ull << list_entry(it, struct rdma_pool, in)->lane;
	return used == UINT64_MAX ? RDMA_LANES_MAX : (unsigned)__builtin_ctzll(~used);
}

struct rdma_pool *rdma_pool_get(struct rdma *t, const struct kv_region *r, struct err *err)
{
	struct rdma_pool *p = pool_find(t, r);
	if (p)
		return p;
	if (!r->pool->host) {
		err_set(err, ERR_UNSUPPORTED,
		        "RDMA cannot reach a KV pool in memory of %s: only pools in host memory",
		        r->pool->by->name);
		return NULL;
	}
	unsigned lane = free_lane(t);
	if (lane == RDMA_LANES_MAX) {
		err_set(err, ERR_FULL, "RDMA has %u KV pools already (limit %u)", lane, RDMA_LANES_MAX);
		return NULL;
	}
	p = mem_zalloc(sizeof *p);
	p->region = r;
	p->lane = lane;
	p->node = t->v->memory_node(r->pool->host, r->pool->bytes);
	log_notice("rdma_pool", "lane=%u bytes=%zu numa_node=%d", lane, (size_t)r->pool->bytes,
	           p->node);
	list_push_back(&t->pools, &p->in);
	rdma_intakes_add(t, p);
	return p;
}

struct ibv_mr *rdma_pool_source(struct rdma_pool *p, const struct rdma_nic *n, struct err *err)
{
	struct ibv_mr **mr = &p->mr[n->index].source;
	const struct kern_pool *m = p->region->pool;
	if (!*mr)
		*mr = rdma_register(n, m->host, m->bytes,
		                    n->windows ? IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND : 0,
		                    "a KV pool", err);
	return *mr;
}

struct ibv_mr *rdma_pool_dest(struct rdma_pool *p, const struct rdma_nic *n, struct err *err)
{
	struct ibv_mr **mr = &p->mr[n->index].dest;
	const struct kern_pool *m = p->region->pool;
	if (!*mr)
		*mr = n->windows ? rdma_pool_source(p, n, err)
		                 : rdma_register(n, m->host, m->bytes,
		                                 IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
		                                     IBV_ACCESS_REMOTE_READ,
		                                 "a KV pool", err);
	return *mr;
}

/* With the NICs that are nearest, which its queue pairs use unless they fail. The rights to be
 * written are given only when a lease needs them, unless there are windows. */
int rdma_pool_add(struct rdma *t, const struct kv_region *region, struct err *err)
{
	struct err own;
	err = err ? err : &own;
	struct rdma_pool *p = rdma_pool_get(t, region, err);
	int nearest = 1, done = 0;
	for (unsigned i = 0; p && i < t->n_nics; i++)
		if (rdma_nic_distance(t->nics[i], p) < nearest)
			nearest = 0;
	/* Registering takes seconds for a large pool: where all NICs are equally near, for want of a
	 * node, one is enough; the others' turn comes when a queue pair uses them. */
	for (unsigned i = 0; p && i < t->n_nics && !(done && p->node < 0); i++)
		if (rdma_nic_distance(t->nics[i], p) == nearest)
			done |= rdma_pool_source(p, t->nics[i], err) != NULL;
	return done || (p && t->n_nics == 0) ? 0 : err->code;
}

static void pool_free(struct rdma *t, struct rdma_pool *p)
{
	rdma_intakes_remove(t, p);
	list_remove(&p->in);
	for (unsigned i = 0; i < t->n_nics; i++) {
		if (p->mr[i].dest == p->mr[i].source)
			p->mr[i].dest = NULL;
		rdma_unregister(t, &p->mr[i].dest);
		rdma_unregister(t, &p->mr[i].source);
	}
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
	if (o->depth < RDMA_DEPTH_MIN || o->depth > DEPTH_MAX)
		return err_set(err, ERR_INVALID, "RDMA send queues of %u work requests (must be %u to %u)",
		               o->depth, RDMA_DEPTH_MIN, DEPTH_MAX);
	if (o->gid_index > UINT8_MAX)
		return err_set(err, ERR_INVALID, "GID index %d (limit %d)", o->gid_index, UINT8_MAX);
	if (!o->window_bytes || !o->timeout_us || !o->retry_us || !o->drain_us)
		return err_set(err, ERR_INVALID,
		               "RDMA window, time-out, drain and retry times must not be 0");
	return 0;
}

static void free_all(struct rdma *t)
{
	if (t->soon)
		event_free(t->soon);
	if (t->timer)
		event_free(t->timer);
	rdma_nics_close(t);
	free((char *)t->opts.device);
	free(t);
}

int rdma_transport_new(struct event_base *base, const struct verbs *v, const struct rdma_opts *o,
                       struct rdma **ret, struct err *err)
{
	struct err own;
	err = err ? err : &own;
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
	list_init(&t->intakes);
	t->soon = event_new(base, -1, 0, on_turn, t);
	t->timer = event_new(base, -1, EV_TIMEOUT, on_turn, t);
	e = t->soon && t->timer ? rdma_nics_open(t, base, err)
	                        : err_set(err, ERR_NOMEM, "cannot add RDMA to the event loop");
	if (e < 0) {
		free_all(t);
		return e;
	}
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
		pool_free(t, list_entry(t->pools.next, struct rdma_pool, in));
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
