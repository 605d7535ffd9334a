/* test_messager_tcp_hostile.c - TCP data connections among strangers, and with a peer that lies or
 * does not read: it is closed or refused, nothing of it counts, and no other pair waits. */
#include "tcp_ends.h"
#include "util/log.h"

/* --- strangers ----------------------------------------------------------- */

TEST_CASE("tcp", .timeout_s = 60);

TEST(strangers_are_closed)
{
	struct tcp_opts in = rig_opts;
	unsigned char hello[HELLO_BYTES];
	char noise[5000];
	in.handshake_us = 300000;
	rig_random = 50;
	struct rig *r = rig_new(&rig_opts, &in, 2, 16, 0);
	RIG_WAIT(r, r->up);
	memset(noise, 'G', sizeof noise);
	int fd = dial(r);
	ck_assert_int_eq(send(fd, noise, sizeof noise, 0), sizeof noise);
	is_closed(r, fd);
	ck_assert_uint_eq(r->receiver->refused, 1);
	/* HELLO of a pair that is not known */
	const struct hello h = {.pair = 12345};
	hello_put(hello, &h, (const unsigned char *)noise);
	fd = dial(r);
	send(fd, hello, sizeof hello, 0);
	is_closed(r, fd);
	ck_assert_uint_eq(r->receiver->refused, 2);
	/* a byte now and then, and nothing at all */
	uint64_t begun_us = clock_us();
	fd = dial(r);
	int silent = dial(r);
	for (int i = 0; i < 20 && send(fd, hello, 1, MSG_NOSIGNAL) == 1; i++) {
		usleep(20000);
		event_base_loop(r->base, EVLOOP_NONBLOCK);
	}
	is_closed(r, fd);
	is_closed(r, silent);
	ck_assert_uint_ge(clock_us() - begun_us, 250000);
	ck_assert_uint_eq(r->receiver->n_strangers, 0);
	ck_assert_uint_eq(intake_errors(r), 0);
	still_works(r);
	rig_free(r);
}

TEST(many_strangers_keep_nobody_out)
{
	struct tcp_opts in = rig_opts;
	int fd[100];
	in.strangers = 8;
	rig_random = 51;
	struct rig *r = rig_new(&rig_opts, &in, 2, 16, 0);
	for (unsigned i = 0; i < 100; i++) {
		fd[i] = dial(r);
		event_base_loop(r->base, EVLOOP_NONBLOCK);
		ck_assert_uint_le(r->receiver->n_strangers, 8);
	}
	still_works(r);
	for (unsigned i = 0; i < 90; i++)
		is_closed(r, fd[i]);
	for (unsigned i = 90; i < 100; i++)
		close(fd[i]);
	rig_free(r);
}

struct host {
	struct path *path;
	struct intake *intake;
};

static int host_intake_says(void *arg, const void *bytes, size_t n)
{
	struct err err;
	return OPS->path_said(((struct host *)arg)->path, bytes, n, &err);
}
static int host_path_says(void *arg, const void *bytes, size_t n)
{
	(void)arg, (void)bytes, (void)n;
	return 0;
}

TEST(many_hosts_start_at_once)
{
	enum { HOSTS = 32 };
	static struct host h[HOSTS];
	struct tcp_opts o = {.address = "127.0.0.1", .connections = 4};
	struct path_state s;
	const struct path_peer peer = {.name = "host", .host = "127.0.0.1"};
	struct rig *r = rig_new(&o, &o, 1, 16, 0);
	for (unsigned i = 0; i < HOSTS; i++) {
		const struct path_hooks in = {&h[i], host_intake_says, NULL},
								out = {&h[i], host_path_says, NULL};
		h[i].path = OPS->path_new(r->sender, &peer, &out);
		h[i].intake = OPS->intake_new(r->receiver, &peer, &in);
	}
	for (unsigned i = 0; i < HOSTS; i++) {
		RIG_WAIT(r, ((struct tcp_path *)h[i].path)->side.n_up == 4);
		OPS->path_state(h[i].path, &s);
		ck_assert_uint_eq(s.errors, 0);
	}
	ck_assert_uint_eq(r->receiver->refused, 0);
	for (unsigned i = 0; i < HOSTS; i++) {
		OPS->path_destroy(&h[i].path);
		OPS->intake_destroy(&h[i].intake);
	}
	rig_free(r);
}

/* --- a peer that speaks the protocol, and lies --------------------------- */

