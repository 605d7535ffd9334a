/* mla.h - multi-head latent attention (DeepSeek-V2, arXiv:2405.04434, section 2.1; the absorbed
 * form of its appendix). */
#ifndef ENGINE_MLA_H
#define ENGINE_MLA_H

#include "engine/record.h"
#include "engine/weights.h"

/* One layer's matrices. Queries are computed by q_a, a norm, and q_b; or by the layer's q if the
 * model has no rank for them. */
struct mla {
	struct kern_weight *q_a, *q_b, *kv_a;
	kern_ptr q_a_norm, kv_a_norm;
	uint32_t heads; /* of this rank */
	/* the key part of kv_b transposed, (heads, kv_rank, nope); its value part, (heads, v,
	 * kv_rank) */
	struct kern_weight *key, *value;
};

/* NULL for a model without MLA, and if the loader already has an error. */
struct mla *mla_load(struct loader *l, uint32_t layer);
void mla_free(struct engine *e, struct mla **m);
/* The type in which the transposed keys of kv_b are stored: float32 if its FP8 scales cannot be
 * transposed, else kv_b's. */
enum kern_dtype mla_key_type(const struct model_conf *c, const struct model_tensor *kv_b);

/* Elements of a token in the cache: latent and rotated part. */
static inline uint32_t mla_width(const struct model_conf *c)
{
	return c->mla.kv_rank + c->mla.rope;
}

/* mla_in: from h of all rows to queries (in qkv) and the KV pool. mla_attention: from queries to
 * att. */
void mla_in(struct recorder *r, uint32_t layer);
void mla_attention(struct recorder *r, uint32_t layer, struct kern_tensor qkv);

#endif
