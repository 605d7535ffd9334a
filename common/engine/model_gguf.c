/* model_gguf.c - reads a GGUF file's metadata into a model description. Missing optional keys get
 * the defaults of the format. Errors are returned and name file and key. */
#include "engine/family.h"
#include "text/ends_gguf.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- values -------------------------------------------------------------- */

static const char *key_of(const struct gguf_reader *r, const char *key, char out[128])
{
	snprintf(out, 128, "%s.%s", r->arch, key);
	return out;
}

void meta_fail(struct gguf_reader *r, const char *key, double found, const char *expected)
{
	char full[128];
	if (!r->rc)
		r->rc = err_set(r->err, ERR_UNSUPPORTED, "%.160s: metadata %s: found %.10g, expected %s",
		                gguf_path(r->g), key_of(r, key, full), found, expected);
}

/* Reports a key that is missing, has another type, or whose value is out of range. */
static void check(struct gguf_reader *r, const char *key, int rc, int within, double found,
                  const char *expected)
{
	char full[128];
	if (!r->rc && (rc == ERR_INVALID || (rc == ERR_NOTFOUND && !within)))
		r->rc = err_set(r->err, rc == ERR_INVALID ? ERR_CORRUPT : rc,
		                "%.160s: metadata %s: found %s, expected %s", gguf_path(r->g),
		                key_of(r, key, full), rc == ERR_INVALID ? "another type or range" : "none",
		                expected);
	else if (!within)
		meta_fail(r, key, found, expected);
}

int meta_has(const struct gguf_reader *r, const char *key)
{
	char full[128];
	uint32_t v;
	return gguf_get_u32(r->g, key_of(r, key, full), &v) != ERR_NOTFOUND;
}

uint32_t meta_u32(struct gguf_reader *r, const char *key, uint32_t min, uint32_t max,
                  uint32_t absent)
{
	char full[128], expected[60];
	uint32_t v = absent;
	int rc = gguf_get_u32(r->g, key_of(r, key, full), &v), within = v >= min && v <= max;
	snprintf(expected, sizeof expected, "an integer, %u..%u", min, max);
	check(r, key, rc, within, v, expected);
	return within ? v : min;
}

double meta_number(struct gguf_reader *r, const char *key, double above, double absent)
{
	char full[128], expected[40];
	float v = (float)absent;
	int rc = gguf_get_f32(r->g, key_of(r, key, full), &v);
	int within = (double)v > above && (double)v <= 1e30;
	snprintf(expected, sizeof expected, "a number more than %g", above);
	check(r, key, rc, within, (double)v, expected);
	return within ? (double)v : above + 1;
}

int meta_bool(struct gguf_reader *r, const char *key, int absent)
{
	char full[128];
	int v = absent;
	check(r, key, gguf_get_bool(r->g, key_of(r, key, full), &v), 1, v, "a boolean");
	return v;
}

/* --- sizes --------------------------------------------------------------- */

static int read_sizes(struct gguf_reader *r, struct model_conf *c)
{
	/* if this key exists, key_length is that of the cache */
	static const char mla[] = "attention.key_length_mla";
	static const char eps[] = "attention.layer_norm_rms_epsilon";
	const char *key_length = meta_has(r, mla) ? mla : "attention.key_length";
	c->layers = meta_u32(r, "block_count", 1, KV_LAYERS_MAX, 0);
	c->hidden = meta_u32(r, "embedding_length", 1, MODEL_HIDDEN_MAX, 0);
	c->ffn = meta_u32(r, "feed_forward_length", 1, MODEL_FFN_MAX, 0);
	c->heads = meta_u32(r, "attention.head_count", 1, MODEL_HEADS_MAX, 0);
	c->kv_heads = meta_u32(r, "attention.head_count_kv", 1, c->heads, c->heads);
	c->context = meta_u32(r, "context_length", 1, MODEL_CONTEXT_MAX, 0);
	c->head_dim = meta_u32(r, key_length, 2, MODEL_HEAD_DIM_MAX, c->hidden / c->heads);
	c->rope_dims = meta_u32(r, "rope.dimension_count", 2, c->head_dim, c->head_dim);
	c->norm_eps = (float)meta_number(r, eps, 0, 0);
	if (!(c->norm_eps < 1))
		meta_fail(r, eps, (double)c->norm_eps, "more than 0 and less than 1");
	return r->rc;
}

