/* request_int.h - between request.c (states, attempts) and request_in.c (what workers say). */
#ifndef ROUTER_REQUEST_INT_H
#define ROUTER_REQUEST_INT_H

#include "request.h"

/* A decode worker's tokens that came before the prompt's log-probabilities, or before the
 * prefill worker's account: a packed SequenceTokens. */
struct held_tokens {
	struct list node;
	size_t len;
	uint8_t bytes[];
};

void seq_enter(struct seq *s, enum seq_state to);
void seq_leave_prefill(struct seq *s);
void seq_leave_decode(struct seq *s);
void seq_join_decode(struct seq *s, struct worker *w);
/* its prompt is computed: no backlog any more, and no load where another worker decodes */
void seq_prefill_done(struct seq *s);
/* What was held is taken now; w: for the log. 1: the sequence ended and must not be touched. */
int seq_release_held(struct seq *s, struct worker *w);
void seqs_ending_tick(struct seqs *e, uint64_t now_us);
void seq_weigh(struct seq *s, uint64_t tokens); /* it has grown by so many where it decodes */
/* How an attempt was lost. */
struct seq_loss {
	Pds__Fault fault;
	int retry;         /* another attempt may succeed */
	const char *who;   /* the worker that says so, or that is gone */
	const char *blame; /* whose failure it is; NULL: no worker's */
	const char *why;
};
/* These end in the owner's `ended` (of an attempt: perhaps); the sequence is not to be touched
 * after them. */
void seq_done(struct seq *s, enum seq_finish finish, int worker_knows);
void seq_fail(struct seq *s, int status, const char *why);
void seq_attempt_lost(struct seq *s, const struct seq_loss *l);
/* The link took it, through no fault of the sequence or of w. */
void seq_attempt_cut(struct seq *s, const struct worker *w, const char *why);
/* w gave it back, or is left, in order. */
void seq_attempt_moved(struct seq *s, const struct worker *w, const char *why);
/* Who decodes the present attempt, or any candidate before that is known, if it lives but its link
 * has begun anew since the attempt was submitted; else NULL. What it sent may have been lost
 * with the old link, and it has given up what was reserved there, as its router was gone. */
const struct worker *seq_link_anew(const struct seq *s);
/* Writes the summary line of a sequence that has ended, or keeps it until the prefill worker's
 * account is there. */
void seqs_summary(struct seq *s);
/* 1: it belongs to a sequence whose summary waits for it. */
int seqs_late_first_token(struct seqs *e, const struct worker *w, const struct msg_head *head,
                          const Pds__FirstToken *m);
void seqs_late_tick(struct seqs *e, uint64_t now_us);
/* Queue to prefill; counts what had been predicted, once. */
void seqs_take_prompt_times(struct seqs *e, struct seq_times *a, struct seq_prediction *p,
                            const Pds__Timing *t);
int seqs_send_cancel(struct seqs *e, struct worker *w, const struct reqid *id, uint32_t attempt,
                     const char *reason);
int seqs_is_recent(const struct seqs *e, const struct reqid *id, uint32_t attempt, uint64_t epoch);

#endif
