/* flight.h - one request in flight: parses its stream event by event and judges how it ended. */
#ifndef PDBENCH_FLIGHT_H
#define PDBENCH_FLIGHT_H

#include "client.h"
#include "event.h"
#include "figures.h"
#include "util/list.h"
#include "work.h"

struct bench_run;

struct flight {
	struct list node;
	struct bench_run *run;
	struct bench_turn *turn;
	struct call *call;
	size_t record; /* index of its record */
	struct sse sse;
	struct buf answer; /* conversations: the answer so far, a piece of JSON */
	struct buf body;   /* start of an answer that is not a stream */
	int done, by_usage, leaving;
	int64_t leave_at; /* --abort: leave after this many tokens; -1: never */
	uint64_t now_us;
	char finish[24];
	char fault[200]; /* what is wrong with the stream; "": nothing */
};

extern const struct call_hooks flight_hooks;

struct flight *flight_new(struct bench_turn *t, size_t record, struct bench_run *r);
void flight_free(struct flight *f);

/* implemented in run.c */
struct bench_record *run_record(struct bench_run *r, const struct flight *f);
const struct bench_options *run_options(const struct bench_run *r);
int run_wants_answer(const struct bench_run *r, const struct flight *f);
void run_tokens(struct bench_run *r, struct flight *f, uint32_t n, uint64_t now_us);
/* frees f */
void run_ended(struct bench_run *r, struct flight *f, enum outcome outcome, const char *why,
               uint64_t now_us);

#endif
