/* model_fp8.c - see model_fp8.h. Three ways of quantising are read, by their names in config.json:
 * "fp8" (DeepSeek-V3, Qwen3: a scale for each block of 128 x 128; without weight_block_size for the
 * tensor or each row), "fbgemm_fp8" (for each row) and "compressed-tensors" (for the tensor, each
 * row or each block).
 *
 * A tensor's own type decides whether it is in FP8, so lists of modules that were not converted are
 * not needed. Scales of activations are not used: activations keep their precision. Every scale is
 * checked when its tensor is found. Errors are returned and name file and key, or tensor and
 * value. */
#include "engine/model_fp8.h"
#include "format/safetensors.h"
#include "kernels/numbers.h"
#include "util/mem.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK = KERN_E4M3_VALUES };

/* --- config.json --------------------------------------------------------- */

static void expect_block(struct hf_reader *r, const json_t *o, const char *key)
{
	const json_t *v = hf_get(o, key);
	for (size_t i = 0; i < 2; i++)
		if (!r->rc &&
		    (json_array_size(v) != 2 || json_integer_value(json_array_get(v, i)) != BLOCK))
			hf_fail(r, key, v, "[%d,%d]", BLOCK, BLOCK);
}

/* One of compressed-tensors' groups of layers. */
static unsigned read_group(struct hf_reader *r, const json_t *weights)
{
	static const struct {
		const char *name;
		unsigned scales;
	} strategies[] = {{"tensor", MODEL_FP8_TENSOR},
	                  {"channel", MODEL_FP8_ROW},
	                  {"block", MODEL_FP8_BLOCK}};
	const json_t *strategy = hf_get(weights, "strategy");
	unsigned scales = 0;
	hf_need_u32(r, weights, "num_bits", 8, 8);
	hf_expect(r, weights, "type", "float");
	if (!hf_may_bool(r, weights, "symmetric", 1))
		hf_fail(r, "symmetric", hf_get(weights, "symmetric"), "true");
	for (size_t i = 0; json_is_string(strategy) && i < 3; i++)
		if (strcmp(json_string_value(strategy), strategies[i].name) == 0)
			scales = strategies[i].scales;
	if (!scales)
		hf_fail(r, "strategy", strategy, "\"tensor\", \"channel\" or \"block\"");
	if (scales == MODEL_FP8_BLOCK)
		expect_block(r, weights, "block_structure");
	return scales;
}

/* Transforms rotate the weights; the activations would have to be rotated as well. */
static unsigned read_groups(struct hf_reader *r, const json_t *q)
{
	json_t *groups = json_object_get(q, "config_groups"), *group;
	const json_t *transforms = hf_get(q, "transform_config");
	const char *name, *in = r->in;
	char within[120];
	unsigned scales = 0;
	hf_expect(r, q, "format", "float-quantized");
	if (transforms && (!json_is_object(transforms) || json_object_size(transforms)))
		hf_fail(r, "transform_config", transforms, "{}: transforms are not supported");
	if (!json_object_size(groups))
		hf_fail(r, "config_groups", groups, "an object of groups");
	r->in = within;
	json_object_foreach(groups, name, group) {
		snprintf(within, sizeof within, "%sconfig_groups.%.60s.weights.", in, name);
		scales |= read_group(r, hf_get(group, "weights"));
	}
	r->in = in;
	return scales;
}

void model_fp8_read(struct hf_reader *r, const json_t *config, struct model_source *src)
{
	const json_t *q = hf_get(config, "quantization_config"), *v = hf_get(q, "quant_method");
	const char *method = json_string_value(v);
	if (!q)
		return;
	r->in = "quantization_config.";
	if (method && strcmp(method, "fp8") == 0) {
		hf_expect(r, q, "fmt", "e4m3");
		src->fp8_scales = MODEL_FP8_TENSOR | MODEL_FP8_ROW;
		if (hf_get(q, "weight_block_size")) {
			expect_block(r, q, "weight_block_size");
			src->fp8_scales = MODEL_FP8_BLOCK;
		}
	} else if (method && strcmp(method, "fbgemm_fp8") == 0) {
		src->fp8_scales = MODEL_FP8_ROW;
	} else if (method && strcmp(method, "compressed-tensors") == 0) {
		src->fp8_scales = read_groups(r, q);
	} else if (!method || strcmp(method, "mxfp4") != 0) {
		hf_fail(r, "quant_method", v,
		        "\"fp8\", \"fbgemm_fp8\", \"compressed-tensors\" or \"mxfp4\"");
	}
	r->in = NULL;
}

/* --- scales -------------------------------------------------------------- */

static int has_shape(const struct st_tensor *s, uint32_t rows, uint32_t columns)
{
	uint64_t all = 1;
	for (uint32_t d = 0; d < s->dims; d++)
		all *= s->shape[d];
	int alone = all == 1 && rows == 1 && columns == 1, vector = s->dims == 1 && columns == 1;
	return alone || (vector && s->shape[0] == rows) ||
	       (s->dims == 2 && s->shape[0] == rows && s->shape[1] == columns);
}

/* Sets how many rows and columns share a scale; the shapes that would have fitted go to
 * `expected`. */
