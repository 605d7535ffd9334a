# run: cuda long
"""The CUDA backend in whole suites, on the host's stand-in for a GPU (tests/cuda_host), or with PD_GPU=1 on the machine's GPU: tokens of the reference, KV that
goes from device to device and to storage and back, a device that breaks, devices that are not there or too small."""
import concurrent.futures
import ctypes.util
import os
import re
import subprocess

import pytest
from golden import ALL, WORKER, answers, asked, in_circles, scored, suite, through_storage, wanted, with_nan
from suite import BIN, CUDA_HOST, ENV, GOLDEN, ROOT, SLOW, Suite, wait_for

ON_GPU = bool(os.environ.get("PD_GPU"))
CUBLASLT = ctypes.util.find_library("cublasLt") or os.path.exists(os.path.join(BIN, "..", "lib", "pdserve", "libcublasLt.so.13"))
WGMMA = {"PDSERVE_CUDA_WGMMA": "1"}
FAMILIES = ALL if ON_GPU or os.environ.get("PD_MODELS") == "all" else ("llama", "deepseek_v3", "gpt_oss")


@pytest.mark.parametrize("family", FAMILIES)
def test_golden_tokens(family):
    """In float32 the tokens are the reference's, split over two processes, whose pools are two devices' memory. Of most families a few: test_cuda_models has the others."""
    n = 48 if family == "llama" or len(FAMILIES) > 3 else 12
    assert answers(family, "1p1d", "f32", n=n, gpu={}) == [want[:n] for want in wanted(family)]


def test_split_is_mixed():
    """In small chunks, the second time from the pools: the same bits as in one go on one device."""
    split = answers("llama", "1p1d", "bf16", n=12, rounds=2, ask=scored, prefill={"max_batched_tokens": 48}, gpu={})
    assert split == answers("llama", "mixed", "bf16", n=12, ask=scored, gpu={})


def test_rounded_activations():
    """As the field computes: bfloat16 activations. The tokens may be others than the reference's; in small chunks and in one go they are alike."""
    chunks, whole = [{"prefill": {"activation_type": "bf16", **c}, "decode": {"activation_type": "bf16"}, "gpu": {"prefill-1": WGMMA}} for c in ({"max_batched_tokens": 48}, {})]
    assert answers("llama", "1p1d", "bf16", n=8, ask=scored, **chunks) == answers("llama", "1p1d", "bf16", n=8, ask=scored, **whole)


@pytest.mark.skipif(ON_GPU and not CUBLASLT, reason="libcublasLt.so.13 is not there")
def test_fast():
    """Products by cuBLASLt on both sides. The tokens may be others than the reference's."""
    fast = {"prefill": {"variant": "fast", "max_batched_tokens": 48}, "decode": {"variant": "fast"}}
    assert [len(tokens) for tokens in answers("llama", "1p1d", "bf16", n=8, gpu={"prefill-1": WGMMA}, **fast)] == [8, 8]


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


@pytest.mark.skipif(ON_GPU, reason="for the host's stand-in")
@pytest.mark.parametrize("memory_mb, tokens, set_by_hand", [(65536, 8192, {}), (24576, 2048, {}), (24576, 128, {"max_batched_tokens": 128, "activation_type": "f32"})])
def test_defaults_of_a_gpu(memory_mb, tokens, set_by_hand):
    """A GPU has other defaults than the CPU, a small one a smaller step; the configuration, the log and the status say which are in force."""
    llama = os.path.join(GOLDEN, "llama")
    with Suite("mixed", llama, worker={"defaults": True, "kv_memory_mb": 64, **set_by_hand}, gpu={"mixed-1": {**WGMMA, "CUDA_HOST_MEMORY_MB": str(memory_mb)}}) as s:
        keys = s.ctl("mixed-1", "config")
        activations = set_by_hand.get("activation_type", "bf16")
        got = {key: keys[key]["value"] for key in ("activation_type", "max_batched_tokens", "max_sequences", "embeddings")}
        assert got == {"activation_type": activations, "max_batched_tokens": tokens, "max_sequences": 256, "embeddings": False}
        assert keys["max_sequences"]["source"] == "default of backend cuda" and keys["max_sequences"]["default"] == "256"
        assert set_by_hand or keys["max_batched_tokens"]["default"] == str(tokens)
        assert f"activation_type={activations} max_batched_tokens={tokens} max_sequences=256 embeddings=false" in s.log("mixed-1")
        status = s.ctl("mixed-1", "status")
        assert status["kernels"] == ("wgmma" if activations == "bf16" else "mma.sync, activations of float32")
        assert status["numerics"].startswith("cuda-sm99-r2" + ("-bf16act" if activations == "bf16" else ":"))
        assert f"kernels {status['kernels']}, " in s.pdctl("status", "-w").stdout
        assert len(s.tokens([5, 6, 7], 4)) == 4
        assert s.post("/v1/embeddings", {"input": [[5, 6]]})[0] == 400


