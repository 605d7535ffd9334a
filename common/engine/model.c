/* model.c - see model.h: the table of families, the usual names of tensors, and checks and shapes
 * that do not depend on the file's format.
 *
 * Invariant: a description that model_open returns is within the limits below, so that products of
 * its numbers fit into size_t. Errors are returned and name the file, the field, what was found and
 * what was expected. */
#include "engine/model_fp8.h"
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

static const struct family *const families[] = {
	&family_llama,   &family_mistral,   &family_qwen2,        &family_qwen3,    &family_ernie4_5,
	&family_gemma3,  &family_qwen3_moe, &family_ernie4_5_moe, &family_glm4_moe, &family_deepseek_v3,
	&family_granite, &family_phi3,      &family_gpt_oss,
};
#define FAMILIES (sizeof families / sizeof *families)

static const struct role {
	const char *name[MODEL_SOURCES];   /* without layer and suffix */
	const char *suffix[MODEL_SOURCES]; /* NULL: "weight" */
} roles[MODEL_ROLES] = {
	[MODEL_EMBED] = {{"token_embd", "model.embed_tokens"}},
	[MODEL_NORM] = {{"output_norm", "model.norm"}},
	[MODEL_HEAD] = {{"output", "lm_head"}},
	[MODEL_ATTN_NORM] = {{"attn_norm", "input_layernorm"}},
	[MODEL_Q] = {{"attn_q", "self_attn.q_proj"}},
	[MODEL_K] = {{"attn_k", "self_attn.k_proj"}},
	[MODEL_V] = {{"attn_v", "self_attn.v_proj"}},
	[MODEL_O] = {{"attn_output", "self_attn.o_proj"}},
	[MODEL_Q_NORM] = {{"attn_q_norm", "self_attn.q_norm"}},
	[MODEL_K_NORM] = {{"attn_k_norm", "self_attn.k_norm"}},
	[MODEL_SINKS] = {{"attn_sinks", "self_attn"}, {"weight", "sinks"}},
	[MODEL_ATTN_POST_NORM] = {{"post_attention_norm", "post_attention_layernorm"}},
	[MODEL_FFN_NORM] = {{"ffn_norm", "post_attention_layernorm"}},
	[MODEL_GATE] = {{"ffn_gate", "mlp.gate_proj"}},
	[MODEL_UP] = {{"ffn_up", "mlp.up_proj"}},
	[MODEL_DOWN] = {{"ffn_down", "mlp.down_proj"}},
	[MODEL_FFN_POST_NORM] = {{"post_ffw_norm", "post_feedforward_layernorm"}},
	[MODEL_Q_A] = {{"attn_q_a", "self_attn.q_a_proj"}},
	[MODEL_Q_A_NORM] = {{"attn_q_a_norm", "self_attn.q_a_layernorm"}},
	[MODEL_Q_B] = {{"attn_q_b", "self_attn.q_b_proj"}},
	[MODEL_KV_A] = {{"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"}},
	[MODEL_KV_A_NORM] = {{"attn_kv_a_norm", "self_attn.kv_a_layernorm"}},
	[MODEL_KV_B] = {{"attn_kv_b", "self_attn.kv_b_proj"}},
	[MODEL_ROUTER] = {{"ffn_gate_inp", "mlp.gate"}},
	[MODEL_CORRECTION] = {{"exp_probs_b", "mlp.gate"}, {"bias", "e_score_correction_bias"}},
	[MODEL_SHARED_GATE] = {{"ffn_gate_shexp", "mlp.shared_experts.gate_proj"}},
	[MODEL_SHARED_UP] = {{"ffn_up_shexp", "mlp.shared_experts.up_proj"}},
	[MODEL_SHARED_DOWN] = {{"ffn_down_shexp", "mlp.shared_experts.down_proj"}},
};

