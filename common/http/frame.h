/* frame.h - where a request ends and the next one begins: the bytes of a connection, in pieces
 * of any size, become heads and bodies. No I/O.
 *
 *   HEAD -> ASKED -> BODY ---------------------------------------> DONE
 *                 -> CHUNK_SIZE -> CHUNK_DATA -> CHUNK_END -> ...
 *                               -> TRAILER ----------------------> DONE
 *   from each of them: BAD, which is final
 *
 * Lines end in CR LF; a bare LF is refused as soon as it arrives. Empty lines before a head are
 * skipped and count as part of it. Limits: head_max for a head, body_max for a body, head_max again
 * for what surrounds its chunks (extensions, trailer). */
#ifndef HTTP_FRAME_H
#define HTTP_FRAME_H

#include "http/parse.h"
#include "util/buf.h"

enum http_frame_state {
	HTTP_FRAME_HEAD,
	HTTP_FRAME_ASKED, /* the head is complete: may its body come? */
	HTTP_FRAME_BODY,
	HTTP_FRAME_CHUNK_SIZE,
	HTTP_FRAME_CHUNK_DATA,
	HTTP_FRAME_CHUNK_END, /* its CR LF */
	HTTP_FRAME_TRAILER,
	HTTP_FRAME_DONE,
	HTTP_FRAME_BAD
};

enum http_event {
	HTTP_MORE,    /* all bytes were used, more are needed */
	HTTP_HEAD,    /* `head` is complete, nothing after it was read; http_frame_go_on follows */
	HTTP_REQUEST, /* the request is complete */
	HTTP_BAD      /* `status` and `why` say what was wrong: 400, 413, 431, 501, 503 or 505 */
};

struct http_frame {
	enum http_frame_state state;
	size_t head_max, body_max;
	struct buf text; /* of the head; `head` points into it */
	struct buf line; /* of a chunk's size, or of the trailer */
	struct buf body;
	struct http_head head; /* from HTTP_HEAD on */
	size_t line_at;        /* where the head's present line begins */
	size_t empty;          /* bytes of empty lines before the head */
	size_t around;         /* bytes of chunk extensions and trailer */
	uint64_t left;         /* of the body, or of the chunk */
	int status;            /* HTTP_BAD: what to answer, and why; why is static */
	const char *why;
};

void http_frame_init(struct http_frame *f, size_t head_max);
void http_frame_fini(struct http_frame *f);
/* *ret_used of the n bytes were used. After HTTP_REQUEST or HTTP_BAD only http_frame_next or
 * http_frame_fini follow. */
enum http_event http_frame_feed(struct http_frame *f, const char *p, size_t n, size_t *ret_used);
/* After HTTP_HEAD: the body may come, up to body_max bytes. 0, or -1 (HTTP_BAD) when the head
 * already says that it is longer. */
int http_frame_go_on(struct http_frame *f, size_t body_max);
/* Forgets the request, complete or not, and frees what it held. */
void http_frame_next(struct http_frame *f);
/* Has anything of a request arrived? Empty lines count. */
int http_frame_begun(const struct http_frame *f);
size_t http_frame_held(const struct http_frame *f); /* bytes of memory */

#endif
