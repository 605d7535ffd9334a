/* test_router_answers.c - what a client sizes: log-probabilities of prompts and answers, echoes,
 * ids, whole answers of any length. What the router holds for it is bounded and decided before
 * anything is queued, nothing of it is done in one go on the event loop, and whatever was
 * admitted comes to its end. */
#include "router_client.h"

#include <jansson.h>
#include <malloc.h>
#include <signal.h>

/* "1,2,3,..." */
static char *ids(unsigned n)
{
	struct buf b;
	buf_init(&b, 0);
	for (unsigned i = 0; i < n; i++)
		buf_printf(&b, i ? ",%u" : "%u", i % 300 + 5);
	return b.data;
}

/* --- answers ------------------------------------------------------------- */

static int hex(const char **s)
{
	char *end;
	long n = strtol(*s, &end, 16);
	*s = end + 2;
	return (int)n;
}

/* The body of an answer, without chunks' sizes. */
static char *body_of(const char *answer, size_t n)
{
	const char *s = strstr(answer, "\r\n\r\n");
	ck_assert_ptr_nonnull(s);
	s += 4;
	char *out = mem_zalloc(n + 1), *at = out;
	if (!strstr(answer, "Transfer-Encoding: chunked")) {
		memcpy(out, s, n - (size_t)(s - answer));
		return out;
	}
	for (int len; (len = hex(&s));) {
		memcpy(at, s, (size_t)len);
		at += len;
		s += len + 2;
	}
	return out;
}

static json_t *json_of(struct world *w, const char *path, const char *body, int status)
{
	struct ask a = {.path = path, .body = body};
	json_error_t bad;
	char *out = ask_full(w, &a), want[32];
	snprintf(want, sizeof want, "HTTP/1.1 %d", status);
	has(out, want);
	char *text = body_of(out, a.n);
	json_t *o = json_loads(text, 0, &bad);
	ck_assert_msg(o != NULL, "%s at %d of: %.300s", bad.text, bad.position, text);
	ck_assert_uint_eq(w->r.memory.lent, 0); /* nothing stays taken */
	free(text);
	free(out);
	return o;
}

static const json_t *answer_of(const json_t *o, size_t i)
{
	return json_array_get(json_object_get(o, "choices"), i);
}

/* The events of a stream, each parsed; [DONE] is the last. */
static json_t *events_of(struct world *w, const char *path, const char *body)
{
	struct ask a = {.path = path, .body = body};
	char *out = ask_full(w, &a), *text = body_of(out, a.n), *rest = text;
	json_t *list = json_array();
	int done = 0;
	for (char *line; (line = strtok_r(rest, "\n", &rest));) {
		ck_assert_int_eq(strncmp(line, "data: ", 6), 0);
		done = strcmp(line, "data: [DONE]") == 0;
		if (done)
			continue;
		json_t *o = json_loads(line + 6, 0, NULL);
		ck_assert_msg(o != NULL, "no JSON: %.300s", line);
		json_array_append_new(list, o);
	}
	ck_assert_int_eq(done, 1);
	ck_assert_uint_eq(w->r.memory.lent, 0);
	free(text);
	free(out);
	return list;
}

/* --- prompts' log-probabilities ------------------------------------------ */

TEST_CASE("answers", .timeout_s = 300);

/* One sequence of each prompt asks for them, and every choice shows them. */
/* The time of a prompt that its worker did not tell is none, not 0. */
TEST(unknown_times_are_not_counted)
{
	struct world *w = world_new(NULL, 1u << 20);
	struct buf b;
	buf_init(&b, 0);
	json_decref(json_of(w, "/v1/completions", "{\"prompt\":[3,4],\"max_tokens\":2}", 200));
	stat_render(router_stats, &w->r, "", "", &b);
	has(b.data, "vllm:time_to_first_token_seconds_count 1\n");
	has(b.data, "vllm:request_prefill_time_seconds_count 0\n");
	buf_fini(&b);
	world_free(w);
}

