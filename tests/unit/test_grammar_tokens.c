/* test_grammar_tokens.c - which tokens may follow in an answer: masks against walking each token by
 * itself; counters, memory and ambiguity within their bounds. Over whole vocabularies:
 * test_grammar_masks.c. */
/* run: parser */
#include "grammar_rig.h"

#define TOKENS_MAX 700u

struct words {
	const char *s[TOKENS_MAX];
	uint32_t len[TOKENS_MAX], n;
	char store[TOKENS_MAX][48];
};

static void word_add(struct words *w, const char *s, size_t len)
{
	memcpy(w->store[w->n], s, len);
	w->s[w->n] = w->store[w->n];
	w->len[w->n++] = (uint32_t)len;
}

/* All bytes alone, words that cross borders of all kinds, halves of characters, a long one, a
 * special one (id 0) and two that are equal. */
static void make_words(struct words *w)
{
	static const char *const more[] = {
		"{\"",     "\":",      "\": ",      "\",\"",    "\"}",
		"},{",     "}]",       "[]",        "{}",       "true",
		"false",   "null",     "tru",       "12",       "345",
		"-1",      "0.5",      "e1",        "ab",       "abc",
		"aab",     "name",     "\"name\":", " ",        "  ",
		"\\u",     "\\n\"",    "\\\\",      "\"a\":1",  ",\"b",
		"\xc3",    "\xa4",     "\xc3\xa4",  "\xe2\x82", "\xac",
		"x\xc3",   "\xf0\x9f", "\x98\x80",  "yes",      "no",
		"2024-",   "02-29",    "@",         ".com",     "foo",
		"\"foo\"", "null}",    "1,",        "1, ",      "1}",
		"]}",      "]]",       "a\"",       "b\"]",     "0123456789012345678901234567890123456789",
		"1,"};
	w->n = 0;
	w->s[w->n] = NULL;
	w->len[w->n++] = 0;
	for (unsigned b = 0; b < 256; b++)
		word_add(w, &(char){(char)b}, 1);
	for (size_t i = 0; i < sizeof more / sizeof *more; i++)
		word_add(w, more[i], strlen(more[i]));
}

static uint64_t rng = 1;

static uint32_t draw(uint32_t n)
{
	rng = rng * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(rng >> 33) % n;
}

static int has(const uint64_t *mask, uint32_t id)
{
	return mask[id / 64] >> id % 64 & 1;
}

/* Whether text + token can still become an answer, found without masks: byte by byte. */
static int leads_on(struct automaton *bytes, const char *text, size_t len, const char *token,
                    uint32_t token_len)
{
	char all[4096];
	size_t good;
	memcpy(all, text, len);
	memcpy(all + len, token, token_len);
	automaton_matches(bytes, all, len + token_len, &good);
	return good == len + token_len;
}

/* A random answer: the mask of each step says the same as the bytes do; it ends, and what comes
 * out matches. */
static void random_answer(const struct words *w, struct automaton *a, struct automaton *bytes,
                          int counted, unsigned steps, int check_all)
{
	uint64_t mask[(TOKENS_MAX + 63) / 64];
	uint32_t tokens[600];
	char text[4000];
	size_t len = 0;
	uint32_t n = 0;
	struct grammar_walk walk = {0};
	for (; n < steps; n++) {
		unsigned flags;
		struct err err = {0};
		uint32_t may[TOKENS_MAX], n_may = 0;
		int r = automaton_mask(a, &walk, tokens, n, NULL, mask, &flags, &err);
		ck_assert_msg(r == 0, "%s", err.text);
		ck_assert_int_eq(!!(flags & AUTOMATON_MAY_END), automaton_matches(bytes, text, len, NULL));
		ck_assert(!has(mask, 0));
		for (uint32_t i = 1; i < w->n; i++) {
			if (has(mask, i))
				may[n_may++] = i;
			if (check_all && !(counted && w->len[i] > 32))
				ck_assert_msg(has(mask, i) == leads_on(bytes, text, len, w->s[i], w->len[i]),
				              "after \"%.*s\": token \"%.*s\"", (int)len, text, (int)w->len[i],
				              w->s[i]);
		}
		ck_assert_int_eq(n_may > 0, !!(flags & AUTOMATON_MAY_GO_ON));
		if (!n_may || ((flags & AUTOMATON_MAY_END) && draw(4) == 0))
			return;
		uint32_t id = may[draw(n_may)];
		ck_assert_uint_eq(automaton_leading(a, &walk, tokens, n, &id, 1, NULL), 1);
		tokens[n] = id;
		memcpy(text + len, w->s[id], w->len[id]);
		len += w->len[id];
		if (len > 3000)
			return;
	}
}

