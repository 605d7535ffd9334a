/* test_router_dialects.c - /v1/responses and /v1/messages through the whole router: what a template
 * sees of their requests, and their events and answers, made by scripted workers. What needs a
 * tokenizer is skipped without PD_MODEL. */
#include "router_fold.h"
#include "router_says.h"
#include "skip.h"

#include <signal.h>

/* " for ', in a new text */
static char *double_quoted(const char *s)
{
	char *out = mem_strdup(s);
	for (char *p = out; *p; p++)
		*p = *p == '\'' ? '"' : *p;
	return out;
}

/* --- events and whole answers -------------------------------------------- */

#define USER "\"max_tokens\":300,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]"
#define INPUT "\"input\":\"x\""
#define TOOLS_M                                                                                 \
	",\"tools\":[{\"name\":\"f\",\"input_schema\":{\"type\":\"object\",\"properties\":{\"a\":{" \
	"\"type\":\"integer\"}}}},{\"name\":\"g\",\"input_schema\":{\"type\":\"object\"}}]"
#define TOOLS_R                                                                              \
	",\"tools\":[{\"type\":\"function\",\"name\":\"f\",\"parameters\":{\"type\":\"object\"," \
	"\"properties\":{\"a\":{\"type\":\"integer\"}}}},{\"type\":\"function\",\"name\":\"g\"}]"
#define CALL_F "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 12}}\n</tool_call>"
#define CALL_G "<tool_call>\n{\"name\": \"g\", \"arguments\": {}}\n</tool_call>"

static const struct {
	const char *path, *reasoning, *says, *body, *want;
	const char *whole; /* if it differs: what cannot be told in a whole answer */
} answers[] = {
	{MESSAGES, "none", "Hi you.", USER, "C(Hi you.)|end_turn", NULL},
	{MESSAGES, "none", "<|im_start|>", USER, "|end_turn", NULL},
	{MESSAGES, "none", "Hi you.", USER ",\"stop_sequences\":[\"you\"]", "C(Hi )|stop_sequence:you",
     NULL},
	{MESSAGES, "think", "<think>Hm.</think>4", USER, "T(Hm.)C(4)|end_turn", NULL},
	{MESSAGES, "think", "<think>Hm.</think>4",
     USER ",\"thinking\":{\"type\":\"adaptive\",\"display\":\"omitted\"}", "C(4)|end_turn", NULL},
	{MESSAGES, "think", "<think>Hm.</think>Look. " CALL_F "\n" CALL_G, USER TOOLS_M,
     "T(Hm.)C(Look.)f({\"a\":12})g({})|tool_use", NULL},
	{MESSAGES, "none", CALL_F "\n" CALL_G,
     USER TOOLS_M ",\"tool_choice\":{\"type\":\"any\",\"disable_parallel_tool_use\":true}",
     "f({\"a\":12})|tool_use", NULL},
	{MESSAGES, "none", CALL_G, USER TOOLS_M ",\"tool_choice\":{\"type\":\"tool\",\"name\":\"g\"}",
     "g({})|tool_use", NULL},
	{MESSAGES, "none", CALL_F " and so on " CALL_G, USER TOOLS_M,
     "f({\"a\":12})C( and so on)g({})|tool_use", NULL},
	{MESSAGES, "none", "Look. " CALL_F " and so on", USER TOOLS_M,
     "C(Look.)f({\"a\":12})C( and so on)|tool_use", NULL},
	{MESSAGES, "none", CALL_F, USER TOOLS_M ",\"stop_sequences\":[\"12\"]",
     "f({\"a\": )|stop_sequence:12", "f({})|stop_sequence:12"},
	{MESSAGES, "none", CALL_G "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\"", USER TOOLS_M,
     "g({})f({\"a\")|end_turn", "g({})f({})|end_turn"},
	{MESSAGES, "none", CALL_F, USER TOOLS_M ",\"tool_choice\":{\"type\":\"none\"}",
     "C(" CALL_F ")|end_turn", NULL},
	{RESPONSES, "none", "Hi you.", INPUT, "C(Hi you.)|completed", NULL},
	{RESPONSES, "none", "<|im_start|>", INPUT, "C()|completed", NULL},
	{RESPONSES, "none", "Hi you.", INPUT ",\"max_output_tokens\":1",
     "C(Hi)..|incomplete:max_output_tokens", NULL},
	{RESPONSES, "think", "<think>Hm.</think>4", INPUT, "T(Hm.)C(4)|completed", NULL},
	{RESPONSES, "think", "<think>Hm. And so", INPUT ",\"max_output_tokens\":4",
     "T(H)..|incomplete:max_output_tokens", NULL},
	{RESPONSES, "think", "<think>Hm.</think>Look. " CALL_F "\n" CALL_G, INPUT TOOLS_R,
     "T(Hm.)C(Look.)f({\"a\":12})g({})|completed", NULL},
	{RESPONSES, "none", CALL_F " and so on " CALL_G, INPUT TOOLS_R,
     "f({\"a\":12})C( and so on)g({})|completed", NULL},
	{RESPONSES, "none", CALL_F "\n" CALL_G,
     INPUT TOOLS_R ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false",
     "f({\"a\":12})|completed", NULL},
	{RESPONSES, "none", CALL_G,
     INPUT TOOLS_R ",\"tool_choice\":{\"type\":\"function\",\"name\":\"g\"}", "g({})|completed",
     NULL},
	{RESPONSES, "none", CALL_F,
     INPUT TOOLS_R ",\"tool_choice\":{\"type\":\"allowed_tools\",\"mode\":\"auto\",\"tools\":[{"
                   "\"type\":\"function\",\"name\":\"g\"},{\"type\":\"function\",\"name\":\"g\"}]}",
     "C(" CALL_F ")|completed", NULL},
	{RESPONSES, "none", CALL_F, INPUT TOOLS_R ",\"stop\":\"12\"", "f({\"a\": )..|completed", NULL},
};

