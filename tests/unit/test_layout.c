/* test_layout.c - sizes, offsets and names of KV layouts, and shapes that must be refused. */
#include "kv/layout.h"
#include "util/err.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

static struct kv_layout l;
static char text[KV_LAYOUT_TEXT_MAX];

TEST(uniform_sizes)
{
	static const struct {
		uint32_t layers, heads, dim, tokens;
		enum kv_type type;
		size_t piece, block;
		const char *text;
	} t[] = {
		{30, 3, 64, 64, KV_BF16, 49152, 1474560, "30x3x64:bf16:64"},
		{1, 1, 1, 1, KV_F32, 8, 8, "1x1x1:f32:1"},
		{2, 8, 128, 16, KV_F16, 65536, 131072, "2x8x128:f16:16"},
		{256, 1, 16, 64, KV_F32, 8192, 2097152, "256x1x16:f32:64"},
		{1, 1, 1u << 22, 64, KV_BF16, 1u << 30, 1u << 30, "1x1x4194304:bf16:64"},
		{30, 3, 64, 64, KV_INT8, 26112, 783360, "30x3x64:int8:64"},
		{2, 1, 36, 7, KV_FP8, 560, 1120, "2x1x36:fp8:7"},
	};
	for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
		ck_assert_int_eq(
			kv_layout_uniform(&l, t[i].layers, t[i].heads, t[i].dim, t[i].tokens, t[i].type), 0);
		ck_assert_uint_eq(l.piece_bytes[0], t[i].piece);
		ck_assert_uint_eq(l.block_bytes, t[i].block);
		kv_layout_text(&l, text, sizeof text);
		ck_assert_str_eq(text, t[i].text);
	}
}

/* One latent a token: half the pieces, half the scales; and no text that a layout of keys and
 * values has. */
TEST(latent_sizes)
{
	static const struct {
		uint32_t layers, width, tokens;
		enum kv_type type;
		size_t piece;
	} t[] = {{61, 576, 64, KV_BF16, 73728},
	         {3, 32, 16, KV_F32, 2048},
	         {3, 32, 16, KV_INT8, 576},
	         {2, 36, 7, KV_FP8, 280}};
	for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
		char other[KV_LAYOUT_TEXT_MAX];
		ck_assert_int_eq(
			kv_layout_uniform(&l, t[i].layers, 1, t[i].width / 2, t[i].tokens, t[i].type), 0);
		kv_layout_text(&l, other, sizeof other);
		ck_assert_int_eq(kv_layout_latent(&l, t[i].layers, t[i].width, t[i].tokens, t[i].type), 0);
		ck_assert_uint_eq(l.piece_bytes[0], t[i].piece);
		ck_assert_uint_eq(l.block_bytes, t[i].layers * t[i].piece);
		ck_assert_uint_eq(kv_piece_offset(&l, 5, 1, 2), 7 * t[i].piece);
		kv_layout_text(&l, text, sizeof text);
		ck_assert_str_ne(text, other);
	}
	ck_assert_int_eq(kv_layout_latent(&l, 3, 0, 16, KV_BF16), ERR_INVALID);
	ck_assert_int_eq(kv_layout_latent(&l, 257, 32, 16, KV_BF16), ERR_INVALID);
	ck_assert_int_eq(kv_layout_latent(&l, 3, UINT32_MAX, 16, KV_BF16), ERR_INVALID);
	ck_assert_int_eq(kv_layout_latent(&l, 3, 32, 16, KV_FP8 + 1), ERR_INVALID);
}

TEST(refused)
{
	static const struct {
		uint32_t layers, heads, dim, tokens;
		enum kv_type type;
	} t[] = {
		{0, 3, 64, 64, KV_BF16},
		{257, 3, 64, 64, KV_BF16},
		{UINT32_MAX, 3, 64, 64, KV_BF16},
		{30, 0, 64, 64, KV_BF16},
		{30, 3, 0, 64, KV_BF16},
		{30, 3, 64, 0, KV_BF16},
		{30, 3, 64, 64, KV_FP8 + 1},
		{30, 3, 64, 64, (enum kv_type) - 1},
		{1, 1, 1u << 22, 65, KV_BF16},
		{2, 1, 1u << 22, 64, KV_BF16},
		{1, UINT32_MAX, UINT32_MAX / 4, UINT32_MAX, KV_F32},
		{1, 1, UINT32_MAX, 1, KV_F32},
		{1, 1u << 31, 1u << 29, 1u << 31, KV_F32},
		{1, 1, (1u << 31) + 32, 1, KV_BF16},
	};
	for (size_t i = 0; i < sizeof t / sizeof *t; i++)
		ck_assert_int_eq(kv_layout_uniform(&l, t[i].layers, t[i].heads, t[i].dim, t[i].tokens,
		                                   t[i].type),
		                 ERR_INVALID);
	memset(&l, 0, sizeof l); /* bytes of a token that are 65,536 when cut to 64 bits */
	l.layers = l.block_tokens = 1;
	l.layer[0] = (struct kv_layer){.heads = UINT32_MAX - 65534,
	                               .k_bytes = UINT32_MAX,
	                               .v_bytes = 65537};
	ck_assert_int_eq(kv_layout_finish(&l), ERR_INVALID);
	memset(&l, 0xFF, sizeof l); /* what a broken peer may say */
	ck_assert_int_eq(kv_layout_finish(&l), ERR_INVALID);
	l.layers = 256;
	l.block_tokens = 64;
	l.type = KV_BF16;
	ck_assert_int_eq(kv_layout_finish(&l), ERR_INVALID);
}

