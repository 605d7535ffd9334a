/* test_mask_cost.c - what the dearest masks cost that are known: constraints of
 * tests/fuzz/corpus/mask, which a search has added to (tests/fuzz/fuzz_mask.c). Counted in steps,
 * not in time: each mask stays within the steps given here, or the constraint is refused with a
 * sentence that names the limit, each time the same. A mask for which a call has too few steps is
 * there after enough calls, and is the same as from one call. */
#include "grammar/grammar.h"
#include "tests/fuzz/mask_vocab.h"

#include <stdio.h>

#define COUNT(a) (int)(sizeof(a) / sizeof *(a))
#define TOKENS 8u

/* k_steps: thousands of steps of the dearest of the first masks; 0: refused. 400 is what walking
 * the whole vocabulary costs. */
static const struct {
	const char *file;
	unsigned k_steps;
} cases[] = {
	{"empty-rules", 20},
	{"empties-after-letters", 800},
	{"nested-nullable", 700},
	{"tail-calls", 500},
	{"trackers", 0},
	{"trackers-empty-loops", 0},
	{"trackers-no-times", 0},
	{"trackers-nullable", 0},
	{"repeats", 0},
	{"repeats-nested", 0},
	{"repeats-found", 0},
	{"schema-pattern", 0},
	{"schema-strings", 3000},
	{"structure", 0},
	{"free", 600},
};

static struct mask_vocab words;
static struct grammar_vocab *v;

TEST_START(vocabulary)
{
	v = mask_vocab_new(&words);
}

static struct automaton *automaton_of(const char *file)
{
	static char text[GRAMMAR_TEXT_MAX];
	char path[200];
	struct grammar *g;
	struct err err = {0};
	snprintf(path, sizeof path, "tests/fuzz/corpus/mask/%s", file);
	FILE *f = fopen(path, "rb");
	size_t size = f ? fread(text, 1, sizeof text, f) : 0;
	ck_assert_msg(size, "%s", path);
	fclose(f);
	ck_assert_msg(grammar_compile((enum grammar_kind)text[0], text + 1, size - 1, 0, &g, &err) == 0,
	              "%s: %s", file, err.text);
	return automaton_new(g, v, 16u << 20, NULL);
}

static uint32_t some_token(const uint64_t *mask, uint64_t *rng)
{
	uint32_t n = 0, id = 0;
	for (uint32_t i = 0; i < words.n; i++) {
		if (!(mask[i / 64] >> i % 64 & 1))
			continue;
		*rng = *rng * 6364136223846793005u + 1442695040888963407u;
		if ((*rng >> 33) % ++n == 0)
			id = i;
	}
	return id;
}

TEST_CASE("mask_cost", .timeout_s = 120);

TEST_LOOP(is_within_its_steps, 0, COUNT(cases))
{
	static uint64_t mask[MASK_WORDS], same[MASK_WORDS];
	struct automaton *a = automaton_of(cases[_i].file), *b = automaton_of(cases[_i].file);
	struct grammar_walk walk = {0}, other = {0};
	struct err err = {0};
	uint32_t token[TOKENS];
	uint64_t rng = 1, most = 0;
	unsigned flags = AUTOMATON_MAY_GO_ON, flags2 = 0;
	uint32_t n = 0;
	int r = 0;
	for (; n < TOKENS && flags & AUTOMATON_MAY_GO_ON; n++) {
		uint64_t left = AUTOMATON_STEPS_MAX, few = 20000;
		r = automaton_mask(a, &walk, token, n, &left, mask, &flags, &err);
		most = AUTOMATON_STEPS_MAX - left > most ? AUTOMATON_STEPS_MAX - left : most;
		if (r == ERR_TIMEOUT) /* as a worker's mask thread calls it */
			r = automaton_mask(b, &other, token, n, NULL, same, &flags2, &err);
		if (r < 0)
			break;
		/* after a call that has too few steps */
		automaton_mask(b, &other, token, n, &few, same, &flags2, NULL);
		ck_assert_int_eq(automaton_mask(b, &other, token, n, NULL, same, &flags2, NULL), 0);
		ck_assert(flags == flags2 && memcmp(mask, same, sizeof mask) == 0);
		token[n] = some_token(mask, &rng);
	}
	ck_assert_msg(r == (cases[_i].k_steps ? 0 : ERR_UNSUPPORTED), "%s: %d %s", cases[_i].file, r,
	              err.text);
	if (r == 0)
		ck_assert_msg(most <= cases[_i].k_steps * 1000u, "%s: %llu steps", cases[_i].file,
		              (unsigned long long)most);
	else
		ck_assert_int_eq(automaton_mask(b, &other, token, n, NULL, same, &flags2, NULL),
		                 ERR_UNSUPPORTED);
	ck_assert_msg(r == 0 || strstr(err.text, "takes more than 3500000 steps") ||
	                  strstr(err.text, "more than 512 interpretations"),
	              "%s", err.text);
	automaton_destroy(&a);
	automaton_destroy(&b);
}
