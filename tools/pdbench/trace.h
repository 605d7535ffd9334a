/* trace.h - reads a trace or a list of lengths from JSONL: one object per line with input_length
 * and output_length (tokens); a trace also has timestamp (ms) and hash_ids (one id per block of the
 * prompt; equal ids mean equal blocks). The format is Mooncake's. */
#ifndef PDBENCH_TRACE_H
#define PDBENCH_TRACE_H

#include "util/err.h"

#include <stddef.h>
#include <stdint.h>

#define TRACE_LINE_MAX (4u << 20)
#define TRACE_RECORDS_MAX 10000000u
#define TRACE_TOKENS_MAX 16777216

struct trace_record {
	uint64_t at_us; /* since the earliest record */
	uint32_t input_tokens, output_tokens;
	uint64_t *hashes; /* NULL: a list of lengths */
	uint32_t n_hashes;
};

struct bench_trace {
	struct trace_record *records; /* sorted by time */
	size_t n;
};

/* block_tokens 0: a list of lengths, without times and hashes. Errors name file, line, member and
 * value. */
int trace_read(const char *path, uint32_t block_tokens, struct bench_trace *ret, struct err *err);
void trace_fini(struct bench_trace *t);
/* Identifies the conversation of a record: the id of its second block, because the first is often
 * the same for all (a system prompt). */
uint64_t trace_conversation(const struct trace_record *r);
/* Keeps the records of that share of the conversations. */
void trace_sample(struct bench_trace *t, double share, uint64_t seed);

#endif
