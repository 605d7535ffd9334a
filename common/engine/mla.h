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
	uint32_t heads;
	/* (heads): the key part of kv_b transposed, (kv_rank, nope); its value part, (v, kv_rank) */
	struct kern_weight **key, **value;
};

/* NULL for a model without MLA, and if the loader already has an error. */
struct mla *mla_load(struct loader *l, uint32_t layer);
void mla_free(struct engine *e, struct mla **m);
/* An upper bound of the bytes that kv_b takes on the device beyond its own: keys are stored as
 * float32 if their FP8 scales cannot be transposed. */
uint64_t mla_added_bytes(const struct model_conf *c, const struct model_tensor *kv_b);

/* Elements of a token in the cache: latent and rotated part. */
static inline uint32_t mla_width(const struct model_conf *c)
{
	return c->mla.kv_rank + c->mla.rope;
}
/* How many heads' queries in latent space are held at a time; bounds the scratch of long
 * prompts. */
uint32_t mla_heads_at_once(const struct model_conf *c, uint32_t max_rows);

/* mla_in: from h of all rows to queries (in qkv) and the KV pool. mla_attention: from queries to
 * att. */
void mla_in(struct recorder *r, uint32_t layer);
void mla_attention(struct recorder *r, uint32_t layer, struct kern_tensor qkv);

#endif
