/* Paths over RDMA, on the fabric of verbs_fake.h: correct bytes whatever fails, nothing written
 * after `closed`, nothing read after outgoing_end, no object left over, and every malformed
 * message. */
#include "rdma_world.h"
#include "util/log.h"

#include <inttypes.h>

/* --- tests ------------------------------------------------------------------------------ */

TEST_CASE("fabric");

TEST_LOOP(test_quiet_fabric, 0, 2)
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

/* A completion wakes the loop, each time. */
TEST_LOOP(test_wakes_up, 0, 2)
{
	calm = 1;
	world_new(12, _i);
	run_world(0);
	ck_assert_uint_eq(w->whole, LEASES);
	world_free();
	calm = 0;
}

TEST(test_canary_with_a_wrong_byte)
{
	struct path_state s = {0};
	world_new(13, 0);
	fake.corrupts = 1;
	for (int k = 0; k < 20000 && s.canaries < 2; k++) {
		world_step();
		rdma_path_ops.path_state(w->path, &s);
	}
	ck_assert(s.canaries == 2 && s.canaries_lost == 1 && s.restarts == 1 && s.errors > 0);
	ck_assert_str_eq(s.last_error, "the canary came back with other bytes");
	ck_assert_ptr_null(s.up);
	world_free();
}

/* Revocations and ends in the middle spare the other leases: no queue pair is lost, if there are
 * windows or the sender answers. */
TEST_LOOP(test_closing_spares_others, 0, 10)
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

static uint64_t sum_kills, sum_hangs, sum_late, sum_repeated, sum_whole;

static void seed_run(uint64_t seed)
{
	struct path_state s;
	world_new(seed, seed % 3 == 0);
	world_trouble();
	fake.slow = (int)fake_below(2);
	run_world(1);
	rdma_path_ops.path_state(w->path, &s);
	sum_kills += fake.kills;
	sum_hangs += fake.hangs;
	sum_late += fake.late;
	sum_repeated += s.repeated_bytes;
	sum_whole += w->whole;
	world_free();
}

TEST_LOOP(test_seeds, 0, 6)
{
	sum_kills = sum_hangs = sum_late = sum_repeated = sum_whole = 0;
	for (uint64_t seed = 1; seed <= 100; seed++)
		seed_run((uint64_t)_i * 100 + seed);
	/* what the seeds are for has happened */
	ck_assert_msg(sum_kills > 50 && sum_hangs > 5 && sum_late > 50 && sum_repeated &&
	                  sum_whole > 50,
	              "kills %" PRIu64 ", hangs %" PRIu64 ", late %" PRIu64 ", repeated %" PRIu64
	              ", whole %" PRIu64,
	              sum_kills, sum_hangs, sum_late, sum_repeated, sum_whole);
}

/* One message to one end of a quiet world, which must refuse it and stay as it is. */
static void refuses(int at_path, const void *bytes, size_t n, const char *what)
{
	struct err err = {0};
	int e = at_path ? rdma_path_ops.path_said(w->path, bytes, n, &err)
	                : rdma_path_ops.intake_said(w->intake, bytes, n, &err);
	ck_assert_msg(e == ERR_INVALID && err.text[0], "%s: %d %s", what, e, err.text);
}

static size_t an_offer(unsigned char *out)
{
	struct rdma_msg m = {.kind = RDMA_OFFER, .round = 1, .session = 9};
	m.address = (struct rdma_address){
		.gid = {.raw = {1}}, .qpn = 77, .psn = 5, .mtu = 3, .link_layer = 2, .reads = 1};
	return rdma_msg_write(&m, out);
}

TEST_CASE("refusals");

