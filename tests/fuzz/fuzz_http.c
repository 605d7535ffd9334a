/* fuzz_http.c - all bytes of a connection. The first two say how they are cut: in whatever pieces
 * they come, the same requests must be seen, with the same bodies and the same end, and nothing may
 * be held beyond its limit. */
#include "http/frame.h"
#include "tests/fuzz/fuzz.h"
#include "util/buf.h"

#include <stdlib.h>
#include <string.h>

#define HEAD_MAX 600u
#define BODY_MAX 300u

static void note_head(const struct http_head *h, struct buf *out)
{
	buf_printf(out, "%s %s?%s %d %d %d %d %llu [%s] [%s]\n", h->method, h->path, h->query, h->minor,
	           h->keep_alive, h->chunked, h->expect_continue, (unsigned long long)h->content_length,
	           h->authorization, h->session_id);
	must(h->host || h->minor == 0);
	must(!(h->chunked && h->has_length));
}

/* One event; 1: it goes on. */
static int note(struct http_frame *f, enum http_event event, struct buf *out)
{
	switch (event) {
	case HTTP_MORE: return 1;
	case HTTP_HEAD:
		note_head(&f->head, out);
		if (http_frame_go_on(f, BODY_MAX) == 0)
			return 1;
		break;
	case HTTP_REQUEST:
		fuzz_accepted();
		must(f->head.chunked || f->body.len == f->head.content_length);
		buf_printf(out, "%zu bytes: ", f->body.len);
		buf_add(out, f->body.data ? f->body.data : "", f->body.len);
		http_frame_next(f);
		return 1;
	case HTTP_BAD: break;
	}
	must(f->state == HTTP_FRAME_BAD && f->status >= 400 && *f->why);
	buf_printf(out, "bad: %d %s\n", f->status, f->why);
	return 0;
}

/* cut 0: in one piece; else pieces drawn from it, at most `most` bytes each. */
static void run(const uint8_t *data, size_t size, unsigned cut, unsigned most, struct buf *out)
{
	struct http_frame f;
	int more = 1;
	http_frame_init(&f, HEAD_MAX);
	for (size_t at = 0, n, used; at < size && more; at += n) {
		n = cut ? 1 + (cut = cut * 1103515245u + 12345u) / 65536u % most : size;
		n = at + n > size ? size - at : n;
		char *piece = malloc(n);
		memcpy(piece, data + at, n);
		for (size_t k = 0; more && (k < n || (f.state == HTTP_FRAME_BODY && !f.left)); k += used) {
			more = note(&f, http_frame_feed(&f, piece + k, n - k, &used), out);
			must(used <= n - k);
			must(f.text.len <= HEAD_MAX && f.body.len <= BODY_MAX && f.line.len <= 1024);
			must(http_frame_held(&f) <= 2 * HEAD_MAX + BODY_MAX + 1200);
		}
		free(piece);
	}
	buf_printf(out, "%d\n", more && http_frame_begun(&f));
	http_frame_fini(&f);
}

FUZZ(http, 1 << 12)
{
	struct buf whole, parts;
	if (size < 3)
		return 0;
	buf_init(&whole, 0);
	buf_init(&parts, 0);
	run(data + 2, size - 2, 0, 0, &whole);
	for (unsigned most = 1; most <= 64; most *= 8) {
		buf_reset(&parts);
		run(data + 2, size - 2, 1u + data[0] + 256u * data[1], most, &parts);
		must(whole.len == parts.len && memcmp(whole.data, parts.data, whole.len) == 0);
	}
	buf_fini(&whole);
	buf_fini(&parts);
	return 0;
}
