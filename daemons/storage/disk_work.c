/* disk_work.c - the disk tier's workers: they start jobs, and finish those whose transfer is done.
 *
 * A get counts as a reader of its slot, so the slot is not reused before it has read: a checksum
 * mismatch means damage.
 *
 * A put takes a free slot, or that of the least recently used block, whose head it clears first, so
 * that a crash never leaves a head with other data. If neither is available the put returns to the
 * front of the queue, and no put starts until disk_unstall.
 *
 * With io_uring one worker has many jobs with the device; without, there are many workers with one
 * job each. Completed transfers are replaced by new ones before their data is verified and copied,
 * so that the device never waits for the CPU: gets start first, then jobs finish, then puts
 * start. */
#include "disk_int.h"
#include "disk_segment.h"
#include "sum.h"

#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

/* bound on blocks skipped because they have readers or their segment is dying */
#define EVICT_TRIES 64u

/* --- choosing --- */

void disk_workers_wake(struct disk *d, unsigned n)
{
	for (unsigned i = 0; i < d->n_workers && n; i++) {
		struct disk_worker *w = &d->worker[i];
		if (!w->idle)
			continue;
		unsigned room = w->running < w->depth ? w->depth - w->running : 1;
		w->idle = 0;
		n -= n < room ? n : room;
		disk_io_wake(w->io);
	}
}

/* Reserves part of the depth for gets because requests wait for them. */
static unsigned puts_at_most(const struct disk *d)
{
	unsigned left = d->o.depth > 8 ? d->o.depth / 8 : d->o.depth > 1;
	return d->o.depth - left;
}

static struct disk_job *queue_head(struct disk *d, int puts_too)
{
	if (!list_empty(&d->gets))
		return list_entry(d->gets.next, struct disk_job, link);
	if (puts_too && !list_empty(&d->puts) && !d->stalled && d->putting < puts_at_most(d) &&
	    d->uncommitted < 4 * d->o.depth)
		return list_entry(d->puts.next, struct disk_job, link);
	return NULL;
}

/* The next job to start, with a buffer. With the lock held. */
static struct disk_job *job_next(struct disk *d, int puts_too)
{
	struct disk_job *j = queue_head(d, puts_too);
	if (!j)
		return NULL;
	j->buf_bytes = disk_slot_bytes(j->op->bytes);
	if (!disk_buffer_take(&d->buffers, j->buf_bytes, &j->buf)) {
		if (d->buffers.taken > 0)
			return NULL; /* their holders will check the queue again */
		j->code = ERR_NOMEM;
		j->text = "out of memory for a buffer";
	}
	list_remove(&j->link);
	list_push_back(&d->busy, &j->busy);
	if (j->put) {
		d->n_puts--;
		d->putting++;
	} else {
		d->n_gets--;
	}
	return j;
}

/* --- the device --- */

static void device_begin(struct disk *d, enum disk_way way)
{
	if (d->active[way]++ == 0)
		d->active_since_us[way] = clock_us();
}

static void device_end(struct disk *d, enum disk_way way, int error, size_t bytes)
{
	uint64_t *us = way == DISK_READS ? &d->stat.read_us : &d->stat.write_us;
	if (--d->active[way] == 0)
		*us += clock_us() - d->active_since_us[way];
	if (!error)
		*(way == DISK_READS ? &d->stat.read_bytes : &d->stat.write_bytes) += bytes;
}

static void transfer(struct disk_worker *w, struct disk_job *j)
{
	j->req = (struct disk_req){.fd = j->segment->fd,
	                           .write = j->put,
	                           .buf = j->buf.at,
	                           .bytes = j->buf_bytes,
	                           .at = (off_t)(j->slot & (DISK_SLOTS_MAX - 1)) * (off_t)j->buf_bytes};
	disk_io_submit(w->io, &j->req);
	if (j->put)
		disk_io_send(w->io); /* start it now: copying the next put takes time */
}

/* Drops transferred pages from the page cache if it is in use: after reads at once, after writes
 * when the kernel has had time to write them back. */
