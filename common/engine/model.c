/* model.c - see model.h: the table of families, the names of tensors, checks and sums that do not depend on the file's format.
 *
 * Always: a description that model_open returns is within the limits below, so that later products of its numbers fit in size_t.
 * Errors are returned and name the file, the field, what was found and what was expected. */
#include "engine/model.h"
#include "format/gguf.h"
#include "format/safetensors.h"
#include "kv/layout.h"
#include "kernels/own_math.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define HALF {KERN_ROPE_HALF, KERN_ROPE_HALF}
#define PAIRS {KERN_ROPE_INTERLEAVED, KERN_ROPE_INTERLEAVED}
#define PERMUTED {KERN_ROPE_INTERLEAVED, KERN_ROPE_HALF}

static const struct family families[] = {
	{.name = {"llama", "llama"}, .rope = PERMUTED, .bias = {"attention_bias", "attention_bias", "mlp_bias"}},
	{.name = {NULL, "mistral"}, .rope = PERMUTED, .window = FAMILY_WINDOW_ALL},
	{.name = {"qwen2", "qwen2"}, .rope = HALF, .bias = {.qkv = FAMILY_ALWAYS}, .window = FAMILY_WINDOW_BY_FLAG},
	{.name = {"qwen3", "qwen3"}, .rope = HALF, .bias = {"attention_bias", "attention_bias", NULL}, .qk_norm = FAMILY_ALWAYS,
	 .window = FAMILY_WINDOW_BY_FLAG},
	{.name = {"ernie4_5", "ernie4_5"}, .rope = PAIRS, .bias = {"use_bias", "use_bias", "use_bias"}, .tied = 1, .rope_base = 500000},
	{.name = {"gemma3", "gemma3_text"}, .rope = HALF, .act = KERN_GELU_TANH, .bias = {"attention_bias", "attention_bias", NULL},
	 .qk_norm = FAMILY_ALWAYS, .window = FAMILY_WINDOW_BY_PATTERN, .post_norms = 1, .norm_plus_one = {[MODEL_HF] = 1}, .scaled_embedding = 1,
	 .tied = 1, .rope_base = 1000000, .ffn_norm = {[MODEL_HF] = "pre_feedforward_layernorm"}},
	{.name = {"qwen3moe", "qwen3_moe"}, .rope = HALF, .bias = {"attention_bias", "attention_bias", NULL}, .qk_norm = FAMILY_ALWAYS,
	 .window = FAMILY_WINDOW_BY_FLAG, .experts = FAMILY_EXPERTS_QWEN3},
	{.name = {"ernie4_5-moe", "ernie4_5_moe"}, .rope = PAIRS, .bias = {"use_bias", "use_bias", "use_bias"}, .tied = 1, .rope_base = 500000,
	 .experts = FAMILY_EXPERTS_ERNIE},
	{.name = {"glm4moe", "glm4_moe"}, .rope = HALF, .bias = {.qkv = "attention_bias"}, .qk_norm = "use_qk_norm", .rope_part = 0.5,
	 .ffn_norm = {[MODEL_GGUF] = "post_attention_norm"}, .experts = FAMILY_EXPERTS_DEEPSEEK},
	{.name = {"deepseek2", "deepseek_v3"}, .rope = PAIRS, .experts = FAMILY_EXPERTS_DEEPSEEK, .mla = 1},
};
#define FAMILIES (sizeof families / sizeof *families)

