# run: cuda long
"""The CUDA backend in whole suites, on the host's stand-in for a GPU (tests/cuda_host), or with PD_GPU=1 on the machine's GPU: tokens of the reference, KV that
goes from device to device and to storage and back, a device that breaks, devices that are not there or too small."""
import concurrent.futures
import ctypes.util
import os
import re
import shutil
import signal
import subprocess
import sys

import pytest
from golden import ALL, WORKER, answers, asked, in_circles, scored, suite, through_storage, wanted, with_nan
from suite import BIN, CUDA_HOST, ENV, GOLDEN, ROOT, Suite, wait_for

ON_GPU = bool(os.environ.get("PD_GPU"))
CUBLASLT = ctypes.util.find_library("cublasLt") or os.path.exists(os.path.join(BIN, "..", "lib", "pdserve", "libcublasLt.so.13"))
FAMILIES = ALL if ON_GPU or os.environ.get("PD_MODELS") == "all" else ("llama", "deepseek_v3", "gpt_oss")


@pytest.mark.parametrize("family", FAMILIES)
def test_golden_tokens(family):
    """In float32 the tokens are the reference's, split over two processes, whose pools are two devices' memory."""
    assert answers(family, "1p1d", "f32", gpu={}) == wanted(family)


def test_split_is_mixed():
    """In small chunks, the second time from the pools: the same bits as in one go on one device."""
    split = answers("llama", "1p1d", "bf16", rounds=2, ask=scored, prefill={"max_batched_tokens": 48}, gpu={})
    assert split == answers("llama", "mixed", "bf16", ask=scored, gpu={})


def test_rounded_activations():
    """As the field computes: bfloat16 activations. The tokens may be others than the reference's; in small chunks and in one go they are alike."""
    chunks, whole = [{"prefill": {"activation_type": "bf16", **c}, "decode": {"activation_type": "bf16"}, "gpu": {}} for c in ({"max_batched_tokens": 48}, {})]
    assert answers("llama", "1p1d", "bf16", n=8, ask=scored, **chunks) == answers("llama", "1p1d", "bf16", n=8, ask=scored, **whole)


@pytest.mark.skipif(ON_GPU and not CUBLASLT, reason="libcublasLt.so.13 is not there")
def test_fast():
    """Products by cuBLASLt on both sides. The tokens may be others than the reference's."""
    fast = {"prefill": {"variant": "fast", "max_batched_tokens": 48}, "decode": {"variant": "fast"}}
    assert [len(tokens) for tokens in answers("llama", "1p1d", "bf16", n=8, gpu={}, **fast)] == [8, 8]


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


def ranks(n):
    """A worker of n processes. On a machine's GPU all share it."""
    return {"tensor_parallel": n, **({"ranks_per_device": n} if ON_GPU else {})}


def ranked(layout, **more):
    """Mixed workers of two processes."""
    return Suite(layout, os.path.join(GOLDEN, "llama"), worker={**WORKER, "kv_type": "f32", **ranks(2)}, gpu={}, **more)


def test_tensor_parallel():
    """Two processes, each with the heads of its device: the reference's tokens, the second time from what is in the pools."""
    prompt, want = asked("llama")[1]
    with ranked("mixed") as s:
        for _ in range(2):
            assert s.tokens(prompt, 12) == want[:12]
        s.quiet()


@pytest.mark.parametrize("prefill, decode", [(2, 1), (1, 2), (2, 2), (3, 2)])
def test_tensor_parallel_split(prefill, decode):
    """Pools that several devices share out, handed over to one that as many, others, or one device has: the reference's tokens, the second time from what is
    in the pools."""
    more = {"prefill": {**ranks(prefill), "max_batched_tokens": 48}, "decode": ranks(decode)}
    assert answers("llama-tied", "1p1d", "f32", n=12, rounds=2, gpu={}, **more) == [want[:12] for want in wanted("llama-tied")]


def test_tensor_parallel_through_storage():
    through_storage("llama", 100, 8, gpu={}, prefill={**ranks(2)})


