/* test_router_api.c - a whole router in one process with scripted workers: what goes over the wire
 * when workers die, clients leave, answers are cut. What needs a tokenizer is skipped without
 * PD_MODEL. */
#include "router_client.h"
#include "skip.h"
#include "real_model.h"

#include <signal.h>
#include <zlib.h>

/* --- streams and deaths -------------------------------------------------- */

static void kill_decode(struct world *w)
{
	registry_down(&w->r.registry, w->d, clock_us());
	list_each_safe(n, next, &w->running) {
		list_remove(n);
		free(list_entry(n, struct world_attempt, node));
	}
	w->pause_at = 0;
	w->d = world_worker(w, "d2", "decode");
	attempts_worker_down(&w->r.attempts, registry_find(&w->r.registry, "d1"), "killed", 0);
}

/* Sequences are at their workers, and none of them goes on by itself. */
static int all_wait(const struct world *w)
{
	int any = 0;
	list_each(n, &w->running) {
		any = 1;
		if (!w->mute &&
		    !(w->pause_at && list_entry(n, struct world_attempt, node)->index >= w->pause_at))
			return 0;
	}
	return any;
}

struct blow {
	struct world *w;
	void (*fn)(struct world *w);
};

static void strike(evutil_socket_t fd, short what, void *arg)
{
	struct blow *b = arg;
	struct timeval t = {.tv_usec = 5000};
	(void)fd;
	(void)what;
	if (!all_wait(b->w)) {
		ck_assert_int_eq(event_base_once(b->w->base, -1, EV_TIMEOUT, strike, b, &t), 0);
		return;
	}
	b->fn(b->w);
	free(b);
}

/* Does this when the call that comes has got as far as it gets. */
static void when_all_wait(struct world *w, void (*fn)(struct world *w))
{
	struct blow *b = mem_zalloc(sizeof *b);
	*b = (struct blow){w, fn};
	strike(-1, 0, b);
}

/* The ids 10, 11, ... each once and in order, whatever happens between. */
static void check_ids(const char *answer, unsigned n)
{
	const char *p = answer;
	char want[32];
	for (unsigned i = 0; i < n; i++) {
		snprintf(want, sizeof want, "\"token_ids\":[%u]", i + 10);
		const char *at = strstr(p, want);
		ck_assert_msg(at != NULL, "%s is missing", want);
		p = at + 1;
	}
	ck_assert_uint_eq(count(answer, "\"token_ids\":["), n);
}

#define IDS_STREAM \
	"{\"prompt\":[1,2,3],\"max_tokens\":40,\"stream\":true,\"return_token_ids\":true}"

TEST_CASE("api", .timeout_s = 60);

TEST(stream_goes_on_when_decode_dies)
{
	struct world *w = world_new(NULL, 1u << 20);
	w->pause_at = 17;
	when_all_wait(w, kill_decode);
	char *out = ask(w, "/v1/completions", IDS_STREAM);
	check_ids(out, 40);
	has(out, "\"finish_reason\":\"length\"");
	has(out, "data: [DONE]\n\n");
	ck_assert_uint_eq(count(out, "error"), 0);
	ck_assert_uint_eq(w->r.attempts.counts.retries, 1);
	free(out);
	world_free(w);
}

static void kill_all(struct world *w)
{
	struct worker_record *both[] = {w->p, w->d};
	for (int i = 0; i < 2; i++) {
		registry_down(&w->r.registry, both[i], clock_us());
		attempts_worker_down(&w->r.attempts, both[i], "killed", 0);
	}
	list_each_safe(n, next, &w->running) {
		list_remove(n);
		free(list_entry(n, struct world_attempt, node));
	}
}

TEST(stream_ends_in_an_error_event)
{
	struct world *w = world_new(NULL, 1u << 20);
	w->r.attempts.opts.retry_wait_us = 200000;
	w->pause_at = 5;
	when_all_wait(w, kill_all);
	char *out = ask(w, "/v1/completions", IDS_STREAM);
	has(out, "HTTP/1.1 200 OK");
	check_ids(out, 5);
	has(out, "data: {\"error\":{\"message\":\"no worker came back");
	has(out, "data: [DONE]\n\n\r\n0\r\n\r\n");
	free(out);
	world_free(w);
}

