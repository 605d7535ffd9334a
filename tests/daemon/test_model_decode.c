/* test_model_decode.c - pddecoded under the event sequences of the protocol's models
 * (tests/model/README.md), where test_decode_daemon.c does not play them already: each test has the
 * name of the line that breaks without its rule. The late writes are real: a process that has
 * the worker's memory is stopped (SIGSTOP) with a lease open, and writes when it goes on. */
/* run: waits minutes */
#include "decode_world.h"

/* --- the writer ---------------------------------------------------------- */

/* The lease ends before any messager has heard of its task: its blocks are somebody else's when
 * the question comes, and the question is refused. */
TEST_LOOP(s_ask_only_restarted, 0, 2)
{
	int expires = _i;
	world_begin("kv_blocks=8", expires ? SHORT_LEASE : NULL);
	Pds__Lease one = *reserve(1, tokens_of(100))->lease;
	if (expires)
		await(ROUTER, MSG_REQUEST_FAILED, 1);
	else
		say_cancel(PREFILL, 1);
	say_reserve(2, 1, tokens_of(101));
	const Pds__Grant *two = WANT(Pds__Grant, PREFILL, KV_GRANT, 2);
	ck_assert_uint_eq(two->n_blocks, 7);
	opened(1, one, 1); /* a messager that was never restarted, and late */
	NONE(MESSAGER, LEASE_REVOKE, 1);
	say_cancel(ROUTER, 2);
	world_end();
}

/* [m6] The next life becomes the writer only after the end of the one before, which then frees
 * nothing of it any more. */
TEST(m6_any_end_of_file)
{
	D.apart = 1;
	world_begin("kv_blocks=8");
	Pds__Lease l = written(1, tokens_of(40));
	link_again(MESSAGER, MESSAGER->epoch + 1);
	opened(1, l, 1); /* the life before has the memory, and may write */
	process_kill(&D.child);
	door_open();
	UNTIL(W.attached >= 0);
	opened(1, l, 0);
	say_cancel(ROUTER, 1);
	await(MESSAGER, MSG_LEASE_REVOKE, 1);
	pump_for(300000);
	ck_assert_uint_eq(kv_count("leased"), 3);
	ck_assert(requests_are("\"state\":\"quarantine\""));
	say_revoked(MESSAGER, 1, l);
	world_end();
}

static void late_begin(const Pds__Grant *g)
{
	late->n = (uint32_t)g->n_blocks;
	for (uint32_t i = 0; i < late->n; i++)
		late->blocks[i] = g->blocks[i];
	late->on = 1;
	kill(D.child, SIGUSR2);
}

/* It writes no more from here on. */
static void late_end(void)
{
	late->on = 0;
	UNTIL(!late->busy);
}

static void late_rounds(uint32_t n)
{
	uint32_t from = late->rounds;
	UNTIL(late->rounds - from >= n);
}

/* The tokens of the short prompt's answer, as they are when nobody disturbs. */
static struct answer undisturbed(uint32_t n, uint32_t tokens)
{
	say_submit(n, short_of(tokens));
	expect_length(n, tokens);
	return D.answer[n];
}

/* How the lease is given up while its writer is stopped, and how the fence comes. */
static const struct {
	const char *what;
	int expires; /* the lease expires; else it is cancelled */
	/* the stopped process is killed; else it goes on, writes late, and then acknowledges */
	int killed;
} stopped[] = {{"cancelled, goes on", 0, 0},
               {"cancelled, killed", 0, 1},
               {"expired, goes on", 1, 0},
               {"expired, killed", 1, 1}};

/* A stopped messager keeps the lease's blocks in quarantine, for as long as it is stopped; another
 * request that needs them waits. What it writes when it goes on lands in them alone; freed by
 * the fence, they serve the one that waited, whose tokens are right. */
