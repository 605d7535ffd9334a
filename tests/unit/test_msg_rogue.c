/* test_msg_rogue.c - one side of a link is a raw ZeroMQ socket that breaks the rules: numbers from
 * nowhere, storms of HELLO, silence where an acknowledgement is due, bodies that want all
 * memory. Nothing that it does may be heard twice, be taken for an acknowledgement, grow without
 * bound, or end the other side. */
/* run: parser */
#include "msg_rogue.h"

TEST_CASE("rogues", .timeout_s = 120, .setup = base_setup, .teardown = base_teardown);

/* Acknowledges what was never sent, claims numbers near the end of all numbers, asks for
 * everything again and again: nothing is lost, nothing grows, nothing is heard. */
TEST(numbers_from_nowhere)
{
	struct side a;
	struct rogue g;
	struct chan_counts counts;
	Pds__Ack ack = PDS__ACK__INIT;
	Pds__Peers peers = PDS__PEERS__INIT;
	with_rogue(&a, &g, pair_opts(0), 0);
	for (int i = 0; i < 10; i++)
		ck_assert_int_eq(say_type(&a, MSG_KV_DENY), 0);
	static const uint64_t numbers[] = {11, 1000, UINT64_MAX, UINT64_MAX - 1, 1ull << 63};
	for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
		rogue_send(&g, "rogue", MSG_ACK, 0, numbers[i], &ack.base);
		rogue_send(&g, "rogue", MSG_PEERS, numbers[i], 0, &peers.base);
	}
	pump_ms(base, 50);
	rogue_read(&g);
	ck_assert_uint_eq(a.total, 0);
	g.again = 0;
	ack.missing = 1;
	uint64_t from = clock_us();
	for (int i = 0; i < 5000; i++)
		rogue_send(&g, "rogue", MSG_ACK, 0, 0, &ack.base);
	for (int i = 0; i < 30; i++) {
		pump_ms(base, 10);
		rogue_read(&g);
	}
	uint64_t times = (clock_us() - from) / 20000 + 3; /* the window at most once in 20 ms */
	ck_assert_msg(g.again >= 10 && g.again <= 10 * times, "%llu sent again in %llu times 20 ms",
	              (unsigned long long)g.again, (unsigned long long)times);
	rogue_send(&g, "rogue", MSG_ACK, 0, 10, &ack.base);
	pump_ms(base, 50);
	chan_counts(a.c, &counts);
	rogue_read(&g);
	g.again = 0;
	rogue_send(&g, "rogue", MSG_ACK, 0, 0, &ack.base);
	pump_ms(base, 100);
	rogue_read(&g);
	/* all ten were acknowledged in the end */
	ck_assert_uint_eq(g.again, 0);
	without_rogue(&a, &g);
}

/* It talks, but acknowledges nothing: after a while it counts as down, and what was sent to it
 * stayed bounded. */
TEST(never_acknowledges)
{
	struct side a;
	struct rogue g;
	Pds__Heartbeat hb = PDS__HEARTBEAT__INIT;
	struct chan_opts o = pair_opts(40000);
	o.silence_us = 400000;
	o.window_messages = 64;
	with_rogue(&a, &g, o, 0);
	while (say_type(&a, MSG_KV_DENY) == 0)
		;
	for (uint64_t end = clock_us() + 60000000; !a.downs; pump_ms(base, 20)) {
		ck_assert_msg(clock_us() < end, "it stays up for ever");
		rogue_send(&g, "rogue", MSG_HEARTBEAT, 0, 0, &hb.base);
		rogue_read(&g);
	}
	ck_assert_str_eq(a.why, "it acknowledges nothing");
	ck_assert_uint_ge(g.again, 64 * 2);
	ck_assert_uint_le(g.again, 64 * 100);
	without_rogue(&a, &g);
}

/* Names without end, HELLO after HELLO, a HELLO of half a megabyte, one that bears no silence at
 * all, one under our own name. */
TEST(hello_storm)
{
	struct side a;
	struct rogue g;
	struct chan_counts counts;
	with_rogue(&a, &g, pair_opts(0), 1);
	pump_ms(base, 500);
	chan_counts(a.c, &counts);
	/* it bears 1 ms of silence: a beat each 20 ms all the same */
	ck_assert_uint_le(counts.sent, 60);
	for (int i = 0; i < 2000; i++) {
		char name[64];
		snprintf(name, sizeof name, "stranger-%d", i);
		rogue_hello(&g, name, 1, 0);
		if (i % 100 == 0)
			pump_ms(base, 5);
	}
	Pds__Hello h = PDS__HELLO__INIT;
	h.nth = 9;
	h.program = mem_alloc(100000);
	memset(h.program, 'x', 99999);
	h.program[99999] = 0;
	rogue_send(&g, "fat", MSG_HELLO, 0, 0, &h.base);
	h.program[2000] = 0;
	rogue_send(&g, "long", MSG_HELLO, 0, 0, &h.base);
	free(h.program);
	rogue_hello(&g, "two\nlines", 1, 0);
	rogue_hello(&g, "bound", 1, 0);
	pump_ms(base, 300);
	chan_counts(a.c, &counts);
	ck_assert_uint_le(counts.peers_up, 4); /* peers_max */
	ck_assert_uint_eq(counts.bad, 3);
	ck_assert_uint_le(a.ups, 4);
	without_rogue(&a, &g);
}

