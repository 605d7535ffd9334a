/* disk_segment.h - a segment's two files, and their possible states after a crash.
 *
 *   segment-NNNN   the blocks: slots of slot_bytes (a multiple of 4096) one after another; a block
 *                  fills its slot from the front, the rest is zero
 *   heads-NNNN     64 bytes that describe the segment, then 64 bytes per slot: struct disk_head
 *
 * Numbers are in host byte order. A head is valid if its check matches (it was written whole, for
 * this slot), its bytes fit into the slot, and its seq is from the `flush` of the folder's state
 * file to DISK_SEQ_MAX. Of two heads with one key the larger seq wins. A block's data is written
 * before its head, and its head is cleared before other data is written to the slot. A valid head
 * with invalid data (the machine crashed in between, without disk_sync) is detected by the block's
 * own checksum on reading. So no crash requires discarding everything, and there is no "cleanly
 * closed" state. */
#ifndef STORAGE_DISK_SEGMENT_H
#define STORAGE_DISK_SEGMENT_H

#include "disk_index.h"

#include <stdint.h>

struct disk_calls;
struct disk_dir;

/* All zero: the slot has no block. */
struct disk_head {
	struct tier_key key;
	struct tier_sum sum;
	uint64_t seq;
	uint32_t bytes;
	/* low half of 64-bit XXH3 over the preceding fields; seed: segment << 32 | slot */
	uint32_t check;
};

/* Creates preallocated files; retries with half the slots while the disk lacks room. With sync,
 * files and names are on the device. 0 or an errno. */
int disk_segment_make(const struct disk_dir *dir, const struct disk_calls *calls, int direct,
                      uint32_t number, uint32_t slot_bytes, uint32_t slots,
                      struct disk_segment **ret);
/* Opens existing files. 0, with *ret_heads (slots; the caller frees it), in which invalid heads are
 * zero. ENODATA: damaged beyond use, *ret_lost of its heads were valid. Other errno: unknown. */
int disk_segment_open(const struct disk_dir *dir, const struct disk_calls *calls, int direct,
                      uint32_t number, struct disk_segment **ret, struct disk_head **ret_heads,
                      uint64_t *ret_lost);
void disk_segment_close(struct disk_segment *g);
/* Deletes the files of that number, if any. */
void disk_segment_delete(const struct disk_dir *dir, uint32_t number);

/* Writes the heads of n slots from `slot` on; `clear`: as zeros. 0 or an errno. */
int disk_heads_write(const struct disk_segment *g, uint32_t slot, uint32_t n, int clear);

#endif
