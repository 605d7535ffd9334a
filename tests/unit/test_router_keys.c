/* test_router_keys.c - who may come in and with how much: access keys and their limits, what is
 * decided at a request's head, JSON that takes much memory. */
#include "daemons/router/api/keys.h"
#include "kv/hash.h"
#include "router_client.h"
#include "tempdir.h"
#include "util/log.h"

#include <signal.h>

/* --- keys ---------------------------------------------------------------- */

static const struct {
	const char *authorization;
	int good;
} forms[] = {
	{"Bearer alpha", 1},
	{"Bearer beta-2", 1},
	{"bearer alpha", 1},
	{"BEARER alpha", 1},
	{"Bearer  alpha", 1},
	{"Bearer      beta-2", 1},
	{"", 0},
	{"alpha", 0},
	{"Bearer", 0},
	{"Bearer ", 0},
	{"Bearer  ", 0},
	{"Beareralpha", 0},
	{"Bearer\talpha", 0},
	{"Bearer: alpha", 0},
	{"Bearer=alpha", 0},
	{"Basic alpha", 0},
	{"Bearer alph", 0},
	{"Bearer alphaa", 0},
	{"Bearer Alpha", 0},
	{"Bearer alpha beta-2", 0},
	{"Bearer alpha,", 0},
	{"Bearer Bearer alpha", 0},
	{"Bearer \"alpha\"", 0},
	{"Token alpha", 0},
	{" Bearer alpha", 0},
};

/* Of the file of keys. */
#define ALPHA "sha256:8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8"
#define BETA2 "sha256:aea721c039a808c24a14d26bbece6cf37f4313400182b45909ec4f3a51171b66"
#define EMPTY "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static int load(struct api_keys *k, const char *text, uint64_t now_us, struct err *err)
{
	char path[TEST_FOLDER_BYTES];
	test_file(path, "keys");
	FILE *f = fopen(path, "w");
	ck_assert_ptr_nonnull(f);
	fputs(text, f);
	fclose(f);
	return api_keys_load(k, path, now_us, err);
}

static struct tenant *holder(const struct api_keys *k, const char *authorization)
{
	struct tenant *t;
	return api_keys_allow(k, authorization, "", &t) ? t : NULL;
}

TEST_CASE("keys", .timeout_s = 60);

TEST_LOOP(key_forms, 0, sizeof forms / sizeof *forms)
{
	struct api_keys k = {0};
	struct tenant *t;
	const char *sent = forms[_i].authorization;
	ck_assert_int_eq(api_keys_allow(&k, sent, "", &t), 1); /* no key is needed */
	ck_assert_ptr_null(t);
	ck_assert_int_eq(load(&k, "a " ALPHA "\n# b\n\n b\t" BETA2 "  # x\nc " EMPTY, 0, NULL), 0);
	ck_assert_msg(api_keys_allow(&k, sent, "", &t) == forms[_i].good, "\"%s\"", sent);
	if (t)
		ck_assert_str_eq(t->name, strstr(sent, "alpha") ? "a" : "b");
	ck_assert_int_eq(load(&k, "b " BETA2 "\n", 0, NULL), 0);
	ck_assert_ptr_null(holder(&k, "Bearer alpha"));
	ck_assert_ptr_nonnull(holder(&k, "Bearer beta-2"));
	ck_assert_int_eq(load(&k, "# nobody\n", 0, NULL), 0); /* not the same as no file */
	ck_assert_int_eq(api_keys_allow(&k, "Bearer beta-2", "", &t), 0);
	ck_assert_int_eq(api_keys_load(&k, "", 0, NULL), 0);
	ck_assert_int_eq(api_keys_allow(&k, sent, "", &t), 1);
	api_keys_fini(&k);
}

