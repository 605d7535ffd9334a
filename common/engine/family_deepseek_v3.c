/* family_deepseek_v3.c - DeepSeek-V3 and R1: one latent for the keys and values of all heads;
 * experts in groups, chosen by corrected sigmoid scores. */
#include "engine/family.h"
#include "kernels/own_math.h"

#include <math.h>

/* For the two inner norms, whatever the epsilon of the model's other norms. */
#define INNER_NORM_EPS 1e-6f

/* --- GGUF ---------------------------------------------------------------- */

/* YaRN's factor is squared into the attention scale instead of multiplying cos and sin; GGUF files
 * give it as a multiplier of ln(factor). */
static void read_scale(struct gguf_reader *r, struct model_conf *c)
{
	static const char key[] = "rope.scaling.yarn_log_multiplier";
	double more = meta_number(r, key, -1, 0);
	if (!(more >= 0 && more <= 10))
		meta_fail(r, key, more, "0 to 10");
	double m = 1.0 + more * own_log(meta_number(r, "rope.scaling.factor", 0, 1));
	c->attn_scale = (float)((double)c->attn_scale * m * m);
	c->rope[0].scale = 1.0f;
}

static void read_gguf(struct gguf_reader *r, struct model_conf *c)
{
	uint32_t value = meta_u32(r, "attention.value_length", 1, MODEL_LATENT_MAX, c->head_dim);
	c->mla = (struct model_mla){
		.kv_rank = meta_u32(r, "attention.kv_lora_rank", 1, MODEL_LATENT_MAX, 0),
		.q_rank = meta_u32(r, "attention.q_lora_rank", 0, 1u << 16, 0),
		.rope = c->rope_dims,
		.nope = c->head_dim - c->rope_dims,
		.v = meta_u32(r, "attention.value_length_mla", 1, MODEL_HEAD_DIM_MAX, value),
		.norm_eps = INNER_NORM_EPS,
	};
	c->kv_heads = c->heads; /* files may have 1 here, the heads of the cache */
	meta_experts(r, c, MODEL_SIGMOID);
	c->experts.norm_eps = DEEPSEEK_NORM_EPS;
	read_scale(r, c);
}

/* --- config.json --------------------------------------------------------- */

void hf_deepseek_experts(struct hf_reader *r, const json_t *o, struct model_conf *c)
{
	struct model_experts *x = &c->experts;
	*x = (struct model_experts){.scoring = MODEL_SIGMOID, .correction = 1};
	x->norm_eps = DEEPSEEK_NORM_EPS;
	x->count = hf_need_u32(r, o, "n_routed_experts", 1, KERN_EXPERTS_MAX);
	x->active = hf_need_u32(r, o, "num_experts_per_tok", 1, x->count);
	x->ffn = hf_need_u32(r, o, "moe_intermediate_size", 1, MODEL_FFN_MAX);
	x->shared_ffn = x->ffn * hf_may_u32(r, o, "n_shared_experts", 0, KERN_EXPERTS_MAX, 1);
	x->groups = hf_may_u32(r, o, "n_group", 1, x->count, 1);
	x->top_groups = hf_may_u32(r, o, "topk_group", 1, x->groups, 1);
	x->normalise = hf_may_bool(r, o, "norm_topk_prob", 1);
	x->scale = (float)hf_may_number(r, o, "routed_scaling_factor", 0, 1.0);
	hf_expect(r, o, "scoring_func", "sigmoid");
	hf_expect(r, o, "topk_method", "noaux_tc");
	hf_may_u32(r, o, "moe_layer_freq", 1, 1, 1);
	uint32_t dense = hf_may_u32(r, o, "first_k_dense_replace", 0, KV_LAYERS_MAX, 1);
	for (uint32_t i = 0; i < c->layers; i++)
		c->layer[i].experts = i >= dense;
}

static void read_hf(struct hf_reader *r, const json_t *o, struct model_conf *c)
{
	const json_t *rope = hf_rope_parameters(r, o);
	c->mla = (struct model_mla){
		.kv_rank = hf_need_u32(r, o, "kv_lora_rank", 1, 1u << 16),
		.q_rank = hf_may_u32(r, o, "q_lora_rank", 1, 1u << 16, 0),
		.nope = c->head_dim - c->rope_dims,
		.rope = c->rope_dims,
		.v = hf_need_u32(r, o, "v_head_dim", 1, MODEL_HEAD_DIM_MAX),
		.norm_eps = INNER_NORM_EPS,
	};
	c->kv_heads = c->heads;
	if (hf_may_bool(r, o, "attention_bias", 0))
		hf_fail(r, "attention_bias", hf_get(o, "attention_bias"), "false");
	if (!hf_may_bool(r, o, "rope_interleave", 1))
		c->rope_style = KERN_ROPE_HALF;
	double all = hf_may_number(r, rope, "mscale_all_dim", -1, 0);
	if (all > 0) {
		double m = model_rope_mscale(hf_may_number(r, rope, "factor", 0, 1), all);
		c->attn_scale *= (float)(m * m);
	}
	hf_deepseek_experts(r, o, c);
}

const struct family family_deepseek_v3 = {
	.name = {"deepseek2", "deepseek_v3"},
	.rope = {KERN_ROPE_INTERLEAVED, KERN_ROPE_INTERLEAVED},
	.head_dim_keys = {"qk_nope_head_dim", "qk_rope_head_dim"},
	.rope_dims_key = "qk_rope_head_dim",
	.read_gguf = read_gguf,
	.read_hf = read_hf,
};
