/* copy.h - copies blocks of one layer from one pool into another, neighbours in one go. */
#ifndef MESSAGER_COPY_H
#define MESSAGER_COPY_H

#include "kv/layout.h"

#include <stddef.h>
#include <stdint.h>

struct copy_pools {
	const struct kv_layout *layout;   /* of both */
	const unsigned char *from;
	unsigned char *to;
	uint32_t from_blocks, to_blocks;
};

/* How many of the leading blocks are neighbours on both sides, 1 .. n. */
uint32_t copy_run(const uint32_t *src, const uint32_t *dst, uint32_t n);
/* Copies blocks of the layer until limit_bytes is reached (at least one block) or all n are done; the numbers are below the pools' counts.
 * Returns the blocks copied; *ret_runs is increased by the number of separate copies. */
uint32_t copy_layer(const struct copy_pools *p, uint32_t layer, const uint32_t *src, const uint32_t *dst, uint32_t n, size_t limit_bytes, uint32_t *ret_runs);

#endif