TEST(failure_before_the_first_token_is_a_status)
{
	struct world *w = world_new(NULL, 1u << 20);
	w->r.attempts.opts.retry_wait_us = 100000;
	w->mute = 1;
	for (int stream = 0; stream < 2; stream++) {
		w->p = world_worker(w, "p1", "prefill");
		w->d = world_worker(w, "d1", "decode");
		when_all_wait(w, kill_all);
		char *out = ask(w, "/v1/completions",
		                stream ? "{\"prompt\":[1,2,3],\"stream\":true}" : "{\"prompt\":[1,2,3]}");
		has(out, "HTTP/1.1 503 Service Unavailable\r\n");
		has(out, "Retry-After: 1\r\n");
		has(out, "{\"error\":{\"message\":\"no worker came back");
		free(out);
	}
	world_free(w);
}

/* While no worker is there, nobody knows how many ids the model has: its vocabulary may be padded
 * beyond the tokenizer's. So none is refused for good. */
TEST_LOOP(ids_beyond_the_tokenizer_without_workers, 0, 3)
{
	static const char *const bodies[] = {
		"{\"prompt\":[1,%u]}",
		"{\"prompt\":[1],\"allowed_token_ids\":[%u]}",
		"{\"prompt\":[1],\"logit_bias\":{\"%u\":1}}",
	};
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = world_new(model, 1u << 20);
	uint32_t beyond = (uint32_t)tokenizer_size(model->tokenizer) + 10;
	char *body = mem_printf(bodies[_i], beyond);
	w->p->vocab = w->d->vocab = beyond + 1;
	char *out = ask(w, "/v1/completions", body);
	has(out, "HTTP/1.1 200 ");
	free(out);
	registry_down(&w->r.registry, w->p, clock_us());
	registry_down(&w->r.registry, w->d, clock_us());
	out = ask(w, "/v1/completions", body);
	has(out, "HTTP/1.1 503 ");
	free(out);
	free(body);
	world_free(w);
}

static uint64_t no_room_us;

static void no_room(struct world *w)
{
	struct attempt *s = list_entry(w->r.attempts.live.next, struct attempt, by_deadline);
	struct msg_head head = {.req = s->id, .attempt = s->number};
	Pds__Failed m = PDS__FAILED__INIT;
	m.fault = PDS__FAULT__FAULT_OVERLOADED;
	m.text = (char *)"the table is full";
	m.retry = 1;
	m.retry_after_us = no_room_us;
	attempts_failed(&w->r.attempts, w->p, &head, &m);
}

/* What the decode worker said of when to come again reaches the client, if the request has not
 * the time to wait for that. */
TEST_LOOP(retry_after_of_a_worker, 0, 2)
{
	static const struct {
		uint64_t told_us;
		const char *want;
	} rows[] = {{6200000, "Retry-After: 7\r\n"}, {61000000, "Retry-After: 60\r\n"}};
	struct world *w = world_new(NULL, 1u << 20);
	w->r.conf.request_timeout_us = 5000000;
	no_room_us = rows[_i].told_us;
	w->mute = 1;
	when_all_wait(w, no_room);
	char *out = ask(w, "/v1/completions", "{\"prompt\":[1,2,3]}");
	has(out, "HTTP/1.1 429 Too Many Requests\r\n");
	has(out, rows[_i].want);
	has(out, "the table is full");
	free(out);
	world_free(w);
}

TEST(one_failure_ends_all_choices)
{
	struct world *w = world_new(NULL, 1u << 20);
	w->r.attempts.opts.max_attempts = 1;
	w->pause_at = 3;
	when_all_wait(w, kill_all);
	char *out = ask(w, "/v1/completions",
	                "{\"prompt\":[[1],[2],[3],[4]],\"n\":4,\"max_tokens\":10,\"stream\":true}");
	ck_assert_uint_eq(count(out, "data: {\"error\""), 1);
	free(out);
	world_free(w);
}

/* --- clients that leave -------------------------------------------------- */

