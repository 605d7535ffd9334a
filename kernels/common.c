/* common.c - what all backends agree on: names and sizes of the element types. */
#include "kernels/kernels.h"

static const struct { const char *name; unsigned block_values, block_bytes; } dtypes[KERN_DTYPE_COUNT] = {
	[KERN_F32] = { "f32", 1, 4 },
	[KERN_F16] = { "f16", 1, 2 },
	[KERN_BF16] = { "bf16", 1, 2 },
	[KERN_Q8_0] = { "q8_0", 32, 34 },
	[KERN_Q4_0] = { "q4_0", 32, 18 },
	[KERN_Q4_1] = { "q4_1", 32, 20 },
	[KERN_Q6_K] = { "q6_k", 256, 210 },
	[KERN_Q5_0] = { "q5_0", 32, 22 },
	[KERN_Q5_1] = { "q5_1", 32, 24 },
	[KERN_Q4_K] = { "q4_k", 256, 144 },
	[KERN_Q5_K] = { "q5_k", 256, 176 },
	[KERN_MXFP4] = { "mxfp4", 32, 17 },
	[KERN_I8] = { "int8", 1, 1 },
	[KERN_F8] = { "fp8", 1, 1 },
};

size_t kern_dtype_bytes(enum kern_dtype t, size_t count)
{
	if ((unsigned)t >= KERN_DTYPE_COUNT || count % dtypes[t].block_values)
		return 0;
	size_t blocks = count / dtypes[t].block_values;
	return blocks > SIZE_MAX / dtypes[t].block_bytes ? 0 : blocks * dtypes[t].block_bytes;
}

const char *kern_dtype_name(enum kern_dtype t)
{
	return (unsigned)t < KERN_DTYPE_COUNT ? dtypes[t].name : "unknown";
}

size_t kern_kv_scale_bytes(enum kern_dtype t)
{
	return t == KERN_I8 || t == KERN_F8 ? sizeof(float) : 0;
}

size_t kern_kv_plane_bytes(const struct kern_kv_layer *kv)
{
	return (kern_dtype_bytes(kv->dtype, kv->head_dim) + kern_kv_scale_bytes(kv->dtype)) * kv->block_tokens;
}
