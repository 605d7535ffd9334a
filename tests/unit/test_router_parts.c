/* test_router_parts.c - the router's small parts: request heads, stop strings, parameters,
 * placement, the registry. */
/* run: threads */
#include "tests/unit/registry_defaults.h"
#include "http/parse.h"
#include "daemons/router/api/params.h"
#include "msg/codec.h"
#include "router_rig.h"

#define COUNT(a) (int)(sizeof(a) / sizeof *(a))

/* --- heads --------------------------------------------------------------- */

static const struct {
	const char *head;
	int status; /* 0: good */
	const char *method, *path, *query;
	int keep_alive, chunked;
	long length;
} heads[] = {
	{"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 0, "GET", "/", "", 1, 0, -1},
	{"GET /a?b=c?d HTTP/1.0\r\n\r\n", 0, "GET", "/a", "b=c?d", 0, 0, -1},
	{"GET /a HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", 0, "GET", "/a", "", 1, 0, -1},
	{"POST /a HTTP/1.1\r\nHost: x\r\nConnection: foo, close\r\nContent-Length:  12 \r\n\r\n", 0,
     "POST", "/a", "", 0, 0, 12},
	{"POST /a HTTP/1.1\r\nHost: x\r\nCONTENT-LENGTH: 3\r\n\r\n", 0, "POST", "/a", "", 1, 0, 3},
	{"POST /a HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\n",
     .status = 400},
	{"GET / HTTP/1.1\r\n\r\n", .status = 400},
	{"POST /a HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: Chunked\r\n\r\n", 0, "POST", "/a", "", 1, 1,
     -1},
	{"GET http://h:1/x HTTP/1.1\r\nHost: x\r\n\r\n", 0, "GET", "/x", "", 1, 0, -1},
	{"GET http://h HTTP/1.1\r\nHost: x\r\n\r\n", .status = 400},
	{"GET  / HTTP/1.1\r\nHost: x\r\n\r\n", .status = 400},
	{"GET /\r\n\r\n", .status = 400},
	{"GET / HTTP/1.1 x\r\n\r\n", .status = 400},
	{"GET / HTTP/3.0\r\n\r\n", .status = 505},
	{"GET / HTTP/3\r\n\r\n", .status = 400},
	{"GET / FTP/1.1\r\n\r\n", .status = 400},
	{"G(T / HTTP/1.1\r\nHost: x\r\n\r\n", .status = 400},
	{"GET x HTTP/1.1\r\nHost: x\r\n\r\n", .status = 400},
	{"GET / HTTP/1.1\n\r\n", .status = 400},
	{"\r\n", .status = 400},
	{"GET / HTTP/1.1\r\nHost: x\r\nNoColon\r\n\r\n", .status = 400},
	{"GET / HTTP/1.1\r\nHost: x\r\n: x\r\n\r\n", .status = 400},
	{"GET / HTTP/1.1\r\nHost: x\r\nA : x\r\n\r\n", .status = 400},
	{"GET / HTTP/1.1\r\nHost: x\r\n folded: x\r\n\r\n", .status = 400},
	{"GET / HTTP/1.1\r\nHost: x\r\nA: \x01\r\n\r\n", .status = 400},
	{"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\n", .status = 400},
	{"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: \r\n\r\n", .status = 400},
	{"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +3\r\n\r\n", .status = 400},
	{"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999\r\n\r\n", .status = 400},
	{"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", .status = 501},
	{"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n",
     .status = 400},
	{"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n", .status = 400},
	{"POST / HTTP/1.1\r\nHost: x\r\nExpect: tea\r\n\r\n", .status = 400},
};

TEST_LOOP(request_heads, 0, COUNT(heads))
{
	struct http_head h;
	const char *why = "";
	size_t n = strlen(heads[_i].head);
	char *text = mem_alloc(n + 1); /* exactly so long: a read beyond is seen by the sanitizer */
	memcpy(text, heads[_i].head, n + 1);
	ck_assert_int_eq(http_parse_head(text, n, &h, &why), heads[_i].status);
	if (heads[_i].status) {
		ck_assert_str_ne(why, "");
	} else {
		ck_assert_str_eq(h.method, heads[_i].method);
		ck_assert_str_eq(h.path, heads[_i].path);
		ck_assert_str_eq(h.query, heads[_i].query);
		ck_assert_int_eq(h.keep_alive, heads[_i].keep_alive);
		ck_assert_int_eq(h.chunked, heads[_i].chunked);
		ck_assert_int_eq(h.has_length ? (long)h.content_length : -1, heads[_i].length);
	}
	free(text);
}

/* Whatever bytes come: no crash, and never more read than there is. */
TEST(random_heads)
{
	static const char bits[] =
		"GET /POSTHTTP/1.1\r\n\r\n: ;,chunkedContent-LengthTransfer-Encoding0129\t\x80";
	unsigned seed = 1;
	for (int i = 0; i < 20000; i++) {
		struct http_head h;
		const char *why;
		size_t n = (size_t)rand_r(&seed) % 80;
		char *text = mem_alloc(n + 1);
		for (size_t k = 0; k < n; k++)
			text[k] = bits[(size_t)rand_r(&seed) % sizeof bits];
		text[n] = 0;
		http_parse_head(text, n, &h, &why);
		free(text);
	}
}

static const struct {
	const char *line;
	long long want;
} sizes[] = {
	{"0", 0},
	{"a", 10},
	{"1F", 31},
	{"10;name=x", 16},
	{"5;a;b=\"c d\"", 5},
	{"5 ", -1},
	{"5;", -1},
	{"5; a", -1},
	{"", -1},
	{"x", -1},
	{"-1", -1},
	{"0x5", -1},
	{"00ffffffffffffff", 0xffffffffffffffll},
	{"10000000000000000", -1},
	{"00000000000000000", -1},
	{"5g", -1},
};

TEST_LOOP(chunk_sizes, 0, COUNT(sizes))
{
	uint64_t n = 0;
	int r = http_parse_chunk_size(sizes[_i].line, strlen(sizes[_i].line), &n);
	ck_assert_int_eq(r, sizes[_i].want < 0 ? -1 : 0);
	if (r == 0)
		ck_assert_uint_eq(n, (uint64_t)sizes[_i].want);
}

/* --- stop strings -------------------------------------------------------- */

static const struct {
	const char *stops[4];
	const char *text;
	int which;
	size_t end;  /* where the scan ends */
	size_t held; /* at the end of the text, when nothing was found */
} scans[] = {
	{{"stop"}, "do not stop here", 0, 11, 0},
	{{"stop"}, "do not sto", -1, 0, 3},
	{{"stop"}, "do not stoq", -1, 0, 0},
	{{"aab"}, "aaab", 0, 4, 0},
	{{"abab"}, "abaabab", 0, 7, 0},
	{{"aaaa"}, "aaa", -1, 0, 3},
	{{"xyz", "y"}, "wxyz", 1, 3, 0},
	{{"bc", "abc", "c"}, "abc", 1, 3, 0}, /* the longest of those that end there */
	{{"\n\n", "###"}, "a\n# ##\n", -1, 0, 1},
	{{"é"}, "caf\xc3", -1, 0, 1},
	{{"é"}, "café", 0, 5, 0},
	{{"ababac"}, "abababac", 0, 8, 0},
};

TEST_LOOP(stop_strings, 0, COUNT(scans))
{
	const char *stops[4];
	size_t lens[4], n = 0, len = strlen(scans[_i].text);
	for (; n < 4 && scans[_i].stops[n]; n++) {
		stops[n] = scans[_i].stops[n];
		lens[n] = strlen(stops[n]);
	}
	struct stop_set *s = stop_set_new(stops, lens, n);
	for (size_t step = 1; step <= len; step++) {
		/* the same however the text is cut into pieces */
		struct stop_scan scan = {0};
		size_t at = 0, end = 0;
		int which = -1;
		while (at < len && which < 0) {
			size_t k = len - at < step ? len - at : step;
			which = stop_feed(s, &scan, scans[_i].text + at, k, &end);
			at += which < 0 ? k : end;
		}
		ck_assert_int_eq(which, scans[_i].which);
		if (which >= 0)
			ck_assert_uint_eq(at, scans[_i].end);
		else
			ck_assert_uint_eq(stop_held(s, &scan), scans[_i].held);
	}
	stop_set_destroy(&s);
}

/* Against the plain way: search all of the text again after each byte. */
TEST(stop_strings_against_plain_search)
{
	unsigned seed = 3;
	for (int round = 0; round < 3000; round++) {
		char a[6] = "", b[6] = "", text[40] = "";
		for (int i = 0, n = 1 + rand_r(&seed) % 5; i < n; i++)
			a[i] = "ab"[rand_r(&seed) % 2];
		for (int i = 0, n = 1 + rand_r(&seed) % 5; i < n; i++)
			b[i] = "ab"[rand_r(&seed) % 2];
		for (int i = 0; i < 30; i++)
			text[i] = "abc"[rand_r(&seed) % 3];
		const char *stops[2] = {a, b};
		size_t lens[2] = {strlen(a), strlen(b)}, got = 0, want = 0;
		struct stop_set *s = stop_set_new(stops, lens, 2);
		struct stop_scan scan = {0};
		int which = stop_feed(s, &scan, text, 30, &got);
		for (size_t end = 1; end <= 30 && !want; end++)
			for (int k = 0; k < 2; k++)
				if (end >= lens[k] && memcmp(text + end - lens[k], stops[k], lens[k]) == 0)
					want = end;
		ck_assert_uint_eq(which < 0 ? 0 : got, want);
		stop_set_destroy(&s);
	}
}

/* What is passed over ends nothing, but a string may begin there. */
TEST(stop_strings_passed_over)
{
	static const struct {
		const char *passed, *fed;
		int which;
		size_t end, held;
	} rows[] = {
		{"stop", "", -1, 0, 0},      {"stop", " stop", 0, 5, 0}, {"a st", "op", 0, 2, 0},
		{"stopstop", "x", -1, 0, 0}, {"abab", "ab", 1, 2, 0},    {"abab", "", -1, 0, 2},
		{"ababab", "x", -1, 0, 0},   {"", "abab", 1, 4, 0},
	};
	const char *stops[] = {"stop", "abab"};
	const size_t lens[] = {4, 4};
	struct stop_set *s = stop_set_new(stops, lens, 2);
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct stop_scan scan = {0};
		size_t end = 0;
		stop_pass(s, &scan, rows[i].passed, strlen(rows[i].passed));
		ck_assert_int_eq(stop_feed(s, &scan, rows[i].fed, strlen(rows[i].fed), &end),
		                 rows[i].which);
		if (rows[i].which >= 0)
			ck_assert_uint_eq(end, rows[i].end);
		else
			ck_assert_uint_eq(stop_held(s, &scan), rows[i].held);
	}
	stop_set_destroy(&s);
}

