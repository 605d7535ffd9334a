/* test_conform_formats.c - every quantised type against values that another implementation computed
 * (tests/data/quant: llama.cpp's Python package): the reference's floats and the rows that each
 * target gives back, bit for bit. And the reference's own conversions by hand. */
/* run: fast */
#include "format/gguf.h"
#include "tests/conform/conform.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 5, COLUMNS = 256 };

static const struct {
	const char *name;
	enum kern_dtype dtype;
	uint32_t number;
} types[] = {
	{"F16", KERN_F16, 1},    {"BF16", KERN_BF16, 30},   {"Q8_0", KERN_Q8_0, 8},
	{"Q4_0", KERN_Q4_0, 2},  {"Q4_1", KERN_Q4_1, 3},    {"Q5_0", KERN_Q5_0, 6},
	{"Q5_1", KERN_Q5_1, 7},  {"Q4_K", KERN_Q4_K, 12},   {"Q5_K", KERN_Q5_K, 13},
	{"Q6_K", KERN_Q6_K, 14}, {"MXFP4", KERN_MXFP4, 39},
};

static void tensors_of(const struct gguf *g, size_t type, const struct gguf_tensor **ret_blocks,
                       const struct gguf_tensor **ret_values)
{
	char name[32];
	snprintf(name, sizeof name, "%s.f32", types[type].name);
	const struct gguf_tensor *b = gguf_tensor_find(g, types[type].name),
							 *v = gguf_tensor_find(g, name);
	EXPECT(b && v && b->ggml_type == types[type].number && v->ggml_type == 0,
	       "%s: not in the file, or of another type", types[type].name);
	EXPECT(b->ne[0] == COLUMNS && b->ne[1] == ROWS &&
	           b->bytes == kern_dtype_bytes(types[type].dtype, ROWS * COLUMNS),
	       "%s: another shape", types[type].name);
	*ret_blocks = b;
	*ret_values = v;
}

static uint32_t embed_record(const struct job *j, const struct live *l, struct kern_op *op)
{
	(void)j;
	op->kind = KERN_OP_EMBED;
	op->embed.y = l->field[0];
	op->embed.w = l->w[0];
	return 1;
}

static void embed_row(const struct job *j, const struct precision *p, const struct result *r,
                      uint32_t row, struct expect *e)
{
	(void)p, (void)r;
	for (uint32_t i = 0; i < COLUMNS; i++)
		e->value[0][i] = (double)j->matrix[0].value[j->world.token[row] * COLUMNS + i];
}

/* The values are the file's, not those of the reference. */
static struct job *file_job(size_t type, const struct gguf_tensor *b, const struct gguf_tensor *v)
{
	static const struct sequence seq[SEQUENCES] = {{0, 11}};
	struct world *w = conform_alloc(1, sizeof *w);
	world_init(w, seq, SEQUENCES, 16, ROWS);
	struct job *j = job_new(KERN_OP_EMBED, w, "blocks of another implementation, %s",
	                        types[type].name);
	job_field(j, "y", OUT, KERN_ROWS_ALL, 1, COLUMNS, 0);
	job_matrices(j, 1);
	j->matrix[0] = (struct matrix){types[type].dtype,
	                               ROWS,
	                               COLUMNS,
	                               0,
	                               conform_alloc(b->bytes, 1),
	                               conform_alloc(ROWS * COLUMNS, sizeof(float)),
	                               1};
	memcpy(j->matrix[0].data, b->data, b->bytes);
	memcpy(j->matrix[0].value, v->data, ROWS * COLUMNS * sizeof(float));
	j->record = embed_record;
	j->row = embed_row;
	return j;
}