TEST(test_malformed_messages)
{
	/* offset, width and value of a field that makes an OFFER malformed */
	static const struct {
		const char *what;
		size_t at, width;
		uint64_t value;
	} bad[] = {{"version", 0, 1, 3},
	           {"kind 0", 1, 1, 0},
	           {"kind 11", 1, 1, 11},
	           {"lane", 2, 1, RDMA_LANES_MAX},
	           {"reserved", 3, 1, 1},
	           {"round 0", 4, 4, 0},
	           {"session 0", 8, 8, 0},
	           {"no GID", 16, 1, 0},
	           {"queue pair 1", 32, 4, 1},
	           {"queue pair", 32, 4, 1 << 24},
	           {"PSN", 36, 4, 1 << 24},
	           {"MTU 0", 42, 1, 0},
	           {"MTU 6", 42, 1, 6},
	           {"link layer", 43, 1, 3},
	           {"no LID", 43, 1, 1},
	           {"no reads", 44, 1, 0},
	           {"reserved at the end", 46, 1, 1}};
	unsigned char ok[PATH_SAY_MAX], m[PATH_SAY_MAX + 1] = {0};
	struct err err;
	world_new(3, 0);
	size_t n = an_offer(ok);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		memcpy(m, ok, n);
		memcpy(m + bad[i].at, &bad[i].value, bad[i].width);
		refuses(1, m, n, bad[i].what);
	}
	for (size_t k = 0; k < n; k++)
		refuses(1, ok, k, "cut");
	memcpy(m, ok, n);
	refuses(1, m, n + 1, "left over");
	refuses(1, m, sizeof m, "too long");
	ck_assert_int_eq(rdma_path_ops.path_said(w->path, ok, n, &err), 0);
	refuses(0, ok, n, "an OFFER to the receiver");
	world_free();
}

TEST(test_malformed_lists)
{
	static const enum rdma_kind kinds[] = {RDMA_KEYS, RDMA_DONE, RDMA_ASK, RDMA_CLOSE};
	struct rdma_msg m = {.round = 1, .session = 9};
	unsigned char b[PATH_SAY_MAX];
	world_new(4, 0);
	for (int i = 0; i < 4; i++) {
		int at_path = kinds[i] == RDMA_KEYS || kinds[i] == RDMA_CLOSE;
		struct err err;
		m.kind = kinds[i];
		m.n = kinds[i] == RDMA_KEYS ? RDMA_KEYS_MAX : RDMA_LEASES_MAX;
		for (uint32_t k = 0; k < m.n; k++)
			m.lease[k].lease = k + 1;
		size_t n = rdma_msg_write(&m, b);
		/* well formed, of another session: ignored */
		ck_assert_int_eq((at_path ? rdma_path_ops.path_said(w->path, b, n, &err)
		                          : rdma_path_ops.intake_said(w->intake, b, n, &err)),
		                 0);
		refuses(!at_path, b, n, "to the wrong end");
		refuses(at_path, b, n - 1, "cut");
		b[16]++;
		refuses(at_path, b, n, "more than fit");
		memset(b + 16, 0, 4);
		refuses(at_path, b, 20, "none");
		b[16] = 1;
		memset(b + 20, 0, 8);
		refuses(at_path, b, kinds[i] == RDMA_KEYS ? 32 : 28, "lease 0");
	}
	m.kind = RDMA_RESET;
	memset(m.text, '\n', 20);
	m.text[20] = 0;
	size_t n = rdma_msg_write(&m, b);
	ck_assert_int_eq(rdma_msg_read(b, n, &m, NULL), 0);
	ck_assert_str_eq(m.text, "????????????????????");
	refuses(0, b, RDMA_HEAD_BYTES + RDMA_TEXT_MAX + 1, "a long text");
	m.kind = RDMA_READY;
	n = rdma_msg_write(&m, b);
	refuses(0, b, n, "READY to the receiver");
	refuses(1, b, n + 1, "READY with more");
	world_free();
}

TEST(test_malformed_handles)
{
	static const struct {
		const char *what;
		size_t at, width;
		uint64_t value;
	} bad[] = {
		{"version", 0, 1, 3},  {"session", 8, 8, 0},           {"lane", 20, 4, RDMA_LANES_MAX},
		{"lease", 24, 8, 0},   {"address", 32, 8, UINT64_MAX}, {"no bytes", 40, 8, 0},
		{"bytes", 40, 8, 4096}};
	unsigned char ok[PATH_HANDLE_MAX], h[PATH_HANDLE_MAX];
	world_new(5, 0);
	uint32_t src = 3, dst = 4;
	struct rdma_handle good = {
		.session = 1, .round = 1, .lease = 5, .at = 1 << 20, .bytes = w->dst[0].pool.bytes};
	struct outgoing_opts o = {.handle = h,
	                          .handle_bytes = RDMA_HANDLE_BYTES,
	                          .layout = &w->layout,
	                          .from = &w->src[0].region,
	                          .src = &src,
	                          .dst = &dst,
	                          .blocks = 1,
	                          .to_blocks = BLOCKS};
	struct outgoing *out = NULL;
	struct err err = {0};
	rdma_handle_write(&good, ok);
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		memcpy(h, ok, sizeof h);
		memcpy(h + bad[i].at, &bad[i].value, bad[i].width);
		ck_assert_msg(rdma_path_ops.outgoing_new(w->path, &o, &out, &err) == ERR_INVALID, "%s",
		              bad[i].what);
	}
	memcpy(h, ok, sizeof h);
	for (o.handle_bytes = 0; o.handle_bytes <= PATH_HANDLE_MAX; o.handle_bytes++)
		if (o.handle_bytes != RDMA_HANDLE_BYTES)
			ck_assert_int_eq(rdma_path_ops.outgoing_new(w->path, &o, &out, &err), ERR_INVALID);
	o.handle_bytes = RDMA_HANDLE_BYTES;
	dst = BLOCKS;
	ck_assert_int_eq(rdma_path_ops.outgoing_new(w->path, &o, &out, &err), ERR_INVALID);
	dst = 4;
	src = BLOCKS;
	ck_assert_int_eq(rdma_path_ops.outgoing_new(w->path, &o, &out, &err), ERR_INVALID);
	src = 3;
	ck_assert_int_eq(rdma_path_ops.outgoing_new(w->path, &o, &out, &err), 0);
	rdma_path_ops.outgoing_end(&out);
	world_free();
}