/* Each byte of a pool belongs to exactly one (layer, block), pieces of one layer are neighbours. */
TEST(offsets_tile_the_pool)
{
	const uint32_t blocks = 5;
	memset(&l, 0, sizeof l);
	l.layers = 3;
	l.block_tokens = 4;
	l.layer[0] = (struct kv_layer){2, 16, 16, 0};
	l.layer[1] = (struct kv_layer){1, 24, 0, 0}; /* one latent for K and V */
	l.layer[2] = (struct kv_layer){4, 8, 8, 2};
	ck_assert_int_eq(kv_layout_finish(&l), 0);
	ck_assert_uint_eq(l.piece_bytes[0], 256);
	ck_assert_uint_eq(l.piece_bytes[1], 96);
	ck_assert_uint_eq(l.piece_bytes[2], 288);
	size_t at = 0;
	for (uint32_t layer = 0; layer < 3; layer++)
		for (uint32_t b = 0; b < blocks; b++) {
			ck_assert_uint_eq(kv_piece_offset(&l, blocks, layer, b), at);
			at += l.piece_bytes[layer];
		}
	ck_assert_uint_eq(at, l.block_bytes * blocks);
}

TEST(unlike_layers_have_unlike_texts)
{
	char other[KV_LAYOUT_TEXT_MAX];
	kv_layout_uniform(&l, 3, 3, 64, 64, KV_BF16);
	l.layer[1].v_bytes = 64;
	ck_assert_int_eq(kv_layout_finish(&l), 0);
	kv_layout_text(&l, text, sizeof text);
	/* by Python's hashlib */
	ck_assert_str_eq(text, "3xb636f11c9ad79a7df4215cae2e095ca9:bf16:64");
	l.layer[1].v_bytes = 128;
	l.layer[2].scale_bytes = 2;
	kv_layout_finish(&l);
	kv_layout_text(&l, other, sizeof other);
	ck_assert_str_ne(text, other);
	kv_layout_uniform(&l, 3, 3, 64, 64, KV_INT8);
	/* not those of the type */
	l.layer[0].scale_bytes = l.layer[1].scale_bytes = l.layer[2].scale_bytes = 0;
	kv_layout_finish(&l);
	kv_layout_text(&l, other, sizeof other);
	ck_assert_str_ne(other, "3x3x64:int8:64");
	memset(other, 'x', sizeof other);
	kv_layout_text(&l, other, 8);
	ck_assert_uint_eq(strlen(other), 7);
}

TEST(type_names)
{
	static const char *const names[] = {"bf16", "f16", "f32", "int8", "fp8"};
	enum kv_type t;
	static const size_t bytes[] = {2, 2, 4, 1, 1}, scale_bytes[] = {0, 0, 0, 4, 4};
	for (int i = 0; i < 5; i++) {
		ck_assert_int_eq(kv_type_parse(names[i], &t), 0);
		ck_assert_int_eq((int)t, i);
		ck_assert_str_eq(kv_type_name(t), names[i]);
		ck_assert_uint_eq(kv_type_bytes(t), bytes[i]);
		ck_assert_uint_eq(kv_type_scale_bytes(t), scale_bytes[i]);
	}
	ck_assert_int_eq(kv_type_parse("int4", &t), ERR_INVALID);
	ck_assert_int_eq(kv_type_parse("", &t), ERR_INVALID);
	ck_assert_uint_eq(kv_type_bytes((enum kv_type)99), 0);
	ck_assert_uint_eq(kv_type_scale_bytes((enum kv_type)99), 0);
	ck_assert_str_eq(kv_type_name((enum kv_type)99), "?");
}