CONFORM_TEST(blocks_as_elsewhere)
{
	struct gguf *g = NULL;
	struct err err = {0};
	EXPECT(gguf_open("tests/data/quant/blocks.gguf", &g, &err) == 0, "%s", err.text);
	for (size_t i = 0; i < LEN(types); i++) {
		size_t mark = conform_mark();
		const struct gguf_tensor *b, *v;
		tensors_of(g, i, &b, &v);
		for (uint32_t at = 0; at < ROWS * COLUMNS; at++) {
			float got = (float)format_value(types[i].dtype, b->data, at),
				  want = ((const float *)(const void *)v->data)[at];
			EXPECT(!memcmp(&got, &want, 4), "%s: value %u is %.9g, want %.9g", types[i].name, at,
			       (double)got, (double)want);
		}
		job_check(file_job(i, b, v));
		conform_release(mark);
	}
	gguf_close(&g);
}

/* --- by hand ------------------------------------------------------------- */

/* Blocks written by hand, the values by the definition of the format. */
CONFORM_TEST(blocks_by_hand)
{
	static const struct {
		enum kern_dtype type;
		unsigned char block[210];
		uint32_t at;
		double want;
	} cases[] = {
		/* d = 0.5, q = -3 */
		{KERN_Q8_0, {0x00, 0x38, [2 + 31] = 0xfd}, 31, -1.5},
		/* low nibble 11 - 8 */
		{KERN_Q4_0, {0x00, 0x3c, [2 + 5] = 0x2b}, 5, 3},
		/* high nibble 2 - 8 */
		{KERN_Q4_0, {0x00, 0x3c, [2 + 5] = 0x2b}, 21, -6},
		/* d = 2, m = -1, 15 */
		{KERN_Q4_1, {0x00, 0x40, 0x00, 0xbc, [4 + 15] = 0x7f}, 15, 29},
		{KERN_Q4_1, {0x00, 0x40, 0x00, 0xbc, [4 + 15] = 0x7f}, 31, 13},
		/* value 128 + 32 * 3 + 7 = 231: high nibble of ql[64 + 32 + 7], bits 6-7 of qh[32 + 7],
		 * scale 8 + 6 */
		{KERN_Q6_K, {[103] = 0x50, [128 + 39] = 0xc0, [192 + 14] = 0xfe, [209] = 0x3c}, 231, -42},
		{KERN_Q6_K, {[103] = 0x50, [128 + 39] = 0xc0, [192 + 15] = 0x03, [209] = 0x3c}, 255, -96},
		/* d = 1, bit 5 and low nibble: 27 - 16 */
		{KERN_Q5_0, {0x00, 0x3c, [2] = 0x20, [6 + 5] = 0x2b}, 5, 11},
		/* bit 21 is not set */
		{KERN_Q5_0, {0x00, 0x3c, [2] = 0x20, [6 + 5] = 0x2b}, 21, -14},
		/* d = 2, m = -1, bit 31: 23 */
		{KERN_Q5_1, {0x00, 0x40, 0x00, 0xbc, [7] = 0x80, [8 + 15] = 0x7f}, 31, 45},
		{KERN_Q5_1, {0x00, 0x40, 0x00, 0xbc, [7] = 0x80, [8 + 15] = 0x7f}, 15, 29},
		/* group 2: byte 4 + 2, offset byte 4 + 6; value 64 + 7 in the low nibble of byte 16 + 32
		 * + 7: 2 * 5 * 11 - 1 * 3 */
		{KERN_Q4_K, {0x00, 0x40, 0x00, 0x3c, [6] = 5, [10] = 3, [55] = 0x2b}, 71, 107},
		/* group 5: low nibbles of byte 4 + 9, high pairs above bytes 4 + 1 and 4 + 5; value 160
		 * + 7: 2 * (16 + 5) * 2 - 1 * (48 + 9) */
		{KERN_Q4_K,
	     {0x00, 0x40, 0x00, 0x3c, [5] = 0x40, [9] = 0xc0, [13] = 0x95, [16 + 64 + 7] = 0x2b},
	     167,
	     27},
		/* the same, the fifth bit of value 7 of group 5: 2 * 21 * 18 - 57 */
		{KERN_Q5_K,
	     {0x00, 0x40, 0x00, 0x3c, [5] = 0x40, [9] = 0xc0, [13] = 0x95, [16 + 7] = 0x20,
	      [48 + 64 + 7] = 0x2b},
	     167,
	     699},
		/* e = 129: times 4; low nibble 11: -1.5, high nibble 7: 6; e = 0: 2^-127; e = 255: NaN */
		{KERN_MXFP4, {129, [1 + 5] = 0x7b}, 5, -6},
		{KERN_MXFP4, {129, [1 + 5] = 0x7b}, 21, 24},
		{KERN_MXFP4, {0, [1] = 0x01}, 0, 0x1p-128},
		/* s = 0.5: -448, the smallest, -1 */
		{KERN_E4M3, {[3] = 0x3f, [4 + 127] = 0xfe}, 127, -224},
		{KERN_E4M3, {[3] = 0x3f, [4 + 5] = 0x01}, 5, 0x1p-10},
		{KERN_E4M3, {[3] = 0x3f, [4 + 6] = 0xb8}, 6, -0.5},
		{KERN_I8, {0x81}, 0, -127},
		{KERN_F8, {0x7e}, 0, 448},
		{KERN_F8, {0x81}, 0, -0x1p-9},
		{KERN_F8, {0x08}, 0, 0x1p-6},
		{KERN_F8, {0x38}, 0, 1},
		{KERN_F16, {0x01, 0x00}, 0, 0x1p-24},
		{KERN_F16, {0xff, 0xfb}, 0, -65504},
		{KERN_BF16, {0x40, 0xc0}, 0, -3},
	};
	for (size_t i = 0; i < LEN(cases); i++) {
		double got = format_value(cases[i].type, cases[i].block, cases[i].at);
		EXPECT(got == cases[i].want, "%s, case %zu: value %u is %g, want %g",
		       kern_dtype_name(cases[i].type), i, cases[i].at, got, cases[i].want);
	}
}

