/* test_pdbench_load.c - whole runs of pdbench against a scripted server that answers, fast or slow
 * and in every form that is allowed: what is measured. Servers that fail: test_pdbench_broken.c. */
#include "pdbench_run.h"
#include "skip.h"

#include <math.h>

TEST(a_sound_server)
{
	struct server *s = server_new(answer_well, NULL);
	struct outcome_of b;
	bench(&b, s, "-c 4 -n 100 -w 10 -i 5-9 -o 3-6");
	ck_assert_int_eq(b.code, 0);
	ck_assert_uint_eq(b.f.requests, 100);
	ck_assert_uint_eq(b.f.ok, 100);
	ck_assert_uint_eq(b.f.warmup_requests, 10);
	ck_assert_uint_eq(atomic_load(&s->requests), 110);
	ck_assert_uint_eq(s->connections, 4);
	ck_assert_int_le(atomic_load(&s->inside_most), 4);
	ck_assert_uint_eq(b.r.in_flight_most, 4);
	uint64_t gaps = 0;
	for (size_t i = 0; i < b.r.n; i++) {
		const struct bench_record *r = &b.r.records[i];
		ck_assert(r->due_us <= r->sent_us && r->sent_us <= r->first_us &&
		          r->first_us <= r->last_us && r->last_us <= r->end_us);
		ck_assert(r->output_tokens == r->max_tokens && r->status == 200 && r->cached_tokens == 0 &&
		          r->prompt_tokens == 9);
		gaps += r->measured ? r->output_tokens - 1 : 0;
	}
	ck_assert_uint_eq(b.r.gaps.n, gaps);
	ck_assert_uint_eq(b.f.ttft.n, 100);
	over(&b, &s);
}

/* --- times --------------------------------------------------------------- */

static int answer_slowly(struct request *q)
{
	usleep(30000);
	int gone = say_stream_head(q);
	for (unsigned i = 0; i < q->max_tokens && !gone; i++) {
		gone = say_token(q, i, i, 0);
		usleep(i == 2 ? 250000 : 5000);
	}
	return gone || say_end(q);
}

/* On a busy machine a client sees anything later than it was sent, but nothing earlier. */
TEST(a_slow_server_is_measured)
{
	struct server *s = server_new(answer_slowly, NULL);
	struct outcome_of b;
	double sum_ms = 0;
	bench(&b, s, "-c 1 -n 3 -o 6 --slo ttft=29ms");
	ck_assert_uint_eq(b.f.ok, 3);
	for (size_t i = 0; i < b.r.n; i++) {
		const struct bench_record *r = &b.r.records[i];
		double gaps_ms = (double)(r->last_us - r->first_us) / 1e3;
		ck_assert_msg(record_ttft_ms(r) >= 29.9, "ttft %g", record_ttft_ms(r));
		ck_assert_msg(record_ttft_ms(r) + gaps_ms >= 299.9, "ttft %g and gaps of %g ms",
		              record_ttft_ms(r), gaps_ms);
		ck_assert_double_ge(record_e2e_ms(r), 304.9);
		ck_assert_double_eq_tol(record_tpot_ms(r), gaps_ms / 5, 1e-9);
		ck_assert_msg(r->longest_gap_us >= 150000, "longest gap %llu us",
		              (unsigned long long)r->longest_gap_us);
		sum_ms += gaps_ms;
	}
	ck_assert_uint_eq(b.r.gaps.n, 15);
	ck_assert_double_eq_tol(b.f.itl.mean, sum_ms / 15, 1e-6);
	ck_assert_double_ge(b.f.itl.max, 150);
	ck_assert_double_eq(b.f.goodput_percent, 0);
	over(&b, &s);
}

/* The server stands still once: requests that could not be sent meanwhile are late from when
 * they were due. */
static int answer_after_a_stall(struct request *q)
{
	pthread_mutex_lock(&q->s->lock);
	if (q->number == 10)
		usleep(500000);
	int gone = say_all(q, q->max_tokens);
	pthread_mutex_unlock(&q->s->lock);
	return gone;
}

