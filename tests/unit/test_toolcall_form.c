/* test_toolcall_form.c - forms of calls: for each format what has the form, and that the parser
 * finds in it the calls that it is; what cannot be bound, and why. */
/* run: parser */
#include "grammar/grammar.h"
#include "text/toolcall_form.h"
#include "util/buf.h"
#include "util/mem.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char TOOLS[] =
	"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
	"\"properties\":{\"s\":{\"type\":\"string\",\"description\":\"x\"},"
	"\"i\":{\"type\":\"integer\",\"nullable\":true},\"e\":{\"enum\":[\"red\",\"blue\"]},\"l\":{"
	"\"type\":\"array\","
	"\"items\":{\"$ref\":\"#/$defs/b\"}},"
	"\"o\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},\"p\":{\"type\":\"string\","
	"\"nullable\":true}},\"required\":[\"s\",\"i\"],\"$"
	"defs\":{\"b\":{\"type\":\"boolean\"}}}}},"
	"{\"type\":\"function\",\"function\":{\"name\":\"m\",\"parameters\":{\"type\":\"object\","
	"\"properties\":{"
	"\"a\":{\"$ref\":\"#/$defs/A\"},\"b\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
	"A\"},{\"type\":\"null\"}]},"
	"\"c\":{\"allOf\":[{\"$ref\":\"#/$defs/E\"}]},"
	"\"d\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
	"E\"},{\"type\":\"null\"}]},\"e\":{\"anyOf\":[{},{\"type\":\"null\"}]}},"
	"\"$defs\":{\"A\":{\"type\":\"object\",\"properties\":{\"x\":{\"$ref\":\"#/$defs/"
	"E\"}}},\"E\":{\"enum\":[\"red\",\"blue\"]}}}}},"
	"{\"type\":\"function\",\"function\":{\"name\":\"u\",\"parameters\":{\"type\":\"object\","
	"\"properties\":{\"m\":{\"anyOf\":[{\"$ref\":\"#/$defs/M\"},{\"enum\":[\"a\",\"no\"],\"type\":"
	"\"string\"},{\"type\":\"null\"}]},\"n\":{\"$ref\":\"#/$defs/N\"}},\"$defs\":{\"M\":{\"type\":"
	"\"object\",\"properties\":{\"x\":{\"type\":\"integer\"}},\"required\":[\"x\"]},\"N\":{"
	"\"anyOf\":"
	"[{\"const\":\"none\"},{\"$ref\":\"#/$defs/M\"},{\"items\":{\"$ref\":\"#/$defs/M\"},\"type\":"
	"\"array\"},{\"type\":\"integer\"}]}}}}},"
	"{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]";

static void sink(void *arg, const struct toolcall_event *e)
{
	struct buf *b = arg;
	if (e->kind == TOOLCALL_BEGIN)
		buf_printf(b, "<%s ", e->text);
	else
		buf_add(b, e->text, e->len);
	if (e->kind == TOOLCALL_END)
		buf_addc(b, '>');
}

static char *parsed(const char *format, const json_t *tools, const char *text)
{
	struct buf b;
	buf_init(&b, 0);
	struct toolcall_tools *t = toolcall_tools_new(tools);
	struct toolcall *c = toolcall_new(toolcall_format_find(format), t, NULL, sink, &b);
	toolcall_feed(c, text, strlen(text));
	toolcall_finish(c, 1);
	toolcall_destroy(&c);
	toolcall_tools_destroy(&t);
	char *line = mem_strdup(b.data ? b.data : "");
	buf_fini(&b);
	return line;
}

static int or_response;

static int matches(const char *format, const json_t *tools, const char *only, unsigned max,
                   const char *text)
{
	struct err err = {0};
	struct grammar *g;
	size_t at;
	json_t *form = toolcall_form(toolcall_format_find(format), tools, only, max, &at, &err);
	ck_assert_msg(form != NULL, "%s: %s", format, err.text);
	ck_assert_int_eq(or_response ? toolcall_form_or_response(form) : 0, 0);
	char *s = json_dumps(form, 0);
	ck_assert_msg(grammar_compile(GRAMMAR_STRUCTURE, s, strlen(s), 0, &g, &err) == 0, "%s: %s", s,
	              err.text);
	struct automaton *a = automaton_new(g, NULL, 1 << 20, NULL);
	int good = automaton_matches(a, text, strlen(text), NULL);
	automaton_destroy(&a);
	free(s);
	json_decref(form);
	return good;
}