TEST_CASE("dialects", .timeout_s = 60);

TEST_LOOP(whole_and_streamed, 0, sizeof answers / sizeof *answers)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	for (int stream = 0; stream < 2; stream++) {
		char *says = mem_printf("%s<|im_end|>", answers[_i].says),
			 *body = mem_printf("{%s%s}", answers[_i].body, stream ? ",\"stream\":true" : "");
		const char *want = !stream && answers[_i].whole ? answers[_i].whole : answers[_i].want;
		struct world *w = says_world("hermes", answers[_i].reasoning, says, 1u << 20);
		char *out = ask(w, answers[_i].path, body), *line = line_of(answers[_i].path, out);
		ck_assert_msg(strcmp(line, want) == 0, "%s\nwant %s\n got %s", out, want, line);
		free(line);
		free(out);
		free(body);
		free(says);
		world_free(w);
	}
}

/* The answer is cut where the arguments of its call would begin. */
TEST_LOOP(calls_without_arguments, 0, 2)
{
	static const struct {
		const char *path, *body, *want, *whole;
	} t[] = {
		{MESSAGES,
	     "\"max_tokens\":%zu,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]" TOOLS_M,
	     "f()|max_tokens", "f({})|max_tokens"},
		{RESPONSES, "\"max_output_tokens\":%zu," INPUT TOOLS_R,
	     "f()..|incomplete:max_output_tokens", "f()..|incomplete:max_output_tokens"},
	};
	if (!model)
		SKIP(SKIP_NO_MODEL);
	for (int stream = 0; stream < 2; stream++) {
		struct world *w = says_world("harmony", "none",
		                             "<|channel|>commentary to=functions.f<|message|>", 1u << 20);
		w->stop_at = 0;
		char *open = mem_printf("{\"stream\":%s,%s}", stream ? "true" : "false", t[_i].body),
			 *body = mem_printf(open, w->n_script), *out = ask(w, t[_i].path, body),
			 *line = line_of(t[_i].path, out);
		ck_assert_str_eq(line, stream ? t[_i].want : t[_i].whole);
		free(line);
		free(out);
		free(body);
		free(open);
		world_free(w);
	}
}

/* Text may be held back before its item begins, or come at the answer's end: its tokens have their
 * log-probabilities all the same, each once. */
TEST_LOOP(each_token_has_a_row, 0, 7)
{
	static const struct {
		const char *says, *more;
		int is_cut, all; /* all: the answer has no call */
	} t[] = {
		{"Hi you.", "", 0, 1},
		{"\n\nHi you.", TOOLS_R, 0, 1},
		{"\n\nHi <tool_call", TOOLS_R, 0, 1},
		{"<tool", TOOLS_R, 1, 1},
		{"\xf0\x9f\xa6\x9c you", "", 0, 1},
		{"Hi you.", ",\"stop\":\"Hi you. And\"", 0, 1},
		{"Hi. " CALL_F, TOOLS_R ",\"stop\":\"Hi. <tool_call>\\n{\\\"name\\\": \\\"f\\\", \\\"a!\"",
	     0, 0},
	};
	if (!model)
		SKIP(SKIP_NO_MODEL);
	for (int stream = 0; stream < 2; stream++) {
		char *says = mem_printf("%s%s", t[_i].says, t[_i].is_cut ? "" : "<|im_end|>");
		struct world *w = says_world("hermes", "none", says, 1u << 20);
		if (t[_i].is_cut)
			w->stop_at = 0;
		char *body = mem_printf("{" INPUT "%s,\"max_output_tokens\":%zu,\"stream\":%s,\"include\":["
		                        "\"message.output_text.logprobs\"]}",
		                        t[_i].more, w->n_script, stream ? "true" : "false"),
			 *out = ask(w, RESPONSES, body);
		/* deltas, the text's, its part's and its item's end, the whole; an end of sequence that
		 * comes after the text has no delta */
		size_t rows = count(out, "\"logprob\":"), times = stream ? 5 : 1,
			   most = times * w->n_script;
		ck_assert_msg(t[_i].all ? rows == most || (stream && rows == most - 1) : rows >= 2 * times,
		              "%zu of %zu: %.2000s", rows, most, out);
		free(out);
		free(body);
		free(says);
		world_free(w);
	}
}