const struct family *family_find(enum model_source_kind kind, const char *name, size_t len,
                                 struct err *err)
{
	char known[200] = "";
	for (size_t i = 0; i < FAMILIES; i++) {
		const char *f = families[i]->name[kind];
		if (!f)
			continue;
		if (strlen(f) == len && memcmp(f, name, len) == 0)
			return families[i];
		size_t at = strlen(known);
		snprintf(known + at, sizeof known - at, "%s%s", i ? ", " : "", f);
	}
	err_set(err, ERR_UNSUPPORTED, "architecture: found %.*s, expected one of: %s",
	        (int)(len > 60 ? 60 : len), name, known);
	return NULL;
}

void model_add_eos(struct model_conf *c, int64_t id)
{
	int skip = id < 0 || id >= c->vocab || c->n_eos == MODEL_EOS_MAX;
	for (uint32_t i = 0; i < c->n_eos; i++)
		skip |= c->eos[i] == id;
	if (!skip)
		c->eos[c->n_eos++] = (uint32_t)id;
}

void family_defaults(struct model_conf *c)
{
	c->rope_style = c->family->rope[c->source];
	c->embed_scale = c->residual_scale = c->logit_scale = 1.0f;
	c->attn_scale = (float)(1.0 / sqrt((double)c->head_dim));
	c->ropes = c->family->local_rope ? 2 : 1;
}

/* The tensor that contains this role's matrix among others; NULL: the matrix has its own tensor. */
static const struct family_stack *stack_of(const struct model_conf *c, enum model_role role)
{
	for (size_t i = 0; i < sizeof c->family->stacks / sizeof *c->family->stacks; i++) {
		const struct family_stack *s = &c->family->stacks[i];
		for (uint32_t k = 0; k < s->count; k++)
			if (s->role[k] == role)
				return s;
	}
	return NULL;
}

static const char *role_name(const struct model_conf *c, enum model_role role)
{
	const struct family *f = c->family;
	const struct family_stack *s = stack_of(c, role);
	if (s)
		return s->name[c->source];
	for (size_t i = 0; i < sizeof f->names / sizeof *f->names; i++)
		if (f->names[i].role == role && f->names[i].name[c->source])
			return f->names[i].name[c->source];
	return roles[role].name[c->source];
}

void model_tensor_name(const struct model_conf *c, enum model_role role, uint32_t layer,
                       const char *suffix, char *out, size_t size)
{
	const char *name = role_name(c, role);
	if (role <= MODEL_ROLE_LAST_GLOBAL)
		snprintf(out, size, "%s.%s", name, suffix);
	else
		snprintf(out, size, "%s.%u.%s.%s", c->source == MODEL_GGUF ? "blk" : "model.layers", layer,
		         name, suffix);
}

int model_has_role(const struct model_conf *c, enum model_role role, uint32_t layer)
{
	int experts = role > MODEL_ROLE_LAST_GLOBAL && c->layer[layer].experts,
		mla = c->mla.kv_rank != 0;
	switch (role) {
	case MODEL_HEAD: return !c->tied;
	case MODEL_Q: return !mla || !c->mla.q_rank;
	case MODEL_K:
	case MODEL_V: return !mla;
	case MODEL_Q_NORM:
	case MODEL_K_NORM: return c->qk_norm;
	case MODEL_SINKS: return c->attn_sinks;
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
	case MODEL_CORRECTION: return experts && c->experts.correction;
	case MODEL_SHARED_GATE:
	case MODEL_SHARED_UP:
	case MODEL_SHARED_DOWN: return experts && c->experts.shared_ffn;
	default: return 1;
	}
}

