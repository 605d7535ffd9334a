/* Paths over RDMA, on the fabric of verbs_fake.h: correct bytes whatever fails, nothing written after
 * `closed`, nothing read after outgoing_end, no object left over, and every malformed message. */
#include "daemons/messager/path/rdma_priv.h"
#include "util/log.h"
#include "verbs_fake.h"

#include <check.h>
#include <stdio.h>

enum {
	BLOCKS = 40,
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
	struct side src, dst;
	struct lease lease[SLOTS];
	uint32_t opened, whole, cut;
	unsigned lose, busy; /* chances in 1024 of a message */
	int path_up, intake_up, ups;
	int within; /* a call of the path's functions is going on: no hook may be called */
};

static struct world *w;

/* --- hooks ------------------------------------------------------------------ */

static int say(struct link_queue *q, const void *bytes, size_t n)
{
	ck_assert(!w->within && n <= PATH_SAY_MAX);
	if (q->n == QUEUE || fake_chance(w->busy))
		return ERR_FULL;
	if (fake_chance(w->lose))
		return 0;
	struct message *m = &q->m[q->n++];
	m->n = n;
	m->at_us = fake.us + fake_below(60);
	memcpy(m->bytes, bytes, n);
	return 0;
}

static int say_to_path(void *arg, const void *bytes, size_t n)
{
	return say(&((struct world *)arg)->to_path, bytes, n);
}

static int say_to_intake(void *arg, const void *bytes, size_t n)
{
	return say(&((struct world *)arg)->to_intake, bytes, n);
}

static void path_up(void *arg, int up, const char *why)
{
	(void)arg;
	ck_assert(!w->within && why && w->path_up != up);
	w->path_up = up;
	w->ups += up;
}

static void intake_up(void *arg, int up, const char *why)
{
	(void)arg;
	ck_assert(!w->within && why && w->intake_up != up);
	w->intake_up = up;
}

static void on_delivered(void *arg, uint64_t bytes)
{
	struct lease *l = arg;
	ck_assert(!w->within && bytes > 0);
	l->delivered += bytes;
	ck_assert_uint_le(l->delivered, l->total);
}

static void on_failed(void *arg, int code, const char *why)
{
	struct lease *l = arg;
	ck_assert(!w->within && code == ERR_STALE && why && !l->failed && l->closing);
	l->failed = 1;
}

static void on_closed(void *arg)
{
	struct lease *l = arg;
	ck_assert(!w->within && l->closing && !l->closed);
	l->closed = 1;
}

#define WITHIN(call) (w->within = 1, (call), w->within = 0)

/* --- bytes -------------------------------------------------------------------- */

static unsigned char *piece(const struct side *s, uint32_t layer, uint32_t block)
{
	return s->pool.host + kv_piece_offset(&w->layout, BLOCKS, layer, block);
}

/* Never one of the three marks. */
static unsigned char pattern(const struct lease *l, uint32_t layer, uint32_t i, size_t at)
{
	return (unsigned char)((l->number * 31 + layer * 17 + i * 7 + at * 3 + at / 64) % 199 + 1);
}

static void fill(const struct side *s, uint32_t block, int mark)
{
	for (uint32_t k = 0; k < w->layout.layers; k++)
		memset(piece(s, k, block), mark, w->layout.piece_bytes[k]);
}

static void fill_source(const struct lease *l)
{
	for (uint32_t k = 0; k < w->layout.layers; k++)
		for (uint32_t i = 0; i < l->n; i++)
			for (size_t at = 0; at < w->layout.piece_bytes[k]; at++)
				piece(&w->src, k, l->src[i])[at] = pattern(l, k, i, at);
}

/* Each byte is the lease's; or, unless all must have arrived, not yet written. */
static void check_dest(const struct lease *l, int whole)
{
	for (uint32_t k = 0; k < w->layout.layers; k++)
		for (uint32_t i = 0; i < l->n; i++)
			for (size_t at = 0; at < w->layout.piece_bytes[k]; at++) {
				unsigned char is = piece(&w->dst, k, l->dst[i])[at];
				if (is != pattern(l, k, i, at) && (whole || is != DST_FRESH))
					ck_abort_msg("lease %u layer %u block %u byte %zu is %02x, not %02x", l->number,
					             k, i, at, is, pattern(l, k, i, at));
			}
}

static void check_unleased(void)
{
	for (uint32_t b = 0; b < BLOCKS; b++)
		for (uint32_t k = 0; w->dst.owner[b] == 0 && k < w->layout.layers; k++)
			for (size_t at = 0; at < w->layout.piece_bytes[k]; at++)
				ck_assert_msg(piece(&w->dst, k, b)[at] == DST_CLOSED,
				              "block %u of no lease was written", b);
}

/* --- the world ------------------------------------------------------------------- */

static struct rdma_opts opts(void)
{
	struct rdma_opts o = RDMA_OPTS_DEFAULT;
	o.depth = 8 + fake_below(40);
	o.window_bytes = 256 + fake_below(4096);
	o.timeout_us = 3000;
	o.drain_us = 200;
	o.retry_us = 100;
	o.close_us = 400;
	o.canary_us = 3000;
	o.port = 2;
	o.now_us = fake_us;
	return o;
}