/* Each is refused as a whole, with its line, and changes nothing. */
static const struct {
	const char *text, *part;
} bad_files[] = {
	{"a " ALPHA "\nb\n", "keys:2: the key's hash is missing or wrong"},
	{"\n\nb sha256:12\n", "keys:3: the key's hash is missing or wrong"},
	{"b md5:" ALPHA "\n", "keys:1: the key's hash"},
	{"b " ALPHA "0\n", "keys:1: the key's hash"},
	{"b sha256:g4cc9e2f5a0d6f9d4b8d3d3c9dc8ad3d4b8b2d0e5a1f7c3b9e8d7f6a5b4c3d2e\n",
     "keys:1: the key's hash"},
	{"a,b " ALPHA "\n", "keys:1: the name is not 1 to 63"},
	{"a123456789012345678901234567890123456789012345678901234567890123 " ALPHA, "is not 1 to 63"},
	{"a " ALPHA "\nb " ALPHA "\n", "keys:2: the hash of b is that of a, too"},
	{"a " ALPHA "\na " BETA2 " tokens=5\n",
     "keys:2: a has other limits on an earlier line: repeat them, or give none"},
	{"a " ALPHA " shared-cache\na " BETA2 " tokens=5\n",
     "keys:2: a has other limits on an earlier line"},
	{"a " ALPHA " requests=0\n", "keys:1: requests must be a number from 1 to 1000000000"},
	{"a " ALPHA " tokens=1000000001\n", "tokens must be a number from 1 to 1000000000"},
	{"a " ALPHA " concurrent=-1\n", "concurrent must be a number from 1 to 1000000"},
	{"a " ALPHA " tokens= 5\n", "tokens must be a number"},
	{"a " ALPHA " tokens=5k\n", "tokens must be a number"},
	{"a " ALPHA " tokens=5 tokens=6\n", "tokens is there twice"},
	{"a " ALPHA " token=5\n",
     "a word after the hash is none of requests=N, tokens=N, concurrent=N"},
	{"a " ALPHA " shared\n", "a word after the hash is none of"},
};

TEST_LOOP(bad_file_changes_nothing, 0, sizeof bad_files / sizeof *bad_files)
{
	struct api_keys k = {0};
	struct err err = {0};
	char longer[2000];
	ck_assert_int_eq(load(&k, "a " ALPHA " requests=5\n", 0, NULL), 0);
	struct tenant *t = holder(&k, "Bearer alpha");
	ck_assert_int_lt(load(&k, bad_files[_i].text, 0, &err), 0);
	has(err.text, bad_files[_i].part);
	ck_assert_ptr_eq(holder(&k, "Bearer alpha"), t);
	ck_assert_uint_eq(t->limit[TENANT_REQUESTS], 5);
	snprintf(longer, sizeof longer, "# %1500s\n", "x");
	ck_assert_int_lt(load(&k, longer, 0, &err), 0);
	has(err.text, "keys:1: the line is longer than 510 bytes");
	ck_assert_int_lt(api_keys_load(&k, "/nonexistent/keys", 0, &err), 0);
	has(err.text, "api_keys_file /nonexistent/keys: No such file");
	ck_assert_ptr_eq(holder(&k, "Bearer alpha"), t);
	api_keys_fini(&k);
}

TEST(number_of_keys_is_bounded)
{
	struct api_keys k = {0};
	struct err err = {0};
	struct buf b;
	buf_init(&b, 0);
	for (unsigned i = 0; i < API_KEYS_MAX + 1; i++)
		buf_printf(&b, "k%u sha256:%064x\n", i, i);
	ck_assert_int_lt(load(&k, b.data, 0, &err), 0);
	has(err.text, "keys:4097: there are more than 4096 keys");
	strrchr(b.data, 'k')[0] = 0;
	ck_assert_int_eq(load(&k, b.data, 0, &err), 0);
	ck_assert_uint_eq(k.n, API_KEYS_MAX);
	buf_fini(&b);
	api_keys_fini(&k);
}

/* --- limits -------------------------------------------------------------- */

#define SECOND 1000000u

