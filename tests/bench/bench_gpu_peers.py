"""bench_gpu_peers.py - what PyTorch and Hugging Face transformers reach on the same GPU with the shapes of bench_gpu.c, in bfloat16.

    attention   scaled_dot_product_attention, by its flash backend where that is available: prefill (causal) and decoding
    products    torch.matmul of the model's products, at 1, 64 and 8192 rows
    model       transformers' Llama with random weights: prefill, and decoding one stream with a static cache; without torch.compile, whose compilation takes longer than
                all of this, unless --compile is given

Needs a python3 that has PyTorch with CUDA (and transformers for the model); says so and ends well where it is missing. On a GPU single operations are timed by events around
a replayed CUDA graph of many calls, each with inputs of its own, so that neither the host nor the GPU's cache takes part; the model is timed from call to synchronization. A figure
is the median of the rounds. What has not begun after --seconds is named as not measured.

    python bench_gpu_peers.py [--shape 8b] [--seconds 60] [--compile] [--device cpu] [--tiny]
"""
import argparse
import contextlib
import math
import sys
import time

import random_model
from benchlib import Report, machine, median

ROUNDS, ROUND_LIMIT_S = 7, 2
ALL_INPUTS_BYTES = 256 << 20        # of one operation's calls: several times a GPU's cache
ELEMENT = 2                         # bytes of a bfloat16


class Peer:
    def __init__(self, torch, a, rep):
        self.torch, self.rep, self.device, self.compile = torch, rep, a.device, a.compile
        self.small = 64 if a.tiny else 1            # lengths are divided by it
        self.shape = random_model.SHAPES["tiny" if a.tiny else a.shape]
        self.end = time.monotonic() + a.seconds

    def random(self, *shape):
        return self.torch.randn(*shape, device=self.device, dtype=self.torch.bfloat16)

    def sets(self, size):
        """How many inputs of that size an operation's calls get."""
        return min(64, max(1, math.ceil(ALL_INPUTS_BYTES / self.small**2 / size)))

    def wait(self):
        if self.device == "cuda":
            self.torch.cuda.synchronize()

    def rounds(self, once):
        """Median of what it gives, after one call that warms up."""
        once()
        begin, took = time.monotonic(), []
        while len(took) < ROUNDS and (not took or time.monotonic() < begin + ROUND_LIMIT_S):
            took.append(once())
        return median(took)

    def seconds(self, call):
        """Of one call, from the host's side."""
        def once():
            self.wait()
            begin = time.perf_counter()
            call()
            self.wait()
            return time.perf_counter() - begin
        return self.rounds(once)

    def device_seconds(self, call, inputs):
        """Of a call, which is made once with each of the inputs, in a row."""
        def each():
            for x in inputs:
                call(*x)
        if self.device != "cuda":
            return self.seconds(each) / len(inputs)
        cuda = self.torch.cuda
        aside = cuda.Stream()
        aside.wait_stream(cuda.current_stream())
        with cuda.stream(aside):
            each()
        cuda.current_stream().wait_stream(aside)
        graph = cuda.CUDAGraph()
        with cuda.graph(graph):
            each()

        def once():
            begin, end = cuda.Event(enable_timing=True), cuda.Event(enable_timing=True)
            begin.record()
            graph.replay()
            end.record()
            end.synchronize()
            return begin.elapsed_time(end) / 1e3
        return self.rounds(once) / len(inputs)


# --- attention

def flash(p):
    """-> what forces the flash backend, its name; where it takes no such tensors, what leaves PyTorch the choice"""
    _, _, heads, kv_heads, dim, *_ = p.shape
    attention = p.torch.nn.attention
    with contextlib.suppress(RuntimeError):
        with attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION):
            attend(p, True)(p.random(1, heads, 16, dim), *(p.random(1, kv_heads, 16, dim) for _ in range(2)))
        return lambda: attention.sdpa_kernel(attention.SDPBackend.FLASH_ATTENTION), "flash"
    return contextlib.nullcontext, "PyTorch's choice"


