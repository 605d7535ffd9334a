/* form.c - the form that an answer must have: its constraint is compiled before anything else is
 * done with its sequence, which holds no blocks meanwhile; what happens to it then (a cancel, a
 * deadline, the end of a peer) only marks it. */
#include "decode.h"
#include "daemons/worker/seq/constraint.h"

static void go_on(struct sequence *q)
{
	if (*q->prefill)
		reserved_new(q);
	else
		submitted_new(q);
}

static void refuse(struct sequence *q, Pds__Fault fault, const char *text)
{
	uint64_t after = fault == PDS__FAULT__FAULT_OVERLOADED ? CONSTRAINT_RETRY_US : 0;
	struct msg_head h;
	sequence_head(q, &h);
	if (*q->prefill)
		lease_deny(q, fault, text, after);
	else
		worker_fail_by(q->w, &h, q->req.router, q->req.router_epoch,
		               &(struct worker_failure){.fault = fault,
		                                        .retry = fault != PDS__FAULT__FAULT_INVALID,
		                                        .text = text,
		                                        .retry_after_us = after});
	sequence_forget(q);
}

/* What was looked at when the sequence came may have changed. */
static void compiled(struct svc *s, void *arg)
{
	struct sequence *q = arg;
	struct decode *d = decode_of(q->w);
	(void)s;
	if (q->cancelled)
		sequence_end(q);
	else if (q->form.code < 0)
		refuse(q,
		       q->form.code == ERR_NOMEM ? PDS__FAULT__FAULT_OVERLOADED : PDS__FAULT__FAULT_INVALID,
		       q->form.err.text);
	else if (d->draining || (*q->prefill && q->w->role != ROLE_DECODE))
		refuse(q, PDS__FAULT__FAULT_DRAINING,
		       "the decode worker is draining, or takes no hand-over any more");
	else
		go_on(q);
}

static void done(struct compile_task *t)
{
	struct sequence *q = list_entry(t, struct sequence, form);
	svc_post(q->w->svc, compiled, q);
}

void form_then_go_on(struct sequence *q)
{
	if (constraint_is_ready(&q->req)) {
		go_on(q);
		return;
	}
	sequence_enter(q, SEQUENCE_COMPILING);
	q->form = (struct compile_task){.req = &q->req, .cancelled = &q->cancelled, .done = done};
	compiler_put(q->w->compiler, &q->form, 0);
}

void form_stop(struct decode *d)
{
	list_each(n, &d->sequences) {
		struct sequence *q = list_entry(n, struct sequence, node);
		if (q->state == SEQUENCE_COMPILING)
			q->cancelled = 1;
	}
	compiler_wait(d->w->compiler);
}