TEST(requests_a_minute)
{
	struct tenant *t = tenant_new("a");
	struct api_error e = {0};
	char headers[TENANT_HEADERS_MAX];
	uint64_t now = 5 * SECOND;
	tenant_set_limits(t, (uint32_t[TENANT_LIMITS]){6, 0, 0}, now);
	for (int i = 0; i < 6; i++) {
		ck_assert_int_eq(tenant_check(t, now, &e), 0);
		tenant_begin(t, now);
		tenant_end(t, 1);
	}
	ck_assert_int_lt(tenant_check(t, now, &e), 0);
	ck_assert_int_eq(e.status, 429);
	ck_assert_str_eq(e.code, "rate_limit_exceeded");
	ck_assert_str_eq(e.type, "requests");
	has(e.text, "6 requests a minute");
	ck_assert_uint_eq(e.retry_after_s, 10);
	ck_assert_int_eq(e.by_key, 1);
	tenant_headers(t, now, headers);
	ck_assert_str_eq(headers, "x-ratelimit-limit-requests: 6\r\nx-ratelimit-remaining-requests: "
	                          "0\r\nx-ratelimit-reset-requests: 1m0s\r\n");
	ck_assert_int_lt(tenant_check(t, now + 10 * SECOND - 1, &e), 0);
	ck_assert_uint_eq(e.retry_after_s, 1);
	ck_assert_int_eq(tenant_check(t, now + 10 * SECOND, &e), 0);
	/* a bucket holds a minute's worth, however long nobody came */
	now += 3600ull * SECOND;
	for (int i = 0; i < 6; i++) {
		ck_assert_int_eq(tenant_check(t, now, &e), 0);
		tenant_begin(t, now);
		tenant_end(t, 1);
	}
	ck_assert_int_lt(tenant_check(t, now, &e), 0);
	ck_assert_uint_eq(t->refused[TENANT_REQUESTS], 3);
	tenant_put(t);
}

TEST(tokens_a_minute)
{
	struct tenant *t = tenant_new("a");
	struct api_error e = {0};
	char headers[TENANT_HEADERS_MAX];
	tenant_set_limits(t, (uint32_t[TENANT_LIMITS]){0, 600, 0}, 0);
	ck_assert_int_eq(tenant_take_prompt(t, 500, 0, &e), 0);
	ck_assert_int_lt(tenant_take_prompt(t, 101, 0, &e), 0);
	ck_assert_str_eq(e.type, "tokens");
	ck_assert_uint_eq(e.retry_after_s, 1); /* 10 tokens a second */
	ck_assert_int_eq(tenant_take_prompt(t, 100, 0, &e), 0);
	tenant_generated(t, 300, 0); /* known only afterwards: into debt */
	tenant_headers(t, 15 * SECOND, headers);
	has(headers, "x-ratelimit-remaining-tokens: 0\r\n");
	has(headers, "x-ratelimit-reset-tokens: 1m15s\r\n");
	ck_assert_int_lt(tenant_check(t, 30 * SECOND, &e), 0);
	ck_assert_uint_eq(e.retry_after_s, 1);
	ck_assert_int_eq(tenant_check(t, 30 * SECOND + SECOND / 10, &e), 0);
	/* longer than a whole bucket: it needs a full one */
	ck_assert_int_lt(tenant_take_prompt(t, 5000, 60 * SECOND, &e), 0);
	ck_assert_uint_eq(e.retry_after_s, 30);
	ck_assert_int_eq(tenant_take_prompt(t, 5000, 90 * SECOND, &e), 0);
	ck_assert_int_lt(tenant_check(t, 90 * SECOND, &e), 0);
	ck_assert_uint_eq(e.retry_after_s, 441);
	ck_assert_uint_eq(t->prompt_tokens, 5600);
	ck_assert_uint_eq(t->generated_tokens, 300);
	/* no amount overflows */
	for (int i = 0; i < 100; i++)
		tenant_generated(t, UINT64_MAX, 90 * SECOND);
	ck_assert_int_lt(tenant_check(t, 90 * SECOND, &e), 0);
	tenant_put(t);
}

TEST(a_refused_request_is_given_back)
{
	struct tenant *t = tenant_new("a");
	struct api_error e = {0};
	tenant_set_limits(t, (uint32_t[TENANT_LIMITS]){2, 600, 0}, 0);
	tenant_begin(t, 0);
	tenant_begin(t, 0);
	ck_assert_int_eq(tenant_take_prompt(t, 600, 0, &e), 0);
	ck_assert_int_lt(tenant_check(t, 0, &e), 0);
	tenant_give_back(t, 600, 0);
	ck_assert_int_eq(tenant_check(t, 0, &e), 0);
	ck_assert_int_eq(tenant_take_prompt(t, 600, 0, &e), 0);
	/* never above a minute's worth, whatever is given back */
	for (int i = 0; i < 5; i++)
		tenant_give_back(t, i ? 600 : UINT64_MAX, 0);
	ck_assert_int_eq(tenant_take_prompt(t, 600, 0, &e), 0);
	ck_assert_int_lt(tenant_take_prompt(t, 1, 0, &e), 0);
	tenant_begin(t, 0);
	tenant_begin(t, 0);
	ck_assert_int_lt(tenant_check(t, 0, &e), 0);
	ck_assert_str_eq(e.type, "requests");
	for (int i = 0; i < 4; i++)
		tenant_end(t, 1);
	tenant_put(t);
}

