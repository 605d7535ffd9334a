/* test_decode_daemon.c - pddecoded as a process: reservations, leases, the join and the fence, as
 * the others of the protocol see them. The names in brackets are the rules of proto/PROTOCOL.md
 * and the counterexamples of the model that stand behind them. */
/* run: waits long */
#include "decode_world.h"

/* --- reservations -------------------------------------------------------- */

TEST(reserve_twice)
{
	world_begin("kv_blocks=8");
	const Pds__Grant *a = reserve(1, tokens_of(40)), *b = reserve(1, tokens_of(40));
	ck_assert_uint_eq(a->n_blocks, 3);
	ck_assert_uint_eq(a->cached_tokens, 0);
	ck_assert_uint_eq(a->lease->epoch, W.epoch);
	ck_assert_uint_eq(a->lease_us, LEASE_MS * 1000u);
	ck_assert_uint_eq(a->lease->id, b->lease->id);
	ck_assert_uint_eq(a->lease->generation, b->lease->generation);
	ck_assert_uint_eq(b->n_blocks, 3);
	ck_assert_int_eq(memcmp(a->blocks, b->blocks, 3 * sizeof *a->blocks), 0);
	ck_assert_uint_eq(kv_count("leased"), 3);
	say_reserve(2, 1, tokens_of(100));
	ck_assert_uint_eq(WANT(Pds__Queued, PREFILL, KV_QUEUED, 2)->position, 1);
	say_reserve(2, 1, tokens_of(100));
	ck_assert_uint_eq(WANT(Pds__Queued, PREFILL, KV_QUEUED, 2)->position, 1);
	say_cancel(ROUTER, 2);
	say_cancel(PREFILL, 1);
	world_end();
}

TEST_LOOP(m21_no_tombstone_no_expiry, 0, 2)
{
	static struct side *const who[] = {ROUTER, PREFILL};
	world_begin("kv_blocks=8");
	say_cancel(who[_i], 1);
	settle(who[_i]);
	say_reserve(1, 1, tokens_of(40));
	ck_assert_int_eq(WANT(Pds__Deny, PREFILL, KV_DENY, 1)->fault, PDS__FAULT__FAULT_LEASE_LOST);
	ck_assert_uint_eq(kv_count("leased"), 0);
	say_reserve(1, 2, tokens_of(40)); /* another attempt is another matter */
	WANT(Pds__Grant, PREFILL, KV_GRANT, 1);
	struct msg_head h = {{7, 1}, 2, 0};
	Pds__Cancel c = PDS__CANCEL__INIT;
	ck_assert_int_eq(chan_send(ROUTER->c, ROUTER->p, MSG_REQUEST_CANCEL, &h, &c.base), 0);
	world_end();
}

TEST(reserve_after_the_end)
{
	world_begin("kv_blocks=8");
	reserve(1, tokens_of(40));
	say_cancel(PREFILL, 1);
	say_reserve(1, 1, tokens_of(40));
	ck_assert_int_eq(WANT(Pds__Deny, PREFILL, KV_DENY, 1)->fault, PDS__FAULT__FAULT_LEASE_LOST);
	world_end();
}

static const uint32_t vocab_end[] = {5, 319, 320};
static const struct {
	const char *what;
	const uint32_t *tokens;
	uint32_t n;
	Pds__Fault want;
} refusals[] = {
	/* the next token is in a ninth block */
	{"larger than the pool", long_tokens, 128, PDS__FAULT__FAULT_TOO_LARGE},
	{"much larger than the pool", long_tokens, 511, PDS__FAULT__FAULT_TOO_LARGE},
	{"as long as the context", long_tokens, 512, PDS__FAULT__FAULT_INVALID},
	{"longer than the context", long_tokens, 1000, PDS__FAULT__FAULT_INVALID},
	{"a token outside the vocabulary", vocab_end, 3, PDS__FAULT__FAULT_INVALID},
};

TEST_LOOP(reserve_refused, 0, COUNT(refusals))
{
	world_begin("kv_blocks=8");
	tokens_of(0);
	struct prompt p = {.tokens = refusals[_i].tokens, .n = refusals[_i].n, .max_tokens = 8};
	say_reserve(1, 1, p);
	const Pds__Deny *d = WANT(Pds__Deny, PREFILL, KV_DENY, 1);
	ck_assert_msg(d->fault == refusals[_i].want, "%s: fault %d, %s", refusals[_i].what, d->fault,
	              d->text);
	ck_assert_int_ne(d->text[0], 0);
	world_end();
}

