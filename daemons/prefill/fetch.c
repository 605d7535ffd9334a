/* fetch.c - prefixes from storage: what it has of a prompt, whether that is worth reading, and the
 * read. On the loop's thread.
 *
 * The look-up goes out while the request still queues, and storage brings what it finds on slow
 * tiers up into its memory meanwhile. Once the job has its blocks the leading ones that are faster
 * read than computed (rates.h) are read into them, in parts: what has come when the wait is over
 * is used, the rest is computed. A part that storage may still write is waited for until storage
 * acknowledges its fence; if that takes too long as well the job goes on in other blocks. */
#include "prefill.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define FENCE_US 500000u /* for storage's acknowledgement that it writes no more */

/* --- look-up ------------------------------------------------------------- */

static void looked_up(struct worker *w, struct store_asker *a, struct store_completion *c)
{
	struct job *j = (struct job *)((char *)a - offsetof(struct job, lookup_asker));
	(void)w;
	j->holders--;
	if (c->code == 0 && c->leading) {
		j->store_leading = j->probed + c->leading;
		j->store_tier = mem_array(c->leading, 1);
		memcpy(j->store_tier, c->tiers, c->leading);
		j->looked_us = clock_us();
	}
	store_completion_free(&c);
	if (j->cancelled) {
		job_drop(j, "cancelled");
		return;
	}
	job_enter(j, JOB_RESERVE);
	reserve_place(j);
}

int fetch_look_up(struct job *j)
{
	struct store *st = j->w->store;
	uint32_t here = j->probed, n = j->n_match - here;
	if (!st || !n || j->w->rates.mode == RATES_NEVER || !store_ready(st))
		return 0;
	j->lookup_asker.answered = looked_up;
	return store_lookup(st, j->hashes + here, n < STORE_ITEMS_MAX ? n : STORE_ITEMS_MAX, 1,
	                    clock_us() + prefill_of(j->w)->lookup_us, &j->lookup_asker,
	                    &j->lookup) == 0;
}

/* --- read ---------------------------------------------------------------- */

static void publish_read(struct job *j, const struct fetch *f, uint32_t got)
{
	struct kv_pool *p = j->w->pool;
	for (uint32_t i = 0; i < got; i++, j->published++) {
		uint32_t b = j->blocks[j->published];
		kv_pool_publish(p, b, &j->hashes[j->published],
		                j->published ? &j->hashes[j->published - 1] : NULL);
		kv_pool_set_stored(p, b, atomic_load(&j->w->region.generations[b]), f->tier[i]);
	}
	j->fetched_tokens = got * j->w->info->kv.block_tokens;
	j->start_tokens = j->published * j->w->info->kv.block_tokens;
	j->computed = j->start_tokens;
	j->store_leading = 0; /* what it did not give now it is not asked for again */
	stat_add(svc_stats(j->w->svc), WS_STORED_TOKENS, j->fetched_tokens);
}

void fetch_free(struct fetch *f)
{
	free(f->tier);
	free(f->blocks);
	free(f);
}

/* What came in the time that the job gave it: a read that was cancelled says nothing of storage.
 * Returns how many leading blocks are there. */
static uint32_t note_read(const struct fetch *f)
{
	struct worker *w = f->w;
	uint32_t got = 0, came[STORE_TIERS] = {0};
	int whole = 1;
	for (uint32_t i = 0; i < f->n; i++)
		came[f->tier[i]]++;
	for (uint32_t i = 0; i < f->n_parts && whole; i++) {
		got += f->part[i].got;
		whole = f->part[i].got == f->part[i].n;
	}
	rates_note_blocks(&w->rates, came, f->expected, clock_us() - f->begun_us);
	stat_add(svc_stats(w->svc), WS_READ_LATE, f->n - got);
	stat_observe_us(svc_stats(w->svc), WS_READ_SECONDS, clock_us() - f->begun_us);
	return got;
}

static void fetch_over(struct fetch *f)
{
	struct worker *w = f->w;
	struct job *j = f->job;
	list_remove(&f->node);
	if (j) {
		uint32_t got = note_read(f);
		log_req(got < f->n ? LOG_INFO : LOG_DEBUG, &j->req.id, "fetched",
		        "attempt=%u asked=%u got=%u took_us=%llu", j->req.attempt, f->n, got,
		        (unsigned long long)(clock_us() - f->begun_us));
		j->fetch = NULL;
		publish_read(j, f, got);
		if (!share_wait(j, j->published))
			job_run(j);
	} else {
		if (f->n_blocks)
			kv_pool_release(w->pool, f->blocks, f->n_blocks);
		job_came_back(prefill_of(w));
		role_look(w);
	}
	fetch_free(f);
}

/* What came is there and verified, also of a part that was not whole: then its leading blocks
 * count. */
