/* model_gguf.c - a GGUF file's metadata as a model description. Missing optional keys take the values that the format defines.
 * Errors are returned and name file and key. */
#include "engine/model.h"
#include "format/gguf.h"
#include "kernels/own_math.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

struct reader {
	struct gguf *g;
	const char *arch;
	struct err *err;
	int rc;   /* the first error; later calls do nothing */
};

static void key_of(const struct reader *r, const char *key, char *out, size_t size)
{
	snprintf(out, size, "%s.%s", r->arch, key);
}

static void reader_fail(struct reader *r, const char *key, int found, const char *expected)
{
	r->rc = err_set(r->err, found == ERR_NOTFOUND ? ERR_NOTFOUND : ERR_CORRUPT, "%.160s: metadata %s: found %s, expected %s", gguf_path(r->g), key,
	                found == ERR_NOTFOUND ? "none" : "another type or range", expected);
}

static uint32_t need_u32(struct reader *r, const char *key)
{
	char full[128];
	uint32_t v = 0;
	key_of(r, key, full, sizeof full);
	int rc = r->rc ? 0 : gguf_get_u32(r->g, full, &v);
	if (rc)
		reader_fail(r, full, rc, "an integer of at most 32 bits");
	return v;
}

static uint32_t may_u32(struct reader *r, const char *key, uint32_t absent)
{
	char full[128];
	uint32_t v = absent;
	key_of(r, key, full, sizeof full);
	int rc = r->rc ? 0 : gguf_get_u32(r->g, full, &v);
	if (rc == ERR_INVALID)
		reader_fail(r, full, rc, "an integer of at most 32 bits");
	return v;
}

static float may_f32(struct reader *r, const char *key, float absent)
{
	char full[128];
	float v = absent;
	key_of(r, key, full, sizeof full);
	int rc = r->rc ? 0 : gguf_get_f32(r->g, full, &v);
	if (rc == ERR_INVALID)
		reader_fail(r, full, rc, "a float");
	return v;
}

static float need_f32(struct reader *r, const char *key)
{
	char full[128];
	float v = 0;
	key_of(r, key, full, sizeof full);
	int rc = r->rc ? 0 : gguf_get_f32(r->g, full, &v);
	if (rc)
		reader_fail(r, full, rc, "a float");
	return v;
}

static int refuse(struct reader *r, const char *key, double found, const char *expected)
{
	char full[128];
	key_of(r, key, full, sizeof full);
	return r->rc = err_set(r->err, ERR_UNSUPPORTED, "%.160s: metadata %s: found %.10g, expected %s", gguf_path(r->g), full, found, expected);
}

static void within(struct reader *r, const char *key, uint32_t found, uint32_t min, uint32_t max)
{
	char expected[40];
	snprintf(expected, sizeof expected, "%u..%u", min, max);
	if (!r->rc && (found < min || found > max))
		refuse(r, key, found, expected);
}

/* may_f32, and more than `above`. */
static double may_above(struct reader *r, const char *key, double above, double absent)
{
	double v = (double)may_f32(r, key, (float)absent);
	char expected[40];
	snprintf(expected, sizeof expected, "a number more than %g", above);
	if (!r->rc && !(v > above && v <= 1e30))
		refuse(r, key, v, expected);
	return r->rc ? absent : v;
}

static int read_sizes(struct reader *r, struct model_conf *c)
{
	c->layers = need_u32(r, "block_count");
	c->hidden = need_u32(r, "embedding_length");
	c->ffn = need_u32(r, "feed_forward_length");
	c->heads = need_u32(r, "attention.head_count");
	c->kv_heads = may_u32(r, "attention.head_count_kv", c->heads);
	c->context = need_u32(r, "context_length");
	c->head_dim = may_u32(r, "attention.key_length", c->heads ? c->hidden / c->heads : 0);
	if (c->family->mla)                 /* key_length may be the cache's, then another key has the heads' */
		c->head_dim = may_u32(r, "attention.key_length_mla", c->head_dim);
	c->norm_eps = need_f32(r, "attention.layer_norm_rms_epsilon");
	c->rope_dims = may_u32(r, "rope.dimension_count", c->head_dim);
	uint32_t value_dim = may_u32(r, "attention.value_length", c->head_dim), experts = may_u32(r, "expert_count", 0);
	within(r, "block_count", c->layers, 1, KV_LAYERS_MAX);
	within(r, "embedding_length", c->hidden, 1, MODEL_HIDDEN_MAX);
	within(r, "feed_forward_length", c->ffn, 1, MODEL_FFN_MAX);
	within(r, "attention.head_count", c->heads, 1, MODEL_HEADS_MAX);
	within(r, "attention.head_count_kv", c->kv_heads, 1, c->heads);
	within(r, "context_length", c->context, 1, MODEL_CONTEXT_MAX);
	within(r, "attention.key_length", c->head_dim, 2, MODEL_HEAD_DIM_MAX);
	within(r, "rope.dimension_count", c->rope_dims, 2, c->head_dim);
	if (!r->rc && !(c->norm_eps > 0 && c->norm_eps < 1))
		return refuse(r, "attention.layer_norm_rms_epsilon", (double)c->norm_eps, "more than 0 and less than 1");
	if (!r->rc && value_dim != c->head_dim && !c->family->mla)
		return refuse(r, "attention.value_length", value_dim, "as the key's");
	if (!r->rc && experts && c->family->experts == FAMILY_DENSE)
		return refuse(r, "expert_count", experts, "none (a dense model)");
	if (!r->rc && may_above(r, "final_logit_softcapping", -1, 0) > 0)
		return refuse(r, "final_logit_softcapping", may_f32(r, "final_logit_softcapping", 0), "none");
	return r->rc;
}