TEST_LOOP(m1_free_by_timer_a_stopped_writer, 0, COUNT(stopped))
{
	int expires = stopped[_i].expires;
	D.apart = 1;
	world_begin("kv_blocks=8", expires ? SHORT_LEASE : NULL);
	struct answer want = undisturbed(1, 100); /* 107 tokens: 7 blocks */
	const Pds__Grant *g = reserve(2, tokens_of(100));
	Pds__Lease l = *g->lease;
	opened(2, l, 0);
	kill(D.child, SIGSTOP);
	if (expires)
		await(ROUTER, MSG_REQUEST_FAILED, 2);
	else
		say_cancel(ROUTER, 2);
	await(MESSAGER, MSG_LEASE_REVOKE, 2);
	late_begin(g); /* it will, when it goes on */
	say_submit(3, short_of(100));
	pump_for(expires ? 2 * SHORT_MS * 1000u : 300000);
	ck_assert_uint_eq(kv_count("leased"), 7);
	ck_assert_int_eq(D.answer[3].finish, PDS__FINISH__FINISH_NONE);
	ck_assert_uint_eq(late->rounds, 0);
	if (stopped[_i].killed) {
		process_kill(&D.child);
	} else {
		kill(D.child, SIGCONT);
		late_rounds(50);
		ck_assert_uint_eq(kv_count("leased"), 7);
		late_end();
		say_revoked(MESSAGER, 2, l);
	}
	expect_tokens(3, want.id, want.n);
	world_end();
}

/* The writer is the messager for another host's prefill worker, whose handle is open until the
 * messager says that it is not: what arrives after the cancel lands in blocks that nobody else
 * has. */
TEST(rm9_no_quarantine)
{
	D.apart = 1;
	world_begin("kv_blocks=8");
	struct answer want = undisturbed(1, 100); /* 107 tokens: 7 blocks */
	const Pds__Grant *g = reserve(2, tokens_of(100));
	Pds__Lease l = *g->lease;
	opened(2, l, 0);
	late_begin(g);
	late_rounds(1);
	say_cancel(ROUTER, 2);
	await(MESSAGER, MSG_LEASE_REVOKE, 2);
	say_submit(3, short_of(100));
	late_rounds(50);
	settle(ROUTER);
	ck_assert_uint_eq(kv_count("leased"), 7);
	ck_assert(requests_are("\"state\":\"quarantine\""));
	ck_assert_int_eq(D.answer[3].finish, PDS__FINISH__FINISH_NONE);
	late_end();
	say_revoked(MESSAGER, 2, l);
	expect_tokens(3, want.id, want.n);
	world_end();
}

/* The messager's connection has ended and its next life is up, but its process lives: a network
 * card may still write for it. The next life gets no memory, and so cannot open a lease, until the
 * process has ended. */
TEST(rm22_next_life_while_the_last_one_lives)
{
	D.apart = 1;
	world_begin("kv_blocks=8");
	written(1, tokens_of(40));
	say_cancel(ROUTER, 1);
	await(MESSAGER, MSG_LEASE_REVOKE, 1);
	kill(D.child, SIGUSR1);
	pump_for(100000);
	door_open();
	link_again(MESSAGER, MESSAGER->epoch + 1);
	pump_for(300000); /* the worker tries each 50 ms */
	ck_assert_int_lt(W.attached, 0);
	ck_assert_uint_eq(kv_count("leased"), 3);
	process_kill(&D.child);
	UNTIL(W.attached >= 0 && kv_count("leased") == 0);
	Pds__Lease l = written(2, tokens_of(41));
	say_cancel(ROUTER, 2);
	revoked(2, l);
	world_end();
}

/* While it writes into its quarantined blocks others decode beside it, each token as
 * undisturbed. */
TEST(late_writes_beside_running_sequences)
{
	D.apart = 1;
	world_begin("kv_blocks=100");
	struct answer want = undisturbed(1, 480);
	const Pds__Grant *g = reserve(2, tokens_of(100));
	opened(2, *g->lease, 0);
	kill(D.child, SIGSTOP);
	say_cancel(ROUTER, 2);
	await(MESSAGER, MSG_LEASE_REVOKE, 2);
	late_begin(g);
	kill(D.child, SIGCONT);
	late_rounds(5);
	for (uint32_t n = 3; n < 6; n++)
		say_submit(n, short_of(480));
	for (uint32_t n = 3; n < 6; n++)
		expect_tokens(n, want.id, want.n);
	late_rounds(1);
	late_end();
	say_revoked(MESSAGER, 2, *g->lease);
	world_end();
}

