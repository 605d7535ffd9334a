/* reasoning.h - the thinking of a model split from its answer, while it is written: text goes in by
 * pieces of any size, pieces of one or the other come out.
 *
 *   think     <think>THOUGHTS</think>ANSWER                     DeepSeek R1 and V3, Qwen 3, GLM,
 *             SmolLM3
 *   ernie     the same; the answer may stand in <response>..</response>         ERNIE 4.5 Thinking,
 *             Granite 3.3
 *   mistral   [THINK]THOUGHTS[/THINK]ANSWER                      Magistral
 *   granite   Here is my thought process: THOUGHTS Here is my response: ANSWER        Granite 3.2
 *   cohere    <|START_THINKING|>THOUGHTS<|END_THINKING|>ANSWER (which may stand in
 *             <|START_RESPONSE|>..<|END_RESPONSE|>)
 *   harmony   <|channel|>analysis<|message|>THOUGHTS<|end|><|channel|>final<|message|>ANSWER
 *             gpt-oss
 *
 * Rules. Thoughts are looked for at the beginning of the answer only, behind white space. A
 * template may have opened them in the prompt: then the answer begins within them, and the opening
 * marker may come again. Where it closed them there, they are not looked for. White space around
 * the thoughts, and before the answer behind them, is dropped. Thoughts that never end are thoughts
 * to the end. What may be a marker is held back until that is decided.
 *
 * harmony (harmony.h) is a row of messages instead, each of thoughts, of the answer, or a call, in
 * any order. Heads and ends are dropped; two messages of thoughts, or of the answer, have an empty
 * line between them. A call is the answer's, byte for byte with its head and its end: toolcall.h
 * reads it; a head that begins with no marker gets <|start|>. Markers in strings of its arguments
 * are text, but where an end comes right before a whole head with a channel: the call breaks off
 * there, which HARMONY_BREAK tells toolcall.h. */
#ifndef TEXT_REASONING_H
#define TEXT_REASONING_H

#include <stddef.h>

struct quota;
struct reasoning;
struct reasoning_format;

/* thoughts: 1: of the thoughts, 0: of the answer. The text is valid during the call. */
typedef void reasoning_sink(void *arg, int thoughts, const char *text, size_t len);

/* NULL: none of that name */
const struct reasoning_format *reasoning_format_find(const char *name);
/* The format that a chat template (its text) shows; NULL: none that is known. */
const struct reasoning_format *reasoning_format_detect(const char *template_text, size_t len);
const struct reasoning_format *reasoning_format_at(size_t i); /* NULL past the last one */
const char *reasoning_format_name(const struct reasoning_format *f);
/* NULL past the last one */
const char *reasoning_format_marker(const struct reasoning_format *f, size_t i);

/* How a bound answer is written (grammar/grammar.h): thoughts from open to close, what stands
 * before the answer behind thoughts (a regex), and what an answer begins with that is no call. */
struct reasoning_form {
	const char *open, *close, *next, *answer;
};
const struct reasoning_form *reasoning_format_form(const struct reasoning_format *f);
/* 1: some format's form spells this marker. */
int reasoning_form_spells(const char *marker);

/* Where the prompt ends. WITHIN_THOUGHTS: the template opened them. WITHIN_ANSWER: behind the
 * marker that closes them, or in a message of harmony. A template closes them right away where the
 * request wants none (enable_thinking); an opening marker that the model writes then is text, as
 * vLLM has it. */
enum reasoning_at { REASONING_BEFORE, REASONING_WITHIN_THOUGHTS, REASONING_WITHIN_ANSWER };
enum reasoning_at reasoning_opened(const struct reasoning_format *f, const char *prompt,
                                   size_t len);

/* at: where the answer begins. q: what is held back is taken from it; outlives this; NULL: none. */
struct reasoning *reasoning_new(const struct reasoning_format *f, enum reasoning_at at,
                                struct quota *q, reasoning_sink *sink, void *arg);
/* the quota was exceeded: the text from there on is not looked at */
int reasoning_is_full(const struct reasoning *r);
void reasoning_destroy(struct reasoning **r);
void reasoning_feed(struct reasoning *r, const char *text, size_t len);
void reasoning_finish(struct reasoning *r); /* the answer is over; once */

#endif