TEST_LOOP(client_leaves, 0, 4)
{
	struct world *w = world_new(NULL, 1u << 20);
	char *big = mem_alloc(200000);
	size_t n = 0;
	n += (size_t)sprintf(big, "{\"max_tokens\":4000,\"prompt\":[1");
	while (n < 10000)
		n += (size_t)sprintf(big + n, ",2");
	strcpy(big + n, "]}");
	struct ask cases[] = {
		{.path = "/v1/completions",
	     .body = "{\"prompt\":[1],\"max_tokens\":5000,\"stream\":true}",
	     .leave_after = 1000},
		{.path = "/v1/completions",
	     .body = "{\"prompt\":[1],\"max_tokens\":5000}",
	     .leave_at_once = 1},
		{.path = "/v1/completions",
	     .body = "{\"prompt\":[[1],[2],[3]],\"n\":3,\"max_tokens\":5000}",
	     .leave_at_once = 1},
		/* perhaps while a text thread has it */
		{.path = "/v1/completions", .body = big, .leave_at_once = 1},
	};
	w->pause_at = 2000;
	unsigned before = w->cancels;
	free(ask_full(w, &cases[_i]));
	if (_i < 3)
		ck_assert_uint_gt(w->cancels, before);
	ck_assert_uint_eq(w->p->requests + w->d->requests, 0);
	free(big);
	world_free(w);
}

TEST(client_that_reads_nothing)
{
	struct world *w = world_new(NULL, 70000);
	int fd = dial(http_port(w->r.http)), small = 4096;
	const char *body = "{\"prompt\":[[1],[2],[3],[4],[5],[6],[7],[8]],\"n\":16,\"max_tokens\":8000,"
					   "\"stream\":true,\"logprobs\":1}";
	char *head = mem_printf(
		"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %zu\r\n\r\n%s", strlen(body),
		body);
	setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
	ck_assert_int_gt((int)send(fd, head, strlen(head), 0), 0);
	for (uint64_t end = clock_us() + 20000000;
	     w->r.attempts.counts.cancelled < 128 && clock_us() < end;)
		event_base_loop(w->base, EVLOOP_ONCE);
	ck_assert_uint_eq(w->r.attempts.counts.cancelled, 128);
	ck_assert_uint_eq(w->r.n_requests, 0);
	close(fd);
	free(head);
	world_free(w);
}

/* --- hostile bodies ------------------------------------------------------ */

struct storm {
	unsigned port, n, statuses[6];                             /* statuses[4]: answers 4xx */
	int (*body)(unsigned i, char *out, const char **ret_path); /* length, or -1 at the end */
	atomic_int over;
};

/* One answer from a connection that stays open; its status. */
static int read_answer(int fd, char *buf, size_t size)
{
	size_t n = 0;
	int status = 0;
	for (;;) {
		ssize_t k = recv(fd, buf + n, size - 1 - n, 0);
		ck_assert_msg(k > 0, "the connection was closed after: %.200s", buf);
		n += (size_t)k;
		buf[n] = 0;
		char *end = strstr(buf, "\r\n\r\n"), *length = strstr(buf, "Content-Length: ");
		if (!end)
			continue;
		ck_assert_int_eq(sscanf(buf, "HTTP/1.1 %d ", &status), 1);
		if (length && length < end ? n >= (size_t)(end + 4 - buf) + strtoul(length + 16, NULL, 10)
		                           : n >= 5 && memcmp(buf + n - 5, "0\r\n\r\n", 5) == 0)
			return status;
	}
}

static void *storm_thread(void *arg)
{
	struct storm *m = arg;
	char *body = mem_alloc(1u << 16), *answer = mem_alloc(1u << 20), head[256];
	const char *path;
	int fd = dial(m->port), len;
	for (; (len = m->body(m->n, body, &path)) >= 0; m->n++) {
		int k = snprintf(head, sizeof head,
		                 "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n", path, len);
		ck_assert_int_eq((int)send(fd, head, (size_t)k, 0), k);
		ck_assert_int_eq((int)send(fd, body, (size_t)len, 0), len);
		int status = read_answer(fd, answer, 1u << 20);
		ck_assert_msg(status == 200 || status == 400 || status == 404, "%d to %.300s", status,
		              body);
		m->statuses[status / 100]++;
		if (strstr(answer, "Content-Length: ")) {
			json_t *o = json_loads(strstr(answer, "\r\n\r\n") + 4, JSON_ALLOW_NUL, NULL);
			ck_assert_msg(o != NULL, "not JSON: %.300s", answer);
			json_decref(o);
		}
	}
	close(fd);
	free(body);
	free(answer);
	atomic_store(&m->over, 1);
	return NULL;
}

