/* share.c - requests that share a prefix which is being computed right now: the later job waits for
 * those blocks instead of computing them again.
 *
 * Only jobs that are granted or alone wait, and only for a job that is in the schedule, has
 * everything it needs, and waits for nobody. The waiting job holds no block and no thread, so it
 * cannot hold up any other job. It is not in the schedule, so it never reads a block that is not
 * computed: it goes through TAKE again, which matches the blocks published by then. So does a job
 * whose next block was published after its match. If the source is cancelled or fails, the job goes
 * on at once. It waits SHARES_MAX times at most.
 *
 * All of it runs on the loop's thread. The schedule thread places the source as early as the
 * earliest job that waits for it (run_shared.turn), and reports `wanted` blocks as published. */
#include "prefill.h"

#define SHARES_MAX 4u

static struct job *source(struct prefill *s, const struct job *j, uint32_t have,
                          uint32_t *ret_blocks)
{
	struct job *best = NULL;
	*ret_blocks = 0;
	list_each(it, &s->jobs) { /* those that are alone have no slot */
		struct job *a = list_entry(it, struct job, node);
		if (!job_is_scheduled(a) || a->run.blocks.n_hashes <= have)
			continue;
		uint32_t n = seq_blocks_common(&a->run.blocks, &j->run.blocks, j->prepare.may_match);
		if (n > have && n > a->run.blocks.published && n > *ret_blocks) {
			best = a;
			*ret_blocks = n;
		}
	}
	return best;
}

/* Blocks that the source published before `wanted` was set are noticed here, later ones by the
 * schedule thread. */
static void want(struct job *a, const struct job *j)
{
	uint32_t wanted = a->shared.wanted;
	if (!wanted || j->share.blocks < wanted)
		a->shared.wanted = j->share.blocks;
	if (j->shared.turn < a->shared.turn)
		a->shared.turn = j->shared.turn;
	if (a->run.blocks.published >= j->share.blocks)
		stage_soon(prefill_of(j->w), SOON_SHARE);
}

static void count_share(struct job *j, uint32_t have)
{
	job_release_blocks(j);
	if (!j->share.times++)
		j->share.had = have;
}

int share_wait(struct job *j)
{
	struct prefill *s = prefill_of(j->w);
	uint32_t blocks, have = j->run.blocks.n ? j->run.blocks.published : j->prepare.probed;
	if (j->share.times >= SHARES_MAX || j->prepare.may_match <= have)
		return 0;
	if (kv_pool_probe(j->w->pool, &j->run.blocks.hash[have], 1)) {
		/* published between the match and now: its source may have nothing left to compute */
		count_share(j, have);
		return 0;
	}
	struct job *a = source(s, j, have, &blocks);
	if (!a)
		return 0;
	count_share(j, have);
	j->share.with = a;
	j->share.blocks = blocks;
	j->share.since_us = clock_us();
	list_push_back(&s->sharing, &j->wait);
	j->w->stats.shares++;
	log_req(LOG_INFO, &j->run.req.id, "share_wait", "attempt=%u with=%s blocks=%u have=%u",
	        j->run.req.attempt, log_reqid(&a->run.req.id), blocks, have);
	want(a, j);
	return 1;
}

void share_finish(struct job *j)
{
	j->share.waited_us += clock_us() - j->share.since_us;
	log_req(LOG_INFO, &j->run.req.id, "share_end", "attempt=%u source=%s waited_us=%llu",
	        j->run.req.attempt, j->share.with ? "published" : "ended",
	        (unsigned long long)j->share.waited_us);
	j->share.with = NULL;
}

/* Wakes the jobs whose blocks are published or whose source computes no more. The other sources are
 * told again how many blocks are wanted. */
void share_wake(struct prefill *s)
{
	list_each_safe(it, nx, &s->sharing) {
		struct job *j = list_entry(it, struct job, wait), *a = j->share.with;
		if (a && a->run.blocks.published < j->share.blocks)
			want(a, j);
		else
			job_step(j, JE_PREFIX);
	}
}

void share_source_gone(struct job *a)
{
	struct prefill *s = prefill_of(a->w);
	list_each(it, &s->sharing) {
		struct job *j = list_entry(it, struct job, wait);
		if (j->share.with == a) {
			j->share.with = NULL;
			stage_soon(s, SOON_SHARE);
		}
	}
}

void share_published(struct svc *svc, void *run)
{
	const struct job *a = list_entry(run, struct job, run);
	(void)svc;
	stage_soon(prefill_of(a->w), SOON_SHARE);
}
