/* test_reasoning.c - thoughts split from answers: by table, whole, cut everywhere, byte by byte. */
#include "text/reasoning.h"
#include "util/buf.h"
#include "util/mem.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
	const char *format;
	int inside;
	const char *text, *thoughts, *answer;
} rows[] = {
	{"think", 0, "", "", ""},
	{"think", 0, "Hello <think>x</think>\n", "", "Hello <think>x</think>\n"},
	{"think", 0, "  \n", "", "  \n"},
	{"think", 0, "\n <thin", "", "\n <thin"},
	{"think", 0, "<think>\nTwo and two.\n\nFour.\n</think>\n\n4", "Two and two.\n\nFour.", "4"},
	{"think", 0, "\n<think></think>4 \n", "", "4 \n"},
	{"think", 0, "<think>\n\n</think>\n\n4", "", "4"},
	{"think", 0, "<think>a </thin </think> b </think> c", "a </thin", "b </think> c"},
	{"think", 0, "<think>never ends \n", "never ends", ""},
	{"think", 0, "<think>never ends </thi", "never ends </thi", ""},
	{"think", 0, "<think>all</think>", "all", ""},
	{"think", 0, "<think>all</think> \n", "all", ""},
	{"think", 0, "4</think>5", "", "4</think>5"},
	{"think", 1, "Two.\n</think>\n\n4", "Two.", "4"},
	{"think", 1, "<think>\nTwo.\n</think>\n\n4", "Two.", "4"},
	{"think", 1, "\n</think>4", "", "4"},
	{"think", 1, "no end", "no end", ""},
	{"think", 1, " ", "", ""},
	{"think", 1, "a <think> b</think>c", "a <think> b", "c"},
	{"ernie", 1, "Two.\n</think>\n\n\n<response>\n4 \n</response>\n", "Two.", "4"},
	{"ernie", 1, "Two.\n</think>\n\n<tool_call>", "Two.", "<tool_call>"},
	{"ernie", 1, "x</think><response>4 </respons", "x", "4 </respons"},
	{"ernie", 1, "x</think><response>4 </response> more", "x", "4more"},
	{"mistral", 0, "[THINK]Two [1].[/THINK]4", "Two [1].", "4"},
	{"granite", 0, "Here is my thought process: Two.\n\nHere is my response: 4", "Two.", "4"},
	{"granite", 0, "Here is my answer", "", "Here is my answer"},
	{"cohere", 0, "<|START_THINKING|>Two.<|END_THINKING|><|START_RESPONSE|>4<|END_RESPONSE|>", "Two.", "4"},
};

struct got {
	struct buf part[2];
	int answered;
};

static void sink(void *arg, int thoughts, const char *text, size_t len)
{
	struct got *g = arg;
	ck_assert_uint_gt(len, 0);
	ck_assert(!(thoughts && g->answered));
	g->answered |= !thoughts;
	buf_add(&g->part[thoughts], text, len);
}

/* Pieces: [0, cut), then `each` bytes at a time. */
static void run(int row, size_t cut, size_t each)
{
	const char *text = rows[row].text;
	size_t len = strlen(text);
	struct got g = {0};
	struct reasoning *r = reasoning_new(reasoning_format_find(rows[row].format), rows[row].inside, NULL, sink, &g);
	buf_init(&g.part[0], 0);
	buf_init(&g.part[1], 0);
	for (size_t at = 0, n; at < len; at += n) {
		n = at == 0 ? cut : each;
		n = at + n > len ? len - at : n;
		char *piece = mem_alloc(n);        /* exactly so long: a read beyond is seen by the sanitizer */
		memcpy(piece, text + at, n);
		reasoning_feed(r, piece, n);
		free(piece);
	}
	reasoning_finish(r);
	reasoning_destroy(&r);
	const char *thoughts = g.part[1].data ? g.part[1].data : "", *answer = g.part[0].data ? g.part[0].data : "";
	ck_assert_msg(strcmp(thoughts, rows[row].thoughts) == 0 && strcmp(answer, rows[row].answer) == 0, "%s cut at %zu, then %zu\nthoughts %s, want %s\nanswer %s, want %s", text,
	              cut, each, thoughts, rows[row].thoughts, answer, rows[row].answer);
	buf_fini(&g.part[0]);
	buf_fini(&g.part[1]);
}

START_TEST(formats)
{
	size_t len = strlen(rows[_i].text);
	run(_i, len, 1);
	for (size_t cut = 1; cut <= len; cut++)
		for (size_t each = 1; each <= len; each += each < 3 ? 1 : 7)
			run(_i, cut, each);
}
END_TEST

START_TEST(detection)
{
	static const struct {
		const char *text, *format;
	} t[] = {
		{"{{ messages }}", "none"},         {"'<think>\\n'", "think"}, {"'</think>'", "think"}, {"[THINK]", "mistral"}, {"<think> <response>", "ernie"},
		{"Here is my thought process:", "granite"}, {"<|START_THINKING|>", "cohere"},
	};
	const struct reasoning_format *f = reasoning_format_detect(t[_i].text, strlen(t[_i].text));
	ck_assert_str_eq(f ? reasoning_format_name(f) : "none", t[_i].format);
	size_t n = 0;
	while (f && reasoning_format_marker(f, n))
		n++;
	ck_assert(!f || (n >= 2 && n <= 4));
}
END_TEST

START_TEST(opened_by_the_prompt)
{
	const struct reasoning_format *f = reasoning_format_find("think");
	ck_assert_int_eq(reasoning_opened(f, "<A><think>\n", 11), 1);
	ck_assert_int_eq(reasoning_opened(f, "<A><think>", 10), 1);
	ck_assert_int_eq(reasoning_opened(f, "<A><think>\n\n</think>\n\n", 22), 0);
	ck_assert_int_eq(reasoning_opened(f, "<A>", 3), 0);
	ck_assert_int_eq(reasoning_opened(f, "", 0), 0);
}
END_TEST

int main(void)
{
	Suite *suite = suite_create("reasoning");
	TCase *c = tcase_create("reasoning");
	tcase_set_timeout(c, 60);
	tcase_add_loop_test(c, formats, 0, (int)(sizeof rows / sizeof *rows));
	tcase_add_loop_test(c, detection, 0, 7);
	tcase_add_test(c, opened_by_the_prompt);
	suite_add_tcase(suite, c);
	SRunner *sr = srunner_create(suite);
	srunner_run_all(sr, CK_NORMAL);
	int failed = srunner_ntests_failed(sr);
	srunner_free(sr);
	return failed ? 1 : 0;
}
