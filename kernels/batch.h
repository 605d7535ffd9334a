/* batch.h - what a replay reads: the layout of a batch, what is drawn from its logits, and how. */
#ifndef KERNELS_BATCH_H
#define KERNELS_BATCH_H

#include "kernels/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

struct kern_mem; /* device.h */

/* Consecutive rows of one sequence at consecutive positions: a chunk of a prompt, or one
 * decoding row. */
struct kern_span {
	uint32_t row, rows; /* rows [row, row + rows) of its kind (enum kern_rows) */
	/* position of the first row; row i of the span attends to positions 0 .. position + i */
	uint32_t position;
	uint32_t table; /* index in the batch's block table of this sequence's first block */
};

/* What KERN_OP_PROGRESS stores for a span: `value`, to the word of the layer; words are `stride`
 * apart. */
struct kern_progress {
	kern_ptr word; /* of layer 0; 0: no progress for this span */
	uint64_t value;
	uint64_t stride; /* in words */
};

/* What the host wants for a tail row. */
enum kern_ask { KERN_ASK_NOTHING, KERN_ASK_DRAW, KERN_ASK_SCORE };
enum { KERN_TOP_MAX = 20, KERN_DRAFTED_MAX = 64, KERN_MATCH_LONG = 32, KERN_HISTORY_MAX = 1 << 26 };
#define KERN_NONE UINT32_MAX

/* `n` consecutive entries in the batch, from word `at`. */
struct kern_list {
	uint32_t at, n;
};

/* A draw applies these steps to a row's logits, in this order:
 *    logits (reported log-probabilities are of these, the model's own)
 *    -> minus infinity for ids missing from either mask and for forbidden ids
 *    -> add biases
 *    -> for each seen id, in float32: l > 0 ? l / repetition : l * repetition, then - frequency
 *       * times, then - presence if times > 0
 *    -> / temperature -> min_p -> top_k -> top_p -> typical_p -> draw
 * Each filter renormalises the probabilities for the next one.
 *  - min_p keeps ids of at least min_p times the largest probability; top_k the k largest; top_p
 *    the largest until their sum reaches it; typical_p those whose surprise -ln p is nearest to the
 *    entropy, in order of that distance, until their sum reaches it. Ties: lower ids first.
 *  - The draw takes a 53-bit fraction u from Philox4x32-10 (key: seed, counter: index) and picks
 *    the first id, in descending order of probability, at which the running sum (double) exceeds u.
 *  - A temperature below 1e-5 is greedy: the lowest id among the largest logits after the changes.
 *    So is a row whose largest logit is then infinite.
 *  - If no id is left above minus infinity, the result is the lowest id in both masks; without
 *    masks, or if they have none in common, 0.
 * Rows may share masks and lists. A score computes the log-probability of `id` in the same way,
 * without a draw. */
struct kern_draw {
	uint32_t ask; /* enum kern_ask; NOTHING: no result is written */
	uint32_t id;  /* the id to score; below the vocabulary */
	/* number of most probable ids to report, at most KERN_TOP_MAX; -1: no log-probabilities at
	 * all */
	int32_t logprobs;
	float temperature, min_p, top_p, typical_p; /* min_p 0, top_p 1, typical_p 0 or 1: off */
	uint32_t top_k;                             /* 0: off */
	uint32_t seed[2], index[2];                 /* 64 bits, low word first */
	float repetition, presence, frequency;      /* 1, 0, 0: off */
	/* word offset of a bit mask (id % 32 of word id / 32), padded to whole 64 bits; 0: all ids
	 * allowed */
	uint32_t mask[2];
	/* ids; here and below, ids beyond the vocabulary are ignored */
	struct kern_list forbidden;
	struct kern_list bias; /* pairs: id, float32 */
	/* pairs: id, its count in the answer (0: in the prompt only); ids are distinct */
	struct kern_list seen;
	/* further ids that count as part of the answer, at most KERN_DRAFTED_MAX */
	struct kern_list drafted;
	/* 1: the row's own token counts as well, which only the device knows (struct kern_advance) */
	uint32_t pending;
};

/* What a tail row was given and what was drawn from it, kept for the next run. */
struct kern_kept {
	uint32_t token, id;
};