/* nearest, ties to even */
CONFORM_TEST(rounding_by_hand)
{
	static const struct {
		enum kern_dtype type;
		float in;
		uint16_t want;
	} cases[] = {
		{KERN_BF16, 1.0f, 0x3f80},          {KERN_BF16, 1.00390625f, 0x3f80},
		{KERN_BF16, 1.01171875f, 0x3f82},   {KERN_BF16, -3.4e38f, 0xff80},
		{KERN_F16, 1.0f, 0x3c00},           {KERN_F16, 1.00048828125f, 0x3c00},
		{KERN_F16, 1.00146484375f, 0x3c02}, {KERN_F16, 65519.0f, 0x7bff},
		{KERN_F16, 65520.0f, 0x7c00},       {KERN_F16, 5.9604645e-8f, 0x0001},
		{KERN_F16, -6.1035156e-5f, 0x8400}, {KERN_F16, 2.9802322e-8f, 0x0000},
		{KERN_BF16, 0x1p-133f, 0x0001},     {KERN_BF16, -INFINITY, 0xff80},
		{KERN_F16, INFINITY, 0x7c00},       {KERN_BF16, -0.0f, 0x8000},
	};
	for (size_t i = 0; i < LEN(cases); i++) {
		uint16_t got = format_bits(cases[i].type, format_round(cases[i].type, (double)cases[i].in));
		EXPECT(got == cases[i].want, "case %zu: %g is %04x, want %04x", i, (double)cases[i].in, got,
		       cases[i].want);
	}
	for (uint32_t u = 0; u < 65536; u++) /* every value of both types is itself */
		for (int t = KERN_F16; t <= KERN_BF16; t++) {
			unsigned char b[2] = {(unsigned char)u, (unsigned char)(u >> 8)};
			double v = format_value((enum kern_dtype)t, b, 0);
			EXPECT(isnan(v) ||
			           format_bits((enum kern_dtype)t, format_round((enum kern_dtype)t, v)) == u,
			       "%s %04x does not round to itself", kern_dtype_name((enum kern_dtype)t), u);
		}
}

