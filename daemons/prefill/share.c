/* share.c - requests that share a prefix which is being computed right now: the later one waits for
 * those blocks instead of computing them again.
 *
 * Only granted jobs wait, and only for a job that is in the schedule, has everything it needs, and
 * waits for nobody. The waiting one holds no block and no thread, so it can keep nobody from going
 * on; it is not in the schedule, so it never reads a block that is not computed: it goes through
 * TAKE again, which matches what was published by then; so does a job whose next block was
 * published after its match. If its source is cancelled or fails it goes on at once. It takes again
 * SHARES_MAX times at most.
 *
 * All of it runs on the loop's thread but for share_published. The source stands in the schedule
 * as early as the earliest who waits for it. */
#include "prefill.h"

#include <string.h>

#define SHARES_MAX 4u

/* Leading blocks that both have. A hash covers all before it: equal at one place, equal before. */
static uint32_t common_blocks(const struct job *a, const struct job *j)
{
	uint32_t low = 0, high = a->n_hashes < j->n_match ? a->n_hashes : j->n_match;
	while (low < high) {
		uint32_t mid = low + (high - low) / 2;
		if (memcmp(&a->hashes[mid], &j->hashes[mid], sizeof *a->hashes) == 0)
			low = mid + 1;
		else
			high = mid;
	}
	return low;
}

static struct job *source(struct prefill *s, const struct job *j, uint32_t have,
                          uint32_t *ret_blocks)
{
	struct job *best = NULL;
	*ret_blocks = 0;
	for (uint32_t i = 0; i < ring_slots(s->w->ring); i++) {
		struct job *a = s->by_slot[i];
		if (!a || a->state != JOB_RUN || a->cancelled || a->n_hashes <= have)
			continue;
		uint32_t n = common_blocks(a, j);
		if (n > have && n > a->published && n > *ret_blocks) {
			best = a;
			*ret_blocks = n;
		}
	}
	return best;
}

/* The earlier the waiting, the earlier its source. A source that has published meanwhile is seen
 * here; one that publishes later sees `wanted`. */
static void want(struct job *a, const struct job *j)
{
	uint32_t wanted = a->wanted;
	if (!wanted || j->share_blocks < wanted)
		a->wanted = j->share_blocks;
	if (j->turn < a->turn)
		a->turn = j->turn;
	if (a->published >= j->share_blocks)
		stage_soon(prefill_of(j->w), SOON_SHARE);
}

int share_wait(struct job *j, uint32_t have)
{
	struct prefill *s = prefill_of(j->w);
	uint32_t blocks;
	if (!s->share || j->shares >= SHARES_MAX || j->n_match <= have)
		return 0;
	if (kv_pool_probe(j->w->pool, &j->hashes[have], 1)) {
		/* came between the match and now: its source may have nothing left to wait for */
		job_release_blocks(j);
		if (!j->shares++)
			j->share_had = have;
		job_enter(j, JOB_SHARE);
		job_take(j);
		return 1;
	}
	struct job *a = source(s, j, have, &blocks);
	if (!a)
		return 0;
	job_release_blocks(j);
	if (!j->shares++)
		j->share_had = have;
	j->share_with = a;
	j->share_blocks = blocks;
	j->share_since_us = clock_us();
	job_enter(j, JOB_SHARE);
	list_push_back(&s->sharing, &j->wait);
	stat_add(svc_stats(j->w->svc), WS_SHARES, 1);
	log_req(LOG_INFO, &j->req.id, "share_wait", "attempt=%u with=%s blocks=%u have=%u",
	        j->req.attempt, log_reqid(&a->req.id), blocks, have);
	want(a, j);
	return 1;
}

void share_stop(struct job *j)
{
	list_remove(&j->wait);
	j->share_with = NULL;
	j->share_us += clock_us() - j->share_since_us;
}

/* Those whose blocks are there, or whose source has ended; the others' sources are told anew for
 * how many they wait. */
void share_wake(struct prefill *s)
{
	list_each_safe(it, nx, &s->sharing) {
		struct job *j = list_entry(it, struct job, wait), *a = j->share_with;
		if (a && a->published < j->share_blocks) {
			want(a, j);
			continue;
		}
		share_stop(j);
		log_req(LOG_INFO, &j->req.id, "share_end", "attempt=%u source=%s waited_us=%llu",
		        j->req.attempt, a ? "published" : "ended", (unsigned long long)j->share_us);
		job_take(j);
	}
}

void share_left(struct job *a)
{
	struct prefill *s = prefill_of(a->w);
	list_each(it, &s->sharing) {
		struct job *j = list_entry(it, struct job, wait);
		if (j->share_with == a) {
			j->share_with = NULL;
			stage_soon(s, SOON_SHARE);
		}
	}
}

void share_published(struct job *a)
{
	uint32_t wanted = a->wanted;
	if (wanted && a->published >= wanted) {
		a->wanted = 0;
		stage_soon(prefill_of(a->w), SOON_SHARE);
	}
}
