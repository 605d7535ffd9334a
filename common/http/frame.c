/* frame.c - see frame.h. Each step uses as many of the given bytes as it can; HTTP_MORE: the next
 * step may go on with the rest. */
#include "http/frame.h"
#include "util/check.h"

#include <string.h>

#define CHUNK_LINE_MAX 1024u /* of a chunk's size, and of the trailer */
#define LINE_FIRST 512u      /* what most heads need */

struct piece {
	const char *p;
	size_t n;
};

static int bad(struct http_frame *f, int status, const char *why)
{
	f->status = status;
	f->why = why;
	f->state = HTTP_FRAME_BAD;
	return HTTP_BAD;
}

/* 0, or -1: bad. Limits have been checked before, so the only failure is lack of memory. */
static int append(struct http_frame *f, struct buf *b, struct piece *in, size_t n)
{
	if (buf_add(b, in->p, n) < 0) {
		bad(f, 503, "this server has no memory for the request now");
		return -1;
	}
	in->p += n;
	in->n -= n;
	return 0;
}

/* How many of the bytes belong to the present line, including its LF. */
static size_t line_part(const struct piece *in)
{
	const char *lf = memchr(in->p, '\n', in->n);
	return lf ? (size_t)(lf + 1 - in->p) : in->n;
}

/* --- the head ------------------------------------------------------------ */

static int head_complete(struct http_frame *f)
{
	int status = http_parse_head(f->text.data, f->text.len, &f->head, &f->why);
	if (status)
		return bad(f, status, f->why);
	f->state = HTTP_FRAME_ASKED;
	return HTTP_HEAD;
}

/* A line has ended: a header field, an empty line before the head, or the empty line after it. */
static int head_line(struct http_frame *f)
{
	struct buf *t = &f->text;
	size_t len = t->len - f->line_at;
	if (len < 2 || t->data[t->len - 2] != '\r')
		return bad(f, 400, "a line of the request's head does not end in CR LF");
	if (len > 2) {
		f->line_at = t->len;
		return HTTP_MORE;
	}
	if (f->line_at)
		return head_complete(f);
	f->empty += len;
	t->len = 0;
	return HTTP_MORE;
}

static int step_head(struct http_frame *f, struct piece *in)
{
	size_t n = line_part(in);
	if (n > f->head_max - f->empty - f->text.len)
		return bad(f, 431, "the request's head is longer than this server takes");
	int ended = in->p[n - 1] == '\n';
	if (!f->text.size)
		buf_reserve(&f->text, n < LINE_FIRST ? LINE_FIRST - 1 : n);
	if (append(f, &f->text, in, n) < 0)
		return HTTP_BAD;
	return ended ? head_line(f) : HTTP_MORE;
}

static int too_long(struct http_frame *f)
{
	return bad(f, 413, "the request's body is longer than this path takes");
}

int http_frame_go_on(struct http_frame *f, size_t body_max)
{
	CHECK(f->state == HTTP_FRAME_ASKED);
	f->body_max = body_max;
	buf_init(&f->body, f->head.chunked ? body_max : (size_t)f->head.content_length);
	f->left = f->head.content_length;
	f->state = f->head.chunked ? HTTP_FRAME_CHUNK_SIZE : HTTP_FRAME_BODY;
	return f->left > body_max ? too_long(f), -1 : 0;
}

/* --- a body of known length ---------------------------------------------- */

static int step_body(struct http_frame *f, struct piece *in)
{
	size_t n = in->n < f->left ? in->n : (size_t)f->left;
	if (n && append(f, &f->body, in, n) < 0)
		return HTTP_BAD;
	f->left -= n;
	if (f->left)
		return HTTP_MORE;
	f->state = HTTP_FRAME_DONE;
	return HTTP_REQUEST;
}

/* --- a body in chunks ---------------------------------------------------- */

/* 1: `line` holds a whole line, its CR LF cut off; 0: more is needed; -1: bad */
static int take_line(struct http_frame *f, struct piece *in)
{
	struct buf *l = &f->line;
	size_t n = line_part(in);
	if (n > CHUNK_LINE_MAX - l->len) {
		bad(f, 400, "a line between chunks, or of the trailer, is too long");
		return -1;
	}
	int ended = in->p[n - 1] == '\n';
	if (append(f, l, in, n) < 0)
		return -1;
	if (!ended)
		return 0;
	if (l->len < 2 || l->data[l->len - 2] != '\r') {
		bad(f, 400, "a line between chunks, or of the trailer, does not end in CR LF");
		return -1;
	}
	l->len -= 2;
	l->data[l->len] = 0;
	return 1;
}

