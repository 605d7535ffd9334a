/* pretok.h - cuts text into the pieces that byte-level BPE works on, as the model's
 * pre-tokenizer expression says. */
#ifndef TEXT_PRETOK_H
#define TEXT_PRETOK_H

#include "util/err.h"

#include <stddef.h>

/* The expressions that this build knows; a pre-tokenizer is a few of them, each cutting the
 * pieces of the one before. */
enum pretok_stage {
	PRETOK_NONE,
	PRETOK_DIGIT,
	PRETOK_DIGITS,
	PRETOK_NUMBERS_3,
	PRETOK_HAN_KANA,
	PRETOK_GPT2,
	PRETOK_LLAMA3,
	PRETOK_QWEN2,
	PRETOK_TEKKEN,
	PRETOK_GPT4O,
	PRETOK_DEEPSEEK3,
	PRETOK_STAGE_COUNT
};
enum { PRETOK_STAGES = 4 };

/* What a name in GGUF's tokenizer.ggml.pre stands for. */
struct pretok_kind {
	const char *name;
	enum pretok_stage stage[PRETOK_STAGES]; /* to the first PRETOK_NONE */
	int nfc;                                /* text is normalized before */
	/* a piece that is a token as a whole is taken without merging */
	int ignore_merges;
	int adds_bos; /* when the file does not say */
};

/* NULL when the name is not in the table. */
const struct pretok_kind *pretok_kind_find(const char *name, size_t len);
/* The stage whose expression tokenizer.json writes so, or PRETOK_NONE. */
enum pretok_stage pretok_stage_find(const char *expr, size_t len);
/* Its matches cover every text: what is between matches is nothing. */
int pretok_stage_covers(enum pretok_stage s);
const char *pretok_stage_name(enum pretok_stage s);

struct pretok;
struct quota;

/* Immutable. To the first PRETOK_NONE, or PRETOK_STAGES. */
struct pretok *pretok_new(const enum pretok_stage *stages);
void pretok_destroy(struct pretok **p);

/* What one call, or many calls of one thread, need besides; zeroed to begin with. */
struct pretok_scratch {
	struct quota *quota; /* that it is taken from; NULL: none */
	void *match;         /* pcre2_match_data */
	unsigned char *classes;
	size_t classes_size;
};
void pretok_scratch_fini(struct pretok_scratch *s);

/* Gives each piece of well-formed UTF-8, in order, without a gap. Stops when give returns an error,
 * and returns that; ERR_NOMEM when the expression needs more memory than its bound. */
typedef int (*pretok_give_fn)(void *arg, const char *piece, size_t len);
int pretok_split(const struct pretok *p, struct pretok_scratch *s, const char *text, size_t len,
                 pretok_give_fn give, void *arg);

#endif
