"""test_sim.py - the daemons, unchanged, over simulated accelerators: the same tokens in every layout, a dozen workers on a small host, and a
device that says so when KV is wrong."""
import concurrent.futures
import os
import random
import signal
import subprocess
import sys
import time

import pytest
from suite import BIN, ROOT, SLOW, Suite, wait_for

sys.path.insert(0, os.path.join(ROOT, "tests", "bench"))
import ideal  # noqa: E402


def prompt(seed, n):
    r = random.Random(seed)
    return [r.randrange(3, 320) for _ in range(n)]


PROMPTS = [prompt(i, n) for i, n in enumerate((1, 63, 64, 65, 300, 1000, 1700))]


def answers(suite, **more):
    with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
        return list(pool.map(lambda p: suite.tokens(p, n=40, **more), PROMPTS))


def faults(suite):
    return {w: suite.ctl(w, "status")["device_kv_faults"] for w in suite.workers()}


@pytest.fixture(scope="module")
def alone():
    """One at a time on one worker, large chunks."""
    with Suite(layout="mixed", sim={"base": "small", "check": "always", "time_scale": 0.1}) as s:
        return [s.tokens(p, n=40) for p in PROMPTS], [s.tokens(p, n=40, temperature=1.0, seed=5) for p in PROMPTS]


@pytest.mark.parametrize("layout,worker", [
    ("1p1d", {}),
    ("2p2d", {"max_batched_tokens": 96}),
    ("mixed", {"max_batched_tokens": 64, "prefill_chunk_tokens": 32}),
])
def test_same_tokens_in_every_layout(alone, layout, worker):
    with Suite(layout=layout, worker=worker, sim={"base": "small", "check": "always", "time_scale": 0.1}) as s:
        assert answers(s) == alone[0]
        assert answers(s, temperature=1.0, seed=5) == alone[1]     # prefixes are matched now
        assert set(faults(s).values()) == {0}
        s.quiet()


def test_different_devices_same_model(alone):
    """Prefill and decode on devices of different speed are one model: KV is handed over."""
    with Suite(layout="1p1d", sim={"base": "small", "time_scale": 0.1, "prefill": {"flops": 8.0e12, "tp": 2}, "decode": {"bandwidth": 4.0e11}}) as s:
        assert answers(s) == alone[0]


def test_preempted_and_resumed():
    """A pool too small for all: sequences leave it and come back, and no block is read that is not theirs."""
    prompts = [prompt(50 + i, 250) for i in range(8)]
    sim = {"base": "small", "check": "always", "time_scale": 0.1}
    with Suite(layout="mixed", sim=sim) as s:
        want = [s.tokens(p, n=300) for p in prompts]
    with Suite(layout="1p1d", sim=sim, decode={"kv_blocks": 40, "growth_ratio": 0.0}) as s:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for _ in range(20):              # until they were there at once
                assert list(pool.map(lambda p: s.tokens(p, n=300), prompts)) == want
                if s.ctl("decode-1", "status")["preemptions"]:
                    break
        assert s.ctl("decode-1", "status")["preemptions"] > 0
        assert set(faults(s).values()) == {0}
        s.quiet()


def pool_of(suite, name):
    """The worker's KV bytes, opened for writing as another process with its descriptor could."""
    folder = f"/proc/{suite.procs[name].pid}/fd"
    links = {fd: os.readlink(os.path.join(folder, fd)) for fd in os.listdir(folder)}
    fd = next(fd for fd, link in links.items() if link.startswith("/memfd:pdserve-shared ("))
    return open(os.path.join(folder, fd), "r+b", buffering=0)


@pytest.mark.parametrize("check", ["always", "new"])
def test_broken_kv_is_found(check):
    """Bytes of the pool change while a sequence decodes: the step fails and is counted; no client gets other tokens with a 200."""
    p = prompt(7, 500)
    with Suite(layout="mixed", worker={"kv_memory_mb": 4}, sim={"base": "small", "check": check, "step_us": 10000.0}) as s:
        for n in (100, 400, 1200):           # until the answer lasted long enough
            with concurrent.futures.ThreadPoolExecutor(1) as thread, pool_of(s, "mixed-1") as pool:
                steps = s.ctl("mixed-1", "status")["device_steps"]
                job = thread.submit(s.post, "/v1/completions", {"prompt": p, "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_token_ids": True})
                while s.ctl("mixed-1", "status")["device_steps"] < steps + 10 and not job.done():
                    pass
                pool.write(b"\x5a" * os.fstat(pool.fileno()).st_size)
                status, answer = job.result()
            if faults(s)["mixed-1"]:
                break
            s.ctl("mixed-1", "flush")
        assert faults(s)["mixed-1"] >= 1
        assert "KV fault: layer 0, block" in s.log("mixed-1")
    if status == 200:
        with Suite(layout="mixed", sim={"base": "small", "time_scale": 0.1}) as s:
            assert answer["choices"][0]["token_ids"] == s.tokens(p, n=n)