void model_role_shape(const struct model_conf *c, enum model_role role, uint32_t *ret_n,
                      uint32_t *ret_k)
{
	const struct model_mla *m = &c->mla;
	uint32_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim,
			 o = m->kv_rank ? c->heads * m->v : q, shared = c->experts.shared_ffn;
	const uint32_t shapes[MODEL_ROLES][2] = {
		[MODEL_EMBED] = {c->vocab, c->hidden},
		[MODEL_NORM] = {1, c->hidden},
		[MODEL_HEAD] = {c->vocab, c->hidden},
		[MODEL_ATTN_NORM] = {1, c->hidden},
		[MODEL_Q] = {q, c->hidden},
		[MODEL_K] = {kv, c->hidden},
		[MODEL_V] = {kv, c->hidden},
		[MODEL_O] = {c->hidden, o},
		[MODEL_Q_NORM] = {1, c->head_dim},
		[MODEL_K_NORM] = {1, c->head_dim},
		[MODEL_SINKS] = {1, c->heads},
		[MODEL_ATTN_POST_NORM] = {1, c->hidden},
		[MODEL_FFN_NORM] = {1, c->hidden},
		[MODEL_GATE] = {c->ffn, c->hidden},
		[MODEL_UP] = {c->ffn, c->hidden},
		[MODEL_DOWN] = {c->hidden, c->ffn},
		[MODEL_FFN_POST_NORM] = {1, c->hidden},
		[MODEL_Q_A] = {m->q_rank, c->hidden},
		[MODEL_Q_A_NORM] = {1, m->q_rank},
		[MODEL_Q_B] = {q, m->q_rank},
		[MODEL_KV_A] = {m->kv_rank + m->rope, c->hidden},
		[MODEL_KV_A_NORM] = {1, m->kv_rank},
		[MODEL_KV_B] = {c->heads * (m->nope + m->v), m->kv_rank},
		[MODEL_ROUTER] = {c->experts.count, c->hidden},
		[MODEL_CORRECTION] = {1, c->experts.count},
		[MODEL_SHARED_GATE] = {shared, c->hidden},
		[MODEL_SHARED_UP] = {shared, c->hidden},
		[MODEL_SHARED_DOWN] = {c->hidden, shared},
	};
	*ret_n = shapes[role][0];
	*ret_k = shapes[role][1];
}

/* --- opening ------------------------------------------------------------- */

/* A number of the description and its limits. */
struct limit {
	const char *name;
	uint32_t v, min, max;
};

static int check_limits(const struct limit *l, size_t n, struct err *err)
{
	for (size_t i = 0; i < n; i++)
		if (l[i].v < l[i].min || l[i].v > l[i].max)
			return err_set(err, ERR_UNSUPPORTED, "%s: found %u, expected %u..%u", l[i].name, l[i].v,
			               l[i].min, l[i].max);
	return 0;
}

static int check_sizes(const struct model_conf *c, struct err *err)
{
	const struct limit limits[] = {
		{"layers", c->layers, 1, KV_LAYERS_MAX},
		{"hidden size", c->hidden, 1, MODEL_HIDDEN_MAX},
		{"heads", c->heads, 1, MODEL_HEADS_MAX},
		{"KV heads", c->kv_heads, 1, c->heads},
		{"head size", c->head_dim, 1, MODEL_HEAD_DIM_MAX},
		{"feed-forward size", c->ffn, 1, MODEL_FFN_MAX},
		{"vocabulary", c->vocab, 1, 1u << 22},
		{"context", c->context, 1, MODEL_CONTEXT_MAX},
	};
	int rc = check_limits(limits, sizeof limits / sizeof *limits, err);
	if (rc)
		return rc;
	if (c->heads % c->kv_heads)
		return err_set(err, ERR_CORRUPT, "KV heads: found %u, expected a divisor of %u heads",
		               c->kv_heads, c->heads);
	if (c->head_dim % 4)
		return err_set(err, ERR_UNSUPPORTED, "head size: found %u, expected a multiple of 4",
		               c->head_dim);
	if (!(c->norm_eps > 0 && c->norm_eps < 1))
		return err_set(err, ERR_CORRUPT,
		               "norm epsilon: found %g, expected more than 0 and less than 1", c->norm_eps);
	if (!(c->attn_scale > 0 && c->attn_scale <= 1e3f))
		return err_set(err, ERR_CORRUPT,
		               "attention scale: found %g, expected more than 0 and at most 1000",
		               c->attn_scale);
	const float scales[] = {c->embed_scale, c->residual_scale, c->logit_scale};
	for (size_t i = 0; i < sizeof scales / sizeof *scales; i++)
		if (!(scales[i] > 0 && scales[i] <= 1e6f))
			return err_set(err, ERR_CORRUPT,
			               "scale of embeddings, residuals or logits: found %g, "
			               "expected more than 0 and at most 1e6",
			               scales[i]);
	for (uint32_t i = 0; i < c->n_eos; i++)
		if (c->eos[i] >= c->vocab)
			return err_set(err, ERR_CORRUPT,
			               "end-of-sequence id: found %u, expected less than the vocabulary's %u",
			               c->eos[i], c->vocab);
	return 0;
}

