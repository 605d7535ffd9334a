/* region.h - a worker's KV memory as other processes see it: descriptors that are handed over.
 *
 * `control` (a header and one generation word per block) is anonymous shared memory (memfd),
 * small and always in host memory. `data` is the pool itself, in memory of the worker's device,
 * or of several devices that have a part each (engine_new_pool); this file knows only its
 * descriptors. A peer maps control, opens data as one pool of the backend that the hello names
 * (kernels/copy.h), and trusts nothing in it: sizes come from the hello and are checked against
 * the descriptors' sealed sizes, and generations are only compared. */
#ifndef KV_REGION_H
#define KV_REGION_H

#include "kernels/copy.h"
#include "kv/layout.h"
#include "util/err.h"

#include <stdatomic.h>
#include <stdint.h>

/* The memory of a pool: one descriptor, or one for each part of a divided pool (layout.h), and the
 * number of the device that has it. */
struct kv_data {
	uint32_t parts;  /* 1 to KERN_PARTS_MAX; 0: none */
	uint32_t stages; /* that have `parts` / `stages` parts each; 0: 1 */
	int fd[KERN_PARTS_MAX];
	int32_t device[KERN_PARTS_MAX];
};
void kv_data_close(struct kv_data *d);
static inline struct kv_parts kv_data_parts(const struct kv_data *d)
{
	uint32_t stages = d->stages ? d->stages : 1;
	return (struct kv_parts){stages, d->parts / stages};
}

struct kv_region {
	int control_fd;
	struct kv_data data;
	uint32_t blocks;
	_Atomic uint64_t *generations; /* (blocks), in control */
	struct kern_pool *pool;        /* peers: data, opened for copying; NULL for the owner */
	struct kv_division *division;  /* peers: of a divided pool, else NULL; private */
	size_t control_bytes, data_bytes;
};

/* Owner: makes control, zeroed, sealed against resizing and against writing by others. Takes over
 * the descriptors of the pool, also on failure. 0, ERR_INVALID (blocks), ERR_NOMEM or ERR_IO; on an
 * error r is as after kv_region_fini. */
int kv_region_create(struct kv_region *r, const struct kv_layout *layout, uint32_t blocks,
                     const struct kv_data *data, struct err *err);
/* Peer: maps received descriptors and takes them over, also on failure. layout was finished
 * (kv_layout_finish) from the hello, and divides into the parts of `data`; backend and devices are
 * the hello's. control is mapped read-only. 0, ERR_INVALID (not sealed, or not exactly the right
 * size), ERR_UNSUPPORTED (this program cannot copy memory of that backend), ERR_CORRUPT (header),
 * ERR_CLOSED (the device is lost), ERR_NOMEM or ERR_IO. On an error r is as after
 * kv_region_fini. */
int kv_region_map(struct kv_region *r, const struct kv_layout *layout, uint32_t blocks,
                  const char *backend, int control_fd, const struct kv_data *data, struct err *err);
void kv_region_fini(struct kv_region *r);

#endif