TEST(queue_in_order)
{
	world_begin("kv_blocks=8");
	reserve(1, tokens_of(100)); /* 7 of 8 blocks */
	say_reserve(2, 1, tokens_of(40));
	ck_assert_uint_eq(WANT(Pds__Queued, PREFILL, KV_QUEUED, 2)->position, 1);
	say_reserve(3, 1, tokens_of(7)); /* fits, but is not the first */
	ck_assert_uint_eq(WANT(Pds__Queued, PREFILL, KV_QUEUED, 3)->position, 2);
	say_reserve(4, 1, tokens_of(7));
	ck_assert_uint_eq(WANT(Pds__Queued, PREFILL, KV_QUEUED, 4)->position, 3);
	ck_assert_uint_eq(WANT(Pds__Queued, PREFILL, KV_QUEUED, 4)->position,
	                  3);  /* told again, each second */
	say_cancel(ROUTER, 3); /* one that waits goes */
	settle(ROUTER);
	while (WANT(Pds__Queued, PREFILL, KV_QUEUED, 4)->position != 2)
		;
	NONE(PREFILL, KV_GRANT, 2);
	say_cancel(ROUTER, 1);
	uint64_t two = WANT(Pds__Grant, PREFILL, KV_GRANT, 2)->lease->id;
	uint64_t four = WANT(Pds__Grant, PREFILL, KV_GRANT, 4)->lease->id;
	ck_assert_uint_lt(two, four);
	ck_assert_uint_eq(kv_count("leased"), 4);
	NONE(PREFILL, KV_GRANT, 3);
	say_cancel(ROUTER, 2);
	say_cancel(ROUTER, 4);
	world_end();
}

/* Blocks of another model, other numbers or another layout are no use here. */
TEST_LOOP(prefill_of_another_kind_refused, 0, 3)
{
	world_begin("kv_blocks=8");
	char **const field[] = {&W.info->model_fingerprint, &W.info->numerics, &W.info->layout};
	/* the link logs each refusal as an error: no surprise here */
	char *right = *field[_i];
	side_close(PREFILL);
	*field[_i] = "another";
	side_open(PREFILL);
	pump_for(300000);
	ck_assert_ptr_null(PREFILL->p);
	side_close(PREFILL);
	*field[_i] = right;
	side_open(PREFILL);
	UNTIL(PREFILL->p);
	world_end();
}

/* --- join ---------------------------------------------------------------- */

enum half { READY, FIRST };

static void say_half(enum half which, uint32_t n, Pds__Lease l)
{
	if (which == READY)
		ready(n, l);
	else
		first(n, l, short_answer[0]);
}

/* Whatever comes first and how often: acknowledged each time, joined once, the first token
 * repeated with its index, then the rest. */
static const struct {
	const char *what;
	enum half said[6];
	unsigned n;
} orders[] = {
	{"KV_READY first", {READY, FIRST}, 2},
	{"first token first", {FIRST, READY}, 2},
	{"KV_READY repeated", {READY, READY, FIRST, READY}, 4},
	{"first token repeated", {FIRST, FIRST, READY, FIRST}, 4},
	{"both repeated", {READY, FIRST, READY, FIRST, FIRST, READY}, 6},
};

TEST_LOOP(joins_once, 0, COUNT(orders))
{
	world_begin("kv_blocks=8");
	learn_kv(1);
	Pds__Lease l = filled(2, 8);
	for (unsigned i = 0; i < orders[_i].n; i++)
		say_half(orders[_i].said[i], 2, l);
	expect_answer(2, 8);
	for (unsigned i = 0; i < 2; i++) /* and after the end */
		say_half(orders[_i].said[i], 2, l);
	settle(ROUTER);
	NONE(ROUTER, REQUEST_FAILED, 2);
	ck_assert_uint_eq(D.answer[2].n, 8);
	world_end();
}

