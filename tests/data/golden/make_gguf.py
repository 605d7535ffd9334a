#!/usr/bin/env python3
"""make_gguf.py - writes golden models as GGUF files, in the names and conventions that llama.cpp's converter has for each family.

    make_gguf.py FOLDER ...        FOLDER/model.gguf from FOLDER/config.json and FOLDER/model.safetensors

Matrices stay BF16, vectors become F32. Conventions: q and k of llama, mistral and granite are permuted for interleaved pairs; Gemma's norms have 1 added; llama 3's
rotary scaling is a tensor of divisors. Where a golden model differs from what files of its family take for granted (Gemma's pattern, local base and attention
scale; a window under architecture llama), the key that says so is written. Needs numpy and gguf from PyPI. The same input gives the same bytes.
"""
import json
import math
import os
import struct
import sys

import gguf
import numpy as np

ARCH = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "ernie4_5": "ernie4_5", "gemma3_text": "gemma3",
        "qwen3_moe": "qwen3moe", "ernie4_5_moe": "ernie4_5-moe", "glm4_moe": "glm4moe", "deepseek_v3": "deepseek2",
        "granite": "granite", "phi3": "phi3", "gpt_oss": "gpt-oss"}
PERMUTED = ("llama", "mistral", "granite")
LATENT_IN_PARTS = True         # attn_k_b and attn_v_b, as files are written since 2025; False: attn_kv_b, as before
GLOBAL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up",
}
EXPERTS = {
    "mlp.gate": "ffn_gate_inp", "mlp.gate.e_score_correction_bias": "exp_probs_b.bias", "mlp.moe_statics.e_score_correction_bias": "exp_probs_b.bias",
    "mlp.shared_experts.gate_proj": "ffn_gate_shexp", "mlp.shared_experts.up_proj": "ffn_up_shexp", "mlp.shared_experts.down_proj": "ffn_down_shexp",
    "self_attn.q_a_proj": "attn_q_a", "self_attn.q_a_layernorm": "attn_q_a_norm", "self_attn.q_b_proj": "attn_q_b",
    "self_attn.kv_a_proj_with_mqa": "attn_kv_a_mqa", "self_attn.kv_a_layernorm": "attn_kv_a_norm", "self_attn.kv_b_proj": "attn_kv_b",
}
GEMMA = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm"}


def read_safetensors(path):
    with open(path, "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    for name, t in sorted(json.loads(data[8:8 + size]).items()):
        if name == "__metadata__":
            continue
        at, end = (8 + size + o for o in t["data_offsets"])
        yield name, np.frombuffer(data[at:end], dtype={"BF16": "<u2", "F32": "<f4", "U8": "u1"}[t["dtype"]]).reshape(t["shape"])


def gguf_name(name, family):
    stem, suffix = name.rsplit(".", 1)
    if stem in GLOBAL:
        return f"{GLOBAL[stem]}.{suffix}"
    layer, role = stem.removeprefix("model.layers.").split(".", 1)
    names = {**LAYER, **GEMMA} if family == "gemma3_text" else {**LAYER, **EXPERTS}
    if family == "gpt_oss":
        names |= {"mlp.router": "ffn_gate_inp", "self_attn.sinks": "attn_sinks.weight"}
    if family in ("glm4_moe", "gpt_oss"):
        names["post_attention_layernorm"] = "post_attention_norm"
    if f"{role}.{suffix}" in names:
        return f"blk.{layer}.{names[f'{role}.{suffix}']}"
    return f"blk.{layer}.{names[role]}.{suffix}"


def for_pairs(w, heads):
    """Rows i and i + d/2 of a head become rows 2 i and 2 i + 1."""
    return np.ascontiguousarray(w.reshape(heads, 2, -1, w.shape[1]).swapaxes(1, 2).reshape(w.shape))


def write_latent(w, name, bits, c):
    """kv_b in two parts: each head's of the keys turned, then those of the values."""
    both = bits.reshape(c["num_attention_heads"], -1, bits.shape[1])
    a = c["qk_nope_head_dim"]
    for part, values in (("k_b", both[:, :a].swapaxes(1, 2)), ("v_b", both[:, a:])):
        w.add_tensor(name.replace("kv_b", part), np.ascontiguousarray(values).view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def write_mxfp4(w, layer, part, both):
    """gpt-oss: rows of gate and up take turns; values i and i + 16 of a block share a byte instead of 2 i and 2 i + 1."""
    codes, scales, bias = (both[k] for k in ("blocks", "scales", "bias"))
    values = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:-1], 32)
    blocks = np.concatenate([scales[..., None], values[..., :16] | values[..., 16:] << 4], axis=-1).reshape(*codes.shape[:2], -1)
    bias = (bias.astype(np.uint32) << 16).view(np.float32)
    for i, name in enumerate(("gate", "up") if part == "gate_up" else ("down",)):
        step = 2 if part == "gate_up" else 1
        w.add_tensor(f"blk.{layer}.ffn_{name}_exps.weight", np.ascontiguousarray(blocks[:, i::step]), raw_dtype=gguf.GGMLQuantizationType.MXFP4)
        w.add_tensor(f"blk.{layer}.ffn_{name}_exps.bias", np.ascontiguousarray(bias[:, i::step]))


