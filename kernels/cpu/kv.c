/* kv.c - stores rows of K and V in the paged pool, in the layer's type.
 *
 * The stored bytes of a row depend on that row alone: types with scales have one per token and
 * head. All variants share this file, so they write the same bytes. NaN and infinities are kept: in
 * a type with scales they make the scale, and so the whole row, NaN. */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

/* The largest magnitude, or NaN if it is NaN or infinite. Compares bits: a NaN's are above all
 * numbers'. */
static float largest(const float *src, uint32_t count)
{
	uint32_t top = 0;
	float max;
	for (uint32_t i = 0; i < count; i++) {
		uint32_t u;
		memcpy(&u, src + i, sizeof u);
		u &= 0x7fffffff;
		top = u > top ? u : top;
	}
	memcpy(&max, &top, sizeof max);
	return top < 0x7f800000 ? max : NAN;
}

/* Sets the row's scale and returns the factor for its values; 0 if they are (nearly) zero or not
 * finite. */
static float scale_for(const float *src, uint32_t count, float type_max, float *ret_scale)
{
	float max = largest(src, count);
	if (max >= 1e-30f) {
		*ret_scale = max / type_max;
		return type_max / max;
	}
	*ret_scale = isnan(max) ? max : 0.0f;
	return 0.0f;
}

static void store_i8(unsigned char *dst, float *scale, const float *src, uint32_t count)
{
	float factor = scale_for(src, count, 127.0f, scale);
	if (!factor) {
		memset(dst, 0, count);
		return;
	}
	for (uint32_t i = 0; i < count; i++) {
		/* 1.5 * 2^23: the sum's low bits are the nearest integer, ties to even */
		union {
			float f;
			uint32_t u;
		} t = {src[i] * factor + 12582912.0f};
		dst[i] = (unsigned char)t.u;
	}
}

static void store_f8(unsigned char *dst, float *scale, const float *src, uint32_t count)
{
	float factor = scale_for(src, count, 448.0f, scale);
	if (!factor) {
		memset(dst, 0, count);
		return;
	}
	for (uint32_t i = 0; i < count; i++)
		dst[i] = kern_f32_to_f8(src[i] * factor);
}

/* stores token `at` of a plane */
static void kv_store(const struct kern_kv_layer *kv, unsigned char *plane, uint32_t at,
                     const float *src)
{
	uint32_t count = kv->head_dim;
	unsigned char *dst = plane + at * kern_dtype_bytes(kv->dtype, count);
	uint16_t *half = (uint16_t *)(void *)dst;
	switch (kv->dtype) {
	case KERN_I8: store_i8(dst, cpu_kv_scales(kv, plane) + at, src, count); break;
	case KERN_F8: store_f8(dst, cpu_kv_scales(kv, plane) + at, src, count); break;
	case KERN_BF16:
		for (uint32_t i = 0; i < count; i++)
			half[i] = kern_f32_to_bf16(src[i]);
		break;
	case KERN_F16:
		for (uint32_t i = 0; i < count; i++)
			half[i] = kern_f32_to_f16(src[i]);
		break;
	default: memcpy(dst, src, count * sizeof(float));
	}
}

void cpu_kv_row(const struct kern_kv_layer *kv, uint32_t slot, const float *k, const float *v)
{
	uint32_t block = slot / kv->block_tokens, at = slot % kv->block_tokens;
	for (uint32_t h = 0; h < kv->kv_heads; h++) {
		kv_store(kv, cpu_kv_plane(kv, block, h, 0), at, k + (size_t)h * kv->head_dim);
		if (!kv->latent)
			kv_store(kv, cpu_kv_plane(kv, block, h, 1), at, v + (size_t)h * kv->head_dim);
	}
}