/* The word to the writer does not fit the link's window: it is said later, not lost, or its
 * blocks would stay for ever. */
TEST(revocations_survive_a_full_window)
{
	enum { N = 40 };
	Pds__Lease l[N];
	world_begin("kv_blocks=80", "window_messages=16");
	for (uint32_t n = 0; n < N; n++)
		l[n] = written(n + 1, tokens_of(7 + n % 5));
	settle(MESSAGER);
	side_close(ROUTER); /* all are given up in one moment */
	for (uint32_t n = 0; n < N; n++)
		await(MESSAGER, MSG_LEASE_REVOKE, n + 1);
	for (uint32_t n = 0; n < N; n++)
		say_revoked(MESSAGER, n + 1, l[n]);
	UNTIL(kv_count("leased") == 0);
	world_end();
}

/* --- halves of another lease --------------------------------------------- */

/* D restarts; its next life gives the same lease id and generation for the request that is reserved
 * again. What the old lease's messager and prefill worker say is of the old epoch. */
TEST(m12_no_lease_epoch_at_the_next_life)
{
	world_begin("kv_blocks=8");
	learn_kv(1);
	Pds__Lease old = written(2, short_of(8));
	daemon_restart();
	const Pds__Grant *g = reserve(2, short_of(8));
	ck_assert_uint_eq(g->lease->id, old.id);
	ck_assert_uint_eq(g->lease->generation, old.generation);
	ck_assert_uint_ne(g->lease->epoch, old.epoch);
	say_ready(MESSAGER, 2, old);
	say_first(PREFILL, 2, old, 9);
	settle(MESSAGER);
	settle(PREFILL);
	settle(ROUTER);
	ck_assert(requests_are("\"state\":\"leased\""));
	ck_assert_uint_eq(D.answer[2].n, 0);
	opened(2, old, 1);
	opened(2, *g->lease, 0);
	fill_kv(g);
	ready(2, *g->lease);
	first(2, *g->lease, short_answer[0]);
	expect_answer(2, 8);
	world_end();
}

/* Both halves of an expired lease come when its blocks are another lease's: acknowledged, and
 * nobody joins. */
TEST(late_halves_of_an_expired_lease)
{
	world_begin("kv_blocks=8", SHORT_LEASE);
	learn_kv(1);
	Pds__Lease old = *reserve(2, tokens_of(100))->lease;
	await(ROUTER, MSG_REQUEST_FAILED, 2);
	const Pds__Grant *g = reserve(3, tokens_of(101));
	ck_assert_uint_eq(g->n_blocks, 7);
	ready(2, old);
	first(2, old, short_answer[0]);
	ready(3, old); /* and in the other's name */
	say_first(PREFILL, 3, old, short_answer[0]);
	settle(PREFILL);
	settle(ROUTER);
	ck_assert_uint_eq(D.answer[2].n + D.answer[3].n, 0);
	await(ROUTER, MSG_REQUEST_FAILED, 3);
	world_end();
}

/* --- after the join ------------------------------------------------------ */

/* P gives the attempt up when D has joined already (the messager was stopped before KV_SENT, or P
 * ends). The router holds to D then, so D holds to it: P's cancel counts for nothing any more,
 * the router's still does. */
TEST(m22_p_cancels_the_joined)
{
	world_begin("kv_blocks=40");
	learn_kv(1);
	Pds__Lease l = filled(2, 480);
	ready(2, l);
	daemon_stop(); /* first token and cancel come together */
	say_first(PREFILL, 2, l, short_answer[0]);
	say_cancel(PREFILL, 2);
	pump_for(20000);
	daemon_go_on();
	expect_length(2, 480);
	NONE(ROUTER, REQUEST_FAILED, 2);
	world_end();
}