static int check_ropes(const struct model_conf *c, struct err *err)
{
	if (c->rope_dims < 2 || c->rope_dims % 2 || c->rope_dims > c->head_dim)
		return err_set(err, ERR_CORRUPT,
		               "rotary size: found %u, expected an even number up to the head size %u",
		               c->rope_dims, c->head_dim);
	for (uint32_t t = 0; t < c->ropes; t++) {
		const struct model_rope *r = &c->rope[t];
		if (!(r->scale > 0 && r->scale <= 1e3f))
			return err_set(
				err, ERR_CORRUPT,
				"rotary attention factor: found %g, expected more than 0 and at most 1000",
				r->scale);
		for (uint32_t i = 0; i < c->rope_dims / 2; i++)
			if (!isfinite(r->inv_freq[i]) || r->inv_freq[i] < 0)
				return err_set(err, ERR_CORRUPT,
				               "rotary frequency %u: found %g, expected a finite number from 0", i,
				               r->inv_freq[i]);
	}
	return 0;
}

static int check_experts(const struct model_conf *c, struct err *err)
{
	const struct model_experts *x = &c->experts;
	const struct model_mla *m = &c->mla;
	const struct limit experts[] = {
		{"experts", x->count, 1, KERN_EXPERTS_MAX},
		{"experts of a token", x->active, 1,
	     x->count < KERN_EXPERTS_USED_MAX ? x->count : KERN_EXPERTS_USED_MAX},
		{"an expert's feed-forward size", x->ffn, 1, 1u << 20},
		{"shared experts' feed-forward size", x->shared_ffn, 0, 1u << 20},
		{"groups of experts", x->groups, 1, x->count},
		{"groups of a token", x->top_groups, 1, x->groups},
	};
	const struct limit mla[] = {
		{"rank of KV", m->kv_rank, 1, 1u << 16},
		{"rank of queries", m->q_rank, 0, 1u << 16},
		{"size without rotation", m->nope, 1, MODEL_HEAD_DIM_MAX},
		{"size with rotation", m->rope, 2, MODEL_HEAD_DIM_MAX},
		{"value size", m->v, 1, MODEL_HEAD_DIM_MAX},
	};
	int rc = x->count ? check_limits(experts, sizeof experts / sizeof *experts, err) : 0;
	if (!rc && m->kv_rank)
		rc = check_limits(mla, sizeof mla / sizeof *mla, err);
	if (!rc && m->kv_rank &&
	    (m->kv_rank % 4 || m->rope % 4 || m->kv_rank + m->rope > MODEL_LATENT_MAX))
		rc = err_set(err, ERR_UNSUPPORTED,
		             "rank of KV and size with rotation: found %u and %u, expected multiples of 4, "
		             "together at most %u",
		             m->kv_rank, m->rope, MODEL_LATENT_MAX);
	if (!rc && x->count && x->groups > 1 && x->count / x->groups < 2)
		rc = err_set(err, ERR_CORRUPT,
		             "groups of experts: found %u, expected at most half of %u experts", x->groups,
		             x->count);
	if (!rc && x->count && x->count % x->groups)
		rc = err_set(err, ERR_CORRUPT,
		             "groups of experts: found %u, expected a divisor of %u experts", x->groups,
		             x->count);
	if (!rc && x->count && x->active > x->count / x->groups * x->top_groups)
		rc = err_set(err, ERR_CORRUPT,
		             "experts of a token: found %u, expected at most the %u of %u groups",
		             x->active, x->count / x->groups * x->top_groups, x->top_groups);
	if (!rc && x->count && !(isfinite(x->scale) && x->norm_min >= 0 && isfinite(x->norm_min)))
		rc = err_set(err, ERR_CORRUPT,
		             "factor and least sum of experts' weights: found %g and %g, expected numbers, "
		             "the sum at least 0",
		             x->scale, x->norm_min);
	return rc;
}