TEST(told_once_for_all_choices)
{
	struct world *w = world_new(NULL, 1u << 20);
	char *list = ids(1500);
	char *body = mem_printf("{\"prompt\":[[%s],[7,8]],\"max_tokens\":2,\"n\":3,\"prompt_logprobs\":"
	                        "2,\"return_token_ids\":true}",
	                        list);
	json_t *o = json_of(w, "/v1/completions", body, 200);
	ck_assert_uint_eq(w->told, 2);
	for (size_t i = 0; i < 6; i++) {
		const json_t *c = answer_of(o, i), *rows = json_object_get(c, "prompt_logprobs"), *entry;
		size_t n = i < 3 ? 1500 : 2;
		ck_assert_uint_eq(json_array_size(rows), n);
		ck_assert_uint_eq(json_array_size(json_object_get(c, "prompt_token_ids")), n);
		ck_assert_uint_eq(json_array_size(json_object_get(c, "token_ids")), 2);
		ck_assert(json_is_null(json_array_get(rows, 0)));
		for (size_t k = 1; k < n; k++) {
			char id[16];
			snprintf(id, sizeof id, "%lld",
			         (long long)json_integer_value(
						 json_array_get(json_object_get(c, "prompt_token_ids"), k)));
			entry = json_object_get(json_array_get(rows, k), id);
			ck_assert_double_eq(json_real_value(json_object_get(entry, "logprob")), -1.5);
			ck_assert_int_eq(json_integer_value(json_object_get(entry, "rank")), 3);
			entry = json_object_get(json_array_get(rows, k), "101");
			ck_assert(json_integer_value(
						  json_array_get(json_object_get(c, "prompt_token_ids"), k)) == 101 ||
			          json_is_integer(json_object_get(entry, "logprob")));
		}
	}
	json_decref(o);
	free(body);
	free(list);
	world_free(w);
}

/* --- the length of an answer --------------------------------------------- */

/* Reads all of an answer and keeps its length, and how often a text is in it. */
struct reader {
	unsigned port;
	const char *body, *look;
	size_t n, found;
	atomic_int over;
	int slow; /* bytes at a time, with pauses, at first */
};

static void *read_all(void *arg)
{
	struct reader *r = arg;
	static char room[1 << 16];
	char *head = mem_printf("POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: "
	                        "close\r\nContent-Length: %zu\r\n\r\n",
	                        strlen(r->body));
	int fd = dial(r->port);
	size_t look = strlen(r->look), kept = 0;
	ck_assert_int_eq((int)send(fd, head, strlen(head), 0), (int)strlen(head));
	for (size_t done = 0, len = strlen(r->body); done < len;)
		done += (size_t)send(fd, r->body + done, len - done, 0);
	for (ssize_t k;
	     (k = recv(fd, room + kept, r->slow-- > 0 ? 100 : sizeof room - 1 - kept, 0)) > 0;) {
		r->n += (size_t)k;
		kept += (size_t)k;
		room[kept] = 0;
		r->found += count(room, r->look);
		size_t keep = kept < look - 1 ? kept : look - 1;
		memmove(room, room + kept - keep, keep);
		kept = keep;
		if (r->slow > 0)
			usleep(1000);
	}
	close(fd);
	free(head);
	atomic_store(&r->over, 1);
	return NULL;
}

/* The longest that the loop's thread was busy, of its own time, between two looks. */
struct turns {
	struct event *ev;
	uint64_t last_ns, worst_ns;
	size_t n, most_bytes; /* of the heap */
};

static uint64_t own_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void look(evutil_socket_t fd, short what, void *arg)
{
	struct turns *t = arg;
	struct mallinfo2 m = mallinfo2();
	static const struct timeval now = {0, 0};
	uint64_t ns = own_ns();
	(void)fd;
	(void)what;
	if (t->last_ns && ns - t->last_ns > t->worst_ns)
		t->worst_ns = ns - t->last_ns;
	if (m.uordblks + m.hblkhd > t->most_bytes)
		t->most_bytes = m.uordblks + m.hblkhd;
	t->n++;
	event_add(t->ev, &now);
	t->last_ns = own_ns();
}

/* Fifty answers' worth of a prompt: the router holds the numbers once, however long the answer
 * is and however slowly it is read, and no turn of its loop is long. */
