/* test_router_tools.c - tools and thoughts through the whole router: scripted workers write calls,
 * the client gets them whole and streamed, and both are the same. What needs a tokenizer is
 * skipped without PD_MODEL. */
#include "router_says.h"
#include "skip.h"
#include "tempdir.h"

#include <signal.h>

static struct world *tools_world(const char *tool_parser, const char *reasoning_parser,
                                 const char *says)
{
	return says_world(tool_parser, reasoning_parser, says, 1u << 20);
}

/* --- answers as one line: THOUGHTS|CONTENT|<0 NAME ARGUMENTS>..|FINISH --- */

struct told {
	struct buf thoughts, content, calls;
	char id[8][64];
	int open, content_null;
	char finish[32];
};

static void told_init(struct told *t)
{
	memset(t, 0, sizeof *t);
	buf_init(&t->thoughts, 0);
	buf_init(&t->content, 0);
	buf_init(&t->calls, 0);
	t->open = -1;
}

static void told_fini(struct told *t)
{
	buf_fini(&t->thoughts);
	buf_fini(&t->content);
	buf_fini(&t->calls);
}

static void take_call(struct told *t, const json_t *call, int whole, int at)
{
	const json_t *f = json_object_get(call, "function"), *name = json_object_get(f, "name"),
				 *id = json_object_get(call, "id"), *n = json_object_get(call, "index");
	int index = whole ? at : (int)json_integer_value(n);
	ck_assert(json_is_object(f) && (whole ? !n : json_is_integer(n)));
	ck_assert_int_lt(index, 8);
	if (name) {
		/* calls come one after the other, each begins once, with all that names it */
		ck_assert_int_eq(index, t->open + 1);
		ck_assert(json_is_string(id));
		ck_assert_str_eq(json_string_value(json_object_get(call, "type")), "function");
		snprintf(t->id[index], sizeof t->id[index], "%s", json_string_value(id));
		buf_printf(&t->calls, "%s<%d %s ", t->open >= 0 ? ">" : "", index, json_string_value(name));
		t->open = index;
	}
	ck_assert_int_eq(index, t->open);
	ck_assert(json_is_string(json_object_get(f, "arguments")));
	buf_adds(&t->calls, json_string_value(json_object_get(f, "arguments")));
}

static void take(struct told *t, const json_t *choice, int whole)
{
	const json_t *m = json_object_get(choice, whole ? "message" : "delta"),
				 *content = json_object_get(m, "content"),
				 *r = json_object_get(m, "reasoning_content");
	const json_t *calls = json_object_get(m, "tool_calls"),
				 *finish = json_object_get(choice, "finish_reason");
	ck_assert(json_is_object(m));
	ck_assert(r == NULL || json_equal(r, json_object_get(m, "reasoning")));
	t->content_null |= json_is_null(content);
	buf_adds(&t->content, json_is_string(content) ? json_string_value(content) : "");
	buf_adds(&t->thoughts, json_is_string(r) ? json_string_value(r) : "");
	ck_assert(!calls || json_array_size(calls) > 0);
	for (size_t i = 0; i < json_array_size(calls); i++)
		take_call(t, json_array_get(calls, i), whole, (int)i);
	if (json_is_string(finish)) {
		ck_assert_str_eq(t->finish, "");
		snprintf(t->finish, sizeof t->finish, "%s", json_string_value(finish));
	}
}

/* Choice `index` of an answer. */
static void read_told(const char *answer, int index, struct told *t)
{
	const char *at = answer, *body = strstr(answer, "\r\n\r\n");
	int whole = !strstr(answer, "data: {");
	told_init(t);
	while ((at = whole ? (at == answer ? body + 4 : NULL) : strstr(at, "data: {"))) {
		json_t *o = json_loads(whole ? at : at + 6, JSON_DISABLE_EOF_CHECK, NULL);
		ck_assert_msg(o != NULL, "%.300s", at);
		for (size_t i = 0; i < json_array_size(json_object_get(o, "choices")); i++) {
			const json_t *c = json_array_get(json_object_get(o, "choices"), i);
			if (json_integer_value(json_object_get(c, "index")) == index)
				take(t, c, whole);
		}
		json_decref(o);
		at++;
	}
}

static char *line_of(const struct told *t)
{
	return mem_printf("%s|%s|%s%s|%s", t->thoughts.data ? t->thoughts.data : "",
	                  t->content.data ? t->content.data : "", t->calls.data ? t->calls.data : "",
	                  t->open >= 0 ? ">" : "", t->finish);
}

#define TOOLS                                                                                  \
	"\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":" \
	"\"object\",\"properties\":{\"city\":{\"type\":\"string\"},"                               \
	"\"days\":{\"type\":\"array\"}}}}},{\"type\":\"function\",\"function\":{\"name\":\"g\"}}]"
#define NAMED_G "{\"type\":\"function\",\"function\":{\"name\":\"g\"}}"
#define CALL_F                                                                          \
	"<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Oslo\", \"days\": [1, " \
	"2]}}\n</tool_call>"
#define CALL_G "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"
#define ANALYSIS "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
#define CALL_H "<|channel|>commentary to=functions.f <|constrain|>json<|message|>" ARGS_F
#define EMPTY_H "<|channel|>commentary to=functions.g <|constrain|>json<|message|>"
#define ARGS_F "{\"city\": \"Oslo\", \"days\": [1, 2]}"

#define GENERIC(calls) "{\"tool_calls\": [" calls "]}"
#define CALL_J(name, arguments) "{\"name\": \"" name "\", \"arguments\": " arguments "}"

