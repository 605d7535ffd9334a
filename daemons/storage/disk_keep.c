/* disk_keep.c - the disk tier's keeper: heads, segments and the state file; and loading them at the
 * start.
 *
 * Order of writes, which kill -9 or (with sync) a crash of the machine may interrupt anywhere: a
 * block's data, then its head, then the put is acknowledged. A slot's head is cleared before the
 * slot is reused. A segment's files are created before any of its slots is used, and deleted after
 * its last block. A failed write ends the affected puts with the reason and changes nothing else; a
 * head that could not be cleared refers to invalid data or to an older copy.
 *
 * Room for a put comes from, in this order: a free slot; a new segment, if capacity and disk allow;
 * a segment of another slot size whose blocks were all used before the oldest of this size; the
 * least recently used block of this size. */
#include "disk_int.h"
#include "disk_segment.h"

#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLEARS_AT_ONCE 256u
#define DROPS_AT_ONCE 1024u /* blocks of dying segments dropped per round, before puts are served */

/* --- puts whose data is written --- */

static int by_slot(const void *a, const void *b)
{
	const struct disk_job *x = *(struct disk_job *const *)a, *y = *(struct disk_job *const *)b;
	return (x->slot > y->slot) - (x->slot < y->slot);
}

/* Takes the written puts, sorted by slot, and fills in their slots. */
static struct disk_job **written_take(struct disk *d, unsigned *ret_n)
{
	unsigned n = 0;
	pthread_mutex_lock(&d->lock);
	struct disk_job **job = d->uncommitted ? mem_array(d->uncommitted, sizeof *job) : NULL;
	while (!list_empty(&d->written)) {
		struct disk_job *j = list_entry(d->written.next, struct disk_job, link);
		struct disk_slot *s = disk_slot_at(&d->x, j->slot);
		list_remove(&j->link);
		s->key = j->op->key;
		s->sum = j->op->sum;
		s->bytes = (uint32_t)j->op->bytes;
		s->seq = ++d->seq;
		job[n++] = j;
	}
	pthread_mutex_unlock(&d->lock);
	if (n)
		qsort(job, n, sizeof *job, by_slot);
	*ret_n = n;
	return job;
}

/* fdatasync of the data or heads file of each segment of the jobs (sorted by slot); 0 or an
 * errno. */
static int sync_each(const struct disk *d, struct disk_job **job, unsigned n, int heads)
{
	int e = 0;
	for (unsigned i = 0; i < n; i++) {
		const struct disk_segment *g = job[i]->segment;
		if ((i == 0 || job[i - 1]->segment != g) &&
		    disk_datasync(d->o.calls, heads ? g->heads_fd : g->fd) != 0)
			e = errno;
	}
	return e;
}

/* Writes adjacent heads together. */
static int heads_write(struct disk_job **job, unsigned n)
{
	int e = 0;
	for (unsigned i = 0, run; i < n && e == 0; i += run) {
		for (run = 1; i + run < n && job[i + run]->slot == job[i]->slot + run; run++)
			;
		e = disk_heads_write(job[i]->segment, job[i]->slot & (DISK_SLOTS_MAX - 1), run, 0);
	}
	return e;
}

/* Writes the heads after the data. 0 or an errno. */
static int make_last(const struct disk *d, struct disk_job **job, unsigned n)
{
	int e = d->o.sync ? sync_each(d, job, n, 0) : 0;
	if (e == 0 && d->o.calls && d->o.calls->commit)
		e = d->o.calls->commit();
	if (e == 0)
		e = heads_write(job, n);
	return e == 0 && d->o.sync ? sync_each(d, job, n, 1) : e;
}

/* Completes a put: inserts it into the index unless an equal block is there. With the lock held. */
static void put_end(struct disk *d, struct disk_job *j, int error)
{
	struct disk_slot *s = disk_slot_at(&d->x, j->slot);
	uint32_t old = disk_index_find(&d->x, &s->key);
	int there = old != DISK_NONE && disk_slot_at(&d->x, old)->seq >= d->flush_mark &&
	            disk_slot_at(&d->x, old)->bytes == s->bytes;
	int dying = j->segment->dying, flushed = s->seq < d->flush_mark;
	if (error) {
		j->text = disk_error_text(error, &j->code);
	} else if (dying && !there) {
		j->code = ERR_FULL;
		j->text = "the put's segment is being deleted to make room";
	}
	d->stat.full += j->code == ERR_FULL;
	d->stat.known += j->code == 0 && there;
	if (j->code || there || flushed) {
		disk_index_drop(&d->x, j->slot);
	} else {
		if (old != DISK_NONE)
			disk_drop(d, old, DISK_ASKED); /* of another size or flushed */
		disk_stored_here(d, j->slot);
	}
	j->tier = j->code == 0 ? TIER_DISK : TIER_NONE;
	disk_segment_leave(d, j->segment);
	d->uncommitted--;
}

