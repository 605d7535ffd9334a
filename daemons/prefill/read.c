/* read.c - prefixes from storage: what storage has of a prompt, whether that is worth reading, and
 * the read. On the loop's thread.
 *
 * The look-up is sent while the request still queues, and storage moves what it finds on slow tiers
 * into its memory meanwhile. Once the job has its blocks, the leading ones that are faster read
 * than computed (rates.h) are read into them, in parts: parts that arrive before the wait ends are
 * used, the rest is computed. A part that storage may still write is waited for until storage
 * acknowledges its fence; if that takes too long as well, the job goes on in other blocks. */
#include "prefill.h"
#include "util/mem.h"

#include <stdlib.h>
#include <string.h>

#define FENCE_US 500000u /* longest wait for storage's acknowledgement that it writes no more */

/* --- look-up ------------------------------------------------------------- */

static void job_looked_up(struct worker *w, struct store_asker *a, struct store_completion *c)
{
	struct job *j = list_entry(a, struct job, stored.asker);
	(void)w;
	if (c->code == 0 && c->leading) {
		j->stored.leading = j->prepare.probed + c->leading;
		j->stored.tier = mem_array(c->leading, 1);
		memcpy(j->stored.tier, c->tiers, c->leading);
		j->stored.looked_us = clock_us();
	}
	store_completion_free(&c);
	job_step(j, JE_BACK);
}

int read_look_up(struct job *j)
{
	struct store *st = j->w->store;
	uint32_t here = j->prepare.probed, n = j->prepare.may_match - here;
	if (!st || !n || j->w->rates.mode == RATES_NEVER || !store_ready(st))
		return 0;
	j->stored.asker.answered = job_looked_up;
	return store_lookup(st, j->run.blocks.hash + here, n < STORE_ITEMS_MAX ? n : STORE_ITEMS_MAX, 1,
	                    clock_us() + j->w->conf.storage_lookup_wait_us, &j->stored.asker,
	                    &j->stored.batch) == 0;
}

/* --- read ---------------------------------------------------------------- */

void read_free(struct prefill_read *r)
{
	free(r->tier);
	seq_blocks_fini(&r->left);
	free(r);
}

/* Notes how fast storage was: only of a read that its job waited for. Returns how many leading
 * blocks were read. */
static uint32_t note_read(const struct prefill_read *r)
{
	struct worker *w = r->w;
	uint32_t got = 0, by_tier[STORE_TIERS] = {0};
	int whole = 1;
	for (uint32_t i = 0; i < r->n; i++)
		by_tier[r->tier[i]]++;
	for (uint32_t i = 0; i < r->n_parts && whole; i++) {
		got += r->part[i].got;
		whole = r->part[i].got == r->part[i].n;
	}
	rates_note_blocks(&w->rates, by_tier, r->expected, clock_us() - r->begun_us);
	w->stats.read_late += r->n - got;
	stat_observe_us(&w->stats.read_seconds, clock_us() - r->begun_us);
	return got;
}

void read_finish(struct job *j)
{
	struct prefill_read *r = j->stored.read;
	uint32_t got = note_read(r);
	log_req(got < r->n ? LOG_INFO : LOG_DEBUG, &j->run.req.id, "read",
	        "attempt=%u asked=%u got=%u took_us=%llu", j->run.req.attempt, r->n, got,
	        (unsigned long long)(clock_us() - r->begun_us));
	for (uint32_t i = 0; i < got; i++)
		seq_blocks_publish_read(&j->run.blocks, j->w, r->tier[i]);
	j->stored.read = NULL;
	j->stored.read_tokens = got * j->w->info->kv.block_tokens;
	j->stored.leading = 0; /* storage is not asked again for blocks that it did not give */
	j->w->stats.stored_tokens += j->stored.read_tokens;
	list_remove(&r->node);
	read_free(r);
}

/* Storage is done with a read that was given up. */
static void fence_over(struct prefill_read *r)
{
	struct worker *w = r->w;
	seq_blocks_release(&r->left, w);
	list_remove(&r->node);
	read_free(r);
	job_room_made(prefill_of(w));
	role_look(w);
}

/* Blocks that arrived are verified, also the leading ones of a part that is not whole. */
static void part_read(struct worker *w, struct store_asker *a, struct store_completion *c)
{
	struct prefill_read_part *part = list_entry(a, struct prefill_read_part, asker);
	struct prefill_read *r = part->read;
	(void)w;
	part->got = c->leading;
	for (uint32_t i = 0; i < c->leading; i++)
		r->tier[(part - r->part) * READ_PART_BLOCKS + i] = c->result[i].tier;
	store_completion_free(&c);
	if (--r->open)
		return;
	if (r->job)
		job_step(r->job, JE_READ);
	else
		fence_over(r);
}