/* --- parameters ---------------------------------------------------------- */

static const struct {
	const char *json;
	int chat;
	const char *param; /* NULL: good */
} bodies[] = {
	{"{}", 0, NULL},
	{"{\"n\":128,\"best_of\":128,\"top_k\":-1,\"seed\":-9223372036854775808,\"stop\":\"\","
     "\"logprobs\":20}",
     0, NULL},
	{"{\"max_tokens\":0,\"echo\":true}", 0, NULL},
	{"{\"max_tokens\":0}", 0, "max_tokens"},
	{"{\"max_tokens\":0}", 1, "max_tokens"},
	{"{\"max_tokens\":-1,\"max_completion_tokens\":5}", 1, NULL},
	{"{\"max_completion_tokens\":0}", 1, "max_completion_tokens"},
	{"{\"max_tokens\":9e30}", 0, "max_tokens"},
	{"{\"temperature\":1e-320}", 0, NULL},
	{"{\"top_p\":1e-300}", 0, "top_p"}, /* 0 as a float */
	{"{\"n\":129}", 0, "n"},
	{"{\"n\":\"2\"}", 0, "n"},
	{"{\"n\":true}", 0, "n"},
	{"{\"best_of\":2}", 0, "best_of"},
	{"{\"logprobs\":true}", 1, NULL},
	{"{\"top_logprobs\":1}", 1, "top_logprobs"},
	{"{\"logprobs\":true,\"top_logprobs\":21}", 1, "top_logprobs"},
	{"{\"echo\":true}", 1, "echo"},
	{"{\"stream\":1}", 0, "stream"},
	{"{\"stream\":true,\"stream_options\":{\"include_usage\":2}}", 0, "stream_options"},
	{"{\"stop\":[\"\"]}", 0, "stop"},
	{"{\"stop\":[]}", 0, NULL},
	{"{\"stop\":{}}", 0, "stop"},
	{"{\"stop_token_ids\":[1.5]}", 0, "stop_token_ids"},
	{"{\"logit_bias\":{}}", 0, NULL},
	{"{\"logit_bias\":{\"1\":0,\"299\":-100,\"00\":100}}", 0, NULL},
	{"{\"logit_bias\":{\"300\":0}}", 0, "logit_bias"},
	{"{\"logit_bias\":{\"-1\":0}}", 0, "logit_bias"},
	{"{\"logit_bias\":{\"\":0}}", 0, "logit_bias"},
	{"{\"logit_bias\":{\"1x\":0}}", 0, "logit_bias"},
	{"{\"logit_bias\":{\"4294967297\":0}}", 0, "logit_bias"},
	{"{\"logit_bias\":{\"1\":100.5}}", 0, "logit_bias"},
	{"{\"logit_bias\":{\"1\":-101}}", 1, "logit_bias"},
	{"{\"logit_bias\":{\"1\":null}}", 0, "logit_bias"},
	{"{\"logit_bias\":[]}", 0, "logit_bias"},
	{"{\"allowed_token_ids\":[0,299,0]}", 0, NULL},
	{"{\"allowed_token_ids\":[]}", 0, "allowed_token_ids"},
	{"{\"allowed_token_ids\":[300]}", 0, "allowed_token_ids"},
	{"{\"allowed_token_ids\":[-1]}", 0, "allowed_token_ids"},
	{"{\"allowed_token_ids\":[1.0]}", 0, "allowed_token_ids"},
	{"{\"bad_words\":[]}", 0, NULL},
	{"{\"bad_words\":[\"x\"]}", 0, "bad_words"}, /* without a tokenizer */
	{"{\"bad_words\":\"x\"}", 0, "bad_words"},
	{"{\"min_tokens\":1}", 0, NULL},
	{"{\"min_tokens\":-1}", 0, "min_tokens"},
	{"{\"repetition_penalty\":0}", 0, "repetition_penalty"},
	{"{\"repetition_penalty\":1e-60}", 0, "repetition_penalty"},
	{"{\"repetition_penalty\":10.1}", 0, "repetition_penalty"},
	{"{\"repetition_penalty\":10}", 0, NULL},
	{"{\"presence_penalty\":2.01}", 0, "presence_penalty"},
	{"{\"presence_penalty\":-2}", 1, NULL},
	{"{\"frequency_penalty\":-2.01}", 0, "frequency_penalty"},
	{"{\"frequency_penalty\":2}", 0, NULL},
	{"{\"typical_p\":0}", 0, "typical_p"},
	{"{\"typical_p\":1.1}", 0, "typical_p"},
	{"{\"truncate_prompt_tokens\":0}", 0, "truncate_prompt_tokens"},
	{"{\"truncate_prompt_tokens\":-2}", 0, "truncate_prompt_tokens"},
	{"{\"truncate_prompt_tokens\":-1}", 0, NULL},
	{"{\"prompt_logprobs\":0}", 1, NULL},
	{"{\"prompt_logprobs\":21}", 0, "prompt_logprobs"},
	{"{\"prompt_logprobs\":1,\"stream\":true}", 0, "prompt_logprobs"},
	{"{\"suffix\":\"x\"}", 0, "suffix"},
	{"{\"use_beam_search\":true}", 0, "use_beam_search"},
	{"{\"tools\":[]}", 1, NULL},
};

