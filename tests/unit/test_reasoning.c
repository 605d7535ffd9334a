/* test_reasoning.c - thoughts split from answers: by table, whole, cut everywhere, byte by byte. */
/* run: parser */
#include "text/reasoning.h"
#include "text/toolcall.h"
#include "util/buf.h"
#include "util/mem.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CALL_HEAD "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"

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
	{"think", REASONING_WITHIN_ANSWER, " <think>4</think>5", "", " <think>4</think>5"},
	{"ernie", REASONING_WITHIN_ANSWER, "<response>\n4</response>\n", "", "4"},
	{"ernie", REASONING_WITHIN_ANSWER, "<think>4", "", "<think>4"},
	{"ernie", 1, "Two.\n</think>\n\n\n<response>\n4 \n</response>\n", "Two.", "4"},
	{"ernie", 1, "Two.\n</think>\n\n<tool_call>", "Two.", "<tool_call>"},
	{"ernie", 1, "x</think><response>4 </respons", "x", "4 </respons"},
	{"ernie", 1, "x</think><response>4 </response> more", "x", "4more"},
	{"mistral", 0, "[THINK]Two [1].[/THINK]4", "Two [1].", "4"},
	{"granite", 0, "Here is my thought process: Two.\n\nHere is my response: 4", "Two.", "4"},
	{"granite", 0, "Here is my answer", "", "Here is my answer"},
	/* harmony: the messages as the format has them */
	{"harmony", 0,
     "<|channel|>analysis<|message|>Two and "
     "two.\n<|end|><|start|>assistant<|channel|>final<|message|>It is <4>.\n<|return|>",
     "Two and two.", "It is <4>.\n"},
	{"harmony", 0, "<|channel|>final<|message|>4", "", "4"},
	{"harmony", 0, "<|channel|>analysis<|message|> Hm", "Hm", ""},
	{"harmony", 0,
     "<|channel|>analysis<|message|>A.<|end|><|start|>assistant<|channel|>analysis<|message|>B.<|"
     "end|><|start|>assistant<|channel|>final<|message|>4",
     "A.\n\nB.", "4"},
	{"harmony", 0,
     "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|>4",
     "", "I look.\n\n4"},
	{"harmony", 0,
     "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>commentary to=functions.f "
     "<|constrain|>json<|message|>{\"a\": \"<x>\"}<|call|>",
     "A",
     "<|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"a\": "
     "\"<x>\"}<|call|>"},
	{"harmony", 0, " to=functions.f<|channel|>commentary json<|message|>{}", "",
     "<|start|>to=functions.f<|channel|>commentary json<|message|>{}"},
	{"harmony", 0,
     "<|channel|>analysis<|message|>A<|end|>assistant to=functions.f<|channel|>commentary "
     "json<|message|>{}",
     "A", "<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}"},
	{"harmony", 0,
     "<|channel|>analysis to=functions.f "
     "code<|message|>{}<|end|><|start|>assistant<|channel|>analysis<|message|>So",
     "So", "<|channel|>analysis to=functions.f code<|message|>{}<|end|>"},
	{"harmony", 0, "<|channel|>analysis to=python code<|message|>print(1)<|call|>", "print(1)", ""},
	{"harmony", 0, "<|channel|>commentary to=search<|message|>{}", "",
     "<|channel|>commentary to=search<|message|>{}"},
	{"harmony", 0, "<|channel|>commentary to=user<|message|>Wait.", "", "Wait."},
	/* arguments may hold what marks messages, in strings */
	{"harmony", 0,
     CALL_HEAD "{\"text\": \"the head is <|start|>assistant<|channel|>analysis<|message|>X<|end|> "
               "and so\", \"b\": 1}",
     "",
     CALL_HEAD "{\"text\": \"the head is <|start|>assistant<|channel|>analysis<|message|>X<|end|> "
               "and so\", \"b\": 1}"},
	{"harmony", 0,
     CALL_HEAD " {\"a\": {\"b\\\"<|end|>\": [\"\\\\\"]}}<|call|><|channel|>analysis<|message|>So",
     "So", CALL_HEAD " {\"a\": {\"b\\\"<|end|>\": [\"\\\\\"]}}<|call|>"},
	{"harmony", 0, CALL_HEAD "{}\"<|end|>" CALL_HEAD "it\"s<|end|><|channel|>analysis<|message|>So",
     "So", CALL_HEAD "{}\"<|end|>" CALL_HEAD "it\"s<|end|>"},
	/* and as they come otherwise */
	{"harmony", 0, "Just 4 <b>, <|en and\n", "", "Just 4 <b>, <|en and\n"},
	{"harmony", 0, " \n", "", ""},
	{"harmony", 0, "assistants help", "", "assistants help"},
	{"harmony", 0, "to=x is a head of nothing", "", "to=x is a head of nothing"},
	{"harmony", 0, "to=5", "", "to=5"},
	{"harmony", 0, "assistant to=get_weather\n", "", "assistant to=get_weather\n"},
	{"harmony", 0, "to=functions to=x", "", "to=functions to=x"},
	{"harmony", 0, "to=functions.f to=func", "", ""},
	{"harmony", 0, "assistant to=", "", ""},
	{"harmony", 0, "to=user ", "", ""},
	{"harmony", 0, "assistant<|channel|>final<|message|>4", "", "4"},
	{"harmony", 0,
     "<|start|>assistant<|channel|>analysis<|message|>A<|end|>assistantassistant<|channel|>final<|"
     "message|>4",
     "A", "4"},
	{"harmony", 0, "<|channel|>analysis<|message|>A<|channel|>final<|message|>4", "A", "4"},
	{"harmony", 0, "<|channel|>analysis<|message|>A<|end|>\n4", "A", "\n4"},
	{"harmony", 0,
     "<|channel|>?!<|end|><|start|>assistant<|channel|>analysis<|message|>A<|end|><|start|>"
     "assistant<|channel|>final<|message|>4",
     "?!\n\nA", "4"},
	{"harmony", 0, "<|channel|>commentary to=assistant<|channel|>commentary?<|message|>4<|end|>",
     "", "4"},
	{"harmony", 0, "<|channel|>comment<|message|>4", "", "4"},
	{"harmony", 0, "<|channel|>final json<|message|>{}", "", "{}"},
	{"harmony", 0, "<|channel|>finalFour.<|return|>", "", "Four."},
	{"harmony", 0, "<|channel|>analysisA<|end|><|start|>assistantFour.<|return|>", "A", "Four."},
	{"harmony", 0, "<|channel|>analysis", "", ""},
	/* a head that the end of the answer cuts is no text */
	{"harmony", 0, "<|channel|>ana", "", ""},
	{"harmony", 0, "<|start|>assis", "", ""},
	{"harmony", 0, "<|start|>assistant<|chan", "", ""},
	{"harmony", 0, "<|channel|>analysis<|mess", "", ""},
	{"harmony", 0, "<|channel|>commentary t", "", ""},
	{"harmony", 0, "<|channel|>commentary to=functi", "", ""},
	{"harmony", 0, "<|channel|>commentary to=functions.f <|constr", "", ""},
	{"harmony", 0, "<|channel|>commentary to=functions.f <|constrain|>js", "", ""},
	{"harmony", 0, "<|channel|>commentary to=functions.f <|constrain|>json", "", ""},
	{"harmony", 0,
     "<|channel|>analysis<|message|>A<|end|><|start|>assistant to=functions.f<|channel|>commen",
     "A", ""},
	{"harmony", 0, " to=functions.f<|channel|>commentary json", "", ""},
	{"harmony", 0, " to=functions.f", "", ""},
	{"harmony", 0, "<|channel|>analysis to=functions.f code", "", ""},
	{"harmony", 0, "<|channel|>commentary to=assistant<|channel|>comm", "", ""},
	{"harmony", 0, "<|channel|>final<|constrain|>json", "", ""},
	/* and one without <|message|> ends with its last word */
	{"harmony", 0, "to=user <|constrain|>json hello", "", " hello"},
	{"harmony", 0, "<|channel|>commentary to=user <|constrain|>json hello", "", " hello"},
	{"harmony", 0, "<|channel|>commentary to=user hello<|end|>", "", " hello"},
	{"harmony", 0, "<|channel|>finalThe code jsons", "", "The code jsons"},
	{"harmony", 0, "<|channel|>commentary to=user json<|end|>", "", ""},
	{"harmony", 0, "<|channel|>commentary to=user jsons<|end|>", "", " jsons"},
	{"harmony", 0, "<|channel|>final total<|end|>", "", " total"},
	{"harmony", 0, "<|channel|>final to<|end|>", "", " to"},
	{"harmony", 0, "<|end|><|message|>4<|end|>", "", "4"},
	{"harmony", REASONING_WITHIN_THOUGHTS,
     " A<|end|><|start|>assistant<|channel|>final<|message|>4", "A", "4"},
	{"harmony", REASONING_WITHIN_ANSWER, " more<|end|>", "", " more"},
	{"cohere", 0, "<|START_THINKING|>Two.<|END_THINKING|><|START_RESPONSE|>4<|END_RESPONSE|>",
     "Two.", "4"},
};

