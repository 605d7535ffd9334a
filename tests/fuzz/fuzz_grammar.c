/* fuzz_grammar.c - a constraint: its first byte says the kind and whether it is strict, the rest is
 * the text. It is refused with a sentence, or compiles; then an answer of random allowed tokens
 * of a tiny vocabulary is walked: every mask agrees with the bytes, whole answers are told as
 * whole, and a walk begun anew is at the same place. */
#include "grammar/grammar.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

#define SINGLES 96u /* token 0: none; 1 .. 95: printable ASCII */
#define STEPS 24u

static const char *const more[] = {
	"{\"",      "\":",  "\",\"", "\"}",   "}]",
	"[]",       "true", "null",  "12",    "-1",
	"ab",       "aab",  "\\n",   "\\u00", "\xc3\xa4",
	"\xe2\x82", "\xac", "\n",    "\xff",  "0123456789012345678901234567890123456789"};
enum { WORDS = SINGLES + sizeof more / sizeof *more };

static struct {
	const char *s[WORDS];
	uint32_t len[WORDS];
	char single[SINGLES];
} words;

static void wrong_unless(int holds)
{
	if (!holds)
		abort();
}

static struct grammar_vocab *vocabulary(void)
{
	for (uint32_t i = 1; i < SINGLES; i++) {
		words.single[i] = (char)(31 + i);
		words.s[i] = &words.single[i];
		words.len[i] = 1;
	}
	for (uint32_t i = SINGLES; i < WORDS; i++) {
		words.s[i] = more[i - SINGLES];
		words.len[i] = (uint32_t)strlen(words.s[i]);
	}
	return grammar_vocab_new(words.s, words.len, WORDS);
}

struct answer {
	uint32_t token[STEPS], n;
	char text[STEPS * 41];
	size_t len;
};

static uint32_t allowed(const uint64_t *mask, uint64_t *rng)
{
	uint32_t may[WORDS], n = 0;
	for (uint32_t i = 0; i < WORDS; i++)
		if (mask[i / 64] >> i % 64 & 1)
			may[n++] = i;
	*rng = *rng * 6364136223846793005u + 1442695040888963407u;
	return n ? may[(*rng >> 33) % n] : UINT32_MAX;
}

/* The next token. 0: the answer is at its end, or cannot go on. */
static int step(struct automaton *a, struct grammar_walk *walk, struct answer *w, uint64_t *rng)
{
	uint64_t mask[(WORDS + 63) / 64];
	unsigned flags = 0;
	struct err err = {0};
	size_t good;
	int r = automaton_mask(a, walk, w->token, w->n, NULL, mask, &flags, &err);
	if (r < 0) {
		wrong_unless((r == ERR_NOTFOUND || r == ERR_FULL || r == ERR_UNSUPPORTED) && err.text[0]);
		return 0;
	}
	wrong_unless(!(mask[0] & 1) &&
	             automaton_matches(a, w->text, w->len, &good) == !!(flags & AUTOMATON_MAY_END) &&
	             good == w->len);
	uint32_t id = allowed(mask, rng);
	wrong_unless((id != UINT32_MAX) == !!(flags & AUTOMATON_MAY_GO_ON));
	if (id == UINT32_MAX)
		return 0;
	uint32_t leads = automaton_leading(a, walk, w->token, w->n, &id, 1, NULL);
	w->token[w->n++] = id;
	if (leads == 0) { /* allowed, and too much to tell what follows */
		wrong_unless(automaton_mask(a, walk, w->token, w->n, NULL, mask, &flags, NULL) ==
		             ERR_UNSUPPORTED);
		return 0;
	}
	memcpy(w->text + w->len, words.s[id], words.len[id]);
	w->len += words.len[id];
	return 1;
}

static void answer(struct automaton *a, uint64_t seed)
{
	struct answer w = {.n = 0};
	struct grammar_walk walk = {0}, anew = {0};
	uint64_t rng = seed, m1[(WORDS + 63) / 64], m2[(WORDS + 63) / 64];
	unsigned f1, f2;
	while (w.n < STEPS && step(a, &walk, &w, &rng))
		;
	int r1 = automaton_mask(a, &walk, w.token, w.n, NULL, m1, &f1, NULL),
		r2 = automaton_mask(a, &anew, w.token, w.n, NULL, m2, &f2, NULL);
	wrong_unless(r1 == r2 && (r1 < 0 || (f1 == f2 && memcmp(m1, m2, sizeof m1) == 0)));
}

FUZZ(grammar, 1 << 13)
{
	static struct grammar_vocab *v; /* the same for all inputs */
	static struct grammar *g;
	struct err err = {0};
	if (size == 0)
		return 0;
	int r = grammar_compile((enum grammar_kind)(data[0] & 7), (const char *)data + 1, size - 1,
	                        data[0] & 8 ? GRAMMAR_STRICT : 0, &g, &err);
	if (r < 0) {
		wrong_unless((r == ERR_INVALID || r == ERR_UNSUPPORTED || r == ERR_FULL) && err.text[0]);
		return 0;
	}
	fuzz_accepted();
	if (!v)
		v = vocabulary();
	struct automaton *a = automaton_new(g, v, 1 << 18, NULL);
	g = NULL;
	for (uint64_t seed = 1; seed <= 4; seed++)
		answer(a, seed * 0x9e3779b97f4a7c15u + size);
	automaton_destroy(&a);
	return 0;
}
