"""Kills, stops and disconnects: every request ends right or with an error, nothing leaks, the next request works."""
import json
import os
import random
import signal
import socket
import threading
import time

import pytest
from prompts import PROMPTS
from suite import SLOW, Suite

LONG = PROMPTS[21]


@pytest.fixture(scope="module")
def reference(real_model):
    with Suite("mixed", real_model) as s:
        return {"long": s.tokens(LONG, 60), "short": s.tokens(PROMPTS[2], 200), "next": s.tokens(PROMPTS[3], 8)}


def in_thread(fn):
    box = {}

    def run():
        try:
            box["value"] = fn()
        except Exception as e:  # noqa: BLE001
            box["error"] = e

    t = threading.Thread(target=run)
    t.start()
    box["join"] = lambda: t.join(120 * SLOW)
    box["running"] = t.is_alive
    return box


def wait_for(cond, timeout=20):
    end = time.time() + timeout * SLOW
    while time.time() < end:
        if cond():
            return True
        time.sleep(0.01)
    return False


def restart_when_dead(s, name):
    s.procs[name].wait(20 * SLOW)
    s.restart(name)
    s.ready()


def test_messager_killed_in_a_transfer(real_model, reference):
    with Suite("1p1d", real_model, prefill={"max_batched_tokens": 64}) as s:
        box = in_thread(lambda: s.tokens(LONG, 60))
        assert wait_for(lambda: "event=granted" in s.log("decode-1"))
        time.sleep(0.3)                     # some layers of some chunks are over
        s.kill("messager")
        restart_when_dead(s, "messager")
        box["join"]()
        assert box.get("value") == reference["long"], box
        assert s.tokens(PROMPTS[3], 8) == reference["next"]
        s.quiet()


def test_decode_killed_mid_stream(real_model, reference):
    with Suite("1p2d", real_model) as s:
        seen = []

        def read():
            for e in s.stream("/v1/completions", {"prompt": PROMPTS[2], "max_tokens": 200, "temperature": 0, "ignore_eos": True, "return_token_ids": True}):
                for c in e["choices"]:
                    seen.extend(c.get("token_ids") or [])

        box = in_thread(read)
        assert wait_for(lambda: len(seen) > 20)
        victim = next(n for n in ("decode-1", "decode-2") if "event=joined" in s.log(n))
        s.kill(victim)
        box["join"]()
        assert "error" not in box, box
        assert seen == reference["short"]   # each token once, in order
        restart_when_dead(s, victim)
        assert s.tokens(PROMPTS[3], 8) == reference["next"]
        s.quiet()


def test_prefill_killed_while_it_computes(real_model, reference):
    with Suite("2p1d", real_model, prefill={"max_batched_tokens": 64}) as s:
        box = in_thread(lambda: s.tokens(LONG, 60))
        assert wait_for(lambda: "event=granted" in s.log("decode-1"))
        victim = next(n for n in ("prefill-1", "prefill-2") if "event=accepted" in s.log(n))
        s.kill(victim)
        box["join"]()
        assert box.get("value") == reference["long"], box
        s.quiet()