def test_a_killed_worker(alone):
    with Suite(layout="2p2d", sim={"base": "small", "check": "always"}) as s:
        with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
            jobs = [pool.submit(s.tokens, p, n=40) for p in PROMPTS]
            time.sleep(0.02)
            s.kill("decode-1", signal.SIGKILL)
            s.kill("prefill-2", signal.SIGKILL)
            assert [j.result() for j in jobs] == alone[0]


def test_twelve_workers():
    with Suite(layout="4p8d", worker={"kv_memory_mb": 16}, sim={"base": "small", "time_scale": 0.5}) as s:
        def used():
            return [w for w in s.workers() if s.ctl(w, "status")["device_steps"] > 0]

        prompts = [prompt(100 + i, 100 + 37 * (i % 20)) for i in range(60)]
        with concurrent.futures.ThreadPoolExecutor(30) as pool:
            got = list(pool.map(lambda p: s.tokens(p, n=30), prompts))
            for i in range(20):              # who asks one after the other needs few of them
                if len(used()) >= 6:
                    break
                list(pool.map(lambda p: s.tokens([3 + i, *p], n=30), prompts))
        assert all(len(g) == 30 for g in got)
        assert got[:3] == [s.tokens(p, n=30) for p in prompts[:3]]
        assert set(faults(s).values()) == {0}
        assert len(used()) >= 6, used()
        assert sum(w.startswith("prefill") for w in used()) >= 2, used()


def mixture(seed):
    """Requests of every kind that a step in flight has to do with: ends that only the tokens tell, one token, penalties, a shortest length,
    log-probabilities of answer and prompt."""
    r = random.Random(seed)
    kinds = [{}, {"ignore_eos": False, "temperature": 1.5, "allowed_token_ids": [2, 30, 31, 32]}, {"max_tokens": 1}, {"max_tokens": 2},
             {"repetition_penalty": 1.5, "frequency_penalty": 1.0, "presence_penalty": 0.5, "temperature": 1.0, "allowed_token_ids": list(range(40, 50))},
             {"stop_token_ids": [33, 34], "min_tokens": 9, "temperature": 2.0, "allowed_token_ids": [33, 34, 35, 36]},
             {"temperature": 1.0, "logprobs": 3}, {"temperature": 0.7, "prompt_logprobs": 2}]
    return [{"prompt": prompt(r.randrange(10**6), r.choice((1, 20, 63, 64, 150, 400))), "max_tokens": r.randrange(20, 90), "temperature": 0, "ignore_eos": True,
             "return_token_ids": True, "seed": i, **kinds[i % len(kinds)]} for i in range(48)]


def said(suite, requests, at_once):
    def ask(body):
        status, r = suite.post("/v1/completions", body)
        assert status == 200, (status, r)
        c = r["choices"][0]
        return c["token_ids"], c["finish_reason"], c.get("logprobs"), c.get("prompt_logprobs")

    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        return list(pool.map(ask, requests))