TEST(handshakes_are_not_replayed_or_forged)
{
	struct liar a;
	unsigned char proof[PROOF_BYTES], again[WELCOME_BYTES], hello[HELLO_BYTES];
	rig_random = 52;
	struct rig *r = rig_new(&rig_opts, &rig_opts, 2, 16, 0);
	RIG_WAIT(r, r->up);
	enter(r, &a, CIPHER_NONE);
	proof_put(proof, a.hello, a.welcome, a.setup.secret);
	RIG_WAIT(r, ((struct tcp_intake *)r->intake)->side.n_up == 3);
	/* what an observer of that handshake has */
	int fd = dial(r);
	send(fd, a.hello, HELLO_BYTES, 0);
	ck_assert_uint_eq(hear(r, fd, again, WELCOME_BYTES), WELCOME_BYTES);
	ck_assert_int_ne(memcmp(again, a.welcome, WELCOME_BYTES), 0);
	send(fd, proof, sizeof proof, 0);
	is_closed(r, fd);
	ck_assert_uint_eq(intake_errors(r), 1);
	ck_assert_uint_eq(((struct tcp_intake *)r->intake)->side.n_up, 3); /* nor did it end that one */
	leave(&a);
	/* the pair's id, and another secret */
	memcpy(hello, a.hello, HELLO_BYTES);
	hello[HELLO_BYTES - 1] ^= 1;
	fd = dial(r);
	send(fd, hello, HELLO_BYTES, 0);
	is_closed(r, fd);
	ck_assert_uint_eq(intake_errors(r), 2);
	/* HELLO that was changed on its way */
	memcpy(hello, a.hello, HELLO_BYTES);
	hello[20] ^= CIPHER_CHACHA20;
	fd = dial(r);
	send(fd, hello, HELLO_BYTES, 0);
	is_closed(r, fd);
	ck_assert_uint_eq(intake_errors(r), 3);
	still_works(r);
	rig_free(r);
}

TEST(encryption_is_not_negotiated_away)
{
	struct tcp_opts in = rig_opts;
	struct liar a;
	in.encrypt = 1;
	rig_random = 53;
	struct rig *r = rig_new(&rig_opts, &in, 2, 16, 0);
	RIG_WAIT(r, r->up);
	struct path_state s;
	OPS->path_state(r->path, &s);
	ck_assert_ptr_nonnull(strstr(s.via, "aes256-gcm"));
	ck_assert_int_eq(setup_get(r->setup, r->setup_bytes, &a.setup), 0);
	const struct hello h = {a.setup.pair, 7, CIPHER_NONE, {0}};
	hello_put(a.hello, &h, a.setup.secret);
	int fd = dial(r);
	send(fd, a.hello, HELLO_BYTES, 0);
	is_closed(r, fd);
	ck_assert_uint_eq(intake_errors(r), 1);
	still_works(r);
	rig_free(r);
}

static void check_lies(const struct lie *lies, unsigned n, enum cipher cipher, int far)
{
	struct lease l;
	rig_random = 55;
	struct rig *r = rig_new(&rig_opts, &rig_opts, 4, 16, far);
	RIG_WAIT(r, r->up);
	lease_open(&l, r, 10, 20);
	for (unsigned i = 0; i < n; i++) {
		struct liar a;
		struct frame f;
		unsigned char head[FRAME_HEAD_BYTES];
		enter(r, &a, cipher);
		RIG_WAIT(r, ((struct tcp_intake *)r->intake)->side.n_up == 3);
		uint64_t errors = intake_errors(r);
		tell_lie(r, &a, &l, &lies[i]);
		size_t got = hear(r, a.fd, head, sizeof head);
		if (lies[i].refused) {
			ck_assert_msg(got == sizeof head && frame_get(head, &f, &a.back) == 0, "%s: %zu",
			              lies[i].what, got);
			ck_assert_msg(f.type == FRAME_REFUSE && f.n == lies[i].refused, "%s: type %d, %u",
			              lies[i].what, f.type, f.n);
			if (lies[i].refused == REFUSED_CLOSED)
				errors--; /* of no error of the peer */
		} else {
			ck_assert_msg(got == 0, "%s is accepted", lies[i].what);
		}
		ck_assert_msg(intake_errors(r) == errors + 1, "%s", lies[i].what);
		ck_assert_msg(((struct tcp_incoming *)l.in)->n_arrived == 0, "%s counts", lies[i].what);
		leave(&a);
		RIG_WAIT(r, ((struct tcp_intake *)r->intake)->side.n_up == 2);
		check_untouched(r, 0, 10);
		check_untouched(r, 30, 40);
	}
	lease_send_all(&l); /* the pair's own bytes still come through */
	RIG_WAIT(r, l.bytes == lease_all(&l));
	lease_check(&l);
	check_untouched(r, 0, 10);
	check_untouched(r, 30, RIG_BLOCKS);
	lease_end(&l);
	rig_free(r);
}