static void side_init(struct side *s, int mark)
{
	s->pool.bytes = w->layout.block_bytes * BLOCKS;
	s->pool.by = &kern_host_copies;
	s->pool.host = malloc(s->pool.bytes);
	memset(s->pool.host, mark, s->pool.bytes);
	s->region = (struct kv_region){.blocks = BLOCKS, .pool = &s->pool};
	s->region.generations = calloc(BLOCKS, sizeof *s->region.generations);
}

static void side_fini(struct side *s)
{
	free(s->pool.host);
	free((void *)s->region.generations);
}

static void transport(struct rdma **ret)
{
	struct fake_knobs knobs = fake.knobs;
	struct err err = {0};
	struct rdma_opts o = opts();
	fake.knobs = (struct fake_knobs){0};
	ck_assert_msg(rdma_transport_new(w->base, &fake_verbs, &o, ret, &err) == 0, "%s", err.text);
	fake.knobs = knobs;
}

static void link_up(void)
{
	static const struct path_peer peer = {.name = "other", .epoch = 1};
	const struct path_hooks to_intake = {w, say_to_intake, path_up};
	const struct path_hooks to_path = {w, say_to_path, intake_up};
	w->to_intake.n = w->to_path.n = 0;
	w->path_up = w->intake_up = 0;
	WITHIN(w->path = rdma_path_ops.path_new(w->a, &peer, &to_intake));
	WITHIN(w->intake = rdma_path_ops.intake_new(w->b, &peer, &to_path));
}

static void world_new(uint64_t seed, int no_windows)
{
	fake_reset(seed);
	fake.no_windows = no_windows;
	w = calloc(1, sizeof *w);
	w->base = event_base_new();
	ck_assert_int_eq(kv_layout_uniform(&w->layout, 1 + fake_below(4), 1, 4 + 4 * fake_below(4), 4,
	                                   KV_BF16),
	                 0);
	side_init(&w->src, SRC_ENDED);
	side_init(&w->dst, DST_CLOSED);
	transport(&w->a);
	transport(&w->b);
	link_up();
}

static void world_free(void)
{
	rdma_path_ops.path_destroy(&w->path);
	rdma_path_ops.intake_destroy(&w->intake);
	rdma_pool_gone(w->a, &w->src.region);
	rdma_pool_gone(w->b, &w->dst.region);
	rdma_transport_destroy(&w->a);
	rdma_transport_destroy(&w->b);
	ck_assert_msg(fake.live == 0, "%u objects are left", fake.live);
	check_unleased();
	side_fini(&w->src);
	side_fini(&w->dst);
	event_base_free(w->base);
	free(w);
	w = NULL;
}

static void hear(struct link_queue *q, int at_path)
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

static void world_step(void)
{
	fake.us += 1 + fake_below(20);
	fake_step();
	hear(&w->to_path, 1);
	hear(&w->to_intake, 0);
	if (fake_below(4) == 0) {
		rdma_turn(w->a);
		rdma_turn(w->b);
	} else {
		event_base_loop(w->base, EVLOOP_NONBLOCK);
	}
}

/* --- leases ------------------------------------------------------------------------ */

static int take_blocks(struct side *s, uint32_t n, uint32_t slot, uint32_t *ret)
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

static void give_blocks(struct side *s, const struct lease *l, const uint32_t *list, int mark)
{
	for (uint32_t i = 0; i < l->n; i++) {
		s->owner[list[i]] = 0;
		fill(s, list[i], mark);
	}
}

