/* family_llama.c - Llama 2 and 3, and models of the same architecture (SmolLM2, TinyLlama). */
#include "engine/family.h"

const struct family family_llama = {
	.name = {"llama", "llama"},
	.rope = {KERN_ROPE_INTERLEAVED, KERN_ROPE_HALF},
	.bias = {"attention_bias", "attention_bias", "mlp_bias"},
};