static const struct {
	const char *calls, *reasoning, *says, *more, *want;
} answers[] = {
	{"hermes", "none", CALL_F, TOOLS, "||<0 f " ARGS_F ">|tool_calls"},
	{"hermes", "none", "Let me look.\n" CALL_F "\n" CALL_G "\n", TOOLS,
     "|Let me look.|<0 f " ARGS_F "><1 g {}>|tool_calls"},
	{"hermes", "none", CALL_F "\n" CALL_G, TOOLS ",\"parallel_tool_calls\":false",
     "||<0 f " ARGS_F ">|tool_calls"},
	{"hermes", "none", "No call, just <b>text</b>.\n", TOOLS,
     "|No call, just <b>text</b>.\n||stop"},
	{"hermes", "none", CALL_F, TOOLS ",\"tool_choice\":\"none\"", "|" CALL_F "||stop"},
	{"hermes", "none", CALL_F, "\"tools\":[]", "|" CALL_F "||stop"},
	{"hermes", "none", CALL_F, TOOLS ",\"tool_choice\":\"auto\",\"max_tokens\":12", NULL},
	{"hermes", "none", CALL_F "\n" CALL_G, TOOLS ",\"tool_choice\":\"required\"",
     "||<0 f " ARGS_F "><1 g {}>|tool_calls"},
	{"hermes", "none", CALL_F "\n" CALL_G,
     TOOLS ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false",
     "||<0 f " ARGS_F ">|tool_calls"},
	{"hermes", "think", "<think>Hm.</think>" CALL_G, TOOLS ",\"tool_choice\":" NAMED_G,
     "Hm.||<0 g {}>|stop"},
	{"hermes", "none", CALL_F, TOOLS ",\"tool_choice\":\"required\",\"max_tokens\":22",
     "||<0 f {\"city\": \"Oslo\",>|length"},
	{"hermes", "none", CALL_F, TOOLS ",\"tool_choice\":\"required\",\"stop\":\"Oslo\"",
     "||<0 f {\"city\": \">|tool_calls"},
	{"hermes", "none", "<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>",
     TOOLS, "|<tool_call>\n{\"name\": \"unknown\", \"arguments\": {}}\n</tool_call>||stop"},
	{"hermes", "none", "Look: END" CALL_F, TOOLS ",\"stop\":\"END\"", "|Look: ||stop"},
	{"hermes", "none", CALL_F " and END of it", TOOLS ",\"stop\":[\"END\"]",
     "| and |<0 f " ARGS_F ">|tool_calls"},
	{"hermes", "none", CALL_F, TOOLS ",\"stop\":\"Oslo\"", "||<0 f {\"city\": \">|tool_calls"},
	{"hermes", "think", "<think>\nTwo days.\n</think>\n\nOk. " CALL_F, TOOLS,
     "Two days.|Ok.|<0 f " ARGS_F ">|tool_calls"},
	{"hermes", "think", "<think>" CALL_F "</think>No.", TOOLS, CALL_F "|No.||stop"},
	{"harmony", "harmony", ANALYSIS CALL_H, TOOLS, "Hm.||<0 f " ARGS_F ">|tool_calls"},
	{"harmony", "harmony",
     ANALYSIS "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant" CALL_H, TOOLS,
     "Hm.|I look.|<0 f " ARGS_F ">|tool_calls"},
	{"harmony", "harmony", " to=functions.g<|channel|>commentary json<|message|>{}<|call|>", TOOLS,
     "||<0 g {}>|tool_calls"},
	{"harmony", "harmony",
     ANALYSIS " to=functions.g<|channel|>commentary json<|message|>{}<|call|>", TOOLS,
     "Hm.||<0 g {}>|tool_calls"},
	{"harmony", "harmony",
     "<|channel|>analysis<|message|>Hm.<|end|>assistant to=functions.g<|channel|>commentary "
     "json<|message|>{}",
     TOOLS, "Hm.||<0 g {}>|tool_calls"},
	{"harmony", "harmony",
     "<|channel|>commentary<|message|>I look.<|end|>to=functions.g<|channel|>commentary "
     "json<|message|>{}<|call|>",
     TOOLS, "|I look.|<0 g {}>|tool_calls"},
	{"harmony", "harmony", EMPTY_H, TOOLS, "||<0 g {}>|tool_calls"},
	{"harmony", "harmony", EMPTY_H "STOP", TOOLS ",\"stop\":\"STOP\"", "||<0 g >|tool_calls"},
	{"harmony", "harmony", EMPTY_H, TOOLS ",\"stop_token_ids\":[2]", "||<0 g >|tool_calls"},
	{"harmony", "harmony", ANALYSIS "<|channel|>final<|message|>4", TOOLS, "Hm.|4||stop"},
	{"harmony", "harmony", ANALYSIS "<|channel|>final<|message|>4", "\"max_tokens\":90",
     "Hm.|4||stop"},
	{"harmony", "harmony", ANALYSIS CALL_H, TOOLS ",\"tool_choice\":\"none\"",
     "Hm.|<|start|>assistant" CALL_H "||stop"},
	{"harmony", "harmony", ANALYSIS CALL_H "<|call|>", TOOLS ",\"separate_reasoning\":false",
     "|<|channel|>analysis<|message|>Hm.<|end|>|<0 f " ARGS_F ">|tool_calls"},
	{"none", "think", "<think>\nTwo.\n</think>\n\n4", "\"max_tokens\":90", "Two.|4||stop"},
	{"none", "think", "<think>\nTwo.\n</think>\n\n4", "\"include_reasoning\":false", "|4||stop"},
	{"none", "think", "<think>\nTwo.\n</think>\n\n4", "\"separate_reasoning\":false",
     "|<think>\nTwo.\n</think>\n\n4||stop"},
	{"none", "think", "<think>\nTwo and so", "\"max_tokens\":90", "Two and so|||stop"},
	{"qwen3_coder", "none",
     "<tool_call>\n<function=f>\n<parameter=city>\nOslo\n</parameter>\n<parameter=days>\n[1, "
     "2]\n</parameter>\n</function>\n</tool_call>",
     TOOLS, "||<0 f " ARGS_F ">|tool_calls"},
	{"glm", "think",
     "<think>x</think>\n<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n</"
     "tool_call>",
     TOOLS, "x||<0 f {\"city\": \"Oslo\"}>|tool_calls"},
	{"llama3_json", "none", "{\"name\": \"f\", \"parameters\": " ARGS_F "}", TOOLS,
     "||<0 f " ARGS_F ">|tool_calls"},
	{"mistral", "none", "[TOOL_CALLS]f[ARGS]" ARGS_F, TOOLS, "||<0 f " ARGS_F ">|tool_calls"},
	{"generic", "none", GENERIC(CALL_J("f", ARGS_F)), TOOLS, "||<0 f " ARGS_F ">|tool_calls"},
	{"generic", "none", GENERIC(CALL_J("f", ARGS_F) ", " CALL_J("g", "{}")), TOOLS,
     "||<0 f " ARGS_F ">|tool_calls"},
	{"generic", "none", GENERIC(CALL_J("f", ARGS_F) ", " CALL_J("g", "{}")),
     TOOLS ",\"parallel_tool_calls\":true", "||<0 f " ARGS_F "><1 g {}>|tool_calls"},
	{"generic", "none", GENERIC(CALL_J("g", "{}")), TOOLS ",\"tool_choice\":" NAMED_G,
     "||<0 g {}>|stop"},
	{"generic", "none", "{\"response\": \"Say \\\"hi\\\"\\nnow\"}", TOOLS,
     "|Say \"hi\"\nnow||stop"},
	{"generic", "think", "<think>Hm.</think>{\"response\": \"4\"}", TOOLS, "Hm.|4||stop"},
	{"generic", "none", "{\"response\": \"Say \\\"hi\\\" now\"}", TOOLS ",\"max_tokens\":5", NULL},
	{"generic", "none", "{\"response\": \"x\"}", "\"max_tokens\":90",
     "|{\"response\": \"x\"}||stop"},
	{"generic", "none", GENERIC(CALL_J("g", "{}")), TOOLS ",\"tool_choice\":\"none\"",
     "|" GENERIC(CALL_J("g", "{}")) "||stop"},
};