TEST(long_answer_costs_no_memory)
{
	struct world *w = world_new(NULL, 1u << 20);
	struct turns t = {0};
	char *list = ids(4000);
	char *body = mem_printf(
		"{\"prompt\":[%s],\"max_tokens\":2,\"n\":50,\"prompt_logprobs\":20,\"stop_token_ids\":[1]}",
		list);
	struct reader r = {
		.port = http_port(w->r.http), .body = body, .look = "\"rank\":3,", .slow = 300};
	pthread_t thread;
	t.ev = event_new(w->base, -1, 0, look, &t);
	look(-1, 0, &t);
	size_t before = t.most_bytes;
	ck_assert_int_eq(pthread_create(&thread, NULL, read_all, &r), 0);
	while (!atomic_load(&r.over))
		event_base_loop(w->base, EVLOOP_ONCE);
	pthread_join(thread, NULL);
	printf("an answer of %zu MB: %zu KB of memory, %zu turns of the loop, the longest %.2f ms\n",
	       r.n / 1000000, (t.most_bytes - before) / 1000, t.n, (double)t.worst_ns / 1e6);
	ck_assert_uint_gt(r.n, 200000000);
	ck_assert_uint_ge(r.found, 50 * 3999);
	ck_assert_uint_lt(t.most_bytes - before, 16u << 20);
	ck_assert_uint_gt(t.n, r.n >> 19); /* turns: half a megabyte each at most, on average */
	while (w->r.n_requests)
		event_base_loop(w->base, EVLOOP_ONCE);
	ck_assert_uint_eq(w->r.memory.lent, 0);
	event_free(t.ev);
	free(body);
	free(list);
	world_free(w);
}

/* There is less room for unread answers than a step wants: the steps are shorter, and the answer is
 * whole, however slowly it is read. */
TEST(long_answer_in_little_room)
{
	world_out_total = 160u << 10;
	struct world *w = world_new(NULL, 1u << 20);
	char *list = ids(4000);
	char *body = mem_printf("{\"prompt\":[%s],\"max_tokens\":2,\"n\":5,\"prompt_logprobs\":20}",
	                        list);
	struct reader r = {
		.port = http_port(w->r.http), .body = body, .look = "\"rank\":3,", .slow = 300};
	struct http_counts n;
	pthread_t thread;
	ck_assert_int_eq(pthread_create(&thread, NULL, read_all, &r), 0);
	while (!atomic_load(&r.over)) {
		event_base_loop(w->base, EVLOOP_ONCE);
		http_counts(w->r.http, &n);
		ck_assert_uint_le(n.out_bytes, world_out_total / 2);
	}
	pthread_join(thread, NULL);
	ck_assert_uint_eq(n.cut, 0);
	ck_assert_uint_ge(r.found, 5 * 3999);
	while (w->r.n_requests)
		event_base_loop(w->base, EVLOOP_ONCE);
	world_free(w);
	free(body);
	free(list);
}

/* And where there is none at all, it is refused instead of begun. */
TEST(long_answer_without_room)
{
	world_out_total = 64u << 10;
	struct world *w = world_new(NULL, 1u << 20);
	char *list = ids(4000),
		 *body = mem_printf("{\"prompt\":[%s],\"max_tokens\":2,\"prompt_logprobs\":20}", list);
	struct ask a = {.path = "/v1/completions", .body = body};
	char *out = ask_full(w, &a);
	has(out, "HTTP/1.1 503");
	has(out, "output_bytes_max");
	free(out);
	free(list);
	free(body);
	world_free(w);
}

/* --- what is decided at the door ----------------------------------------- */

struct refusal {
	unsigned tokens;
	const char *more;
	int status;
	const char *param, *says;
};

/* With 1 MiB for each request. */
static const struct refusal refusals[] = {
	{5000, "\"prompt_logprobs\":20", 200, NULL, NULL},
	{6000, "\"prompt_logprobs\":20", 400, "prompt_logprobs",
     "6000 tokens of the prompts with 20 alternatives each take 2 MiB; a request may take 1 MiB "
     "(max_request_memory_mb)"},
	{6000, "\"prompt_logprobs\":1", 200, NULL, NULL},
	{6000, "\"echo\":true,\"logprobs\":20,\"max_tokens\":0", 400, "logprobs",
     "6000 tokens of the prompts"},
	{10, "\"logprobs\":20,\"max_tokens\":60,\"n\":50", 200, NULL, NULL},
	{10, "\"logprobs\":20,\"max_tokens\":200,\"n\":50", 400, "logprobs",
     "10000 tokens of its answers with 20 alternatives each take 2 MiB"},
	{10, "\"logprobs\":20,\"max_tokens\":200,\"n\":50,\"stream\":true", 200, NULL, NULL},
	{10, "\"logprobs\":0,\"max_tokens\":200,\"n\":50", 200, NULL, NULL},
	{10, "\"max_tokens\":2000,\"n\":20", 200, NULL, NULL},
};

