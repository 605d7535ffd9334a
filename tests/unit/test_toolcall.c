/* test_toolcall.c - calls of tools in answers: each format by table, whole, byte by byte, cut
 * everywhere and at random; ids, detection, types. */
/* run: parser */
#include "text/toolcall.h"
#include "util/buf.h"
#include "util/mem.h"
#include "util/quota.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char TOOLS[] =
	"[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\","
	"\"properties\":{"
	"\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"n\":{\"type\":\"number\"},\"b\":{"
	"\"type\":\"boolean\"},\"o\":{\"type\":\"object\"},\"l\":{\"type\":\"array\"},"
	"\"sn\":{\"type\":[\"string\",\"null\"]},\"u\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":"
	"\"string\"}]},\"e\":{\"enum\":[1,2]},\"free\":{}}}}},"
	"{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":"
	"\"object\",\"properties\":{\"city\":{\"type\":\"string\"}}}}},"
	"{\"type\":\"function\",\"function\":{\"name\":\"g\"}},"
	/* schemas as code generators write them */
	"{\"type\":\"function\",\"function\":{\"name\":\"m\",\"parameters\":{\"type\":\"object\","
	"\"properties\":{"
	"\"a\":{\"$ref\":\"#/$defs/Address\"},"
	"\"opt\":{\"anyOf\":[{\"$ref\":\"#/$defs/Address\"},{\"type\":\"null\"}]},"
	"\"list\":{\"allOf\":[{\"$ref\":\"#/definitions/D~1x\"}],\"description\":\"x\"},"
	"\"both\":{\"allOf\":[{\"type\":[\"string\",\"integer\"]},{\"type\":\"string\"}]},"
	"\"any\":{},\"opt_any\":{\"anyOf\":[{\"type\":\"null\"},{}]},\"true\":true,"
	"\"lost\":{\"$ref\":\"#/$defs/lost\"},\"loop\":{\"$ref\":\"#/$defs/Loop\"},"
	"\"enum\":{\"$ref\":\"#/$defs/Enum\"},\"const\":{\"const\":\"5\"},"
	"\"opt_enum\":{\"anyOf\":[{\"$ref\":\"#/$defs/Enum\"},{\"type\":\"null\"}]},"
	"\"pattern\":{\"pattern\":\"^5$\"}},"
	"\"$defs\":{\"Address\":{\"type\":\"object\"},\"Loop\":{\"anyOf\":[{\"$ref\":\"#/$defs/"
	"Loop\"},{\"type\":\"null\"}]},\"Enum\":{\"enum\":[\"5\",\"x\"]}},"
	"\"definitions\":{\"D/x\":{\"type\":\"array\"}}}}}]";

static struct toolcall_tools *tools;

static void setup(void)
{
	json_t *o = json_loads(TOOLS, 0, NULL);
	ck_assert(o != NULL);
	tools = toolcall_tools_new(o);
	json_decref(o);
}

static void teardown(void)
{
	toolcall_tools_destroy(&tools);
}

/* What comes out as one line: content as it is, calls as <0 name ARGUMENTS>, pieces of the same
 * kind joined. */
struct got {
	struct buf b;
	int open, broken; /* broken: the last call that has ended */
};

static void sink(void *arg, const struct toolcall_event *e)
{
	struct got *g = arg;
	ck_assert_int_eq(g->open, e->kind == TOOLCALL_ARGUMENTS || e->kind == TOOLCALL_END);
	ck_assert(e->kind == TOOLCALL_END || e->len > 0);
	if (e->kind == TOOLCALL_BEGIN)
		buf_printf(&g->b, "<%u %s ", e->index, e->text);
	else
		buf_add(&g->b, e->text, e->len);
	if (e->kind == TOOLCALL_END) {
		buf_addc(&g->b, '>');
		g->broken = e->is_broken;
	}
	if (e->kind == TOOLCALL_BEGIN || e->kind == TOOLCALL_END)
		g->open = e->kind == TOOLCALL_BEGIN;
}

#define ENDED '\4' /* behind a text: the model ended the answer, by a silent token */

/* cuts: ends of pieces, ascending; the rest is the last piece. */
static char *run(const char *format, const char *text, size_t len, const size_t *cuts, size_t n)
{
	int ended = len && text[len - 1] == ENDED;
	struct got g = {0};
	const struct toolcall_format *f = toolcall_format_find(format);
	ck_assert_msg(f != NULL, "%s", format);
	struct toolcall *t = toolcall_new(f, tools, NULL, sink, &g);
	size_t at = 0;
	buf_init(&g.b, 0);
	len -= (size_t)ended;
	for (size_t i = 0; i <= n; i++) {
		size_t to = i < n && cuts[i] < len ? cuts[i] : len;
		/* exactly so long: a read beyond is seen by the sanitizer */
		char *piece = mem_alloc(to - at + 1);
		memcpy(piece, text + at, to - at);
		toolcall_feed(t, piece, to - at);
		free(piece);
		at = to;
	}
	toolcall_finish(t, ended);
	ck_assert_int_eq(g.open, 0);
	toolcall_destroy(&t);
	return g.b.data ? g.b.data : mem_strdup("");
}