TEST_CASE("tools", .timeout_s = 60);

TEST_LOOP(calls_whole_and_streamed, 0, sizeof answers / sizeof *answers)
{
	struct told told[2];
	char *line[2];
	if (!model)
		SKIP(SKIP_NO_MODEL);
	for (int stream = 0; stream < 2; stream++) {
		char *says = mem_printf("%s<|im_end|>", answers[_i].says), *body;
		struct world *w = tools_world(answers[_i].calls, answers[_i].reasoning, says);
		body = mem_printf(
			"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"seed\":1,%s,\"stream\":%s}",
			answers[_i].more, stream ? "true" : "false");
		char *out = ask(w, "/v1/chat/completions", body);
		read_told(out, 0, &told[stream]);
		line[stream] = line_of(&told[stream]);
		if (answers[_i].want)
			ck_assert_msg(strcmp(line[stream], answers[_i].want) == 0, "%s\nwant %s\n got %s", out,
			              answers[_i].want, line[stream]);
		for (int i = 0; i <= told[stream].open; i++) {
			int is_short = strcmp(answers[_i].calls, "mistral") == 0;
			ck_assert_uint_eq(strlen(told[stream].id[i]), is_short ? 9 : 29);
		}
		if (!stream && told[0].open >= 0)
			ck_assert_int_eq(told[0].content_null, told[0].content.len == 0);
		free(out);
		free(body);
		free(says);
		world_free(w);
	}
	ck_assert_str_eq(line[0], line[1]);
	for (int i = 0; i < 2; i++) {
		free(line[i]);
		told_fini(&told[i]);
	}
}

/* Each choice has its calls, with ids of their own; usage and log-probabilities count every
 * token, also those that no text shows. */
TEST(several_choices_with_logprobs)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = tools_world("hermes", "think", "<think>Hm.</think>" CALL_F "<|im_end|>");
	for (int stream = 0; stream < 2; stream++) {
		struct told a, b;
		char *body = mem_printf(
			"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]," TOOLS
			",\"n\":2,\"logprobs\":true,\"return_token_ids\":true,\"stream\":%s%s}",
			stream ? "true" : "false",
			stream ? ",\"stream_options\":{\"include_usage\":true}" : "");
		char *out = ask(w, "/v1/chat/completions", body), want[64];
		read_told(out, 0, &a);
		read_told(out, 1, &b);
		char *line = line_of(&a), *other = line_of(&b);
		ck_assert_str_eq(line, "Hm.||<0 f " ARGS_F ">|tool_calls");
		ck_assert_str_eq(line, other);
		ck_assert_str_ne(a.id[0], b.id[0]);
		snprintf(want, sizeof want, "\"completion_tokens\":%zu", 2 * w->n_script);
		has(out, want);
		ck_assert_uint_eq(count(out, "\"top_logprobs\":"), (unsigned)(2 * w->n_script));
		free(line);
		free(other);
		told_fini(&a);
		told_fini(&b);
		free(out);
		free(body);
	}
	world_free(w);
}

