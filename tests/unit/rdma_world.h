/* rdma_world.h - a sender and a receiver of RDMA on the fabric of verbs_fake.h, with the control
 * link between them and leases that are opened, sent, closed and ended. After each step no byte may
 * be wrong: a leased block has its lease's bytes, all others none. */
#ifndef RDMA_WORLD_H
#define RDMA_WORLD_H

#include "daemons/messager/path/rdma_priv.h"
#include "verbs_fake.h"

#include <check.h>
#include <inttypes.h>
#include <stdio.h>

enum {
	BLOCKS = 40,
	POOLS = 2, /* of each side, of which w->pools are used */
	SLOTS = 6,
	QUEUE = 64,
	LEASES = 12, /* of one run */
	STEPS_MAX = 60000,
	DST_FRESH = 0xdd,  /* a leased block before it is written */
	DST_CLOSED = 0xcc, /* a block of no lease */
	SRC_ENDED = 0xee   /* a source block after outgoing_end */
};

struct message {
	size_t n;
	uint64_t at_us;
	unsigned char bytes[PATH_SAY_MAX];
};

/* One direction of the control link. */
struct link_queue {
	struct message m[QUEUE];
	unsigned n;
};

struct side {
	struct kern_pool pool;
	struct kv_region region;
	uint32_t owner[BLOCKS]; /* slot + 1; 0: free */
};

struct lease {
	int used;
	uint32_t number, n, src[BLOCKS], dst[BLOCKS];
	uint64_t generations[BLOCKS];
	struct side *from, *to;
	struct incoming *in;
	struct outgoing *out;
	uint32_t sent[8]; /* blocks of a layer given to outgoing_send, in an order of its own */
	uint32_t order[BLOCKS];
	uint64_t delivered, total;
	int failed, closing, closed, plan; /* plan: 0 whole, 1 the receiver closes, 2 the sender ends */
	uint64_t plan_at_us;
};

struct world {
	struct event_base *base;
	struct kv_layout layout;
	struct rdma *a, *b; /* sender, receiver */
	struct path *path;
	struct intake *intake;
	struct link_queue to_intake, to_path;
	struct side src[POOLS], dst[POOLS];
	unsigned pools;
	struct lease lease[SLOTS];
	uint32_t opened, whole, cut;
	/* chances in 1024: of a message, of a message, of a step, of a step */
	unsigned lose, busy, restart, ports;
	uint32_t least; /* blocks of a lease */
	int drop;       /* messages of this kind are lost; 0: none */
	int path_up, intake_up, ups;
	int within; /* a call of the path's functions is going on: no hook may be called */
};

static struct world *w;
static const char *devices_a = "", *devices_b = ""; /* of sender and receiver */
static struct {
	int src[POOLS], dst[POOLS];
} nodes;         /* of the pools; -1: unknown */
static int calm; /* nothing happens by time alone, only by events of the loop */

/* --- hooks ------------------------------------------------------------------ */

static inline int say(struct link_queue *q, const void *bytes, size_t n)
{
	ck_assert(!w->within && n <= PATH_SAY_MAX);
	if (q->n == QUEUE || fake_chance(w->busy))
		return ERR_FULL;
	if (fake_chance(w->lose) || ((const unsigned char *)bytes)[1] == w->drop)
		return 0;
	struct message *m = &q->m[q->n++];
	m->n = n;
	m->at_us = fake.us + fake_below(60);
	memcpy(m->bytes, bytes, n);
	return 0;
}

static inline int say_to_path(void *arg, const void *bytes, size_t n)
{
	return say(&((struct world *)arg)->to_path, bytes, n);
}

static inline int say_to_intake(void *arg, const void *bytes, size_t n)
{
	return say(&((struct world *)arg)->to_intake, bytes, n);
}

static inline void path_up(void *arg, int up, const char *why)
{
	(void)arg;
	ck_assert(!w->within && why && w->path_up != up);
	w->path_up = up;
	w->ups += up;
}

