/* tier_disk.c - the disk tier's calls, look-ups, start and end. disk_int.h says which thread does what.
 *
 * Callers never wait: they queue a job, or are told at once that the queue is full. What is dropped (a remove, damage, a flush) is invisible at once and
 * leaves the index with the committer's next transaction.
 *
 * Errors of the device end the operation with a reason and are counted; after three failed writes in a row the tier takes no puts for ten seconds, while
 * reads go on. A full disk is no error: the tier goes on with the room that it has. At the start, what is there is checked and what does not hold is dropped. */
#include "disk_int.h"

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
#define PLAIN_WORKERS_MAX 64u

static struct disk *disk_of(struct tier *t)
{
	return (struct disk *)t;
}

/* --- shared; with the lock held --- */

int disk_visible(struct disk *d, const struct tier_key *key, const struct disk_record *rec)
{
	const struct disk_segment *g = rec->segment < DISK_SEGMENTS_MAX ? d->space.segment[rec->segment] : NULL;
	if (!g || g->fd < 0 || rec->born < d->flush_mark)
		return 0;
	list_each(it, &d->drops) {
		const struct disk_drop *drop = list_entry(it, struct disk_drop, link);
		if ((!drop->born || drop->born == rec->born) && memcmp(drop->key.b, key->b, sizeof key->b) == 0)
			return 0;
	}
	return 1;
}

/* Between the look into the index and the one into the list of drops the committer may have moved
 * one from the list to the index: then both are looked at again. */
int disk_find_visible(struct disk *d, struct disk_reader *r, const struct tier_key *key,
                      struct disk_record *ret)
{
	uint64_t forgotten;
	int code;
	pthread_mutex_lock(&d->lock);
	do {
		forgotten = d->forgotten;
		pthread_mutex_unlock(&d->lock);
		code = disk_reader_find(r, key, ret);
		pthread_mutex_lock(&d->lock);
		if (code == 0 && !disk_visible(d, key, ret))
			code = ERR_NOTFOUND;
	} while (code == 0 && forgotten != d->forgotten);
	return code;
}

void disk_commit_wake(struct disk *d)
{
	d->dirty = 1;
	pthread_cond_signal(&d->commit_more);
}

void disk_drop_add(struct disk *d, const struct tier_key *key, uint64_t born, enum disk_drop_why why)
{
	if (why == DISK_DROP_DAMAGED && d->n_drops >= DISK_DROPS_MAX)
		return;   /* it will be found damaged again */
	struct disk_drop *drop = mem_zalloc(sizeof *drop);
	drop->key = *key;
	drop->born = born;
	drop->why = why;
	list_push_back(&d->drops, &drop->link);
	d->n_drops++;
	disk_commit_wake(d);
}

void disk_slot_give(struct disk *d, uint32_t segment, uint32_t slot)
{
	struct disk_segment *g = d->space.segment[segment];
	int read = 0;
	if (!g || g->fd < 0 || slot >= g->slots || !disk_space_taken(g, slot))
		return;
	list_each(it, &d->reading) {
		struct disk_job *j = list_entry(it, struct disk_job, reading);
		if (j->segment == g && j->rec.slot == slot)
			j->slot_freed = read = 1;
	}
	if (!read)
		disk_space_give(&d->space, g, slot);
}

void disk_segment_leave(struct disk *d, struct disk_segment *g)
{
	if (--g->users == 0 && g->gone)
		disk_commit_wake(d);
}

static int is_full(int error)
{
	return error == ENOSPC || error == EDQUOT || error == EFBIG;
}

