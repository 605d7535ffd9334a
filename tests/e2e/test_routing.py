"""Where requests go: by what is cached, by session, by each policy; workers that drain and restart; pins; what the router says of it."""
import concurrent.futures
import http.client
import json
import os
import random
import re
import signal

import pytest
from suite import SLOW, Suite, value, wait_for

BLOCK = {"block_tokens": 16}
FIELD = re.compile(r'(\w+)=("[^"]*"|\S+)')


def ids(seed, n):
    r = random.Random(seed)
    return [r.randrange(3, 320) for _ in range(n)]


def events(s, name):
    """The router's log lines of this event, as dicts."""
    return [dict(FIELD.findall(line)) for line in s.log("router").splitlines() if f"event={name} " in line]


def post(s, prompt, headers=None, **more):
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60 * SLOW)
    try:
        body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more}
        c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        r = c.getresponse()
        return r.status, json.loads(r.read()), r
    finally:
        c.close()


def went(s, prompt, headers=None, **more):
    """The answer, and the workers that it came from."""
    status, r, _ = post(s, prompt, headers, **more)
    assert status == 200, r
    req = r["id"].split("-")[-1]
    line, = wait_for(lambda: [e for e in events(s, "submitted") if e["req"] == req][:1])
    return r, line["prefill"], line["decode"]


def workers(s):
    return {w["name"]: w for w in s.ctl("router", "workers")}


def worker(s, name, key):
    """None while the router does not know it."""
    return workers(s).get(name, {}).get(key)


def known(s, name):
    return worker(s, name, "kv_index")


def cached(s, name):
    return s.kv(name)["cached"]


def settled(s):
    """The router knows what each worker's pool says that it has, and that nothing runs: a sequence told of by the last heartbeat weighs more than blocks."""
    def equal():
        w = workers(s)
        return all(n in w and w[n]["kv_index"] == cached(s, n) and not (w[n]["requests"] or w[n]["running"] or w[n]["waiting"]) for n in s.workers())
    wait_for(equal, lambda: ("index and pools differ", workers(s), {n: cached(s, n) for n in s.workers()}))


def set_router(s, **conf):
    """Changes the router's settings while it runs."""
    n = s.log("router").count("event=reloaded")
    s.conf["router"].update(conf)
    with open(os.path.join(s.dir, "router.conf"), "w") as f:
        for k, v in s.conf["router"].items():
            f.write(f"{k} = {value(v)};\n")
    s.kill("router", signal.SIGHUP, wait=False)
    wait_for(lambda: s.log("router").count("event=reloaded") > n)


@pytest.fixture(scope="module")
def fleet(tiny_model):
    with Suite("2p2d", tiny_model, worker=BLOCK, router={"allow_pinning": True}) as s:
        yield s


def test_second_turn_goes_to_its_blocks(fleet):
    s = fleet
    set_router(s, prefill_policy="kv_aware", decode_policy="kv_aware")
    turns = []
    for c in range(6):                       # who is chosen first is a matter of load: pinned, so that each worker has some
        p, d = f"prefill-{1 + c % 2}", f"decode-{1 + c // 2 % 2}"
        r, wp, wd = went(s, ids(c, 100), {"X-Pdserve-Prefill": p, "X-Pdserve-Decode": d})
        assert (wp, wd) == (p, d)
        turns.append((r, p, d))
    for c, (first, p, d) in enumerate(turns):
        settled(s)
        prompt = ids(c, 100) + first["choices"][0]["token_ids"] + ids(100 + c, 30)
        r, wp, wd = went(s, prompt)
        assert (wp, wd) == (p, d), c
        req = r["id"].split("-")[-1]
        done = wait_for(lambda: [e for e in events(s, "request_done") if e["req"] == req])[0]
        assert done["cached_tokens"] == "96"
    m = s.get("/metrics")[1]
    predicted, actual = (int(re.search(rf"^pdserve_router_kv_hit_tokens_{k}_total\S* (\d+)", m, re.M)[1]) for k in ("predicted", "actual"))
    assert actual >= 6 * 96 and predicted == actual      # of requests whose summary was written
    assert re.search(r'^pdserve_placed_total\{stage="prefill",policy="kv_aware",reason="chosen"\} [1-9]', m, re.M)
    assert re.search(r'^pdserve_placed_total\{stage="prefill",policy="kv_aware",reason="pinned"\} [1-9]', m, re.M)


