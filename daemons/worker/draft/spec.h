/* spec.h - speculative decoding: what became of a run's drafts, what rows cost, and how the rows
 * that a step has to spare are shared out. spec.c plans with these functions; they know of no
 * requests. */
#ifndef DECODE_SPEC_H
#define DECODE_SPEC_H

#include "daemons/worker/worker.h"

#include <stdint.h>

/* Steps with more rows are not measured: from here on each row costs the same. */
#define SPEC_COST_ROWS 128u

/* record.c: what became of the drafts of one sequence */
struct spec_record {
	/* tokens of its longest draft now: doubles when all of a draft was right, else shrinks to what
	 * was right */
	uint32_t length;
	/* wrong tokens, and how many were expected; recent ones weigh most */
	double wrong, expected;
};

void spec_record_init(struct spec_record *r, uint32_t max_length);
/* One more step of the sequence, with a draft or without. */
void spec_record_step(struct spec_record *r);
double spec_record_miss(const struct spec_record *r); /* see spec_want */
/* Of `drafted` tokens, after a match of `match` tokens, the first `right` were right. */
void spec_record_draft(struct spec_record *r, uint32_t match, uint32_t drafted, uint32_t right,
                       uint32_t max_length);

/* cost.c
 * Measured time of a step by its number of rows. Only relations between the entries matter:
 * what makes all steps slower (longer contexts, other processes) moves all of them. */
struct spec_cost {
	double us[SPEC_COST_ROWS + 1];
	uint64_t when[SPEC_COST_ROWS + 1];  /* number of the last note */
	uint32_t times[SPEC_COST_ROWS + 1]; /* notes since it was last forgotten */
	uint64_t notes;
};

void spec_cost_note(struct spec_cost *c, uint32_t rows, uint64_t us);
/* In us; estimated from its neighbours where it was not measured. While nothing was measured: from
 * 1 up, without a unit. */
double spec_cost_of(const struct spec_cost *c, uint32_t rows);

/* Rows that a step of `decode` rows has to spare, beside *ret_chunk rows of prompts; `prompt` rows
 * of those wait. */
uint32_t spec_spare(uint32_t max_batched, uint32_t chunk_tokens, uint32_t decode, uint32_t prompt,
                    uint32_t *ret_chunk);

/* A sequence that has a draft. */
struct spec_want {
	uint32_t most;  /* rows that it could use */
	uint32_t match; /* length of the match with earlier tokens */
	/* the first token of the draft is wrong with probability miss / match, the second one with
	 * miss / (match + 1), ... */
	double miss;
	uint32_t rows; /* out: rows that it gets */
	/* used by spec_share: probability that its last row is right; tokens expected of it in this
	 * step; gain of its next row */
	double right, tokens, gain;
};

/* Shares out up to `budget` rows beside those that are computed anyway: one for each of `decode`
 * sequences, n of which have a draft, and `chunk` rows of a prompt. All sequences of a step wait
 * for all its rows: the rows are chosen to maximize the product over all sequences of tokens per
 * time. A draft that brings its sequence three times the tokens and makes seven others wait twice
 * as long gets nothing. Returns the number of rows given. */
uint32_t spec_share(const struct spec_cost *c, uint32_t decode, uint32_t chunk, uint32_t budget,
                    struct spec_want *want, uint32_t n);

#endif