/* After a retry the prompt has what was generated before, so more can be cached than the client
 * sent. */
TEST(cached_tokens_are_the_prompts)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = says_world("none", "none", "Hi<|im_end|>", 1u << 20);
	w->cached = 5000;
	char *out = ask(w, MESSAGES, "{" USER "}");
	has(out, "\"usage\":{\"input_tokens\":0,");
	free(out);
	world_free(w);
}

/* Events that repeat a long item go out in steps, in the middle of a stream, while tokens come, and
 * at its end. */
TEST(long_items)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct buf says, want;
	buf_init(&says, 0);
	buf_init(&want, 0);
	for (int part = 0; part < 2; part++) {
		buf_adds(&says, part ? "</think>" : "<think>");
		buf_adds(&want, part ? ")C(" : "T(");
		for (int i = 0; i < 600; i++) {
			buf_printf(&says, "%sline %d of \"%d\"", i ? " " : "", i, part);
			buf_printf(&want, "%sline %d of \"%d\"", i ? " " : "", i, part);
		}
	}
	buf_adds(&says, "<|im_end|>");
	buf_adds(&want, ")|completed");
	for (int stream = 0; stream < 2; stream++) {
		struct world *w = says_world("none", "think", says.data, 16u << 20);
		w->d->context_tokens = w->p->context_tokens = 100000;
		char *body = mem_printf("{\"input\":\"x\",\"max_output_tokens\":50000,\"stream\":%s}",
		                        stream ? "true" : "false"),
			 *out = ask(w, RESPONSES, body), *line = line_of(RESPONSES, out);
		ck_assert_msg(strcmp(line, want.data) == 0, "%.300s ... %s", line,
		              line + strlen(line) - 60);
		free(line);
		free(out);
		free(body);
		world_free(w);
	}
	buf_fini(&says);
	buf_fini(&want);
}

/* More items than one list of parts has. */
TEST_LOOP(many_items, 0, 2)
{
	const char *path = _i ? MESSAGES : RESPONSES;
	struct buf says, want;
	if (!model)
		SKIP(SKIP_NO_MODEL);
	buf_init(&says, 0);
	buf_init(&want, 0);
	for (int i = 0; i < 100; i++) {
		buf_printf(&says, "%s%d", CALL_G, i);
		buf_printf(&want, "g({})C(%d)", i);
	}
	buf_adds(&says, "<|im_end|>");
	buf_adds(&want, _i ? "|tool_use" : "|completed");
	for (int stream = 0; stream < 2; stream++) {
		struct world *w = says_world("hermes", "none", says.data, 16u << 20);
		w->d->context_tokens = w->p->context_tokens = 100000;
		char *body = mem_printf("{%s,\"max_tokens\":9000,\"stream\":%s}",
		                        _i ? "\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]" TOOLS_M
		                           : "\"max_output_tokens\":9000," INPUT TOOLS_R,
		                        stream ? "true" : "false"),
			 *out = ask(w, path, body), *line = line_of(path, out);
		ck_assert_msg(strcmp(line, want.data) == 0, "%.1000s", line);
		free(line);
		free(out);
		free(body);
		world_free(w);
	}
	buf_fini(&says);
	buf_fini(&want);
}

/* What is kept of a stream is the request's: beyond its limit the answer ends. */
TEST(kept_text_is_limited)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = says_world("none", "none", "one two three four five<|im_end|>", 16u << 20);
	w->stop_at = 0;
	w->d->context_tokens = w->p->context_tokens = 100000;
	w->r.conf.request_memory_bytes = 150000;
	char *out = ask(w, RESPONSES, "{\"input\":\"x\",\"max_output_tokens\":50000,\"stream\":true}"),
		 *line = line_of(RESPONSES, out);
	size_t n = strlen(line);
	ck_assert_msg(n > 10000 && n < 150000, "%zu", n);
	has(line, ")..|incomplete:max_output_tokens");
	free(line);
	free(out);
	world_free(w);
}

