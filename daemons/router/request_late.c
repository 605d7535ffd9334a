/* request_late.c - a sequence's summary line, and the prefill worker's first token that comes when all is over.
 *
 * Prefill and decode workers speak on links of their own, so a short answer may be complete before the prefill worker's account of it arrives. The summary
 * of such a sequence waits for that, at most LATE_US, so that log and timeline have all stages. At most LATE_MAX wait; past that the summary
 * is written without. */
#include "request_int.h"
#include "util/clock.h"
#include "util/mem.h"

#include <stdlib.h>

#define LATE_US 1000000u
#define LATE_MAX 4096u

struct late {
	struct list node;
	struct seq s;                /* as it ended: what is in it by value alone is looked at */
};

static void log_summary(const struct seq *s)
{
	const struct seq_times *t = &s->times;
	log_req(LOG_INFO, &s->id, "request_done",
	        "prompt_tokens=%u cached_tokens=%u output_tokens=%u queue_us=%llu prepare_us=%llu reserve_us=%llu prefill_us=%llu transfer_us=%llu "
	        "first_token_us=%llu decode_us=%llu total_us=%llu prefill=%s decode=%s attempts=%u finish=%s status=%d%s%s",
	        s->prompt_tokens, t->cached_tokens, s->n_out, (unsigned long long)t->queue_us, (unsigned long long)t->prepare_us,
	        (unsigned long long)t->reserve_us, (unsigned long long)t->prefill_us, (unsigned long long)t->transfer_us,
	        (unsigned long long)(s->first_us ? s->first_us - s->begun_us : 0), (unsigned long long)(s->first_us ? s->ended_us - s->first_us : 0),
	        (unsigned long long)(s->ended_us - s->begun_us), *s->prefill_name ? s->prefill_name : "-", *s->decode_name ? s->decode_name : "-", s->attempt,
	        s->state == SEQ_FAILED ? "error" : s->state == SEQ_CANCELLED ? "abort" : seq_finish_name(s->finish), s->status,
	        *s->why ? " why=" : "", *s->why ? log_quote(s->why) : "");
}

static void end_late(struct seqs *e, struct late *l)
{
	log_summary(&l->s);
	list_remove(&l->node);
	e->n_late--;
	free(l);
}

void seqs_summary(struct seq *s)
{
	struct seqs *e = s->all;
	s->ended_us = clock_us();
	if (s->state != SEQ_DONE || s->alone || s->prefill_told || e->n_late == LATE_MAX) {
		log_summary(s);
		return;
	}
	struct late *l = mem_zalloc(sizeof *l);
	l->s = *s;
	list_init(&l->node);
	list_push_back(&e->late, &l->node);
	e->n_late++;
}

/* From the newest: it is nearly always among the last. */
int seqs_late_first_token(struct seqs *e, const struct worker *w, const struct msg_head *head, const Pds__FirstToken *m)
{
	for (struct list *n = e->late.prev; n != &e->late; n = n->prev) {
		struct late *l = list_entry(n, struct late, node);
		struct seq *s = &l->s;
		if (s->id.hi != head->req.hi || s->id.lo != head->req.lo || s->attempt != head->attempt)
			continue;
		seq_take_prompt_times(s, m->timing);
		e->counts.cached_tokens += s->times.cached_tokens;
		log_req(LOG_INFO, &s->id, "prefill_told", "attempt=%u index=%u from=%s decode=%s late=1", s->attempt, m->index, w->name,
		        m->decode && *m->decode ? m->decode : "-");
		end_late(e, l);
		return 1;
	}
	return 0;
}

void seqs_late_tick(struct seqs *e, uint64_t now_us)
{
	while (!list_empty(&e->late)) {
		struct late *l = list_entry(e->late.next, struct late, node);
		if (now_us < l->s.ended_us + LATE_US)
			return;
		end_late(e, l);
	}
}
