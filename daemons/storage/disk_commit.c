/* disk_commit.c - the disk tier's committer: everything that changes the index, in one transaction for all that has gathered.
 *
 * Order of things, which kill -9 may cut anywhere: a block's data is written before its record is committed, and the record before the put is acknowledged. An
 * evicted record's removal is committed before its slot is given to another block. A segment file is there before its record, and goes after it: what
 * is left over then is swept at the next start.
 *
 * Memory (slots, counts) changes only after the commit, so a transaction that fails leaves all as it was: its puts end with the reason and their slots are free
 * again. An index that is damaged under a tier that runs is begun anew, without its blocks. When the map is full the transaction is given up and done again with a larger one.
 *
 * Room for a put that is parked comes from, in this order: a new segment while the capacity allows it and the disk has room; a segment of another slot size whose
 * blocks were all used before the oldest of this size; the least recently used block of this size. */
#include "disk_int.h"

#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DROPS_PER_CYCLE 1024u        /* records of dying segments, so that puts wait only for short commits */
#define EVICTIONS_PER_CYCLE 512u
#define INDEX_BYTES_PER_SLOT 400u    /* room made sure for the index with each segment */

struct freed {
	uint32_t segment, slot;
};

/* What one round does, and what it means for memory once it is committed. */
struct cycle {
	struct disk *d;
	struct list written;             /* disk_jobs */
	unsigned n_written;
	struct tier_key hit[DISK_HITS_MAX];
	unsigned n_hits;
	struct disk_drop drop[DISK_DROPS_MAX];
	unsigned n_drops;
	unsigned flushes;
	int flush, renewed;
	uint64_t seq;
	struct disk_segment *made;       /* new segment */
	/* effects */
	struct freed *freed;
	size_t n_freed, freed_room;
	uint64_t blocks_more, blocks_less, bytes_more, bytes_less, evictions, lost;
	uint32_t emptied[DISK_SEGMENTS_MAX];
	unsigned n_emptied;
	int stop;                        /* the tier ends: no more room is made */
	int again;                       /* another round is needed */
	int error;                       /* errno of a data sync */
};

/* --- the transaction --- */

static void note_freed(struct cycle *c, const struct disk_record *r)
{
	if (c->n_freed == c->freed_room) {
		c->freed_room = c->freed_room ? 2 * c->freed_room : 64;
		c->freed = mem_grow(c->freed, c->freed_room, sizeof *c->freed);
	}
	c->freed[c->n_freed++] = (struct freed){r->segment, r->slot};
	c->blocks_less++;
	c->bytes_less += r->bytes;
}

/* A block went that nobody asked to go: lost, unless a tier below has it. Before its slot is given back. */
static void note_gone(struct cycle *c, const struct disk_record *r)
{
	pthread_mutex_lock(&c->d->lock);
	const struct disk_segment *g = c->d->space.segment[r->segment];
	c->lost += !(g && r->slot < g->slots && disk_space_is_copied(g, r->slot));
	pthread_mutex_unlock(&c->d->lock);
}

static int may_miss(int r)
{
	return r == ERR_NOTFOUND ? 0 : r;
}

/* The segments that there are, into an index that was begun anew. */
static int do_segments(struct cycle *c)
{
	struct disk *d = c->d;
	int r = 0;
	for (uint32_t n = 0; r == 0 && n < DISK_SEGMENTS_MAX; n++) {
		pthread_mutex_lock(&d->lock);
		const struct disk_segment *g = d->space.segment[n];
		uint32_t slots = g && !g->dying ? g->slots : 0, slot_bytes = slots ? g->slot_bytes : 0;
		pthread_mutex_unlock(&d->lock);
		if (slots)
			r = disk_index_segment_add(d->index, n, slot_bytes, slots);
	}
	return r;
}

static int do_drops(struct cycle *c)
{
	int r = 0;
	for (unsigned i = 0; r == 0 && i < c->n_drops; i++) {
		struct disk_record rec;
		r = disk_index_drop(c->d->index, &c->drop[i].key, c->drop[i].born, &rec);
		if (r == 0) {
			note_freed(c, &rec);
			if (c->drop[i].why == DISK_DROP_DAMAGED)
				note_gone(c, &rec);
		}
		r = may_miss(r);
	}
	return r;
}