TEST(open_loop_does_not_hide_a_stall)
{
	struct server *s = server_new(answer_after_a_stall, NULL);
	struct outcome_of b;
	unsigned late = 0;
	bench(&b, s, "-r 100 --arrivals constant -n 60 -o 1 --max-in-flight 1");
	ck_assert_uint_eq(b.f.ok, 60);
	ck_assert_int_eq(atomic_load(&s->inside_most), 1);
	for (size_t i = 0; i < b.r.n; i++) {
		ck_assert_msg(b.r.records[i].due_us / 10000 == i + 1, "request %zu was due at %llu us", i,
		              (unsigned long long)b.r.records[i].due_us);
		late += record_ttft_ms(&b.r.records[i]) > 200;
	}
	/* closed loop would see one */
	ck_assert_msg(late >= 25, "%u requests waited for more than 200 ms", late);
	ck_assert_double_ge(b.f.late.max, 400);
	over(&b, &s);
}

TEST(constant_arrivals_keep_their_times)
{
	struct server *s = server_new(answer_well, NULL);
	struct outcome_of b;
	bench(&b, s, "-r 50 --arrivals constant -d 1s -w 200ms -o 1");
	ck_assert_uint_eq(b.f.failed, 0);
	ck_assert_msg(b.f.requests == 50 && b.f.warmup_requests == 9, "%llu after %llu",
	              (unsigned long long)b.f.requests, (unsigned long long)b.f.warmup_requests);
	ck_assert_double_eq_tol(b.f.window_s, 1, 1e-6);
	over(&b, &s);
}

TEST(ramp_of_a_closed_loop)
{
	uint64_t eighth = 0;
	for (int i = 0; i < 10 && !eighth; i++) {
		/* until all eight are under way at once: a busy machine may serve one after the other */
		struct server *s = server_new(answer_slowly, NULL);
		struct outcome_of b;
		bench(&b, s, "-c 8 -d 1s --ramp 800ms -o 1"); /* an answer takes 35 ms and more */
		ck_assert_uint_eq(b.f.failed, 0);
		ck_assert_uint_le(b.r.in_flight_most, 8);
		ck_assert_int_le(atomic_load(&s->inside_most), 8);
		for (size_t k = 0; k < b.r.n && !eighth; k++) {
			size_t open = 0;
			for (size_t m = 0; m <= k; m++)
				open += b.r.records[m].end_us > b.r.records[k].sent_us || !b.r.records[m].end_us;
			eighth = open == 8 ? b.r.records[k].sent_us : 0;
		}
		over(&b, &s);
	}
	ck_assert_msg(eighth >= 700000, "8 requests were under way after %llu us",
	              (unsigned long long)eighth);
}

/* --- clients that leave, conversations ----------------------------------- */

static int answer_with_pauses(struct request *q)
{
	int gone = say_stream_head(q);
	for (unsigned i = 0; i < q->max_tokens && !gone; i++) {
		gone = say_token(q, i, i, 0);
		usleep(2000);
	}
	return gone || say_end(q);
}

TEST(clients_that_leave)
{
	struct server *s = server_new(answer_with_pauses, NULL);
	struct outcome_of b;
	bench(&b, s, "-c 8 -n 80 -o 30 --abort 50%");
	ck_assert_uint_eq(b.f.failed, 0);
	ck_assert_uint_eq(b.f.ok + b.f.left, 80);
	ck_assert_msg(b.f.left > 22 && b.f.left < 58, "%llu left", (unsigned long long)b.f.left);
	for (size_t i = 0; i < b.r.n; i++)
		ck_assert(b.r.records[i].outcome != OUTCOME_LEFT || b.r.records[i].output_tokens < 30);
	over(&b, &s);
}

struct talks {
	atomic_uint rounds[4], wrong;
};

/* The prompt of a round ends with new tokens; before them stands the answer to the round before:
 * 1000, 1001, ... */
