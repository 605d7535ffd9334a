"""Speculative decoding by prompt look-up changes no bit of any answer: ids, log-probabilities, ends and counts are those of a worker without it, whatever the request, the
layout, the company and the accidents.

The model is the golden one with its attention turned down until answers run in circles (nearly all of what is drafted is right, while every log-probability still
depends on the whole KV); the simulated device, whose random answers hardly repeat, is for drafts that are wrong; the real model is for what is between."""
import http.client
import json
import os
import re
import shutil
import threading

import pytest
from golden import in_circles
from prompts import PROMPTS
from suite import GOLDEN, SLOW, Suite

ON = {"speculative": "ngram"}
IDS = [[3 + (7 * k + 31 * i) % 310 for k in range(5 + 17 * i)] for i in range(6)]


@pytest.fixture(scope="module")
def loops(tmp_path_factory):
    return in_circles(str(tmp_path_factory.mktemp("model") / "llama"))


def body(prompt, **more):
    return {"prompt": prompt, "max_tokens": 60, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}


def questions(circle):
    """circle: how an answer to IDS[2] goes on; what has gone round in the prompt already can be drafted to and beyond the token that stops it"""
    stop, round_ = circle[40], IDS[2] + circle[:50]
    seeded = {"temperature": 0.7, "seed": 3}
    out = [body(p) for p in IDS] + [body(IDS[1], max_tokens=n) for n in (1, 2, 3, 17)]
    out += [body(IDS[2], logprobs=5), body(IDS[3], logprobs=2, **seeded), body(IDS[4], temperature=0.3, top_k=5, top_p=0.9, min_p=0.05, seed=9, logprobs=0)]
    out += [body(IDS[2], stop_token_ids=[stop], max_tokens=200), body(IDS[2], stop_token_ids=[stop], logprobs=3, **seeded)]
    out += [body(round_, stop_token_ids=[stop], max_tokens=200, logprobs=1), body(round_, stop_token_ids=[stop], max_tokens=200, temperature=0.4, seed=2)]
    out += [body(IDS[3], echo=True, logprobs=1), body(IDS[5], n=3, max_tokens=40, **seeded), body([IDS[0], IDS[4]], logprobs=1), body(IDS[5], max_tokens=420)]
    return out


def answer(s, b):
    status, r = s.post("/v1/completions", b)
    assert status == 200, r
    u = r["usage"]
    return r["choices"], u["prompt_tokens"], u["completion_tokens"]


def at_once(s, asked):
    """All answers, each from a thread of its own."""
    out = [None] * len(asked)

    def one(i):
        out[i] = answer(s, asked[i])
    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(asked))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120 * SLOW)
    return out


def spec(s, name=None):
    """-> (drafts, drafted, accepted) of the worker that decodes, by its metrics"""
    text = s.metrics(name or [w for w in s.workers() if not w.startswith("prefill")][0])
    return [int(re.search(rf"(?m)^pdserve_decode_spec_{n}_total(?:{{.*}})? (\d+)", text)[1]) for n in ("drafts", "draft_tokens", "accepted_tokens")]


@pytest.fixture(scope="module")
def want(loops):
    """-> (questions, answers without drafts)"""
    with Suite("mixed", loops) as s:
        asked = questions(answer(s, body(IDS[2]))[0][0]["token_ids"])
        out = [answer(s, b) for b in asked]
        assert spec(s) == [0, 0, 0]
    assert any(c["finish_reason"] == "stop" and len(c["token_ids"]) > 3 for r in out for c in r[0])
    return asked, out


