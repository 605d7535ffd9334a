/* fault.h - which message is lost, repeated or delayed, or cuts its link. Turns a seed and a text
 * of rules into verdicts; chan_fault.c carries them out.
 *
 * No program that is installed has it: it is linked into tests (libfault.a), and into a second set
 * of daemons, build/faulty/, which take their rules from the environment, PDSERVE_FAULT.
 *
 * The text: words separated by spaces. A word is a list of parts separated by colons: `seed=N`, or
 * one rule.
 *   which messages   type=KV_GRANT  dir=in|out  peer=NAME    (a missing part means all; pdctl's
 *                    messages are never touched)
 *                    nth=N          only the N-th of those, from 1; resent messages count again
 *   what happens     drop=P%        lost before it reaches the socket, or before the link has seen
 *                                   it
 *                    repeat=P%      sent or received twice
 *                    delay=P%:TIME  delayed, and all later messages of this link in this direction
 *                                   wait behind it: order and throughput are kept
 *                    late=P%:TIME   (dir=in) the link counts it at once, but its handler is called
 *                                   later; later messages do not wait
 *                    noack=P%       the acknowledgement that it carries is lost
 *                    cut=P%         lost together with its connection, which is made again
 * TIME is 5ms, 200us, 1s, or a range 1-20ms. Example: "seed=7 drop=2% repeat=2% delay=5%:1-20ms
 * type=KV_RESERVE:dir=in:delay=100%:5ms". Each message is matched against all rules in order; each
 * matching rule adds its effects. */
#ifndef MSG_FAULT_H
#define MSG_FAULT_H

#include "msg/chan.h"
#include "msg/types.h"
#include "util/err.h"

enum fault_dir { FAULT_OUT, FAULT_IN };

struct fault_verdict {
	int drop, repeat, noack, cut;
	uint64_t delay_us, late_us;
};

struct fault;

/* Empty text: returns 0 and sets *ret to NULL. ERR_INVALID: the error names the wrong word. */
int fault_new(const char *text, struct fault **ret, struct err *err);
void fault_destroy(struct fault **f);
void fault_judge(struct fault *f, enum fault_dir dir, enum msg_type type, const char *peer,
                 struct fault_verdict *ret);

/* The next chan_new gets these rules, and no later one; NULL: none. text must live until then. */
void fault_next(const char *text);
/* Messages of c that were changed so far. */
uint64_t fault_count(const struct chan *c);

#endif
