/* test_messager_tcp.c - KV over TCP data connections: exact bytes by each way, the window, turns,
 * cuts, leases that are closed or stale. Everything that a stranger or a peer may send is in
 * test_messager_tcp_hostile.c, the rules of the protocol's model in test_messager_tcp_model.c. */
#include "skip.h"
#include "tcp_ends.h"
#include "util/log.h"

/* --- bytes --------------------------------------------------------------- */

static void exact(int encrypt, const struct rig_shape *shape, uint32_t frame_bytes)
{
	struct tcp_opts o = rig_opts;
	struct lease l[3];
	rig_random = 7;
	o.encrypt = encrypt;
	o.frame_bytes = frame_bytes;
	o.connections = 3;
	struct rig *r = rig_new_of(&o, &rig_opts, shape);
	for (unsigned i = 0; i < 3; i++) {
		lease_open(&l[i], r, 1 + 15 * i, 14); /* blocks 0, 15, 30, 45.. are nobody's */
		lease_send_all(&l[i]);
	}
	RIG_WAIT(r, l[0].bytes == lease_all(l) && l[1].bytes == lease_all(l + 1) &&
	                l[2].bytes == lease_all(l + 2));
	rig_pool_move(&r->to, true);
	for (unsigned i = 0; i < 3; i++) {
		ck_assert_int_eq(OPS->incoming_complete(l[i].in), 1);
		lease_check(&l[i]);
		check_untouched(r, 15 * i, 15 * i + 1);
		lease_end(&l[i]);
	}
	check_untouched(r, 45, RIG_BLOCKS);
	struct path_state s;
	OPS->path_state(r->path, &s);
	ck_assert_ptr_null(s.up);
	ck_assert_uint_eq(s.bytes, 3 * 14 * r->layout.block_bytes);
	ck_assert_uint_eq(s.repeated_bytes, 0);
	ck_assert_uint_eq(s.errors, 0);
	ck_assert_ptr_nonnull(strstr(s.via, encrypt ? "aes256-gcm" : "plain"));
	OPS->intake_state(r->intake, &s);
	ck_assert_uint_eq(s.bytes, 3 * 14 * r->layout.block_bytes);
	ck_assert_uint_eq(s.errors, 0);
	rig_free(r);
}

TEST_CASE("tcp", .timeout_s = 60);

TEST_LOOP(bytes_are_exact, 0, 8)
{
	static const struct {
		int encrypt, far;
		uint32_t frame_bytes;
	} ways[] = {{0, 0, 0},    {0, 0, 600}, {0, 0, 1},   {0, 1, 0},
	            {0, 1, 1100}, {1, 0, 0},   {1, 0, 900}, {1, 1, 700}};
	const struct rig_shape shape = {.layers = 7, .heads = 2, .dim = 16, .far = ways[_i].far};
	exact(ways[_i].encrypt, &shape, ways[_i].frame_bytes);
}

/* Of the ranks of tensor parallelism, whose parts of 7 heads are not equal: the bytes on the wire,
 * with their tags, are those of the whole pool. */
TEST_LOOP(bytes_of_divided_pools_are_exact, 0, 16)
{
	static const struct {
		uint32_t from_parts, to_parts;
	} ways[] = {{2, 1}, {3, 1}, {1, 2}, {1, 3}, {2, 2}, {3, 3}, {2, 3}, {3, 2}};
	static const uint32_t frame_bytes[] = {0, 1, 2500};
	const struct rig_shape shape = {.layers = 3,
	                                .heads = 7,
	                                .dim = 8,
	                                .from_parts = ways[_i / 2].from_parts,
	                                .to_parts = ways[_i / 2].to_parts};
	for (unsigned i = 0; i < 3; i++)
		exact(_i % 2, &shape, frame_bytes[i]);
}

TEST_LOOP(the_other_cipher, 0, 2)
{
	struct lease l;
	rig_random = 54;
	struct rig *r = rig_new(&rig_opts, &rig_opts, 3, 16, _i);
	r->sender->aes = 0;
	r->sender->opts.encrypt = 1;
	lease_open(&l, r, 3, 30);
	lease_send_all(&l);
	RIG_WAIT(r, l.bytes == lease_all(&l));
	struct path_state s;
	OPS->path_state(r->path, &s);
	ck_assert_ptr_nonnull(strstr(s.via, "chacha20-poly1305"));
	lease_check(&l);
	lease_end(&l);
	rig_free(r);
}

