/* family_qwen2.c - Qwen 2 and 2.5: biases on q, k and v. */
#include "engine/family.h"

const struct family family_qwen2 = {
	.name = {"qwen2", "qwen2"},
	.rope = {KERN_ROPE_HALF, KERN_ROPE_HALF},
	.window = FAMILY_WINDOW_BY_FLAG,
	.bias = {.qkv = FAMILY_ALWAYS},
};
