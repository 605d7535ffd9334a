/* test_router_nomem.c - memory that cannot be had: each large allocation on the way of a request
 * fails in its turn, wherever it is made, in our code or in a library's. The request may fail,
 * with an error or with its connection; the router lives, holds nothing of it, and answers the
 * next one. */
#include "router_client.h"
#include "skip.h"
#include "real_model.h"

#include <errno.h>
#include <signal.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define INTERPOSED 0
#else
#define INTERPOSED 1
#endif

#define LARGE 16384u /* below that nothing grows with a request */
#define SMALL 64u    /* below that libevent 2.1 does not look: bufferevent_setwatermark */

static atomic_int armed; /* allocations on the router's threads count */
static atomic_long skip; /* so many of them succeed, then one fails */
static atomic_int failed;
static __thread int is_client;

static size_t least = LARGE; /* smaller ones succeed */

#if INTERPOSED
static int fails(size_t bytes)
{
	if (bytes < least || !atomic_load(&armed) || is_client || atomic_fetch_sub(&skip, 1) != 0)
		return 0;
	atomic_store(&failed, 1);
	errno = ENOMEM;
	return 1;
}

void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n)
{
	return fails(n) ? NULL : __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
	return fails(n * size) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
	return fails(n) ? NULL : __libc_realloc(p, n);
}

void *reallocarray(void *p, size_t n, size_t size)
{
	size_t bytes;
	if (__builtin_mul_overflow(n, size, &bytes))
		return NULL;
	return fails(bytes) ? NULL : __libc_realloc(p, bytes);
}
#endif

#define SANITIZED "a sanitizer has an allocator of its own"

/* --- requests ------------------------------------------------------------ */

static void repeat(struct buf *b, const char *text, unsigned times)
{
	for (unsigned i = 0; i < times; i++)
		buf_adds(b, text);
}

static void ids(struct buf *b, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		buf_printf(b, i ? ",%u" : "%u", i % 300 + 5);
}

static void whole(struct buf *b)
{
	buf_adds(b, "{\"prompt\":[");
	ids(b, 5000);
	buf_adds(b, "],\"max_tokens\":3,\"n\":2,\"prompt_logprobs\":3,\"return_token_ids\":true}");
}

static void stream(struct buf *b)
{
	buf_adds(b, "{\"prompt\":[");
	ids(b, 5000);
	buf_adds(b, "],\"max_tokens\":3,\"n\":2,\"echo\":true,\"logprobs\":4,\"stream\":true,\"return_"
	            "token_ids\":true}");
}

static void answers(struct buf *b)
{
	buf_adds(b, "{\"prompt\":[1,2],\"max_tokens\":6000,\"n\":2,\"logprobs\":3,\"return_token_ids\":"
	            "true,\"allowed_token_ids\":[");
	ids(b, 12000);
	buf_adds(b, "]}");
}

static void objects(struct buf *b)
{
	buf_adds(b, "{\"prompt\":[");
	repeat(b, "{\"a\":[1,2,3]},", 3000);
	buf_adds(b, "{}]}");
}

static void text(struct buf *b)
{
	buf_adds(b, "{\"max_tokens\":2,\"echo\":true,\"logprobs\":1,\"truncate_prompt_tokens\":4000,"
	            "\"prompt\":\"");
	repeat(b, "The quick brown fox jumps over the lazy dog. ", 800);
	repeat(b, "a", 60000);
	repeat(b, "\xc3\xa4\xe6\xbc\xa2", 8000);
	buf_adds(b, "\"}");
}