TEST_LOOP(refused_by_name, 0, sizeof refusals / sizeof *refusals)
{
	const struct refusal *t = &refusals[_i];
	struct world *w = world_new(NULL, 64u << 20);
	char *list = ids(t->tokens), *body = mem_printf("{\"prompt\":[%s],%s}", list, t->more);
	w->r.conf.request_memory_bytes = 1u << 20;
	if (t->status == 200) {
		struct ask a = {.path = "/v1/completions", .body = body, .leave_after = 1000000};
		char *out = ask_full(w, &a);
		has(out, "HTTP/1.1 200");
		ck_assert_ptr_null(strstr(out, "error"));
		free(out);
	} else {
		json_t *o = json_of(w, "/v1/completions", body, t->status);
		const json_t *e = json_object_get(o, "error");
		ck_assert_str_eq(json_string_value(json_object_get(e, "param")), t->param);
		has(json_string_value(json_object_get(e, "message")), t->says);
		ck_assert_uint_eq(w->r.attempts.counts.started, 0);
		json_decref(o);
	}
	free(body);
	free(list);
	world_free(w);
}

/* While others have the pool, a large request is told to come again, and a small one is
 * answered. */
TEST(large_waits_small_does_not)
{
	struct world *w = world_new(NULL, 1u << 20);
	struct quota others;
	char *list = ids(4000),
		 *body = mem_printf("{\"prompt\":[%s],\"max_tokens\":1,\"prompt_logprobs\":20}", list);
	w->r.memory.size = 8u << 20;
	quota_init(&others, &w->r.memory, SIZE_MAX);
	ck_assert_int_eq(quota_take(&others, 7u << 20), 0);
	struct ask a = {.path = "/v1/completions", .body = body};
	char *out = ask_full(w, &a);
	has(out, "HTTP/1.1 429");
	has(out, "Retry-After: ");
	has(out, "max_memory_mb");
	free(out);
	out = ask(w, "/v1/completions", "{\"prompt\":[1,2,3],\"max_tokens\":5}");
	has(out, "HTTP/1.1 200");
	free(out);
	quota_fini(&others);
	ck_assert_uint_eq(w->r.memory.lent, 0);
	out = ask(w, "/v1/completions", body);
	has(out, "HTTP/1.1 200");
	free(out);
	free(body);
	free(list);
	world_free(w);
}

/* Braces take a hundred times their length as JSON; the sum over requests is bounded all the
 * same. */
TEST(small_text_large_tree)
{
	struct world *w = world_new(NULL, 1u << 20);
	struct buf b;
	buf_init(&b, 0);
	buf_adds(&b, "{\"prompt\":[");
	for (int i = 0; i < 100000; i++)
		buf_adds(&b, i ? ",{}" : "{}");
	buf_adds(&b, "]}");
	w->r.conf.request_memory_bytes = 4u << 20;
	json_t *o = json_of(w, "/v1/completions", b.data, 400);
	has(json_string_value(json_object_get(json_object_get(o, "error"), "message")),
	    "as JSON the request takes more memory than the 4 MiB");
	json_decref(o);
	buf_fini(&b);
	world_free(w);
}

/* A small body waits for a text thread as what it is: a large tree. */
TEST(small_body_that_waits)
{
	struct world *w = world_new(NULL, 1u << 20);
	struct buf b;
	buf_init(&b, 0);
	buf_adds(&b, "{\"prompt\":[1],\"guided_choice\":[\"a\"],\"x\":[");
	while (b.len < 4000)
		buf_adds(&b, "{},");
	buf_adds(&b, "{}]}");
	w->r.conf.request_memory_bytes = 64u << 10;
	json_t *o = json_of(w, "/v1/completions", b.data, 400);
	has(json_string_value(json_object_get(json_object_get(o, "error"), "message")),
	    "as JSON the request takes more memory");
	json_decref(o);
	buf_fini(&b);
	world_free(w);
}

