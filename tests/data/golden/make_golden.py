#!/usr/bin/env python3
"""Make tiny random-weight models and golden outputs for checking an inference engine.

usage: python make_golden.py OUTDIR [id ...]        (no id: all models)

For each id this writes OUTDIR/id/ with config.json, config_v4.json, model.safetensors,
prompt.json, golden.json, logits.f32 and, for some ids, logprobs.f32; make_gguf.py beside it
makes model.gguf of that. To add a model, add an entry to MODELS. golden.json names the versions
that made it: the models up to deepseek_v3 torch 2.9.1, those after it torch 2.15.0, all with
transformers 5.23.0.

logits.f32 is raw little-endian float32: 7 rows of 320 values (short prompt), then 16 (the last
positions of the long prompt). config_v4.json has the older key names of the same configuration.

gpt_oss has its experts in MXFP4, as published: model.safetensors has blocks (two values a byte, the
lower bits first) and scales, rounded before anything is computed; GGUF has no key for the limit of
the activation, so it is the published one, 7, and weights are such that it is reached.

The -fp8 models have their projections in E4M3, with the scales and the quantization_config of
published folders; the outputs are those of the dequantised float32 weights. They are small
cut-outs of blocks of 128 x 128: rows and columns end inside a block, and heads of kv_b cross one.

phi3-longrope uses the long factors for every position, as serving engines do when the model's
context is longer than the original one; transformers by itself takes the short ones as long as
a sequence is short, so that its cache would be wrong from the position on where it changes.

Needs torch, transformers (5.x), safetensors and numpy. Runs on CPU, one thread, float32.
Weights are drawn from numpy's PCG64, seeded with (model seed, CRC-32 of the tensor's name),
so each tensor depends on the seed and on its name only. Seeds are tried from 0 upwards until
the conditions in `try_seed` hold, so that a rerun with the same versions picks the same seed.
"""
import copy, json, math, os, re, sys, zlib
import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

torch.set_num_threads(1)
torch.set_grad_enabled(False)

VOCAB, STEPS, KEEP, PROMPT_SEED = 320, 48, 16, 1234
MIN_GAP, MIN_ROUTE, MIN_DISTINCT = 5e-3, 1e-3, 16
MAX_SEEDS = 4000          # most seeds fall at the first cheap check
LOGIT_STD = 3.0

COMMON = dict(vocab_size=VOCAB, bos_token_id=1, eos_token_id=2, pad_token_id=0,
              num_hidden_layers=3, max_position_embeddings=512)


def rope(theta, **more):
    return dict(rope_theta=theta, **({"rope_type": "default"} | more))


