"""random_model.py - a model with random weights in the shape of a known one, as a Hugging Face folder: for benchmarks on a machine that has nothing but Python.

    python random_model.py 1b FOLDER      without a tokenizer: prompts are token ids
"""
import json
import os
import random
import struct
import sys

# those of bench_gpu.c: layers, hidden, heads, KV heads, head_dim, ffn, vocabulary
SHAPES = {"8b": (32, 4096, 32, 8, 128, 14336, 128256), "1b": (16, 2048, 32, 8, 64, 8192, 128256), "tiny": (2, 64, 4, 2, 16, 128, 320)}
CONTEXT = 32768


def tensors(layers, hidden, heads, kv_heads, head_dim, ffn, vocab):
    """-> name, shape of each"""
    q, kv = heads * head_dim, kv_heads * head_dim
    yield "model.embed_tokens.weight", (vocab, hidden)
    yield "model.norm.weight", (hidden,)
    for i in range(layers):
        for name, *shape in (("input_layernorm", hidden), ("post_attention_layernorm", hidden), ("self_attn.q_proj", q, hidden), ("self_attn.k_proj", kv, hidden),
                             ("self_attn.v_proj", kv, hidden), ("self_attn.o_proj", hidden, q), ("mlp.gate_proj", ffn, hidden), ("mlp.up_proj", ffn, hidden),
                             ("mlp.down_proj", hidden, ffn)):
            yield f"model.layers.{i}.{name}.weight", shape


def write(folder, shape):
    layers, hidden, heads, kv_heads, head_dim, ffn, vocab = SHAPES[shape]
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": layers, "hidden_size": hidden, "num_attention_heads": heads,
                   "num_key_value_heads": kv_heads, "head_dim": head_dim, "intermediate_size": ffn, "vocab_size": vocab, "max_position_embeddings": CONTEXT,
                   "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True, "eos_token_id": 2}, f)
    header, end = {}, 0
    for name, dims in tensors(*SHAPES[shape]):
        size = 2
        for n in dims:
            size *= n
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    piece = bytearray(random.Random(1).randbytes(1 << 20))
    piece[1::2] = bytes((b & 0x80) | 0x3c for b in piece[1::2])      # as bfloat16: numbers of 0.008 to 0.03
    with open(os.path.join(folder, "model.safetensors"), "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        for at in range(0, end, len(piece)):
            f.write(piece[:end - at])


if __name__ == "__main__":
    os.makedirs(sys.argv[2], exist_ok=True)
    write(sys.argv[2], sys.argv[1])
