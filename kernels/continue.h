/* continue.h - KERN_OP_ADVANCE on the host, for backends whose memory the host can address; and
 * what it has in common with a device's. */
#ifndef KERNELS_CONTINUE_H
#define KERNELS_CONTINUE_H

#include "kernels/ops.h"

/* How many of the earlier span's rows, after the first, have the token that was drawn before. */
KERN_INLINE uint32_t kern_right(const struct kern_kept *kept, uint32_t rows)
{
	uint32_t right = 0;
	while (right + 1 < rows && kept[right].id == kept[right + 1].token)
		right++;
	return right;
}

/* How many tokens before `place` equal those before the end of a history of n tokens. */
KERN_INLINE uint32_t kern_alike(const uint32_t *token, uint32_t n, uint32_t place)
{
	uint32_t k = 0;
	while (k < KERN_MATCH_LONG && k < place && token[place - 1 - k] == token[n - 1 - k])
		k++;
	return k;
}

/* Completes the batch's spans that continue others, before anything else reads it. */
void kern_continue(const struct kern_mem *batch, const struct kern_op *op,
                   const struct kern_limits *l);

#endif
