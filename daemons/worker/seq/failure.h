/* failure.h - why a job or sequence failed on its schedule thread, kept until the loop tells the
 * router.
 *
 * Either its draw failed (its constraint cannot be followed, or the logits are not finite: another
 * worker would find the same, unless memory was short), or the step did (this worker's fault: worth
 * another attempt elsewhere), or the engine refused the span before it computed anything (worth
 * another attempt, but not this worker's fault). The first failure counts. */
#ifndef WORKER_SEQ_FAILURE_H
#define WORKER_SEQ_FAILURE_H

#include "daemons/worker/worker.h"

enum failure_kind { FAILURE_NONE, FAILURE_DRAW, FAILURE_STEP, FAILURE_REFUSED };

struct seq_failure {
	enum failure_kind kind;
	Pds__Fault fault; /* DRAW: constraint_fault of its error; else INTERNAL */
	char text[160];
	/* logits were not finite, also if that was not the first failure: nothing that this step
	 * computed may be published */
	int not_finite;
};

void seq_failure_draw(struct seq_failure *f, const struct err *err);
/* The step, or a span of it, could not be computed. */
void seq_failure_engine(struct seq_failure *f, const struct err *err);
/* What to tell the router; counts worker_stats.not_finite. Points into f and w. */
struct worker_failure seq_failure_report(const struct seq_failure *f, struct worker *w);

#endif
