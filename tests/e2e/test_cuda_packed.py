# run: cuda long
"""What `make dist` packs for a GPU, on the host's stand-in for one (tests/cuda_host): tools/gpu-first, tools/bench-gpu and the benchmarks that they start."""
import os
import re
import shutil
import subprocess
import sys

import pytest
from suite import CUDA_HOST, ENV, ROOT, SLOW, wait_for

ON_GPU = bool(os.environ.get("PD_GPU"))
ON_HOST = {**ENV, "PDSERVE_BACKENDS": CUDA_HOST, "PDSERVE_CUDA_WGMMA": "0"}      # wgmma only where a step asks for it, as in suite.py


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """That of make dist."""
    packed = subprocess.run([os.path.join(ROOT, "tools", "make-dist")], capture_output=True, text=True, timeout=300 * SLOW)
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
    env = {**ON_HOST, "OVERLAP": "--shape tiny --streams 1,3 --seconds 1 --kv-mb 64 -n 1", "COPY_BLOCKS": "9", "SHAPES": "tiny", "TYPES": "bf16 q8_0",
           "BENCH_WRITE": "1", "SUITE": "--shape tiny", "BUDGET": str(540 * SLOW)}
    r = subprocess.run([folder / "tools" / "bench-gpu"], env=env, capture_output=True, text=True, timeout=300 * SLOW)
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
    assert result["tiny_bf16_bf16_layers_1_100_launches_a_layer"] == 10.5 and result["tiny_bf16_fast_layers_1_100_launches_a_layer"] == 20.5, out      # attention's list: one a step, of two layers
    assert abs(int(re.search(r"10.5 launches a layer  27 launches a step, of which the layers take (\d+) us", out)[1]) - 2 * result["tiny_bf16_bf16_layers_1_100_us_a_layer"]) < 1, out
    assert re.search(r"rows +96 behind +0 .* TFLOP/s +[0-9.]+ % of 20\n +\(in 2 chunks", out), out
    for row, launches in (("batch +3 context +100", 2), ("rows +40 behind +50", 2)):
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
    r = subprocess.run([*bench, "135m", "q8_0", "bf16"], env=short, capture_output=True, text=True, timeout=100 * SLOW)
    assert r.returncode == 0 and re.fullmatch(r"135m q8_0 bf16: the rest is not measured: allocating a weight: the device has \d MiB free of 60 MiB\n", r.stdout), r.stdout + r.stderr
    r = subprocess.run([*bench, "tiny", "bf16", "bf16"], env={**short, "CUDA_HOST_MEMORY_MB": "1000"}, capture_output=True, text=True, timeout=100 * SLOW)
    assert r.returncode == 0 and r.stdout.count("not measured") == 8 and "there is memory for 1\n" in r.stdout, r.stdout + r.stderr

    # without time each part is named, and without python3 there is a file
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in "awk cat cp dirname env grep mktemp rm sh tee timeout".split():
        (tools / name).symlink_to(shutil.which(name))
    r = subprocess.run([folder / "tools" / "bench-gpu"], env={**env, "BUDGET": "0", "PATH": str(tools)}, capture_output=True, text=True, timeout=100 * SLOW)
    assert r.returncode == 0 and "python3 is missing: the results are in bench-gpu.txt" in r.stdout, r.stdout + r.stderr
    left = re.findall(r"(?m)^bench-gpu: not measured: (.*)$", (folder / "bench-gpu.txt").read_text())
    assert left == [*(f"steps of tiny {x}: the budget of 0 s is spent" for x in ("bf16, activations bf16, cuda", "bf16, activations bf16, cuda:fast", "q8_0, activations bf16, cuda")),
                    "copies of KV: the budget of 0 s is spent", "how long the GPU waits for the host, whole suites: python3 is missing"], left


QUICK = "case $CK_RUN_CASE in matmul | kv | copies) exec \"$0.real\" \"$@\" ;; esac\necho '100%: Checks: 1, Failures: 0, Errors: 0'"     # on the stand-in others take minutes
FAILED = "x.c:7:F:experts:experts_act:0: element 3 is 1, want 2"


