/* reply.c - see reply.h. Lines are collected in line[]; the body is passed on in place. */
#include "reply.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

void reply_init(struct reply *r)
{
	r->state = REPLY_STATUS;
	r->status = r->chunked = r->has_length = r->line_cut = 0;
	r->keep_alive = 1;
	r->left = 0;
	r->head_bytes = r->line_len = 0;
}

/* Consumes bytes up to the end of a line. Returns 1 when the line is complete; line[] has it
 * without its end. */
static int take_line(struct reply *r, const char *data, size_t n, size_t *used)
{
	const char *at = data + *used, *end = memchr(at, '\n', n - *used);
	size_t k = end ? (size_t)(end - at) : n - *used, room = sizeof r->line - 1 - r->line_len;
	size_t keep = k < room ? k : room;
	memcpy(r->line + r->line_len, at, keep);
	r->line_len += keep;
	r->line_cut |= k > keep;
	*used += k + (end != NULL);
	if (!end)
		return 0;
	if (r->line_len && r->line[r->line_len - 1] == '\r')
		r->line_len--;
	r->line[r->line_len] = 0;
	return 1;
}

static void line_done(struct reply *r)
{
	r->line_len = 0;
	r->line_cut = 0;
}

/* Error that shows what the server sent instead, made printable. */
static int fail_not_http(const struct reply *r, struct err *err)
{
	char seen[41];
	size_t n = 0;
	for (; n < sizeof seen - 1 && n < r->line_len; n++)
		seen[n] = isprint((unsigned char)r->line[n]) && r->line[n] != '"' ? r->line[n] : '.';
	seen[n] = 0;
	return err_set(err, ERR_INVALID, "the answer is not HTTP/1.1: it starts with \"%s\"", seen);
}

static int on_status(struct reply *r, struct err *err)
{
	const char *p = r->line;
	if (strncmp(p, "HTTP/1.", 7) != 0 || !isdigit((unsigned char)p[7]) || p[8] != ' ' ||
	    !isdigit((unsigned char)p[9]) || !isdigit((unsigned char)p[10]) ||
	    !isdigit((unsigned char)p[11]) || (p[12] && p[12] != ' '))
		return fail_not_http(r, err);
	r->keep_alive = p[7] != '0';
	r->status = atoi(p + 9);
	r->state = REPLY_HEADER;
	return 0;
}

static int has_word(const char *v, const char *word)
{
	size_t n = strlen(word);
	for (; *v; v++)
		if (strncasecmp(v, word, n) == 0)
			return 1;
	return 0;
}

static int on_length(struct reply *r, const char *v, struct err *err)
{
	char *end;
	unsigned long long n = strtoull(v, &end, 10);
	if (!isdigit((unsigned char)*v) || *end || end - v > 18)
		return err_set(err, ERR_INVALID, "the answer's Content-Length is not a number: \"%.40s\"",
		               v);
	r->has_length = 1;
	r->left = n;
	return 0;
}

/* At the empty line after the headers: decides what follows. */
static void on_head_end(struct reply *r)
{
	if (r->status / 100 == 1) { /* 100 Continue and the like: the answer is still to come */
		reply_init(r);
		return;
	}
	if (r->status == 204 || r->status == 304 || (!r->chunked && r->has_length && r->left == 0))
		r->state = REPLY_DONE;
	else
		r->state = r->chunked ? REPLY_CHUNK_SIZE : REPLY_BODY;
	if (!r->chunked && !r->has_length)
		r->keep_alive = 0;
}

static int on_header(struct reply *r, struct err *err)
{
	if (r->line_len == 0 && !r->line_cut) {
		on_head_end(r);
		return 0;
	}
	char *colon = strchr(r->line, ':');
	if (!colon)
		return err_set(err, ERR_INVALID, "the answer's head has a line without a colon");
	char *v = colon + 1;
	v += strspn(v, " \t");
	*colon = 0;
	if (strcasecmp(r->line, "content-length") == 0)
		return on_length(r, v, err);
	if (strcasecmp(r->line, "transfer-encoding") == 0)
		r->chunked = has_word(v, "chunked");
	else if (strcasecmp(r->line, "connection") == 0)
		r->keep_alive = has_word(v, "close") ? 0 : has_word(v, "keep-alive") ? 1 : r->keep_alive;
	return 0;
}

