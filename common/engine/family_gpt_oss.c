/* family_gpt_oss.c - gpt-oss: a window in every other layer, an attention sink per head, experts
 * with biases and a clamped activation. Published folders store experts in MXFP4, with the rows of
 * gate and up interleaved in one tensor. */
#include "engine/family.h"
#include "format/safetensors.h"
#include "util/mem.h"

#include <math.h>
#include <stdio.h>

enum { BLOCK = 32, CODES = BLOCK / 2 }; /* values of an MXFP4 block, and bytes of their codes */

static void quirks(struct model_conf *c)
{
	c->act = KERN_SWIGLU_CLAMPED;
	c->attn_sinks = 1;
	c->experts.bias = 1;
	c->experts.normalise = 1; /* equals a softmax over the chosen logits */
}

static void read_gguf(struct gguf_reader *r, struct model_conf *c)
{
	meta_experts(r, c, MODEL_SOFTMAX);
	quirks(c);
}

/* Checks a number that is built into the activation. */
static void expect_number(struct hf_reader *r, const json_t *o, const char *key, double want)
{
	if (fabs(hf_may_number(r, o, key, 0, want) - want) > 1e-6)
		hf_fail(r, key, hf_get(o, key), "%g", want);
}

static void read_hf(struct hf_reader *r, const json_t *o, struct model_conf *c)
{
	struct model_experts *x = &c->experts;
	*x = (struct model_experts){.groups = 1, .top_groups = 1, .scale = 1.0f, .ffn = c->ffn};
	x->count = hf_need_u32(r, o, "num_local_experts", 1, KERN_EXPERTS_MAX);
	x->active = hf_need_u32(r, o, "num_experts_per_tok", 1, x->count);
	expect_number(r, o, "swiglu_alpha", 1.702);
	expect_number(r, o, "swiglu_limit", 7.0);
	for (uint32_t i = 0; i < c->layers; i++)
		c->layer[i].experts = 1;
	quirks(c);
}

/* --- experts of a folder ------------------------------------------------- */

/* Finds the bytes of all experts: shape (experts, rows, blocks), with codes also (16). */
static int find(const struct model_source *src, const char *name, uint32_t experts, uint32_t rows,
                uint32_t blocks, uint32_t codes, const unsigned char **ret, struct err *err)
{
	const struct st_tensor *t = st_tensor_find(src->file, name);
	const uint64_t want[4] = {experts, rows, blocks, codes};
	size_t bytes = (size_t)experts * rows * blocks * (codes ? codes : 1);
	int fits = t && t->dims == (codes ? 4u : 3u) && t->bytes == bytes;
	for (uint32_t i = 0; fits && i < t->dims; i++)
		fits = t->shape[i] == want[i];
	if (!fits)
		return err_set(err, t ? ERR_CORRUPT : ERR_NOTFOUND,
		               "%.160s: tensor %s: found %s, expected U8, %u x %u x %u%s", src->path, name,
		               t ? "another shape" : "none", experts, rows, blocks, codes ? " x 16" : "");
	*ret = t->data;
	return 0;
}

/* Converts one block to GGUF's layout: the scale, then values i and i + 16 of 32 in a byte, where a
 * folder has values 2 i and 2 i + 1. */
static void convert_block(unsigned char *out, const unsigned char *codes, unsigned char scale)
{
	out[0] = scale;
	for (unsigned i = 0; i < CODES; i++) {
		unsigned shift = i % 2 * 4;
		out[1 + i] = (unsigned char)((codes[i / 2] >> shift & 15) | (codes[i / 2 + 8] >> shift & 15)
		                                                                << 4);
	}
}

static int expert_get(const struct model_source *src, const struct model_conf *c,
                      enum model_expert_part part, uint32_t layer, uint32_t expert,
                      struct model_tensor *ret, struct err *err)
{
	int is_down = part == MODEL_EXPERT_DOWN, rc;
	uint32_t n = is_down ? c->hidden : c->experts.ffn, k = is_down ? c->experts.ffn : c->hidden;
	uint32_t step = is_down ? 1 : 2, rows = n * step, blocks = k / BLOCK;
	const char *what = is_down ? "down" : "gate_up";
	const unsigned char *codes, *scales;
	char name[96];
	size_t bytes = kern_dtype_bytes(KERN_MXFP4, (size_t)n * k);
	if (k % BLOCK)
		return err_set(err, ERR_UNSUPPORTED,
		               "%.160s: experts' rows: found %u elements, expected a multiple of %d",
		               src->path, k, BLOCK);
	struct model_tensor t = {
		.name = "experts", .dtype = KERN_MXFP4, .n = n, .k = k, .bytes = bytes};
	if (src->described) {
		*ret = t;
		return 0;
	}
	snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s_proj_blocks", layer, what);
	if ((rc = find(src, name, c->experts.count, rows, blocks, CODES, &codes, err)))
		return rc;
	snprintf(name, sizeof name, "model.layers.%u.mlp.experts.%s_proj_scales", layer, what);
	if ((rc = find(src, name, c->experts.count, rows, blocks, 0, &scales, err)))
		return rc;
	unsigned char *out = mem_alloc(bytes), *to = out;
	for (uint32_t r = 0; r < n; r++) {
		size_t from = ((size_t)expert * rows + r * step + (part == MODEL_EXPERT_UP)) * blocks;
		for (uint32_t b = 0; b < blocks; b++, to += 1 + CODES)
			convert_block(to, codes + (from + b) * CODES, scales[from + b]);
	}
	t.data = t.own = out;
	if (part != MODEL_EXPERT_GATE) { /* after gate, up is still read from the same bytes */
		size_t all = (size_t)rows * blocks;
		t.made_of[0].data = codes + expert * all * CODES;
		t.made_of[0].bytes = all * CODES;
		t.made_of[1].data = scales + expert * all;
		t.made_of[1].bytes = all;
	}
	*ret = t;
	return 0;
}

static void expert_bias(enum model_expert_part part, const char **ret_name, uint32_t *ret_first,
                        uint32_t *ret_step)
{
	int is_down = part == MODEL_EXPERT_DOWN;
	*ret_name = is_down ? "mlp.experts.down_proj_bias" : "mlp.experts.gate_up_proj_bias";
	*ret_first = part == MODEL_EXPERT_UP;
	*ret_step = is_down ? 1 : 2;
}

const struct family family_gpt_oss = {
	.name = {"gpt-oss", "gpt_oss"},
	.rope = {KERN_ROPE_HALF, KERN_ROPE_HALF},
	.window = FAMILY_WINDOW_BY_PATTERN,
	.window_period = 2,
	.yarn_whole = 1,
	.bias = {FAMILY_ALWAYS, FAMILY_ALWAYS, NULL},
	.rope_base = 150000,
	.names = {{MODEL_FFN_NORM, {[MODEL_GGUF] = "post_attention_norm"}},
              {MODEL_ROUTER, {[MODEL_HF] = "mlp.router"}}},
	.read_gguf = read_gguf,
	.read_hf = read_hf,
	.expert_get = expert_get,
	.expert_bias = expert_bias,
};