static void storm(struct world *w, struct storm *m)
{
	pthread_t t;
	m->port = http_port(w->r.http);
	ck_assert_int_eq(pthread_create(&t, NULL, storm_thread, m), 0);
	while (!atomic_load(&m->over))
		event_base_loop(w->base, EVLOOP_ONCE);
	pthread_join(t, NULL);
	ck_assert_uint_eq(w->r.n_requests, 0);
	ck_assert_uint_eq(attempts_count(&w->r.attempts), 0);
}

static const char *const paths[] = {"/v1/completions", "/v1/chat/completions", "/tokenize",
                                    "/detokenize", "/v1/abort"};
static const char *const names[] = {
	"model",
	"prompt",
	"messages",
	"tokens",
	"request_id",
	"max_tokens",
	"max_completion_tokens",
	"temperature",
	"top_p",
	"top_k",
	"min_p",
	"seed",
	"stop",
	"stop_token_ids",
	"logprobs",
	"top_logprobs",
	"echo",
	"ignore_eos",
	"n",
	"best_of",
	"stream",
	"stream_options",
	"return_token_ids",
	"suffix",
	"frequency_penalty",
	"presence_penalty",
	"repetition_penalty",
	"typical_p",
	"min_tokens",
	"logit_bias",
	"allowed_token_ids",
	"bad_words",
	"prompt_logprobs",
	"truncate_prompt_tokens",
	"response_format",
	"tools",
	"skip_special_tokens",
	"add_special_tokens",
	"return_token_strs",
};
static const char *const values[] = {
	"null",
	"true",
	"false",
	"0",
	"1",
	"-1",
	"2.5",
	"1e308",
	"-0.0",
	"9223372036854775807",
	"-9223372036854775808",
	"\"\"",
	"\"x\"",
	"\"\\u0000\"",
	"\"\\ud800\"",
	"[]",
	"{}",
	"[1]",
	"[-1]",
	"[[1],[2]]",
	"[[[]]]",
	"[\"a\",\"b\"]",
	"[\"a\",1]",
	"[null]",
	"[true]",
	"{\"type\":\"text\"}",
	"{\"include_usage\":true}",
	"[{\"role\":\"user\",\"content\":\"x\"}]",
	"[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]}]",
	"[{\"role\":\"\",\"content\":\"x\"}]",
	"[{\"role\":5,\"content\":{}}]",
	"[[],{},null]",
	"{\"1\":5}",
	"{\"-1\":1e9}",
};

#define N(a) (sizeof(a) / sizeof *(a))

/* Each parameter with each kind of value, beside a request that is good without it. */
static int every_value(unsigned i, char *out, const char **path)
{
	unsigned v = i % N(values), n = i / N(values) % N(names),
			 p = i / N(values) / (unsigned)N(names);
	if (p >= N(paths))
		return -1;
	*path = paths[p];
	return sprintf(out,
	               "{\"prompt\":[1,2],\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
	               "\"tokens\":[1],\"max_tokens\":2,\"%s\":%s}",
	               names[n], values[v]);
}

/* A good request with some bytes changed. */
static int changed_bytes(unsigned i, char *out, const char **path)
{
	static unsigned seed = 5;
	if (i >= 4000)
		return -1;
	*path = paths[i % 2];
	int n = sprintf(out, "{\"prompt\":[1,2,3],\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],"
	                     "\"max_tokens\":3,\"temperature\":0.5,\"stop\":[\"a\"],\"n\":2}");
	for (unsigned k = rand_r(&seed) % 4; k; k--)
		out[(unsigned)rand_r(&seed) % (unsigned)n] =
			(char)(rand_r(&seed) % 3 ? "{}[]\",:0123456789-eE. "[rand_r(&seed) % 22]
		                             : rand_r(&seed));
	return n - (rand_r(&seed) % 8 ? 0 : (int)((unsigned)rand_r(&seed) % (unsigned)n));
}

TEST(hostile_bodies)
{
	for (int kind = 0; kind < 2; kind++) {
		struct world *w = world_new(model, 1u << 20);
		struct storm m = {.body = kind ? changed_bytes : every_value};
		storm(w, &m);
		ck_assert_uint_gt(m.statuses[2], model ? 500 : 10);
		ck_assert_uint_gt(m.statuses[4], 500);
		world_free(w);
	}
}

