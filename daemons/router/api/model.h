/* model.h - the text side of the model that the router serves: name, tokenizer, chat template, from
 * the model's own file. Immutable once opened; used by several threads. */
#ifndef ROUTER_MODEL_H
#define ROUTER_MODEL_H

#include "text/reasoning.h"
#include "text/text_model.h"
#include "text/toolcall.h"
#include "util/err.h"

#include <stdint.h>

#define TOOL_PARSERS                                                                              \
	"auto|none|hermes|qwen3_coder|llama3_json|mistral|deepseek|deepseek_v32|glm|kimi_k2|granite|" \
	"cohere|harmony|pythonic"
#define REASONING_PARSERS "auto|none|think|ernie|mistral|granite|cohere|harmony"
#define MODEL_MARKERS_MAX 24

/* LAST: an answer with a call ends there, also where the model does not list it with its
 * end-of-sequence ids. */
enum { MODEL_MARKS_CALLS = 1, MODEL_MARKS_REASONING = 2, MODEL_MARKS_LAST = 4 };

struct model_marker {
	uint32_t id;
	unsigned whose; /* MODEL_MARKS_ */
};

struct model {
	char name[128]; /* as served */
	char path[1024];
	struct text_model text;
	const struct tokenizer *tokenizer; /* of text; NULL: only token ids are served */
	/* how it writes calls of tools; NULL: not known, or not wanted */
	const struct toolcall_format *calls;
	const struct reasoning_format *reasoning; /* and thoughts */
	int opens_by_token; /* the marker that opens thoughts is a token of its own */
	/* of these formats, as far as they are special tokens */
	struct model_marker markers[MODEL_MARKERS_MAX];
	unsigned n_markers;
	uint32_t context; /* 0: not known here, the workers say it */
	int64_t created_s;
};

/* path "": a router without text. served_name "": the file's own name. A tokenizer that this
 * build cannot do is an error, by name. */
int model_open(const char *path, const char *served_name, struct model **ret_m, struct err *err);
/* The chat template in this file, or for "" those of the model's own, which must be right then.
 * To be called once, before the model is used. */
int model_use_template(struct model *m, const char *path, struct err *err);
void model_close(struct model **m);

/* parsers.c */
/* sets the formats that the template shows */
void model_see_template(struct model *m, const char *text, size_t len);
/* Each "auto" (as seen), "none" or a format's name. To be called once, when the tokenizer is
 * there. */
int model_set_parsers(struct model *m, const char *tool_parser, const char *reasoning_parser,
                      struct err *err);
/* MODEL_MARKS_ of both that this token is a marker of */
unsigned model_marker(const struct model *m, uint32_t id);

#endif