/* --- window, turns, hooks ------------------------------------------------ */

TEST_LOOP(window_is_respected, 0, 2)
{
	struct tcp_opts o = rig_opts;
	struct lease l;
	uint64_t most_bytes = 0;
	rig_random = 3;
	o.window_bytes = 5000;
	o.frame_bytes = 3000;
	struct rig *r = rig_new(&o, &rig_opts, 5, 16, _i);
	lease_open(&l, r, 0, 40);
	lease_send_all(&l);
	RIG_WAIT(r, (most_bytes = most(most_bytes, ((struct tcp_outgoing *)l.out)->unacked_bytes),
	             l.bytes == lease_all(&l)));
	ck_assert_uint_le(most_bytes, 5000);
	ck_assert_uint_ge(most_bytes, 3000);
	lease_check(&l);
	lease_end(&l);
	rig_free(r);
}

TEST(one_piece_larger_than_window_and_frame)
{
	struct tcp_opts o = rig_opts;
	struct lease l;
	rig_random = 4;
	o.window_bytes = 100;
	o.frame_bytes = 50;
	struct rig *r = rig_new(&o, &rig_opts, 2, 16, 0);
	lease_open(&l, r, 0, 10);
	lease_send_all(&l);
	RIG_WAIT(r, l.bytes == lease_all(&l));
	lease_check(&l);
	lease_end(&l);
	rig_free(r);
}

TEST(leases_take_turns)
{
	struct tcp_opts o = rig_opts;
	struct lease l[4];
	rig_random = 5;
	o.connections = 1;
	o.frame_bytes = o.turn_bytes = 1024;
	struct rig *r = rig_new(&o, &rig_opts, 8, 16, 0);
	RIG_WAIT(r, r->up);
	for (unsigned i = 0; i < 4; i++) {
		lease_open(&l[i], r, 12 * i, 12);
		lease_send_all(&l[i]);
	}
	RIG_WAIT(r, l[0].bytes == lease_all(l) || l[3].bytes == lease_all(l));
	for (unsigned i = 0; i < 4; i++)
		ck_assert_uint_ge(l[i].bytes, lease_all(l) * 8 / 10);
	for (unsigned i = 0; i < 4; i++)
		lease_end(&l[i]);
	rig_free(r);
}

/* Others get their turn on the loop: a callback moves at most turn_bytes. */
TEST_LOOP(a_callback_has_a_limit, 0, 2)
{
	struct tcp_opts o = rig_opts, in = rig_opts;
	struct lease l;
	rig_random = 13;
	o.connections = 1;
	o.frame_bytes = 1; /* of one piece: 512 bytes */
	*(_i ? &in.turn_bytes : &o.turn_bytes) = 1024;
	struct rig *r = rig_new(&o, &in, 8, 16, 0);
	RIG_WAIT(r, r->up);
	lease_open(&l, r, 0, 40);
	lease_send_all(&l);
	uint64_t before = 0;
	while (l.bytes < lease_all(&l)) {
		event_base_loop(r->base, EVLOOP_ONCE);
		uint64_t moved = _i ? ((struct tcp_incoming *)l.in)->n_arrived
		                    : 8 * 40 - ((struct tcp_outgoing *)l.out)->n_due;
		ck_assert_uint_le(moved - before, 3);
		before = moved;
	}
	lease_end(&l);
	rig_free(r);
}

static void end_it(struct lease *l)
{
	if (l->bytes == lease_all(l))
		OPS->outgoing_end(&l->out);
}

TEST(a_hook_may_end_its_outgoing)
{
	struct lease l;
	rig_random = 6;
	struct rig *r = rig_new(&rig_opts, &rig_opts, 3, 16, 0);
	lease_open(&l, r, 0, 20);
	l.on_delivered = end_it;
	lease_send_all(&l);
	RIG_WAIT(r, !l.out);
	lease_check(&l);
	lease_end(&l);
	rig_free(r);
}