TEST(test_pools_and_blocks_refused)
{
	unsigned char handle[PATH_HANDLE_MAX], *host;
	size_t n;
	uint32_t dst = 2;
	uint64_t generation = 0;
	struct incoming *in = NULL;
	struct err err = {0};
	world_new(6, 0);
	struct incoming_opts o = {&w->layout, &w->dst[0].region, &dst, &generation, 1, NULL, NULL};
	rdma_pool_gone(w->b, &w->dst[0].region);
	host = w->dst[0].pool.host;
	w->dst[0].pool.host = NULL;
	ck_assert_int_eq(rdma_path_ops.incoming_new(w->intake, &o, &in, handle, &n, &err),
	                 ERR_UNSUPPORTED);
	ck_assert(strstr(err.text, "only pools in host memory") != NULL);
	ck_assert_int_eq(rdma_pool_add(w->b, &w->dst[0].region, &err), ERR_UNSUPPORTED);
	w->dst[0].pool.host = host;
	ck_assert_int_eq(rdma_pool_add(w->b, &w->dst[0].region, NULL), 0);
	generation = 1;
	ck_assert_int_eq(rdma_path_ops.incoming_new(w->intake, &o, &in, handle, &n, &err), ERR_STALE);
	generation = 0;
	dst = BLOCKS;
	ck_assert_int_eq(rdma_path_ops.incoming_new(w->intake, &o, &in, handle, &n, &err), ERR_INVALID);
	world_free();
}

static int start(const struct rdma_opts *o, struct err *err)
{
	struct event_base *base = event_base_new();
	struct rdma *t = NULL;
	int e = rdma_transport_new(base, &fake_verbs, o, &t, err);
	rdma_transport_destroy(&t);
	event_base_free(base);
	return e;
}

TEST(test_transports_refused)
{
	struct rdma_opts o = RDMA_OPTS_DEFAULT;
	struct err err = {0};
	fake_reset(7);
	ck_assert_int_eq(start(&o, &err), 0); /* port 2 of fake0 */
	fake.devices = 0;
	ck_assert_int_eq(start(&o, &err), ERR_NOTFOUND);
	ck_assert(strstr(err.text, "no RDMA device on this host") != NULL);
	fake.devices = 2;
	o.device = "mlx5_0";
	ck_assert_int_eq(start(&o, &err), ERR_NOTFOUND);
	ck_assert_str_eq(err.text, "no RDMA device mlx5_0 on this host: it has fake0, fake1");
	o.device = "fake0";
	o.port = 1;
	ck_assert_int_eq(start(&o, &err), ERR_NOTFOUND);
	ck_assert(strstr(err.text, "no active port") != NULL);
	o.port = 3;
	ck_assert_int_eq(start(&o, &err), ERR_NOTFOUND);
	o.device = "fake1";
	o.port = 0;
	o.gid_index = 4;
	ck_assert_int_eq(start(&o, &err), ERR_NOTFOUND);
	o.gid_index = 2;
	ck_assert_int_eq(start(&o, &err), 0);
	fake.device[1].down = 1;
	ck_assert_int_eq(start(&o, &err), ERR_NOTFOUND);
	fake.device[1].down = 0;
	o.depth = 7;
	ck_assert_int_eq(start(&o, &err), ERR_INVALID);
	o.depth = 8;
	for (int k = 0; k < 300; k++) {
		fake.knobs.refuse = 300;
		start(&o, &err);
		ck_assert_uint_eq(fake.live, 0);
	}
}

