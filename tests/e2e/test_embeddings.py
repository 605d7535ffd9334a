# run: waits
"""POST /v1/embeddings: against transformers, in every layout, in chunks, beside other load, wrong requests, and with clients and workers that go away."""
import array
import base64
import concurrent.futures
import http.client
import json
import math
import os
import random
import signal
import time

import pytest
from suite import GOLDEN, SLOW, TINY_MODEL, Suite, wait_for

WORKER = {"kv_type": "f32", "block_tokens": 16, "kv_blocks": 96, "output_caching": False}
POOLINGS = ("last", "mean")
LONG = [(7 * i) % 300 + 3 for i in range(150)]


def unit(v):
    size = math.sqrt(sum(x * x for x in v))
    return [x / size for x in v]


def reference(family):
    """{(prompt, pooling): vector} of transformers, not normalised; the prompts."""
    folder = os.path.join(GOLDEN, family)
    with open(os.path.join(folder, "prompt.json")) as f:
        prompts = json.load(f)
    rows = array.array("f", open(os.path.join(folder, "embeddings.f32"), "rb").read())
    n = len(rows) // 4
    rows = [list(rows[i * n:(i + 1) * n]) for i in range(4)]
    return {("short", "last"): rows[0], ("short", "mean"): rows[1], ("long", "last"): rows[2], ("long", "mean"): rows[3]}, prompts


def ask(s, given, **more):
    status, r = s.post("/v1/embeddings", {"input": given, **more})
    assert status == 200, (status, r)
    assert [d["index"] for d in r["data"]] == list(range(len(r["data"])))
    return r


def vectors(s, given, **more):
    return [d["embedding"] for d in ask(s, given, **more)["data"]]


def vector(s, given, **more):
    v, = vectors(s, given, **more)
    return v


def near(got, want, limit=1e-5):
    """Both of length 1: the largest difference, which is of the order of 1 - cosine's root."""
    d = max(abs(a - b) for a, b in zip(got, want, strict=True))
    assert d <= limit, d
    assert sum(a * b for a, b in zip(got, want)) >= 1 - limit


ARRANGEMENTS = {
    "1p1d": {"layout": "1p1d"},
    "mixed": {"layout": "mixed"},
    "ranks": {"layout": "1p1d", "prefill": {"tensor_parallel": 2, "threads": 2}},
    "stages": {"layout": "1p1d", "prefill": {"pipeline_parallel": 2, "max_batched_tokens": 16}},
    "chunks": {"layout": "1p1d", "prefill": {"max_batched_tokens": 16}},
    "mixed chunks": {"layout": "mixed", "worker": {**WORKER, "max_batched_tokens": 16}},
}


@pytest.fixture(scope="module")
def one():
    with Suite("1p1d", TINY_MODEL, worker=WORKER) as s:
        yield s
        s.quiet()


@pytest.fixture(scope="module")
def exact(one):
    """The bits that every arrangement must give."""
    return {p: vectors(one, [LONG, LONG[:16], [5]], pooling=p) for p in POOLINGS}


@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_as_the_reference(name, exact):
    want, prompts = reference("llama")
    with Suite(model=TINY_MODEL, **{"worker": WORKER, **ARRANGEMENTS[name]}) as s:
        for p in POOLINGS:
            short, long = vectors(s, [prompts["short"], prompts["long"]], pooling=p)
            near(short, unit(want["short", p]))
            near(long, unit(want["long", p]))
            raw = vector(s, prompts["long"], pooling=p, normalize=False)
            assert max(abs(a - b) for a, b in zip(raw, want["long", p], strict=True)) <= 1e-4
            for _ in range(2):                     # the second time some of it may be cached
                assert vectors(s, [LONG, LONG[:16], [5]], pooling=p) == exact[p]
        s.quiet()


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "granite", "deepseek_v3", "gpt_oss"])
def test_families(family):
    want, prompts = reference(family)
    with Suite("1p1d", os.path.join(GOLDEN, family), worker=WORKER) as s:
        for p in POOLINGS:
            near(vector(s, prompts["long"], pooling=p), unit(want["long", p]), 2e-3 if family == "gpt_oss" else 1e-5)


