/* test_grammar_masks.c - masks over whole vocabularies: at each place of random answers, bit for
 * bit what walking every token by its bytes says. Vocabularies: two of tests/data/tokenizer, of
 * either kind, with tokens added that break UTF-8 in all ways, or that cross the borders which
 * constraints have. */
#include "format/gguf.h"
#include "grammar/grammar.h"
#include "text/tokenizer.h"
#include "util/check.h"
#include "util/mem.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))
#define ANSWERS 3u
#define STEPS 14u
#define LOOKAHEAD 32u /* NFA_LOOKAHEAD: beyond, a counter's tokens are not offered */

static const char *const vocabularies[] = {"tests/data/tokenizer/qwen2/vocab.gguf",
                                           "tests/data/tokenizer/llama2-spm/vocab.gguf"};

static const char *const added[] = {"\xc2",
                                    "\xc1\xa1",
                                    "\xdf\xbf",
                                    "\xe0",
                                    "\xe0\xa0",
                                    "\xe0\x9f\xbf",
                                    "\xe0\xa0\x80",
                                    "\xe0\xbf\xbf",
                                    "\xec\xbf\xbf",
                                    "\xed",
                                    "\xed\x9f\xbf",
                                    "\xed\xa0\x80",
                                    "\xed\x9f",
                                    "\xee\x80\x80",
                                    "\xef\xbf\xbf",
                                    "\xf0",
                                    "\xf0\x90",
                                    "\xf0\x8f\xbf\xbf",
                                    "\xf0\x90\x80\x80",
                                    "\xf0\x9f\x98",
                                    "\xf0\x9f\x98\x80",
                                    "\xf3\xbf\xbf\xbf",
                                    "\xf4\x8f\xbf\xbf",
                                    "\xf4\x90\x80\x80",
                                    "\xf4\x8f",
                                    "\xf5",
                                    "\xff",
                                    "\x80",
                                    "\x9f\xbf",
                                    "\xa0\x80",
                                    "\x98\x80",
                                    "\x98\x80x",
                                    "\x80\x80\x80",
                                    "\x80\"",
                                    "x\xc3",
                                    "x\xe0",
                                    "\xc3\xa4\xc3",
                                    "\xc3\xa4\xe2\x82\xac",
                                    "a\xc3\xa4"
                                    "b\xe0\xb8\x81"
                                    "c",
                                    "\xe4\xb8\x80\xe9\xbe\xa5",
                                    "\xe2\x82\xac\"",
                                    "\"",
                                    "\"}",
                                    "\",\"",
                                    "\", \"",
                                    "\"name\":",
                                    "name",
                                    "nam",
                                    "named",
                                    "\"]",
                                    "},{",
                                    "]}",
                                    "a\"",
                                    "abc\"",
                                    "abcdefghij\"}",
                                    "\\",
                                    "\\n",
                                    "\\u",
                                    "\\u00",
                                    "\\ud83d\\ude",
                                    "x\\",
                                    "ab\\\"c",
                                    " ",
                                    "  ",
                                    " \"",
                                    ", ",
                                    "true",
                                    "false",
                                    "null",
                                    " true",
                                    "12",
                                    "345",
                                    "-1",
                                    "0.5",
                                    "1e9",
                                    "7,",
                                    "7, ",
                                    "7]",
                                    "-",
                                    "--",
                                    "a-",
                                    "a-x",
                                    "-x",
                                    "foo",
                                    "foob",
                                    "bar",
                                    "foobar",
                                    " foo",
                                    " pears",
                                    " pear",
                                    "1 apples",
                                    "A",
                                    "Ab",
                                    "AB",
                                    "Afoo",
                                    "zz",
                                    "yz",
                                    "abcdefabcdef",
                                    "\n",
                                    "a\n",
                                    "\t",
                                    "\x7f",
                                    "\x1f",
                                    ",",
                                    ", x",
                                    "x, y",
                                    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
                                    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"",
                                    "0123456789012345678901234567890123456789",
                                    "<call>",
                                    "</",
                                    "</call>"};