@pytest.mark.parametrize("layout", ["mixed", "1p1d"])
def test_same_answers(loops, want, layout):
    """Until enough was drafted: how much that is depends on what rows seem to cost on a machine that does other things as well."""
    asked, out = want
    with Suite(layout, loops, worker=ON) as s:
        for rounds in range(1, 21):
            assert [answer(s, b) for b in asked] == out
            drafts, drafted, accepted = spec(s)
            if 20 < drafts < drafted and 20 < accepted:
                break
        assert 20 < drafts < drafted and 20 < accepted <= drafted
        s.quiet()
        d = s.ctl("mixed-1" if layout == "mixed" else "decode-1", "status")
        assert (d["speculative"], d["drafts"], d["drafted_tokens"], d["accepted_tokens"]) == ("ngram", *spec(s))
        made = rounds * (sum(r[2] for r in out) - (0 if layout == "mixed" else sum(len(r[0]) for r in out)))     # first tokens are the prefill worker's
        assert d["generated_tokens"] == made
        assert d["steps"] < made if layout == "1p1d" else True


def test_all_at_once_again_and_again(loops, want):
    """Few rows to share, few blocks; the second time with what the first has left in the index. Until somebody was preempted and a draft was right."""
    asked, out = want
    with Suite("mixed", loops, worker={**ON, "kv_blocks": 24, "block_tokens": 16, "max_batched_tokens": 32, "prefill_chunk_tokens": 8, "growth_ratio": 0.0}) as s:
        small = [(b, r) for b, r in zip(asked, out) if b["max_tokens"] < 100]
        for i in range(20):
            assert at_once(s, [b for b, _ in small]) == [r for _, r in small]
            if i > 0 and s.ctl("mixed-1", "status")["preemptions"] and spec(s)[2]:
                break
        assert s.ctl("mixed-1", "status")["preemptions"] > 0
        assert spec(s)[2] > 0
        s.quiet()


def streamed(s, b):
    """-> (ids, log-probabilities, finish, largest number of tokens in an event)"""
    ids, values, most, end = [], [], 0, None
    for e in s.stream("/v1/completions", {**b, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}):
        for c in e["choices"]:
            ids += c.get("token_ids") or []
            most = max(most, len(c.get("token_ids") or []))
            values += (c["logprobs"] or {}).get("token_logprobs", [])
            end = c["finish_reason"]
        assert e["usage"]["completion_tokens"] == len(ids)
    return ids, values, end, most


def test_streams(loops, want):
    """Several tokens in one event, each once and in order; the counts that come with them grow with them."""
    asked, out = want
    with Suite("1p1d", loops, worker=ON) as s:
        largest = 0
        for _ in range(20):                      # how soon they do depends on what rows seem to cost on a machine that does other things as well
            for i in (0, 3, 11, 13, 15):
                choice = out[i][0][0]
                ids, values, end, most = streamed(s, asked[i])
                assert (ids, end, values) == (choice["token_ids"], choice["finish_reason"], (choice["logprobs"] or {}).get("token_logprobs", []))
                largest = max(most, largest)
            if largest > 1:
                break
        assert largest > 1
        s.quiet()


def test_end_of_sequence_within_a_draft(loops, tmp_path, want):
    """A model that ends its circles by itself: nothing behind the end is told, counted or kept."""
    asked, out = want
    folder = str(tmp_path / "llama")
    shutil.copytree(loops, folder)
    with open(os.path.join(folder, "config.json")) as f:
        conf = json.load(f)
    conf["eos_token_id"] = asked[13]["stop_token_ids"][0]
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(conf, f)
    ends = [body(p, ignore_eos=False, max_tokens=300, **more) for p in [*IDS, asked[15]["prompt"]] for more in ({}, {"temperature": 0.5, "seed": 1})]
    with Suite("mixed", folder) as s:
        expect = [answer(s, b) for b in ends]
        s.quiet()
        cached = s.kv("mixed-1")["cached"]
    assert sum(r[0][0]["finish_reason"] == "stop" for r in expect) >= len(IDS)
    with Suite("mixed", folder, worker=ON) as s:
        for _ in range(20):
            assert [answer(s, b) for b in ends] == expect
            s.quiet()
            assert s.kv("mixed-1")["cached"] == cached
            if spec(s)[2]:
                break
        assert spec(s)[2] > 0