/* A late or repeated HELLO of this life neither resets the link nor acknowledges for it. */
TEST(hello_again_and_late)
{
	struct side a;
	struct rogue g;
	Pds__Hello h = PDS__HELLO__INIT;
	Pds__Peers peers = PDS__PEERS__INIT;
	with_rogue(&a, &g, pair_opts(0), 0);
	rogue_send(&g, "rogue", MSG_PEERS, 1, 0, &peers.base);
	for (int i = 0; i < 5; i++)
		say_type(&a, MSG_KV_DENY);
	pump_ms(base, 30);
	for (int i = 0; i < 5; i++)
		rogue_hello(&g, "rogue", 1, 0);
	rogue_describe(&h, NULL);
	h.nth = 1;
	h.knows_epoch = g.their_epoch;
	h.link = g.link;
	h.received = 4;
	rogue_send(&g, "rogue", MSG_HELLO, 0, 0, &h.base);
	pump_ms(base, 50);
	rogue_read(&g);
	ck_assert_uint_eq(a.downs, 0);
	g.again = 0;
	Pds__Ack ack = PDS__ACK__INIT;
	ack.missing = 1;
	rogue_send(&g, "rogue", MSG_ACK, 0, 0, &ack.base);
	pump_ms(base, 100);
	rogue_read(&g);
	ck_assert_uint_eq(g.again, 5); /* none was taken for acknowledged */
	/* what belongs to another link, or to the link of another life, acknowledges nothing and is not
	 * heard */
	for (int life = 0; life < 2; life++) {
		uint64_t *other = life ? &g.their_epoch : &g.link;
		++*other;
		rogue_send(&g, "rogue", MSG_ACK, 0, 5, &ack.base);
		rogue_send(&g, "rogue", MSG_PEERS, 2, 5, &peers.base);
		--*other;
	}
	g.again = 0;
	pump_ms(base, 50);
	rogue_send(&g, "rogue", MSG_ACK, 0, 0, &ack.base);
	pump_ms(base, 100);
	rogue_read(&g);
	ck_assert_uint_eq(g.again, 5);
	ck_assert_uint_eq(a.total, 1);
	without_rogue(&a, &g);
}

/* HELLO again without a link, since WELCOME was lost, goes on with the link on which nothing has
 * come; what it claims to have received is not of that link. */
TEST(hello_without_a_link_acknowledges_nothing)
{
	struct side a;
	struct rogue g;
	Pds__Hello h = PDS__HELLO__INIT;
	with_rogue(&a, &g, pair_opts(5000000), 0);
	for (int i = 0; i < 5; i++)
		say_type(&a, MSG_KV_DENY);
	pump_ms(base, 30);
	rogue_read(&g);
	g.again = 0;
	rogue_describe(&h, NULL);
	h.nth = 2;
	h.received = 4;
	rogue_send(&g, "rogue", MSG_HELLO, 0, 0, &h.base);
	/* at once, long before the timer sends again what is not acknowledged */
	for (uint64_t end = clock_us() + 3000000; g.again < 5 && clock_us() < end; rogue_read(&g))
		pump_ms(base, 5);
	ck_assert_uint_eq(g.again, 5);
	ck_assert_uint_eq(a.downs, 0);
	without_rogue(&a, &g);
}

/* A process that stood still finds as many HELLOs of a peer as that sent meanwhile. What it owes
 * the peer is on the way to it on this connection, and is not sent for each of them. */
TEST(hellos_that_have_queued)
{
	struct side a;
	struct rogue g;
	with_rogue(&a, &g, pair_opts(5000000), 0);
	for (int i = 0; i < 5; i++)
		say_type(&a, MSG_KV_DENY);
	pump_ms(base, 30);
	rogue_read(&g);
	g.again = 0;
	for (uint64_t nth = 2; nth < 200; nth++)
		rogue_hello(&g, "rogue", nth, 0);
	pump_ms(base, 500);
	rogue_read(&g);
	ck_assert_uint_le(g.again, 10);
	ck_assert_uint_eq(a.downs, 0);
	without_rogue(&a, &g);
}

TEST(epochs_are_bounded)
{
	for (int beyond = 0; beyond < 2; beyond++) {
		Pds__Envelope e = PDS__ENVELOPE__INIT;
		unsigned char head[256];
		struct msg_in m;
		struct err err = {0};
		e.version = PROTOCOL_VERSION;
		e.type = MSG_HEARTBEAT;
		e.sender = (char *)"p";
		e.epoch = (uint64_t)INT64_MAX + (uint64_t)beyond;
		size_t n = pds__envelope__pack(&e, head);
		ck_assert_int_eq(msg_decode(head, n, NULL, 0, &m, &err), beyond ? ERR_CORRUPT : 0);
		msg_in_fini(&m);
	}
}