/* A question that is answered on the loop is a short one. */
TEST(long_body_that_names_a_request)
{
	struct world *w = world_new(NULL, 1u << 20);
	char *body = mem_zalloc(20000);
	size_t n = (size_t)sprintf(body, "{\"request_id\":\"cmpl-00000000000000000000000000000001\"");
	memset(body + n, ' ', 4095 - n);
	strcpy(body + 4095, "}");
	char *out = ask(w, "/v1/abort", body);
	has(out, "HTTP/1.1 404 ");
	free(out);
	memset(body + n, ' ', 4096 - n);
	strcpy(body + 4096, "}");
	out = ask(w, "/v1/abort", body);
	has(out, "HTTP/1.1 413 ");
	has(out, "4097 bytes");
	free(out);
	free(body);
	world_free(w);
}

/* --- text ---------------------------------------------------------------- */

static uint32_t script[64];

static struct world *text_world(const char *says)
{
	struct world *w = world_new(model, 1u << 20);
	struct token_list l = {0};
	ck_assert_int_eq(
		tokenizer_encode(model->tokenizer, says, strlen(says), TOKENIZE_PARSE_SPECIAL, 60, &l), 0);
	memcpy(script, l.ids, l.n * sizeof *script);
	w->script = script;
	w->n_script = l.n;
	w->stop_at = (uint32_t)l.n - 1; /* the last token is an end of sequence */
	token_list_fini(&l);
	return w;
}

static const struct {
	const char *says, *more, *want, *finish;
} cuts[] = {
	{"Hello world, this is fine.<|im_end|>", "", "Hello world, this is fine.", "stop"},
	{"Hello world, this is fine.<|im_end|>", ",\"max_tokens\":2", "Hello world", "length"},
	{"Hello world, this is fine.<|im_end|>", ",\"stop\":\"world\"", "Hello ", "stop"},
	{"Hello world, this is fine.<|im_end|>", ",\"stop\":\"o w\"", "Hell", "stop"},
	{"Hello world, this is fine.<|im_end|>", ",\"stop\":[\"lo world, th\"]", "Hel", "stop"},
	{"Hello world, this is fine.<|im_end|>",
     ",\"stop\":[\"fine.\"],\"include_stop_str_in_output\":true", "Hello world, this is fine.",
     "stop"},
	{"Hello world, this is fine.<|im_end|>", ",\"stop\":\"fine.!\"", "Hello world, this is fine.",
     "stop"},
	{"Hello world, this is fine.<|im_end|>", ",\"stop\":\"Hello\"", "", "stop"},
	{"Hello<|im_start|> world<|im_end|>", "", "Hello world", "stop"},
	{"Hello<|im_start|> world<|im_end|>", ",\"skip_special_tokens\":false",
     "Hello<|im_start|> world", "stop"},
	{"Grüße 😀🚀 日本語<|im_end|>", ",\"max_tokens\":60", "Grüße 😀🚀 日本語", "stop"},
	{"Grüße 😀🚀 日本語<|im_end|>", ",\"max_tokens\":60,\"stop\":\"🚀\"", "Grüße 😀", "stop"},
};

TEST_LOOP(answers_are_cut, 0, sizeof cuts / sizeof *cuts)
{
	char body[512];
	if (!model)
		SKIP(SKIP_NO_MODEL);
	for (int stream = 0; stream < 2; stream++)
		for (int chat = 0; chat < 2; chat++) {
			struct world *w = text_world(cuts[_i].says);
			snprintf(body, sizeof body, "{%s%s,\"stream\":%s}",
			         chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
			              : "\"prompt\":\"x\"",
			         cuts[_i].more, stream ? "true" : "false");
			char *out = ask(w, chat ? "/v1/chat/completions" : "/v1/completions", body),
				 *got = texts(out, chat ? "content" : "text"), want[64];
			ck_assert_str_eq(got, cuts[_i].want);
			snprintf(want, sizeof want, "\"finish_reason\":\"%s\"", cuts[_i].finish);
			ck_assert_uint_eq(count(out, want), 1);
			free(got);
			free(out);
			world_free(w);
		}
}

/* Half a character at the end of an answer becomes U+FFFD, once. */
TEST(answer_that_ends_within_a_character)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = text_world("a日<|im_end|>");
	ck_assert_uint_gt(w->n_script, 2);
	char *out = ask(w, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":2,\"stream\":true}"),
		 *got = texts(out, "text");
	ck_assert_str_eq(got, w->n_script > 3 ? "a\xEF\xBF\xBD" : "a日");
	free(got);
	free(out);
	world_free(w);
}