struct got {
	struct buf part[2];
	int answered, mixes; /* harmony: messages of both kinds in any order */
};

static void sink(void *arg, int thoughts, const char *text, size_t len)
{
	struct got *g = arg;
	ck_assert_uint_gt(len, 0);
	ck_assert(g->mixes || !(thoughts && g->answered));
	g->answered |= !thoughts;
	buf_add(&g->part[thoughts], text, len);
}

/* Pieces: [0, cut), then `each` bytes at a time. */
static void run(int row, size_t cut, size_t each)
{
	const char *text = rows[row].text;
	size_t len = strlen(text);
	struct got g = {.mixes = strcmp(rows[row].format, "harmony") == 0};
	struct reasoning *r = reasoning_new(reasoning_format_find(rows[row].format), rows[row].inside,
	                                    NULL, sink, &g);
	buf_init(&g.part[0], 0);
	buf_init(&g.part[1], 0);
	for (size_t at = 0, n; at < len; at += n) {
		n = at == 0 ? cut : each;
		n = at + n > len ? len - at : n;
		/* exactly so long: a read beyond is seen by the sanitizer */
		char *piece = mem_alloc(n);
		memcpy(piece, text + at, n);
		reasoning_feed(r, piece, n);
		free(piece);
	}
	reasoning_finish(r);
	reasoning_destroy(&r);
	const char *thoughts = g.part[1].data ? g.part[1].data : "",
			   *answer = g.part[0].data ? g.part[0].data : "";
	ck_assert_msg(strcmp(thoughts, rows[row].thoughts) == 0 &&
	                  strcmp(answer, rows[row].answer) == 0,
	              "%s cut at %zu, then %zu\nthoughts %s, want %s\nanswer %s, want %s", text, cut,
	              each, thoughts, rows[row].thoughts, answer, rows[row].answer);
	buf_fini(&g.part[0]);
	buf_fini(&g.part[1]);
}