@pytest.mark.parametrize("layout, name", [("2mixed", "mixed-1"), ("2p1d", "prefill-1"), ("1p2d", "decode-1")])
def test_tensor_parallel_rank_killed(layout, name):
    """A worker whose rank dies while its device waits for it ends with the reason; the answer is another worker's."""
    prompt, want = asked("llama")[0]
    with ranked(layout) as s:
        assert s.tokens(prompt, 4) == want[:4]
        rank = subprocess.run(["pgrep", "-P", str(s.procs[name].pid), "pdrank"], capture_output=True, text=True).stdout.split()
        assert len(rank) == 1
        os.kill(int(rank[0]), signal.SIGKILL)
        wait_for(lambda: s.procs[name].poll() is not None, f"{name} goes on without its rank")
        assert s.procs.pop(name).returncode != 0
        assert "rank 1 (process" in s.log(name) and "ended by signal 9" in s.log(name)
        assert s.tokens(prompt, 4) == want[:4]


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
    prompts, base = [[3 + (7 * k + 31 * i) % 310 for k in range(5 + 17 * i)] for i in range(5)], {"temperature": 0, "ignore_eos": True, "return_token_ids": True}
    bodies = [{**base, "prompt": p, "max_tokens": 60, "logprobs": 1, **more} for more in ({}, {"temperature": 1.0, "seed": 3}) for p in prompts]
    bodies += [{**base, "prompt": p, "max_tokens": 50, "frequency_penalty": f} for p in prompts[:2] for f in (0.04, 0.3)]
    with Suite("mixed", model, worker={**WORKER, "max_batched_tokens": 64, "overlap_steps": False}, gpu={}) as s:
        want = asked_together(s, bodies)
        ends = [{**bodies[i], "stop_token_ids": [want[i][0][30]]} for i in (2, 7)]
        return model, bodies + ends, want + asked_together(s, ends)


@pytest.mark.parametrize("more", [{"tensor_parallel": 2}, {"kv_blocks": 12, "growth_ratio": 0.0, "growth_ratio_min": 0.0, "max_sequences": 3, "spec_ngram_min": 1}])
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """That of make dist."""
    packed = subprocess.run([os.path.join(ROOT, "tools", "make-dist")], capture_output=True, text=True, timeout=300)
    assert packed.returncode == 0, packed.stderr
    path = tmp_path_factory.mktemp("dist")
    subprocess.run(["tar", "-C", path, "-xzf", os.path.join(ROOT, packed.stdout.split()[0])], check=True)
    return next(path.iterdir())