/* Repeated at once after the half that joins, while the sequence runs. */
TEST_LOOP(joins_once_while_active, READY, FIRST + 1)
{
	enum half last = (enum half)_i;
	world_begin("kv_blocks=8");
	learn_kv(1);
	Pds__Lease l = filled(2, 100);
	say_half(last == READY ? FIRST : READY, 2, l);
	daemon_stop(); /* all of them come together */
	for (int i = 0; i < 4; i++)
		if (last == READY)
			say_ready(MESSAGER, 2, l);
		else
			say_first(PREFILL, 2, l, short_answer[0]);
	pump_for(20000);
	daemon_go_on();
	for (int i = 0; i < 4; i++)
		await(last == READY ? MESSAGER : PREFILL,
		      last == READY ? MSG_KV_READY_ACK : MSG_REQUEST_FIRST_TOKEN_ACK, 2);
	expect_length(2, 100);
	ck_assert_uint_eq(D.answer[2].prefill_us, 1002);
	world_end();
}

TEST_LOOP(m10_join_on_first_token, READY, FIRST + 1)
{
	world_begin("kv_blocks=8");
	Pds__Lease l = written(1, short_of(8));
	for (int i = 0; i < 3; i++)
		say_half((enum half)_i, 1, l);
	settle(ROUTER);
	ck_assert(requests_are("\"state\":\"leased\""));
	ck_assert_uint_eq(D.answer[1].n, 0);
	say_cancel(ROUTER, 1);
	revoked(1, l);
	world_end();
}

/* [m12] What names another lease, of this life or another, is not for this one. */
static const struct {
	const char *what;
	enum half half;
	int64_t id, epoch, generation; /* added */
} strangers[] = {
	{"KV_READY, other id", READY, 1, 0, 0},
	{"KV_READY, other generation", READY, 0, 0, 1},
	{"KV_READY, earlier life", READY, 0, -1, 0},
	{"KV_READY, later life", READY, 0, 1, 0},
	{"first token, other id", FIRST, 1, 0, 0},
	{"first token, other generation", FIRST, 0, 0, 1},
	{"first token, earlier life", FIRST, 0, -1, 0},
	{"first token, later life", FIRST, 0, 1, 0},
};

TEST_LOOP(m12_no_lease_epoch, 0, COUNT(strangers))
{
	world_begin("kv_blocks=8");
	learn_kv(1);
	const Pds__Lease right = filled(2, 4);
	Pds__Lease l = right;
	enum half half = strangers[_i].half;
	say_half(half == READY ? FIRST : READY, 2, l);
	l.id += (uint64_t)strangers[_i].id;
	l.epoch += (uint64_t)strangers[_i].epoch;
	l.generation += (uint64_t)strangers[_i].generation;
	if (half == READY)
		say_ready(MESSAGER, 2, l);
	else
		say_first(PREFILL, 2, l, 9);
	settle(MESSAGER);
	settle(PREFILL);
	settle(ROUTER);
	/* acknowledged, or dropped when it is for another life */
	take(MESSAGER, MSG_KV_READY_ACK, 2);
	take(PREFILL, MSG_REQUEST_FIRST_TOKEN_ACK, 2);
	ck_assert_msg(requests_are("\"state\":\"leased\""), "%s", strangers[_i].what);
	ck_assert_uint_eq(D.answer[2].n, 0);
	say_half(half, 2, right); /* the right one still does */
	expect_answer(2, 4);
	world_end();
}

TEST(only_the_messager_says_ready)
{
	world_begin("kv_blocks=8");
	const Pds__Grant *g = reserve(1, short_of(4));
	first(1, *g->lease, short_answer[0]);
	say_ready(PREFILL, 1, *g->lease);
	settle(PREFILL);
	settle(ROUTER);
	ck_assert(requests_are("\"state\":\"leased\""));
	ck_assert_uint_eq(D.answer[1].n, 0);
	say_cancel(ROUTER, 1);
	world_end();
}

TEST(first_token_outside_the_vocabulary)
{
	world_begin("kv_blocks=8");
	const Pds__Grant *g = reserve(1, short_of(4));
	say_first(PREFILL, 1, *g->lease, 320);
	ck_assert_int_eq(WANT(Pds__Failed, ROUTER, REQUEST_FAILED, 1)->fault,
	                 PDS__FAULT__FAULT_LEASE_LOST);
	ready(1, *g->lease);
	world_end();
}

/* --- writers ------------------------------------------------------------- */

