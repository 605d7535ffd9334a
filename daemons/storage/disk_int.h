/* disk_int.h - shared by the disk tier's files: its state, its jobs, and which thread does what.
 *
 * A put or get becomes a queued job. Workers (disk_work.c) take jobs, gets first: they find a slot,
 * copy, verify, and submit reads and writes. A put whose data is written goes to the keeper
 * (disk_keep.c), which writes the heads of all puts gathered so far; only then is a put in the
 * index and acknowledged. The keeper also creates and deletes segments, clears the heads of dropped
 * slots and persists flushes. Look-ups, removals and figures are answered from memory on the
 * caller's thread.
 *
 * The lock is held briefly: never during a copy, a transfer, a write of heads, or a `done`.
 * `changed` (tier_ops.watch) is called with it held. */
#ifndef STORAGE_DISK_INT_H
#define STORAGE_DISK_INT_H

#include "disk.h"
#include "disk_buffer.h"
#include "disk_dir.h"
#include "disk_index.h"
#include "disk_io.h"

#include "util/list.h"

#include <pthread.h>
#include <stdint.h>

#define DISK_GETS_MAX 4096u /* queued */
#define DISK_PUTS_MAX 1024u
#define DISK_BUFFER_BYTES_MAX ((uint64_t)256 << 20)
/* bound on all taken buffers while more than `depth` are taken: they should stay in the cache */
#define DISK_AHEAD_BYTES_MAX ((uint64_t)16 << 20)
#define DISK_FAILS_MAX 3u /* consecutive failed writes before the tier pauses puts */
/* duration of that pause; also how long a full disk is not asked for another segment */
#define DISK_PAUSE_US 10000000u
#define DISK_CLEAR_PAUSE_US 1000000u /* after heads could not be cleared */
#define DISK_RECENT_MAX 64u
/* queued blocks due for demotion; a block that finds the queue full becomes due at its next hit */
#define DISK_DUE_MAX 1024u

enum disk_way { DISK_READS, DISK_WRITES, DISK_WAYS };

struct disk_job {
	struct list link; /* in a queue, in `written`, or in none */
	struct list busy; /* in `busy` from start to end */
	struct tier_op *op;
	int put;
	uint64_t begun_us;
	uint32_t slot;                /* put: the TAKEN slot; get: the slot it reads */
	struct disk_segment *segment; /* NULL: it has no slot */
	struct tier_sum sum;          /* get: of the stored block */
	struct disk_buffer buf;
	size_t buf_bytes;
	struct disk_req req;
	int code;
	enum tier_id tier;
	const char *text;
};

/* A range written through the page cache; its pages are dropped some writes later. */
struct disk_recent {
	uint32_t segment;
	off_t at;
	size_t bytes;
};

struct disk;

struct disk_worker {
	struct disk *disk;
	pthread_t thread;
	struct disk_io *io;
	unsigned depth; /* most jobs with the device */
	/* most further jobs, which are verified and copied while the device works on the next
	 * ones */
	unsigned ahead;
	unsigned running; /* all of them */
	int idle;         /* sleeps and could start a job */
};

struct disk {
	struct tier tier;
	struct tier_disk_opts o;
	struct disk_dir dir;
	int ringed;
	pthread_mutex_t lock; /* protects everything below */
	pthread_cond_t keep_more;
	int stop, keep_stop;
	struct disk_index x;
	uint64_t capacity_bytes;

	struct list gets, puts, busy, written;
	unsigned n_gets, n_puts;
	unsigned putting;     /* puts that have started and are not with the keeper yet */
	unsigned uncommitted; /* puts that the keeper has */
	/* the first put waits for a slot; no put starts until disk_unstall */
	int stalled;
	struct disk_buffers buffers;

	int keep;            /* the keeper has work */
	uint64_t seq;        /* last sequence number handed out */
	uint64_t flush_mark; /* blocks below it are flushed */
	struct list flushes; /* of tier_flush: waiting to be persisted */
	unsigned fails;
	/* no_clears: dropped slots are not cleared, nor waited for; clear_error says why */
	uint64_t no_puts_until_us, no_room_until_us, no_clears_until_us;
	int error, clear_error; /* errno of the last failed write, and clearing */
	struct disk_recent recent[DISK_RECENT_MAX];
	unsigned recent_at;

	enum tier_policy policy;
	uint32_t after; /* TIER_WRITE_THROUGH: hits */
	unsigned low_percent;
	struct tier_due due[DISK_DUE_MAX]; /* ring: blocks due for demotion because of their hits */
	unsigned due_at, n_due;
	void (*changed)(void *arg, const struct tier_key *key, int stored); /* or NULL */
	void *changed_arg;

	struct tier_stat stat;
	unsigned active[DISK_WAYS];
	uint64_t active_since_us[DISK_WAYS];

	pthread_t keeper;
	unsigned n_workers;
	struct disk_worker worker[];
};

enum disk_why { DISK_ASKED, DISK_EVICTED, DISK_DAMAGED };

/* --- disk.c; with the lock held --- */
/* a block that is not flushed, or DISK_NONE */
uint32_t disk_find(const struct disk *d, const struct tier_key *key);
/* accounts for a HELD block that leaves the index: figures, `changed` */
void disk_gone(struct disk *d, uint32_t id, enum disk_why why);
void disk_drop(struct disk *d, uint32_t id, enum disk_why why);
/* inserts a TAKEN slot into the index */
void disk_stored_here(struct disk *d, uint32_t id);
/* queues the block for demotion if it has enough hits */
void disk_due_check(struct disk *d, uint32_t id);
/* slots of the class's next segment; 0: no room */
uint32_t disk_next_slots(const struct disk *d, uint32_t slot_bytes);
void disk_keep_wake(struct disk *d);
void disk_unstall(struct disk *d); /* a slot may be available */
/* records the result of a write: an errno, or 0 */
void disk_write_result(struct disk *d, int error);
void disk_segment_leave(struct disk *d, struct disk_segment *g);
/* call without the lock */
void disk_job_end(struct disk *d, struct disk_job *j);
const char *disk_error_text(int error, int *ret_code);

/* --- disk_work.c --- */
void *disk_worker_main(void *arg);
void disk_workers_wake(struct disk *d, unsigned n); /* with the lock held */

/* --- disk_keep.c --- */
void *disk_keeper_main(void *arg);
/* at the start: loads the folder's contents */
int disk_load(struct disk *d, struct err *err);
/* at the end, after all other threads: saves the LRU order */
void disk_save_use(struct disk *d);

#endif
