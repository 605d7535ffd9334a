/* family_phi3.c - Phi-3, Phi-3.5 and Phi-4 (mini): q, k, v in one tensor, gate and up in another;
 * part of each head is rotated, with LongRoPE's lists of divisors for the frequencies. */
#include "engine/family.h"

const struct family family_phi3 = {
	.name = {"phi3", "phi3"},
	.rope = {KERN_ROPE_HALF, KERN_ROPE_HALF},
	.window = FAMILY_WINDOW_ALL,
	.stacks =
		{
			{{"attn_qkv", "self_attn.qkv_proj"}, 3, {MODEL_Q, MODEL_K, MODEL_V}},
			{{"ffn_up", "mlp.gate_up_proj"}, 2, {MODEL_GATE, MODEL_UP}},
		},
};