static int check_round(struct request *q)
{
	struct talks *t = q->s->arg;
	const json_t *p = json_object_get(q->json, "prompt");
	size_t n = json_array_size(p), round = n / 10; /* 6 new tokens and 4 of an answer */
	atomic_fetch_add(&t->rounds[round < 4 ? round : 3], 1);
	int good = n == 6 + 10 * round && json_is_true(json_object_get(q->json, "return_token_ids"));
	for (size_t r = 0; r < round; r++)
		for (size_t i = 0; i < 4; i++)
			good &= json_integer_value(json_array_get(p, r * 10 + 6 + i)) == (json_int_t)(1000 + i);
	atomic_fetch_add(&t->wrong, (unsigned)!good);
	return answer_well(q);
}

TEST(conversations)
{
	struct talks t = {0};
	struct server *s = server_new(check_round, &t);
	struct outcome_of b;
	bench(&b, s, "-c 3 -n 40 -i 6 -o 4 --rounds 3 --think 5ms-20ms");
	ck_assert_uint_eq(b.f.ok, 40);
	ck_assert_uint_eq(atomic_load(&t.wrong), 0);
	unsigned r0 = atomic_load(&t.rounds[0]), r1 = atomic_load(&t.rounds[1]),
			 r2 = atomic_load(&t.rounds[2]);
	ck_assert_msg(r0 + r1 + r2 == 40 && r0 >= r1 && r1 >= r2 && r0 - r2 <= 3, "%u %u %u", r0, r1,
	              r2);
	ck_assert_int_le(atomic_load(&s->inside_most), 3);
	for (size_t i = 0; i < b.r.n; i++) {
		const struct bench_record *r = &b.r.records[i];
		for (size_t k = 0; k < i && r->round; k++)
			if (b.r.records[k].conversation == r->conversation &&
			    b.r.records[k].round + 1 == r->round)
				ck_assert_uint_ge(r->due_us, b.r.records[k].end_us + 5000);
	}
	over(&b, &s);
}

/* --- servers of all kinds, and answers in all forms ---------------------- */

/* A kept connection that the server closes as soon as it is idle costs a new one, not a request. */
static int close_afterwards(struct request *q)
{
	answer_well(q);
	return 1; /* without having said Connection: close */
}

static int check_fresh(struct request *q)
{
	ck_assert_uint_eq(q->on_connection, 0);
	ck_assert(strstr(q->head, "Connection: close"));
	return answer_well(q); /* and leaves closing to the client */
}

/* A server without token ids and running counts: pieces of text are tokens, until its last word. */
static int answer_in_text(struct request *q)
{
	char text[200];
	say(q, "HTTP/1.1 200 OK\r\n\r\n"); /* until the end of the connection, lines with CR */
	say(q, "data: "
	       "{\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}"
	       "\r\n\r\n");
	for (unsigned i = 0; i + 1 < q->max_tokens; i++) {
		snprintf(text, sizeof text,
		         "data: "
		         "{\"choices\":[{\"index\":0,\"delta\":{\"content\":\"x%u\"},\"finish_reason\":"
		         "null}]}\r\n\r\n",
		         i);
		say(q, "%s", text);
	}
	say(q,
	    "data: "
	    "{\"choices\":[],\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":%u}}\r\n\r\ndata: "
	    "[DONE]\r\n\r\n",
	    q->max_tokens);
	return 1;
}

/* Two tokens an event, named by their ids alone. */
static int answer_in_pairs(struct request *q)
{
	say_stream_head(q);
	for (unsigned i = 0; i < q->max_tokens; i += 2)
		say_chunk(q, "data: {\"choices\":[{\"text\":\"ab\",\"token_ids\":[5,6]}]}\n\n");
	return say_end(q);
}

