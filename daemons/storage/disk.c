/* disk.c - the disk tier's calls, start and end. disk_int.h describes the threads.
 *
 * Callers never wait: they queue a job, or learn at once that the queue is full. A dropped block
 * (removed, damaged, flushed) cannot be found from that moment on; the keeper clears its head. A
 * flush does not drop blocks one by one: blocks with a sequence number below its mark are not
 * found, and are evicted as the least recently used.
 *
 * A device error ends the operation with a reason and is counted; after three consecutive failed
 * writes the tier rejects puts for ten seconds, while reads continue. A full disk is not an error:
 * the tier continues with the room it has. */
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

#define CAPACITY_MIN ((uint64_t)1 << 20)
#define SEGMENT_DEFAULT ((uint64_t)256 << 20)
/* number of segments that the capacity is divided into; each uses two descriptors. Existing
 * segments may add to them, up to DISK_SEGMENTS_MAX */
#define SEGMENTS_AT_MOST 256u
#define SEGMENTS_AT_LEAST 8u
#define PLAIN_WORKERS_MAX 64u
/* keys looked up, and slots listed, per lock acquisition */
#define FIND_AT_ONCE 64u
#define LIST_AT_ONCE 16384u

static struct disk *disk_of(struct tier *t)
{
	return (struct disk *)t;
}

/* --- shared; with the lock held --- */

uint32_t disk_find(const struct disk *d, const struct tier_key *key)
{
	uint32_t id = disk_index_find(&d->x, key);
	return id != DISK_NONE && disk_slot_at(&d->x, id)->seq >= d->flush_mark ? id : DISK_NONE;
}

void disk_gone(struct disk *d, uint32_t id, enum disk_why why)
{
	const struct disk_slot *s = disk_slot_at(&d->x, id);
	if (s->seq < d->flush_mark)
		return; /* counted by the flush */
	d->stat.blocks--;
	d->stat.bytes -= s->bytes;
	d->stat.evictions += why == DISK_EVICTED;
	d->stat.lost += why != DISK_ASKED && !s->copied;
	if (d->changed)
		d->changed(d->changed_arg, &s->key, 0);
}

void disk_drop(struct disk *d, uint32_t id, enum disk_why why)
{
	disk_gone(d, id, why);
	disk_index_drop(&d->x, id);
	disk_keep_wake(d);
}

void disk_stored_here(struct disk *d, uint32_t id)
{
	const struct disk_slot *s = disk_slot_at(&d->x, id);
	disk_index_insert(&d->x, id);
	d->stat.blocks++;
	d->stat.bytes += s->bytes;
	if (d->changed)
		d->changed(d->changed_arg, &s->key, 1);
	disk_due_check(d, id);
}

void disk_due_check(struct disk *d, uint32_t id)
{
	struct disk_slot *s = disk_slot_at(&d->x, id);
	uint32_t after = d->after < UINT8_MAX ? d->after : UINT8_MAX;
	if (d->policy != TIER_WRITE_THROUGH || s->copied || s->due || s->hits < after ||
	    d->n_due == DISK_DUE_MAX)
		return;
	s->due = 1;
	d->due[(d->due_at + d->n_due++) % DISK_DUE_MAX] = (struct tier_due){s->key, s->bytes};
}

uint32_t disk_next_slots(const struct disk *d, uint32_t slot_bytes)
{
	uint64_t all = d->capacity_bytes, room = all > d->x.file_bytes ? all - d->x.file_bytes : 0,
			 bytes = d->o.segment_bytes;
	bytes = bytes > all / SEGMENTS_AT_LEAST ? all / SEGMENTS_AT_LEAST : bytes;
	bytes = bytes < all / SEGMENTS_AT_MOST ? all / SEGMENTS_AT_MOST : bytes;
	bytes = bytes < slot_bytes ? slot_bytes : bytes;
	uint64_t slots = (bytes < room ? bytes : room) / slot_bytes;
	return slots < DISK_SLOTS_MAX ? (uint32_t)slots : DISK_SLOTS_MAX;
}

void disk_keep_wake(struct disk *d)
{
	d->keep = 1;
	pthread_cond_signal(&d->keep_more);
}