static void commit(struct disk *d)
{
	unsigned n;
	struct disk_job **job = written_take(d, &n);
	int e = n ? make_last(d, job, n) : 0;
	if (e)
		log_error("disk_commit_failed", "path=%s puts=%u reason=%s", log_quote(d->dir.path), n,
		          log_quote(strerror(e)));
	pthread_mutex_lock(&d->lock);
	if (e)
		disk_write_result(d, e);
	for (unsigned i = 0; i < n; i++)
		put_end(d, job[i], e);
	if (n) {
		disk_unstall(d);
		disk_workers_wake(d, d->n_puts);
	}
	pthread_mutex_unlock(&d->lock);
	for (unsigned i = 0; i < n; i++)
		disk_job_end(d, job[i]);
	free(job);
}

/* --- dropped slots --- */

/* The head of a dropped block may be newer than that of a valid block with the same key (concurrent
 * or failed puts). With sync its clearing must therefore reach the device before the slot is
 * reused; else a crash could leave the head there with other data. */
static int clear(const struct disk *d, const uint32_t *id, uint32_t n)
{
	int e = 0;
	for (uint32_t i = 0; i < n && e == 0; i++)
		e = disk_heads_write(disk_segment_of(&d->x, id[i]), id[i] & (DISK_SLOTS_MAX - 1), 1, 1);
	for (uint32_t i = 0; i < n && e == 0 && d->o.sync; i++) {
		uint32_t k = 0;
		while (disk_segment_of(&d->x, id[k]) != disk_segment_of(&d->x, id[i]))
			k++;
		/* once per segment */
		if (k == i && disk_datasync(d->o.calls, disk_segment_of(&d->x, id[i])->heads_fd) != 0)
			e = errno;
	}
	return e;
}

/* No head is cleared in a dying segment: the file goes, and that must not depend on whether the
 * disk can be written. */
static void clear_dropped(struct disk *d)
{
	uint32_t id[CLEARS_AT_ONCE], n = 0;
	pthread_mutex_lock(&d->lock);
	if (d->x.n_dying)
		disk_index_free_dying(&d->x);
	while (clock_us() >= d->no_clears_until_us && n < CLEARS_AT_ONCE &&
	       (id[n] = disk_index_next_dropped(&d->x)) != DISK_NONE)
		disk_segment_of(&d->x, id[n++])->users++;
	pthread_mutex_unlock(&d->lock);
	int e = clear(d, id, n);
	pthread_mutex_lock(&d->lock);
	d->keep |= !e && n == CLEARS_AT_ONCE;
	if (e) {
		disk_write_result(d, e);
		d->clear_error = e;
		d->no_clears_until_us = clock_us() + DISK_CLEAR_PAUSE_US;
	}
	for (uint32_t i = 0; i < n; i++) {
		if (e)
			disk_index_dropped_back(&d->x, id[i]); /* retried when a put needs one of them */
		else
			disk_index_free(&d->x, id[i]);
		disk_segment_leave(d, disk_segment_of(&d->x, id[i]));
	}
	if (n)
		disk_unstall(d);
	pthread_mutex_unlock(&d->lock);
}

/* --- segments --- */

/* Marks segments as dying until the others fit the capacity. With the lock held. */
static void shrink(struct disk *d)
{
	struct disk_segment *g;
	while (d->x.file_bytes - d->x.dying_bytes > d->capacity_bytes &&
	       (g = disk_index_coldest(&d->x, 0)) != NULL)
		disk_index_kill(&d->x, g);
}

/* Drops up to DROPS_AT_ONCE blocks of dying segments; returns a segment that is empty, or NULL.
 * With the lock held. */