TEST(lease_open)
{
	world_begin("kv_blocks=8");
	const Pds__Grant *g = reserve(1, short_of(4)), *gone = reserve(2, short_of(4));
	Pds__Lease l = *g->lease;
	opened(3, no_lease(), 1);
	l.generation++;
	opened(1, l, 1);
	l = *g->lease;
	l.epoch--;
	opened(1, l, 1);
	say_cancel(ROUTER, 2);
	settle(ROUTER);
	opened(2, *gone->lease, 1);
	opened(1, *g->lease, 0);
	opened(1, *g->lease, 0);         /* asked again */
	say_open(PREFILL, 1, *g->lease); /* no messager */
	settle(PREFILL);
	NONE(PREFILL, LEASE_OPENED, 1);
	ready(1, *g->lease);
	opened(1, *g->lease, 1); /* nothing is left to write */
	say_cancel(ROUTER, 1);
	revoked(1, *g->lease);
	world_end();
}

/* What the messager may write is what was granted: the blocks that D lacks, in order, each with the
 * generation that its control memory has for it. */
TEST_LOOP(lease_opened_names_the_blocks, 0, 2)
{
	world_begin("kv_blocks=16");
	say_submit(1, tokens_of(40)); /* 2 full blocks of it are in the prefix index then */
	expect_length(1, tokens_of(40).max_tokens);
	UNTIL(kv_count("held") == 0);
	const Pds__Grant *g = reserve(2, tokens_of(_i ? 101 : 40));
	ck_assert_uint_eq(g->cached_tokens, _i ? 0 : 32);
	say_open(MESSAGER, 2, *g->lease);
	const Pds__LeaseOpened *o = WANT(Pds__LeaseOpened, MESSAGER, LEASE_OPENED, 2);
	ck_assert_int_eq(o->refused, 0);
	ck_assert_uint_eq(o->cached_tokens, g->cached_tokens);
	ck_assert_uint_eq(o->tokens, _i ? 101 : 40);
	ck_assert_uint_eq(o->n_blocks, g->n_blocks);
	ck_assert_uint_eq(o->n_generations, g->n_blocks);
	ck_assert_uint_eq(o->n_blocks, _i ? 7 : 1);
	for (size_t i = 0; i < o->n_blocks; i++) {
		ck_assert_uint_eq(o->blocks[i], g->blocks[i]);
		ck_assert_uint_eq(o->generations[i], W.shared.region.generations[g->blocks[i]]);
		ck_assert_uint_ne(o->generations[i], 0);
	}
	ck_assert_str_eq(o->prefill, "prefill");
	ck_assert_uint_eq(o->prefill_epoch, PREFILL->epoch);
	say_cancel(ROUTER, 2);
	revoked(2, *g->lease);
	world_end();
}

static struct prompt salted(const char *salt)
{
	struct prompt p = tokens_of(40);
	p.salt = salt;
	return p;
}

/* Cached blocks are found by requests with the same cache salt alone. */
TEST_LOOP(salts_share_no_blocks, 0, 3)
{
	static const char *const salts[] = {NULL, "the cache salt of one tenant...", /* 32 with NUL */
	                                    "the cache salt of others, too.."};
	world_begin("kv_blocks=16");
	say_submit(1, salted(salts[_i])); /* 2 full blocks of it are in the prefix index then */
	expect_length(1, tokens_of(40).max_tokens);
	UNTIL(kv_count("held") == 0);
	for (uint32_t i = 0; i < 3; i++) {
		const Pds__Grant *g = reserve(2 + i, salted(salts[i]));
		ck_assert_uint_eq(g->cached_tokens, i == (uint32_t)_i ? 32 : 0);
		say_cancel(ROUTER, 2 + i);
		UNTIL(kv_count("leased") == 0);
	}
	world_end();
}

/* The ring of another prefill worker, or of another life of this one, names the lease: refused, and
 * what it says is there is not. */
