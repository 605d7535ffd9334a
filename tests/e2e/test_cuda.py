"""The CUDA backend in whole suites, on the host's stand-in for a GPU (tests/cuda_host), or with PD_GPU=1 on the machine's GPU: tokens of the reference, KV that
goes from device to device and to storage and back, a device that breaks, devices that are not there or too small."""
import json
import os
import subprocess

import pytest
from suite import BIN, CUDA_HOST, ENV, GOLDEN, Suite, wait_for

ON_GPU = bool(os.environ.get("PD_GPU"))
ALL = sorted(f for f in os.listdir(GOLDEN) if os.path.isdir(os.path.join(GOLDEN, f)))
FAMILIES = ALL if ON_GPU or os.environ.get("PD_MODELS") == "all" else ("llama", "deepseek_v3", "gpt_oss")
WORKER = {"block_tokens": 16, "kv_blocks": 96, "output_caching": False}


def asked(family):
    """The two prompts with their greedy continuations."""
    with open(os.path.join(GOLDEN, family, "prompt.json")) as f:
        prompts = json.load(f)
    with open(os.path.join(GOLDEN, family, "golden.json")) as f:
        golden = json.load(f)["continuations"]
    return [(prompts[k], golden[k]["greedy"]) for k in ("short", "long")]


def answers(family, layout, kv_type, n=None, rounds=1, **more):
    """Of all rounds, which must be alike: with what the first left in the pools the second computes less."""
    with Suite(layout, os.path.join(GOLDEN, family), worker={**WORKER, "kv_type": kv_type}, gpu={}, **more) as s:
        out = [[s.tokens(p, n or len(want)) for p, want in asked(family)] for _ in range(rounds)]
        assert all(o == out[0] for o in out)
        s.quiet()
        return out[0]


@pytest.mark.parametrize("family", FAMILIES)
def test_golden_tokens(family):
    """In float32 the tokens are the reference's, split over two processes, whose pools are two devices' memory."""
    assert answers(family, "1p1d", "f32") == [want for _, want in asked(family)]


def test_split_is_mixed():
    """In small chunks, the second time from the pools: the same bits as in one go on one device."""
    assert answers("llama", "1p1d", "bf16", rounds=2, prefill={"max_batched_tokens": 48}) == answers("llama", "mixed", "bf16")


def test_rounded_activations():
    """As the field computes: bfloat16 activations. The tokens may be others than the reference's; mixed and split are alike."""
    act = {"prefill": {"activation_type": "bf16", "max_batched_tokens": 48}, "decode": {"activation_type": "bf16"}}
    assert answers("llama", "1p1d", "bf16", n=8, **act) == answers("llama", "1p1d", "bf16", n=8, prefill={"activation_type": "bf16"}, decode=act["decode"])


def test_fast():
    """Products by cuBLASLt on both sides. The tokens may be others than the reference's."""
    fast = {"prefill": {"variant": "fast", "max_batched_tokens": 48}, "decode": {"variant": "fast"}}
    assert [len(tokens) for tokens in answers("llama", "1p1d", "bf16", n=8, **fast)] == [8, 8]


def test_through_storage():
    """A pool for about one prompt: what it evicts goes to storage and comes back."""
    prompts = [[(7 * i + j) % 300 + 3 for i in range(100)] for j in (0, 100, 200)]
    model = os.path.join(GOLDEN, "llama")
    with Suite("mixed", model, worker={**WORKER, "kv_type": "f32"}, gpu={}) as s:
        want = [s.tokens(p, 8) for p in prompts]
    prefill = {"kv_blocks": 16, "kv_eviction": "offload", "storage_read": "always", "storage_lookup_wait_ms": 60000, "storage_read_wait_ms": 60000}
    with Suite("1p1d", model, worker={**WORKER, "kv_type": "f32"}, prefill=prefill, gpu={}) as s:
        for _ in range(20):              # what is evicted before it was written is computed again, and has another chance
            assert [s.tokens(p, 8) for p in prompts] == want
            if s.ctl("storage", "status")["hits"]:
                break
        assert s.ctl("storage", "status")["hits"] > 0
        s.quiet()


def test_status_shows_the_device():
    with Suite("mixed", os.path.join(GOLDEN, "llama"), worker={"kv_memory_fraction": 0.01, "kv_memory_mb": 0, "device": 0}, gpu={}) as s:
        status = s.ctl("mixed-1", "status")
        device = status["device"]
        assert device["name"] and device["index"] == 0 and 0 < device["free_mb"] <= device["memory_mb"]
        block_mb = status["blocks"] * 3 * 2 * 2 * 64 * 16 * 2 / 2**20          # layers, K and V, heads, tokens, elements, bytes
        assert 0.005 * device["memory_mb"] < block_mb < 0.011 * device["memory_mb"]
        assert device["name"] in s.pdctl("status").stdout


