/* prepare.c - the prepare threads: hash the prompt, look what is cached (phase 1); match again and
 * take blocks (phase 2).
 *
 * A thread never waits for a peer: phase 1 ends with the job parked, phase 2 begins when the decode
 * worker has granted. Results go back to the loop by stage_return. */
#include "prefill.h"
#include "daemons/worker/seq/constraint.h"
#include "util/mem.h"

#include <stdlib.h>

/* The last token is always computed, so at most the full blocks before it may be matched. */
static void phase_hash(struct job *j)
{
	struct worker *w = j->w;
	uint32_t bt = w->info->kv.block_tokens, n = j->req.n_tokens;
	j->prepare_begin_us = clock_us();
	j->hashes = mem_array(n / bt + 1, sizeof *j->hashes);
	j->n_hashes = (uint32_t)kv_hash_chain(&w->root, j->req.tokens, n, bt, j->hashes);
	j->n_match = j->req.prompt_logprobs ? 0 : (n - 1) / bt;
	j->probed = kv_pool_probe(w->pool, j->hashes, j->n_match);
	j->prepare_us = clock_us() - j->prepare_begin_us;
}

/* 1: it waits, because of what would be evicted for it some is not written yet, or because blocks
 * are only lacking while storage reads them. For a while: then the former are evicted as they
 * are, and the latter's write-outs are void. */
static int wait_for_writes(struct job *j, uint32_t need)
{
	struct worker *w = j->w;
	struct prefill *s = prefill_of(w);
	struct kv_stats ks;
	if (!w->writeout)
		return 0;
	kv_pool_stats(w->pool, &ks);
	uint32_t can = ks.by_state[KV_FREE] + ks.evictable, unwritten = 0;
	int pinned = need > can && ks.writing && need <= ks.by_state[KV_FREE] + ks.by_state[KV_CACHED];
	if (s->offload && need > ks.by_state[KV_FREE] && store_ready(w->store) &&
	    !writeout_pauses(w->writeout))
		unwritten = kv_pool_unstored_for(w->pool, need);
	if (!unwritten && !pinned)
		return 0;
	uint64_t now = clock_us();
	if (!j->evict_until_us)
		j->evict_until_us = now + s->evict_wait_us;
	if (now < j->evict_until_us)
		return 1;
	if (pinned && !j->gave_up_writes)
		writeout_give_up(w->writeout, now);
	j->gave_up_writes = 1;
	return 0;
}

/* 0, or -1 with the job's failure set: its constraint was not compiled. */
static int look_at_form(struct job *j)
{
	if (j->form.code == 0)
		return 0;
	snprintf(j->fail_text, sizeof j->fail_text, "%.150s", j->form.err.text);
	j->draw_fault = constraint_fault(j->form.code);
	return -1;
}

static void phase_take(struct job *j)
{
	struct worker *w = j->w;
	if (look_at_form(j) < 0)
		return;
	uint64_t begin = clock_us();
	uint32_t need = worker_blocks_for(w, j->req.n_tokens);
	uint32_t *blocks = mem_array(need, sizeof *blocks);
	uint32_t matched = kv_pool_match(w->pool, j->hashes, j->n_match, &j->req.id, blocks);
	if (wait_for_writes(j, need - matched) ||
	    kv_pool_take(w->pool, need - matched, KV_HELD, &j->req.id, blocks + matched) < 0) {
		kv_pool_release(w->pool, blocks, matched);
		free(blocks);
	} else {
		j->taken.blocks = blocks;
		j->taken.n = need;
		j->taken.matched = matched;
	}
	j->prepare_us += clock_us() - begin;
}

static void *prepare_main(void *arg)
{
	struct prefill *s = arg;
	struct job *j;
	while ((j = queue_take(s->prepare))) {
		if (j->phase == 1) {
			if (!j->cancelled)
				phase_hash(j);
			stage_return(s, j, BACK_PREPARED);
		} else {
			if (!j->cancelled)
				phase_take(j);
			stage_return(s, j, BACK_TAKEN);
		}
	}
	return NULL;
}

int prepare_start(struct prefill *s, struct err *err)
{
	s->n_threads = (uint32_t)conf_int(svc_conf(s->w->svc), "prepare_threads");
	s->prepare = queue_new((size_t)s->max_jobs * 2);
	s->threads = mem_array(s->n_threads, sizeof *s->threads);
	for (uint32_t i = 0; i < s->n_threads; i++)
		if (pthread_create(&s->threads[i], NULL, prepare_main, s) != 0) {
			s->n_threads = i;
			return err_set(err, ERR_NOMEM, "cannot start prepare thread %u", i);
		}
	return 0;
}

void prepare_stop(struct prefill *s)
{
	list_each(n, &s->jobs)
		list_entry(n, struct job, node)->cancelled = 1;
	compiler_wait(s->w->compiler);
	queue_close(s->prepare);
	for (uint32_t i = 0; i < s->n_threads; i++)
		pthread_join(s->threads[i], NULL);
	free(s->threads);
	queue_destroy(&s->prepare);
}