/* What has begun may use all of the pool, large as it may be. */
TEST(begun_work_has_the_last_eighth)
{
	struct quota_pool pool = {.size = 8u << 20};
	struct quota others, begun;
	quota_init(&others, &pool, SIZE_MAX);
	quota_init(&begun, &pool, SIZE_MAX);
	ck_assert_int_eq(quota_take(&begun, 1u << 20), 0);
	ck_assert_int_eq(quota_take(&others, 6u << 20), 0);
	ck_assert_int_lt(quota_take(&begun, 1u << 20), 0);
	begun.begun = 1;
	ck_assert_int_eq(quota_take(&begun, 512u << 10), 0);
	ck_assert_int_lt(quota_take(&begun, 1u << 20), 0);
	quota_fini(&others);
	quota_fini(&begun);
	ck_assert_uint_eq(pool.lent, 0);
}

/* What is not known before is taken as it comes: an answer that finds no more memory ends there, as
 * one that is long enough. What was asked for by number is there from the beginning. */
TEST(answer_outgrows_its_memory)
{
	struct world *w = world_new(NULL, 1u << 20);
	const char *body = "{\"prompt\":[1,2,3],\"max_tokens\":6000,\"return_token_ids\":true%s}";
	char *plain = mem_printf(body, ""), *scored = mem_printf(body, ",\"logprobs\":5");
	w->r.conf.request_memory_bytes = 24u << 10;
	json_t *o = json_of(w, "/v1/completions", plain, 200);
	const json_t *c = answer_of(o, 0);
	size_t n = json_array_size(json_object_get(c, "token_ids"));
	ck_assert_msg(n > 500 && n < 6000, "%zu tokens", n);
	ck_assert_str_eq(json_string_value(json_object_get(c, "finish_reason")), "length");
	ck_assert_uint_eq((size_t)json_integer_value(
						  json_object_get(json_object_get(o, "usage"), "completion_tokens")),
	                  n);
	json_decref(o);
	json_decref(json_of(w, "/v1/completions", scored, 400));
	char *stream = mem_printf(body, ",\"stream\":true");
	json_t *events = events_of(w, "/v1/completions", stream);
	ck_assert_uint_gt(json_array_size(events), 500);
	c = answer_of(json_array_get(events, json_array_size(events) - 1), 0);
	ck_assert_str_eq(json_string_value(json_object_get(c, "finish_reason")), "length");
	json_decref(events);
	free(stream);
	w->r.conf.request_memory_bytes = 512u << 10;
	o = json_of(w, "/v1/completions", scored, 200);
	ck_assert_uint_eq(json_array_size(json_object_get(answer_of(o, 0), "token_ids")), 6000);
	json_decref(o);
	free(plain);
	free(scored);
	world_free(w);
}

/* --- streams ------------------------------------------------------------- */

/* A stream that begins with a long prompt, its log-probabilities and its ids, for many choices: in
 * events of bounded size, as fast as the client reads, however small the buffer for it is. */
TEST(long_beginning_of_a_stream)
{
	struct world *w = world_new(NULL, 256u << 10);
	char *list = ids(3000),
		 *body = mem_printf("{\"prompt\":[%s],\"max_tokens\":3,\"n\":8,\"echo\":true,\"logprobs\":"
	                        "3,\"return_token_ids\":true,\"stream\":true}",
	                        list);
	json_t *events = events_of(w, "/v1/completions", body), *e;
	size_t i, rows[8] = {0}, given[8] = {0}, tokens[8] = {0}, ends[8] = {0};
	json_array_foreach(events, i, e) {
		const json_t *c = answer_of(e, 0), *l = json_object_get(c, "logprobs");
		size_t k = (size_t)json_integer_value(json_object_get(c, "index"));
		ck_assert_uint_eq(ends[k], 0);
		rows[k] += json_array_size(json_object_get(l, "tokens"));
		ck_assert_uint_le(json_array_size(json_object_get(l, "tokens")), 200);
		ck_assert_uint_eq(json_array_size(json_object_get(l, "tokens")),
		                  json_array_size(json_object_get(l, "top_logprobs")));
		given[k] += json_array_size(json_object_get(c, "prompt_token_ids"));
		tokens[k] += json_array_size(json_object_get(c, "token_ids"));
		ends[k] += json_is_string(json_object_get(c, "finish_reason"));
	}
	for (size_t k = 0; k < 8; k++) {
		ck_assert_uint_eq(rows[k], 3003);
		ck_assert_uint_eq(given[k], 3000);
		ck_assert_uint_eq(tokens[k], 3);
		ck_assert_uint_eq(ends[k], 1);
	}
	ck_assert_uint_eq(w->told, 1);
	json_decref(events);
	free(body);
	free(list);
	world_free(w);
}