def first_folder(folder, tmp_path, conform=QUICK, limits="printf '%-28s %12.2f %s\\n' read 100 GB/s 'wgmma bf16' 20 TFLOP/s 'allocation of 4.2 MiB takes' 6 MiB"):
    """A copy of the packed folder, with programs in its place that need a real GPU, or take long on the stand-in."""
    folder = shutil.copytree(folder, tmp_path / "dist")
    (folder / "test" / "conform").rename(folder / "test" / "conform.real")
    played(folder / "test" / "conform", conform)
    played(folder / "test" / "gpu_limits", limits)
    (tmp_path / "bin").mkdir()
    played(tmp_path / "bin" / "nvidia-smi", "echo A card, 580.1, 16000 MiB")
    played(tmp_path / "bin" / "compute-sanitizer", "while [ $1 != test/conform ]; do shift; done\n\"$@\" && echo '========= ERROR SUMMARY: 0 errors'")
    return folder


def first_minutes(folder, tmp_path, *args, **env):
    return subprocess.Popen([folder / "tools" / "gpu-first", "--tiny", "--thin", "1000", "--out", tmp_path / "out", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            cwd=tmp_path, env={**ON_HOST, "PD_MODEL": "", "PATH": f"{tmp_path}/bin:{ENV['PATH']}", **env})


def results(p, rc, timeout=300 * SLOW):
    """Once it has ended -> what it printed; of each step how it ended, and its figures"""
    said, _ = p.communicate(timeout=timeout)
    assert p.returncode == rc, said
    steps = {}
    for name, verdict, more in re.findall(r"(?m)^RESULT step=(\S+) verdict=(\S+) seconds=[0-9.]+(.*)$", said):
        assert name not in steps, said
        steps[name] = verdict, {k: v.strip('"') for k, v in re.findall(r'(\w+)=("[^"]*"|\S+)', more)}
    return said, steps


@pytest.mark.skipif(ON_GPU, reason="a GPU has tools/gpu-first itself")
def test_first_minutes_on_a_gpu(folder, tmp_path):
    """tools/gpu-first in the packed folder: a line of each step, also in its file."""
    folder = first_folder(folder, tmp_path)
    listed = results(first_minutes(folder, tmp_path, "--list"), 0)[0]
    names = [x.split()[0] for x in listed.splitlines()]
    said, steps = results(first_minutes(folder, tmp_path, "--seconds", str(360 * SLOW)), 0)
    assert list(steps) == [*names, "all"] and {v for v, _ in steps.values()} == {"ok"}, said
    files = {f[len("test_conform_"):-2] for f in os.listdir(os.path.join(ROOT, "tests", "conform")) if f.startswith("test_conform_")}
    assert {n.split("/")[-1] for n in names if n.startswith("conform/")} == files - {"cpu", "stages"} | {"groups"}, names      # all tests of stages fork
    figures = {name: f for name, (_, f) in steps.items()}
    assert figures["device"]["is"] == "A card, 580.1, 16000 MiB" and "cuda-sm99-r2-bf16act: " in figures["open/wgmma"]["is"], said
    for name in ("conform/wgmma/matmul", "conform/mma/matmul", "conform/f32/matmul", "conform/fast/matmul", "conform/kv", "sanitize/memcheck/matmul"):
        assert int(figures[name]["checks"]) > 1 and figures[name]["failures"] == figures[name]["errors"] == "0", said
    assert figures["sanitize/memcheck/matmul"]["sanitizer_errors"] == "0", said
    assert figures["tokens"]["llama_f32_same"] == figures["tokens"]["llama_f32_tokens"] and int(figures["tokens"]["llama_bf16_same"]) > 0, said
    assert figures["limits"] == {"read": "100", "wgmma_bf16": "20", "allocation_of_4_2_MiB_takes": "6"}, said
    for name, numerics in (("bf16", "cuda-sm99-r2-bf16act"), ("f32", "cuda-sm99-r2"), ("fast", "cuda-sm99-r2-fast")):
        f = figures[f"bench/{name}"]
        assert f["numerics"] == numerics and float(f["decode_8_200_us"]) > 0 and "decode_1_100_percent" in f, said      # held against the limits
    assert float(figures["handover"]["handover_1_gpu_cached_gb_s"]) > 0, said
    written = (tmp_path / "out" / "gpu-first.out").read_text()
    assert re.findall("(?m)^RESULT .*$", written) == re.findall("(?m)^RESULT .*$", said)
    assert "event=" not in said and "--- conform/kv: " in (tmp_path / "out" / "gpu-first.log").read_text()


@pytest.mark.skipif(ON_GPU, reason="for the host's stand-in")
def test_first_minutes_of_a_device_that_hangs(folder, tmp_path):
    """One that hangs with wgmma: the step is killed with all that it has started, the others do without wgmma, and one that fails stops none of them."""
    hang = (f"trap '' INT TERM; CONFORM_THIN=20 $0.real \"$@\" 2>{tmp_path}/at & echo $! >{tmp_path}/child\n"
            f"until grep -q whole {tmp_path}/at; do sleep 0.1; done; kill -STOP $!; tail -n 1 {tmp_path}/at; wait")      # in the middle of a test
    folder = first_folder(folder, tmp_path, f"case $CK_RUN_CASE.$PDSERVE_CUDA_WGMMA in matmul.1) {hang} ;; experts.0) echo '{FAILED}'; exit 1 ;; *) echo 'Checks: 2, Failures: 0, Errors: 0' ;; esac")
    said, steps = results(first_minutes(folder, tmp_path, "--only", "conform/wgmma/matmul,conform/wgmma/experts,conform/mma/experts,conform/kv,open/wgmma,bench/f32"), 1)
    verdict, f = steps["conform/wgmma/matmul"]
    assert (verdict, f["why"]) == ("timeout", "no output for 30 s") and re.match("((heads_)?matmul of .* rows: |opening )cuda/bf16", f["at"]), said
    assert steps["conform/wgmma/experts"] == ("skipped", {"why": "wgmma is not used any more, see conform/wgmma/matmul"}), said
    assert steps["conform/mma/experts"] == ("failed", {"status": "1", "why": FAILED}), said
    assert steps["conform/kv"][0] == "ok" and steps["conform/kv"][1]["wgmma"] == "0" and steps["bench/f32"][0] == "ok", said
    assert steps["all"] == ("failed", {"ok": "3", "failed": "1", "timeout": "1", "skipped": "1", "see": "conform/wgmma/matmul,conform/mma/experts"}), said
    assert not os.path.exists(f"/proc/{(tmp_path / 'child').read_text().strip()}/exe"), said


@pytest.mark.skipif(ON_GPU, reason="for the host's stand-in")
def test_first_minutes_that_are_over(folder, tmp_path):
    """What the budget leaves no time for is skipped, and a shorter step runs; a step that goes on is cut; at SIGTERM it says what it has."""
    folder = first_folder(folder, tmp_path, "case $CK_RUN_CASE in attention) sleep 4 ;; sizes) while sleep 1; do echo AT work; done ;; esac; echo 'Checks: 2, Failures: 0, Errors: 0'")
    said, steps = results(first_minutes(folder, tmp_path, "--seconds", "18", "--only", "conform/wgmma/attention,bench/bf16,conform/kv,conform/f32/sizes,conform/large"), 1)
    assert steps["bench/bf16"][0] == "skipped" and re.fullmatch(r"1\d s are left of 18, it needs 20", steps["bench/bf16"][1]["why"]), said
    assert steps["conform/wgmma/attention"][0] == steps["conform/kv"][0] == "ok", said
    assert steps["conform/f32/sizes"][0] == "timeout" and re.fullmatch(r"its 1?\d s are over", steps["conform/f32/sizes"][1]["why"]) and steps["conform/f32/sizes"][1]["at"] == "work", said
    assert steps["conform/large"] == ("skipped", {"why": "0 s are left of 18, it needs 3"}), said
    p = first_minutes(folder, tmp_path, "--only", "conform/kv,conform/f32/sizes,conform/large")
    wait_for(lambda: "--- conform/f32/sizes" in (tmp_path / "out" / "gpu-first.log").read_text().rpartition("step=all")[2], "the step does not begin")
    p.terminate()
    said, steps = results(p, 1)
    assert steps["conform/kv"][0] == "ok" and steps["conform/f32/sizes"][0] == "timeout" and steps["conform/f32/sizes"][1]["why"] == "interrupted", said
    assert list(steps) == ["conform/kv", "conform/f32/sizes", "all"], said


@pytest.mark.skipif(ON_GPU, reason="for the host's stand-in")
def test_first_minutes_without_a_device(folder, tmp_path):
    """One that does not open is waited for twice; a tool that is not there is named."""
    folder = first_folder(folder, tmp_path)
    said, steps = results(first_minutes(folder, tmp_path, CUDA_HOST_DRIVER="0"), 1)
    assert steps["open/wgmma"][0] == steps["open/mma"][0] == "failed" and "this machine lacks an NVIDIA driver" in steps["open/mma"][1]["why"], said
    assert {k: v for k, (v, _) in steps.items() if v != "skipped"} == {"device": "ok", "open/wgmma": "failed", "open/mma": "failed", "limits": "ok", "all": "failed"}, said
    for tool in ("nvidia-smi", "compute-sanitizer"):
        (tmp_path / "bin" / tool).unlink()
    (folder / "test" / "gpu_limits").unlink()
    said, steps = results(first_minutes(folder, tmp_path, "--only", "device,sanitize/memcheck/matmul,limits,conform/copies", PATH=f"{tmp_path}/bin:/usr/bin:/bin"), 0)
    lacks = {k: f["why"] for k, (v, f) in steps.items() if v == "skipped"}
    assert lacks == {"device": "nvidia-smi is missing", "limits": "test/gpu_limits is missing", "sanitize/memcheck/matmul": "compute-sanitizer is missing"} and steps["conform/copies"][0] == "ok", said
    said, _ = results(first_minutes(folder, tmp_path, "--only", "limits,bench/f64"), 2)
    assert "--only bench/f64: no step is called so; --list prints them" in said


def bench(folder, script, *args, rc=0, python=sys.executable, **env):
    """A benchmark of the packed folder -> its lines, its figures"""
    r = subprocess.run([python, folder / "tests" / "bench" / script, *args], env={**ON_HOST, **env}, capture_output=True, text=True, timeout=300 * SLOW)
    assert r.returncode == rc, r.stdout + r.stderr
    return r.stdout, {k: float(v) for k, v in re.findall(r"(?m)^RESULT (\S+)=(\S+)$", r.stdout)}


@pytest.mark.skipif(ON_GPU, reason="a GPU has tools/bench-gpu itself")
def test_whole_suites_in_the_packed_folder(folder):
    """The rows of bench_gpu_suite.py: figures of one GPU and of two; what has no time is named."""
    tiny = ("--shape", "tiny", "--kv-mb", "64", "--prompt", "150", "-n", "2", "--window", "0.3", "--streams", "1,3", "--answer", "4", "--seconds")
    said, got = bench(folder, "bench_gpu_suite.py", *tiny, str(180 * SLOW), "--gpus", "1", "--pcie-gbs", "50")
    assert got["start_weights_bytes"] > 100_000 and 0 < got["start_ready_s"] < got["start_first_token_s"] and got["start_above_s"] <= got["start_ready_s"], said
    assert re.search(r"handover, one GPU: 2 prompts of 150 tokens, 0\.0 MiB each; while they are computed [0-9.]+ GB/s, cached ones [0-9.]+ GB/s\n", said), said
    assert got["handover_1_gpu_tail_p50_us"] > 0 and got["handover_1_gpu_tail_layers"] > 0 and got["handover_1_gpu_cached_gb_s"] > 0, said
    assert got["itl_1_gpu_quiet_p50_ms"] > 0 and all(f"itl_1_gpu_{x}_p99_percent" in got for x in ("prompts", "computing", "copies")), said
    assert "tp: needs two GPUs, this machine has one\n" in said and not [x for x in got if "_2_gpu_" in x or x.startswith("tp")], said
    said, got = bench(folder, "bench_gpu_suite.py", *tiny, str(180 * SLOW), "--gpus", "2", "--rows", "handover,tp")
    assert got["handover_2_gpu_gb_s"] > 0 and all(got[f"tp{ranks}_{n}_{x}"] > 0 for ranks in (1, 2) for n in (1, 3) for x in ("tokens_s", "itl_p50_ms")), said
    said, got = bench(folder, "bench_gpu_suite.py", *tiny, "0.4", "--rows", "start,handover")
    assert re.findall(r"(?m)^(\w+): what is missing above was not measured", said) == ["start", "handover"] and not got, said


@pytest.mark.skipif(ON_GPU, reason="a GPU has tools/bench-gpu itself")
def test_suites_that_fail_in_the_packed_folder(folder):
    """A row that cannot be measured fails the benchmark, after the others."""
    said, got = bench(folder, "bench_gpu_suite.py", "--shape", "tiny", "--kv-mb", "1", "--prompt", "700", "--window", "30", "--gpus", "1", "--rows", "itl,tp", "--seconds", "500", rc=1)
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
