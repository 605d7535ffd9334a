/* summary.c - the summary line of an attempt that has ended, and a prefill worker's first token
 * that arrives after that.
 *
 * Prefill and decode workers use links of their own, so a short answer may be complete before the
 * prefill worker's first token and its timing arrive. The summary of such an answer waits for them,
 * at most LATE_US, so that log and timeline have all stages. At most LATE_MAX summaries wait;
 * beyond that they are written without. */
#include "attempt_int.h"
#include "util/clock.h"
#include "util/map.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define LATE_US 1000000u
#define LATE_MAX 4096u

/* What the line says, by value: the attempt is gone when the line is written late. */
struct attempt_summary {
	struct reqid id;
	uint32_t number, prompt_tokens, n_out;
	struct attempt_times times;
	uint64_t begun_us, first_us, ended_us;
	char prefill[WORKER_NAME_MAX], decode[WORKER_NAME_MAX], why[256];
	const char *finish; /* a literal */
	int status;
};

struct late {
	struct list node;
	struct attempt_summary sum;
	struct attempt_prediction predicted;
};

static void summarize(const struct attempt *a, struct attempt_summary *sum)
{
	*sum = (struct attempt_summary){
		.id = a->id,
		.number = a->number,
		.prompt_tokens = a->asked.prompt_tokens,
		.n_out = a->got.n_out,
		.times = a->got.times,
		.begun_us = a->asked.begun_us,
		.first_us = a->got.first_us,
		.ended_us = a->end.ended_us,
		.status = a->end.status,
		.finish = a->state == ATTEMPT_FAILED      ? "error"
	              : a->state == ATTEMPT_CANCELLED ? "abort"
	                                              : answer_finish_name(a->end.finish),
	};
	memcpy(sum->prefill, a->try.prefill_name, sizeof sum->prefill);
	memcpy(sum->decode, a->try.decode_name, sizeof sum->decode);
	memcpy(sum->why, a->end.why, sizeof sum->why);
}

static void log_summary(const struct attempt_summary *s)
{
	const struct attempt_times *t = &s->times;
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
	        *s->decode ? s->decode : "-", s->number, s->finish, s->status, *s->why ? " why=" : "",
	        *s->why ? log_quote(s->why) : "");
}

static void end_late(struct attempts *e, struct late *l)
{
	log_summary(&l->sum);
	list_remove(&l->node);
	map_remove(e->late_by_id, &l->sum.id);
	free(l);
}

void attempts_summary(struct attempt *a, int awaits)
{
	struct attempts *e = a->all;
	a->end.ended_us = clock_us();
	if (a->state != ATTEMPT_DONE || !awaits || map_count(e->late_by_id) == LATE_MAX) {
		struct attempt_summary now;
		summarize(a, &now);
		log_summary(&now);
		return;
	}
	struct late *l = mem_zalloc(sizeof *l);
	summarize(a, &l->sum);
	l->predicted = a->try.predicted;
	list_init(&l->node);
	list_push_back(&e->late, &l->node);
	map_put(e->late_by_id, &l->sum.id, l);
}

int attempts_late_first_token(struct attempts *e, const struct worker_record *w,
                              const struct msg_head *head, const Pds__FirstToken *m)
{
	struct late *l = map_get(e->late_by_id, &head->req);
	if (!l || l->sum.number != head->attempt)
		return 0;
	attempts_take_prompt_times(e, &l->sum.times, &l->predicted, m->timing);
	e->counts.cached_tokens += l->sum.times.cached_tokens;
	log_req(LOG_INFO, &l->sum.id, "prefill_told", "attempt=%u index=%u from=%s decode=%s late=1",
	        l->sum.number, m->index, w->name, m->decode && *m->decode ? m->decode : "-");
	end_late(e, l);
	return 1;
}

void attempts_late_tick(struct attempts *e, uint64_t now_us)
{
	while (!list_empty(&e->late)) {
		struct late *l = list_entry(e->late.next, struct late, node);
		if (now_us < l->sum.ended_us + LATE_US)
			return;
		end_late(e, l);
	}
}
