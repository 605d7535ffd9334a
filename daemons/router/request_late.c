/* request_late.c - a sequence's summary line, and the prefill worker's first token that comes when
 * all is over.
 *
 * Prefill and decode workers speak on links of their own, so a short answer may be complete before
 * the prefill worker's account of it arrives. The summary of such a sequence waits for that, at
 * most LATE_US, so that log and timeline have all stages. At most LATE_MAX wait; past that the
 * summary is written without. */
#include "request_int.h"
#include "util/clock.h"
#include "util/map.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define LATE_US 1000000u
#define LATE_MAX 4096u

/* What the line says, by value: the sequence is gone when it is written late. */
struct summary {
	struct reqid id;
	uint32_t attempt, prompt_tokens, n_out;
	struct seq_times times;
	uint64_t begun_us, first_us, ended_us;
	char prefill[WORKER_NAME_MAX], decode[WORKER_NAME_MAX], why[256];
	const char *finish; /* a literal */
	int status;
};

struct late {
	struct list node;
	struct summary sum;
	struct seq_prediction predicted;
};

static void summarize(const struct seq *s, struct summary *sum)
{
	*sum = (struct summary){
		.id = s->id,
		.attempt = s->attempt,
		.prompt_tokens = s->prompt_tokens,
		.n_out = s->n_out,
		.times = s->times,
		.begun_us = s->begun_us,
		.first_us = s->first_us,
		.ended_us = s->ended_us,
		.status = s->status,
		.finish = s->state == SEQ_FAILED      ? "error"
	              : s->state == SEQ_CANCELLED ? "abort"
	                                          : seq_finish_name(s->finish),
	};
	memcpy(sum->prefill, s->prefill_name, sizeof sum->prefill);
	memcpy(sum->decode, s->decode_name, sizeof sum->decode);
	memcpy(sum->why, s->why, sizeof sum->why);
}

static void log_summary(const struct summary *s)
{
	const struct seq_times *t = &s->times;
	log_req(LOG_INFO, &s->id, "request_done",
	        "prompt_tokens=%u cached_tokens=%u output_tokens=%u queue_us=%llu prepare_us=%llu "
	        "reserve_us=%llu prefill_us=%llu transfer_us=%llu "
	        "first_token_us=%llu decode_us=%llu total_us=%llu prefill=%s decode=%s attempts=%u "
	        "finish=%s status=%d%s%s",
	        s->prompt_tokens, t->cached_tokens, s->n_out, (unsigned long long)t->queue_us,
	        (unsigned long long)t->prepare_us, (unsigned long long)t->reserve_us,
	        (unsigned long long)t->prefill_us, (unsigned long long)t->transfer_us,
	        (unsigned long long)(s->first_us ? s->first_us - s->begun_us : 0),
	        (unsigned long long)(s->first_us ? s->ended_us - s->first_us : 0),
	        (unsigned long long)(s->ended_us - s->begun_us), *s->prefill ? s->prefill : "-",
	        *s->decode ? s->decode : "-", s->attempt, s->finish, s->status, *s->why ? " why=" : "",
	        *s->why ? log_quote(s->why) : "");
}

static void end_late(struct seqs *e, struct late *l)
{
	log_summary(&l->sum);
	list_remove(&l->node);
	map_remove(e->late_by_id, &l->sum.id);
	free(l);
}

void seqs_summary(struct seq *s)
{
	struct seqs *e = s->all;
	s->ended_us = clock_us();
	if (s->state != SEQ_DONE || s->alone || s->prefill_told ||
	    map_count(e->late_by_id) == LATE_MAX) {
		struct summary now;
		summarize(s, &now);
		log_summary(&now);
		return;
	}
	struct late *l = mem_zalloc(sizeof *l);
	summarize(s, &l->sum);
	l->predicted = s->predicted;
	list_init(&l->node);
	list_push_back(&e->late, &l->node);
	map_put(e->late_by_id, &l->sum.id, l);
}

int seqs_late_first_token(struct seqs *e, const struct worker *w, const struct msg_head *head,
                          const Pds__FirstToken *m)
{
	struct late *l = map_get(e->late_by_id, &head->req);
	if (!l || l->sum.attempt != head->attempt)
		return 0;
	seqs_take_prompt_times(e, &l->sum.times, &l->predicted, m->timing);
	e->counts.cached_tokens += l->sum.times.cached_tokens;
	log_req(LOG_INFO, &l->sum.id, "prefill_told", "attempt=%u index=%u from=%s decode=%s late=1",
	        l->sum.attempt, m->index, w->name, m->decode && *m->decode ? m->decode : "-");
	end_late(e, l);
	return 1;
}

void seqs_late_tick(struct seqs *e, uint64_t now_us)
{
	while (!list_empty(&e->late)) {
		struct late *l = list_entry(e->late.next, struct late, node);
		if (now_us < l->sum.ended_us + LATE_US)
			return;
		end_late(e, l);
	}
}