/* A stream that cannot go on ends with the dialect's own event. */
TEST_LOOP(failures_in_a_stream, 0, 2)
{
	static const struct {
		const char *path, *body, *has;
	} t[] = {
		{MESSAGES, "{" USER ",\"stream\":true}",
	     "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\","},
		{RESPONSES, "{" INPUT ",\"stream\":true}",
	     "\"status\":\"failed\",\"error\":{\"code\":\"server_error\","},
	};
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = says_world("none", "none", "one two three four five<|im_end|>", 1u << 20);
	struct ask a = {.port = http_port(w->r.http), .path = t[_i].path, .body = t[_i].body};
	pthread_t thread;
	w->pause_at = 3;
	ck_assert_int_eq(pthread_create(&thread, NULL, ask_thread, &a), 0);
	for (uint64_t end = clock_us() + 20000000; clock_us() < end;) {
		event_base_loop(w->base, EVLOOP_ONCE);
		list_each(it, &w->running)
			if (list_entry(it, struct world_attempt, node)->index == 3)
				end = 0;
	}
	requests_stop(&w->r);
	while (!atomic_load(&a.over))
		event_base_loop(w->base, EVLOOP_ONCE);
	pthread_join(thread, NULL);
	has(a.out, t[_i].has);
	if (_i)
		free(line_of(RESPONSES, a.out));
	ck_assert_ptr_null(strstr(a.out, "[DONE]"));
	free(a.out);
	world_free(w);
}

/* --- what a template sees ------------------------------------------------ */

#define HI "'messages':[{'role':'user','content':'Hi'}]"
#define CALLED(more) "{'role':'assistant','content':null,'tool_calls':[" more "]}"

static const struct {
	const char *path, *body, *has;
} seen[] = {
	{RESPONSES, "'input':'Hi'", "[{'role': 'user', 'content': 'Hi'}]"},
	{RESPONSES, "'input':'Hi','instructions':'Be.'",
     "[{'role': 'system', 'content': 'Be.'}, {'role': 'user', 'content': 'Hi'}]"},
	{RESPONSES,
     "'input':[{'role':'developer','content':'And do.'},{'role':'user','content':'Hi'}],"
     "'instructions':'Be.'",
     "[{'role': 'system', 'content': 'Be.nnAnd do.'}, {'role': 'user', 'content': 'Hi'}]"},
	{RESPONSES,
     "'input':[{'type':'message','role':'user','content':[{'type':'input_text','text':'a'},{'type':"
     "'input_text','text':'b'}]}]",
     "[{'role': 'user', 'content': 'ab'}]"},
	{RESPONSES,
     "'input':[{'role':'user','content':'u'},{'type':'reasoning','id':'rs','summary':[],'content':"
     "[{'type':'reasoning_text','text':'t'}]},{'type':'message','id':'m','status':'completed',"
     "'role':'assistant','content':[{'type':'output_text','text':'a','annotations':[]}]},{'type':"
     "'function_call','call_id':'1','name':'f','arguments':'{}'},{'type':'function_call','call_id':"
     "'2','name':'g','arguments':'{}'},{'type':'function_call_output','call_id':'1','output':'o'}]",
     "'role': 'assistant', 'content': 'a', 'reasoning_content': 't', 'tool_calls': [{'id': '1', "
     "'type': 'function', 'function': {'name': 'f', 'arguments': {}}}, {'id': '2', 'type': "
     "'function', 'function': {'name': 'g', 'arguments': {}}}]}, {'role': 'tool', 'content': 'o', "
     "'tool_call_id': '1'}]"},
	{RESPONSES,
     "'input':[{'role':'assistant','content':'a'},{'type':'reasoning','summary':[{'type':"
     "'summary_text','text':'t'}]},{'role':'assistant','content':[{'type':'refusal','refusal':'no'}"
     "]}]",
     "[{'role': 'assistant', 'content': 'a'}, {'thinking': 't', 'role': 'assistant', 'content': "
     "'no', 'reasoning_content': 't'}]"},
	{RESPONSES,
     "'input':[{'role':'user','content':'u'},{'type':'reasoning','content':[{'text':'s'},{'text':"
     "'t'}]},{'role':'user','content':'v'}]",
     "'role': 'assistant', 'content': '', 'reasoning_content': 'st'}, {'role': 'user', 'content': "
     "'v'}]"},
	{RESPONSES, "'input':'Hi','reasoning':{'effort':'low','summary':'auto'}", "] low - - "},
	{RESPONSES, "'input':'Hi','reasoning':{'effort':'none'}", "] none False False "},
	{RESPONSES,
     "'input':'Hi','chat_template_kwargs':{'thinking':true},'reasoning':{'effort':'none'}",
     "] none False True "},
	{RESPONSES, "'input':'Hi'", "] - - - True"},
	{MESSAGES, HI, "[{'role': 'user', 'content': 'Hi'}] - - - True"},
	{MESSAGES,
     HI ",'system':[{'type':'text','text':'x-anthropic-billing-header: cch=1;'},{'type':'text',"
        "'text':'Be.','cache_control':{'type':'ephemeral'}}]",
     "[{'role': 'system', 'content': 'Be.'}, {"},
	{MESSAGES, HI ",'system':[{'type':'text','text':'x-anthropic-billing-header: cch=1;'}]",
     "[{'role': 'user'"},
	{MESSAGES,
     "'messages':[{'role':'user','content':'u'},{'role':'assistant','content':[{'type':'thinking',"
     "'thinking':'t','signature':'s'},{'type':'text','text':'a'},{'type':'tool_use','id':'1','name'"
     ":'f','input':{'x':1}}]},{'role':'user','content':[{'type':'tool_result','tool_use_id':'1',"
     "'content':[{'type':'text','text':'o'}],'is_error':false},{'type':'text','text':'and'}]}]",
     "'role': 'assistant', 'content': 'a', 'reasoning_content': 't', 'tool_calls': [{'id': '1', "
     "'type': 'function', 'function': {'name': 'f', 'arguments': {'x': 1}}}]}, {'role': 'tool', "
     "'content': 'o', 'tool_call_id': '1'}, {'role': 'user', 'content': 'and'}]"},
	{MESSAGES,
     "'messages':[{'role':'user','content':[{'type':'tool_result','tool_use_id':'1'},{'type':"
     "'tool_result','tool_use_id':'2','content':'b'}]}]",
     "[{'role': 'tool', 'content': '', 'tool_call_id': '1'}, {'role': 'tool', 'content': 'b', "
     "'tool_call_id': '2'}]"},
	{MESSAGES, HI ",'thinking':{'type':'enabled','budget_tokens':1024}", "] - True True True"},
	{MESSAGES, HI ",'thinking':{'type':'disabled'}", "] - False False True"},
	{MESSAGES, HI ",'output_config':{'effort':'high'}", "] high - - True"},
	{MESSAGES, "'messages':[{'role':'user','content':'Hi'},{'role':'assistant','content':'Well'}]",
     "cannot continue the last message: the chat template does not use"},
	{MESSAGES,
     "'messages':[{'role':'assistant','content':[{'type':'tool_use','id':'1','name':'f','input':{}}"
     "]}]",
     "] - - - True"},
};