#define F "<f {\"s\":\"a\",\"i\":1}>"
#define J "{\"s\":\"a\",\"i\":1}"

static const struct {
	const char *format, *only;
	unsigned max;
	const char *text, *calls; /* NULL: the text has not this form */
} cases[] = {
	{"hermes", NULL, 1, "<tool_call>\n{\"name\": \"f\", \"arguments\": " J "}\n</tool_call>", F},
	{"hermes", NULL, 2,
     "<tool_call>\n{\"name\": \"f\", \"arguments\": " J
     "}\n</tool_call>\n<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
     F "<g {}>"},
	{"hermes", NULL, 1,
     "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": "
     "\"g\", \"arguments\": {}}\n</tool_call>",
     NULL},
	{"hermes", "g", 1, "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>", "<g {}>"},
	{"hermes", "g", 1, "<tool_call>\n{\"name\": \"f\", \"arguments\": " J "}\n</tool_call>", NULL},
	{"hermes", NULL, 1, "<tool_call>\n{\"name\": \"h\", \"arguments\": {}}\n</tool_call>", NULL},
	{"hermes", NULL, 1,
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\":\"a\"}}\n</tool_call>", NULL},
	{"hermes", NULL, 1, "<tool_call>\n{\"name\": \"g\", \"arguments\": {\"x\":1}}\n</tool_call>",
     NULL},
	{"hermes", NULL, 1, "Sure. <tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>",
     NULL},
	{"hermes", NULL, 1, "", NULL},
	{"llama3_json", NULL, 2, "{\"name\": \"f\", \"parameters\": " J "}", F},
	{"llama3_json", NULL, 2,
     "{\"name\": \"f\", \"parameters\": " J "}; {\"name\": \"g\", \"parameters\": {}}", F "<g {}>"},
	{"mistral", NULL, 2,
     "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": " J "}, {\"name\": \"g\", \"arguments\": {}}]",
     F "<g {}>"},
	{"mistral", NULL, 2, "[TOOL_CALLS]f[ARGS]" J "[TOOL_CALLS]g[ARGS]{}", F "<g {}>"},
	{"mistral", NULL, 2, "[TOOL_CALLS][]", NULL},
	{"deepseek", NULL, 2,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>" J
     "<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
     "｜tool▁calls▁end｜>",
     F "<g {}>"},
	{"deepseek", NULL, 1,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n" J
     "\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     F},
	{"kimi_k2", NULL, 2,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>" J
     "<|tool_call_end|><|tool_call_begin|>functions.g:1"
     "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
     F "<g {}>"},
	{"granite", NULL, 2,
     "<|tool_call|>[{\"name\": \"f\", \"arguments\": " J "}, {\"name\": \"g\", \"arguments\": {}}]",
     F "<g {}>"},
	{"cohere", NULL, 2,
     "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": " J
     "},\n"
     "    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]<|END_ACTION|>",
     F "<g {}>"},
	{"harmony", NULL, 2, "<|channel|>commentary to=functions.f <|constrain|>json<|message|>" J, F},
	{"harmony", NULL, 2, " to=functions.g<|channel|>commentary json<|message|>{}", "<g {}>"},
	{"harmony", "f", 1, " to=functions.f<|channel|>commentary json<|message|>" J, F},
	{"harmony", "f", 1, " to=functions.g<|channel|>commentary json<|message|>{}", NULL},
	{"harmony", NULL, 2,
     "<|channel|>commentary to=functions.g <|constrain|>json<|message|>{}<|channel|>commentary "
     "to=functions.g <|constrain|>json<|message|>{}",
     NULL},
	{"harmony", NULL, 2, "<|channel|>final<|message|>{}", NULL},
	{"qwen3_coder", NULL, 2,
     "<tool_call>\n<function=f>\n<parameter=s>\na < "
     "b\n\"c\"\n</parameter>\n<parameter=i>\n-5\n</parameter>\n<parameter=e>\nblue\n</parameter>\n"
     "<parameter=l>\n[true, "
     "false]\n</parameter>\n<parameter=o>\nnull\n</parameter>\n</function>\n</tool_call>",
     "<f {\"s\": \"a < b\\n\\\"c\\\"\", \"i\": -5, \"e\": \"blue\", \"l\": [true, false], \"o\": "
     "null}>"},
	{"qwen3_coder", NULL, 1,
     "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n<parameter=i>\nnull\n</"
     "parameter>\n<parameter=p>\nnull\n</parameter>\n</function>\n</tool_call>",
     "<f {\"s\": \"a\", \"i\": null, \"p\": null}>"},
	{"qwen3_coder", NULL, 2,
     "<tool_call>\n<function=g>\n</function>\n</tool_call>\n<tool_call>\n<function=g>\n</"
     "function>\n</tool_call>",
     "<g {}><g {}>"},
	{"qwen3_coder", NULL, 1,
     "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n</function>\n</tool_call>", NULL},
	{"qwen3_coder", "m", 1,
     "<tool_call>\n<function=m>\n<parameter=a>\n{\"x\":\"red\"}\n</"
     "parameter>\n<parameter=b>\n{}\n</parameter>\n<parameter=c>\nblue\n</"
     "parameter>\n<parameter=d>\nred\n</parameter>\n<parameter=e>\n[5]\n</parameter>\n</"
     "function>\n</tool_call>",
     "<m {\"a\": {\"x\":\"red\"}, \"b\": {}, \"c\": \"blue\", \"d\": \"red\", \"e\": [5]}>"},
	{"qwen3_coder", "m", 1,
     "<tool_call>\n<function=m>\n<parameter=b>\nnull\n</parameter>\n<parameter=d>\nnull\n</"
     "parameter>\n<parameter=e>\nnull\n</parameter>\n</function>\n</tool_call>",
     "<m {\"b\": null, \"d\": null, \"e\": null}>"},
	{"qwen3_coder", "m", 1,
     "<tool_call>\n<function=m>\n<parameter=a>\n{\"x\":\"pink\"}\n</parameter>\n</function>\n</"
     "tool_call>",
     NULL},
	{"qwen3_coder", "m", 1,
     "<tool_call>\n<function=m>\n<parameter=a>\nnull\n</parameter>\n</function>\n</tool_call>",
     NULL},
	{"qwen3_coder", "m", 1,
     "<tool_call>\n<function=m>\n<parameter=b>\n\"red\"\n</parameter>\n</function>\n</tool_call>",
     NULL},
	{"qwen3_coder", "m", 1,
     "<tool_call>\n<function=m>\n<parameter=c>\nnull\n</parameter>\n</function>\n</tool_call>",
     NULL},
	{"qwen3_coder", "m", 1,
     "<tool_call>\n<function=m>\n<parameter=d>\npink\n</parameter>\n</function>\n</tool_call>",
     NULL},
	{"qwen3_coder", NULL, 1,
     "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n<parameter=i>\nx\n</parameter>\n</"
     "function>\n</tool_call>",
     NULL},
	{"qwen3_coder", NULL, 1,
     "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n<parameter=i>\n1\n</"
     "parameter>\n<parameter=e>\npink\n</parameter>\n</function>\n</tool_call>",
     NULL},
	{"glm", NULL, 1,
     "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a</arg_value>\n<arg_key>i</"
     "arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
     "<f {\"s\": \"a\", \"i\": 1}>"},
	{"deepseek_v32", "m", 1,
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"m\">\n<｜DSML｜parameter name=\"a\" "
     "string=\"false\">{\"x\":\"red\"}</｜DSML｜parameter>\n<｜DSML｜parameter name=\"c\" "
     "string=\"true\">blue</｜DSML｜parameter>\n<｜DSML｜parameter name=\"d\" "
     "string=\"true\">red</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     "<m {\"a\": {\"x\":\"red\"}, \"c\": \"blue\", \"d\": \"red\"}>"},
	{"deepseek_v32", "m", 1,
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"m\">\n<｜DSML｜parameter name=\"b\" "
     "string=\"false\">null</｜DSML｜parameter>\n<｜DSML｜parameter name=\"d\" "
     "string=\"false\">null</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     "<m {\"b\": null, \"d\": null}>"},
	{"deepseek_v32", "m", 1,
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"m\">\n<｜DSML｜parameter name=\"d\" "
     "string=\"true\">null</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     NULL},
	{"deepseek_v32", NULL, 1,
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" "
     "string=\"true\">a</｜DSML｜parameter>\n"
     "<｜DSML｜parameter name=\"i\" "
     "string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     "<f {\"s\": \"a\", \"i\": 1}>"},
	{"deepseek_v32", NULL, 1,
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" "
     "string=\"false\">a</｜DSML｜parameter>\n"
     "<｜DSML｜parameter name=\"i\" "
     "string=\"false\">1</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     NULL},
	{"qwen3_coder", "u", 1,
     "<tool_call>\n<function=u>\n<parameter=m>\n{\"x\": 5}\n</parameter>\n<parameter=n>\n[{\"x\": "
     "1}, {\"x\": 2}]\n</parameter>\n</function>\n</tool_call>",
     "<u {\"m\": {\"x\": 5}, \"n\": [{\"x\": 1}, {\"x\": 2}]}>"},
	{"qwen3_coder", "u", 1,
     "<tool_call>\n<function=u>\n<parameter=m>\nno\n</parameter>\n<parameter=n>\nnone\n</"
     "parameter>\n</function>\n</tool_call>",
     "<u {\"m\": \"no\", \"n\": \"none\"}>"},
	{"qwen3_coder", "u", 1,
     "<tool_call>\n<function=u>\n<parameter=m>\nnull\n</parameter>\n<parameter=n>\n-3\n</"
     "parameter>\n</function>\n</tool_call>",
     "<u {\"m\": null, \"n\": -3}>"},
	{"qwen3_coder", "u", 1,
     "<tool_call>\n<function=u>\n<parameter=m>\n{\"x\": "
     "\"a\"}\n</parameter>\n</function>\n</tool_call>",
     NULL},
	{"qwen3_coder", "u", 1,
     "<tool_call>\n<function=u>\n<parameter=m>\nb\n</parameter>\n</function>\n</tool_call>", NULL},
	{"qwen3_coder", "u", 1,
     "<tool_call>\n<function=u>\n<parameter=m>\n\"a\"\n</parameter>\n</function>\n</tool_call>",
     NULL},
	{"qwen3_coder", "u", 1,
     "<tool_call>\n<function=u>\n<parameter=n>\nnull\n</parameter>\n</function>\n</tool_call>",
     NULL},
	{"glm", "u", 1,
     "<tool_call>u\n<arg_key>m</arg_key>\n<arg_value>{\"x\": "
     "5}</arg_value>\n<arg_key>n</arg_key>\n<arg_value>[{\"x\": 1}, {\"x\": "
     "2}]</arg_value>\n</tool_call>",
     "<u {\"m\": {\"x\": 5}, \"n\": [{\"x\": 1}, {\"x\": 2}]}>"},
	{"glm", "u", 1,
     "<tool_call>u\n<arg_key>m</arg_key>\n<arg_value>no</arg_value>\n<arg_key>n</"
     "arg_key>\n<arg_value>none</arg_value>\n</tool_call>",
     "<u {\"m\": \"no\", \"n\": \"none\"}>"},
	{"glm", "u", 1,
     "<tool_call>u\n<arg_key>m</arg_key>\n<arg_value>null</arg_value>\n<arg_key>n</"
     "arg_key>\n<arg_value>-3</arg_value>\n</tool_call>",
     "<u {\"m\": null, \"n\": -3}>"},
	{"glm", "u", 1,
     "<tool_call>u\n<arg_key>m</arg_key>\n<arg_value>{\"x\": \"a\"}</arg_value>\n</tool_call>",
     NULL},
	{"glm", "u", 1, "<tool_call>u\n<arg_key>m</arg_key>\n<arg_value>b</arg_value>\n</tool_call>",
     NULL},
	{"glm", "u", 1,
     "<tool_call>u\n<arg_key>m</arg_key>\n<arg_value>\"a\"</arg_value>\n</tool_call>", NULL},
	{"glm", "u", 1, "<tool_call>u\n<arg_key>n</arg_key>\n<arg_value>null</arg_value>\n</tool_call>",
     NULL},
	{"deepseek_v32", "u", 1,
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"u\">\n<｜DSML｜parameter name=\"m\" "
     "string=\"false\">{\"x\": 5}</｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" "
     "string=\"true\">none</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     "<u {\"m\": {\"x\": 5}, \"n\": \"none\"}>"},
	{"deepseek_v32", "u", 1,
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"u\">\n<｜DSML｜parameter name=\"m\" "
     "string=\"true\">{\"x\": 5}</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     NULL},
	{"generic", NULL, 2,
     "{\"tool_calls\": [{\"name\": \"f\", \"arguments\": " J
     "}, {\"name\": \"g\", \"arguments\": {}}]}",
     F "<g {}>"},
	{"generic", "g", 1, "{\"tool_calls\": [{\"name\": \"g\", \"arguments\": { }}]}", "<g { }>"},
	{"generic", "g", 1, "{\"tool_calls\": [{\"name\": \"f\", \"arguments\": " J "}]}", NULL},
	{"generic", NULL, 1, "{\"response\": \"x\"}", NULL},
	{"generic", NULL, 1, "{\"tool_calls\": []}", NULL},
};

TEST_CASE("forms", .timeout_s = 60);

TEST_LOOP(has_form_and_is_parsed, 0, sizeof cases / sizeof *cases)
{
	json_t *tools = json_loads(TOOLS, 0, NULL);
	ck_assert_int_eq(matches(cases[_i].format, tools, cases[_i].only, cases[_i].max,
	                         cases[_i].text),
	                 cases[_i].calls != NULL);
	if (cases[_i].calls) {
		char *line = parsed(cases[_i].format, tools, cases[_i].text);
		ck_assert_str_eq(line, cases[_i].calls);
		free(line);
	}
	json_decref(tools);
}

/* An answer that may call, or not: either is all of it. */
TEST(calls_or_a_response)
{
	static const struct {
		const char *text, *said; /* NULL: the text has not this form */
	} answers[] = {
		{"{\"tool_calls\": [{\"name\": \"g\", \"arguments\": {}}]}", "<g {}>"},
		{"{\"response\": \"Say \\\"hi\\\"\\n\"}", "Say \"hi\"\n"},
		{"{\"response\": \"\"}", ""},
		{"{\"response\": 5}", NULL},
		{"{\"response\": \"x\"} and so on", NULL},
		{"Hi", NULL},
	};
	json_t *tools = json_loads(TOOLS, 0, NULL);
	or_response = 1;
	for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
		ck_assert_int_eq(matches("generic", tools, NULL, 1, answers[i].text),
		                 answers[i].said != NULL);
		char *line = parsed("generic", tools, answers[i].text);
		if (answers[i].said)
			ck_assert_str_eq(line, answers[i].said);
		free(line);
	}
	or_response = 0;
	json_decref(tools);
}

/* What stands in for the second tool's parameters, and what is said of it. */
static const struct {
	const char *format, *parameters, *says;
	int whole;
} refused[] = {
	{"hermes", "{\"type\":\"string\"}", "type \"object\"", 0},
	{"hermes", "{\"anyOf\":[{\"type\":\"object\"}]}", "type \"object\"", 0},
	{"hermes", "{\"type\":[\"object\",\"null\"]}", "type \"object\"", 0},
	{"pythonic", "{}", "format pythonic", 1},
	{"qwen3_coder",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"pattern\":\"x\"}}}",
     "/properties/a: the format qwen3_coder", 0},
	{"qwen3_coder",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/$defs/"
     "x\"}},\"$defs\":{\"x\":{\"minLength\":2}}}",
     "/properties/a", 0},
	{"qwen3_coder",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"$ref\":\"#/properties/"
     "b\"},\"b\":{\"type\":\"object\"}}}",
     "/properties/a", 0},
	{"qwen3_coder",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{\"enum\":[\"x\",1]},{\"type\":"
     "\"null\"}]}}}",
     "/properties/a", 0},
	{"qwen3_coder", "{\"type\":\"object\",\"properties\":{\"a\":{\"enum\":[\"x\",1]}}}",
     "/properties/a", 0},
	{"glm", "{\"type\":\"object\",\"properties\":{\"a\":{\"const\":\"x</arg_value>\"}}}",
     "/properties/a: the format glm", 0},
	{"glm", "{\"type\":\"object\",\"properties\":{\"a>\":{}}}", "/properties/a>", 0},
	{"glm", "{\"type\":\"object\",\"enum\":[{}]}", "/enum: the format glm", 0},
	{"glm", "{\"type\":\"object\",\"minProperties\":1}", "/minProperties: the format glm", 0},
	{"qwen3_coder", "{\"type\":\"object\",\"$ref\":\"#/$defs/a\",\"$defs\":{\"a\":{}}}",
     "/$ref: the format qwen3_coder", 0},
	{"deepseek_v32",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":"
     "\"array\"}]}}}",
     "/properties/a", 0},
	/* a string that would be read as one of the other values */
	{"qwen3_coder",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{\"enum\":[\"x\",\"{}\"]},{\"type\":"
     "\"object\"}]}}}",
     "/properties/a", 0},
	{"glm",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{\"const\":\" 5\"},{\"type\":"
     "\"integer\"}]}}}",
     "/properties/a", 0},
	{"glm",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{\"const\":\"True\"},{\"type\":"
     "\"boolean\"}]}}}",
     "/properties/a", 0},
	{"glm",
     "{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{\"const\":\"None\"},{\"type\":"
     "\"object\"},{\"type\":\"null\"}]}}}",
     "/properties/a", 0},
};

TEST_LOOP(refuses, 0, sizeof refused / sizeof *refused)
{
	struct err err = {0};
	size_t at;
	char *text = mem_printf(
		"[{\"function\":{\"name\":\"g\"}},{\"function\":{\"name\":\"f\",\"parameters\":%s}}]",
		refused[_i].parameters);
	json_t *tools = json_loads(text, 0, NULL),
		   *form = toolcall_form(toolcall_format_find(refused[_i].format), tools, NULL, 1, &at,
	                             &err);
	ck_assert_ptr_null(form);
	ck_assert_msg(strstr(err.text, refused[_i].says) != NULL, "%s", err.text);
	ck_assert_uint_eq(at, refused[_i].whole ? TOOLCALL_FORM_WHOLE : 1);
	json_decref(tools);
	free(text);
}

/* Many parameters that each refer to a tree, or to a long list: it is not walked, or listed, for
 * each of them. */
TEST_LOOP(many_references, 0, 2)
{
	struct buf b;
	struct err err = {0};
	size_t at;
	buf_init(&b, 0);
	buf_adds(&b, "[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
	             "\"properties\":{");
	for (int i = 0; i < 20000; i++)
		buf_printf(&b, "%s\"p%d\":{\"$ref\":\"#/$defs/d0\"}", i ? "," : "", i);
	buf_adds(&b, "},\"$defs\":{");
	for (int level = 0; level < 4; level++) {
		buf_printf(&b, "\"d%d\":{\"anyOf\":[", level);
		for (int i = 0; i < 14; i++)
			buf_printf(&b, "%s{\"$ref\":\"#/$defs/d%d\"}", i ? "," : "", level + 1);
		buf_adds(&b, "]},");
	}
	buf_adds(&b, "\"d4\":{\"type\":\"integer\"}}}}}]");
	if (_i) { /* the list instead */
		buf_reset(&b);
		buf_adds(&b, "[{\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
		             "\"$defs\":{\"d\":{\"enum\":[\"0\"");
		for (int i = 1; i < 9000; i++)
			buf_printf(&b, ",\"%d\"", i);
		buf_adds(&b, "]}},\"properties\":{\"a\":{\"$ref\":\"#/$defs/d\"}");
		for (int i = 0; i < 3000; i++)
			buf_printf(&b, ",\"p%d\":{\"$ref\":\"#/$defs/d\"}", i);
		buf_adds(&b, "}}}}]");
	}
	json_t *tools = json_loadb(b.data, b.len, 0, NULL);
	ck_assert_ptr_nonnull(tools);
	clock_t begin = clock();
	json_decref(toolcall_form(toolcall_format_find("glm"), tools, NULL, 1, &at, &err));
	ck_assert_msg(clock() - begin < 4 * CLOCKS_PER_SEC, "%g s",
	              (double)(clock() - begin) / CLOCKS_PER_SEC);
	json_decref(tools);
	buf_fini(&b);
}
