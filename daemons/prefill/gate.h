/* gate.h - two ways to schedule that others use, kept to be measured against (`bench_prepare =
 * serial`, `bench_scheduler = shared`); see gate.c. */
#ifndef PREFILL_GATE_H
#define PREFILL_GATE_H

#include "util/err.h"

#include <stdint.h>

struct gate;
struct job;
struct prefill;

/* Leaves s->gate NULL when neither is configured. */
int gate_init(struct prefill *s, struct err *err);
void gate_fini(struct prefill *s);

/* Without a gate all of these do nothing and say 0. On the loop: */
int gate_admit(struct job *j);  /* 1: it waits for its turn, 0: it may be prepared now */
void gate_ready(struct job *j); /* it has all it needs: about to be put into the schedule */
void gate_run(struct job *j);   /* published and in the schedule's inbox */
void gate_seen(struct job *j);  /* the messager has it */
/* it has to wait for room or for a running job's blocks: steps go on meanwhile */
void gate_stalled(struct job *j);
void gate_gone(struct job *j); /* it has ended or is about to */
/* begins the next preparation when the schedule thread stands between two steps */
void gate_turn(struct prefill *s);
void gate_check(struct prefill *s, uint64_t now_us); /* is the messager's answer late? */
/* transfers ask the messager to say that it has seen them */
int gate_wants_seen(const struct prefill *s);

/* On the schedule thread, between two steps, with s->lock held: returns when preparation has had
 * its turn. */
void gate_hold(struct prefill *s);
int gate_may_wake(const struct prefill *s); /* s->lock held: there is something to prepare */

#endif
