/* rows.c - see rows.h. */
#include "rows.h"
#include "util/err.h"

#include <string.h>

void rows_init(struct rows *l, uint32_t top, struct quota *q)
{
	memset(l, 0, sizeof *l);
	l->top = top;
	l->quota = q;
}

void rows_fini(struct rows *l)
{
	quota_free(l->quota, l->data, l->size * row_bytes(l->top));
	l->data = NULL;
	l->n = l->size = 0;
}

int rows_reserve(struct rows *l, uint32_t n)
{
	if (n <= l->size)
		return 0;
	unsigned char *data = quota_grow(l->quota, l->data, l->size, n, row_bytes(l->top));
	if (!data)
		return ERR_NOMEM;
	l->data = data;
	l->size = n;
	return 0;
}

struct row *rows_add(struct rows *l)
{
	if (l->n == l->size && rows_reserve(l, l->size ? l->size + l->size / 2 : 4) < 0 &&
	    rows_reserve(l, l->n + 1) < 0)
		return NULL;
	struct row *r = rows_at(l, l->n++);
	memset(r, 0, row_bytes(l->top));
	return r;
}

int rows_add_token(struct rows *l, const Pds__Token *t, uint32_t offset)
{
	struct row *r = rows_add(l);
	if (!r)
		return ERR_NOMEM;
	r->id = t->id;
	r->logprob = t->logprob;
	r->rank = t->rank;
	r->offset = offset;
	r->n_top = t->n_top < l->top ? (uint32_t)t->n_top : l->top;
	for (uint32_t i = 0; i < r->n_top; i++)
		r->top[i] = (struct row_top){t->top[i]->id, t->top[i]->logprob};
	return 0;
}

void row_take(struct row *r, uint32_t top, const Pds__PromptLogprobs *m, size_t i)
{
	size_t n_top = m->n_top_ids / m->n_logprobs;
	r->logprob = m->logprobs[i];
	r->rank = m->ranks[i];
	r->n_top = n_top < top ? (uint32_t)n_top : top;
	for (size_t k = 0; k < r->n_top; k++)
		r->top[k] = (struct row_top){m->top_ids[i * n_top + k], m->top_logprobs[i * n_top + k]};
}