/* What the answer says of its tokens: its usage, and how many log-probabilities it has. */
static char *account_of(const char *out)
{
	const char *usage = strstr(out, "\"usage\":{"), *end = usage ? strchr(usage, '}') : NULL;
	ck_assert_msg(end != NULL, "%s", out);
	end = strchr(end + 1, '}');
	return mem_printf("%u rows, %.*s", count(out, "\"logprob\":"), (int)(end - usage), usage);
}

/* Tokens that come together, because drafts were right, count as if each had come alone: those
 * after the only call are not the answer's, and thoughts end at a token, not at a message. */
TEST_LOOP(tokens_that_come_together, 0, 2)
{
	static const struct {
		const char *path, *says, *body;
	} t[] = {
		{"/v1/chat/completions", CALL_F "\n" CALL_G "<|im_end|>",
	     "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"logprobs\":true," TOOLS
	     ",\"parallel_tool_calls\":false"},
		{"/v1/responses", "<think>Let me see.</think>It is four.<|im_end|>",
	     "\"input\":\"x\",\"include\":[\"message.output_text.logprobs\"]"},
	};
	char *alone = NULL;
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = tools_world("hermes", "think", t[_i].says);
	for (w->burst = 1; w->burst <= WORLD_BURST; w->burst++) {
		char *body = mem_printf("{%s}", t[_i].body), *out = ask(w, t[_i].path, body),
			 *account = account_of(out);
		if (!alone)
			alone = mem_printf("%s", account);
		ck_assert_msg(strcmp(account, alone) == 0, "%u at once: %s\nalone: %s", w->burst, account,
		              alone);
		free(account);
		free(out);
		free(body);
	}
	free(alone);
	world_free(w);
}

/* A marker that is a special token is seen although special tokens are left out of texts; where
 * nobody looks for it, it is left out. */
TEST(special_tokens_that_are_markers)
{
	struct told t;
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = tools_world("hermes", "think", "<|im_start|>assistant<|im_end|>");
	w->model.n_markers = 1;
	w->model.markers[0] = (struct model_marker){script[0], MODEL_MARKS_CALLS};
	ck_assert_uint_eq(model_marker(&w->model, script[0]), MODEL_MARKS_CALLS);
	for (int i = 0; i < 2; i++) {
		char *out = ask(w, "/v1/chat/completions",
		                i ? "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}"
		                  : "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]," TOOLS "}");
		read_told(out, 0, &t);
		ck_assert_str_eq(t.content.data, i ? "assistant" : "<|im_start|>assistant");
		told_fini(&t);
		free(out);
	}
	w->model.markers[0].whose = MODEL_MARKS_REASONING;
	char *out = ask(
		w, "/v1/chat/completions",
		"{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"separate_reasoning\":false}");
	read_told(out, 0, &t);
	ck_assert_str_eq(t.content.data, "<|im_start|>assistant");
	told_fini(&t);
	free(out);
	world_free(w);
}

/* The marker that ends an answer with a call ends it at the worker, also where the model's file
 * does not list it. */
TEST(a_call_ends_the_answer)
{
	static const struct {
		const char *more;
		size_t n;
		uint32_t last;
	} t[] = {{"", 1, 7},
	         {"," TOOLS, 1, 7},
	         {",\"stop_token_ids\":[5]", 2, 7},
	         {",\"ignore_eos\":true", 0, 0}};
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = tools_world("harmony", "harmony", "ok<|im_end|>");
	w->model.n_markers = 1;
	w->model.markers[0] = (struct model_marker){7, MODEL_MARKS_CALLS | MODEL_MARKS_LAST};
	for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
		char *body = mem_printf(
				 "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"max_tokens\":2%s}",
				 t[i].more),
			 *out = ask(w, "/v1/chat/completions", body);
		has(out, "HTTP/1.1 200 ");
		ck_assert_uint_eq(w->n_stop_ids, t[i].n);
		ck_assert(t[i].n == 0 || w->stop_ids[t[i].n - 1] == t[i].last);
		free(out);
		free(body);
	}
	free(ask(w, "/v1/completions", "{\"prompt\":\"x\",\"max_tokens\":2}"));
	ck_assert_uint_eq(w->n_stop_ids, 0);
	world_free(w);
}

/* That marker is no text: a call that it ends without a body has an empty object all the same. */
TEST(a_silent_end_of_a_call)
{
	struct told t;
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = tools_world("harmony", "harmony", EMPTY_H "<|im_end|>");
	w->model.n_markers = 1;
	w->model.markers[0] = (struct model_marker){script[w->n_script - 1],
	                                            MODEL_MARKS_CALLS | MODEL_MARKS_LAST};
	char *out = ask(w, "/v1/chat/completions",
	                "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]," TOOLS "}");
	has(out, "\"stop_reason\":2");
	read_told(out, 0, &t);
	ck_assert_str_eq(t.calls.data, "<0 g {}");
	told_fini(&t);
	free(out);
	world_free(w);
}

/* While a marker may be coming nothing is told; a chunk that would say nothing is not sent. */
TEST(no_empty_chunks)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = tools_world("hermes", "none", CALL_G "<|im_end|>");
	char *out = ask(w, "/v1/chat/completions",
	                "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]," TOOLS
	                ",\"stream\":true}");
	ck_assert_uint_eq(count(out, "\"delta\":{}"), 1); /* the one that ends it */
	ck_assert_uint_eq(count(out, "\"role\":\"assistant\""), 1);
	has(out, "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"tool_calls\"");
	free(out);
	world_free(w);
}

/* --- requests ------------------------------------------------------------ */

#define ALLOW(mode, tools) \
	"{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"" mode "\",\"tools\":[" tools "]}}"
