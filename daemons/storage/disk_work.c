/* disk_work.c - the disk tier's workers: they begin jobs, and end what the device has done.
 *
 * A get pins its slot before it reads: it looks into the index, takes the slot as its own, and looks again. If the record is still the same, then whoever drops
 * it later sees the pin and gives the slot back only after the read; if not, the block is gone. So nothing is ever read while something else is written there,
 * and a checksum that does not hold means damage.
 *
 * A put takes a free slot, which no record names, so that whatever a crash leaves in it is nobody's. Without one it is parked and the committer makes room.
 *
 * With a ring one worker has many jobs with the device; without, there are many workers with one each. What the device has done is replaced first, then
 * checked and copied, so that the device never waits for the processor: gets begin before anything else, then jobs end, then puts begin. */
#include "disk_int.h"
#include "sum.h"

#include "util/check.h"
#include "util/clock.h"
#include "util/log.h"
#include "util/mem.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>

#define PIN_TRIES 3

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

/* Some of the depth is left to gets, for which somebody waits. */
static unsigned puts_at_most(const struct disk *d)
{
	unsigned left = d->o.depth > 8 ? d->o.depth / 8 : d->o.depth > 1;
	return d->o.depth - left;
}

static struct disk_job *queue_head(struct disk *d, int puts_too)
{
	if (!list_empty(&d->gets))
		return list_entry(d->gets.next, struct disk_job, link);
	if (puts_too && !list_empty(&d->puts) && d->putting < puts_at_most(d) && d->uncommitted < 4 * d->o.depth)
		return list_entry(d->puts.next, struct disk_job, link);
	return NULL;
}

