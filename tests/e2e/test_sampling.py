"""Sampling parameters from end to end: what each does to an answer, and that a request which uses all of them has the same answer in every arrangement (I8)."""
import glob
import json
import os
import re
import threading

import pytest
from prompts import PROMPTS
from suite import ROOT, SAN, SLOW, Suite

BLOCK = 64          # tokens of a KV block
IDS = [5, 9, 200, 13, 5, 5, 77, 31]


@pytest.fixture(scope="module")
def tiny(tiny_model):
    with Suite("mixed", tiny_model, router={"model": ""}) as s:
        yield s


@pytest.fixture(scope="module")
def text(short_model):
    with Suite("mixed", short_model) as s:
        yield s


def ids_of(s, **body):
    status, r = s.post("/v1/completions", {"prompt": IDS, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **body})
    assert status == 200, r
    return r["choices"][0]["token_ids"]


# --- each parameter ------------------------------------------------------------------------------------------------------------

def test_logit_bias_forbids_and_forces(tiny):
    free = ids_of(tiny)
    assert 44 not in free
    assert ids_of(tiny, logit_bias={"44": 100}) == [44] * 24
    without = ids_of(tiny, logit_bias={str(free[0]): -100})
    assert free[0] not in without and len(without) == 24


def test_allowed_token_ids(tiny):
    few = [3, 50, 51, 300]
    for more in ({}, {"temperature": 2, "seed": 4}):
        got = ids_of(tiny, allowed_token_ids=few, max_tokens=40, **more)
        assert len(got) == 40 and set(got) <= set(few)
    assert ids_of(tiny, allowed_token_ids=[7]) == [7] * 24


def test_penalties_change_what_repeats(tiny):
    """With the largest penalties no token of the answer comes twice while others are near; presence and frequency know nothing of the prompt."""
    some = list(range(100, 140))
    body = {"allowed_token_ids": some, "max_tokens": 30}
    assert len(set(ids_of(tiny, **body, frequency_penalty=2, presence_penalty=2))) > len(set(ids_of(tiny, **body)))
    first = ids_of(tiny, max_tokens=1)[0]
    prompt = IDS + [first]
    after = ids_of(tiny, prompt=prompt, max_tokens=1)
    forced = {"logit_bias": {str(i): 60 for i in (60, 61)}, "max_tokens": 1}
    one = ids_of(tiny, **forced)[0]
    other = 121 - one
    assert ids_of(tiny, prompt=[one] + IDS, **forced, presence_penalty=2, frequency_penalty=2) == ids_of(tiny, prompt=[one] + IDS, **forced)
    assert ids_of(tiny, prompt=[one] + IDS, **forced, repetition_penalty=10) == [other]
    assert len(after) == 1


def test_min_tokens_and_stop_ids(tiny):
    free = ids_of(tiny, max_tokens=40)
    stop = free[3]
    ends = ids_of(tiny, max_tokens=40, stop_token_ids=[stop])
    assert ends == free[:free.index(stop) + 1]
    got = ids_of(tiny, max_tokens=40, stop_token_ids=[stop], min_tokens=20)
    assert len(got) >= 21 and stop not in got[:20]
    assert len(ids_of(tiny, max_tokens=20, stop_token_ids=[stop], min_tokens=20)) == 20


def test_truncate_prompt_tokens(tiny):
    body = {"prompt": IDS, "max_tokens": 6, "temperature": 0, "return_token_ids": True}
    status, r = tiny.post("/v1/completions", {**body, "truncate_prompt_tokens": 3, "echo": True})
    assert status == 200 and r["choices"][0]["prompt_token_ids"] == IDS[-3:] and r["usage"]["prompt_tokens"] == 3
    assert r["choices"][0]["token_ids"] == ids_of(tiny, prompt=IDS[-3:], max_tokens=6, ignore_eos=False)
    assert tiny.post("/v1/completions", {**body, "truncate_prompt_tokens": 300})[1]["usage"]["prompt_tokens"] == len(IDS)
    context = context_of(tiny)
    long = [i % 300 for i in range(context + 100)]
    assert tiny.post("/v1/completions", {**body, "prompt": long})[0] == 400
    status, r = tiny.post("/v1/completions", {**body, "prompt": long, "truncate_prompt_tokens": -1})
    assert status == 200 and r["usage"]["total_tokens"] == context and r["choices"][0]["prompt_token_ids"] == long[-(context - 6):]


