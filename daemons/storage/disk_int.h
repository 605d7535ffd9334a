/* disk_int.h - what the disk tier's files share: its state, jobs, and which thread does what.
 *
 * A caller's put or get becomes a job in a queue. Workers (disk_work.c) take jobs, gets first: they look into the index, copy, check, and have blocks read
 * and written. A put whose data is written goes to the committer (disk_commit.c), the only one that writes the index: one transaction for all that has
 * gathered, and only then is the put acknowledged. It also evicts, makes and deletes segment files, and hands free slots to puts that wait for one.
 * The finder (tier_disk.c) answers look-ups, so that they wait for no transfer.
 *
 * The lock is held for moments only: never during a look-up, a copy, a transfer, a commit or a callback. */
#ifndef STORAGE_DISK_INT_H
#define STORAGE_DISK_INT_H

#include "disk_buffer.h"
#include "disk_dir.h"
#include "disk_index.h"
#include "disk_io.h"
#include "disk_space.h"
#include "tier_disk.h"

#include "util/list.h"

#include <pthread.h>
#include <stdint.h>

#define DISK_GETS_MAX 4096u          /* queued */
#define DISK_PUTS_MAX 1024u
#define DISK_FINDS_MAX 1024u
#define DISK_HITS_MAX 1024u          /* uses that the index does not know of yet; more are forgotten */
#define DISK_DROPS_MAX 256u
#define DISK_BUFFER_BYTES_MAX ((uint64_t)256 << 20)
#define DISK_AHEAD_BYTES_MAX ((uint64_t)16 << 20)   /* of all buffers that are taken, for more of them than the depth: they are to stay in the cache */
#define DISK_FAILS_MAX 3u            /* failed writes in a row before it pauses */
#define DISK_PAUSE_US 10000000u      /* how long it takes no puts then; and how long a full disk is not asked for more */
#define DISK_RECENT_MAX 64u

enum disk_way { DISK_READS, DISK_WRITES, DISK_WAYS };

struct disk_job {
	struct list link;            /* in a queue, a class's parked list, `written`, or none */
	struct list busy;            /* in `busy` from its begin to its end */
	struct list reading;         /* in `reading` while it reads a slot */
	struct tier_op *op;
	int put;
	uint64_t begun_us;
	struct disk_record rec;
	struct disk_segment *segment;
	struct disk_buffer buf;
	size_t buf_bytes;
	struct disk_req req;
	int slot_freed;              /* the slot that it reads was given back meanwhile */
	int known;                   /* put: another put of this block was faster */
	int code;
	enum tier_id tier;
	const char *text;
};

enum disk_drop_why { DISK_DROP_ASKED, DISK_DROP_DAMAGED };

struct disk_drop {
	struct list link;
	struct tier_key key;
	uint64_t born;               /* 0: whatever is there */
	enum disk_drop_why why;
};

/* Written past no page cache: its pages are dropped some writes later. */
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
	struct disk_reader *reader;
	unsigned depth;              /* jobs with the device at most */
	unsigned ahead;              /* jobs beside them at most, that are being checked and copied while the device has the next ones */
	unsigned running;            /* all of them */
	int idle;                    /* sleeps, and could begin a job */
};

/* What walks over the index need (disk_walk.c); under its own lock, which is taken before the disk's. */
struct disk_walks {
	pthread_mutex_t lock;
	struct disk_reader *reader;
	enum tier_policy policy;
	unsigned low_percent;
	uint64_t after[DISK_CLASSES_MAX];   /* of each class of slots: what was last used up to here was named as due */
	uint64_t puts;                      /* as counted when the last walk found nothing more */
	int more;                           /* the next walk is not to wait for puts */
};

struct disk {
	struct tier tier;
	struct tier_disk_opts o;
	struct disk_dir dir;
	struct disk_index *index;
	int ringed;
	pthread_mutex_t lock;
	pthread_cond_t commit_more, find_more, drops_less;
	int stop, commit_stop;
	struct disk_space space;

	struct list gets, puts, busy, reading, written, finds;
	unsigned n_gets, n_puts, n_parked, n_finds;
	unsigned putting;            /* puts that have begun and are not with the committer */
	unsigned uncommitted;        /* puts that the committer has */
	struct disk_buffers buffers;

	int dirty;                   /* there is something for the committer */
	struct tier_key hit[DISK_HITS_MAX];
	unsigned n_hits;
	struct list drops;           /* invisible already; more than DISK_DROPS_MAX only if the committer adds some */
	unsigned n_drops;
	uint64_t forgotten;          /* drops that have left the list, because the index has them */
	uint64_t seq;                /* the next sequence number */
	uint64_t flush_mark;         /* what was born before is gone */
	unsigned flushes, flushed;   /* asked for, done */
	unsigned fails;
	uint64_t no_puts_until_us, no_room_until_us, no_renewal_until_us;
	int error;                   /* errno of the last failed write */
	int broken;                  /* the index is of no use any more: the committer begins it anew */
	int renewed;                 /* it has: the segments are not in it yet */
	struct disk_recent recent[DISK_RECENT_MAX];
	unsigned recent_at;

	struct tier_stat stat;
	unsigned active[DISK_WAYS];
	uint64_t active_since_us[DISK_WAYS];

	struct disk_reader *remover;
	pthread_mutex_t remove_lock;
	struct disk_walks walks;
	pthread_t committer, finder;
	unsigned n_workers;
	struct disk_worker worker[];
};

/* tier_disk.c; with the lock held */
/* Does the record count: not flushed, not dropped, its file there? */
int disk_visible(struct disk *d, const struct tier_key *key, const struct disk_record *rec);
/* Without the lock, which is held after: the record of a block that is here; 0, ERR_NOTFOUND, or
 * what is wrong with the index (ERR_CORRUPT, ERR_CLOSED). */
int disk_find_visible(struct disk *d, struct disk_reader *r, const struct tier_key *key,
                      struct disk_record *ret);
void disk_drop_add(struct disk *d, const struct tier_key *key, uint64_t born, enum disk_drop_why why);
void disk_commit_wake(struct disk *d);
/* A write failed (an errno) or went through (0). */
void disk_write_result(struct disk *d, int error);
/* The slot is free, now or when its readers are done. */
void disk_slot_give(struct disk *d, uint32_t segment, uint32_t slot);
void disk_segment_leave(struct disk *d, struct disk_segment *g);
/* without it */
void disk_job_end(struct disk *d, struct disk_job *j);
const char *disk_error_text(int error, int *ret_code);

/* disk_work.c */
void *disk_worker_main(void *arg);
void disk_workers_wake(struct disk *d, unsigned n);       /* with the lock held */

/* disk_walk.c: these of tier_ops */
void disk_walks_init(struct disk *d);     /* the index is open */
void disk_walks_fini(struct disk *d);
void disk_policy(struct tier *t, enum tier_policy policy, uint32_t after, unsigned low_percent);
uint32_t disk_due(struct tier *t, uint32_t max, struct tier_due *ret);
void disk_stored(struct tier *t, const struct tier_key *key, int ok);
void disk_watch(struct tier *t, void (*changed)(void *arg, const struct tier_key *key, int stored), void *arg);
uint32_t disk_list(struct tier *t, struct tier_cursor *at, uint32_t max, struct tier_key *ret);

/* disk_commit.c */
void *disk_committer_main(void *arg);

#endif