static const struct {
	const char *format, *text, *want;
} rows[] = {
	/* no call at all */
	{"hermes", "", ""},
	{"hermes", "  \n", "  \n"},
	{"hermes", "Just <b>text</b> < > <tool_cal and \n more \n",
     "Just <b>text</b> < > <tool_cal and \n more \n"},
	{"hermes", "ends in <tool_call", "ends in <tool_call"},
	{"hermes", "ends in <tool_call>", "ends in <tool_call>"},
	{"hermes", " <tool_call> {", " <tool_call> {"},
	/* hermes */
	{"hermes",
     "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"Oslo\", \"i\": 1}}\n</tool_call>",
     "<0 f {\"s\": \"Oslo\", \"i\": 1}>"},
	{"hermes", "Let me look.\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n",
     "Let me look.<0 f {}>"},
	{"hermes",
     "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>\n<tool_call>\n{\"name\": \"g\", "
     "\"arguments\": {\"x\":[{}]}}\n</tool_call>\n\nDone.",
     "<0 f {}><1 g {\"x\":[{}]}>\n\nDone."},
	{"hermes", "<tool_call>{\"arguments\": {\"s\": 1}, \"name\": \"f\"}</tool_call>",
     "<0 f {\"s\": 1}>"},
	{"hermes",
     "<tool_call>{\"id\": 5, \"name\": \"f\", \"x\": [1, {\"name\": 2}], \"arguments\": {\"s\": "
     "1}, \"y\": -1.5e+3}</tool_call>",
     "<0 f {\"s\": 1}>"},
	{"hermes", "<tool_call>{\"name\": \"f\"}</tool_call>", "<0 f {}>"},
	{"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", "<0 f {}>"},
	{"hermes",
     "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"s\\\": \\\"\\u00e9\\\"}\"}</tool_call>",
     "<0 f {\"s\": \"é\"}>"},
	{"hermes", "<tool_call>{\"arguments\": \"{}\", \"name\": \"f\"}</tool_call>", "<0 f {}>"},
	{"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \"no\"}</tool_call>",
     "<tool_call>{\"name\": \"f\", \"arguments\": \"no\"}</tool_call>"},
	{"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>",
     "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>"},
	{"hermes",
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": "
     "\"a</tool_call><tool_call>{\\\"\"}}</tool_call>",
     "<0 f {\"s\": \"a</tool_call><tool_call>{\\\"\"}>"},
	{"hermes",
     "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"two\nlines\tand \x01\"}}</tool_call>",
     "<0 f {\"s\": \"two\\nlines\\tand \\u0001\"}>"},
	{"hermes", "<tool_call>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\"}]</tool_call>",
     "<0 f {}><1 g {}>"},
	{"hermes", "<tool_call>{\"name\": \"f\"}</tool_call></tool_call>", "<0 f {}></tool_call>"},
	/* malformed: what is no call is content, what has begun breaks off */
	{"hermes", "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>",
     "<tool_call>{\"name\": \"unknown\", \"arguments\": {}}</tool_call>"},
	{"hermes", "<tool_call>{\"name\": 5}</tool_call>", "<tool_call>{\"name\": 5}</tool_call>"},
	{"hermes", "<tool_call>{\"arguments\": {}}</tool_call>",
     "<tool_call>{\"arguments\": {}}</tool_call>"},
	{"hermes", "<tool_call>{}</tool_call> x", "<tool_call>{}</tool_call> x"},
	{"hermes", "<tool_call>{name: f}</tool_call>", "<tool_call>{name: f}</tool_call>"},
	{"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": x}}</tool_call>",
     "<0 f {\"s\": >x}}</tool_call>"},
	{"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"cut", "<0 f {\"s\": \"cut>"},
	{"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": 1}", "<0 f {\"s\": 1}>"},
	{"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": 1}}", "<0 f {\"s\": 1}>"},
	{"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": 1}} trailing",
     "<0 f {\"s\": 1}> trailing"},
	{"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": 1}}</tool_c",
     "<0 f {\"s\": 1}></tool_c"},
	{"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": 1}}}</tool_call>",
     "<0 f {\"s\": 1}>}</tool_call>"},
	{"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": 01}}</tool_call>",
     "<0 f {\"s\": 0>1}}</tool_call>"},
	{"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"\\x\"}}",
     "<0 f {\"s\": \"\\>x\"}}"},
	{"hermes", "Write <tool_call> so: <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>",
     "Write <tool_call> so:<0 f {}>"},
	{"hermes", "<tool_call><tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call><0 f {}>"},
	{"hermes", "<tool_call>{\"name\": \"f\" <tool_call>{\"name\": \"g\"}</tool_call>",
     "<tool_call>{\"name\": \"f\" <0 g {}>"},
	/* qwen3_coder */
	{"qwen3_coder",
     "<tool_call>\n<function=f>\n<parameter=s>\nOslo\n</parameter>\n<parameter=i>\n42\n</"
     "parameter>\n</function>\n</tool_call>",
     "<0 f {\"s\": \"Oslo\", \"i\": 42}>"},
	{"qwen3_coder",
     "On "
     "it.\n\n<tool_call>\n<function=g>\n</function>\n</"
     "tool_call>\n<tool_call>\n<function=f>\n<parameter=b>\nTrue\n</parameter>\n</function>\n</"
     "tool_call>",
     "On it.<0 g {}><1 f {\"b\": true}>"},
	{"qwen3_coder",
     "<function=f><parameter=s>a "
     "\"b\"\n\n\\c\n\n</parameter><parameter=n>1.5</parameter></function>",
     "<0 f {\"s\": \"a \\\"b\\\"\\n\\n\\\\c\\n\", \"n\": 1.5}>"},
	{"qwen3_coder",
     "<function=f><parameter=o>\n{\"a\": [1, "
     "null]}\n</parameter><parameter=l>[]</parameter></function>",
     "<0 f {\"o\": {\"a\": [1, null]}, \"l\": []}>"},
	{"qwen3_coder",
     "<function=f><parameter=i>many</parameter><parameter=sn>null</parameter><parameter=u>7</"
     "parameter><parameter=u>x7</parameter></function>",
     "<0 f {\"i\": \"many\", \"sn\": null, \"u\": 7, \"u\": \"x7\"}>"},
	{"qwen3_coder",
     "<function=f><parameter=e>1</parameter><parameter=free>1</parameter><parameter=other>[1]</"
     "parameter><parameter=n>None</parameter></function>",
     "<0 f {\"e\": 1, \"free\": 1, \"other\": \"[1]\", \"n\": null}>"},
	{"qwen3_coder",
     "<function=f><parameter=s></parameter><parameter=s>\n</parameter><parameter=s>\n\n</"
     "parameter></function>",
     "<0 f {\"s\": \"\", \"s\": \"\", \"s\": \"\"}>"},
	{"qwen3_coder", "<function=f><parameter=s>x</p></parameter </parameter></function>",
     "<0 f {\"s\": \"x</p></parameter \"}>"},
	{"qwen3_coder", "<function=nope><parameter=s>x</parameter></function>",
     "<function=nope><parameter=s>x</parameter></function>"},
	{"qwen3_coder", "<tool_call>{\"name\": \"f\"}</tool_call>",
     "<tool_call>{\"name\": \"f\"}</tool_call>"},
	{"qwen3_coder", "<function=f><parameter=s>cut\n", "<0 f {\"s\": \"cut>"},
	{"qwen3_coder", "<function=f><parameter=i>12", "<0 f {\"i\": 12>"},
	{"qwen3_coder", "<function=f><parameter=s>x</parameter>oops</function>",
     "<0 f {\"s\": \"x\">oops</function>"},
	{"qwen3_coder", "<function=f> oops", "<0 f > oops"},
	{"qwen3_coder",
     "<function=m><parameter=a>{\"street\": \"x\"}</parameter><parameter=opt>{\"street\": "
     "\"x\"}</parameter><parameter=opt>null</parameter><parameter=opt>street "
     "x</parameter><parameter=list>[1]</parameter></function>",
     "<0 m {\"a\": {\"street\": \"x\"}, \"opt\": {\"street\": \"x\"}, \"opt\": null, \"opt\": "
     "\"street x\", \"list\": [1]}>"},
	{"qwen3_coder",
     "<function=m><parameter=any>5</parameter><parameter=any>[true, "
     "{}]</parameter><parameter=any>None</parameter><parameter=any>five</"
     "parameter><parameter=opt_any>{}</parameter><parameter=true>1.5</parameter></function>",
     "<0 m {\"any\": 5, \"any\": [true, {}], \"any\": null, \"any\": \"five\", \"opt_any\": {}, "
     "\"true\": 1.5}>"},
	{"qwen3_coder",
     "<function=m><parameter=lost>{}</parameter><parameter=loop>[5]</parameter><parameter=loop>x</"
     "parameter></function>",
     "<0 m {\"lost\": {}, \"loop\": [5], \"loop\": \"x\"}>"},
	{"qwen3_coder",
     "<function=m><parameter=both>5</parameter><parameter=enum>5</parameter><parameter=const>5</"
     "parameter><parameter=opt_enum>5</parameter><parameter=opt_enum>null</"
     "parameter><parameter=pattern>5</parameter><parameter=m>5</parameter></function>",
     "<0 m {\"both\": \"5\", \"enum\": \"5\", \"const\": \"5\", \"opt_enum\": \"5\", \"opt_enum\": "
     "null, \"pattern\": \"5\", \"m\": \"5\"}>"},
	/* llama3_json */
	{"llama3_json", "{\"name\": \"f\", \"parameters\": {\"s\": \"x\"}}", "<0 f {\"s\": \"x\"}>"},
	{"llama3_json", "\n{\"type\": \"function\", \"name\": \"f\", \"parameters\": {\"s\": \"x\"}}",
     "<0 f {\"s\": \"x\"}>"},
	{"llama3_json",
     "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"g\", \"arguments\": {}}",
     "<0 f {}><1 g {}>"},
	{"llama3_json", "{\"name\": \"f\", \"parameters\": {}}\n{\"name\": \"g\", \"parameters\": {}}",
     "<0 f {}><1 g {}>"},
	{"llama3_json", "{\"name\": \"John\", \"age\": 5}", "{\"name\": \"John\", \"age\": 5}"},
	{"llama3_json", "{\"name\": \"f\"}", "{\"name\": \"f\"}"},
	{"llama3_json", "Sure: {\"name\": \"f\", \"parameters\": {}}",
     "Sure: {\"name\": \"f\", \"parameters\": {}}"},
	{"llama3_json", "<|python_tag|>brave_search.call(query=\"x\")",
     "<|python_tag|>brave_search.call(query=\"x\")"},
	/* mistral */
	{"mistral",
     "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}, \"id\": \"callAAAA1\"}, "
     "{\"name\": \"g\", \"arguments\": {}}]",
     "<0 f {\"s\": \"x\"}><1 g {}>"},
	{"mistral", "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {}}]", "<0 f {}>"},
	{"mistral", "[TOOL_CALLS]f[CALL_ID]callAAAA1[ARGS]{\"s\": \"x\"}[TOOL_CALLS]g[ARGS]{}",
     "<0 f {\"s\": \"x\"}><1 g {}>"},
	{"mistral", "I look.[TOOL_CALLS]get_weather{\"city\": \"Oslo\"}",
     "I look.<0 get_weather {\"city\": \"Oslo\"}>"},
	{"mistral", "[TOOL_CALLS]nope[ARGS]{}", "[TOOL_CALLS]nope[ARGS]{}"},
	{"mistral", "[TOOL_CALLS]f[ARGS] and so", "[TOOL_CALLS]f[ARGS] and so"},
	{"mistral", "[TOOL_CALLS][]", "[TOOL_CALLS][]"},
	{"mistral", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, oops]", "<0 f {}>, oops]"},
	{"mistral", "A list: [1, 2] and [TOOL", "A list: [1, 2] and [TOOL"},
	/* deepseek */
	{"deepseek",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{\"s\": "
     "\"x\"}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>g\n"
     "```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     "<0 f {\"s\": \"x\"}><1 g {}>"},
	{"deepseek",
     "Wait.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\": "
     "\"x\"}<｜tool▁call▁end｜><｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
     "｜tool▁calls▁end｜>",
     "Wait.<0 f {\"s\": \"x\"}><1 g {}>"},
	{"deepseek", "<｜tool▁call▁begin｜>nope<｜tool▁sep｜>{}<｜tool▁call▁end｜>",
     "<｜tool▁call▁begin｜>nope<｜tool▁sep｜>{}<｜tool▁call▁end｜>"},
	{"deepseek", "<｜tool▁calls▁begin｜> nothing", "<｜tool▁calls▁begin｜> nothing"},
	{"deepseek",
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\": ", "<0 f {\"s\": >"},
	/* deepseek_v32 */
	{"deepseek_v32",
     "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"s\" "
     "string=\"true\">12</｜DSML｜parameter>\n<｜DSML｜parameter name=\"x\" "
     "string=\"false\">{\"a\": 1}</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke "
     "name=\"g\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     "<0 f {\"s\": \"12\", \"x\": {\"a\": 1}}><1 g {}>"},
	{"deepseek_v32", "<｜DSML｜invoke name=\"f\"><｜DSML｜parameter name=\"s\" string=\"maybe\">",
     "<0 f ><｜DSML｜parameter name=\"s\" string=\"maybe\">"},
	/* glm */
	{"glm",
     "\n<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>Oslo "
     "\n</arg_value>\n<arg_key>i</arg_key>\n<arg_value>3</arg_value>\n</"
     "tool_call>\n<tool_call>g\n</tool_call>",
     "<0 f {\"s\": \"Oslo \\n\", \"i\": 3}><1 g {}>"},
	{"glm",
     "Ok.<tool_call>f<arg_key>l</arg_key><arg_value>[1, "
     "\"<arg_key>\"]</arg_value></tool_call><tool_call>g</tool_call>",
     "Ok.<0 f {\"l\": [1, \"<arg_key>\"]}><1 g {}>"},
	{"glm", "<tool_call>f or not", "<tool_call>f or not"},
	{"glm", "<tool_call>nope</tool_call>", "<tool_call>nope</tool_call>"},
	{"glm", "<tool_call>f<tool_call>g</tool_call>", "<tool_call>f<0 g {}>"},
	{"glm", "<tool_call>f<arg_key>s</arg_key>x", "<0 f ><arg_key>s</arg_key>x"},
	{"glm",
     "<tool_call>m<arg_key>a</arg_key><arg_value>{\"street\": "
     "\"x\"}</arg_value><arg_key>opt</arg_key><arg_value>{\"street\": "
     "\"x\"}</arg_value><arg_key>opt</arg_key><arg_value>null</arg_value><arg_key>opt</"
     "arg_key><arg_value>street "
     "x</arg_value><arg_key>list</arg_key><arg_value>[1]</arg_value></tool_call>",
     "<0 m {\"a\": {\"street\": \"x\"}, \"opt\": {\"street\": \"x\"}, \"opt\": null, \"opt\": "
     "\"street x\", \"list\": [1]}>"},
	/* kimi_k2 */
	{"kimi_k2",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{"
     "\"s\": 1}<|tool_call_end|><|tool_call_begin|>functions.g:1"
     "<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
     "<0 f {\"s\": 1}><1 g {}>"},
	/* granite, cohere */
	{"granite", "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"s\": 1}}]", "<0 f {\"s\": 1}>"},
	{"cohere",
     "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": "
     "{\"s\": 1}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": {}}\n]"
     "<|END_ACTION|>",
     "<0 f {\"s\": 1}><1 g {}>"},
	/* harmony */
	{"harmony",
     "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"s\": \"<|x|>\"}<|call|>",
     "<0 f {\"s\": \"<|x|>\"}>"},
	{"harmony",
     "I look.<|start|>assistant<|channel|>commentary to=functions.f "
     "<|constrain|>json<|message|>{\"s\": 1}",
     "I look.<0 f {\"s\": 1}>"},
	{"harmony", " to=functions.f<|channel|>commentary json<|message|>{\"s\": 1}<|call|>",
     "<0 f {\"s\": 1}>"},
	{"harmony",
     "<|start|>assistant to=functions.f<|channel|>commentary <|constrain|>json<|message|> {\"s\": "
     "1} <|call|><|start|>assistant<|channel|>commentary to=functions.g "
     "code<|message|>{}<|end|>\n",
     "<0 f {\"s\": 1}><1 g {}>"},
	{"harmony",
     "<|channel|>commentary to=functions.f<|message|>{}<|call|>to=functions.g<|message|>{}<|call|>",
     "<0 f {}><1 g {}>"},
	{"harmony",
     "<|channel|>analysis to=functions.get_weather code<|message|>{\"city\": \"Oslo\"}<|call|>",
     "<0 get_weather {\"city\": \"Oslo\"}>"},
	{"harmony", "<|channel|>commentary to=g<|message|>{}", "<0 g {}>"},
	{"harmony", "<|channel|>functions.g <|constrain|>json<|message|>{}", "<0 g {}>"},
	{"harmony", "<|channel|>commentary to=functions.f <|constrain|>json{\"s\": 1}<|call|>",
     "<0 f {\"s\": 1}>"},
	{"harmony", "<|channel|>commentary to=functions.g <|constrain|>json<|message|><|call|>",
     "<0 g {}>"},
	{"harmony", "<|channel|>commentary to=functions.g <|constrain|>json<|message|>\4", "<0 g {}>"},
	{"harmony", "<|channel|>commentary to=functions.g <|constrain|>json<|message|>", "<0 g >"},
	{"harmony", "<|channel|>commentary to=functions.g <|constrain|>json<|message|> \n", "<0 g >"},
	{"harmony", "<|channel|>commentary to=functions.f<|message|>{\"s\": x}<|call|>",
     "<0 f {\"s\": >x}<|call|>"},
	{"harmony", "<|channel|>commentary to=functions.f<|message|>{\"s\": \"cut",
     "<0 f {\"s\": \"cut>"},
	{"harmony",
     "<|channel|>commentary to=functions.f<|message|>{\"s\": "
     "\"cut<|end|><|start|>assistant<|channel|>final<|message|>\"4\"",
     "<0 f {\"s\": \"cut>\"4\""},
	{"harmony",
     "<|channel|>commentary to=functions.f<|message|>{\"s\": "
     "\"cut<|end|><|start|>assistant<|channel|>final<|mess",
     "<0 f {\"s\": \"cut<|end|><|start|>assistant<|channel|>final<|mess>"},
	{"harmony", "<|channel|>commentary to=functions.nope<|message|>{}<|call|>",
     "<|channel|>commentary to=functions.nope<|message|>{}<|call|>"},
	{"harmony", "<|channel|>commentary to=functions.f<|message|>f(1)<|call|>",
     "<|channel|>commentary to=functions.f<|message|>f(1)<|call|>"},
	{"harmony",
     "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>4",
     "<|channel|>analysis<|message|>A<|end|><|start|>assistant<|channel|>final<|message|>4"},
	{"harmony", "to be or not <|sta", "to be or not <|sta"},
	{"harmony", "to=functions.g and so", "to=functions.g and so"},
	{"harmony", "<|channel|>commentary to=functions.g", "<|channel|>commentary to=functions.g"},
	/* pythonic */
	{"pythonic", "[f(s=\"O'slo\", i=1), g()]", "<0 f {\"s\": \"O'slo\", \"i\": 1}><1 g {}>"},
	{"pythonic", "[f(s='a\"b\\n\\'', l=[1, 'x', (True, None),], o={'k': -1.5e3}, b=False)]",
     "<0 f {\"s\": \"a\\\"b\\u000a'\", \"l\": [1, \"x\", [true, null]], \"o\": {\"k\": -1.5e3}, "
     "\"b\": false}>"},
	{"pythonic", "[1, 2, 3]", "[1, 2, 3]"},
	{"pythonic", "[nope(a=1)]", "[nope(a=1)]"},
	{"pythonic", "See [f(s=1)]", "See [f(s=1)]"},
	{"pythonic", "[f(s=x+1), g()]", "<0 f {\"s\": x+1>), g()]"},
	{"pythonic", "[f(s=1", "<0 f {\"s\": 1>"},
	{"pythonic", "[f(1)]", "<0 f >1)]"},
	/* escapes: as Python reads them */
	{"pythonic", "[f(s='\\d+ it\\_s \\/ \\é \\N{DASH} \\ ')]",
     "<0 f {\"s\": \"\\\\d+ it\\\\_s \\\\/ \\\\é \\\\N{DASH} \\\\ \"}>"},
	{"pythonic", "[f(s='\\a\\b\\f\\n\\r\\t\\v\\\\\\'\\\"')]",
     "<0 f {\"s\": \"\\u0007\\u0008\\u000c\\u000a\\u000d\\u0009\\u000b\\\\'\\\"\"}>"},
	{"pythonic", "[f(s='\\0 \\18 \\1012 \\42 \\377 \\777 \\8')]",
     "<0 f {\"s\": \"\\u0000 \\u00018 A2 \\\" \\u00ff \\u01ff \\\\8\"}>"},
	{"pythonic", "[f(s='\\x4A \\u00e9 \\U0001F600 \\U0010ffff \\U00000041 \\ud83d\\ude00')]",
     "<0 f {\"s\": \"J \\u00e9 \\ud83d\\ude00 \\udbff\\udfff A \\ud83d\\ude00\"}>"},
	{"pythonic", "[f(s='one \\\ntwo \\\r\nthree \\\rfour')]",
     "<0 f {\"s\": \"one two three four\"}>"},
	{"pythonic", "[f(s='\\x4')]", "<0 f {\"s\": '\\x4'>)]"},
	{"pythonic", "[f(s='\\x4\x14')]", "<0 f {\"s\": '\\x4\x14'>)]"},
	{"pythonic", "[f(s='\\u00e')]", "<0 f {\"s\": '\\u00e'>)]"},
	{"pythonic", "[f(s='\\U0001F60')]", "<0 f {\"s\": '\\U0001F60'>)]"},
	{"pythonic", "[f(s='\\U00110000')]", "<0 f {\"s\": '\\U00110000'>)]"},
	{"pythonic", "[f(s='\\U80000000')]", "<0 f {\"s\": '\\U80000000'>)]"},
	/* generic */
	{"generic",
     "{\"tool_calls\": [{\"name\": \"f\", \"arguments\": {\"s\": \"x\"}}, {\"name\": \"g\", "
     "\"arguments\": {}}]}",
     "<0 f {\"s\": \"x\"}><1 g {}>"},
	{"generic", "{ \"tool_calls\":[{\"arguments\": {}, \"name\": \"g\"} ] }\n", "<0 g {}>"},
	{"generic", "{\"response\": \"Hi \\\"you\\\"\\t\\u00e9\\ud83d\\ude00 \\\\\\/\"}",
     "Hi \"you\"\té😀 \\/"},
	{"generic", "{\"response\": \"\"}", ""},
	{"generic", "{\"response\" : \"a\\ud83dz\\ude00\\ud83d\\u0041\"} ", "a�z��A"},
	{"generic", "{\"response\": \"cut\\u00", "cut\\u00"},
	{"generic", "{\"response\": \"cut \\ud83d\\u", "cut \\ud83d\\u"},
	{"generic", "{\"response\": \"bad\\x\\u00zz\"}", "bad\\x\\u00zz"},
	{"generic", "{\"response\": \"a\"} b", "a b"},
	{"generic", "{\"response\": 5}", "{\"response\": 5}"},
	{"generic", "{\"tool_calls\": []}", "{\"tool_calls\": []}"},
	{"generic", "{\"tool_calls\": {}}", "{\"tool_calls\": {}}"},
	{"generic", "{\"tool_calls\": [{\"name\": \"nope\", \"arguments\": {}}]}",
     "{\"tool_calls\": [{\"name\": \"nope\", \"arguments\": {}}]}"},
	{"generic", "{\"x\": 1}", "{\"x\": 1}"},
	{"generic", "Just text", "Just text"},
	{"generic", "{\"tool_c", "{\"tool_c"},
	{"generic", "{", "{"},
	{"generic", "So: {\"response\": \"x\"}", "So: {\"response\": \"x\"}"},
	{"generic", "{\"tool_calls\": [{\"name\": \"f\", \"arguments\": {\"s\": 1", "<0 f {\"s\": 1>"},
	{"generic", "{\"tool_calls\": [{\"name\": \"g\", \"arguments\": {}}, {\"name\": \"nope\"}]}",
     "<0 g {}>, {\"name\": \"nope\"}]}"},
};

#define N_ROWS (sizeof rows / sizeof *rows)

TEST_CASE("toolcall", .timeout_s = 60, .setup = setup, .teardown = teardown);

TEST_LOOP(formats, 0, N_ROWS)
{
	const char *text = rows[_i].text, *want = rows[_i].want;
	size_t len = strlen(text), cuts[512];
	char *out = run(rows[_i].format, text, len, NULL, 0);
	ck_assert_msg(strcmp(out, want) == 0, "%s: %s\nwant %s\n got %s", rows[_i].format, text, want,
	              out);
	free(out);
	for (size_t cut = 0; cut <= len; cut++) { /* two pieces, cut anywhere */
		out = run(rows[_i].format, text, len, &cut, 1);
		ck_assert_msg(strcmp(out, want) == 0, "%s: %s cut at %zu\nwant %s\n got %s",
		              rows[_i].format, text, cut, want, out);
		free(out);
	}
	ck_assert_uint_lt(len, 512);
	for (size_t i = 0; i < len; i++)
		cuts[i] = i;
	out = run(rows[_i].format, text, len, cuts, len);
	ck_assert_msg(strcmp(out, want) == 0, "%s: %s byte by byte\nwant %s\n got %s", rows[_i].format,
	              text, want, out);
	free(out);
}

/* Three rows' texts, one after the other with some bytes changed, cut at random: as in one
 * piece. */
TEST_LOOP(random_splits, 0, 10)
{
	unsigned seed = (unsigned)_i;
	for (int round = 0; round < 150; round++) {
		struct buf text;
		size_t cuts[40], n = 0;
		const char *format = rows[(size_t)rand_r(&seed) % N_ROWS].format;
		buf_init(&text, 0);
		for (int k = 0; k < 3;) {
			size_t row = (size_t)rand_r(&seed) % N_ROWS;
			if (strcmp(rows[row].format, format) != 0 && rand_r(&seed) % 32)
				continue;
			buf_adds(&text, rows[row].text);
			buf_adds(&text, rand_r(&seed) % 2 ? "" : "\n");
			k++;
		}
		for (int k = rand_r(&seed) % 4; k > 0 && text.len; k--)
			text.data[(size_t)rand_r(&seed) % text.len] = "\"{}[]<>\\ ,:\n"[rand_r(&seed) % 12];
		for (size_t at = 0; n < 40 && (at += (size_t)rand_r(&seed) % 30) < text.len; n++)
			cuts[n] = at;
		char *whole = run(format, text.data ? text.data : "", text.len, NULL, 0),
			 *parts = run(format, text.data ? text.data : "", text.len, cuts, n);
		ck_assert_msg(strcmp(whole, parts) == 0, "%s: %s\nwhole %s\nparts %s", format, text.data,
		              whole, parts);
		free(whole);
		free(parts);
		buf_fini(&text);
	}
}

/* A call is told and its arguments flow before they are complete. */
TEST_LOOP(arguments_stream, 0, 10)
{
	static const struct {
		const char *format, *text, *want;
	} early[] = {
		{"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"Os", "<0 f {\"s\": \"Os"},
		{"qwen3_coder", "<function=f><parameter=s>\nOs", "<0 f {\"s\": \"Os"},
		{"glm", "<tool_call>f\n<arg_key>s</arg_key><arg_value>Os", "<0 f {\"s\": \"Os"},
		{"mistral", "[TOOL_CALLS]f[ARGS]{\"s\": \"Os", "<0 f {\"s\": \"Os"},
		{"deepseek", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"s\": \"Os", "<0 f {\"s\": \"Os"},
		{"harmony", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"s\": \"Os",
	     "<0 f {\"s\": \"Os"},
		{"hermes", "some text", "some text"},
		{"hermes", "{\"name\": <b", "{\"name\": <b"},
		{"llama3_json", "{\"nam", ""},
		{"llama3_json", "text {\"nam", "text {\"nam"},
	};
	struct got g = {0};
	struct toolcall *t = toolcall_new(toolcall_format_find(early[_i].format), tools, NULL, sink,
	                                  &g);
	buf_init(&g.b, 0);
	toolcall_feed(t, early[_i].text, strlen(early[_i].text));
	ck_assert_str_eq(g.b.data ? g.b.data : "", early[_i].want);
	toolcall_destroy(&t);
	buf_fini(&g.b);
}

/* The end of a call says whether its arguments are complete. */
TEST_LOOP(broken_calls, 0, 6)
{
	static const struct {
		const char *format, *text;
		size_t room; /* of the quota; 0: no limit */
		int ended, broken;
	} t[] = {
		{"harmony", "<|channel|>commentary to=functions.f<|message|>", 0, 0, 1},
		{"harmony", "<|channel|>commentary to=functions.f<|message|>", 0, 1, 0},
		{"harmony", "<|channel|>commentary to=functions.f<|message|><|call|>", 0, 0, 0},
		{"pythonic", "[f(s=[1, 2])]", 0, 0, 0},
		{"pythonic", "[f(s=[1, 2", 0, 0, 1},
		{"pythonic", "[f(s=[1, 2])]", 100, 0, 1}, /* no room for the value */
	};
	struct got g = {0};
	struct quota q;
	quota_init(&q, NULL, t[_i].room);
	struct toolcall *c = toolcall_new(toolcall_format_find(t[_i].format), tools,
	                                  t[_i].room ? &q : NULL, sink, &g);
	buf_init(&g.b, 0);
	toolcall_feed(c, t[_i].text, strlen(t[_i].text));
	toolcall_finish(c, t[_i].ended);
	ck_assert(strchr(g.b.data, '<'));
	ck_assert_int_eq(g.broken, t[_i].broken);
	toolcall_destroy(&c);
	buf_fini(&g.b);
}

static const struct {
	const char *text, *format;
} templates[] = {
	{"{{ messages }}", "generic"},
	{"<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>",
     "hermes"},
	{"<tool_call>\n<function=example_function_name>", "qwen3_coder"},
	{"<tool_call>{function-name}\n<arg_key>", "glm"},
	{"'[TOOL_CALLS]'", "mistral"},
	{"'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'", "deepseek"},
	{"<｜DSML｜function_calls>", "deepseek_v32"},
	{"Respond in the format {\"name\": function name, \"parameters\": dictionary}; "
     "'\"parameters\": ' 'ipython'",
     "llama3_json"},
	{"'\"parameters\": '", "generic"},
	{"<|tool_call_argument_begin|>", "kimi_k2"},
	{"<|START_ACTION|>", "cohere"},
	{"<|tool_call|>", "granite"},
	{"'<|start|>assistant to=functions.' + name + '<|channel|>commentary json<|message|>'",
     "harmony"},
};

TEST_LOOP(detection, 0, sizeof templates / sizeof *templates)
{
	const struct toolcall_format *f = toolcall_format_detect(templates[_i].text,
	                                                         strlen(templates[_i].text));
	ck_assert_str_eq(toolcall_format_name(f), templates[_i].format);
	ck_assert_int_eq(toolcall_format_is_generic(f), strcmp(templates[_i].format, "generic") == 0);
	for (size_t i = 0; toolcall_format_marker(f, i); i++)
		ck_assert_uint_lt(i, 12);
}

TEST(ids)
{
	char a[TOOLCALL_ID_SIZE], b[TOOLCALL_ID_SIZE];
	const struct toolcall_format *f = toolcall_format_find("hermes");
	toolcall_make_id(f, "chatcmpl-1", 0, 0, a);
	ck_assert_uint_eq(strlen(a), 29);
	ck_assert_int_eq(strncmp(a, "call_", 5), 0);
	ck_assert_uint_eq(
		strspn(a + 5, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"), 24);
	toolcall_make_id(f, "chatcmpl-1", 0, 0, b);
	ck_assert_str_eq(a, b);
	for (int i = 0; i < 3; i++) {
		toolcall_make_id(f, i == 0 ? "chatcmpl-2" : "chatcmpl-1", i == 1, i == 2, b);
		ck_assert_str_ne(a, b);
	}
	toolcall_make_id(toolcall_format_find("mistral"), "chatcmpl-1", 0, 0, a);
	ck_assert_uint_eq(strlen(a), 9);
	ck_assert_uint_eq(strspn(a, "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"),
	                  9);
}

/* Long text with many beginnings of calls: no worse than linear, seen by its taking no time at
 * all. */
TEST_LOOP(long_text, 0, 10)
{
	static const char *const parts[] = {"<tool_call>",
	                                    "<tool_call>{\"name\": \"",
	                                    "<tool_call>{\"a\":[\"",
	                                    " \n",
	                                    "<",
	                                    "<tool_call>{\"arguments\": {}, \"x\": \"",
	                                    "<tool_call>[{\"name\":\"f\"},",
	                                    "<|channel|>",
	                                    "<|channel|>commentary to=functions.f",
	                                    "<|start|>{"};
	struct buf text;
	buf_init(&text, 0);
	while (text.len < 400000)
		buf_adds(&text, parts[_i]);
	char *out = run(_i < 7 ? "hermes" : "harmony", text.data, text.len, NULL, 0);
	ck_assert_uint_gt(strlen(out), 300000);
	free(out);
	buf_fini(&text);
}

TEST_CASE("long", .timeout_s = 10, .setup = setup, .teardown = teardown);

/* A schema whose references branch without end, or that lists very much, costs no more time than
 * others. */
TEST_LOOP(endless_schemas, 0, 4)
{
	static const char *const keywords[] = {"allOf", "anyOf", "oneOf", "enum"};
	json_t *parts = json_array();
	for (int i = 0; i < 2000; i++)
		json_array_append_new(parts,
		                      _i < 3 ? json_pack("{s:s}", "$ref", "#/$defs/x") : json_string("5"));
	json_t *o = json_pack("[{s:{s:s, s:{s:{s:{s:[{s:s}, {s:s}]}}, s:{s:{s:o}}}}}]", "function",
	                      "name", "f", "parameters", "properties", "p", "allOf", "$ref",
	                      "#/$defs/x", "$ref", "#/$defs/x", "$defs", "x", keywords[_i], parts);
	struct toolcall_tools *common = tools;
	struct buf text;
	ck_assert(o != NULL);
	tools = toolcall_tools_new(o);
	buf_init(&text, 0);
	buf_adds(&text, "<function=f>");
	for (int i = 0; i < 1000; i++)
		buf_adds(&text, "<parameter=p>5</parameter>");
	buf_adds(&text, "</function>");
	char *out = run("qwen3_coder", text.data, text.len, NULL, 0);
	ck_assert_msg(strstr(out, _i < 3 ? "{\"p\": 5, " : "{\"p\": \"5\", ") != NULL, "%.40s", out);
	free(out);
	buf_fini(&text);
	toolcall_tools_destroy(&tools);
	tools = common;
	json_decref(o);
}

/* White space behind a call, byte by byte: in linear time, as in test_reasoning.c. */
TEST(long_space)
{
	static const char call[] = "<tool_call>{\"name\": \"f\", \"arguments\": {}}";
	struct got g = {0};
	struct toolcall *t = toolcall_new(toolcall_format_find("hermes"), tools, NULL, sink, &g);
	buf_init(&g.b, 0);
	toolcall_feed(t, call, strlen(call));
	for (int i = 0; i < 400000; i++)
		toolcall_feed(t, i % 100 ? " " : "\n", 1);
	toolcall_feed(t, "</tool_call>", 12);
	toolcall_finish(t, 0);
	ck_assert_str_eq(g.b.data, "<0 f {}>");
	toolcall_destroy(&t);
	buf_fini(&g.b);
}
