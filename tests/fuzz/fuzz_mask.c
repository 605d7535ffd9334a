/* fuzz_mask.c - constraints whose masks are expensive: the input is a constraint as fuzz_grammar's.
 * What a mask costs is counted in steps, up to a limit; here its processor time is held against
 * the count, so that nothing takes long that is not counted. The driver keeps what costs most. */
#include "grammar/grammar.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/mask_vocab.h"

#include <time.h>

#define TOKENS 5u
/* A step takes 5 to 20 ns; sanitizers and a busy machine's caches make that several times more.
 * SLACK_US: costs of each mask, whatever its constraint. */
#define STEP_NS_MAX 300u
#define SLACK_US 50000u

static uint64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A random one of the tokens that are allowed. */
static uint32_t choose(const uint64_t *mask, uint32_t words, uint64_t *rng)
{
	uint32_t n = 0, id = UINT32_MAX;
	for (uint32_t i = 0; i < words; i++)
		for (uint64_t w = mask[i]; w; w &= w - 1) {
			*rng = *rng * 6364136223846793005u + 1442695040888963407u;
			if ((*rng >> 33) % ++n == 0)
				id = i * 64 + (uint32_t)__builtin_ctzll(w);
		}
	return id;
}

/* Returns the processor time of the most expensive mask, in microseconds. */
static uint64_t most_expensive(struct automaton *a, uint32_t words, uint64_t rng)
{
	static uint64_t mask[MASK_WORDS];
	struct grammar_walk walk = {0};
	uint32_t token[TOKENS];
	uint64_t most = 0;
	for (uint32_t n = 0; n < TOKENS; n++) {
		uint64_t left = AUTOMATON_STEPS_MAX, begin = cpu_ns();
		unsigned flags = 0;
		int r = automaton_mask(a, &walk, token, n, &left, mask, &flags, NULL);
		uint64_t us = (cpu_ns() - begin) / 1000;
		must(left <= AUTOMATON_STEPS_MAX);
		must(us < SLACK_US + (AUTOMATON_STEPS_MAX - left) * STEP_NS_MAX / 1000);
		most = us > most ? us : most;
		if (r < 0 || !(flags & AUTOMATON_MAY_GO_ON))
			break;
		token[n] = choose(mask, words, &rng);
	}
	return most;
}

FUZZ(mask, 1 << 17)
{
	static struct mask_vocab words;
	static struct grammar_vocab *v; /* the same for all inputs */
	static struct grammar *g;
	if (size == 0 || grammar_compile((enum grammar_kind)(data[0] & 7), (const char *)data + 1,
	                                 size - 1, 0, &g, NULL) < 0)
		return 0;
	fuzz_accepted();
	if (!v)
		v = mask_vocab_new(&words);
	struct automaton *a = automaton_new(g, v, 16u << 20, NULL);
	g = NULL;
	uint64_t first = most_expensive(a, MASK_WORDS, 1),
			 second = most_expensive(a, MASK_WORDS, 0x9e3779b97f4a7c15u);
	fuzz_cost(first > second ? first : second);
	automaton_destroy(&a);
	return 0;
}
