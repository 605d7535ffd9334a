/* disk_record.h - how the index's entries look inside LMDB. Numbers in keys are big-endian, so that they sort; in values they are the machine's. */
#ifndef STORAGE_DISK_RECORD_H
#define STORAGE_DISK_RECORD_H

#include "disk_index.h"

#include <endian.h>
#include <lmdb.h>
#include <stddef.h>
#include <string.h>
#include <xxhash.h>

#define DISK_BLOCK_BYTES_MIN ((size_t)1)
#define DISK_BLOCK_BYTES_MAX ((size_t)64 << 20)
#define DISK_SLOT_UNIT 4096u
#define DISK_SEGMENTS_MAX 4096u

enum disk_table { DISK_BLOCKS, DISK_ORDER, DISK_SLOTS, DISK_SEGMENTS, DISK_TABLES };
static const char *const disk_table_name[DISK_TABLES] = {"blocks", "order", "slots", "segments"};

/* Value in blocks. check: XXH3 over the key and all before it. */
struct disk_block_value {
	uint32_t segment, slot, bytes, slot_bytes;
	uint64_t sum_lo, sum_hi, born, used, check;
};

/* Key in order; its value is the block's key. */
struct disk_order_key {
	unsigned char slot_bytes[4], used[8];
};

/* Key in slots; its value is the block's key. */
struct disk_slot_key {
	unsigned char segment[4], slot[4];
};

/* Key in segments: the number as 4 bytes. */
struct disk_segment_value {
	uint32_t slot_bytes, slots, number, zero;
	uint64_t check;
};

static inline void disk_put_be32(unsigned char *to, uint32_t v)
{
	v = htobe32(v);
	memcpy(to, &v, sizeof v);
}

static inline void disk_put_be64(unsigned char *to, uint64_t v)
{
	v = htobe64(v);
	memcpy(to, &v, sizeof v);
}

static inline struct disk_order_key disk_order_key(uint32_t slot_bytes, uint64_t used)
{
	struct disk_order_key k = {{0}, {0}};
	disk_put_be32(k.slot_bytes, slot_bytes);
	disk_put_be64(k.used, used);
	return k;
}

static inline struct disk_slot_key disk_slot_key(uint32_t segment, uint32_t slot)
{
	struct disk_slot_key k = {{0}, {0}};
	disk_put_be32(k.segment, segment);
	disk_put_be32(k.slot, slot);
	return k;
}

static inline MDB_val disk_val(const void *p, size_t bytes)
{
	return (MDB_val){.mv_size = bytes, .mv_data = (void *)(uintptr_t)p};
}

static inline uint64_t disk_block_check(const void *key, const struct disk_block_value *v)
{
	return XXH3_64bits_withSeed(v, offsetof(struct disk_block_value, check), XXH3_64bits(key, TIER_KEY_BYTES));
}

static inline uint64_t disk_segment_check(const struct disk_segment_value *v)
{
	return XXH3_64bits(v, offsetof(struct disk_segment_value, check));
}

static inline struct disk_block_value disk_block_pack(const struct tier_key *key, const struct disk_record *r)
{
	struct disk_block_value v = {r->segment, r->slot, r->bytes, r->slot_bytes, r->sum.lo, r->sum.hi, r->born, r->used, 0};
	v.check = disk_block_check(key->b, &v);
	return v;
}

/* 0: the value does not hold. */
static inline int disk_block_unpack(const void *key, const MDB_val *val, struct disk_record *ret)
{
	struct disk_block_value v;
	if (val->mv_size != sizeof v)
		return 0;
	memcpy(&v, val->mv_data, sizeof v);
	if (v.check != disk_block_check(key, &v) || v.segment >= DISK_SEGMENTS_MAX || v.bytes < DISK_BLOCK_BYTES_MIN || v.bytes > v.slot_bytes || v.slot_bytes > DISK_BLOCK_BYTES_MAX)
		return 0;
	*ret = (struct disk_record){v.segment, v.slot, v.bytes, v.slot_bytes, {v.sum_lo, v.sum_hi}, v.born, v.used};
	return 1;
}

/* As much of a block's record as the entries that name it tell; bytes: as few as have such a slot. 0: they cannot be right. */
static inline int disk_entries_unpack(const struct disk_order_key *o, const struct disk_slot_key *s, struct disk_record *ret)
{
	uint32_t slot_bytes, segment, slot;
	uint64_t used;
	memcpy(&slot_bytes, o->slot_bytes, sizeof slot_bytes);
	memcpy(&used, o->used, sizeof used);
	memcpy(&segment, s->segment, sizeof segment);
	memcpy(&slot, s->slot, sizeof slot);
	slot_bytes = be32toh(slot_bytes);
	segment = be32toh(segment);
	if (segment >= DISK_SEGMENTS_MAX || slot_bytes == 0 || slot_bytes % DISK_SLOT_UNIT != 0)
		return 0;
	*ret = (struct disk_record){.segment = segment, .slot = be32toh(slot), .slot_bytes = slot_bytes, .used = be64toh(used)};
	ret->bytes = slot_bytes - DISK_SLOT_UNIT + 1;
	return 1;
}

static inline int disk_segment_unpack(const MDB_val *key, const MDB_val *val, uint32_t *ret_number, uint32_t *ret_slot_bytes, uint32_t *ret_slots)
{
	struct disk_segment_value v;
	unsigned char number[4];
	if (val->mv_size != sizeof v || key->mv_size != sizeof number)
		return 0;
	memcpy(&v, val->mv_data, sizeof v);
	disk_put_be32(number, v.number);
	if (v.check != disk_segment_check(&v) || memcmp(number, key->mv_data, sizeof number) != 0 || v.number >= DISK_SEGMENTS_MAX || v.slot_bytes == 0 ||
	    v.slot_bytes % DISK_SLOT_UNIT != 0 || v.slot_bytes > DISK_BLOCK_BYTES_MAX || v.slots == 0)
		return 0;
	*ret_number = v.number;
	*ret_slot_bytes = v.slot_bytes;
	*ret_slots = v.slots;
	return 1;
}

#endif