TEST_LOOP(parameters, 0, COUNT(bodies))
{
	struct api_error e = {0};
	struct params p;
	json_t *o = json_loads(bodies[_i].json, 0, NULL);
	ck_assert_ptr_nonnull(o);
	int r = params_read(o, bodies[_i].chat, 128, &p, &e);
	if (r == 0)
		r = params_read_ids(o, NULL, 300, &p, &e);
	ck_assert_msg(r == (bodies[_i].param ? -1 : 0), "%s: %d %s", bodies[_i].json, r, e.text);
	if (bodies[_i].param) {
		ck_assert_str_eq(e.param, bodies[_i].param);
		ck_assert_int_eq(e.status, 400);
		ck_assert_msg(strstr(e.text, bodies[_i].param) != NULL, "%s", e.text);
	}
	params_fini(&p);
	json_decref(o);
}

TEST(parameters_and_their_defaults)
{
	struct api_error e = {0};
	struct params p;
	json_t *o = json_loads("{\"temperature\":null,\"seed\":-1}", 0, NULL);
	ck_assert_int_eq(params_read(o, 0, 8, &p, &e), 0);
	ck_assert_float_eq(p.sampling.temperature, 1);
	ck_assert_float_eq(p.sampling.top_p, 1);
	ck_assert_uint_eq(p.sampling.top_k, 0);
	ck_assert_int_eq(p.sampling.logprobs, -1);
	ck_assert_uint_eq(p.sampling.seed, UINT64_MAX);
	ck_assert_int_eq(p.has_seed, 1);
	ck_assert_int_eq(p.has_max_tokens, 0);
	ck_assert_uint_eq(p.max_tokens, 16);
	ck_assert_int_eq(p.skip_special, 1);
	ck_assert_float_eq(p.sampling.repetition_penalty, 1);
	ck_assert_float_eq(p.sampling.typical_p, 1);
	ck_assert_float_eq(p.sampling.presence_penalty, 0);
	ck_assert_float_eq(p.sampling.frequency_penalty, 0);
	ck_assert_uint_eq(p.min_tokens, 0);
	ck_assert_int_eq(p.prompt_logprobs, -1);
	ck_assert_int_eq(p.sampling.prompt_logprobs, 0);
	ck_assert_int_eq((int)p.truncate, 0);
	params_fini(&p);
	json_decref(o);
}