/* --- windows ------------------------------------------------------------------------------------------------------------ */

/* Which layers see the window: a list of flags, or a period whose last layer sees all; all do without one. */
static int read_pattern(struct reader *r, struct model_conf *c, uint8_t *slides)
{
	char key[128];
	enum gguf_type type;
	size_t count;
	const void *data;
	key_of(r, "attention.sliding_window_pattern", key, sizeof key);
	if (gguf_get_array(r->g, key, &type, &count, &data) == 0) {
		if (type != GGUF_BOOL || count != c->layers)
			return refuse(r, "attention.sliding_window_pattern", (double)count, "a list of one flag for each layer");
		memcpy(slides, data, count);
		return 0;
	}
	uint32_t period = may_u32(r, "attention.sliding_window_pattern", c->family->window == FAMILY_WINDOW_BY_PATTERN ? 6 : 0);
	for (uint32_t i = 0; i < c->layers; i++)
		slides[i] = !period || (i + 1) % period != 0;
	return r->rc;
}

static int read_windows(struct reader *r, struct model_conf *c)
{
	uint8_t slides[KV_LAYERS_MAX];
	uint32_t window = may_u32(r, "attention.sliding_window", 0);
	if (!r->rc && !window && c->family->window == FAMILY_WINDOW_BY_PATTERN)
		return refuse(r, "attention.sliding_window", window, "1 or more");
	if (!r->rc && window > 1u << 24)
		return refuse(r, "attention.sliding_window", window, "at most 16777216");
	if (r->rc || read_pattern(r, c, slides))
		return r->rc;
	for (uint32_t i = 0; i < c->layers && window; i++)
		if (slides[i])
			c->layer[i] = (struct model_layer){.window = window, .rope = c->family->window == FAMILY_WINDOW_BY_PATTERN, .experts = c->layer[i].experts};
	return 0;
}

/* --- rotation ----------------------------------------------------------------------------------------------------------- */

/* Llama 3.1 files carry their scaling as divisors of the frequencies. */
static int read_rope_factors(struct reader *r, struct model_conf *c)
{
	const struct gguf_tensor *t = gguf_tensor_find(r->g, "rope_freqs.weight");
	if (!t)
		return 0;
	if (t->ggml_type != 0 || t->bytes != c->rope_dims / 2 * sizeof(float))
		return err_set(r->err, ERR_CORRUPT, "%.160s: tensor rope_freqs.weight: found %zu bytes of %s, expected %u of F32", gguf_path(r->g), t->bytes,
		               gguf_ggml_type_name(t->ggml_type), c->rope_dims / 2);
	const float *f = t->data;
	for (uint32_t i = 0; i < c->rope_dims / 2; i++)
		c->rope[0].inv_freq[i] = (float)((double)c->rope[0].inv_freq[i] / (double)f[i]);
	return 0;
}

static int read_yarn(struct reader *r, struct model_conf *c, double base, double factor)
{
	struct model_yarn y = {
		.base = base, .factor = factor,
		.original = may_u32(r, "rope.scaling.original_context_length", c->context),
		.beta_fast = may_above(r, "rope.scaling.yarn_beta_fast", 0, 32),
		.beta_slow = may_above(r, "rope.scaling.yarn_beta_slow", 0, 1),
		.truncate = 1,
	};
	double more = may_above(r, "rope.scaling.attn_factor", 0, 1) * may_above(r, "rope.scaling.yarn_attn_factor", 0, 1);
	y.attention_factor = more * (factor > 1 ? 0.1 * own_log(factor) + 1.0 : 1.0);
	if (!r->rc && y.original < 1)
		return refuse(r, "rope.scaling.original_context_length", y.original, "1 or more");
	if (!r->rc && y.beta_slow > y.beta_fast)
		return refuse(r, "rope.scaling.yarn_beta_slow", y.beta_slow, "at most yarn_beta_fast");
	if (!r->rc)
		model_rope_yarn(&c->rope[0], c->rope_dims, &y);
	return r->rc;
}

static int is_word(struct gguf_str s, const char *word)
{
	return s.len == strlen(word) && memcmp(s.s, word, s.len) == 0;
}

