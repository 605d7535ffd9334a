/* test_pdbench_parse.c - pdbench reads what people type and what servers send: options, addresses,
 * HTTP answers, events, in pieces of any size and broken in any way. */
#include "pdbench/event.h"
#include "pdbench/options.h"
#include "pdbench/reply.h"
#include "pdbench/value.h"
#include "util/mem.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* --- values -------------------------------------------------------------- */

TEST_CASE("pdbench_parse", .timeout_s = 120);

TEST(times)
{
	static const struct {
		const char *text;
		int64_t us; /* -1: refused */
	} cases[] = {{"5", 5000000},    {"5s", 5000000},    {"250us", 250}, {"1.5ms", 1500},
	             {"2m", 120000000}, {"1h", 3600000000}, {"0", 0},       {".5s", 500000},
	             {"", -1},          {"-1s", -1},        {"s", -1},      {"5 s", -1},
	             {"5y", -1},        {"5sec", -1},       {"nan", -1},    {"inf", -1},
	             {"1e400", -1},     {"0x10", -1},       {"25h", -1}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		uint64_t us = 7;
		struct err e = {0};
		int r = value_time("--x", cases[i].text, 0, 24 * 3600 * 1000000ull, &us, &e);
		ck_assert_msg((r == 0) == (cases[i].us >= 0), "\"%s\": %d %s", cases[i].text, r, e.text);
		if (r == 0)
			ck_assert_int_eq((int64_t)us, cases[i].us);
		else
			ck_assert_msg(strstr(e.text, "--x") && strstr(e.text, cases[i].text) &&
			                  strstr(e.text, "86400"),
			              "%s", e.text);
	}
}

TEST(distributions)
{
	static const struct {
		const char *text;
		int kind; /* -1: refused */
		double a, b, max;
	} cases[] = {
		{"512", DIST_FIXED, 512, 0, 1000},
		{"1-1000", DIST_UNIFORM, 1, 1000, 1000},
		{"uniform:10,20", DIST_UNIFORM, 10, 20, 1000},
		{"lognormal:300,1", DIST_LOGNORMAL, 300, 1, 1000},
		{"lognormal:300,0.5,400", DIST_LOGNORMAL, 300, 0.5, 400},
		{"0", -1, 0, 0, 0},
		{"1001", -1, 0, 0, 0},
		{"20-10", -1, 0, 0, 0},
		{"1-1001", -1, 0, 0, 0},
		{"10-", -1, 0, 0, 0},
		{"-10", -1, 0, 0, 0},
		{"lognormal:300", -1, 0, 0, 0},
		{"lognormal:300,9", -1, 0, 0, 0},
		{"lognormal:300,1,2000", -1, 0, 0, 0},
		{"lognormal:,1", -1, 0, 0, 0},
		{"10x", -1, 0, 0, 0},
		{"", -1, 0, 0, 0},
		{"normal:1,2", -1, 0, 0, 0},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct dist d = {0};
		struct err e = {0};
		int r = value_dist("--input", cases[i].text, 1, 1000, &d, &e);
		ck_assert_msg((r == 0) == (cases[i].kind >= 0), "\"%s\": %s", cases[i].text, e.text);
		if (r == 0) {
			ck_assert_int_eq((int)d.kind, cases[i].kind);
			ck_assert_double_eq(d.a, cases[i].a);
			ck_assert_double_eq(d.b, cases[i].b);
			ck_assert_double_eq(d.max, cases[i].max);
		}
	}
}

TEST(addresses)
{
	static const struct {
		const char *text, *authority, *path; /* NULL: refused */
	} cases[] = {
		{"http://127.0.0.1:8080", "127.0.0.1:8080", ""},
		{"http://127.0.0.1:8080/", "127.0.0.1:8080", ""},
		{"http://h:1/v1", "h:1", ""},
		{"http://h:1/v1/", "h:1", ""},
		{"http://h/a/v1", "h:80", "/a"},
		{"h:65535", "h:65535", ""},
		{"http://[::1]:80", "[::1]:80", ""},
		{"localhost", "localhost:80", ""},
		{"https://h", "h:443", ""},
		{"https://[::1]:8443/v1", "[::1]:8443", ""},
		{"https:/h", NULL, NULL},
		{"ftp://h", NULL, NULL},
		{"http://", NULL, NULL},
		{"http://h:", NULL, NULL},
		{"http://h:0", NULL, NULL},
		{"http://h:65536", NULL, NULL},
		{"http://h:1x", NULL, NULL},
		{"http://h:1/?q", NULL, NULL},
		{"http://u@h", NULL, NULL},
		{"http://h:1/a b", NULL, NULL},
		{"http://[::1", NULL, NULL},
		{"http://h:1\r\nX: y", NULL, NULL},
		{"", NULL, NULL},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct url u;
		struct err e = {0};
		int r = url_parse(cases[i].text, &u, &e);
		ck_assert_msg((r == 0) == (cases[i].authority != NULL), "\"%s\": %d %s", cases[i].text, r,
		              e.text);
		if (r == 0) {
			ck_assert_str_eq(u.authority, cases[i].authority);
			ck_assert_str_eq(u.path, cases[i].path);
		}
	}
	char *longest = mem_alloc(4000);
	struct url u;
	memset(longest, 'a', 3999);
	longest[3999] = 0;
	ck_assert_int_lt(url_parse(longest, &u, NULL), 0);
	free(longest);
}

