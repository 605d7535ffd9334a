# run: waits
"""A stopped messager (SIGSTOP at chosen moments of a transfer's life): what it may still write stays in quarantine until the fence, others decode on beside it
with the same tokens, and what it does when it goes on lands nowhere that matters. The same for one that is killed while it is stopped. On simulated devices, which
check every KV block that they read."""
import json
import signal
import socket
import time

import pytest
from suite import SAN, Suite
from test_faults import in_thread, restart_when_dead, wait_for

LONG, BESIDE, AFTER = [3 + i * 7 % 310 for i in range(1000)], [5, 6, 7], [9, 8, 7, 6]
FAST = {"base": "small", "check": "always", "time_scale": 0.01}
K = 4 if SAN else 2             # a moment must be long enough to be seen
SIM = {"base": "small", "check": "always", "prefill": {"flops": 3.0e10 / K}, "decode": {"step_us": 8000.0}}   # LONG takes P K seconds, a token D 8 ms
PATIENT = {"silence_ms": 600000}        # nobody is given up but who is dead


@pytest.fixture(scope="module")
def want():
    with Suite("mixed", sim=FAST) as s:
        return {"long": s.tokens(LONG, 150), "beside": s.tokens(BESIDE, 300), "after": s.tokens(AFTER, 8)}


def suite(stall_ms, lease_ms):
    return Suite("1p1d", sim=SIM, prefill={"max_batched_tokens": 64, "stall_ms": stall_ms}, decode={"lease_ms": lease_ms, "kv_blocks": 40},
                 worker={"kv_memory_mb": 16, **PATIENT}, messager={"slice_kb": 16, **PATIENT}, router=PATIENT)


def client(s, prompt):
    """A streaming request whose connection the test holds."""
    body = json.dumps({"prompt": prompt, "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stream": True}).encode()
    c = socket.create_connection(("127.0.0.1", s.port))
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return c


def transfers(s, state, blocks_sent=0):
    return [t for t in s.ctl("messager", "transfers") if t["state"] == state and t["blocks_sent"] >= blocks_sent]


def states(s):
    return [r["state"] for r in s.ctl("decode-1", "requests")]


def faults(s):
    return [s.ctl(w, "status")["device_kv_faults"] for w in s.workers()]


def forget(s):
    """As if LONG had not been asked."""
    assert wait_for(lambda: not s.ctl("messager", "transfers") and s.ctl("prefill-1", "requests") == [])
    for w in s.workers():
        s.ctl(w, "flush")


def stop_in_the_copy(s):
    """Between two blocks, some there and some not."""
    while True:
        joined = s.log("decode-1").count("event=joined")
        c = client(s, LONG)
        assert wait_for(lambda: transfers(s, "open", 2) or s.log("decode-1").count("event=joined") > joined), s.log("messager")[-2000:]
        s.kill("messager", signal.SIGSTOP)
        if "leased" in states(s):
            return c
        s.kill("messager", signal.SIGCONT)               # too late
        c.close()
        forget(s)


def stop_before_the_answer(s):
    """Around its question: asked or not, answered or not."""
    c = client(s, LONG)
    assert wait_for(lambda: "leased" in states(s))
    s.kill("decode-1", signal.SIGSTOP)
    s.kill("messager", signal.SIGSTOP)
    s.kill("decode-1", signal.SIGCONT)
    return c


@pytest.mark.parametrize("stop, then", [(stop_in_the_copy, "goes on"), (stop_before_the_answer, "goes on"), (stop_in_the_copy, "is killed")])
def test_a_stopped_writer_keeps_its_blocks(want, stop, then):
    with suite(600, 1800) as s:
        beside = in_thread(lambda: s.tokens(BESIDE, 300))
        assert wait_for(lambda: "active" in states(s))
        c = stop(s)
        c.close()                                        # the client leaves: the lease is given up
        assert wait_for(lambda: "leased" not in states(s))
        leased = s.kv("decode-1")["leased"]
        if stop is stop_in_the_copy:
            assert "quarantine" in states(s) and leased >= 15
        time.sleep(2.4)                                  # longer than lease, stall limit and renewals together
        assert s.kv("decode-1")["leased"] == leased      # no timer frees them
        if then == "is killed":
            s.kill("messager")
            restart_when_dead(s, "messager")
        else:
            s.kill("messager", signal.SIGCONT)
        assert wait_for(lambda: s.kv("decode-1")["leased"] == 0)
        assert s.tokens(LONG, 20) == want["long"][:20]   # the blocks that came back
        beside["join"]()
        assert beside.get("value") == want["beside"], beside
        assert faults(s) == [0, 0]
        s.quiet()


def test_stopped_after_kv_ready(want):
    """It has told D that all is there, and is stopped before it tells P. P gives the attempt up at its stall limit; D has joined, and the client gets its tokens."""
    with suite(2000 * K, 60000) as s:
        while True:
            joined, dropped, lost = s.log("decode-1").count("event=joined"), s.log("prefill-1").count("event=job_dropped"), s.log("router").count("event=attempt_lost")
            box = in_thread(lambda: s.tokens(LONG, 150))
            assert wait_for(lambda: transfers(s, "open", 13) or s.log("decode-1").count("event=joined") > joined)      # of 16 blocks
            s.kill("decode-1", signal.SIGSTOP)           # what the messager posts now waits in D's socket
            assert wait_for(lambda: transfers(s, "posted") or not s.ctl("messager", "transfers"))
            s.kill("messager", signal.SIGSTOP)
            in_time = s.log("decode-1").count("event=joined") == joined and s.log("prefill-1").count("event=job_dropped") == dropped
            s.kill("decode-1", signal.SIGCONT)
            if in_time:
                break
            s.kill("messager", signal.SIGCONT)           # it had been posted and answered before, or P's patience had ended
            box["join"]()
            assert box.get("value") == want["long"], box
            forget(s)
        assert wait_for(lambda: s.log("decode-1").count("event=joined") > joined), s.log("decode-1")[-2000:]
        assert wait_for(lambda: s.log("prefill-1").count("event=job_dropped") > dropped), s.log("prefill-1")[-2000:]
        box["join"]()
        assert box.get("value") == want["long"], box
        assert s.log("router").count("event=attempt_lost") == lost
        s.kill("messager", signal.SIGCONT)
        s.quiet()
        assert s.tokens(AFTER, 8) == want["after"]
        assert faults(s) == [0, 0]