static struct disk_segment *segment_empty(struct disk *d)
{
	struct disk_segment *empty = NULL;
	unsigned left = DROPS_AT_ONCE;
	for (uint32_t i = 0; d->x.n_dying && i < d->x.n_segments && left && !empty; i++) {
		struct disk_segment *g = d->x.segment[i];
		if (!g || !g->dying)
			continue;
		for (uint32_t k = 0; k < g->cut && left; k++)
			if (g->slot[k].state == DISK_HELD) {
				disk_drop(d, disk_slot_id(g, k), DISK_EVICTED);
				left--;
			}
		if (g->taken == 0 && g->users == 0)
			empty = g;
	}
	return empty;
}

static void delete_dying(struct disk *d)
{
	pthread_mutex_lock(&d->lock);
	shrink(d);
	for (struct disk_segment *g; (g = segment_empty(d)) != NULL;) {
		uint32_t number = g->number;
		g->users++; /* prevents reuse of the number while unlocked */
		pthread_mutex_unlock(&d->lock);
		disk_segment_close(g);
		disk_segment_delete(&d->dir, number);
		pthread_mutex_lock(&d->lock);
		g->users--;
		disk_index_remove_segment(&d->x, g);
		free(g);
		d->no_room_until_us = 0; /* a full disk has room again */
		disk_unstall(d);
	}
	pthread_mutex_unlock(&d->lock);
}

/* Called with the lock held; releases it temporarily. */
static void make_segment(struct disk *d, struct disk_class *c)
{
	uint32_t slot_bytes = c->slot_bytes, slots = disk_next_slots(d, slot_bytes);
	int number = disk_index_number(&d->x);
	struct disk_segment *g = NULL;
	if (slots && number >= 0) {
		pthread_mutex_unlock(&d->lock);
		int e = disk_segment_make(&d->dir, d->o.calls, d->o.direct, (uint32_t)number, slot_bytes,
		                          slots, &g);
		if (e)
			log_warn("disk_full",
			         "path=%s segment=%d wanted_bytes=%llu reason=%s "
			         "action=continues_with_existing_segments",
			         log_quote(d->dir.path), number, (unsigned long long)slots * slot_bytes,
			         log_quote(strerror(e)));
		pthread_mutex_lock(&d->lock);
		if (e)
			d->no_room_until_us = clock_us() + DISK_PAUSE_US;
	}
	if (g) {
		g->last_used = d->seq;
		disk_index_add_segment(&d->x, g);
	}
	c->wants_segment = 0;
	disk_unstall(d);
}

static void make_segments(struct disk *d)
{
	pthread_mutex_lock(&d->lock);
	for (unsigned i = 0; i < DISK_CLASSES_MAX; i++)
		if (d->x.class[i].wants_segment && !d->stop)
			make_segment(d, &d->x.class[i]);
	pthread_mutex_unlock(&d->lock);
}

/* --- a flush --- */

static void keep_flushes(struct disk *d)
{
	struct list due;
	list_init(&due);
	pthread_mutex_lock(&d->lock);
	uint64_t mark = d->flush_mark;
	while (!list_empty(&d->flushes)) {
		struct list *it = d->flushes.next;
		list_remove(it);
		list_push_back(&due, it);
	}
	pthread_mutex_unlock(&d->lock);
	if (list_empty(&due))
		return;
	int e = disk_dir_flush(&d->dir, mark);
	if (e) {
		log_error("disk_flush_failed", "path=%s reason=%s", log_quote(d->dir.path),
		          log_quote(strerror(e)));
		pthread_mutex_lock(&d->lock);
		disk_write_result(d, e);
		pthread_mutex_unlock(&d->lock);
	}
	list_each_safe(it, nx, &due) {
		struct tier_flush *f = list_entry(it, struct tier_flush, link);
		list_remove(it);
		if (e)
			snprintf(f->text, sizeof f->text, "%s: blocks may be back after a restart",
			         disk_error_text(e, &f->code));
		f->done(f);
	}
}

void *disk_keeper_main(void *arg)
{
	struct disk *d = arg;
	pthread_mutex_lock(&d->lock);
	for (;;) {
		while (!d->keep && !d->keep_stop)
			pthread_cond_wait(&d->keep_more, &d->lock);
		if (!d->keep)
			break;
		d->keep = 0;
		pthread_mutex_unlock(&d->lock);
		commit(d);
		keep_flushes(d);
		clear_dropped(d);
		delete_dying(d);
		make_segments(d);
		pthread_mutex_lock(&d->lock);
	}
	pthread_mutex_unlock(&d->lock);
	return NULL;
}

/* --- the start --- */

struct found_head {
	uint64_t seq;
	uint32_t slot;
};