static const struct {
	enum grammar_kind kind;
	const char *text;
} constraints[] = {
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":1}"},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":5}"},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":12}"},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":4,\"maxLength\":31}"},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":32,\"maxLength\":33}"},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":40}"},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":200}"},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"minLength\":7}"},
	{GRAMMAR_JSON_SCHEMA, "{\"anyOf\":[{\"type\":\"string\",\"maxLength\":9},{\"type\":\"string\","
                          "\"minLength\":3,\"maxLength\":20},{\"const\":\"name\"}]}"},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":6},\"maxItems\":5}"},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"string\"},\"minItems\":2,\"maxItems\":20}"},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":\"number\"},\"minItems\":9,\"maxItems\":11}"},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"array\",\"items\":{\"type\":[\"boolean\",\"null\",\"integer\"]},\"maxItems\":3}"},
	{GRAMMAR_JSON_SCHEMA,
     "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":10},\"nam\":"
     "{\"enum\":[\"foo\",\"foobar\",12]}},\"required\":[\"name\"],\"additionalProperties\":false}"},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"}},"
                          "\"additionalProperties\":{\"type\":\"integer\"}}"},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"^[a-zA-Z ]{1,20}$\"}"},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"o{2}\"}"},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"format\":\"email\"}"},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"format\":\"uuid\"}"},
	{GRAMMAR_JSON_SCHEMA, "{\"type\":\"integer\",\"minimum\":-12,\"maximum\":1050}"},
	{GRAMMAR_JSON_OBJECT, ""},
	{GRAMMAR_REGEX, "[a-z]{3,20}"},
	{GRAMMAR_REGEX, "\\w{1,30}"},
	{GRAMMAR_REGEX, "[A-Za-z_][A-Za-z0-9_-]{0,63}"},
	{GRAMMAR_REGEX, ".{1,9}"},
	{GRAMMAR_REGEX, ".{0,12}-x"},
	{GRAMMAR_REGEX, "[^,\\n]{1,10}(, [^,\\n]{1,10}){0,3}"},
	{GRAMMAR_REGEX, "[\xc3\xa0-\xc3\xbc\xe2\x82\xac\xe4\xb8\x80-\xe9\xbe\xa5]{1,9}"},
	{GRAMMAR_REGEX, "[\\x80-\xf4\x8f\xbf\xbf]{2,6}"},
	{GRAMMAR_REGEX, "\\d{3}-\\d{3}-\\d{4}"},
	{GRAMMAR_REGEX, "(foo|[a-z]{1,20})"},
	{GRAMMAR_REGEX, "(foo|[a-y]{1,20})\"?"},
	{GRAMMAR_REGEX, "[A-Z](foo|bar){1,2}"},
	{GRAMMAR_REGEX, "\\d{1,3} (apples|pears)"},
	{GRAMMAR_REGEX, "[a-f0-9]{8,40}"},
	{GRAMMAR_REGEX, "([a-z]{1,4}-){2,12}x"},
	{GRAMMAR_REGEX, "(foo|b)[ -m]*z?"},
	{GRAMMAR_REGEX, "[ -~]*"},
	{GRAMMAR_CHOICE, "[\"foo\",\"foobar\",\" foo\",\"bar\",\"A\",\"Ab\",\"name\"]"},
	{GRAMMAR_STRUCTURE, "[{\"free\":\"<call>\"},{\"schema\":{\"type\":\"string\",\"maxLength\":8}},"
                        "{\"literal\":\"</call>\"}]"},
	{GRAMMAR_STRUCTURE,
     "[{\"repeat\":[{\"regex\":\"[ab]{1,3}\"}],\"min\":1,\"max\":3,\"separator\":\", \"}]"},
};

static struct {
	const char **s;
	uint32_t *len, n;
	struct tokenizer *t;
	struct grammar_vocab *v;
} own[COUNT(vocabularies)];