TEST_CASE("reasoning", .timeout_s = 60);

TEST_LOOP(formats, 0, sizeof rows / sizeof *rows)
{
	size_t len = strlen(rows[_i].text);
	run(_i, len, 1);
	for (size_t cut = 1; cut <= len; cut++)
		for (size_t each = 1; each <= len; each += each < 3 ? 1 : 7)
			run(_i, cut, each);
}

/* Markers in any order, cut anywhere: as in one piece. */
TEST_LOOP(random_splits, 0, 20)
{
	static const char *const pieces[] = {"<|start|>",     "<|channel|>", "<|message|>",
	                                     "<|end|>",       "<|call|>",    "<|return|>",
	                                     "<|constrain|>", "assistant",   "analysis",
	                                     "final",         "commentary",  " to=functions.f ",
	                                     "to=g",          "{\"a\": 1}",  "{\"s\": \"",
	                                     "\\\"",          "\"}",         "json",
	                                     " \n",           "x<y",         "<|",
	                                     "<think>",       "</think>",    "some words that go on "};
	unsigned seed = (unsigned)_i;
	for (int round = 0; round < 400; round++) {
		struct got got[2];
		struct buf text;
		const struct reasoning_format *f = reasoning_format_at((size_t)rand_r(&seed) % 8 ? 0 : 5);
		enum reasoning_at at = (enum reasoning_at)(rand_r(&seed) % 3);
		buf_init(&text, 0);
		for (int n = rand_r(&seed) % 60; n >= 0; n--)
			buf_adds(&text, pieces[(size_t)rand_r(&seed) % (sizeof pieces / sizeof *pieces)]);
		for (int cut = 0; cut < 2; cut++) {
			got[cut] = (struct got){.mixes = 1};
			struct reasoning *r = reasoning_new(f, at, NULL, sink, &got[cut]);
			buf_init(&got[cut].part[0], 0);
			buf_init(&got[cut].part[1], 0);
			for (size_t from = 0, n; from < text.len; from += n) {
				n = cut ? (size_t)rand_r(&seed) % 20 : text.len;
				n = n > text.len - from ? text.len - from : n;
				reasoning_feed(r, text.data + from, n);
			}
			reasoning_finish(r);
			reasoning_destroy(&r);
		}
		for (int k = 0; k < 2; k++) {
			ck_assert_msg(
				got[0].part[k].len == got[1].part[k].len &&
					(!got[0].part[k].len ||
			         memcmp(got[0].part[k].data, got[1].part[k].data, got[0].part[k].len) == 0),
				"%s\nwhole %s\nparts %s", text.data, got[0].part[k].data, got[1].part[k].data);
			buf_fini(&got[0].part[k]);
			buf_fini(&got[1].part[k]);
		}
		buf_fini(&text);
	}
}

