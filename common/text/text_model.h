/* text_model.h - the text side of a model on disk: its tokenizer and its chat templates, read from
 * a GGUF file or a Hugging Face folder. Immutable once opened, so several threads may use it at
 * once. */
#ifndef TEXT_TEXT_MODEL_H
#define TEXT_TEXT_MODEL_H

#include "text/chat_set.h"
#include "text/tokenizer.h"
#include "util/err.h"

struct gguf;

struct text_model {
	struct gguf *file;           /* NULL: the model is a folder */
	struct tokenizer *tokenizer; /* NULL: the model has none */
	struct chat_set chats;       /* empty: none, or unusable (chats_error) */
	/* why the model's own templates cannot be used; code 0: no error */
	struct err chats_error;
};

/* A tokenizer that this build does not support is an error that names it. A missing tokenizer or an
 * invalid chat template is not. On error nothing is left open. */
int text_model_open(const char *path, struct text_model *ret, struct err *err);
/* Uses the chat template in this file from now on. "": use the model's own templates; an error if
 * these are invalid. Call it before other threads use the model. */
int text_model_use_template(struct text_model *m, const char *path, struct err *err);
void text_model_close(struct text_model *m);

#endif