static inline void intake_up(void *arg, int up, const char *why)
{
	(void)arg;
	ck_assert(!w->within && why && w->intake_up != up);
	w->intake_up = up;
}

static inline void on_delivered(void *arg, uint64_t bytes)
{
	struct lease *l = arg;
	ck_assert(!w->within && bytes > 0);
	l->delivered += bytes;
	ck_assert_uint_le(l->delivered, l->total);
}

static inline void on_failed(void *arg, int code, const char *why)
{
	struct lease *l = arg;
	ck_assert(!w->within && code == ERR_STALE && why && !l->failed && l->closing);
	l->failed = 1;
}

static inline void on_closed(void *arg)
{
	struct lease *l = arg;
	ck_assert(!w->within && l->closing && !l->closed);
	l->closed = 1;
}

#define WITHIN(call) (w->within = 1, (call), w->within = 0)

/* --- bytes -------------------------------------------------------------------- */

static inline unsigned char *piece(const struct side *s, uint32_t layer, uint32_t block)
{
	return s->pool.host + kv_piece_offset(&w->layout, BLOCKS, layer, block);
}

/* Never one of the three marks. */
static inline unsigned char pattern(const struct lease *l, uint32_t layer, uint32_t i, size_t at)
{
	return (unsigned char)((l->number * 31 + layer * 17 + i * 7 + at * 3 + at / 64) % 199 + 1);
}

static inline void fill(const struct side *s, uint32_t block, int mark)
{
	for (uint32_t k = 0; k < w->layout.layers; k++)
		memset(piece(s, k, block), mark, w->layout.piece_bytes[k]);
}

static inline void fill_source(const struct lease *l)
{
	for (uint32_t k = 0; k < w->layout.layers; k++)
		for (uint32_t i = 0; i < l->n; i++)
			for (size_t at = 0; at < w->layout.piece_bytes[k]; at++)
				piece(l->from, k, l->src[i])[at] = pattern(l, k, i, at);
}

/* Each byte is the lease's; or, unless all must have arrived, not yet written. */
static inline void check_dest(const struct lease *l, int whole)
{
	for (uint32_t k = 0; k < w->layout.layers; k++)
		for (uint32_t i = 0; i < l->n; i++)
			for (size_t at = 0; at < w->layout.piece_bytes[k]; at++) {
				unsigned char is = piece(l->to, k, l->dst[i])[at];
				if (is != pattern(l, k, i, at) && (whole || is != DST_FRESH))
					ck_abort_msg("lease %u layer %u block %u byte %zu is %02x, not %02x", l->number,
					             k, i, at, is, pattern(l, k, i, at));
			}
}

static inline void check_unleased_of(const struct side *s)
{
	for (uint32_t b = 0; b < BLOCKS; b++)
		for (uint32_t k = 0; s->owner[b] == 0 && k < w->layout.layers; k++)
			for (size_t at = 0; at < w->layout.piece_bytes[k]; at++)
				ck_assert_msg(piece(s, k, b)[at] == DST_CLOSED, "block %u of no lease was written",
				              b);
}

static inline void check_unleased(void)
{
	for (unsigned i = 0; i < w->pools; i++)
		check_unleased_of(&w->dst[i]);
}

/* --- the world ------------------------------------------------------------------- */

static inline struct rdma_opts opts(void)
{
	struct rdma_opts o = RDMA_OPTS_DEFAULT;
	o.depth = 8 + fake_below(40);
	o.window_bytes = 256 + fake_below(4096);
	o.timeout_us = 3000;
	o.drain_us = 200;
	o.retry_us = 100;
	o.close_us = 400;
	o.canary_us = 3000;
	if (calm) {
		o.timeout_us = o.retry_us = 3600ull * 1000000;
		o.canary_us = 0;
	}
	o.port = 2;
	o.now_us = fake_us;
	return o;
}

static inline void side_init(struct side *s, int mark)
{
	s->pool.bytes = w->layout.block_bytes * BLOCKS;
	s->pool.by = &kern_host_copies;
	s->pool.host = malloc(s->pool.bytes);
	memset(s->pool.host, mark, s->pool.bytes);
	s->region = (struct kv_region){.blocks = BLOCKS, .pool = &s->pool};
	s->region.generations = calloc(BLOCKS, sizeof *s->region.generations);
}

