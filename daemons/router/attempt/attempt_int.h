/* attempt_int.h - between attempt.c (states, attempts) and messages.c (what workers say). */
#ifndef ROUTER_ATTEMPT_INT_H
#define ROUTER_ATTEMPT_INT_H

#include "attempt.h"

/* A decode worker's tokens that came before the prompt's log-probabilities, or before the
 * prefill worker's account: a packed SequenceTokens. */
struct held_tokens {
	struct list node;
	size_t len;
	uint8_t bytes[];
};

void attempt_enter(struct attempt *a, enum attempt_state to);
void attempt_leave_prefill(struct attempt *a);
void attempt_leave_decode(struct attempt *a);
void attempt_join_decode(struct attempt *a, struct worker_record *w);
/* its prompt is computed: no backlog any more, and no load where another worker decodes */
void attempt_prefill_done(struct attempt *a);
/* What was held is taken now; w: for the log. 1: the answer ended and must not be touched. */
int attempt_release_held(struct attempt *a, struct worker_record *w);
void attempts_ending_tick(struct attempts *e, uint64_t now_us);
/* Its context at the decoding worker has grown by `tokens`. */
void attempt_weigh(struct attempt *a, uint64_t tokens);
/* How an attempt was lost. */
struct attempt_loss {
	Pds__Fault fault;
	int retry;         /* another attempt may succeed */
	const char *who;   /* the worker that reported it, or that is gone */
	const char *blame; /* whose failure it is; NULL: no worker's */
	const char *why;
};
/* These end in the owner's `ended` (of an attempt: perhaps); the answer is not to be touched
 * after them. */
void attempt_done(struct attempt *a, enum answer_finish finish, int worker_knows);
void attempt_fail(struct attempt *a, int status, const char *why);
void attempt_lost(struct attempt *a, const struct attempt_loss *l);
/* The link took it, through no fault of the answer or of w. */
void attempt_cut(struct attempt *a, const struct worker_record *w, const char *why);
/* w gave it back, or is left, in order. */
void attempt_moved(struct attempt *a, const struct worker_record *w, const char *why);
/* Who decodes the present attempt, or any candidate before that is known, if it lives but its link
 * has restarted since the attempt was submitted; else NULL. What it sent may have been lost
 * with the old link, and it has given up what was reserved there, as its router was gone. */
const struct worker_record *attempt_link_restarted(const struct attempt *a);
/* Writes the summary line of an answer that has ended, or keeps it until the prefill worker's
 * account is there. */
void attempts_summary(struct attempt *a);
/* 1: it belongs to an answer whose summary waits for it. */
int attempts_late_first_token(struct attempts *e, const struct worker_record *w,
                              const struct msg_head *head, const Pds__FirstToken *m);
void attempts_late_tick(struct attempts *e, uint64_t now_us);
/* Queue to prefill; counts what had been predicted, once. */
void attempts_take_prompt_times(struct attempts *e, struct attempt_times *times,
                                struct attempt_prediction *p, const Pds__Timing *t);
int attempts_send_cancel(struct attempts *e, struct worker_record *w, const struct reqid *id,
                         uint32_t attempt, const char *reason);
int attempts_is_recent(const struct attempts *e, const struct reqid *id, uint32_t attempt,
                       uint64_t epoch);

#endif
