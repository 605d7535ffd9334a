/* test_msg_fault.c - the fault layer of links: its rules and verdicts, and what is lost, repeated,
 * late or cut on purpose, message type by message type: all is heard once, in order, windows
 * recover, lives end in both orders. */
/* run: waits */
#include "msg_pair.h"
#include "util/mem.h"

TEST_CASE("msg fault", .timeout_s = 120, .setup = base_setup, .teardown = base_teardown);

TEST(fault_rules)
{
	static const struct {
		const char *text, *wrong;
	} rows[] = {
		{"", NULL},
		{"   ", NULL},
		{"seed=7 drop=2% repeat=2% delay=5%:20ms type=KV_RESERVE:delay=100%:5ms", NULL},
		{"type=KV_RESERVE:dir=in:peer=prefill-1:nth=3:late=0.5%:1-20ms cut=1%:noack=3%", NULL},
		{"drop=101%", "a share"},
		{"drop=-1%", "a share"},
		{"drop=nan%", "a share"},
		{"drop=5", "a share"},
		{"delay=5%", "a time must follow"},
		{"delay=5%:20", "must end in"},
		{"delay=5%:20-10ms", "must not decrease"},
		{"delay=5%:3600s", "at most 60s"},
		{"delay=5%:-3ms", "at most 60s"},
		{"type=KV_NONSENSE:drop=1%", "unknown message type"},
		{"dir=up:drop=1%", "dir must be"},
		{"nth=0:drop=1%", "nth"},
		{"seed=x", "the seed"},
		{"drop", "KEY=VALUE"},
		{"lose=1%", "unknown key"},
		{"dir=out:late=5%:1ms", "incoming messages only"},
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct fault *f;
		struct err err = {0};
		int r = fault_new(rows[i].text, &f, &err);
		ck_assert_msg(r == (rows[i].wrong ? ERR_INVALID : 0), "\"%s\": %d %s", rows[i].text, r,
		              err.text);
		ck_assert_msg(!rows[i].wrong || strstr(err.text, rows[i].wrong), "\"%s\": %s", rows[i].text,
		              err.text);
		ck_assert_int_eq(f != NULL, r == 0 && rows[i].text[strspn(rows[i].text, " ")] != 0);
		fault_destroy(&f);
	}
}

TEST(fault_verdicts)
{
	struct fault *f, *g;
	struct err err = {0};
	struct fault_verdict v, w;
	const char
		*text = "seed=5 drop=30% type=KV_GRANT:dir=out:peer=p:nth=2:repeat=100%:delay=100%:5ms "
				"type=KV_DENY:dir=in:late=100%:7us";
	unsigned drops = 0;
	ck_assert_int_eq(fault_new(text, &f, &err), 0);
	ck_assert_int_eq(fault_new(text, &g, &err), 0);
	for (int i = 0; i < 10000; i++) {
		fault_judge(f, FAULT_OUT, MSG_PEERS, "p", &v);
		fault_judge(g, FAULT_OUT, MSG_PEERS, "p", &w);
		ck_assert_int_eq(memcmp(&v, &w, sizeof v), 0);
		drops += (unsigned)v.drop;
	}
	ck_assert(drops > 2800 && drops < 3200);
	for (int i = 1; i <= 3; i++) {
		fault_judge(f, FAULT_OUT, MSG_KV_GRANT, "q", &v);
		ck_assert(!v.repeat && !v.delay_us);
		fault_judge(f, FAULT_IN, MSG_KV_GRANT, "p", &v);
		ck_assert(!v.repeat && !v.delay_us);
		fault_judge(f, FAULT_OUT, MSG_KV_GRANT, "p", &v);
		ck_assert(v.repeat == (i == 2) && v.delay_us == (i == 2 ? 5000 : 0));
		fault_judge(f, FAULT_IN, MSG_KV_DENY, "p", &v);
		ck_assert_uint_eq(v.late_us, 7);
		fault_judge(f, FAULT_IN, MSG_CTL_REQUEST, "p", &v);
		ck_assert(!v.drop && !v.late_us);
	}
	fault_destroy(&f);
	fault_destroy(&g);
}

