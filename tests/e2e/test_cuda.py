"""The CUDA backend in whole suites, on the host's stand-in for a GPU (tests/cuda_host), or with PD_GPU=1 on the machine's GPU: tokens of the reference, KV that
goes from device to device and to storage and back, a device that breaks, devices that are not there or too small."""
import os
import subprocess

import pytest
from golden import ALL, answers, asked, suite, through_storage, wanted
from suite import BIN, CUDA_HOST, ENV, GOLDEN, Suite, wait_for

ON_GPU = bool(os.environ.get("PD_GPU"))
FAMILIES = ALL if ON_GPU or os.environ.get("PD_MODELS") == "all" else ("llama", "deepseek_v3", "gpt_oss")


@pytest.mark.parametrize("family", FAMILIES)
def test_golden_tokens(family):
    """In float32 the tokens are the reference's, split over two processes, whose pools are two devices' memory."""
    assert answers(family, "1p1d", "f32", gpu={}) == wanted(family)


def test_split_is_mixed():
    """In small chunks, the second time from the pools: the same bits as in one go on one device."""
    assert answers("llama", "1p1d", "bf16", rounds=2, prefill={"max_batched_tokens": 48}, gpu={}) == answers("llama", "mixed", "bf16", gpu={})


def test_rounded_activations():
    """As the field computes: bfloat16 activations. The tokens may be others than the reference's; mixed and split are alike."""
    chunks, whole = [{"prefill": {"activation_type": "bf16", **c}, "decode": {"activation_type": "bf16"}, "gpu": {}} for c in ({"max_batched_tokens": 48}, {})]
    assert answers("llama", "1p1d", "bf16", n=8, **chunks) == answers("llama", "1p1d", "bf16", n=8, **whole)


def test_through_storage():
    through_storage("llama", 100, 8, gpu={})


@pytest.mark.skipif(ON_GPU, reason="for the host's stand-in")
def test_devices_that_are_slow():
    """Workers whose devices take up to some milliseconds for each piece of work, beside a messager that takes none: what was handed over before it was there
    gives other tokens."""
    slow = {"CUDA_HOST_SEED": "3", "CUDA_HOST_DELAY_US": "4000"}
    prompt, want = asked("llama")[1]
    with suite("llama", "1p1d", "f32", prefill={"max_batched_tokens": 48}, gpu={"prefill-1": slow, "decode-1": slow}) as s:
        assert s.tokens(prompt, 6) == want[:6]
        s.quiet()


def test_status_shows_the_device():
    with Suite("mixed", os.path.join(GOLDEN, "llama"), worker={"kv_memory_fraction": 0.01, "kv_memory_mb": 0, "device": 0}, gpu={}) as s:
        status = s.ctl("mixed-1", "status")
        device = status["device"]
        assert device["name"] and device["index"] == 0 and 0 < device["free_mb"] <= device["memory_mb"]
        block_mb = status["blocks"] * 3 * 2 * 2 * 64 * 16 * 2 / 2**20          # layers, K and V, heads, tokens, elements, bytes
        assert 0.005 * device["memory_mb"] < block_mb < 0.011 * device["memory_mb"]
        assert device["name"] in s.pdctl("status").stdout


@pytest.mark.skipif(ON_GPU, reason="a real GPU is not broken on purpose")
def test_a_device_that_breaks():
    """An illegal access in the middle of an answer: the worker ends and says why, the answer goes on at the other, with the same tokens."""
    prompt, want = asked("llama")[0]
    with suite("llama", "1p2d", "f32", gpu={"decode-1": {"CUDA_HOST_FAIL": "embed_rows:6"}}) as s:
        got = [s.tokens(prompt, len(want)) for _ in range(4)]
        assert got == [want] * 4
        wait_for(lambda: s.procs["decode-1"].poll() is not None, "decode-1 goes on with a device that broke")
        assert s.procs.pop("decode-1").returncode != 0
        assert "an illegal memory access was encountered" in s.log("decode-1")


@pytest.mark.skipif(ON_GPU, reason="a real GPU is not broken on purpose")
def test_a_device_that_breaks_under_the_messager():
    """To another process the device is well, and a messager that starts anew can copy: so the messager ends and says why, instead of failing every transfer."""
    prompt, want = asked("llama")[1]
    with suite("llama", "1p1d", "f32", gpu={"messager": {"CUDA_HOST_FAIL": "copy:1"}}) as s:
        status, answer = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 2})
        assert status == 200 or answer["error"]["message"], answer
        wait_for(lambda: s.procs["messager"].poll() is not None, "the messager goes on with a device that broke")
        assert s.procs["messager"].returncode == 1
        assert "an illegal memory access was encountered" in s.log("messager").split("event=give_up")[1]
        s.gpu["messager"] = {}
        s.restart("messager")
        s.ready()
        assert s.tokens(prompt, len(want)) == want
        s.quiet()


@pytest.mark.skipif(ON_GPU, reason="for the host's stand-in")
@pytest.mark.parametrize("env, conf, text", [
    ({"CUDA_HOST_DRIVER": "0"}, {}, "this machine lacks an NVIDIA driver"),
    ({"CUDA_HOST_DRIVER": "12040"}, {}, "the NVIDIA driver supports CUDA 12.4, expected 13.0 or later"),
    ({"CUDA_HOST_DEVICES": "0"}, {}, "this machine lacks a GPU that can be used"),
    ({}, {"device": 9}, "device 9: this machine has 8 GPUs"),
    ({"CUDA_HOST_MEMORY_MB": "64"}, {"max_batched_tokens": 65536}, "memory of host: found 48 MiB available, expected 0 MiB for weights and"),
    ({"CUDA_HOST_MEMORY_MB": "600"}, {"kv_memory_mb": 700}, "allocating shared memory: the device has"),
    ({}, {"variant": "avx2"}, "unknown cuda variant avx2: must be auto"),
])
def test_what_cannot_be(env, conf, text):
    """One sentence, with both numbers."""
    args = [f"{k}={v}" for k, v in {"model": os.path.join(GOLDEN, "llama"), "backend": "cuda", "messager": "none", "storage": "none", **conf}.items()]
    argv = [os.path.join(BIN, "pddecoded")] + [x for a in args for x in ("-o", a)]
    r = subprocess.run(argv, env={**ENV, "PDSERVE_BACKENDS": CUDA_HOST, **env}, capture_output=True, text=True, timeout=120)
    assert r.returncode != 0
    last = (r.stderr + r.stdout).strip().splitlines()[-1]
    assert text in last, last
