/* chat.h - renders messages to prompt text with the model's own chat template (Jinja), as Hugging
 * Face's apply_chat_template does.
 *
 * A template is immutable and may be used by several threads at once; renderings share nothing.
 * Time, memory, depth and output size are bounded for any template and conversation. */
#ifndef TEXT_CHAT_H
#define TEXT_CHAT_H

#include "util/buf.h"
#include "util/err.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct chat_template;

/* What a template sees. The caller owns all JSON. It is only read, and nobody may change it during
 * rendering. */
struct chat_render {
	const json_t *messages;  /* array of objects, each as the client sent it */
	const json_t *tools;     /* array; NULL: the template sees `tools` as none */
	const json_t *documents; /* array; NULL: the template sees `documents` as none */
	/* object: further variables (enable_thinking, ...); they cannot override those named here;
	 * NULL: none */
	const json_t *variables;
	/* object: names (bos_token, eos_token, ...) to texts; absent names are undefined; NULL: none */
	const json_t *special_tokens;
	int add_generation_prompt;
	/* the text ends where the last message's content ends; excludes add_generation_prompt */
	int continue_final_message;
	/* for strftime_now: seconds since 1970, shown in the local time zone */
	int64_t now_s;
};

/* Copies `text`, the template as stored in the model's file. ERR_INVALID names the line and the
 * cause. */
int chat_template_new(const char *text, size_t len, struct chat_template **ret_c, struct err *err);
void chat_template_destroy(struct chat_template **c);
/* The text given to chat_template_new, NUL-terminated; valid as long as the template. */
const char *chat_template_text(const struct chat_template *c, size_t *ret_len);
/* Does the template render a `content` that is a list of text parts? If not, join the parts before
 * rendering. */
int chat_template_takes_parts(const struct chat_template *c);
/* Does the template know the role developer? If not, it is called system before rendering. */
int chat_template_names_developer(const struct chat_template *c);
/* Does the template render only one tool call per message? If so, split messages into one call
 * each. */
int chat_template_takes_one_call(const struct chat_template *c);
/* Appends the prompt to out, or nothing on error. Members of a message whose value is null are
 * removed first, as the reference does. Markers inside a role or content are not escaped: encode
 * with TOKENIZE_PARSE_SPECIAL only text that may contain them.
 *
 * Returns 0; ERR_FULL if out's limit or a limit of the interpreter (named in err->text) was
 * reached; ERR_INVALID otherwise. For the template's own raise_exception, err->text is exactly its
 * message; other errors name line and cause. */
int chat_template_render(const struct chat_template *c, const struct chat_render *in,
                         struct buf *out, struct err *err);

#endif