/* One rule for each numbered type: what happens to the nth message of it, in this direction.
 * Heartbeats, which have no number, are late. */
static char *rule_for_each_type(const char *dir, int nth, const char *what)
{
	char *text = mem_printf("seed=1 type=HEARTBEAT:dir=in:late=100%%:1ms");
	for (size_t i = 0; i < N_TYPES; i++) {
		if (!numbered[i])
			continue;
		char *more = mem_printf("%s type=%s:dir=%s:nth=%d:%s=100%%%s", text,
		                        msg_type_find(numbered[i])->name, dir, nth, what,
		                        strcmp(what, "delay") ? "" : ":9ms");
		free(text);
		text = more;
	}
	return text;
}

/* Of three messages of each type, the first, second or last is lost, repeated, late or cuts the
 * link, on the way out or in: all is heard once, in order, of one link. */
TEST(each_type_survives)
{
	static const char *const what[] = {"drop", "repeat", "delay", "cut", "noack"};
	for (int c = 0; c < 2 * 3 * 5; c++) {
		const char *dir = c % 2 ? "out" : "in";
		int nth = 1 + c / 2 % 3;
		char *text = rule_for_each_type(dir, nth, what[c / 6]),
			 *name = mem_printf("%s %d %s", dir, nth, what[c / 6]);
		struct chan_opts o = pair_opts(8000);
		struct side a, b;
		o.program = "pdrouterd"; /* beats each 20 ms at work */
		pair_open_faulty(base, &a, &b, "each", &o, text, &o, text);
		until_up(&a, &b);
		for (unsigned k = 0; k < 3; k++)
			for (size_t i = 0; i < N_TYPES; i++)
				if (numbered[i])
					ck_assert(say_type(&a, numbered[i]) == 0 && say_type(&b, numbered[i]) == 0);
		until_settled(&a, &b, name);
		for (size_t i = 0; i < N_TYPES; i++)
			ck_assert_msg(!numbered[i] ||
			                  (a.types_heard[numbered[i]] == 3 && b.types_heard[numbered[i]] == 3),
			              "%s: type %d", name, (int)numbered[i]);
		ck_assert_msg(a.downs + b.downs == 0, "%s: %s%s", name, a.why, b.why);
		ck_assert_msg(fault_count(a.c) >= numbered_count(), "%s: %llu faults", name,
		              (unsigned long long)fault_count(a.c));
		pair_close(&a, &b);
		free(text);
		free(name);
	}
}

static void flood(struct side *a, struct side *b, const char *fault_b, unsigned n, const char *what)
{
	struct chan_opts oa = pair_opts(8000), ob = pair_opts(8000);
	ob.window_messages = 16;
	pair_open_faulty(base, a, b, "flood", &oa, NULL, &ob, fault_b);
	until_up(a, b);
	for (uint64_t end = clock_us() + 60000000; b->said < n; pump_ms(base, 1)) {
		ck_assert_msg(clock_us() < end, "%s: %llu said", what, (unsigned long long)b->said);
		while (b->said < n && say_type(b, numbered_type(b->said)) == 0)
			;
	}
	ck_assert_uint_gt(b->full, 0);
	until_settled(a, b, what);
	ck_assert_uint_eq(a->downs + b->downs, 0);
	pair_close(a, b);
}

/* A full window says so, and goes on when acknowledgements come, also when most of them are
 * lost. */
TEST(window_recovers)
{
	struct side a, b;
	flood(&a, &b, "seed=3 type=ACK:drop=50% noack=50%", 200, "half of the acknowledgements lost");
	flood(&a, &b, "seed=4 dir=in:noack=80%", 100, "most of the acknowledgements lost");
	flood(&a, &b, "seed=5 cut=1%", 200, "connections end");
	flood(&a, &b, "seed=6 delay=20%:0-3ms repeat=50%", 300, "late and twice");
}