#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define AFTER "\"messages\":[{\"role\":\"user\",\"content\":\"x\"},"
#define RESULT "{\"role\":\"tool\",\"tool_call_id\":\"call_1\",\"content\":\"cold\"}]"
#define IMPOSSIBLE                                                                      \
	ONE("{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"function\"," \
	    "\"function\":{\"name\":\"h\",\"parameters\":{\"type\":\"object\","             \
	    "\"properties\":{\"a\":{\"if\":{}}}}}}")
#define ONE(tool) USER ",\"tools\":[" tool "]"

static const struct {
	const char *body, *param; /* NULL: it is taken */
	const char *says;
} requests[] = {
	{USER "," TOOLS, NULL, ""},
	{USER "," TOOLS ",\"tool_choice\":\"auto\",\"parallel_tool_calls\":true", NULL, ""},
	{USER ",\"tools\":null,\"tool_choice\":null,\"parallel_tool_calls\":null", NULL, ""},
	{USER ",\"tool_choice\":\"none\"", NULL, ""},
	{USER ",\"functions\":[],\"function_call\":\"none\"", NULL, ""},
	{USER ",\"tools\":{}", "tools", "must be an array"},
	{ONE("5"), "tools", "tools[0] must be an object"},
	{ONE("{\"function\":{\"name\":\"f\"}}"), "tools", "tools[0].type must be"},
	{ONE("{\"type\":\"retrieval\"}"), "tools", "got \\\"retrieval\\\""},
	{ONE("{\"type\":\"function\"}"), "tools", "tools[0].function must be an object"},
	{ONE("{\"type\":\"function\",\"function\":{}}"), "tools", "function.name must be"},
	{ONE("{\"type\":\"function\",\"function\":{\"name\":\"a b\"}}"), "tools", "got \\\"a b\\\""},
	{ONE("{\"type\":\"function\",\"function\":{\"name\":\"f\",\"description\":1}}"), "tools",
     "description must be a string"},
	{ONE("{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":[]}}"), "tools",
     "parameters must be an object"},
	{ONE("{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"function\","
         "\"function\":{\"name\":\"f\"}}"),
     "tools", "the same name"},
	{USER "," TOOLS ",\"tool_choice\":\"sometimes\"", "tool_choice", "got \\\"sometimes\\\""},
	{USER "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"h\"}}",
     "tool_choice", "not among tools"},
	{USER ",\"tool_choice\":\"required\"", "tool_choice", "needs tools"},
	{USER "," TOOLS ",\"tool_choice\":" ALLOW("auto", NAMED_G), NULL, ""},
	{USER "," TOOLS ",\"tool_choice\":" ALLOW("required", NAMED_G "," NAMED_G), NULL, ""},
	{USER "," TOOLS ",\"tool_choice\":" ALLOW("auto", ""), NULL, ""},
	{USER "," TOOLS ",\"tool_choice\":" ALLOW("required", ""), "tool_choice", "needs tools"},
	{USER ",\"tool_choice\":" ALLOW("auto", NAMED_G), "tool_choice.allowed_tools.tools",
     "allowed_tools.tools[0] must be a function that is among tools, got \\\"g\\\""},
	{USER "," TOOLS ",\"tool_choice\":" ALLOW("auto", NAMED_G ",5"),
     "tool_choice.allowed_tools.tools", "allowed_tools.tools[1] must be a function"},
	{USER "," TOOLS ",\"tool_choice\":" ALLOW("none", NAMED_G), "tool_choice.allowed_tools.mode",
     "mode must be \\\"auto\\\" or \\\"required\\\", got \\\"none\\\""},
	{USER "," TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\"}",
     "tool_choice.allowed_tools.mode", "got nothing"},
	{USER "," TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":"
          "\"auto\",\"tools\":{}}}",
     "tool_choice.allowed_tools.tools", "an array of at most 128 tools, got {}"},
	{IMPOSSIBLE ",\"tool_choice\":" ALLOW("required", "{\"function\":{\"name\":\"h\"}}"), "tools",
     "tools[1].function.parameters: /properties/a/if: this keyword is not supported"},
	{IMPOSSIBLE ",\"tool_choice\":" ALLOW("required", "{\"function\":{\"name\":\"f\"}}"), NULL, ""},
	{USER "," TOOLS ",\"tool_choice\":" NAMED_G ",\"response_format\":{\"type\":\"json_object\"}",
     "tool_choice", "bind both"},
	{USER "," TOOLS ",\"tool_choice\":\"required\",\"guided_choice\":[\"a\"]", "tool_choice",
     "bind both"},
	{USER "," TOOLS ",\"response_format\":{\"type\":\"json_object\"}", NULL, ""},
	{USER "," TOOLS ",\"tool_choice\":\"required\",\"response_format\":{\"type\":\"text\"}", NULL,
     ""},
	{IMPOSSIBLE ",\"tool_choice\":\"required\"", "tools",
     "tools[1].function.parameters: /properties/a/if: this keyword is not supported"},
	{IMPOSSIBLE ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", NULL, ""},
	{IMPOSSIBLE, NULL, ""},
	{ONE("{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"string\"}}"
         "}") ",\"tool_choice\":\"required\"",
     "tools", "tools[0].function.parameters: must have type"},
	{USER "," TOOLS ",\"parallel_tool_calls\":1", "parallel_tool_calls", "true or false"},
	{USER ",\"functions\":[{\"name\":\"f\"}]", "functions", "use tools"},
	{USER ",\"function_call\":\"auto\"", "function_call", "use tool_choice"},
	{USER ",\"include_reasoning\":5", "include_reasoning", "true or false"},
	{AFTER "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"call_1\",\"type\":"
           "\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}]}," RESULT,
     NULL, ""},
	{AFTER "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":"
           "\"not JSON\"}}]}," RESULT,
     NULL, ""},
	{AFTER "{\"role\":\"assistant\",\"content\":null}]", "messages", "messages[1].content must be"},
	{AFTER "{\"role\":\"user\",\"content\":null,\"tool_calls\":[]}]", "messages",
     "messages[1].content must be"},
	{AFTER "{\"role\":\"assistant\",\"tool_calls\":5}]", "messages", "messages[1].content must be"},
	{AFTER "{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":5}]", "messages",
     "messages[1].tool_calls must be an array"},
	{AFTER "{\"role\":\"assistant\",\"tool_calls\":[5]}]", "messages",
     "messages[1].tool_calls[0] must be"},
	{AFTER "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":5}}]}]", "messages",
     "function.name must be"},
	{AFTER
     "{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\",\"arguments\":5}}]}]",
     "messages", "arguments must be"},
	{AFTER "{\"role\":\"tool\",\"tool_call_id\":5,\"content\":\"x\"}]", "messages",
     "tool_call_id must be"},
	{AFTER "{\"role\":\"assistant\",\"content\":\"x\",\"function_call\":{}}]", "messages",
     "use tool_calls"},
};