def test_burst_with_one_prefix(fleet):
    """Requests that come before the first of them is computed go where it went, as long as that is worth the wait."""
    s = fleet
    set_router(s, prefill_policy="kv_aware", kv_load_weight=0.0)
    prefix = ids(900, 200)
    n = len(events(s, "submitted"))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: post(s, prefix + ids(1000 + i, 10)), range(8)))
    assert len({e["prefill"] for e in events(s, "submitted")[n:]}) == 1
    set_router(s, kv_load_weight=0.5)


@pytest.mark.parametrize("policy", ["kv_aware", "least_tokens", "least_requests", "power_of_two", "round_robin", "random", "session_affinity"])
def test_each_policy_serves(fleet, policy):
    s = fleet
    set_router(s, prefill_policy=policy, decode_policy=policy)
    n = len(events(s, "submitted"))
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda i: post(s, ids(5000 + i % 3, 50), {"X-Session-Id": f"s{i}"})[:2], range(16)))
    assert all(status == 200 and r["usage"]["completion_tokens"] == 8 for status, r in got), got
    assert len({json.dumps(r["choices"][0]["token_ids"]) for _, r in got}) == 3      # the same wherever they ran
    m = s.get("/metrics")[1]
    for stage in ("prefill", "decode"):
        assert re.search(rf'^pdserve_placed_total\{{stage="{stage}",policy="{policy}",reason="\w+"\}} [1-9]', m, re.M), stage
    if policy in ("round_robin", "random"):
        assert {e["prefill"] for e in events(s, "submitted")[n:]} == {"prefill-1", "prefill-2"}
    s.quiet()


def test_sessions(fleet):
    s = fleet
    set_router(s, prefill_policy="session_affinity", decode_policy="session_affinity")
    home = {}
    for i in range(12):
        home[i] = went(s, ids(7000 + i, 20), {"X-Session-Id": f"client {i}"})[1:]
    assert len(set(home.values())) >= 3
    for i in range(12):
        assert went(s, ids(7100 + i, 20), {"X-Session-Id": f"client {i}"})[1:] == home[i]
        assert went(s, ids(7200 + i, 20), prompt_cache_key=f"client {i}")[1:] == home[i]
        assert went(s, ids(7300 + i, 20), user=f"client {i}")[1:] == home[i]
        assert went(s, ids(7400 + i, 20), prompt_cache_key=f"client {i}", user="somebody")[1:] == home[i]
    assert post(s, ids(1, 5), user=5)[0] == 400
    assert post(s, ids(1, 5), prompt_cache_key=["a"])[1]["error"]["param"] == "prompt_cache_key"


