"""A model with a NaN in its weights: the embedding of one token. Whoever has that token in a prompt,
or draws it, gets 500 after one attempt; nothing of it is kept for others, who go on."""
import re
import shutil
import tempfile
import threading

import pytest
from golden import with_nan
from suite import Suite, wait_for

BAD = 77
GOOD_PROMPT = [(11 * i) % 70 + 3 for i in range(40)]
BAD_PROMPT = GOOD_PROMPT[:37] + [BAD, 5, 6]
WORKER = {"block_tokens": 16, "kv_blocks": 96, "storage": "none"}


@pytest.fixture(scope="module")
def model():
    folder = tempfile.mkdtemp(prefix="pdserve-test-nan-")
    with_nan(folder, BAD)
    yield folder
    shutil.rmtree(folder)


def refused(s, prompt, part, **more):
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, **more}
    status, r = s.post("/v1/completions", body)
    assert status == 500, (status, r)
    assert f"{part} are not finite" in r["error"]["message"], r


def cached(s):
    return {w: s.ctl(w, "status")["blocks_cached"] for w in s.workers()}


def nothing_cached(s):
    """When the last request has left the workers: blocks come back a moment after its answer."""
    def at_rest(w):
        st = s.ctl(w, "status")
        return st["blocks_held"] + st["blocks_leased"] == 0

    wait_for(lambda: all(map(at_rest, s.workers())), lambda: s.ctl(s.workers()[0], "requests"))
    assert set(cached(s).values()) == {0}, cached(s)


@pytest.mark.parametrize("layout", ["mixed", "1p1d"])
def test_in_a_prompt(model, layout):
    with Suite(layout, model, worker=WORKER) as s:
        for i in range(12):         # more than would open the breaker, if the worker were blamed
            refused(s, BAD_PROMPT, "token 0 of the answer", seed=i, temperature=i % 2)
        nothing_cached(s)
        assert s.log("router").count("event=submitted") == 12
        assert sum(s.ctl(w, "status")["cached_tokens"] for w in s.workers()) == 0
        refused(s, BAD_PROMPT, "of the prompt", prompt_logprobs=2)
        refused(s, BAD_PROMPT, "token 0 of the answer", logit_bias={"5": 3}, logprobs=2)
        refused(s, BAD_PROMPT, "token 0 of the answer", allowed_token_ids=[5, 6, 7])
        nothing_cached(s)
        assert len(s.tokens(GOOD_PROMPT, 8)) == 8
        counts = re.findall(r"(?m)^pdserve_[a-z]+_logits_not_finite_total\S* (\d+)",
                            "\n".join(map(s.metrics, s.workers())))
        assert sum(map(int, counts)) == 15
        s.quiet()


@pytest.mark.parametrize("layout", ["mixed", "1p1d"])
def test_in_an_answer(model, layout):
    """It is the answer's first token, drawn from good logits; the next step's are not finite."""
    with Suite(layout, model, worker=WORKER) as s:
        refused(s, GOOD_PROMPT, "token 1 of the answer", allowed_token_ids=[BAD])
        got = list(s.stream("/v1/completions", {"prompt": GOOD_PROMPT, "max_tokens": 8, "temperature": 0,
                                                "allowed_token_ids": [BAD], "return_token_ids": True}))
        assert got[0]["choices"][0]["token_ids"] == [BAD]
        assert "not finite" in got[-1]["error"]["message"], got
        s.quiet()


@pytest.mark.parametrize("layout", ["mixed", "1p1d"])
def test_others_go_on(model, layout):
    """In the same steps, chunked with it."""
    with Suite(layout, model, worker={**WORKER, "max_batched_tokens": 48}) as s:
        prompts = [[(7 * i + k) % 70 + 3 for i in range(60)] for k in range(6)]
        want = [s.tokens(p, 24) for p in prompts]
        got, spoiled, stop = [None] * len(prompts), [], threading.Event()

        def spoil():
            while not stop.is_set():
                body = {"prompt": BAD_PROMPT, "max_tokens": 8}
                spoiled.append(s.post("/v1/completions", body)[0])

        def ask(i):
            got[i] = s.tokens(prompts[i], 24)

        other = threading.Thread(target=spoil)
        other.start()
        threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(prompts))]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        stop.set()
        other.join()
        assert got == want
        assert set(spoiled) == {500}
        s.quiet()
