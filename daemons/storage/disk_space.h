/* disk_space.h - where blocks may lie: segment files, each cut into slots of one size, a bit per slot.
 *
 * Not thread-safe: the disk tier's lock is held, except in disk_segment_make and disk_segment_open, which only touch files. A class is all that
 * concerns one slot size. A segment dies when its room is wanted for something else: nothing new goes in, its blocks are dropped, and when nobody uses it
 * any more its file is deleted. */
#ifndef STORAGE_DISK_SPACE_H
#define STORAGE_DISK_SPACE_H

#include "disk_record.h"

#include "util/list.h"

#include <stdint.h>

#define DISK_CLASSES_MAX 64u

struct disk_calls;

struct disk_segment {
	uint32_t number, slot_bytes, slots, taken;
	uint32_t hint;               /* where the search for a free slot begins */
	uint32_t users;              /* jobs that read or write it */
	int fd;                      /* -1: the file is lost */
	int direct;                  /* past the page cache */
	int dying, gone;             /* gone: no longer in the index */
	uint64_t file_bytes;
	uint64_t last_used;          /* the largest sequence number of its blocks */
	uint64_t bit[];              /* (slots): taken; after them (slots): a tier below has the block */
};

struct disk_class {
	uint32_t slot_bytes;         /* 0: unused entry */
	uint32_t slots, free;        /* of segments that live */
	struct list parked;          /* jobs that wait for a slot */
	uint32_t n_parked;
	uint32_t fill;               /* the segment that is being filled */
};

struct disk_space {
	uint64_t capacity_bytes, segment_bytes;
	uint64_t file_bytes, dying_bytes;   /* of all files; of those that die */
	uint64_t slots;
	uint32_t n_dying;
	struct disk_segment *segment[DISK_SEGMENTS_MAX];
	struct disk_class class[DISK_CLASSES_MAX];
};

static inline uint32_t disk_slot_bytes(size_t bytes)
{
	return (uint32_t)((bytes + DISK_SLOT_UNIT - 1) / DISK_SLOT_UNIT * DISK_SLOT_UNIT);
}

void disk_space_init(struct disk_space *s, uint64_t capacity_bytes, uint64_t segment_bytes);
void disk_space_fini(struct disk_space *s);        /* closes files */
/* NULL: too many slot sizes at a time. */
struct disk_class *disk_space_class(struct disk_space *s, uint32_t slot_bytes);
/* Slots of the next segment of that class; 0: no room for one. */
uint32_t disk_space_next(const struct disk_space *s, uint32_t slot_bytes);
/* A number that no segment has, or -1. */
int disk_space_number(const struct disk_space *s);
void disk_space_add(struct disk_space *s, struct disk_segment *g);
/* A free slot, taken. NULL: there is none. */
struct disk_segment *disk_space_take(struct disk_space *s, struct disk_class *c, uint32_t *ret_slot);
void disk_space_mark(struct disk_space *s, struct disk_segment *g, uint32_t slot);
void disk_space_give(struct disk_space *s, struct disk_segment *g, uint32_t slot);
int disk_space_taken(const struct disk_segment *g, uint32_t slot);
/* A tier below has the block of this taken slot; forgotten when the slot is given back. */
void disk_space_copied(struct disk_segment *g, uint32_t slot);
int disk_space_is_copied(const struct disk_segment *g, uint32_t slot);
uint64_t disk_space_copies(const struct disk_space *s);
/* Every slot free. */
void disk_space_clear(struct disk_space *s);
/* The living segment whose blocks were all used longest ago, of another class if other_than != 0. */
struct disk_segment *disk_space_coldest(struct disk_space *s, uint32_t other_than);
void disk_space_kill(struct disk_space *s, struct disk_segment *g);
/* Out of the table; the file is the caller's to close and delete. */
void disk_space_remove(struct disk_space *s, struct disk_segment *g);

/* A new file, its room preallocated; half as large again and again if the disk has not enough. 0 or an errno. */
int disk_segment_make(const char *path, const struct disk_calls *calls, int direct, uint32_t number, uint32_t slot_bytes, uint32_t slots, struct disk_segment **ret);
/* One that should be there; with fd -1 and no slots when it is not, or is too short. */
struct disk_segment *disk_segment_open(const char *path, const struct disk_calls *calls, int direct, uint32_t number, uint32_t slot_bytes, uint32_t slots);

#endif