const char *disk_error_text(int error, int *ret_code)
{
	*ret_code = is_full(error) ? ERR_FULL : ERR_IO;
	switch (error) {
	case ENOSPC:
		return "the disk is full (No space left on device)";
	case EDQUOT:
		return "the disk is full (Disk quota exceeded)";
	case EFBIG:
		return "the disk is full (File too large)";
	case EROFS:
		return "the disk cannot be written (Read-only file system)";
	case EIO:
		return "the disk cannot be written (Input/output error)";
	default:
		return "the disk cannot be written";
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
	log_error("disk_write_failed", "path=%s reason=%s in_a_row=%u", log_quote(d->dir.path), log_quote(strerror(error)), d->fails + 1);
	if (++d->fails < DISK_FAILS_MAX)
		return;
	d->no_puts_until_us = clock_us() + DISK_PAUSE_US;
	log_warn("disk_takes_no_puts", "path=%s seconds=%u reason=%s", log_quote(d->dir.path), DISK_PAUSE_US / 1000000u, log_quote(strerror(error)));
}

/* --- jobs --- */

void disk_job_end(struct disk *d, struct disk_job *j)
{
	pthread_mutex_lock(&d->lock);
	list_remove(&j->busy);
	if (j->put && d->n_puts)
		disk_workers_wake(d, 1);   /* puts may have waited for this one */
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
	list_init(&j->reading);
	j->op = op;
	j->put = put;
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
		text = "the disk tier takes blocks of 1 byte to 64 MiB";
	} else if (d->stop) {
		code = ERR_CANCELLED;
	} else if (clock_us() < d->no_puts_until_us) {
		text = disk_error_text(d->error, &code);
		d->stat.errors++;
	} else if (d->n_puts + d->n_parked >= DISK_PUTS_MAX) {
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

/* --- look-ups --- */

static void disk_lookup(struct tier *t, struct tier_find *f)
{
	struct disk *d = disk_of(t);
	pthread_mutex_lock(&d->lock);
	int refused = d->stop || d->n_finds >= DISK_FINDS_MAX || f->n == 0;
	if (!refused) {
		list_push_back(&d->finds, &f->link);
		d->n_finds++;
		pthread_cond_signal(&d->find_more);
	}
	pthread_mutex_unlock(&d->lock);
	if (refused)
		f->done(f);
}

static int is_here(struct disk *d, struct disk_reader *r, const struct tier_key *key, size_t bytes)
{
	struct disk_record rec;
	int here = disk_find_visible(d, r, key, &rec) == 0 && rec.bytes == bytes;
	pthread_mutex_unlock(&d->lock);
	return here;
}

static void find_run(struct disk *d, struct disk_reader *r, struct tier_find *f)
{
	for (uint32_t i = 0; i < f->n && !(f->until_us && clock_us() >= f->until_us); i++) {
		if (f->where[i])
			continue;
		if (is_here(d, r, &f->key[i], f->bytes))
			f->where[i] = TIER_DISK;
		else if (f->leading)
			break;
	}
	f->done(f);
}

static void *finder_main(void *arg)
{
	struct disk *d = arg;
	struct disk_reader *r = disk_reader_new(d->index);
	pthread_mutex_lock(&d->lock);
	for (;;) {
		if (list_empty(&d->finds)) {
			if (d->stop)
				break;
			pthread_cond_wait(&d->find_more, &d->lock);
			continue;
		}
		struct list *it = d->finds.next;
		list_remove(it);
		d->n_finds--;
		pthread_mutex_unlock(&d->lock);
		find_run(d, r, list_entry(it, struct tier_find, link));
		pthread_mutex_lock(&d->lock);
	}
	pthread_mutex_unlock(&d->lock);
	disk_reader_destroy(&r);
	return NULL;
}

/* --- what an operator asks for --- */

static int disk_remove(struct tier *t, const struct tier_key *key)
{
	struct disk *d = disk_of(t);
	struct disk_record rec;
	pthread_mutex_lock(&d->remove_lock);
	int r = disk_find_visible(d, d->remover, key, &rec) == 0 ? 0 : ERR_NOTFOUND;
	int committer = pthread_equal(pthread_self(), d->committer);   /* somebody whose put it ends asks for this */
	if (r == 0 && d->n_drops >= DISK_DROPS_MAX && !committer) {    /* rare: until its round is over */
		disk_commit_wake(d);
		pthread_cond_wait(&d->drops_less, &d->lock);
	}
	if (r == 0 && d->n_drops >= DISK_DROPS_MAX && !committer)
		r = ERR_FULL;
	if (r == 0)
		disk_drop_add(d, key, rec.born, DISK_DROP_ASKED);
	pthread_mutex_unlock(&d->lock);
	pthread_mutex_unlock(&d->remove_lock);
	return r;
}

static uint64_t disk_flush(struct tier *t)
{
	struct disk *d = disk_of(t);
	pthread_mutex_lock(&d->lock);
	uint64_t n = d->stat.blocks;
	d->stat.blocks = d->stat.bytes = 0;
	d->flush_mark = d->seq;
	d->flushes++;
	disk_commit_wake(d);
	pthread_mutex_unlock(&d->lock);
	return n;
}

static int disk_resize(struct tier *t, uint64_t capacity_bytes, struct err *err)
{
	struct disk *d = disk_of(t);
	if (capacity_bytes < CAPACITY_MIN)
		return err_set(err, ERR_INVALID, "disk tier: a capacity of %llu bytes is below %llu", (unsigned long long)capacity_bytes, (unsigned long long)CAPACITY_MIN);
	pthread_mutex_lock(&d->lock);
	d->space.capacity_bytes = capacity_bytes;
	d->no_room_until_us = 0;
	disk_commit_wake(d);
	pthread_mutex_unlock(&d->lock);
	return 0;
}

static void oldest(struct tier_stat *s, const struct list *jobs, int busy)
{
	list_each(it, jobs) {
		const struct disk_job *j = busy ? list_entry(it, struct disk_job, busy) : list_entry(it, struct disk_job, link);
		if (!s->oldest_us || j->begun_us < s->oldest_us)
			s->oldest_us = j->begun_us;
		if (!busy)
			break;   /* in order */
	}
}

static void state_text(const struct disk *d, uint64_t now, struct tier_stat *s)
{
	if (d->broken)
		snprintf(s->state, sizeof s->state, "failed: the index cannot be written or begun anew");
	else if (now < d->no_puts_until_us)
		snprintf(s->state, sizeof s->state, "takes no puts: %s", strerror(d->error));
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
	ret->capacity_bytes = d->space.capacity_bytes;
	ret->queued = d->n_gets + d->n_puts + d->n_parked + d->n_finds;
	ret->oldest_us = 0;
	oldest(ret, &d->gets, 0);
	oldest(ret, &d->puts, 0);
	oldest(ret, &d->busy, 1);
	for (unsigned i = 0; i < DISK_CLASSES_MAX; i++)
		oldest(ret, &d->space.class[i].parked, 0);
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
		return err_set(err, ERR_INVALID, "disk tier: no folder is named");
	if (o->capacity_bytes < CAPACITY_MIN)
		return err_set(err, ERR_INVALID, "disk tier: a capacity of %llu bytes is below %llu", (unsigned long long)o->capacity_bytes, (unsigned long long)CAPACITY_MIN);
	if (o->depth > 256 || o->threads > 16)
		return err_set(err, ERR_INVALID, "disk tier: depth %u (1-256) or threads %u (1-16) is out of range", o->depth, o->threads);
	if (strcmp(o->io, "auto") != 0 && strcmp(o->io, "io_uring") != 0 && strcmp(o->io, "threads") != 0)
		return err_set(err, ERR_INVALID, "disk tier: io %s is none of auto, io_uring, threads", o->io);
	if (o->threads > o->depth)
		o->threads = o->depth;
	return 0;
}

static int load_segment(void *arg, uint32_t number, uint32_t slot_bytes, uint32_t slots)
{
	struct disk *d = arg;
	char *path = disk_dir_segment_path(&d->dir, number);
	struct disk_segment *g = disk_segment_open(path, d->o.calls, d->o.direct, number, slot_bytes, slots);
	if (g->fd < 0)
		log_error("disk_segment_lost", "path=%s slots=%u action=its_blocks_are_dropped", log_quote(path), slots);
	g->dying = g->fd < 0 || !disk_space_class(&d->space, slot_bytes);
	free(path);
	disk_space_add(&d->space, g);
	return 0;
}

static int load_block(void *arg, const struct tier_key *key, const struct disk_record *rec)
{
	struct disk *d = arg;
	struct disk_segment *g = rec->segment < DISK_SEGMENTS_MAX ? d->space.segment[rec->segment] : NULL;
	(void)key;
	d->stat.blocks++;
	d->stat.bytes += rec->bytes;
	if (d->seq <= rec->used)
		d->seq = rec->used + 1;
	if (!g || g->fd < 0)
		return 0;
	if (rec->slot >= g->slots || rec->slot_bytes != g->slot_bytes || disk_space_taken(g, rec->slot))
		return ERR_CORRUPT;
	disk_space_mark(&d->space, g, rec->slot);
	if (g->last_used < rec->used)
		g->last_used = rec->used;
	return 0;
}

static int segment_known(void *arg, uint32_t number)
{
	const struct disk_segment *g = ((struct disk *)arg)->space.segment[number];
	return g && g->fd >= 0;
}

static int index_load(struct disk *d, struct err *err)
{
	unsigned readers = d->n_workers + 3;
	int r = disk_index_open(d->dir.path, readers, d->o.sync, d->o.calls ? d->o.calls->commit : NULL, &d->index, err);
	if (r != 0)
		return r;
	d->seq = 1;
	r = disk_index_each_segment(d->index, load_segment, d);
	if (r == 0)
		r = disk_index_each_block(d->index, load_block, d);
	return r == 0 ? 0 : err_set(err, r, "the index of %s cannot be read", d->dir.path);
}

static void index_unload(struct disk *d)
{
	disk_index_close(&d->index);
	disk_space_fini(&d->space);
	disk_space_init(&d->space, d->o.capacity_bytes, d->o.segment_bytes);
	d->stat.blocks = d->stat.bytes = 0;
}

/* Index and segments, or nothing at all: a folder whose contents cannot be used is begun anew once. */
static int contents_load(struct disk *d, struct err *err)
{
	int r = index_load(d, err);
	if (r == ERR_CORRUPT) {
		char why[sizeof err->text];
		snprintf(why, sizeof why, "%s", err ? err->text : "it is damaged");
		index_unload(d);
		r = disk_dir_begin_anew(&d->dir, why, err);
		if (r == 0)
			r = index_load(d, err);
	}
	if (r == 0)
		disk_dir_sweep(&d->dir, segment_known, d);
	return r;
}

/* How many workers, and whether with rings. */
static int workers_plan(const struct tier_disk_opts *o, int *ret_ringed, unsigned *ret_n, struct err *err)
{
	struct disk_io *io;
	struct err why = {0};
	int r = strcmp(o->io, "threads") == 0 ? ERR_UNSUPPORTED : disk_io_new(1, o->depth, o->calls, &io, &why);
	*ret_ringed = r == 0;
	if (r == 0)
		disk_io_destroy(&io);
	else if (strcmp(o->io, "io_uring") == 0)
		return err_set(err, r, "disk tier: %s", why.text);
	else if (why.text[0])
		log_info("disk_without_io_uring", "reason=%s", log_quote(why.text));
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
		w->reader = disk_reader_new(d->index);
	}
	d->remover = disk_reader_new(d->index);
	disk_walks_init(d);
	return 0;
}

static void thread_start(pthread_t *t, void *(*fn)(void *arg), void *arg)
{
	if (pthread_create(t, NULL, fn, arg) != 0)
		check_fatal("cannot start a thread of the disk tier; raise the limit on tasks (LimitNPROC, TasksMax)");
}

static void disk_free(struct disk *d, int clean)
{
	for (unsigned i = 0; i < d->n_workers; i++) {
		disk_io_destroy(&d->worker[i].io);
		disk_reader_destroy(&d->worker[i].reader);
	}
	disk_reader_destroy(&d->remover);
	disk_walks_fini(d);
	if (d->index && clean)
		clean = disk_index_sync(d->index) == 0;
	disk_index_close(&d->index);
	for (unsigned i = 0; clean && i < DISK_SEGMENTS_MAX; i++)
		if (d->space.segment[i] && d->space.segment[i]->fd >= 0)
			clean = fdatasync(d->space.segment[i]->fd) == 0;
	disk_space_fini(&d->space);
	disk_buffers_fini(&d->buffers);
	while (!list_empty(&d->drops)) {
		struct disk_drop *drop = list_entry(d->drops.next, struct disk_drop, link);
		list_remove(&drop->link);
		free(drop);
	}
	if (d->dir.path)
		disk_dir_close(&d->dir, clean);
	pthread_mutex_destroy(&d->lock);
	pthread_mutex_destroy(&d->remove_lock);
	pthread_cond_destroy(&d->commit_more);
	pthread_cond_destroy(&d->find_more);
	pthread_cond_destroy(&d->drops_less);
	free(d);
}

/* --- the end --- */

static void cancel_queued(struct disk *d)
{
	struct list out;
	list_init(&out);
	pthread_mutex_lock(&d->lock);
	struct list *queue[2 + DISK_CLASSES_MAX] = {&d->gets, &d->puts};
	for (unsigned i = 0; i < DISK_CLASSES_MAX; i++) {
		queue[2 + i] = &d->space.class[i].parked;
		d->space.class[i].n_parked = 0;
	}
	for (unsigned i = 0; i < 2 + DISK_CLASSES_MAX; i++)
		list_each_safe(it, nx, queue[i]) {
			list_remove(it);
			list_push_back(&out, it);
		}
	d->n_gets = d->n_puts = d->n_parked = 0;
	pthread_mutex_unlock(&d->lock);
	list_each_safe(it, nx, &out) {
		struct disk_job *j = list_entry(it, struct disk_job, link);
		list_remove(it);
		j->code = ERR_CANCELLED;
		j->text = "the disk tier ends";
		disk_job_end(d, j);
	}
}

static void disk_destroy(struct tier *t)
{
	struct disk *d = disk_of(t);
	pthread_mutex_lock(&d->lock);
	d->stop = 1;
	pthread_cond_broadcast(&d->find_more);
	pthread_mutex_unlock(&d->lock);
	cancel_queued(d);
	for (unsigned i = 0; i < d->n_workers; i++) {
		disk_io_wake(d->worker[i].io);
		pthread_join(d->worker[i].thread, NULL);
	}
	pthread_mutex_lock(&d->lock);
	d->commit_stop = 1;
	pthread_cond_signal(&d->commit_more);
	pthread_mutex_unlock(&d->lock);
	pthread_join(d->committer, NULL);
	cancel_queued(d);   /* what the committer put back while the workers ended */
	pthread_join(d->finder, NULL);
	CHECK(list_empty(&d->busy));
	disk_free(d, !d->broken);
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
	pthread_mutex_init(&d->remove_lock, NULL);
	pthread_cond_init(&d->commit_more, NULL);
	pthread_cond_init(&d->find_more, NULL);
	pthread_cond_init(&d->drops_less, NULL);
	struct list *lists[] = {&d->gets, &d->puts, &d->busy, &d->reading, &d->written, &d->finds, &d->drops};
	for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++)
		list_init(lists[i]);
	disk_space_init(&d->space, o->capacity_bytes, o->segment_bytes);
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
	r = disk_dir_open(&d->dir, o.path, o.sync, err);
	if (r == 0)
		r = contents_load(d, err);
	if (r == 0)
		r = workers_new(d, err);
	if (r != 0) {
		disk_free(d, 0);
		return r;
	}
	d->o.path = d->dir.path;
	d->o.io = ringed ? "io_uring" : "threads";
	d->dirty = 1;   /* a first round: what was lost, what is too much */
	log_info("disk_opened", "path=%s blocks=%llu bytes=%llu capacity_bytes=%llu io=%s workers=%u depth=%u sync=%d", log_quote(d->dir.path),
	         (unsigned long long)d->stat.blocks, (unsigned long long)d->stat.bytes, (unsigned long long)d->space.capacity_bytes, d->o.io, n, o.depth, o.sync);
	thread_start(&d->committer, disk_committer_main, d);
	thread_start(&d->finder, finder_main, d);
	for (unsigned i = 0; i < n; i++)
		thread_start(&d->worker[i].thread, disk_worker_main, &d->worker[i]);
	*ret = &d->tier;
	return 0;
}
