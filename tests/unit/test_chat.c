/* test_chat.c - chat templates: SmolLM2's against what Hugging Face's apply_chat_template renders
 * (other templates: test_jinja_refs), what is done to messages before a template sees them,
 * templates that take parts, several threads with one template, and what is refused. */
#include "format/gguf.h"
#include "text/chat.h"
#include "text/chat_generic.h"
#include "text/chat_request.h"
#include "skip.h"
#include "util/json_load.h"
#include "util/mem.h"

#include <check.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DATA "tests/data/chat"

static char *read_file(const char *path, size_t *ret_len)
{
	FILE *f = fopen(path, "r");
	ck_assert_msg(f != NULL, "cannot open %s", path);
	char *text = mem_alloc(65536);
	*ret_len = fread(text, 1, 65536, f);
	fclose(f);
	return text;
}

static struct chat_template *smollm2(void)
{
	size_t len;
	char *text = read_file(DATA "/smollm2.jinja", &len);
	struct chat_template *c = NULL;
	struct err err = {0};
	ck_assert_msg(chat_template_new(text, len, &c, &err) == 0, "%s", err.text);
	free(text);
	return c;
}

static int row_equal(const struct chat_template *c, const json_t *row)
{
	const json_t *want = json_object_get(row, "text");
	json_t *tokens = json_pack("{s:s, s:s}", "bos_token", "<|im_start|>", "eos_token",
	                           "<|im_end|>");
	struct chat_render in = {
		.messages = json_object_get(row, "messages"),
		.special_tokens = tokens,
		.add_generation_prompt = json_is_true(json_object_get(row, "add_generation_prompt")),
		.continue_final_message = json_is_true(json_object_get(row, "continue_final_message"))};
	struct buf out;
	buf_init(&out, 0);
	int rc = chat_template_render(c, &in, &out, NULL);
	int same = want ? rc == 0 && out.len == json_string_length(want) &&
	                      !memcmp(out.data, json_string_value(want), out.len)
	                : rc == ERR_INVALID;
	buf_fini(&out);
	json_decref(tokens);
	return same;
}

static void check_rows(const struct chat_template *c)
{
	char *line = NULL;
	size_t size = 0, equal = 0;
	FILE *f = fopen(DATA "/smollm2.jsonl", "r");
	ck_assert(f != NULL);
	for (ssize_t len; (len = getline(&line, &size, f)) > 0;) {
		json_t *row = json_loadb(line, (size_t)len, JSON_ALLOW_NUL, NULL);
		ck_assert(row != NULL);
		ck_assert_msg(row_equal(c, row), "%s differs",
		              json_string_value(json_object_get(row, "conversation")));
		equal++;
		json_decref(row);
	}
	free(line);
	fclose(f);
	ck_assert_uint_eq(equal, 59);
}

TEST_CASE("chat", .timeout_s = 120);

TEST(reference)
{
	struct chat_template *c = smollm2();
	check_rows(c);
	chat_template_destroy(&c);
	ck_assert_ptr_null(c);
}

TEST(template_of_the_model)
{
	const char *path = getenv("PD_MODEL");
	struct gguf *g = NULL;
	struct gguf_str text;
	struct chat_template *c = NULL;
	if (!path || !*path)
		SKIP(SKIP_NO_MODEL);
	ck_assert_int_eq(gguf_open(path, &g, NULL), 0);
	ck_assert_int_eq(gguf_get_str(g, "tokenizer.chat_template", &text), 0);
	ck_assert_int_eq(chat_template_new(text.s, text.len, &c, NULL), 0);
	gguf_close(&g);
	check_rows(c);
	chat_template_destroy(&c);
}