TEST(answers_at_once)
{
	struct tenant *t = tenant_new("a");
	struct api_error e = {0};
	char headers[TENANT_HEADERS_MAX];
	tenant_set_limits(t, (uint32_t[TENANT_LIMITS]){0, 0, 2}, 0);
	tenant_begin(t, 0);
	ck_assert_int_eq(tenant_check(t, 0, &e), 0);
	tenant_begin(t, 0);
	ck_assert_int_lt(tenant_check(t, 3600ull * SECOND, &e), 0);
	has(e.text, "2 answers at once");
	ck_assert_int_eq(e.by_key, 0); /* when one ends is not known */
	tenant_headers(t, 0, headers);
	ck_assert_str_eq(headers, "");
	tenant_end(t, 1);
	ck_assert_int_eq(tenant_check(t, 0, &e), 0);
	tenant_end(t, 1);
	/* a request with n = 8 is eight of them */
	tenant_set_limits(t, (uint32_t[TENANT_LIMITS]){0, 0, 9}, 0);
	tenant_begin(t, 0);
	ck_assert_int_eq(tenant_take_answers(t, 8, &e), 0);
	tenant_begin(t, 0);
	ck_assert_int_lt(tenant_check(t, 0, &e), 0);
	ck_assert_int_lt(tenant_take_answers(t, 2, &e), 0);
	ck_assert_int_eq(e.status, 429);
	ck_assert_str_eq(e.code, "rate_limit_exceeded");
	has(e.text, "2 answers with 8 others of this access key at work are more than its limit, 9 ");
	ck_assert_uint_eq(t->running, 9);
	tenant_end(t, 1);
	tenant_end(t, 8);
	ck_assert_int_eq(tenant_check(t, 0, &e), 0);
	tenant_put(t);
}

/* A key that stays keeps what it has used, also under another limit or with another hash; one that
 * goes lives on until its requests have ended. */
TEST(reload_keeps_what_was_used)
{
	struct api_keys k = {0};
	struct api_error e = {0};
	ck_assert_int_eq(load(&k, "a " ALPHA " requests=2\nb " BETA2 "\n", 0, NULL), 0);
	struct tenant *a = holder(&k, "Bearer alpha"), *b = holder(&k, "Bearer beta-2");
	tenant_begin(a, 0);
	tenant_begin(a, 0);
	tenant_begin(b, 0);
	ck_assert_int_eq(load(&k, "a " BETA2 " requests=2 tokens=7 shared-cache\n", 0, NULL), 0);
	ck_assert_ptr_eq(holder(&k, "Bearer beta-2"), a);
	ck_assert_int_eq(a->shared_cache, 1);
	ck_assert_uint_eq(a->running, 2);
	ck_assert_int_lt(tenant_check(a, 0, &e), 0);
	ck_assert_int_eq(tenant_take_prompt(a, 7, 0, &e), 0); /* a new bucket is full */
	ck_assert_int_eq(load(&k, "a " BETA2 " requests=1\n", 0, NULL), 0);
	ck_assert_int_lt(tenant_check(a, 59 * SECOND, &e), 0);
	ck_assert_int_eq(tenant_check(a, 60 * SECOND, &e), 0);
	api_keys_fini(&k);
	tenant_end(b, 1);
	tenant_end(a, 1);
	tenant_end(a, 1);
}