/* One written block: into the index, unless another put was faster. */
static int do_add(struct cycle *c, struct disk_job *j)
{
	struct disk *d = c->d;
	struct disk_record old;
	int r = disk_index_get(d->index, &j->op->key, &old), damaged = r == ERR_INVALID;
	if (r != 0 && r != ERR_NOTFOUND && !damaged)
		return r;
	pthread_mutex_lock(&d->lock);
	int dying = j->segment->dying, counts = r == 0 && disk_visible(d, &j->op->key, &old);
	pthread_mutex_unlock(&d->lock);
	j->known = counts && old.bytes == j->rec.bytes;
	j->code = 0;
	if (j->known)
		return 0;
	if (dying) {
		j->code = ERR_FULL;
		return 0;
	}
	if (r == 0 || damaged) {
		r = disk_index_drop(d->index, &j->op->key, 0, &old);
		if (r != 0 && r != ERR_NOTFOUND)
			return r;
		if (r == 0)
			note_freed(c, &old);
		if (r == 0 && damaged)
			note_gone(c, &old);
	}
	j->rec.born = j->rec.used = c->seq++;
	r = disk_index_add(d->index, &j->op->key, &j->rec);
	if (r == 0) {
		c->blocks_more++;
		c->bytes_more += j->rec.bytes;
	}
	return r;
}

static int do_touches(struct cycle *c)
{
	struct disk *d = c->d;
	int r = 0;
	for (unsigned i = 0; r == 0 && i < c->n_hits; i++) {
		struct disk_record rec;
		r = disk_index_touch(d->index, &c->hit[i], c->seq++, &rec);
		if (r == 0) {
			pthread_mutex_lock(&d->lock);
			struct disk_segment *g = d->space.segment[rec.segment];
			if (g && g->last_used < rec.used)
				g->last_used = rec.used;
			pthread_mutex_unlock(&d->lock);
		}
		r = may_miss(r);
	}
	return r;
}

static int any_dying(struct disk *d)
{
	pthread_mutex_lock(&d->lock);
	int any = d->space.n_dying > 0;
	pthread_mutex_unlock(&d->lock);
	return any;
}

static int do_dying(struct cycle *c)
{
	struct disk *d = c->d;
	uint32_t n_segments = any_dying(d) ? DISK_SEGMENTS_MAX : 0;
	unsigned left = DROPS_PER_CYCLE;
	for (uint32_t n = 0; n < n_segments; n++) {
		pthread_mutex_lock(&d->lock);
		struct disk_segment *g = d->space.segment[n];
		int dying = g && g->dying && !g->gone, there = g && g->fd >= 0;
		pthread_mutex_unlock(&d->lock);
		int r = 0;
		while (dying && r == 0 && left > 0) {
			struct disk_record rec;
			r = disk_index_drop_in(d->index, n, &rec);
			if (r == 0) {
				note_freed(c, &rec);
				note_gone(c, &rec);
				c->evictions += there != 0;
				left--;
			}
		}
		if (r != 0 && r != ERR_NOTFOUND)
			return r;
		if (r == ERR_NOTFOUND) {
			r = disk_index_segment_drop(d->index, n);
			if (r != 0)
				return r;
			c->emptied[c->n_emptied++] = n;
		}
	}
	c->again |= left == 0;
	return 0;
}

/* --- room --- */

/* A new segment file of that class and its record. ERR_NOTFOUND: not now. */
static int make_segment(struct cycle *c, uint32_t slot_bytes)
{
	struct disk *d = c->d;
	pthread_mutex_lock(&d->lock);
	uint32_t slots = clock_us() < d->no_room_until_us ? 0 : disk_space_next(&d->space, slot_bytes);
	int number = slots ? disk_space_number(&d->space) : -1;
	uint64_t index_bytes = (d->space.slots + slots) * INDEX_BYTES_PER_SLOT;
	uint64_t seq = d->seq;
	pthread_mutex_unlock(&d->lock);
	if (number < 0)
		return ERR_NOTFOUND;
	char *path = disk_dir_segment_path(&d->dir, (uint32_t)number);
	struct disk_segment *g = NULL;
	int e = disk_segment_make(path, d->o.calls, d->o.direct, (uint32_t)number, slot_bytes, slots, &g);
	if (e == 0 && disk_index_reserve(d->index, index_bytes) != 0) {
		e = ENOSPC;
		close(g->fd);
		free(g);
		unlink(path);
	}
	if (e == 0) {
		g->last_used = seq;
		c->made = g;
		if (d->o.sync)
			disk_dir_sync(&d->dir);
	} else {
		log_warn("disk_full", "path=%s wanted_bytes=%llu reason=%s action=goes_on_with_what_it_has", log_quote(path), (unsigned long long)slots * slot_bytes,
		         log_quote(strerror(e)));
		pthread_mutex_lock(&d->lock);
		d->no_room_until_us = clock_us() + DISK_PAUSE_US;
		pthread_mutex_unlock(&d->lock);
	}
	free(path);
	return e == 0 ? disk_index_segment_add(d->index, g->number, g->slot_bytes, g->slots) : ERR_NOTFOUND;
}