static inline void side_fini(struct side *s)
{
	free(s->pool.host);
	free((void *)s->region.generations);
}

static inline void transport(struct rdma **ret, const char *devices)
{
	struct fake_knobs knobs = fake.knobs;
	struct err err = {0};
	struct rdma_opts o = opts();
	o.device = devices;
	fake.knobs = (struct fake_knobs){0};
	ck_assert_msg(rdma_transport_new(w->base, &fake_verbs, &o, ret, &err) == 0, "%s", err.text);
	fake.knobs = knobs;
}

static inline void link_up(void)
{
	static const struct path_peer peer = {.name = "other", .epoch = 1};
	const struct path_hooks to_intake = {w, say_to_intake, path_up};
	const struct path_hooks to_path = {w, say_to_path, intake_up};
	w->to_intake.n = w->to_path.n = 0;
	w->path_up = w->intake_up = 0;
	WITHIN(w->path = rdma_path_ops.path_new(w->a, &peer, &to_intake));
	WITHIN(w->intake = rdma_path_ops.intake_new(w->b, &peer, &to_path));
}

/* As the messager does when a worker attaches. */
static inline void pool_add(struct rdma *t, struct side *s)
{
	struct err err = {0};
	ck_assert_msg(rdma_pool_add(t, &s->region, &err) == 0, "%s", err.text);
}

/* After fake_reset. */
static inline void world_make(unsigned pools)
{
	w = calloc(1, sizeof *w);
	w->base = event_base_new();
	w->pools = pools;
	ck_assert_int_eq(
		kv_layout_uniform(&w->layout, 1 + fake_below(4), 1, 4 + 4 * fake_below(4), 4, KV_BF16), 0);
	for (unsigned i = 0; i < pools; i++) {
		side_init(&w->src[i], SRC_ENDED);
		side_init(&w->dst[i], DST_CLOSED);
		fake.memory[2 * i].at = w->src[i].pool.host;
		fake.memory[2 * i + 1].at = w->dst[i].pool.host;
		fake.memory[2 * i].node = nodes.src[i];
		fake.memory[2 * i + 1].node = nodes.dst[i];
	}
	transport(&w->a, devices_a);
	transport(&w->b, devices_b);
	for (unsigned i = 0; i < pools; i++) {
		pool_add(w->a, &w->src[i]);
		pool_add(w->b, &w->dst[i]);
	}
	link_up();
}

static inline void world_new(uint64_t seed, int no_windows)
{
	fake_reset(seed);
	fake.no_windows = no_windows;
	world_make(1);
}

static inline void world_free(void)
{
	rdma_path_ops.path_destroy(&w->path);
	rdma_path_ops.intake_destroy(&w->intake);
	for (unsigned i = 0; i < w->pools; i++) {
		rdma_pool_gone(w->a, &w->src[i].region);
		rdma_pool_gone(w->b, &w->dst[i].region);
	}
	rdma_transport_destroy(&w->a);
	rdma_transport_destroy(&w->b);
	ck_assert_msg(fake.live == 0, "%u objects are left", fake.live);
	check_unleased();
	for (unsigned i = 0; i < w->pools; i++) {
		side_fini(&w->src[i]);
		side_fini(&w->dst[i]);
	}
	event_base_free(w->base);
	free(w);
	w = NULL;
	devices_a = devices_b = "";
}

static inline void hear(struct link_queue *q, int at_path)
{
	while (q->n > 0 && q->m[0].at_us <= fake.us) {
		struct message m = q->m[0];
		struct err err = {0};
		int e;
		memmove(q->m, q->m + 1, --q->n * sizeof *q->m);
		if (at_path)
			WITHIN(e = rdma_path_ops.path_said(w->path, m.bytes, m.n, &err));
		else
			WITHIN(e = rdma_path_ops.intake_said(w->intake, m.bytes, m.n, &err));
		ck_assert_msg(e == 0, "%s", err.text);
	}
}

