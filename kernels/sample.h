/* sample.h - KERN_OP_SAMPLE of one row on the host, for backends whose memory it can address. */
#ifndef KERNELS_SAMPLE_H
#define KERNELS_SAMPLE_H

#include "kernels/kernels.h"

/* Scratch for a vocabulary; one thread at a time. It lives in memory of the caller's, 64-byte
 * aligned. */
struct kern_sampler;

size_t kern_sampler_bytes(uint32_t vocab);
struct kern_sampler *kern_sampler_init(void *mem, uint32_t vocab);

/* What d, one of the draws of b, asks of its row of logits (vocab). carries may be NULL if d
 * names none. */
void kern_sample(struct kern_sampler *s, const float *logits, const struct kern_batch *b,
                 const struct kern_draw *d, struct kern_carry *carries, struct kern_drawn *ret);

/* The id that a batch's token is. */
static inline uint32_t kern_token(uint32_t token, const struct kern_carry *carries)
{
	return token & KERN_OF_CARRY ? carries[token - KERN_OF_CARRY].id[0] : token;
}

#endif