def test_shape(one):
    r = ask(one, [LONG, LONG[:20]])
    assert set(r) == {"id", "object", "created", "model", "data", "usage"}
    assert r["object"] == "list" and r["id"].startswith("embd-") and r["model"] == os.path.basename(TINY_MODEL)
    assert all(set(d) == {"object", "index", "embedding"} and d["object"] == "embedding" for d in r["data"])
    assert r["usage"] == {"prompt_tokens": 170, "total_tokens": 170}
    assert all(abs(sum(x * x for x in d["embedding"]) - 1) < 1e-6 for d in r["data"])
    assert vector(one, LONG) == vector(one, [LONG]) == vector(one, LONG, pooling="last", normalize=True, encoding_format="float", user="me")
    assert "warnings" in ask(one, [5], poling="mean")


def test_base64_is_the_same(one):
    for p in POOLINGS:
        floats = vectors(one, [LONG, [5, 6]], pooling=p)
        coded = [array.array("f", base64.b64decode(t, validate=True)) for t in vectors(one, [LONG, [5, 6]], pooling=p, encoding_format="base64")]
        assert [array.array("f", v) for v in floats] == coded


def test_dimensions(one):
    whole = vector(one, LONG, normalize=False)
    for n in (1, 7, len(whole)):
        near(vector(one, LONG, dimensions=n), unit(whole[:n]), 1e-6)
        assert vector(one, LONG, dimensions=n, normalize=False) == whole[:n]


def test_truncate(one):
    assert vector(one, LONG, truncate_prompt_tokens=20) == vector(one, LONG[-20:])
    assert ask(one, [LONG, [5]], truncate_prompt_tokens=20)["usage"]["prompt_tokens"] == 21
    context = json.loads(one.get("/v1/models")[1])["data"][0]["max_model_len"]
    long = [i % 300 + 3 for i in range(context + 9)]
    assert vector(one, long, truncate_prompt_tokens=-1) == vector(one, long[-context:])   # nothing is generated: the whole context is for the input


def test_default_pooling(one, exact):
    assert vector(one, LONG) == exact["last"][0] != exact["mean"][0]
    with Suite("1p1d", TINY_MODEL, worker=WORKER, router={"embedding_pooling": "mean"}) as s:
        assert vector(s, LONG) == exact["mean"][0]
        assert vector(s, LONG, pooling="last") == exact["last"][0]


def test_cached_prefix(one, exact):
    """What a completion has computed is used for `last`, and what an embedding has computed for a completion; a mean computes all."""
    prompt = [(11 * i) % 300 + 3 for i in range(100)]
    cached = lambda: one.ctl("prefill-1", "status")["cached_tokens"]
    want = {p: vector(one, prompt, pooling=p) for p in POOLINGS}
    for n, call in ((96, lambda: vector(one, prompt) == want["last"]), (0, lambda: vector(one, prompt, pooling="mean") == want["mean"]),
                    (96, lambda: len(one.tokens(prompt, n=1)) == 1)):
        before = cached()
        assert call()
        assert cached() - before == n