static const struct role {
	const char *name[MODEL_SOURCES];   /* without layer and suffix */
} roles[MODEL_ROLES] = {
	[MODEL_EMBED]          = {{"token_embd", "model.embed_tokens"}},
	[MODEL_NORM]           = {{"output_norm", "model.norm"}},
	[MODEL_HEAD]           = {{"output", "lm_head"}},
	[MODEL_ATTN_NORM]      = {{"attn_norm", "input_layernorm"}},
	[MODEL_Q]              = {{"attn_q", "self_attn.q_proj"}},
	[MODEL_K]              = {{"attn_k", "self_attn.k_proj"}},
	[MODEL_V]              = {{"attn_v", "self_attn.v_proj"}},
	[MODEL_O]              = {{"attn_output", "self_attn.o_proj"}},
	[MODEL_Q_NORM]         = {{"attn_q_norm", "self_attn.q_norm"}},
	[MODEL_K_NORM]         = {{"attn_k_norm", "self_attn.k_norm"}},
	[MODEL_ATTN_POST_NORM] = {{"post_attention_norm", "post_attention_layernorm"}},
	[MODEL_FFN_NORM]       = {{"ffn_norm", "post_attention_layernorm"}},
	[MODEL_GATE]           = {{"ffn_gate", "mlp.gate_proj"}},
	[MODEL_UP]             = {{"ffn_up", "mlp.up_proj"}},
	[MODEL_DOWN]           = {{"ffn_down", "mlp.down_proj"}},
	[MODEL_FFN_POST_NORM]  = {{"post_ffw_norm", "post_feedforward_layernorm"}},
	[MODEL_Q_A]            = {{"attn_q_a", "self_attn.q_a_proj"}},
	[MODEL_Q_A_NORM]       = {{"attn_q_a_norm", "self_attn.q_a_layernorm"}},
	[MODEL_Q_B]            = {{"attn_q_b", "self_attn.q_b_proj"}},
	[MODEL_KV_A]           = {{"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"}},
	[MODEL_KV_A_NORM]      = {{"attn_kv_a_norm", "self_attn.kv_a_layernorm"}},
	[MODEL_KV_B]           = {{"attn_kv_b", "self_attn.kv_b_proj"}},
	[MODEL_ROUTER]         = {{"ffn_gate_inp", "mlp.gate"}},
	[MODEL_SHARED_GATE]    = {{"ffn_gate_shexp", "mlp.shared_experts.gate_proj"}},
	[MODEL_SHARED_UP]      = {{"ffn_up_shexp", "mlp.shared_experts.up_proj"}},
	[MODEL_SHARED_DOWN]    = {{"ffn_down_shexp", "mlp.shared_experts.down_proj"}},
};

const struct family *model_family_find(enum model_source_kind kind, const char *name, size_t len, struct err *err)
{
	char known[200] = "";
	for (size_t i = 0; i < FAMILIES; i++) {
		const char *f = families[i].name[kind];
		if (!f)
			continue;
		if (strlen(f) == len && memcmp(f, name, len) == 0)
			return &families[i];
		size_t at = strlen(known);
		snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", f);
	}
	err_set(err, ERR_UNSUPPORTED, "architecture: found %.*s, expected one of: %s", (int)(len > 60 ? 60 : len), name, known);
	return NULL;
}

void model_defaults(struct model_conf *c)
{
	const struct family *f = c->family;
	c->act = f->act;
	c->rope_style = f->rope[c->source];
	c->post_norms = f->post_norms;
	c->norm_plus_one = f->norm_plus_one[c->source];
	c->embed_scale = f->scaled_embedding ? (float)sqrt((double)c->hidden) : 1.0f;
	c->attn_scale = (float)(1.0 / sqrt((double)c->head_dim));
	c->ropes = 1;
}

void model_tensor_name(const struct model_conf *c, enum model_role role, uint32_t layer, const char *suffix, char *out, size_t size)
{
	const char *name = roles[role].name[c->source];
	if (role == MODEL_FFN_NORM && c->family->ffn_norm[c->source])
		name = c->family->ffn_norm[c->source];
	if (role <= MODEL_ROLE_LAST_GLOBAL)
		snprintf(out, size, "%s.%s", name, suffix);
	else
		snprintf(out, size, "%s.%u.%s.%s", c->source == MODEL_GGUF ? "blk" : "model.layers", layer, name, suffix);
}