def write_tensors(w, folder, c):
    family, experts, packed = c["model_type"], {}, {}
    for name, bits in read_safetensors(os.path.join(folder, "model.safetensors")):
        if family in PERMUTED and (".q_proj." in name or ".k_proj." in name):
            bits = for_pairs(bits, c["num_attention_heads"] if ".q_proj." in name else c["num_key_value_heads"])
        if family == "gpt_oss" and ".mlp.experts." in name:
            layer, rest = name.removeprefix("model.layers.").split(".mlp.experts.")
            part, kind = rest.split("_proj_")
            packed.setdefault((layer, part), {})[kind] = bits
            continue
        if ".mlp.experts." in name:
            layer, rest = name.removeprefix("model.layers.").split(".mlp.experts.")
            number, part = rest.removesuffix("_proj.weight").split(".")
            experts.setdefault((layer, part), {})[int(number)] = bits
            continue
        if bits.dtype == np.float32 or name.endswith(("mlp.gate.weight", "mlp.router.weight")):
            values = bits if bits.dtype == np.float32 else (bits.astype(np.uint32) << 16).view(np.float32)
            w.add_tensor(gguf_name(name, family), values.reshape(-1) if "bias" in name else values)
            continue
        if "kv_b_proj" in name and LATENT_IN_PARTS:
            write_latent(w, gguf_name(name, family), bits, c)
            continue
        if bits.ndim == 2:
            w.add_tensor(gguf_name(name, family), bits.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
            continue
        values = (bits.astype(np.uint32) << 16).view(np.float32)
        w.add_tensor(gguf_name(name, family), values + 1 if family == "gemma3_text" else values)
    for (layer, part), both in packed.items():
        write_mxfp4(w, layer, part, both)
    for (layer, part), each in experts.items():
        stacked = np.stack([each[i] for i in range(len(each))])
        w.add_tensor(f"blk.{layer}.ffn_{part}_exps.weight", stacked.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)


def rope_divisors(rope, d):
    out = []
    for i in range(d // 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (2 * i / d)
        low, high, original = rope["low_freq_factor"], rope["high_freq_factor"], rope["original_max_position_embeddings"]
        t = (original / wave - low) / (high - low)
        out.append(1 if wave < original / high else rope["factor"] if wave > original / low else 1 / ((1 - t) / rope["factor"] + t))
    return np.array(out, dtype=np.float32)


def write_rope(w, c, d):
    rope = c["rope_parameters"]
    if "sliding_attention" in rope:
        w.add_float32(f"{w.arch}.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
        rope = rope["full_attention"]
    w.add_rope_freq_base(rope["rope_theta"])
    w.add_rope_dimension_count(d)
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(kind))
        w.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "longrope":
        original = rope["original_max_position_embeddings"]
        factor = c["max_position_embeddings"] / original
        w.add_rope_scaling_orig_ctx_len(original)
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0)
        w.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], dtype=np.float32))
        w.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], dtype=np.float32))
    if kind == "llama3":
        w.add_tensor("rope_freqs.weight", rope_divisors(rope, d))