TEST(bodies_are_bounded)
{
	Pds__Envelope e = PDS__ENVELOPE__INIT;
	unsigned char head[256];
	size_t len = 24u << 20;
	unsigned char *body = mem_alloc(len);
	struct msg_in m;
	struct err err = {0};
	e.version = PROTOCOL_VERSION;
	e.type = MSG_REQUEST_TOKENS;
	e.sender = (char *)"p";
	for (size_t i = 0; i < len; i += 2)
		body[i] = 0x0a, body[i + 1] = 0; /* twelve million empty sequences */
	size_t n = pds__envelope__pack(&e, head);
	ck_assert_int_eq(msg_decode(head, n, body, len, &m, &err), ERR_CORRUPT);
	ck_assert_ptr_nonnull(strstr(err.text, "does not decode"));
	msg_in_fini(&m);
	e.type = MSG_HELLO;
	/* 16383 bytes of a field that nobody knows: kept with a HELLO as long as it */
	memcpy(body, "\xa2\x06\xff\x7f", 4);
	for (len = 4 + 16383; len > 4; len -= 16383) {
		n = pds__envelope__pack(&e, head);
		ck_assert_int_eq(msg_decode(head, n, body, len, &m, &err), ERR_CORRUPT);
		ck_assert_ptr_nonnull(strstr(err.text, "allowed 16384"));
		msg_in_fini(&m);
	}
	free(body);
}

static unsigned ctl_asked;
static int count_ctl(void *arg, struct chan_asked *asked, const struct process_origin *who,
                     const char *command, char *const *args, size_t n_args, char **ret_text)
{
	(void)asked;
	(void)arg;
	(void)who;
	(void)command;
	(void)args;
	(void)n_args;
	*ret_text = NULL;
	ctl_asked++;
	return 0;
}

/* Commands are taken from who connects to us (pdctl), not from a daemon that we connected to. */
TEST(commands_from_whom_we_connected_to)
{
	struct chan_opts o = pair_opts(0);
	struct chan_hooks h = {.ctl = count_ctl};
	struct chan *c;
	struct err err = {0};
	struct chan_counts counts = {0};
	struct rogue g = {.ctx = zmq_ctx_new(), .epoch = 77, .version = PROTOCOL_VERSION};
	Pds__CtlRequest q = PDS__CTL_REQUEST__INIT;
	unsigned char rid[64], rest[4096];
	int n = -1;
	o.program = "test";
	o.name = "dials";
	o.epoch = 5;
	q.command = (char *)"stop";
	g.z = zmq_socket(g.ctx, ZMQ_ROUTER);
	ck_assert_int_eq(zmq_bind(g.z, endpoint), 0);
	ck_assert_int_eq(chan_new(base, &o, &h, &c, &err), 0);
	chan_connect(c, endpoint, NULL, 1);
	for (uint64_t end = clock_us() + 30000000; n < 0; pump_ms(base, 2)) {
		ck_assert(clock_us() < end);
		n = zmq_recv(g.z, rid, sizeof rid, ZMQ_DONTWAIT); /* its HELLO */
	}
	zmq_recv(g.z, rest, sizeof rest, 0);
	zmq_recv(g.z, rest, sizeof rest, 0);
	zmq_send(g.z, rid, (size_t)n, ZMQ_SNDMORE);
	rogue_send(&g, "rogue", MSG_CTL_REQUEST, 0, 0, &q.base);
	for (uint64_t end = clock_us() + 30000000; !counts.received; chan_counts(c, &counts)) {
		ck_assert(clock_us() < end);
		pump_ms(base, 2);
	}
	ck_assert_uint_eq(ctl_asked, 0);
	chan_destroy(&c);
	rogue_close(&g);
}

/* As over TCP, where nobody watches the process: its connection tells that it has ended. */
TEST(restarted_peer_is_admitted_at_once)
{
	struct side a;
	struct rogue g, next;
	with_rogue(&a, &g, pair_opts(0), 0);
	rogue_open(&next, endpoint);
	next.epoch = g.epoch + 1;
	rogue_hello(&next, "rogue", 1, 0);
	for (uint64_t end = clock_us() + 9000000; !next.refusal[0]; rogue_read(&next)) {
		ck_assert(clock_us() < end);
		pump_ms(base, 2);
	}
	ck_assert_uint_eq(a.ups, 1);
	rogue_close(&g);
	for (uint64_t nth = 2, end = clock_us() + 9000000; !next.link; rogue_read(&next)) {
		ck_assert_msg(clock_us() < end, "%s", next.refusal); /* silence_us / 2 is 10 s */
		rogue_hello(&next, "rogue", nth++, 0);
		pump_ms(base, 20);
	}
	ck_assert_uint_eq(a.ups, 2);
	ck_assert_str_eq(a.why, "restarted");
	without_rogue(&a, &next);
}

TEST_START(quiet)
{
	log_set_level(getenv("MSG_LOG") ? getenv("MSG_LOG") : "error");
}