static int on_chunk_size(struct reply *r, struct err *err)
{
	char *end;
	r->left = strtoull(r->line, &end, 16);
	end += strspn(end, " \t");
	if (!isxdigit((unsigned char)r->line[0]) || end - r->line > 16 || (*end && *end != ';'))
		return err_set(err, ERR_INVALID, "the answer has a broken chunk: its size is \"%.20s\"",
		               r->line);
	r->state = r->left ? REPLY_CHUNK : REPLY_TRAILER;
	return 0;
}

static int on_line(struct reply *r, struct err *err)
{
	switch (r->state) {
	case REPLY_STATUS: return on_status(r, err);
	case REPLY_HEADER: return on_header(r, err);
	case REPLY_CHUNK_SIZE: return on_chunk_size(r, err);
	case REPLY_CHUNK_END:
		r->state = REPLY_CHUNK_SIZE;
		return r->line_len == 0
		           ? 0
		           : err_set(err, ERR_INVALID,
		                     "the answer has a broken chunk: it is longer than its size");
	default: /* a trailer */
		if (r->line_len == 0)
			r->state = REPLY_DONE;
		return 0;
	}
}

static int in_line(enum reply_state s)
{
	return s != REPLY_BODY && s != REPLY_CHUNK && s != REPLY_DONE;
}

static int feed_body(struct reply *r, const char *data, size_t n, size_t *used, reply_body_fn *body,
                     void *arg, struct err *err)
{
	size_t k = n - *used;
	int bounded = r->state == REPLY_CHUNK || r->has_length;
	if (bounded && k > r->left)
		k = (size_t)r->left;
	const char *at = data + *used;
	*used += k;
	if (bounded)
		r->left -= k;
	if (bounded && r->left == 0)
		r->state = r->state == REPLY_CHUNK ? REPLY_CHUNK_END : REPLY_DONE;
	if (k && body(arg, at, k))
		return err_set(err, ERR_CANCELLED, "the reader stopped");
	return 0;
}

static int feed_line(struct reply *r, const char *data, size_t n, size_t *used, struct err *err)
{
	size_t before = *used;
	int whole = take_line(r, data, n, used);
	r->head_bytes += *used - before;
	if (r->head_bytes > REPLY_HEAD_MAX)
		return err_set(err, ERR_INVALID,
		               "the answer's head, or a line between chunks, has more than %d bytes",
		               REPLY_HEAD_MAX);
	if (!whole) { /* fail early if the line cannot become a status line */
		if (r->state == REPLY_STATUS && r->line_len >= 5 && memcmp(r->line, "HTTP/", 5) != 0)
			return fail_not_http(r, err);
		return 0;
	}
	int code = on_line(r, err);
	line_done(r);
	if (r->state == REPLY_CHUNK || r->state == REPLY_CHUNK_SIZE)
		r->head_bytes = 0;
	return code;
}

int reply_feed(struct reply *r, const char *data, size_t n, reply_body_fn *body, void *arg,
               size_t *ret_used, struct err *err)
{
	size_t used = 0;
	int code = 0;
	while (used < n && r->state != REPLY_DONE && code == 0)
		code = in_line(r->state) ? feed_line(r, data, n, &used, err)
		                         : feed_body(r, data, n, &used, body, arg, err);
	*ret_used = used;
	return code ? code : r->state == REPLY_DONE;
}

int reply_eof(struct reply *r, struct err *err)
{
	if (r->state == REPLY_DONE || (r->state == REPLY_BODY && !r->has_length)) {
		r->state = REPLY_DONE;
		return 1;
	}
	if (r->state == REPLY_STATUS && r->line_len == 0)
		return err_set(err, ERR_CLOSED, "the server closed the connection without an answer");
	return err_set(err, ERR_CLOSED, "the server closed the connection in the middle of the %s",
	               in_line(r->state) && r->state < REPLY_BODY ? "head" : "answer");
}