def test_pins(fleet):
    s = fleet
    set_router(s, prefill_policy="least_tokens", decode_policy="least_tokens")
    for p in ("prefill-1", "prefill-2"):
        for d in ("decode-1", "decode-2"):
            assert went(s, ids(1, 20), {"x-pdserve-prefill": p, "x-pdserve-decode": f" {d} "})[1:] == (p, d)
    assert went(s, ids(1, 20), {"X-Pdserve-Decode": "decode-2,decode-1"})[2] == "decode-2"
    for headers, param in [({"X-Pdserve-Prefill": "prefill-9"}, "X-Pdserve-Prefill"), ({"X-Pdserve-Prefill": "prefill-1,prefill-2"}, "X-Pdserve-Prefill"),
                           ({"X-Pdserve-Decode": "decode-1,,decode-2"}, "X-Pdserve-Decode"), ({"X-Pdserve-Decode": "x" * 200}, "X-Pdserve-Decode"),
                           ({"X-Pdserve-Decode": ",".join(["decode-1"] * 9)}, "X-Pdserve-Decode")]:
        status, r, _ = post(s, ids(1, 20), headers)
        assert (status, r["error"]["param"]) == (400, param), r
    status, r, head = post(s, ids(1, 20), {"X-Pdserve-Prefill": "prefill-1", "X-Pdserve-Decode": "prefill-2"})
    assert status == 503 and int(head.getheader("Retry-After")) >= 1
    set_router(s, allow_pinning=False)
    status, r, _ = post(s, ids(1, 20), {"X-Pdserve-Prefill": "prefill-1"})
    assert status == 400 and "allow_pinning" in r["error"]["message"]
    set_router(s, allow_pinning=True)


def test_restarts_are_learned_again(fleet):
    """A worker that restarts has nothing; a router that restarts learns again what all have."""
    s = fleet
    set_router(s, prefill_policy="kv_aware", decode_policy="kv_aware")
    for p in ("prefill-1", "prefill-2"):
        went(s, ids(8000, 100), {"X-Pdserve-Prefill": p})
    settled(s)
    assert known(s, "prefill-1") >= 6 and known(s, "prefill-2") >= 6
    s.kill("prefill-1")
    wait_for(lambda: worker(s, "prefill-1", "state") == "down")
    assert known(s, "prefill-1") == 0
    s.restart("prefill-1")
    s.ready()
    settled(s)
    assert known(s, "prefill-1") == 0
    for i in range(3):
        settled(s)
        assert went(s, ids(8000, 100) + ids(i, 5))[1] == "prefill-2"
    before = known(s, "prefill-2")
    s.kill("router")
    s.restart("router")
    s.ready()
    wait_for(lambda: (known(s, "prefill-2") or 0) >= before)
    settled(s)
    assert went(s, ids(8000, 100) + ids(99, 5))[1] == "prefill-2"


def drained_meanwhile(s, tokens):
    """Whether an answer of so many tokens lasted until others had gone to the worker that is left."""
    wait_for(lambda: worker(s, "decode-1", "running") == 0)     # what it told of an answer before this one
    n, done = len(events(s, "submitted")), len(events(s, "request_done"))
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        long = pool.submit(post, s, ids(1, 50), {"X-Pdserve-Decode": "decode-1"}, max_tokens=tokens)
        wait_for(lambda: worker(s, "decode-1", "running") == 1 or long.done())
        s.kill("decode-1", signal.SIGTERM, wait=False)
        wait_for(lambda: worker(s, "decode-1", "state") == "draining" or long.done())
        others = [went(s, ids(10 + i, 20), max_tokens=2)[2] for i in range(6)]
        shown = 'pdserve_worker_draining{worker="decode-1",role="decode"} 1' in s.get("/metrics")[1]
        in_time = not long.done()            # it was draining all the while
        status, r, _ = long.result()
    assert status == 200 and r["usage"]["completion_tokens"] == tokens
    s.procs["decode-1"].wait(20 * SLOW)
    alone = [e["decode"] for e in events(s, "submitted")[n:]].count("decode-1") == 1
    done = wait_for(lambda: [e["attempts"] for e in events(s, "request_done")[done:] if e["decode"] == "decode-1"])
    assert done == ["1"]
    assert not in_time or (shown and alone and others == ["decode-2"] * 6)
    s.restart("decode-1")
    s.ready()
    wait_for(lambda: went(s, ids(30, 20))[2] == "decode-1")
    return in_time


def test_draining_worker_finishes_and_gets_nothing_new():
    sim = {"base": "small", "time_scale": 1.0, "decode": {"step_us": 10000.0}}
    with Suite("1p2d", sim=sim, worker={"stop_timeout_ms": 600000}, router={"allow_pinning": True, "decode_policy": "round_robin"}) as s:
        assert any(drained_meanwhile(s, n) for n in (150, 600, 2400, 9600))


