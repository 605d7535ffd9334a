/* draw.c - see draw.h. */
#include "engine/draw.h"

#include <string.h>

static size_t mask_words(uint32_t vocab)
{
	return ((size_t)vocab + 63) / 64 * 2;
}

size_t draw_words(const struct engine_draw *d, uint32_t vocab, int again)
{
	size_t masks = (d->allowed != NULL) + (!again && d->edit && sample_edit_allowed(d->edit));
	return masks * mask_words(vocab) + (d->edit ? sample_edit_words(d->edit, d, again) : 0);
}

static uint32_t write_mask(const uint64_t *mask, uint32_t vocab, uint32_t *words, uint32_t *at)
{
	uint32_t begin = *at;
	if (!mask)
		return 0;
	/* little-endian: bit id % 32 of word id / 32 */
	memcpy(words + begin, mask, mask_words(vocab) * sizeof *words);
	*at += (uint32_t)mask_words(vocab);
	return begin;
}

struct kern_draw draw_write(const struct engine_draw *d, uint32_t vocab,
                            const struct kern_draw *before, uint32_t *words, uint32_t *at)
{
	const struct sample_params *p = d->params;
	struct kern_draw k = {.ask = KERN_ASK_SCORE, .id = d->id, .logprobs = d->logprobs};
	if (!p && !d->score)
		k.ask = KERN_ASK_NOTHING;
	if (!p)
		return k;
	k = (struct kern_draw){.ask = KERN_ASK_DRAW,
	                       .logprobs = p->logprobs,
	                       .temperature = p->temperature,
	                       .min_p = p->min_p,
	                       .top_p = p->top_p,
	                       .typical_p = p->typical_p,
	                       .top_k = p->top_k,
	                       .seed = {(uint32_t)p->seed, (uint32_t)(p->seed >> 32)},
	                       .index = {(uint32_t)d->index, (uint32_t)(d->index >> 32)},
	                       .repetition = 1};
	k.pending = d->edit ? d->pending : 0;
	k.mask[0] = write_mask(d->allowed, vocab, words, at);
	if (!d->edit)
		return k;
	if (before && before->ask != KERN_ASK_DRAW)
		before = NULL;
	k.mask[1] = before ? before->mask[1]
	                   : write_mask(sample_edit_allowed(d->edit), vocab, words, at);
	sample_edit_write(d->edit, d, before, &k, words, at);
	return k;
}