TEST(echo_and_logprobs)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = text_world(" is Paris.<|im_end|>");
	char *out = ask(w, "/v1/completions",
	                "{\"prompt\":\"The capital of "
	                "France\",\"echo\":true,\"logprobs\":0,\"return_token_ids\":true}");
	has(out, "\"text\":\"The capital of France is Paris.\"");
	has(out, "\"tokens\":[\"The\",\" capital\",\" of\",\" France\",\" is\",\" "
	         "Paris\",\".\",\"<|im_end|>\"]");
	has(out, "\"token_logprobs\":[null,-1.5,-1.5,-1.5,-0.25,-0.5,-0.75,-1]");
	has(out, "\"text_offset\":[0,3,11,14,21,24,30,31]");
	has(out, "\"prompt_tokens\":4,\"completion_tokens\":4,\"total_tokens\":8");
	free(out);
	out = ask(w, "/v1/completions",
	          "{\"prompt\":\"The capital of "
	          "France\",\"echo\":true,\"logprobs\":0,\"max_tokens\":0,\"stream\":true}");
	has(out, "\"text\":\"The capital of France\"");
	has(out, "\"token_logprobs\":[null,-1.5,-1.5,-1.5]");
	has(out, "\"finish_reason\":\"length\"");
	free(out);
	world_free(w);
}

TEST(long_prompts_go_to_a_thread)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = text_world("ok<|im_end|>");
	char *body = mem_alloc(100000), *at = body + sprintf(body, "{\"max_tokens\":5,\"prompt\":\"");
	for (int i = 0; i < 4000; i++)
		at += sprintf(at, "word ");
	strcpy(at, "\"}");
	char *out = ask(w, "/v1/completions", body);
	has(out, "\"text\":\"ok\"");
	has(out, "\"prompt_tokens\":400");
	free(out);
	strcpy(at, "\",\"n\":\"x\"}");
	out = ask(w, "/v1/completions", body);
	has(out, "HTTP/1.1 400 ");
	has(out, "\"param\":\"n\"");
	free(out);
	free(body);
	world_free(w);
}

/* The only text thread is held up: long bodies wait for it, short ones do not. */
TEST(long_bodies_never_run_on_the_loop)
{
	struct world *w = world_new(NULL, 1u << 20);
	struct gate g;
	char *big = long_body();
	struct ask lng = {.port = http_port(w->r.http), .path = "/v1/completions", .body = big};
	struct ask shrt = {.port = http_port(w->r.http),
	                   .path = "/v1/completions",
	                   .body = "{\"prompt\":[1],\"max_tokens\":2}"};
	pthread_t a, b;
	gate_shut(w, &g);
	ck_assert_int_eq(pthread_create(&a, NULL, ask_thread, &lng), 0);
	while (w->r.n_requests == 0)
		event_base_loop(w->base, EVLOOP_ONCE);
	ck_assert_int_eq(pthread_create(&b, NULL, ask_thread, &shrt), 0);
	while (!atomic_load(&shrt.over))
		event_base_loop(w->base, EVLOOP_ONCE);
	has(shrt.out, "HTTP/1.1 200 OK");
	ck_assert_int_eq(atomic_load(&lng.over), 0);
	sem_post(&g.open);
	while (!atomic_load(&lng.over) || !atomic_load(&g.done))
		event_base_loop(w->base, EVLOOP_ONCE);
	has(lng.out, "HTTP/1.1 200 OK");
	pthread_join(a, NULL);
	pthread_join(b, NULL);
	free(lng.out);
	free(shrt.out);
	free(big);
	world_free(w);
}

/* The client leaves while a text thread has its call: the call is given up when the thread is
 * done with it. */
TEST(client_leaves_a_text_thread)
{
	struct world *w = world_new(NULL, 1u << 20);
	struct gate g;
	char *big = long_body();
	struct ask lng = {
		.port = http_port(w->r.http), .path = "/v1/completions", .body = big, .leave_at_once = 1};
	pthread_t a;
	gate_shut(w, &g);
	ck_assert_int_eq(pthread_create(&a, NULL, ask_thread, &lng), 0);
	while (accepted(w) == 0 || http_connections(w->r.http) || !atomic_load(&lng.over))
		event_base_loop(w->base, EVLOOP_ONCE);
	ck_assert_uint_eq(w->r.n_requests, 1);
	sem_post(&g.open);
	for (int i = 0; i < 50; i++)
		event_base_loop(w->base, EVLOOP_ONCE);
	ck_assert_uint_eq(w->r.n_requests, 0);
	ck_assert_uint_eq(w->r.attempts.counts.started, 0);
	pthread_join(a, NULL);
	free(lng.out);
	free(big);
	world_free(w);
}