static int open_source(const char *path, int described, struct model_conf *ret_conf,
                       struct model_source *ret_src, struct err *err)
{
	struct stat st;
	if (stat(path, &st) < 0)
		return err_set(err, ERR_IO, "%.200s: %m", path);
	struct model_conf c = {0};
	struct model_source src = {.path = path, .described = described};
	int rc = described             ? model_hf_describe(path, &c, &src, err)
	         : S_ISDIR(st.st_mode) ? model_hf_open(path, &c, &src, err)
	                               : model_gguf_open(path, &c, &src, err);
	if (!rc && ((rc = check_sizes(&c, err)) || (rc = check_ropes(&c, err)) ||
	            (rc = check_experts(&c, err))))
		err_prefix(err, "%.160s", path);
	if (rc) {
		model_close(&src);
		return rc;
	}
	*ret_conf = c;
	*ret_src = src;
	return 0;
}

int model_open(const char *path, struct model_conf *ret_conf, struct model_source *ret_src,
               struct err *err)
{
	return open_source(path, 0, ret_conf, ret_src, err);
}

int model_describe(const char *path, struct model_conf *ret_conf, struct model_source *ret_src,
                   struct err *err)
{
	size_t n = strlen(path);
	return open_source(path, n > 5 && strcmp(path + n - 5, ".json") == 0, ret_conf, ret_src, err);
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

/* --- tensors ------------------------------------------------------------- */

static void entry_of_gguf(const struct gguf_tensor *t, struct model_entry *e)
{
	*e = (struct model_entry){.name = t->name,
	                          .type = gguf_ggml_type_name(t->ggml_type),
	                          .dims = t->dims,
	                          .data = t->data,
	                          .bytes = t->bytes};
	for (uint32_t d = 0; d < t->dims; d++)
		e->shape[d] = t->ne[t->dims - 1 - d];
}

static void entry_of_st(const struct st_tensor *t, struct model_entry *e)
{
	*e = (struct model_entry){
		.name = t->name, .type = t->dtype, .dims = t->dims, .data = t->data, .bytes = t->bytes};
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

/* Both formats use the kernels' names of the types, in capitals. */
static int dtype_parse(const char *name, enum kern_dtype *ret)
{
	for (unsigned t = 0; t < KERN_WEIGHT_DTYPES; t++)
		if (strcasecmp(name, kern_dtype_name((enum kern_dtype)t)) == 0) {
			*ret = (enum kern_dtype)t;
			return 0;
		}
	return ERR_UNSUPPORTED;
}

void model_shape_text(uint32_t dims, const uint64_t shape[4], char *out, size_t size)
{
	size_t at = 0;
	snprintf(out, size, "scalar");
	for (uint32_t d = 0; d < dims && at < size; d++)
		at += (size_t)snprintf(out + at, size - at, "%s%" PRIu64, d ? " x " : "", shape[d]);
}

/* Bytes of k elements in the file. */
static size_t row_bytes(const struct model_tensor *t, uint32_t k)
{
	return t->dtype == KERN_E4M3 ? k : kern_dtype_bytes(t->dtype, k);
}

/* The tensor that a description has where a file would be asked. In a folder in FP8 the embeddings,
 * the head, routers and all vectors usually are not. */
static void described(const struct model_source *src, const char *name, uint32_t n, uint32_t k,
                      struct model_tensor *ret)
{
	static const char *const plain[] = {"embed_tokens", "lm_head", ".gate.weight", ".router."};
	struct model_tensor t = {.name = "(described)", .dtype = src->type, .n = n, .k = k};
	int fp8 = n > 1 && src->fp8_scales;
	for (size_t i = 0; i < sizeof plain / sizeof *plain; i++)
		fp8 = fp8 && !strstr(name, plain[i]);
	if (fp8) {
		t.dtype = KERN_E4M3;
		model_fp8_describe(src, &t);
	}
	t.bytes = (size_t)n * row_bytes(&t, k);
	*ret = t;
}

/* Finds a tensor. stack 0: a matrix (n, k) or a vector; otherwise a tensor of `stack` matrices (n,
 * k) one after another, returned as one matrix of all their rows. */
static int tensor_get(const struct model_source *src, const char *name, uint32_t stack, uint32_t n,
                      uint32_t k, struct model_tensor *ret, struct err *err)
{
	struct model_entry e;
	char expected[60];
	if (src->described) {
		described(src, name, n * (stack ? stack : 1), k, ret);
		return 0;
	}
	if (stack)
		snprintf(expected, sizeof expected, "%u x %u x %u", stack, n, k);
	else
		snprintf(expected, sizeof expected, "%u x %u", n, k);
	if (!entry_find(src, name, &e))
		return err_set(err, ERR_NOTFOUND, "%.160s: tensor %s: found none, expected %s", src->path,
		               name, expected);
	int vector = !stack && e.dims == 1 && n == 1 && e.shape[0] == k;
	int matrix = !stack && e.dims == 2 && e.shape[0] == n && e.shape[1] == k;
	int stacked = stack && e.dims == 3 && e.shape[0] == stack && e.shape[1] == n && e.shape[2] == k;
	if (!vector && !matrix && !stacked) {
		char found[100];
		model_shape_text(e.dims, e.shape, found, sizeof found);
		return err_set(err, ERR_CORRUPT, "%.160s: tensor %s: found shape %s, expected %s",
		               src->path, name, found, expected);
	}
	n *= stack ? stack : 1;
	struct model_tensor t = {.name = e.name, .n = n, .k = k, .data = e.data, .bytes = e.bytes};
	if (dtype_parse(e.type, &t.dtype))
		return err_set(err, ERR_UNSUPPORTED,
		               "%.120s: tensor %s: found type %s, expected one of F32, F16, BF16, F8_E4M3, "
		               "Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K, MXFP4",
		               src->path, name, e.type);
	if (row_bytes(&t, k) * n != t.bytes)
		return err_set(
			err, ERR_CORRUPT,
			"%.160s: tensor %s: found %zu bytes, expected %zu (rows of %u elements of %s)",
			src->path, name, t.bytes, row_bytes(&t, k) * n, k, e.type);
	if (t.dtype == KERN_E4M3) {
		int rc = model_fp8_find(src, &t, err);
		if (rc)
			return rc;
	}
	*ret = t;
	return 0;
}

int model_tensor_get(const struct model_source *src, const char *name, uint32_t n, uint32_t k,
                     struct model_tensor *ret, struct err *err)
{
	return tensor_get(src, name, 0, n, k, ret, err);
}

static int role_get(const struct model_source *src, const struct model_conf *c,
                    enum model_role role, uint32_t layer, const char *suffix, int bias,
                    struct model_tensor *ret, struct err *err)
{
	const struct family_stack *s = stack_of(c, role);
	uint32_t n, k, first = 0, all = 0, rows;
	char name[96];
	struct model_tensor t;
	for (uint32_t i = 0; s && i < s->count; i++) {
		model_role_shape(c, s->role[i], &rows, &k);
		first = s->role[i] == role ? all : first;
		all += rows;
	}
	model_role_shape(c, role, &n, &k);
	all = s ? all : n;
	model_tensor_name(c, role, layer, suffix, name, sizeof name);
	int rc = model_tensor_get(src, name, bias ? 1 : all, bias ? all : k, &t, err);
	if (rc)
		return rc;
	size_t row = row_bytes(&t, bias ? 1 : k);
	t.n = bias ? 1 : n;
	t.k = bias ? n : k;
	t.data = t.data ? (const unsigned char *)t.data + first * row : NULL;
	t.bytes = n * row;
	t.scales.first = first;
	*ret = t;
	return 0;
}

int model_role_get(const struct model_source *src, const struct model_conf *c, enum model_role role,
                   uint32_t layer, struct model_tensor *ret, struct err *err)
{
	const char *suffix = roles[role].suffix[c->source];
	return role_get(src, c, role, layer, suffix ? suffix : "weight", 0, ret, err);
}

int model_bias_get(const struct model_source *src, const struct model_conf *c, enum model_role role,
                   uint32_t layer, struct model_tensor *ret, struct err *err)
{
	return role_get(src, c, role, layer, "bias", 1, ret, err);
}

int model_expert_get(const struct model_source *src, const struct model_conf *c,
                     enum model_expert_part part, uint32_t layer, uint32_t expert,
                     struct model_tensor *ret, struct err *err)
{
	static const char *const names[MODEL_EXPERT_PARTS] = {"gate", "up", "down"};
	const struct model_experts *x = &c->experts;
	uint32_t n = part == MODEL_EXPERT_DOWN ? c->hidden : x->ffn,
			 k = part == MODEL_EXPERT_DOWN ? x->ffn : c->hidden;
	char name[96];
	struct model_tensor t;
	if (src->kind == MODEL_HF && c->family->expert_get)
		return c->family->expert_get(src, c, part, layer, expert, ret, err);
	if (src->kind == MODEL_HF) {
		snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%u.%s_proj.weight", layer, expert,
		         names[part]);
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

int model_expert_bias_get(const struct model_source *src, const struct model_conf *c,
                          enum model_expert_part part, uint32_t layer, struct model_tensor *ret,
                          uint32_t *ret_first, uint32_t *ret_step, struct err *err)
{
	static const char *const names[MODEL_EXPERT_PARTS] = {"ffn_gate_exps.bias", "ffn_up_exps.bias",
	                                                      "ffn_down_exps.bias"};
	uint32_t n = part == MODEL_EXPERT_DOWN ? c->hidden : c->experts.ffn, first = 0, step = 1;
	const char *role = names[part];
	char name[96];
	if (src->kind == MODEL_HF)
		c->family->expert_bias(part, &role, &first, &step);
	snprintf(name, sizeof name, "%s.%u.%s", src->kind == MODEL_GGUF ? "blk" : "model.layers", layer,
	         role);
	int rc = model_tensor_get(src, name, c->experts.count, n * step, ret, err);
	if (!rc) {
		*ret_first = first;
		*ret_step = step;
	}
	return rc;
}

int model_latent_get(const struct model_source *src, const struct model_conf *c, int value,
                     uint32_t layer, struct model_tensor *ret, struct err *err)
{
	const struct model_mla *m = &c->mla;
	char name[64];
	snprintf(name, sizeof name, "blk.%u.attn_%s_b.weight", layer, value ? "v" : "k");
	return tensor_get(src, name, c->heads, value ? m->v : m->kv_rank, value ? m->kv_rank : m->nope,
	                  ret, err);
}

int model_correction_get(const struct model_source *src, const struct model_conf *c, uint32_t layer,
                         struct model_tensor *ret, struct err *err)
{
	return model_role_get(src, c, MODEL_CORRECTION, layer, ret, err);
}

void model_tensor_drop(const struct model_tensor *t)
{
	uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	uintptr_t from = (uintptr_t)t->data & ~(page - 1);
	uintptr_t to = ((uintptr_t)t->data + t->bytes + page - 1) & ~(page - 1);
	if (t->bytes &&
	    t->data) /* if a neighbour uses part of a page, the page is read from the file again */
		madvise((void *)from, to - from, MADV_DONTNEED);
}