/* Refuses models with features that this engine does not support: their results would be wrong. */
static int refuse_others(struct gguf_reader *r, const struct model_conf *c)
{
	uint32_t value = meta_u32(r, "attention.value_length", 0, UINT32_MAX, c->head_dim);
	uint32_t experts = meta_u32(r, "expert_count", 0, UINT32_MAX, 0);
	double softcap = meta_number(r, "final_logit_softcapping", -1, 0);
	if (value != c->head_dim && !c->mla.kv_rank)
		meta_fail(r, "attention.value_length", value, "as the key's");
	if (experts && !c->experts.count)
		meta_fail(r, "expert_count", experts, "none (a dense model)");
	if (softcap > 0)
		meta_fail(r, "final_logit_softcapping", softcap, "none");
	return r->rc;
}

/* --- windows ------------------------------------------------------------- */

/* Finds the layers with a window: by a list of flags, or by a period whose last layer has full
 * attention; period 0: all layers. */
static int read_pattern(struct gguf_reader *r, struct model_conf *c, uint8_t *slides)
{
	static const char key[] = "attention.sliding_window_pattern";
	char full[128];
	enum gguf_type type;
	size_t count;
	const void *data;
	if (gguf_get_array(r->g, key_of(r, key, full), &type, &count, &data) == 0) {
		if (type != GGUF_BOOL || count != c->layers)
			meta_fail(r, key, (double)count, "a list of one flag for each layer");
		else
			memcpy(slides, data, count);
		return r->rc;
	}
	uint32_t period = meta_u32(r, key, 0, UINT32_MAX, c->family->window_period);
	for (uint32_t i = 0; i < c->layers; i++)
		slides[i] = !period || (i + 1) % period != 0;
	return r->rc;
}

static int read_windows(struct gguf_reader *r, struct model_conf *c)
{
	static const char key[] = "attention.sliding_window";
	uint8_t slides[KV_LAYERS_MAX];
	uint32_t window = meta_u32(r, key, 0, UINT32_MAX, 0);
	if (!window && c->family->window == FAMILY_WINDOW_BY_PATTERN)
		meta_fail(r, key, window, "1 or more");
	if (window > 1u << 24)
		meta_fail(r, key, window, "at most 16777216");
	if (r->rc || read_pattern(r, c, slides))
		return r->rc;
	for (uint32_t i = 0; i < c->layers && window; i++)
		if (slides[i])
			c->layer[i] = (struct model_layer){.window = window,
			                                   .rope = c->family->local_rope != 0};
	return 0;
}

/* --- rotation ------------------------------------------------------------ */

/* Llama 3.1 files store their scaling as divisors of the frequencies; files with LongRoPE store two
 * lists of divisors, and the scale of cos and sin. */
static int read_divisors(struct gguf_reader *r, struct model_conf *c)
{
	static const char original[] = "rope.scaling.original_context_length",
					  *name = "rope_freqs.weight";
	if (model_has_tensor(r->src, "rope_factors_long.weight")) {
		double length = meta_u32(r, original, 2, MODEL_CONTEXT_MAX, c->context);
		double scale = model_rope_longrope_scale(c->context / length, length);
		name = model_rope_is_long(c, length) ? "rope_factors_long.weight"
		                                     : "rope_factors_short.weight";
		c->rope[0].scale = (float)meta_number(r, "rope.scaling.attn_factor", 0, scale);
	}
	const struct gguf_tensor *t = gguf_tensor_find(r->g, name);
	if (!t || r->rc)
		return r->rc;
	if (t->ggml_type != 0 || t->bytes != c->rope_dims / 2 * sizeof(float))
		return err_set(r->err, ERR_CORRUPT,
		               "%.160s: tensor %s: found %zu bytes of %s, expected %u of F32",
		               gguf_path(r->g), name, t->bytes, gguf_ggml_type_name(t->ggml_type),
		               c->rope_dims / 2);
	const float *f = t->data;
	for (uint32_t i = 0; i < c->rope_dims / 2; i++)
		c->rope[0].inv_freq[i] = (float)((double)c->rope[0].inv_freq[i] / (double)f[i]);
	return 0;
}

