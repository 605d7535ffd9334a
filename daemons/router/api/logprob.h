/* logprob.h - log-probabilities: rows of numbers, one for each token, of known size, while they
 * wait for their client; and as JSON, ten times as long, only while they are sent. */
#ifndef ROUTER_LOGPROB_H
#define ROUTER_LOGPROB_H

#include "model.h"
#include "request.pb-c.h"
#include "util/buf.h"
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
	uint32_t rank;   /* of a prompt's token */
	uint32_t offset; /* code points of the text before it */
	uint32_t n_top;
	struct row_top top[]; /* descending */
};

struct row_list {
	unsigned char *data;   /* (size) rows of row_bytes(top) */
	uint32_t n, size, top; /* top: alternatives of a row, at most */
	struct quota *quota;   /* memory is taken from it; outlives them */
};

static inline size_t row_bytes(uint32_t top)
{
	return sizeof(struct row) + top * sizeof(struct row_top);
}

void rows_init(struct row_list *l, uint32_t top, struct quota *q);
void rows_fini(struct row_list *l);
/* Room for n rows in all. 0 or ERR_NOMEM. */
int rows_reserve(struct row_list *l, uint32_t n);
static inline struct row *rows_at(const struct row_list *l, uint32_t i)
{
	return (struct row *)(l->data + i * row_bytes(l->top));
}
/* Appends a zeroed row; NULL: no memory. */
struct row *rows_add(struct row_list *l);
/* Appends the row of an answer's token. 0 or ERR_NOMEM. */
int rows_add_token(struct row_list *l, const Pds__Token *t, uint32_t offset);
/* Sets the row from token i of m. */
void row_take(struct row *r, uint32_t top, const Pds__PromptLogprobs *m, size_t i);

/* What is written of a row. NAME to OFFSET are the four parallel arrays of completions. */
enum row_shape { ROW_NAME, ROW_VALUE, ROW_TOP, ROW_OFFSET, ROW_CHAT, ROW_PROMPT };

/* most: limit on the alternatives that are written */
void logprob_row(const struct model *m, const struct row *r, enum row_shape shape, uint32_t most,
                 struct buf *out);
/* Rows from .. to - 1, with commas between them. */
void logprob_rows(const struct model *m, const struct row_list *l, uint32_t from, uint32_t to,
                  enum row_shape shape, uint32_t most, struct buf *out);

#endif
