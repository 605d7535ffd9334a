/* fuzz_reply.c - what pdbench reads of a server: an HTTP answer whose body is a stream of events.
 * The first byte says how it is cut: in whatever pieces it comes, the same answer must be seen. The
 * parts of an event lie in its text, and whatever is a JSON object is read. */
#include "tests/fuzz/fuzz.h"
#include "tools/pdbench/event.h"
#include "tools/pdbench/reply.h"
#include "util/buf.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 60 /* event.c reads nothing deeper than 64 */

struct seen {
	struct sse sse;
	struct buf text;
};

/* --- one event ----------------------------------------------------------- */

static int is_deep(const json_t *v, int depth)
{
	const char *key;
	json_t *member;
	size_t i;
	if (depth > DEPTH)
		return 1;
	json_object_foreach((json_t *)v, key, member)
		if (is_deep(member, depth + 1))
			return 1;
	json_array_foreach((json_t *)v, i, member)
		if (is_deep(member, depth + 1))
			return 1;
	return 0;
}

static void check_slice(struct slice s, const char *data, size_t n)
{
	must(!s.n || (s.at >= data && s.n <= n && s.at <= data + n - s.n));
}

/* What pdbench looks for may be of another type, and jansson passes over bytes of zero between
 * values: then the event may be refused. */
static int is_odd(const char *data, size_t n)
{
	return memmem(data, n, "token_ids", 9) != NULL || memchr(data, 0, n) != NULL;
}

static int on_event(void *arg, const char *data, size_t n)
{
	struct seen *s = arg;
	struct event_parts e;
	int rc = event_scan(data ? data : "", n, &e);
	buf_printf(&s->text, "event %zu: %d ids %u choices %u error %d\n", n, rc, e.n_ids, e.n_choices,
	           e.is_error);
	json_t *o = json_loadb(data ? data : "", n, JSON_ALLOW_NUL, NULL);
	if (json_is_object(o) && !is_deep(o, 0) && !is_odd(data, n))
		must(rc == 0);
	json_decref(o);
	check_slice(e.ids, data, n);
	check_slice(e.text, data, n);
	check_slice(e.finish, data, n);
	check_slice(e.error, data, n);
	must((e.n_ids == 0) == (e.ids.n == 0) && e.n_ids <= e.ids.n + 1);
	return 0;
}

static int on_body(void *arg, const char *data, size_t n)
{
	struct seen *s = arg;
	must(n > 0);
	int rc = sse_feed(&s->sse, data, n, on_event, s);
	must(rc == 0 && s->sse.line_len + s->sse.event_len <= 2 * SSE_EVENT_MAX);
	return 0;
}

/* --- the answer ---------------------------------------------------------- */

/* most 0: in one piece; else pieces of at most so many bytes. */
static void run(const uint8_t *data, size_t size, size_t most, unsigned cuts, struct buf *out)
{
	struct seen s;
	struct reply r;
	struct err err = {0};
	int rc = 0;
	size_t used;
	sse_init(&s.sse);
	buf_init(&s.text, 0);
	reply_init(&r);
	for (size_t at = 0, n; at < size && rc == 0; at += n) {
		n = most ? 1 + (cuts = cuts * 1103515245u + 12345u) / 65536u % most : size;
		n = at + n > size ? size - at : n;
		char *piece = malloc(n);
		memcpy(piece, data + at, n);
		rc = reply_feed(&r, piece, n, on_body, &s, &used, &err);
		must(used <= n && r.line_len < sizeof r.line && r.head_bytes <= REPLY_HEAD_MAX + n);
		must(rc == 0 ? used == n : rc == 1 ? r.state == REPLY_DONE : rc == ERR_INVALID);
		free(piece);
	}
	if (rc == 0)
		rc = reply_eof(&r, &err);
	must(rc == 1 || err.text[0]);
	if (rc == 1)
		fuzz_accepted();
	buf_add(out, s.text.len ? s.text.data : "", s.text.len);
	/* of something else than HTTP, what it begins with is shown as far as it has come */
	buf_printf(out, "%d %d %s\n", rc, r.status, rc == ERR_INVALID ? "" : err.text);
	sse_fini(&s.sse);
	buf_fini(&s.text);
}

FUZZ(reply, 1 << 13)
{
	struct buf whole, parts;
	if (size < 1)
		return 0;
	buf_init(&whole, 0);
	buf_init(&parts, 0);
	run(data + 1, size - 1, 0, 0, &whole);
	for (size_t most = 1; most <= 64; most *= 8) {
		buf_reset(&parts);
		run(data + 1, size - 1, most, 1u + data[0], &parts);
		must(whole.len == parts.len && memcmp(whole.data, parts.data, whole.len) == 0);
	}
	buf_fini(&whole);
	buf_fini(&parts);
	return 0;
}
