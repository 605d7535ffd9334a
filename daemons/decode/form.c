/* form.c - the form that an answer must have: its constraint is compiled by a thread of its own, because that takes milliseconds, which neither the loop nor a step
 * has. Until then its sequence is COMPILING and holds no blocks; what happens to it meanwhile (a cancel, a deadline, the end of a peer) only marks it. */
#include "decode.h"
#include "daemons/worker/constraint.h"
#include "util/check.h"

#include <stdlib.h>

static void go_on(struct seq *q)
{
	if (*q->prefill)
		reserved_new(q);
	else
		submitted_new(q);
}

static void refuse(struct seq *q, Pds__Fault fault, const char *text)
{
	int retry = fault != PDS__FAULT__FAULT_INVALID;
	uint64_t after = fault == PDS__FAULT__FAULT_OVERLOADED ? CONSTRAINT_RETRY_US : 0;
	struct msg_head h;
	seq_head(q, &h);
	if (*q->prefill)
		lease_deny(q, fault, text, after);
	else
		worker_fail_until(q->w, &h, q->work.router, q->work.router_epoch, fault, retry, text, after);
	seq_forget(q);
}

/* Posted by the thread. What was looked at when the sequence came may have changed. */
static void compiled(struct svc *s, void *arg)
{
	struct seq *q = arg;
	struct decode *d = decode_of(q->w);
	(void)s;
	if (q->cancelled)
		seq_end(q);
	else if (q->failed)
		refuse(q, q->hopeless ? PDS__FAULT__FAULT_INVALID : PDS__FAULT__FAULT_OVERLOADED, q->fail_text);
	else if (d->draining || (*q->prefill && q->w->role != ROLE_DECODE))
		refuse(q, PDS__FAULT__FAULT_DRAINING, "the decode worker is draining, or takes no hand-over any more");
	else
		go_on(q);
}

static void *form_main(void *arg)
{
	struct decode *d = arg;
	struct seq *q;
	while ((q = queue_take(d->forms))) {
		struct err err = {0};
		int r = q->cancelled ? 0 : constraint_compile(&q->work, &err);
		if (r < 0) {
			q->failed = 1;
			q->no_memory = r == ERR_NOMEM;
			q->hopeless = !q->no_memory;
			snprintf(q->fail_text, sizeof q->fail_text, "%.150s", err.text);
		}
		svc_post(d->w->svc, compiled, q);
	}
	return NULL;
}

void form_then_go_on(struct seq *q)
{
	struct decode *d = decode_of(q->w);
	if (constraint_is_ready(&q->work)) {
		go_on(q);
		return;
	}
	seq_enter(q, SEQ_COMPILING);
	CHECK(queue_put(d->forms, q) == 0);     /* as many as there may be sequences */
}

int form_start(struct decode *d, struct err *err)
{
	d->forms = queue_new(d->max_seqs);
	if (pthread_create(&d->form_thread, NULL, form_main, d) != 0)
		return err_set(err, ERR_NOMEM, "cannot start the thread that compiles constraints");
	d->form_runs = 1;
	return 0;
}

void form_stop(struct decode *d)
{
	list_each(n, &d->seqs) {
		struct seq *q = list_entry(n, struct seq, node);
		q->cancelled |= q->state == SEQ_COMPILING;
	}
	queue_close(d->forms);
	if (d->form_runs)
		pthread_join(d->form_thread, NULL);
	queue_destroy(&d->forms);
}