static struct lease pair_of[2];
static int has_ended;

/* Ends the other one when that has something to be told as well. */
static void end_the_other(struct lease *l)
{
	struct lease *other = &pair_of[l == pair_of];
	if (has_ended || !other->out || !((struct tcp_outgoing *)other->out)->untold_bytes)
		return;
	OPS->outgoing_end(&other->out);
	has_ended = 1;
}

TEST(a_hook_may_end_another_outgoing)
{
	rig_random = 7;
	struct tcp_opts o = rig_opts;
	o.frame_bytes = 600;
	o.connections = 1;
	struct rig *r = rig_new(&o, &rig_opts, 8, 16, 0);
	RIG_WAIT(r, r->up);
	for (unsigned i = 0; i < 2; i++) {
		lease_open(&pair_of[i], r, 20 * i, 20);
		pair_of[i].on_delivered = end_the_other;
		lease_send_all(&pair_of[i]);
	}
	RIG_WAIT(r, has_ended);
	struct lease *left = &pair_of[!pair_of[0].out];
	RIG_WAIT(r, left->bytes == lease_all(left));
	lease_check(left);
	lease_end(&pair_of[0]);
	lease_end(&pair_of[1]);
	rig_free(r);
}

static void end_path(void *arg, int up, const char *why)
{
	struct rig *r = arg;
	(void)up, (void)why;
	OPS->path_destroy(&r->path);
}

TEST(a_hook_may_end_its_path)
{
	struct rig *r = rig_new(&rig_opts, &rig_opts, 3, 16, 0);
	const struct path_hooks hooks = {r, rig_path_says, end_path};
	const struct path_peer peer = {.name = "m2", .host = "127.0.0.1"};
	OPS->path_destroy(&r->path);
	r->path = OPS->path_new(r->sender, &peer, &hooks);
	RIG_WAIT(r, !r->path);
	RIG_WAIT(r, list_empty(&((struct tcp_intake *)r->intake)->conns));
	ck_assert_int_eq(r->in_up, 0);
	/* nothing is left that has a limit: no wake-ups */
	RIG_WAIT(r, !event_pending(r->sender->ev_tick, EV_TIMEOUT, NULL));
	ck_assert(event_pending(r->receiver->ev_tick, EV_TIMEOUT, NULL));
	rig_free(r);
}

TEST(a_pool_that_cannot_be_read_fails_its_lease)
{
	struct lease l, other;
	rig_random = 8;
	struct rig *r = rig_new(&rig_opts, &rig_opts, 3, 16, 1);
	RIG_WAIT(r, r->up);
	far_fails = 1;
	lease_open(&l, r, 0, 20);
	lease_send_all(&l);
	RIG_WAIT(r, l.failed);
	far_fails = 0;
	ck_assert_int_eq(l.failed, ERR_CLOSED);
	ck_assert_ptr_nonnull(strstr(l.why, "the device is lost"));
	lease_open(&other, r, 20, 20);
	lease_send_all(&other);
	RIG_WAIT(r, other.bytes == lease_all(&other));
	ck_assert_uint_eq(l.bytes, 0);
	lease_check(&other);
	lease_end(&l);
	lease_end(&other);
	rig_free(r);
}

/* The frame that is half written is completed from a copy: the stream stays in step. */
TEST_LOOP(an_outgoing_ends_in_the_middle_of_a_frame, 0, 6)
{
	struct tcp_opts o = rig_opts, in = rig_opts;
	struct lease l, other;
	rig_random = 9 + (uint64_t)_i;
	o.connections = 1;
	o.turn_bytes = 5000;
	in.turn_bytes = 900;
	struct rig *r = rig_new(&o, &in, 3, 64, 0);
	size_t bytes = r->from.own.region.data_bytes;
	unsigned char *copy = malloc(bytes);
	memcpy(copy, r->from.own.data, bytes);
	RIG_WAIT(r, r->up);
	lease_open(&l, r, 0, 20);
	lease_send_all(&l);
	for (int i = 0; i < 1 + _i; i++)
		event_base_loop(r->base, EVLOOP_ONCE);
	OPS->outgoing_end(&l.out);
	memset(r->from.own.data, 0, bytes);
	lease_open(&other, r, 20, 20);
	lease_send_all(&other);
	RIG_WAIT(r, other.bytes == lease_all(&other));
	lease_check(&other);
	/* what has arrived of the first is what was there when it was sent */
	memcpy(r->from.own.data, copy, bytes);
	const struct tcp_incoming *n = (struct tcp_incoming *)l.in;
	for (uint32_t i = 0; i < 3 * 20; i++)
		if (n->arrived[i / 64] >> i % 64 & 1)
			ck_assert(lease_piece_is_right(&l, i / 20, i % 20));
	struct path_state s;
	OPS->path_state(r->path, &s);
	ck_assert_uint_eq(s.errors + s.restarts, 0);
	lease_end(&l);
	lease_end(&other);
	free(copy);
	rig_free(r);
}

