/* unigram.c - see unigram.h. Tokens are in a trie over bytes whose edges are in one open-addressing
 * table keyed by (node, byte). The hash multiplies by an odd random number drawn per table, so that
 * no model file can provoke collisions. Scores are summed as doubles from the left, as the
 * reference does. */
#include "text/unigram.h"
#include "util/check.h"
#include "util/err.h"
#include "util/mem.h"
#include "util/quota.h"

#include <math.h>
#include <sodium.h>
#include <stdlib.h>
#include <string.h>

/* SentencePiece scores an unknown character this far below the lowest score */
#define UNKNOWN_PENALTY 10.0

struct edge {
	uint64_t key;       /* (node << 8 | byte) + 1; 0: the slot is free */
	uint32_t child, id; /* id: the token that ends at `child`, or UNIGRAM_UNKNOWN */
};

struct unigram {
	const struct vocab *vocab;
	struct edge *edges;
	size_t mask, n;
	unsigned shift;
	uint64_t factor;
	double unknown;
};

struct unigram_step {
	double score;
	uint32_t id, begin;
	int reached;
};

static struct edge *slot_of(const struct unigram *u, uint64_t key)
{
	size_t i = (key * u->factor) >> u->shift;
	while (u->edges[i].key && u->edges[i].key != key)
		i = (i + 1) & u->mask;
	return &u->edges[i];
}

static void grow(struct unigram *u, unsigned bits)
{
	struct edge *old = u->edges;
	size_t n = old ? u->mask + 1 : 0;
	u->mask = ((size_t)1 << bits) - 1;
	u->shift = 64 - bits;
	u->edges = mem_array(u->mask + 1, sizeof *u->edges);
	for (size_t i = 0; i < n; i++)
		if (old[i].key)
			*slot_of(u, old[i].key) = old[i];
	free(old);
}

static void add_token(struct unigram *u, uint32_t id)
{
	const char *text = vocab_text(u->vocab, id);
	struct edge *e = NULL;
	uint32_t node = 0;
	for (uint32_t i = 0; i < u->vocab->tokens[id].text_len; i++) {
		if (u->n * 2 > u->mask)
			grow(u, 64 - u->shift + 1);
		uint64_t key = ((uint64_t)node << 8 | (unsigned char)text[i]) + 1;
		e = slot_of(u, key);
		if (!e->key)
			*e = (struct edge){key, (uint32_t)++u->n, UNIGRAM_UNKNOWN};
		node = e->child;
	}
	e->id = id;
}

struct unigram *unigram_new(const struct vocab *v)
{
	CHECK(sodium_init() >= 0);
	struct unigram *u = mem_zalloc(sizeof *u);
	double lowest = INFINITY;
	u->vocab = v;
	randombytes_buf(&u->factor, sizeof u->factor);
	u->factor |= 1;
	grow(u, 12);
	for (uint32_t id = 0; id < v->n; id++) {
		const struct vocab_token *t = &v->tokens[id];
		if (t->given && t->score < lowest)
			lowest = t->score;
		if (!vocab_is_special(v, id) && t->text_len &&
		    vocab_find(v, vocab_text(v, id), t->text_len) == id)
			add_token(u, id);
	}
	u->unknown = (isfinite(lowest) ? lowest : 0) - UNKNOWN_PENALTY;
	return u;
}

void unigram_destroy(struct unigram **up)
{
	if (!*up)
		return;
	free((*up)->edges);
	free(*up);
	*up = NULL;
}

void unigram_scratch_fini(struct unigram_scratch *s)
{
	quota_free(s->quota, s->steps, s->steps_size * sizeof *s->steps);
	quota_free(s->quota, s->parts, s->steps_size * sizeof *s->parts);
	s->steps = NULL;
	s->parts = NULL;
	s->steps_size = 0;
}

static size_t char_len(unsigned char c)
{
	return c < 0x80 ? 1 : c < 0xe0 ? 2 : c < 0xf0 ? 3 : 4;
}

static void step_improve(struct unigram_step *to, double score, uint32_t id, size_t begin)
{
	if (!to->reached || score > to->score)
		*to = (struct unigram_step){score, id, (uint32_t)begin, 1};
}

/* Tries all tokens that start at one character. */
static void walk(const struct unigram *u, struct unigram_step *steps, const char *text,
                 size_t begin, size_t len)
{
	size_t one = char_len((unsigned char)text[begin]), i = begin;
	double here = steps[begin].score;
	uint32_t node = 0;
	int single = 0;
	while (i < len) {
		const struct edge *e = slot_of(u, ((uint64_t)node << 8 | (unsigned char)text[i]) + 1);
		if (!e->key)
			break;
		node = e->child;
		i++;
		if (e->id == UNIGRAM_UNKNOWN)
			continue;
		single |= i == begin + one;
		step_improve(&steps[i], here + u->vocab->tokens[e->id].score, e->id, begin);
	}
	if (!single)
		step_improve(&steps[begin + one], here + u->unknown, UNIGRAM_UNKNOWN, begin);
}

static size_t collect(struct unigram_scratch *s, size_t len)
{
	size_t n = 0;
	for (size_t end = len; end; end = s->steps[end].begin) {
		const struct unigram_step *step = &s->steps[end];
		if (n && step->id == UNIGRAM_UNKNOWN && s->parts[n - 1].id == UNIGRAM_UNKNOWN) {
			s->parts[n - 1].len += s->parts[n - 1].begin - step->begin;
			s->parts[n - 1].begin = step->begin;
			continue;
		}
		s->parts[n++] = (struct unigram_part){step->id, step->begin, (uint32_t)(end - step->begin)};
	}
	for (size_t i = 0; i < n / 2; i++) {
		struct unigram_part p = s->parts[i];
		s->parts[i] = s->parts[n - 1 - i];
		s->parts[n - 1 - i] = p;
	}
	return n;
}

/* The old contents are lost. Returns 0 or ERR_NOMEM. */
static int make_room(struct unigram_scratch *s, size_t n)
{
	if (s->steps_size >= n)
		return 0;
	unigram_scratch_fini(s);
	s->steps_size = n + n / 2 + 64;
	s->steps = quota_alloc(s->quota, s->steps_size * sizeof *s->steps);
	s->parts = quota_alloc(s->quota, s->steps_size * sizeof *s->parts);
	if (s->steps && s->parts)
		return 0;
	unigram_scratch_fini(s);
	return ERR_NOMEM;
}

size_t unigram_best(const struct unigram *u, struct unigram_scratch *s, const char *text,
                    size_t len)
{
	CHECK(len <= INT32_MAX);
	if (make_room(s, len + 1) < 0)
		return UNIGRAM_NO_MEMORY;
	for (size_t i = 0; i <= len; i++)
		s->steps[i].reached = 0;
	s->steps[0].score = 0;
	for (size_t i = 0; i < len; i += char_len((unsigned char)text[i]))
		walk(u, s->steps, text, i, len);
	return collect(s, len);
}