# id -> model_type, config values, and options for the weights (see `draw`):
#   qk: gain of the q and k projections (or of the q/k norms), router: gain of the router,
#   embed: std of the embedding after any scaling, plus_one: norms multiply by (1 + w)
MODELS = {
    "llama": dict(type="llama", cfg=dict(
        hidden_size=96, intermediate_size=192, num_attention_heads=6, num_key_value_heads=2,
        rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters=rope(10000.0, rope_type="llama3", factor=8.0, low_freq_factor=1.0,
                             high_freq_factor=4.0, original_max_position_embeddings=64))),
    "llama-tied": dict(type="llama", logprobs=True, cfg=dict(
        hidden_size=144, intermediate_size=112, num_attention_heads=9, num_key_value_heads=3,
        rms_norm_eps=1e-5, tie_word_embeddings=True, rope_parameters=rope(100000.0))),
    "mistral": dict(type="mistral", cfg=dict(
        hidden_size=64, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2,
        head_dim=24, sliding_window=24, rms_norm_eps=1e-3, tie_word_embeddings=False,
        rope_parameters=rope(10000.0))),
    "qwen2": dict(type="qwen2", cfg=dict(
        hidden_size=96, intermediate_size=160, num_attention_heads=6, num_key_value_heads=2,
        rms_norm_eps=1e-6, tie_word_embeddings=True, rope_parameters=rope(1000000.0))),
    "qwen2-yarn": dict(type="qwen2", long=300, cfg=dict(
        hidden_size=96, intermediate_size=160, num_attention_heads=3, num_key_value_heads=1,
        rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_parameters=rope(10000.0, rope_type="yarn", factor=4.0,
                             original_max_position_embeddings=128))),
    "qwen3": dict(type="qwen3", logprobs=True, cfg=dict(
        hidden_size=80, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters=rope(1000000.0))),
    "ernie4_5": dict(type="ernie4_5", cfg=dict(
        hidden_size=80, intermediate_size=160, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, rms_norm_eps=1e-5, tie_word_embeddings=True, use_bias=False,
        rope_parameters=rope(500000.0))),
    "gemma3": dict(type="gemma3_text", plus_one=True, embed=0.3, qk=1.0, cfg=dict(
        hidden_size=96, intermediate_size=144, num_attention_heads=4, num_key_value_heads=1,
        num_hidden_layers=4, head_dim=24, query_pre_attn_scalar=8, sliding_window=16,
        sliding_window_pattern=3,
        rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters=dict(full_attention=rope(1000000.0), sliding_attention=rope(10000.0)))),
    "qwen3_moe": dict(type="qwen3_moe", router=1.5, cfg=dict(
        hidden_size=64, intermediate_size=128, moe_intermediate_size=48, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, num_experts=8, num_experts_per_tok=2,
        norm_topk_prob=True, mlp_only_layers=[1], decoder_sparse_step=1, rms_norm_eps=1e-6,
        tie_word_embeddings=False, rope_parameters=rope(1000000.0))),
    "ernie4_5_moe": dict(type="ernie4_5_moe", router=2.0, correction=0.15, cfg=dict(
        hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_attention_heads=4,
        num_key_value_heads=2, moe_num_experts=8, moe_k=3, moe_num_shared_experts=2,
        moe_layer_start_index=1, moe_layer_end_index=-1, moe_layer_interval=1, use_bias=False,
        rms_norm_eps=1e-5, tie_word_embeddings=True, rope_parameters=rope(500000.0))),
    "glm4_moe": dict(type="glm4_moe", router=1.5, correction=0.2, cfg=dict(
        hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_attention_heads=4,
        num_key_value_heads=2, head_dim=32, attention_bias=True, use_qk_norm=True,
        n_routed_experts=12, num_experts_per_tok=3, n_group=3, topk_group=2, n_shared_experts=1,
        first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=1.5,
        num_nextn_predict_layers=0, rms_norm_eps=1e-5, tie_word_embeddings=False,
        rope_parameters=rope(10000.0, partial_rotary_factor=0.5))),
    "deepseek_v3": dict(type="deepseek_v3", router=1.5, correction=0.2, cfg=dict(
        hidden_size=64, intermediate_size=128, moe_intermediate_size=24, num_attention_heads=4,
        num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=24, qk_nope_head_dim=16,
        qk_rope_head_dim=8, v_head_dim=20, n_routed_experts=12, num_experts_per_tok=3, n_group=3,
        topk_group=2, n_shared_experts=1, first_k_dense_replace=1, norm_topk_prob=True,
        routed_scaling_factor=2.5, num_nextn_predict_layers=0, rms_norm_eps=1e-6,
        tie_word_embeddings=False, rope_interleave=True,
        rope_parameters=rope(10000.0, rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0,
                             mscale=1.0, mscale_all_dim=1.0,
                             original_max_position_embeddings=128))),
    "granite": dict(type="granite", qk=3.0, embed=0.12, cfg=dict(
        hidden_size=96, intermediate_size=160, num_attention_heads=6, num_key_value_heads=2,
        rms_norm_eps=1e-5, tie_word_embeddings=True, embedding_multiplier=12.0,
        residual_multiplier=0.4, attention_multiplier=0.0625, logits_scaling=8.0,
        rope_parameters=rope(10000.0))),
    "phi3": dict(type="phi3", cfg=dict(
        hidden_size=96, intermediate_size=160, num_attention_heads=6, num_key_value_heads=2,
        sliding_window=24, rms_norm_eps=1e-5, tie_word_embeddings=False,
        original_max_position_embeddings=512,
        rope_parameters=rope(10000.0, rope_type="longrope", partial_rotary_factor=0.75,
                             original_max_position_embeddings=512,
                             short_factor=[1.0, 1.05, 1.1, 1.4, 1.9, 2.5],
                             long_factor=[1.0, 1.5, 3.0, 9.0, 20.0, 40.0]))),
    "phi3-longrope": dict(type="phi3", long_factors=True, cfg=dict(
        hidden_size=96, intermediate_size=144, num_attention_heads=4, num_key_value_heads=4,
        rms_norm_eps=1e-5, tie_word_embeddings=True, original_max_position_embeddings=64,
        rope_parameters=rope(10000.0, rope_type="longrope", partial_rotary_factor=0.5,
                             original_max_position_embeddings=64,
                             short_factor=[1.0, 1.05, 1.1, 1.4, 1.9, 2.5],
                             long_factor=[1.1, 1.5, 2.0, 4.0, 6.0, 8.0]))),
    "gpt_oss": dict(type="gpt_oss", router=1.5, mxfp4=True, cfg=dict(
        hidden_size=64, intermediate_size=64, num_attention_heads=4, num_key_value_heads=2,
        num_hidden_layers=3, head_dim=16, num_local_experts=8, num_experts_per_tok=2,
        sliding_window=16, swiglu_alpha=1.702, swiglu_limit=7.0, rms_norm_eps=1e-5,
        tie_word_embeddings=False,
        rope_parameters=rope(10000.0, rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0,
                             truncate=False, original_max_position_embeddings=128))),
    "qwen3-fp8": dict(type="qwen3", fp8=[("", "block")], cfg=dict(
        hidden_size=160, intermediate_size=192, num_attention_heads=4, num_key_value_heads=2,
        num_hidden_layers=2, head_dim=36, rms_norm_eps=1e-6, tie_word_embeddings=True,
        rope_parameters=rope(1000000.0))),
    "llama-fp8": dict(type="llama", fp8=[("self_attn", "tensor"), ("mlp", "row")], cfg=dict(
        hidden_size=144, intermediate_size=160, num_attention_heads=6, num_key_value_heads=2,
        num_hidden_layers=2, rms_norm_eps=1e-5, tie_word_embeddings=True,
        rope_parameters=rope(10000.0))),
    "deepseek_v3-fp8": dict(type="deepseek_v3", router=1.5, correction=0.2,
                            fp8=[(r"layers\.0", "block-e8m0"), ("", "block")], cfg=dict(
        hidden_size=136, intermediate_size=160, moe_intermediate_size=40, num_attention_heads=4,
        num_hidden_layers=2, num_key_value_heads=4, q_lora_rank=32, kv_lora_rank=136,
        qk_nope_head_dim=24, qk_rope_head_dim=8, v_head_dim=16, n_routed_experts=6,
        num_experts_per_tok=2, n_group=3, topk_group=2, n_shared_experts=1,
        first_k_dense_replace=1, norm_topk_prob=True, routed_scaling_factor=2.5,
        num_nextn_predict_layers=0, rms_norm_eps=1e-6, tie_word_embeddings=False,
        rope_interleave=True,
        rope_parameters=rope(10000.0, rope_type="yarn", factor=4.0, beta_fast=32.0, beta_slow=1.0,
                             mscale=1.0, mscale_all_dim=1.0,
                             original_max_position_embeddings=128))),
}


