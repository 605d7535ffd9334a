/* advance.h - KERN_OP_ADVANCE: completes the spans of a batch whose tokens or positions depend on
 * what the run before has drawn (struct kern_advance). kern_advance_spans does it on the host, for
 * backends whose memory the host can address. The other functions are shared with
 * kernels/cuda/advance.cu, where the threads of a block share a span: each of `threads` threads
 * calls them with its number, from 0 on. */
#ifndef KERNELS_ADVANCE_H
#define KERNELS_ADVANCE_H

#include "kernels/ops.h"

/* How many of the earlier span's rows, after the first, have the token that was drawn before. */
KERN_INLINE uint32_t kern_right(const struct kern_kept *kept, uint32_t rows)
{
	uint32_t right = 0;
	while (right + 1 < rows && kept[right].id == kept[right + 1].token)
		right++;
	return right;
}

/* How many tokens before `place` equal those before the end of a history of n tokens. */
KERN_INLINE uint32_t kern_alike(const uint32_t *token, uint32_t n, uint32_t place)
{
	uint32_t k = 0;
	while (k < KERN_MATCH_LONG && k < place && token[place - 1 - k] == token[n - 1 - k])
		k++;
	return k;
}

/* Adds `by` to the positions of span number `index`, its rows and its draws, and computes its rows'
 * slots. `s` is the span before that. */
KERN_INLINE void kern_move_span(struct kern_batch *b, const struct kern_advance *a, uint32_t index,
                                struct kern_span s, uint32_t by, uint32_t block_tokens,
                                uint32_t thread, uint32_t threads)
{
	uint32_t *words = (uint32_t *)(void *)b;
	struct kern_span *span = (struct kern_span *)(void *)(words + b->span) + index, *tail = NULL;
	struct kern_draw *draw = NULL;
	if (a->tail_span != KERN_NONE)
		tail = (struct kern_span *)(void *)(words + b->tail_span) + a->tail_span;
	if (tail && b->draws)
		draw = (struct kern_draw *)(void *)(words + b->draws) + tail->row;
	for (uint32_t i = thread; i < s.rows; i += threads) {
		uint32_t position = s.position + by + i;
		words[b->positions + s.row + i] = position;
		words[b->slots + s.row + i] = words[b->table + s.table + position / block_tokens] *
		                                  block_tokens +
		                              position % block_tokens;
		if (draw) {
			draw[i].index[0] += by;
			draw[i].index[1] += draw[i].index[0] < by;
		}
	}
	if (thread == 0) {
		span->position += by;
		if (tail)
			tail->position += by;
	}
}

/* Drafts tokens 1 .. rows - 1 of a span: those of the history (n tokens) from place `at` on, and
 * after its last token the draft again; `at` 0: the span's first token, `newest`. */
KERN_INLINE void kern_draft(const uint32_t *history, uint32_t n, uint32_t at, uint32_t newest,
                            uint32_t *tokens, uint32_t rows, uint32_t thread, uint32_t threads)
{
	for (uint32_t i = 1 + thread; i < rows; i += threads)
		tokens[i] = at ? history[at + (i - 1) % (n - at)] : newest;
}

/* Completes all spans of the batch, before anything else reads it. */
void kern_advance_spans(const struct kern_mem *batch, const struct kern_op *op,
                        const struct kern_limits *l);

#endif