TEST_CASE("grammar", .timeout_s = 120);

TEST_LOOP(masks, 0, COUNT(matching))
{
	struct words w;
	make_words(&w);
	struct grammar_vocab *v = grammar_vocab_new(w.s, w.len, w.n);
	struct automaton *a = made(matching[_i].kind, matching[_i].text, v),
					 *b = made(matching[_i].kind, matching[_i].text, NULL);
	rng = (uint64_t)_i + 1;
	int counted = strstr(matching[_i].text, "Length") || strstr(matching[_i].text, "Items") ||
	              strchr(matching[_i].text, '{');
	for (int k = 0; k < 3; k++)
		random_answer(&w, a, b, counted, 12, 1);
	for (int k = 0; k < 20; k++)
		random_answer(&w, a, b, counted, 60, 0);
	automaton_destroy(&a);
	automaton_destroy(&b);
	grammar_vocab_destroy(&v);
}

/* A walk that begins anew (another worker) finds the same masks; one that shares the automaton
 * with others, too; also when there is so little room that tables are renewed. */
TEST(state_is_a_function_of_the_tokens)
{
	struct words w;
	make_words(&w);
	struct grammar_vocab *v = grammar_vocab_new(w.s, w.len, w.n);
	struct grammar *g;
	static const char schema[] =
		"{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":3000},\"minItems\":2}";
	ck_assert_int_eq(grammar_compile(GRAMMAR_JSON_SCHEMA, schema, strlen(schema), 0, &g, NULL), 0);
	struct automaton *small = automaton_new(g, v, 0, NULL),
					 *fresh = made(GRAMMAR_JSON_SCHEMA, schema, v);
	struct grammar_walk kept = {0}, other = {0};
	static uint32_t tokens[3000];
	uint64_t m1[(TOKENS_MAX + 63) / 64], m2[(TOKENS_MAX + 63) / 64];
	unsigned f1, f2;
	size_t most = 0;
	rng = 5;
	for (uint32_t n = 0; n < 3000; n++) {
		struct err err = {0};
		ck_assert_msg(automaton_mask(small, &kept, tokens, n, NULL, m1, &f1, &err) == 0, "%s",
		              err.text);
		if (n % 97 == 0) {
			struct grammar_walk anew = {0};
			ck_assert_int_eq(automaton_mask(fresh, &anew, tokens, n, NULL, m2, &f2, NULL), 0);
			ck_assert_mem_eq(m1, m2, grammar_mask_words(w.n) * 8);
			ck_assert_uint_eq(f1, f2);
			/* somebody else's answer in between */
			ck_assert_int_eq(automaton_mask(small, &other, tokens, n / 2, NULL, m2, &f2, NULL), 0);
		}
		uint32_t may[TOKENS_MAX], n_may = 0;
		/* strings of some length, and no end */
		for (int quotes = n % 50 == 0; !n_may && quotes < 2; quotes++)
			for (uint32_t i = 0; i < w.n; i++)
				if (has(m1, i) && !memchr(w.s[i], ']', w.len[i]) &&
				    (quotes || !memchr(w.s[i], '"', w.len[i])))
					may[n_may++] = i;
		ck_assert_uint_gt(n_may, 0);
		tokens[n] = may[draw(n_may)];
		most = automaton_bytes(small) > most ? automaton_bytes(small) : most;
	}
	ck_assert_msg(most < 6 << 20, "%zu bytes", most);
	automaton_destroy(&small);
	automaton_destroy(&fresh);
	grammar_vocab_destroy(&v);
}

TEST(foreign_tokens)
{
	struct words w;
	make_words(&w);
	struct grammar_vocab *v = grammar_vocab_new(w.s, w.len, w.n);
	struct automaton *a = made(GRAMMAR_CHOICE, "[\"abc\"]", v);
	struct grammar_walk walk = {0};
	uint64_t mask[(TOKENS_MAX + 63) / 64];
	unsigned flags;
	struct err err = {0};
	uint32_t wrong[] = {1 + 'a', 1 + 'b', 1 + 'x'}, special[] = {0}, outside[] = {w.n};
	ck_assert_int_eq(automaton_mask(a, &walk, wrong, 3, NULL, mask, &flags, &err), ERR_INVALID);
	ck_assert_ptr_nonnull(strstr(err.text, "token 2 (id 121)"));
	ck_assert_int_eq(automaton_mask(a, &walk, wrong, 2, NULL, mask, &flags, &err), 0);
	ck_assert(has(mask, 1 + 'c') && !has(mask, 1 + 'b'));
	ck_assert_uint_eq(automaton_leading(a, &walk, wrong, 1, wrong + 1, 2, NULL), 1);
	walk = (struct grammar_walk){0};
	ck_assert_int_eq(automaton_mask(a, &walk, special, 1, NULL, mask, &flags, &err), ERR_INVALID);
	ck_assert_int_eq(automaton_mask(a, &walk, outside, 1, NULL, mask, &flags, &err), ERR_INVALID);
	automaton_destroy(&a);
	grammar_vocab_destroy(&v);
}

