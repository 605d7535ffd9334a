/* chat.h - messages to prompt text, by the model's own chat template (Jinja), as Hugging Face's
 * apply_chat_template renders it.
 *
 * A template is immutable once made and may be used by several threads at once; nothing is shared
 * between two renderings. Time, memory, depth and size of the output are bounded whatever
 * template and conversation say. */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include "util/buf.h"
#include "util/err.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct chat_template;

/* What a template sees. All JSON is the caller's, is only read, and must not be changed by
 * anybody while rendering. */
struct chat_render {
	const json_t *messages;  /* array of objects, each as the client sent it */
	const json_t *tools;     /* array; NULL: `tools` is none */
	const json_t *documents; /* array; NULL: `documents` is none */
	/* object: further variables (enable_thinking, ...); never instead of one named here; NULL:
	 * none */
	const json_t *variables;
	/* object: bos_token, eos_token, ... to their texts; one that is absent is undefined; NULL:
	 * none */
	const json_t *special_tokens;
	int add_generation_prompt;
	/* the text ends where the last message's content ends; not together with
	 * add_generation_prompt */
	int continue_final_message;
	/* for strftime_now: seconds since 1970, shown in the local zone */
	int64_t now_s;
};

/* text: the template as stored in the model's file; it is copied. ERR_INVALID names the line and
 * what is wrong there. */
int chat_template_new(const char *text, size_t len, struct chat_template **ret_c, struct err *err);
void chat_template_destroy(struct chat_template **c);
/* As it was given, terminated; lives as long as the template. */
const char *chat_template_text(const struct chat_template *c, size_t *ret_len);
/* Whether the template renders a `content` that is a list of text parts; if not, join the parts
 * before rendering. */
int chat_template_takes_parts(const struct chat_template *c);
/* Whether the template shows one call of a tool in a message and no second one; if so, make
 * messages of one call each. */
int chat_template_takes_one_call(const struct chat_template *c);
/* Appends to out; nothing, when it fails. Members of a message whose value is null are removed
 * first, as the reference does. 0, ERR_FULL (limit of out, or a limit of the interpreter, which the
 * text names), or ERR_INVALID: for the template's own raise_exception err->text is its text
 * alone, else it names line and cause. Markers inside a role or content are not escaped: encode
 * with TOKENIZE_PARSE_SPECIAL only what may hold them. */
int chat_template_render(const struct chat_template *c, const struct chat_render *in,
                         struct buf *out, struct err *err);

#endif