/* --- placement ----------------------------------------------------------- */

static struct worker_record *add(struct registry *g, const char *name, const char *role,
                                 const char *numerics, const char *layout)
{
	Pds__WorkerInfo w = PDS__WORKER_INFO__INIT;
	w.role = (char *)role;
	w.model_fingerprint = (char *)"f";
	w.site = (char *)"s";
	w.numerics = (char *)numerics;
	w.layout = (char *)layout;
	w.context_tokens = 2048;
	return registry_up(g, (struct peer *)g, name, 1, &w, clock_us());
}

static const char *choose(struct registry *g, uint32_t tokens, const char *numerics,
                          const char *avoid)
{
	static char text[256];
	struct placement p;
	struct place_query query = {
		.tokens = tokens, .total_tokens = tokens, .numerics = numerics, .avoid = avoid};
	int r = place_choose(g, &query, clock_us(), &p);
	if (r < 0)
		return err_name(r);
	size_t n = (size_t)snprintf(text, sizeof text, "%s", p.first->name);
	for (unsigned i = 0; i < p.n_decode; i++)
		n += (size_t)snprintf(text + n, sizeof text - n, " %s", p.decode[i]->name);
	return text;
}

TEST(placement)
{
	struct registry g;
	registry_defaults(&g, 1000000);
	ck_assert_str_eq(choose(&g, 5, NULL, NULL), err_name(ERR_NOTFOUND));
	struct worker_record *p1 = add(&g, "p1", "prefill", "n", "l"),
						 *d1 = add(&g, "d1", "decode", "other", "l");
	/* no pair: decode does it alone */
	ck_assert_str_eq(choose(&g, 5, NULL, NULL), "d1");
	add(&g, "d2", "decode", "n", "other");
	struct worker_record *d3 = add(&g, "d3", "decode", "n", "l"),
						 *d4 = add(&g, "d4", "decode", "n", "l");
	/* equal numerics and layout only */
	ck_assert_str_eq(choose(&g, 5, NULL, NULL), "p1 d3 d4");
	ck_assert_str_eq(choose(&g, 5, NULL, NULL), "p1 d4 d3"); /* ties go round */
	d4->tokens_in_flight = 100;
	ck_assert_str_eq(choose(&g, 5, NULL, NULL), "p1 d3 d4");
	ck_assert_str_eq(choose(&g, 5, NULL, "d3"), "p1 d4 d3"); /* who failed is taken last */
	struct worker_record *m = add(&g, "m1", "mixed", "m", "l");
	m->tokens_in_flight = 50;
	ck_assert_str_eq(choose(&g, 5, NULL, NULL), "p1 d3 d4");
	p1->tokens_in_flight = p1->backlog_tokens = 60;
	ck_assert_str_eq(choose(&g, 5, NULL, NULL), "m1");
	/* as the attempt before computed */
	ck_assert_str_eq(choose(&g, 5, "n", NULL), "p1 d3 d4");
	m->beat.running = 1;
	m->progress_us = clock_us() - 2000000;
	ck_assert_str_eq(choose(&g, 5, NULL, NULL), "p1 d3 d4"); /* m1 is stuck */
	p1->beat.draining = 1;
	ck_assert_str_eq(choose(&g, 5, NULL, NULL), "d2"); /* alone, rather than m1 */
	ck_assert_str_eq(choose(&g, 3000, NULL, NULL), err_name(ERR_FULL));
	m->beat.draining = d1->beat.draining = d3->beat.draining = 1;
	d4->context_tokens = 4;
	ck_assert_str_eq(choose(&g, 5, NULL, NULL), "d2");
	registry_down(&g, registry_find(&g, "d2"), clock_us());
	ck_assert_str_eq(choose(&g, 5, NULL, NULL), err_name(ERR_NOTFOUND));
	registry_fini(&g);
}