ERRORS = [
    ({}, "input", "input is required"),
    ({"input": []}, "input", "1 to 2048"),
    ({"input": {"a": 1}}, "input", "must be a string"),
    ({"input": [[5], []]}, "input", "at least one token"),
    ({"input": [[5], 7]}, "input", "must be a string"),
    ({"input": [5, 99999]}, "input", "token id 99999 at 1 is out of range"),
    ({"input": [5, 99999]}, "input", "this model's own tokenizer"),
    ({"input": [5], "user": 7}, "user", "must be a string, got 7"),
    ({"input": "text"}, "input", "no tokenizer"),
    ({"input": [[5]] * 2049}, "input", "2049 items"),
    ({"input": [5] * 5000}, "input", "maximum context length is 512"),
    ({"input": [5], "model": "other"}, "model", "does not exist"),
    ({"input": [5], "encoding_format": "int8"}, "encoding_format", '"float" or "base64"'),
    ({"input": [5], "pooling": "cls"}, "pooling", '"last" or "mean"'),
    ({"input": [5], "dimensions": 97}, "dimensions", "from 1 to 96"),
    ({"input": [5], "dimensions": 0}, "dimensions", "from 1 to 96"),
    ({"input": [5], "normalize": "yes"}, "normalize", "normalize"),
    ({"input": [5], "truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
]


@pytest.mark.parametrize("body, param, says", ERRORS, ids=[str(i) for i in range(len(ERRORS))])
def test_errors(one, body, param, says):
    status, r = one.post("/v1/embeddings", body)
    assert status == (404 if param == "model" else 400), (status, r)
    assert r["error"]["param"] == param and says in r["error"]["message"], r
    assert (r["error"]["code"] == "context_length_exceeded") == ("maximum context" in says)


def test_one_bad_input_starts_nothing(one):
    before = one.ctl("prefill-1", "status")["prompt_tokens"]
    assert one.post("/v1/embeddings", {"input": [[5], [6], [7] * 5000]})[0] == 400
    assert one.ctl("prefill-1", "status")["prompt_tokens"] == before


def test_worker_without(exact):
    with Suite("2p1d", TINY_MODEL, worker=WORKER, wait=False) as s:
        s.kill("prefill-1", signal.SIGTERM)
        s.conf["prefill-1"]["embeddings"] = s.conf["decode-1"]["embeddings"] = False
        s.kill("decode-1", signal.SIGTERM)
        s.start("prefill-1")
        s.start("decode-1")
        s.ready()
        assert [vector(s, LONG) for _ in range(4)] == [exact["last"][0]] * 4          # none of them at prefill-1
        assert s.ctl("prefill-1", "status")["prompt_tokens"] == 0
        s.kill("prefill-2")
        wait_for(lambda: s.post("/v1/embeddings", {"input": LONG})[0] == 503)
        assert "makes embeddings" in s.post("/v1/embeddings", {"input": LONG})[1]["error"]["message"]
        assert len(s.tokens(LONG, n=4)) == 4


def test_no_worker_makes_any():
    with Suite("1p1d", TINY_MODEL, worker={**WORKER, "embeddings": False}) as s:
        status, r = s.post("/v1/embeddings", {"input": LONG})
        assert status == 400 and "makes no embeddings" in r["error"]["message"]
        s.quiet()


def test_without_a_decode_worker(exact):
    """None is asked: its blocks and its life do not matter. Without a prefill worker a decode worker does it."""
    with Suite("1p1d", TINY_MODEL, worker=WORKER, decode={"kv_blocks": 2}) as s:
        assert vector(s, LONG) == exact["last"][0]
        s.kill("decode-1", signal.SIGTERM)
        wait_for(lambda: s.get("/ready")[0] == 503)
        assert vectors(s, [LONG, LONG[:16], [5]], pooling="mean") == exact["mean"]
        s.conf["decode-1"]["kv_blocks"] = 96
        s.start("decode-1")
        s.ready()
        s.kill("prefill-1", signal.SIGTERM)
        wait_for(lambda: [w for w in json.loads(s.pdctl("--json", "workers").stdout) if w["name"] == "prefill-1" and w["state"] != "up"])
        assert vectors(s, [LONG, LONG[:16], [5]], pooling="mean") == exact["mean"]
        s.quiet()


@pytest.mark.parametrize("layout", ["1p1d", "mixed"])
def test_beside_other_load(layout, exact):
    """Completions, prompt log-probabilities and other embeddings in the same steps change no bit, neither of the embeddings nor of the completions."""
    other = [[(5 * i + j) % 300 + 3 for i in range(40 + j)] for j in range(8)]
    with Suite(layout, TINY_MODEL, worker={**WORKER, "kv_blocks": 200, "max_batched_tokens": 64}) as s:
        want = [s.tokens(p, n=12) for p in other]
        with concurrent.futures.ThreadPoolExecutor(24) as pool:
            for _ in range(3):
                texts = [pool.submit(s.tokens, p, n=12, prompt_logprobs=0 if i % 2 else None) for i, p in enumerate(other)]
                got = [(p, pool.submit(vectors, s, [LONG, LONG[:16], [5]], pooling=p)) for p in POOLINGS * 6]
                assert all(g.result() == exact[p] for p, g in got)
                assert [t.result() for t in texts] == want
        s.quiet()


def test_small_pool(exact):
    """Inputs that together need many times the pool wait for each other's blocks."""
    with Suite("1p1d", TINY_MODEL, worker=WORKER, prefill={"kv_blocks": 12}) as s:
        for p in POOLINGS:
            assert vectors(s, [LONG] * 20 + [LONG[:16]] * 20, pooling=p) == [exact[p][0]] * 20 + [exact[p][1]] * 20
        s.quiet()


def test_preempted(exact):
    """On a mixed worker sequences that grow take an embedding's blocks away, or wait for them: a mean begins again."""
    worker = {**WORKER, "kv_blocks": 24, "max_batched_tokens": 16, "prefill_chunk_tokens": 8, "growth_ratio": 0.0}
    with Suite("mixed", TINY_MODEL, worker=worker) as s:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for i in range(60):          # until the sequences grow while it is being computed
                s.ctl("mixed-1", "flush")
                texts = [pool.submit(s.tokens, [10 + k + 7 * i % 300] * 17, n=40) for k in range(6)]
                time.sleep(0.003 * (i % 8))
                assert vectors(s, [LONG], pooling=POOLINGS[i % 4 > 0]) == [exact[POOLINGS[i % 4 > 0]][0]]
                assert all(len(t.result()) == 40 for t in texts)
                if i % 4 and "event=preempted attempt=1 tokens=150" in s.log("mixed-1"):
                    break
        assert "event=preempted attempt=1 tokens=150" in s.log("mixed-1")
        s.quiet()


# --- many inputs, clients and workers that go away: on simulated accelerators -----------------------------------------------

SLOW_SIM = {"base": "small", "check": "always", "time_scale": 1.0}


def inputs(n, length=600):
    return [random.Random(i).choices(range(3, 320), k=length) for i in range(n)]


def test_simulated():
    with Suite("2p2d", sim={"base": "small", "check": "always", "time_scale": 0.1}) as s:
        given = inputs(2048, 20)
        r = ask(s, given, dimensions=8)
        assert len(r["data"]) == 2048 and len({tuple(d["embedding"]) for d in r["data"]}) == 2048
        assert r["usage"]["prompt_tokens"] == 2048 * 20
        assert vectors(s, given[1000:1010], dimensions=8) == [d["embedding"] for d in r["data"][1000:1010]]
        assert vector(s, given[7], pooling="mean") != vector(s, given[7])
        s.quiet()


def test_others_get_their_turn():
    """A request of many inputs leaves room: it counts as 64 at most, and a chat beside it waits for those only."""
    with Suite("1p1d", sim={"base": "small", "time_scale": 10}, router={"max_requests": 74}) as s:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            many = pool.submit(ask, s, inputs(300, 200), dimensions=4)
            wait_for(lambda: s.ctl("prefill-1", "status")["running"] > 0)
            assert len(s.tokens(list(range(3, 40)), n=2)) == 2
            assert not many.done()
            assert s.ctl("prefill-1", "status")["waiting"] <= 65
            assert len(many.result()["data"]) == 300
        s.quiet()


def test_full_worker():
    """It holds twelve embeddings at most: no input fails, and chats keep places."""
    with Suite("1p1d", sim={"base": "small", "time_scale": 1.0}, prefill={"max_jobs": 16}) as s:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            many = pool.submit(ask, s, inputs(300, 20), dimensions=4)     # short ones: the router would give it more at once
            under_way(s, "prefill-1", many)
            while not many.done():
                assert len(s.tokens(list(range(3, 40)), n=2)) == 2
                now = s.ctl("prefill-1", "status")
                assert now["running"] + now["waiting"] <= 12
            assert len(many.result()["data"]) == 300
        assert "event=attempt_put_back" in s.log("router") and "event=attempt_lost" not in s.log("router")
        s.quiet()


def under_way(s, name, got):
    """Waits until this worker computes some of it, or all of it is there."""
    wait_for(lambda: got.done() or s.ctl(name, "status")["running"] > 0)


def aborted(n, time_scale):
    """Whether it was before all inputs were computed."""
    with Suite("1p1d", sim={**SLOW_SIM, "time_scale": time_scale}) as s:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            got = pool.submit(s.post, "/v1/embeddings", {"input": inputs(n)})
            under_way(s, "prefill-1", got)
            requests = s.ctl("router", "requests")
            assert len(requests) <= 64
            said = s.post("/v1/abort", {"request_id": requests[-1]["id"]}) if requests else None
            status, r = got.result()
        s.quiet()
        if status == 200:
            return False
        assert said == (200, {"aborted": True}) and status == 503 and "aborted on request" in r["error"]["message"]
        return True


@pytest.mark.parametrize("n", [3, 200])
def test_abort(n):
    assert any(aborted(n, scale) for scale in (20, 100, 500))


def test_client_that_leaves():
    with Suite("1p1d", sim={**SLOW_SIM, "time_scale": 5}) as s:
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60 * SLOW)
        c.request("POST", "/v1/embeddings", json.dumps({"input": inputs(200)}), {"Content-Type": "application/json"})
        wait_for(lambda: s.ctl("prefill-1", "status")["running"] > 0)
        c.close()
        s.quiet()
        wait_for(lambda: s.ctl("router", "status")["requests"] == 0)
        assert s.ctl("prefill-1", "status")["prompt_tokens"] < 200 * 600


def died_in_time(layout, time_scale):
    """Whether the worker had inputs when it was killed."""
    given = inputs(60)
    name = "mixed-1" if layout == "2mixed" else "prefill-1"
    with Suite(layout, sim={**SLOW_SIM, "time_scale": time_scale}) as s:
        want = vectors(s, given, dimensions=4)
        for w in s.workers():
            s.ctl(w, "flush")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            got = pool.submit(vectors, s, given, dimensions=4)
            under_way(s, name, got)
            s.kill(name)
            assert got.result() == want
        s.quiet()
        return "event=attempt_lost" in s.log("router")


@pytest.mark.parametrize("layout", ["2p1d", "2mixed"])
def test_worker_that_dies(layout):
    """Its inputs run on the other, and the client notices nothing."""
    assert any(died_in_time(layout, scale) for scale in (2, 20, 100))


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGTERM])
def test_only_worker_ends_and_returns(sig):
    """Told to end, it completes some inputs, and then there is no worker for the next ones: they wait for as long as those do that it has given back."""
    given = inputs(100)
    with Suite("1p1d", sim={**SLOW_SIM, "time_scale": 2}, router={"retry_wait_ms": 60000}, prefill={"stop_timeout_ms": 200}) as s:
        s.kill("decode-1", signal.SIGTERM)     # it would take over
        want = vectors(s, given, dimensions=4)
        s.ctl("prefill-1", "flush")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            got = pool.submit(vectors, s, given, dimensions=4)
            under_way(s, "prefill-1", got)
            s.kill("prefill-1", sig)
            time.sleep(0.5)
            s.start("prefill-1")
            assert got.result() == want