static int read_yarn(struct gguf_reader *r, struct model_conf *c, double base, double factor)
{
	struct model_yarn y = {
		.base = base,
		.factor = factor,
		.original = meta_u32(r, "rope.scaling.original_context_length", 0, UINT32_MAX, c->context),
		.beta_fast = meta_number(r, "rope.scaling.yarn_beta_fast", 0, 32),
		.beta_slow = meta_number(r, "rope.scaling.yarn_beta_slow", 0, 1),
		.truncate = !c->family->yarn_whole,
	};
	y.attention_factor = meta_number(r, "rope.scaling.attn_factor", 0, 1);
	y.attention_factor *= meta_number(r, "rope.scaling.yarn_attn_factor", 0, 1);
	y.attention_factor *= model_rope_mscale(factor, 1);
	if (y.original < 1)
		meta_fail(r, "rope.scaling.original_context_length", y.original, "1 or more");
	if (y.beta_slow > y.beta_fast)
		meta_fail(r, "rope.scaling.yarn_beta_slow", y.beta_slow, "at most yarn_beta_fast");
	if (r->rc)
		return r->rc;
	model_rope_yarn(&c->rope[0], c->rope_dims, &y);
	model_rope_stretch(c, y.original, factor);
	return 0;
}

/* Scaling applies to layers with full attention; layers with a window have unscaled frequencies of
 * their own base. */
static int read_rope(struct gguf_reader *r, struct model_conf *c)
{
	double base = meta_number(r, "rope.freq_base", 1, 10000);
	double factor = meta_number(r, "rope.scaling.factor", 0, 1);
	double local = meta_number(r, "rope.freq_base_swa", 1, 10000);
	struct gguf_str type = {"none", 4};
	char key[128];
	int rc = r->rc ? r->rc : gguf_get_str(r->g, key_of(r, "rope.scaling.type", key), &type);
	if (r->rc)
		return r->rc;
	model_rope_default(&c->rope[0], c->rope_dims, base);
	if (c->ropes > 1)
		model_rope_default(&c->rope[1], c->rope_dims, local);
	int known = gguf_str_is(type, "none") || gguf_str_is(type, "linear") ||
	            gguf_str_is(type, "yarn") || gguf_str_is(type, "longrope");
	if (rc == ERR_INVALID || !known)
		return err_set(r->err, ERR_UNSUPPORTED,
		               "%.160s: metadata %s: found %.*s, expected none, linear, yarn or longrope",
		               gguf_path(r->g), key, rc ? 12 : (int)(type.len > 40 ? 40 : type.len),
		               rc ? "another type" : type.s);
	if (gguf_str_is(type, "linear")) {
		model_rope_linear(&c->rope[0], c->rope_dims, factor);
		model_rope_stretch(c, 0, factor);
	}
	if (gguf_str_is(type, "yarn") && read_yarn(r, c, base, factor))
		return r->rc;
	return read_divisors(r, c);
}

/* --- experts ------------------------------------------------------------- */

void meta_experts(struct gguf_reader *r, struct model_conf *c, enum model_scoring scoring_absent)
{
	enum { SOFTMAX = 1, SIGMOID = 2 };
	struct model_experts *x = &c->experts;
	char name[64], correction[64] = "";
	/* the last layers predict further tokens; not used */
	c->layers -= meta_u32(r, "nextn_predict_layers", 0, c->layers - 1, 0);
	*x = (struct model_experts){
		.count = meta_u32(r, "expert_count", 1, KERN_EXPERTS_MAX, 0),
		.active = meta_u32(r, "expert_used_count", 1, KERN_EXPERTS_USED_MAX, 0),
		.ffn = meta_u32(r, "expert_feed_forward_length", 1, MODEL_FFN_MAX, 0),
		.groups = meta_u32(r, "expert_group_count", 1, KERN_EXPERTS_MAX, 1),
		.top_groups = meta_u32(r, "expert_group_used_count", 1, KERN_EXPERTS_MAX, 1),
		.normalise = meta_bool(r, "expert_weights_norm", 1),
		.scale = (float)meta_number(r, "expert_weights_scale", 0, 1),
	};
	uint32_t scoring = meta_u32(r, "expert_gating_func", SOFTMAX, SIGMOID,
	                            scoring_absent == MODEL_SIGMOID ? SIGMOID : SOFTMAX);
	uint32_t shared = meta_u32(r, "expert_shared_count", 0, KERN_EXPERTS_MAX, 0);
	x->scoring = scoring == SIGMOID ? MODEL_SIGMOID : MODEL_SOFTMAX;
	shared = x->ffn > MODEL_FFN_MAX / (shared + 1) ? 0 : x->ffn * shared;
	x->shared_ffn = meta_u32(r, "expert_shared_feed_forward_length", 0, MODEL_FFN_MAX, shared);
	for (uint32_t i = 0; i < c->layers && !r->rc; i++) {
		snprintf(name, sizeof name, "blk.%u.ffn_gate_exps.weight", i);
		c->layer[i].experts = (uint8_t)model_has_tensor(r->src, name);
		if (c->layer[i].experts && !*correction)
			snprintf(correction, sizeof correction, "blk.%u.exp_probs_b.bias", i);
	}
	x->correction = *correction && model_has_tensor(r->src, correction);
}