def test_steps_that_overlap():
    """A step is started before the tokens of the one before it are known. Every answer is what it is when each step is waited for, also where sequences come and
    go, are given up, and lose their blocks; and nothing is left of any."""
    requests, sim = mixture(1), {"base": "small", "check": "always", "time_scale": 0.2, "context": 512}
    requests.append({**requests[0], "prompt": prompt(77, 400), "max_tokens": 112})
    with Suite(layout="mixed", sim=sim, worker={"overlap_steps": False}) as s:
        want = said(s, requests, 1)
    assert {reason for _, reason, *_ in want} == {"stop", "length"}
    with Suite(layout="mixed", sim=sim, worker={"kv_blocks": 40, "max_batched_tokens": 128, "prefill_chunk_tokens": 48, "growth_ratio": 0.0}) as s:
        for turn in range(10):
            given_up = [s.stream("/v1/completions", {"prompt": prompt(900 + i, 70), "max_tokens": 440, "ignore_eos": True}) for i in range(3)]
            first = [next(g) for g in given_up]
            with concurrent.futures.ThreadPoolExecutor(1) as thread:
                job = thread.submit(said, s, requests, 24)
                time.sleep(0.05 * turn)
                for g in given_up:
                    g.close()
                assert job.result() == want
            assert first
            if turn and s.ctl("mixed-1", "status")["preemptions"]:
                break
        assert s.ctl("mixed-1", "status")["preemptions"] > 0
        assert set(faults(s).values()) == {0} and "forward step failed" not in s.log("mixed-1")
        s.quiet()


def test_embeddings_while_steps_overlap():
    """An embedding comes while sequences decode: it is what it is alone, and so are the sequences' tokens."""
    sim, prompts = {"base": "small", "check": "always", "step_us": 2000.0}, [prompt(200 + i, 30) for i in range(6)]
    inputs = [prompt(300 + i, n) for i, n in enumerate((1, 64, 90, 300))]
    with Suite(layout="mixed", sim=sim, worker={"max_batched_tokens": 128}) as s:
        def embedded(given, pooling):
            status, r = s.post("/v1/embeddings", {"input": given, "pooling": pooling})
            assert status == 200, (status, r)
            return [d["embedding"] for d in r["data"]]

        kinds = [(i, p) for i in inputs for p in ("mean", "last")]
        want, vectors = [s.tokens(p, n=300) for p in prompts], [embedded([i], p) for i, p in kinds]
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            steps = s.ctl("mixed-1", "status")["device_steps"]
            jobs = [pool.submit(s.tokens, p, n=300) for p in prompts]
            wait_for(lambda: s.ctl("mixed-1", "status")["device_steps"] > steps + 20)
            assert [embedded([i], p) for i, p in kinds] == vectors
            assert not all(j.done() for j in jobs)
            assert [j.result() for j in jobs] == want
        assert set(faults(s).values()) == {0}
        s.quiet()


def test_rows_for_nothing():
    """An end that is known before the token is costs no step; one that only the token tells costs the step that was started meanwhile."""
    with Suite(layout="mixed", sim={"base": "small", "step_us": 3000.0}) as s:
        for body, more in ((mixture(1)[3], 0), (mixture(1)[1], 1)):
            before = s.ctl("mixed-1", "status")["device_steps"]
            [(tokens, *_)] = said(s, [body], 1)
            s.quiet()
            assert s.ctl("mixed-1", "status")["device_steps"] - before in (len(tokens) + more, len(tokens)), (body, tokens)


@pytest.mark.skipif(not os.environ.get("PD_MODEL"), reason="needs a tokenizer: PD_MODEL")
def test_words_that_are_forbidden_while_steps_overlap():
    """Which token may not come depends on the one before it, so such a request is not in a step that starts before that is known; others beside it are."""
    with Suite(layout="mixed", sim={"base": "small", "vocab": 49152, "time_scale": 0.2}, router={"model": os.environ["PD_MODEL"]}) as s:
        word = " zq"
        ids = s.post("/tokenize", {"prompt": word, "add_special_tokens": False})[1]["tokens"]
        assert len(ids) == 2, ids
        ask = {"max_tokens": 200, "ignore_eos": True, "return_token_ids": True, "temperature": 2.0, "allowed_token_ids": ids}
        requests = [{"prompt": prompt(i, 30), "seed": i, **ask, **({"bad_words": [word.strip()]} if i % 3 == 0 else {})} for i in range(9)]

        def says_it(tokens):
            return any(tokens[k:k + len(ids)] == ids for k in range(len(tokens)))

        assert [says_it(tokens) for tokens, *_ in said(s, requests, 9)] == [i % 3 != 0 for i in range(9)]