/* Running counts, and at the end a rest of text that is no token. */
static int answer_with_a_rest(struct request *q)
{
	say_stream_head(q);
	for (unsigned i = 0; i < q->max_tokens; i++) {
		char text[200];
		snprintf(text, sizeof text,
		         "data: "
		         "{\"choices\":[{\"text\":\"%s\"}],\"usage\":{\"prompt_tokens\":2,\"completion_"
		         "tokens\":%u}}\n\n",
		         i % 2 ? "x" : "", i + 1);
		say_chunk(q, text);
	}
	say_chunk(q, "data: {\"choices\":[{\"text\":\"rest\",\"finish_reason\":\"length\"}]}\n\n");
	return say_end(q);
}

static int answer_at_once(struct request *q)
{
	char all[8192] = "HTTP/1.1 200 OK\r\n\r\n";
	for (unsigned i = 0; i < q->max_tokens; i++)
		strcat(all, "data: {\"choices\":[{\"text\":\"ab\"}]}\n\n");
	strcat(all, "data: [DONE]\n\n");
	say_bytes(q, all, strlen(all));
	return 1;
}

static int end_early(struct request *q)
{
	return say_all(q, 2);
}

static const struct answer_case {
	const char *name, *line;
	answer_fn *fn;
	size_t piece; /* of the server's writes; 0: all at once */
	uint64_t ok, tokens, gaps;
	/* tokens in an event; gaps of no time, at least; 0: not looked at */
	double per_event, together_percent;
	unsigned connections; /* at least */
} answers[] = {
	/* nothing depends on how the network cuts */
	{"a byte at a time", "-c 2 -n 6 -o 5", answer_well, 1, 6, 30, 24, 1, 0, 2},
	{"connections that end while idle", "-c 2 -n 50 -o 2", close_afterwards, 0, 50, 100, 50, 1, 0,
     50},
	{"fresh connections", "-c 3 -n 20 -o 1 --fresh-connections", check_fresh, 0, 20, 20, 0, 1, 0,
     20},
	{"another kind of server", "-c 1 -n 3 -o 5 --chat", answer_in_text, 0, 3, 15, 9, 0, 0, 3},
	{"several tokens in an event", "-c 1 -n 4 -o 8 --token-ids", answer_in_pairs, 0, 4, 32, 12, 2,
     0, 1},
	{"tokens that come together", "-c 1 -n 10 -o 20", answer_at_once, 0, 10, 200, 190, 1, 90, 10},
	{"text that is no token", "-c 1 -n 3 -o 6", answer_with_a_rest, 0, 3, 18, 15, 0, 0, 1},
	{"a natural end", "-c 1 -n 3 -o 50 --natural-end", end_early, 0, 3, 6, 3, 1, 0, 1},
};

TEST_LOOP(a_good_answer, 0, sizeof answers / sizeof *answers)
{
	const struct answer_case *c = &answers[_i];
	struct server *s = server_new(c->fn, NULL);
	struct outcome_of b;
	uint64_t tokens = 0;
	s->piece = c->piece;
	bench(&b, s, c->line);
	ck_assert_msg(b.code == 0 && b.f.failed == 0, "%s: %s", c->name,
	              b.r.n_errors ? b.r.errors[0].text : b.e.text);
	for (size_t i = 0; i < b.r.n; i++)
		tokens += b.r.records[i].output_tokens;
	ck_assert_msg(b.f.ok == c->ok && tokens == c->tokens, "%s: %llu answers, %llu tokens", c->name,
	              (unsigned long long)b.f.ok, (unsigned long long)tokens);
	ck_assert_msg(b.r.gaps.n == c->gaps, "%s: %llu gaps", c->name, (unsigned long long)b.r.gaps.n);
	ck_assert_double_eq(b.f.output_mean, (double)c->tokens / (double)c->ok);
	ck_assert_msg(c->per_event == 0 || b.f.tokens_per_event == c->per_event,
	              "%s: %g tokens in an event", c->name, b.f.tokens_per_event);
	ck_assert_msg(c->together_percent == 0 || b.f.together_percent >= c->together_percent,
	              "%s: %g %%", c->name, b.f.together_percent);
	ck_assert_msg(b.r.connections == s->connections && s->connections >= c->connections,
	              "%s: %u connections", c->name, s->connections);
	over(&b, &s);
}

