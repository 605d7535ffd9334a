/* model_hf_experts.c - what config.json says of a mixture of experts and of latent attention. Three families of words say the same things;
 * keys that are absent mean what transformers takes for them. Errors as in model_hf.h. */
#include "engine/model_hf.h"

#include <string.h>

#define EXPERTS_MAX 1024u
#define FFN_MAX (1u << 20)

int hf_read_mla(struct hf_reader *r, const json_t *o, struct model_conf *c)
{
	struct model_mla *m = &c->mla;
	if (!c->family->mla)
		return r->rc;
	*m = (struct model_mla){
		.kv_rank = hf_need_u32(r, o, "kv_lora_rank", 1, 1u << 16),
		.q_rank = hf_may_u32(r, o, "q_lora_rank", 1, 1u << 16, 0),
		.nope = hf_need_u32(r, o, "qk_nope_head_dim", 1, MODEL_HEAD_DIM_MAX),
		.rope = hf_need_u32(r, o, "qk_rope_head_dim", 2, MODEL_HEAD_DIM_MAX),
		.v = hf_need_u32(r, o, "v_head_dim", 1, MODEL_HEAD_DIM_MAX),
		.norm_eps = 1e-6f,          /* whatever rms_norm_eps says */
	};
	if (hf_may_bool(r, o, "attention_bias", 0))
		hf_fail(r, "attention_bias", hf_get(o, "attention_bias"), "false");
	if (!hf_may_bool(r, o, "rope_interleave", 1))
		c->rope_style = KERN_ROPE_HALF;
	c->head_dim = m->nope + m->rope;   /* the key head_dim is the rotated part here */
	c->kv_heads = c->heads;
	return r->rc;
}

static int lists_layer(const json_t *list, uint32_t layer)
{
	for (size_t i = 0; i < json_array_size(list); i++)
		if (json_is_integer(json_array_get(list, i)) && json_integer_value(json_array_get(list, i)) == (json_int_t)layer)
			return 1;
	return 0;
}

static void read_qwen3(struct hf_reader *r, const json_t *o, struct model_conf *c)
{
	struct model_experts *x = &c->experts;
	const json_t *dense = hf_get(o, "mlp_only_layers");
	x->count = hf_need_u32(r, o, hf_get(o, "num_local_experts") ? "num_local_experts" : "num_experts", 1, EXPERTS_MAX);
	x->active = hf_need_u32(r, o, "num_experts_per_tok", 1, x->count);
	x->ffn = hf_need_u32(r, o, "moe_intermediate_size", 1, FFN_MAX);
	x->normalise = hf_may_bool(r, o, "norm_topk_prob", 0);
	uint32_t step = hf_may_u32(r, o, "decoder_sparse_step", 1, KV_LAYERS_MAX, 1);
	if (!r->rc && dense && !json_is_array(dense))
		hf_fail(r, "mlp_only_layers", dense, "a list of layers");
	for (uint32_t i = 0; i < c->layers && !r->rc; i++)
		c->layer[i].experts = (i + 1) % step == 0 && !lists_layer(dense, i);
}

static void read_ernie(struct hf_reader *r, const json_t *o, struct model_conf *c)
{
	struct model_experts *x = &c->experts;
	const json_t *last = hf_get(o, "moe_layer_end_index");
	x->count = hf_need_u32(r, o, "moe_num_experts", 1, EXPERTS_MAX);
	x->active = hf_need_u32(r, o, "moe_k", 1, x->count);
	x->ffn = hf_need_u32(r, o, "moe_intermediate_size", 1, FFN_MAX);
	x->shared_ffn = x->ffn * hf_may_u32(r, o, "moe_num_shared_experts", 0, EXPERTS_MAX, 0);
	x->normalise = x->correction = 1;
	x->norm_min = (float)hf_may_number(r, o, "moe_norm_min", 0, 1e-12);
	uint32_t step = hf_may_u32(r, o, "moe_layer_interval", 1, KV_LAYERS_MAX, 1), from = hf_may_u32(r, o, "moe_layer_start_index", 0, KV_LAYERS_MAX, 0);
	uint32_t to = json_is_integer(last) && json_integer_value(last) == -1 ? c->layers - 1 :
	              hf_may_u32(r, o, "moe_layer_end_index", 0, KV_LAYERS_MAX, c->layers - 1);
	for (uint32_t i = 0; i < c->layers && !r->rc; i++)
		c->layer[i].experts = (i + 1) % step == 0 && i >= from && i <= to;
}

static void expect_word(struct hf_reader *r, const json_t *o, const char *key, const char *word)
{
	const json_t *v = hf_get(o, key);
	if (!r->rc && v && (!json_is_string(v) || strcmp(json_string_value(v), word) != 0))
		hf_fail(r, key, v, "\"%s\"", word);
}

static void read_deepseek(struct hf_reader *r, const json_t *o, struct model_conf *c)
{
	struct model_experts *x = &c->experts;
	x->count = hf_need_u32(r, o, "n_routed_experts", 1, EXPERTS_MAX);
	x->active = hf_need_u32(r, o, "num_experts_per_tok", 1, x->count);
	x->ffn = hf_need_u32(r, o, "moe_intermediate_size", 1, FFN_MAX);
	x->shared_ffn = x->ffn * hf_may_u32(r, o, "n_shared_experts", 0, EXPERTS_MAX, 1);
	x->groups = hf_may_u32(r, o, "n_group", 1, x->count, 1);
	x->top_groups = hf_may_u32(r, o, "topk_group", 1, x->groups, 1);
	x->scoring = MODEL_SIGMOID;
	x->correction = 1;
	x->normalise = hf_may_bool(r, o, "norm_topk_prob", 1);
	x->norm_eps = 1e-20f;
	x->scale = (float)hf_may_number(r, o, "routed_scaling_factor", 0, 1.0);
	expect_word(r, o, "scoring_func", "sigmoid");
	expect_word(r, o, "topk_method", "noaux_tc");
	hf_may_u32(r, o, "moe_layer_freq", 1, 1, 1);
	uint32_t dense = hf_may_u32(r, o, "first_k_dense_replace", 0, KV_LAYERS_MAX, 1);
	for (uint32_t i = 0; i < c->layers; i++)
		c->layer[i].experts = i >= dense;
}

int hf_read_experts(struct hf_reader *r, const json_t *o, struct model_conf *c)
{
	static void (*const readers[])(struct hf_reader *, const json_t *, struct model_conf *) = {
		[FAMILY_EXPERTS_QWEN3] = read_qwen3, [FAMILY_EXPERTS_ERNIE] = read_ernie, [FAMILY_EXPERTS_DEEPSEEK] = read_deepseek,
	};
	if (r->rc || c->family->experts == FAMILY_DENSE)
		return r->rc;
	c->experts = (struct model_experts){.groups = 1, .top_groups = 1, .scale = 1.0f};
	readers[c->family->experts](r, o, c);
	return r->rc;
}
