/* disk_index.h - what the disk tier knows in memory: which block lies in which slot of which
 * segment, and the order of use.
 *
 * A segment is a file of slots of one size; all segments of one slot size are a class. A slot takes
 * 80 bytes of memory once it was used, and 4 to 8 for the hash table. Not thread-safe: the disk
 * tier's lock is held for every call. Nothing here touches a file. */
#ifndef STORAGE_DISK_INDEX_H
#define STORAGE_DISK_INDEX_H

#include "tier.h"

#include <stddef.h>
#include <stdint.h>

#define DISK_BLOCK_BYTES_MIN ((size_t)1)
#define DISK_BLOCK_BYTES_MAX ((size_t)64 << 20)
#define DISK_SLOT_UNIT 4096u
#define DISK_SEGMENTS_MAX 4095u
#define DISK_SLOTS_LOG 20u /* slots of a segment, at most */
#define DISK_SLOTS_MAX (1u << DISK_SLOTS_LOG)
#define DISK_CLASSES_MAX 64u
#define DISK_NONE UINT32_MAX /* no slot */

enum disk_slot_state {
	DISK_FREE,
	/* a put owns it: nothing names it, on disk neither once its head was cleared */
	DISK_TAKEN,
	DISK_HELD,   /* has a block that can be found */
	DISK_DROPPED /* out of the index; free once nobody reads it and its head was cleared */
};

struct disk_slot {
	struct tier_key key;
	struct tier_sum sum;
	uint64_t seq; /* of its put or its last use */
	uint32_t bytes;
	/* HELD: in the class's order of use. newer: in the list of free ones, or of dropped ones */
	uint32_t older, newer;
	uint32_t chain; /* the next with the same hash */
	uint16_t readers;
	uint8_t state;
	uint8_t hits;      /* as many as fit */
	unsigned used : 1; /* since its head was written */
	/* was looked at for being copied down; all older ones of its class were, too */
	unsigned named : 1;
	unsigned copied : 1; /* a tier below has it */
	unsigned due : 1;    /* it is to be copied down since it was hit so often */
};

struct disk_class;

struct disk_segment {
	struct disk_class *class; /* once it is in the index */
	uint32_t number, slot_bytes, slots;
	uint32_t taken; /* slots that are not FREE */
	uint32_t cut;   /* slots from here on were never used */
	uint32_t free;  /* the first of the others that are free */
	uint32_t users; /* jobs that use its file */
	int fd, heads_fd;
	int direct;              /* fd goes past the page cache */
	int dying;               /* takes nothing more; is deleted when it is empty */
	uint64_t file_bytes;     /* of its slots */
	uint64_t last_used;      /* the largest seq of its blocks */
	struct disk_slot slot[]; /* (slots) */
};

struct disk_class {
	uint32_t slot_bytes;  /* 0: unused entry */
	uint32_t slots, free; /* of segments that live */
	uint32_t held;        /* of all its segments, as `oldest` to `newest` */
	uint32_t busy;        /* TAKEN or DROPPED, of all its segments */
	uint32_t clearing;    /* of them DROPPED without readers: free soon */
	uint32_t oldest, newest;
	uint32_t n_named;  /* of the oldest */
	uint32_t next_due; /* the oldest that is not named */
	uint32_t fill;     /* number of the segment that is being filled */
	int wants_segment;
};

struct disk_index {
	struct disk_segment *segment[DISK_SEGMENTS_MAX];
	uint32_t n_segments; /* all have lower numbers */
	struct disk_class class[DISK_CLASSES_MAX];
	unsigned n_classes; /* with slots */
	uint32_t n_dying;
	uint64_t file_bytes, dying_bytes;
	uint32_t *bucket; /* (bucket_room); linear hashing: as many as there are blocks */
	uint32_t n_buckets, bucket_room;
	uint64_t hash_seed;
	uint32_t held;
	uint32_t dropped; /* the first of those that nobody reads */
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
void disk_index_fini(struct disk_index *x); /* files are closed already */

/* --- segments and classes --- */
/* without files, not in the index */
struct disk_segment *disk_segment_new(uint32_t number, uint32_t slot_bytes, uint32_t slots);
/* NULL: DISK_CLASSES_MAX slot sizes are in use. */
struct disk_class *disk_index_class(struct disk_index *x, uint32_t slot_bytes);
int disk_index_number(const struct disk_index *x); /* that no segment has, or -1 */
void disk_index_add_segment(struct disk_index *x, struct disk_segment *g);
/* The living segment whose blocks were all used longest ago, of another class if other_than !=
 * 0; or NULL. */
struct disk_segment *disk_index_coldest(const struct disk_index *x, uint32_t other_than);
void disk_index_kill(struct disk_index *x, struct disk_segment *g);
/* dying, empty, without users; the caller frees it */
void disk_index_remove_segment(struct disk_index *x, struct disk_segment *g);

/* --- slots --- */
/* HELD, or DISK_NONE */
uint32_t disk_index_find(const struct disk_index *x, const struct tier_key *key);
/* FREE -> TAKEN, or DISK_NONE */
uint32_t disk_index_take(struct disk_index *x, struct disk_class *c);
/* A slot that was never used or lies before `cut`: -> TAKEN. For the start, in the order of the
 * slots. */
void disk_segment_take_at(struct disk_segment *g, uint32_t slot);
/* TAKEN -> HELD, the newest of its class; its key is not in the index. key, sum, bytes, seq are
 * set. */
void disk_index_insert(struct disk_index *x, uint32_t id);
/* becomes the newest */
void disk_index_touch(struct disk_index *x, uint32_t id, uint64_t seq);
/* HELD -> TAKEN */
void disk_index_evict(struct disk_index *x, uint32_t id);
/* HELD or TAKEN -> DROPPED */
void disk_index_drop(struct disk_index *x, uint32_t id);
/* one reader less */
void disk_index_unread(struct disk_index *x, uint32_t id);
/* out of the list, still DROPPED; or DISK_NONE */
uint32_t disk_index_next_dropped(struct disk_index *x);
/* into the list again */
void disk_index_dropped_back(struct disk_index *x, uint32_t id);
/* TAKEN or DROPPED -> FREE */
void disk_index_free(struct disk_index *x, uint32_t id);
/* The next of the `share` oldest blocks of the class that was not named yet: now it is. Or
 * DISK_NONE. */
uint32_t disk_index_name(struct disk_index *x, struct disk_class *c, uint32_t share);
/* all of them */
void disk_index_unname(struct disk_index *x);

#endif