struct finds {
	struct found_head *at;
	size_t n, room;
};

/* Adds a segment to the index. Its blocks become TAKEN; their slots are filled from the heads. */
static void segment_load(struct disk *d, struct disk_segment *g, const struct disk_head *head,
                         struct finds *f)
{
	if (!disk_index_class(&d->x, g->slot_bytes)) {
		log_error("disk_segment_lost",
		          "path=%s segment=%u slot_bytes=%u why=\"too many sizes\" action=deleted",
		          log_quote(d->dir.path), g->number, g->slot_bytes);
		disk_segment_close(g);
		disk_segment_delete(&d->dir, g->number);
		free(g);
		return;
	}
	disk_index_add_segment(&d->x, g);
	for (uint32_t i = 0; i < g->slots; i++) {
		const struct disk_head *h = &head[i];
		if (h->bytes == 0 || h->seq < d->flush_mark)
			continue;
		disk_segment_take_at(g, i);
		g->slot[i].key = h->key;
		g->slot[i].sum = h->sum;
		g->slot[i].seq = h->seq;
		g->slot[i].bytes = h->bytes;
		if (f->n == f->room) {
			f->room = f->room ? 2 * f->room : 1024;
			f->at = mem_grow(f->at, f->room, sizeof *f->at);
		}
		f->at[f->n++] = (struct found_head){h->seq, disk_slot_id(g, i)};
	}
}

static int newest_first(const void *a, const void *b)
{
	const struct found_head *x = a, *y = b;
	return (x->seq < y->seq) - (x->seq > y->seq);
}

/* 0, or an error: the contents cannot be determined, so nothing is deleted. */
static int segments_load(struct disk *d, struct finds *f, struct err *err)
{
	unsigned char *there = mem_zalloc(DISK_SEGMENTS_MAX);
	int e = disk_dir_segments(&d->dir, there);
	for (uint32_t i = 0; e == 0 && i < DISK_SEGMENTS_MAX; i++) {
		struct disk_segment *g;
		struct disk_head *heads;
		uint64_t lost;
		if (!there[i])
			continue;
		e = disk_segment_open(&d->dir, d->o.calls, d->o.direct, i, &g, &heads, &lost);
		if (e == ENODATA) {
			if (lost)
				log_error("disk_segment_lost", "path=%s segment=%u blocks=%llu action=deleted",
				          log_quote(d->dir.path), i, (unsigned long long)lost);
			d->stat.lost += lost;
			disk_segment_delete(&d->dir, i);
			e = 0;
		} else if (e == 0) {
			segment_load(d, g, heads, f);
			free(heads);
		}
		if (e != 0)
			err_set(err, ERR_IO, "cannot read segment %u of %s: %s", i, d->dir.path, strerror(e));
	}
	free(there);
	return e == 0 ? 0 : ERR_IO;
}

int disk_load(struct disk *d, struct err *err)
{
	struct finds f = {0};
	int r = segments_load(d, &f, err);
	d->seq = d->flush_mark;
	if (f.n)
		qsort(f.at, f.n, sizeof *f.at, newest_first);
	for (size_t i = 0; i < f.n; i++) /* of two heads with one key the newer wins */
		if (disk_index_find(&d->x, &disk_slot_at(&d->x, f.at[i].slot)->key) == DISK_NONE)
			disk_index_insert(&d->x, f.at[i].slot);
		else
			disk_index_drop(&d->x, f.at[i].slot);
	for (size_t i = f.n; i-- > 0;) { /* in LRU order */
		struct disk_slot *s = disk_slot_at(&d->x, f.at[i].slot);
		if (s->state != DISK_HELD)
			continue;
		disk_index_touch(&d->x, f.at[i].slot, s->seq);
		s->used = 0;
		d->stat.blocks++;
		d->stat.bytes += s->bytes;
		d->seq = s->seq;
	}
	free(f.at);
	return r;
}

/* --- the end --- */

void disk_save_use(struct disk *d)
{
	int e = 0;
	for (uint32_t i = 0; i < d->x.n_segments; i++) {
		struct disk_segment *g = d->x.segment[i];
		for (uint32_t k = 0, run; g && e == 0 && k < g->cut; k += run) {
			for (run = 0;
			     k + run < g->cut && g->slot[k + run].state == DISK_HELD && g->slot[k + run].used;
			     run++)
				;
			if (run)
				e = disk_heads_write(g, k, run, 0);
			run += run == 0;
		}
	}
}