#define SHOW                                                                                    \
	"{{ raise_exception((messages | tojson) ~ ' ' ~ (reasoning_effort | default('-')) ~ ' ' ~ " \
	"(enable_thinking | default('-')) ~ ' ' ~ (thinking | default('-')) ~ ' ' ~ "               \
	"add_generation_prompt) }}"

/* Quotes as ours and without the backslashes of JSON in JSON. */
static void single_quoted(char *s)
{
	char *to = s;
	for (; *s; s++)
		if (*s != '\\')
			*to++ = *s == '"' ? '\'' : *s;
	*to = 0;
}

static char *answer_to(struct world *w, const char *path, const char *inside)
{
	char *braced = mem_printf("{%s%s}",
	                          strcmp(path, MESSAGES) == 0 && !strstr(inside, "max_tokens")
	                              ? "'max_tokens':9,"
	                              : "",
	                          inside),
		 *body = double_quoted(braced), *out = ask(w, path, body);
	free(braced);
	free(body);
	return out;
}

TEST_LOOP(what_a_template_sees, 0, sizeof seen / sizeof *seen)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = says_world("hermes", "think", "x<|im_end|>", 1u << 20);
	struct chat_set own = {.special_tokens = json_object()};
	ck_assert_int_eq(chat_template_new(SHOW, strlen(SHOW), &own.plain, NULL), 0);
	w->model.text.chats = own;
	char *out = answer_to(w, seen[_i].path, seen[_i].body);
	has(out, "HTTP/1.1 400 ");
	single_quoted(out);
	has(out, seen[_i].has);
	free(out);
	chat_set_fini(&w->model.text.chats);
	world_free(w);
}

/* --- errors --------------------------------------------------------------- */

#define PART(part) "'messages':[{'role':'user','content':[" part "]}]"
#define ITEM(item) "'input':[{'role':'user','content':'x'}," item "]"
#define TOOL(tool) "'input':'x','tools':[" tool "]"
#define TOOL_OF(tool) HI ",'tools':[" tool "]"