TEST(window_is_bounded_in_bytes)
{
	struct side a, b;
	struct chan_opts o = pair_opts(0);
	o.window_bytes = 50;
	pair_open(base, &a, &b, "bytes", &o, &o);
	until_up(&a, &b);
	int n = 0;
	while (n < 1000 && say_type(&b, MSG_KV_RESERVE) == 0)
		n++;
	ck_assert(n > 0 && n < 50);
	ck_assert_int_eq(say_type(&b, MSG_KV_RESERVE), ERR_FULL);
	until_settled(&a, &b, "bytes");
	pair_close(&a, &b);
}

/* Nobody loses what it says to a life that lasts; a new life starts at the first message of a
 * new session. Whoever ends first, both orders. */
TEST(lives_end_in_both_orders)
{
	const char *lossy = "seed=2 type=KV_GRANT:drop=20%";
	for (int order = 0; order < 4; order++) {
		struct side a, b;
		struct chan_opts o = pair_opts(8000);
		pair_open_faulty(base, &a, &b, "lives", &o, lossy, &o, lossy);
		until_up(&a, &b);
		for (int turn = 0; turn < 4; turn++) {
			for (int i = 0; i < 50; i++) {
				say_type(&a, numbered_type((unsigned)i));
				say_type(&b, numbered_type((unsigned)i));
			}
			if (turn % 2)
				until_settled(&a, &b, "between lives");
			struct side *first = order % 2 ? &a : &b, *second = order % 2 ? &b : &a;
			side_stop(first);
			if (order < 2)
				side_start(base, first);
			side_stop(second);
			side_start(base, second);
			if (order >= 2)
				side_start(base, first);
			for (uint64_t end = clock_us() + 60000000;
			     !a.p || !b.p || peer_epoch(a.p) != b.epoch || peer_epoch(b.p) != a.epoch;
			     pump_ms(base, 2))
				ck_assert_msg(clock_us() < end, "order %d: not up again", order);
		}
		say_type(&a, MSG_KV_GRANT);
		say_type(&b, MSG_KV_GRANT);
		until_settled(&a, &b, "the last life");
		ck_assert_msg(!a.wrong && !b.wrong, "%s%s", a.problem, b.problem);
		pair_close(&a, &b);
	}
}

/* `delay` holds the line, `late` the message alone; neither cuts throughput: 200 messages of 20
 * ms each take little more than 20 ms. */
TEST(delays_are_in_a_pipe)
{
	static const char *const faults[] = {"dir=in:type=KV_RESERVE:delay=100%:20ms",
	                                     "dir=in:type=KV_RESERVE:late=100%:20ms",
	                                     "dir=out:type=KV_RESERVE:delay=100%:20ms"};
	for (size_t i = 0; i < 3; i++) {
		struct side a, b;
		struct chan_opts o = pair_opts(0);
		pair_open_faulty(base, &a, &b, "pipe", &o, i < 2 ? faults[i] : NULL, &o,
		                 i < 2 ? NULL : faults[i]);
		until_up(&a, &b);
		uint64_t from = clock_us();
		for (int k = 0; k < 200; k++)
			ck_assert_int_eq(say_type(&b, MSG_KV_RESERVE), 0);
		until_settled(&a, &b, faults[i]);
		uint64_t took = clock_us() - from;
		ck_assert_msg(took >= 20000 && took < 30000000, "%s: %llu us", faults[i],
		              (unsigned long long)took);
		pair_close(&a, &b);
	}
}

/* The first waits 30 ms; the second comes at once, the third when the first one's time is over
 * but its timer has not run: none overtakes. */
