/* reply.h - the answer of an HTTP/1.1 server, from bytes in pieces of any size: status, the few
 * headers that matter, the body without its chunks. No I/O. Nothing grows with what the server
 * sends. */
#ifndef PDBENCH_REPLY_H
#define PDBENCH_REPLY_H

#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

/* what is kept of a line of the head; what is beyond is skipped */
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
	uint64_t left; /* of the body or of the chunk */
	size_t head_bytes, line_len;
	int line_cut; /* the line was longer than line[] */
	char line[REPLY_LINE_MAX];
};

/* Nonzero ends the reading (ERR_CANCELLED). */
typedef int reply_body_fn(void *arg, const char *data, size_t n);

void reply_init(struct reply *r);
/* 0: all was taken, more is to come. 1: the answer is whole; *ret_used bytes belonged to it.
 * ERR_INVALID: no HTTP. ERR_CANCELLED. */
int reply_feed(struct reply *r, const char *data, size_t n, reply_body_fn *body, void *arg,
               size_t *ret_used, struct err *err);
/* The connection ended: 1 when that ends the answer, or ERR_CLOSED. */
int reply_eof(struct reply *r, struct err *err);

#endif