static int find_shape(unsigned allowed, const struct st_tensor *s, struct model_tensor *t,
                      char *expected, size_t size)
{
	const struct {
		enum model_fp8_scales kind;
		uint32_t rows, columns;
	} kinds[] = {{MODEL_FP8_TENSOR, t->n, t->k},
	             {MODEL_FP8_ROW, 1, t->k},
	             {MODEL_FP8_BLOCK, BLOCK, BLOCK}};
	size_t at = 0;
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		uint32_t down = (t->n + kinds[i].rows - 1) / kinds[i].rows,
				 across = (t->k + kinds[i].columns - 1) / kinds[i].columns;
		if (!(allowed & kinds[i].kind))
			continue;
		t->scales.rows = kinds[i].rows;
		t->scales.columns = kinds[i].columns;
		t->scales.across = across;
		if (s && has_shape(s, down, across))
			return 1;
		at += (size_t)snprintf(expected + at, size - at, "%s%u x %u", at ? " or " : "", down,
		                       across);
	}
	return 0;
}

static int set_type(struct model_tensor *t, const struct st_tensor *s)
{
	static const enum kern_dtype types[] = {KERN_F32, KERN_BF16, KERN_F16};
	static const char *const names[] = {"F32", "BF16", "F16"};
	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (strcmp(s->dtype, names[i]) == 0) {
			t->scales.dtype = types[i];
			return 1;
		}
	return 0;
}

void model_fp8_describe(const struct model_source *src, struct model_tensor *t)
{
	char unused[100];
	find_shape(src->fp8_scales, NULL, t, unused, sizeof unused);
}

float model_fp8_scale(const struct model_tensor *t, uint32_t row, uint32_t column)
{
	size_t down = (t->scales.first + row) / t->scales.rows,
		   at = down * t->scales.across + column / t->scales.columns;
	return t->scales.data ? kern_element(t->scales.data, t->scales.dtype, at) : (float)at;
}

static int check_scales(const struct model_source *src, const struct model_tensor *t,
                        const struct st_tensor *s, struct err *err)
{
	size_t count = s->bytes / kern_dtype_bytes(t->scales.dtype, 1);
	for (size_t i = 0; i < count; i++) {
		float f = kern_element(t->scales.data, t->scales.dtype, i);
		if (!(f > 0 && isfinite(f)))
			return err_set(err, ERR_CORRUPT,
			               "%.160s: tensor %s: found scale %g at %zu, expected a finite number "
			               "more than 0",
			               src->path, s->name, (double)f, i);
	}
	return 0;
}

int model_fp8_find(const struct model_source *src, struct model_tensor *t, struct err *err)
{
	char name[160], expected[100] = "", found[100];
	if (!src->fp8_scales)
		return err_set(err, ERR_UNSUPPORTED,
		               "%.160s: tensor %s: found type F8_E4M3, but no quantization_config in "
		               "config.json that says how it is scaled",
		               src->path, t->name);
	snprintf(name, sizeof name, "%s_scale_inv", t->name);
	const struct st_tensor *s = st_tensor_find(src->file, name);
	if (!s) {
		snprintf(name, sizeof name, "%s_scale", t->name);
		s = st_tensor_find(src->file, name);
	}
	int fits = find_shape(src->fp8_scales, s, t, expected, sizeof expected);
	if (!s)
		return err_set(err, ERR_NOTFOUND,
		               "%.160s: tensor %s: found neither _scale_inv nor _scale for it, expected %s",
		               src->path, t->name, expected);
	model_shape_text(s->dims, s->shape, found, sizeof found);
	if (!fits)
		return err_set(err, ERR_CORRUPT, "%.160s: tensor %s: found shape %s, expected %s",
		               src->path, s->name, found, expected);
	if (!set_type(t, s))
		return err_set(err, ERR_UNSUPPORTED,
		               "%.160s: tensor %s: found type %s, expected F32, F16 or BF16", src->path,
		               s->name, s->dtype);
	t->scales.data = s->data;
	return check_scales(src, t, s, err);
}

/* --- rows ---------------------------------------------------------------- */

/* The scales of a row's blocks, which are those of the row before unless `row` is the first of its
 * own. */
static void row_scales(const struct model_tensor *t, uint32_t row, float *scales)
{
	for (uint32_t c = 0; c < t->k; c += BLOCK)
		scales[c / BLOCK] = c % t->scales.columns ? scales[c / BLOCK - 1]
		                                          : model_fp8_scale(t, row, c);
}

void model_fp8_rows(const struct model_tensor *t, uint32_t first, uint32_t count,
                    unsigned char *out)
{
	const unsigned char *codes = (const unsigned char *)t->data + (size_t)first * t->k;
	uint32_t blocks = (t->k + BLOCK - 1) / BLOCK, rest = t->k % BLOCK;
	float *scales = mem_array(blocks, sizeof *scales);
	for (uint32_t r = 0; r < count; r++) {
		if (r == 0 || (t->scales.first + first + r) % t->scales.rows == 0)
			row_scales(t, first + r, scales);
		for (uint32_t b = 0; b < t->k / BLOCK; b++, codes += BLOCK, out += 4 + BLOCK) {
			memcpy(out, &scales[b], 4);
			memcpy(out + 4, codes, BLOCK);
		}
		if (rest) {
			memcpy(out, &scales[blocks - 1], 4);
			memcpy(out + 4, codes, rest);
			memset(out + 4 + rest, 0, BLOCK - rest);
			codes += rest;
			out += 4 + BLOCK;
		}
	}
	free(scales);
}