TEST_LOOP(lies_are_refused, 0, 2)
{
	static const struct lie lies[] = {
		{"a changed header", .f.n = 2, .bad_mac = 1},
		{"a changed byte", .f.n = 2, .tamper = 1},
		{"a changed tag", .f.n = 2, .bad_tag = 1},
		{"a canary that was changed", .f = {.n = 2, .type = FRAME_CANARY}, .tamper = 1},
		{"a frame left out", .f = {.n = 2, .number = 1}},
		{"a frame again", .f = {.n = 2, .number = UINT64_MAX}},
		{"17 MiB", .f = {.n = 1, .length = 17u << 20}},
		{"4 GiB", .f = {.n = 1, .length = UINT32_MAX}},
		{"an answer", .f = {.n = 1, .type = FRAME_ACK}},
		{"a byte too many", .f.n = 2, .length = 1, .refused = REFUSED_MALFORMED},
		{"a byte too few", .f.n = 2, .length = -1, .refused = REFUSED_MALFORMED},
		{"no blocks", .f.n = 0, .length = 4, .refused = REFUSED_MALFORMED},
		{"a layer that is not there", .f = {.n = 1, .layer = 4}, .refused = REFUSED_MALFORMED},
		{"a huge layer", .f = {.n = 1, .layer = UINT32_MAX}, .refused = REFUSED_MALFORMED},
		{"blocks past the lease", .f = {.n = 2, .first = 19}, .refused = REFUSED_MALFORMED},
		{"blocks that wrap", .f = {.n = 2, .first = UINT32_MAX}, .refused = REFUSED_MALFORMED},
		{"an old lease", .f.n = 2, .of_another_lease = -1, .refused = REFUSED_CLOSED},
	};
	check_lies(lies, sizeof lies / sizeof *lies, CIPHER_NONE, _i);
}

TEST_LOOP(encrypted_lies_are_refused, 0, 2)
{
	static const struct lie lies[] = {
		{"a changed header", .f.n = 2, .bad_mac = 1},
		{"a changed byte", .f.n = 2, .tamper = 1},
		{"a canary that was changed", .f = {.n = 2, .type = FRAME_CANARY}, .tamper = 1},
		{"a frame again", .f = {.n = 2, .number = UINT64_MAX}},
		{"a byte too many", .f.n = 2, .length = 1, .refused = REFUSED_MALFORMED},
	};
	check_lies(lies, sizeof lies / sizeof *lies, _i ? CIPHER_CHACHA20 : CIPHER_AES256GCM, 0);
}

/* As many bytes of a frame for an old lease as the socket takes; *at: of the present one. */
static void say_old_frames(struct liar *a, const struct lease *l, unsigned char *text, size_t *at)
{
	const struct tcp_incoming *n = (struct tcp_incoming *)l->in;
	const size_t whole = FRAME_HEAD_BYTES + FRAME_TAG_BYTES;
	for (ssize_t sent;; *at += (size_t)sent) {
		if (*at == whole)
			*at = 0;
		if (*at == 0) {
			const struct frame f = {.type = FRAME_DATA,
			                        .number = a->number++,
			                        .handle = n->handle,
			                        .generation = n->generation - 1,
			                        .n = 1};
			frame_put(text, &f, &a->keys);
			frame_seal_begin(&a->keys, text, f.number);
			frame_seal_end(&a->keys, text + FRAME_HEAD_BYTES);
		}
		sent = send(a->fd, text + *at, whole - *at, MSG_NOSIGNAL | MSG_DONTWAIT);
		if (sent < 0)
			return;
	}
}

/* Each frame is refused, and the sender does not read: nothing more is read of it, others do not
 * wait, and when it reads it finds every answer. */