/* Scaling is for the layers that see everything; those with a window have plain frequencies of their own base. */
static int read_rope(struct reader *r, struct model_conf *c)
{
	double base = may_above(r, "rope.freq_base", 1, 10000), factor = may_above(r, "rope.scaling.factor", 0, 1);
	double local = may_above(r, "rope.freq_base_swa", 1, 10000);
	struct gguf_str type = {"none", 4};
	char key[128];
	key_of(r, "rope.scaling.type", key, sizeof key);
	int rc = r->rc ? r->rc : gguf_get_str(r->g, key, &type);
	if (r->rc)
		return r->rc;
	model_rope_default(&c->rope[0], c->rope_dims, base);
	if (c->family->window == FAMILY_WINDOW_BY_PATTERN) {
		c->ropes = 2;
		model_rope_default(&c->rope[1], c->rope_dims, local);
	}
	if (rc == ERR_INVALID || !(is_word(type, "none") || is_word(type, "linear") || is_word(type, "yarn")))
		return err_set(r->err, ERR_UNSUPPORTED, "%.160s: metadata %s: found %.*s, expected none, linear or yarn", gguf_path(r->g), key,
		               rc ? 12 : (int)(type.len > 40 ? 40 : type.len), rc ? "another type" : type.s);
	if (is_word(type, "linear"))
		model_rope_linear(&c->rope[0], c->rope_dims, factor);
	if (is_word(type, "yarn") && read_yarn(r, c, base, factor))
		return r->rc;
	return read_rope_factors(r, c);
}

/* --- the rest ------------------------------------------------------------------------------------------------------------- */

static void add_eos(struct model_conf *c, uint32_t id)
{
	for (uint32_t i = 0; i < c->n_eos; i++)
		if (c->eos[i] == id)
			return;
	if (c->n_eos < MODEL_EOS_MAX)
		c->eos[c->n_eos++] = id;
}

static int read_vocab(struct reader *r, struct model_conf *c)
{
	const struct gguf_tensor *embed = gguf_tensor_find(r->g, "token_embd.weight");
	if (!embed || embed->dims != 2 || embed->ne[1] > UINT32_MAX)
		return err_set(r->err, embed ? ERR_CORRUPT : ERR_NOTFOUND, "%.160s: tensor token_embd.weight: found %s, expected a matrix (vocabulary x %u)",
		               gguf_path(r->g), embed ? "another shape" : "none", c->hidden);
	c->vocab = (uint32_t)embed->ne[1];
	c->tied = !gguf_tensor_find(r->g, "output.weight");
	static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
	for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
		uint32_t id;
		if (gguf_get_u32(r->g, keys[i], &id) == 0)
			add_eos(c, id);
	}
	return 0;
}

static void read_name(struct reader *r, struct model_conf *c)
{
	struct gguf_str s;
	const char *slash = strrchr(gguf_path(r->g), '/');
	if (gguf_get_str(r->g, "general.name", &s) == 0 && s.len)
		snprintf(c->name, sizeof c->name, "%.*s", (int)(s.len > 127 ? 127 : s.len), s.s);
	else
		snprintf(c->name, sizeof c->name, "%.127s", slash ? slash + 1 : gguf_path(r->g));
}

/* No key of the usual files says that Gemma 3's largest model divides by another size than its heads'; readers know it by its layers. */
#define GEMMA3_27B_LAYERS 62u

static int read_attn_scale(struct reader *r, struct model_conf *c)
{
	double per_head = c->family->window == FAMILY_WINDOW_BY_PATTERN && c->layers == GEMMA3_27B_LAYERS ? (double)c->hidden / c->heads : c->head_dim;
	c->attn_scale = (float)may_above(r, "attention.scale", 0, 1.0 / sqrt(per_head));
	return r->rc;
}

/* A switch of the family: what it may have shows by a tensor of the first layer. */
static int is_on(const struct model_source *src, const char *key, const char *tensor)
{
	return key && (!*key || model_has_tensor(src, tensor));
}

int model_gguf_open(const char *path, struct model_conf *c, struct model_source *src, struct err *err)
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
		return err_set(err, ERR_CORRUPT, "%.160s: metadata general.architecture: found %s, expected a string", path, rc == ERR_NOTFOUND ? "none" : "another type");
	c->family = model_family_find(MODEL_GGUF, arch.s, arch.len, err);
	if (!c->family) {
		err_prefix(err, "%.160s", path);
		return ERR_UNSUPPORTED;
	}
	struct reader r = {.g = g, .arch = c->family->name[MODEL_GGUF], .err = err};
	if ((rc = read_sizes(&r, c)) || (rc = model_gguf_mla(g, c, err)) || (rc = model_gguf_experts(g, src, c, err)))
		return rc;
	model_defaults(c);
	if ((rc = read_attn_scale(&r, c)) || (rc = read_windows(&r, c)) || (rc = read_rope(&r, c)) || (rc = model_gguf_mla_scale(g, c, err)) ||
	    (rc = read_vocab(&r, c)))
		return rc;
	c->qk_norm = is_on(src, c->family->qk_norm, "blk.0.attn_q_norm.weight");
	c->qkv_bias = is_on(src, c->family->bias.qkv, "blk.0.attn_q.bias");
	c->o_bias = is_on(src, c->family->bias.o, "blk.0.attn_output.bias");
	c->mlp_bias = is_on(src, c->family->bias.mlp, "blk.0.ffn_down.bias");
	read_name(&r, c);
	return 0;
}
