/* flight.h - one request under way: its stream, read event by event; how it ended. */
#ifndef PDBENCH_FLIGHT_H
#define PDBENCH_FLIGHT_H

#include "client.h"
#include "event.h"
#include "figures.h"
#include "util/list.h"
#include "work.h"

struct run;

struct flight {
	struct list node;
	struct run *run;
	struct turn *turn;
	struct call *call;
	size_t record; /* index */
	struct sse sse;
	struct buf answer; /* conversations: a piece of JSON */
	struct buf body;   /* of an answer that is no stream */
	int done, by_usage, leaving;
	int64_t leave_at; /* --abort: after so many tokens; -1: stays */
	uint64_t now_us;
	char finish[24];
	char fault[200]; /* what was wrong with the stream */
};

extern const struct call_hooks flight_hooks;

struct flight *flight_new(struct turn *t, size_t record, struct run *r);
void flight_free(struct flight *f);

/* run.c, for flight.c */
struct record *run_record(struct run *r, const struct flight *f);
const struct options *run_options(const struct run *r);
int run_wants_answer(const struct run *r, const struct flight *f);
void run_tokens(struct run *r, struct flight *f, uint32_t n, uint64_t now_us);
/* frees f */
void run_ended(struct run *r, struct flight *f, enum outcome outcome, const char *why,
               uint64_t now_us);

#endif
