"""Tensor and pipeline parallel: workers of several processes answer as workers of one, in every pair; a process that dies costs no answer."""
import os
import signal
import threading
import time

import pytest
from suite import SLOW, TINY_MODEL, Suite

PROMPTS = [list(range(3, 60)), [7, 8, 9] * 30, [200 - i for i in range(150)]]
SEEDED = {"temperature": 0.9, "top_p": 0.95, "seed": 4}
BLOCK = {"block_tokens": 16, "output_caching": False}


def answers(s, n=24):
    return [s.tokens(p, n) for p in PROMPTS] + [s.tokens(PROMPTS[1], n, **SEEDED)]


@pytest.fixture(scope="module")
def want():
    with Suite("mixed", TINY_MODEL, worker=BLOCK) as s:
        return answers(s)


def ranks_of(s, name):
    """The processes that this worker has started."""
    out = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat") as f:
                text = f.read()
        except OSError:
            continue
        state, ppid = text[text.rindex(")") + 2:].split()[:2]
        if int(ppid) == s.procs[name].pid and state != "Z":
            out.append(int(pid))
    return out


ARRANGEMENTS = {
    "mixed": {"layout": "mixed", "worker": {"tensor_parallel": 2, "threads": 2, **BLOCK}},
    "both": {"layout": "1p1d", "worker": {"tensor_parallel": 2, **BLOCK}},
    "prefill": {"layout": "1p1d", "worker": BLOCK, "prefill": {"tensor_parallel": 2}},
    "decode": {"layout": "1p1d", "worker": BLOCK, "decode": {"tensor_parallel": 2}},
    "four": {"layout": "1p1d", "worker": {"tensor_parallel": 4, **BLOCK}},
    "tiers": {"layout": "1p1d", "worker": BLOCK, "decode": {"tensor_parallel": 2},
              "prefill": {"kv_blocks": 16, "kv_eviction": "offload", "storage_read": "always"}},
    "stages": {"layout": "1p1d", "worker": {"pipeline_parallel": 2, **BLOCK}},
    "stages mixed": {"layout": "mixed", "worker": {"pipeline_parallel": 3, "max_batched_tokens": 16, "messager": "none", "storage": "none", **BLOCK}},
    "stages prefill": {"layout": "1p1d", "worker": BLOCK, "prefill": {"pipeline_parallel": 3, "max_batched_tokens": 48}, "decode": {"tensor_parallel": 2}},
    "stages decode": {"layout": "1p1d", "worker": BLOCK, "decode": {"pipeline_parallel": 2, "tensor_parallel": 2, "speculative": "ngram", "spec_ngram_min": 1}},
    "stages tiers": {"layout": "1p1d", "worker": BLOCK, "decode": {"pipeline_parallel": 2},
                     "prefill": {"pipeline_parallel": 2, "kv_blocks": 16, "kv_eviction": "offload", "storage_read": "always"}},
}
PROCESSES = {"both": 2, "four": 6, "stages": 2, "stages mixed": 2, "stages prefill": 3, "stages decode": 3, "stages tiers": 2}   # besides the workers; others: 1


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_same_tokens(want, name):
    with Suite(model=TINY_MODEL, **ARRANGEMENTS[name]) as s:
        for _ in range(2):
            assert answers(s) == want
        s.quiet()
        ranks = [r for n in s.workers() for r in ranks_of(s, n)]
        assert len(ranks) == PROCESSES.get(name, 1)
    for r in ranks:
        assert not os.path.exists(f"/proc/{r}"), "a rank outlives its worker"


def test_rank_follows_the_log_file(tmp_path):
    log = tmp_path / "worker.log"
    with Suite("mixed", TINY_MODEL, worker={"tensor_parallel": 2, "log_file": str(log), **BLOCK}) as s:
        rank, = ranks_of(s, "mixed-1")
        for n in range(2):
            assert os.readlink(f"/proc/{rank}/fd/2") == str(log)
            log.rename(tmp_path / f"old.{n}")
            s.tokens(PROMPTS[0], 4)
        assert os.readlink(f"/proc/{rank}/fd/2") == str(log)


@pytest.mark.parametrize("kind", ["tensor_parallel", "pipeline_parallel"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_killed_rank(want, role, kind):
    """A worker whose rank or stage dies ends at once, with the reason; what it was at goes on at the other one, and a new one takes its place."""
    layout = "2p1d" if role == "prefill" else "1p2d"
    with Suite(layout, TINY_MODEL, worker={kind: 2, **BLOCK}) as s:
        got, errors, stop = [], [], threading.Event()

        def ask():
            try:
                while not stop.is_set():
                    got.append(answers(s, 24))
            except Exception as e:  # noqa: BLE001 - shown by the test
                errors.append(repr(e))

        t = threading.Thread(target=ask)
        t.start()
        try:
            name = role + "-1"
            for rank in ranks_of(s, name):
                os.kill(rank, signal.SIGKILL)
            assert s.procs[name].wait(30 * SLOW) == 1
            assert "rank 1 (process" in s.log(name) and "ended by signal 9" in s.log(name)
            s.restart(name)
            s.ready()
            n, end = len(got), time.time() + 60 * SLOW
            while len(got) < n + 2 and t.is_alive():
                assert time.time() < end
                time.sleep(0.02)
        finally:
            stop.set()
            t.join()
        assert not errors and got and all(g == want for g in got)
        s.quiet()


def test_refused(tmp_path):
    """More ranks than KV heads, and no multiple of them, more stages than layers, or experts that the model does not have: the worker says so and does not start."""
    with Suite("mixed", TINY_MODEL, worker={"tensor_parallel": 3}, wait=False) as s:
        assert s.procs["mixed-1"].wait(30 * SLOW) != 0
        assert "tensor_parallel is 3, the model has 2 KV heads" in s.log("mixed-1")
        s.procs.pop("mixed-1")
    with Suite("mixed", TINY_MODEL, worker={"pipeline_parallel": 4}, wait=False) as s:
        assert s.procs["mixed-1"].wait(30 * SLOW) != 0
        assert "pipeline_parallel is 4, the model has 3 layers" in s.log("mixed-1")
        s.procs.pop("mixed-1")
    with Suite("mixed", TINY_MODEL, worker={"tensor_parallel": 2, "expert_parallel": True}, wait=False) as s:
        assert s.procs["mixed-1"].wait(30 * SLOW) != 0
        assert "expert_parallel is true, the model has no experts: set it to false" in s.log("mixed-1")
        s.procs.pop("mixed-1")
