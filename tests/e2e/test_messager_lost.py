"""Without its messager a worker hands nothing over, and says so: two seconds after a messager has died, was stopped or refused a worker, a request runs at the decode
worker alone, and no attempt is lost for it. What was on its way fails at once and runs there too. A messager that is back is used again, by itself."""
import re
import signal
import time

import pytest
from suite import SLOW, Suite, wait_for
from test_faults import FAST, LONG, NEXT, SHORT, SIM, SMALL_CHUNKS, TRIES, in_thread

GONE_S = 2.0        # so long after its end a messager is no longer counted on
STALL_S = 5.0       # stall_ms of workers: what an attempt costs that waits for a messager in vain


@pytest.fixture(scope="module")
def want():
    with Suite("mixed", sim=FAST) as s:
        return {"long": s.tokens(LONG, 20), "short": s.tokens(SHORT, 8), "next": s.tokens(NEXT, 8)}


def placed(s):
    """How the router has placed its attempts so far: a list of (prefill, decode)."""
    return re.findall(r"event=submitted .* prefill=(\S+) decode=(\S+)", s.log("router"))


def runs_alone(s, want):
    lost, begun, n = s.log("router").count("event=attempt_lost"), time.time(), len(placed(s))
    assert s.tokens(SHORT, 8) == want["short"]
    took = time.time() - begun
    assert placed(s)[n:] == [("decode-1", "decode-1")]
    assert s.log("router").count("event=attempt_lost") == lost
    assert took < STALL_S / 2 * SLOW / 4, took


def is_handed_over(s, want):
    s.ready()
    n = len(placed(s))
    assert s.tokens(NEXT, 8) == want["next"]
    assert placed(s)[n:] == [("prefill-1", "decode-1")]


def test_killed(want):
    with Suite("1p1d", sim=FAST) as s:
        is_handed_over(s, want)
        s.kill("messager")
        time.sleep(GONE_S)
        runs_alone(s, want)
        s.restart("messager")
        is_handed_over(s, want)
        s.quiet()


def test_stopped(want):
    with Suite("1p1d", sim=FAST) as s:
        is_handed_over(s, want)
        s.kill("messager", signal.SIGSTOP)
        time.sleep(GONE_S)
        runs_alone(s, want)
        s.kill("messager", signal.SIGCONT)
        is_handed_over(s, want)
        s.quiet()


def test_refused(want):
    """The messager has room for two of three workers. Which one it refuses is chance."""
    with Suite("1p2d", sim=FAST, messager={"workers_max": 2}, wait=False) as s:
        refused = lambda: [w for w in s.workers() if "workers_max is 2" in s.log(w)]  # noqa: E731
        wait_for(lambda: len(refused()) == 1 and s.get("/ready")[0] == 200)
        name = refused()[0]
        wait_for(lambda: len(s.ctl("router", "workers")) == 3)
        time.sleep(GONE_S)
        for _ in range(4):
            begun = time.time()
            assert s.tokens(SHORT, 8) == want["short"]
            assert time.time() - begun < STALL_S / 2 * SLOW / 4
        assert "event=attempt_lost" not in s.log("router")
        assert not any(p != d and name in (p, d) for p, d in placed(s)), (name, placed(s))
        s.kill("messager", signal.SIGTERM)
        s.conf["messager"]["workers_max"] = 3
        s.restart("messager")
        s.ready()
        n = len(placed(s))
        assert [s.tokens(p, 8) for p in (NEXT, SHORT)] == [want["next"], want["short"]]
        assert all(p == "prefill-1" for p, _ in placed(s)[n:])
        s.quiet()


def seconds(log, event):
    """When a daemon logged this last, in seconds of a day."""
    h, m, s = re.findall(rf"ts=\S+T(\d+):(\d+):([\d.]+)Z .* {event} ", log)[-1]
    return int(h) * 3600 + int(m) * 60 + float(s)


def test_restart_at_once_changes_nothing(want):
    """One who is back within a second, as a service manager does it, was never away for the router."""
    with Suite("1p1d", sim=FAST) as s:
        for _ in range(TRIES):
            is_handed_over(s, want)
            updates = s.log("router").count("event=worker_update")
            s.kill("messager")
            s.restart("messager")
            is_handed_over(s, want)
            away = [seconds(s.log(w), "event=attach_on to=messager") - seconds(s.log(w), "event=attach_gone to=messager") for w in s.workers()]
            if max(away) < 0.8:     # not on a busy machine
                break
        assert max(away) < 0.8, away
        assert s.log("router").count("event=worker_update") == updates
        s.quiet()


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_under_way(want, sig):
    """What a job at the prefill worker has asked for cannot be moved: it fails at once, nobody is to blame, and the answer is the same."""
    with Suite("1p1d", sim=SIM, prefill=SMALL_CHUNKS) as s:
        n = len(placed(s))
        box = in_thread(lambda: s.tokens(LONG, 20))
        wait_for(lambda: any(t["blocks_sent"] for t in s.ctl("messager", "transfers")))
        s.kill("messager", sig)
        begun = time.time()
        box["join"]()
        assert box.get("value") == want["long"], box
        assert time.time() - begun < STALL_S * SLOW / 4 + 2
        assert placed(s)[n:] == [("prefill-1", "decode-1"), ("decode-1", "decode-1")]
        lost = re.findall(r"event=attempt_lost .*", s.log("router"))
        assert len(lost) == 1 and "blame=- " in lost[0] and "messager is gone or silent" in lost[0], lost
