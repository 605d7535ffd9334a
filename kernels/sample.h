/* sample.h - KERN_OP_SAMPLE for one row on the host, for backends whose memory the host can
 * address. */
#ifndef KERNELS_SAMPLE_H
#define KERNELS_SAMPLE_H

#include "kernels/ops.h"

/* Scratch for a vocabulary, in the caller's memory (64-byte aligned); one thread at a time. */
struct kern_sampler;

size_t kern_sampler_bytes(uint32_t vocab);
struct kern_sampler *kern_sampler_init(void *mem, uint32_t vocab);

/* Answers the draw of tail row `row` of b, from its row of logits (vocab): op is the operation. */
void kern_sample(struct kern_sampler *s, const float *logits, const struct kern_batch *b,
                 uint32_t row, const struct kern_op *op);

#endif
