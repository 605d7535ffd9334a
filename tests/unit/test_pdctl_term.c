/* test_pdctl_term.c - what a terminal may get of an untrusted text, and how wide it is. */
#include "pdctl/term.h"

#include <check.h>
#include <string.h>

TEST(control_characters_become_visible)
{
	static const struct {
		const char *in;
		size_t n;
		const char *want;
	} cases[] = {
		{"plain é 日\n\t", 14, "plain é 日\n\t"},
		{"\x1b[31m", 5, "^[[31m"},
		{"\0\x01\x7f", 3, "^@^A^?"},
		{"a\r\nb\rc", 6, "a\nb^Mc"},
		{"\xc2\x9b"
	     "1m\xc2\x85\xc2\xa0",
	     8, "<U+009B>1m<U+0085>\xc2\xa0"},
		{"\xe2\x80\xae\xe2\x81\xa9", 6, "<U+202E><U+2069>"},
		{"\x9b\xff\xc3", 3, "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct buf out;
		buf_init(&out, 0);
		term_add_safe(&out, cases[i].in, cases[i].n);
		ck_assert_str_eq(out.data, cases[i].want);
		buf_fini(&out);
	}
}

TEST(fits_by_columns)
{
	size_t columns;
	ck_assert_uint_eq(term_fit("abc", 2, &columns), 2);
	ck_assert_uint_eq(term_fit("日本", 3, &columns), 3); /* half a character never */
	ck_assert_uint_eq(columns, 2);
	ck_assert_uint_eq(term_fit("e\xcc\x81x", 1, &columns), 3); /* a combining one takes none */
	ck_assert_uint_eq(term_fit("", 0, &columns), 0);
}

TEST_START(terminal)
{
	term_init();
}