/* With the lock held: slots of the class that come back without the committer: who writes or reads them is about to end. */
static unsigned slots_coming(const struct disk *d, uint32_t slot_bytes)
{
	unsigned n = 0;
	list_each(it, &d->reading) {
		const struct disk_job *j = list_entry(it, struct disk_job, reading);
		n += j->slot_freed && j->rec.slot_bytes == slot_bytes && !j->segment->dying;
	}
	return n;
}

/* How many slots of the class should be made free now: for all that are parked, and a few ahead, so that most puts never wait. */
static unsigned slots_wanted(struct disk *d, const struct disk_class *k)
{
	unsigned ahead = k->slots / 16 < d->o.depth ? k->slots / 16 : d->o.depth;
	unsigned have = k->free + slots_coming(d, k->slot_bytes);
	unsigned want = (k->n_parked || k->slots) && k->n_parked + ahead > have ? k->n_parked + ahead - have : 0;
	return want < EVICTIONS_PER_CYCLE ? want : EVICTIONS_PER_CYCLE;
}

/* A segment of another class dies, if all in it was used before the oldest of this one. 1: one does, or does already. */
static int take_from_others(struct cycle *c, uint32_t slot_bytes)
{
	struct disk *d = c->d;
	uint64_t oldest = UINT64_MAX;
	int r = disk_index_oldest(d->index, slot_bytes, &oldest);
	if (r != 0 && r != ERR_NOTFOUND)
		return r;
	pthread_mutex_lock(&d->lock);
	const struct disk_space *s = &d->space;
	struct disk_segment *g = disk_space_coldest(&d->space, slot_bytes);
	int taken = s->dying_bytes > 0 && s->capacity_bytes + s->dying_bytes >= s->file_bytes + slot_bytes;   /* enough is on its way */
	if (!taken && g && g->last_used < oldest) {
		disk_space_kill(&d->space, g);
		taken = 1;
		c->again = 1;
	}
	pthread_mutex_unlock(&d->lock);
	return taken;
}

static int evict(struct cycle *c, uint32_t slot_bytes, unsigned n)
{
	int r = 0;
	for (; n && r == 0; n--) {
		struct disk_record rec;
		r = disk_index_evict(c->d->index, slot_bytes, &rec);
		if (r == 0) {
			note_freed(c, &rec);
			note_gone(c, &rec);
			c->evictions++;
		}
	}
	return may_miss(r);
}

static int do_room(struct cycle *c, struct disk_class *k)
{
	struct disk *d = c->d;
	if (c->flush) {
		/* all slots come back with the commit: what it adds must not be evicted for want of them */
		c->again = 1;
		return 0;
	}
	pthread_mutex_lock(&d->lock);
	uint32_t slot_bytes = k->slot_bytes, parked = k->n_parked;
	unsigned want = slot_bytes && slot_bytes <= d->space.capacity_bytes ? slots_wanted(d, k) : 0;
	int lost = 0;
	for (size_t i = 0; i < c->n_freed && want; i++) {   /* what this round has freed already */
		const struct disk_segment *g = d->space.segment[c->freed[i].segment];
		want -= g && !g->dying && g->slot_bytes == slot_bytes;
	}
	pthread_mutex_unlock(&d->lock);
	if (want == 0)
		return 0;
	if (c->made) {   /* one segment a round */
		c->again |= c->made->slot_bytes != slot_bytes;
		return 0;
	}
	int r = make_segment(c, slot_bytes);
	if (r != ERR_NOTFOUND)
		return r;
	if (parked)
		lost = take_from_others(c, slot_bytes);
	return lost != 0 ? (lost > 0 ? 0 : lost) : evict(c, slot_bytes, want);
}