/* Whoever leaves while a long answer is sent leaves nothing behind. */
TEST(client_leaves_within_a_long_answer)
{
	struct world *w = world_new(NULL, 1u << 20);
	char *list = ids(2000),
		 *body = mem_printf("{\"prompt\":[%s],\"max_tokens\":2,\"n\":20,\"prompt_logprobs\":20}",
	                        list);
	struct ask a = {.path = "/v1/completions", .body = body, .leave_after = 100000};
	free(ask_full(w, &a));
	ck_assert_uint_eq(w->r.memory.lent, 0);
	free(body);
	free(list);
	world_free(w);
}

/* Whoever takes a complete answer too slowly loses it, and its memory is free for others. */
TEST(answer_is_not_taken)
{
	struct world *w = world_new(NULL, 1u << 20);
	char *list = ids(4000);
	char *body = mem_printf("{\"prompt\":[%s],\"max_tokens\":2,\"n\":50,\"prompt_logprobs\":20}",
	                        list);
	struct reader r = {.port = http_port(w->r.http), .body = body, .look = "rank", .slow = INT_MAX};
	pthread_t thread;
	ck_assert_int_eq(pthread_create(&thread, NULL, read_all, &r), 0);
	while (!w->r.n_requests || w->r.n_answers)
		event_base_loop(w->base, EVLOOP_ONCE);
	struct request *c = list_entry(w->r.requests.next, struct request, node);
	while (c->state != REQUEST_WRITING)
		event_base_loop(w->base, EVLOOP_ONCE);
	requests_tick(&w->r, clock_us());
	ck_assert_uint_eq(w->r.n_requests, 1);
	ck_assert_uint_gt(w->r.memory.lent, 1u << 19);
	requests_tick(&w->r, clock_us() + w->r.conf.request_timeout_us);
	ck_assert_uint_eq(w->r.n_requests, 0);
	ck_assert_uint_eq(w->r.memory.lent, 0);
	while (!atomic_load(&r.over))
		event_base_loop(w->base, EVLOOP_ONCE);
	pthread_join(thread, NULL);
	ck_assert_uint_lt(r.n, 10000000);
	free(body);
	free(list);
	world_free(w);
}

struct aborting {
	struct world *w;
	struct event *ev;
	int done;
};

static void abort_it(evutil_socket_t fd, short what, void *arg)
{
	static const struct timeval soon = {0, 1000};
	struct aborting *a = arg;
	(void)fd;
	(void)what;
	if (list_empty(&a->w->r.requests)) {
		event_add(a->ev, &soon);
		return;
	}
	struct request *c = list_entry(a->w->r.requests.next, struct request, node);
	a->done = request_abort(&a->w->r, &c->answers[0].attempt->id, NULL) == 0;
}

/* An abort before the log-probabilities have come that its stream begins with: it ends. */
TEST(aborted_before_it_begins)
{
	struct world *w = world_new(NULL, 1u << 20);
	struct aborting a = {.w = w};
	w->mute = 1;
	a.ev = event_new(w->base, -1, 0, abort_it, &a);
	abort_it(-1, 0, &a);
	char *out = ask(w, "/v1/completions",
	                "{\"prompt\":[1,2,3],\"echo\":true,\"logprobs\":1,\"stream\":true,\"n\":2}");
	ck_assert_int_eq(a.done, 1);
	has(out, "HTTP/1.1 503");
	has(out, "aborted on request");
	ck_assert_uint_eq(w->r.memory.lent, 0);
	free(out);
	event_free(a.ev);
	world_free(w);
}

/* More answers than are started in one turn: those without an attempt end, too. */
static struct aborting starting;

static void abort_soon(struct router *r)
{
	r->wake = NULL;
	event_active(starting.ev, EV_TIMEOUT, 0);
}