/* A vocabulary that cannot write the answer: said so, nothing else. */
TEST(no_way_on)
{
	const char *s[] = {"a", "b"};
	uint32_t len[] = {1, 1}, tokens[] = {0};
	struct grammar_vocab *v = grammar_vocab_new(s, len, 2);
	struct automaton *a = made(GRAMMAR_CHOICE, "[\"ac\"]", v);
	struct grammar_walk walk = {0};
	uint64_t mask[1];
	unsigned flags;
	struct err err = {0};
	ck_assert_int_eq(automaton_mask(a, &walk, tokens, 0, NULL, mask, &flags, &err), 0);
	ck_assert_int_eq(automaton_mask(a, &walk, tokens, 1, NULL, mask, &flags, &err), ERR_NOTFOUND);
	automaton_destroy(&a);
	grammar_vocab_destroy(&v);
}

/* Beyond what a counter's places tell apart a token is only offered if it fits wherever the
 * counter is. */
TEST(long_tokens)
{
	struct words w;
	make_words(&w);
	struct grammar_vocab *v = grammar_vocab_new(w.s, w.len, w.n);
	struct automaton *a = made(GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":200}", v);
	struct grammar_walk walk = {0};
	uint64_t mask[(TOKENS_MAX + 63) / 64];
	uint32_t tokens[200] = {1 + '"'}, longest = 0;
	unsigned flags;
	for (uint32_t i = 1; i < w.n; i++)
		longest = w.len[i] > w.len[longest] ? i : longest;
	ck_assert_uint_eq(w.len[longest], 40);
	for (uint32_t n = 1; n <= 165; n++) {
		ck_assert_int_eq(automaton_mask(a, &walk, tokens, n, NULL, mask, &flags, NULL), 0);
		if (has(mask, longest))
			ck_assert_uint_eq(automaton_leading(a, &walk, tokens, n, &longest, 1, NULL), 1);
		tokens[n] = 1 + 'x';
	}
	automaton_destroy(&a);
	grammar_vocab_destroy(&v);
}

/* Ambiguity that grows with the text: refused or bounded, never slow. */
TEST(ambiguous)
{
	struct words w;
	make_words(&w);
	struct grammar_vocab *v = grammar_vocab_new(w.s, w.len, w.n);
	struct automaton *a = made(GRAMMAR_REGEX, "(a|b)*a(a|b){18}x", v);
	struct grammar_walk walk = {0};
	uint64_t mask[(TOKENS_MAX + 63) / 64];
	uint32_t tokens[400];
	unsigned flags;
	double begin = cpu_ms();
	rng = 3;
	for (uint32_t n = 0; n < 400; n++) {
		ck_assert_int_eq(automaton_mask(a, &walk, tokens, n, NULL, mask, &flags, NULL), 0);
		tokens[n] = 1 + 'a' + draw(2);
	}
	ck_assert_msg(cpu_ms() - begin < 20000, "%g ms", cpu_ms() - begin);
	ck_assert_uint_lt(automaton_bytes(a), 8 << 20);
	automaton_destroy(&a);
	grammar_vocab_destroy(&v);
}

/* A token that is allowed by what its place looks like from near, and behind which the answer
 * may be too many things at once: that is the reason that is told. */
TEST(too_many_at_once)
{
	struct words w;
	make_words(&w);
	struct grammar_vocab *v = grammar_vocab_new(w.s, w.len, w.n);
	struct automaton *a = made(GRAMMAR_REGEX, "(m../||b){6,60}", v);
	struct grammar_walk walk = {0};
	uint64_t mask[(TOKENS_MAX + 63) / 64];
	uint32_t tokens[] = {1 + 'b', 1 + 'm'};
	unsigned flags;
	struct err err = {0};
	ck_assert_int_eq(automaton_mask(a, &walk, tokens, 1, NULL, mask, &flags, &err), 0);
	ck_assert(has(mask, tokens[1]));
	ck_assert_int_eq(automaton_mask(a, &walk, tokens, 2, NULL, mask, &flags, &err),
	                 ERR_UNSUPPORTED);
	ck_assert_msg(strstr(err.text, "after token 1 the answer has more than 512 interpretations") !=
	                  NULL,
	              "%s", err.text);
	automaton_destroy(&a);
	grammar_vocab_destroy(&v);
}