/* The next job to begin, with a buffer. With the lock held. */
static struct disk_job *job_next(struct disk *d, int puts_too)
{
	struct disk_job *j = queue_head(d, puts_too);
	if (!j)
		return NULL;
	j->buf_bytes = disk_slot_bytes(j->op->bytes);
	if (!disk_buffer_take(&d->buffers, j->buf_bytes, &j->buf)) {
		if (d->buffers.taken > 0)
			return NULL;   /* who has them looks here again */
		j->code = ERR_NOMEM;
		j->text = "no memory for a buffer";
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
	j->req = (struct disk_req){
		.fd = j->segment->fd, .write = j->put, .buf = j->buf.at, .bytes = j->buf_bytes, .at = (off_t)j->rec.slot * j->rec.slot_bytes};
	disk_io_submit(w->io, &j->req);
	if (j->put)
		disk_io_send(w->io);   /* the next one is copied first */
}

/* Where the page cache is in between, what went through leaves it: reads at once, writes when the kernel has had the time to write them. */
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
	struct disk_segment *g = old.bytes ? d->space.segment[old.segment] : NULL;
	*slot = (struct disk_recent){j->rec.segment, j->req.at, j->buf_bytes};
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

/* --- the end of a job that is not with the committer --- */

static void job_over(struct disk_worker *w, struct disk_job *j, int code, enum tier_id tier, const char *text)
{
	struct disk *d = w->disk;
	j->code = code;
	j->tier = tier;
	j->text = text;
	pthread_mutex_lock(&d->lock);
	disk_buffer_give(&d->buffers, &j->buf);
	w->running--;
	if (j->put) {
		d->putting--;
		if (d->n_parked)
			disk_commit_wake(d);   /* a slot may have been meant for it that it did not take */
	}
	pthread_mutex_unlock(&d->lock);
	disk_job_end(d, j);
}

/* --- puts --- */

static void hit_add(struct disk *d, const struct tier_key *key)
{
	if (d->n_hits < DISK_HITS_MAX)
		d->hit[d->n_hits++] = *key;
	if (d->n_hits == DISK_HITS_MAX / 2)
		disk_commit_wake(d);
}

static int find_visible(struct disk_worker *w, struct disk_job *j, struct disk_record *ret)
{
	struct disk *d = w->disk;
	int r = disk_find_visible(d, w->reader, &j->op->key, ret);
	if (r == 0 && ret->bytes != j->op->bytes)
		r = ERR_NOTFOUND;
	if (r == ERR_CORRUPT) {
		d->stat.corrupt++;
		disk_drop_add(d, &j->op->key, 0, DISK_DROP_DAMAGED);
	}
	if (r == ERR_CLOSED) {
		d->broken = 1;
		disk_commit_wake(d);
	}
	pthread_mutex_unlock(&d->lock);
	return r;
}

/* 0; ERR_NOTFOUND: parked, and no longer this worker's; or why not. */
static int put_slot(struct disk_worker *w, struct disk_job *j, const char **ret_text)
{
	struct disk *d = w->disk;
	uint32_t slot_bytes = (uint32_t)j->buf_bytes;
	int r = 0;
	pthread_mutex_lock(&d->lock);
	struct disk_class *c = disk_space_class(&d->space, slot_bytes);
	if (d->stop) {
		r = ERR_CANCELLED;
	} else if (clock_us() < d->no_puts_until_us) {
		*ret_text = disk_error_text(d->error, &r);
	} else if (!c || slot_bytes > d->space.capacity_bytes) {
		d->stat.full++;
		*ret_text = c ? "the block is larger than the disk tier" : "the disk tier has blocks of too many sizes";
		r = ERR_FULL;
	} else if ((j->segment = disk_space_take(&d->space, c, &j->rec.slot)) != NULL) {
		j->segment->users++;
		if (j->segment->last_used < d->seq)
			j->segment->last_used = d->seq;
	} else {
		disk_buffer_give(&d->buffers, &j->buf);
		w->running--;
		d->putting--;
		list_remove(&j->busy);
		list_push_back(&c->parked, &j->link);
		c->n_parked++;
		d->n_parked++;
		disk_commit_wake(d);
		r = ERR_NOTFOUND;
	}
	pthread_mutex_unlock(&d->lock);
	return r;
}

static void put_slot_back(struct disk *d, struct disk_job *j)
{
	pthread_mutex_lock(&d->lock);
	disk_slot_give(d, j->segment->number, j->rec.slot);
	disk_segment_leave(d, j->segment);
	j->segment = NULL;
	disk_commit_wake(d);   /* somebody may be parked */
	pthread_mutex_unlock(&d->lock);
}

static void put_begin(struct disk_worker *w, struct disk_job *j)
{
	struct disk *d = w->disk;
	struct tier_op *op = j->op;
	const char *text = NULL;
	if (find_visible(w, j, &j->rec) == 0) {
		pthread_mutex_lock(&d->lock);
		d->stat.known++;
		hit_add(d, &op->key);
		pthread_mutex_unlock(&d->lock);
		job_over(w, j, 0, TIER_DISK, NULL);
		return;
	}
	int r = put_slot(w, j, &text);
	if (r == ERR_NOTFOUND)
		return;
	if (r != 0) {
		job_over(w, j, r, TIER_NONE, text);
		return;
	}
	r = op->move(op, &(struct tier_span){j->buf.at, op->bytes}, 1);
	if (r != 0) {
		put_slot_back(d, j);
		job_over(w, j, r, TIER_NONE, NULL);
		return;
	}
	memset(j->buf.at + op->bytes, 0, j->buf_bytes - op->bytes);
	pthread_mutex_lock(&d->lock);   /* a flush looks which slots are taken */
	j->rec = (struct disk_record){.segment = j->segment->number, .slot = j->rec.slot, .bytes = (uint32_t)op->bytes, .slot_bytes = (uint32_t)j->buf_bytes, .sum = op->sum};
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
		disk_commit_wake(d);
	}
	pthread_mutex_unlock(&d->lock);
	if (!error)
		return;
	const char *text = disk_error_text(error, &code);
	put_slot_back(d, j);
	job_over(w, j, code, TIER_NONE, text);
}

/* --- gets --- */

/* With the lock held: 1: the slot is pinned. */
static int pin(struct disk *d, struct disk_job *j)
{
	struct disk_segment *g = d->space.segment[j->rec.segment];
	if (!g || g->gone || g->fd < 0 || g->slot_bytes != j->rec.slot_bytes || j->rec.slot >= g->slots || j->rec.slot_bytes != j->buf_bytes)
		return 0;
	j->segment = g;
	j->slot_freed = 0;
	g->users++;
	list_push_back(&d->reading, &j->reading);
	return 1;
}

