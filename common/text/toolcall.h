/* toolcall.h - finds tool calls in a model's answer while it is generated: text goes in in pieces
 * of any size, events come out.
 *
 * Each format is the way a family of models writes calls, as described by their chat templates and
 * model cards:
 *
 *   hermes        <tool_call>{"name": N, "arguments": {..}}</tool_call>
 *                 Hermes, Qwen 2.5 and 3, ERNIE 4.5, SmolLM3
 *   qwen3_coder   <tool_call><function=N><parameter=K>V</parameter></function></tool_call>
 *   llama3_json   {"name": N, "parameters": {..}}
 *                 as the whole answer or after <|python_tag|>; several are separated by ;
 *   mistral       [TOOL_CALLS][{"name": N, "arguments": {..}}]  or  [TOOL_CALLS]N[ARGS]{..}
 *   deepseek      <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>N<｜tool▁sep｜>{..}<｜tool▁call▁end｜>..
 *                 V3: function<｜tool▁sep｜>N ```json {..}```
 *   deepseek_v32  <｜DSML｜function_calls><｜DSML｜invoke name="N">
 *                 <｜DSML｜parameter name="K" string="true">V</｜DSML｜parameter>..
 *   glm           <tool_call>N<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>
 *   kimi_k2       <|tool_calls_section_begin|><|tool_call_begin|>functions.N:0
 *                 <|tool_call_argument_begin|>{..}<|tool_call_end|>..
 *   granite       <|tool_call|>[{"name": N, "arguments": {..}}]
 *   cohere        <|START_ACTION|>[{"tool_name": N, "parameters": {..}}]<|END_ACTION|>
 *   harmony       <|channel|>commentary to=functions.N <|constrain|>json<|message|>{..}<|call|>
 *                 gpt-oss (harmony.h)
 *   pythonic      [N(K=V, ..), ..] as the whole answer, with Python literals
 *   generic       {"tool_calls": [{"name": N, "arguments": {..}}, ..]} or {"response": "text"},
 *                 for models whose template shows no format (chat_generic.h)
 *
 * Rules. Text that may be the start of a call is held back until that is decided. A call starts
 * once its name is complete and is the name of a tool; that is reported at once. Its arguments
 * follow as JSON while they are generated: copied if the model writes JSON (raw control characters
 * in strings are escaped), converted if it does not (a value gets a type that the tool's schema
 * allows; it is a string if the tool has no such parameter). Text that is no call is content, byte
 * for byte. If a started call is broken off, its arguments stay incomplete and the rest is content.
 * White space directly before a call, and between a call and the end, is dropped; nothing else is.
 * The concatenation of the pieces does not depend on how the text was cut. Time is linear in the
 * text. */
#ifndef TEXT_TOOLCALL_H
#define TEXT_TOOLCALL_H

#include <jansson.h>
#include <stddef.h>

#define TOOLCALL_NAME_MAX 128
#define TOOLCALL_ID_SIZE 40
#define TOOLCALL_COUNT_MAX 128 /* per answer; further calls are content */

struct quota;
struct toolcall;
struct toolcall_format;
struct toolcall_tools;

enum toolcall_kind { TOOLCALL_CONTENT, TOOLCALL_BEGIN, TOOLCALL_ARGUMENTS, TOOLCALL_END };

struct toolcall_event {
	enum toolcall_kind kind;
	unsigned index; /* of the call: 0, 1, ..; not set for CONTENT */
	/* CONTENT, ARGUMENTS: a piece; BEGIN: the name, NUL-terminated. Valid during the call of the
	 * sink. */
	const char *text;
	size_t len;
	int is_broken; /* END: the call was broken off, its arguments are not complete */
};
typedef void toolcall_sink(void *arg, const struct toolcall_event *e);

/* NULL: unknown name */
const struct toolcall_format *toolcall_format_find(const char *name);
/* The format whose markers the chat template contains, else generic. */
const struct toolcall_format *toolcall_format_detect(const char *template_text, size_t len);
/* Is it described to the model in the prompt, not by the template? */
int toolcall_format_is_generic(const struct toolcall_format *f);
const char *toolcall_format_name(const struct toolcall_format *f);
/* The i-th marker that opens, separates or closes calls; NULL after the last one. Markers may be
 * special tokens of the vocabulary. */
const char *toolcall_format_marker(const struct toolcall_format *f, size_t i);
/* The marker that ends an answer with calls, although the model's files may not list it among the
 * ids that end a sequence. NULL: none. */
const char *toolcall_format_last(const struct toolcall_format *f);
/* Is the name valid: 1 to TOOLCALL_NAME_MAX of A-Z a-z 0-9 _ - . : / ? */
int toolcall_name_good(const char *name, size_t len);

/* tools: OpenAI's array, with valid names; below `parameters` anything is accepted. The result does
 * not refer to it. */
struct toolcall_tools *toolcall_tools_new(const json_t *tools);
void toolcall_tools_destroy(struct toolcall_tools **t);

/* tools and q must outlive the result. q: accounts for the text held back; NULL: no limit. */
struct toolcall *toolcall_new(const struct toolcall_format *f, const struct toolcall_tools *tools,
                              struct quota *q, toolcall_sink *sink, void *arg);
void toolcall_destroy(struct toolcall **t);
void toolcall_feed(struct toolcall *t, const char *text, size_t len);
/* The answer is complete; call once. ended: the model ended it with a token that is not in the
 * text. */
void toolcall_finish(struct toolcall *t, int ended);
unsigned toolcall_count(const struct toolcall *t); /* number of started calls */
/* the quota was exceeded: later text was lost */
int toolcall_is_full(const struct toolcall *t);

/* Makes an id of the form that the format's models expect ("call_" and 24 characters, or 9
 * characters). The same seed, choice and index give the same id. */
void toolcall_make_id(const struct toolcall_format *f, const char *seed, unsigned choice,
                      unsigned index, char out[TOOLCALL_ID_SIZE]);

#endif