static const struct {
	const char *path, *body, *param, *has; /* param: of responses */
} errors[] = {
	{RESPONSES, "'stream':false", "input", "input is required"},
	{RESPONSES, "'input':5", "input", "input must be a string or an array of items, got 5"},
	{RESPONSES, "'input':[]", "input", "array of items"},
	{RESPONSES, ITEM("5"), "input[1]", "input[1] must be an object"},
	{RESPONSES, ITEM("{'role':'x','content':'y'}"), "input[1].role", "input[1].role must be"},
	{RESPONSES, ITEM("{'role':'user','content':5}"), "input[1].content",
     "input[1].content must be"},
	{RESPONSES, ITEM("{'role':'user','content':[{'type':'input_image','image_url':'x'}]}"),
     "input[1].content[0]", "the type 'input_image', which is not supported"},
	{RESPONSES, ITEM("{'role':'user','content':[{'type':'input_text'}]}"),
     "input[1].content[0].text", "must be a string"},
	{RESPONSES, ITEM("{'type':'web_search_call','id':'1'}"), "input[1]", "'web_search_call'"},
	{RESPONSES, ITEM("{'type':'item_reference','id':'1'}"), "input[1]", "nothing is stored"},
	{RESPONSES, ITEM("{'type':'function_call','name':'f','arguments':'{}'}"), "input[1].call_id",
     "must be a string"},
	{RESPONSES, ITEM("{'type':'function_call_output','call_id':'1','output':5}"), "input[1].output",
     "must be a string or an array"},
	{RESPONSES, ITEM("{'type':'reasoning','content':[{'text':5}]}"), "input[1].content[0].text",
     "must be a string"},
	{RESPONSES, "'input':'x','instructions':5", "instructions", "must be a string"},
	{RESPONSES, "'input':'x','previous_response_id':'r'", "previous_response_id", "no responses"},
	{RESPONSES, "'input':'x','conversation':{'id':'c'}", "conversation", "not supported"},
	{RESPONSES, "'input':'x','prompt':{'id':'p'}", "prompt", "not supported"},
	{RESPONSES, "'input':'x','background':true", "background", "not supported"},
	{RESPONSES, "'input':'x','store':5", "store", "store must be true or false"},
	{RESPONSES, "'input':'x','truncation':'auto'", "truncation", "must be 'disabled'"},
	{RESPONSES, "'input':'x','max_output_tokens':0", "max_output_tokens",
     "'message':'max_output_tokens must be an integer from 1"},
	{RESPONSES, "'input':'x','max_output_tokens':9000", "max_output_tokens",
     "Lower max_output_tokens"},
	{RESPONSES, "'input':'x','min_tokens':9,'max_output_tokens':3", "min_tokens",
     "more than max_output_tokens"},
	{RESPONSES, "'input':'x','reasoning':{'effort':5}", "reasoning.effort", "must be a string"},
	{RESPONSES, "'input':'x','include':[5]", "include[0]", "must be a string"},
	{RESPONSES, "'input':'x','text':{'format':{'type':'xml'}}", "text.format.type", "must be"},
	{RESPONSES, "'input':'x','text':{'format':{'type':'json_schema','name':'n'}}",
     "text.format.schema", "must be an object"},
	{RESPONSES, "'input':'x','text':{'format':{'type':'json_schema','schema':{'type':'nothing'}}}",
     "text.format", "'message':'text.format: "},
	{RESPONSES, "'input':'x','text':{'format':{'type':'json_schema','schema':{},'strict':5}}",
     "text.format", "'message':'text.format.strict must be"},
	{RESPONSES, TOOL("5"), "tools[0]", "must be an object with a type"},
	{RESPONSES, TOOL("{'type':'web_search'}"), "tools[0]", "the tool 'web_search'"},
	{RESPONSES, TOOL("{'type':'function','name':'a b'}"), "tools", "'message':'tools[0].name must"},
	{RESPONSES, TOOL("{'type':'function','name':'a','parameters':5}"), "tools",
     "'message':'tools[0].parameters must be"},
	{RESPONSES, TOOL("{'type':'function','name':'a'}") ",'tool_choice':'x'", "tool_choice",
     "must be"},
	{RESPONSES,
     TOOL("{'type':'function','name':'a'}") ",'tool_choice':{'type':'function','name':'b'}",
     "tool_choice", "not among tools"},
	{RESPONSES,
     TOOL("{'type':'function','name':'a'}") ",'tool_choice':{'type':'allowed_tools','mode':'auto',"
                                            "'tools':[{'type':'function','name':'b'}]}",
     "tool_choice.tools", "tool_choice.tools[0] must be a function that is among tools"},
	{RESPONSES,
     TOOL("{'type':'function','name':'a'}") ",'tool_choice':{'type':'allowed_tools','mode':'none',"
                                            "'tools':[{'type':'function','name':'a'}]}",
     "tool_choice.mode", "'message':'tool_choice.mode must be"},
	{RESPONSES,
     TOOL("{'type':'function','name':'a'}") ",'tool_choice':{'type':'allowed_tools','mode':'auto'}",
     "tool_choice.tools", "'message':'tool_choice.tools must be an array"},
	{RESPONSES, "'input':'x','temperature':-1", "temperature", "temperature must be"},
	{MESSAGES, "'max_tokens':null," HI, NULL, "max_tokens is required"},
	{MESSAGES, "'max_tokens':9", NULL, "messages is required"},
	{MESSAGES, "'messages':[]", NULL, "messages must be an array"},
	{MESSAGES, "'messages':[5]", NULL, "messages[0].role must be"},
	{MESSAGES, "'messages':[{'role':'user','content':5}]", NULL, "messages[0].content must be"},
	{MESSAGES, "'messages':[{'role':'user','content':[]}]", NULL, "not empty"},
	{MESSAGES, PART("{'type':'image','source':{}}"), NULL,
     "messages[0].content[0] has the type 'image', which is not supported"},
	{MESSAGES, PART("{'type':'tool_result'}"), NULL, "content[0].tool_use_id must be a string"},
	{MESSAGES, PART("{'type':'tool_result','tool_use_id':'1','content':5}"), NULL,
     "content[0].content must be"},
	{MESSAGES, PART("{'type':'tool_result','tool_use_id':'1','content':[{'type':'image'}]}"), NULL,
     "content[0].content[0] has the type 'image'"},
	{MESSAGES, "'messages':[{'role':'assistant','content':[{'type':'tool_use','id':'1'}]}]", NULL,
     "content[0].name must be"},
	{MESSAGES,
     "'messages':[{'role':'assistant','content':[{'type':'tool_use','id':'1','name':'f'}]}]", NULL,
     "content[0].input must be an object"},
	{MESSAGES, HI ",'system':5", NULL, "system must be a string"},
	{MESSAGES, HI ",'stop_sequences':'x'", NULL, "stop_sequences must be an array"},
	{MESSAGES, HI ",'stop_sequences':['a','']", NULL, "'message':'stop_sequences[1] has 0 bytes"},
	{MESSAGES, HI ",'stop_token_ids':['a']", NULL, "'message':'stop_token_ids[0] must be"},
	{MESSAGES, HI ",'thinking':{'type':'x'}", NULL, "thinking.type must be"},
	{MESSAGES, HI ",'metadata':{'user_id':5}", NULL, "metadata.user_id must be a string"},
	{MESSAGES, HI ",'container':'c'", NULL, "container is not supported"},
	{MESSAGES, HI ",'output_config':{'format':{'type':'json_schema','schema':{'type':'nothing'}}}",
     NULL, "'message':'output_config.format: "},
	{MESSAGES, TOOL_OF("{'type':'web_search_20250305','name':'web_search'}"), NULL,
     "tools[0] is the tool 'web_search_20250305'"},
	{MESSAGES, TOOL_OF("{'name':'f'}"), NULL, "tools[0].input_schema must be an object"},
	{MESSAGES, TOOL_OF("{'name':'a b','input_schema':{}}"), NULL,
     "'message':'tools[0].name must be"},
	{MESSAGES,
     TOOL_OF("{'name':'f','input_schema':{'type':'object','properties':{'a':{'if':{}}}}}") ",'tool_"
                                                                                           "choice'"
                                                                                           ":{'type"
                                                                                           "':'any'"
                                                                                           "}",
     NULL, "'message':'tools[0].input_schema: "},
	{MESSAGES, HI ",'tool_choice':{'type':'any'}", NULL, "of the type 'any' needs tools"},
	{MESSAGES, HI ",'tool_choice':{'type':'x'}", NULL, "tool_choice.type must be"},
	{MESSAGES, HI ",'temperature':-1", NULL, "temperature must be"},
	{"/v1/messages/count_tokens", "'messages':5", NULL, "messages must be an array"},
};