@pytest.mark.skipif(ON_GPU, reason="for the host's stand-in")
def test_a_pool_leaves_room_for_steps():
    """Nearly all of a small device: of what is free once steps have their memory, which is more than the 1 % that is left."""
    with Suite("mixed", os.path.join(GOLDEN, "llama"), worker={"kv_memory_fraction": 0.99, "kv_memory_mb": 0}, gpu={"mixed-1": {"CUDA_HOST_MEMORY_MB": "256"}}) as s:
        prompt, want = asked("llama")[0]
        assert len(s.tokens(prompt, 4)) == 4
        assert s.ctl("mixed-1", "status")["device"]["free_mb"] < 16


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
@pytest.mark.parametrize("call", ["cudaGraphLaunch:40", "cudaEventSynchronize:40"])
def test_a_step_that_fails_while_steps_overlap(call):
    """One cannot be started while another is in flight, or the earlier of two fails: that costs its sequences an attempt, and the worker goes on."""
    prompt, want = asked("llama")[0]
    with suite("llama", "mixed", "f32", gpu={"mixed-1": {"CUDA_HOST_FAIL": call}}) as s:
        for _ in range(2):
            with concurrent.futures.ThreadPoolExecutor(3) as pool:
                assert list(pool.map(lambda _: s.tokens(prompt, len(want)), range(3))) == [want] * 3
        lost = re.findall("event=attempt_lost .* output_tokens=([0-9]+) why=.forward step failed", s.log("router"))
        assert lost and max(map(int, lost)) > 0, s.log("router")
        s.quiet()


def test_not_finite_while_steps_overlap(tmp_path):
    """The model has a NaN in the embedding of a token that some draw, which only the device knows when the next step starts: they end with the reason, and others in
    the same steps go on."""
    bad, prompts = 77, [[(7 * i + k) % 70 + 3 for i in range(60)] for k in range(6)]
    with_nan(tmp_path, bad)
    with Suite("mixed", str(tmp_path), worker=WORKER, gpu={}) as s:
        want = [s.tokens(p, 24) for p in prompts]
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            others = [pool.submit(s.tokens, p, 24) for p in prompts]
            spoilt = [pool.submit(s.post, "/v1/completions", {"prompt": p, "max_tokens": 8, "temperature": 0, "allowed_token_ids": [bad]}) for p in prompts]
            for status, r in (f.result() for f in spoilt):
                assert status == 500 and "token 1 of the answer are not finite" in r["error"]["message"], (status, r)
            assert [f.result() for f in others] == want
        s.quiet()


def asked_together(s, bodies):
    """-> of each its tokens, how it ended, log-probabilities"""
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        out = [r["choices"][0] for _, r in pool.map(lambda b: s.post("/v1/completions", b), bodies)]
    s.quiet()
    return [(c["token_ids"], c["finish_reason"], (c["logprobs"] or {}).get("token_logprobs")) for c in out]