int model_has_role(const struct model_conf *c, enum model_role role, uint32_t layer)
{
	int experts = role > MODEL_ROLE_LAST_GLOBAL && c->layer[layer].experts, mla = c->mla.kv_rank != 0;
	switch (role) {
	case MODEL_HEAD: return !c->tied;
	case MODEL_Q: return !mla || !c->mla.q_rank;
	case MODEL_K:
	case MODEL_V: return !mla;
	case MODEL_Q_NORM:
	case MODEL_K_NORM: return c->qk_norm;
	case MODEL_ATTN_POST_NORM:
	case MODEL_FFN_POST_NORM: return c->post_norms;
	case MODEL_GATE:
	case MODEL_UP:
	case MODEL_DOWN: return !experts;
	case MODEL_Q_A:
	case MODEL_Q_A_NORM:
	case MODEL_Q_B: return mla && c->mla.q_rank;
	case MODEL_KV_A:
	case MODEL_KV_A_NORM:
	case MODEL_KV_B: return mla;
	case MODEL_ROUTER: return experts;
	case MODEL_SHARED_GATE:
	case MODEL_SHARED_UP:
	case MODEL_SHARED_DOWN: return experts && c->experts.shared_ffn;
	default: return 1;
	}
}

void model_role_shape(const struct model_conf *c, enum model_role role, uint32_t *ret_n, uint32_t *ret_k)
{
	const struct model_mla *m = &c->mla;
	uint32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim, o = m->kv_rank ? c->heads * m->v : q, shared = c->experts.shared_ffn;
	const uint32_t shapes[MODEL_ROLES][2] = {
		[MODEL_EMBED]          = {c->vocab, c->hidden},
		[MODEL_NORM]           = {1, c->hidden},
		[MODEL_HEAD]           = {c->vocab, c->hidden},
		[MODEL_ATTN_NORM]      = {1, c->hidden},
		[MODEL_Q]              = {q, c->hidden},
		[MODEL_K]              = {kv, c->hidden},
		[MODEL_V]              = {kv, c->hidden},
		[MODEL_O]              = {c->hidden, o},
		[MODEL_Q_NORM]         = {1, c->head_dim},
		[MODEL_K_NORM]         = {1, c->head_dim},
		[MODEL_ATTN_POST_NORM] = {1, c->hidden},
		[MODEL_FFN_NORM]       = {1, c->hidden},
		[MODEL_GATE]           = {c->ffn, c->hidden},
		[MODEL_UP]             = {c->ffn, c->hidden},
		[MODEL_DOWN]           = {c->hidden, c->ffn},
		[MODEL_FFN_POST_NORM]  = {1, c->hidden},
		[MODEL_Q_A]            = {m->q_rank, c->hidden},
		[MODEL_Q_A_NORM]       = {1, m->q_rank},
		[MODEL_Q_B]            = {q, m->q_rank},
		[MODEL_KV_A]           = {m->kv_rank + m->rope, c->hidden},
		[MODEL_KV_A_NORM]      = {1, m->kv_rank},
		[MODEL_KV_B]           = {c->heads * (m->nope + m->v), m->kv_rank},
		[MODEL_ROUTER]         = {c->experts.count, c->hidden},
		[MODEL_SHARED_GATE]    = {shared, c->hidden},
		[MODEL_SHARED_UP]      = {shared, c->hidden},
		[MODEL_SHARED_DOWN]    = {c->hidden, shared},
	};
	*ret_n = shapes[role][0];
	*ret_k = shapes[role][1];
}

/* --- rotary frequencies ------------------------------------------------------------------------------------------------- */

void model_rope_default(struct model_rope *r, uint32_t dims, double base)
{
	r->scale = 1.0f;
	for (uint32_t i = 0; i < dims / 2; i++)
		r->inv_freq[i] = (float)own_pow(base, -2.0 * i / dims);
}

void model_rope_linear(struct model_rope *r, uint32_t dims, double factor)
{
	for (uint32_t i = 0; i < dims / 2; i++)
		r->inv_freq[i] = (float)(r->inv_freq[i] / factor);
}

