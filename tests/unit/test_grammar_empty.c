/* test_grammar_empty.c - grammars full of what matches the empty string: nested rules that may be
 * empty, loops over nothing, repetitions of nothing. What such a grammar matches is what a slow
 * matcher says that knows nothing of the rewriting (nfa_empty.c), for random grammars and all short
 * texts; and what takes no byte costs next to nothing. */
/* run: parser */
#include "grammar_rig.h"
#include "grammar/nfa.h"
#include "tests/fuzz/mask_vocab.h"

#define RULES 5
#define TEXT_MAX 6u

static uint64_t rng;

static unsigned draw(unsigned n)
{
	rng = rng * 6364136223846793005u + 1442695040888963407u;
	return (unsigned)(rng >> 33) % n;
}

/* --- random grammars, and what they match --------------------------------- */

/* An expression over a and b; its rules are those after `rule`, so none enters itself without a
 * byte, but for right recursion behind one. */
struct expr {
	enum { EMPTY, BYTE, RULE, SEQUENCE, EITHER, REPEAT } kind;
	int value;         /* the byte; the rule */
	unsigned min, max; /* REPEAT; max 0: no limit */
	struct expr *x, *y;
};

static struct expr pool[4000];
static int n_pool;

static struct expr *expr(int kind, int value, struct expr *x, struct expr *y)
{
	struct expr *e = &pool[n_pool++];
	*e = (struct expr){.kind = kind, .value = value, .x = x, .y = y};
	return e;
}

static struct expr *any_expr(int rule, int depth)
{
	switch (draw(depth > 3 ? 3 : 8)) {
	case 0: return expr(EMPTY, 0, NULL, NULL);
	case 1: return expr(BYTE, "ab"[draw(2)], NULL, NULL);
	case 2:
		if (rule + 1 < RULES)
			return expr(RULE, rule + 1 + (int)draw((unsigned)(RULES - rule - 1)), NULL, NULL);
		return expr(SEQUENCE, 0, expr(BYTE, 'a', NULL, NULL), expr(EMPTY, 0, NULL, NULL));
	case 3: {
		struct expr *e = expr(REPEAT, 0, any_expr(rule, depth + 1), NULL);
		e->min = draw(3);
		e->max = draw(2) ? 0 : e->min + draw(11);
		if (e->max == 0 && e->min == 0 && draw(2))
			e->max = 1;
		return e;
	}
	case 4: return expr(EITHER, 0, any_expr(rule, depth + 1), any_expr(rule, depth + 1));
	case 5: /* right recursion behind a byte */
		return expr(EITHER, 0,
		            expr(SEQUENCE, 0, expr(BYTE, "ab"[draw(2)], NULL, NULL),
		                 expr(RULE, rule, NULL, NULL)),
		            any_expr(rule, depth + 1));
	default: return expr(SEQUENCE, 0, any_expr(rule, depth + 1), any_expr(rule, depth + 1));
	}
}

static size_t print(char *out, const struct expr *e)
{
	size_t n = 0;
	switch (e->kind) {
	case EMPTY: return (size_t)sprintf(out, "\"\"");
	case BYTE: return (size_t)sprintf(out, "\"%c\"", e->value);
	case RULE: return (size_t)sprintf(out, "r%d", e->value);
	case REPEAT:
		out[n++] = '(';
		n += print(out + n, e->x);
		return n + (size_t)(e->max ? sprintf(out + n, "){%u,%u}", e->min, e->max)
		                           : sprintf(out + n, "){%u,}", e->min));
	default:
		out[n++] = '(';
		n += print(out + n, e->x);
		out[n++] = e->kind == EITHER ? '|' : ' ';
		n += print(out + n, e->y);
		out[n++] = ')';
		return n;
	}
}

static struct expr *rules[RULES];

/* A set of places in the text (bits): where the expression may end that begins at one of `from`. */
static unsigned ends(const struct expr *e, const char *text, size_t len, unsigned from, int depth)
{
	unsigned to = 0, all = 0;
	if (!from)
		return 0;
	switch (e->kind) {
	case EMPTY: return from;
	case BYTE:
		for (size_t i = 0; i < len; i++)
			to |= (from >> i & 1 && text[i] == e->value) ? 2u << i : 0;
		return to;
	case RULE: return depth > 40 ? 0 : ends(rules[e->value], text, len, from, depth + 1);
	case SEQUENCE: return ends(e->y, text, len, ends(e->x, text, len, from, depth), depth);
	case EITHER: return ends(e->x, text, len, from, depth) | ends(e->y, text, len, from, depth);
	case REPEAT:
		to = from;
		for (unsigned i = 0; i < e->min; i++)
			to = ends(e->x, text, len, to, depth);
		for (unsigned i = e->min, had = 0; (e->max == 0 || i < e->max) && to != had; i++) {
			had = all |= to;
			to = ends(e->x, text, len, to, depth);
			if (!(to & ~all))
				break;
		}
		return all | to;
	}
	return 0;
}