/* How KERN_OP_ADVANCE completes a span that follows one of the run before, whose draws the host
 * does not know yet. Of the earlier span's rows in `kept` (limits.results) the first is accepted,
 * and those after it up to the first whose token is not what the row before it drew: a + 1 rows.
 *  - the span's first token is the draw of the last accepted row;
 *  - the positions of the span and its rows, their slots, the tail's span and the indices of its
 *    draws move on by `a`. The host has written them for a = 0; its block table covers any `a`;
 *  - the draws of the accepted rows are appended to the span's history;
 *  - the span's further tokens are a draft: what followed the longest match in the history (of
 *    equally long ones the latest) of its last tokens, at least `match` and at most
 *    KERN_MATCH_LONG; beyond the history's end the draft repeats. Without a match each is the
 *    span's first token. */
struct kern_advance {
	/* the entry of `kept` of the first of the earlier span's rows that drew, and their number: a
	 * row of the sequence's last token, then rows of a draft. KERN_NONE: the span is complete */
	uint32_t from, rows;
	/* the tail's span of this span's rows, no other span's; KERN_NONE: they draw nothing */
	uint32_t tail_span;
	/* the sequence's history, no other span's; KERN_NONE: none, and the span is a single row */
	uint32_t history;
	/* tokens that replace the history before the draws are appended; n 0: it is kept */
	struct kern_list known;
};

struct kern_top {
	uint32_t id;
	float logprob;
};

/* The result of a row. Log-probabilities are natural logarithms of the unscaled distribution. */
struct kern_drawn {
	/* a logit is NaN or plus infinity: the other fields are set (NaN counts as minus infinity) but
	 * must not be used */
	uint32_t not_finite;
	uint32_t token; /* the row's own, from which it was drawn */
	uint32_t id;
	float logprob; /* this and the fields below are 0 without log-probabilities */
	uint32_t rank; /* 1: the most probable; ties: lower ids first */
	uint32_t n_top;
	struct kern_top top[KERN_TOP_MAX]; /* descending */
};

/* An operation runs over all rows of the batch or over its tail, the rows that reach the head. */
enum kern_rows { KERN_ROWS_ALL, KERN_ROWS_TAIL };

/* The header of a batch. The batch is one block of 4-byte words, 64-byte aligned, at most
 * kern_limits.batch_bytes long. Its parts are located by word offsets from its start: */
struct kern_batch {
	uint32_t words; /* of the batch, including this header */
	/* at least 1 row and span; the tail may be empty */
	uint32_t rows, spans, tail_rows, tail_spans;
	uint32_t tokens;    /* (rows) ids below the vocabulary (the caller checks) */
	uint32_t positions; /* (rows) consistent with the spans */
	/* (rows) where a row's KV is written: block * block_tokens + position % block_tokens; all
	 * distinct */
	uint32_t slots;
	uint32_t span;       /* (spans) struct kern_span, covering all rows in order */
	uint32_t tail_index; /* (tail_rows) index among all rows */
	uint32_t tail_span;  /* (tail_spans) struct kern_span over the tail's rows */
	/* pool block numbers; token t of a span is in the block at [table + t / block_tokens] */
	uint32_t table;
	/* (spans) struct kern_progress, at an even word; 0: no progress */
	uint32_t progress;
	uint32_t draws; /* (tail_rows) struct kern_draw; 0: no draws */
	/* tail row r's result is written at sample.results[first_result + r], and kept there, so that
	 * runs in flight do not overwrite each other's */
	uint32_t first_result;
	uint32_t advance; /* (spans) struct kern_advance; 0: all spans are complete */
};

/* The largest batch of a program; memory is sized by it. */
struct kern_limits {
	uint32_t rows, tail_rows, spans;
	uint32_t positions; /* of a sequence */
	uint32_t vocab;     /* for draws; 0: none */
	uint32_t results;   /* rows of sample.results; 0: tail_rows */
	/* histories of sequences, and the tokens that one can hold, at most KERN_HISTORY_MAX */
	uint32_t histories, history_tokens;
	size_t batch_bytes;
};

/* Returns 0, or KERN_EINVAL and a message for a batch that exceeds the limits, has parts beyond its
 * words, or whose spans do not cover all rows in order. The caller checks that block tables cover
 * their spans and that slots and blocks belong to the pool. */
int kern_batch_check(const struct kern_mem *batch, const struct kern_limits *limits, char *errbuf,
                     size_t errlen);
/* The part of a batch at word `at`. */
KERN_INLINE const void *kern_part(const struct kern_batch *b, uint32_t at)
{
	return (const uint32_t *)(const void *)b + at;
}

#ifdef __cplusplus
}
#endif

#endif
