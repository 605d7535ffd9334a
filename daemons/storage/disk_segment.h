/* disk_segment.h - a segment's two files, and what a crash may leave in them.
 *
 *   segment-NNNN   the blocks: slots of slot_bytes (a multiple of 4096) one after another; a block
 *                  fills its slot from the front, the rest is zero
 *   heads-NNNN     64 bytes that describe the segment, then 64 bytes for each slot: struct
 *                  disk_head
 *
 * Numbers are the machine's. A head names a block if its check holds (so it was written whole, for
 * this slot), its bytes fit into the slot, and its seq is not below the `flush` of the folder's
 * state file. Of two heads with one key the larger seq counts. A block's data is written before its
 * head, and its head is cleared before other data is written to the slot; a head whose data does
 * not hold (the machine went down in between, without disk_sync) is found by the block's own
 * checksum when it is read. So nothing has to be deleted as a whole after a crash, and there is
 * no state "closed in order". */
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
	/* low half of XXH3 with 64 bits over the fields before; seed: segment << 32 | slot */
	uint32_t check;
};

/* New files, their room preallocated; half as large again and again if the disk has not enough.
 * With sync they, and their names, reach the device. 0 or an errno. */
int disk_segment_make(const struct disk_dir *dir, const struct disk_calls *calls, int direct,
                      uint32_t number, uint32_t slot_bytes, uint32_t slots,
                      struct disk_segment **ret);
/* What is there. 0, with *ret_heads (slots), to be freed: heads that do not hold are zero. ENODATA:
 * damaged beyond use; *ret_lost of its heads hold. Or an errno: it cannot be told. */
int disk_segment_open(const struct disk_dir *dir, const struct disk_calls *calls, int direct,
                      uint32_t number, struct disk_segment **ret, struct disk_head **ret_heads,
                      uint64_t *ret_lost);
void disk_segment_close(struct disk_segment *g);
/* Files of that number, if there are. */
void disk_segment_delete(const struct disk_dir *dir, uint32_t number);

/* n slots from `slot` on: with cleared ones a head of zeros. 0 or an errno. */
int disk_heads_write(const struct disk_segment *g, uint32_t slot, uint32_t n, int clear);

#endif