static struct prefill_read *read_new(struct job *j, uint32_t first, uint32_t n)
{
	uint32_t parts = (n + READ_PART_BLOCKS - 1) / READ_PART_BLOCKS;
	struct prefill_read *r = mem_zalloc(sizeof *r + parts * sizeof r->part[0]);
	r->w = j->w;
	r->job = j;
	r->first = first;
	r->n = n;
	r->tier = mem_array(n, 1);
	r->begun_us = clock_us();
	r->until_us = r->begun_us + j->w->conf.storage_read_wait_us;
	for (uint32_t i = first; i < first + n; i++) {
		unsigned tier = i >= j->prepare.probed ? j->stored.tier[i - j->prepare.probed]
		                                       : STORE_TIER_NONE;
		r->expected = tier > r->expected ? tier : r->expected;
	}
	return r;
}

/* One batch for each part; the first that cannot be asked ends it. 1: at least one is under way. */
static int ask_parts(struct job *j, struct prefill_read *r)
{
	struct store_item items[READ_PART_BLOCKS];
	for (uint32_t at = 0; at < r->n; at += READ_PART_BLOCKS) {
		struct prefill_read_part *part = &r->part[r->n_parts];
		part->read = r;
		part->asker.answered = part_read;
		part->n = r->n - at < READ_PART_BLOCKS ? r->n - at : READ_PART_BLOCKS;
		for (uint32_t i = 0; i < part->n; i++) {
			uint32_t b = r->first + at + i, block = j->run.blocks.block[b];
			items[i] = (struct store_item){j->run.blocks.hash[b], block,
			                               atomic_load(&j->w->region.generations[block])};
		}
		if (store_get(j->w->store, items, part->n, r->until_us, &part->asker, &part->batch) < 0)
			break;
		r->n_parts++;
		r->open++;
	}
	return r->n_parts > 0;
}

/* Blocks from `first` on that are worth reading now. What storage has brought up since the
 * look-up is not where it was. */
static uint32_t leading_worth_reading(struct job *j, uint32_t first)
{
	uint32_t n = j->stored.leading - first,
			 unknown = first < j->prepare.probed ? j->prepare.probed - first : 0;
	unsigned char *tiers = mem_array(n, 1);
	memcpy(tiers + unknown, j->stored.tier + (first + unknown - j->prepare.probed), n - unknown);
	rates_brought_up(&j->w->rates, tiers, n, clock_us() - j->stored.looked_us);
	uint32_t some = rates_worth_reading(&j->w->rates, tiers, n);
	free(tiers);
	if (some < n) {
		j->w->stats.not_worth_reading += n - some;
		log_req(LOG_DEBUG, &j->run.req.id, "recompute", "attempt=%u stored=%u read=%u",
		        j->run.req.attempt, n, some);
	}
	return some;
}

int read_begin(struct job *j)
{
	uint32_t first = j->run.blocks.published, n;
	if (j->stored.leading <= first || !j->w->store || !(n = leading_worth_reading(j, first)))
		return 0;
	struct prefill_read *r = read_new(j, first, n);
	if (!ask_parts(j, r)) {
		read_free(r);
		return 0;
	}
	list_push_back(&prefill_of(j->w)->reads, &r->node);
	j->stored.read = r;
	return 1;
}

void read_leave(struct job *j)
{
	struct prefill_read *r = j->stored.read;
	struct seq_blocks *b = &j->run.blocks;
	if (!r)
		return;
	uint32_t *read = b->block + r->first;
	r->job = NULL;
	r->left.block = mem_array(r->n, sizeof *read);
	r->left.n = r->n;
	memcpy(r->left.block, read, r->n * sizeof *read);
	kv_pool_release(r->w->pool, b->block, r->first);
	kv_pool_release(r->w->pool, read + r->n, b->n - r->first - r->n);
	b->n = 0;
	j->stored.read = NULL;
	job_room_made(prefill_of(r->w));
	for (uint32_t i = 0; i < r->n_parts; i++)
		store_cancel(j->w->store, r->part[i].batch);
}

int read_fences(const struct prefill *s, uint32_t block)
{
	list_each(it, &s->reads) {
		const struct prefill_read *r = list_entry(it, struct prefill_read, node);
		for (uint32_t i = 0; i < r->left.n; i++)
			if (r->left.block[i] == block)
				return 1;
	}
	return 0;
}

int read_is_late(struct job *j)
{
	struct prefill_read *r = j->stored.read;
	if (clock_us() < r->until_us + FENCE_US)
		return 0;
	log_req(LOG_WARN, &j->run.req.id, "read_abandoned", "attempt=%u blocks=%u after_us=%llu",
	        j->run.req.attempt, r->n, (unsigned long long)(clock_us() - r->begun_us));
	j->w->stats.fetches_abandoned++;
	note_read(r);
	read_leave(j);
	j->stored.leading = 0;
	return 1;
}
