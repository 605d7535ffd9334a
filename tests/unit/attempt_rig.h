/* attempt_rig.h - over router_rig.h: a router with three workers and an attempt that was submitted,
 * and what is expected of it. */
#ifndef TESTS_ATTEMPT_RIG_H
#define TESTS_ATTEMPT_RIG_H

#include "router_rig.h"

#define STOP PDS__FINISH__FINISH_STOP
#define LENGTH PDS__FINISH__FINISH_LENGTH
#define NONE PDS__FINISH__FINISH_NONE

/* A router with p1, d1, d2 and an attempt that was submitted to p1. */
struct three {
	struct rig *r;
	struct worker_record *p, *d1, *d2;
};

static inline struct three three(uint32_t max_tokens, int prompt_logprobs)
{
	struct three t = {.r = rig_new()};
	t.p = rig_up(t.r, "p1", "prefill", 11);
	t.d1 = rig_up(t.r, "d1", "decode", 21);
	t.d2 = rig_up(t.r, "d2", "decode", 22);
	rig_seq(t.r, max_tokens, prompt_logprobs);
	ck_assert_int_eq(attempt_start(t.r->s), 0);
	ck_assert_str_eq(t.r->log, "submit p1 #1 5 d1 d2; ");
	t.r->log[0] = 0;
	return t;
}

static inline void expect(struct rig *r, enum standing want, const char *out, const char *log)
{
	ck_assert_str_eq(standing_name(standing(r->s)), standing_name(want));
	ck_assert_str_eq(r->out, out);
	ck_assert_str_eq(r->log, log);
	ck_assert_int_eq(r->ended, want == DONE || want == FAILED ? 1 : 0);
}

#endif
