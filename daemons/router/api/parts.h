/* parts.h - an answer, or a piece of one, as a list of what it consists of: short texts, strings
 * that become JSON, rows that become JSON. It is written bit by bit, so that a long one is never
 * there as a whole. */
#ifndef ROUTER_PARTS_H
#define ROUTER_PARTS_H

#include "logprob.h"
#include "util/buf.h"

struct part;

struct parts {
	/* the short ones, one behind the other: whoever makes the list adds them here */
	struct buf text;
	size_t closed; /* of text: in `part` already */
	struct part *part;
	uint32_t n, size;
	uint32_t at; /* the part that is being written, and how far */
	size_t done;
};

void parts_init(struct parts *p);
void parts_fini(struct parts *p);
void parts_reset(struct parts *p); /* an empty list; keeps its memory */

/* Append. Memory that is pointed to must not change until it is written. */
void parts_bytes(struct parts *p, const char *s, size_t n); /* as they are */
/* as a JSON string, with its quotes */
void parts_string(struct parts *p, const char *s, size_t n);
/* as the inside of a JSON string */
void parts_inside(struct parts *p, const char *s, size_t n);
void parts_ids(struct parts *p, const uint32_t *ids, size_t n); /* 1,2,3 */
/* see logprob_rows */
void parts_rows(struct parts *p, const struct rows *rows, enum row_shape shape, uint32_t most);

/* Writes on until out has `most` bytes, or a little more. 1: to the end. Without memory out is
 * full. */
int parts_write(struct parts *p, const struct model *m, struct buf *out, size_t most);

#endif