static void shrink(struct cycle *c)
{
	struct disk *d = c->d;
	pthread_mutex_lock(&d->lock);
	struct disk_segment *g;
	while (d->space.file_bytes - d->space.dying_bytes > d->space.capacity_bytes && (g = disk_space_coldest(&d->space, 0)) != NULL)
		disk_space_kill(&d->space, g);
	pthread_mutex_unlock(&d->lock);
}

/* Everything of this round, begun and committed. ERR_NOMEM: the map is full. */
static int transaction(struct cycle *c)
{
	struct disk *d = c->d;
	int r = disk_index_begin(d->index);
	if (r == 0 && c->flush)
		r = disk_index_drop_all(d->index);
	if (r == 0 && c->renewed)
		r = do_segments(c);
	if (r == 0 && c->made)
		r = disk_index_segment_add(d->index, c->made->number, c->made->slot_bytes, c->made->slots);
	if (r == 0)
		r = do_drops(c);
	list_each(it, &c->written)
		if (r == 0 && !c->error)
			r = do_add(c, list_entry(it, struct disk_job, link));
	if (r == 0)
		r = do_touches(c);
	if (r == 0 && !c->stop) {
		shrink(c);
		for (unsigned i = 0; r == 0 && i < DISK_CLASSES_MAX; i++)
			r = do_room(c, &d->space.class[i]);   /* a lock and no more for those that want nothing */
		if (r == 0)
			r = do_dying(c);
	}
	if (r == 0)
		r = disk_index_commit(d->index);
	if (r != 0)
		disk_index_abort(d->index);
	return r;
}

static int commit(struct cycle *c)
{
	for (;;) {
		uint64_t seq = c->seq;
		int r = transaction(c);
		if (r != ERR_NOMEM)
			return r;
		r = disk_index_grow(c->d->index);
		if (r != 0)
			return r;
		c->seq = seq;
		c->n_freed = 0;
		c->blocks_more = c->blocks_less = c->bytes_more = c->bytes_less = c->evictions = c->lost = 0;
		c->n_emptied = 0;
	}
}

/* --- before --- */

/* With the lock held. */
static void cycle_take(struct cycle *c)
{
	struct disk *d = c->d;
	list_init(&c->written);
	c->n_written = c->n_hits = c->n_drops = 0;
	while (!list_empty(&d->written)) {
		struct list *it = d->written.next;
		list_remove(it);
		list_push_back(&c->written, it);
		c->n_written++;
	}
	memcpy(c->hit, d->hit, d->n_hits * sizeof c->hit[0]);
	c->n_hits = d->n_hits;
	d->n_hits = 0;
	list_each(it, &d->drops) {
		if (c->n_drops == DISK_DROPS_MAX)
			break;
		c->drop[c->n_drops++] = *list_entry(it, struct disk_drop, link);
	}
	c->flushes = d->flushes;
	c->flush = d->flushes != d->flushed;
	c->renewed = d->renewed;
	c->seq = d->seq;
	d->seq += c->n_written + c->n_hits;
	c->made = NULL;
	c->n_freed = 0;
	c->blocks_more = c->blocks_less = c->bytes_more = c->bytes_less = c->evictions = c->lost = 0;
	c->n_emptied = 0;
	c->again = d->n_drops > c->n_drops;
	c->error = 0;
	c->stop = d->stop;
	d->dirty = 0;
}

/* Files of segments that are out of the index and that nobody uses. */
static void delete_gone(struct disk *d)
{
	uint32_t n_segments = any_dying(d) ? DISK_SEGMENTS_MAX : 0;
	for (uint32_t n = 0; n < n_segments; n++) {
		pthread_mutex_lock(&d->lock);
		struct disk_segment *g = d->space.segment[n];
		int over = g && g->gone && g->users == 0;
		pthread_mutex_unlock(&d->lock);
		if (!over)
			continue;
		char *path = disk_dir_segment_path(&d->dir, n);
		if (g->fd >= 0)
			close(g->fd);
		unlink(path);
		free(path);
		pthread_mutex_lock(&d->lock);
		disk_space_remove(&d->space, g);
		d->no_room_until_us = 0;   /* a disk that was full has room again */
		pthread_mutex_unlock(&d->lock);
		free(g);
	}
}

