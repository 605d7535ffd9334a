/* continue.c - see continue.h. */
#include "kernels/continue.h"

#include "kernels/device.h"

#include <string.h>

/* A history: the latest tokens of a sequence. */
struct history {
	uint32_t n, token[];
};

/* The place of the tokens that are expected next; 0: nothing is. */
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

/* More tokens than it can hold, which the host prevents, begin it anew. */
static void remember(struct history *h, const uint32_t *words, const struct kern_continued *c,
                     const struct kern_kept *drawn, uint32_t n, uint32_t most)
{
	if (c->known.n) {
		memcpy(h->token, words + c->known.at, c->known.n * sizeof *words);
		h->n = c->known.n;
	}
	if (h->n + n > most)
		h->n = 0;
	for (uint32_t i = 0; i < n && h->n < most; i++)
		h->token[h->n++] = drawn[i].id;
}

/* tokens (rows): the first is known. */
static void draft(const struct history *h, uint32_t least, uint32_t *tokens, uint32_t rows)
{
	uint32_t at = rows > 1 ? expected_at(h, least) : 0;
	for (uint32_t i = 1; i < rows; i++) /* behind the last token it repeats */
		tokens[i] = at ? h->token[at + (i - 1) % (h->n - at)] : tokens[0];
}

static void move_on(uint32_t *words, const struct kern_op *op, const struct kern_continued *c,
                    struct kern_span *s, uint32_t by)
{
	struct kern_batch *b = (void *)words;
	struct kern_span *tail = (void *)(words + b->tail_span);
	uint32_t per_block = op->advance.block_tokens;
	s->position += by;
	for (uint32_t i = 0; i < s->rows; i++) {
		uint32_t position = s->position + i;
		words[b->positions + s->row + i] = position;
		words[b->slots + s->row + i] = words[b->table + s->table + position / per_block] *
		                                   per_block +
		                               position % per_block;
	}
	if (c->tail_span == KERN_NONE)
		return;
	tail[c->tail_span].position += by;
	struct kern_draw *d = (struct kern_draw *)(void *)(words + b->draws) + tail[c->tail_span].row;
	for (uint32_t i = 0; b->draws && i < s->rows; i++) {
		d[i].index[0] += by;
		d[i].index[1] += d[i].index[0] < by;
	}
}

void kern_continue(const struct kern_mem *batch, const struct kern_op *op,
                   const struct kern_limits *l)
{
	uint32_t *words = batch->host;
	struct kern_batch *b = batch->host;
	const struct kern_continued *c = kern_part(b, b->continued);
	struct kern_span *span = (void *)(words + b->span);
	for (uint32_t i = 0; b->continued && i < b->spans; i++, c++) {
		const struct kern_kept *kept = (const struct kern_kept *)op->advance.kept.v + c->from;
		if (c->from == KERN_NONE)
			continue;
		uint32_t right = kern_right(kept, c->rows), *tokens = words + b->tokens + span[i].row;
		move_on(words, op, c, &span[i], right);
		tokens[0] = kept[right].id;
		if (c->history == KERN_NONE)
			continue;
		struct history *h = (void *)((uint32_t *)op->advance.histories.v +
		                             (size_t)c->history * (1 + l->history_tokens));
		remember(h, words, c, kept, right + 1, l->history_tokens);
		draft(h, op->advance.match, tokens, span[i].rows);
	}
}