@pytest.mark.skipif(ON_GPU, reason="for the host's stand-in")
def test_a_pool_leaves_room_for_steps():
    """Nearly all of a small device: of what is free once steps have their own memory, which is more than the rest of the fraction."""
    with Suite("mixed", os.path.join(GOLDEN, "llama"), worker={"kv_memory_fraction": 0.99, "kv_memory_mb": 0}, gpu={"mixed-1": {"CUDA_HOST_MEMORY_MB": "256"}}) as s:
        prompt, want = asked("llama")[0]
        assert len(s.tokens(prompt, 4)) == 4
        assert s.ctl("mixed-1", "status")["device"]["free_mb"] < 16


@pytest.mark.skipif(ON_GPU, reason="a real GPU is not broken on purpose")
def test_a_device_that_breaks():
    """An illegal access in the middle of an answer: the worker ends and says why, the answer goes on at the other, with the same tokens."""
    model = os.path.join(GOLDEN, "llama")
    prompt, want = asked("llama")[0]
    with Suite("1p2d", model, worker={**WORKER, "kv_type": "f32"}, gpu={"decode-1": {"CUDA_HOST_FAIL": "embed_rows:6"}}) as s:
        got = [s.tokens(prompt, len(want)) for _ in range(4)]
        assert got == [want] * 4
        wait_for(lambda: s.procs["decode-1"].poll() is not None, "decode-1 goes on with a device that broke")
        assert s.procs.pop("decode-1").returncode != 0
        assert "an illegal memory access was encountered" in s.log("decode-1")


def refused(env, conf):
    """The last line of a worker that does not start."""
    args = [f"{k}={v}" for k, v in {"model": os.path.join(GOLDEN, "llama"), "backend": "cuda", "messager": "none", "storage": "none", **conf}.items()]
    argv = [os.path.join(BIN, "pddecoded")] + [x for a in args for x in ("-o", a)]
    r = subprocess.run(argv, env={**ENV, "PDSERVE_BACKENDS": CUDA_HOST, **env}, capture_output=True, text=True, timeout=120)
    assert r.returncode != 0
    return (r.stderr + r.stdout).strip().splitlines()[-1]


@pytest.mark.skipif(ON_GPU, reason="for the host's stand-in")
@pytest.mark.parametrize("env, conf, text", [
    ({"CUDA_HOST_DRIVER": "0"}, {}, "this machine lacks an NVIDIA driver"),
    ({"CUDA_HOST_DRIVER": "12040"}, {}, "the NVIDIA driver supports CUDA 12.4, expected 13.0 or later"),
    ({"CUDA_HOST_DEVICES": "0"}, {}, "this machine lacks a GPU that can be used"),
    ({}, {"device": 9}, "device 9: this machine has 8 GPUs"),
    ({"CUDA_HOST_MEMORY_MB": "64"}, {"max_batched_tokens": 65536}, "memory of host: found 48 MiB available, expected 0 MiB for weights and"),
    ({"CUDA_HOST_MEMORY_MB": "600"}, {"kv_memory_mb": 700}, "allocating shared memory: the device has"),
    ({}, {"variant": "avx2"}, "unknown cuda variant avx2: must be auto or fast"),
    ({}, {"backend": "cpu", "variant": "fast"}, "unknown cpu variant fast: must be auto"),
])
def test_what_cannot_be(env, conf, text):
    """One sentence, with both numbers."""
    last = refused(env, conf)
    assert text in last, last


@pytest.mark.skipif(ON_GPU, reason="for the host's stand-in")
def test_fast_without_the_library(tmp_path):
    """What lies beside the backend is no library: only the variant that needs it is refused, with the remedy."""
    os.symlink(os.path.join(CUDA_HOST, "pdserve-cuda.so"), tmp_path / "pdserve-cuda.so")
    (tmp_path / "libcublasLt.so.13").touch()
    last = refused({"PDSERVE_BACKENDS": str(tmp_path)}, {"variant": "fast"})
    assert "this machine lacks libcublasLt.so.13, which variant fast needs" in last and "or leave `variant` at auto" in last, last
    assert "device 9: this machine has 8 GPUs" in refused({"PDSERVE_BACKENDS": str(tmp_path)}, {"device": 9})