TEST(aborted_while_starting)
{
	struct world *w = world_new(NULL, 1u << 20);
	char *list = ids(600), *body = mem_printf("{\"prompt\":[%s],\"max_tokens\":5,\"n\":100}", list);
	starting = (struct aborting){.w = w, .ev = event_new(w->base, -1, 0, abort_it, &starting)};
	w->mute = 1;
	w->r.wake = abort_soon;
	json_t *o = json_of(w, "/v1/completions", body, 200);
	ck_assert_int_eq(starting.done, 1);
	ck_assert_uint_lt(w->r.attempts.counts.started, 100);
	ck_assert_uint_eq(w->r.attempts.counts.cancelled, w->r.attempts.counts.started);
	for (size_t i = 0; i < 100; i++)
		ck_assert_str_eq(json_string_value(json_object_get(answer_of(o, i), "finish_reason")),
		                 "abort");
	json_decref(o);
	event_free(starting.ev);
	free(body);
	free(list);
	world_free(w);
}

/* --- embeddings ---------------------------------------------------------- */

/* n inputs of one to three tokens */
static char *inputs(unsigned n, const char *more)
{
	static const char *const one[] = {"[5]", "[5,6]", "[5,6,7]"};
	struct buf b;
	buf_init(&b, 0);
	buf_adds(&b, "{\"normalize\":false,\"input\":[");
	for (unsigned i = 0; i < n; i++)
		buf_printf(&b, "%s%s", i ? "," : "", one[i % 3]);
	buf_printf(&b, "]%s}", more);
	return b.data;
}

/* All of them, in order. */
static void embeds(struct world *w, unsigned n)
{
	char *body = inputs(n, "");
	json_t *o = json_of(w, "/v1/embeddings", body, 200), *data = json_object_get(o, "data");
	ck_assert_uint_eq(json_array_size(data), n);
	for (unsigned i = 0; i < n; i++) {
		const json_t *e = json_object_get(json_array_get(data, i), "embedding");
		ck_assert_double_eq(json_number_value(json_array_get(e, 3)), i % 3 + 1);
	}
	json_decref(o);
	free(body);
}

static void refused_with(struct world *w, const char *body, int status, const char *param,
                         const char *says)
{
	json_t *o = json_of(w, "/v1/embeddings", body, status), *e = json_object_get(o, "error");
	has(json_string_value(json_object_get(e, "message")), says);
	if (param)
		ck_assert_str_eq(json_string_value(json_object_get(e, "param")), param);
	else
		ck_assert(json_is_null(json_object_get(e, "param")));
	json_decref(o);
}

/* An embedding has no part that could be the answer: also before all are started. */
TEST_LOOP(embeddings_aborted, 0, 2)
{
	struct world *w = world_new(NULL, 1u << 20);
	struct aborting a = {.w = w};
	char *body = inputs(_i ? 100 : 3, "");
	w->mute = 1;
	a.ev = event_new(w->base, -1, 0, abort_it, &a);
	abort_it(-1, 0, &a);
	refused_with(w, body, 503, NULL, "aborted on request");
	ck_assert_int_eq(a.done, 1);
	ck_assert_uint_eq(w->cancels, _i ? 64 : 3);
	free(body);
	event_free(a.ev);
	world_free(w);
}

static void made_late(struct world *w)
{
	ck_assert_uint_le(attempts_count(&w->r.attempts), 64);
}

/* Attempts are made as they start. */
TEST(embeddings_at_work)
{
	struct world *w = world_new(NULL, 1u << 20);
	w->each = made_late;
	embeds(w, 200);
	ck_assert_uint_eq(w->most, 64);
	ck_assert_uint_eq(w->r.attempts.counts.started, 200);
	world_free(w);
}

static void soon_room(struct world *w)
{
	if (w->r.attempts.counts.done == 10)
		w->places = 0;
}

/* A full worker fails none of them as long as it takes one; when it has room, their number grows
 * again. */
TEST_LOOP(embeddings_at_a_full_worker, 0, 3)
{
	struct world *w = world_new(NULL, 1u << 20);
	w->places = _i + 1;
	if (_i == 1) {
		w->each = soon_room;
		embeds(w, 64);
		ck_assert_uint_ge(w->most, 20);
	} else {
		embeds(w, 200);
		ck_assert_uint_eq(w->most, w->places);
	}
	ck_assert_uint_eq(w->r.attempts.counts.failed, 0);
	world_free(w);
}

