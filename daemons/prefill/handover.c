/* handover.c - from the last computed token to the end: the first token goes to the decode worker
 * and to the router, then KvSent and the acknowledgement are awaited. Runs on the loop's thread. */
#include "prefill.h"
#include "daemons/worker/seq/pooled.h"
#include "util/err.h"

#include <stdlib.h>

static void fill_timing(const struct job *j, Pds__Timing *t)
{
	pds__timing__init(t);
	t->queue_us = j->prepare.begun_us - j->accepted_us;
	t->prepare_us = j->prepare.spent_us;
	t->reserve_us = j->reserve_us;
	t->prefill_us = j->run.done_us - j->run.begin_us;
	t->cached_tokens = j->start_tokens;
	t->stored_tokens = j->stored.read_tokens;
	t->chunks = j->run.chunks;
}

/* 0, or ERR_*: the decode worker will not get it, and nobody was sent anything. */
static int send_first(struct job *j)
{
	struct worker *w = j->w;
	Pds__FirstToken f = PDS__FIRST_TOKEN__INIT;
	Pds__Timing timing;
	struct msg_head h;
	request_copy_head(&j->run.req, &h);
	fill_timing(j, &timing);
	f.index = j->run.req.given_tokens - j->run.req.prompt_tokens;
	f.token = drawn_token(&j->run.first, j->run.req.sampling.logprobs >= 0);
	f.decode = (char *)job_decode_name(j);
	f.decode_epoch = job_is_alone(j) ? 0 : j->reserve.asked->target->epoch;
	f.lease_id = j->lease.id.id;
	f.lease_generation = j->lease.id.generation;
	f.finish = j->finish;
	f.timing = &timing;
	struct peer *d = job_decode(j),
				*r = worker_router(w, j->run.req.router, j->run.req.router_epoch);
	int code = 0;
	if (j->finish == PDS__FINISH__FINISH_NONE)
		code = d ? svc_send(w->svc, d, MSG_REQUEST_FIRST_TOKEN, &h, &f.base) : ERR_CLOSED;
	if (r && code == 0)
		worker_send_awaited(w, r, MSG_REQUEST_FIRST_TOKEN, &h, &f.base);
	free(f.token);
	return code;
}

static void log_prefill_done(const struct job *j)
{
	log_req(LOG_INFO, &j->run.req.id, "prefill_done",
	        "attempt=%u tokens=%u cached=%u stored=%u chunks=%u shared_us=%llu queue_us=%llu "
	        "prepare_us=%llu reserve_us=%llu schedule_us=%llu prefill_us=%llu decode=%s",
	        j->run.req.attempt, j->run.req.given_tokens, j->start_tokens, j->stored.read_tokens,
	        j->run.chunks, (unsigned long long)j->share.waited_us,
	        (unsigned long long)(j->prepare.begun_us - j->accepted_us),
	        (unsigned long long)j->prepare.spent_us, (unsigned long long)j->reserve_us,
	        (unsigned long long)(j->run.begin_us - j->run.born_us),
	        (unsigned long long)(j->run.done_us - j->run.begin_us),
	        job_is_alone(j) ? "-" : job_decode_name(j));
}

void handover_embedding(struct job *j)
{
	Pds__Timing timing;
	fill_timing(j, &timing);
	stat_observe_us(&j->w->stats.prefill_seconds, j->run.done_us - j->run.begin_us);
	log_prefill_done(j);
	pooled_send(&j->run.req, j->w, j->run.hidden, &timing);
}

enum handover_first handover_first(struct job *j)
{
	struct worker_stats *st = &j->w->stats;
	j->finish = request_copy_append(&j->run.req, j->run.first.id, j->w->info);
	st->generated_tokens++;
	stat_observe_us(&st->prefill_seconds, j->run.done_us - j->run.begin_us);
	log_prefill_done(j);
	if (send_first(j) < 0)
		return FIRST_LOST;
	if (j->finish == PDS__FINISH__FINISH_NONE)
		return FIRST_SENT;
	reserve_cancel(j, "the first token ended the answer");
	return FIRST_ENDS_ANSWER;
}

void handover_release(struct job *j)
{
	reserve_uncount(j);
	job_leave_ring(j);
	job_release_blocks(j);
}

const char *handover_late(const struct job *j)
{
	if (clock_us() - j->run.done_us <= j->w->conf.stall_us)
		return NULL;
	return j->sent ? "the decode worker does not acknowledge the first token"
	               : "the messager does not report the transfer as done";
}
