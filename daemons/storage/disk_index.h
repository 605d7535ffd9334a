/* disk_index.h - the disk tier's in-memory index: which block is in which slot of which segment,
 * and the LRU order.
 *
 * A segment is a file of slots of one size; all segments of one slot size form a class. A slot
 * takes 80 bytes of memory once it has been used, plus 4 to 8 for the hash table. Not thread-safe:
 * every call needs the disk tier's lock. Nothing here touches a file. */
#ifndef STORAGE_DISK_INDEX_H
#define STORAGE_DISK_INDEX_H

#include "tier.h"

#include <stddef.h>
#include <stdint.h>

#define DISK_BLOCK_BYTES_MIN ((size_t)1)
#define DISK_BLOCK_BYTES_MAX ((size_t)64 << 20)
#define DISK_SLOT_UNIT 4096u
#define DISK_SEGMENTS_MAX 4095u
#define DISK_SLOTS_LOG 20u /* most slots of a segment */
#define DISK_SLOTS_MAX (1u << DISK_SLOTS_LOG)
#define DISK_CLASSES_MAX 64u
#define DISK_NONE UINT32_MAX /* no slot */
/* the largest number that is read from a folder: no tier reaches it, and later ones do not wrap */
#define DISK_SEQ_MAX ((uint64_t)1 << 62)

enum disk_slot_state {
	DISK_FREE,
	/* owned by a put; not in the index, and not on disk either once its head is cleared */
	DISK_TAKEN,
	DISK_HELD,   /* has a block that can be found */
	DISK_DROPPED /* not in the index; becomes FREE once it has no readers and its head is cleared */
};

struct disk_slot {
	struct tier_key key;
	struct tier_sum sum;
	uint64_t seq; /* of its put or latest use */
	uint32_t bytes;
	/* HELD: LRU links of the class. `newer` of FREE and DROPPED slots: link of their list */
	uint32_t older, newer;
	uint32_t chain; /* next with the same hash */
	uint16_t readers;
	uint8_t state;
	uint8_t hits;      /* saturates */
	unsigned used : 1; /* since its head was written */
	/* has been considered for demotion, like all older slots of its class */
	unsigned considered : 1;
	unsigned copied : 1; /* a tier below has it */
	unsigned due : 1;    /* to be demoted because of its many hits */
};

struct disk_class;

struct disk_segment {
	struct disk_class *class; /* once it is in the index */
	uint32_t number, slot_bytes, slots;
	uint32_t taken; /* slots that are not FREE */
	uint32_t cut;   /* slots from here on were never used */
	uint32_t free;  /* first free slot below `cut` */
	uint32_t users; /* jobs that use its file */
	int fd, heads_fd;
	int direct;              /* fd is open with O_DIRECT */
	int dying;               /* accepts no more blocks; deleted when empty */
	uint64_t file_bytes;     /* of its slots */
	uint64_t last_used;      /* the largest seq of its blocks */
	struct disk_slot slot[]; /* (slots) */
};

struct disk_class {
	uint32_t slot_bytes;  /* 0: unused entry */
	uint32_t slots, free; /* of segments that are not dying */
	uint32_t held;        /* of all its segments: length of the list `oldest` .. `newest` */
	uint32_t busy;        /* TAKEN or DROPPED, of all its segments */
	uint32_t clearing;    /* DROPPED without readers: free soon */
	uint32_t oldest, newest;
	uint32_t n_considered;   /* of the oldest */
	uint32_t next_candidate; /* the oldest that is not `considered` */
	uint32_t fill;           /* number of the segment that is being filled */
	int wants_segment;
};

struct disk_index {
	struct disk_segment *segment[DISK_SEGMENTS_MAX];
	uint32_t n_segments; /* all numbers are below it */
	struct disk_class class[DISK_CLASSES_MAX];
	unsigned n_classes; /* with slots */
	uint32_t n_dying;
	uint64_t file_bytes, dying_bytes;
	uint32_t *bucket; /* (bucket_room); linear hashing: n_buckets follows the number of blocks */
	uint32_t n_buckets, bucket_room;
	uint64_t hash_seed;
	uint32_t held;
	uint32_t dropped; /* head of the list of DROPPED slots without readers */
};