/* No place at all: it is told to come again. */
TEST_LOOP(embeddings_without_a_place, 0, 2)
{
	struct world *w = world_new(NULL, 1u << 20);
	char *body = inputs(_i ? 200 : 1, "");
	struct ask a = {.path = "/v1/embeddings", .body = body, .port = http_port(w->r.http)};
	struct world_attempt other = {.to = w->d, .index = 1};
	pthread_t t;
	w->places = 1;
	w->pause_at = 1; /* the other stays */
	list_init(&other.node);
	list_push_back(&w->running, &other.node);
	ck_assert_int_eq(pthread_create(&t, NULL, ask_thread, &a), 0);
	while (!atomic_load(&a.over))
		event_base_loop(w->base, EVLOOP_ONCE);
	pthread_join(t, NULL);
	list_remove(&other.node);
	has(a.out, "HTTP/1.1 429");
	has(a.out, "Retry-After: ");
	has(a.out, "the prefill worker is full");
	free(a.out);
	free(body);
	world_free(w);
}

static struct {
	struct world *w;
	struct event *back;
} away;

static void comes_back(evutil_socket_t fd, short what, void *arg)
{
	(void)fd;
	(void)what;
	(void)arg;
	away.w->p->beat.draining = 0;
}

static void goes_away(struct world *w)
{
	static const struct timeval moment = {0, 100000};
	if (w->r.attempts.counts.done != 63)
		return;
	w->p->beat.draining = 1;
	event_add(away.back, &moment);
}

/* All that were under way have ended when the only worker goes away: the rest waits for it. */
TEST(embeddings_wait_for_a_worker)
{
	struct world *w = world_new(NULL, 1u << 20);
	away.w = w;
	away.back = event_new(w->base, -1, 0, comes_back, NULL);
	w->each = goes_away;
	embeds(w, 200);
	ck_assert_uint_eq(w->most, 64);
	event_free(away.back);
	world_free(w);
}

struct shrinking {
	struct world *w;
	struct event *ev;
	struct gate gate;
};

static void shrink_it(evutil_socket_t fd, short what, void *arg)
{
	static const struct timeval soon = {0, 1000};
	struct shrinking *s = arg;
	(void)fd;
	(void)what;
	if (list_empty(&s->w->r.requests)) {
		event_add(s->ev, &soon);
		return;
	}
	s->w->p->context_tokens = 1000;
	sem_post(&s->gate.open);
}

TEST(embeddings_refused)
{
	struct world *w = world_new(NULL, 1u << 20);
	char *list = ids(2000), *long_input = mem_printf("{\"input\":[%s]}", list),
		 *many = inputs(300, "");
	struct shrinking s = {.w = w, .ev = event_new(w->base, -1, 0, shrink_it, &s)};
	struct worker_record *other = world_worker(w, "p2", "prefill");
	other->hidden = 0;
	gate_shut(w, &s.gate);
	shrink_it(-1, 0, &s);
	refused_with(w, long_input, 400, "input",
	             "input 0 has 2000 tokens, which is longer than any worker takes");
	/* those that take more make none */
	refused_with(w, long_input, 400, "input", "maximum context length is 1000 tokens");
	w->r.conf.request_memory_bytes = 512u << 10;
	refused_with(w, many, 400, "input", "send fewer inputs or dimensions");
	refused_with(w, "{\"input\":[5],\"user\":7}", 400, "user", "must be a string, got 7");
	refused_with(w, "{\"input\":[99999]}", 400, "input", "this model's own tokenizer");
	registry_down(&w->r.registry, w->p, clock_us()); /* it may come back */
	refused_with(w, "{\"input\":[5]}", 503, NULL, "no worker that makes embeddings is ready");
	w->p->hidden = 0;
	refused_with(w, "{\"input\":[5]}", 400, NULL, "this server makes no embeddings");
	registry_down(&w->r.registry, other, clock_us());
	registry_down(&w->r.registry, w->d, clock_us());
	refused_with(w, "{\"input\":[5]}", 503, NULL, "no worker that makes embeddings is ready");
	event_free(s.ev);
	free(many);
	free(long_input);
	free(list);
	world_free(w);
}

TEST_START(no_sigpipe)
{
	signal(SIGPIPE, SIG_IGN); /* clients leave while they are answered */
}