static void part_read(struct worker *w, struct store_asker *a, struct store_completion *c)
{
	struct fetch_part *part = (struct fetch_part *)a;
	struct fetch *f = part->fetch;
	(void)w;
	part->got = c->leading;
	for (uint32_t i = 0; i < c->leading; i++)
		f->tier[(part - f->part) * FETCH_PART + i] = c->result[i].tier;
	store_completion_free(&c);
	if (--f->left == 0)
		fetch_over(f);
}

static struct fetch *fetch_new(struct job *j, uint32_t first, uint32_t n)
{
	uint32_t parts = (n + FETCH_PART - 1) / FETCH_PART;
	struct fetch *f = mem_zalloc(sizeof *f + parts * sizeof f->part[0]);
	f->w = j->w;
	f->job = j;
	f->first = first;
	f->n = n;
	f->tier = mem_array(n, 1);
	f->begun_us = clock_us();
	f->until_us = f->begun_us + prefill_of(j->w)->fetch_us;
	for (uint32_t i = first; i < first + n; i++) {
		unsigned tier = i >= j->probed ? j->store_tier[i - j->probed] : STORE_TIER_NONE;
		f->expected = tier > f->expected ? tier : f->expected;
	}
	return f;
}

/* One batch for each part; the first that cannot be asked ends it. 1: at least one is under way. */
static int ask_parts(struct job *j, struct fetch *f)
{
	struct store_item items[FETCH_PART];
	for (uint32_t at = 0; at < f->n; at += FETCH_PART) {
		struct fetch_part *part = &f->part[f->n_parts];
		part->fetch = f;
		part->asker.answered = part_read;
		part->n = f->n - at < FETCH_PART ? f->n - at : FETCH_PART;
		for (uint32_t i = 0; i < part->n; i++) {
			uint32_t b = f->first + at + i;
			items[i] = (struct store_item){j->hashes[b], j->blocks[b],
			                               atomic_load(&j->w->region.generations[j->blocks[b]])};
		}
		if (store_get(j->w->store, items, part->n, f->until_us, &part->asker, &part->batch) < 0)
			break;
		f->n_parts++;
		f->left++;
	}
	return f->n_parts > 0;
}

/* Blocks from `first` on that are worth reading now. What storage has brought up since the
 * look-up is not where it was. */
static uint32_t worth(struct job *j, uint32_t first)
{
	uint32_t n = j->store_leading - first, unknown = first < j->probed ? j->probed - first : 0;
	unsigned char *tiers = mem_array(n, 1);
	memcpy(tiers + unknown, j->store_tier + (first + unknown - j->probed), n - unknown);
	rates_brought_up(&j->w->rates, tiers, n, clock_us() - j->looked_us);
	uint32_t r = rates_worth_reading(&j->w->rates, tiers, n);
	free(tiers);
	if (r < n) {
		stat_add(svc_stats(j->w->svc), WS_NOT_WORTH_READING, n - r);
		log_req(LOG_DEBUG, &j->req.id, "recompute", "attempt=%u stored=%u read=%u", j->req.attempt,
		        n, r);
	}
	return r;
}

int fetch_begin(struct job *j)
{
	uint32_t first = j->published, n;
	if (j->store_leading <= first || !j->w->store || !(n = worth(j, first)))
		return 0;
	struct fetch *f = fetch_new(j, first, n);
	if (!ask_parts(j, f)) {
		fetch_free(f);
		return 0;
	}
	list_push_back(&prefill_of(j->w)->fetches, &f->node);
	j->fetch = f;
	return 1;
}

void fetch_leave(struct job *j)
{
	struct fetch *f = j->fetch;
	if (!f)
		return;
	f->job = NULL;
	f->blocks = j->blocks;
	f->n_blocks = j->n_blocks;
	j->blocks = NULL;
	j->n_blocks = 0;
	j->fetch = NULL;
	for (uint32_t i = 0; i < f->n_parts; i++)
		store_cancel(j->w->store, f->part[i].batch);
}

int fetch_fences(const struct prefill *s, uint32_t block)
{
	list_each(it, &s->fetches) {
		const struct fetch *f = list_entry(it, struct fetch, node);
		for (uint32_t i = 0; !f->job && i < f->n_blocks; i++)
			if (f->blocks[i] == block)
				return 1;
	}
	return 0;
}

void fetch_late(struct job *j)
{
	struct fetch *f = j->fetch;
	if (clock_us() < f->until_us + FENCE_US)
		return;
	log_req(LOG_WARN, &j->req.id, "fetch_abandoned", "attempt=%u blocks=%u after_us=%llu",
	        j->req.attempt, j->n_blocks, (unsigned long long)(clock_us() - f->begun_us));
	stat_add(svc_stats(j->w->svc), WS_FETCHES_ABANDONED, 1);
	note_read(f);
	fetch_leave(j);
	j->store_leading = 0;
	job_take(j);
}