TEST_LOOP(requests_are_checked, 0, sizeof requests / sizeof *requests)
{
	char want[64];
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = tools_world("hermes", "think", "ok<|im_end|>");
	char *body = mem_printf("{%s}", requests[_i].body), *out = ask(w, "/v1/chat/completions", body);
	has(out, requests[_i].param ? "HTTP/1.1 400 " : "HTTP/1.1 200 ");
	has(out, requests[_i].says);
	if (requests[_i].param) {
		snprintf(want, sizeof want, "\"param\":\"%s\"", requests[_i].param);
		has(out, want);
	}
	free(out);
	free(body);
	world_free(w);
}

#define WITHIN(text)                                             \
	",\"messages\":[{\"role\":\"assistant\",\"content\":\"" text \
	"\"}],\"continue_final_message\":true,\"add_generation_prompt\":false"

/* What the workers are told: nothing, this text, or pieces with this in them. */
static const struct asked {
	const char *calls, *reasoning, *more, *form; /* form NULL: none */
} forms[] = {
	{"hermes", "none", "", NULL},
	{"hermes", "none", ",\"tool_choice\":\"auto\"", NULL},
	{"hermes", "none", ",\"tool_choice\":\"none\"", NULL},
	{"hermes", "none", ",\"tool_choice\":\"required\"",
     "[{\"any_of\":[[{\"repeat\":[{\"literal\":\"<tool_call>\\n{\\\"name\\\": "
     "\\\"\"},{\"any_of\":[[{\"literal\":\"f\"}"},
	{"hermes", "none", ",\"tool_choice\":\"required\"", "\"min\":1,\"max\":8,"},
	{"hermes", "none", ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false",
     "\"min\":1,\"max\":1,"},
	{"hermes", "none", ",\"tool_choice\":" NAMED_G, "{\"any_of\":[[{\"literal\":\"g\"}"},
	{"hermes", "none", ",\"tool_choice\":" NAMED_G, "\"min\":1,\"max\":1,"},
	{"hermes", "none", ",\"tool_choice\":" ALLOW("auto", NAMED_G), NULL},
	{"hermes", "none", ",\"tool_choice\":" ALLOW("required", NAMED_G),
     "[{\"any_of\":[[{\"repeat\":[{\"literal\":\"<tool_call>\\n{\\\"name\\\": "
     "\\\"\"},{\"any_of\":[[{\"literal\":\"g\"}"},
	{"hermes", "none", ",\"tool_choice\":" ALLOW("required", NAMED_G), "\"min\":1,\"max\":8,"},
	{"glm", "think", ",\"tool_choice\":\"required\"",
     "[{\"any_of\":[[{\"repeat\":[{\"literal\":\"<tool_call>\"}"},
	{"hermes", "granite", ",\"tool_choice\":\"required\"",
     "[{\"any_of\":[[{\"repeat\":[{\"literal\":\"<tool_call>"},
	{"glm", "think", ",\"tool_choice\":\"required\"" WITHIN("<think>"),
     "[{\"free\":\"</think>\"},{\"regex\":\"\\\\n{0,2}\"},{\"any_of\""},
	{"glm", "think", ",\"tool_choice\":\"required\"" WITHIN("<think>\\n\\n</think>\\n\\n"),
     "[{\"any_of\":[[{\"repeat\":[{\"literal\":\"<tool_call>\"}"},
	{"hermes", "think", ",\"guided_regex\":\"a+\"" WITHIN("</think>"), "a+"},
	{"harmony", "harmony", ",\"tool_choice\":" NAMED_G,
     "[{\"any_of\":[[{\"literal\":\"<|channel|>analysis<|message|>\"},{\"free\":\"<|\"},{\"regex\":"
     "\"end\\\\|><\\\\|start\\\\|>assistant\"}],[]]},"
     "{\"any_of\":[[{\"repeat\":[{\"literal\":\"<|channel|>commentary "
     "to=functions.\"},{\"any_of\":[[{\"literal\":\"g\"},{\"literal\":\" "
     "<|constrain|>json<|message|>\"},{\"schema\":"},
	{"harmony", "harmony", ",\"tool_choice\":\"required\"", "\"min\":1,\"max\":1}]]"},
	/* of the generic format all of an answer has a form, if there are tools */
	{"generic", "none", "", "]},{\"literal\":\"}\"}]"},
	{"generic", "none", "",
     "[{\"any_of\":[[{\"literal\":\"{\\\"tool_calls\\\": "
     "[\"},{\"repeat\":[{\"literal\":\"{\\\"name\\\": "
     "\\\"\"},{\"any_of\":[[{\"literal\":\"f\"}"},
	{"generic", "none", "",
     "[{\"literal\":\"{\\\"response\\\": \"},{\"schema\":{\"type\":\"string\"}}"},
	{"generic", "none", "", "\"min\":1,\"max\":1,"},
	{"generic", "none", ",\"parallel_tool_calls\":true", "\"min\":1,\"max\":8,"},
	{"generic", "none", ",\"tool_choice\":\"none\"", NULL},
	{"generic", "none", ",\"tool_choice\":\"none\",\"guided_regex\":\"a+\"", "a+"},
	{"generic", "none", ",\"tool_choice\":\"required\"",
     "\"separator\":\", \"},{\"literal\":\"]}\"}]]}]"},
	{"generic", "none", ",\"tool_choice\":" NAMED_G, "\"},{\"any_of\":[[{\"literal\":\"g\"}"},
	{"generic", "think", "" WITHIN("<think>"),
     "[{\"free\":\"</think>\"},{\"regex\":\"\\\\n{0,2}\"},{\"any_of\""},
	/* a form for the answer is that of what comes behind the thoughts; where the prompt opens none
	 * and words would, of the whole answer */
	{"hermes", "none", ",\"guided_regex\":\"a+\"", "a+"},
	{"hermes", "think", ",\"guided_regex\":\"a+\"", "a+"},
	{"hermes", "granite", ",\"guided_regex\":\"a+\"", "a+"},
	{"hermes", "granite", ",\"guided_regex\":\"a+\"" WITHIN("Here is my thought process:"),
     "[{\"free\":\"Here is my response:\"},{\"regex\":\"\\\\n{0,2}\"},{\"regex\":\"a+\"}]"},
	{"hermes", "think", ",\"guided_choice\":[\"yes\"]" WITHIN("<think>"),
     "[{\"free\":\"</think>\"},{\"regex\":\"\\\\n{0,2}\"},{\"choice\":[\"yes\"]}]"},
	{"harmony", "harmony", ",\"response_format\":{\"type\":\"json_object\"}",
     "[]]},{\"literal\":\"<|channel|>final<|message|>\"},{\"schema\":{\"type\":\"object\"}}]"},
	{"harmony", "harmony",
     ",\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":"
     "\"integer\"}}}",
     "<|message|>\"},{\"schema\":{\"type\":\"integer\"}}]"},
	{"harmony", "harmony",
     ",\"guided_regex\":\"a+\"" WITHIN("<|start|>assistant<|channel|>analysis<|message|>So"),
     "[{\"free\":\"<|\"},{\"regex\":\"end\\\\|><\\\\|start\\\\|>assistant\"},{\"literal\":\"<|"
     "channel|>final<|message|>\"},{\"regex\":\"a+\"}]"},
	{"harmony", "harmony",
     ",\"guided_regex\":\"a+\"" WITHIN("<|start|>assistant<|channel|>final<|message|>So"), "a+"},
};