TEST(more_decode_workers_than_candidates)
{
	struct registry g;
	struct worker_record *d[20];
	char name[8];
	registry_defaults(&g, 1000000);
	add(&g, "p1", "prefill", "n", "l");
	for (int i = 0; i < 20; i++) {
		snprintf(name, sizeof name, "d%d", i);
		d[i] = add(&g, name, "decode", "n", "l");
		d[i]->tokens_in_flight = (uint64_t)(20 - i);
	}
	ck_assert_str_eq(choose(&g, 5, NULL, NULL), "p1 d19 d18 d17 d16 d15 d14 d13 d12");
	registry_fini(&g);
}

TEST(who_may_come_in)
{
	struct registry g;
	char why[256] = "";
	Pds__WorkerInfo w = PDS__WORKER_INFO__INIT;
	registry_defaults(&g, 1000000);
	w.role = (char *)"decode";
	w.model_fingerprint = (char *)"f";
	w.site = (char *)"s";
	w.vocab = 1000;
	ck_assert_int_eq(registry_admit(&g, "d1", &w, 1000, why, sizeof why), 0);
	ck_assert_int_eq(registry_admit(&g, "d1", &w, 1001, why, sizeof why), ERR_INVALID);
	ck_assert_ptr_nonnull(strstr(why, "1000"));
	ck_assert_ptr_nonnull(strstr(why, "1001"));
	w.role = (char *)"poet";
	ck_assert_int_eq(registry_admit(&g, "d1", &w, 0, why, sizeof why), ERR_INVALID);
	w.role = (char *)"decode";
	ck_assert_int_eq(registry_admit(&g, "", &w, 0, why, sizeof why), ERR_INVALID);
	add(&g, "p1", "prefill", "n", "l");
	ck_assert_int_eq(registry_admit(&g, "d1", &w, 0, why, sizeof why), 0);
	w.model_fingerprint = (char *)"another";
	ck_assert_int_eq(registry_admit(&g, "d1", &w, 0, why, sizeof why), ERR_INVALID);
	ck_assert_ptr_nonnull(strstr(why, "another differs from f"));
	registry_down(&g, registry_find(&g, "p1"), clock_us());
	ck_assert_int_eq(registry_admit(&g, "d1", &w, 0, why, sizeof why), 0);
	registry_forget(&g, clock_us() + WORKER_FORGET_US - 1000000);
	ck_assert_ptr_nonnull(registry_find(&g, "p1"));
	registry_forget(&g, clock_us() + WORKER_FORGET_US + 1000000);
	ck_assert_ptr_null(registry_find(&g, "p1"));
	registry_fini(&g);
}

