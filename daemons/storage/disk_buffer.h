/* disk_buffer.h - memory for disk reads and writes: a few buffers of a few sizes, cut from huge
 * pages.
 *
 * A device takes a transfer as a list of physically contiguous pieces, and lists are short (a
 * virtio queue has 256 entries for everything in flight): with 4 KiB pages a single 1 MiB block
 * fills the queue, and depth has no effect. No locks: the caller serialises. */
#ifndef STORAGE_DISK_BUFFER_H
#define STORAGE_DISK_BUFFER_H

#include "util/list.h"

#include <stddef.h>
#include <stdint.h>

struct disk_buffers {
	struct list slabs; /* the most recently returned buffer's first */
	/* most buffers taken at a time: the first `depth` regardless of size, further ones while all
	 * together have at most ahead_bytes */
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
/* All buffers must have been returned. */
void disk_buffers_fini(struct disk_buffers *b);
/* bytes is a multiple of the page size. Returns 0 if the limit is reached or the system is out of
 * memory; `taken` then tells whether a buffer may be returned later. */
int disk_buffer_take(struct disk_buffers *b, size_t bytes, struct disk_buffer *ret);
/* Returns a buffer and clears *buf; no-op for a cleared one. */
void disk_buffer_give(struct disk_buffers *b, struct disk_buffer *buf);

#endif
