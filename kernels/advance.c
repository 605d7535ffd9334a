/* advance.c - see advance.h. Nothing here fails: kern_batch_check has rejected what does not
 * fit. */
#include "kernels/advance.h"

#include "kernels/device.h"

#include <string.h>

/* A history: the latest tokens of a sequence. */
struct history {
	uint32_t n, token[];
};

/* The place of the tokens that are expected next: after the longest match, of equally long ones the
 * latest. 0: there is none. */
static uint32_t expected_at(const struct history *h, uint32_t least)
{
	uint32_t best = 0, at = 0;
	for (uint32_t place = h->n; place-- > 1;) {
		uint32_t k = kern_alike(h->token, h->n, place);
		if (k >= least && k > best) {
			best = k;
			at = place;
		}
	}
	return at;
}

/* Appends n drawn tokens. A history that would overflow, which the host prevents, is cleared
 * first. */
static void remember(struct history *h, const uint32_t *words, const struct kern_advance *a,
                     const struct kern_kept *drawn, uint32_t n, uint32_t most)
{
	if (a->known.n) {
		memcpy(h->token, words + a->known.at, a->known.n * sizeof *words);
		h->n = a->known.n;
	}
	if (h->n + n > most)
		h->n = 0;
	for (uint32_t i = 0; i < n && h->n < most; i++)
		h->token[h->n++] = drawn[i].id;
}

void kern_advance_spans(const struct kern_mem *batch, const struct kern_op *op,
                        const struct kern_limits *l)
{
	uint32_t *words = batch->host;
	struct kern_batch *b = batch->host;
	const struct kern_advance *a = kern_part(b, b->advance);
	const struct kern_span *span = kern_part(b, b->span);
	for (uint32_t i = 0; b->advance && i < b->spans; i++, a++, span++) {
		const struct kern_kept *kept = (const struct kern_kept *)op->advance.kept.v + a->from;
		if (a->from == KERN_NONE)
			continue;
		uint32_t right = kern_right(kept, a->rows), *tokens = words + b->tokens + span->row;
		kern_move_span(b, a, i, *span, right, op->advance.block_tokens, 0, 1);
		tokens[0] = kept[right].id;
		if (a->history == KERN_NONE)
			continue;
		struct history *h = (void *)((uint32_t *)op->advance.histories.v +
		                             (size_t)a->history * (1 + l->history_tokens));
		remember(h, words, a, kept, right + 1, l->history_tokens);
		kern_draft(h->token, h->n, span->rows > 1 ? expected_at(h, op->advance.match) : 0,
		           tokens[0], tokens, span->rows, 0, 1);
	}
}