/* Both work, count together, and the old one may go. */
TEST(a_key_is_replaced)
{
	struct api_keys k = {0};
	struct api_error e = {0};
	ck_assert_int_eq(load(&k, "a " ALPHA " requests=2\n", 0, NULL), 0);
	struct tenant *a = holder(&k, "Bearer alpha");
	ck_assert_int_eq(load(&k, "a " ALPHA " requests=2\na " BETA2 "\n", 0, NULL), 0);
	ck_assert_ptr_eq(holder(&k, "Bearer alpha"), a);
	ck_assert_ptr_eq(holder(&k, "Bearer beta-2"), a);
	ck_assert_uint_eq(k.n, 2);
	ck_assert_uint_eq(k.n_tenants, 1);
	tenant_begin(a, 0);
	tenant_begin(a, 0);
	ck_assert_int_lt(tenant_check(a, 0, &e), 0);
	ck_assert_int_eq(load(&k, "a " BETA2 " requests=2\n", 0, NULL), 0);
	ck_assert_ptr_null(holder(&k, "Bearer alpha"));
	ck_assert_ptr_eq(holder(&k, "Bearer beta-2"), a);
	ck_assert_int_lt(tenant_check(a, 0, &e), 0);
	api_keys_fini(&k);
	tenant_end(a, 1);
	tenant_end(a, 1);
}

/* Neither name nor text: none. Another name or another text, or the border between them elsewhere:
 * another salt. */
TEST(salts_differ)
{
	static const struct {
		const char *name, *text;
	} of[] = {{"a", ""}, {"b", ""}, {"", "a"}, {"a", "b"}, {"", "ab"}, {"ab", ""}, {"b", "a"}};
	enum { N = sizeof of / sizeof *of };
	unsigned char salt[N][CACHE_SALT_BYTES], again[CACHE_SALT_BYTES];
	ck_assert_int_eq(tenant_salt("", "", 0, again), 0);
	for (int i = 0; i < N; i++) {
		ck_assert_int_eq(tenant_salt(of[i].name, of[i].text, strlen(of[i].text), salt[i]), 1);
		tenant_salt(of[i].name, of[i].text, strlen(of[i].text), again);
		ck_assert_mem_eq(again, salt[i], sizeof again);
		for (int j = 0; j < i; j++)
			ck_assert_mem_ne(salt[i], salt[j], sizeof *salt);
	}
}

/* --- the head ------------------------------------------------------------ */

#define KEY "Authorization: Bearer alpha\r\n"
#define LONG "Content-Length: 100000\r\n"

/* Heads, without a byte of a body. "100": the body is asked for. */
static const struct {
	const char *line, *fields;
	int status;
	const char *part;
} heads[] = {
	{"POST /v1/completions", LONG, 401, "WWW-Authenticate: Bearer\r\n"},
	{"POST /v1/completions", LONG "Authorization: alpha\r\n", 401, "invalid_api_key"},
	{"POST /v1/chat/completions", "Transfer-Encoding: chunked\r\n", 401, "invalid_api_key"},
	{"POST /v1/completions", LONG KEY, 100, ""},
	{"POST /tokenize", "Transfer-Encoding: chunked\r\n" KEY, 100, ""},
	{"POST /v1/completions", "Content-Length: 100000000\r\n" KEY, 413,
     "longer than this path takes: at most "},
	{"POST /v1/completions", "Content-Length: 100000000\r\n", 401, "invalid_api_key"},
	{"POST /v1/abort", LONG KEY, 413, "100000 bytes"},
	{"POST /v1/abort", LONG, 401, "invalid_api_key"},
	{"PUT /v1/completions", LONG KEY, 405, "Allow: POST\r\n"},
	{"PUT /v1/completions", LONG, 405, "Allow: POST\r\n"},
	{"POST /health", LONG, 405, "Allow: GET\r\n"},
	{"POST /nothing", LONG, 404, "/nothing"},
	{"GET /health", LONG, 413, "100000 bytes"},
	{"GET /metrics", "Content-Length: 100\r\n", 100, ""},
	{"GET /v1/models", "Content-Length: 100\r\n", 401, "invalid_api_key"},
};

