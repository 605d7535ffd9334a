/* family_gemma3.c - Gemma 3 (text): additional norms after attention and MLP, scaled embeddings,
 * and another rotary base in layers with a window. */
#include "engine/family.h"

#include <math.h>

static void quirks(struct model_conf *c)
{
	c->act = KERN_GELU_TANH;
	c->post_norms = 1;
	c->norm_plus_one = c->source == MODEL_HF; /* GGUF files have the one added already */
	c->embed_scale = (float)sqrt((double)c->hidden);
}

/* GGUF has no key for query_pre_attn_scalar. It equals the head size in all published models except
 * the 27B one. That is recognised by the shape of its attention, not by its depth, so that models
 * derived from it with other depths are read correctly. */
static double query_scalar(const struct model_conf *c)
{
	int is_27b = c->hidden == 5376 && c->heads == 32 && c->head_dim == 128;
	return is_27b ? (double)c->hidden / c->heads : c->head_dim;
}

static void read_gguf(struct gguf_reader *r, struct model_conf *c)
{
	quirks(c);
	c->attn_scale = (float)meta_number(r, "attention.scale", 0, 1.0 / sqrt(query_scalar(c)));
}

static void read_hf(struct hf_reader *r, const json_t *o, struct model_conf *c)
{
	quirks(c);
	double scalar = hf_may_number(r, o, "query_pre_attn_scalar", 0, c->head_dim);
	c->attn_scale = (float)(1.0 / sqrt(scalar));
}

const struct family family_gemma3 = {
	.name = {"gemma3", "gemma3_text"},
	.rope = {KERN_ROPE_HALF, KERN_ROPE_HALF},
	.window = FAMILY_WINDOW_BY_PATTERN,
	.window_period = 6,
	.local_rope = 1,
	.bias = {"attention_bias", "attention_bias", NULL},
	.qk_norm = FAMILY_ALWAYS,
	.tied = 1,
	.rope_base = 1000000,
	.names = {{MODEL_FFN_NORM, {[MODEL_HF] = "pre_feedforward_layernorm"}}},
	.read_gguf = read_gguf,
	.read_hf = read_hf,
};
