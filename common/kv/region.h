/* region.h - a worker's KV memory as other processes see it, handed over as two descriptors.
 *
 * `control` (header + one generation word per block) is anonymous shared memory (memfd), small and
 * always of the host. `data` is the pool itself, memory of the worker's device (engine_new_pool),
 * whose descriptor is all that is known of it here. A peer maps control, opens data as a pool of
 * the backend that the hello names (kernels/copy.h), and trusts nothing in it: sizes come from
 * the hello message, are checked against what a descriptor has for ever, and generations are
 * only compared. */
#ifndef KV_REGION_H
#define KV_REGION_H

#include "kernels/copy.h"
#include "kv/layout.h"
#include "util/err.h"

#include <stdatomic.h>
#include <stdint.h>

struct kv_region {
	int control_fd, data_fd;
	uint32_t blocks;
	_Atomic uint64_t *generations; /* (blocks), in control */
	struct kern_pool *pool;        /* peers: data, to be copied from and to; NULL for the owner */
	size_t control_bytes, data_bytes;
};

/* Owner: makes control, zeroed, sealed against resizing and against writing by anybody else.
 * data_fd, a descriptor of the pool, is taken over, also on failure. 0, ERR_INVALID (blocks),
 * ERR_NOMEM or ERR_IO; after an error r is as after kv_region_fini. */
int kv_region_create(struct kv_region *r, const struct kv_layout *layout, uint32_t blocks,
                     int data_fd, struct err *err);
/* Peer: maps descriptors that were received (they are taken over, also on failure). layout was
 * finished (kv_layout_finish) from what the hello said; backend and device are the hello's. control
 * is read-only. 0, ERR_INVALID (not sealed, or not of exactly the right size), ERR_UNSUPPORTED
 * (a backend whose memory this program cannot copy), ERR_CORRUPT (header), ERR_NOMEM or ERR_IO. */
int kv_region_map(struct kv_region *r, const struct kv_layout *layout, uint32_t blocks,
                  const char *backend, int device, int control_fd, int data_fd, struct err *err);
void kv_region_fini(struct kv_region *r);

#endif