static void pages_leave(struct disk *d, struct disk_job *j)
{
	if (j->segment->direct || !d->o.direct)
		return;
	if (!j->put) {
		posix_fadvise(j->segment->fd, j->req.at, (off_t)j->buf_bytes, POSIX_FADV_DONTNEED);
		return;
	}
	sync_file_range(j->segment->fd, j->req.at, (off_t)j->buf_bytes, SYNC_FILE_RANGE_WRITE);
	pthread_mutex_lock(&d->lock);
	struct disk_recent *slot = &d->recent[d->recent_at++ % DISK_RECENT_MAX], old = *slot;
	struct disk_segment *g = old.bytes ? d->x.segment[old.segment] : NULL;
	*slot = (struct disk_recent){j->segment->number, j->req.at, j->buf_bytes};
	if (g)
		g->users++;
	pthread_mutex_unlock(&d->lock);
	if (!g)
		return;
	if (g->fd >= 0)
		posix_fadvise(g->fd, old.at, (off_t)old.bytes, POSIX_FADV_DONTNEED);
	pthread_mutex_lock(&d->lock);
	disk_segment_leave(d, g);
	pthread_mutex_unlock(&d->lock);
}

/* --- the end of a job that has not reached the keeper --- */

/* Releases a job's buffer, slot and segment. With the lock held. */
static void job_leaves(struct disk_worker *w, struct disk_job *j)
{
	struct disk *d = w->disk;
	disk_buffer_give(&d->buffers, &j->buf);
	w->running--;
	d->putting -= j->put;
	if (!j->segment)
		return;
	if (j->put)
		disk_index_free(&d->x, j->slot);
	else
		disk_index_unread(&d->x, j->slot);
	disk_unstall(d);
	if (d->x.dropped != DISK_NONE)
		disk_keep_wake(d);
	disk_segment_leave(d, j->segment);
	j->segment = NULL;
}

static void job_over(struct disk_worker *w, struct disk_job *j, int code, const char *text)
{
	struct disk *d = w->disk;
	j->code = code;
	j->tier = code == 0 ? TIER_DISK : TIER_NONE;
	j->text = text;
	pthread_mutex_lock(&d->lock);
	job_leaves(w, j);
	pthread_mutex_unlock(&d->lock);
	disk_job_end(d, j);
}

/* --- puts --- */

/* Takes the slot of the least recently used block without readers, or DISK_NONE. */
static uint32_t evict(struct disk *d, const struct disk_class *c)
{
	uint32_t id = c->oldest;
	for (unsigned i = 0;
	     id != DISK_NONE && (disk_slot_at(&d->x, id)->readers || disk_segment_of(&d->x, id)->dying);
	     i++)
		id = i < EVICT_TRIES ? disk_slot_at(&d->x, id)->newer : DISK_NONE;
	if (id == DISK_NONE)
		return DISK_NONE;
	disk_gone(d, id, DISK_EVICTED);
	disk_index_evict(&d->x, id);
	return id;
}

/* Requests a new segment if capacity and disk allow one. */
static int want_segment(struct disk *d, struct disk_class *c)
{
	int may = clock_us() >= d->no_room_until_us && disk_next_slots(d, c->slot_bytes) > 0 &&
	          disk_index_number(&d->x) >= 0;
	if (may && !c->wants_segment) {
		c->wants_segment = 1;
		disk_keep_wake(d);
	}
	return may;
}

/* Returns whether a segment of another class is being deleted for this one; starts that if all its
 * blocks were used before the oldest of this class. */
static int room_of_others(struct disk *d, const struct disk_class *c)
{
	uint64_t oldest = c->oldest == DISK_NONE ? UINT64_MAX : disk_slot_at(&d->x, c->oldest)->seq;
	struct disk_segment *g = d->x.n_classes > (c->slots > 0)
	                             ? disk_index_coldest(&d->x, c->slot_bytes)
	                             : NULL;
	if (d->x.dying_bytes > 0 &&
	    d->capacity_bytes + d->x.dying_bytes >= d->x.file_bytes + c->slot_bytes)
		return 1;
	if (!g || g->last_used >= oldest)
		return 0;
	disk_index_kill(&d->x, g);
	disk_keep_wake(d);
	return 1;
}

/* 0: the job has a slot; *ret_clear: its head must be cleared first. ERR_NOTFOUND: wait. Other
 * codes: failed. With the lock held. */