def attend(p, causal):
    return lambda q, k, v: p.torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


def attention_prefill(p, n):
    _, _, heads, kv_heads, dim, *_ = p.shape
    forced, name = flash(p)
    inputs = [(p.random(1, heads, n, dim), p.random(1, kv_heads, n, dim), p.random(1, kv_heads, n, dim)) for _ in range(p.sets(n * (heads + 2 * kv_heads) * dim * ELEMENT))]
    with forced():
        took = p.device_seconds(attend(p, True), inputs)
    rate = 4 * heads * dim * n * n / 2 / took / 1e12
    p.rep.say(f"attention ({name}), prefill of {n} tokens: {took * 1e6:.1f} us a layer, {rate:.3f} TFLOP/s (causal)")
    p.rep.result(f"peer_attention_prefill_{n}_tflops", rate)


def attention_decode(p, batch, context):
    _, _, heads, kv_heads, dim, *_ = p.shape
    forced, name = flash(p)
    size = 2 * batch * kv_heads * context * dim * ELEMENT
    inputs = [(p.random(batch, heads, 1, dim), p.random(batch, kv_heads, context, dim), p.random(batch, kv_heads, context, dim)) for _ in range(p.sets(size))]
    with forced():
        took = p.device_seconds(attend(p, False), inputs)
    p.rep.say(f"attention ({name}), decoding {batch} at {context} tokens: {took * 1e6:.1f} us a layer, {size / took / 1e9:.2f} GB/s of KV")
    p.rep.result(f"peer_attention_decode_{batch}_us", took * 1e6, 1)
    p.rep.result(f"peer_attention_decode_{batch}_gb_s", size / took / 1e9, 2)


# --- products

def products(p, rows):
    layers, hidden, heads, kv_heads, dim, ffn, vocab = p.shape
    step = 0
    for name, out, inner, times in (("qkv", (heads + 2 * kv_heads) * dim, hidden, layers), ("o", hidden, heads * dim, layers), ("gate_up", 2 * ffn, hidden, layers),
                                    ("down", hidden, ffn, layers), ("head", vocab, hidden, 1)):
        n = 1 if name == "head" and rows > 64 else rows     # a prompt needs logits of its last token only
        x = p.random(n, inner)
        took = p.device_seconds(lambda w, x=x: p.torch.matmul(x, w.T), [(p.random(out, inner),) for _ in range(p.sets(out * inner * ELEMENT))])
        step += took * times
        p.rep.say(f"product {name:<8} {n:>5} x {inner:>5} by {out:>6}: {took * 1e6:>9.1f} us  {2 * n * inner * out / took / 1e12:>8.3f} TFLOP/s  "
                  f"{out * inner * ELEMENT / took / 1e9:>8.2f} GB/s of weights")
        p.rep.result(f"peer_product_{name}_{rows}_us", took * 1e6, 1)
    p.rep.say(f"all products of a step of {rows} rows: {step * 1e6:.1f} us")
    p.rep.result(f"peer_products_{rows}_us", step * 1e6, 1)


# --- the model

def llama(p):
    """Random weights, made on the device."""
    from transformers import LlamaConfig, LlamaForCausalLM
    layers, hidden, heads, kv_heads, dim, ffn, vocab = p.shape
    config = LlamaConfig(num_hidden_layers=layers, hidden_size=hidden, num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=dim, intermediate_size=ffn,
                         vocab_size=vocab, max_position_embeddings=random_model.CONTEXT, tie_word_embeddings=True, attn_implementation="sdpa", bos_token_id=1, eos_token_id=None)
    was = p.torch.get_default_dtype()
    p.torch.set_default_dtype(p.torch.bfloat16)
    try:
        with p.torch.device(p.device):
            return LlamaForCausalLM(config).eval()
    finally:
        p.torch.set_default_dtype(was)