TEST(refusals_that_nobody_reads)
{
	struct liar a;
	struct lease l;
	struct frame f;
	unsigned char text[FRAME_HEAD_BYTES + FRAME_TAG_BYTES], head[FRAME_HEAD_BYTES];
	size_t at = 0;
	int small = 4096;
	uint64_t refused = 0, acked = 0;
	rig_random = 56;
	struct rig *r = rig_new(&rig_opts, &rig_opts, 1, 16, 0);
	RIG_WAIT(r, r->up);
	lease_open(&l, r, 10, 20);
	enter(r, &a, CIPHER_NONE);
	RIG_WAIT(r, ((struct tcp_intake *)r->intake)->side.n_up == 3);
	list_each(it, &((struct tcp_intake *)r->intake)->conns)
		setsockopt(tcp_in_fd(tcp_in_of(it)), SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
	setsockopt(a.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
	for (uint64_t before = 0, since_us = clock_us(); clock_us() - since_us < 100000;) {
		say_old_frames(&a, &l, text, &at);
		if (a.number != before)
			since_us = clock_us();
		before = a.number;
		ck_assert_uint_lt(a.number, 1000000); /* it is read for ever */
		event_base_loop(r->base, EVLOOP_NONBLOCK);
	}
	still_works(r);
	/* the last frame is begun, but for the socket's room */
	for (uint64_t back = 1; acked < a.number - 2 || refused < a.number - 2; back++) {
		ck_assert_uint_eq(hear(r, a.fd, head, sizeof head), sizeof head);
		ck_assert_int_eq(frame_get(head, &f, &a.back), 0);
		ck_assert_uint_eq(f.number, back);
		refused += f.type == FRAME_REFUSE;
		acked = f.type == FRAME_ACK ? f.sum : acked;
	}
	ck_assert_uint_eq(refused, a.number - 2);
	ck_assert_uint_gt(refused, 100);
	ck_assert_uint_eq(intake_errors(r), 0);
	leave(&a);
	lease_end(&l);
	rig_free(r);
}

/* --- a receiver that lies, or does not read ------------------------------ */

static void lease_on_bad_end(struct lease *l, struct rig *r, struct bad_end *b)
{
	struct path *own = r->path;
	lease_open(l, r, 0, 40); /* for its handle: nothing will arrive */
	OPS->outgoing_end(&l->out);
	r->path = b->path;
	lease_outgoing(l);
	r->path = own;
	lease_send_all(l);
}

TEST(a_peer_that_does_not_read_delays_no_other)
{
	struct tcp_opts o = rig_opts;
	struct bad_end b;
	struct lease l;
	struct path_state s;
	o.stall_us = 400000;
	o.frame_bytes = 4096;
	rig_random = 60;
	struct rig *r = rig_new(&o, &rig_opts, 8, 256, 0);
	bad_end_new(r, &b);
	fcntl(b.listener, F_SETFL, O_NONBLOCK);
	bad_end_accept(r, &b);
	RIG_WAIT(r, b.up);
	lease_on_bad_end(&l, r, &b);
	for (int i = 0; i < 20; i++)
		still_works(r);
	ck_assert_uint_eq(l.bytes, 0);
	/* and it is noticed */
	RIG_WAIT(r, (OPS->path_state(b.path, &s), s.errors));
	ck_assert_msg(strstr(s.last_error, "nothing was acknowledged"), "%s", s.last_error);
	ck_assert_ptr_nonnull(s.up);
	ck_assert_int_eq(l.failed, 0);
	lease_end(&l);
	bad_end_free(&b);
	rig_free(r);
}

TEST_LOOP(acknowledgements_are_not_believed, 0, 4)
{
	struct bad_end b;
	struct lease l;
	struct path_state s;
	unsigned char head[FRAME_HEAD_BYTES];
	rig_random = 61;
	struct rig *r = rig_new(&rig_opts, &rig_opts, 4, 16, 0);
	bad_end_new(r, &b);
	fcntl(b.listener, F_SETFL, O_NONBLOCK);
	bad_end_accept(r, &b);
	RIG_WAIT(r, b.up);
	lease_on_bad_end(&l, r, &b);
	event_base_loop(r->base, EVLOOP_NONBLOCK);
	struct frame f = {.type = FRAME_ACK, .number = 1, .sum = 1};
	if (_i == 0)
		f.sum = 1000; /* frames that were never sent */
	else if (_i == 1)
		f.number = 2; /* one was left out */
	else if (_i == 2)
		f.type = FRAME_DATA;
	frame_put(head, &f, &b.back);
	if (_i == 3)
		head[40] ^= 1; /* forged */
	send(b.fd, head, sizeof head, 0);
	RIG_WAIT(r, (OPS->path_state(b.path, &s), s.errors));
	ck_assert_uint_eq(l.bytes, 0);
	still_works(r);
	lease_end(&l);
	bad_end_free(&b);
	rig_free(r);
}

TEST(a_receiver_without_the_secret_gets_nothing)
{
	struct bad_end b;
	struct path_state s;
	unsigned char hello[HELLO_BYTES], welcome[WELCOME_BYTES], wrong[SECRET_BYTES] = {9};
	rig_random = 62;
	struct rig *r = rig_new(&rig_opts, &rig_opts, 1, 16, 0);
	bad_end_new(r, &b);
	fcntl(b.listener, F_SETFL, O_NONBLOCK);
	RIG_WAIT(r, (b.fd = accept(b.listener, NULL, NULL)) >= 0);
	ck_assert_uint_eq(hear(r, b.fd, hello, HELLO_BYTES), HELLO_BYTES);
	welcome_put(welcome, hello, wrong, wrong);
	send(b.fd, welcome, WELCOME_BYTES, 0);
	ck_assert_uint_eq(hear(r, b.fd, welcome, 1), 0);
	OPS->path_state(b.path, &s);
	ck_assert_uint_eq(s.errors, 1);
	ck_assert_int_eq(b.up, 0);
	bad_end_free(&b);
	rig_free(r);
}

TEST_START(quiet)
{
	log_set_level("error");
}