TEST(own_default_message)
{
	size_t len;
	char *text = read_file(DATA "/smollm2.jinja", &len), *at = memmem(text, len, "a helpful", 9);
	struct chat_template *c = NULL;
	json_t *m = json_pack("[{s:s,s:s}]", "role", "user", "content", "Hi");
	struct chat_render in = {.messages = m, .add_generation_prompt = 1};
	struct buf out;
	memcpy(at, "an untidy", 9);
	ck_assert_int_eq(chat_template_new(text, len, &c, NULL), 0);
	memset(text, 'x', len); /* the template keeps its own copy */
	buf_init(&out, 0);
	ck_assert_int_eq(chat_template_render(c, &in, &out, NULL), 0);
	ck_assert_str_eq(out.data, "<|im_start|>system\nYou are an untidy AI assistant named SmolLM, "
	                           "trained by Hugging Face<|im_end|>\n"
	                           "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
	json_decref(m);
	buf_fini(&out);
	chat_template_destroy(&c);
	free(text);
}

/* One rendering: template, messages as JSON, and the text or what the error holds. */
static const struct one {
	const char *text, *messages;
	int next, rc;
	const char *want;
} ones[] = {
	{"{{ messages[0].role ~ messages[0] }}", "[{'role':'user','content':null}]", 0, 0,
     "user{'role': 'user'}"},
	{"{{ messages[0] | tojson }}", "[{'role':'a','reasoning':'why'}]", 0, 0,
     "{'thinking': 'why', 'role': 'a', 'reasoning': 'why', 'reasoning_content': 'why'}"},
	{"{{ messages[0] | tojson }}", "[{'role':'a','thinking':null,'reasoning_content':'x'}]", 0, 0,
     "{'thinking': 'x', 'role': 'a', 'reasoning_content': 'x'}"},
	{"{{ tools is none and documents is none and not add_generation_prompt and tools is defined }}",
     "[{}]", 0, 0, "True"},
	{"{{ bos_token is defined }}{{ nothing }}", "[{}]", 0, 0, "False"},
	{"{% for m in messages %}[{{ m.content }}]{% endfor %}", "[{'content':'a'},{'content':'b c '}]",
     1, 0, "[a][b c "},
	{"{% for m in messages %}[{{ m.content | trim }}]{% endfor %}",
     "[{'content':'a'},{'content':' b c '}]", 1, 0, "[a][b c"},
	{"{% for p in messages[0].content %}{{ p.text }};{% endfor %}",
     "[{'content':[{'text':'a'},{'text':'b'},{'image':1}]}]", 1, 0, "a;b"},
	{"content", "[{'content':'a'}]", 1, ERR_INVALID, "changes or leaves out"},
	{"{{ messages[0].content[2:] }}", "[{'content':'abc'}]", 1, ERR_INVALID,
     "changes or leaves out"},
	{"{{ messages[0].content }}", "[{'content':null}]", 1, ERR_INVALID, "no text to continue"},
	{"{{ messages[0].content }}", "[{'content':[{'image':1}]}]", 1, ERR_INVALID,
     "no text to continue"},
	{"{{ messages[0].role }}", "[{'role':'content'}]", 1, ERR_INVALID, "does not use"},
	{"{{ messages }}", "[]", 0, ERR_INVALID, "no message"},
	{"{{ raise_exception('roles: ' ~ messages[0].role) }}", "[{'role':'x'}]", 0, ERR_INVALID,
     "roles: x"},
	{"\n\n{{ messages[0].name + 'x' }}", "[{'role':'x'}]", 0, ERR_INVALID,
     "line 3: 'dict object' has no attribute 'name'"},
};

static json_t *json_of(const char *text)
{
	char *s = mem_strdup(text);
	for (char *p = s; *p; p++)
		*p = *p == '\'' ? '"' : *p;
	json_t *j = json_loads(s, JSON_ALLOW_NUL, NULL);
	ck_assert(j != NULL);
	free(s);
	return j;
}

TEST_LOOP(prepared, 0, sizeof ones / sizeof *ones)
{
	const struct one *o = &ones[_i];
	struct chat_template *c = NULL;
	struct err err = {0};
	json_t *m = json_of(o->messages), *before = json_deep_copy(m);
	struct chat_render in = {.messages = m, .continue_final_message = o->next};
	struct buf out;
	buf_init(&out, 0);
	ck_assert_int_eq(chat_template_new(o->text, strlen(o->text), &c, NULL), 0);
	ck_assert_int_eq(chat_template_render(c, &in, &out, &err), o->rc);
	for (size_t i = 0; strstr(o->text, "tojson") && i < out.len; i++)
		out.data[i] = out.data[i] == '"' ? '\'' : out.data[i];
	if (o->rc)
		ck_assert_msg(strstr(err.text, o->want) != NULL, "%s", err.text);
	else
		ck_assert_str_eq(out.data ? out.data : "", o->want);
	ck_assert(json_equal(m, before)); /* the caller's messages stay as they were */
	buf_fini(&out);
	json_decref(m);
	json_decref(before);
	chat_template_destroy(&c);
}

static const struct refusal {
	const char *text, *why;
} refusals[] = {
	{"{%- if tools %}{{ tools | tojson }}",
     "line 1: the template ends within a block: {% endif %} is missing"},
	{"\n{{ messages[0].content", "line 2: the template ends within {{"},
	{"{% include 'x' %}", "{% include %} is not supported"},
	{"{% frobnicate %}", "unknown tag frobnicate"},
	{"{{ 'x }}", "unterminated string"},
};

TEST_LOOP(refused, 0, sizeof refusals / sizeof *refusals)
{
	const struct refusal *x = &refusals[_i];
	struct chat_template *c = NULL;
	struct err err = {0};
	ck_assert_int_eq(chat_template_new(x->text, strlen(x->text), &c, &err), ERR_INVALID);
	ck_assert_msg(strstr(err.text, x->why) != NULL, "%s", err.text);
	ck_assert_ptr_null(c);
}

static const struct {
	const char *text;
	int yes;
} parts[] = {
	{"{% for m in messages %}{{ m.role + m.content }}{% endfor %}", 0},
	{"{% for m in messages %}{{ m.content }}{% endfor %}", 0},
	{"{% for m in messages %}{{ m.content | tojson }}{% endfor %}", 0},
	{"{% for m in messages %}{{ bos_token + (m.content if m.content is string else "
     "m.content[0].text) }}{% endfor %}",
     1},
	{"{% for m in messages %}{% for p in m.content %}{{ p['text'] }}{% endfor %}{% endfor %}", 1},
	{"{{ raise_exception('no') }}", 0},
};

TEST_LOOP(takes_parts, 0, sizeof parts / sizeof *parts)
{
	struct chat_template *c = NULL;
	ck_assert_int_eq(chat_template_new(parts[_i].text, strlen(parts[_i].text), &c, NULL), 0);
	ck_assert_int_eq(chat_template_takes_parts(c), parts[_i].yes);
	chat_template_destroy(&c);
}

static void *render_often(void *arg)
{
	for (int i = 0; i < 20; i++)
		check_rows(arg);
	return NULL;
}

TEST(threads)
{
	struct chat_template *c = smollm2();
	pthread_t t[4];
	for (int i = 0; i < 4; i++)
		ck_assert_int_eq(pthread_create(&t[i], NULL, render_often, c), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
	chat_template_destroy(&c);
}

TEST(bad_messages)
{
	struct chat_template *c = smollm2();
	json_t *m = json_pack("[{s:s,s:s%},{s:s}]", "role", "user", "content", "a\0b", (size_t)3,
	                      "role", "user"),
		   *none = json_array();
	struct chat_render in = {.messages = m};
	struct buf out;
	struct err err = {0};
	buf_init(&out, 0);
	ck_assert_int_eq(chat_template_render(c, &in, &out, &err), ERR_INVALID);
	ck_assert_msg(strstr(err.text, "content") != NULL, "%s", err.text);
	in.messages = none;
	ck_assert_int_eq(chat_template_render(c, &in, &out, &err), ERR_INVALID);
	ck_assert_uint_eq(out.len, 0);
	json_array_remove(m, 1);
	in.messages = m;
	ck_assert_int_eq(chat_template_render(c, &in, &out, &err), 0);
	ck_assert(memmem(out.data, out.len, "user\na\0b<|im_end|>", 18) != NULL);
	buf_fini(&out);
	buf_init(&out, 40);
	ck_assert_int_eq(chat_template_render(c, &in, &out, &err), ERR_FULL);
	ck_assert_msg(strstr(err.text, "40 bytes") != NULL, "%s", err.text);
	buf_fini(&out);
	json_decref(m);
	json_decref(none);
	chat_template_destroy(&c);
}

/* Messages with calls of tools, in a quota of any size: a prompt or a refusal, and nothing stays
 * taken. jansson frees what it cannot add: under valgrind, as it is not instrumented, a use of
 * that is seen here. */
TEST_LOOP(any_quota, 0, 3)
{
	size_t len;
	char *file = read_file(DATA "/templates/own-harmony.jinja", &len);
	struct chat_template *c = NULL;
	int one_call = _i == 1;
	if (one_call)
		ck_assert_int_eq(chat_template_new(file, len, &c, NULL), 0);
	else
		c = smollm2();
	struct chat_set set = {.plain = c};
	struct chat_tools tools = {.generic = _i == 2};
	struct buf text;
	json_error_t bad;
	static const char call[] = "{\"id\":\"x\",\"function\":{\"name\":\"n\",\"arguments\":{}}}";
	size_t rendered = 0, refused_ = 0;
	buf_init(&text, 0);
	buf_adds(&text, "{\"messages\":[");
	for (int i = 0; i < 12; i++) {
		buf_adds(&text, "{\"role\":\"assistant\",\"content\":\"c\",");
		/* its copy's table grows often, at last for tool_calls */
		for (int k = 0; k < 40; k++)
			buf_printf(&text, "\"m%d\":1,", k + i);
		buf_printf(&text, "\"tool_calls\":[%s%s%s]},", call, one_call ? "," : "",
		           one_call ? call : "");
	}
	buf_adds(&text, "{\"role\":\"user\",\"content\":\"y\"}");
	buf_adds(&text, "]}");
	json_account_setup();
	for (size_t limit = 0; limit < 400000 && rendered < 20; limit += rendered   ? 977
	                                                                 : one_call ? 497
	                                                                            : 72) {
		struct quota q;
		struct json_account a = {.quota = &q};
		struct body_error e = {0};
		struct buf out;
		quota_init(&q, NULL, SIZE_MAX);
		json_account_begin(&a);
		json_t *body = json_load(text.data, text.len, 0, &bad);
		ck_assert_ptr_nonnull(body);
		q.limit = q.used + limit;
		buf_init_quota(&out, chat_request_text_max(text.len), &q);
		int r = chat_request_render(&set, body, &tools, 0, &out, &e);
		ck_assert(r == 0 || r == -1);
		ck_assert(r == 0 || q.over);
		rendered += r == 0 && !q.over;
		refused_ += r < 0;
		buf_fini(&out);
		json_decref(body);
		json_account_end();
		ck_assert_uint_eq(q.used, 0);
		quota_fini(&q);
	}
	ck_assert_uint_eq(rendered, 20);
	ck_assert_uint_ge(refused_, 20);
	json_set_alloc_funcs(malloc, free);
	buf_fini(&text);
	chat_template_destroy(&c);
	free(file);
}

/* --- conversations that a template takes otherwise ----------------------- */

#define CALL(id, name, args) \
	"{'id':'" id "','type':'function','function':{'name':'" name "','arguments':'" args "'}}"
#define RESULT(id, text) "{'role':'tool'," id "'content':'" text "'}"
#define X "{'role':'user','content':'x'},"
#define SAID(kind, text) "<|start|>assistant<|channel|>" kind "<|message|>" text "<|end|>"
#define CALLED(name, args)                                                                         \
	"<|start|>assistant to=functions." name "<|channel|>commentary json<|message|>" args "<|call|" \
	">"
#define TOLD(name, text) \
	"<|start|>functions." name " to=assistant<|channel|>commentary<|message|>'" text "'<|end|>"
#define EACH                                                                                    \
	"{% for m in messages %}[{{ m.role }}{% for c in m.tool_calls or [] %} {{ c.function.name " \
	"}}{% endfor %}]{% endfor %}"

static const struct {
	const char *text, *messages, *want; /* text NULL: own-harmony */
} turns[] = {
	{NULL,
     X "{'role':'assistant','reasoning_content':'R','content':null,'tool_calls':[" CALL(
		 "a", "f", "[1]") "]}," RESULT("", "r"),
     SAID("analysis", "R") CALLED("f", "'[1]'") TOLD("f", "r")},
	{NULL,
     X "{'role':'assistant','reasoning':'R','content':'C','tool_calls':[" CALL("a", "f", "{}") "]}",
     SAID("analysis", "R\n\nC") CALLED("f", "{}")},
	{NULL,
     X "{'role':'assistant','reasoning':'R','content':'C','tool_calls':[" CALL(
		 "a", "f", "{}") "," CALL("b", "g",
                                  "{}") "]}," RESULT("'tool_call_id':'b',",
                                                     "rb") "," RESULT("'tool_call_id':'a',",
                                                                      "ra") ",{'role':'assistant','"
                                                                            "content':'D'}",
     SAID("analysis", "R\n\nC") CALLED("f", "{}") TOLD("f", "ra") CALLED("g", "{}") TOLD("g", "rb")
         SAID("final", "D")},
	{NULL,
     X "{'role':'assistant','tool_calls':[" CALL("a", "f", "{}") "," CALL(
		 "b", "g", "{}") "]}," RESULT("", "1") "," RESULT("", "2") "," RESULT("", "3"),
     CALLED("f", "{}") TOLD("f", "1") CALLED("g", "{}") TOLD("g", "2") TOLD("g", "3")},
	{"{% for t in tools %}{{ '//' + t.function.description + ';' }}{% endfor %}",
     "{'role':'user','content':'x'}], "
     "'tools':[{'function':{'name':'f','description':'D'}},{'function':{'name':'g'}}",
     "//D;//;"},
	/* a message that the answer continues stays whole */
	{NULL,
     X "{'role':'assistant','content':'C','tool_calls':[" CALL("a", "f", "{}") "," CALL(
		 "b", "g", "{}") "]}], 'continue_final_message':true,'_':[1",
     "<|start|>assistant<|channel|>analysis<|message|>C"},
	{NULL,
     X "{'role':'assistant','content':'C','tool_calls':[" CALL("a", "f", "{}") "," CALL(
		 "b", "g",
		 "{}") "]}," RESULT("", "1") "," RESULT("", "2") ",{'role':'assistant','content':'D'}], "
                                                         "'continue_final_message':true,'_':[1",
     SAID("analysis", "C") CALLED("f", "{}") TOLD("f", "1") CALLED("g", "{}")
         TOLD("g", "2") "<|start|>assistant<|channel|>final<|message|>D"},
	/* a tool without a description: what is said stays as it is */
	{"{% for t in tools %}{{ '//' + t.function.description + ';' }}{% endfor %}{% for m in "
     "messages %}{{ m.thinking }},{{ m.content }}{% endfor %}",
     "{'role':'assistant','reasoning':'R','content':'C','tool_calls':[" CALL(
		 "a", "f", "{}") "]}], 'tools':[{'function':{'name':'g'}}",
     "//;R,C"},
	/* and it has one where the messages are said otherwise as well */
	{"{% for t in tools %}{{ '//' + t.function.description + ';' }}{% endfor %}{% for m in "
     "messages %}{{ m.content + '.' }}{% endfor %}",
     "{'role':'assistant','content':null,'tool_calls':[" CALL(
		 "a", "f", "{}") "]}], 'tools':[{'function':{'name':'g'}}",
     "//;."},
	{"{% for t in tools %}{{ '//' + t.function.description + ';' }}{% endfor %}{% for m in "
     "messages %}{{ m.tool_calls[0].function.arguments + '.' }}{% endfor %}",
     "{'role':'assistant','content':null,'tool_calls':[" CALL(
		 "a", "f", "{}") "]}], 'tools':[{'function':{'name':'g'}}",
     "//;{}."},
	{EACH,
     X "{'role':'assistant','tool_calls':[" CALL("a", "f", "{}") "," CALL(
		 "b", "g", "{}") "]}," RESULT("", "1"),
     "[user][assistant f g][tool]"},
	{EACH, "{'role':'developer','content':'a'}," X "{'role':'developer','content':'b'}",
     "[system][user][system]"},
	{EACH "{% if messages[0].role == 'developer' %}!{% endif %}",
     "{'role':'developer','content':'a'},{'role':'system','content':'b'}", "[developer][system]!"},
};

TEST_LOOP(turns_as_the_template_takes_them, 0, sizeof turns / sizeof *turns)
{
	size_t len;
	char *file = turns[_i].text ? NULL : read_file(DATA "/templates/own-harmony.jinja", &len);
	struct chat_set set = {0};
	struct chat_tools tools = {0};
	struct body_error e = {0};
	struct buf out;
	char *text = mem_printf("{'messages':[%s]}", turns[_i].messages);
	json_t *body = json_of(text), *before = json_deep_copy(body);
	tools.tools = json_object_get(body, "tools");
	ck_assert_int_eq(chat_template_new(file ? file : turns[_i].text,
	                                   file ? len : strlen(turns[_i].text), &set.plain, NULL),
	                 0);
	ck_assert_int_eq(chat_template_takes_one_call(set.plain), file != NULL);
	buf_init(&out, chat_request_text_max(strlen(text)));
	ck_assert_msg(chat_request_render(&set, body, &tools, 0, &out, &e) == 0, "%s", e.text);
	for (size_t i = 0; i < out.len; i++)
		out.data[i] = out.data[i] == '"' ? '\'' : out.data[i];
	const char *from = file ? strstr(out.data, "x<|end|>") + strlen("x<|end|>") : out.data;
	int prompted = file && !json_object_get(body, "continue_final_message");
	size_t n = strlen(from) - (prompted ? strlen("<|start|>assistant") : 0);
	ck_assert_msg(n == strlen(turns[_i].want) && memcmp(from, turns[_i].want, n) == 0,
	              "got  %s\nwant %s", from, turns[_i].want);
	ck_assert(json_equal(body, before));
	buf_fini(&out);
	json_decref(body);
	json_decref(before);
	chat_template_destroy(&set.plain);
	free(text);
	free(file);
}

/* --- tools for a template that knows nothing of them ---------------------- */

#define SHOW "{% for m in messages %}[{{ m.role }}: {{ m.content }}]{% endfor %}"
#define STRICT                                                                     \
	"{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}" \
	"{{ raise_exception('user and assistant take turns') }}{% endif %}{% endfor %}" SHOW
#define TOLD_X "{'role':'user','content':'x'}"
#define F_AND_G                                                               \
	"],'tools':[{'type':'function','function':{'name':'f','parameters':{}}}," \
	"{'type':'function','function':{'name':'g','description':'D'}}"
#define CHOICE(v) "],'tool_choice':" v ",'_':["
#define LINE_F "\n{'name':'f','parameters':{}}"
#define LINE_G "\n{'name':'g','description':'D'}"
#define HEAD " Each line describes a function, its parameters as a JSON schema:\n"
#define MAY "You can call these functions, or answer yourself." HEAD
#define MUST "You call functions." HEAD
#define HOW "{'tool_calls': [{'name': ..., 'arguments': ...}]}"
#define EITHER                                                                             \
	"\n\nWrite JSON: either " HOW ", to call a function, or {'response': ...}, with your " \
	"own answer to the user in words."
#define ONLY "\n\nWrite JSON that calls a function: " HOW
#define CALLS_F_G                                                                               \
	"{'role':'assistant','content':null,'tool_calls':[" CALL("a", "f", "{}") "," CALL("b", "g", \
	                                                                                  "[1]") "]}"
#define SAID_F_G                                                                              \
	"[assistant: {'tool_calls': [{'name': 'f', 'arguments': {}}, {'name': 'g', 'arguments': " \
	"'[1]'}]}]"

static const struct {
	const char *text, *messages, *want;
} generic[] = {
	{SHOW, TOLD_X F_AND_G, "[system: " MAY LINE_F LINE_G EITHER "][user: x]"},
	{SHOW, TOLD_X F_AND_G CHOICE("'none'"), "[user: x]"},
	{SHOW, TOLD_X F_AND_G CHOICE("'required'"), "[system: " MUST LINE_F LINE_G ONLY "][user: x]"},
	{SHOW, TOLD_X F_AND_G CHOICE("{'type':'function','function':{'name':'g'}}"),
     "[system: " MUST LINE_G ONLY "][user: x]"},
	{SHOW, "{'role':'system','content':'S'}," TOLD_X F_AND_G,
     "[system: S\n\n" MAY LINE_F LINE_G EITHER "][user: x]"},
	{SHOW,
     "{'role':'system','content':[{'type':'text','text':'S'},{'type':'text','text':'T'}]}," TOLD_X
         F_AND_G,
     "[system: ST\n\n" MAY LINE_F LINE_G EITHER "][user: x]"},
	/* a template without a system, and with turns */
	{STRICT, TOLD_X F_AND_G, "[user: " MAY LINE_F LINE_G EITHER "\n\nx]"},
	/* calls and results, also where no tools are given any more */
	{STRICT,
     X CALLS_F_G "," RESULT("'tool_call_id':'b',", "rb") "," RESULT("'tool_call_id':'a',", "ra"),
     "[user: x]" SAID_F_G "[user: Result of g:\nrb\n\nResult of f:\nra]"},
	{STRICT,
     X CALLS_F_G "," RESULT("", "1") "," RESULT("", "2") "," RESULT("", "3") "," X
                                                                             "{'role':'assistant',"
                                                                             "'content':'C'}",
     "[user: x]" SAID_F_G "[user: Result of f:\n1\n\nResult of g:\n2\n\nResult of a "
     "function:\n3\n\nx][assistant: C]"},
	{SHOW,
     "{'role':'assistant','content':'C','tool_calls':[" CALL(
		 "a", "f", "{}") "]},"
                         "{'role':'tool','name':'h','content':'1'},{'role':'assistant','content':"
                         "'D'}," X "{'role':'tool','content':'2'}",
     "[assistant: C\n{'tool_calls': [{'name': 'f', 'arguments': {}}]}][user: Result of h:\n1]"
     "[assistant: D][user: x][user: Result of a function:\n2]"},
};

static double cpu_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

/* The most messages that a request may have, 4 MB of results: one message, in one pass. */
TEST(many_results)
{
	struct chat_tools tools = {.generic = 1};
	json_t *list = json_array();
	char *text = mem_alloc(1000);
	memset(text, 'x', 1000);
	for (int i = 0; i < 4096; i++)
		json_array_append_new(list, json_pack("{s:s,s:s%}", "role", "tool", "content", text,
		                                      (size_t)1000));
	double begin = cpu_ms();
	ck_assert_int_eq(chat_generic_reword(&list, &tools, NULL), 0);
	double ms = cpu_ms() - begin;
	ck_assert_msg(ms < 500, "%g ms", ms);
	ck_assert_uint_eq(json_array_size(list), 1);
	ck_assert_uint_eq(json_string_length(json_object_get(json_array_get(list, 0), "content")),
	                  4096 * (1000 + strlen("Result of a function:\n")) + 4095 * strlen("\n\n"));
	json_decref(list);
	free(text);
}

TEST_LOOP(tools_without_a_template_for_them, 0, sizeof generic / sizeof *generic)
{
	struct chat_set set = {0};
	struct chat_tools tools;
	struct body_error e = {0};
	struct buf out;
	char *text = mem_printf("{'messages':[%s]}", generic[_i].messages);
	json_t *body = json_of(text), *before = json_deep_copy(body);
	ck_assert_int_eq(
		chat_template_new(generic[_i].text, strlen(generic[_i].text), &set.plain, NULL), 0);
	ck_assert_int_eq(chat_tools_read(body, &tools, &e), 0);
	tools.generic = 1;
	buf_init(&out, chat_request_text_max(strlen(text)));
	ck_assert_msg(chat_request_render(&set, body, &tools, 0, &out, &e) == 0, "%s", e.text);
	for (size_t i = 0; i < out.len; i++)
		out.data[i] = out.data[i] == '"' ? '\'' : out.data[i];
	ck_assert_str_eq(out.data, generic[_i].want);
	ck_assert(json_equal(body, before));
	chat_tools_fini(&tools);
	buf_fini(&out);
	json_decref(body);
	json_decref(before);
	chat_template_destroy(&set.plain);
	free(text);
}
