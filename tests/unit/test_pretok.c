/* test_pretok.c - what pieces come from: steps through UTF-8, character classes against
 * reference ranges, and each pre-tokenizer's cuts. */
/* run: parser */
#include "text/pretok.h"
#include "text/unicode.h"
#include "util/buf.h"
#include "util/mem.h"

#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define DATA "tests/data/tokenizer"
#define COUNT(a) ((int)(sizeof(a) / sizeof *(a)))

/* --- pieces -------------------------------------------------------------- */

/* want: the pieces with | between; tested on text without that character. */
static const struct pieces {
	const char *kind, *text, *want;
} pieces[] = {
	{"smollm", "It's 2024, isn't  it?\n\n x", "It|'s| |2|0|2|4|,| isn|'t| | it|?|\n\n| x"},
	/* the end of a piece counts as the end for \s+(?!\S) */
	{"smollm", "a  7", "a|  |7"},
	/* U+11DE1: a digit only in Unicode 17 */
	{"smollm", "x \xf0\x91\xb7\xa1!", "x| |\xf0\x91\xb7\xa1|!"},
	{"gpt-2", "x \xf0\x91\xb7\xa1!", "x| \xf0\x91\xb7\xa1!"}, /* ... so not one here */
	{"gpt-2", "a 2024  b", "a| 2024| | b"},
	{"gpt-2",
     "a\xc2\x85\xc2\x85"
     "b",
     "a|\xc2\x85|\xc2\x85|b"}, /* U+0085 is a space */
	{"gpt-2",
     "a\xe1\xa0\x8e"
     "b",
     "a|\xe1\xa0\x8e|b"}, /* U+180E is not, */
	/* as the space that joins it shows */
	{"gpt-2", "a \xe1\xa0\x8e!b", "a| \xe1\xa0\x8e!|b"},
	/* the second letter is new in Unicode 16 */
	{"gpt-2", "\xf0\x9e\xa4\x80\xf0\x96\xb5\x80", "\xf0\x9e\xa4\x80\xf0\x96\xb5\x80"},
	{"llama-bpe", "It'S 12345\r\n\r\n ok (x)", "It|'S| |123|45|\r\n\r\n| ok| (|x|)"},
	{"llama-bpe",
     "a'\xc5\xbf"
     "b",
     "a|'\xc5\xbf|b"}, /* long s */
	{"qwen2", "It'S 123", "It|'S| |1|2|3"},
	{"tekken", "fooBar//\nBAZqux 12", "foo|Bar|//\n|BAZqux| |1|2"},
	{"gpt-4o", "don't HTMLParser 1234", "don't| HTMLParser| |123|4"},
	{"deepseek-v3",
     "\xe6\xbc\xa2\xe3\x82\xab"
     "abc 1234",
     "\xe6\xbc\xa2\xe3\x82\xab|abc| |123|4"},
};

static int add_piece(void *arg, const char *piece, size_t len)
{
	struct buf *b = arg;
	if (b->len)
		buf_adds(b, "|");
	return buf_add(b, piece, len);
}

TEST_LOOP(split, 0, COUNT(pieces))
{
	const struct pieces *c = &pieces[_i];
	const struct pretok_kind *kind = pretok_kind_find(c->kind, strlen(c->kind));
	ck_assert_ptr_nonnull(kind);
	struct pretok *p = pretok_new(kind->stage);
	struct pretok_scratch s = {0};
	struct buf got;
	buf_init(&got, 0);
	ck_assert_int_eq(pretok_split(p, &s, c->text, strlen(c->text), add_piece, &got), 0);
	ck_assert_str_eq(got.data, c->want);
	buf_fini(&got);
	pretok_scratch_fini(&s);
	pretok_destroy(&p);
}

TEST(unicode_classes)
{
	static const char *const names[] = {"Lu", "Ll", "Lt", "Lm", "Lo", "M", "N", "P", "S", "space"};
	json_t *all = json_load_file(DATA "/unicode_classes.json", 0, NULL);
	const unsigned char *got = unicode_class_table();
	unsigned char *want = mem_alloc(0x110000);
	ck_assert(all != NULL);
	memset(want, UNICODE_OTHER, 0x110000);
	for (size_t n = 0; n <= sizeof names / sizeof *names; n++) {
		size_t i;
		json_t *range;
		int later = n == sizeof names / sizeof *names;
		json_array_foreach(json_object_get(all, later ? "is_numeric" : names[n]), i, range)
			for (json_int_t c = json_integer_value(json_array_get(range, 0));
			     c <= json_integer_value(json_array_get(range, 1)); c++)
				if (!later || want[c] == UNICODE_OTHER)
					want[c] = (unsigned char)(later ? (size_t)UNICODE_NUMERIC_LATER : n);
	}
	for (uint32_t c = 0; c < 0x110000; c++)
		if (got[c] != want[c])
			ck_abort_msg("U+%04X: class %u, expected %u", c, got[c], want[c]);
	free(want);
	json_decref(all);
}

static const struct utf8 {
	const char *s;
	size_t n;
	int step;
	uint32_t cp;
} utf8s[] = {
	{"a", 1, 1, 'a'},
	{"", 1, 1, 0},
	{"\x7f\x80", 2, 1, 0x7f},
	{"\xc2\x80", 2, 2, 0x80},
	{"\xdf\xbf", 2, 2, 0x7ff},
	{"\xe0\xa0\x80", 3, 3, 0x800},
	{"\xed\x9f\xbf", 3, 3, 0xd7ff},
	{"\xee\x80\x80", 3, 3, 0xe000},
	{"\xf0\x90\x80\x80", 4, 4, 0x10000},
	{"\xf4\x8f\xbf\xbf", 4, 4, 0x10ffff},
	{"\x80", 1, -1, 0},
	{"\xc1\xbf", 2, -1, 0}, /* too long a form */
	{"\xe0\x9f\xbf", 3, -1, 0},
	{"\xf0\x8f\xbf\xbf", 4, -1, 0},
	{"\xed\xa0\x80", 3, -1, 0},     /* a surrogate */
	{"\xf4\x90\x80\x80", 4, -1, 0}, /* beyond U+10FFFF */
	{"\xf5\x80\x80\x80", 4, -1, 0},
	{"\xc2"
     "a",
     2, -1, 0},
	{"\xe2\x82"
     "a",
     3, -2, 0},
	{"\xf0\x9f\x98"
     "a",
     4, -3, 0},
	{"\xf0\x9f\x98\xf0", 4, -3, 0},
	{"\xc2", 1, 0, 0},
	{"\xe2\x82", 2, 0, 0},
	{"\xf0\x9f\x98", 3, 0, 0},
	{"\xed\xa0", 2, -1, 0},
};

TEST_LOOP(utf8_steps, 0, COUNT(utf8s))
{
	uint32_t cp = 0;
	ck_assert_int_eq(utf8_step(utf8s[_i].s, utf8s[_i].n, &cp), utf8s[_i].step);
	ck_assert_uint_eq(cp, utf8s[_i].cp);
}
