/* failure.c - see failure.h. */
#include "failure.h"
#include "constraint.h"

#include <stdio.h>

static void fail(struct seq_failure *f, enum failure_kind kind, Pds__Fault fault, const char *text)
{
	if (f->kind != FAILURE_NONE)
		return;
	f->kind = kind;
	f->fault = fault;
	snprintf(f->text, sizeof f->text, "%.150s", text);
}

void seq_failure_draw(struct seq_failure *f, const struct err *err)
{
	f->not_finite |= err->code == ERR_CORRUPT;
	fail(f, FAILURE_DRAW, constraint_fault(err->code), err->text);
}

void seq_failure_engine(struct seq_failure *f, const struct err *err)
{
	char text[sizeof f->text];
	snprintf(text, sizeof text, "forward step failed: %.120s", err->text);
	fail(f, err->code == ERR_INVALID ? FAILURE_REFUSED : FAILURE_STEP, PDS__FAULT__FAULT_INTERNAL,
	     text);
}

struct worker_failure seq_failure_report(const struct seq_failure *f, struct worker *w)
{
	int no_memory = f->fault == PDS__FAULT__FAULT_OVERLOADED;
	w->stats.not_finite += (uint64_t)f->not_finite;
	if (f->kind == FAILURE_STEP || f->kind == FAILURE_REFUSED)
		return (struct worker_failure){f->fault, 1, f->text,
		                               f->kind == FAILURE_STEP ? svc_name(w->svc) : NULL, 0};
	return (struct worker_failure){f->fault, no_memory, f->text, NULL,
	                               no_memory ? CONSTRAINT_RETRY_US : 0};
}