TEST_LOOP(decided_at_the_head, 0, sizeof heads / sizeof *heads)
{
	struct world *w = world_new(NULL, 1u << 20);
	char want[32], *text = mem_zalloc(1 << 16);
	char *request = mem_printf("%s HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n%s\r\n",
	                           heads[_i].line, heads[_i].fields);
	size_t n = 0;
	struct http_counts held;
	ck_assert_int_eq(load(&w->r.keys, "a " ALPHA "\n", 0, NULL), 0);
	int fd = dial(http_port(w->r.http));
	ck_assert_int_gt((int)send(fd, request, strlen(request), 0), 0);
	while (!strstr(text, "\r\n\r\n") ||
	       (heads[_i].status != 100 && !strpbrk(strstr(text, "\r\n\r\n") + 4, "}\n"))) {
		event_base_loop(w->base, EVLOOP_ONCE);
		ssize_t k = recv(fd, text + n, (1 << 16) - 1 - n, MSG_DONTWAIT);
		n += k > 0 ? (size_t)k : 0;
	}
	snprintf(want, sizeof want, "HTTP/1.1 %d ", heads[_i].status);
	ck_assert_msg(strncmp(text, want, strlen(want)) == 0, "%s", text);
	has(text, heads[_i].part);
	ck_assert_uint_eq(w->r.n_requests, 0);
	http_counts(w->r.http, &held);
	ck_assert_uint_le(held.in_bytes, 4096);
	close(fd);
	free(text);
	free(request);
	world_free(w);
}

/* --- beside each other --------------------------------------------------- */

#define KEY_B "Authorization: Bearer beta-2\r\n"

static void load_both(struct world *w, const char *limits)
{
	char text[400];
	snprintf(text, sizeof text, "a " ALPHA " %s\nb " BETA2 "\n", limits);
	ck_assert_int_eq(load(&w->r.keys, text, 0, NULL), 0);
}

static void begin_ask(struct world *w, struct ask *a, pthread_t *t)
{
	uint32_t had = w->r.n_requests;
	a->port = http_port(w->r.http);
	ck_assert_int_eq(pthread_create(t, NULL, ask_thread, a), 0);
	while (w->r.n_requests == had && !atomic_load(&a->over))
		event_base_loop(w->base, EVLOOP_ONCE);
}

static void end_ask(struct world *w, struct ask *a, pthread_t t)
{
	while (!atomic_load(&a->over))
		event_base_loop(w->base, EVLOOP_ONCE);
	pthread_join(t, NULL);
}

/* n = 8 is eight answers, and eight embeddings are one. */
TEST_LOOP(a_key_is_limited_by_answers, 0, 4)
{
	static const struct {
		const char *path, *body, *status, *says;
	} rows[] = {
		{"/v1/completions", "{\"prompt\":[1],\"n\":4}", "HTTP/1.1 200 ", ""},
		{"/v1/completions", "{\"prompt\":[1],\"n\":5}", "HTTP/1.1 429 ",
	     "5 answers with 0 others of this access key at work are more than its limit, 4 answers"},
		{"/v1/completions", "{\"prompt\":[[1],[2],[3]],\"n\":2}", "HTTP/1.1 429 ",
	     "6 answers with 0"},
		{"/v1/embeddings", "{\"input\":[[1],[2],[3],[4],[5],[6],[7],[8]]}", "HTTP/1.1 200 ", ""},
	};
	struct world *w = world_new(NULL, 1u << 20);
	struct ask a = {.path = rows[_i].path, .body = rows[_i].body, .fields = KEY};
	load_both(w, "concurrent=4");
	char *out = ask_full(w, &a);
	has(out, rows[_i].status);
	has(out, rows[_i].says);
	ck_assert_uint_eq(holder(&w->r.keys, "Bearer alpha")->running, 0);
	free(out);
	world_free(w);
}

