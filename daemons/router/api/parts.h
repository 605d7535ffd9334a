/* parts.h - an answer, or a piece of one, as a list of parts: short texts, and strings and rows
 * that become JSON. It is written in steps, so that a long one is never in memory at once. */
#ifndef ROUTER_PARTS_H
#define ROUTER_PARTS_H

#include "logprob.h"
#include "util/buf.h"

struct answer_part;

struct answer_parts {
	/* all short texts; the maker of the list appends to it */
	struct buf text;
	size_t closed; /* bytes of text that have a part already */
	struct answer_part *part;
	uint32_t n, size;
	uint32_t at; /* the part being written; done: how much of it was written */
	size_t done;
};

void parts_init(struct answer_parts *p);
void parts_fini(struct answer_parts *p);
void parts_reset(struct answer_parts *p); /* an empty list; keeps its memory */

/* Append. Memory that is pointed to must not change until it is written. */
void parts_bytes(struct answer_parts *p, const char *s, size_t n); /* as they are */
/* as a JSON string, with its quotes */
void parts_string(struct answer_parts *p, const char *s, size_t n);
/* as the inside of a JSON string */
void parts_inside(struct answer_parts *p, const char *s, size_t n);
void parts_ids(struct answer_parts *p, const uint32_t *ids, size_t n); /* 1,2,3 */
void parts_floats(struct answer_parts *p, const float *v, size_t n);   /* 0.5,1e-05 */
/* n bytes, without quotes */
void parts_base64(struct answer_parts *p, const void *bytes, size_t n);
/* see logprob_rows */
void parts_rows(struct answer_parts *p, const struct row_list *rows, uint32_t from, uint32_t to,
                enum row_shape shape, uint32_t most);

/* Goes on until out has `max_size` bytes, or a little more. 1: to the end. Without memory out is
 * full. */
int parts_write(struct answer_parts *p, const struct model *m, struct buf *out, size_t max_size);
int parts_are_unsent(const struct answer_parts *p); /* not empty, and none of it was written */
/* Some of the list has been written, but not all. */
int parts_have_begun(const struct answer_parts *p);

#endif
