/* sample_edit.c - see sample_edit.h.
 *
 * The different tokens so far stand in a compact list, found by a hash table of places in it; both are as large as they can become from the beginning (untouched pages
 * cost nothing), so a draw allocates nothing. An id beyond the vocabulary is skipped where it would be used. Nothing here fails. */
#include "engine/sample_edit.h"
#include "util/mem.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct seen {
	uint32_t id;
	uint32_t times;              /* in the answer; 0: only in the prompt */
};

struct sample_edit {
	struct sample_edit_opts o;
	uint64_t *allowed;           /* ((vocab + 63) / 64); NULL: all */
	int counts, prompt_counts;   /* are the answer's tokens counted, and the prompt's? */
	uint32_t upto;               /* tokens that have been counted */
	struct seen *seen;           /* (n_seen) */
	uint32_t n_seen;
	uint32_t *slot;              /* (mask + 1) place in seen + 1; 0: empty */
	uint32_t mask;
};

/* --- life -------------------------------------------------------------------------------------------------------------------- */

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
	int repeats = o->repetition != 0 && o->repetition != 1, counts = repeats || o->presence != 0 || o->frequency != 0;
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

const uint64_t *sample_edit_allowed(const struct sample_edit *e)
{
	return e->allowed;
}

/* --- counting ---------------------------------------------------------------------------------------------------------------- */

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

/* Tokens beyond what the table was made for, which nobody sends, are not counted. */
static void count(struct sample_edit *e, const uint32_t *tokens, uint32_t prompt_tokens, uint32_t n_tokens)
{
	uint32_t most = n_tokens < e->o.tokens_max ? n_tokens : e->o.tokens_max;
	if (e->upto < prompt_tokens && !e->prompt_counts)
		e->upto = prompt_tokens;
	for (; e->upto < most; e->upto++)
		if (tokens[e->upto] < e->o.vocab)
			seen_of(e, tokens[e->upto])->times += e->upto >= prompt_tokens;
}

/* --- changing ---------------------------------------------------------------------------------------------------------------- */

int sample_edit_bad_valid(const uint32_t *bad, size_t n)
{
	size_t at = 0;
	while (at < n && bad[at] && bad[at] < n - at)
		at += 1 + (size_t)bad[at];
	return at == n;
}

/* The last token of each bad word of which the answer's end is the rest. */
static void forbid_bad(const struct sample_edit *e, float *logits, const uint32_t *answer, uint32_t n_answer)
{
	for (size_t at = 0; at < e->o.n_bad; at += 1 + (size_t)e->o.bad[at]) {
		const uint32_t *word = e->o.bad + at + 1;
		uint32_t rest = e->o.bad[at] - 1;
		if (rest <= n_answer && memcmp(answer + n_answer - rest, word, rest * sizeof *word) == 0 && word[rest] < e->o.vocab)
			logits[word[rest]] = -INFINITY;
	}
}

static void forbid_ends(const struct sample_edit *e, float *logits)
{
	for (int k = 0; k < 2; k++)
		for (size_t i = 0; i < e->o.n_ends[k]; i++)
			if (e->o.ends[k][i] < e->o.vocab)
				logits[e->o.ends[k][i]] = -INFINITY;
}

static void add_bias(const struct sample_edit *e, float *logits)
{
	for (size_t i = 0; i < e->o.n_bias; i++)
		if (e->o.bias_ids[i] < e->o.vocab)
			logits[e->o.bias_ids[i]] += e->o.bias[i];
}

static void penalise(const struct sample_edit *e, float *logits)
{
	float r = e->prompt_counts ? e->o.repetition : 1;
	for (uint32_t i = 0; i < e->n_seen; i++) {
		struct seen s = e->seen[i];
		float l = logits[s.id];
		l = l > 0 ? l / r : l * r;
		l -= e->o.frequency * (float)s.times;
		logits[s.id] = l - (s.times ? e->o.presence : 0);
	}
}

int sample_edit_acts(struct sample_edit *e, const uint32_t *tokens, uint32_t prompt_tokens, uint32_t n_tokens)
{
	if (e->counts)
		count(e, tokens, prompt_tokens, n_tokens);
	return e->n_seen || e->o.n_bias || e->o.n_bad || e->allowed || n_tokens - prompt_tokens < e->o.min_tokens;
}

void sample_edit_apply(struct sample_edit *e, float *logits, const uint32_t *tokens, uint32_t prompt_tokens, uint32_t n_tokens)
{
	if (e->counts)
		count(e, tokens, prompt_tokens, n_tokens);
	forbid_bad(e, logits, tokens + prompt_tokens, n_tokens - prompt_tokens);
	if (n_tokens - prompt_tokens < e->o.min_tokens)
		forbid_ends(e, logits);
	add_bias(e, logits);
	if (e->counts)
		penalise(e, logits);
}