def prompt(p, n):
    return p.torch.randint(3, p.shape[-1], (1, n), device=p.device)


def model_prefill(p, m, n):
    ids = prompt(p, n)
    took = p.seconds(lambda: m(ids, use_cache=True, logits_to_keep=1))
    p.rep.say(f"transformers, prefill of {n} tokens: {took * 1e3:.2f} ms, {n / took:.0f} tokens/s")
    p.rep.result(f"peer_model_prefill_{n}_ms", took * 1e3, 2)


def model_decode(p, m, context):
    """Two answers of different length have the prompt in common."""
    ids, short, long = prompt(p, context), 8, 40
    knobs = {"max_cache_len": context + long, "disable_compile": not p.compile}
    known = {k: v for k, v in knobs.items() if hasattr(m.generation_config, k)}        # older versions lack some

    def answer(tokens):
        return p.seconds(lambda: m.generate(ids, attention_mask=p.torch.ones_like(ids), max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0,
                                            cache_implementation="static", **known))
    took = (answer(long) - answer(short)) / (long - short)
    p.rep.say(f"transformers{', compiled' * p.compile}, decoding 1 stream behind {context} tokens, static cache: {took * 1e3:.3f} ms a token, {1 / took:.1f} tokens/s")
    p.rep.result("peer_model_decode_ms", took * 1e3)


def rows(p):
    """What is measured, in turn: words, a function."""
    for n in (2048 // p.small, 8192 // p.small):
        yield f"attention, prefill of {n}", lambda n=n: attention_prefill(p, n)
    for batch in (1, 64):
        yield f"attention, decoding {batch}", lambda batch=batch: attention_decode(p, batch, 1024 // p.small)
    for n in (1, 64, 8192 // p.small):
        yield f"products of {n} rows", lambda n=n: products(p, n)
    try:
        import transformers
    except ImportError:
        p.rep.say("transformers is missing in this python3: the whole model was not measured")
        return
    p.rep.say(f"transformers {transformers.__version__}")
    made = []
    yield "transformers, random weights", lambda: made.append(llama(p))
    if not made:
        p.rep.say("transformers: prefill and decoding were not measured either")
        return
    for n in (1024 // p.small, 8192 // p.small):
        yield f"transformers, prefill of {n}", lambda n=n: model_prefill(p, made[0], n)
    yield "transformers, decoding", lambda: model_decode(p, made[0], 1024 // p.small)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--shape", choices=random_model.SHAPES, default="8b")
    ap.add_argument("--seconds", type=float, default=60)
    ap.add_argument("--compile", action="store_true")
    ap.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    ap.add_argument("--tiny", action="store_true", help="a tiny shape and short lengths: to try this script")
    a = ap.parse_args()
    try:
        import torch
    except ImportError:
        torch = None
    if not torch or a.device == "cuda" and not torch.cuda.is_available():
        print(f"bench_gpu_peers: {sys.executable} has no PyTorch{' with CUDA that finds a GPU' * bool(torch)}: the peers were not measured")
        return
    rep = Report("PyTorch on the same GPU", " ".join(["bench_gpu_peers.py", *sys.argv[1:]]))
    rep.say(f"shape {'tiny' if a.tiny else a.shape}, PyTorch {torch.__version__}, {torch.cuda.get_device_name() if a.device == 'cuda' else machine()}")
    p, failed = Peer(torch, a, rep), False
    with torch.inference_mode():
        for words, measure in rows(p):
            if time.monotonic() > p.end:
                rep.say(f"{words}: not measured, {a.seconds:g} s are over (--seconds)")
                continue
            try:
                measure()
            except Exception as e:      # of a version that knows a call no more, or memory: the others are measured all the same
                failed = True
                rep.say(f"{words}: failed: {type(e).__name__}: {str(e)[:500]}")
    rep.end()
    sys.exit(failed)


if __name__ == "__main__":
    main()