/* Its places are the next one's at once, without a tick. */
TEST(a_client_that_leaves_makes_room)
{
	static const char ask[] = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 20\r\n"
							  "\r\n{\"prompt\":[1],\"n\":2}";
	struct world *w = world_new(NULL, 1u << 20);
	int fd[2];
	w->mute = 1;
	w->p->window = 2;
	event_del(w->tick);
	for (unsigned i = 0; i < 2; i++) {
		fd[i] = dial(http_port(w->r.http));
		ck_assert_int_eq((int)send(fd[i], ask, sizeof ask - 1, 0), (int)sizeof ask - 1);
		while (w->r.n_answers < 2 * (i + 1))
			event_base_loop(w->base, EVLOOP_ONCE);
	}
	ck_assert_uint_eq(w->r.attempts.queue.n, 2);
	close(fd[0]);
	struct timeval limit = {.tv_sec = 5};
	event_base_loopexit(w->base, &limit);
	while (w->r.attempts.queue.n && !event_base_got_exit(w->base))
		event_base_loop(w->base, EVLOOP_ONCE);
	ck_assert_uint_eq(w->r.attempts.queue.n, 0);
	close(fd[1]);
	while (w->r.n_requests)
		event_base_loop(w->base, EVLOOP_ONCE);
	world_free(w);
}

/* What a text thread is told of a request's work beyond its bytes. */
TEST_LOOP(work_of_a_text_thread_beyond_bytes, 0, 4)
{
	enum { LONG = 10000 };
	static const struct {
		const char *body; /* LONG blanks follow if is_long */
		int is_long, is_gzip;
		size_t want; /* of one that is not compressed */
	} rows[] = {
		{"{\"prompt\":[1],\"guided_regex\":\"[a-z]*\"}", 0, 0, 65536},
		{"{\"prompt\":[1],\"guided_regex\":\"[a-z]*\"}", 1, 0, 65536},
		{"{\"prompt\":[1]}", 1, 0, 0},
		{"{\"prompt\":[1]}", 1, 1, 0},
	};
	if (rows[_i].want && !model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = world_new(model, 1u << 20);
	char plain[2 * LONG], packed[2 * LONG], head[200];
	int n = sprintf(plain, "%s%*s", rows[_i].body, rows[_i].is_long ? LONG : 0, "");
	z_stream z = {.next_in = (unsigned char *)plain, .avail_in = (uInt)n};
	const char *body = plain;
	int fd = dial(http_port(w->r.http)), len = n;
	w->mute = 1;
	if (rows[_i].is_gzip) {
		z.next_out = (unsigned char *)packed;
		z.avail_out = sizeof packed;
		ck_assert_int_eq(deflateInit2(&z, 9, Z_DEFLATED, 31, 8, Z_DEFAULT_STRATEGY), Z_OK);
		ck_assert_int_eq(deflate(&z, Z_FINISH), Z_STREAM_END);
		len = (int)z.total_out;
		body = packed;
		deflateEnd(&z);
	}
	int h = sprintf(head,
	                "POST /v1/completions HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n",
	                rows[_i].is_gzip ? "Content-Encoding: gzip\r\n" : "", len);
	ck_assert_int_eq((int)send(fd, head, (size_t)h, 0), h);
	ck_assert_int_eq((int)send(fd, body, (size_t)len, 0), len);
	while (w->running.next == &w->running)
		event_base_loop(w->base, EVLOOP_ONCE);
	const struct request *q = list_entry(w->r.requests.next, struct request, node);
	size_t want = rows[_i].is_gzip ? (size_t)(n - len) : rows[_i].want;
	ck_assert_uint_eq(q->job.more, want);
	close(fd);
	while (w->r.n_requests)
		event_base_loop(w->base, EVLOOP_ONCE);
	world_free(w);
}

TEST_START(quiet)
{
	log_init("test", NULL);
	log_set_level("error");
	signal(SIGPIPE, SIG_IGN); /* as the daemon skeleton does */
}