/* Nobody reads or writes the slot through this job any more; the last of those who read a freed slot gives it back. */
static void unpin(struct disk *d, struct disk_job *j)
{
	struct disk_segment *g = j->segment;
	list_remove(&j->reading);
	if (j->slot_freed) {
		int others = 0;
		list_each(it, &d->reading) {
			struct disk_job *o = list_entry(it, struct disk_job, reading);
			others += o->slot_freed && o->segment == g && o->rec.slot == j->rec.slot;
		}
		if (!others) {
			disk_space_give(&d->space, g, j->rec.slot);
			disk_commit_wake(d);
		}
	}
	disk_segment_leave(d, g);
}

static int get_pin(struct disk_worker *w, struct disk_job *j)
{
	struct disk *d = w->disk;
	struct disk_record again;
	for (int i = 0; i < PIN_TRIES; i++) {
		int r = find_visible(w, j, &j->rec);
		if (r != 0)
			return r;
		pthread_mutex_lock(&d->lock);
		int pinned = pin(d, j);
		pthread_mutex_unlock(&d->lock);
		if (!pinned)
			continue;
		if (disk_reader_find(w->reader, &j->op->key, &again) == 0 && again.born == j->rec.born && again.segment == j->rec.segment && again.slot == j->rec.slot)
			return 0;
		pthread_mutex_lock(&d->lock);
		unpin(d, j);
		pthread_mutex_unlock(&d->lock);
	}
	return ERR_NOTFOUND;
}

static void get_begin(struct disk_worker *w, struct disk_job *j)
{
	struct disk *d = w->disk;
	int r = get_pin(w, j);
	pthread_mutex_lock(&d->lock);
	if (!j->op->aside) {
		d->stat.gets++;
		d->stat.hits += r == 0;
		d->stat.misses += r != 0;
		if (r == 0)
			hit_add(d, &j->op->key);
	}
	if (r == 0)
		device_begin(d, DISK_READS);
	pthread_mutex_unlock(&d->lock);
	if (r == 0)
		transfer(w, j);
	else if (r == ERR_CORRUPT)
		job_over(w, j, r, TIER_NONE, "the index's record of the stored block does not hold; it was dropped");
	else
		job_over(w, j, ERR_NOTFOUND, TIER_NONE, NULL);
}

static void get_corrupt(struct disk_worker *w, struct disk_job *j, const char *text)
{
	struct disk *d = w->disk;
	log_error("stored_block_corrupt", "tier=%s bytes=%zu segment=%u slot=%u action=dropped", tier_name(TIER_DISK), j->op->bytes, j->rec.segment, j->rec.slot);
	pthread_mutex_lock(&d->lock);
	d->stat.corrupt++;
	disk_drop_add(d, &j->op->key, j->rec.born, DISK_DROP_DAMAGED);
	pthread_mutex_unlock(&d->lock);
	job_over(w, j, ERR_CORRUPT, TIER_NONE, text);
}

static void get_read(struct disk_worker *w, struct disk_job *j)
{
	struct disk *d = w->disk;
	int error = j->req.result;
	if (!error)
		pages_leave(d, j);
	pthread_mutex_lock(&d->lock);
	device_end(d, DISK_READS, error, j->op->bytes);
	unpin(d, j);
	if (error && error != ENODATA)
		d->stat.errors++;
	pthread_mutex_unlock(&d->lock);
	struct tier_span span = {j->buf.at, j->op->bytes};
	if (error == ENODATA) {
		get_corrupt(w, j, "the segment file ends before the stored block; it was dropped");
	} else if (error) {
		log_error("disk_read_failed", "segment=%u slot=%u reason=%s", j->rec.segment, j->rec.slot, log_quote(strerror(error)));
		job_over(w, j, ERR_IO, TIER_NONE, "the disk cannot read the stored block");
	} else if (!sum_equal(sum_spans(&span, 1), j->rec.sum)) {
		get_corrupt(w, j, "the checksum of the stored block does not hold; it was dropped");
	} else {
		int code = j->op->move(j->op, &span, 1);
		job_over(w, j, code, code == 0 ? TIER_DISK : TIER_NONE, NULL);
	}
}

/* --- the thread --- */

static void job_begin(struct disk_worker *w, struct disk_job *j)
{
	if (!j->buf.at)
		job_over(w, j, j->code, TIER_NONE, j->text);
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