/* What is longer than any head, and begins as one does, is text: none of it is lost. */
TEST_LOOP(long_words, 0, 3)
{
	static const struct {
		const char *begin, *end;
	} t[] = {{"to=", " tail"}, {"to=functions.", ""}, {"assistant to=", "<|end|>"}};
	struct buf text;
	buf_init(&text, 0);
	buf_adds(&text, t[_i].begin);
	for (int i = 0; i < 600; i++)
		buf_addc(&text, 'A');
	size_t len = text.len;
	buf_adds(&text, t[_i].end);
	for (size_t each = 1; each <= text.len; each += each < 3 ? 1 : 100) {
		struct got g = {.mixes = 1};
		struct reasoning *r = reasoning_new(reasoning_format_find("harmony"), REASONING_BEFORE,
		                                    NULL, sink, &g);
		buf_init(&g.part[0], 0);
		for (size_t at = 0; at < text.len; at += each)
			reasoning_feed(r, text.data + at, text.len - at < each ? text.len - at : each);
		reasoning_finish(r);
		reasoning_destroy(&r);
		ck_assert_uint_ge(g.part[0].len, len);
		ck_assert_int_eq(memcmp(g.part[0].data, text.data, g.part[0].len), 0);
		ck_assert(g.part[0].len == text.len || *t[_i].end == '<');
		buf_fini(&g.part[0]);
	}
	buf_fini(&text);
}

TEST_CASE("long", .timeout_s = 10);

/* White space, byte by byte, wherever it is held: in linear time. In quadratic time it would take
 * longer than the limit of this test case. */
TEST_LOOP(long_space, 0, 9)
{
	static const struct {
		const char *format, *before;
		enum reasoning_at at;
	} t[] = {
		{"think", "", REASONING_BEFORE},
		{"think", "", REASONING_WITHIN_THOUGHTS},
		{"think", "<think>", REASONING_BEFORE},
		{"think", "<think>x", REASONING_BEFORE},
		{"think", "<think>x</think>", REASONING_BEFORE},
		{"ernie", "x</think><response>4", REASONING_WITHIN_THOUGHTS},
		{"harmony", "", REASONING_BEFORE},
		{"harmony", "<|channel|>analysis<|message|>", REASONING_BEFORE},
		{"harmony", "<|channel|>analysis<|message|>x", REASONING_BEFORE},
	};
	struct got g = {.mixes = 1};
	struct reasoning *r = reasoning_new(reasoning_format_find(t[_i].format), t[_i].at, NULL, sink,
	                                    &g);
	buf_init(&g.part[0], 0);
	buf_init(&g.part[1], 0);
	reasoning_feed(r, t[_i].before, strlen(t[_i].before));
	for (int i = 0; i < 400000; i++)
		reasoning_feed(r, i % 100 ? " " : "\n", 1);
	reasoning_finish(r);
	reasoning_destroy(&r);
	buf_fini(&g.part[0]);
	buf_fini(&g.part[1]);
}