TEST_CASE("fabric");

/* Registered once, whatever number of leases there is; with windows no pool has remote rights, and
 * without them only one that is written. */
TEST_LOOP(test_rights, 0, 2)
{
	world_new(8, _i);
	run_world(1);
	int source = 0, dest = 0;
	for (int i = 0; i < FAKE_MAX; i++) {
		const struct fake_mr *m = fake.mr[i];
		if (!m)
			continue;
		int remote = (m->access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)) != 0;
		source += m->v.addr == w->src[0].pool.host;
		dest += m->v.addr == w->dst[0].pool.host;
		ck_assert(m->v.addr != w->src[0].pool.host || !remote);
		ck_assert(m->v.addr != w->dst[0].pool.host || _i || !remote);
	}
	ck_assert_int_eq(source, 1);
	ck_assert_int_eq(dest, _i ? 2 : 1);
	world_free();
}

/* A sender that hears nothing any more: the receiver closes without it. */
TEST_LOOP(rm2_closed_without_an_answer, 0, 2)
{
	world_new(9, _i);
	while (!w->path_up || !w->intake_up)
		world_step();
	w->least = 1;
	lease_open(0, 0);
	struct lease *l = &w->lease[0];
	for (int k = 0; k < 40; k++)
		world_step();
	w->lose = 1024;
	lease_close(l);
	ck_assert(!l->closed);
	uint64_t from = fake.us;
	while (!l->closed)
		world_step();
	ck_assert_uint_le(fake.us - from, 3000);
	w->lose = 0;
	for (uint32_t k = 0; k < w->layout.layers; k++)
		WITHIN(rdma_path_ops.outgoing_send(l->out, k, 0, l->n));
	lease_free(l);
	uint64_t kills = fake.kills;
	for (int k = 0; k < 2000; k++)
		world_step();
	check_unleased();
	/* a write that meets a closed window ends the queue pair */
	ck_assert(_i || fake.kills > kills);
	lease_end_sender(l);
	world_free();
}

/* D ends: its pool is unmapped while a lease is open, or is being closed. Nothing is written after
 * the drop, and the other lease arrives over the next queue pair. */
TEST_LOOP(test_a_pool_goes, 0, 4)
{
	world_new(9, _i & 1);
	while (!w->path_up || !w->intake_up)
		world_step();
	w->least = 1;
	lease_open(0, 2);
	lease_open(1, 0);
	struct lease *l = &w->lease[0], *other = &w->lease[1];
	for (int k = 0; k < 20; k++)
		world_step();
	if (_i & 2)
		lease_close(l);
	WITHIN(rdma_path_ops.incoming_drop(&l->in));
	lease_freed(l);
	lease_end_sender(l);
	for (int k = 0; other->delivered < other->total && k < 200000; k++) {
		lease_send(other);
		world_step();
	}
	ck_assert_uint_eq(other->delivered, other->total);
	check_dest(other, 1);
	check_unleased();
	lease_end_sender(other);
	lease_close(other);
	while (!other->closed)
		world_step();
	lease_free(other);
	world_free();
}

/* A sender that ends with bytes on their way: what it says afterwards overtakes them. */
TEST_LOOP(rm2_ended_with_bytes_on_their_way, 0, 2)
{
	for (uint64_t seed = 0; seed < 20; seed++) {
		world_new(2000 + seed, _i);
		while (!w->path_up || !w->intake_up)
			world_step();
		w->least = 4;
		lease_open(0, 2);
		struct lease *l = &w->lease[0];
		for (uint32_t k = 0; k < w->layout.layers; k++)
			WITHIN(rdma_path_ops.outgoing_send(l->out, k, 0, l->n));
		for (int k = 0; k < 2; k++)
			world_step();
		fake.slow = 1;
		fake.knobs.hang = 1024;
		w->drop = RDMA_RESET;
		lease_end_sender(l);
		for (int k = 0; k < 5; k++)
			world_step();
		lease_close(l);
		while (!l->closed)
			world_step();
		lease_free(l);
		for (int k = 0; k < 200; k++)
			world_step();
		check_unleased();
		world_free();
	}
}