static inline void world_step(void)
{
	fake.us += 1 + fake_below(20);
	fake_step();
	if (fake_chance(w->ports)) {
		unsigned d = fake_below((unsigned)fake.devices);
		fake_port(d, fake.device[d].down);
	}
	hear(&w->to_path, 1);
	hear(&w->to_intake, 0);
	if (!calm && fake_below(4) == 0) {
		rdma_turn(w->a);
		rdma_turn(w->b);
	} else {
		event_base_loop(w->base, EVLOOP_NONBLOCK);
	}
}

/* --- leases ------------------------------------------------------------------------ */

static inline int take_blocks(struct side *s, uint32_t n, uint32_t slot, uint32_t *ret)
{
	uint32_t free_blocks = 0, at = fake_below(BLOCKS);
	for (uint32_t b = 0; b < BLOCKS; b++)
		free_blocks += s->owner[b] == 0;
	if (free_blocks < n)
		return 0;
	for (uint32_t k = 0; k < n; at = (at + 1) % BLOCKS)
		if (s->owner[at] == 0 && (fake_below(4) || free_blocks == n)) {
			s->owner[at] = slot + 1;
			ret[k++] = at;
		}
	return 1;
}

static inline void give_blocks(struct side *s, const struct lease *l, const uint32_t *list,
                               int mark)
{
	for (uint32_t i = 0; i < l->n; i++) {
		s->owner[list[i]] = 0;
		fill(s, list[i], mark);
	}
}

static inline void outgoing_start(struct lease *l, const unsigned char *handle, size_t n)
{
	struct err err = {0};
	struct outgoing_opts o = {.handle = handle,
	                          .handle_bytes = n,
	                          .layout = &w->layout,
	                          .from = &l->from->region,
	                          .src = l->src,
	                          .dst = l->dst,
	                          .blocks = l->n,
	                          .to_blocks = BLOCKS,
	                          .arg = l,
	                          .delivered = on_delivered,
	                          .failed = on_failed};
	int e = ERR_NOMEM; /* registration may be refused */
	for (int k = 0; k < 100 && e == ERR_NOMEM; k++)
		WITHIN(e = rdma_path_ops.outgoing_new(w->path, &o, &l->out, &err));
	ck_assert_msg(e == 0, "%s", err.text);
}

static inline void lease_open(uint32_t slot, int plan)
{
	struct lease *l = &w->lease[slot];
	unsigned char handle[PATH_HANDLE_MAX];
	size_t n;
	struct err err = {0};
	*l = (struct lease){.number = w->opened + 1,
	                    .n = w->least + fake_below(9 - w->least),
	                    .from = &w->src[fake_below(w->pools)],
	                    .to = &w->dst[fake_below(w->pools)],
	                    .plan = plan};
	if (!take_blocks(l->to, l->n, slot, l->dst))
		return;
	if (!take_blocks(l->from, l->n, slot, l->src)) {
		give_blocks(l->to, l, l->dst, DST_CLOSED);
		return;
	}
	for (uint32_t i = 0; i < l->n; i++) {
		fill(l->to, l->dst[i], DST_FRESH);
		l->generations[i] = atomic_fetch_add(&l->to->region.generations[l->dst[i]], 1) + 1;
		l->order[i] = i;
	}
	fill_source(l);
	l->total = (uint64_t)l->n * w->layout.block_bytes;
	l->plan_at_us = fake.us + fake_below(600);
	struct incoming_opts o = {&w->layout, &l->to->region, l->dst, l->generations, l->n,
	                          l,          on_closed};
	int e = ERR_NOMEM;
	for (int k = 0; k < 100 && e == ERR_NOMEM; k++)
		WITHIN(e = rdma_path_ops.incoming_new(w->intake, &o, &l->in, handle, &n, &err));
	ck_assert_msg(e == 0, "%s", err.text);
	ck_assert_int_eq(rdma_path_ops.incoming_complete(l->in), 1);
	outgoing_start(l, handle, n);
	l->used = 1;
	w->opened++;
}

