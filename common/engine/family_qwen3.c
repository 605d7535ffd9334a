/* family_qwen3.c - Qwen 3, dense and with experts: q and k are normed per head. */
#include "engine/family.h"

const struct family family_qwen3 = {
	.name = {"qwen3", "qwen3"},
	.rope = {KERN_ROPE_HALF, KERN_ROPE_HALF},
	.window = FAMILY_WINDOW_BY_FLAG,
	.bias = {"attention_bias", "attention_bias", NULL},
	.qk_norm = FAMILY_ALWAYS,
};

static void read_gguf(struct gguf_reader *r, struct model_conf *c)
{
	meta_experts(r, c, MODEL_SOFTMAX);
}

static int lists_layer(const json_t *list, uint32_t layer)
{
	for (size_t i = 0; i < json_array_size(list); i++) {
		const json_t *e = json_array_get(list, i);
		if (json_is_integer(e) && json_integer_value(e) == (json_int_t)layer)
			return 1;
	}
	return 0;
}

static void read_hf(struct hf_reader *r, const json_t *o, struct model_conf *c)
{
	struct model_experts *x = &c->experts;
	const json_t *dense = hf_get(o, "mlp_only_layers");
	const char *count = hf_get(o, "num_local_experts") ? "num_local_experts" : "num_experts";
	*x = (struct model_experts){.groups = 1, .top_groups = 1, .scale = 1.0f};
	x->count = hf_need_u32(r, o, count, 1, KERN_EXPERTS_MAX);
	x->active = hf_need_u32(r, o, "num_experts_per_tok", 1, x->count);
	x->ffn = hf_need_u32(r, o, "moe_intermediate_size", 1, MODEL_FFN_MAX);
	x->normalise = hf_may_bool(r, o, "norm_topk_prob", 0);
	uint32_t step = hf_may_u32(r, o, "decoder_sparse_step", 1, KV_LAYERS_MAX, 1);
	if (dense && !json_is_array(dense))
		hf_fail(r, "mlp_only_layers", dense, "a list of layers");
	for (uint32_t i = 0; i < c->layers; i++)
		c->layer[i].experts = (i + 1) % step == 0 && !lists_layer(dense, i);
}

const struct family family_qwen3_moe = {
	.name = {"qwen3moe", "qwen3_moe"},
	.rope = {KERN_ROPE_HALF, KERN_ROPE_HALF},
	.window = FAMILY_WINDOW_BY_FLAG,
	.bias = {"attention_bias", "attention_bias", NULL},
	.qk_norm = FAMILY_ALWAYS,
	.read_gguf = read_gguf,
	.read_hf = read_hf,
};