void disk_unstall(struct disk *d)
{
	if (d->stalled)
		disk_workers_wake(d, d->n_puts);
	d->stalled = 0;
}

void disk_segment_leave(struct disk *d, struct disk_segment *g)
{
	if (--g->users == 0 && g->dying)
		disk_keep_wake(d);
}

static int is_full(int error)
{
	return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

const char *disk_error_text(int error, int *ret_code)
{
	*ret_code = is_full(error) ? ERR_FULL : ERR_IO;
	switch (error) {
	case ENOSPC: return "the disk is full (No space left on device)";
	case EDQUOT: return "the disk is full (Disk quota exceeded)";
	case EFBIG: return "the disk is full (File too large)";
	case EROFS: return "the disk cannot be written (Read-only file system)";
	case EIO: return "the disk cannot be written (Input/output error)";
	default: return "the disk cannot be written";
	}
}

void disk_write_result(struct disk *d, int error)
{
	if (!error) {
		d->fails = 0;
		return;
	}
	if (is_full(error)) {
		d->stat.full++;
		return;
	}
	d->stat.errors++;
	d->error = error;
	log_error("disk_write_failed", "path=%s reason=%s in_a_row=%u", log_quote(d->dir.path),
	          log_quote(strerror(error)), d->fails + 1);
	if (++d->fails < DISK_FAILS_MAX)
		return;
	d->no_puts_until_us = clock_us() + DISK_PAUSE_US;
	log_warn("disk_takes_no_puts", "path=%s seconds=%u reason=%s", log_quote(d->dir.path),
	         DISK_PAUSE_US / 1000000u, log_quote(strerror(error)));
}

/* --- jobs --- */

void disk_job_end(struct disk *d, struct disk_job *j)
{
	pthread_mutex_lock(&d->lock);
	list_remove(&j->busy);
	if (j->put && d->n_puts)
		disk_workers_wake(d, 1); /* puts may be waiting for this one to end */
	pthread_mutex_unlock(&d->lock);
	struct tier_op *op = j->op;
	int code = j->code;
	enum tier_id tier = j->tier;
	const char *text = j->text;
	free(j);
	op->done(op, code, tier, text);
}

static struct disk_job *job_new(struct tier_op *op, int put)
{
	struct disk_job *j = mem_zalloc(sizeof *j);
	list_init(&j->link);
	list_init(&j->busy);
	j->op = op;
	j->put = put;
	j->slot = DISK_NONE;
	j->begun_us = clock_us();
	return j;
}

static int size_ok(const struct tier_op *op)
{
	return op->bytes >= DISK_BLOCK_BYTES_MIN && op->bytes <= DISK_BLOCK_BYTES_MAX;
}

static void disk_put(struct tier *t, struct tier_op *op)
{
	struct disk *d = disk_of(t);
	struct disk_job *j = size_ok(op) ? job_new(op, 1) : NULL;
	const char *text = NULL;
	int code = 0;
	pthread_mutex_lock(&d->lock);
	d->stat.puts++;
	if (!j) {
		code = ERR_INVALID;
		text = "the disk tier accepts blocks of 1 byte to 64 MiB";
	} else if (d->stop) {
		code = ERR_CANCELLED;
	} else if (clock_us() < d->no_puts_until_us) {
		text = disk_error_text(d->error, &code);
		d->stat.errors++;
	} else if (d->n_puts >= DISK_PUTS_MAX) {
		code = ERR_FULL;
		text = "the disk tier has too many blocks to write";
		d->stat.full++;
	} else {
		list_push_back(&d->puts, &j->link);
		d->n_puts++;
		disk_workers_wake(d, 1);
	}
	pthread_mutex_unlock(&d->lock);
	if (code == 0)
		return;
	free(j);
	op->done(op, code, TIER_NONE, text);
}

static void disk_get(struct tier *t, struct tier_op *op)
{
	struct disk *d = disk_of(t);
	struct disk_job *j = size_ok(op) ? job_new(op, 0) : NULL;
	pthread_mutex_lock(&d->lock);
	int refused = !j || d->stop || d->n_gets >= DISK_GETS_MAX;
	if (refused) {
		d->stat.gets += !op->aside;
		d->stat.misses += !op->aside;
	} else {
		list_push_back(&d->gets, &j->link);
		d->n_gets++;
		disk_workers_wake(d, 1);
	}
	pthread_mutex_unlock(&d->lock);
	if (!refused)
		return;
	const char *text = j ? "the disk tier has too many blocks to read" : NULL;
	free(j);
	op->done(op, ERR_NOTFOUND, TIER_NONE, text);
}

/* --- look-ups, removes, flush --- */

static void disk_lookup(struct tier *t, struct tier_find *f)
{
	struct disk *d = disk_of(t);
	int hole = 0;
	for (uint32_t i = 0; i < f->n && !hole;) {
		pthread_mutex_lock(&d->lock);
		for (uint32_t end = i + FIND_AT_ONCE; i < f->n && i < end && !hole; i++) {
			uint32_t id = f->where[i] ? DISK_NONE : disk_find(d, &f->key[i]);
			if (id != DISK_NONE && disk_slot_at(&d->x, id)->bytes == f->bytes)
				f->where[i] = TIER_DISK;
			hole = f->leading && !f->where[i];
		}
		pthread_mutex_unlock(&d->lock);
	}
	f->done(f);
}

static int disk_remove(struct tier *t, const struct tier_key *key)
{
	struct disk *d = disk_of(t);
	pthread_mutex_lock(&d->lock);
	uint32_t id = disk_find(d, key);
	if (id != DISK_NONE)
		disk_drop(d, id, DISK_ASKED);
	pthread_mutex_unlock(&d->lock);
	return id != DISK_NONE ? 0 : ERR_NOTFOUND;
}

static void disk_flush(struct tier *t, struct tier_flush *f)
{
	struct disk *d = disk_of(t);
	pthread_mutex_lock(&d->lock);
	f->blocks = d->stat.blocks;
	d->stat.blocks = d->stat.bytes = 0;
	d->flush_mark = d->seq + 1;
	if (d->changed)
		d->changed(d->changed_arg, NULL, 0);
	list_push_back(&d->flushes, &f->link);
	disk_keep_wake(d);
	pthread_mutex_unlock(&d->lock);
}

/* --- demotion and listing --- */

static void disk_policy(struct tier *t, enum tier_policy policy, uint32_t after,
                        unsigned low_percent)
{
	struct disk *d = disk_of(t);
	pthread_mutex_lock(&d->lock);
	d->policy = policy;
	d->after = after;
	d->low_percent = low_percent;
	pthread_mutex_unlock(&d->lock);
}

/* How many of the class's least recently used blocks should be stored below: the share that is to
 * be free or stored below, minus what is free. A class that may still get a new segment is not
 * full. */
static uint32_t class_share(const struct disk *d, const struct disk_class *c)
{
	uint64_t low = ((uint64_t)c->slots * d->low_percent + 99) / 100;
	int full = c->slots && disk_next_slots(d, c->slot_bytes) == 0;
	return full && low > c->free ? (uint32_t)(low - c->free) : 0;
}

static uint32_t disk_due(struct tier *t, uint32_t max, struct tier_due *ret)
{
	struct disk *d = disk_of(t);
	uint32_t n = 0;
	pthread_mutex_lock(&d->lock);
	for (; d->policy == TIER_WRITE_THROUGH && n < max && d->n_due; d->n_due--)
		ret[n++] = d->due[d->due_at++ % DISK_DUE_MAX];
	for (unsigned i = 0; d->policy == TIER_OFFLOAD && i < DISK_CLASSES_MAX; i++) {
		struct disk_class *c = &d->x.class[i];
		uint32_t share = class_share(d, c), id;
		while (n < max && (id = disk_index_next_candidate(&d->x, c, share)) != DISK_NONE) {
			const struct disk_slot *s = disk_slot_at(&d->x, id);
			if (s->seq >= d->flush_mark && !s->copied)
				ret[n++] = (struct tier_due){s->key, s->bytes};
		}
	}
	pthread_mutex_unlock(&d->lock);
	return n;
}

/* After LATER or GONE all blocks are candidates for demotion again. */
static void disk_stored(struct tier *t, const struct tier_key *key, enum tier_below what)
{
	struct disk *d = disk_of(t);
	pthread_mutex_lock(&d->lock);
	uint32_t id = key ? disk_find(d, key) : DISK_NONE;
	if (id != DISK_NONE) {
		disk_slot_at(&d->x, id)->copied = what == TIER_BELOW_HAS;
		disk_slot_at(&d->x, id)->due = 0;
		if (what == TIER_BELOW_LATER)
			disk_due_check(d, id);
	}
	for (uint32_t i = 0; !key && i < d->x.n_segments; i++)
		for (uint32_t k = 0; d->x.segment[i] && k < d->x.segment[i]->cut; k++)
			d->x.segment[i]->slot[k].copied = 0;
	if (what == TIER_BELOW_LATER || what == TIER_BELOW_GONE)
		disk_index_reset_candidates(&d->x);
	pthread_mutex_unlock(&d->lock);
}

static void disk_watch(struct tier *t,
                       void (*changed)(void *arg, const struct tier_key *key, int stored),
                       void *arg)
{
	struct disk *d = disk_of(t);
	pthread_mutex_lock(&d->lock);
	d->changed = changed;
	d->changed_arg = arg;
	pthread_mutex_unlock(&d->lock);
}

/* The cursor's number is the next slot's. */
static uint32_t disk_list(struct tier *t, struct tier_cursor *at, uint32_t max,
                          struct tier_key *ret)
{
	struct disk *d = disk_of(t);
	uint32_t n = 0;
	pthread_mutex_lock(&d->lock);
	for (unsigned seen = 0; n < max && seen < LIST_AT_ONCE && !at->end; seen++) {
		uint32_t number = (uint32_t)(at->number >> DISK_SLOTS_LOG),
				 slot = (uint32_t)at->number & (DISK_SLOTS_MAX - 1);
		const struct disk_segment *g = number < d->x.n_segments ? d->x.segment[number] : NULL;
		at->end = number >= d->x.n_segments;
		if (!g || slot >= g->cut) {
			at->number = (uint64_t)(number + 1) << DISK_SLOTS_LOG;
			continue;
		}
		at->number++;
		if (g->slot[slot].state == DISK_HELD && g->slot[slot].seq >= d->flush_mark)
			ret[n++] = g->slot[slot].key;
	}
	pthread_mutex_unlock(&d->lock);
	return n;
}

/* --- size and figures --- */

static int disk_resize(struct tier *t, uint64_t capacity_bytes, struct err *err)
{
	struct disk *d = disk_of(t);
	if (capacity_bytes < CAPACITY_MIN)
		return err_set(err, ERR_INVALID, "disk tier: a capacity of %llu bytes is below %llu",
		               (unsigned long long)capacity_bytes, (unsigned long long)CAPACITY_MIN);
	pthread_mutex_lock(&d->lock);
	d->capacity_bytes = capacity_bytes;
	d->no_room_until_us = 0;
	disk_unstall(d);
	disk_keep_wake(d);
	pthread_mutex_unlock(&d->lock);
	return 0;
}

static void oldest(struct tier_stat *s, const struct list *jobs, int busy)
{
	list_each(it, jobs) {
		const struct disk_job *j = busy ? list_entry(it, struct disk_job, busy)
		                                : list_entry(it, struct disk_job, link);
		if (!s->oldest_us || j->begun_us < s->oldest_us)
			s->oldest_us = j->begun_us;
		if (!busy)
			break; /* sorted by time */
	}
}

static void state_text(const struct disk *d, uint64_t now, struct tier_stat *s)
{
	if (now < d->no_puts_until_us)
		snprintf(s->state, sizeof s->state, "rejects puts: %s", strerror(d->error));
	else if (now < d->no_room_until_us)
		snprintf(s->state, sizeof s->state, "ready, but the disk is full");
	else
		snprintf(s->state, sizeof s->state, "ready");
}

static void disk_stat(struct tier *t, struct tier_stat *ret)
{
	struct disk *d = disk_of(t);
	pthread_mutex_lock(&d->lock);
	uint64_t now = clock_us();
	*ret = d->stat;
	ret->capacity_bytes = d->capacity_bytes;
	ret->queued = d->n_gets + d->n_puts;
	ret->oldest_us = 0;
	oldest(ret, &d->gets, 0);
	oldest(ret, &d->puts, 0);
	oldest(ret, &d->busy, 1);
	if (d->active[DISK_READS])
		ret->read_us += now - d->active_since_us[DISK_READS];
	if (d->active[DISK_WRITES])
		ret->write_us += now - d->active_since_us[DISK_WRITES];
	state_text(d, now, ret);
	pthread_mutex_unlock(&d->lock);
}

/* --- start --- */

static int options_set(struct tier_disk_opts *o, const struct tier_disk_opts *from, struct err *err)
{
	*o = *from;
	o->segment_bytes = o->segment_bytes ? o->segment_bytes : SEGMENT_DEFAULT;
	o->depth = o->depth ? o->depth : 16;
	o->threads = o->threads ? o->threads : 1;
	o->io = o->io ? o->io : "auto";
	if (!o->path || !o->path[0])
		return err_set(err, ERR_INVALID, "disk tier: no folder given");
	if (o->capacity_bytes < CAPACITY_MIN)
		return err_set(err, ERR_INVALID, "disk tier: a capacity of %llu bytes is below %llu",
		               (unsigned long long)o->capacity_bytes, (unsigned long long)CAPACITY_MIN);
	if (o->depth > 256 || o->threads > 16)
		return err_set(err, ERR_INVALID,
		               "disk tier: depth %u (1-256) or threads %u (1-16) is out of range", o->depth,
		               o->threads);
	if (strcmp(o->io, "auto") != 0 && strcmp(o->io, "io_uring") != 0 &&
	    strcmp(o->io, "threads") != 0)
		return err_set(err, ERR_INVALID, "disk tier: io is %s, expected auto, io_uring or threads",
		               o->io);
	if (o->threads > o->depth)
		o->threads = o->depth;
	return 0;
}

/* Decides the number of workers, and whether they use io_uring. */
static int workers_plan(const struct tier_disk_opts *o, int *ret_ringed, unsigned *ret_n,
                        struct err *err)
{
	struct disk_io *io;
	struct err why = {0};
	int r = strcmp(o->io, "threads") == 0 ? ERR_UNSUPPORTED
	                                      : disk_io_new(1, o->depth, o->calls, &io, &why);
	*ret_ringed = r == 0;
	if (r == 0)
		disk_io_destroy(&io);
	else if (strcmp(o->io, "io_uring") == 0)
		return err_set(err, r, "disk tier: %s", why.text);
	else if (why.text[0])
		log_notice("disk_without_io_uring", "reason=%s", log_quote(why.text));
	*ret_n = r == 0 ? o->threads : o->depth < PLAIN_WORKERS_MAX ? o->depth : PLAIN_WORKERS_MAX;
	return 0;
}

static int workers_new(struct disk *d, struct err *err)
{
	for (unsigned i = 0; i < d->n_workers; i++) {
		struct disk_worker *w = &d->worker[i];
		w->disk = d;
		w->depth = d->ringed ? (d->o.depth + d->n_workers - 1) / d->n_workers : 1;
		w->ahead = d->ringed ? w->depth : 0;
		int r = disk_io_new(d->ringed, w->depth, d->o.calls, &w->io, err);
		if (r != 0)
			return r;
	}
	return 0;
}

static void thread_start(pthread_t *t, void *(*fn)(void *arg), void *arg)
{
	if (pthread_create(t, NULL, fn, arg) != 0)
		check_fatal("cannot start a thread of the disk tier; raise the limit on tasks (LimitNPROC, "
		            "TasksMax)");
}

static void disk_free(struct disk *d)
{
	for (unsigned i = 0; i < d->n_workers; i++)
		disk_io_destroy(&d->worker[i].io);
	for (uint32_t i = 0; i < d->x.n_segments; i++)
		if (d->x.segment[i])
			disk_segment_close(d->x.segment[i]);
	disk_index_fini(&d->x);
	disk_buffers_fini(&d->buffers);
	disk_dir_close(&d->dir);
	pthread_mutex_destroy(&d->lock);
	pthread_cond_destroy(&d->keep_more);
	free(d);
}

/* --- the end --- */

static void cancel_queued(struct disk *d)
{
	struct list out, *queue[] = {&d->gets, &d->puts};
	list_init(&out);
	pthread_mutex_lock(&d->lock);
	for (unsigned i = 0; i < 2; i++)
		list_each_safe(it, nx, queue[i]) {
			list_remove(it);
			list_push_back(&out, it);
		}
	d->n_gets = d->n_puts = 0;
	pthread_mutex_unlock(&d->lock);
	list_each_safe(it, nx, &out) {
		struct disk_job *j = list_entry(it, struct disk_job, link);
		list_remove(it);
		j->code = ERR_CANCELLED;
		j->text = "the disk tier is shutting down";
		disk_job_end(d, j);
	}
}

static void disk_destroy(struct tier *t)
{
	struct disk *d = disk_of(t);
	pthread_mutex_lock(&d->lock);
	d->stop = 1;
	pthread_mutex_unlock(&d->lock);
	cancel_queued(d);
	for (unsigned i = 0; i < d->n_workers; i++) {
		disk_io_wake(d->worker[i].io);
		pthread_join(d->worker[i].thread, NULL);
	}
	cancel_queued(d); /* a put that was waiting for a slot */
	pthread_mutex_lock(&d->lock);
	d->keep_stop = 1;
	pthread_cond_signal(&d->keep_more);
	pthread_mutex_unlock(&d->lock);
	pthread_join(d->keeper, NULL);
	CHECK(list_empty(&d->busy) && list_empty(&d->written));
	disk_save_use(d);
	disk_free(d);
}

static const struct tier_ops disk_ops = {
	.id = TIER_DISK,
	.put = disk_put,
	.get = disk_get,
	.lookup = disk_lookup,
	.remove = disk_remove,
	.flush = disk_flush,
	.resize = disk_resize,
	.stat = disk_stat,
	.policy = disk_policy,
	.due = disk_due,
	.stored = disk_stored,
	.watch = disk_watch,
	.list = disk_list,
	.destroy = disk_destroy,
};

static struct disk *disk_alloc(const struct tier_disk_opts *o, unsigned n_workers)
{
	struct disk *d = mem_zalloc(sizeof *d + n_workers * sizeof d->worker[0]);
	d->tier.ops = &disk_ops;
	d->o = *o;
	d->dir.lock_fd = -1;
	d->n_workers = n_workers;
	pthread_mutex_init(&d->lock, NULL);
	pthread_cond_init(&d->keep_more, NULL);
	struct list *lists[] = {&d->gets, &d->puts, &d->busy, &d->written, &d->flushes};
	for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
		list_init(lists[i]);
	disk_index_init(&d->x);
	d->capacity_bytes = o->capacity_bytes;
	disk_buffers_init(&d->buffers, o->depth, o->depth, DISK_BUFFER_BYTES_MAX, DISK_AHEAD_BYTES_MAX);
	return d;
}

int tier_disk_new(const struct tier_disk_opts *from, struct tier **ret, struct err *err)
{
	struct tier_disk_opts o;
	unsigned n = 1;
	int ringed = 0;
	int r = options_set(&o, from, err);
	if (r == 0)
		r = workers_plan(&o, &ringed, &n, err);
	if (r != 0)
		return r;
	struct disk *d = disk_alloc(&o, n);
	d->ringed = ringed;
	r = disk_dir_open(&d->dir, o.path, o.sync, &d->flush_mark, err);
	if (r == 0)
		r = disk_load(d, err);
	if (r == 0)
		r = workers_new(d, err);
	if (r != 0) {
		disk_free(d);
		return r;
	}
	d->o.path = d->dir.path;
	d->o.io = ringed ? "io_uring" : "threads";
	d->keep = 1; /* first round: reduces to the capacity, clears heads of invalid blocks */
	log_notice(
		"disk_opened",
		"path=%s blocks=%llu bytes=%llu capacity_bytes=%llu io=%s workers=%u depth=%u sync=%d",
		log_quote(d->dir.path), (unsigned long long)d->stat.blocks,
		(unsigned long long)d->stat.bytes, (unsigned long long)d->capacity_bytes, d->o.io, n,
		o.depth, o.sync);
	thread_start(&d->keeper, disk_keeper_main, d);
	for (unsigned i = 0; i < n; i++)
		thread_start(&d->worker[i].thread, disk_worker_main, &d->worker[i]);
	*ret = &d->tier;
	return 0;
}