/* --- options ------------------------------------------------------------- */

static int parse(const char *line, struct bench_options *o, struct err *e)
{
	static char text[4096];
	char *argv[64] = {(char *)(uintptr_t) "pdbench"}, *at;
	int n = 1;
	snprintf(text, sizeof text, "%s", line);
	for (char *w = strtok_r(text, " ", &at); w; w = strtok_r(NULL, " ", &at))
		argv[n++] = w;
	memset(e, 0, sizeof *e);
	return options_parse(n, argv, o, e);
}

TEST(wrong_options_say_what_and_why)
{
	static const struct {
		const char *line, *says; /* a part of the sentence */
	} cases[] = {
		{"--rate 5 --concurrency 2", "--concurrency"},
		{"--rate 0", "--rate must be a number from 0.001 to 100000, got \"0\""},
		{"--rate 1e9", "got \"1e9\""},
		{"--concurrency 60001", "from 1 to 60000, got \"60001\""},
		{"-c -1", "got \"-1\""},
		{"-n 0", "--number"},
		{"-n 1.5", "whole number"},
		{"--duration 1us", "--duration must be a time"},
		{"--arrivals sometimes --rate 1", "poisson, constant or trace"},
		{"--arrivals poisson", "open loop"},
		{"--arrivals trace --rate 1", "--trace"},
		{"--arrivals constant --trace x", "--rate"},
		{"--abort 150%", "from 0% to 100%"},
		{"--trace x --input 5", "--input"},
		{"--lengths x -o 5", "--output"},
		{"--sample 0.5", "--trace"},
		{"--sample 0 --trace x", "more than 0"},
		{"--trace x --trace-block 512 --length-scale 3", "does not divide"},
		{"--vocab 1", "at least two ids"},
		{"--vocab 10-11", "at least two ids"},
		{"--vocab 5-x", "--vocab"},
		{"--vocab 100 --text", "--text"},
		{"--over cut", "clip or skip"},
		{"--extra-body []", "JSON object"},
		{"--extra-body {\"a\":", "JSON object"},
		{"--extra-body {\"stream\":false}", "\"stream\" is set by pdbench"},
		{"--extra-body {\"max_tokens\":1}", "\"max_tokens\""},
		{"--header nothing", "NAME: VALUE"},
		{"--header host:x", "set by pdbench"},
		{"--header a\tb:x", "control character (0x09)"},
		{"--slo ttft=0", "ttft"},
		{"--slo tft=1s", "ttft="},
		{"--slo ,", "--slo"},
		{"--result-prefix a=b", "'='"},
		{"--ramp 5s --trace x", "--ramp"},
		{"--nonsense", "no option \"--nonsense\""},
		{"--rate", "--rate needs a value (R)"},
		{"-Z", "no option -Z"},
		{"--quiet=3", "--quiet takes no value"},
		{"http://a http://b http://c:0", "http://c:0"},
		{"1 2 3 4 5 6 7 8 9 a b c d e f g h", "17 addresses, more than 16"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct bench_options o;
		struct err e;
		int r = parse(cases[i].line, &o, &e);
		ck_assert_msg(r == ERR_INVALID && strstr(e.text, cases[i].says), "%s: %d \"%s\"",
		              cases[i].line, r, e.text);
		options_fini(&o);
	}
}

TEST(good_options)
{
	struct bench_options o;
	struct err e;
	ck_assert_int_eq(parse("", &o, &e), OPTIONS_RUN);
	ck_assert_uint_eq(o.concurrency, 1);
	ck_assert_uint_eq(o.number, 20);
	ck_assert_str_eq(o.urls[0].authority, "127.0.0.1:8080");
	options_fini(&o);
	ck_assert_int_eq(parse("-r 2.5 -d 90 -w 5s -i 10-20 -o lognormal:100,1 --slo ttft=500ms,itl=1s "
	                       "-H a:b -H c:d http://x:1 http://y:2 --allow-errors 5%",
	                       &o, &e),
	                 OPTIONS_RUN);
	ck_assert_double_eq(o.rate, 2.5);
	ck_assert_uint_eq(o.duration_us, 90000000);
	ck_assert_uint_eq(o.number, 0);
	ck_assert_uint_eq(o.warmup.us, 5000000);
	ck_assert_uint_eq(o.slo.ttft_us, 500000);
	ck_assert_uint_eq(o.slo.itl_us, 1000000);
	ck_assert_uint_eq(o.n_urls, 2);
	ck_assert_str_eq(o.headers.data, "a:b\r\nc:d\r\n");
	ck_assert_double_eq(o.allow_fraction, 0.05);
	options_fini(&o);
	ck_assert_int_eq(parse("--trace f --time-scale 10", &o, &e), OPTIONS_RUN);
	ck_assert_int_eq((int)o.arrivals, ARRIVE_TRACE);
	ck_assert_uint_eq(o.number, 0);
	options_fini(&o);
	ck_assert_int_eq(parse("-h --rate x", &o, &e), OPTIONS_HELP);
	options_fini(&o);
}

/* --- answers ------------------------------------------------------------- */

struct body {
	char text[4096];
	size_t n;
};

static int on_body(void *arg, const char *data, size_t n)
{
	struct body *b = arg;
	ck_assert_uint_le(b->n + n, sizeof b->text);
	memcpy(b->text + b->n, data, n);
	b->n += n;
	return 0;
}

/* Fed in pieces of the given size after a first piece; the verdict as reply_feed and reply_eof
 * give it. */
static int feed(struct reply *r, const char *text, size_t n, size_t first, size_t piece,
                struct body *b, struct err *e)
{
	size_t at = 0, used;
	int code = 0;
	reply_init(r);
	b->n = 0;
	while (at < n && code == 0) {
		size_t k = at == 0 && first ? first : piece;
		k = k < n - at ? k : n - at;
		code = reply_feed(r, text + at, k, on_body, b, &used, e);
		if (code == 0)
			ck_assert_uint_eq(used, k);
		at += used;
	}
	return code ? code : reply_eof(r, e);
}

static const struct {
	const char *text, *body;
	int status, keep;
} answers[] = {
	{"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, 1},
	{"HTTP/1.1 200\r\ncontent-length:5\r\nConnection: close\r\n\r\nhello", "hello", 200, 0},
	{"HTTP/1.0 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello", 200, 0},
	{"HTTP/1.1 200 OK\nTransfer-Encoding: chunked\n\n5\nhello\n0\n\n", "hello", 200, 1},
	{"HTTP/1.1 200 OK\r\nTransfer-Encoding: "
     "chunked\r\n\r\n1;x=y\r\nh\r\n0004\r\nello\r\n0\r\nTrailer: 1\r\n\r\n",
     "hello", 200, 1},
	{"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 Too Many\r\nContent-Length: 2\r\n\r\nno", "no", 429,
     1},
	{"HTTP/1.1 204 No Content\r\n\r\n", "", 204, 0},
	{"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n", "", 500, 1},
	{"HTTP/1.1 200 OK\r\nX: y\r\n\r\nuntil the end", "until the end", 200, 0},
};

TEST(an_answer_in_pieces)
{
	struct reply r;
	struct body b;
	struct err e;
	for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
		size_t n = strlen(answers[i].text);
		for (size_t first = 0; first <= n; first++) {
			for (size_t piece = 1; piece <= n; piece += first ? n : 1) {
				int code = feed(&r, answers[i].text, n, first, piece, &b, &e);
				ck_assert_msg(code == 1 && r.status == answers[i].status &&
				                  b.n == strlen(answers[i].body) &&
				                  memcmp(b.text, answers[i].body, b.n) == 0,
				              "answer %zu split at %zu in pieces of %zu: %d %d \"%.*s\"", i, first,
				              piece, code, r.status, (int)b.n, b.text);
				ck_assert_int_eq(r.keep_alive, answers[i].keep);
			}
		}
	}
}

/* Every answer that has its own end is broken when it is shorter. */
TEST(an_answer_cut_anywhere)
{
	struct reply r;
	struct body b;
	struct err e;
	for (size_t i = 0; i < 6; i++) {
		for (size_t n = 0; n < strlen(answers[i].text); n++) {
			int code = feed(&r, answers[i].text, n, 0, 7, &b, &e);
			if (code != 1)
				ck_assert_msg(code == ERR_CLOSED && strstr(e.text, "closed the connection"),
				              "%zu %zu %d %s", i, n, code, e.text);
			/* HTTP with bare line feeds: the last empty line may be complete before its last
			 * byte */
			else
				ck_assert_msg(b.n == strlen(answers[i].body), "%zu cut at %zu counts as whole", i,
				              n);
		}
	}
}

TEST(answers_that_are_none)
{
	static const struct {
		const char *text, *says;
	} cases[] = {
		{"SSH-2.0-OpenSSH\r\n", "not HTTP"},
		{"garbage without an end", "not HTTP"},
		{"HTTP/2 200\r\n\r\n", "not HTTP"},
		{"HTTP/1.1 2x0 OK\r\n\r\n", "not HTTP"},
		{"HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "colon"},
		{"HTTP/1.1 200 OK\r\nContent-Length: -5\r\n\r\n", "Content-Length"},
		{"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n", "Content-Length"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", "broken chunk"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n", "broken chunk"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n11111111111111111\r\n",
	     "broken chunk"},
		{"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
	     "longer than its size"},
	};
	struct reply r;
	struct body b;
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		for (size_t piece = 1; piece < 40; piece += 13) {
			struct err e = {0};
			int code = feed(&r, cases[i].text, strlen(cases[i].text), 0, piece, &b, &e);
			ck_assert_msg(code == ERR_INVALID && strstr(e.text, cases[i].says), "%s: %d %s",
			              cases[i].text, code, e.text);
		}
	}
}

TEST(a_head_without_end)
{
	struct reply r;
	struct err e;
	char piece[1000];
	size_t used, fed = 0;
	int code = 0;
	reply_init(&r);
	ck_assert_int_eq(reply_feed(&r, "HTTP/1.1 200 OK\r\nX:", 19, NULL, NULL, &used, &e), 0);
	memset(piece, 'a', sizeof piece);
	while (code == 0 && fed < 10 * REPLY_HEAD_MAX) {
		code = reply_feed(&r, piece, sizeof piece, NULL, NULL, &used, &e);
		fed += sizeof piece;
	}
	ck_assert_int_eq(code, ERR_INVALID);
	ck_assert_uint_le(fed, REPLY_HEAD_MAX + 2000);
}

/* Whatever comes: an end, and never more body than came in. */
TEST(broken_answers_of_all_kinds)
{
	uint64_t state = 17;
	for (int i = 0; i < 60000; i++) {
		const char *sound = answers[i % (sizeof answers / sizeof *answers)].text;
		size_t n = strlen(sound), used = 0, body = 0;
		char *copy = mem_alloc(n);
		struct reply r;
		struct err e = {0};
		memcpy(copy, sound, n);
		for (int k = 0; k <= i % 4; k++) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			copy[(state >> 33) % n] = "\r\n:;0f15 H\0\xff"[(state >> 20) % 12];
		}
		reply_init(&r);
		int code = 0;
		for (size_t at = 0; at < n && code == 0; at += used) {
			size_t k = 1 + (state >> 40) % 9;
			struct body b = {.n = 0};
			k = k < n - at ? k : n - at;
			char *piece = mem_alloc(k);
			memcpy(piece, copy + at, k);
			code = reply_feed(&r, piece, k, on_body, &b, &used, &e);
			ck_assert(used <= k && (code != 0 || used == k));
			body += b.n;
			free(piece);
		}
		if (code == 0)
			code = reply_eof(&r, &e);
		ck_assert(code == 1 || (code < 0 && *e.text));
		ck_assert_uint_le(body, n);
		free(copy);
	}
}

