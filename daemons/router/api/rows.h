/* rows.h - log-probabilities as they wait for their client: a row of numbers for each token, of
 * known size. They become JSON, ten times as long, only while they are sent. */
#ifndef ROUTER_ROWS_H
#define ROUTER_ROWS_H

#include "request.pb-c.h"
#include "util/quota.h"

#include <stddef.h>
#include <stdint.h>

struct row_top {
	uint32_t id;
	float logprob;
};

/* as n_top: the first token of a prompt, which has no log-probability */
#define ROW_NONE UINT32_MAX

struct row {
	uint32_t id;
	float logprob;
	uint32_t rank;
	uint32_t offset; /* code points of the text before it */
	uint32_t n_top;
	struct row_top top[]; /* descending */
};

struct rows {
	unsigned char *data;   /* (size) rows of row_bytes(top) */
	uint32_t n, size, top; /* top: alternatives of a row, at most */
	struct quota *quota;   /* that they are taken from; outlives them */
};

static inline size_t row_bytes(uint32_t top)
{
	return sizeof(struct row) + top * sizeof(struct row_top);
}

void rows_init(struct rows *l, uint32_t top, struct quota *q);
void rows_fini(struct rows *l);
/* Room for n rows in all. 0 or ERR_NOMEM. */
int rows_reserve(struct rows *l, uint32_t n);
static inline struct row *rows_at(const struct rows *l, uint32_t i)
{
	return (struct row *)(l->data + i * row_bytes(l->top));
}
/* A zeroed row behind the others; NULL: no memory. */
struct row *rows_add(struct rows *l);
/* The row of an answer's token. 0 or ERR_NOMEM. */
int rows_add_token(struct rows *l, const Pds__Token *t, uint32_t offset);
/* Token i of m into a row. */
void row_take(struct row *r, uint32_t top, const Pds__PromptLogprobs *m, size_t i);

#endif
