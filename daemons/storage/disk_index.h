/* disk_index.h - which block lies where on the disk: an LMDB file that may be larger than memory. Nothing of it is kept in memory but what the kernel caches.
 *
 * Four tables: blocks (key -> record, with a checksum of its own), order (slot size, time of last use -> key), slots (segment, slot -> key), segments
 * (number -> slot size, slots). They change together, in transactions of one writer; any number of threads read beside it, each through a reader of its own.
 *
 * Functions return 0, ERR_NOTFOUND, or another code; disk_index_text says the last failure of the writer. */
#ifndef STORAGE_DISK_INDEX_H
#define STORAGE_DISK_INDEX_H

#include "tier.h"

#include "util/err.h"

#include <stdint.h>

struct disk_record {
	uint32_t segment, slot;
	uint32_t bytes, slot_bytes;
	struct tier_sum sum;
	uint64_t born, used;         /* sequence numbers: of its put, of its last use */
};

struct disk_index;
struct disk_reader;

/* The files index and index-lock in `folder`, made when missing. readers: how many disk_readers at most. commit: as in disk_calls, or NULL. */
int disk_index_open(const char *folder, unsigned readers, int sync, int (*commit)(void), struct disk_index **ret, struct err *err);
void disk_index_close(struct disk_index **ix);
/* Walks all of an index that no process has open, in a child process that may crash or hang without harm: 0; ERR_NOTFOUND: there is none; ERR_CORRUPT. */
int disk_index_check(const char *folder, struct err *err);
/* Makes the room of a file of so many bytes sure. ERR_FULL or another code. */
int disk_index_reserve(struct disk_index *ix, uint64_t bytes);
uint64_t disk_index_file_bytes(struct disk_index *ix);
/* Everything to the device. */
int disk_index_sync(struct disk_index *ix);
/* An empty one in the place of one that is of no use any more. If that cannot be, all calls fail with ERR_CLOSED until it can. */
int disk_index_renew(struct disk_index *ix);

/* --- readers --- */
struct disk_reader *disk_reader_new(struct disk_index *ix);
void disk_reader_destroy(struct disk_reader **r);
/* ERR_CORRUPT: there is a record and it does not hold. */
int disk_reader_find(struct disk_reader *r, const struct tier_key *key, struct disk_record *ret);
/* The next keys, in their order; as tier_ops.list. */
uint32_t disk_reader_list(struct disk_reader *r, struct tier_cursor *at, uint32_t max, struct tier_key *ret);
/* Of the `among` least recently used blocks of that slot size those that were last used after *after (a sequence number, which moves along), at most max. */
uint32_t disk_reader_coldest(struct disk_reader *r, uint32_t slot_bytes, uint32_t among, uint64_t *after, uint32_t max, struct tier_due *ret);
/* All records or all segments, before the writer begins; stops when `each` returns non-zero and returns that. */
int disk_index_each_block(struct disk_index *ix, int (*each)(void *arg, const struct tier_key *key, const struct disk_record *rec), void *arg);
int disk_index_each_segment(struct disk_index *ix, int (*each)(void *arg, uint32_t segment, uint32_t slot_bytes, uint32_t slots), void *arg);

/* --- the writer; after any failure but ERR_NOTFOUND only disk_index_abort may follow --- */
int disk_index_begin(struct disk_index *ix);
/* Before the first begin: `changed` hears on the writer's thread, after each commit, of every key that came or went, in order. key NULL: all are gone. */
void disk_index_watch(struct disk_index *ix, void (*changed)(void *arg, const struct tier_key *key, int stored), void *arg);
int disk_index_add(struct disk_index *ix, const struct tier_key *key, const struct disk_record *rec);
/* ERR_INVALID: there is a record and it does not hold. disk_index_drop drops it all the same, unless born was given. */
int disk_index_get(struct disk_index *ix, const struct tier_key *key, struct disk_record *ret);
int disk_index_touch(struct disk_index *ix, const struct tier_key *key, uint64_t used, struct disk_record *ret);
/* With born != 0 only that one. */
int disk_index_drop(struct disk_index *ix, const struct tier_key *key, uint64_t born, struct disk_record *ret);
int disk_index_drop_all(struct disk_index *ix);
/* Sequence number of the last use of the least recently used block of that slot size. */
int disk_index_oldest(struct disk_index *ix, uint32_t slot_bytes, uint64_t *ret_used);
/* Drops the least recently used block of that slot size; any block in that segment. */
int disk_index_evict(struct disk_index *ix, uint32_t slot_bytes, struct disk_record *ret);
int disk_index_drop_in(struct disk_index *ix, uint32_t segment, struct disk_record *ret);
int disk_index_segment_add(struct disk_index *ix, uint32_t segment, uint32_t slot_bytes, uint32_t slots);
int disk_index_segment_drop(struct disk_index *ix, uint32_t segment);
int disk_index_commit(struct disk_index *ix);
void disk_index_abort(struct disk_index *ix);
/* After ERR_NOMEM (the map has no room) and abort: a larger map; the transaction is to be done again. */
int disk_index_grow(struct disk_index *ix);
const char *disk_index_text(const struct disk_index *ix);

#endif
