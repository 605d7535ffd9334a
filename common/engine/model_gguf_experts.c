/* model_gguf_experts.c - what GGUF's metadata says of a mixture of experts and of latent attention. Which layers have experts shows by their
 * tensors. Keys that are absent mean what the families' files take for granted. Errors are returned and name file and key. */
#include "engine/model.h"
#include "format/gguf.h"
#include "kernels/own_math.h"

#include <math.h>
#include <stdio.h>

struct keys {
	struct gguf *g;
	const char *arch;
	struct err *err;
	int rc;   /* the first error; later calls give what an absent key does */
};

static struct keys keys_of(struct gguf *g, const struct model_conf *c, struct err *err)
{
	return (struct keys){.g = g, .arch = c->family->name[MODEL_GGUF], .err = err};
}

static uint32_t number(struct keys *k, const char *key, uint32_t min, uint32_t max, uint32_t absent)
{
	char full[128];
	uint32_t v = absent;
	snprintf(full, sizeof full, "%s.%s", k->arch, key);
	int rc = k->rc ? 0 : gguf_get_u32(k->g, full, &v);
	if (rc == ERR_INVALID)
		k->rc = err_set(k->err, ERR_CORRUPT, "%.160s: metadata %s: found another type or range, expected %u..%u", gguf_path(k->g), full, min, max);
	else if (!k->rc && rc == ERR_NOTFOUND && (v < min || v > max))
		k->rc = err_set(k->err, ERR_NOTFOUND, "%.160s: metadata %s: found none, expected %u..%u", gguf_path(k->g), full, min, max);
	else if (!k->rc && (v < min || v > max))
		k->rc = err_set(k->err, ERR_UNSUPPORTED, "%.160s: metadata %s: found %u, expected %u..%u", gguf_path(k->g), full, v, min, max);
	return k->rc ? absent : v;
}

static float real(struct keys *k, const char *key, float absent)
{
	char full[128];
	float v = absent;
	snprintf(full, sizeof full, "%s.%s", k->arch, key);
	if (!k->rc && gguf_get_f32(k->g, full, &v) == ERR_INVALID)
		k->rc = err_set(k->err, ERR_CORRUPT, "%.160s: metadata %s: found another type, expected a float", gguf_path(k->g), full);
	if (!k->rc && !(v > 0 && v <= 1e6f))
		k->rc = err_set(k->err, ERR_UNSUPPORTED, "%.160s: metadata %s: found %g, expected more than 0 and at most 1e6", gguf_path(k->g), full, (double)v);
	return k->rc ? absent : v;
}

static int flag(struct keys *k, const char *key, int absent)
{
	char full[128];
	int v = absent;
	snprintf(full, sizeof full, "%s.%s", k->arch, key);
	if (!k->rc && gguf_get_bool(k->g, full, &v) == ERR_INVALID)
		k->rc = err_set(k->err, ERR_CORRUPT, "%.160s: metadata %s: found another type, expected a boolean", gguf_path(k->g), full);
	return k->rc ? absent : v;
}

/* --- latent attention --------------------------------------------------------------------------------------------------- */

int model_gguf_mla(struct gguf *g, struct model_conf *c, struct err *err)
{
	struct keys k = keys_of(g, c, err);
	if (!c->family->mla)
		return 0;
	c->mla = (struct model_mla){
		.kv_rank = number(&k, "attention.kv_lora_rank", 1, MODEL_LATENT_MAX, 0),
		.q_rank = number(&k, "attention.q_lora_rank", 1, 1u << 16, 0),
		.rope = c->rope_dims,
		.nope = c->head_dim - c->rope_dims,
		.v = number(&k, "attention.value_length_mla", 1, MODEL_HEAD_DIM_MAX, number(&k, "attention.value_length", 1, MODEL_LATENT_MAX, c->head_dim)),
		.norm_eps = 1e-6f,
	};
	c->kv_heads = c->heads;             /* files may say 1, of the cache */
	return k.rc;
}