static void open_vocabulary(size_t k)
{
	struct gguf *f;
	struct err err = {0};
	if (gguf_open(vocabularies[k], &f, &err) < 0 || tokenizer_from_gguf(f, &own[k].t, &err) < 0)
		check_fatal("%s: %s", vocabularies[k], err.text);
	gguf_close(&f);
	uint32_t n = tokenizer_size(own[k].t);
	own[k].n = n + (uint32_t)COUNT(added);
	own[k].s = mem_array(own[k].n, sizeof *own[k].s);
	own[k].len = mem_array(own[k].n, sizeof *own[k].len);
	for (uint32_t id = 0; id < own[k].n; id++) {
		size_t len = 0;
		if (id >= n) {
			own[k].s[id] = added[id - n];
			len = strlen(added[id - n]);
		} else if (!tokenizer_is_special(own[k].t, id)) {
			own[k].s[id] = tokenizer_bytes(own[k].t, id, &len);
		}
		own[k].len[id] = (uint32_t)len;
	}
	own[k].v = grammar_vocab_new(own[k].s, own[k].len, own[k].n);
}

static struct automaton *made(size_t i, const struct grammar_vocab *v)
{
	struct grammar *g;
	struct err err = {0};
	if (grammar_compile(constraints[i].kind, constraints[i].text, strlen(constraints[i].text), 0,
	                    &g, &err) < 0)
		check_fatal("%s: %s", constraints[i].text, err.text);
	return automaton_new(g, v, 1 << 20, NULL);
}

static uint64_t rng = 1;

static uint32_t draw(uint32_t n)
{
	rng = rng * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(rng >> 33) % n;
}

/* The mask behind these tokens, against each token walked by its bytes in an automaton that never
 * makes a mask. Returns an allowed token; UINT32_MAX: there is none. Those added are preferred,
 * as most others are letters alone. */
static uint32_t check_mask(size_t i, size_t k, struct automaton *a, struct automaton *plain,
                           const uint32_t *tokens, uint32_t n, uint64_t *mask)
{
	struct grammar_walk walk = {0}, by_bytes = {0};
	struct err err = {0};
	uint32_t some = UINT32_MAX, n_may = 0, n_added = 0;
	unsigned flags = 0;
	int r = automaton_mask(a, &walk, tokens, n, NULL, mask, &flags, &err), rare = draw(2) == 0;
	ck_assert_msg(r == 0, "%s: %s", constraints[i].text, err.text);
	for (uint32_t id = 0; id < own[k].n; id++) {
		int bit = mask[id / 64] >> id % 64 & 1;
		if ((own[k].len[id] <= LOOKAHEAD || bit) &&
		    bit != (int)automaton_leading(plain, &by_bytes, tokens, n, &id, 1, NULL))
			ck_abort_msg("%s, behind %u tokens: token \"%.*s\" is %sallowed", constraints[i].text,
			             n, (int)own[k].len[id], own[k].s[id] ? own[k].s[id] : "",
			             bit ? "" : "not ");
		if (!bit)
			continue;
		int is_added = id >= own[k].n - COUNT(added);
		if (rare && is_added ? draw(++n_added) == 0 : !n_added && draw(++n_may) == 0)
			some = id;
	}
	ck_assert_int_eq(some != UINT32_MAX, !!(flags & AUTOMATON_MAY_GO_ON));
	return some;
}

TEST_CASE("masks", .timeout_s = 120);

TEST_LOOP(are_what_the_bytes_say, 0, COUNT(constraints))
{
	size_t i = (size_t)_i;
	for (size_t k = 0; k < COUNT(vocabularies); k++) {
		uint64_t *mask = mem_array(grammar_mask_words(own[k].n), sizeof *mask);
		struct automaton *a = made(i, own[k].v), *plain = made(i, own[k].v);
		rng = i + 1;
		for (unsigned answer = 0; answer < ANSWERS; answer++) {
			uint32_t tokens[STEPS];
			for (uint32_t n = 0; n < STEPS && (tokens[n] = check_mask(i, k, a, plain, tokens, n,
			                                                          mask)) != UINT32_MAX;)
				n++;
		}
		automaton_destroy(&a);
		automaton_destroy(&plain);
		free(mask);
	}
}

TEST_START(vocabularies_of_models)
{
	for (size_t k = 0; k < COUNT(vocabularies); k++)
		open_vocabulary(k);
}