/* Calls whose arguments are no JSON, or have no end, as the router reads them: the answer's text
 * goes to toolcall. No thought is content, or of a call, and what comes behind is not lost. */
#define HEAD(channel) "<|start|>assistant<|channel|>" channel "<|message|>"
#define SECRET "<|end|>" HEAD("analysis") "a \"SECRET\" b<|end|>" HEAD("final") "4"
#define CALL_G "<|start|>assistant<|channel|>commentary to=functions.g json<|message|>{}<|call|>"

static const struct {
	const char *text, *thoughts, *want;
} chained[] = {
	{CALL_HEAD "{\"s\": \"5\" tall\"}" SECRET, "a \"SECRET\" b",
     "<f {\"s\": \"5\" >tall\"}<|end|>4"},
	{CALL_HEAD "{\"s\": tall\"}" SECRET, "a \"SECRET\" b", "<f {\"s\": t>all\"}<|end|>4"},
	{CALL_HEAD "{\"s\": \"\\" SECRET, "a \"SECRET\" b", "<f {\"s\": \"\\><|end|>4"},
	{CALL_HEAD "{\"s\": \"cut" SECRET, "a \"SECRET\" b", "<f {\"s\": \"cut>4"},
	{CALL_HEAD "{\"s\": \"cut<|end|> and" SECRET, "a \"SECRET\" b",
     "<f {\"s\": \"cut<|end|> and>4"},
	{CALL_HEAD "{\"s" SECRET, "a \"SECRET\" b", "<f {\"s>4"},
	{CALL_HEAD "{\"s\": \"<|call|>\n" HEAD("analysis") "A \"", "A \"", "<f {\"s\": \">"},
	{CALL_HEAD "{\"s\": \"<|end|>assistant<|channel|>analysis<|message|>A \"", "A \"",
     "<f {\"s\": \">"},
	{CALL_HEAD "{\"s\": \"cut<|end|>" CALL_G SECRET, "a \"SECRET\" b", "<f {\"s\": \"cut><g {}>4"},
	{CALL_HEAD "{\"s\": \"cut<|end|>" CALL_HEAD "{}<|call|>", "", "<f {\"s\": \"cut><f {}>"},
	/* and what ends no call */
	{CALL_HEAD "{\"s\": \"<|end|><|start|>user<|message|>x<|end|> <|call|>\"}<|call|>", "",
     "<f {\"s\": \"<|end|><|start|>user<|message|>x<|end|> <|call|>\"}>"},
	{CALL_HEAD "{\"s\": \"<|end|><|start|>assistant<|channel|>analysis", "",
     "<f {\"s\": \"<|end|><|start|>assistant<|channel|>analysis>"},
};

struct chain {
	struct buf part[2]; /* part[0]: content, calls as <name arguments> */
	struct toolcall *calls;
};

static void chain_event(void *arg, const struct toolcall_event *e)
{
	struct chain *c = arg;
	if (e->kind == TOOLCALL_BEGIN)
		buf_printf(&c->part[0], "<%s ", e->text);
	else
		buf_add(&c->part[0], e->text, e->len);
	if (e->kind == TOOLCALL_END)
		buf_addc(&c->part[0], '>');
}

static void chain_split(void *arg, int thoughts, const char *text, size_t len)
{
	struct chain *c = arg;
	if (thoughts)
		buf_add(&c->part[1], text, len);
	else
		toolcall_feed(c->calls, text, len);
}

static void run_chained(const struct toolcall_tools *tools, int row, size_t cut, size_t each)
{
	const char *text = chained[row].text;
	size_t len = strlen(text);
	struct chain c = {0};
	buf_init(&c.part[0], 0);
	buf_init(&c.part[1], 0);
	c.calls = toolcall_new(toolcall_format_find("harmony"), tools, NULL, chain_event, &c);
	struct reasoning *r = reasoning_new(reasoning_format_find("harmony"), REASONING_BEFORE, NULL,
	                                    chain_split, &c);
	for (size_t at = 0, n; at < len; at += n) {
		n = at == 0 ? cut : each;
		n = at + n > len ? len - at : n;
		reasoning_feed(r, text + at, n);
	}
	reasoning_finish(r);
	toolcall_finish(c.calls, 0);
	reasoning_destroy(&r);
	toolcall_destroy(&c.calls);
	const char *thoughts = c.part[1].data ? c.part[1].data : "";
	const char *got = c.part[0].data ? c.part[0].data : "";
	ck_assert_msg(strcmp(thoughts, chained[row].thoughts) == 0 &&
	                  strcmp(got, chained[row].want) == 0,
	              "%s cut at %zu, then %zu\nthoughts %s, want %s\nanswer %s, want %s", text, cut,
	              each, thoughts, chained[row].thoughts, got, chained[row].want);
	buf_fini(&c.part[0]);
	buf_fini(&c.part[1]);
}