/* --- cuts ---------------------------------------------------------------- */

static void cut_one(struct rig *r)
{
	const struct tcp_path *p = (struct tcp_path *)r->path;
	struct tcp_intake *i = (struct tcp_intake *)r->intake;
	if (draw(2)) {
		const struct tcp_out *c = p->out[draw(p->n_outs)];
		if (tcp_out_fd(c) >= 0)
			shutdown(tcp_out_fd(c), SHUT_RDWR);
		return;
	}
	list_each(it, &i->conns)
		if (draw(2)) {
			shutdown(tcp_in_fd(tcp_in_of(it)), draw(3) ? SHUT_RDWR : SHUT_WR);
			return;
		}
}

static void cut_transfers(struct rig *r, unsigned transfers)
{
	const uint32_t blocks = 14;
	uint64_t sum = 0;
	struct path_state out, in;
	for (unsigned i = 0; i < transfers; i++) {
		struct lease l;
		unsigned cuts = draw(4), each = 2 + draw(12);
		r->sender->opts.turn_bytes = 64 + draw(1500);
		r->receiver->opts.turn_bytes = 64 + draw(1500);
		r->sender->opts.frame_bytes = 1 + draw(3000);
		lease_open(&l, r, 1, blocks);
		lease_send_all(&l);
		uint64_t until_us = clock_us() + WAIT_US;
		while (l.bytes < lease_all(&l)) {
			ck_assert_msg(clock_us() < until_us, "transfer %u does not end", i);
			event_base_loop(r->base, EVLOOP_ONCE);
			if (cuts && draw(each) == 0) {
				cut_one(r);
				cuts--;
			}
		}
		ck_assert_uint_eq(l.bytes, lease_all(&l));
		ck_assert_int_eq(l.failed, 0);
		ck_assert_int_eq(OPS->incoming_complete(l.in), 1);
		sum += l.bytes;
		lease_check(&l);
		lease_end(&l);
		for (uint32_t layer = 0; layer < r->layout.layers; layer++)
			memset(r->to.own.data + kv_piece_offset(&r->layout, RIG_BLOCKS, layer, 1), POISON,
			       blocks * r->layout.piece_bytes[layer]);
		event_base_loop(r->base, EVLOOP_NONBLOCK);
		check_untouched(r, 0, RIG_BLOCKS);
	}
	OPS->path_state(r->path, &out);
	OPS->intake_state(r->intake, &in);
	ck_assert_uint_eq(out.bytes, sum);
	ck_assert_uint_eq(in.bytes, sum);
	ck_assert_uint_ge(out.restarts, transfers / 4);
	ck_assert_uint_gt(out.repeated_bytes, 0);
	ck_assert_uint_gt(in.repeated_bytes, 0);
}

TEST_LOOP(a_thousand_cut_transfers, 0, 4)
{
	struct tcp_opts o = rig_opts;
	unsigned before = open_descriptors();
	rig_random = 11 + (uint64_t)_i;
	o.backoff_us = 200;
	o.backoff_max_us = 2000;
	o.encrypt = _i & 1;
	o.connections = 1 + (uint32_t)_i;
	struct rig *r = rig_new(&o, &rig_opts, 3, 16, _i & 2);
	cut_transfers(r, 250);
	rig_free(r);
	ck_assert_uint_eq(open_descriptors(), before);
}

/* --- leases that end ----------------------------------------------------- */

