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
	"cohere|harmony|pythonic|generic"
#define REASONING_PARSERS "auto|none|think|ernie|mistral|granite|cohere|harmony"
#define MODEL_MARKERS_MAX 24

/* LAST: an answer with a call ends with this marker, even if the model does not list it among its
 * end-of-sequence ids. */
enum { MODEL_MARKS_CALLS = 1, MODEL_MARKS_REASONING = 2, MODEL_MARKS_LAST = 4 };

struct model_marker {
	uint32_t id;
	unsigned whose; /* MODEL_MARKS_ */
};

struct model {
	char name[128]; /* as served */
	char **aliases; /* (n_aliases): further names; "*": any is one */
	unsigned n_aliases;
	char path[1024];
	struct text_model text;
	const struct tokenizer *tokenizer; /* text.tokenizer; NULL: only token ids are served */
	/* the format of its tool calls; NULL: unknown, or turned off */
	const struct toolcall_format *calls;
	const struct reasoning_format *reasoning; /* of its thoughts */
	int opens_by_token; /* the marker that opens thoughts is a token of its own */
	/* the markers of these formats that are special tokens */
	struct model_marker markers[MODEL_MARKERS_MAX];
	unsigned n_markers;
	uint32_t context; /* 0: unknown here, workers report it */
	int64_t created_s;
};

/* The name of a model in the API by default: its file's or folder's, without .gguf and the number
 * of a part; "default" without a path. */
void model_name_of(const char *path, char *out, size_t size);
/* path "": a router without text. served_name "": model_name_of(path). A tokenizer that this build
 * does not support is an error that names it. */
int served_model_open(const char *path, const char *served_name, struct model **ret_m,
                      struct err *err);
/* Copies them; call it once. ERR_INVALID: the error names one that is empty, too long, or a name
 * already. */
int model_set_aliases(struct model *m, const char *const *names, unsigned n, struct err *err);
int model_has_name(const struct model *m, const char *name);
/* Uses the chat template in this file, or for "" the model's own, which must be valid then. Call it
 * once, before the model is used. */
int model_use_template(struct model *m, const char *path, struct err *err);
void served_model_close(struct model **m);

/* Does its chat template show a request's tools to the model? */
int model_shows_tools(const struct model *m);
/* Each is "auto" (from the template), "none" or a format's name. Call it once, after the
 * tokenizer is open. */
int model_set_parsers(struct model *m, const char *tool_parser, const char *reasoning_parser,
                      struct err *err);
/* MODEL_MARKS_ of this token; 0: it is no marker */
unsigned model_marker(const struct model *m, uint32_t id);

#endif