/* An endpoint goes to all other workers, in messages that are dropped whole when one in them is
 * too long. */
TEST(an_endpoint_that_nobody_could_be_told)
{
	struct registry g;
	char why[256] = "", text[MSG_ENDPOINT_MAX + 2];
	Pds__WorkerInfo w = PDS__WORKER_INFO__INIT;
	registry_defaults(&g, 1000000);
	memset(text, 'e', sizeof text);
	text[MSG_ENDPOINT_MAX + 1] = 0;
	w.role = (char *)"decode";
	w.model_fingerprint = (char *)"f";
	w.site = (char *)"s";
	w.endpoint = text;
	ck_assert_int_eq(registry_admit(&g, "d1", &w, 0, why, sizeof why), ERR_INVALID);
	ck_assert_ptr_nonnull(strstr(why, "201 bytes, allowed 200"));
	struct worker_record *d = add(&g, "d1", "decode", "n", "l");
	ck_assert_int_eq(registry_update(&g, d, &w, why, sizeof why), ERR_INVALID);
	ck_assert_str_eq(d->endpoint, "");
	text[MSG_ENDPOINT_MAX] = 0;
	ck_assert_int_eq(registry_admit(&g, "d2", &w, 0, why, sizeof why), 0);
	ck_assert_int_eq(registry_update(&g, d, &w, why, sizeof why), 0);
	ck_assert_str_eq(d->endpoint, text);
	registry_fini(&g);
}

/* Workers that come under ever new names take no more room than their limit; who is up keeps its
 * record. */
TEST(records_are_bounded)
{
	struct registry g;
	char name[16];
	registry_defaults(&g, 1000000);
	struct worker_record *up = add(&g, "up", "decode", "n", "l");
	for (unsigned i = 0; i < WORKERS_MAX + 100; i++) {
		snprintf(name, sizeof name, "w%u", i);
		registry_down(&g, add(&g, name, "decode", "n", "l"), i + 1);
	}
	ck_assert_uint_eq(g.n_workers, WORKERS_MAX);
	ck_assert_ptr_eq(registry_find(&g, "up"), up);
	ck_assert_ptr_null(registry_find(&g, "w100")); /* those that are down longest went */
	ck_assert_ptr_nonnull(registry_find(&g, "w101"));
	ck_assert_uint_eq(g.n_up, 1);
	registry_fini(&g);
}
