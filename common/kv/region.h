/* region.h - a worker's KV memory as other processes see it: anonymous shared memory (memfd), handed over as descriptors.
 *
 * Two mappings. `control` (header + one generation word per block) is small and always host memory. `data` is the pool itself; with
 * a device whose memory the host cannot map, data_fd is -1 and the device's own handle takes its place.
 * A peer maps what it was given read-only or read-write and trusts nothing in it: sizes come from the hello message, are checked
 * against the descriptor's size (and the memfd is sealed against shrinking), and generations are only compared. */
#ifndef KV_REGION_H
#define KV_REGION_H

#include "kv/layout.h"
#include "util/err.h"

#include <stdatomic.h>
#include <stdint.h>

struct kv_region {
	int control_fd, data_fd;
	uint32_t blocks;
	_Atomic uint64_t *generations;   /* (blocks), in control */
	unsigned char *data;
	size_t control_bytes, data_bytes;
};

/* Owner: create, zeroed, sealed against resizing, and control against writing by anybody else; huge pages are asked for.
 * 0, ERR_INVALID (blocks), ERR_NOMEM or ERR_IO; after an error r is as after kv_region_fini. */
int kv_region_create(struct kv_region *r, const struct kv_layout *layout, uint32_t blocks, struct err *err);
/* Peer: map descriptors that were received (they are taken over, also on failure). layout was finished (kv_layout_finish) from what
 * the hello said; data_fd may be -1 (device memory: data stays NULL). writable: map data for writing; control is always read-only.
 * 0, ERR_INVALID (not a sealed memfd of exactly the right size), ERR_CORRUPT (header), ERR_NOMEM or ERR_IO. */
int kv_region_map(struct kv_region *r, const struct kv_layout *layout, uint32_t blocks, int control_fd, int data_fd, int writable, struct err *err);
void kv_region_fini(struct kv_region *r);

#endif