TEST_LOOP(errors_name_what_the_client_said, 0, sizeof errors / sizeof *errors)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = says_world("hermes", "think", "x<|im_end|>", 1u << 20);
	char *out = answer_to(w, errors[_i].path, errors[_i].body), param[96];
	has(out, "HTTP/1.1 400 ");
	single_quoted(out);
	has(out, errors[_i].has);
	snprintf(param, sizeof param, "'param':'%s',", errors[_i].param ? errors[_i].param : "");
	has(out, errors[_i].param ? param : "{'type':'error','error':{'type':'invalid_request_error',");
	free(out);
	world_free(w);
}

TEST(unknown_parameters)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = says_world("none", "none", "x<|im_end|>", 1u << 20);
	static const struct {
		const char *path, *body, *has;
	} t[] = {
		{RESPONSES, "'input':'x','max_tokens':1,'stream':true",
	     "'warnings':['max_tokens is not a parameter"},
		{RESPONSES, "'input':'x','max_output_token':1", "did you mean max_output_tokens?"},
		{MESSAGES, HI ",'stop':'x','stream':true", "'warnings':['stop is not a parameter"},
		{MESSAGES, HI ",'thinkin':1", "did you mean thinking?"},
		{MESSAGES, HI ",'echo':true", "'warnings':['echo is not a parameter"},
		{RESPONSES,
	     "'input':'x','foo':1,'text':{'format':{'type':'json_schema','name':'n','schema':{'type':"
	     "'object','properties':{},'bar':1}}}",
	     "'warnings':['foo is not a parameter of this server','bar of the answer's schema "
	     "constrains nothing"},
	};
	for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
		char *out = answer_to(w, t[i].path, t[i].body);
		has(out, "HTTP/1.1 200 ");
		single_quoted(out);
		has(out, t[i].has);
		ck_assert_uint_eq(count(out, "'warnings'"), 1);
		free(out);
	}
	w->r.conf.refuse_unknown = 1;
	char *out = answer_to(w, RESPONSES, "'input':'x','messages':[]");
	has(out, "HTTP/1.1 400 ");
	free(out);
	world_free(w);
}

/* A translation that has a little more memory each time gets a little further; it is never taken
 * for complete without all of it. */