def streamed_until_killed(s, b, victim, other):
    """Ids of a streamed answer; the worker that makes it is killed at its first drafts."""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60 * SLOW)
    c.request("POST", "/v1/completions", json.dumps({**b, "stream": True}), {"Content-Type": "application/json", "X-Pdserve-Decode": f"{victim},{other}"})
    r, ids, alive = c.getresponse(), [], True
    assert r.status == 200, r.read()
    for line in r:
        if not line.startswith(b"data: {"):
            continue
        for choice in json.loads(line[6:])["choices"]:
            ids += choice.get("token_ids") or []
        if alive and len(ids) > 4:
            s.kill(victim, wait=False)
            alive = False
    s.procs[victim].wait()
    c.close()
    return ids


def moved(s):
    return len(re.findall(r"event=request_done.* attempts=2", s.log("router")))


def test_decode_worker_killed(loops):
    """The other one goes on with the tokens so far, each token once. Twice, so that it also goes the other way."""
    b = body(IDS[1], max_tokens=400, logprobs=20)
    with Suite("mixed", loops) as s:
        expect = answer(s, b)[0][0]["token_ids"]
    with Suite("1p2d", loops, worker=ON, router={"allow_pinning": True}) as s:
        for victim, other in (("decode-1", "decode-2"), ("decode-2", "decode-1")):
            before = moved(s)
            for _ in range(40):                  # the answer takes a tenth of a second: it may be complete before the worker is dead
                assert streamed_until_killed(s, b, victim, other) == expect
                s.restart(victim)
                s.ready()
                if moved(s) > before and (victim == "decode-1" or spec(s, other)[2]):
                    break
            assert moved(s) > before
        assert spec(s, "decode-1")[2] > 0
        s.quiet()


def test_wrong_drafts_on_the_simulated_device():
    """Sixteen tokens in random order: matches everywhere, few of them good. The device looks at all KV in each step."""
    sim = {"base": "small", "vocab": 16, "time_scale": 0.02, "check": "always", "eos": [15]}
    asked = [{"prompt": [(5 * k + i) % 15 for k in range(20 + 9 * i)], "max_tokens": 120, "ignore_eos": True, "return_token_ids": True, **more}
             for i in range(6) for more in ({"temperature": 0}, {"temperature": 1, "seed": i})]
    worker = {"kv_blocks": 60, "block_tokens": 16}
    with Suite("mixed", sim=sim, worker=worker) as s:
        expect = at_once(s, asked)
        assert None not in expect
    with Suite("mixed", sim=sim, worker={**ON, **worker}) as s:
        for _ in range(20):                      # until one was right by chance
            assert at_once(s, asked) == expect
            drafts, drafted, accepted = spec(s)
            if accepted:
                break
        assert drafted > accepted > 0
        assert s.ctl("mixed-1", "status")["device_kv_faults"] == 0
        s.quiet()


def test_real_model(real_model):
    """Prose, code, lists; greedy and seeded; one with log-probabilities, whose last bits tell whether the KV is the same; one with a stop string."""
    asked = [body(PROMPTS[i], max_tokens=48) for i in (11, 12)] + [body(PROMPTS[18], max_tokens=48, temperature=0.6, seed=5), body(PROMPTS[12], max_tokens=64, logprobs=3)]
    with Suite("mixed", real_model) as s:
        expect = [answer(s, b) for b in asked]
        text = expect[1][0][0]["text"]               # a stop string in the middle of what is drafted
        asked.append(body(PROMPTS[12], max_tokens=48, stop=[text[len(text) // 2:][:4]], logprobs=1))
        expect.append(answer(s, asked[-1]))
        assert expect[-1][0][0]["finish_reason"] == "stop"
    with Suite("1p1d", real_model, worker=ON) as s:
        assert at_once(s, asked[:2]) == expect[:2]
        for _ in range(20):
            assert [answer(s, b) for b in asked] == expect
            if spec(s)[2] > 20:
                break
        assert spec(s)[2] > 20
        s.quiet()