static void chat(struct buf *b)
{
	buf_adds(b, "{\"max_tokens\":2,\"truncate_prompt_tokens\":4000,\"messages\":[");
	for (int i = 0; i < 40; i++) {
		buf_adds(b, i ? ",{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\""
		              : "{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"");
		repeat(b, "What is the capital of France? ", 40);
		buf_adds(b, "\"}]}");
	}
	buf_adds(b, "]}");
}

static void responses(struct buf *b)
{
	buf_adds(b, "{\"max_output_tokens\":2,\"truncate_prompt_tokens\":4000,\"stream\":true,"
	            "\"instructions\":\"");
	repeat(b, "Be brief. ", 100);
	buf_adds(b, "\",\"input\":[");
	for (int i = 0; i < 40; i++) {
		buf_adds(b, i ? "," : "");
		buf_adds(b, "{\"role\":\"user\",\"content\":[{\"type\":\"input_text\",\"text\":\"");
		repeat(b, "What is the capital of France? ", 40);
		buf_adds(b, "\"}]}");
	}
	buf_adds(b, "]}");
}

static void messages(struct buf *b)
{
	buf_adds(b, "{\"max_tokens\":2,\"truncate_prompt_tokens\":4000,\"messages\":[");
	for (int i = 0; i < 20; i++) {
		buf_printf(b,
		           "%s{\"role\":\"user\",\"content\":[{\"type\":\"tool_result\",\"tool_use_id\":"
		           "\"%d\",\"content\":\"cold\"},{\"type\":\"text\",\"text\":\"",
		           i ? "," : "", i);
		repeat(b, "What is the capital of France? ", 40);
		buf_adds(b, "\"}]}");
	}
	buf_adds(b, "]}");
}

static void form(struct buf *b)
{
	buf_adds(
		b,
		"{\"max_tokens\":2,\"prompt\":\"x\",\"guided_json\":{\"type\":\"object\",\"properties\":{");
	for (int i = 0; i < 200; i++)
		buf_printf(b, "%s\"name_%d\":{\"enum\":[\"one_%d\",\"two\",\"three\"]}", i ? "," : "", i,
		           i);
	buf_adds(b, "}}}");
}

static void many_choices(struct buf *b)
{
	buf_adds(b, "{\"max_tokens\":2,\"prompt\":\"x\",\"guided_choice\":[");
	for (int i = 0; i < 3000; i++)
		buf_printf(b, "%s\"choice number %d\"", i ? "," : "", i);
	buf_adds(b, "]}");
}

static void tokenize(struct buf *b)
{
	buf_adds(b, "{\"return_token_strs\":true,\"prompt\":\"");
	repeat(b, "The quick brown fox. ", 1500);
	buf_adds(b, "\"}");
}

static void detokenize(struct buf *b)
{
	buf_adds(b, "{\"tokens\":[");
	ids(b, 9000);
	buf_adds(b, "]}");
}

static const struct {
	const char *path;
	void (*body)(struct buf *b);
	int text;   /* needs the model */
	int status; /* when nothing fails */
} requests[] = {
	{"/v1/completions", whole, 0, 200},   {"/v1/completions", stream, 0, 200},
	{"/v1/completions", answers, 0, 200}, {"/v1/completions", objects, 0, 400},
	{"/v1/completions", text, 1, 200},    {"/v1/chat/completions", chat, 1, 200},
	{"/v1/completions", form, 1, 200},    {"/v1/completions", many_choices, 1, 200},
	{"/v1/responses", responses, 1, 200}, {"/v1/messages", messages, 1, 200},
	{"/tokenize", tokenize, 1, 200},      {"/detokenize", detokenize, 1, 200},
};

struct asking {
	unsigned port;
	const char *path;
	const struct buf *body;
	int status; /* 0: the connection ended without an answer */
	int whole;  /* its last chunk came, or all of its length */
	atomic_int over;
};

/* Status, and whether the answer was whole. */
static void *client(void *arg)
{
	struct asking *a = arg;
	is_client = 1;
	struct buf in;
	buf_init(&in, 0);
	char *head = mem_printf(
		"%s %s HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n",
		a->body->len ? "POST" : "GET", a->path, a->body->len);
	int fd = dial(a->port);
	send(fd, head, strlen(head), MSG_NOSIGNAL);
	for (size_t done = 0; done < a->body->len;) {
		ssize_t k = send(fd, a->body->data + done, a->body->len - done, MSG_NOSIGNAL);
		if (k <= 0)
			break; /* refused before it was all there */
		done += (size_t)k;
	}
	char room[16384];
	for (ssize_t k; (k = recv(fd, room, sizeof room, 0)) > 0;)
		buf_add(&in, room, (size_t)k);
	if (in.len > 12)
		a->status = atoi(in.data + 9);
	const char *length = in.len ? strstr(in.data, "Content-Length: ") : NULL,
			   *end = in.len ? strstr(in.data, "\r\n\r\n") : NULL;
	if (length && end && length < end)
		a->whole = in.len == (size_t)(end + 4 - in.data) + (size_t)atol(length + 16);
	else
		a->whole = in.len > 5 && memcmp(in.data + in.len - 5, "0\r\n\r\n", 5) == 0;
	close(fd);
	free(head);
	buf_fini(&in);
	atomic_store(&a->over, 1);
	return NULL;
}

static void go(struct world *w, struct asking *a)
{
	pthread_t t;
	struct http_counts now;
	http_counts(w->r.http, &now);
	uint64_t came = now.accepted + now.refused;
	a->port = http_port(w->r.http);
	is_client = 1; /* a thread's own memory is the test's */
	ck_assert_int_eq(pthread_create(&t, NULL, client, a), 0);
	is_client = 0;
	while (!atomic_load(&a->over))
		event_base_loop(w->base, EVLOOP_ONCE);
	pthread_join(t, NULL);
	atomic_store(&armed, 0);
	do {
		event_base_loop(w->base, EVLOOP_ONCE);
		http_counts(w->r.http, &now);
	} while (now.accepted + now.refused == came || w->r.n_requests || now.connections);
}

TEST_CASE("requests", .timeout_s = 600);

TEST_LOOP(each_large_allocation_fails, 0, sizeof requests / sizeof *requests)
{
	if (!INTERPOSED)
		SKIP(SANITIZED);
	if (requests[_i].text && !model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = world_new(requests[_i].text ? model : NULL, 1u << 20);
	struct buf body;
	unsigned k = 0, by_status[600] = {0}, cut = 0;
	buf_init(&body, 0);
	requests[_i].body(&body);
	for (;; k++) {
		struct asking a = {.path = requests[_i].path, .body = &body};
		atomic_store(&failed, 0);
		atomic_store(&skip, k);
		atomic_store(&armed, 1);
		go(w, &a);
		ck_assert_uint_eq(w->r.n_answers, 0);
		ck_assert_uint_eq(w->r.memory.lent, 0);
		ck_assert_uint_eq(attempts_count(&w->r.attempts), 0);
		if (!atomic_load(&failed)) {
			ck_assert_int_eq(a.status, requests[_i].status);
			ck_assert_int_eq(a.whole, 1);
			break;
		}
		by_status[a.status]++;
		cut += !a.whole;
		ck_assert_msg(a.status == 0 || a.status == requests[_i].status || a.status == 503,
		              "allocation %u: status %d", k, a.status);
		ck_assert_uint_lt(k, 5000);
	}
	printf("%s: %u large allocations; %u times 503, %u times without an answer, %u answers cut\n",
	       requests[_i].path, k, by_status[503], by_status[0], cut - by_status[0]);
	ck_assert_uint_gt(k, 2);
	buf_fini(&body);
	world_free(w);
}

/* Whatever a connection costs, from its acceptance on: at worst it ends without an answer. */
TEST(each_allocation_of_a_connection_fails)
{
	if (!INTERPOSED)
		SKIP(SANITIZED);
	world_write_us = 500000;
	struct world *w = world_new(NULL, 1u << 20);
	const struct buf none = {0};
	unsigned k = 0;
	for (int over = 0; !over; k++) {
		struct asking a = {.path = "/live", .body = &none};
		struct http_counts now;
		atomic_store(&failed, 0);
		atomic_store(&skip, k);
		least = SMALL;
		atomic_store(&armed, 1);
		go(w, &a);
		least = LARGE;
		http_counts(w->r.http, &now);
		ck_assert_uint_eq(now.in_bytes + now.out_bytes, 0);
		over = !atomic_load(&failed);
		ck_assert_msg(a.status == 200 || (!over && (a.status == 0 || a.status == 503)),
		              "allocation %u: status %d", k, a.status);
		ck_assert_uint_lt(k, 1000);
	}
	printf("a connection: %u allocations\n", k - 1);
	ck_assert_uint_gt(k, 5);
	world_free(w);
}

TEST_START(quiet)
{
	log_set_level("error");
	signal(SIGPIPE, SIG_IGN); /* as the daemon skeleton does */
}
