/* family_granite.c - Granite 3 (IBM): llama with factors for the embeddings, for attention (in
 * place of 1 / sqrt(head size)) and for what layers add to the residual stream, and a divisor of
 * the logits. */
#include "engine/family.h"

static void read_gguf(struct gguf_reader *r, struct model_conf *c)
{
	c->embed_scale = (float)meta_number(r, "embedding_scale", 0, 1);
	c->residual_scale = (float)meta_number(r, "residual_scale", 0, 1);
	c->logit_scale = (float)(1.0 / meta_number(r, "logit_scale", 0, 1));
}

static void read_hf(struct hf_reader *r, const json_t *o, struct model_conf *c)
{
	c->embed_scale = (float)hf_may_number(r, o, "embedding_multiplier", 0, 1);
	c->attn_scale = (float)hf_may_number(r, o, "attention_multiplier", 0, 1);
	c->residual_scale = (float)hf_may_number(r, o, "residual_multiplier", 0, 1);
	c->logit_scale = (float)(1.0 / hf_may_number(r, o, "logits_scaling", 0, 1));
}

const struct family family_granite = {
	.name = {"granite", "granite"},
	.rope = {KERN_ROPE_INTERLEAVED, KERN_ROPE_HALF},
	.bias = {"attention_bias", "attention_bias", "mlp_bias"},
	.read_gguf = read_gguf,
	.read_hf = read_hf,
};
