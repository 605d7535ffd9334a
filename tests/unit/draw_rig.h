/* draw_rig.h - one draw or score by itself: what an engine lays out of it, sampled on the host
 * (draw.h, kernels/sample.h). */
#ifndef TESTS_DRAW_RIG_H
#define TESTS_DRAW_RIG_H

#include "engine/draw.h"
#include "kernels/sample.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

struct draw_rig {
	uint32_t vocab;
	struct kern_sampler *sampler;
	uint32_t *words; /* a batch of one row: its head, RIG_PARTS, masks and lists of a draw */
	size_t room;
	uint32_t token; /* the row's own, which tests set */
};

enum {
	RIG_PARTS = sizeof(struct kern_batch) / 4,
	RIG_LISTS = RIG_PARTS + 2 + sizeof(struct kern_draw) / 4
};

static inline struct draw_rig *draw_rig_new(uint32_t vocab)
{
	struct draw_rig *r = mem_zalloc(sizeof *r);
	void *mem = NULL;
	CHECK(posix_memalign(&mem, 64, kern_sampler_bytes(vocab)) == 0);
	r->vocab = vocab;
	r->sampler = kern_sampler_init(mem, vocab);
	return r;
}

static inline void draw_rig_free(struct draw_rig **r)
{
	free((*r)->sampler);
	free((*r)->words);
	free(*r);
	*r = NULL;
}

/* d as it stands in a batch, which is r->words. */
static inline struct kern_draw draw_rig_lay_out(struct draw_rig *r, const struct engine_draw *d)
{
	uint32_t at = RIG_LISTS;
	size_t need = at + draw_words(d, r->vocab, 0);
	if (need > r->room) {
		r->words = mem_grow(r->words, need, sizeof *r->words);
		r->room = need;
	}
	struct kern_draw k = draw_write(d, r->vocab, NULL, r->words, &at);
	CHECK(at <= need);
	*(struct kern_batch *)(void *)r->words = (struct kern_batch){
		.words = at, .tokens = RIG_PARTS, .tail_index = RIG_PARTS + 1, .draws = RIG_PARTS + 2};
	r->words[RIG_PARTS] = r->token;
	r->words[RIG_PARTS + 1] = 0;
	return k;
}

static inline void draw_rig_sample(struct draw_rig *r, const float *logits,
                                   const struct kern_draw *k, struct kern_drawn *ret)
{
	const struct kern_op op = {.sample.results = {(uintptr_t)ret}};
	memcpy(r->words + RIG_PARTS + 2, k, sizeof *k);
	kern_sample(r->sampler, logits, (const struct kern_batch *)(const void *)r->words, 0, &op);
}

static inline void draw_rig_draw(struct draw_rig *r, const float *logits,
                                 const struct sample_params *p, const struct engine_draw *at,
                                 struct kern_drawn *ret)
{
	struct engine_draw d = *at;
	d.params = p;
	struct kern_draw k = draw_rig_lay_out(r, &d);
	draw_rig_sample(r, logits, &k, ret);
}

static inline void draw_rig_score(struct draw_rig *r, const float *logits, uint32_t id,
                                  int32_t logprobs, struct kern_drawn *ret)
{
	struct kern_draw k = draw_rig_lay_out(
		r, &(struct engine_draw){.score = 1, .id = id, .logprobs = logprobs});
	draw_rig_sample(r, logits, &k, ret);
}

#endif
