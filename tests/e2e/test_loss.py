# run: waits
"""Messages are lost, repeated, delayed and connections cut, by a seed, at every daemon: every answer is the one without faults, nothing leaks, and it ends in time."""
import os
import re
import signal
import subprocess
import threading
import time

import pytest
from suite import FAULTY, SLOW, Suite, wait_for

# two prompts share their beginnings, one is alone, one fills several blocks
ASKS = [([5, 6, 7, 8], 12, {}), ([5, 6, 7, 8, 9, 10], 20, {}), (list(range(3, 90)), 16, {}), (list(range(3, 60)) + [70, 71], 9, {"temperature": 0.8, "seed": 7}),
        (list(range(100, 220)), 24, {}), ([11], 1, {})]
LOSSY = "drop=2% repeat=2% delay=5%:1-20ms noack=5%"
CUTS = "cut=0.5% drop=1% type=HELLO:drop=20%:repeat=30% type=WELCOME:drop=20%"


def faulty(layout, model, rules, **more):
    """Each daemon has a seed of its own; `more` are settings of single kinds."""
    n = [0]

    def conf(kind):
        n[0] += 1
        return {"fault": f"seed={n[0]} {rules}", **more.get(kind, {})}

    return Suite(layout, model, **{k: conf(k) for k in ("router", "messager", "storage", "prefill", "decode")})


def answers(s, asks=ASKS):
    return [s.tokens(p, n, **more) for p, n, more in asks]


def at_once(s, asks):
    got, errors = [None] * len(asks), []

    def one(i):
        try:
            got[i] = s.tokens(asks[i][0], asks[i][1], **asks[i][2])
        except Exception as e:  # noqa: BLE001 - shown by the test
            errors.append(repr(e))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(asks))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(120 * SLOW)
    assert not errors
    return got


def messages(s):
    return {n: s.ctl(n, "status")["messages"] for n in s.names}


def faults(s, name):
    """The daemon says it at the first, and when their number has doubled."""
    return max(map(int, re.findall(r"event=faults total=(\d+)", s.log(name))), default=0)


@pytest.fixture(scope="module")
def want(tiny_model):
    with Suite("1p1d", tiny_model) as s:
        out = answers(s)
        assert [len(t) for t in out] == [a[1] for a in ASKS] and out[0] != out[2][:12]
        assert not any("event=faults" in s.log(n) for n in s.names)
        return out


@pytest.mark.parametrize("layout,rules", [("1p1d", LOSSY), ("1p1d", CUTS), ("2p2d", LOSSY), ("2p2d", CUTS)])
def test_same_answers(tiny_model, want, layout, rules):
    with faulty(layout, tiny_model, rules) as s:
        begin = time.time()
        for _ in range(2):
            assert at_once(s, ASKS) == want
        assert answers(s) == want
        assert time.time() - begin < 60 * SLOW
        s.quiet(30)
        m, end = messages(s), time.time() + 60 * SLOW
        while not (all(faults(s, n) for n in ("router", "messager", "prefill-1", "decode-1")) and sum(v["resent"] for v in m.values()) > 0):
            assert time.time() < end, m              # how many messages there are, and so what becomes of them, is a matter of time
            for n in s.workers():
                s.ctl(n, "flush")
            assert answers(s) == want
            m = messages(s)
        assert sum(v["bad"] for v in m.values()) == 0, m
        assert all("event=faults_on" in s.log(n) for n in s.names)


@pytest.mark.parametrize("kind", ["KV_RESERVE", "KV_GRANT", "LEASE_OPEN", "LEASE_OPENED", "KV_READY", "KV_READY_ACK", "KV_SENT", "REQUEST_FIRST_TOKEN",
                                  "REQUEST_FIRST_TOKEN_ACK", "REQUEST_SUBMIT", "REQUEST_TOKENS"])