def test_summary_has_all_stages(fleet):
    """Short answers may end before the prefill worker's account comes: the summary waits for it."""
    s = fleet
    n = len(events(s, "request_done"))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda i: post(s, ids(9000 + i, 40), max_tokens=2), range(60)))
    wait_for(lambda: len(events(s, "request_done")) >= n + 60)
    done = events(s, "request_done")[n:]
    first = {e["req"] for e in events(s, "first_token")}
    assert all(int(e["prefill_us"]) > 0 and int(e["reserve_us"]) > 0 for e in done), [e for e in done if e["prefill_us"] == "0"]
    assert {e["req"] for e in done} <= first


def test_what_storage_has(tiny_model):
    """The router learns from the workers that read from storage what it has, apart from what they have themselves: at first, after each of the daemons was
    restarted, and that nothing is left of it when it is gone."""
    write = {"kv_eviction": "write_through", "write_through_after": 0, "storage_read": "always", "storage_lookup_wait_ms": 60000, "storage_read_wait_ms": 60000}
    with Suite("2p1d", tiny_model, worker={**BLOCK, "output_caching": False}, prefill=write, router={"allow_pinning": True}) as s:
        def stored(n):
            w = workers(s)
            return {p: row["kv_memory"] for p, row in w.items()} == {"prefill-1": n, "prefill-2": n, "decode-1": 0}

        def all_stored():
            n = s.ctl("storage", "status")["blocks"]
            return n >= 3 and stored(n)

        def metric(name):
            return int(re.search(rf"^{name}\S* (\d+)", s.get("/metrics")[1], re.M)[1])

        went(s, ids(1, 100), {"X-Pdserve-Prefill": "prefill-1"})
        wait_for(lambda: stored(6), "what was written is told")
        settled(s)
        s.ctl("prefill-1", "flush")
        wait_for(lambda: known(s, "prefill-1") == 0)
        assert stored(6)
        for i, p in enumerate(("prefill-2", "prefill-1")):     # neither has a block of it on its device
            r, at, _ = went(s, ids(1, 100) + ids(2 + i, 5), {"X-Pdserve-Prefill": p})
            req = r["id"].split("-")[-1]
            done = wait_for(lambda: [e for e in events(s, "request_done") if e["req"] == req])[0]
            assert (at, done["cached_tokens"]) == (p, "96")
        names = [f"pdserve_router_kv_hit_tokens_stored_{k}_total" for k in ("predicted", "actual")]
        wait_for(lambda: [metric(n) for n in names] == [2 * 96] * 2, lambda: [metric(n) for n in names])
        wait_for(lambda: worker(s, "prefill-1", "memory_weight_by") == "rates", "what it has measured weighs")
        assert worker(s, "prefill-1", "disk_weight") == 0.5 and worker(s, "prefill-1", "disk_weight_by") == "setting"
        assert 0 < worker(s, "prefill-1", "memory_weight") <= 1 and worker(s, "decode-1", "memory_weight") is None
        s.kill("router")
        s.restart("router")
        s.ready()
        wait_for(lambda: stored(6), "a new router is told")
        s.kill("storage")
        wait_for(lambda: stored(0), "storage's end is told")
        wait_for(lambda: metric("pdserve_router_kv_stored_entries") == 0)
        s.restart("storage")
        s.ready()
        went(s, ids(3, 50), {"X-Pdserve-Prefill": "prefill-2"})
        wait_for(all_stored, "the next storage's are told")
        s.kill("prefill-1")
        wait_for(lambda: worker(s, "prefill-1", "kv_memory") == 0)
        s.restart("prefill-1")
        s.ready()
        wait_for(all_stored, "a new worker asks")
        s.quiet()