/* Long waves are stretched by factor, short ones stay, between them the two are mixed. */
void model_rope_llama3(struct model_rope *r, uint32_t dims, double factor, double low, double high, double original)
{
	for (uint32_t i = 0; i < dims / 2; i++) {
		double f = r->inv_freq[i], wave = 2.0 * M_PI / f;
		double t = (original / wave - low) / (high - low);
		if (wave > original / low)
			f /= factor;
		else if (wave >= original / high)
			f = (1.0 - t) * f / factor + t * f;
		r->inv_freq[i] = (float)f;
	}
}

/* YaRN (arXiv:2309.00071): a pair that turns more than beta_fast times over the original length keeps its frequency, one that turns less than
 * beta_slow times is stretched by factor, between them the two are mixed along a ramp over the pairs. */
void model_rope_yarn(struct model_rope *r, uint32_t dims, const struct model_yarn *y)
{
	double low = dims * own_log(y->original / (2.0 * M_PI * y->beta_fast)) /
	             (2.0 * own_log(y->base));
	double high = dims * own_log(y->original / (2.0 * M_PI * y->beta_slow)) /
	              (2.0 * own_log(y->base));
	low = fmax(y->truncate ? floor(low) : low, 0);
	high = fmin(y->truncate ? ceil(high) : high, (double)dims - 1);
	if (low == high)
		high += 0.001;
	for (uint32_t i = 0; i < dims / 2; i++) {
		double f = own_pow(y->base, -2.0 * i / dims),
		       g = fmin(fmax((i - low) / (high - low), 0), 1);
		r->inv_freq[i] = (float)((1.0 - g) * f + g * f / y->factor);
	}
	r->scale = (float)y->attention_factor;
}

/* --- opening ------------------------------------------------------------------------------------------------------------ */

/* A number of the description and its limits. */
struct limit {
	const char *name;
	uint32_t v, min, max;
};

static int check_limits(const struct limit *l, size_t n, struct err *err)
{
	for (size_t i = 0; i < n; i++)
		if (l[i].v < l[i].min || l[i].v > l[i].max)
			return err_set(err, ERR_UNSUPPORTED, "%s: found %u, expected %u..%u", l[i].name, l[i].v, l[i].min, l[i].max);
	return 0;
}

static int check_sizes(const struct model_conf *c, struct err *err)
{
	const struct limit limits[] = {
		{"layers", c->layers, 1, KV_LAYERS_MAX},  {"hidden size", c->hidden, 1, MODEL_HIDDEN_MAX}, {"heads", c->heads, 1, MODEL_HEADS_MAX},
		{"KV heads", c->kv_heads, 1, c->heads},   {"head size", c->head_dim, 1, MODEL_HEAD_DIM_MAX},
		{"feed-forward size", c->ffn, 1, MODEL_FFN_MAX}, {"vocabulary", c->vocab, 1, 1u << 22}, {"context", c->context, 1, MODEL_CONTEXT_MAX},
	};
	int rc = check_limits(limits, sizeof limits / sizeof *limits, err);
	if (rc)
		return rc;
	if (c->heads % c->kv_heads)
		return err_set(err, ERR_CORRUPT, "KV heads: found %u, expected a divisor of %u heads", c->kv_heads, c->heads);
	if (c->head_dim % 4)
		return err_set(err, ERR_UNSUPPORTED, "head size: found %u, expected a multiple of 4", c->head_dim);
	if (!(c->norm_eps > 0 && c->norm_eps < 1))
		return err_set(err, ERR_CORRUPT, "norm epsilon: found %g, expected more than 0 and less than 1", c->norm_eps);
	if (!(c->attn_scale > 0 && c->attn_scale <= 1e3f))
		return err_set(err, ERR_CORRUPT, "attention scale: found %g, expected more than 0 and at most 1000", c->attn_scale);
	for (uint32_t i = 0; i < c->n_eos; i++)
		if (c->eos[i] >= c->vocab)
			return err_set(err, ERR_CORRUPT, "end-of-sequence id: found %u, expected less than the vocabulary's %u", c->eos[i], c->vocab);
	return 0;
}