def played(path, script):
    path.unlink(missing_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


@pytest.mark.skipif(ON_GPU, reason="a GPU has tools/bench-gpu itself")
def test_the_benchmark_in_the_packed_folder(folder, tmp_path):
    """tools/bench-gpu, from the folder of make dist. The GPU's limits are played, and the two scripts that take long."""
    folder = shutil.copytree(folder, tmp_path / "dist")
    played(folder / "test" / "gpu_limits", "echo 'A card, compute capability 9.0, 8 multiprocessors, 16000 MiB, driver 1, runtime 1'\n" + "".join(
        f"printf '%-28s %12.2f %s\\n' '{name}' {value}\n" for name, value in (
            ("read", "100 GB/s"), ("mma.sync bf16", "10 TFLOP/s"), ("wgmma bf16", "20 TFLOP/s"), ("wgmma f8_e4m3", "40 TFLOP/s"), ("copy (read and written)", "50 GB/s"), ("device to pinned", "5.5 GB/s"), ("pinned to device", "6 GB/s"))))
    for name in ("suite", "peers"):
        (folder / "tests" / "bench" / f"bench_gpu_{name}.py").write_text("import sys\nprint(sys.argv[1:])\n")
    env = {**ENV, "PDSERVE_BACKENDS": CUDA_HOST, "OVERLAP": "--shape tiny --streams 1,3 --seconds 1 --kv-mb 64 -n 1", "COPY_BLOCKS": "9", "SHAPES": "tiny", "TYPES": "bf16 q8_0",
           "BENCH_WRITE": "1", "SUITE": "--shape tiny"}
    r = subprocess.run([folder / "tools" / "bench-gpu"], env=env, capture_output=True, text=True, timeout=300)
    out = r.stdout
    assert r.returncode == 0, out + r.stderr
    rows = re.findall(r"(?m)^ +(\d+)  (waiting|overlapping) +(-?[0-9.]+) +(-?[0-9]+) +([0-9]+)$", out)
    assert [(n, kind) for n, kind, *_ in rows] == [("1", "waiting"), ("1", "overlapping"), ("3", "waiting"), ("3", "overlapping")], out
    assert all(int(step) > 0 for *_, step in rows), out
    assert re.search(r"pool to pool, blocks apart +[0-9.]+ GB/s +[0-9.]+ % of 25\n", out), out
    for memory in ("ordinary memory, summed, 1 thread", "pinned memory, summed, 8 threads"):
        assert re.search(rf"to {memory} +[0-9.]+ GB/s +[0-9.]+ % of 6\n", out) and re.search(rf"from {memory} +[0-9.]+ GB/s +[0-9.]+ % of 6\n", out), out
    result = {k: float(v) for k, v in re.findall(r"(?m)^RESULT (\w+)=(\S+)$", out)}
    for kind, where in (("decode_1_100", "bf16_bf16 bf16_fast q8_0_bf16"), ("decode_8_200", "bf16_bf16 bf16_fast q8_0_bf16"), ("prefill_96", "bf16_bf16 bf16_fast")):
        assert all(result[f"tiny_{w}_{kind}_us"] > 0 for w in where.split()), out
    # between the two layers' attention, before and behind it: a chain each
    assert result["tiny_bf16_bf16_layers_1_100_launches_a_layer"] == 2.5 and result["tiny_bf16_bf16_layers_apart_1_100_launches_a_layer"] == 11, out
    assert result["tiny_bf16_fast_layers_1_100_launches_a_layer"] == 21 and "tiny_bf16_fast_layers_apart_1_100_us_a_layer" not in result, out
    assert abs(int(re.search(r"2.5 launches a layer  7 launches a step, of which the layers take (\d+) us", out)[1]) - 2 * result["tiny_bf16_bf16_layers_1_100_us_a_layer"]) < 1, out
    assert re.search(r"rows +96 behind +0 .* TFLOP/s +[0-9.]+ % of 20\n +\(in 2 chunks", out), out
    for row, launches in (("batch +3 context +100", 2), ("rows +40 behind +50", 1)):
        assert re.search(rf"attention alone +{row} +[0-9.]+ us a layer  {launches} launches  ", out), out
    assert result["tiny_bf16_bf16_attention_decode_3_100_us_a_layer"] > 0 and result["tiny_bf16_bf16_attention_prefill_40_us_a_layer"] > 0, out
    assert not [k for k in result if "fast_attention" in k or "q8_0_bf16_attention" in k], out
    fast = 100 * result["tiny_bf16_fast_prefill_96_us"] / result["tiny_bf16_bf16_prefill_96_us"]
    assert abs(result["tiny_bf16_same_tokens_prefill_96_percent"] - fast) < 0.1 and "tiny_bf16_same_tokens_decode_8_200_percent" in result, out
    assert re.search(r"batch +8 context +200 .*\n +\(sequences share 5 blocks of KV, because the pool has 16 of 32\)", out), out
    assert re.search(r"rows +40 behind +1000 +not measured: needs 17 blocks of KV of 0.0 MiB, there is memory for 16\n", out), out
    assert re.search(r"\n\['--seconds', '60'\]\n\n\['--seconds', '\d+', '--pcie-gbs', '6', '--shape', 'tiny'\]\n", out), out
    written = (folder / "tests" / "bench" / "RESULTS.md").read_text()
    assert "## The CUDA backend on A card\n" in written and written.count("\n## ") == 1 and "a layer " in written and "RESULT tiny_bf16_bf16_prefill_96_us=" in written, written

    # what memory has no room for is left out: a model, its KV
    bench, short = [folder / "test" / "bench_gpu", "cuda"], {**env, "CUDA_HOST_MEMORY_MB": "60"}
    r = subprocess.run([*bench, "135m", "q8_0", "bf16"], env=short, capture_output=True, text=True, timeout=100)
    assert r.returncode == 0 and re.fullmatch(r"135m q8_0 bf16: the rest is not measured: allocating a weight: the device has \d MiB free of 60 MiB\n", r.stdout), r.stdout + r.stderr
    r = subprocess.run([*bench, "tiny", "bf16", "bf16"], env={**short, "CUDA_HOST_MEMORY_MB": "1000"}, capture_output=True, text=True, timeout=100)
    assert r.returncode == 0 and r.stdout.count("not measured") == 9 and "there is memory for 1\n" in r.stdout, r.stdout + r.stderr

    # without time each part is named, and without python3 there is a file
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in "awk cat cp dirname env grep mktemp rm sh tee timeout".split():
        (tools / name).symlink_to(shutil.which(name))
    r = subprocess.run([folder / "tools" / "bench-gpu"], env={**env, "BUDGET": "0", "PATH": str(tools)}, capture_output=True, text=True, timeout=100)
    assert r.returncode == 0 and "python3 is missing: the results are in bench-gpu.txt" in r.stdout, r.stdout + r.stderr
    left = re.findall(r"(?m)^bench-gpu: not measured: (.*)$", (folder / "bench-gpu.txt").read_text())
    assert left == [*(f"steps of tiny {x}: the budget of 0 s is spent" for x in ("bf16, activations bf16, cuda", "bf16, activations bf16, cuda:fast", "q8_0, activations bf16, cuda")),
                    "copies of KV: the budget of 0 s is spent", "how long the GPU waits for the host, whole suites: python3 is missing"], left


def bench(folder, script, *args, rc=0, python=sys.executable, **env):
    """A benchmark of the packed folder -> its lines, its figures"""
    r = subprocess.run([python, folder / "tests" / "bench" / script, *args], env={**ENV, "PDSERVE_BACKENDS": CUDA_HOST, **env}, capture_output=True, text=True, timeout=300)
    assert r.returncode == rc, r.stdout + r.stderr
    return r.stdout, {k: float(v) for k, v in re.findall(r"(?m)^RESULT (\S+)=(\S+)$", r.stdout)}


@pytest.mark.skipif(ON_GPU, reason="a GPU has tools/bench-gpu itself")
def test_whole_suites_in_the_packed_folder(folder):
    """The rows of bench_gpu_suite.py: figures of one GPU and of two; what has no time is named."""
    tiny = ("--shape", "tiny", "--kv-mb", "64", "--prompt", "150", "-n", "2", "--window", "0.3", "--streams", "1,3", "--answer", "4")
    said, got = bench(folder, "bench_gpu_suite.py", *tiny, "--gpus", "1", "--pcie-gbs", "50")
    assert got["start_weights_bytes"] > 100_000 and 0 < got["start_ready_s"] < got["start_first_token_s"] and got["start_above_s"] <= got["start_ready_s"], said
    assert re.search(r"handover, one GPU: 2 prompts of 150 tokens, 0\.0 MiB each; while they are computed [0-9.]+ GB/s, cached ones [0-9.]+ GB/s\n", said), said
    assert got["handover_1_gpu_tail_p50_us"] > 0 and got["handover_1_gpu_tail_layers"] > 0 and got["handover_1_gpu_cached_gb_s"] > 0, said
    assert got["itl_1_gpu_quiet_p50_ms"] > 0 and all(f"itl_1_gpu_{x}_p99_percent" in got for x in ("prompts", "computing", "copies")), said
    assert "tp: needs two GPUs, this machine has one\n" in said and not [x for x in got if "_2_gpu_" in x or x.startswith("tp")], said
    said, got = bench(folder, "bench_gpu_suite.py", *tiny, "--gpus", "2", "--rows", "handover,tp")
    assert got["handover_2_gpu_gb_s"] > 0 and all(got[f"tp{ranks}_{n}_{x}"] > 0 for ranks in (1, 2) for n in (1, 3) for x in ("tokens_s", "itl_p50_ms")), said
    said, got = bench(folder, "bench_gpu_suite.py", *tiny, "--rows", "start,handover", "--seconds", "0.4")
    assert re.findall(r"(?m)^(\w+): what is missing above was not measured", said) == ["start", "handover"] and not got, said


@pytest.mark.skipif(ON_GPU, reason="a GPU has tools/bench-gpu itself")
def test_suites_that_fail_in_the_packed_folder(folder):
    """A row that cannot be measured fails the benchmark, after the others."""
    said, got = bench(folder, "bench_gpu_suite.py", "--shape", "tiny", "--kv-mb", "1", "--prompt", "700", "--window", "30", "--gpus", "1", "--rows", "itl,tp", rc=1)
    assert "itl: failed, see above\ntp: needs two GPUs" in said and not got, said


def test_peers_in_the_packed_folder(folder):
    """bench_gpu_peers.py says which python3 has no PyTorch with CUDA, and measures where there is PyTorch: PD_TORCH names a python3 that has it."""
    python = os.environ.get("PD_TORCH", sys.executable)
    if not ON_GPU:
        said, got = bench(folder, "bench_gpu_peers.py", python=python, CUDA_VISIBLE_DEVICES="")
        assert re.fullmatch(r"bench_gpu_peers: \S+ has no PyTorch( with CUDA that finds a GPU)?: the peers were not measured\n", said), said
    if subprocess.run([python, "-c", "import torch"], capture_output=True).returncode:
        pytest.skip("python3 has no PyTorch")
    said, got = bench(folder, "bench_gpu_peers.py", "--device", "cpu", "--tiny", python=python, OMP_NUM_THREADS="1")
    assert all(got[f"peer_{x}"] > 0 for x in ("attention_prefill_32_tflops", "attention_decode_64_us", "products_1_us", "products_128_us")), said
    assert "transformers is missing" in said or got["peer_model_decode_ms"] > 0 and got["peer_model_prefill_128_ms"] > 0, said


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
    ({"CUDA_HOST_DEVICES": "0"}, {}, "this machine has no usable GPU"),
    ({}, {"device": 9}, "device 9: this machine has 8 GPUs"),
    ({"CUDA_HOST_MEMORY_MB": "64"}, {"max_batched_tokens": 65536}, "memory of host: found 48 MiB available, expected 0 MiB for weights and"),
    ({"CUDA_HOST_MEMORY_MB": "600"}, {"kv_memory_mb": 700}, "allocating shared memory: the device has"),
    ({"CUDA_HOST_DEVICES": "1"}, {"tensor_parallel": 2}, "device 1: this machine has 1 GPUs"),
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
    assert "variant fast needs libcublasLt.so.13, which cannot be loaded" in last and "or leave `variant` at auto" in last, last
    assert "device 9: this machine has 8 GPUs" in refused({"PDSERVE_BACKENDS": str(tmp_path)}, {"device": 9})