@pytest.fixture(scope="module")
def circles(tmp_path_factory):
    """-> a model whose answers run in circles, what is asked of it, and what it answers when each step is waited for and nothing drafted: greedy and seeded, with penalties,
    and ends at a token that a draft may have."""
    model = in_circles(str(tmp_path_factory.mktemp("model") / "llama"))
    prompts, base = [[3 + (7 * k + 31 * i) % 310 for k in range(5 + 17 * i)] for i in range(0, 5, 2)], {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
    bodies = [{**base, "prompt": p, "max_tokens": 60, "logprobs": 1, **more} for more in ({}, {"temperature": 1.0, "seed": 3}) for p in prompts]
    bodies += [{**base, "prompt": p, "max_tokens": 50, "frequency_penalty": f} for p in prompts[:2] for f in (0.04, 0.3)]
    with Suite("mixed", model, worker={**WORKER, "max_batched_tokens": 64, "overlap_steps": False}, gpu={}) as s:
        want = asked_together(s, bodies)
        ends = [{**bodies[i], "stop_token_ids": [want[i][0][30]]} for i in (2, 4)]
        return model, bodies + ends, want + asked_together(s, ends)


@pytest.mark.parametrize("more", [{"tensor_parallel": 2}, {"kv_blocks": 12, "growth_ratio": 0.0, "max_sequences": 3, "spec_ngram_min": 1}])
def test_drafts_of_the_device(circles, more):
    """Steps overlap, and what the device drafts changes nothing, in two processes or with so few blocks that sequences lose theirs. Until enough was drafted: how much
    that is depends on what rows seem to cost."""
    model, bodies, want = circles
    with Suite("mixed", model, worker={**WORKER, "max_batched_tokens": 64, "speculative": "ngram", **more}, gpu={}) as s:
        for _ in range(8):
            assert asked_together(s, bodies) == want
            d = s.ctl("mixed-1", "status")
            if 4 < d["accepted_tokens"] < d["drafted_tokens"] and ("kv_blocks" not in more or d["preemptions"]):
                break
    assert 4 < d["accepted_tokens"] < d["drafted_tokens"] and ("kv_blocks" not in more or d["preemptions"]), d


@pytest.mark.skipif(ON_GPU, reason="a real GPU is not broken on purpose")
@pytest.mark.parametrize("name", ["messager", "storage"])
def test_a_device_that_breaks_under_a_copy(name):
    """To another process the device is well, and one that restarts can copy: so the daemon ends and says why, instead of failing every copy."""
    prompts = [[(7 * i + j) % 300 + 3 for i in range(100)] for j in (0, 100, 200)]
    with suite("llama", "1p1d", "f32", prefill={"kv_blocks": 16, "kv_eviction": "offload"}, gpu={name: {"CUDA_HOST_FAIL": "copy:1"}}) as s:
        def ended():
            for p in prompts:            # one evicts what another has left
                status, answer = s.post("/v1/completions", {"prompt": p, "max_tokens": 2})
                assert status == 200 or answer["error"]["message"], answer
            return s.procs[name].poll() is not None

        wait_for(ended, f"{name} goes on with a device that broke")
        assert s.procs[name].returncode == 1
        assert "an illegal memory access was encountered" in s.log(name).split("event=give_up")[1]
        s.gpu[name] = {}
        s.restart(name)
        s.ready()
        prompt, want = asked("llama")[0]
        assert s.tokens(prompt, len(want)) == want
        s.quiet()


def refused(env, conf):
    """The last line of a worker that does not start."""
    args = [f"{k}={v}" for k, v in {"model": os.path.join(GOLDEN, "llama"), "backend": "cuda", "messager": "none", "storage": "none", **conf}.items()]
    argv = [os.path.join(BIN, "pddecoded")] + [x for a in args for x in ("-o", a)]
    r = subprocess.run(argv, env={**ENV, "PDSERVE_BACKENDS": CUDA_HOST, **env}, capture_output=True, text=True, timeout=120 * SLOW)
    assert r.returncode != 0
    return (r.stderr + r.stdout).strip().splitlines()[-1]


@pytest.mark.skipif(ON_GPU, reason="for the host's stand-in")
@pytest.mark.parametrize("env, conf, text", [
    ({"CUDA_HOST_DRIVER": "0"}, {}, "this machine lacks an NVIDIA driver"),
    ({"CUDA_HOST_DRIVER": "12040"}, {}, "the NVIDIA driver supports CUDA 12.4, expected 13.0 or later"),
    ({"CUDA_HOST_DEVICES": "0"}, {}, "this machine has no usable GPU"),
    ({}, {"device": 9}, "device 9: this machine has 8 GPUs"),
    ({"CUDA_HOST_MEMORY_MB": "64"}, {"max_batched_tokens": 65536}, "memory of host: found 47 MiB available, expected 1 MiB for weights and"),
    ({"CUDA_HOST_MEMORY_MB": "600"}, {"kv_memory_mb": 700}, "allocating memory: the device has"),
    ({"CUDA_HOST_DEVICES": "1"}, {"tensor_parallel": 2}, "device 1: this machine has 1 GPUs"),
    ({}, {"variant": "avx2"}, "unknown cuda variant avx2: must be auto or fast"),
    ({}, {"backend": "cpu", "variant": "fast"}, "unknown cpu variant fast: must be auto"),
])
def test_what_cannot_be(env, conf, text):
    """One sentence, with both numbers."""
    last = refused(env, conf)
    assert text in last, last


@pytest.mark.skipif(ON_GPU, reason="for the host's stand-in")
def test_no_shared_memory():
    """Where processes cannot share a GPU's memory a worker that shares with nobody works, another one says what to do."""
    alone, llama = {"messager": "none", "storage": "none"}, os.path.join(GOLDEN, "llama")
    with Suite("mixed", llama, worker={**WORKER, "kv_type": "f32", **alone}, gpu={"mixed-1": {"CUDA_HOST_DESCRIPTORS": "0"}}) as s:
        prompt, want = asked("llama")[1]
        assert s.tokens(prompt, 6) == want[:6]
    for other in alone:
        last = refused({"CUDA_HOST_DESCRIPTORS": "0"}, {other: "other"})
        assert "cannot create the KV pool (set messager and storage to " in last and "processes cannot share memory of device 0 (host)" in last, last


@pytest.mark.skipif(ON_GPU, reason="for the host's stand-in")
def test_fast_without_the_library(tmp_path):
    """What lies beside the backend is no library: only the variant that needs it is refused, with the remedy."""
    os.symlink(os.path.join(CUDA_HOST, "pdserve-cuda.so"), tmp_path / "pdserve-cuda.so")
    (tmp_path / "libcublasLt.so.13").touch()
    last = refused({"PDSERVE_BACKENDS": str(tmp_path)}, {"variant": "fast"})
    assert "variant fast needs libcublasLt.so.13, which cannot be loaded" in last and "or leave `variant` at auto" in last, last
    assert "device 9: this machine has 8 GPUs" in refused({"PDSERVE_BACKENDS": str(tmp_path)}, {"device": 9})


def test_nccl_has_what_is_used():
    """The real library, where it is installed, has every function that kernels/cuda/nccl.c looks up, and is recent enough."""
    beside = ["/usr/local/cuda/lib64/libnccl.so.2", "/usr/local/cuda/lib/libnccl.so.2"]
    path = ctypes.util.find_library("nccl") or next((p for p in beside if os.path.exists(p)), None)
    if not path:
        pytest.skip("libnccl.so.2 is not there")
    nccl, version = ctypes.CDLL(path), ctypes.c_int()
    with open(os.path.join(ROOT, "kernels", "cuda", "nccl.c")) as f:
        names = re.findall(r"\bX\((nccl\w+)\)", f.read())
    assert len(names) >= 8 and not [n for n in names if not hasattr(nccl, n)]
    assert nccl.ncclGetVersion(ctypes.byref(version)) == 0 and version.value >= 21800, version
