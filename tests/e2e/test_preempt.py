"""Preemption storms: many more sequences than the pool holds. Every answer is that of the unpressured run, whatever storage does meanwhile; afterwards no block, pin or lease is
left. Each storm prints its counts (RESULT lines). On the tiny model; with PD_FULL=1 and PD_MODEL also on the real one."""
import os
import signal
import threading

import pytest
from storms import N, REAL, Disturber, Scale, at_the_start, counts, disturbed, kill_and_restart, preempted, stop_for_a_while, storms
from suite import TINY_MODEL, Suite

TINY = Scale(TINY_MODEL, [[3 + (7 * k + 31 * i) % 310 for k in range(40 + 3 * i % 20)] for i in range(N)], 100, 16)
@pytest.fixture(params=["tiny", "real"])
def scale(request):
    if request.param == "real":
        if not os.environ.get("PD_FULL"):
            pytest.skip("PD_FULL is not set: minutes on the real model")
        request.getfixturevalue("real_model")
        return REAL
    return TINY


def check(s, scale, what, got, errors):
    assert not errors
    for i, want in enumerate(scale.unpressured()):
        assert got[i] == want, f"request {i}: another answer than without pressure"
    at_the_start(s)
    c = counts(s)
    for k, v in c.items():
        print(f"RESULT preempt_{what}_{k}={v}")
    assert c["preemptions"] >= N / 4, c
    assert c["restores_read"] + c["restores_computed"] + c["restores_kept"] <= c["preemptions"]
    return c


@pytest.mark.parametrize("layout", ["1p1d", "mixed"])
def test_storm(scale, layout):
    with scale.suite(layout) as s:
        check(s, scale, layout, *storms(s, scale, lambda: preempted(s, "saved_blocks", "restores_read", "restored_blocks")))
        assert not s.ctl("storage", "status").get("errors"), s.ctl("storage", "status")


SIM = {"base": "small", "check": "always", "time_scale": 0.01}


def test_storm_on_a_device_that_checks():
    """A simulated device reads every block that a step uses and knows whose it is: not one is wrong, stale or torn, with storage killed again and again."""
    prompts = TINY.prompts
    options = {"worker": TINY.worker, "sim": SIM}
    with Suite("mixed", **options) as s:
        want = [s.tokens(p, 100) for p in prompts]
    with Suite("1p1d", decode={"kv_blocks": TINY.blocks}, **options) as s:
        with Disturber(s, 0.1, kill_and_restart) as d:
            while d.error is None and (d.rounds < 3 or not counts(s)["preemptions"]):
                s.ctl("decode-1", "flush")
                got = [None] * N
                threads = [threading.Thread(target=lambda i=i: got.__setitem__(i, s.tokens(prompts[i], 100))) for i in range(N)]
                for t in threads:
                    t.start()
                for t in threads:
                    t.join()
                assert got == want
        at_the_start(s)
        c = counts(s)
        print(f"RESULT preempt_sim_preemptions={c['preemptions']}\nRESULT preempt_sim_restores_read={c['restores_read']}\nRESULT preempt_sim_kills={d.rounds}")
        assert c["preemptions"] and [s.ctl(w, "status")["device_kv_faults"] for w in s.workers()] == [0, 0]


def test_storm_by_the_rates(scale):
    """What is faster, reading or computing, is the worker's choice; here the answers count."""
    with scale.suite("mixed", storage_read="auto") as s:
        check(s, scale, "rates", *storms(s, scale, lambda: preempted(s)))


def test_storm_without_saving(scale):
    with scale.suite("mixed", save_preempted_kv=False) as s:
        c = check(s, scale, "unsaved", *storms(s, scale, lambda: preempted(s, "restores_computed")))
        assert not c["saved_blocks"] and c["restores_computed"], c


@pytest.mark.parametrize("layout", ["1p1d", "mixed"])
def test_storm_with_storage_killed(scale, layout):
    """Every second, on the tiny model five times a second."""
    with scale.suite(layout) as s:
        with Disturber(s, 1.0 if scale is REAL else 0.2, kill_and_restart) as d:
            got, errors = storms(s, scale, disturbed(s, d))
        check(s, scale, f"{layout}_killed", got, errors)
        print(f"RESULT preempt_{layout}_killed_times={d.rounds}")


def test_storm_with_storage_stopped_again_and_again(scale):
    with scale.suite("mixed") as s:
        with Disturber(s, 0.15, stop_for_a_while) as d:
            got, errors = storms(s, scale, disturbed(s, d))
        check(s, scale, "stopped", got, errors)


def test_storm_with_storage_stopped_for_ever(scale):
    """Nothing waits for it: bounded waits, then everything is computed."""
    with scale.suite("mixed") as s:
        stop = threading.Timer(0.1, lambda: s.kill("storage", signal.SIGSTOP))
        stop.start()
        got, errors = storms(s, scale, lambda: preempted(s))
        stop.join()
        s.kill("storage", signal.SIGCONT)
        check(s, scale, "stalled", got, errors)