/* With `sync`: the data of all that was written is on the device. */
static void sync_data(struct cycle *c)
{
	const struct disk_calls *calls = c->d->o.calls;
	int last = -1;
	list_each(it, &c->written) {
		int fd = list_entry(it, struct disk_job, link)->segment->fd;
		if (fd == last)
			continue;
		if ((calls && calls->datasync ? calls->datasync(fd) : fdatasync(fd)) != 0)
			c->error = errno;
		last = fd;
	}
}

/* --- after; with the lock held --- */

/* Slots that are in use again after everything was dropped: those that are being written, or read. */
static void slots_after_flush(struct disk *d)
{
	disk_space_clear(&d->space);
	list_each(it, &d->busy) {
		struct disk_job *j = list_entry(it, struct disk_job, busy);
		int holds = j->segment && j->segment->fd >= 0 && (j->put || !list_empty(&j->reading));
		if (!holds)
			continue;
		j->slot_freed = !j->put;
		if (!disk_space_taken(j->segment, j->rec.slot))
			disk_space_mark(&d->space, j->segment, j->rec.slot);
	}
}

static void drops_forget(struct disk *d, unsigned n)
{
	for (; n; n--) {
		struct disk_drop *drop = list_entry(d->drops.next, struct disk_drop, link);
		list_remove(&drop->link);
		free(drop);
		d->n_drops--;
		d->forgotten++;
	}
}

static void count(struct cycle *c)
{
	struct disk *d = c->d;
	d->stat.evictions += c->evictions;
	d->stat.lost += c->lost;
	if (c->flushes != d->flushes)
		return;   /* flushed since: all that this round did is gone with the next */
	d->stat.blocks += c->blocks_more - c->blocks_less;
	d->stat.bytes += c->bytes_more - c->bytes_less;
}

static void apply(struct cycle *c)
{
	struct disk *d = c->d;
	if (c->made)
		disk_space_add(&d->space, c->made);
	if (c->flush) {
		slots_after_flush(d);
		d->flushed = c->flushes;
	}
	for (size_t i = 0; i < c->n_freed; i++)
		disk_slot_give(d, c->freed[i].segment, c->freed[i].slot);
	for (unsigned i = 0; i < c->n_emptied; i++) {
		d->space.segment[c->emptied[i]]->gone = 1;
		c->again = 1;
	}
	if (c->renewed)
		d->renewed = 0;
	drops_forget(d, c->n_drops);
	count(c);
}

/* Nothing was committed. */
static void give_up(struct cycle *c, int r)
{
	struct disk *d = c->d;
	log_error("disk_commit_failed", "puts=%u reason=%s", c->n_written, log_quote(disk_index_text(d->index)));
	if (c->made) {
		char *path = disk_dir_segment_path(&d->dir, c->made->number);
		close(c->made->fd);
		unlink(path);
		free(path);
		free(c->made);
	}
	d->broken |= r == ERR_CLOSED || r == ERR_CORRUPT;
	c->again = d->broken && clock_us() >= d->no_renewal_until_us;
}

/* Jobs that wait for a slot go back into the queue, as many as there are slots; without hope they end. */
static void unpark(struct cycle *c, int failed, struct list *ret_hopeless)
{
	struct disk *d = c->d;
	struct list first;
	list_init(&first);
	for (unsigned i = 0; i < DISK_CLASSES_MAX; i++) {
		struct disk_class *k = &d->space.class[i];
		unsigned n = k->free;
		int hope = !failed && (n > 0 || c->again || d->dirty || d->space.dying_bytes > 0 || slots_coming(d, k->slot_bytes) > 0);
		list_each(it, &d->busy) {
			const struct disk_job *j = list_entry(it, struct disk_job, busy);
			hope |= !failed && j->put && j->segment && j->buf_bytes == k->slot_bytes;
		}
		for (; k->n_parked && (n || !hope); n -= n > 0) {
			struct list *it = k->parked.next;
			list_remove(it);
			k->n_parked--;
			d->n_parked--;
			d->n_puts += n > 0;
			list_push_back(n ? &first : ret_hopeless, it);
		}
	}
	while (!list_empty(&first)) {   /* before those that came later, in order */
		struct list *it = first.prev;
		list_remove(it);
		list_push_front(&d->puts, it);
	}
	disk_workers_wake(d, d->n_puts + d->n_gets);
}

