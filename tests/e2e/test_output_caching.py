"""Output caching: the next turn of a conversation finds prompt and answer in storage, whoever computed them."""
import re
import time

import pytest
from suite import SLOW, Suite

BLOCK, NEW, ANSWER = 16, 40, 50
WORKER = {"block_tokens": BLOCK, "max_batched_tokens": 64, "kv_blocks": 200, "storage_lookup_wait_ms": 20000, "storage_read_wait_ms": 20000,
          "storage_read": "always"}


def figure(s, name, key):
    return int(float(re.search(rf"(?m)^{key}(?:{{[^}}]*}})? (\S+)$", s.metrics(name))[1]))


def written(s, blocks, name="decode-1"):
    """Until storage has so many of the worker's cached blocks."""
    end = time.time() + 20 * SLOW
    while s.kv(name)["cached_stored"] < blocks:
        assert time.time() < end, s.kv(name)
        time.sleep(0.02)


def turns(s, seed, n, between=lambda turn, tokens: None):
    """A conversation of n turns; all answers."""
    tokens, answers = [], []
    for turn in range(n):
        tokens += [3 + (seed * 7919 + turn * 104729 + i * 31) % 300 for i in range(NEW)]
        answers.append(s.tokens(tokens, ANSWER))
        tokens += answers[-1]
        between(turn, len(tokens))
    return answers


@pytest.fixture(scope="module")
def want(tiny_model):
    with Suite("mixed", tiny_model, worker={**WORKER, "storage": "none"}) as s:
        return turns(s, 1, 3)


@pytest.mark.parametrize("on", [True, False])
def test_next_turn(tiny_model, want, on):
    """The prefill worker has computed the prompts only: the answers it reads from storage, or it computes them again."""
    with Suite("1p1d", tiny_model, worker={**WORKER, "output_caching": on}) as s:
        # the last token of an answer is never computed: nothing is known of what follows it
        assert turns(s, 1, 3, lambda turn, n: on and written(s, (n - 1) // BLOCK)) == want
        read = figure(s, "prefill-1", "pdserve_prefill_stored_tokens_total")
        # its own prompt blocks are there; of each answer, all blocks from the prompt's last, which was not full, to the answer's last full one
        assert read == (sum((t * (NEW + ANSWER) - 1) // BLOCK - (t * (NEW + ANSWER) - ANSWER) // BLOCK for t in (1, 2)) * BLOCK if on else 0)
        assert figure(s, "decode-1", "pdserve_decode_kv_output_blocks_total") == ((3 * (NEW + ANSWER) - 1) // BLOCK if on else 0)
        s.quiet()


def test_nothing_is_sent_twice(tiny_model, want):
    """What is known to be stored is not offered again."""
    with Suite("1p1d", tiny_model, worker=WORKER) as s:
        for _ in range(3):
            assert turns(s, 1, 1)[0] == want[0]
            written(s, (NEW + ANSWER - 1) // BLOCK)
        assert figure(s, "decode-1", "pdserve_decode_kv_output_blocks_total") == (NEW + ANSWER - 1) // BLOCK
        assert figure(s, "decode-1", "pdserve_decode_kv_write_seconds_count") <= 2
        s.quiet()


def test_after_all_is_forgotten(tiny_model, want):
    """Both workers' own indexes are emptied after each turn, or the workers killed: storage alone remembers."""
    def forget(turn, n):
        written(s, (n - 1) // BLOCK)
        if turn == 0:
            for name in ("prefill-1", "decode-1"):
                s.ctl(name, "flush")
        elif turn == 1:
            for name in ("prefill-1", "decode-1"):
                s.kill(name)
                s.restart(name)
            s.ready()
    with Suite("1p1d", tiny_model, worker=WORKER) as s:
        assert turns(s, 1, 3, forget) == want
        assert figure(s, "prefill-1", "pdserve_prefill_stored_tokens_total") == (2 * (NEW + ANSWER) - 1) // BLOCK * BLOCK
        s.quiet()


def test_mixed(tiny_model, want):
    with Suite("mixed", tiny_model, worker=WORKER) as s:
        assert turns(s, 1, 3, lambda turn, n: written(s, (n - 1) // BLOCK, "mixed-1")) == want
        s.quiet()


def test_storage_killed_between(tiny_model, want):
    """What was stored is lost with it; the answers are the same, and what comes after is stored again."""
    def kill(turn, n):
        written(s, (n - 1) // BLOCK)
        if turn == 0:
            s.kill("storage")
            s.restart("storage")
            s.ready()
    with Suite("1p1d", tiny_model, worker={**WORKER, "kv_eviction": "write_through", "write_through_after": 0}) as s:
        assert turns(s, 1, 3, kill) == want
        s.quiet()