static int check_ropes(const struct model_conf *c, struct err *err)
{
	if (c->rope_dims < 2 || c->rope_dims % 2 || c->rope_dims > c->head_dim)
		return err_set(err, ERR_CORRUPT, "rotary size: found %u, expected an even number up to the head size %u", c->rope_dims, c->head_dim);
	for (uint32_t t = 0; t < c->ropes; t++) {
		const struct model_rope *r = &c->rope[t];
		if (!(r->scale > 0 && r->scale <= 1e3f))
			return err_set(err, ERR_CORRUPT, "rotary attention factor: found %g, expected more than 0 and at most 1000", r->scale);
		for (uint32_t i = 0; i < c->rope_dims / 2; i++)
			if (!isfinite(r->inv_freq[i]) || r->inv_freq[i] < 0)
				return err_set(err, ERR_CORRUPT, "rotary frequency %u: found %g, expected a finite number from 0", i, r->inv_freq[i]);
	}
	return 0;
}

static int check_experts(const struct model_conf *c, struct err *err)
{
	const struct model_experts *x = &c->experts;
	const struct model_mla *m = &c->mla;
	const struct limit experts[] = {
		{"experts", x->count, 1, KERN_EXPERTS_MAX}, {"experts of a token", x->active, 1, x->count < KERN_EXPERTS_USED_MAX ? x->count : KERN_EXPERTS_USED_MAX}, {"an expert's feed-forward size", x->ffn, 1, 1u << 20},
		{"shared experts' feed-forward size", x->shared_ffn, 0, 1u << 20}, {"groups of experts", x->groups, 1, x->count},
		{"groups of a token", x->top_groups, 1, x->groups},
	};
	const struct limit mla[] = {
		{"rank of KV", m->kv_rank, 1, 1u << 16}, {"rank of queries", m->q_rank, 0, 1u << 16}, {"size without rotation", m->nope, 1, MODEL_HEAD_DIM_MAX},
		{"size with rotation", m->rope, 2, MODEL_HEAD_DIM_MAX}, {"value size", m->v, 1, MODEL_HEAD_DIM_MAX},
	};
	int rc = x->count ? check_limits(experts, sizeof experts / sizeof *experts, err) : 0;
	if (!rc && m->kv_rank)
		rc = check_limits(mla, sizeof mla / sizeof *mla, err);
	if (!rc && m->kv_rank && (m->kv_rank % 4 || m->rope % 4 || m->kv_rank + m->rope > MODEL_LATENT_MAX))
		rc = err_set(err, ERR_UNSUPPORTED, "rank of KV and size with rotation: found %u and %u, expected multiples of 4, together at most %u", m->kv_rank, m->rope,
		             MODEL_LATENT_MAX);
	if (!rc && x->count && x->groups > 1 && x->count / x->groups < 2)
		rc = err_set(err, ERR_CORRUPT, "groups of experts: found %u, expected at most half of %u experts", x->groups, x->count);
	if (!rc && x->count && x->count % x->groups)
		rc = err_set(err, ERR_CORRUPT, "groups of experts: found %u, expected a divisor of %u experts", x->groups, x->count);
	if (!rc && x->count && x->active > x->count / x->groups * x->top_groups)
		rc = err_set(err, ERR_CORRUPT, "experts of a token: found %u, expected at most the %u of %u groups", x->active,
		             x->count / x->groups * x->top_groups, x->top_groups);
	if (!rc && x->count && !(isfinite(x->scale) && x->norm_min >= 0 && isfinite(x->norm_min)))
		rc = err_set(err, ERR_CORRUPT, "factor and least sum of experts' weights: found %g and %g, expected numbers, the sum from 0", x->scale, x->norm_min);
	return rc;
}

static int check_conf(const struct model_conf *c, struct err *err)
{
	int rc;
	if ((rc = check_sizes(c, err)) || (rc = check_ropes(c, err)) || (rc = check_experts(c, err)))
		return rc;
	return 0;
}

