# run: cuda long
"""Tensor and pipeline parallel on the CUDA backend, in whole suites, on the host's stand-in for GPUs (tests/cuda_host), or with PD_GPU=1 on the machine's GPU, which all
ranks share: tokens of one device, KV that goes between pools of other shares, a rank that dies, or comes late."""
import concurrent.futures
import os
import signal
import subprocess
import time

import pytest
from golden import WORKER, answers, asked, scored, through_storage, wanted
from suite import GOLDEN, SLOW, Suite, wait_for

ON_GPU = bool(os.environ.get("PD_GPU"))


def ranks(n):
    """A worker of n processes. On a machine's GPU all share it."""
    return {"tensor_parallel": n, **({"ranks_per_device": n} if ON_GPU else {})}


MODES = {"exact": {"activation_type": "bf16"}, "fast": {"variant": "fast"}}


def ranked(layout, worker=None, **more):
    """Mixed workers of two processes."""
    return Suite(layout, os.path.join(GOLDEN, "llama"), worker={**WORKER, "kv_type": "f32", **ranks(2), **(worker or {})}, gpu={}, **more)


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


N = 6       # tokens
SHAPES = {"1": {}, "2": ranks(2), "4": ranks(4), "stages": {"pipeline_parallel": 2}, "stages of 2": {"pipeline_parallel": 2, "tensor_parallel": 2}}


def shaped(prefill, decode, rounds=1, **both):
    """The answers in bfloat16 of a prefill and a decode worker of these shapes, the prompt in small chunks."""
    return answers("llama", "1p1d", "bf16", n=N, rounds=rounds, ask=scored, gpu={}, prefill={**both, "max_batched_tokens": 48, **prefill}, decode={**both, **decode})


@pytest.fixture(scope="module")
def one_device():
    """-> what one device on each side answers, in the exact mode and in `fast`"""
    return {mode: shaped({}, {}, **MODES[mode]) for mode in (["exact"] if ON_GPU else MODES)}


@pytest.mark.parametrize("prefill, decode", [("2", "4"), ("4", "stages of 2"), ("stages of 2", "stages")])
def test_rounded_activations_of_ranks(one_device, prefill, decode):
    """As the field computes, with bfloat16 activations: tensor parallel, a pipeline, and a pipeline of tensor parallel stages have the bits of one device, the second
    time from what is in the pools."""
    if ON_GPU and "stages" in prefill + decode:
        pytest.skip("each stage needs a GPU of its own")
    assert shaped(SHAPES[prefill], SHAPES[decode], rounds=2, **MODES["exact"]) == one_device["exact"]


@pytest.mark.skipif(ON_GPU, reason="NCCL wants a GPU for each rank")
@pytest.mark.parametrize("prefill, decode", [("2", "stages of 2"), ("4", "4"), ("stages", "1")])
def test_fast_of_ranks(one_device, prefill, decode):
    """In `fast` sums are divided among ranks: as near to those of one as other sums of bfloat16 are (FAST_TOLERANCE of test_cuda_models.c). A pipeline divides none, and has
    the bits of one device."""
    many = shaped(SHAPES[prefill], SHAPES[decode], **MODES["fast"])
    if prefill == "stages":
        assert many == one_device["fast"]
    for (a, a_scores, _), (b, b_scores, _) in zip(one_device["fast"], many, strict=True):
        same = next((i for i in range(N) if a[i] != b[i]), N)                # from there on they answer other prompts
        assert same and all(abs(x - y) <= 0.3 for x, y in zip(a_scores[:same], b_scores[:same], strict=True)), (one_device["fast"], many)


@pytest.mark.skipif(ON_GPU, reason="for the host's stand-in")
@pytest.mark.parametrize("family, prefill, decode", [("gpt_oss", "2", "stages of 2"), ("deepseek_v3", "4", "2")])
def test_whole_experts(family, prefill, decode):
    """With whole experts on each rank: the bits of one device, the second time from what is in the pools."""
    ask = {"kv_type": "bf16", "n": N, "ask": scored, "gpu": {}}
    one = {**MODES["exact"], "max_batched_tokens": 48}
    many = {**one, "expert_parallel": True}
    assert (answers(family, "1p1d", rounds=2, prefill={**many, **SHAPES[prefill]}, decode={**many, **SHAPES[decode]}, **ask)
            == answers(family, "1p1d", prefill=one, decode=one, **ask))


@pytest.mark.parametrize("family, prefill, decode", [("deepseek_v3", 4, 2), ("deepseek_v3", 1, 2), ("llama", 2, 4)])
def test_tensor_parallel_copies(family, prefill, decode):
    """One latent, or a KV head, on several devices: what is handed over is written to each, and read from one."""
    more = {"prefill": {**ranks(prefill), "max_batched_tokens": 48}, "decode": ranks(decode)}
    assert answers(family, "1p1d", "f32", n=8, rounds=2, gpu={}, **more) == [want[:8] for want in wanted(family)]


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


@pytest.mark.skipif(ON_GPU, reason="for the host's stand-in")
@pytest.mark.parametrize("late", [True, False])
def test_tensor_parallel_rank_stopped(late):
    """A rank that is late costs time alone. For one that does not come back the worker ends with the reason, and the answer is another worker's."""
    prompt, want = asked("llama")[0]
    with ranked("2mixed", {"step_timeout_ms": (60 if late else 4) * 1000 * SLOW}, router={"stuck_ms": (60 if late else 2) * 1000 * SLOW}) as s:
        assert s.tokens(prompt, 4) == want[:4]
        names = s.workers()
        rank = {name: int(subprocess.check_output(["pgrep", "-P", str(s.procs[name].pid), "pdrank"], text=True)) for name in names}
        for name in names if late else names[:1]:
            os.kill(rank[name], signal.SIGSTOP)
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            got = [pool.submit(s.tokens, prompt, 8) for _ in range(4)]
            if late:
                time.sleep(1)
                assert not any(g.done() for g in got)
                for name in names:
                    os.kill(rank[name], signal.SIGCONT)
            assert [g.result() for g in got] == [want[:8]] * 4
        if not late:
            wait_for(lambda: s.procs[names[0]].poll() is not None, f"{names[0]} goes on without its rank")
            assert s.procs.pop(names[0]).returncode != 0
            assert "step_timeout_ms" in s.log(names[0])
