"""The types of the KV cache in a whole suite: the same tokens however a request is run, workers of unlike types (or types of activations) are no pair, stored
blocks do not mix."""
import random
import re
import shutil
import tempfile

import pytest
from suite import Suite, wait_for

TYPES = ("bf16", "f16", "f32", "int8", "fp8")
RND = random.Random(9)
PROMPTS = [[RND.randrange(3, 300) for _ in range(n)] for n in (1, 17, 70, 150, 200)]
N = 24
WORKER = {"block_tokens": 16, "kv_blocks": 96, "kv_eviction": "write_through", "write_through_after": 0, "storage_read": "always", "storage_lookup_wait_ms": 60000,
          "storage_read_wait_ms": 60000}


def worker(kv_type, **more):
    return {**WORKER, "kv_type": kv_type, **more}


def answers(s):
    """Tokens with their log-probabilities: types with equal tokens still differ."""
    out = []
    for p in PROMPTS:
        status, a = s.post("/v1/completions", {"prompt": p, "max_tokens": N, "temperature": 0, "ignore_eos": True, "logprobs": 1, "return_token_ids": True})
        assert status == 200, a
        out.append((a["choices"][0]["token_ids"], a["choices"][0]["logprobs"]["token_logprobs"]))
    return out


@pytest.fixture(scope="module")
def want(tiny_model):
    out = {}
    for t in TYPES:
        with Suite("mixed", tiny_model, worker=worker(t, storage="none")) as s:
            out[t] = answers(s)
    return out


def test_types_are_not_the_same(want):
    for i, a in enumerate(TYPES):
        assert all(want[a] != want[b] for b in TYPES[:i]), a
        assert all(len(tokens) == N for tokens, _ in want[a])


def stored_tokens(s, name):
    return sum(float(line.rsplit(" ", 1)[1]) for line in s.metrics(name).splitlines() if "_stored_tokens_total{" in line)


@pytest.mark.parametrize("kv_type", TYPES)
def test_split_is_mixed(tiny_model, want, kv_type):
    """Handed over in small chunks, twice: the second time from the pools. The decode worker must have computed no prompt."""
    with Suite("1p1d", tiny_model, worker=worker(kv_type), prefill={"max_batched_tokens": 48}) as s:
        assert s.ctl("prefill-1", "status")["numerics"].endswith(":" + kv_type)
        assert answers(s) == want[kv_type]
        assert answers(s) == want[kv_type]
        assert s.ctl("prefill-1", "status")["cached_tokens"] > 0
        s.quiet()


def restart_as(s, name, kv_type):
    s.kill(name)
    s.conf[name]["kv_type"] = kv_type
    s.restart(name)
    s.ready()


@pytest.mark.parametrize("kv_type, other", [("int8", "fp8"), ("fp8", "int8"), ("f16", "bf16")])     # blocks of equal sizes
def test_stored_blocks_do_not_mix(tiny_model, want, kv_type, other):
    """Storage, in memory and on disk, has the blocks of a worker that comes back with another type, which finds none; and with the first, which finds them."""
    disk = tempfile.mkdtemp(prefix="pdserve-test-kv-")
    try:
        storage = {"memory_mb": 16, "memory_eviction": "write_through", "write_through_after": 0, "disk_path": disk + "/blocks", "disk_mb": 64}
        with Suite("mixed", tiny_model, worker=worker(kv_type), storage=storage) as s:
            assert answers(s) == want[kv_type]
            blocks = sum((len(p) - 1) // 16 for p in PROMPTS)
            wait_for(lambda: all(t["blocks"] >= blocks for t in s.ctl("storage", "storage")["tiers"]), lambda: s.ctl("storage", "storage"))
            restart_as(s, "mixed-1", other)
            assert answers(s) == want[other]
            assert stored_tokens(s, "mixed-1") == 0
            restart_as(s, "mixed-1", kv_type)
            assert answers(s) == want[kv_type]
            assert stored_tokens(s, "mixed-1") > 0
    finally:
        shutil.rmtree(disk, ignore_errors=True)


@pytest.mark.parametrize("prefill, decode, yours, here", [(worker("int8"), worker("fp8"), r"\S+:int8", r"\S+:fp8"),
                                                          (worker("f16", activation_type="bf16"), worker("f16"), r"\S+-bf16act:\S+", r"cpu-r\d+:\S+")])
def test_unlike_workers_are_no_pair(tiny_model, want, prefill, decode, yours, here):
    """The two say why, the router pairs neither with the other, and the decode worker answers by itself."""
    with Suite("1p1d", tiny_model, prefill=prefill, decode=decode, wait=False) as s:
        logs = lambda: s.log("prefill-1") + s.log("decode-1")   # noqa: E731
        wait_for(lambda: re.search(f"numerics differs: yours is {yours}, here it is {here}", logs()), logs)
        wait_for(lambda: all(f"event=worker_up worker={w}" in s.log("router") for w in ("prefill-1", "decode-1")), lambda: s.log("router"))
        wait_for(lambda: s.get("/ready")[0] == 200, lambda: s.log("router"))
        assert answers(s) == want[decode["kv_type"]]