int model_open(const char *path, struct model_conf *ret_conf, struct model_source *ret_src, struct err *err)
{
	struct stat st;
	if (stat(path, &st) < 0)
		return err_set(err, ERR_IO, "%.200s: %m", path);
	struct model_conf c = {0};
	struct model_source src = {.path = path};
	int rc = S_ISDIR(st.st_mode) ? model_hf_open(path, &c, &src, err) : model_gguf_open(path, &c, &src, err);
	if (!rc && (rc = check_conf(&c, err)))
		err_prefix(err, "%.160s", path);
	if (rc) {
		model_close(&src);
		return rc;
	}
	*ret_conf = c;
	*ret_src = src;
	return 0;
}

void model_close(struct model_source *src)
{
	if (src->kind == MODEL_GGUF) {
		struct gguf *g = src->file;
		gguf_close(&g);
	} else {
		struct safetensors *st = src->file;
		st_close(&st);
	}
	src->file = NULL;
}

/* --- tensors ------------------------------------------------------------------------------------------------------------ */

static void entry_of_gguf(const struct gguf_tensor *t, struct model_entry *e)
{
	*e = (struct model_entry){.name = t->name, .type = gguf_ggml_type_name(t->ggml_type), .dims = t->dims, .data = t->data, .bytes = t->bytes};
	for (uint32_t d = 0; d < t->dims; d++)
		e->shape[d] = t->ne[t->dims - 1 - d];
}

static void entry_of_st(const struct st_tensor *t, struct model_entry *e)
{
	*e = (struct model_entry){.name = t->name, .type = t->dtype, .dims = t->dims, .data = t->data, .bytes = t->bytes};
	memcpy(e->shape, t->shape, sizeof e->shape);
}

size_t model_entries(const struct model_source *src)
{
	return src->kind == MODEL_GGUF ? gguf_tensors(src->file) : st_tensors(src->file);
}

void model_entry_at(const struct model_source *src, size_t i, struct model_entry *e)
{
	if (src->kind == MODEL_GGUF)
		entry_of_gguf(gguf_tensor_at(src->file, i), e);
	else
		entry_of_st(st_tensor_at(src->file, i), e);
}

static int entry_find(const struct model_source *src, const char *name, struct model_entry *e)
{
	if (src->kind == MODEL_GGUF) {
		const struct gguf_tensor *t = gguf_tensor_find(src->file, name);
		if (t)
			entry_of_gguf(t, e);
		return t != NULL;
	}
	const struct st_tensor *t = st_tensor_find(src->file, name);
	if (t)
		entry_of_st(t, e);
	return t != NULL;
}

int model_has_tensor(const struct model_source *src, const char *name)
{
	struct model_entry e;
	return entry_find(src, name, &e);
}

/* Both formats name the types as the kernels do, in capitals. */
static int dtype_parse(const char *name, enum kern_dtype *ret)
{
	for (unsigned t = 0; t < KERN_WEIGHT_DTYPES; t++)
		if (strcasecmp(name, kern_dtype_name((enum kern_dtype)t)) == 0) {
			*ret = (enum kern_dtype)t;
			return 0;
		}
	return ERR_UNSUPPORTED;
}

static void shape_text(const struct model_entry *e, char *out, size_t size)
{
	size_t at = 0;
	out[0] = 0;
	for (uint32_t d = 0; d < e->dims && at < size; d++)
		at += (size_t)snprintf(out + at, size - at, "%s%" PRIu64, d ? " x " : "", e->shape[d]);
}

