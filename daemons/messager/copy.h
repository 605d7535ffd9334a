/* copy.h - copies blocks of one layer from one pool into another, neighbours in one copy. */
#ifndef MESSAGER_COPY_H
#define MESSAGER_COPY_H

#include "kernels/copy.h"
#include "kv/layout.h"
#include "util/err.h"

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct copy_pools {
	const struct kv_layout *layout; /* of both pools */
	struct kern_pool *from, *to;
	uint32_t from_blocks, to_blocks;
	const _Atomic uint64_t *to_generations; /* (to_blocks), in D's control memory */
};

/* Which blocks go where; the numbers are below the pools' counts. Three arrays of n. */
struct copy_list {
	const uint32_t *src, *dst;
	const uint64_t *dst_gen; /* dst may be written only while it has this generation */
	uint32_t n;
};

/* The sum over the copies of several layers. The caller zeroes it first. */
struct copy_sum {
	uint32_t runs; /* separate copies */
	struct kern_ticket last;
};

/* The number of leading blocks that are neighbours on both sides, 1 .. n. */
uint32_t copy_run(const uint32_t *src, const uint32_t *dst, uint32_t n);
/* Starts copies of the layer's blocks until limit_bytes is reached (at least one block) or all are
 * started. Stops with ERR_STALE before a block that has another generation than the list says.
 * Else 0, ERR_IO (the device failed) or ERR_CLOSED (the device is lost). *ret_n: blocks whose copy
 * was started. */
int copy_layer(const struct copy_pools *p, uint32_t layer, const struct copy_list *list,
               size_t limit_bytes, struct copy_sum *sum, uint32_t *ret_n, struct err *err);
/* Waits until all copies that copy_layer started are done; call it after an error, too. 0, ERR_IO
 * or ERR_CLOSED. */
int copy_wait(const struct copy_sum *sum, struct err *err);

#endif
