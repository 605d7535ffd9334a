/* toolcall.h - calls of tools in a model's answer, found while it is written: text goes in by
 * pieces of any size, events come out.
 *
 * Each format is how a family of models writes calls (their chat templates and model cards describe
 * it):
 *
 *   hermes        <tool_call>{"name": N, "arguments": {..}}</tool_call>
 *                 Hermes, Qwen 2.5 and 3, ERNIE 4.5, SmolLM3
 *   qwen3_coder   <tool_call><function=N><parameter=K>V</parameter></function></tool_call>
 *   llama3_json   {"name": N, "parameters": {..}}
 *                 as the whole answer or behind <|python_tag|>; several with ; between
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
 *   pythonic      [N(K=V, ..), ..] as the whole answer, literals as Python writes them
 *
 * Rules. What may be the beginning of a call is held back until it is decided. A call begins when
 * its name is complete and one of the tools', and is told at once; its arguments follow while they
 * are written, as JSON: copied where the model writes JSON (a raw control character in a string is
 * escaped), made where it does not (values get the type that the tool's schema names, a string
 * where it names none). What is no call is content, byte for byte; where a call that has begun
 * breaks off, its arguments stay as they are and the rest is content. White space right before a
 * call, and between a call and the end, is dropped, nothing else. The sum of the pieces is the
 * same however the text was cut. Time is linear in the text. */
#ifndef TEXT_TOOLCALL_H
#define TEXT_TOOLCALL_H

#include <jansson.h>
#include <stddef.h>

#define TOOLCALL_NAME_MAX 128
#define TOOLCALL_ID_SIZE 40
#define TOOLCALL_COUNT_MAX 128 /* calls in one answer; further ones are content */

struct quota;
struct toolcall;
struct toolcall_format;
struct toolcall_tools;

enum toolcall_kind { TOOLCALL_CONTENT, TOOLCALL_BEGIN, TOOLCALL_ARGUMENTS, TOOLCALL_END };

struct toolcall_event {
	enum toolcall_kind kind;
	unsigned index; /* of the call: 0, 1, ..; not of CONTENT */
	/* CONTENT, ARGUMENTS: a piece; BEGIN: the name, terminated. Valid during the call of the
	 * sink */
	const char *text;
	size_t len;
};
typedef void toolcall_sink(void *arg, const struct toolcall_event *e);

/* The format of that name; NULL: none. */
const struct toolcall_format *toolcall_format_find(const char *name);
/* The format that a chat template (its text) shows; NULL: none that is known. */
const struct toolcall_format *toolcall_format_detect(const char *template_text, size_t len);
const char *toolcall_format_name(const struct toolcall_format *f);
/* Marker i of those that open, separate and close calls, NULL past the last one. They may be
 * special tokens of a vocabulary. */
const char *toolcall_format_marker(const struct toolcall_format *f, size_t i);
/* The marker behind which an answer with a call ends, though its model file may not list it with
 * the ids that end sequences; NULL: there is none. */
const char *toolcall_format_last(const struct toolcall_format *f);
/* 1: a name that may be called: 1 to TOOLCALL_NAME_MAX of A-Z a-z 0-9 _ - . : / */
int toolcall_name_good(const char *name, size_t len);

/* tools: OpenAI's array, checked before (names good); what lies below `parameters` may be
 * anything. The result is independent of it. */
struct toolcall_tools *toolcall_tools_new(const json_t *tools);
void toolcall_tools_destroy(struct toolcall_tools **t);

/* tools outlives it, and so does q, which what is held back is taken from (NULL: none). */
struct toolcall *toolcall_new(const struct toolcall_format *f, const struct toolcall_tools *tools,
                              struct quota *q, toolcall_sink *sink, void *arg);
void toolcall_destroy(struct toolcall **t);
void toolcall_feed(struct toolcall *t, const char *text, size_t len);
/* The answer is over; once. ended: the model ended it, by a token that is not in the text. */
void toolcall_finish(struct toolcall *t, int ended);
unsigned toolcall_count(const struct toolcall *t); /* calls that have begun */
/* the quota was exceeded: the text from there on is not looked at */
int toolcall_is_full(const struct toolcall *t);

/* An id as the format's models expect it ("call_" and 24 characters, or 9 characters), the same
 * for the same seed, choice and call. */
void toolcall_make_id(const struct toolcall_format *f, const char *seed, unsigned choice,
                      unsigned index, char out[TOOLCALL_ID_SIZE]);

#endif
