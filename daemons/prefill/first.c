/* first.c - from the last computed token to the end: the first token goes to the decode worker and
 * to the router, then KvSent and the acknowledgement are awaited. Runs on the loop's thread. */
#include "prefill.h"

#include <stdlib.h>

static void fill_timing(const struct job *j, Pds__Timing *t)
{
	pds__timing__init(t);
	t->queue_us = j->prepare_begin_us - j->accepted_us;
	t->prepare_us = j->prepare_us;
	t->reserve_us = j->reserve_us;
	t->prefill_us = j->first_us - j->run_us;
	t->cached_tokens = j->start_tokens;
	t->stored_tokens = j->fetched_tokens;
	t->chunks = j->chunks;
}

static void send_first(struct job *j)
{
	struct worker *w = j->w;
	Pds__FirstToken f = PDS__FIRST_TOKEN__INIT;
	Pds__Timing timing;
	struct msg_head h;
	job_head(j, &h);
	fill_timing(j, &timing);
	f.index = j->req.given_tokens - j->req.prompt_tokens;
	f.token = drawn_token(&j->first, j->req.sampling.logprobs >= 0);
	f.decode = (char *)job_decode_name(j);
	f.decode_epoch = j->candidate[j->at].target->epoch;
	f.lease_id = j->lease.id;
	f.lease_generation = j->lease.generation;
	f.finish = j->finish;
	f.timing = &timing;
	struct peer *d = job_decode(j);
	if (d && j->finish == PDS__FINISH__FINISH_NONE)
		svc_send(w->svc, d, MSG_REQUEST_FIRST_TOKEN, &h, &f.base);
	struct peer *r = worker_router(w, j->req.router, j->req.router_epoch);
	if (r)
		svc_send(w->svc, r, MSG_REQUEST_FIRST_TOKEN, &h, &f.base);
	free(f.token);
}

static void log_done(const struct job *j)
{
	log_req(LOG_INFO, &j->req.id, "prefill_done",
	        "attempt=%u tokens=%u cached=%u stored=%u chunks=%u shared_us=%llu queue_us=%llu "
	        "prepare_us=%llu reserve_us=%llu schedule_us=%llu prefill_us=%llu decode=%s",
	        j->req.attempt, j->req.given_tokens, j->start_tokens, j->fetched_tokens, j->chunks,
	        (unsigned long long)j->share_us,
	        (unsigned long long)(j->prepare_begin_us - j->accepted_us),
	        (unsigned long long)j->prepare_us, (unsigned long long)j->reserve_us,
	        (unsigned long long)(j->run_us - j->ready_us),
	        (unsigned long long)(j->first_us - j->run_us), job_decode_name(j));
}

void job_computed(struct job *j)
{
	struct stat_set *st = svc_stats(j->w->svc);
	j->holders--;
	stat_add(st, WS_PRECONDITIONS, j->broken != 0);
	if (j->step_failed) {
		job_fail_by(j, PDS__FAULT__FAULT_INTERNAL, 1, j->fail_text, svc_name(j->w->svc));
		return;
	}
	if (j->draw_fault) {
		job_fail_draw(j);
		return;
	}
	if (j->cancelled || j->computed < j->req.n_tokens) {
		job_drop(j, "cancelled");
		return;
	}
	j->finish = request_copy_append(&j->req, j->first.id, j->w->info);
	j->w->generated_tokens++;
	stat_add(st, WS_GENERATED_TOKENS, 1);
	stat_observe_us(st, WS_PREFILL_SECONDS, j->first_us - j->run_us);
	log_done(j);
	send_first(j);
	job_enter(j, JOB_COMPUTED);
	if (j->finish != PDS__FINISH__FINISH_NONE) {
		reserve_cancel(j, "the first token ended the answer");
		job_end(j);
		return;
	}
	job_finish_if_done(j);
}

void job_finish_if_done(struct job *j)
{
	if (j->state != JOB_COMPUTED || !j->kv_sent)
		return;
	reserve_uncount(j);
	job_leave_ring(j);
	job_release_blocks(j);
	if (j->first_acked)
		job_end(j);
}
