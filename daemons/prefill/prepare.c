/* prepare.c - see prepare.h. */
#include "prepare.h"
#include "daemons/worker/seq/constraint.h"
#include "util/check.h"
#include "util/clock.h"
#include "util/mem.h"

#include <stdlib.h>

static void hash(struct job_prepare *p)
{
	const struct worker *w = p->stage->w;
	uint32_t n = p->req->n_tokens;
	p->begun_us = clock_us();
	seq_blocks_hash(p->blocks, w, p->req, n);
	/* The last token is always computed: only full blocks before it may be matched. */
	p->may_match = request_copy_needs_all(p->req) ? 0 : (n - 1) / w->info->kv.block_tokens;
	p->probed = kv_pool_probe(w->pool, p->blocks->hash, p->may_match);
	p->spent_us = clock_us() - p->begun_us;
}

/* 1 if the job may take `missing` blocks now. 0 for at most offload_wait_ms: some of the blocks
 * that would be evicted are not written to storage yet, or blocks are missing only because storage
 * reads them. After that time the former are evicted unwritten, and the write-outs of the latter
 * are void. */
static int may_take(void *arg, uint32_t missing)
{
	struct job_prepare *p = arg;
	struct worker *w = p->stage->w;
	struct kv_stats ks;
	if (!w->writeout)
		return 1;
	kv_pool_stats(w->pool, &ks);
	uint32_t unused = ks.by_state[KV_FREE], unwritten = 0;
	int pinned = missing > unused + ks.evictable && ks.writing &&
	             missing <= unused + ks.by_state[KV_CACHED];
	if (w->conf.kv_eviction == EVICT_OFFLOAD && missing > unused && store_ready(w->store) &&
	    !writeout_pauses(w->writeout))
		unwritten = kv_pool_unstored_for(w->pool, missing);
	if (!unwritten && !pinned)
		return 1;
	uint64_t now = clock_us();
	if (!p->evict_until_us)
		p->evict_until_us = now + w->conf.offload_wait_us;
	if (now < p->evict_until_us)
		return 0;
	if (pinned && p->evict_until_us != WRITES_GIVEN_UP)
		writeout_give_up(w->writeout, now);
	p->evict_until_us = WRITES_GIVEN_UP;
	return 1;
}

static void take_blocks_now(struct job_prepare *p)
{
	if (p->form.code < 0) {
		seq_failure_draw(&p->failure, &p->form.err);
		return;
	}
	uint64_t begin = clock_us();
	seq_blocks_take(p->blocks, p->stage->w, p->req, p->may_match, KV_HELD, may_take, p);
	p->spent_us += clock_us() - begin;
}

static void *prepare_main(void *arg)
{
	struct prepare *s = arg;
	struct job_prepare *p;
	while ((p = queue_take(s->queue))) {
		if (*p->cancelled)
			;
		else if (p->work == PREPARE_HASH)
			hash(p);
		else
			take_blocks_now(p);
		svc_post(s->w->svc, s->back, p);
	}
	return NULL;
}

static void to_threads(struct constraint_task *t)
{
	struct job_prepare *p = list_entry(t, struct job_prepare, form);
	CHECK(queue_put(p->stage->queue, p) == 0);
}

void prepare_hash(struct prepare *s, struct job_prepare *p)
{
	p->stage = s;
	p->work = PREPARE_HASH;
	to_threads(&p->form);
}

/* The constraint is compiled now and not before: a parked job should hold no automaton. */
void prepare_take(struct prepare *s, struct job_prepare *p, struct request_copy *req, int urgent)
{
	p->stage = s;
	p->work = PREPARE_TAKE;
	p->form = (struct constraint_task){
		.req = req, .work = constraint_compile, .cancelled = p->cancelled, .done = to_threads};
	if (constraint_is_ready(req))
		to_threads(&p->form);
	else
		tasks_put(s->w->compiler, &p->form, urgent);
}

int prepare_start(struct prepare *s, struct err *err)
{
	uint32_t n = s->w->conf.prepare_threads;
	s->queue = queue_new((size_t)s->w->conf.max_jobs * 2);
	s->threads = mem_array(n, sizeof *s->threads);
	for (; s->n_threads < n; s->n_threads++)
		if (pthread_create(&s->threads[s->n_threads], NULL, prepare_main, s) != 0)
			return err_set(err, ERR_NOMEM, "cannot start prepare thread %u", s->n_threads);
	return 0;
}

void prepare_stop(struct prepare *s)
{
	tasks_wait(s->w->compiler);
	queue_close(s->queue);
	for (uint32_t i = 0; i < s->n_threads; i++)
		pthread_join(s->threads[i], NULL);
	free(s->threads);
	queue_destroy(&s->queue);
}