TEST(delayed_is_not_overtaken)
{
	struct side a, b;
	struct chan_counts n;
	struct chan_opts oa = pair_opts(5000000);
	pair_open_faulty(base, &a, &b, "line", &oa, "type=KV_GRANT:dir=in:nth=1:delay=100%:30ms", &oa,
	                 NULL);
	until_up(&a, &b);
	ck_assert(say_type(&b, MSG_KV_GRANT) == 0 && say_type(&b, MSG_PEERS) == 0);
	for (uint64_t end = clock_us() + 60000000; fault_count(a.c) == 0 && clock_us() < end;)
		event_base_loop(base, EVLOOP_ONCE);
	ck_assert_int_eq(say_type(&b, MSG_PEERS), 0);
	usleep(60000);
	until_settled(&a, &b, "a line");
	chan_counts(a.c, &n);
	ck_assert_uint_eq(n.dropped, 0);
	pair_close(&a, &b);
}

/* Ten lives of one name where four peers have room: those that are over hold no place. */
TEST(places_are_given_back)
{
	struct side a, b;
	struct chan_opts o = pair_opts(8000);
	pair_open(base, &a, &b, "places", &o, &o);
	for (int life = 0; life < 10; life++) {
		until_settled(&a, &b, "a life");
		say_type(&a, MSG_PEERS);
		side_stop(&b);
		side_start(base, &b);
	}
	until_settled(&a, &b, "the last life");
	pair_close(&a, &b);
}

/* The clock would find out after forty seconds; the receiver who meets the gap says so at once. */
TEST(a_gap_is_asked_for_at_once)
{
	struct side a, b;
	struct chan_opts o = pair_opts(40000000);
	const char *first_lost = "type=KV_GRANT:dir=in:nth=1:drop=100%";
	pair_open_faulty(base, &a, &b, "gap", &o, first_lost, &o, first_lost);
	until_up(&a, &b);
	uint64_t from = clock_us();
	ck_assert(say_type(&b, MSG_PEERS) == 0 && say_type(&b, MSG_KV_GRANT) == 0 &&
	          say_type(&b, MSG_PEERS) == 0);
	until_settled(&a, &b, "a gap");
	ck_assert_uint_lt(clock_us() - from, 20000000);
	pair_close(&a, &b);
}

static void count_lines(FILE *log, const char *what, unsigned want)
{
	static char text[65536];
	unsigned n = 0;
	rewind(log);
	text[fread(text, 1, sizeof text - 1, log)] = 0;
	for (const char *at = text; (at = strstr(at, what)); at++)
		n++;
	ck_assert_msg(n == want, "\"%s\" %u times, expected %u:\n%s", what, n, want, text);
}

/* Whoever reads the logs of a slow request sees which time was injected. */
TEST(delays_are_logged)
{
	struct side a, b;
	struct chan_opts oa = pair_opts(0);
	FILE *log = tmpfile();
	int had = dup(STDERR_FILENO);
	log_set_level("debug");
	dup2(fileno(log), STDERR_FILENO);
	pair_open_faulty(base, &a, &b, "logged", &oa,
	                 "type=KV_GRANT:dir=in:nth=2:delay=100%:5ms "
	                 "type=KV_DENY:dir=in:nth=3:late=100%:6ms",
	                 &oa, "type=KV_GRANT:dir=out:nth=1:delay=100%:7ms");
	until_up(&a, &b);
	for (int i = 0; i < 3; i++)
		ck_assert(say_type(&b, MSG_KV_GRANT) == 0 && say_type(&b, MSG_KV_DENY) == 0);
	until_settled(&a, &b, "three of each");
	pair_close(&a, &b);
	dup2(had, STDERR_FILENO);
	close(had);
	log_set_level("info");
	count_lines(log, "event=fault_delay type=KV_GRANT peer=\"dials\" us=5000\n", 1);
	count_lines(log, "event=fault_delay type=KV_DENY peer=\"dials\" us=6000\n", 1);
	count_lines(log, "event=fault_delay type=KV_GRANT peer=\"bound\" us=7000\n", 1);
	count_lines(log, "event=fault_delay", 3);
	fclose(log);
}