TEST(several_servers_take_turns)
{
	struct server *a = server_new(answer_well, NULL), *c = server_new(answer_well, NULL);
	struct outcome_of b;
	char line[80];
	snprintf(line, sizeof line, "-c 1 -n 20 -o 1 http://127.0.0.1:%u", a->port);
	bench(&b, c, line);
	ck_assert_uint_eq(b.f.ok, 20);
	ck_assert_uint_eq(atomic_load(&a->requests), 10);
	ck_assert_uint_eq(atomic_load(&c->requests), 10);
	over(&b, &c);
	server_destroy(&a);
}

static int check_headers(struct request *q)
{
	int good = strstr(q->head, "X-One: 1\r\n") && strstr(q->head, "Authorization: Bearer k") &&
	           strstr(q->head, "POST /base/v1/completions HTTP/1.1") &&
	           strstr(q->head, "X-Session-Id: pdbench-1-") &&
	           json_is_true(json_object_get(q->json, "more"));
	return good ? answer_well(q) : say_503_empty(q);
}

TEST(headers_and_members)
{
	if (!localhost_resolves())
		SKIP(SKIP_NO_LOCALHOST);
	struct server *s = server_new(check_headers, NULL);
	struct outcome_of b;
	char text[64], *argv[] = {(char *)(uintptr_t) "pdbench",
	                          (char *)(uintptr_t) "-n4",
	                          (char *)(uintptr_t) "-o1",
	                          (char *)(uintptr_t) "-HX-One: 1",
	                          (char *)(uintptr_t) "--api-key=k",
	                          (char *)(uintptr_t) "--sessions",
	                          (char *)(uintptr_t) "-e{\"more\":true}",
	                          text,
	                          NULL};
	snprintf(text, sizeof text, "http://localhost:%u/base/v1", s->port);
	memset(&b, 0, sizeof b);
	ck_assert_msg(options_parse(8, argv, &b.o, &b.e) == OPTIONS_RUN, "%s", b.e.text);
	/* of localhost's addresses the one where the server is */
	ck_assert_int_eq(url_resolve(&b.o.urls[0], &b.e), 0);
	b.code = run_load(&b.o, &b.says, &b.r, &b.e);
	figures_make(&b.r, &b.o, &b.f);
	ck_assert_uint_eq(b.f.ok, 4);
	over(&b, &s);
}

/* A prompt that does not fit into the socket's buffer while the server does not read. */
static int answer_later(struct request *q)
{
	ck_assert_uint_eq(json_array_size(json_object_get(q->json, "prompt")), 1000000);
	return answer_well(q);
}

TEST(large_prompts)
{
	struct server *s = server_new(answer_later, NULL);
	struct outcome_of b;
	int small = 65536;
	/* its connections inherit it */
	setsockopt(s->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
	bench(&b, s, "-c 2 -n 2 -i 1000000 -o 2 --vocab 100000-200000");
	ck_assert_msg(b.f.ok == 2, "%s", b.r.errors[0].text);
	over(&b, &s);
}

static int answer_half_a_second(struct request *q)
{
	say_stream_head(q);
	say_token(q, 0, 1, 0);
	return never_answer(q);
}

struct interrupter {
	pthread_t whom;
	struct server *s;
};

static void *interrupt(void *arg)
{
	struct interrupter *i = arg;
	while (atomic_load(&i->s->requests) < 4)
		usleep(1000);
	usleep(50000);
	pthread_kill(i->whom, SIGINT);
	return NULL;
}

TEST(interrupted)
{
	struct server *s = server_new(answer_half_a_second, NULL);
	struct outcome_of b;
	struct interrupter i = {pthread_self(), s};
	pthread_t t;
	pthread_create(&t, NULL, interrupt, &i);
	bench(&b, s, "-c 4 -n 1000 -o 5");
	pthread_join(t, NULL);
	ck_assert(b.r.interrupted);
	ck_assert_uint_eq(b.f.cut, 4);
	ck_assert_uint_eq(b.f.failed, 0);
	over(&b, &s);
}