static int wants_no_more(void *arg, const char *data, size_t n)
{
	(void)arg;
	(void)data;
	return n > 0;
}

TEST(a_reader_that_wants_no_more)
{
	struct reply r;
	struct err e;
	size_t used;
	reply_init(&r);
	ck_assert_int_eq(reply_feed(&r, answers[0].text, strlen(answers[0].text), wants_no_more, NULL,
	                            &used, &e),
	                 ERR_CANCELLED);
}

/* --- events -------------------------------------------------------------- */

TEST(events)
{
	static const struct {
		const char *json;
		int r;
		unsigned choices, n_ids;
		const char *ids, *text, *finish;
		uint64_t prompt, completion, cached;
		const char *error; /* NULL: none */
	} cases[] = {
		{"{\"choices\":[{\"index\":0,\"text\":\"a\\\"b\",\"logprobs\":null,\"finish_reason\":null,"
	     "\"token_ids\":[12,7]}]}",
	     0, 1, 2, "12,7", "a\\\"b", "", 0, 0, 0, NULL},
		{" { \"choices\" : [ { \"delta\" : { \"role\":\"assistant\", \"content\" : \"x\" } , "
	     "\"finish_reason\":\"stop\" } ] } ",
	     0, 1, 0, "", "x", "stop", 0, 0, 0, NULL},
		{"{\"choices\":[{\"text\":\"\",\"prompt_token_ids\":[1,2,3],\"token_ids\":[4]}],\"usage\":{"
	     "\"prompt_tokens\":3,\"completion_tokens\":1,\"prompt_tokens_details\":{\"cached_tokens\":"
	     "2}}}",
	     0, 1, 1, "4", "", "", 3, 1, 2, NULL},
		{"{\"choices\":[],\"usage\":{\"prompt_tokens\":9,\"completion_tokens\":8,\"total_tokens\":"
	     "17}}",
	     0, 0, 0, "", "", "", 9, 8, 0, NULL},
		{"{\"choices\":[{\"text\":\"\\\\\"}],\"usage\":null,\"error\":null}", 0, 1, 0, "", "\\\\",
	     "", 0, 0, 0, NULL},
		{"{\"error\":{\"message\":\"no \\\"room\\\"\",\"code\":503}}", 0, 0, 0, "", "", "", 0, 0, 0,
	     "no \\\"room\\\""},
		{"{\"error\":\"short\"}", 0, 0, 0, "", "", "", 0, 0, 0, "short"},
		{"{\"error\":{}}", 0, 0, 0, "", "", "", 0, 0, 0, ""},
		{"{}", 0, 0, 0, "", "", "", 0, 0, 0, NULL},
		{"{\"choices\":{\"text\":\"not a list\"},\"usage\":[1]}", 0, 0, 0, "", "", "", 0, 0, 0,
	     NULL},
		{"{\"usage\":{\"prompt_tokens\":\"nine\",\"completion_tokens\":1e3}}", 0, 0, 0, "", "", "",
	     0, 0, 0, NULL},
		{"", -1, 0, 0, "", "", "", 0, 0, 0, NULL},
		{"[]", -1, 0, 0, "", "", "", 0, 0, 0, NULL},
		{"{\"choices\":[{\"text\":\"a}]}", -1, 0, 0, "", "", "", 0, 0, 0, NULL},
		{"{\"choices\":[{\"text\":\"a\"}]", -1, 0, 0, "", "", "", 0, 0, 0, NULL},
		{"{\"choices\":[{\"text\":\"a\"}]} x", -1, 0, 0, "", "", "", 0, 0, 0, NULL},
		{"{\"choices\":[{\"token_ids\":[1,[2]]}]}", -1, 0, 0, "", "", "", 0, 0, 0, NULL},
		{"{\"a\":}", -1, 0, 0, "", "", "", 0, 0, 0, NULL},
		{"{\"a\" 1}", -1, 0, 0, "", "", "", 0, 0, 0, NULL},
		{"{\"a\":1,}", -1, 0, 0, "", "", "", 0, 0, 0, NULL},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct event_parts e;
		/* a copy of the exact size, so that a byte too far is seen by the sanitizer */
		size_t n = strlen(cases[i].json);
		char *copy = mem_alloc(n + 1);
		memcpy(copy, cases[i].json, n);
		int r = event_scan(copy, n, &e);
		ck_assert_msg(r == cases[i].r, "%s: %d", cases[i].json, r);
		if (r == 0 && cases[i].completion + cases[i].prompt > 0)
			ck_assert(e.has_usage);
		if (r == 0) {
			ck_assert_msg(e.n_choices == cases[i].choices && e.n_ids == cases[i].n_ids, "%s: %u %u",
			              cases[i].json, e.n_choices, e.n_ids);
			ck_assert_int_eq((int)e.ids.n, (int)strlen(cases[i].ids));
			ck_assert(!e.ids.n || memcmp(e.ids.at, cases[i].ids, e.ids.n) == 0);
			ck_assert_int_eq((int)e.text.n, (int)strlen(cases[i].text));
			ck_assert(!e.text.n || memcmp(e.text.at, cases[i].text, e.text.n) == 0);
			ck_assert_int_eq((int)e.finish.n, (int)strlen(cases[i].finish));
			ck_assert_uint_eq(e.prompt_tokens, cases[i].prompt);
			ck_assert_uint_eq(e.completion_tokens, cases[i].completion);
			ck_assert_uint_eq(e.cached_tokens, cases[i].cached);
			ck_assert_int_eq(e.is_error, cases[i].error != NULL);
			if (cases[i].error)
				ck_assert(e.error.n == strlen(cases[i].error) &&
				          (!e.error.n || memcmp(e.error.at, cases[i].error, e.error.n) == 0));
		}
		free(copy);
	}
}