TEST_LOOP(rm3_a_closed_lease_is_not_written, 0, 4)
{
	struct tcp_opts o = rig_opts;
	rig_random = 20 + (uint64_t)_i;
	o.encrypt = _i & 1;
	o.connections = 2;
	struct rig *r = rig_new(&o, &rig_opts, 4, 16, _i & 2);
	RIG_WAIT(r, r->up);
	for (unsigned i = 0; i < 40; i++) {
		struct lease l, other;
		r->receiver->opts.turn_bytes = 64 + draw(900);
		r->sender->opts.turn_bytes = 64 + draw(4000);
		r->sender->opts.frame_bytes = 1 + draw(5000);
		lease_open(&l, r, 0, 20);
		lease_open(&other, r, 20, 20);
		lease_send_all(&l);
		lease_send_all(&other);
		for (uint32_t n = draw(20); n; n--)
			event_base_loop(r->base, EVLOOP_ONCE);
		uint64_t before = l.bytes;
		ck_assert_int_eq(OPS->incoming_close(l.in), 1);
		OPS->incoming_free(&l.in);
		memset(r->to.own.data, POISON, r->to.own.region.data_bytes);
		RIG_WAIT(r, l.failed || l.bytes == lease_all(&l)); /* had it all arrived before? */
		if (l.failed)
			ck_assert_int_eq(l.failed, ERR_STALE);
		ck_assert_uint_ge(l.bytes, before);
		RIG_WAIT(r, other.bytes == lease_all(&other));
		check_untouched(r, 0, 20);
		check_untouched(r, 40, RIG_BLOCKS);
		lease_end(&l);
		lease_end(&other);
	}
	rig_free(r);
}

/* A messager that stops: its leases are open, frames of them are arriving. */
TEST_LOOP(an_intake_ends_with_open_leases, 0, 8)
{
	struct tcp_opts o = rig_opts;
	rig_random = 60 + (uint64_t)_i;
	struct rig *r = rig_new(&o, &rig_opts, 4, 16, 0);
	struct lease l, other;
	RIG_WAIT(r, r->up);
	r->receiver->opts.turn_bytes = 700;
	lease_open(&l, r, 0, 20);
	lease_open(&other, r, 20, 20);
	lease_send_all(&l);
	lease_send_all(&other);
	for (int n = _i; n; n--)
		event_base_loop(r->base, EVLOOP_ONCE);
	OPS->intake_destroy(&r->intake);
	l.in = other.in = NULL; /* freed with it */
	memset(r->to.own.data, POISON, r->to.own.region.data_bytes);
	RIG_WAIT(r, !r->up);
	check_untouched(r, 0, RIG_BLOCKS);
	lease_end(&l);
	lease_end(&other);
	rig_free(r);
}

TEST_LOOP(a_block_of_another_generation_is_not_written, 0, 4)
{
	struct tcp_opts o = rig_opts;
	rig_random = 30 + (uint64_t)_i;
	o.encrypt = _i & 1;
	o.connections = 1;
	struct rig *r = rig_new(&o, &rig_opts, 4, 16, _i & 2);
	for (unsigned i = 0, stale = 0; i < 40 || !stale; i++) {
		struct lease l;
		uint32_t block = draw(20);
		still_works(r); /* behind the rest of the lease before */
		r->receiver->opts.turn_bytes = 64 + draw(900);
		r->sender->opts.frame_bytes = 1 + draw(5000);
		lease_open(&l, r, 0, 20);
		lease_send_all(&l);
		for (uint32_t n = draw(12); n; n--)
			event_base_loop(r->base, EVLOOP_ONCE);
		r->to.own.region.generations[block]++;
		memset(r->to.own.data, POISON, r->to.own.region.data_bytes);
		RIG_WAIT(r, l.failed || l.bytes == lease_all(&l));
		if (l.failed) {
			ck_assert_int_eq(l.failed, ERR_STALE);
			ck_assert_ptr_nonnull(strstr(l.why, "generation"));
			ck_assert_int_eq(OPS->incoming_complete(l.in), 0);
			stale++;
		}
		check_untouched(r, block, block + 1);
		check_untouched(r, 20, RIG_BLOCKS);
		lease_end(&l);
	}
	rig_free(r);
}