def write_experts(w, c):
    """Which layers have experts shows by their tensors (qwen3_moe here has a dense one between them)."""
    def put(key, *names):
        for n in names:
            if c.get(n) is not None:
                w.add_uint32(f"{w.arch}.{key}", c[n])
    if c["model_type"] == "gpt_oss":
        w.add_expert_feed_forward_length(c["intermediate_size"])
    elif "moe_intermediate_size" not in c:
        return
    put("expert_count", "num_local_experts", "moe_num_experts", "n_routed_experts")
    put("expert_used_count", "num_experts_per_tok", "moe_k")
    put("expert_feed_forward_length", "moe_intermediate_size")
    put("expert_shared_count", "n_shared_experts", "moe_num_shared_experts")
    put("expert_group_count", "n_group")
    put("expert_group_used_count", "topk_group")
    put("leading_dense_block_count", "first_k_dense_replace", "moe_layer_start_index")
    if "routed_scaling_factor" in c:
        w.add_float32(f"{w.arch}.expert_weights_scale", c["routed_scaling_factor"])
        w.add_bool(f"{w.arch}.expert_weights_norm", c["norm_topk_prob"])
        w.add_uint32(f"{w.arch}.expert_gating_func", 2)


def write_mla(w, c):
    """Lengths of the cache, as multi-query attention has it, and of the heads."""
    rope = c["rope_parameters"]
    w.add_head_count_kv(1)
    w.add_key_length(c["kv_lora_rank"] + c["qk_rope_head_dim"])
    w.add_value_length(c["kv_lora_rank"])
    w.add_uint32(f"{w.arch}.attention.key_length_mla", c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
    w.add_uint32(f"{w.arch}.attention.value_length_mla", c["v_head_dim"])
    w.add_uint32(f"{w.arch}.attention.q_lora_rank", c["q_lora_rank"])
    w.add_uint32(f"{w.arch}.attention.kv_lora_rank", c["kv_lora_rank"])
    w.add_float32(f"{w.arch}.rope.scaling.yarn_log_multiplier", 0.1 * rope["mscale_all_dim"])


def convert(folder):
    with open(os.path.join(folder, "config.json"), encoding="utf-8") as f:
        c = json.load(f)
    d = c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    w = gguf.GGUFWriter(os.path.join(folder, "model.gguf"), ARCH[c["model_type"]])
    w.add_name("golden " + os.path.basename(folder.rstrip("/")))
    w.add_block_count(c["num_hidden_layers"])
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(c["num_attention_heads"])
    if "kv_lora_rank" in c:
        write_mla(w, c)
    else:
        w.add_head_count_kv(c["num_key_value_heads"])
        w.add_key_length(d)
        w.add_value_length(d)
    write_experts(w, c)
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_uint32("tokenizer.ggml.eos_token_id", c["eos_token_id"])
    if c.get("sliding_window"):
        w.add_sliding_window(c["sliding_window"])
    if c["model_type"] == "gemma3_text":
        w.add_uint32(f"{w.arch}.attention.sliding_window_pattern", c["sliding_window_pattern"])
        w.add_attention_scale(c["query_pre_attn_scalar"] ** -0.5)
    if c["model_type"] == "granite":
        w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"])
        w.add_attention_scale(c["attention_multiplier"])
        w.add_logit_scale(c["logits_scaling"])
    write_rope(w, c, int(d * c["rope_parameters"].get("partial_rotary_factor", 1)))
    write_tensors(w, folder, c)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    for arg in sys.argv[1:]:
        convert(arg)
