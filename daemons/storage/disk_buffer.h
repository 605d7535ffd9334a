/* disk_buffer.h - memory that the disk reads into and writes from: a few buffers of a few sizes,
 * cut from huge pages.
 *
 * A device takes a transfer as a list of pieces that are contiguous in physical memory, and lists
 * are short (a virtio queue has 256 entries for all that is under way): in pages of 4 KiB a
 * single block of 1 MiB fills it, and depth is of no use. Nothing here takes a lock. */
#ifndef STORAGE_DISK_BUFFER_H
#define STORAGE_DISK_BUFFER_H

#include "util/list.h"

#include <stddef.h>
#include <stdint.h>

struct disk_buffers {
	struct list slabs; /* the last given back to first */
	/* taken at a time; the first `depth` of them whatever their size, the others while all have
	 * at most ahead_bytes */
	unsigned max, depth;
	uint64_t max_bytes; /* mapped */
	uint64_t ahead_bytes;
	unsigned taken;
	uint64_t taken_bytes, mapped_bytes;
};

struct disk_slab;

struct disk_buffer {
	unsigned char *at; /* page-aligned; NULL: none */
	struct disk_slab *slab;
};

void disk_buffers_init(struct disk_buffers *b, unsigned depth, unsigned ahead, uint64_t max_bytes,
                       uint64_t ahead_bytes);
/* All have been given back. */
void disk_buffers_fini(struct disk_buffers *b);
/* bytes is a multiple of the page size. 0: no more may be taken now, or the system has no
 * memory; then `taken` says whether one may come back. */
int disk_buffer_take(struct disk_buffers *b, size_t bytes, struct disk_buffer *ret);
/* Nothing happens to one that is none; then it is none. */
void disk_buffer_give(struct disk_buffers *b, struct disk_buffer *buf);

#endif