static void outgoing_start(struct lease *l, const unsigned char *handle, size_t n)
{
	struct err err = {0};
	struct outgoing_opts o = {.handle = handle,
	                          .handle_bytes = n,
	                          .layout = &w->layout,
	                          .from = &w->src.region,
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

static void lease_open(uint32_t slot, int plan)
{
	struct lease *l = &w->lease[slot];
	unsigned char handle[PATH_HANDLE_MAX];
	size_t n;
	struct err err = {0};
	*l = (struct lease){.number = w->opened + 1, .n = fake_below(9), .plan = plan};
	if (!take_blocks(&w->dst, l->n, slot, l->dst))
		return;
	if (!take_blocks(&w->src, l->n, slot, l->src)) {
		give_blocks(&w->dst, l, l->dst, DST_CLOSED);
		return;
	}
	for (uint32_t i = 0; i < l->n; i++) {
		fill(&w->dst, l->dst[i], DST_FRESH);
		l->generations[i] = atomic_fetch_add(&w->dst.region.generations[l->dst[i]], 1) + 1;
		l->order[i] = i;
	}
	fill_source(l);
	l->total = (uint64_t)l->n * w->layout.block_bytes;
	l->plan_at_us = fake.us + fake_below(600);
	struct incoming_opts o = {&w->layout, &w->dst.region, l->dst, l->generations,
	                          l->n,       l,              on_closed};
	int e = ERR_NOMEM;
	for (int k = 0; k < 100 && e == ERR_NOMEM; k++)
		WITHIN(e = rdma_path_ops.incoming_new(w->intake, &o, &l->in, handle, &n, &err));
	ck_assert_msg(e == 0, "%s", err.text);
	ck_assert_int_eq(rdma_path_ops.incoming_complete(l->in), 1);
	outgoing_start(l, handle, n);
	l->used = 1;
	w->opened++;
}

static void lease_send(struct lease *l)
{
	uint32_t layer = fake_below(w->layout.layers), left = l->n - l->sent[layer];
	if (!left || !l->out || l->failed)
		return;
	uint32_t n = 1 + fake_below(left);
	WITHIN(rdma_path_ops.outgoing_send(l->out, layer, l->sent[layer], n));
	l->sent[layer] += n;
}

static void lease_end_sender(struct lease *l)
{
	WITHIN(rdma_path_ops.outgoing_end(&l->out));
	ck_assert_ptr_null(l->out);
	give_blocks(&w->src, l, l->src, SRC_ENDED);
}

static void lease_close(struct lease *l)
{
	int now;
	l->closing = 1;
	WITHIN(now = rdma_path_ops.incoming_close(l->in));
	l->closed = now;
}

static void lease_free(struct lease *l)
{
	check_dest(l, l->delivered == l->total && l->plan == 0);
	WITHIN(rdma_path_ops.incoming_free(&l->in));
	give_blocks(&w->dst, l, l->dst, DST_CLOSED);
}

/* Takes a lease one step further in its plan. */
static void lease_step(struct lease *l)
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

static int leases_step(int plans)
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

static void run_world(int plans)
{
	int steps = 0;
	while (leases_step(plans)) {
		ck_assert_msg(++steps < STEPS_MAX, "no end after %d steps: %u opened, %u whole, %u cut",
		              steps, w->opened, w->whole, w->cut);
		world_step();
		if (steps % 64 == 0)
			check_unleased();
	}
}

/* --- tests ------------------------------------------------------------------------------ */

START_TEST(test_quiet_fabric)
{
	struct path_state s;
	world_new(1, _i);
	run_world(0);
	ck_assert_uint_eq(w->whole, LEASES);
	rdma_path_ops.path_state(w->path, &s);
	ck_assert_ptr_null(s.up);
	ck_assert_str_eq(s.transport, "rdma");
	ck_assert_str_eq(s.via, _i ? "fake0 port 2, GID 3 127.0.0.1, MTU 1024, 103.1 Gbit/s, no windows"
	                           : "fake0 port 2, GID 3 127.0.0.1, MTU 1024, 103.1 Gbit/s, windows");
	ck_assert(s.bytes > 0 && s.errors == 0 && s.restarts == 0 && s.repeated_bytes == 0);
	for (int k = 0; k < 5000 && s.canaries < 3; k++) {
		world_step();
		rdma_path_ops.path_state(w->path, &s);
	}
	ck_assert(s.canaries >= 3 && s.canaries_lost == 0 && s.canary_us > 0 && s.canary_mbit_s > 0);
	/* one doorbell serves several writes */
	ck_assert_uint_lt(fake.doorbells, fake.posts);
	world_free();
}
END_TEST

/* Revocations and ends in the middle spare the other leases: no queue pair is lost, if there are
 * windows or the sender answers. */
START_TEST(test_closing_spares_others)
{
	struct path_state s;
	world_new(100 + (uint64_t)_i, _i % 2);
	run_world(1);
	rdma_path_ops.path_state(w->path, &s);
	ck_assert_uint_eq(w->whole + w->cut, LEASES);
	if (s.repeated_bytes == 0 && fake.hangs == 0)
		ck_assert_uint_eq(s.errors, 0);
	world_free();
}
END_TEST

static void seed_run(uint64_t seed)
{
	world_new(seed, seed % 3 == 0);
	fake.knobs = (struct fake_knobs){.kill = fake_below(6),
	                                 .hang = fake_below(2),
	                                 .spurious = fake_below(200),
	                                 .refuse = fake_below(60)};
	w->lose = fake_below(200);
	w->busy = fake_below(200);
	run_world(1);
	world_free();
}

START_TEST(test_seeds)
{
	for (uint64_t seed = 1; seed <= 50; seed++)
		seed_run((uint64_t)_i * 50 + seed);
}
END_TEST

static Suite *suite(void)
{
	Suite *s = suite_create("messager_rdma");
	TCase *t = tcase_create("fabric");
	tcase_add_loop_test(t, test_quiet_fabric, 0, 2);
	tcase_add_loop_test(t, test_closing_spares_others, 0, 10);
	tcase_add_loop_test(t, test_seeds, 0, 6);
	suite_add_tcase(s, t);
	return s;
}

int main(int argc, char **argv)
{
	if (argc > 1) { /* one seed, for a debugger */
		log_set_level("debug");
		seed_run(strtoull(argv[1], NULL, 10));
		return 0;
	}
	log_set_level(getenv("RDMA_LOG") ? "debug" : "error");
	SRunner *r = srunner_create(suite());
	srunner_run_all(r, CK_ENV);
	int failed = srunner_ntests_failed(r);
	srunner_free(r);
	return failed ? 1 : 0;
}