static int slot_find(struct disk *d, struct disk_job *j, int *ret_clear, const char **ret_text)
{
	uint32_t slot_bytes = (uint32_t)j->buf_bytes;
	struct disk_class *c = slot_bytes <= d->capacity_bytes ? disk_index_class(&d->x, slot_bytes)
	                                                       : NULL;
	int r = ERR_FULL;
	*ret_clear = 0;
	if (d->stop)
		return ERR_CANCELLED;
	if (clock_us() < d->no_puts_until_us) {
		*ret_text = disk_error_text(d->error, &r);
		return r;
	}
	if (!c) {
		*ret_text = slot_bytes <= d->capacity_bytes ? "the disk tier has blocks of too many sizes"
		                                            : "the block is larger than the disk tier";
		return ERR_FULL;
	}
	j->slot = disk_index_take(&d->x, c);
	if (c->free < c->slots / 16 && c->free < d->o.depth)
		want_segment(d, c); /* before a put has to wait for it */
	int clears = c->clearing && clock_us() >= d->no_clears_until_us;
	if (j->slot == DISK_NONE && clears)
		disk_keep_wake(d);
	if (j->slot == DISK_NONE && (clears || want_segment(d, c) || room_of_others(d, c)))
		return ERR_NOTFOUND;
	if (j->slot == DISK_NONE && c->clearing) {
		*ret_text = disk_error_text(d->clear_error, &r);
		return r;
	}
	if (j->slot == DISK_NONE) {
		j->slot = evict(d, c);
		*ret_clear = 1;
	}
	*ret_text = "all room of the disk tier is in use";
	return j->slot != DISK_NONE ? 0 : c->busy || c->held ? ERR_NOTFOUND : ERR_FULL;
}

/* 0; ERR_NOTFOUND: back in the queue, no longer this worker's; other codes: failed. */
static int put_slot(struct disk_worker *w, struct disk_job *j, const char **ret_text)
{
	struct disk *d = w->disk;
	int clear, e = 0;
	pthread_mutex_lock(&d->lock);
	int r = slot_find(d, j, &clear, ret_text);
	if (r == 0) {
		j->segment = disk_segment_of(&d->x, j->slot);
		j->segment->users++;
	} else if (r == ERR_NOTFOUND) {
		job_leaves(w, j);
		list_remove(&j->busy);
		list_push_front(&d->puts, &j->link);
		d->n_puts++;
		d->stalled = 1;
	} else {
		d->stat.full += r == ERR_FULL;
	}
	pthread_mutex_unlock(&d->lock);
	if (r == 0 && clear)
		e = disk_heads_write(j->segment, j->slot & (DISK_SLOTS_MAX - 1), 1, 1);
	if (e == 0)
		return r;
	pthread_mutex_lock(&d->lock);
	disk_write_result(d, e);
	pthread_mutex_unlock(&d->lock);
	*ret_text = disk_error_text(e, &r);
	return r;
}

/* Returns whether the block is already stored; then it counts as used. */
static int put_known(struct disk *d, const struct tier_op *op)
{
	pthread_mutex_lock(&d->lock);
	uint32_t id = disk_find(d, &op->key);
	int known = id != DISK_NONE && disk_slot_at(&d->x, id)->bytes == op->bytes;
	if (known) {
		disk_index_touch(&d->x, id, ++d->seq);
		d->stat.known++;
	}
	pthread_mutex_unlock(&d->lock);
	return known;
}

static void put_begin(struct disk_worker *w, struct disk_job *j)
{
	struct disk *d = w->disk;
	struct tier_op *op = j->op;
	const char *text = NULL;
	int known = put_known(d, op), r = known ? 0 : put_slot(w, j, &text);
	if (r == ERR_NOTFOUND)
		return;
	if (r != 0 || known) {
		job_over(w, j, r, text);
		return;
	}
	r = tier_op_move(op, &(struct tier_span){j->buf.at, op->bytes}, 1);
	if (r != 0) {
		job_over(w, j, r, NULL);
		return;
	}
	memset(j->buf.at + op->bytes, 0, j->buf_bytes - op->bytes);
	pthread_mutex_lock(&d->lock);
	device_begin(d, DISK_WRITES);
	pthread_mutex_unlock(&d->lock);
	transfer(w, j);
}

static void put_written(struct disk_worker *w, struct disk_job *j)
{
	struct disk *d = w->disk;
	int error = j->req.result, code = 0;
	if (!error)
		pages_leave(d, j);
	pthread_mutex_lock(&d->lock);
	device_end(d, DISK_WRITES, error, j->op->bytes);
	disk_write_result(d, error);
	if (!error) {
		disk_buffer_give(&d->buffers, &j->buf);
		w->running--;
		d->putting--;
		d->uncommitted++;
		list_push_back(&d->written, &j->link);
		disk_keep_wake(d);
	}
	pthread_mutex_unlock(&d->lock);
	if (!error)
		return;
	const char *text = disk_error_text(error, &code);
	job_over(w, j, code, text);
}

