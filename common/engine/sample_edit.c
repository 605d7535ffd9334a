/* sample_edit.c - see sample_edit.h.
 *
 * The distinct tokens so far are in a compact list, indexed by a hash table of positions in it.
 * Both are allocated at their maximum size (untouched pages cost nothing), so a draw allocates
 * nothing. An id beyond the vocabulary is skipped where it would be used. Nothing here fails. */
#include "engine/sample_edit.h"
#include "engine/draw.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

struct seen { /* in the layout of kern_draw.seen */
	uint32_t id;
	uint32_t times; /* in the answer; 0: only in the prompt */
};

struct sample_edit {
	struct sample_edit_opts o;
	uint64_t *allowed;         /* ((vocab + 63) / 64); NULL: all */
	int counts, prompt_counts; /* 1: the answer's, the prompt's tokens are counted */
	uint32_t n_counted;        /* tokens counted so far */
	struct seen *seen;         /* (n_seen) */
	uint32_t n_seen;
	uint32_t *slot; /* (mask + 1) index in seen + 1; 0: empty */
	uint32_t mask;
};

/* --- life ---------------------------------------------------------------- */

static void make_table(struct sample_edit *e)
{
	uint32_t most = e->o.tokens_max < e->o.vocab ? e->o.tokens_max : e->o.vocab, slots = 16;
	while (slots < most + most / 2)
		slots *= 2;
	e->seen = mem_array(most + 1, sizeof *e->seen);
	e->slot = mem_array(slots, sizeof *e->slot);
	e->mask = slots - 1;
}

static void make_allowed(struct sample_edit *e)
{
	e->allowed = mem_array((e->o.vocab + 63) / 64, sizeof *e->allowed);
	for (size_t i = 0; i < e->o.n_allowed; i++)
		if (e->o.allowed[i] < e->o.vocab)
			e->allowed[e->o.allowed[i] / 64] |= 1ull << e->o.allowed[i] % 64;
}

struct sample_edit *sample_edit_new(const struct sample_edit_opts *o)
{
	int repeats = o->repetition != 0 && o->repetition != 1,
		counts = repeats || o->presence != 0 || o->frequency != 0;
	if (!counts && !o->min_tokens && !o->n_bias && !o->n_allowed && !o->n_bad)
		return NULL;
	struct sample_edit *e = mem_zalloc(sizeof *e);
	e->o = *o;
	e->counts = counts;
	e->prompt_counts = repeats;
	if (counts)
		make_table(e);
	if (o->n_allowed)
		make_allowed(e);
	return e;
}

void sample_edit_destroy(struct sample_edit **ep)
{
	struct sample_edit *e = *ep;
	if (!e)
		return;
	free(e->allowed);
	free(e->seen);
	free(e->slot);
	free(e);
	*ep = NULL;
}

/* --- counting ------------------------------------------------------------ */

static struct seen *seen_of(struct sample_edit *e, uint32_t id)
{
	uint32_t i = id * 2654435761u & e->mask;
	for (; e->slot[i]; i = (i + 1) & e->mask)
		if (e->seen[e->slot[i] - 1].id == id)
			return &e->seen[e->slot[i] - 1];
	e->seen[e->n_seen] = (struct seen){.id = id};
	e->slot[i] = ++e->n_seen;
	return &e->seen[e->n_seen - 1];
}

/* Tokens beyond tokens_max, which no caller passes, are not counted. */
static void count(struct sample_edit *e, const uint32_t *tokens, uint32_t prompt_tokens,
                  uint32_t n_tokens)
{
	uint32_t most = n_tokens < e->o.tokens_max ? n_tokens : e->o.tokens_max;
	if (e->n_counted < prompt_tokens && !e->prompt_counts)
		e->n_counted = prompt_tokens;
	for (; e->n_counted < most; e->n_counted++)
		if (tokens[e->n_counted] < e->o.vocab)
			seen_of(e, tokens[e->n_counted])->times += e->n_counted >= prompt_tokens;
}

/* --- lists --------------------------------------------------------------- */