static size_t make_grammar(char *text)
{
	size_t n = 0;
	n_pool = 0;
	for (int r = 0; r < RULES; r++)
		rules[r] = any_expr(r, 0);
	for (int r = 0; r < RULES; r++) {
		n += (size_t)sprintf(text + n, r ? "r%d ::= " : "root ::= r0\nr%d ::= ", r);
		n += print(text + n, rules[r]);
		text[n++] = '\n';
	}
	text[n] = 0;
	return n;
}

/* 1, 0, or -1: the text may be too many things at once to tell. */
static int answers(struct automaton *a, const char *text, size_t len)
{
	struct grammar_walk walk = {0};
	uint32_t tokens[TEXT_MAX];
	uint64_t mask;
	unsigned flags = 0;
	for (size_t i = 0; i < len; i++)
		tokens[i] = text[i] == 'b';
	int r = automaton_mask(a, &walk, tokens, (uint32_t)len, NULL, &mask, &flags, NULL);
	return r == ERR_UNSUPPORTED ? -1 : r == 0 && flags & AUTOMATON_MAY_END;
}

TEST_CASE("empty", .timeout_s = 120);

TEST_LOOP(matches_the_same, 0, 4)
{
	static char text[100000];
	struct grammar_vocab *v = grammar_vocab_new((const char *[]){"a", "b"}, (uint32_t[]){1, 1}, 2);
	unsigned compiled = 0, yes = 0;
	for (unsigned i = 0; i < 150; i++) {
		struct grammar *g;
		struct err err = {0};
		rng = (uint64_t)_i * 1000 + i;
		size_t n = make_grammar(text);
		int r = grammar_compile(GRAMMAR_GBNF, text, n, 0, &g, &err);
		if (r < 0) {
			ck_assert_msg(r == ERR_FULL, "%s: %s", text, err.text);
			continue;
		}
		struct automaton *a = automaton_new(g, v, 1 << 20, NULL);
		compiled++;
		for (unsigned len = 0; len <= TEXT_MAX; len++)
			for (unsigned bits = 0; bits < 1u << len; bits++) {
				char t[TEXT_MAX + 1] = {0};
				for (unsigned k = 0; k < len; k++)
					t[k] = "ab"[bits >> k & 1];
				int want = ends(rules[0], t, len, 1, 0) >> len & 1;
				int got = answers(a, t, len);
				yes += want && got == 1;
				ck_assert_msg(got == want || got < 0, "\"%s\" %s match:\n%s", t,
				              want ? "should" : "should not", text);
			}
		automaton_destroy(&a);
	}
	grammar_vocab_destroy(&v);
	ck_assert_uint_gt(compiled, 100);
	ck_assert_uint_gt(yes, 500);
}

/* --- what they cost ------------------------------------------------------- */

static const struct {
	const char *name;
	enum grammar_kind kind;
	const char *text, *plain; /* the same without empties */
} same[] = {
	{"a loop over nothing", GRAMMAR_REGEX, "([a-z](?:(?:)*){64}|[A-Z ])*", "([a-z]|[A-Z ])*"},
	{"nothing, repeated", GRAMMAR_REGEX, "([a-z](?:x{0}){5000}|[A-Z ])*", "([a-z]|[A-Z ])*"},
	{"loops over loops", GRAMMAR_REGEX, "([a-z](((()*)*)*)*|[A-Z ])*", "([a-z]|[A-Z ])*"},
	{"nested empty rules", GRAMMAR_GBNF,
     "root ::= ([a-z] e5 | [A-Z ])*\ne0 ::= \"\"\ne1 ::= e0 e0 e0\ne2 ::= e1 e1 e1\n"
     "e3 ::= e2 e2 e2\ne4 ::= e3 e3 e3\ne5 ::= e4 e4 e4\n",
     "root ::= ([a-z] | [A-Z ])*\n"},
	{"rules that only call rules", GRAMMAR_GBNF,
     "root ::= ([a-z] | c0)*\nc0 ::= c1\nc1 ::= c2\nc2 ::= c3\nc3 ::= c4\nc4 ::= [A-Z ]\n",
     "root ::= ([a-z] | [A-Z ])*\n"},
};

static uint64_t steps_of(const struct grammar_vocab *v, enum grammar_kind kind, const char *text)
{
	static uint64_t mask[MASK_WORDS];
	struct grammar_walk walk = {0};
	uint64_t steps = AUTOMATON_STEPS_MAX;
	unsigned flags;
	struct automaton *a = made(kind, text, v);
	ck_assert_int_eq(automaton_mask(a, &walk, NULL, 0, &steps, mask, &flags, NULL), 0);
	automaton_destroy(&a);
	return AUTOMATON_STEPS_MAX - steps;
}

TEST_LOOP(cost_nothing, 0, COUNT(same))
{
	static struct mask_vocab words;
	struct grammar_vocab *v = mask_vocab_new(&words);
	uint64_t with = steps_of(v, same[_i].kind, same[_i].text),
			 without = steps_of(v, same[_i].kind, same[_i].plain);
	ck_assert_msg(with <= without + without / 20, "%s: a mask costs %llu steps, without %llu",
	              same[_i].name, (unsigned long long)with, (unsigned long long)without);
	grammar_vocab_destroy(&v);
}
