/* reply.h - parses the answer of an HTTP/1.1 server from pieces of any size: status, the headers
 * that matter, the body without chunk framing. No I/O. Memory does not grow with what the server
 * sends. */
#ifndef PDBENCH_REPLY_H
#define PDBENCH_REPLY_H

#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

/* bytes kept of a line; the rest of it is skipped */
#define REPLY_LINE_MAX 1024
#define REPLY_HEAD_MAX 65536

enum reply_state {
	REPLY_STATUS,
	REPLY_HEADER,
	REPLY_BODY,
	REPLY_CHUNK_SIZE,
	REPLY_CHUNK,
	REPLY_CHUNK_END,
	REPLY_TRAILER,
	REPLY_DONE
};

struct reply {
	enum reply_state state;
	int status, chunked, keep_alive, has_length;
	uint64_t left; /* rest of the body or of the chunk */
	size_t head_bytes, line_len;
	int line_cut; /* 1: the line was longer than line[] */
	char line[REPLY_LINE_MAX];
};

/* Returning nonzero stops reading (ERR_CANCELLED). */
typedef int reply_body_fn(void *arg, const char *data, size_t n);

void reply_init(struct reply *r);
/* Returns 0: all consumed, more is expected; 1: the answer is complete, it had *ret_used of these
 * bytes; ERR_INVALID: not HTTP; ERR_CANCELLED. */
int reply_feed(struct reply *r, const char *data, size_t n, reply_body_fn *body, void *arg,
               size_t *ret_used, struct err *err);
/* The connection was closed. Returns 1 if that ends the answer, or ERR_CLOSED. */
int reply_eof(struct reply *r, struct err *err);

#endif
