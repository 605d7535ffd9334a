/* text_model.h - the text side of a model on disk: its tokenizer and its chat templates, from a
 * GGUF file or a Hugging Face folder. Immutable once opened; may be used by several threads at
 * once. */
#ifndef TEXT_TEXT_MODEL_H
#define TEXT_TEXT_MODEL_H

#include "text/chat_set.h"
#include "text/tokenizer.h"
#include "util/err.h"

struct gguf;

struct text_model {
	struct gguf *file;           /* NULL: a folder */
	struct tokenizer *tokenizer; /* NULL: the model has none */
	struct chat_set chats;       /* empty: none, or see chats_error */
	struct err chats_error;      /* code 0, or why those of its own cannot be used */
};

/* A tokenizer that this build cannot do is an error, by name; none at all, and a chat template
 * that is wrong, are not. After an error nothing is open. */
int text_model_open(const char *path, struct text_model *ret, struct err *err);
/* The chat template in this file from now on, or for "" those of the model's own, which must be
 * right then. Before others use the model. */
int text_model_use_template(struct text_model *m, const char *path, struct err *err);
void text_model_close(struct text_model *m);

#endif
