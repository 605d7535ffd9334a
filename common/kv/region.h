/* region.h - a worker's KV memory as other processes see it, handed over as two descriptors.
 *
 * `control` (header + one generation word per block) is anonymous shared memory (memfd), small and always of the host. `data` is the pool itself, memory of
 * the worker's device (engine_new_pool), whose descriptor is all that is known of it here.
 * A peer maps what it was given and trusts nothing in it: sizes come from the hello message, are checked against what a descriptor has for ever, and
 * generations are only compared. */
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
	unsigned char *data;             /* peers */
	size_t control_bytes, data_bytes;
};

/* Owner: makes control, zeroed, sealed against resizing and against writing by anybody else. data_fd, a descriptor of the pool, is taken over, also on
 * failure. 0, ERR_INVALID (blocks), ERR_NOMEM or ERR_IO; after an error r is as after kv_region_fini. */
int kv_region_create(struct kv_region *r, const struct kv_layout *layout, uint32_t blocks, int data_fd, struct err *err);
/* Peer: map descriptors that were received (they are taken over, also on failure). layout was finished (kv_layout_finish) from what
 * the hello said; data_fd may be -1 (device memory: data stays NULL). writable: map data for writing; control is always read-only.
 * 0, ERR_INVALID (not a sealed memfd of exactly the right size), ERR_CORRUPT (header), ERR_NOMEM or ERR_IO. */
int kv_region_map(struct kv_region *r, const struct kv_layout *layout, uint32_t blocks, int control_fd, int data_fd, int writable, struct err *err);
void kv_region_fini(struct kv_region *r);

#endif
