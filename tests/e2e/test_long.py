"""Sequences of more blocks than a slot of the ring has room for (4,096): a worker that does it all serves them, and they grow, share steps and go on elsewhere
as others do; only a hand-over has that limit, and nobody asks for one that is too long."""
import concurrent.futures
import random

import pytest
from suite import Suite

BLOCK = 8
SIM = {"base": "small", "layers": 1, "hidden": 64, "heads": 1, "kv_heads": 1, "head_dim": 64, "ffn": 64, "context": 100000}
WORKER = {"block_tokens": BLOCK, "kv_blocks": 10000, "max_batched_tokens": 8192}
RING = 4096 * BLOCK             # tokens of the longest hand-over


def prompt(n, seed=1):
    r = random.Random(seed)
    return [r.randrange(3, 320) for _ in range(n)]


def suite(layout, time_scale=0.01, **more):
    return Suite(layout=layout, worker={**WORKER, **more}, sim={**SIM, "time_scale": time_scale})


def counted(s, name, event):
    return s.log(name).count(f"event={event} ")


@pytest.fixture(scope="module")
def alone():
    """More tokens than a hand-over takes: what one worker makes of them, and in the last 20 tokens of the shorter prompt, which grows beyond it."""
    with suite("mixed") as s:
        return s.tokens(prompt(RING + 1)), s.tokens(prompt(RING - 10), n=60)


def test_too_long_to_be_handed_over(alone):
    with suite("1p1d") as s:
        assert s.tokens(prompt(RING - 10), n=60) == alone[1]       # handed over, and grown there
        assert counted(s, "prefill-1", "prefill_done") == 1
        assert s.tokens(prompt(RING + 1)) == alone[0]
        assert counted(s, "prefill-1", "accepted") == 1
        assert counted(s, "router", "attempt_lost") == 0
        s.quiet()


def test_a_single_token_needs_no_hand_over(alone):
    with suite("1p1d") as s:
        assert s.tokens(prompt(RING + 1), n=1) == alone[0][:1]
        assert counted(s, "prefill-1", "prefill_done") == 1


@pytest.mark.parametrize("layout", ["2mixed", "1p2d"])
def test_grown_too_long_and_lost(alone, layout):
    """Its worker is killed when the answer has made it longer than a hand-over takes: it goes on at the other one."""
    with suite(layout, time_scale=100) as s:        # a step takes 10 ms
        got, killed = [], None
        for event in s.stream("/v1/completions", {"prompt": prompt(RING - 10), "max_tokens": 60, "temperature": 0, "ignore_eos": True, "return_token_ids": True}):
            got += event["choices"][0]["token_ids"] if event["choices"] else []
            if len(got) >= 30 and not killed:
                killed = next(w for w in s.workers() if w != "prefill-1" and s.ctl(w, "requests"))
                s.kill(killed)
        assert killed
        assert got == alone[1]


def test_two_long_ones_in_one_step(alone):
    """Together they have more table entries than both may hand over."""
    with suite("mixed", max_sequences=2) as s:
        prompts = [prompt(RING - 10), prompt(RING - 10, seed=2)]
        with concurrent.futures.ThreadPoolExecutor(2) as pool:
            both = list(pool.map(lambda p: s.tokens(p, n=60), prompts))
        assert both[0] == alone[1]
        assert both[1] == s.tokens(prompts[1], n=60)
        assert counted(s, "router", "attempt_lost") == 0


def test_one_sequence_alone_is_longer():
    """max_sequences = 1 does not make sequences shorter."""
    with suite("mixed", max_sequences=1) as s:
        assert len(s.tokens(prompt(RING + 1))) == 16
