/* pretok.h - cuts text into the pieces that byte-level BPE merges, using the model's pre-tokenizer
 * expression. */
#ifndef TEXT_PRETOK_H
#define TEXT_PRETOK_H

#include "util/err.h"

#include <stddef.h>

/* The expressions that this build knows. A pre-tokenizer is a list of them; each stage cuts the
 * pieces of the stage before. */
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

/* Describes a name in GGUF's tokenizer.ggml.pre. */
struct pretok_kind {
	const char *name;
	enum pretok_stage stage[PRETOK_STAGES]; /* ends at the first PRETOK_NONE */
	int nfc;                                /* normalize the text to NFC first */
	/* a piece that is one token as a whole is not merged */
	int ignore_merges;
	int adds_bos; /* default if the file does not say */
};

/* NULL: unknown name */
const struct pretok_kind *pretok_kind_find(const char *name, size_t len);
/* The stage whose expression tokenizer.json writes as `expr`, or PRETOK_NONE. */
enum pretok_stage pretok_stage_find(const char *expr, size_t len);
/* Do its matches always cover the whole text, without gaps? */
int pretok_stage_covers(enum pretok_stage s);

struct pretok;
struct quota;

/* stages: ends at the first PRETOK_NONE, or has PRETOK_STAGES elements. The result is immutable. */
struct pretok *pretok_new(const enum pretok_stage *stages);
void pretok_destroy(struct pretok **p);

/* Working memory of one call, or of all calls of one thread. Initialise it with zeros. */
struct pretok_scratch {
	struct quota *quota; /* accounts for the memory; NULL: no limit */
	void *match;         /* pcre2_match_data */
	unsigned char *classes;
	size_t classes_size;
};
void pretok_scratch_fini(struct pretok_scratch *s);

/* Calls give for each piece of well-formed UTF-8, in order and without gaps. Stops at and returns
 * the first error of give. ERR_NOMEM: the expression exceeded its memory limit, or out of
 * memory. */
typedef int (*pretok_give_fn)(void *arg, const char *piece, size_t len);
int pretok_split(const struct pretok *p, struct pretok_scratch *s, const char *text, size_t len,
                 pretok_give_fn give, void *arg);

#endif