CONFORM_TEST(sizes_of_types)
{
	static const struct {
		enum kern_dtype type;
		size_t count, bytes;
	} cases[] = {
		{KERN_F32, 3, 12},       {KERN_F16, 3, 6},          {KERN_Q8_0, 64, 68},
		{KERN_Q8_0, 33, 0},      {KERN_Q4_0, 32, 18},       {KERN_Q4_1, 32, 20},
		{KERN_Q6_K, 512, 420},   {KERN_Q6_K, 32, 0},        {KERN_MXFP4, 64, 34},
		{KERN_MXFP4, 16, 0},     {KERN_I8, 7, 7},           {KERN_F8, 5, 5},
		{KERN_F32, SIZE_MAX, 0}, {KERN_DTYPE_COUNT, 32, 0}, {KERN_E4M3, 1, 132},
		{KERN_E4M3, 256, 264},   {KERN_E4M3, 257, 396},     {KERN_E4M3, SIZE_MAX, 0},
	};
	for (size_t i = 0; i < LEN(cases); i++)
		EXPECT(kern_dtype_bytes(cases[i].type, cases[i].count) == cases[i].bytes,
		       "%zu of %s are %zu bytes, want %zu", cases[i].count, kern_dtype_name(cases[i].type),
		       kern_dtype_bytes(cases[i].type, cases[i].count), cases[i].bytes);
	EXPECT(!strcmp(kern_dtype_name(KERN_Q4_1), "q4_1"), "q4_1 is called %s",
	       kern_dtype_name(KERN_Q4_1));
}

/* The reference's formulas at points that are known. */
CONFORM_TEST(formulas_by_hand)
{
	EXPECT(fabs(ref_act(KERN_SILU, 1) - 0.73105857863000490) < 1e-15 && ref_act(KERN_SILU, 0) == 0,
	       "SiLU of 1 is %.17g", ref_act(KERN_SILU, 1));
	EXPECT(fabs(ref_act(KERN_GELU_TANH, 1) - 0.84119199060827668) < 1e-15, "GELU of 1 is %.17g",
	       ref_act(KERN_GELU_TANH, 1));
	EXPECT(fabs(ref_act(KERN_GELU_TANH, -1) + 0.15880800939172324) < 1e-15, "GELU of -1 is %.17g",
	       ref_act(KERN_GELU_TANH, -1));
	/* 7 / (1 + exp(-11.914)); up to 7 and down to -7, and 1 more */
	EXPECT(fabs(ref_act(KERN_SWIGLU_CLAMPED, 9) - 6.9999531283) < 1e-9 &&
	           ref_act(KERN_SWIGLU_CLAMPED, 9) == ref_act(KERN_SWIGLU_CLAMPED, 7),
	       "clamped SwiGLU of 9 is %.17g", ref_act(KERN_SWIGLU_CLAMPED, 9));
	EXPECT(ref_up(KERN_SWIGLU_CLAMPED, 8) == 8 && ref_up(KERN_SWIGLU_CLAMPED, -9) == -6 &&
	           ref_up(KERN_SWIGLU_CLAMPED, 2) == 3 && ref_up(KERN_SILU, 9) == 9,
	       "clamped up");
	float w[] = {1, 2, 3, -1, 0, 0.5f};
	struct matrix m = {KERN_F32, 2, 3, 0, NULL, w, 1};
	double x[] = {2, -1, 4}, y[2], bound[2];
	ref_product(&(struct precision){0}, &m, x, y, bound);
	EXPECT(y[0] == 12 && y[1] == 0 && bound[0] > 0 && bound[0] < 1e-5,
	       "the product is %g and %g, bound %g", y[0], y[1], bound[0]);
	struct matrix b = {KERN_BF16, 2, 3, 0, NULL, w, 1};
	ref_product(&(struct precision){.bf16_activations = true}, &b, (double[]){1.00390625, 0, 0}, y,
	            bound);
	EXPECT(y[0] == 1, "the product of a rounded activation is %.9g", y[0]);
}
