/* test_quant.c - every quantised type against values that another implementation computed (tests/data/quant: llama.cpp's Python package): the file is read,
 * each block dequantises to those floats bit for bit, and so do the rows that each variant of the kernels gives back from its own layout. */
#include "format/gguf.h"
#include "kernels/cpu/cpu.h"
#include "kernels_rig.h"

enum { ROWS = 5, COLUMNS = 256 };

static const struct { const char *name; enum kern_dtype dtype; uint32_t number; } types[] = {
	{"F16", KERN_F16, 1}, {"BF16", KERN_BF16, 30}, {"Q8_0", KERN_Q8_0, 8}, {"Q4_0", KERN_Q4_0, 2}, {"Q4_1", KERN_Q4_1, 3}, {"Q5_0", KERN_Q5_0, 6},
	{"Q5_1", KERN_Q5_1, 7}, {"Q4_K", KERN_Q4_K, 12}, {"Q5_K", KERN_Q5_K, 13}, {"Q6_K", KERN_Q6_K, 14},
	{"MXFP4", KERN_MXFP4, 39},
};

static struct gguf *data_open(void)
{
	struct gguf *g = NULL;
	struct err err = {0};
	ck_assert_msg(gguf_open("tests/data/quant/blocks.gguf", &g, &err) == 0, "%s", err.text);
	return g;
}

static void tensors_of(const struct gguf *g, size_t type, const struct gguf_tensor **ret_blocks, const struct gguf_tensor **ret_values)
{
	const struct gguf_tensor *b = gguf_tensor_find(g, types[type].name), *v = gguf_tensor_find(g, LABEL("%s.f32", types[type].name));
	ck_assert_msg(b && v && b->ggml_type == types[type].number && v->ggml_type == 0, "%s", types[type].name);
	ck_assert_msg(b->ne[0] == COLUMNS && b->ne[1] == ROWS && b->bytes == kern_dtype_bytes(types[type].dtype, ROWS * COLUMNS), "%s", types[type].name);
	*ret_blocks = b;
	*ret_values = v;
}

START_TEST(blocks_as_elsewhere)
{
	struct gguf *g = data_open();
	for (size_t i = 0; i < LEN(types); i++) {
		const struct gguf_tensor *b, *v;
		float got[ROWS * COLUMNS];
		tensors_of(g, i, &b, &v);
		cpu_dequantise(got, types[i].dtype, b->data, LEN(got));
		same_bits(got, v->data, LEN(got), types[i].name);
	}
	gguf_close(&g);
}
END_TEST

START_TEST(rows_as_elsewhere)
{
	static const char *const variants[] = {"reference", "plain", "avx2", "avx512"};
	static const uint32_t tokens[ROWS] = {4, 0, 3, 1, 2};
	struct gguf *g = data_open();
	for (size_t v = 0; v < LEN(variants); v++)
		for (size_t i = 0; i < LEN(types); i++) {
			const struct gguf_tensor *b, *values;
			struct dev dev;
			float got[ROWS * COLUMNS];
			if (!dev_try(&dev, variants[v], 1))
				continue;
			tensors_of(g, i, &b, &values);
			struct kern_weight *w = weight(&dev, types[i].dtype, ROWS, COLUMNS, b->data);
			ck_assert_int_eq(OPS->embed(dev.s, got, w, tokens, ROWS), 0);
			for (int r = 0; r < ROWS; r++)
				same_bits(got + (size_t)r * COLUMNS, (const float *)values->data + tokens[r] * COLUMNS, COLUMNS, LABEL("%s %s row %u", variants[v], types[i].name, tokens[r]));
			OPS->weight_destroy(dev.d, &w);
			dev_close(&dev);
		}
	gguf_close(&g);
}
END_TEST

int main(void)
{
	const TTest *const tests[] = {blocks_as_elsewhere, rows_as_elsewhere};
	return run_suite("quant", tests, LEN(tests));
}
