/* family_glm4_moe.c - GLM 4.5 to 4.7: half of each head is rotated; experts as in DeepSeek-V3. */
#include "engine/family.h"

static void read_gguf(struct gguf_reader *r, struct model_conf *c)
{
	meta_experts(r, c, MODEL_SIGMOID);
	c->experts.norm_eps = DEEPSEEK_NORM_EPS;
}

const struct family family_glm4_moe = {
	.name = {"glm4moe", "glm4_moe"},
	.rope = {KERN_ROPE_HALF, KERN_ROPE_HALF},
	.bias = {.qkv = "attention_bias"},
	.qk_norm = "use_qk_norm",
	.rope_part = 0.5,
	.names = {{MODEL_FFN_NORM, {[MODEL_GGUF] = "post_attention_norm"}}},
	.read_gguf = read_gguf,
	.read_hf = hf_deepseek_experts,
};