TEST_LOOP(the_lease_of_another_prefill_worker, 0, 4)
{
	static const struct {
		const char *name;
		int64_t later;
	} who[] = {{"prefill-2", 0}, {"prefill", 1}, {"prefill", -1}, {"", 0}};
	world_begin("kv_blocks=8");
	Pds__Lease l = *reserve(1, short_of(4))->lease;
	Pds__LeaseOpen open = PDS__LEASE_OPEN__INIT;
	Pds__KvReady ready = PDS__KV_READY__INIT;
	open.lease = ready.lease = &l;
	open.prefill = ready.prefill = (char *)who[_i].name;
	open.prefill_epoch = ready.prefill_epoch = PREFILL->epoch + (uint64_t)who[_i].later;
	say(MESSAGER, MSG_LEASE_OPEN, 1, &open.base);
	const Pds__LeaseOpened *o = WANT(Pds__LeaseOpened, MESSAGER, LEASE_OPENED, 1);
	ck_assert_int_eq(o->refused, 1);
	ck_assert_uint_eq(o->n_blocks, 0);
	ck_assert_str_eq(o->prefill, who[_i].name);
	ck_assert_uint_eq(o->prefill_epoch, open.prefill_epoch);
	first(1, l, short_answer[0]);
	say(MESSAGER, MSG_KV_READY, 1, &ready.base);
	const Pds__KvReadyAck *a = WANT(Pds__KvReadyAck, MESSAGER, KV_READY_ACK, 1);
	ck_assert_str_eq(a->prefill, who[_i].name);
	ck_assert(requests_are("\"state\":\"leased\""));
	ck_assert_uint_eq(D.answer[1].n, 0);
	say_cancel(ROUTER, 1);
	settle(ROUTER);
	NONE(MESSAGER, LEASE_REVOKE, 1); /* nobody was registered as the writer */
	world_end();
}

/* [m14] A question that an older life asked and that comes late is refused; nor does that life's
 * word end the newer one's writing. */
TEST(m14_old_m_asks_late)
{
	world_begin("kv_blocks=8");
	Pds__Lease l = written(1, short_of(4));
	uint64_t epoch = MESSAGER->epoch;
	link_again(MESSAGER, epoch - 1);
	say_open(MESSAGER, 1, l);
	first(1, l, short_answer[0]);
	say_ready(MESSAGER, 1, l);
	await(MESSAGER, MSG_KV_READY_ACK, 1);
	settle(MESSAGER);
	ck_assert_int_eq(WANT(Pds__LeaseOpened, MESSAGER, LEASE_OPENED, 1)->refused, 1);
	ck_assert(requests_are("\"state\":\"leased\""));
	say_cancel(ROUTER, 1);
	settle(ROUTER);
	say_revoked(MESSAGER, 1, l);
	settle(MESSAGER);
	NONE(MESSAGER, LEASE_REVOKE, 1);
	ck_assert_uint_eq(kv_count("leased"), 1);
	link_again(MESSAGER, epoch);
	revoked(1, l);
	world_end();
}

/* [m20] The messager's next life asks anew; it is the writer then, and the only one that is
 * revoked. */
TEST(m20_newer_writer)
{
	D.apart = 1;
	world_begin("kv_blocks=8");
	Pds__Lease l = written(1, short_of(4));
	messager_next_life();
	opened(1, l, 0);
	say_cancel(ROUTER, 1);
	revoked(1, l);
	world_end();
}

/* [m25] [rm34] KV_READY of a lease that no messager has opened is acknowledged, and means nothing:
 * D does not join blocks that nobody can have written. Nor does it keep the lease from what
 * follows. */
TEST(m25_rm34_ready_of_a_lease_that_nobody_opened)
{
	world_begin("kv_blocks=8");
	learn_kv(1);
	const Pds__Grant *g = reserve(2, short_of(4));
	const Pds__Lease l = *g->lease;
	first(2, l, short_answer[0]);
	ready(2, l);
	settle(ROUTER);
	ck_assert(requests_are("\"state\":\"leased\""));
	ck_assert_uint_eq(D.answer[2].n, 0);
	opened(2, l, 0);
	fill_kv(g);
	ready(2, l);
	expect_answer(2, 4);
	world_end();
}

/* [m26] A messager with a link, at which D is not attached, has somebody else's memory under D's
 * name: refused, and its KV_READY means nothing. Its next life is, where D is attached. */
TEST(m26_lease_open_by_a_messager_without_our_memory)
{
	D.apart = 1;
	world_begin("kv_blocks=8");
	const Pds__Lease l = *reserve(1, short_of(4))->lease;
	link_again(MESSAGER, MESSAGER->epoch + 1); /* the life before it still has the memory */
	opened(1, l, 1);
	first(1, l, short_answer[0]);
	ready(1, l);
	settle(ROUTER);
	ck_assert(requests_are("\"state\":\"leased\""));
	ck_assert_uint_eq(D.answer[1].n, 0);
	process_kill(&D.child); /* and nobody has it */
	settle(ROUTER);
	opened(1, l, 1);
	door_open();
	UNTIL(W.attached >= 0);
	opened(1, l, 0);
	say_cancel(ROUTER, 1);
	revoked(1, l);
	world_end();
}

