/* disk_walk.c - walks over the disk tier's index: which blocks are to be copied to the next tier before they are evicted, and which there are.
 *
 * Blocks that are due are found by the order of use: of the oldest share of each class of slots those that were last used after the last one named. So nothing
 * is kept per block; one that was used again is named again when it is old, and who takes it knows it already. A walk that finds nothing waits for a
 * sixteenth of that share to be put before the next. */
#include "disk_int.h"

#define WALK_MAX 4096u   /* entries of one class that are looked at */

static struct disk *disk_of(struct tier *t)
{
	return (struct disk *)t;
}

void disk_walks_init(struct disk *d)
{
	pthread_mutex_init(&d->walks.lock, NULL);
	d->walks.reader = disk_reader_new(d->index);
}

void disk_walks_fini(struct disk *d)
{
	if (!d->walks.reader)
		return;
	disk_reader_destroy(&d->walks.reader);
	pthread_mutex_destroy(&d->walks.lock);
}

void disk_policy(struct tier *t, enum tier_policy policy, uint32_t after, unsigned low_percent)
{
	struct disk_walks *w = &disk_of(t)->walks;
	(void)after;
	pthread_mutex_lock(&w->lock);
	w->policy = policy;
	w->low_percent = low_percent;
	w->more = 1;
	pthread_mutex_unlock(&w->lock);
}

/* How many of the least recently used blocks of that class should be stored below: the share that is to be free or stored, less what is free. A class that
 * may still get a new segment is not full. */
static uint32_t class_share(struct disk *d, unsigned i, uint32_t *ret_slot_bytes)
{
	pthread_mutex_lock(&d->lock);
	const struct disk_class *k = &d->space.class[i];
	uint64_t low = ((uint64_t)k->slots * d->walks.low_percent + 99) / 100;
	int full = k->slot_bytes && disk_space_next(&d->space, k->slot_bytes) == 0;
	uint64_t share = full && low > k->free ? low - k->free : 0;
	*ret_slot_bytes = k->slot_bytes;
	pthread_mutex_unlock(&d->lock);
	return share < WALK_MAX ? (uint32_t)share : WALK_MAX;
}

uint32_t disk_due(struct tier *t, uint32_t max, struct tier_due *ret)
{
	struct disk *d = disk_of(t);
	struct disk_walks *w = &d->walks;
	uint32_t n = 0, largest = 0;
	pthread_mutex_lock(&w->lock);
	pthread_mutex_lock(&d->lock);
	uint64_t puts = d->stat.puts;
	pthread_mutex_unlock(&d->lock);
	for (unsigned i = 0; w->policy == TIER_OFFLOAD && (w->more || puts >= w->puts) && i < DISK_CLASSES_MAX && n < max; i++) {
		uint32_t slot_bytes, share = class_share(d, i, &slot_bytes);
		largest = share > largest ? share : largest;
		if (share)
			n += disk_reader_coldest(w->reader, slot_bytes, share, &w->after[i], max - n, ret + n);
	}
	if (n < max && (w->more || puts >= w->puts))
		w->puts = puts + 1 + largest / 16;
	w->more = n == max;
	pthread_mutex_unlock(&w->lock);
	return n;
}

/* A tier below has it, so it will not be lost when it goes. */
static void note_copied(struct disk *d, const struct tier_key *key)
{
	struct disk_record rec;
	if (disk_reader_find(d->walks.reader, key, &rec) != 0)
		return;
	pthread_mutex_lock(&d->lock);
	struct disk_segment *g = d->space.segment[rec.segment];
	if (disk_visible(d, key, &rec) && rec.slot < g->slots && disk_space_taken(g, rec.slot))
		disk_space_copied(g, rec.slot);
	pthread_mutex_unlock(&d->lock);
}

/* What could not be taken now: the whole share is named again. */
void disk_stored(struct tier *t, const struct tier_key *key, int ok)
{
	struct disk_walks *w = &disk_of(t)->walks;
	if (ok == 0)
		return;
	pthread_mutex_lock(&w->lock);
	if (ok > 0) {
		note_copied(disk_of(t), key);
		pthread_mutex_unlock(&w->lock);
		return;
	}
	for (unsigned i = 0; i < DISK_CLASSES_MAX; i++)
		w->after[i] = 0;
	w->more = 1;
	pthread_mutex_unlock(&w->lock);
}

void disk_watch(struct tier *t, void (*changed)(void *arg, const struct tier_key *key, int stored), void *arg)
{
	disk_index_watch(disk_of(t)->index, changed, arg);
}

uint32_t disk_list(struct tier *t, struct tier_cursor *at, uint32_t max, struct tier_key *ret)
{
	struct disk_walks *w = &disk_of(t)->walks;
	pthread_mutex_lock(&w->lock);
	uint32_t n = disk_reader_list(w->reader, at, max, ret);
	pthread_mutex_unlock(&w->lock);
	return n;
}