TEST(deep_and_broken_events)
{
	char deep[8200] = "{\"a\":";
	struct event_parts e;
	for (size_t n = 1; n <= 4000; n += n < 100 ? 1 : 977) { /* sound, but for its depth */
		memset(deep + 5, '[', n);
		memset(deep + 5 + n, ']', n);
		deep[5 + 2 * n] = '}';
		ck_assert_int_eq(event_scan(deep, 6 + 2 * n, &e), n <= 64 ? 0 : -1);
		ck_assert_int_eq(event_scan(deep, 5 + n, &e), -1);
	}
	static const char sound[] =
		"{\"id\":\"x\",\"choices\":[{\"index\":0,\"text\":\"a\\\\\\\"b\\u00e9\",\"token_ids\":[1,"
		"22,333],\"finish_reason\":\"length\"}],"
		"\"usage\":{\"prompt_tokens\":12,\"prompt_tokens_details\":{\"cached_tokens\":3},"
		"\"completion_tokens\":4},\"error\":null}";
	uint64_t state = 5;
	for (int i = 0; i < 50000; i++) {
		size_t n = sizeof sound - 1;
		char *copy = mem_alloc(n);
		memcpy(copy, sound, n);
		for (int k = 0; k < 1 + i % 3; k++) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			copy[(state >> 33) % n] = "{}[]\",:\\0 9a"[(state >> 20) % 12];
		}
		state = state * 6364136223846793005u + 1442695040888963407u;
		size_t cut = i % 5 ? n : (state >> 33) % n;
		char *exact = mem_alloc(cut ? cut : 1);
		memcpy(exact, copy, cut);
		if (event_scan(exact, cut, &e) == 0)
			ck_assert_uint_le(e.ids.n + e.text.n, n);
		free(exact);
		free(copy);
	}
}

