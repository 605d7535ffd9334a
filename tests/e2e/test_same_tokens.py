# run: long
"""Invariant I8: greedy and seeded output is the same, token for token, whatever the arrangement. On the real model where KV moves; how work is cut and who shares a batch is
shown on its first two layers, by log-probabilities too, which tell a difference of a bit. PD_FULL=1: all on the real model."""
import os
import threading

import pytest
from prompts import PROMPTS
from suite import Suite

SEEDED = {"temperature": 0.9, "top_p": 0.95, "seed": 1234}
FULL = bool(os.environ.get("PD_FULL"))
N = 24 if FULL else 12
LAYOUTS = ["1p1d", "mixed"] if FULL else ["1p1d"]
SHORT, LONG = PROMPTS[2], PROMPTS[20]
PICKED = PROMPTS if FULL else [SHORT, PROMPTS[6], PROMPTS[19][:450], LONG[:1100]]   # on a slow machine all of them take minutes


def answer(s, prompt, n, **more):
    """The token ids, and their log-probabilities."""
    status, r = s.post("/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "logprobs": 0, **more})
    assert status == 200, r
    return r["choices"][0]["token_ids"], r["choices"][0]["logprobs"]["token_logprobs"]


def run(s):
    return [answer(s, p, N) for p in PICKED] + [answer(s, p, N, **SEEDED) for p in ((SHORT, LONG) if FULL else (SHORT,))]


def expected(model):
    with Suite("mixed", model) as s:
        out = run(s)
        assert [(len(t), len(p)) for t, p in out] == [(N, N)] * len(out)
        assert out[PICKED.index(SHORT)][0] != out[len(PICKED)][0]   # the seeded one differs from the greedy one
        return out


@pytest.fixture(scope="module")
def want(real_model):
    return expected(real_model)


@pytest.fixture(scope="module")
def model(real_model, short_model):
    return real_model if FULL else short_model


@pytest.fixture(scope="module")
def want_of_model(model, request):
    return request.getfixturevalue("want") if FULL else expected(model)


ARRANGEMENTS = {     # beside 1p1d, below
    "small-chunks-without-storage": {"layout": "1p1d", "prefill": {"max_batched_tokens": 48}, "worker": {"storage": "none"}},
    "mixed-chunks-three-threads": {"layout": "mixed", "worker": {"max_batched_tokens": 64, "threads": 3}},
    "2p2d-two-threads": {"layout": "2p2d", "worker": {"threads": 2}},
}


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_same_tokens(model, want_of_model, name):
    with Suite(model=model, **ARRANGEMENTS[name]) as s:
        assert run(s) == want_of_model
        s.quiet()


def test_twice_with_prefix_hits(real_model, want):
    """The second round finds its prefixes in both caches and moves only what is missing."""
    with Suite("1p1d", real_model) as s:
        assert run(s) == want
        assert run(s) == want
        assert s.ctl("prefill-1", "status")["cached_tokens"] > (700 if FULL else 300)
        s.quiet()


def test_read_back_from_storage(real_model, want):
    """A pool for about one long prompt: what it evicts is offloaded and read back."""
    long = [p for p in PICKED if len(p) > 400]
    expect = [want[PICKED.index(p)] for p in long]
    with Suite("1p1d", real_model, prefill={"kv_blocks": 30 if FULL else 5, "kv_eviction": "offload", "storage_read": "always", "storage_lookup_wait_ms": 60000,
                                                 "storage_read_wait_ms": 60000}) as s:
        for i in range(20):
            assert [answer(s, p, N) for p in long] == expect
            if i and s.ctl("storage", "status")["hits"]:
                break
        assert s.ctl("storage", "status")["hits"] > 0
        s.quiet()


def background(s, stop, errors):
    i = 0
    while not stop.is_set():
        try:
            s.tokens(f"Tell me about the number {i} and why it", 40)
        except Exception as e:  # noqa: BLE001 - shown by the test
            errors.append(repr(e))
            return
        i += 1


@pytest.mark.parametrize("layout", LAYOUTS)
def test_with_eight_others_in_the_batch(model, want_of_model, layout):
    with Suite(layout, model) as s:
        stop, errors = threading.Event(), []
        threads = [threading.Thread(target=background, args=(s, stop, errors)) for _ in range(8)]
        for t in threads:
            t.start()
        try:
            got = run(s)
        finally:
            stop.set()
            for t in threads:
                t.join()
        assert not errors
        assert got == want_of_model
        s.quiet()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_after_preemption(model, layout):
    """Sequences grow in a pool that holds about three: some are preempted and recomputed, with the same tokens."""
    prompts, n = [PROMPTS[18][: 200 + 40 * i] for i in range(8 if FULL else 5)], 150 if FULL else 48
    with Suite("mixed", model) as s:
        want = [answer(s, p, n) for p in prompts]
    with Suite(layout, model, decode={"kv_blocks": 12 if FULL else 6, "growth_ratio": 0.0}) as s:
        got, errors = [None] * len(prompts), []

        def one(i):
            try:
                got[i] = answer(s, prompts[i], n)
            except Exception as e:  # noqa: BLE001
                errors.append(repr(e))

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(prompts))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert not errors
        assert got == want
        worker = [w for w in s.workers() if not w.startswith("prefill")][0]
        assert s.ctl(worker, "status")["preemptions"] > 0
        s.quiet()