def test_prompt_logprobs(tiny):
    status, r = tiny.post("/v1/completions", {"prompt": IDS, "max_tokens": 2, "temperature": 0, "prompt_logprobs": 3, "logprobs": 1, "frequency_penalty": 2})
    assert status == 200, r
    got = r["choices"][0]["prompt_logprobs"]
    echoed = tiny.post("/v1/completions", {"prompt": IDS, "max_tokens": 0, "echo": True, "logprobs": 3})[1]["choices"][0]["logprobs"]
    assert len(got) == len(IDS) and got[0] is None
    for i, entry in enumerate(got[1:], 1):
        own = entry[str(IDS[i])]
        assert own["logprob"] == echoed["token_logprobs"][i] and own["rank"] >= 1
        assert sorted(e["rank"] for e in entry.values())[:3] == [1, 2, 3] and len(entry) == (3 if own["rank"] <= 3 else 4)
        assert {e["logprob"] for e in entry.values()} == set(echoed["top_logprobs"][i].values())
    assert len(r["choices"][0]["logprobs"]["top_logprobs"][0]) in (1, 2)    # the answer's own number of alternatives
    assert tiny.post("/v1/completions", {"prompt": [5], "max_tokens": 1, "prompt_logprobs": 1})[1]["choices"][0]["prompt_logprobs"] == [None]
    assert "prompt_logprobs" not in tiny.post("/v1/completions", {"prompt": IDS, "max_tokens": 1})[1]["choices"][0]


def test_logprobs_are_those_of_the_model(tiny):
    """Whatever the request does to the logits: log-probabilities are of the model's own distribution."""
    odd = {"logit_bias": {"44": 100}, "repetition_penalty": 2, "temperature": 0.2, "seed": 1, "logprobs": 2, "max_tokens": 3, "ignore_eos": True}
    r = tiny.post("/v1/completions", {"prompt": IDS, "return_token_ids": True, **odd})[1]["choices"][0]
    assert r["token_ids"] == [44] * 3
    scored = tiny.post("/v1/completions", {"prompt": IDS + r["token_ids"], "echo": True, "logprobs": 2, "max_tokens": 0})[1]["choices"][0]["logprobs"]
    for a, b in zip(r["logprobs"]["token_logprobs"], scored["token_logprobs"][-3:]):
        assert a == pytest.approx(b, abs=1e-4)


def table():
    """Rows of docs/api.md with a range of numbers: name, least, most, is the least itself allowed?, default."""
    with open(os.path.join(ROOT, "docs", "api.md")) as f:
        rows = re.findall(r"^\| `(\w+)` \| (above )?(-?\d+) to (-?\d+) \| (-?\d+) \|", f.read(), re.M)
    return [(name, int(low), int(high), not above, int(default)) for name, above, low, high, default in rows]


def test_the_manual_says_what_is_taken(tiny):
    """Each end of each range is taken, a little beyond it is refused by name, and the default changes nothing."""
    rows = table()
    assert {r[0] for r in rows} == {"temperature", "top_k", "top_p", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "top_logprobs"}
    plain = ids_of(tiny, temperature=1, seed=8)
    for name, low, high, closed, default in rows:
        if name == "top_logprobs":
            continue                                # of chat, which needs a tokenizer
        assert ids_of(tiny, **{"temperature": 1, "seed": 8, name: default}) == plain, name
        step = 1 if name == "top_k" else 0.001
        for v, good in ((low, closed), (high, True), (low - step, False), (high + step, False)):
            status, r = tiny.post("/v1/completions", {"prompt": IDS, "max_tokens": 2, name: v})
            assert status == (200 if good else 400), (name, v, r)
            assert good or (r["error"]["param"] == name and name in r["error"]["message"]), r


