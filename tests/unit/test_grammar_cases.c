/* test_grammar_cases.c - schemas beside an independent validator: tests/data/grammar/cases.json has
 * texts that one accepted and refused (make_cases.py there), clients.json schemas as clients send
 * them (make_clients.py); the automaton says the same of the texts. Random answers, token by token,
 * are JSON.
 *
 *   test_grammar_cases --walks N     prints N random answers of each case, "CASE<tab>ANSWER":
 *                                    tests/e2e/test_grammar_walks.py shows them to the validator */
/* run: parser */
#include "grammar/grammar.h"
#include "util/check.h"
#include "util/mem.h"

#include <check.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX 400u
#define ANSWER_MAX 4096u

static json_t *cases;

static struct automaton *made(size_t i, const struct grammar_vocab *v)
{
	char *text = json_dumps(json_object_get(json_array_get(cases, i), "schema"), JSON_COMPACT);
	struct grammar *g;
	struct err err = {0};
	if (grammar_compile(GRAMMAR_JSON_SCHEMA, text, strlen(text), 0, &g, &err) < 0)
		check_fatal("%s: %s", text, err.text);
	free(text);
	return automaton_new(g, v, 1 << 20, NULL);
}

TEST_CASE("cases", .timeout_s = 120);

TEST_LOOP(agrees, 0, json_array_size(cases))
{
	struct automaton *a = made((size_t)_i, NULL);
	const json_t *c = json_array_get(cases, (size_t)_i);
	const char *const lists[] = {"no", "yes"};
	for (int want = 0; want < 2; want++) {
		const json_t *list = json_object_get(c, lists[want]);
		ck_assert_uint_gt(json_array_size(list), 0);
		for (size_t i = 0; i < json_array_size(list); i++) {
			const char *text = json_string_value(json_array_get(list, i));
			size_t good;
			int is = automaton_matches(a, text, strlen(text), &good);
			ck_assert_msg(is == want, "case %d: %s should %smatch; good are %zu bytes", _i, text,
			              want ? "" : "not ", good);
		}
	}
	automaton_destroy(&a);
}

/* --- random answers ------------------------------------------------------ */

static const char *const words[] = {
	"{\"",      "\":",          "\": ",  "\",\"",  "\"}",      "},{",  "}]",    "]}",
	"[]",       "{}",           "\"}]",  "true",   "false",    "null", "12",    "345",
	"0.5",      ", ",           "name",  "\"v\":", "\"sub\":", "\\n",  "\\u00", "\xc3\xa4",
	"\xe2\x82", "\xac",         "2024-", "-0",     "x y",      "aa",   "\"b\"", "\"tags\":[\"x\"",
	"192.168.", "\xf0\x9f\x98", "\x80",  "]]"};
enum { SINGLES = 256, TOKENS = SINGLES + sizeof words / sizeof *words };

static struct grammar_vocab *vocabulary(const char **s, uint32_t *len)
{
	static char single[SINGLES];
	for (uint32_t i = 0; i < TOKENS; i++) {
		if (i < SINGLES)
			single[i] = (char)i;
		s[i] = i < SINGLES ? &single[i] : words[i - SINGLES];
		len[i] = i < SINGLES ? 1 : (uint32_t)strlen(s[i]);
	}
	return grammar_vocab_new(s, len, TOKENS);
}

static uint64_t rng = 1;

static uint32_t draw(uint32_t n)
{
	rng = rng * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(rng >> 33) % n;
}

/* One of those allowed. Words and what ends something are preferred, so that answers end. */
static uint32_t pick(const uint64_t *mask, uint32_t n)
{
	uint32_t may[TOKENS], closing[TOKENS], n_may = 0, n_closing = 0;
	for (uint32_t i = 0; i < TOKENS; i++) {
		if (!(mask[i / 64] >> i % 64 & 1))
			continue;
		may[n_may++] = i;
		if (i < SINGLES && strchr("]}\"", (int)i) && i)
			closing[n_closing++] = i;
	}
	CHECK(n_may > 0);
	return n_closing && draw(100) < 10 + n ? closing[draw(n_closing)] : may[draw(n_may)];
}

/* Returns the bytes of a whole answer, 0: it was not at its end in time. */
static size_t answer(struct automaton *a, const char *const *s, const uint32_t *len, char *text)
{
	uint64_t mask[(TOKENS + 63) / 64];
	uint32_t tokens[STEPS_MAX];
	struct grammar_walk walk = {0};
	size_t at = 0;
	for (uint32_t n = 0; n < STEPS_MAX; n++) {
		unsigned flags;
		struct err err = {0};
		if (automaton_mask(a, &walk, tokens, n, NULL, mask, &flags, &err) < 0)
			check_fatal("after %.*s: %s", (int)at, text, err.text);
		if (!(flags & AUTOMATON_MAY_GO_ON) || (flags & AUTOMATON_MAY_END && draw(3) == 0))
			return at;
		tokens[n] = pick(mask, n);
		if (at + len[tokens[n]] >= ANSWER_MAX)
			return 0;
		memcpy(text + at, s[tokens[n]], len[tokens[n]]);
		at += len[tokens[n]];
	}
	return 0;
}

TEST_LOOP(random_answers_parse, 0, json_array_size(cases))
{
	const char *s[TOKENS];
	uint32_t len[TOKENS], whole = 0;
	char text[ANSWER_MAX];
	struct grammar_vocab *v = vocabulary(s, len);
	struct automaton *a = made((size_t)_i, v);
	rng = (uint64_t)_i + 1;
	for (int k = 0; k < 40; k++) {
		json_error_t bad;
		size_t n = answer(a, s, len, text);
		json_t *parsed = n ? json_loadb(text, n,
		                                JSON_DECODE_ANY | JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL |
		                                    JSON_REJECT_DUPLICATES,
		                                &bad)
		                   : NULL;
		ck_assert_msg(!n || parsed || strstr(bad.text, "overflow") || strstr(bad.text, "duplicate"),
		              "%.*s: %s", (int)n, text, bad.text);
		whole += n > 0;
		json_decref(parsed);
	}
	ck_assert_msg(whole >= 20, "%u of 40 answers came to their end", whole);
	automaton_destroy(&a);
	grammar_vocab_destroy(&v);
}

static int print_walks(int n)
{
	const char *s[TOKENS];
	uint32_t len[TOKENS];
	char text[ANSWER_MAX];
	struct grammar_vocab *v = vocabulary(s, len);
	for (size_t i = 0; i < json_array_size(cases); i++) {
		struct automaton *a = made(i, v);
		for (int k = 0; k < n; k++) {
			size_t bytes = answer(a, s, len, text);
			if (bytes)
				printf("%zu\t%.*s\n", i, (int)bytes, text);
		}
		automaton_destroy(&a);
	}
	grammar_vocab_destroy(&v);
	return 0;
}

TEST_START(read_cases)
{
	static const char *const files[] = {"tests/data/grammar/cases.json",
	                                    "tests/data/grammar/clients.json"};
	json_error_t bad;
	cases = json_array();
	for (int i = 0; i < 2; i++) {
		json_t *more = json_load_file(files[i], 0, &bad);
		if (!more || json_array_extend(cases, more) < 0)
			check_fatal("%s: %s", files[i], bad.text);
		json_decref(more);
	}
	if (argc == 3 && strcmp(argv[1], "--walks") == 0)
		exit(print_walks(atoi(argv[2])));
}