/* [rm35] D's messager asks, and says that the KV is there, for the messager of another host: only
 * the one that the prefill worker has named counts. */
TEST_LOOP(rm35_messager_of_another_host, 0, 4)
{
	static const struct {
		const char *opens, *ready;
		int refused;
	} who[] = {{"far", "far", 1}, {"", "far", 0}, {"messager", "far", 0}, {"far", "", 1}};
	world_begin("kv_blocks=8");
	const Pds__Lease l = *reserve(1, short_of(4))->lease;
	say_open_for(MESSAGER, who[_i].opens, 1, l);
	ck_assert_int_eq(WANT(Pds__LeaseOpened, MESSAGER, LEASE_OPENED, 1)->refused, who[_i].refused);
	first(1, l, short_answer[0]);
	say_ready_for(MESSAGER, who[_i].ready, 1, l);
	await(MESSAGER, MSG_KV_READY_ACK, 1);
	settle(ROUTER);
	ck_assert(requests_are("\"state\":\"leased\""));
	ck_assert_uint_eq(D.answer[1].n, 0);
	say_cancel(ROUTER, 1);
	if (!who[_i].refused)
		revoked(1, l);
	world_end();
}

/* [rule 4] For a slot that the life before has marked it says KV_READY once more, without
 * asking. */
TEST(s_kvsent_at_once_newer_life_says_ready)
{
	world_begin("kv_blocks=8");
	learn_kv(1);
	Pds__Lease l = filled(2, 4);
	link_again(MESSAGER, MESSAGER->epoch + 1);
	ready(2, l);
	first(2, l, short_answer[0]);
	expect_answer(2, 4);
	world_end();
}

/* [m1] Cancelled while somebody may write: revoked, and only the registered writer's word about
 * this very lease frees the blocks. */
TEST(m1_free_by_timer_revoke_waits_for_the_writer)
{
	world_begin("kv_blocks=8");
	Pds__Lease l = written(1, tokens_of(40)), other = l;
	say_cancel(ROUTER, 1);
	const Pds__LeaseRevoke *r = WANT(Pds__LeaseRevoke, MESSAGER, LEASE_REVOKE, 1);
	ck_assert_uint_eq(r->lease->id, l.id);
	ck_assert_uint_eq(r->lease->generation, l.generation);
	say_cancel(PREFILL, 1);     /* once more changes nothing */
	say_revoked(PREFILL, 1, l); /* not the writer */
	settle(PREFILL);
	other.generation++;
	say_revoked(MESSAGER, 1, other);
	other = l;
	other.epoch--;
	say_revoked(MESSAGER, 1, other);
	opened(1, l, 1); /* final */
	ready(1, l);
	first(1, l, short_answer[0]);
	ck_assert_uint_eq(kv_count("leased"), 3);
	ck_assert(requests_are("\"state\":\"quarantine\""));
	say_reserve(2, 1, tokens_of(100)); /* nobody gets them */
	WANT(Pds__Queued, PREFILL, KV_QUEUED, 2);
	NONE(MESSAGER, LEASE_REVOKE, 1);
	say_revoked(MESSAGER, 1, l);
	WANT(Pds__Grant, PREFILL, KV_GRANT, 2);
	say_revoked(MESSAGER, 1, l); /* repeated */
	say_cancel(ROUTER, 2);
	ck_assert_uint_eq(D.answer[1].n, 0);
	world_end();
}

TEST(revoke_again_over_a_new_link)
{
	world_begin("kv_blocks=8");
	Pds__Lease l = written(1, tokens_of(40));
	say_cancel(ROUTER, 1);
	await(MESSAGER, MSG_LEASE_REVOKE, 1);
	link_again(MESSAGER, MESSAGER->epoch);
	await(MESSAGER, MSG_LEASE_REVOKE, 1);
	ck_assert_uint_eq(kv_count("leased"), 3);
	say_revoked(MESSAGER, 1, l);
	world_end();
}