/* --- other values -------------------------------------------------------- */

static int read_vocab(struct gguf_reader *r, struct model_conf *c)
{
	const struct gguf_tensor *embed = gguf_tensor_find(r->g, "token_embd.weight");
	if (!embed || embed->dims != 2 || embed->ne[1] > UINT32_MAX)
		return err_set(
			r->err, embed ? ERR_CORRUPT : ERR_NOTFOUND,
			"%.160s: tensor token_embd.weight: found %s, expected a matrix (vocabulary x %u)",
			gguf_path(r->g), embed ? "another shape" : "none", c->hidden);
	c->vocab = (uint32_t)embed->ne[1];
	c->tied = !gguf_tensor_find(r->g, "output.weight");
	static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
	                                   "tokenizer.ggml.eom_token_id"};
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		uint32_t id;
		if (gguf_get_u32(r->g, keys[i], &id) == 0)
			model_add_eos(c, id);
	}
	uint32_t ends[MODEL_EOS_MAX];
	for (unsigned i = 0, n = ends_from_gguf(r->g, ends, MODEL_EOS_MAX); i < n; i++)
		model_add_eos(c, ends[i]);
	return 0;
}

static void read_name(struct gguf_reader *r, struct model_conf *c)
{
	struct gguf_str s;
	const char *slash = strrchr(gguf_path(r->g), '/');
	if (gguf_get_str(r->g, "general.name", &s) == 0 && s.len)
		snprintf(c->name, sizeof c->name, "%.*s", (int)(s.len > 127 ? 127 : s.len), s.s);
	else
		snprintf(c->name, sizeof c->name, "%.127s", slash ? slash + 1 : gguf_path(r->g));
}

/* A switch of the family; if it may be on, a tensor of the first layer tells. */
static int is_on(const struct model_source *src, const char *key, const char *tensor)
{
	return key && (!*key || model_has_tensor(src, tensor));
}

int model_gguf_open(const char *path, struct model_conf *c, struct model_source *src,
                    struct err *err)
{
	struct gguf *g = NULL;
	int rc = gguf_open(path, &g, err);
	src->kind = c->source = MODEL_GGUF;
	src->file = g;
	if (rc)
		return rc;
	struct gguf_str arch = {0};
	rc = gguf_get_str(g, "general.architecture", &arch);
	if (rc)
		return err_set(err, ERR_CORRUPT,
		               "%.160s: metadata general.architecture: found %s, expected a string", path,
		               rc == ERR_NOTFOUND ? "none" : "another type");
	c->family = family_find(MODEL_GGUF, arch.s, arch.len, err);
	if (!c->family) {
		err_prefix(err, "%.160s", path);
		return ERR_UNSUPPORTED;
	}
	struct gguf_reader r = {.g = g, .src = src, .arch = c->family->name[MODEL_GGUF], .err = err};
	if (read_sizes(&r, c))
		return r.rc;
	family_defaults(c);
	c->attn_scale = (float)meta_number(&r, "attention.scale", 0, (double)c->attn_scale);
	if ((rc = read_windows(&r, c)) || (rc = read_rope(&r, c)) || (rc = read_vocab(&r, c)))
		return rc;
	if (c->family->read_gguf)
		c->family->read_gguf(&r, c);
	c->qk_norm = is_on(src, c->family->qk_norm, "blk.0.attn_q_norm.weight");
	c->qkv_bias = is_on(src, c->family->bias.qkv, "blk.0.attn_q.bias");
	c->o_bias = is_on(src, c->family->bias.o, "blk.0.attn_output.bias");
	c->mlp_bias = is_on(src, c->family->bias.mlp, "blk.0.ffn_down.bias");
	read_name(&r, c);
	return refuse_others(&r, c);
}