def test_a_router_that_fell_behind():
    """It was stopped while the worker computed: as it takes the tokens that wait for it, it writes to its clients as well, and does not mistake them for clients
    that do not read."""
    with Suite(layout="mixed", sim={"base": "small", "step_us": 1500.0}, router={"output_bytes_max": 10 << 20}) as s:
        load = subprocess.Popen([os.path.join(BIN, "pdbench"), f"http://127.0.0.1:{s.port}", "-c", "32", "-n", "32", "-i", "32", "-o", "800", "-w", "0"],
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            wait_for(lambda: s.ctl("mixed-1", "status")["running"] == 32)
            s.kill("router", signal.SIGSTOP, wait=False)
            wait_for(lambda: s.ctl("mixed-1", "status")["running"] == 0)
            s.kill("router", signal.SIGCONT, wait=False)
            out = load.communicate(timeout=60 * SLOW)[0]
        finally:
            load.kill()
            load.wait()
        assert "32 completed, 0 failed" in out, out


def test_time_passes_as_configured():
    """A prompt's first token takes as long as the description says, and the worker's counter says the same."""
    with Suite(layout="1p1d", sim={"base": "small", "flops": 5.0e10}, worker={"max_batched_tokens": 2048}) as s:
        n = 1500
        want = ideal.Device.load("small", flops=5.0e10).step([(0, n)])
        for i in range(20):                  # what else a busy machine does comes on top of it
            before = s.ctl("prefill-1", "status")["device_busy_us"]
            began = time.monotonic()
            s.tokens(prompt(i, n), n=1)
            took = time.monotonic() - began
            assert took >= want - 0.001
            if took < 2 * want:
                break
        assert took < 2 * want
        busy = s.ctl("prefill-1", "status")["device_busy_us"]
        assert busy - before == pytest.approx(want * 1e6, rel=0.001)
        assert f'pdserve_prefill_device_busy_seconds_total{{name="prefill-1",role="prefill"}} {busy // 1000000}.{busy % 1000000:06}' in s.metrics("prefill-1")


def test_the_ideal_workers_cost_the_same():
    """tests/bench/ideal.py, from which bounds are taken, and the device agree over chunks, a batch that decodes, and tensor parallel."""
    sim = {"base": "small", "tp": 4, "exchange_us": 11.0, "link_bandwidth": 1.0e9, "time_scale": 0.2}
    with Suite(layout="1p1d", sim=sim, worker={"max_batched_tokens": 512}) as s:
        s.tokens(prompt(3, 1100), n=60)
        d = ideal.Device.load(**sim)
        prefill = d.step([(0, 512)], [False]) + d.step([(512, 512)], [False]) + d.step([(1024, 76)])
        decode = sum(d.step([(1100 + i, 1)]) for i in range(59))
        assert s.ctl("prefill-1", "status")["device_busy_us"] == pytest.approx(prefill * 1e6, abs=2)
        assert s.ctl("decode-1", "status")["device_busy_us"] == pytest.approx(decode * 1e6, abs=2)


def test_ideal_workers_by_hand():
    """Two prompts of a known length on one worker: the second waits for the first, and its answer's tokens come one a step."""
    d = ideal.Device.load("small")
    one = d.step([(0, 1000)])
    sessions = [ideal.Session([ideal.Round(1000, 3)]), ideal.Session([ideal.Round(1000, 1), ideal.Round(100, 1, think_s=5.0)])]
    r = ideal.run(sessions, d, d, budget=1000)
    assert [q.ttft_s for q in r.requests[:2]] == pytest.approx([one, 2 * one])
    assert r.requests[0].end_s == pytest.approx(one + d.step([(1000, 1)]) + d.step([(1001, 1)]))
    assert (r.requests[2].prompt, r.requests[2].cached) == (1101, 960)
    assert r.requests[2].at_s == pytest.approx(2 * one + 5.0)
    assert r.requests[2].ttft_s == pytest.approx(d.step([(960, 141)]))
    r = ideal.run(sessions[:1] * 2, d, d, budget=1024)
    both = d.step([(0, 1000), (0, 24)], [True, False])
    assert [q.ttft_s for q in r.requests] == pytest.approx([both, both + d.step([(24, 976)])])
    assert r.busy_fraction == pytest.approx(1)


def test_wrong_description_is_said():
    with Suite(layout="mixed", sim={"base": "small", "tp": 100}, wait=False) as s:
        assert s.procs["mixed-1"].wait(20 * SLOW) not in (0, None)
        assert "tp: found 100, expected a whole number, 1 to 64 devices" in s.log("mixed-1")
        s.procs.pop("mixed-1")