int sample_edit_bad_valid(const uint32_t *bad, size_t n)
{
	size_t at = 0;
	while (at < n && bad[at] && bad[at] < n - at)
		at += 1 + (size_t)bad[at];
	return at == n;
}

/* Adds the last token of each bad word whose other tokens end the answer. */
static void list_bad(const struct sample_edit *e, const uint32_t *answer, uint32_t n_answer,
                     uint32_t *words, uint32_t *at)
{
	for (size_t i = 0; i < e->o.n_bad; i += 1 + (size_t)e->o.bad[i]) {
		const uint32_t *word = e->o.bad + i + 1;
		uint32_t rest = e->o.bad[i] - 1;
		if (rest <= n_answer && memcmp(answer + n_answer - rest, word, rest * sizeof *word) == 0)
			words[(*at)++] = word[rest];
	}
}

static void list_ends(const struct sample_edit *e, uint32_t *words, uint32_t *at)
{
	for (int k = 0; k < 2; k++)
		for (size_t i = 0; i < e->o.n_ends[k]; i++)
			words[(*at)++] = e->o.ends[k][i];
}

static struct kern_list list_bias(const struct sample_edit *e, uint32_t *words, uint32_t *at)
{
	struct kern_list l = {*at, (uint32_t)e->o.n_bias};
	for (size_t i = 0; i < e->o.n_bias; i++, *at += 2) {
		words[*at] = e->o.bias_ids[i];
		memcpy(&words[*at + 1], &e->o.bias[i], sizeof *e->o.bias);
	}
	return l;
}

static struct kern_list list_seen(const struct sample_edit *e, uint32_t *words, uint32_t *at)
{
	struct kern_list l = {*at, e->n_seen};
	memcpy(words + *at, e->seen, e->n_seen * sizeof *e->seen);
	*at += 2 * e->n_seen;
	return l;
}

static struct kern_list list_drafted(const struct engine_draw *d, uint32_t *words, uint32_t *at)
{
	struct kern_list l = {*at, d->drafted};
	memcpy(words + *at, d->tokens + d->n_tokens - d->drafted, d->drafted * sizeof *words);
	*at += d->drafted;
	return l;
}

int sample_edit_needs_latest(const struct sample_edit *e)
{
	for (size_t i = 0; i < e->o.n_bad; i += 1 + (size_t)e->o.bad[i])
		if (e->o.bad[i] > 1)
			return 1;
	return 0;
}

const uint64_t *sample_edit_allowed(const struct sample_edit *e)
{
	return e->allowed;
}

size_t sample_edit_words(struct sample_edit *e, const struct engine_draw *d, int again)
{
	size_t words = e->o.n_bad + e->o.n_ends[0] + e->o.n_ends[1] + (again ? 0 : 2 * e->o.n_bias);
	if (!e->counts)
		return words;
	count(e, d->tokens, d->prompt_tokens, d->n_tokens - d->drafted);
	return words + (again ? 0 : 2 * (size_t)e->n_seen) + d->drafted;
}

void sample_edit_write(struct sample_edit *e, const struct engine_draw *d,
                       const struct kern_draw *before, struct kern_draw *ret, uint32_t *words,
                       uint32_t *at)
{
	uint32_t begin = *at, answer = d->n_tokens - d->prompt_tokens;
	list_bad(e, d->tokens + d->prompt_tokens, answer, words, at);
	if (answer + d->pending < e->o.min_tokens)
		list_ends(e, words, at);
	ret->forbidden = (struct kern_list){begin, *at - begin};
	ret->bias = before ? before->bias : list_bias(e, words, at);
	if (!e->counts)
		return;
	count(e, d->tokens, d->prompt_tokens, d->n_tokens - d->drafted);
	ret->seen = before ? before->seen : list_seen(e, words, at);
	ret->drafted = list_drafted(d, words, at);
	ret->repetition = e->prompt_counts ? e->o.repetition : 1;
	ret->presence = e->o.presence;
	ret->frequency = e->o.frequency;
}
