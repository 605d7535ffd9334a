/* test_pdbench_broken.c - whole runs of pdbench against a server that is broken, cut, silent or
 * refusing: what is counted as failed and with which text, and that nothing ends the run but its
 * end; what it asks a server first. */
#include "pdbench_run.h"

struct fault_case {
	const char *name;
	answer_fn *fn;
	int status;
	const char *says; /* a part of the error's text */
};

static int say_429(struct request *q)
{
	const char *body = "{\"error\":{\"message\":\"the queue holds 4096 "
					   "requests\",\"type\":\"rate_limit_error\",\"code\":429}}";
	return say(q,
	           "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 1\r\nContent-Length: %zu\r\n\r\n%s",
	           strlen(body), body);
}
static int say_500_plain(struct request *q)
{
	return say(q, "HTTP/1.1 500 Oops\r\nContent-Length: 9\r\n\r\nit broke\n");
}
static int say_garbage(struct request *q)
{
	say(q, "\x16\x03\x01 no such protocol here\r\n\r\n");
	return 1;
}
static int say_nothing(struct request *q)
{
	(void)q;
	return 1;
}
static int cut_in_head(struct request *q)
{
	say(q, "HTTP/1.1 200 OK\r\nTransfer-Enc");
	return 1;
}
static int cut_after_tokens(struct request *q)
{
	say_stream_head(q);
	say_token(q, 0, 1, 0);
	say_token(q, 1, 2, 0);
	return 1;
}
static int cut_in_event(struct request *q)
{
	say_stream_head(q);
	say(q, "200\r\ndata: {\"choi");
	return 1;
}
static int say_bad_chunk(struct request *q)
{
	say_stream_head(q);
	say(q, "zz\r\n");
	return 1;
}
static int say_bad_event(struct request *q)
{
	say_stream_head(q);
	say_token(q, 0, 1, 0);
	say_chunk(q, "data: {\"choices\":[{\"text\":\"a\"\n\n");
	return say_end(q);
}
static int say_error_event(struct request *q)
{
	say_stream_head(q);
	say_token(q, 0, 1, 0);
	say_chunk(q, "data: {\"error\":{\"message\":\"the worker \\\"d1\\\" is gone\"}}\n\n");
	return say_end(q);
}
static int say_too_few(struct request *q)
{
	say_stream_head(q);
	say_token(q, 0, 1, 1);
	return say_end(q);
}
static int say_too_many(struct request *q)
{
	return say_all(q, q->max_tokens + 1);
}
static int say_no_done(struct request *q)
{
	say_stream_head(q);
	for (unsigned i = 0; i < q->max_tokens; i++)
		say_token(q, i, 1, 0);
	return say(q, "0\r\n\r\n");
}
static int say_no_token(struct request *q)
{
	say_stream_head(q);
	return say_end(q);
}
static int say_html(struct request *q)
{
	return say(
		q, "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\n\r\n<html></html>");
}
static int say_huge_line(struct request *q)
{
	char piece[1 << 16];
	memset(piece, 'x', sizeof piece - 1);
	say_stream_head(q);
	say_chunk(q, "data: ");
	for (int i = 0; i < 400; i++) {
		char size[16];
		int n = snprintf(size, sizeof size, "%zx\r\n", sizeof piece - 1);
		if (say_bytes(q, size, (size_t)n) || say_bytes(q, piece, sizeof piece - 1) ||
		    say_bytes(q, "\r\n", 2))
			return 1;
	}
	return say_end(q);
}

static const struct fault_case faults[] = {
	{"429", say_429, 429, "the queue holds 4096 requests"},
	{"500 plain", say_500_plain, 500, "it broke"},
	{"503 empty", say_503_empty, 503, "(no body)"},
	{"garbage", say_garbage, 0, "not HTTP/1.1"},
	{"nothing", say_nothing, 0, "without an answer"},
	{"cut in head", cut_in_head, 200, "in the middle of the head"},
	{"cut after tokens", cut_after_tokens, 200, "in the middle of the answer"},
	{"cut in event", cut_in_event, 200, "in the middle of the answer"},
	{"bad chunk", say_bad_chunk, 200, "broken chunk"},
	{"bad event", say_bad_event, 200, "not JSON"},
	{"error event", say_error_event, 200, "the worker \"d1\" is gone"},
	{"too few", say_too_few, 200, "1 tokens of 4 (finish_reason length"},
	{"too many", say_too_many, 200, "5 tokens of 4"},
	{"no [DONE]", say_no_done, 200, "without [DONE]"},
	{"no token", say_no_token, 200, "no token"},
	{"html", say_html, 200, "without [DONE]"},
	{"huge line", say_huge_line, 200, "more than 16777216 bytes"},
};

TEST_LOOP(a_broken_answer, 0, sizeof faults / sizeof *faults)
{
	const struct fault_case *c = &faults[_i];
	struct server *s = server_new(c->fn, NULL);
	struct outcome_of b;
	bench(&b, s, "-c 2 -n 6 -o 4");
	ck_assert_int_eq(b.code, 0);
	ck_assert_msg(b.f.failed == 6 && b.f.ok == 0, "%s: %llu failed", c->name,
	              (unsigned long long)b.f.failed);
	ck_assert_uint_eq(b.r.n_errors, 1);
	ck_assert_msg(b.r.errors[0].status == c->status && strstr(b.r.errors[0].text, c->says),
	              "%s: %d \"%s\"", c->name, b.r.errors[0].status, b.r.errors[0].text);
	ck_assert_uint_eq(b.r.errors[0].count, 6);
	over(&b, &s);
}