static inline void lease_send(struct lease *l)
{
	uint32_t layer = fake_below(w->layout.layers), left = l->n - l->sent[layer];
	if (!left || !l->out || l->failed)
		return;
	uint32_t n = 1 + fake_below(left);
	WITHIN(rdma_path_ops.outgoing_send(l->out, layer, l->sent[layer], n));
	l->sent[layer] += n;
}

static inline void lease_end_sender(struct lease *l)
{
	WITHIN(rdma_path_ops.outgoing_end(&l->out));
	ck_assert_ptr_null(l->out);
	give_blocks(l->from, l, l->src, SRC_ENDED);
}

static inline void lease_close(struct lease *l)
{
	int now;
	l->closing = 1;
	WITHIN(now = rdma_path_ops.incoming_close(l->in));
	l->closed = now;
}

/* Its incoming is freed. */
static inline void lease_freed(struct lease *l)
{
	l->in = NULL;
	check_dest(l, l->delivered == l->total && l->plan == 0);
	give_blocks(l->to, l, l->dst, DST_CLOSED);
}

static inline void lease_free(struct lease *l)
{
	WITHIN(rdma_path_ops.incoming_free(&l->in));
	lease_freed(l);
}

/* Takes a lease one step further in its plan. */
static inline void lease_step(struct lease *l)
{
	int due = fake.us >= l->plan_at_us;
	lease_send(l);
	if (l->out && l->delivered == l->total && l->plan == 0) {
		check_dest(l, 1);
		w->whole++;
		lease_end_sender(l);
	}
	if (l->out && ((l->plan == 2 && due) || (l->plan == 1 && l->closed && fake_below(8) == 0)))
		lease_end_sender(l);
	if (l->in && !l->closing && (l->plan == 1 ? due : !l->out))
		lease_close(l);
	if (l->in && l->closed)
		lease_free(l);
	if (!l->in && !l->out) {
		l->used = 0;
		w->cut += l->plan != 0;
	}
}

static inline int leases_step(int plans)
{
	int busy = 0;
	for (uint32_t k = 0; k < SLOTS; k++) {
		struct lease *l = &w->lease[k];
		if (!l->used && w->opened < LEASES && fake_below(6) == 0)
			lease_open(k, plans && fake_below(2) ? 1 + (int)fake_below(2) : 0);
		if (l->used)
			lease_step(l);
		busy |= l->used;
	}
	return busy || w->opened < LEASES;
}

/* The control link ends with everything under way, and comes up again. */
static inline void link_restart(void)
{
	for (uint32_t k = 0; k < SLOTS; k++) {
		struct lease *l = &w->lease[k];
		l->plan = 2;
		if (l->out)
			lease_end_sender(l);
		if (l->in && !l->closing && fake_below(2))
			lease_close(l);
	}
	WITHIN(rdma_path_ops.path_destroy(&w->path));
	WITHIN(rdma_path_ops.intake_destroy(&w->intake));
	for (uint32_t k = 0; k < SLOTS; k++) {
		if (w->lease[k].in)
			lease_freed(&w->lease[k]);
		w->cut += w->lease[k].used;
		w->lease[k].used = 0;
	}
	check_unleased();
	link_up();
}

/* How often what may go wrong does, by the world's seed. */
static inline void world_trouble(void)
{
	fake.knobs = (struct fake_knobs){.kill = fake_below(24),
	                                 .hang = fake_below(4),
	                                 .spurious = fake_below(200),
	                                 .refuse = fake_below(60)};
	w->lose = fake_below(200);
	w->busy = fake_below(200);
	w->restart = fake_below(4);
}

static inline void run_world(int plans)
{
	int steps = 0;
	while (leases_step(plans)) {
		if (fake_chance(w->restart))
			link_restart();
		ck_assert_msg(++steps < STEPS_MAX, "no end after %d steps: %u opened, %u whole, %u cut",
		              steps, w->opened, w->whole, w->cut);
		world_step();
		if (steps % 64 == 0)
			check_unleased();
	}
}

#endif