/* The queue pair with writes outstanding, WRITEs of it in *ret; NULL: none. */
static struct fake_qp *writing(unsigned *ret)
{
	for (int i = 0; i < FAKE_MAX; i++) {
		struct fake_qp *q = fake.qp[i];
		*ret = 0;
		for (uint64_t k = q ? q->done : 0; q && k < q->posted; k++)
			*ret += q->q[k % FAKE_DEPTH].wr.opcode == IBV_WR_RDMA_WRITE;
		if (*ret)
			return q;
	}
	return NULL;
}

/* A lease of eight blocks that are all to be sent, with writes of it outstanding. */
static struct fake_qp *begin_to_write(uint64_t seed, int no_windows)
{
	struct fake_qp *q;
	unsigned n;
	world_new(seed, no_windows);
	while (!w->path_up || !w->intake_up)
		world_step();
	w->least = 8;
	lease_open(0, 0);
	for (uint32_t k = 0; k < w->layout.layers; k++)
		WITHIN(rdma_path_ops.outgoing_send(w->lease[0].out, k, 0, w->lease[0].n));
	while (!(q = writing(&n)))
		world_step();
	return q;
}

static void kill_it(struct fake_qp *q)
{
	if (q->state != IBV_QPS_RTS || q->done == q->posted)
		return;
	q->arrived += q->arrived == q->done;
	fake_fail(q, IBV_WC_RETRY_EXC_ERR);
}

static void finish_writing(void)
{
	struct lease *l = &w->lease[0];
	for (int steps = 0; l->delivered < l->total; world_step())
		ck_assert_int_lt(++steps, STEPS_MAX);
	check_dest(l, 1);
	lease_end_sender(l);
	lease_close(l);
	while (!l->closed)
		world_step();
	lease_free(l);
	world_free();
}

/* A failed queue pair's writes may still be on their way until the receiver has destroyed its own
 * end, which OFFER says: nothing is posted before. */
TEST_LOOP(rm20_no_write_before_the_next_offer, 0, 2)
{
	struct fake_qp *q = begin_to_write(14, _i);
	kill_it(q);
	w->drop = RDMA_OFFER;
	uint64_t writes = fake.writes;
	for (int k = 0; k < 3000; k++) {
		world_step();
		ck_assert_uint_eq(fake.writes, writes);
	}
	ck_assert_uint_lt(w->lease[0].delivered, w->lease[0].total);
	w->drop = 0;
	finish_writing();
}

/* Completions of a failed queue pair are all taken, or lost with it, before anything is posted
 * again; and all is delivered only when no write is outstanding. */
TEST_LOOP(rm33_old_completions_do_not_count, 0, 2)
{
	for (uint64_t seed = 0; seed < 20; seed++) {
		struct fake_qp *q = begin_to_write(3000 + seed, _i), *now;
		struct lease *l = &w->lease[0];
		unsigned n;
		for (unsigned k = fake_below(12); k > 0; k--)
			fake_step(); /* some complete, and nobody looks */
		kill_it(q);
		uint32_t number = q->v.qp_num;
		for (int steps = 0; l->delivered < l->total; world_step()) {
			int lives = 0;
			ck_assert_int_lt(++steps, STEPS_MAX);
			for (int i = 0; i < FAKE_MAX; i++)
				lives |= fake.qp[i] && fake.qp[i]->v.qp_num == number &&
				         fake.qp[i]->state == IBV_QPS_ERR;
			now = writing(&n);
			ck_assert(!lives || !now || now->v.qp_num == number);
		}
		ck_assert_ptr_null(writing(&n));
		finish_writing();
	}
}

/* A queue pair without completions is given up, and the lease goes on over the next one. */
TEST_LOOP(test_hang, 0, 2)
{
	struct path_state s;
	world_new(10, _i);
	fake.knobs.hang = 24;
	run_world(0);
	rdma_path_ops.path_state(w->path, &s);
	ck_assert_uint_eq(w->whole, LEASES);
	ck_assert(fake.hangs > 0 && s.restarts > 0 && s.errors > 0);
	/* or, on a slow machine, the other side has given up first */
	ck_assert_msg(strstr(s.last_error, "no completion for") || s.errors > fake.hangs ||
	                  strstr(s.last_error, "retry counter exceeded"),
	              "%s", s.last_error);
	world_free();
}

TEST_START(one_seed)
{
	if (argc > 1) { /* one seed, for a debugger */
		log_set_level("debug");
		seed_run(strtoull(argv[1], NULL, 10));
		exit(0);
	}
	log_set_level(getenv("RDMA_LOG") ? "debug" : "error");
}