def test_first_of_a_type_is_lost_and_others_repeated(tiny_model, want, kind):
    with Suite("1p1d", tiny_model, **{k: {"fault": f"type={kind}:dir=out:nth=1:drop=100% type={kind}:dir=in:repeat=100%"}
                                      for k in ("router", "messager", "storage", "worker")}) as s:
        begin = time.time()
        assert answers(s, ASKS[:3]) == want[:3]
        assert time.time() - begin < 20 * SLOW
        s.quiet(30)

        def counted():                               # what is sent again may be on its way behind the answers
            m = messages(s).values()
            return sum(faults(s, n) for n in s.names) > 2 and sum(v["resent"] for v in m) > 0 and sum(v["duplicates"] for v in m) > 0
        wait_for(counted, lambda: messages(s))


def test_delayed_reservation_costs_its_delay(tiny_model, want):
    """What the benchmark of the prepare stage uses: late for each, in a pipe for many."""
    with Suite("1p1d", tiny_model, decode={"fault": "type=KV_RESERVE:dir=in:late=100%:30ms"}) as s:
        assert answers(s) == want
        assert at_once(s, ASKS * 3) == want * 3
        s.quiet()
        waits = [int(x) for x in re.findall(r"reserve_us=(\d+)", s.log("prefill-1"))]
        assert len(waits) >= 20 and min(w for w in waits if w) >= 30000, waits


def test_wrong_rules_are_refused(tmp_path):
    r = subprocess.run([os.path.join(FAULTY, "pdmessagerd"), "-o", f"rundir={tmp_path}"], capture_output=True, text=True, timeout=20 * SLOW, env={**os.environ, "PDSERVE_FAULT": "drop=200%"})
    assert r.returncode == 1 and '"drop=200%": expected a share from 0% to 100%' in r.stderr


def test_link_to_the_router_restarts():
    """A decode worker that stood still for so long that the router gave up its link, and its prefill worker did not: reservations that waited there are asked for again."""
    short = {"silence_ms": 500}
    with Suite("1p1d", sim={"base": "small", "time_scale": 2}, worker=short, decode={"max_sequences": 1}, router={"request_timeout_ms": 20000 * SLOW, **short}) as s:
        begin, answers_of = time.time(), []
        first = threading.Thread(target=lambda: answers_of.append(s.tokens([5, 6], 1000)))
        first.start()
        wait_for(lambda: s.ctl("decode-1", "status")["running"], "the first one does not run")
        second = threading.Thread(target=lambda: answers_of.append(s.tokens([7, 8], 4)))
        second.start()
        wait_for(lambda: s.ctl("decode-1", "status")["sequences"]["queued"], "the second one does not wait")
        s.kill("decode-1", signal.SIGSTOP)
        wait_for(lambda: "event=worker_down" in s.log("router"), "the router waits")
        s.kill("decode-1", signal.SIGCONT)
        first.join(60 * SLOW)
        second.join(60 * SLOW)
        assert sorted(map(len, answers_of)) == [4, 1000]
        assert time.time() - begin < 15 * SLOW
        s.quiet()


def test_window_is_full():
    """A router that reads nothing for a while: its link's window fills up, and the ends of answers do not fit in. It learns that something is missing, and tries again."""
    asks = [([5, 6, 7, 8 + i], 600, {"temperature": 0.9, "seed": i}) for i in range(4)]
    with Suite("mixed", sim={"base": "small", "time_scale": 0}) as s:
        want = answers(s, asks)
    patient = {"silence_ms": 60000 * SLOW}
    with Suite("mixed", sim={"base": "small", "time_scale": 5}, worker={"window_messages": 256, **patient}, router=patient) as s:
        got = []
        t = threading.Thread(target=lambda: got.extend(at_once(s, asks)))
        t.start()
        wait_for(lambda: s.ctl("mixed-1", "requests"), "nothing has begun")
        s.kill("router", signal.SIGSTOP)
        wait_for(lambda: not s.ctl("mixed-1", "requests"), "the worker's sequences do not end")
        s.kill("router", signal.SIGCONT)
        t.join(60 * SLOW)
        assert got == want
        assert 'why="its window is full"' in s.log("mixed-1")
        s.quiet()