/* Another key's request cannot be told from one that is unknown. */
TEST(abort_of_another_key)
{
	struct world *w = world_new(NULL, 1u << 20);
	struct ask a = {.path = "/v1/completions", .body = "{\"prompt\":[1]}", .fields = KEY};
	char unknown[100] = "{\"request_id\":\"cmpl-00000000000000000000000000000001\"}", known[100];
	const char *bodies[] = {unknown, known, known}, *fields[] = {KEY_B, KEY_B, KEY};
	char *said[3];
	pthread_t t;
	load_both(w, "");
	w->mute = 1;
	begin_ask(w, &a, &t);
	struct request *q = list_entry(w->r.requests.next, struct request, node);
	snprintf(known, sizeof known, "{\"request_id\":\"%s\"}", q->id);
	for (int i = 0; i < 3; i++) {
		struct ask abort = {.path = "/v1/abort", .body = bodies[i], .fields = fields[i]};
		pthread_t u;
		abort.port = http_port(w->r.http);
		ck_assert_int_eq(pthread_create(&u, NULL, ask_thread, &abort), 0);
		ck_assert_uint_eq(w->r.n_requests, 1);
		end_ask(w, &abort, u);
		said[i] = abort.out;
	}
	has(said[0], "HTTP/1.1 404 ");
	has(said[1], "HTTP/1.1 404 ");
	ck_assert_uint_eq(strlen(said[0]), strlen(said[1]));
	has(said[2], "{\"aborted\":true}");
	end_ask(w, &a, t);
	has(a.out, "\"finish_reason\":\"abort\"");
	for (int i = 0; i < 3; i++)
		free(said[i]);
	free(a.out);
	world_free(w);
}

/* One key's answers do not take all places of max_requests. */
TEST(a_greedy_key_leaves_places)
{
	enum { HOGS = 8 };
	struct world *w = world_new(NULL, 1u << 20);
	struct ask a[HOGS] = {0}, b = {.path = "/v1/completions", .body = "{\"prompt\":[1]}"};
	pthread_t t[HOGS], u;
	w->r.conf.max_requests = 1024;
	load_both(w, "");
	w->mute = 1;
	for (int i = 0; i < HOGS; i++) {
		a[i] = (struct ask){.path = "/v1/completions",
		                    .body = "{\"prompt\":[1],\"n\":128}",
		                    .fields = KEY};
		begin_ask(w, &a[i], &t[i]);
	}
	end_ask(w, &a[HOGS - 1], t[HOGS - 1]);
	has(a[HOGS - 1].out, "HTTP/1.1 429 ");
	has(a[HOGS - 1].out,
	    "896 answers of this client are running here; with 128 more too few of the 128 places");
	b.fields = KEY_B;
	begin_ask(w, &b, &u);
	ck_assert_uint_eq(w->r.n_answers, 897);
	w->mute = 0;
	world_wake(w);
	end_ask(w, &b, u);
	has(b.out, "HTTP/1.1 200 ");
	for (int i = 0; i < HOGS; i++) {
		if (i < HOGS - 1)
			end_ask(w, &a[i], t[i]);
		has(a[i].out, i < HOGS - 1 ? "HTTP/1.1 200 " : "HTTP/1.1 429 ");
		free(a[i].out);
	}
	free(b.out);
	world_free(w);
}

/* It could not be served later either, so it is told what is wrong with it. */
TEST_LOOP(a_request_of_more_answers_than_a_client_gets, 0, 2)
{
	struct world *w = world_new(NULL, 1u << 20);
	w->r.conf.max_requests = _i ? 9 : 8;
	char *out = ask(w, "/v1/completions", "{\"prompt\":[1],\"n\":8}");
	has(out, "HTTP/1.1 200 ");
	free(out);
	out = ask(w, "/v1/completions", "{\"prompt\":[1],\"n\":9}");
	has(out, "HTTP/1.1 400 ");
	has(out, "9 answers at once are more than one client may have of the ");
	has(out, "\"param\":\"n\"");
	free(out);
	world_free(w);
}

/* --- memory -------------------------------------------------------------- */

/* A body whose values take 80 times its size is told so; others of its size are read. */
TEST_LOOP(body_of_many_values, 0, 2)
{
	enum { LEN = 300000 };
	struct world *w = world_new(NULL, 1u << 20);
	char *body = mem_zalloc(LEN + 100), *at = body + sprintf(body, "{\"prompt\":[");
	w->r.conf.request_memory_bytes = 4u << 20;
	while (at < body + LEN)
		at += sprintf(at, "%s", _i ? "12345678," : "{},");
	strcpy(at, "1]}");
	char *out = ask(w, "/v1/completions", body);
	has(out, "HTTP/1.1 400 ");
	has(out, _i ? "is out of range; the vocabulary" : "(max_request_memory_mb)");
	free(out);
	free(body);
	world_free(w);
}

TEST_START(quiet)
{
	log_init("test", NULL);
	log_set_level("error");
	signal(SIGPIPE, SIG_IGN); /* as the daemon skeleton does */
}
