/* test_router_frame.c - where requests end: the cases of tests/data/http-cases.json, in every way
 * to cut their bytes, and what a request may hold. */
/* run: parser */
#include "http/frame.h"
#include "http_cases.h"

#define HEAD_MAX 65536u
#define BODY_MAX (4u << 20)

static const char good_body[] =
	"{\"prompt\":[1],\"max_tokens\":0,\"echo\": true}"; /* the good one of the cases */

/* --- what an edge makes of it: the statuses, in order -------------------- */

struct edge {
	struct http_frame f;
	int statuses[8];
	size_t n;
	int closed;
};

static void say(struct edge *e, int status, int keep)
{
	ck_assert_uint_lt(e->n, 8);
	e->statuses[e->n++] = status;
	e->closed = !keep;
	http_frame_next(&e->f);
}

static void take_head(struct edge *e)
{
	const struct http_head *h = &e->f.head;
	int has_body = h->chunked || h->content_length, status = 0;
	if (strcmp(h->path, "/live") == 0)
		status = strcmp(h->method, "GET") == 0 ? 0 : 405;
	else if (strcmp(h->path, "/v1/completions") != 0)
		status = 404;
	if (status)
		say(e, status, h->keep_alive && !has_body);
	else if (http_frame_go_on(&e->f, BODY_MAX) < 0)
		say(e, e->f.status, 0);
}

static void take_request(struct edge *e)
{
	const struct http_frame *f = &e->f;
	int keep = f->head.keep_alive;
	ck_assert_uint_eq(f->body.len, f->body.len ? strlen(f->body.data) : 0);
	int good = strcmp(f->head.method, "GET") == 0 ||
	           (f->body.len && strcmp(f->body.data, good_body) == 0);
	say(e, good ? 200 : 400, keep);
}

static void feed(struct edge *e, const char *p, size_t n)
{
	size_t used;
	do {
		char *exact = mem_alloc(n + 1); /* a read beyond is seen by the sanitizer */
		memcpy(exact, p, n);
		enum http_event event = http_frame_feed(&e->f, exact, n, &used);
		memset(exact, 0xee, n); /* nothing points into it any more */
		free(exact);
		ck_assert_uint_le(used, n);
		ck_assert_uint_le(http_frame_held(&e->f), 2 * HEAD_MAX + BODY_MAX + 4096);
		p += used;
		n -= used;
		if (event == HTTP_HEAD)
			take_head(e);
		else if (event == HTTP_REQUEST)
			take_request(e);
		else if (event == HTTP_BAD)
			say(e, e->f.status, 0);
		else
			ck_assert_uint_eq(n, 0);
	} while (!e->closed &&
	         (n || (http_frame_begun(&e->f) && !e->f.left && e->f.state == HTTP_FRAME_BODY)));
}

/* Pieces of `piece` bytes after a first one of `first`. */
static void run(const struct http_case *c, size_t first, size_t piece)
{
	struct edge e = {0};
	http_frame_init(&e.f, HEAD_MAX);
	for (size_t at = 0, n; at < c->bytes.len && !e.closed; at += n) {
		n = at ? piece : first;
		n = n > c->bytes.len - at ? c->bytes.len - at : n;
		feed(&e, c->bytes.data + at, n);
	}
	http_frame_fini(&e.f);
	ck_assert_msg(e.n == c->n, "%s, cut at %zu and each %zu: %zu answers (the first %d), not %zu",
	              c->name, first, piece, e.n, e.statuses[0], c->n);
	for (size_t i = 0; i < e.n; i++)
		ck_assert_msg(e.statuses[i] == c->statuses[i],
		              "%s, cut at %zu and each %zu: answer %zu is %d, not %d", c->name, first,
		              piece, i, e.statuses[i], c->statuses[i]);
	ck_assert_msg(e.closed == !c->kept, "%s: %s", c->name, e.closed ? "closed" : "kept");
}

TEST_CASE("frame", .timeout_s = 60);

TEST_LOOP(cases, 0, http_cases_count())
{
	struct http_case c;
	http_case_read((size_t)_i, &c);
	run(&c, c.bytes.len, c.bytes.len);
	for (size_t piece = 1; piece < 8; piece++)
		run(&c, piece, piece);
	for (size_t first = 1; first < c.bytes.len && c.bytes.len < 2000; first++)
		run(&c, first, c.bytes.len);
	buf_fini(&c.bytes);
}

/* --- bounds -------------------------------------------------------------- */

/* A body of a known length takes no more than that, however it comes. */
TEST(room_for_a_body)
{
	static const char head[] = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n";
	struct http_frame f;
	size_t used, n = 0;
	char *piece = mem_zalloc(16384);
	http_frame_init(&f, HEAD_MAX);
	ck_assert_int_eq(http_frame_feed(&f, head, sizeof head - 1, &used), HTTP_HEAD);
	ck_assert_uint_eq(used, sizeof head - 1);
	ck_assert_uint_eq(f.body.size, 0);
	ck_assert_int_eq(http_frame_go_on(&f, 1000000), 0);
	for (enum http_event e = HTTP_MORE; e == HTTP_MORE; n += used) {
		e = http_frame_feed(&f, piece, 16384, &used);
		ck_assert_uint_le(f.body.size, 1000001);
		ck_assert_uint_le(f.body.size, 2 * (n + 16384) + 1);
	}
	ck_assert_uint_eq(f.body.len, 1000000);
	http_frame_fini(&f);
	free(piece);
}

TEST_LOOP(body_past_its_limit, 0, 2)
{
	static const char *const heads[] = {
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 11\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n6\r\nabcdef\r\n5\r\n",
	};
	struct http_frame f;
	size_t used, len = strlen(heads[_i]);
	http_frame_init(&f, HEAD_MAX);
	ck_assert_int_eq(http_frame_feed(&f, heads[_i], len, &used), HTTP_HEAD);
	if (http_frame_go_on(&f, 10) == 0)
		ck_assert_int_eq(http_frame_feed(&f, heads[_i] + used, len - used, &used), HTTP_BAD);
	ck_assert_int_eq(f.state, HTTP_FRAME_BAD);
	ck_assert_int_eq(f.status, 413);
	http_frame_fini(&f);
}

/* What is over is forgotten; a body that was taken away is its taker's. */
TEST(one_after_the_other)
{
	static const char one[] = "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc";
	struct http_frame f;
	size_t used, at = 0;
	http_frame_init(&f, HEAD_MAX);
	for (int i = 0; i < 3; i++, at = 0) {
		ck_assert_int_eq(http_frame_begun(&f), 0);
		ck_assert_uint_eq(http_frame_held(&f), 0);
		ck_assert_int_eq(http_frame_feed(&f, one, sizeof one - 1, &used), HTTP_HEAD);
		ck_assert_int_eq(http_frame_begun(&f), 1);
		at += used;
		ck_assert_int_eq(http_frame_go_on(&f, 100), 0);
		ck_assert_int_eq(http_frame_feed(&f, one + at, sizeof one - 1 - at, &used), HTTP_REQUEST);
		char *body = f.body.data;
		memset(&f.body, 0, sizeof f.body);
		http_frame_next(&f);
		ck_assert_str_eq(body, "abc");
		free(body);
	}
	http_frame_fini(&f);
}
