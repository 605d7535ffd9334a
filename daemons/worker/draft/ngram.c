/* ngram.c - see ngram.h.
 *
 * Places are chained by the hash of the `min` tokens before them: head[] has the latest place of a
 * hash, prev[] the one before each place. A chain may lead to places of another hash, or to places
 * that have left the window (prev[] is a ring): every place is compared before it counts, and a
 * chain ends where it does not go back any more. Both arrays double as the sequence grows, up to
 * the window, and all tokens in it are indexed again: O(1) per token on average. Nothing here
 * fails. */
#include "ngram.h"
#include "util/check.h"
#include "util/mem.h"

#include <stdlib.h>

#define FIRST_SIZE 256u

struct ngram {
	uint32_t min;
	/* places below it are chained. Place p: the tokens before p match, tokens[p] followed them */
	uint32_t taken;
	uint32_t size;         /* of both arrays, a power of two */
	uint32_t *head, *prev; /* places; 0: none, as no match ends there */
};

struct ngram *ngram_new(uint32_t min)
{
	CHECK(min >= NGRAM_MIN && min <= NGRAM_MAX);
	struct ngram *x = mem_zalloc(sizeof *x);
	x->min = min;
	x->taken = min;
	return x;
}

void ngram_destroy(struct ngram **xp)
{
	struct ngram *x = *xp;
	if (!x)
		return;
	free(x->head);
	free(x->prev);
	free(x);
	*xp = NULL;
}

static uint32_t slot(const struct ngram *x, const uint32_t *tokens, uint32_t place)
{
	uint64_t h = 0;
	for (uint32_t i = place - x->min; i < place; i++)
		h = (h ^ tokens[i]) * 0x9E3779B97F4A7C15u;
	return (uint32_t)(h >> 32) & (x->size - 1);
}

static void ngram_take(struct ngram *x, const uint32_t *tokens, uint32_t end)
{
	for (; x->taken < end; x->taken++) {
		uint32_t *head = &x->head[slot(x, tokens, x->taken)];
		x->prev[x->taken & (x->size - 1)] = *head;
		*head = x->taken;
	}
}

static void ngram_make_room(struct ngram *x, uint32_t n)
{
	uint32_t size = x->size ? x->size : FIRST_SIZE;
	while (size < n && size < NGRAM_WINDOW)
		size *= 2;
	if (size == x->size)
		return;
	free(x->head);
	free(x->prev);
	x->size = size;
	x->head = mem_array(size, sizeof *x->head);
	x->prev = mem_array(size, sizeof *x->prev);
	x->taken = n > NGRAM_WINDOW + x->min ? n - NGRAM_WINDOW : x->min;
}

/* How many tokens before `place` and before `n` are equal. */
static uint32_t alike(const uint32_t *tokens, uint32_t place, uint32_t n)
{
	uint32_t k = 0;
	while (k < NGRAM_LONG && k < place && tokens[place - 1 - k] == tokens[n - 1 - k])
		k++;
	return k;
}

uint32_t ngram_find(struct ngram *x, const uint32_t *tokens, uint32_t n, uint32_t *ret_next)
{
	uint32_t best = 0, oldest = n > NGRAM_WINDOW ? n - NGRAM_WINDOW : 1;
	if (n <= x->min)
		return 0;
	ngram_make_room(x, n);
	ngram_take(x, tokens, n);
	uint32_t at = x->head[slot(x, tokens, n)];
	for (uint32_t steps = 0, tries = 0;
	     steps < NGRAM_STEPS && tries < NGRAM_TRIES && at >= oldest && best < NGRAM_LONG; steps++) {
		uint32_t k = alike(tokens, at, n), before = x->prev[at & (x->size - 1)];
		tries += k >= x->min;
		if (k >= x->min && k > best) {
			best = k;
			*ret_next = at;
		}
		if (before >= at)
			break;
		at = before;
	}
	return best;
}

void ngram_copy(const uint32_t *tokens, uint32_t n, uint32_t next, uint32_t count, uint32_t *out)
{
	for (uint32_t i = 0; i < count; i++)
		out[i] = next + i < n ? tokens[next + i] : out[next + i - n];
}