/* How one put of the round ends. With the lock held. */
static void put_end(struct cycle *c, struct disk_job *j, int r)
{
	struct disk *d = c->d;
	if (r != 0) {
		j->code = r == ERR_FULL ? ERR_FULL : ERR_IO;
		j->text = r == ERR_FULL ? "the disk has no room for the index" : "the disk tier's index cannot be written";
	} else if (c->error) {
		j->text = disk_error_text(c->error, &j->code);
	} else if (j->code != 0) {
		j->text = "the disk tier's room was taken for something else meanwhile";
	}
	if (j->code != 0 || j->known)
		disk_slot_give(d, j->segment->number, j->rec.slot);
	j->tier = j->code == 0 ? TIER_DISK : TIER_NONE;
	d->stat.known += j->code == 0 && j->known;
	d->stat.full += j->code == ERR_FULL;
	disk_segment_leave(d, j->segment);
	d->uncommitted--;
}

static void cycle_end(struct cycle *c, int r)
{
	struct disk *d = c->d;
	struct list hopeless;
	list_init(&hopeless);
	pthread_mutex_lock(&d->lock);
	if (r == 0)
		apply(c);
	else
		give_up(c, r);
	if ((r != 0 && r != ERR_FULL) || c->error)
		disk_write_result(d, c->error ? c->error : EIO);
	list_each(it, &c->written)
		put_end(c, list_entry(it, struct disk_job, link), r);
	pthread_cond_broadcast(&d->drops_less);
	unpark(c, r != 0, &hopeless);
	if (r == ERR_FULL || (r == 0 && !c->stop))
		list_each(it, &hopeless)
			d->stat.full++;
	d->dirty |= c->again;
	pthread_mutex_unlock(&d->lock);
	list_each_safe(it, nx, &c->written) {
		list_remove(it);
		disk_job_end(d, list_entry(it, struct disk_job, link));
	}
	list_each_safe(it, nx, &hopeless) {
		struct disk_job *j = list_entry(it, struct disk_job, link);
		list_remove(it);
		if (r != 0) {
			j->code = r == ERR_FULL ? ERR_FULL : ERR_IO;
			j->text = "the disk tier's index cannot be written";
		} else {
			j->code = c->stop ? ERR_CANCELLED : ERR_FULL;
			j->text = c->stop ? "the disk tier ends" : "the disk tier has no room that is not in use";
		}
		disk_job_end(d, j);
	}
}

/* With the lock held, which is given up meanwhile: an empty index in the place of the broken one; what it named is flushed. */
static void begin_anew(struct disk *d)
{
	pthread_mutex_unlock(&d->lock);
	int r = disk_index_renew(d->index);
	if (r == 0)
		log_warn("disk_begun_anew", "path=%s reason=%s", log_quote(d->dir.path), log_quote("its index was damaged while in use"));
	else
		log_error("disk_index_failed", "path=%s reason=%s", log_quote(d->dir.path), log_quote(disk_index_text(d->index)));
	pthread_mutex_lock(&d->lock);
	d->no_renewal_until_us = clock_us() + DISK_PAUSE_US;
	if (r != 0)
		return;
	d->broken = 0;
	d->renewed = 1;
	d->flush_mark = d->seq;
	d->flushes++;
	uint64_t copies = disk_space_copies(&d->space);
	d->stat.lost += d->stat.blocks > copies ? d->stat.blocks - copies : 0;
	d->stat.blocks = d->stat.bytes = 0;
}

void *disk_committer_main(void *arg)
{
	struct disk *d = arg;
	struct cycle *c = mem_zalloc(sizeof *c);
	c->d = d;
	pthread_mutex_lock(&d->lock);
	for (;;) {
		while (!d->dirty && !d->commit_stop)
			pthread_cond_wait(&d->commit_more, &d->lock);
		if (!d->dirty && d->n_hits == 0)
			break;
		if (d->broken && clock_us() >= d->no_renewal_until_us)
			begin_anew(d);
		cycle_take(c);
		pthread_mutex_unlock(&d->lock);
		delete_gone(d);
		if (d->o.sync)
			sync_data(c);
		cycle_end(c, commit(c));
		pthread_mutex_lock(&d->lock);
	}
	pthread_mutex_unlock(&d->lock);
	free(c->freed);
	free(c);
	return NULL;
}