/* Of a model that opens its thoughts with one token: it may do so, unless the prompt says
 * otherwise. */
static const struct asked token_forms[] = {
	{"glm", "think", ",\"tool_choice\":\"required\"",
     "[{\"any_of\":[[{\"literal\":\"<think>\"},{\"free\":\"</"
     "think>\"},{\"regex\":\"\\\\n{0,2}\"}],[]]},{\"any_of\""},
	{"hermes", "think", ",\"guided_regex\":\"a+\"",
     "[{\"any_of\":[[{\"literal\":\"<think>\"},{\"free\":\"</"
     "think>\"},{\"regex\":\"\\\\n{0,2}\"}],[]]},{\"regex\":\"a+\"}]"},
	{"hermes", "think", ",\"guided_regex\":\"a+\"" WITHIN("<think>\\n\\n</think>\\n\\n"), "a+"},
};

/* In a vocabulary where the marker that opens thoughts is one token, or several. */
static void form_is(const struct asked *a, int opens_by_token)
{
	struct world *w = tools_world(a->calls, a->reasoning, "ok<|im_end|>");
	ck_assert(!w->model.opens_by_token);
	w->model.opens_by_token = opens_by_token;
	char *body = mem_printf("{%s," TOOLS "%s}", strstr(a->more, "messages") ? "\"seed\":1" : USER,
	                        a->more);
	char *out = ask(w, "/v1/chat/completions", body);
	has(out, "HTTP/1.1 200 ");
	if (a->form && strchr(a->form, '"'))
		ck_assert_msg(strstr(w->form, a->form) != NULL, "%s", w->form);
	else
		ck_assert_str_eq(w->form, a->form ? a->form : "");
	free(out);
	free(body);
	world_free(w);
}

TEST_LOOP(forms_are_told, 0, sizeof forms / sizeof *forms)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	form_is(&forms[_i], 0);
}

TEST_LOOP(forms_behind_a_token, 0, sizeof token_forms / sizeof *token_forms)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	form_is(&token_forms[_i], 1);
}

/* A format that cannot be bound says so, by name. */
TEST(unbound_format)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = tools_world("pythonic", "none", "ok<|im_end|>");
	char *out = ask(w, "/v1/chat/completions", "{" USER "," TOOLS ",\"tool_choice\":\"required\"}");
	has(out, "HTTP/1.1 400 ");
	has(out, "format pythonic");
	free(out);
	world_free(w);
}

