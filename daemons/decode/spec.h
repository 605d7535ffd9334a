/* spec.h - speculative decoding: what became of drafts, what rows cost, and how those that a step
 * has to spare are shared out. spec.c plans with these; they know of no requests. */
#ifndef DECODE_SPEC_H
#define DECODE_SPEC_H

#include "daemons/worker/worker.h"

#include <stdint.h>

/* steps of more rows are not measured: from there on each row costs the same */
#define SPEC_COST_ROWS 128u

/* spec_record.c: what became of one sequence's drafts */
struct spec_record {
	/* of its longest draft now: doubles when all of one was right, shrinks to what was right */
	uint32_t length;
	/* wrong tokens, and how many were to be expected; those of late count most */
	double wrong, expected;
};

/* most: of any draft. */
void spec_record_init(struct spec_record *r, uint32_t most);
/* one more step of the sequence, with a draft or without */
void spec_record_step(struct spec_record *r);
double spec_record_miss(const struct spec_record *r); /* see spec_want */
void spec_record_draft(struct spec_record *r, uint32_t match, uint32_t drafted, uint32_t right,
                       uint32_t most);

/* spec_cost.c
 * Measured time of a step by its number of rows. Only relations between the entries matter:
 * what makes all steps slower (longer contexts, other processes) moves all of them. */
struct spec_cost {
	double us[SPEC_COST_ROWS + 1];
	uint64_t when[SPEC_COST_ROWS + 1];  /* number of the last note */
	uint32_t times[SPEC_COST_ROWS + 1]; /* notes since it was last forgotten */
	uint64_t notes;
};

void spec_cost_note(struct spec_cost *c, uint32_t rows, uint64_t us);
/* Estimated from its neighbours where it was not measured; 1 and more, of no unit, as long as
 * nothing was. */
double spec_cost_of(const struct spec_cost *c, uint32_t rows);

/* Rows that a step of `decode` rows has to spare, beside *ret_chunk rows of prompts, of which
 * `prompt` wait. */
uint32_t spec_spare(uint32_t max_batched, uint32_t chunk_tokens, uint32_t decode, uint32_t prompt,
                    uint32_t *ret_chunk);

/* One sequence that has a draft. */
struct spec_want {
	uint32_t most;  /* rows it could use */
	uint32_t match; /* length of the match with earlier tokens, */
	/* and the next one is another with probability miss / match, the one after it with miss /
	 * (match + 1), ... */
	double miss;
	uint32_t rows; /* out: what it gets */
	/* while it is shared out: its last row is right; tokens expected of it in this step; what
	 * its next row brings */
	double right, tokens, gain;
};

/* Shares out up to `budget` rows beside those that are computed anyway: one for each of `decode`
 * sequences, n of which have a draft, and `chunk` of a prompt. Whoever is in the step waits for all
 * its rows, so what is made as large as it can be is the product of everybody's tokens per time:
 * a draft that brings its sequence three times the tokens and makes seven others wait twice as
 * long gets nothing. Returns how many rows are given. */
uint32_t spec_share(const struct spec_cost *c, uint32_t decode, uint32_t chunk, uint32_t budget,
                    struct spec_want *want, uint32_t n);

#endif
