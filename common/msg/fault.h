/* fault.h - for tests: which message is lost, repeated, delayed, or cuts its link. A seed and a
 * text of rules in, verdicts out; chan_fault.c carries them out.
 *
 * The text: words separated by spaces. A word is a list of parts separated by colons: `seed=N`, or
 * one rule.
 *   which messages   type=KV_GRANT  dir=in|out  peer=NAME    (each: all if it is not there; pdctl's
 *                    messages are never touched)
 *                    nth=N          of those, only the N-th, from 1; what is sent again counts
 *                                   again
 *   what happens     drop=P%        it is lost before it reaches the socket, or before the link has
 *                    seen it
 *                    repeat=P%      it comes twice
 *                    delay=P%:TIME  it waits, and all that follows it on this link in this
 *                                   direction waits behind it: order holds, and throughput too
 *                    late=P%:TIME   (dir=in) the link has taken and counted it, its handler hears
 *                                   of it later; what follows is not held up
 *                    noack=P%       the acknowledgement that travels with it is lost
 *                    cut=P%         it is lost with the connection: that is made anew
 * TIME is 5ms, 200us, 1s, or a range 1-20ms. Example: "seed=7 drop=2% repeat=2% delay=5%:1-20ms
 * type=KV_RESERVE:dir=in:delay=100%:5ms". For each message the rules are asked in order; each
 * adds its effects. */
#ifndef MSG_FAULT_H
#define MSG_FAULT_H

#include "msg/types.h"
#include "util/err.h"

enum fault_dir { FAULT_OUT, FAULT_IN };

struct fault_verdict {
	int drop, repeat, noack, cut;
	uint64_t delay_us, late_us;
};

struct fault;

/* *ret is NULL, and the answer 0, when text is empty. ERR_INVALID names the word that is wrong. */
int fault_new(const char *text, struct fault **ret, struct err *err);
void fault_destroy(struct fault **f);
void fault_judge(struct fault *f, enum fault_dir dir, enum msg_type type, const char *peer,
                 struct fault_verdict *ret);

#endif
