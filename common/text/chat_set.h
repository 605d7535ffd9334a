/* chat_set.h - the chat templates and the texts of the special tokens of a model, wherever its
 * makers stored them. */
#ifndef TEXT_CHAT_SET_H
#define TEXT_CHAT_SET_H

#include "text/chat.h"

struct gguf;

/* Immutable once filled. All zero: a model without templates. */
struct chat_set {
	struct chat_template *plain; /* NULL: none */
	/* "tool_use", for requests with tools; NULL: `plain` serves those too */
	struct chat_template *tools;
	json_t *special_tokens; /* object for struct chat_render; NULL: none are known */
};

/* Reads the metadata tokenizer.chat_template, tokenizer.chat_template.tool_use and
 * tokenizer.ggml.*_token_id. A missing template is no error; a syntax error in one is. */
int chat_set_from_gguf(const struct gguf *g, struct chat_set *ret, struct err *err);
/* Reads a model's folder. Templates: chat_template.jinja and
 * additional_chat_templates/tool_use.jinja, else chat_template in tokenizer_config.json (a text, or
 * a list of {"name", "template"}) or in chat_template.json. Special tokens: tokenizer_config.json
 * and special_tokens_map.json. */
int chat_set_from_folder(const char *folder, struct chat_set *ret, struct err *err);
/* Replaces both templates by the one in this file; the special tokens stay. On error nothing
 * changes. */
int chat_set_override(struct chat_set *s, const char *path, struct err *err);
void chat_set_fini(struct chat_set *s);

/* The template for a request; NULL if there is none. */
const struct chat_template *chat_set_choose(const struct chat_set *s, int has_tools);

#endif