/* With YaRN the scale takes the square of a factor that these files have as a multiplier of ln(factor), and cos and sin stay as they are. */
int model_gguf_mla_scale(struct gguf *g, struct model_conf *c, struct err *err)
{
	struct keys k = keys_of(g, c, err);
	char key[128];
	float more = 0;
	if (!c->family->mla)
		return 0;
	snprintf(key, sizeof key, "%s.rope.scaling.yarn_log_multiplier", k.arch);
	if (gguf_get_f32(g, key, &more) == 0) {
		float factor = real(&k, "rope.scaling.factor", 1.0f);
		if (!k.rc && !(more >= 0 && more <= 10))
			return err_set(err, ERR_UNSUPPORTED, "%.160s: metadata %s: found %g, expected 0 to 10", gguf_path(g), key, (double)more);
		double m = 1.0 + (double)more * own_log((double)factor);
		c->attn_scale = (float)((double)c->attn_scale * m * m);
	}
	c->rope[0].scale = 1.0f;
	return k.rc;
}

/* --- experts ------------------------------------------------------------------------------------------------------------ */

int model_gguf_experts(struct gguf *g, const struct model_source *src, struct model_conf *c, struct err *err)
{
	enum { SOFTMAX = 1, SIGMOID = 2 };
	struct keys k = keys_of(g, c, err);
	enum family_experts how = c->family->experts;
	struct model_experts *x = &c->experts;
	char name[64], correction[64] = "";
	if (how == FAMILY_DENSE)
		return 0;
	c->layers -= number(&k, "nextn_predict_layers", 0, c->layers - 1, 0);   /* the last ones guess further tokens; not used */
	*x = (struct model_experts){
		.count = number(&k, "expert_count", 1, KERN_EXPERTS_MAX, 0),
		.active = number(&k, "expert_used_count", 1, KERN_EXPERTS_USED_MAX, 0),
		.ffn = number(&k, "expert_feed_forward_length", 1, 1u << 20, 0),
		.groups = number(&k, "expert_group_count", 1, KERN_EXPERTS_MAX, 1),
		.top_groups = number(&k, "expert_group_used_count", 1, KERN_EXPERTS_MAX, 1),
		.scoring = number(&k, "expert_gating_func", SOFTMAX, SIGMOID, how == FAMILY_EXPERTS_DEEPSEEK ? SIGMOID : SOFTMAX) == SIGMOID ? MODEL_SIGMOID : MODEL_SOFTMAX,
		.normalise = flag(&k, "expert_weights_norm", 1),
		.scale = real(&k, "expert_weights_scale", 1.0f),
		.norm_min = how == FAMILY_EXPERTS_ERNIE ? 1e-12f : 0.0f,
		.norm_eps = how == FAMILY_EXPERTS_DEEPSEEK ? 1e-20f : 0.0f,
	};
	uint32_t shared = number(&k, "expert_shared_count", 0, KERN_EXPERTS_MAX, 0);
	if (!k.rc && (!x->count || !x->active || !x->ffn))
		k.rc = err_set(err, ERR_NOTFOUND, "%.160s: metadata %s.%s: found none, expected 1 or more", gguf_path(g), k.arch,
		               !x->count ? "expert_count" : !x->active ? "expert_used_count" : "expert_feed_forward_length");
	x->shared_ffn = number(&k, "expert_shared_feed_forward_length", 0, 1u << 20, k.rc || x->ffn > (1u << 20) / (shared + 1) ? 0 : x->ffn * shared);
	for (uint32_t i = 0; i < c->layers && !k.rc; i++) {
		snprintf(name, sizeof name, "blk.%u.ffn_gate_exps.weight", i);
		c->layer[i].experts = (uint8_t)model_has_tensor(src, name);
		if (c->layer[i].experts && !*correction)
			snprintf(correction, sizeof correction, "blk.%u.exp_probs_b.bias", i);
	}
	x->correction = *correction && model_has_tensor(src, correction);
	return k.rc;
}