/* [m6, m13] The end of the connection is no fence while the process lives; its death is. What
 * that life still asks afterwards is dropped. */
TEST(m13_old_m_not_dead)
{
	D.apart = 1;
	world_begin("kv_blocks=8");
	written(1, tokens_of(40));
	say_cancel(ROUTER, 1);
	await(MESSAGER, MSG_LEASE_REVOKE, 1);
	kill(D.child, SIGUSR1);
	pump_for(200000);
	ck_assert_uint_eq(kv_count("leased"), 3);
	process_kill(&D.child);
	UNTIL(kv_count("leased") == 0);
	say_open(MESSAGER, 2, *reserve(2, tokens_of(41))->lease);
	ck_assert_int_eq(WANT(Pds__LeaseOpened, MESSAGER, LEASE_OPENED, 2)->refused, 1);
	say_cancel(ROUTER, 2); /* no writer, no fence */
	settle(ROUTER);
	NONE(MESSAGER, LEASE_REVOKE, 2);
	world_end();
}

/* Its writer is dead before the lease is given up: freed at once. */
TEST(messager_process_ends_first)
{
	D.apart = 1;
	world_begin("kv_blocks=8");
	written(1, tokens_of(40));
	written(2, tokens_of(7));
	say_cancel(ROUTER, 1);
	await(MESSAGER, MSG_LEASE_REVOKE, 1);
	process_kill(&D.child);
	UNTIL(kv_count("leased") == 1);
	say_cancel(ROUTER, 2);
	UNTIL(requests_are("[]"));
	world_end();
}

/* --- clocks -------------------------------------------------------------- */

static void expect_lost(uint32_t n, const char *blame)
{
	const Pds__Failed *f = WANT(Pds__Failed, ROUTER, REQUEST_FAILED, n);
	ck_assert_str_eq(f->blame, blame);
	ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_LEASE_LOST);
	ck_assert_int_eq(f->retry, 1);
}

/* [s-expiry-untold] A lease that nobody renews ends, and the router learns it, and the prefill
 * worker, which the grant may not have reached; a writer is fenced first. */
TEST_LOOP(s_expiry_untold, 0, 2)
{
	int written = _i;
	world_begin("kv_blocks=8", SHORT_LEASE);
	const Pds__Grant *g = reserve(1, tokens_of(40));
	if (written)
		opened(1, *g->lease, 0);
	expect_lost(1, "prefill");
	const Pds__Deny *deny = WANT(Pds__Deny, PREFILL, KV_DENY, 1);
	ck_assert_int_eq(deny->fault, PDS__FAULT__FAULT_LEASE_LOST);
	ck_assert_uint_eq(deny->retry_after_us, 0);
	if (written) {
		await(MESSAGER, MSG_LEASE_REVOKE, 1);
		pump_for(2 * SHORT_MS * 1000u); /* a timer alone never frees them */
		ck_assert_uint_eq(kv_count("leased"), 3);
		say_revoked(MESSAGER, 1, *g->lease);
	}
	world_end();
}

TEST(renewals_keep_the_lease)
{
	world_begin("kv_blocks=8", SHORT_LEASE);
	uint64_t id = reserve(1, tokens_of(40))->lease->id;
	for (uint64_t end = clock_us() + 3 * SHORT_MS * 1000u; clock_us() < end; pump_for(20000))
		say_renew(PREFILL, id, W.epoch);
	NONE(ROUTER, REQUEST_FAILED, 1);
	ck_assert_uint_eq(kv_count("leased"), 3);
	side_open(PREFILL_2);
	UNTIL(PREFILL_2->p);
	uint64_t begin = clock_us();
	while (!take(ROUTER, MSG_REQUEST_FAILED, 1)) { /* other people's renewals do not */
		ck_assert_uint_lt(clock_us() - begin, WAIT_US);
		say_renew(PREFILL, id + 1, W.epoch);
		say_renew(PREFILL, id, W.epoch - 1);
		say_renew(MESSAGER, id, W.epoch);
		say_renew(PREFILL_2, id, W.epoch);
		pump_for(20000);
	}
	world_end();
}

/* [s-lease-clock-goes-on] With both halves there the lease does not expire, however long the
 * answer takes. */
