/* reasoning.h - splits a model's reasoning from its answer while it is generated: text goes in in
 * pieces of any size, pieces of reasoning or answer come out.
 *
 *   think     <think>REASONING</think>ANSWER                    DeepSeek R1 and V3, Qwen 3, GLM,
 *             SmolLM3
 *   ernie     the same; the answer may be inside <response>..</response>        ERNIE 4.5 Thinking,
 *             Granite 3.3
 *   mistral   [THINK]REASONING[/THINK]ANSWER                     Magistral
 *   granite   Here is my thought process: REASONING Here is my response: ANSWER      Granite 3.2
 *   cohere    <|START_THINKING|>REASONING<|END_THINKING|>ANSWER (which may be inside
 *             <|START_RESPONSE|>..<|END_RESPONSE|>)
 *   harmony   <|channel|>analysis<|message|>REASONING<|end|><|channel|>final<|message|>ANSWER
 *             gpt-oss
 *
 * Rules. Reasoning is recognised only at the start of the answer, after optional white space. If
 * the template opened it in the prompt, the answer starts inside the reasoning and may repeat the
 * opening marker; if the template also closed it, no reasoning is recognised. White space around
 * the reasoning, and between it and the answer, is dropped. Reasoning without a closing marker
 * lasts to the end. Text that may be a marker is held back until that is decided.
 *
 * harmony (harmony.h) is a sequence of messages instead, each of reasoning, answer or a call, in
 * any order. Heads and end markers are dropped; an empty line separates two messages of reasoning,
 * or two of the answer. A call belongs to the answer, byte for byte with its head and end marker:
 * toolcall.h parses it; <|start|> is added to a head that starts without a marker. Markers in
 * strings of a call's arguments are text, except an end marker directly before a complete head with
 * a channel: the call is broken off there, which HARMONY_BREAK tells toolcall.h. */
#ifndef TEXT_REASONING_H
#define TEXT_REASONING_H

#include <stddef.h>

struct quota;
struct reasoning;
struct reasoning_format;

/* thoughts: 1: text of the reasoning, 0: of the answer. The text is valid during the call. */
typedef void reasoning_sink(void *arg, int thoughts, const char *text, size_t len);

/* NULL: unknown name */
const struct reasoning_format *reasoning_format_find(const char *name);
/* The format whose markers the chat template contains; NULL: no known one. */
const struct reasoning_format *reasoning_format_detect(const char *template_text, size_t len);
const struct reasoning_format *reasoning_format_at(size_t i); /* NULL after the last one */
const char *reasoning_format_name(const struct reasoning_format *f);
/* NULL after the last one */
const char *reasoning_format_marker(const struct reasoning_format *f, size_t i);

/* The form of a constrained answer (grammar/grammar.h): reasoning between `open` and `close`;
 * `next`, a regex: text between reasoning and answer; `answer`: start of an answer that is no
 * call. */
struct reasoning_form {
	const char *open, *close, *next, *answer;
};
const struct reasoning_form *reasoning_format_form(const struct reasoning_format *f);
/* Does the form of any format contain this marker? */
int reasoning_form_spells(const char *marker);

/* State at the end of the prompt. WITHIN_THOUGHTS: the template opened the reasoning.
 * WITHIN_ANSWER: the prompt ends after the closing marker, or in a harmony message of another kind.
 * A template closes the reasoning at once if the request disables it (enable_thinking); an opening
 * marker that the model then writes is text, as in vLLM. */
enum reasoning_at { REASONING_BEFORE, REASONING_WITHIN_THOUGHTS, REASONING_WITHIN_ANSWER };
enum reasoning_at reasoning_opened(const struct reasoning_format *f, const char *prompt,
                                   size_t len);

/* at: state at the start of the answer. q: accounts for the text held back and must outlive the
 * result; NULL: no limit. */
struct reasoning *reasoning_new(const struct reasoning_format *f, enum reasoning_at at,
                                struct quota *q, reasoning_sink *sink, void *arg);
/* the quota was exceeded: later text was lost */
int reasoning_is_full(const struct reasoning *r);
void reasoning_destroy(struct reasoning **r);
void reasoning_feed(struct reasoning *r, const char *text, size_t len);
void reasoning_finish(struct reasoning *r); /* the answer is complete; call once */

#endif