def test_worker_that_leaves_in_order():
    given = inputs(60)
    with Suite("2p1d", sim={**SLOW_SIM, "time_scale": 2}) as s:
        want = vectors(s, given, dimensions=4)
        for w in s.workers():
            s.ctl(w, "flush")
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            got = pool.submit(vectors, s, given, dimensions=4)
            under_way(s, "prefill-1", got)
            s.procs["prefill-1"].send_signal(signal.SIGTERM)
            assert got.result() == want
        assert s.procs["prefill-1"].wait(20 * SLOW) == 0


# --- text -------------------------------------------------------------------------------------------------------------------

@pytest.mark.skipif(not os.environ.get("PD_MODEL"), reason="PD_MODEL is not set: a model with a tokenizer")
def test_text():
    with Suite("1p1d") as s:
        status, t = s.post("/tokenize", {"prompt": "The capital of France is Paris."})
        assert status == 200
        r = ask(s, ["The capital of France is Paris.", "Berlin"])
        assert r["usage"]["prompt_tokens"] > len(t["tokens"])
        assert r["data"][0]["embedding"] == vector(s, t["tokens"]) == vector(s, "The capital of France is Paris.")
        status, r = s.post("/v1/embeddings", {"input": ""})
        assert status == 400 and "at least one token" in r["error"]["message"]
        s.quiet()