static int step_chunk_size(struct http_frame *f, struct piece *in)
{
	int r = take_line(f, in);
	if (r <= 0)
		return r < 0 ? HTTP_BAD : HTTP_MORE;
	if (http_parse_chunk_size(f->line.data, f->line.len, &f->left) < 0)
		return bad(f, 400,
		           "a chunk's size is not 1 to 16 hexadecimal digits, with extensions of the "
		           "form ;name=value");
	const char *extension = memchr(f->line.data, ';', f->line.len);
	f->around += extension ? f->line.len - (size_t)(extension - f->line.data) : 0;
	f->line.len = 0;
	if (f->around > f->head_max)
		return bad(f, 400,
		           "the chunks' extensions are longer than this server's limit (max_header_bytes)");
	if (f->left > f->body_max - f->body.len)
		return too_long(f);
	f->state = f->left ? HTTP_FRAME_CHUNK_DATA : HTTP_FRAME_TRAILER;
	return HTTP_MORE;
}

static int step_chunk_data(struct http_frame *f, struct piece *in)
{
	size_t n = in->n < f->left ? in->n : (size_t)f->left;
	if (append(f, &f->body, in, n) < 0)
		return HTTP_BAD;
	f->left -= n;
	if (!f->left)
		f->state = HTTP_FRAME_CHUNK_END;
	return HTTP_MORE;
}

static int step_chunk_end(struct http_frame *f, struct piece *in)
{
	char want = f->line.len ? '\n' : '\r';
	if (*in->p != want)
		return bad(f, 400, "a chunk does not end in CR LF");
	if (append(f, &f->line, in, 1) < 0)
		return HTTP_BAD;
	if (want == '\n') {
		f->line.len = 0;
		f->state = HTTP_FRAME_CHUNK_SIZE;
	}
	return HTTP_MORE;
}

static int step_trailer(struct http_frame *f, struct piece *in)
{
	int r = take_line(f, in);
	if (r <= 0)
		return r < 0 ? HTTP_BAD : HTTP_MORE;
	size_t n = f->line.len;
	f->line.len = 0;
	if (n == 0) {
		buf_fini(&f->line);
		f->state = HTTP_FRAME_DONE;
		return HTTP_REQUEST;
	}
	f->around += n + 2;
	if (f->around > f->head_max)
		return bad(f, 431,
		           "the request's trailer is longer than this server's limit (max_header_bytes)");
	if (http_parse_trailer(f->line.data, n) < 0)
		return bad(f, 400, "a line of the trailer is not a name, a colon and a value");
	return HTTP_MORE;
}

/* --- all ----------------------------------------------------------------- */

static int step(struct http_frame *f, struct piece *in)
{
	switch (f->state) {
	case HTTP_FRAME_HEAD: return step_head(f, in);
	case HTTP_FRAME_BODY: return step_body(f, in);
	case HTTP_FRAME_CHUNK_SIZE: return step_chunk_size(f, in);
	case HTTP_FRAME_CHUNK_DATA: return step_chunk_data(f, in);
	case HTTP_FRAME_CHUNK_END: return step_chunk_end(f, in);
	case HTTP_FRAME_TRAILER: return step_trailer(f, in);
	case HTTP_FRAME_ASKED:
	case HTTP_FRAME_DONE:
	case HTTP_FRAME_BAD: break;
	}
	PANIC("fed in state %d, which takes no bytes", (int)f->state);
}

enum http_event http_frame_feed(struct http_frame *f, const char *p, size_t n, size_t *ret_used)
{
	struct piece in = {p, n};
	enum http_event event = HTTP_MORE;
	/* a body without bytes is complete without any */
	while (event == HTTP_MORE && (in.n || (f->state == HTTP_FRAME_BODY && !f->left)))
		event = (enum http_event)step(f, &in);
	*ret_used = n - in.n;
	return event;
}

int http_frame_begun(const struct http_frame *f)
{
	return f->state != HTTP_FRAME_HEAD || f->text.len || f->empty;
}

size_t http_frame_held(const struct http_frame *f)
{
	return f->text.size + f->line.size + f->body.size;
}

void http_frame_init(struct http_frame *f, size_t head_max)
{
	memset(f, 0, sizeof *f);
	f->head_max = head_max;
	buf_init(&f->text, head_max);
	buf_init(&f->line, CHUNK_LINE_MAX);
}

void http_frame_fini(struct http_frame *f)
{
	buf_fini(&f->text);
	buf_fini(&f->line);
	buf_fini(&f->body);
}

void http_frame_next(struct http_frame *f)
{
	http_frame_fini(f);
	http_frame_init(f, f->head_max);
}