/* `stack` matrices (n, k) that lie one after the other in one tensor, as one of all their rows; 0: a matrix or a vector of its own. */
static int tensor_get(const struct model_source *src, const char *name, uint32_t stack, uint32_t n, uint32_t k, struct model_tensor *ret, struct err *err)
{
	struct model_entry e;
	char expected[60];
	if (stack)
		snprintf(expected, sizeof expected, "%u x %u x %u", stack, n, k);
	else
		snprintf(expected, sizeof expected, "%u x %u", n, k);
	if (!entry_find(src, name, &e))
		return err_set(err, ERR_NOTFOUND, "%.160s: tensor %s: found none, expected %s", src->path, name, expected);
	int vector = !stack && e.dims == 1 && n == 1 && e.shape[0] == k;
	int matrix = !stack && e.dims == 2 && e.shape[0] == n && e.shape[1] == k;
	int stacked = stack && e.dims == 3 && e.shape[0] == stack && e.shape[1] == n && e.shape[2] == k;
	if (!vector && !matrix && !stacked) {
		char found[100];
		shape_text(&e, found, sizeof found);
		return err_set(err, ERR_CORRUPT, "%.160s: tensor %s: found shape %s, expected %s", src->path, name, found, expected);
	}
	n *= stack ? stack : 1;
	struct model_tensor t = {.name = e.name, .n = n, .k = k, .data = e.data, .bytes = e.bytes};
	if (dtype_parse(e.type, &t.dtype))
		return err_set(err, ERR_UNSUPPORTED, "%.120s: tensor %s: found type %s, expected one of F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K",
		               src->path, name, e.type);
	if (kern_dtype_bytes(t.dtype, (size_t)k) * n != t.bytes)
		return err_set(err, ERR_CORRUPT, "%.160s: tensor %s: found %zu bytes, expected %zu (rows of %u elements of %s)", src->path, name, t.bytes,
		               kern_dtype_bytes(t.dtype, (size_t)k) * n, k, e.type);
	*ret = t;
	return 0;
}

int model_tensor_get(const struct model_source *src, const char *name, uint32_t n, uint32_t k, struct model_tensor *ret, struct err *err)
{
	return tensor_get(src, name, 0, n, k, ret, err);
}

int model_expert_get(const struct model_source *src, const struct model_conf *c, enum model_expert_part part, uint32_t layer, uint32_t expert,
                     struct model_tensor *ret, struct err *err)
{
	static const char *const names[MODEL_EXPERT_PARTS] = {"gate", "up", "down"};
	const struct model_experts *x = &c->experts;
	uint32_t n = part == MODEL_EXPERT_DOWN ? c->hidden : x->ffn, k = part == MODEL_EXPERT_DOWN ? x->ffn : c->hidden;
	char name[96];
	struct model_tensor t;
	if (src->kind == MODEL_HF) {
		snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s_proj.weight", layer, expert, names[part]);
		return model_tensor_get(src, name, n, k, ret, err);
	}
	snprintf(name, sizeof name, "blk.%u.ffn_%s_exps.weight", layer, names[part]);
	int rc = tensor_get(src, name, x->count, n, k, &t, err);
	if (!rc) {
		t.n = n;
		t.bytes /= x->count;
		t.data = (const unsigned char *)t.data + expert * t.bytes;
		*ret = t;
	}
	return rc;
}

int model_latent_get(const struct model_source *src, const struct model_conf *c, int value, uint32_t layer, struct model_tensor *ret, struct err *err)
{
	const struct model_mla *m = &c->mla;
	char name[64];
	snprintf(name, sizeof name, "blk.%u.attn_%s_b.weight", layer, value ? "v" : "k");
	return tensor_get(src, name, c->heads, value ? m->v : m->kv_rank, value ? m->kv_rank : m->nope, ret, err);
}

int model_correction_get(const struct model_source *src, const struct model_conf *c, uint32_t layer, struct model_tensor *ret, struct err *err)
{
	char name[96];
	if (src->kind == MODEL_GGUF)
		snprintf(name, sizeof name, "blk.%u.exp_probs_b.bias", layer);
	else
		snprintf(name, sizeof name, "model.layers.%u.mlp.%s.e_score_correction_bias", layer,
		         c->family->experts == FAMILY_EXPERTS_ERNIE ? "moe_statics" : "gate");
	return model_tensor_get(src, name, 1, c->experts.count, ret, err);
}

void model_tensor_drop(const struct model_tensor *t)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t from = ((uintptr_t)t->data + page - 1) & ~(page - 1), to = ((uintptr_t)t->data + t->bytes) & ~(page - 1);
	if (to > from)
		madvise((void *)from, to - from, MADV_DONTNEED);
}