static inline uint32_t disk_slot_bytes(size_t bytes)
{
	return (uint32_t)((bytes + DISK_SLOT_UNIT - 1) / DISK_SLOT_UNIT * DISK_SLOT_UNIT);
}

static inline struct disk_segment *disk_segment_of(const struct disk_index *x, uint32_t id)
{
	return x->segment[id >> DISK_SLOTS_LOG];
}

static inline struct disk_slot *disk_slot_at(const struct disk_index *x, uint32_t id)
{
	return &disk_segment_of(x, id)->slot[id & (DISK_SLOTS_MAX - 1)];
}

static inline uint32_t disk_slot_id(const struct disk_segment *g, uint32_t slot)
{
	return g->number << DISK_SLOTS_LOG | slot;
}

void disk_index_init(struct disk_index *x);
void disk_index_fini(struct disk_index *x); /* files must be closed */

/* --- segments and classes --- */
/* without files, not in the index */
struct disk_segment *disk_segment_new(uint32_t number, uint32_t slot_bytes, uint32_t slots);
/* NULL: DISK_CLASSES_MAX slot sizes are in use. */
struct disk_class *disk_index_class(struct disk_index *x, uint32_t slot_bytes);
int disk_index_number(const struct disk_index *x); /* a free segment number, or -1 */
void disk_index_add_segment(struct disk_index *x, struct disk_segment *g);
/* The least recently used living segment, of a class other than other_than if that is nonzero; or
 * NULL. */
struct disk_segment *disk_index_coldest(const struct disk_index *x, uint32_t other_than);
void disk_index_kill(struct disk_index *x, struct disk_segment *g);
/* g must be dying, empty and without users; the caller frees it */
void disk_index_remove_segment(struct disk_index *x, struct disk_segment *g);

/* --- slots --- */
/* a HELD slot, or DISK_NONE */
uint32_t disk_index_find(const struct disk_index *x, const struct tier_key *key);
/* FREE -> TAKEN, or DISK_NONE */
uint32_t disk_index_take(struct disk_index *x, struct disk_class *c);
/* Takes a slot that was never used, for loading at the start, in slot order; slots skipped become
 * free ones below `cut`. */
void disk_segment_take_at(struct disk_segment *g, uint32_t slot);
/* TAKEN -> HELD, as the newest of its class. key, sum, bytes and seq are set; the key must not be
 * in the index. */
void disk_index_insert(struct disk_index *x, uint32_t id);
/* makes it the newest */
void disk_index_touch(struct disk_index *x, uint32_t id, uint64_t seq);
/* HELD -> TAKEN */
void disk_index_evict(struct disk_index *x, uint32_t id);
/* HELD or TAKEN -> DROPPED */
void disk_index_drop(struct disk_index *x, uint32_t id);
/* releases one reader */
void disk_index_unread(struct disk_index *x, uint32_t id);
/* removes a slot from the list of DROPPED ones, or DISK_NONE; it stays DROPPED */
uint32_t disk_index_next_dropped(struct disk_index *x);
/* returns a slot to that list */
void disk_index_dropped_back(struct disk_index *x, uint32_t id);
/* frees those of dying segments */
void disk_index_free_dying(struct disk_index *x);
/* TAKEN or DROPPED -> FREE */
void disk_index_free(struct disk_index *x, uint32_t id);
/* Marks and returns the next slot among the `share` oldest blocks of the class that is not
 * `considered`; or DISK_NONE. */
uint32_t disk_index_next_candidate(struct disk_index *x, struct disk_class *c, uint32_t share);
/* clears `considered` of all slots */
void disk_index_reset_candidates(struct disk_index *x);

#endif