TEST(too_much)
{
	struct buf b;
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = tools_world("hermes", "none", "ok<|im_end|>");
	for (int kind = 0; kind < 3; kind++) {
		static const char *const says[] = {"more than 128", "deeper than 64 levels",
		                                   "more than 20000 values"};
		buf_init(&b, 0);
		buf_adds(&b, "{" USER ",\"tools\":[");
		for (int i = 0; kind == 0 && i < 129; i++)
			buf_printf(&b, "%s{\"type\":\"function\",\"function\":{\"name\":\"f%d\"}}",
			           i ? "," : "", i);
		if (kind)
			buf_adds(&b,
			         "{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"x\":");
		for (int i = 0; kind == 1 && i < 65; i++)
			buf_adds(&b, "[");
		for (int i = 0; kind == 1 && i < 65; i++)
			buf_adds(&b, "]");
		for (int i = 0; kind == 2 && i < 20000; i++)
			buf_adds(&b, i ? ",0" : "[0");
		buf_adds(&b, kind == 2 ? "]}}}]}" : kind ? "}}}]}" : "]}");
		char *out = ask(w, "/v1/chat/completions", b.data);
		has(out, "HTTP/1.1 400 ");
		has(out, says[kind]);
		free(out);
		buf_fini(&b);
	}
	world_free(w);
}

/* The generic format and a form of the answer's own exclude each other; a schema that cannot be
 * bound is refused whatever the choice. */
TEST(generic_binds)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = tools_world("generic", "none", "ok<|im_end|>");
	static const char *const cases[][3] = {
		{USER "," TOOLS ",\"response_format\":{\"type\":\"json_object\"}", "\"param\":\"tools\"",
	     "this model cannot use tools together with response_format (tool_parser generic): send "
	     "one"},
		{USER "," TOOLS ",\"tool_choice\":\"required\",\"guided_regex\":\"a\"",
	     "\"param\":\"tool_choice\"", "bind both: give one"},
		{IMPOSSIBLE, "\"param\":\"tools\"", "tools[1].function.parameters: /properties/a/if"}};
	for (int i = 0; i < 3; i++) {
		char *body = mem_printf("{%s}", cases[i][0]), *out = ask(w, "/v1/chat/completions", body);
		has(out, "HTTP/1.1 400 ");
		has(out, cases[i][1]);
		has(out, cases[i][2]);
		free(out);
		free(body);
	}
	/* an error of the form of all tools names what the client sent */
	char *text = mem_alloc(70001);
	memset(text, 'x', 70000);
	text[70000] = 0;
	for (int i = 0; i < 2; i++) {
		char *body = mem_printf(
			"{" USER ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\","
			"\"parameters\":{\"type\":\"object\",\"description\":\"%s\"}}},{\"type\":\"function\","
			"\"function\":{\"name\":"
			"\"g\",\"parameters\":{\"type\":\"object\",\"description\":\"%s\"}}}]%s}",
			text, text, i ? ",\"tool_choice\":\"required\"" : "");
		char *out = ask(w, "/v1/chat/completions", body);
		has(out, i ? "\"param\":\"tool_choice\"" : "\"param\":\"tools\"");
		has(out, i ? "\"tool_choice: the form that" : "\"tools: the form that");
		free(out);
		free(body);
	}
	free(text);
	world_free(w);
}

/* Of a model whose template shows nothing, and where that is turned off. */
TEST(detected)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = tools_world("auto", "auto", "ok<|im_end|>");
	ck_assert(toolcall_format_is_generic(w->model.calls));
	world_free(w);
	w = tools_world("none", "auto", "ok<|im_end|>");
	ck_assert_ptr_null(w->model.calls);
	world_free(w);
}

/* A model of which nobody knows how it calls says so. */
TEST(unknown_format)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = tools_world("none", "none", "ok<|im_end|>");
	char *out = ask(w, "/v1/chat/completions", "{" USER "," TOOLS "}");
	has(out, "HTTP/1.1 400 ");
	has(out, "tool_parser");
	free(out);
	struct err err = {0};
	ck_assert_int_lt(model_set_parsers(&w->model, "nope", "auto", &err), 0);
	ck_assert_int_lt(model_set_parsers(&w->model, "auto", "nope", &err), 0);
	world_free(w);
}

/* Whether thoughts begin with one token, special or not, is seen in the vocabulary. */
TEST(thoughts_open_by_a_token)
{
	static const char vocabulary[] =
		"{\"added_tokens\":[{\"id\":2,\"content\":\"<think>\",\"special\":false},{\"id\":3,"
		"\"content\":\"[THINK]\",\"special\":true}],"
		"\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false},\"decoder\":{"
		"\"type\":\"ByteLevel\"},"
		"\"model\":{\"type\":\"BPE\",\"vocab\":{\"T\":0,\"e\":1},\"merges\":[]}}";
	static const struct {
		const char *format;
		int want;
	} cases[] = {{"think", 1},   {"ernie", 1},  {"mistral", 1},
	             {"granite", 0}, {"cohere", 0}, {"none", 0}};
	char dir[TEST_FOLDER_BYTES], path[TEST_FOLDER_BYTES + 64];
	struct tokenizer *t = NULL;
	struct err err = {0};
	test_folder(dir, "vocabulary");
	snprintf(path, sizeof path, "%s/tokenizer.json", dir);
	FILE *f = fopen(path, "w");
	ck_assert(f && fputs(vocabulary, f) >= 0 && fclose(f) == 0);
	ck_assert_msg(tokenizer_from_folder(dir, &t, &err) == 0, "%s", err.text);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct model m = {.tokenizer = t};
		ck_assert_int_eq(model_set_parsers(&m, "none", cases[i].format, &err), 0);
		ck_assert_msg(m.opens_by_token == cases[i].want, "%s", cases[i].format);
	}
	tokenizer_destroy(&t);
}

TEST_START(quiet)
{
	log_init("test", NULL);
	log_set_level("error");
	signal(SIGPIPE, SIG_IGN); /* as the daemon skeleton does */
}