TEST(what_is_refused_locally)
{
	struct err err;
	struct lease l;
	struct incoming *in;
	unsigned char handle[PATH_HANDLE_MAX];
	size_t n;
	rig_random = 40;
	struct rig *r = rig_new(&rig_opts, &rig_opts, 2, 16, 0);
	lease_open(&l, r, 0, 4);
	struct outgoing_opts o = ((struct tcp_outgoing *)l.out)->o;
	struct outgoing *out;
	o.handle = (const unsigned char *)"no handle at";
	o.handle_bytes = 12;
	ck_assert_int_eq(OPS->outgoing_new(r->path, &o, &out, &err), ERR_INVALID);
	o.handle = l.handle;
	o.handle_bytes = l.handle_bytes - 1;
	ck_assert_int_eq(OPS->outgoing_new(r->path, &o, &out, &err), ERR_INVALID);
	struct incoming_opts io = ((struct tcp_incoming *)l.in)->o;
	const uint32_t beyond[4] = {0, 1, 2, RIG_BLOCKS};
	io.dst = beyond;
	ck_assert_int_eq(OPS->incoming_new(r->intake, &io, &in, handle, &n, &err), ERR_INVALID);
	ck_assert_int_eq(OPS->path_said(r->path, "PDT1 and more", 13, &err), ERR_INVALID);
	ck_assert_int_eq(OPS->intake_said(r->intake, r->setup, 7, &err), ERR_INVALID);
	/* leases of an intake */
	static struct incoming *many[TCP_INCOMING_MAX];
	unsigned made = 0;
	io = ((struct tcp_incoming *)l.in)->o;
	while (made < TCP_INCOMING_MAX &&
	       OPS->incoming_new(r->intake, &io, &many[made], handle, &n, &err) == 0)
		made++;
	ck_assert_uint_eq(made, TCP_INCOMING_MAX - 1);
	ck_assert_int_eq(err.code, ERR_FULL);
	while (made) {
		ck_assert_int_eq(OPS->incoming_close(many[--made]), 1);
		OPS->incoming_free(&many[made]);
	}
	lease_end(&l);
	rig_free(r);
}

/* --- canary, names ------------------------------------------------------- */

TEST_LOOP(a_canary_measures_the_path, 0, 2)
{
	struct tcp_opts o = rig_opts;
	struct path_state s;
	o.canary_us = 1000;
	o.encrypt = _i;
	struct rig *r = rig_new(&o, &rig_opts, 1, 16, 0);
	RIG_WAIT(r, (OPS->path_state(r->path, &s), s.canaries >= 2));
	ck_assert_uint_gt(s.canary_us, 0);
	ck_assert_uint_eq(s.canary_mbit_s, 65536ull * 8 / s.canary_us);
	ck_assert_uint_eq(s.canaries_lost + s.errors + s.bytes, 0);
	rig_free(r);
}

TEST(a_host_is_a_name)
{
	if (!localhost_resolves())
		SKIP(SKIP_NO_LOCALHOST);
	struct rig *r = rig_new(&rig_opts, &rig_opts, 1, 16, 0);
	const struct path_hooks hooks = {r, rig_path_says, rig_path_up};
	const struct path_peer here = {.name = "m2", .host = "localhost"},
						   nowhere = {.name = "m3", .host = "no-such-host.invalid"};
	struct path_state s;
	struct err err;
	OPS->path_destroy(&r->path);
	r->path = OPS->path_new(r->sender, &here, &hooks);
	RIG_WAIT(r, r->up);
	struct path *p = OPS->path_new(r->sender, &nowhere, &hooks);
	ck_assert_int_eq(OPS->path_said(p, r->setup, r->setup_bytes, &err), 0);
	for (int i = 0; i < 5; i++)
		event_base_loop(r->base, EVLOOP_ONCE);
	OPS->path_state(p, &s);
	ck_assert_ptr_nonnull(s.up);
	OPS->path_destroy(&p); /* while it is asked for, if there is a name server */
	for (int i = 0; i < 5; i++)
		event_base_loop(r->base, EVLOOP_NONBLOCK);
	rig_free(r);
}

TEST_START(quiet)
{
	log_set_level("error");
}