/* --- gets --- */

static void get_begin(struct disk_worker *w, struct disk_job *j)
{
	struct disk *d = w->disk;
	pthread_mutex_lock(&d->lock);
	uint32_t id = disk_find(d, &j->op->key);
	struct disk_slot *s = id != DISK_NONE ? disk_slot_at(&d->x, id) : NULL;
	int hit = s && s->bytes == j->op->bytes && s->readers < UINT16_MAX;
	if (!j->op->aside) {
		d->stat.gets++;
		d->stat.hits += hit != 0;
		d->stat.misses += !hit;
	}
	if (hit && !j->op->aside) {
		disk_index_touch(&d->x, id, ++d->seq);
		s->hits += s->hits < UINT8_MAX;
		disk_due_check(d, id);
	}
	if (hit) {
		s->readers++;
		j->slot = id;
		j->sum = s->sum;
		j->segment = disk_segment_of(&d->x, id);
		j->segment->users++;
		device_begin(d, DISK_READS);
	}
	pthread_mutex_unlock(&d->lock);
	if (hit)
		transfer(w, j);
	else
		job_over(w, j, ERR_NOTFOUND, NULL);
}

static void get_corrupt(struct disk_worker *w, struct disk_job *j, const char *text)
{
	struct disk *d = w->disk;
	log_error("stored_block_corrupt", "tier=%s bytes=%zu segment=%u slot=%u action=dropped",
	          tier_name(TIER_DISK), j->op->bytes, j->segment->number,
	          j->slot & (DISK_SLOTS_MAX - 1));
	pthread_mutex_lock(&d->lock);
	d->stat.corrupt++;
	if (disk_slot_at(&d->x, j->slot)->state == DISK_HELD)
		disk_drop(d, j->slot, DISK_DAMAGED);
	pthread_mutex_unlock(&d->lock);
	job_over(w, j, ERR_CORRUPT, text);
}

static void get_read(struct disk_worker *w, struct disk_job *j)
{
	struct disk *d = w->disk;
	struct tier_span span = {j->buf.at, j->op->bytes};
	int error = j->req.result;
	if (!error)
		pages_leave(d, j);
	pthread_mutex_lock(&d->lock);
	device_end(d, DISK_READS, error, j->op->bytes);
	d->stat.errors += error && error != ENODATA;
	pthread_mutex_unlock(&d->lock);
	if (error == ENODATA) {
		get_corrupt(w, j, "the segment file ends before the stored block; it was dropped");
	} else if (error) {
		log_error("disk_read_failed", "segment=%u slot=%u reason=%s", j->segment->number,
		          j->slot & (DISK_SLOTS_MAX - 1), log_quote(strerror(error)));
		job_over(w, j, ERR_IO, "the disk cannot read the stored block");
	} else if (!sum_equal(sum_spans(&span, 1), j->sum)) {
		get_corrupt(w, j, "checksum mismatch in a stored block; it was dropped");
	} else {
		job_over(w, j, tier_op_move(j->op, &span, 1), NULL);
	}
}

/* --- the thread --- */

static void job_begin(struct disk_worker *w, struct disk_job *j)
{
	if (!j->buf.at)
		job_over(w, j, j->code, j->text);
	else if (j->put)
		put_begin(w, j);
	else
		get_begin(w, j);
}

static void job_transferred(struct disk_worker *w, struct disk_req *q)
{
	struct disk_job *j = list_entry(q, struct disk_job, req);
	if (j->put)
		put_written(w, j);
	else
		get_read(w, j);
}

static int has_room(const struct disk_worker *w)
{
	return w->running < w->depth + w->ahead && disk_io_flying(w->io) < w->depth;
}

void *disk_worker_main(void *arg)
{
	struct disk_worker *w = arg;
	struct disk *d = w->disk;
	for (;;) {
		int over = disk_io_over(w->io);
		pthread_mutex_lock(&d->lock);
		struct disk_job *j = has_room(w) ? job_next(d, !over) : NULL;
		int ends = !j && d->stop && w->running == 0;
		w->running += j != NULL;
		w->idle = !j && !over && has_room(w);
		pthread_mutex_unlock(&d->lock);
		if (ends)
			return NULL;
		if (j)
			job_begin(w, j);
		else if (over)
			job_transferred(w, disk_io_take(w->io));
		else
			disk_io_wait(w->io);
	}
}