TEST_CASE("reasoning");

TEST_LOOP(broken_calls, 0, sizeof chained / sizeof *chained)
{
	json_t *list = json_loads(
		"[{\"function\": {\"name\": \"f\"}}, {\"function\": {\"name\": \"g\"}}]", 0, NULL);
	struct toolcall_tools *tools = toolcall_tools_new(list);
	size_t len = strlen(chained[_i].text);
	json_decref(list);
	run_chained(tools, _i, len, 1);
	for (size_t cut = 1; cut <= len; cut++)
		for (size_t each = 1; each <= len; each += each < 3 ? 1 : 7)
			run_chained(tools, _i, cut, each);
	toolcall_tools_destroy(&tools);
}

TEST_LOOP(detection, 0, 8)
{
	static const struct {
		const char *text, *format;
	} t[] = {
		{"{{ messages }}", "none"},
		{"'<think>\\n'", "think"},
		{"'</think>'", "think"},
		{"[THINK]", "mistral"},
		{"<think> <response>", "ernie"},
		{"Here is my thought process:", "granite"},
		{"<|START_THINKING|>", "cohere"},
		{"'<|start|>assistant<|channel|>analysis<|message|>'", "harmony"},
	};
	const struct reasoning_format *f = reasoning_format_detect(t[_i].text, strlen(t[_i].text));
	ck_assert_str_eq(f ? reasoning_format_name(f) : "none", t[_i].format);
	size_t n = 0, most = f && strcmp(reasoning_format_name(f), "harmony") == 0 ? 7 : 4;
	while (f && reasoning_format_marker(f, n))
		n++;
	ck_assert(!f || (n >= 2 && n <= most));
}

TEST(opened_by_the_prompt)
{
	const struct reasoning_format *f = reasoning_format_find("think");
	ck_assert_int_eq(reasoning_opened(f, "<A><think>\n", 11), 1);
	ck_assert_int_eq(reasoning_opened(f, "<A><think>", 10), 1);
	ck_assert_int_eq(reasoning_opened(f, "<A><think>\n\n</think>\n\n", 22),
	                 REASONING_WITHIN_ANSWER);
	ck_assert_int_eq(reasoning_opened(f, "<A></think>", 11), REASONING_WITHIN_ANSWER);
	ck_assert_int_eq(reasoning_opened(f, "<A></think>no", 13), REASONING_BEFORE);
	ck_assert_int_eq(reasoning_opened(f, "<A>", 3), 0);
	ck_assert_int_eq(reasoning_opened(f, "", 0), 0);
}

TEST_LOOP(opened_harmony, 0, 7)
{
	static const struct {
		const char *prompt;
		enum reasoning_at at;
	} t[] = {
		{"<|start|>user<|message|>x<|end|><|start|>assistant", REASONING_BEFORE},
		{"<|start|>user<|message|>x<|end|>", REASONING_BEFORE},
		{"<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
	     REASONING_BEFORE},
		{"<|end|><|start|>assistant<|channel|>analysis<|message|>So", REASONING_WITHIN_THOUGHTS},
		{"<|end|><|start|>assistant<|channel|>final<|message|>An old ", REASONING_WITHIN_ANSWER},
		{"<|end|><|channel|>final<|message|>", REASONING_WITHIN_ANSWER},
		{"", REASONING_BEFORE},
	};
	ck_assert_int_eq(reasoning_opened(reasoning_format_find("harmony"), t[_i].prompt,
	                                  strlen(t[_i].prompt)),
	                 t[_i].at);
}