TEST(s_lease_clock_goes_on)
{
	world_begin("kv_blocks=8", SHORT_LEASE);
	learn_kv(1);
	joined(2, 100);
	UNTIL(D.answer[2].n >= 1);
	daemon_stop(); /* its clock passes, its steps do not */
	usleep((SHORT_MS + 500) * 1000u);
	daemon_go_on();
	expect_length(2, 100);
	settle(ROUTER);
	NONE(ROUTER, REQUEST_FAILED, 2);
	world_end();
}

TEST(deadline_passes)
{
	world_begin("kv_blocks=8");
	struct prompt p = tokens_of(100), q = tokens_of(40);
	p.deadline_us = q.deadline_us = 2000000;
	reserve(1, p);
	say_reserve(2, 1, q);
	WANT(Pds__Queued, PREFILL, KV_QUEUED, 2);
	for (uint32_t n = 1; n <= 2; n++) {
		const Pds__Failed *f = WANT(Pds__Failed, ROUTER, REQUEST_FAILED, n);
		ck_assert_int_eq(f->fault, PDS__FAULT__FAULT_DEADLINE);
		ck_assert_int_eq(f->retry, 0);
	}
	world_end();
}

/* --- deaths -------------------------------------------------------------- */

/* All stages of a lease at once: written, granted, waiting; and one that has joined, which needs
 * its prefill worker no more. Of one that waits the router hears nothing: a prefill
 * worker that lives has asked another, or will. */
TEST(prefill_ends)
{
	world_begin("kv_blocks=60");
	learn_kv(1);
	Pds__Lease joins = filled(2, 480), writes = written(3, tokens_of(40));
	reserve(4, tokens_of(41));
	say_reserve(5, 1, tokens_of(500));
	WANT(Pds__Queued, PREFILL, KV_QUEUED, 5);
	ready(2, joins);
	say_first(PREFILL, 2, joins, short_answer[0]);
	side_close(PREFILL);
	for (uint32_t n = 3; n <= 4; n++)
		expect_lost(n, "");
	await(MESSAGER, MSG_LEASE_REVOKE, 3);
	UNTIL(ended(2));
	UNTIL(kv_count("leased") == 3);
	say_revoked(MESSAGER, 3, writes);
	settle(ROUTER);
	NONE(ROUTER, REQUEST_FAILED, 2);
	NONE(ROUTER, REQUEST_FAILED, 5);
	ck_assert_uint_eq(D.answer[2].n, 480);
	world_end();
}

TEST(router_ends)
{
	world_begin("kv_blocks=40");
	Pds__Lease l = written(1, tokens_of(40));
	reserve(2, tokens_of(400));
	say_reserve(3, 1, tokens_of(300));
	WANT(Pds__Queued, PREFILL, KV_QUEUED, 3);
	struct prompt p = tokens_of(10);
	p.max_tokens = 400;
	say_submit(4, p);
	side_close(ROUTER);
	await(MESSAGER, MSG_LEASE_REVOKE, 1);
	UNTIL(kv_count("leased") == 3 && kv_count("held") == 0);
	say_revoked(MESSAGER, 1, l);
	world_end();
}

/* --- without a prefill worker -------------------------------------------- */

TEST(submit_twice_runs_once)
{
	world_begin("kv_blocks=8");
	say_submit(1, short_of(8));
	say_submit(1, short_of(8));
	expect_answer(1, 8);
	UNTIL(requests_are("[]"));
	/* after its end too: on_message would see index 0 again */
	say_submit(1, short_of(8));
	settle(ROUTER);
	UNTIL(requests_are("[]"));
	settle(ROUTER);
	ck_assert_uint_eq(D.answer[1].n, 8);
	world_end();
}

TEST(cancel_ends_the_active)
{
	world_begin("kv_blocks=40");
	struct prompt p = tokens_of(10);
	p.max_tokens = 480;
	/* both come together: it has just begun when it is cancelled */
	daemon_stop();
	say_submit(1, p);
	say_cancel(ROUTER, 1);
	say_cancel(ROUTER, 1);
	pump_for(20000);
	daemon_go_on();
	UNTIL(requests_are("[]"));
	settle(ROUTER);
	ck_assert_int_eq(D.answer[1].finish, PDS__FINISH__FINISH_NONE);
	NONE(ROUTER, REQUEST_FAILED, 1);
	ck_assert_uint_lt(D.answer[1].n, 480);
	world_end();
}