# --- text ------------------------------------------------------------------------------------------------------------------------

FRANCE = {"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0, "ignore_eos": True, "skip_special_tokens": False}


def text_of(s, **body):
    status, r = s.post("/v1/completions", {**FRANCE, **body})
    assert status == 200, r
    return r["choices"][0]


def test_bad_words(text):
    free = text_of(text)["text"]
    word = re.findall(r"\w+", free)[0]
    got = text_of(text, bad_words=[word, " " + re.findall(r"\w+", free)[3]])["text"]
    assert word not in got and got != free
    for body in ({"bad_words": ["x" * 129]}, {"bad_words": ["x"] * 129}, {"bad_words": [5]}, {"bad_words": ["  "]}):
        status, r = text.post("/v1/completions", {**FRANCE, **body})
        assert status == 400 and r["error"]["param"] == "bad_words", r


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_wait_for_min_tokens(text, stream):
    more_than_text = {"logit_bias": {"2": -100}, "max_tokens": 40}     # the end of sequence, which min_tokens forbids too
    free = text_of(text, **more_than_text, return_token_ids=True)
    pieces = [text.post("/detokenize", {"tokens": [t]})[1]["prompt"] for t in free["token_ids"]]
    begins = [sum(map(len, pieces[:i])) for i in range(41)]
    stop = " "
    assert "".join(pieces) == free["text"]

    def run(**more):
        if not stream:
            return text_of(text, **more_than_text, stop=[stop], **more)["text"]
        return "".join(c["choices"][0]["text"] for c in text.stream("/v1/completions", {**FRANCE, **more_than_text, "stop": [stop], **more}))

    for least in (0, 1, 2, 5, 11, 40):
        at = free["text"].find(stop, begins[least])
        want = free["text"] if at < 0 else free["text"][:at]
        assert run(min_tokens=least) == want
        assert run(min_tokens=least, include_stop_str_in_output=True) == want + ("" if at < 0 else stop)


def test_end_of_sequence_waits_for_min_tokens(real_model):
    body = {"max_tokens": 60, "ignore_eos": False, "return_token_ids": True}
    with Suite("mixed", real_model) as s:
        free = text_of(s, **body)
        n = len(free["token_ids"])
        assert free["finish_reason"] == "stop" and n < 50
        got = text_of(s, **body, min_tokens=n + 5)["token_ids"]
    assert got[:n - 1] == free["token_ids"][:-1] and free["token_ids"][-1] not in got[:n + 5] and len(got) > n + 5


# --- the same in every arrangement -------------------------------------------------------------------------------------------------

def requests():
    """Prompts that repeat themselves, so that drafts are made; one request with everything."""
    circle = [20 + i % 9 for i in range(70)]
    every = {"temperature": 0.8, "seed": 5, "top_p": 0.97, "top_k": 60, "min_p": 0.001, "typical_p": 0.98, "repetition_penalty": 1.15, "presence_penalty": 0.3,
             "frequency_penalty": 0.2, "min_tokens": 30, "stop_token_ids": list(range(40, 80)), "logit_bias": {"25": 3, "44": -100}}
    out = [{"prompt": circle, "repetition_penalty": 1.3}, {"prompt": circle, "frequency_penalty": 0.4, "presence_penalty": -0.2}, {"prompt": circle, **every},
           {"prompt": IDS, **every, "temperature": 0}, {"prompt": circle[:40], "allowed_token_ids": list(range(18, 40)), "frequency_penalty": 0.3},
           {"prompt": IDS * 9, "temperature": 1.2, "seed": 9, "repetition_penalty": 1.05, "logprobs": 2},
           {"prompt": circle, "min_tokens": 50, "stop_token_ids": list(range(0, 300, 5)), "frequency_penalty": 0.05}]
    return [{"max_tokens": 60, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **b} for b in out]


def answers(s, asked=None):
    out = []
    for b in asked or requests():
        status, r = s.post("/v1/completions", b)
        assert status == 200, r
        out.append((r["choices"][0]["token_ids"], r["choices"][0]["logprobs"], r["choices"][0]["finish_reason"]))
    return out


@pytest.fixture(scope="module")
def want(tiny):
    out = answers(tiny)
    plain = answers(tiny, [{**b, "repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0} for b in requests()])
    assert all(a[0] != b[0] for a, b in zip(out, plain))      # or nothing would be shown here
    return out


ARRANGEMENTS = {
    "1p1d": {"layout": "1p1d"},
    "small-chunks": {"layout": "1p1d", "prefill": {"max_batched_tokens": 16}},
    "mixed-small-chunks": {"layout": "mixed", "worker": {"max_batched_tokens": 32}},
    "drafts": {"layout": "mixed", "worker": {"speculative": "ngram"}},
    "1p1d-drafts": {"layout": "1p1d", "decode": {"speculative": "ngram"}},
}


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_same_answers(tiny_model, want, name):
    with Suite(model=tiny_model, router={"model": ""}, **ARRANGEMENTS[name]) as s:
        assert answers(s) == want
        assert answers(s) == want                             # and with what the first round left in the caches
        if "drafts" in name:
            assert s.ctl([w for w in s.workers() if "prefill" not in w][0], "status")["accepted_tokens"] > 0
        s.quiet()


def all_at_once(s, asked):
    got = [None] * len(asked)

    def one(i):
        got[i] = answers(s, [asked[i]])[0]

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(asked))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120 * SLOW)
    return got


def test_same_answers_after_preemption(tiny_model, want):
    """Until somebody was preempted: the threads of a client on a busy machine may ask one after the other."""
    few = {"kv_blocks": 12, "growth_ratio": 0.0}
    with Suite("mixed", tiny_model, router={"model": ""}, worker=few) as s:
        for _ in range(20):
            assert all_at_once(s, requests() * 3) == want * 3
            if s.ctl("mixed-1", "status")["preemptions"]:
                break
        assert s.ctl("mixed-1", "status")["preemptions"] > 0
        s.quiet()


def test_same_answers_after_a_worker_dies(short_model):
    """The second worker gets the prompt with what the first one has said; what is the prompt and what the answer decides about penalties and min_tokens.
    The model whose tokens take milliseconds: the tiny one has mostly said everything before it is dead."""
    with Suite("2mixed", short_model) as s:
        asked = {**requests()[2], "max_tokens": 90, "min_tokens": 80}
        expect = answers(s, [asked])[0][0]
        for _ in range(10):
            got, name = [], None
            for e in s.stream("/v1/completions", asked):
                got += e["choices"][0].get("token_ids") or [] if e["choices"] else []
                if got and not name:
                    name = [x for x in s.log("router").splitlines() if "event=submitted " in x][-1].split("decode=")[1].split()[0]
                    s.kill(name)
            assert got == expect
            if went_on := re.search(r"event=submitted attempt=2 .*output_tokens=[1-9]", s.log("router")):
                break
            s.restart(name)
            s.ready()
        assert went_on, s.log("router")[-2000:]


# --- n answers, one prompt -----------------------------------------------------------------------------------------------------------

def computed(s):
    """Prompt tokens that workers computed so far."""
    return sum(int(re.search(r"^pdserve_[a-z]+_prompt_tokens_total(?:\{[^}]*\})? (\d+)", s.metrics(w), re.M)[1]) for w in s.workers())


@pytest.mark.parametrize("layout,router", [("mixed", {}), ("1p1d", {}), ("2p2d", {}), ("2p2d", {"prefill_policy": "round_robin"})])
def test_answers_of_one_call_share_their_prompt(tiny_model, layout, router):
    """Eight answers compute the prompt once, and each at most its last, unfinished block of it."""
    with Suite(layout, tiny_model, router={"model": "", **router}, worker={"max_batched_tokens": 64}) as s:
        for k in range(10 if os.environ.get("PD_FULL") or not SAN else 3):     # who comes between a match and its end differs
            prompt = [7 + (i + k) * i % 290 for i in range(300)]
            before = computed(s)
            status, r = s.post("/v1/completions", {"prompt": prompt, "n": 8, "max_tokens": 5, "temperature": 1, "seed": 3, "ignore_eos": True, "return_token_ids": True})
            assert status == 200 and len(r["choices"]) == 8
            assert computed(s) - before <= len(prompt) + 7 * BLOCK
            s.quiet()
        for i in (0, 5):
            one = ids_of(s, prompt=prompt, max_tokens=5, temperature=1, seed=3 + i)
            assert one == r["choices"][i]["token_ids"]


# --- long context ----------------------------------------------------------------------------------------------------------------------

def context_of(s):
    return json.loads(s.get("/v1/models")[1])["data"][0]["max_model_len"]


def test_beyond_the_context_nothing_is_computed(tiny):
    context = context_of(tiny)
    before = computed(tiny)
    status, r = tiny.post("/v1/completions", {"prompt": [1] * context, "max_tokens": 5})
    m = r["error"]["message"]
    assert status == 400 and str(context) in m and str(context + 5) in m and r["error"]["code"] == "context_length_exceeded"
    status, r = tiny.post("/v1/completions", {"prompt": [1] * (context - 10), "max_tokens": 11})
    m = r["error"]["message"]
    assert status == 400 and str(context - 10) in m and "11" in m and str(context) in m
    assert computed(tiny) == before


def test_chat_beyond_the_context(text):
    before = computed(text)
    long = [{"role": "user", "content": "word " * 9000}]
    for more in ({}, {"max_tokens": 5}):
        status, r = text.post("/v1/chat/completions", {"messages": long, **more})
        m = r["error"]["message"]
        assert status == 400 and "maximum context length is" in m and re.search(r"prompt has 90\d\d tokens|\(90\d\d in the prompt, 5 for the answer\)", m), m
        assert r["error"]["param"] == "messages" and r["error"]["code"] == "context_length_exceeded"
    status, r = text.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8192})
    assert status == 400 and r["error"]["param"] == "max_tokens" and "8192" in r["error"]["message"]
    assert computed(text) == before


@pytest.mark.skipif(not os.environ.get("PD_FULL"), reason="PD_FULL is not set: minutes of prefill")
def test_8000_tokens(real_model):
    """A prompt of 8,000 tokens: the same answer mixed and by hand-over, chunked, and it finds what stands at its beginning."""
    filler = "".join(open(f).read() for f in sorted(glob.glob(os.path.join(ROOT, "docs", "*.md"))))
    got = []
    for layout in ("mixed", "1p1d"):
        with Suite(layout, real_model, worker={"kv_memory_mb": 256, "max_batched_tokens": 512}) as s:
            tokens = s.post("/tokenize", {"prompt": filler * 9})[1]["tokens"][:8000]
            assert len(tokens) == 8000
            status, r = s.post("/v1/completions", {"prompt": tokens, "max_tokens": 16, "temperature": 0, "ignore_eos": True, "return_token_ids": True}, timeout=600)
            assert status == 200 and r["usage"]["total_tokens"] == 8016 and r["choices"][0]["finish_reason"] == "length", r
            got.append(r["choices"][0]["token_ids"])
            s.quiet()
    assert got[0] == got[1]
