/* family_ernie4_5.c - ERNIE 4.5, dense and with experts: rotary pairs are adjacent elements in both
 * formats. */
#include "engine/family.h"

const struct family family_ernie4_5 = {
	.name = {"ernie4_5", "ernie4_5"},
	.rope = {KERN_ROPE_INTERLEAVED, KERN_ROPE_INTERLEAVED},
	.bias = {"use_bias", "use_bias", "use_bias"},
	.tied = 1,
	.rope_base = 500000,
};

/* Lower bound of the sum by which the weights of the chosen experts are divided. */
#define NORM_MIN 1e-12

static void read_gguf(struct gguf_reader *r, struct model_conf *c)
{
	meta_experts(r, c, MODEL_SOFTMAX);
	c->experts.norm_min = (float)NORM_MIN;
}

static void read_hf(struct hf_reader *r, const json_t *o, struct model_conf *c)
{
	struct model_experts *x = &c->experts;
	const json_t *last = hf_get(o, "moe_layer_end_index");
	*x = (struct model_experts){.groups = 1, .top_groups = 1, .scale = 1.0f};
	x->normalise = x->correction = 1;
	x->count = hf_need_u32(r, o, "moe_num_experts", 1, KERN_EXPERTS_MAX);
	x->active = hf_need_u32(r, o, "moe_k", 1, x->count);
	x->ffn = hf_need_u32(r, o, "moe_intermediate_size", 1, MODEL_FFN_MAX);
	x->shared_ffn = x->ffn * hf_may_u32(r, o, "moe_num_shared_experts", 0, KERN_EXPERTS_MAX, 0);
	x->norm_min = (float)hf_may_number(r, o, "moe_norm_min", 0, NORM_MIN);
	uint32_t step = hf_may_u32(r, o, "moe_layer_interval", 1, KV_LAYERS_MAX, 1);
	uint32_t from = hf_may_u32(r, o, "moe_layer_start_index", 0, KV_LAYERS_MAX, 0);
	uint32_t to = c->layers - 1;
	if (!json_is_integer(last) || json_integer_value(last) != -1)
		to = hf_may_u32(r, o, "moe_layer_end_index", 0, KV_LAYERS_MAX, to);
	for (uint32_t i = 0; i < c->layers; i++)
		c->layer[i].experts = (i + 1) % step == 0 && i >= from && i <= to;
}

const struct family family_ernie4_5_moe = {
	.name = {"ernie4_5-moe", "ernie4_5_moe"},
	.rope = {KERN_ROPE_INTERLEAVED, KERN_ROPE_INTERLEAVED},
	.bias = {"use_bias", "use_bias", "use_bias"},
	.tied = 1,
	.rope_base = 500000,
	.names = {{MODEL_CORRECTION, {[MODEL_HF] = "mlp.moe_statics"}}},
	.read_gguf = read_gguf,
	.read_hf = read_hf,
};