def test_router_stopped_again_and_again():
    """The workers give a silent router up, and each begins its link anew when it goes on. That is no failure of a sequence, however many of the workers that it
    is placed on do so, nor if they do again."""
    sim = {"base": "small", "time_scale": 1.0, "decode": {"step_us": 5000.0}}
    with Suite("1p2d", sim=sim, worker={"silence_ms": 400, "heartbeat_ms": 50}, router={"max_attempts": 1}) as s:
        ask = {"prompt": [[7, 8, 9 + i] for i in range(4)], "max_tokens": 250, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        want = [c["token_ids"] for c in s.post("/v1/completions", ask)[1]["choices"]]
        box, had, downs = in_thread(lambda: s.post("/v1/completions", ask)), {}, 0

        def went_on():
            now = {r["id"]: r["output_tokens"] for r in s.ctl("router", "requests")}
            return len(now) == 4 and all(n >= had.get(k, 0) + 5 for k, n in now.items()) and now

        for _ in range(2):
            assert wait_for(lambda: went_on() or not box["running"]())
            assert box["running"](), box
            had = went_on() or had
            downs = {n: s.log(n).count("peer_down peer=router") for n in s.workers()}
            s.procs["router"].send_signal(signal.SIGSTOP)
            assert wait_for(lambda: all(s.log(n).count("peer_down peer=router") > downs[n] for n in downs))
            s.procs["router"].send_signal(signal.SIGCONT)
        box["join"]()
        status, answer = box["value"]
        assert status == 200, answer
        assert [c["token_ids"] for c in answer["choices"]] == want
        assert s.log("router").count("event=attempt_cut") >= 8 and '"its link starts anew"' in s.log("router")
        s.quiet()


def test_anybody_at_any_time():
    """Workers are killed, ended and restarted, and the router is stopped for longer than anybody bears, while clients ask one thing after the other: each answer
    is the one that an undisturbed suite gives."""
    seconds = 60 if os.environ.get("PD_FULL") else 3
    draw = random.Random(17)
    sim = {"base": "small", "time_scale": 1.0, "decode": {"step_us": 4000.0}}
    with Suite("2p3d", sim=sim, worker={"silence_ms": 1000}, router={"retry_wait_ms": 60000 * SLOW}) as s:
        asks = [{"prompt": [7, 8, 9 + i], "max_tokens": 200, "temperature": 0, "ignore_eos": True, "return_token_ids": True} for i in range(6)]
        want = [c["token_ids"] for c in s.post("/v1/completions", {**asks[0], "prompt": [a["prompt"] for a in asks]})[1]["choices"]]
        end, wrong, right, over = time.time() + seconds, [], [], threading.Event()

        def client(i):
            while not over.is_set() and not wrong:
                status, answer = s.post("/v1/completions", asks[i])
                (right if status == 200 and answer["choices"][0]["token_ids"] == want[i] else wrong).append((status, answer))

        boxes = [in_thread(lambda i=i: client(i)) for i in range(6)]

        def seen():
            return len(right) >= 6 and "event=attempt_lost" in s.log("router")

        def alive():
            """Somebody is there to go on elsewhere."""
            up = [w["role"] for w in s.ctl("router", "workers") if w["state"] == "up"]
            return up.count("prefill") >= 1 and up.count("decode") >= 2

        while not wrong and (time.time() < end or not seen()):
            assert time.time() < end + 60 * SLOW, "no attempt was lost"
            assert wait_for(alive)
            if draw.random() < 0.2:
                s.procs["router"].send_signal(signal.SIGSTOP)
                time.sleep(1.3)
                s.procs["router"].send_signal(signal.SIGCONT)
            else:
                name = draw.choice(s.workers())
                s.kill(name, draw.choice([signal.SIGKILL, signal.SIGKILL, signal.SIGTERM]))
                s.restart(name)
            time.sleep(draw.random())
        over.set()
        for box in boxes:
            box["join"]()
            assert "error" not in box, box
        assert not wrong, wrong[0]
        s.ready()
        s.quiet()


def test_no_prefill_worker_left(real_model, reference):
    with Suite("1p1d", real_model) as s:
        s.kill("prefill-1")
        assert wait_for(lambda: s.tokens(PROMPTS[3], 8) == reference["next"])
        s.quiet()


def test_no_decode_worker_left(tiny_model):
    with Suite("1p1d", tiny_model) as s:
        s.kill("decode-1")
        assert wait_for(lambda: s.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 4})[0] == 503)
        assert wait_for(lambda: s.get("/ready")[0] == 503)
        s.restart("decode-1")
        assert wait_for(lambda: s.post("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 4})[0] == 200)
        s.quiet()


def test_storage_killed(real_model, reference):
    with Suite("1p1d", real_model) as s:
        s.kill("storage")
        assert s.tokens(PROMPTS[3], 8) == reference["next"]
        s.restart("storage")
        assert s.tokens(PROMPTS[2], 200) == reference["short"]
        s.quiet()


def test_router_restarted(tiny_model):
    """Requests of the dead router are cancelled at the workers, long before their ends; the next router is whole within a second or so."""
    with Suite("1p1d", tiny_model) as s:
        many = {"prompt": [[1, 2, 3]] * 128, "max_tokens": 480, "temperature": 0, "ignore_eos": True}
        box = in_thread(lambda: s.post("/v1/completions", many))
        assert wait_for(lambda: any(r["state"] == "active" for r in s.ctl("decode-1", "requests")))
        s.kill("router")
        s.restart("router")
        box["join"]()
        assert "error" in box
        assert wait_for(lambda: 'event=cancelled attempt=1 why="the router is gone"' in s.log("decode-1"))
        s.ready()
        assert len(s.tokens([1, 2, 3], 4)) == 4
        s.quiet()


def test_stopped_messager_keeps_its_blocks(tiny_model):
    """SIGSTOP: the fence waits (quarantine), nothing is reused; after SIGCONT all comes back."""
    with Suite("1p1d", tiny_model, prefill={"stall_ms": 800}, worker={"lease_ms": 1000}) as s:
        assert len(s.tokens(list(range(1, 100)), 4)) == 4
        s.procs["messager"].send_signal(signal.SIGSTOP)
        status, body = s.post("/v1/completions", {"prompt": list(range(3, 120)), "max_tokens": 4}, timeout=60)
        assert status in (200, 500, 502, 503), body
        s.procs["messager"].send_signal(signal.SIGCONT)
        s.quiet(30)
        assert len(s.tokens(list(range(2, 100)), 4)) == 4


@pytest.mark.parametrize("when", ["at-once", "in-prefill", "in-decode"])
def test_client_disconnects(real_model, when):
    with Suite("1p1d", real_model, prefill={"max_batched_tokens": 64}) as s:
        body = json.dumps({"prompt": LONG, "max_tokens": 2000, "ignore_eos": True, "stream": True}).encode()
        c = socket.create_connection(("127.0.0.1", s.port))
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        if when == "in-prefill":
            assert wait_for(lambda: "event=granted" in s.log("decode-1"))
        elif when == "in-decode":
            assert wait_for(lambda: "event=joined" in s.log("decode-1"))
        c.close()
        begin = time.time()
        s.quiet()
        assert time.time() - begin < 10 * SLOW
        assert s.post("/v1/completions", {"prompt": "Hi", "max_tokens": 2})[0] == 200


@pytest.mark.parametrize("name", ["prefill-1", "decode-1", "messager", "storage", "router"])
def test_sigterm_of_each(tiny_model, name):
    with Suite("1p1d", tiny_model) as s:
        assert len(s.tokens([5, 6, 7], 4)) == 4
        begin = time.time()
        assert s.kill(name, signal.SIGTERM) == 0
        assert time.time() - begin < 12 * SLOW


def test_second_worker_under_a_taken_name(tiny_model):
    with Suite("1p1d", tiny_model) as s:
        first = s.procs.pop("decode-1")
        s.start("decode-1")
        assert s.procs["decode-1"].wait(20 * SLOW) == 1
        assert "pid" in s.log("decode-1")
        s.procs["decode-1"] = first
        assert len(s.tokens([5, 6, 7], 4)) == 4


def test_worker_before_router(tiny_model):
    s = Suite("1p1d", tiny_model)
    s.names.remove("router")
    s.names.append("router")
    with s:
        assert len(s.tokens([5, 6, 7], 4)) == 4
        s.quiet()