# ---------------------------------------------------------------- weights

def tensors(model):
    """Parameters (tied ones once) and the stored buffers, by name."""
    stored = set(model.state_dict())
    yield from model.named_parameters()
    yield from ((n, b) for n, b in model.named_buffers() if n in stored)


def kept_in_f32(model, name):
    """Tensors that the model class itself keeps in float32 (some routers)."""
    return any(p in name for p in (model._keep_in_fp32_modules_strict or ()))


def draw(model, spec, name, shape, rng):
    """Values of one tensor. Linear weights: N(0, gain^2 / fan_in)."""
    cfg, z = model.config, rng.standard_normal(shape).astype(np.float32)
    qk, qk_norms = spec.get("qk", 1.5), hasattr(model.model.layers[0].self_attn, "q_norm")
    scale = math.sqrt(cfg.hidden_size) if spec.get("plus_one") else getattr(cfg, "embedding_multiplier", 1.0)
    logits = LOGIT_STD * getattr(cfg, "logits_scaling", 1.0)
    embed = spec.get("embed", 0.3)
    if name.endswith("e_score_correction_bias"):
        return z * spec.get("correction", 0.1)
    if name.endswith(".bias") or name.endswith("_proj_bias"):
        return z * 0.1
    if name.endswith(".sinks"):
        return z + 1.0
    if name.endswith("experts.gate_up_proj"):       # some values pass the activation's limit
        return z * (3.0 / math.sqrt(shape[-2]))
    if name.endswith("experts.down_proj"):
        return z * (0.7 / math.sqrt(shape[-2]))
    if name.endswith("embed_tokens.weight"):
        return z * (embed / scale)
    if "norm" in name:                              # 1 + 0.1 N, times a gain for some
        gain = 1.0
        if re.search(r"\.[qk]_norm\.", name):
            gain = qk
        elif name == "model.norm.weight" and cfg.tie_word_embeddings:
            gain = logits * scale / (embed * math.sqrt(cfg.hidden_size))
        return gain * (1.0 + 0.1 * z) - (1.0 if spec.get("plus_one") else 0.0)
    gain = 1.0
    if name.endswith(("mlp.gate.weight", "mlp.router.weight")):
        gain = spec["router"]
    elif re.search(r"\.(q_proj|k_proj|q_b_proj|kv_a_proj_with_mqa|kv_b_proj)\.", name):
        gain = 1.0 if qk_norms else qk
    elif "qkv_proj" in name:                        # the rows of q and k
        v = cfg.num_key_value_heads * (cfg.hidden_size // cfg.num_attention_heads)
        gain = np.where(np.arange(shape[0]) < shape[0] - v, qk, 1.0).astype(np.float32)[:, None]
    elif "o_proj" in name:
        gain = 1.5
    elif "down_proj" in name:
        gain = 2.0
    elif name == "lm_head.weight":
        gain = logits
    return z * (gain / math.sqrt(shape[-1]))


# ---------------------------------------------------------------- MXFP4

E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def mxfp4(w):
    """OCP MX: of each 32 values of a row, codes and the exponent (plus 127) of their scale."""
    b = w.reshape(*w.shape[:-1], -1, 32)
    top = np.abs(b).max(-1, keepdims=True)
    e = np.where(top > 0, np.floor(np.log2(np.maximum(top, 1e-30))) - 2, 0)
    code = np.abs(b[..., None] / np.exp2(e)[..., None] - E2M1).argmin(-1).astype(np.uint8)
    return code, (e[..., 0] + 127).astype(np.uint8)


def rounded_mxfp4(w):
    """The nearest values; w is (experts, in, out), blocks are along in."""
    code, e = mxfp4(np.swapaxes(w, -1, -2))
    v = E2M1[code] * np.exp2(e.astype(np.float32) - 127)[..., None]
    return np.swapaxes(v.reshape(*v.shape[:-2], -1), -1, -2)


def store_mxfp4(folder):
    """Replaces the experts' matrices by blocks and scales, under the published names."""
    path, out = os.path.join(folder, "model.safetensors"), {}
    for name, t in load_file(path).items():
        if not name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            out[name] = t
            continue
        code, e = mxfp4(np.swapaxes(t.float().numpy(), -1, -2))
        out[name + "_blocks"] = torch.from_numpy(np.ascontiguousarray(code[..., 0::2] | code[..., 1::2] << 4))
        out[name + "_scales"] = torch.from_numpy(np.ascontiguousarray(e))
    save_file(out, path, metadata={"format": "pt"})
    add_config(folder, dict(quant_method="mxfp4"))


# ---------------------------------------------------------------- FP8

FP8 = {}            # of the last model that was filled: name in the file -> codes, scales, kind
FP8_SHARED = {"tensor": (1 << 20, 1 << 20), "row": (1, 1 << 20), "block": (128, 128), "block-e8m0": (128, 128)}


def is_fp8(spec, name):
    return "fp8" in spec and re.search(r"proj(_with_mqa)?(\.weight)?$", name)


def fp8(w, kind):
    """E4M3 codes, the scales, and the values; kind: what shares a scale. e8m0: powers of two."""
    (n, k), (rows, columns) = w.shape, (min(a, b) for a, b in zip(FP8_SHARED[kind], w.shape))
    padded = torch.zeros(-(-n // rows) * rows, -(-k // columns) * columns)
    padded[:n, :k] = w
    scale = padded.view(-1, rows, padded.shape[1] // columns, columns).abs().amax((1, 3)) / 448
    if kind == "block-e8m0":
        scale = torch.exp2(torch.ceil(torch.log2(scale)))
    if kind == "row":
        scale = scale.to(torch.bfloat16)
    each = scale.float().repeat_interleave(rows, 0)[:n].repeat_interleave(columns, 1)[:, :k]
    code = (w / each).clamp(-448, 448).to(torch.float8_e4m3fn)
    return code, scale, code.float() * each


def rounded_fp8(spec, name, w):
    """The nearest values; matrices of experts, which are stacked in memory, are rounded as the
    file has them."""
    parts = [(name, w)]
    if name.endswith("experts.gate_up_proj"):
        half, stem = w.shape[1] // 2, name.removesuffix("gate_up_proj")
        parts = [(f"{stem}{e}.{p}_proj.weight", m) for e in range(len(w))
                 for p, m in (("gate", w[e, :half]), ("up", w[e, half:]))]
    elif name.endswith("experts.down_proj"):
        parts = [(name.replace("down_proj", f"{e}.down_proj.weight"), w[e]) for e in range(len(w))]
    for part, m in parts:
        kind = next(k for pattern, k in spec["fp8"] if re.search(pattern, name))
        code, scale, value = fp8(m, kind)
        FP8[part] = code, scale, kind
        m.copy_(value)
    return w


def fp8_config(spec):
    if len(spec["fp8"]) == 1 or spec["type"] == "deepseek_v3":
        return dict(quant_method="fp8", fmt="e4m3", activation_scheme="dynamic", weight_block_size=[128, 128],
                    modules_to_not_convert=["lm_head"])
    number = dict(num_bits=8, type="float", symmetric=True, group_size=None, block_structure=None, actorder=None)
    groups = {f"group_{i}": dict(
        targets=[f"re:.*{pattern}.*"], output_activations=None,
        weights=dict(number, dynamic=False, strategy={"row": "channel"}.get(kind, kind)),
        input_activations=dict(number, dynamic=kind == "row", strategy={"row": "token"}.get(kind, kind)))
        for i, (pattern, kind) in enumerate(spec["fp8"])}
    return dict(quant_method="compressed-tensors", format="float-quantized", quantization_status="compressed",
                config_groups=groups, ignore=["lm_head"], kv_cache_scheme=None)


def store_fp8(folder, spec):
    """Replaces the projections by codes and scales, under the published names."""
    path, config, out = os.path.join(folder, "model.safetensors"), fp8_config(spec), {}
    for name, t in load_file(path).items():
        if name not in FP8:
            out[name] = t
            continue
        code, scale, kind = FP8[name]
        out[name] = code
        if kind == "tensor":
            out[name.replace("weight", "input_scale")] = torch.tensor([0.25])
        out[name + ("_scale_inv" if config["quant_method"] == "fp8" else "_scale")] = (
            scale.view(1) if kind == "tensor" else scale.contiguous())
    assert set(FP8) <= set(out)
    save_file(out, path, metadata={"format": "pt"})
    add_config(folder, config)


def plain_fp8(folder, to):
    """The same model in another folder, with its projections in float32: transformers loads it without a GPU."""
    out, tensors = {}, load_file(os.path.join(folder, "model.safetensors"))
    for name, t in tensors.items():
        scale = tensors.get(name + "_scale_inv", tensors.get(name + "_scale"))
        if scale is not None:
            scale = scale.float().view(1, 1) if scale.numel() == 1 else scale.float()
            each = [1 if n == b else n if b == 1 else 128 for n, b in zip(t.shape, scale.shape)]    # values a scale is for
            t = t.float() * scale.repeat_interleave(each[0], 0)[:t.shape[0]].repeat_interleave(each[1], 1)[:, :t.shape[1]]
        if not name.endswith(("_scale", "_scale_inv")):
            out[name] = t
    save_file(out, os.path.join(to, "model.safetensors"), metadata={"format": "pt"})
    c = json.load(open(os.path.join(folder, "config.json")))
    del c["quantization_config"]
    with open(os.path.join(to, "config.json"), "w") as o:
        json.dump(c, o)
    return to


def add_config(folder, quantization):
    """To both configurations."""
    for f in ("config.json", "config_v4.json"):
        c = json.load(open(os.path.join(folder, f)))
        c["quantization_config"] = quantization
        with open(os.path.join(folder, f), "w") as o:
            json.dump(c, o, indent=2, sort_keys=True)
            o.write("\n")


def fill(model, spec, seed):
    """Draw all weights; round them to bfloat16, except those kept in float32 and those in FP8."""
    FP8.clear()
    for name, t in tensors(model):
        rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        v = np.asarray(draw(model, spec, name, tuple(t.shape), rng), np.float32)
        if spec.get("mxfp4") and name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            v = rounded_mxfp4(v)
        v = torch.from_numpy(np.ascontiguousarray(v))
        if is_fp8(spec, name):
            t.data.copy_(rounded_fp8(spec, name, v))
            continue
        t.data.copy_(v if kept_in_f32(model, name) else v.to(torch.bfloat16).float())


def options(spec):
    more = dict(experts_implementation="eager") if "router" in spec else {}
    return dict(attn_implementation="eager", **more)


def ready(model, spec):
    if spec.get("long_factors"):
        rot = model.model.rotary_emb
        rot.original_inv_freq, _ = ROPE_INIT_FUNCTIONS["longrope"](model.config, seq_len=COMMON["max_position_embeddings"])
    return model.eval()


def build(spec):
    cfg = AutoConfig.for_model(spec["type"], **(COMMON | copy.deepcopy(spec["cfg"])))
    return ready(AutoModelForCausalLM.from_config(cfg, dtype=torch.float32, **options(spec)), spec)


def load(folder, spec):
    return ready(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **options(spec)), spec)


def v4_config(cfg):
    """The same configuration under the older key names that most published checkpoints use."""
    cfg = copy.deepcopy(cfg)
    r = cfg.pop("rope_parameters")
    if "full_attention" in r:                       # gemma3
        cfg["rope_theta"] = r["full_attention"]["rope_theta"]
        cfg["rope_local_base_freq"] = r["sliding_attention"]["rope_theta"]
        cfg["sliding_window_pattern"] = cfg.pop("layer_types").index("full_attention") + 1
        cfg.pop("_sliding_window_pattern", None)
        r = {"rope_type": "default"}
    else:
        cfg["rope_theta"] = r.pop("rope_theta")
        if "partial_rotary_factor" in r:
            cfg["partial_rotary_factor"] = r.pop("partial_rotary_factor")
        if r["rope_type"] == "longrope":            # phi3: also outside of rope_scaling
            del r["original_max_position_embeddings"]
            r["type"] = r.pop("rope_type")
    if cfg["model_type"] == "qwen3_moe":
        cfg["num_experts"] = cfg.pop("num_local_experts")
    if "num_mtp_layers" in cfg:
        cfg["num_nextn_predict_layers"] = cfg.pop("num_mtp_layers")
    cfg["rope_scaling"] = None if r.get("rope_type") == "default" else r
    cfg["torch_dtype"] = cfg.pop("dtype")
    cfg.pop("transformers_version")
    return cfg


def save(model, spec, folder):
    m = copy.deepcopy(model)
    for name, t in tensors(m):
        if not kept_in_f32(m, name) and not is_fp8(spec, name):
            t.data = t.data.to(torch.bfloat16)
    m.save_pretrained(folder)
    if os.path.exists(os.path.join(folder, "generation_config.json")):
        os.remove(os.path.join(folder, "generation_config.json"))
    os.chmod(os.path.join(folder, "model.safetensors"), 0o644)
    new = json.load(open(os.path.join(folder, "config.json")))
    with open(os.path.join(folder, "config_v4.json"), "w") as f:
        json.dump(v4_config(new), f, indent=2, sort_keys=True)
        f.write("\n")
    old = AutoConfig.from_pretrained(os.path.join(folder, "config_v4.json")).to_dict()
    ref = AutoConfig.from_pretrained(folder).to_dict()
    old["rope_parameters"].pop("type", None)
    for key in ("rope_parameters", "layer_types", "sliding_window", "head_dim", "dtype",
                "num_local_experts"):
        assert old.get(key) == ref.get(key), (key, old.get(key), ref.get(key))


# ---------------------------------------------------------------- routers

def selection(gate, cfg, logits):
    """Recompute the choice of experts: chosen indices and, per token, the smallest distance
    between a chosen and a rejected score (experts, and groups where there are groups)."""
    k = cfg.num_experts_per_tok
    if cfg.model_type in ("glm4_moe", "deepseek_v3"):
        s = logits.sigmoid() + gate.e_score_correction_bias
        g = s.view(len(s), cfg.n_group, -1).topk(2, -1)[0].sum(-1).sort(-1, descending=True)
        gap = g[0][:, cfg.topk_group - 1] - g[0][:, cfg.topk_group]
        ok = torch.zeros(len(s), cfg.n_group).scatter_(1, g[1][:, :cfg.topk_group], 1.0)
        s = s.masked_fill(ok.repeat_interleave(s.shape[1] // cfg.n_group, 1) == 0, -math.inf)
    else:
        s = logits if cfg.model_type == "gpt_oss" else logits.softmax(-1)
        if hasattr(gate, "moe_statics"):
            s = s + gate.moe_statics.e_score_correction_bias
        gap = torch.full((len(s),), math.inf)
    o = s.sort(-1, descending=True)
    return o[1][:, :k], torch.minimum(gap, o[0][:, k - 1] - o[0][:, k])


class Routing:
    """Collects the smallest selection gap and how often each expert is chosen."""

    def __init__(self, model):
        self.cfg, self.gap, self.used = model.config, math.inf, {}
        gates = [getattr(layer.mlp, "gate", getattr(layer.mlp, "router", None)) for layer in model.model.layers]
        self.gates = [(i, g) for i, g in enumerate(gates) if g is not None]
        self.hooks = [g.register_forward_hook(lambda m, a, out, i=i: self.see(i, m, out))
                      for i, g in self.gates]

    def see(self, layer, gate, out):
        logits, _, idx = out
        chosen, gap = selection(gate, self.cfg, logits)
        assert (chosen.sort(-1)[0] == idx.sort(-1)[0]).all() or gap.min() < 1e-5
        self.gap = min(self.gap, gap.min().item())
        n = torch.bincount(idx.flatten(), minlength=logits.shape[-1])
        self.used[layer] = self.used.get(layer, 0) + n

    def close(self):
        for h in self.hooks:
            h.remove()


# ---------------------------------------------------------------- running

def forward(model, ids, **kw):
    return model(input_ids=torch.tensor([ids]), **({"use_cache": False} | kw))


def greedy(model, ids, cache, stop=lambda gap: False):
    """Greedy continuation of STEPS tokens: tokens, top-1 minus top-2 logits, logits."""
    ids, new, gaps, rows, past = list(ids), [], [], [], None
    for _ in range(STEPS):
        if cache:
            out = forward(model, ids if past is None else ids[-1:], past_key_values=past, use_cache=True)
            past = out.past_key_values
        else:
            out = forward(model, ids)
        top = out.logits[0, -1].topk(2)
        new.append(top[1][0].item())
        gaps.append((top[0][0] - top[0][1]).item())
        rows.append(out.logits[0, -1])
        ids.append(new[-1])
        if stop(gaps[-1]):
            break
    return new, gaps, torch.stack(rows)


def make_prompts(spec):
    return {name: np.random.default_rng([PROMPT_SEED, n]).integers(3, VOCAB, n).tolist()
            for name, n in (("short", 7), ("long", spec.get("long", 150)))}


def try_seed(model, spec, prompts, seed):
    """None, or a reason to reject the seed."""
    fill(model, spec, seed)
    route = Routing(model)
    try:
        for ids in prompts.values():
            std = forward(model, ids).logits.std().item()
            if not 2 <= std <= 4:
                return "logit std"
            if route.gap <= MIN_ROUTE:
                return "router gap"
        if any((u == 0).any() for u in route.used.values()):
            return "unused expert"
        for ids in prompts.values():
            new, gaps, _ = greedy(model, ids, True, lambda g: g <= MIN_GAP or route.gap <= MIN_ROUTE)
            if min(gaps) <= MIN_GAP:
                return "logit gap"
            if route.gap <= MIN_ROUTE:
                return "router gap, continuation"
            if len(set(new)) < MIN_DISTINCT:
                return "repetitive"
    finally:
        route.close()
    return None


def find_seed(model, spec, prompts):
    reasons = {}
    for seed in range(MAX_SEEDS):
        why = try_seed(model, spec, prompts, seed)
        if why is None:
            return seed, reasons
        reasons[why] = reasons.get(why, 0) + 1
    raise SystemExit(f"no seed below {MAX_SEEDS}: {reasons}")


def summary(t):
    return dict(mean=t.mean().item(), rms=t.pow(2).mean().sqrt().item(), first8=t[:8].tolist())


def hidden_states(model, ids):
    """Summaries at the last position: embedding (scaled), output of each layer, final norm."""
    got, last = [], lambda o: (o[0] if isinstance(o, tuple) else o)[0, -1]
    mods = [model.model.embed_tokens, *model.model.layers, model.model.norm]
    hooks = [m.register_forward_hook(lambda m, a, o: got.append(summary(last(o)))) for m in mods]
    forward(model, ids)
    for h in hooks:
        h.remove()
    return dict(embedding=got[0], layers=got[1:-1], final_norm=got[-1])


def entropies(model, ids):
    """Attention entropy of each layer's heads at the last position, in nats."""
    att = forward(model, ids, output_attentions=True).attentions
    return [[-(p * p.clamp_min(1e-30).log()).sum().item() for p in a[0, :, -1]] for a in att]


def golden(folder, name, spec, prompts, seed, reasons):
    model = load(folder, spec)
    check = build(spec)
    fill(check, spec, seed)
    for (n, a), (m, b) in zip(sorted(tensors(model)), sorted(tensors(check))):
        assert n == m and torch.equal(a, b), n
    short, long = (forward(model, prompts[p]).logits[0] for p in ("short", "long"))
    torch.cat([short, long[-KEEP:]]).numpy().astype("<f4").tofile(os.path.join(folder, "logits.f32"))
    route, result, cache_diff = Routing(model), {}, 0.0
    for p, ids in prompts.items():
        new, gaps, rows = greedy(model, ids, False)
        new2, _, rows2 = greedy(model, ids, True)
        assert new == new2, "cache and recompute disagree"
        cache_diff = max(cache_diff, (rows - rows2).abs().max().item())
        result[p] = dict(prompt_length=len(ids), greedy=new, gaps=[round(g, 6) for g in gaps],
                         min_gap=min(gaps), min_gap_step=int(np.argmin(gaps)), distinct=len(set(new)))
        if p == "long" and spec.get("logprobs"):
            lp = rows.log_softmax(-1)[range(STEPS), new]
            lp.numpy().astype("<f4").tofile(os.path.join(folder, "logprobs.f32"))
    route.close()
    ent = entropies(model, prompts["long"])
    out = dict(
        id=name, model_type=spec["type"], seed=seed, seeds_rejected=reasons,
        prompt_seed=PROMPT_SEED, transformers=transformers.__version__, torch=torch.__version__,
        numpy=np.__version__, steps=STEPS,
        logits=dict(file="logits.f32", dtype="float32 little-endian", parts=[
            dict(prompt="short", first_position=0, shape=[len(short), VOCAB]),
            dict(prompt="long", first_position=len(long) - KEEP, shape=[KEEP, VOCAB])]),
        continuations=result, hidden_short_last=hidden_states(model, prompts["short"]),
        checks=dict(logit_std=torch.cat([short, long]).std().item(), cache_max_abs_diff=cache_diff,
                    attention_entropy_long_last=[[round(e, 3) for e in r] for r in ent],
                    log_length=math.log(len(prompts["long"]))))
    if spec.get("logprobs"):
        out["logprobs"] = dict(file="logprobs.f32", dtype="float32 little-endian",
                               prompt="long", shape=[STEPS])
    if route.gates:
        out["router"] = dict(min_selection_gap=route.gap,
                             experts_used={str(l): u.tolist() for l, u in route.used.items()})
    text = json.dumps(out, indent=1)
    text = re.sub(r"\[\s+((?:[-\d.e]+,?\s+)+)\]", lambda m: "[" + " ".join(m[1].split()) + "]", text)
    open(os.path.join(folder, "golden.json"), "w").write(text + "\n")
    open(os.path.join(folder, "prompt.json"), "w").write(json.dumps(prompts) + "\n")
    return out


def main(outdir, ids):
    for name in ids or MODELS:
        spec, folder = MODELS[name], os.path.join(outdir, name)
        os.makedirs(folder, exist_ok=True)
        model, prompts = build(spec), make_prompts(spec)
        seed, reasons = find_seed(model, spec, prompts)
        fill(model, spec, seed)
        save(model, spec, folder)
        o = golden(folder, name, spec, prompts, seed, reasons)
        if spec.get("mxfp4"):
            store_mxfp4(folder)
        if spec.get("fp8"):
            store_fp8(folder, spec)
        c = o["continuations"]
        print(f"{name}: seed {seed} rejected {reasons} "
              f"min gap {c['short']['min_gap']:.4f} {c['long']['min_gap']:.4f} "
              f"distinct {c['short']['distinct']} {c['long']['distinct']} "
              f"logit std {o['checks']['logit_std']:.2f} cache diff {o['checks']['cache_max_abs_diff']:.1e} "
              f"router gap {o.get('router', {}).get('min_selection_gap', '-')}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    main(sys.argv[1], sys.argv[2:])