static int gather(void *arg, const char *data, size_t n)
{
	struct body *b = arg;
	ck_assert_uint_lt(b->n + n + 1, sizeof b->text);
	memcpy(b->text + b->n, data, n);
	b->n += n;
	b->text[b->n++] = '|';
	b->text[b->n] = 0;
	return 0;
}

TEST(lines_of_a_stream)
{
	static const char stream[] =
		": comment\n\ndata: {\"a\":1}\n\ndata:two\r\n\r\nevent: x\nid: 3\ndata: three\ndata: "
		"lines\n\n\n\ndata: \n\ndata: [DONE]\n\ndata: not ended\n";
	static const char want[] = "{\"a\":1}|two|three\nlines||[DONE]|";
	size_t n = sizeof stream - 1;
	for (size_t first = 0; first <= n; first++) {
		for (size_t piece = 1; piece <= n; piece += first ? n : 1) {
			struct sse s;
			struct body b = {.n = 0};
			sse_init(&s);
			for (size_t at = 0; at < n;) {
				size_t k = at == 0 && first ? first : piece;
				k = k < n - at ? k : n - at;
				char *copy = mem_alloc(k);
				memcpy(copy, stream + at, k);
				ck_assert_int_eq(sse_feed(&s, copy, k, gather, &b), 0);
				free(copy);
				at += k;
			}
			ck_assert_str_eq(b.text, want);
			sse_fini(&s);
		}
	}
}

TEST(a_line_without_end)
{
	static char piece[1 << 20];
	struct sse s;
	struct body b = {.n = 0};
	unsigned mib = 0;
	int code = 0;
	memset(piece, 'x', sizeof piece);
	sse_init(&s);
	while (code == 0 && mib++ < 64)
		code = sse_feed(&s, piece, sizeof piece, gather, &b);
	ck_assert_int_eq(code, ERR_FULL);
	ck_assert_uint_le(mib, 17);
	sse_fini(&s);
}