TEST_LOOP(each_allocation_of_a_translation_fails, 0, 2)
{
	static const struct {
		const char *path, *item, *more;
	} t[] = {
		{RESPONSES,
	     "{'role':'user','content':[{'type':'input_text','text':'a'}]},{'type':'reasoning','"
	     "summary'"
	     ":[{'text':'t'}]},{'type':'function_call','call_id':'1','name':'f','arguments':'{}'},{'"
	     "type':"
	     "'function_call_output','call_id':'1','output':'o'}",
	     ",'instructions':'Be.','tools':[{'type':'function','name':'f','parameters':{}}],'"
	     "reasoning':"
	     "{'effort':'none'},'max_output_tokens':1,'include':['message.output_text.logprobs']"},
		{MESSAGES,
	     "{'role':'user','content':[{'type':'tool_result','tool_use_id':'1'},{'type':'text','text':"
	     "'a'"
	     "}]},{'role':'assistant','content':[{'type':'thinking','thinking':'t','signature':''},{"
	     "'type':'tool_use','id':'1','name':'f','input':{}}]}",
	     ",'system':[{'type':'text','text':'Be.'}],'tools':[{'name':'f','input_schema':{}}],"
	     "'thinking':{'type':'disabled'},'metadata':{'user_id':'u'},'max_tokens':1"},
	};
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = says_world("hermes", "think", "x<|im_end|>", 1u << 20);
	char *single = mem_printf("{'%s':[%s]%s}", _i ? "messages" : "input", t[_i].item, t[_i].more),
		 *body = double_quoted(single);
	json_t *o = json_loads(body, 0, NULL);
	ck_assert(o != NULL);
	unsigned refused = 0;
	for (int r = -1; r < 0; refused++) {
		struct request_prepare q = {.kind = _i ? KIND_MESSAGES : KIND_RESPONSES,
		                            .model = &w->model,
		                            .context = 8192,
		                            .vocab = 49152,
		                            .max_answers = 1};
		quota_init(&q.quota, NULL, (refused + 1) * 40);
		q.json.quota = &q.quota;
		q.body.len = strlen(body);
		buf_init_quota(&q.echo, 0, &q.quota);
		pds__constraint__init(&q.constraint);
		q.constraint.text = NULL;
		json_account_begin(&q.json);
		r = _i ? api_messages_prepare(&q, o) : api_responses_prepare(&q, o);
		json_account_end();
		ck_assert_msg(r == 0 || q.quota.over, "%s", q.error.text);
		request_prepare_fini(&q);
	}
	ck_assert_msg(refused > 200, "%u", refused);
	json_decref(o);
	free(body);
	free(single);
	world_free(w);
}

/* What is wrong before a request begins is told in the shape of its path. */
TEST(errors_of_a_path)
{
	static const struct {
		const char *path;
		int is_messages;
	} t[] = {
		{"/v1/messages/batches", 1},
		{"/v1/messages/count_tokens/x", 1},
		{"/v1/messagesx", 0},
		{"/v1/responses/resp_1", 0},
	};
	struct world *w = world_new(NULL, 1u << 20);
	for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
		char *out = ask(w, t[i].path, "{}");
		has(out, "HTTP/1.1 404 ");
		has(out, t[i].is_messages ? "{\"type\":\"error\",\"error\":{\"type\":\"not_found_error\","
		                          : "{\"error\":{\"message\":");
		free(out);
	}
	world_free(w);
}

TEST(what_is_counted_and_repeated)
{
	if (!model)
		SKIP(SKIP_NO_MODEL);
	struct world *w = says_world("none", "think", "<think>Hm.</think>4<|im_end|>", 1u << 20);
	char *out = answer_to(w, RESPONSES,
	                      "'input':'x','instructions':'Be.','metadata':{'a':'b'},'tools':[],"
	                      "'temperature':0.5,'max_output_tokens':50"),
		 want[96];
	has(out, "\"instructions\":\"Be.\",\"max_output_tokens\":50,");
	has(out, "\"metadata\":{\"a\":\"b\"},\"parallel_tool_calls\":true,");
	has(out, "\"temperature\":0.5,\"text\":{\"format\":{\"type\":\"text\"}},");
	has(out, "\"store\":false,\"truncation\":\"disabled\",\"status\":\"completed\"");
	snprintf(want, sizeof want, "\"output_tokens\":%zu,\"output_tokens_details\"", w->n_script);
	has(out, want);
	ck_assert_ptr_null(strstr(out, "\"reasoning_tokens\":0"));
	free(out);
	out = answer_to(w, "/v1/messages/count_tokens", HI);
	has(out, "HTTP/1.1 200 ");
	has(out, "{\"input_tokens\":");
	free(out);
	world_free(w);
}

TEST_START(quiet)
{
	log_init("test", NULL);
	log_set_level("error");
	signal(SIGPIPE, SIG_IGN); /* as the daemon skeleton does */
}