static int answer_every_third(struct request *q)
{
	return q->number % 3 ? answer_well(q) : cut_after_tokens(q);
}

TEST(the_others_go_on)
{
	struct server *s = server_new(answer_every_third, NULL);
	struct outcome_of b;
	bench(&b, s, "-c 3 -n 60 -o 4 --slo ttft=60s");
	ck_assert_uint_eq(b.f.failed, 20);
	ck_assert_uint_eq(b.f.ok, 40);
	ck_assert_double_eq_tol(b.f.goodput_percent, 100.0 * 40 / 60, 1e-9);
	ck_assert_uint_eq(b.f.ttft.n, 40);
	over(&b, &s);
}

TEST(a_silent_server_ends_at_the_timeout)
{
	struct server *s = server_new(never_answer, NULL);
	struct outcome_of b;
	uint64_t begun = clock_us();
	bench(&b, s, "-c 5 -n 10 --timeout 300ms");
	ck_assert_uint_eq(b.f.failed, 10);
	ck_assert(strstr(b.r.errors[0].text, "0.3 s (--timeout)"));
	ck_assert_uint_ge(clock_us() - begun, 600000);
	over(&b, &s);
}

TEST(nobody_listens)
{
	struct outcome_of b;
	bench(&b, NULL, "-c 2 -n 4");
	ck_assert_int_eq(b.code, 0);
	ck_assert_uint_eq(b.f.failed, 4);
	ck_assert_msg(strstr(b.r.errors[0].text, "Connection refused"), "%s", b.r.errors[0].text);
	/* a refusing server is not hammered: a pause after each failure */
	ck_assert_uint_ge(b.r.wall_us, 15000);
	over(&b, NULL);
}

/* One slot rests after its failure; the others do not. */
static int refuse_the_first(struct request *q)
{
	return q->number == 0 ? say_429(q) : answer_well(q);
}

static unsigned sent_during_the_rest(void)
{
	struct server *s = server_new(refuse_the_first, NULL);
	struct outcome_of b;
	unsigned meanwhile = 0;
	bench(&b, s, "-c 2 -d 100ms -o 1");
	ck_assert_uint_eq(b.f.failed, 1);
	uint64_t refused_at = b.r.records[0].outcome == OUTCOME_FAILED ? b.r.records[0].end_us
	                                                               : b.r.records[1].end_us;
	for (size_t i = 0; i < b.r.n; i++)
		meanwhile += b.r.records[i].sent_us > refused_at &&
		             b.r.records[i].sent_us < refused_at + 19000;
	over(&b, &s);
	return meanwhile;
}

TEST(others_do_not_rest)
{
	unsigned sent = 0;
	for (int i = 0; i < 20 && !sent; i++) /* a busy machine may sleep for as long */
		sent = sent_during_the_rest();
	ck_assert_uint_gt(sent, 0);
}

/* --- the first question -------------------------------------------------- */

static int say_models(struct request *q)
{
	const char *body = "{\"data\":[{\"id\":\"a\",\"max_model_len\":100},{\"id\":\"b\",\"max_model_"
					   "len\":200,\"vocab_size\":50}]}";
	return say(q, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n%s", strlen(body), body);
}
static int say_401(struct request *q)
{
	return say(q, "HTTP/1.1 401 No\r\nContent-Length: 0\r\n\r\n");
}

static int probe(answer_fn *fn, const char *model, struct server_info *says, struct err *e)
{
	struct server *s = server_new(fn, NULL);
	struct bench_options o = {.n_urls = 1, .model = model};
	char url[64];
	memset(e, 0, sizeof *e);
	snprintf(url, sizeof url, "http://127.0.0.1:%u", s->port);
	ck_assert_int_eq(url_parse(url, &o.urls[0], e), 0);
	ck_assert_int_eq(url_resolve(&o.urls[0], e), 0);
	int r = probe_server(&o, says, e);
	server_destroy(&s);
	return r;
}

TEST(what_the_server_says_of_itself)
{
	struct server_info says;
	struct err e;
	ck_assert_int_eq(probe(say_models, NULL, &says, &e), 0);
	ck_assert(strcmp(says.model, "a") == 0 && says.context == 100 && says.vocab == 0);
	ck_assert_int_eq(probe(say_models, "b", &says, &e), 0);
	ck_assert(strcmp(says.model, "b") == 0 && says.context == 200 && says.vocab == 50);
	ck_assert_int_eq(probe(say_models, "c", &says, &e), 0);
	ck_assert(says.model[0] == 0);
	ck_assert_int_eq(probe(say_500_plain, NULL, &says, &e), 0);
	ck_assert(strstr(e.text, "500"));
	ck_assert_int_eq(probe(say_html, NULL, &says, &e), 0);
	ck_assert_int_eq(probe(say_401, NULL, &says, &e), ERR_CLOSED);
	ck_assert(strstr(e.text, "--api-key"));
	ck_assert_int_eq(probe(say_garbage, NULL, &says, &e), ERR_CLOSED);
	ck_assert_int_eq(probe(say_nothing, NULL, &says, &e), ERR_CLOSED);
}
