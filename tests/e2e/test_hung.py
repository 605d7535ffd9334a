# run: waits long
"""A worker that cannot step (a device that does not answer, a rank that is stopped) and one in a crash loop: streams go on elsewhere with the same tokens, the worker ends by itself,
and who keeps ending is chosen seldom. A worker that is told to end hands over what it has."""
import http.client
import json
import os
import signal
import subprocess
import threading
import time

import pytest
from suite import BIN, ENV, SLOW, TINY_MODEL, Suite, sim_description, wait_for
from test_ranks import ranks_of

PROMPT = list(range(3, 40))
BLOCK = {"block_tokens": 16, "output_caching": False}
SIM = {"base": "small", "check": "always", "decode": {"step_us": 3000.0}}


class Stream(threading.Thread):
    """One streaming answer; ends with `error` set if it was not whole."""

    def __init__(self, s, prompt, n):
        super().__init__(daemon=True)
        self.s, self.body = s, {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        self.ids, self.error = [], None
        self.start()

    def run(self):
        try:
            for event in self.s.stream("/v1/completions", self.body, timeout=150):
                assert "error" not in event, event
                for c in event["choices"]:
                    self.ids += c.get("token_ids") or []
        except Exception as e:  # noqa: BLE001 - shown by the test
            self.error = repr(e)

    def whole(self):
        self.join(100 * SLOW)
        assert not self.is_alive() and self.error is None, self.error
        return self.ids


def decoder(s, stream):
    """The decode worker that has something to do; None if the stream ended before one was seen."""
    def seen():
        return next((w["name"] for w in s.ctl("router", "workers") if w["role"] == "decode" and w["requests"]), None)
    wait_for(lambda: seen() or not stream.is_alive())
    return seen()


def ended(s, name):
    wait_for(lambda: s.procs[name].poll() is not None, lambda: s.log(name)[-1500:], 60)
    return s.procs.pop(name).returncode


def hang(s, name, step):
    """This worker's device does not end its step number `step`."""
    path = os.path.join(s.dir, f"sim-{name}.conf")
    with open(path, "w") as f:
        f.write(sim_description("small", step_us=3000.0, check="always", hang_step=step))
    s.conf[name]["model"] = path


@pytest.fixture(scope="module")
def want():
    with Suite("mixed", sim={"base": "small", "time_scale": 0.01}) as s:
        return s.tokens(PROMPT, 400)


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_a_daemon_that_starts_ends_at_once(tmp_path, sig):
    """A model may take minutes to read, and whoever stops its worker meanwhile does not want to wait for it."""
    os.mkfifo(tmp_path / "m.gguf")
    log = tmp_path / "log"
    with open(log, "w") as out:
        p = subprocess.Popen([os.path.join(BIN, "pddecoded"), "-o", "name=d", "-o", f"rundir={tmp_path}", "-o", f"model={tmp_path}/m.gguf"], stdout=out, stderr=out, env=ENV)
    try:
        wait_for(lambda: os.path.exists(tmp_path / "d.ipc"))     # it has its socket, and reads the model next
        assert p.poll() is None, log.read_text()
        p.send_signal(sig)
        assert p.wait(10 * SLOW) == 0 and not os.path.exists(tmp_path / "d.ipc")
    finally:
        p.kill()
        p.wait()


@pytest.mark.parametrize("role, layout, step", [("decode", "1p2d", 50), ("prefill", "2p1d", 1), ("mixed", "2mixed", 50)])
def test_a_device_that_hangs(want, role, layout, step):
    """The link stands, heartbeats come, no step ends."""
    told = role == "prefill"                                        # by the prefill worker itself, as its messager does not see progress
    s = Suite(layout, sim=SIM, router={"stuck_ms": 600000 if told else 800 * SLOW}, worker={"step_timeout_ms": (6000 if told else 2500) * SLOW})
    name = role + "-1"
    hang(s, name, step)
    with s:
        streams = [Stream(s, PROMPT, 400) for _ in range(4)]         # some of them there
        assert [x.whole() for x in streams] == [want] * 4
        assert ("stuck_ms" in s.log("router")) != told
        assert {line.split(" blame=")[1].split()[0] for line in s.log("router").splitlines() if "event=attempt_lost" in line} == {name}
        assert ended(s, name) == 1
        went_on, down = (s.log("router").rindex(f"event={e}") for e in ("attempt_lost", f"worker_down worker={name}"))
        assert went_on < down                                       # they did not wait for its end
        assert f"event=give_up why=\"step {step} makes no progress" in s.log(name)
        hang(s, name, 0)
        s.restart(name)
        s.ready()
        s.quiet()


def test_nobody_else_is_there(want):
    """What hangs is waited for until its end, and goes on in its next life."""
    with Suite("mixed", sim=SIM, router={"stuck_ms": 500}, worker={"step_timeout_ms": 1500 * SLOW}, wait=False) as s:
        s.kill("mixed-1")
        hang(s, "mixed-1", 50)
        s.restart("mixed-1")
        s.ready()
        x = Stream(s, PROMPT, 400)
        wait_for(lambda: s.procs["mixed-1"].poll() is not None, timeout=60)
        assert x.is_alive() and "attempt_lost" not in s.log("router").split("event=worker_down")[0]
        hang(s, "mixed-1", 0)
        s.restart("mixed-1")
        assert x.whole() == want


def test_told_to_end_while_it_hangs():
    """SIGTERM does not wait for the step, nor for stop_timeout_ms."""
    s = Suite("mixed", sim=SIM, worker={"step_timeout_ms": 0, "stop_timeout_ms": 600000}, router={"stuck_ms": 600000})
    hang(s, "mixed-1", 30)
    with s:
        Stream(s, PROMPT, 200)
        wait_for(lambda: s.ctl("mixed-1", "status")["steps"] == 29)
        s.kill("mixed-1", signal.SIGTERM, wait=False)
        assert ended(s, "mixed-1") == 1                             # waits for a smaller part of that time
        assert "event=give_up" in s.log("mixed-1")


def test_a_stopped_process_does_not_hang(want):
    """A worker that is stopped as a whole, in the middle of a step, has not hung when it goes on, however long that was."""
    with Suite("mixed", sim=SIM, worker={"step_timeout_ms": 2000}, router={"retry_wait_ms": 60000}) as s:
        x = Stream(s, PROMPT, 400)
        wait_for(lambda: len(x.ids) > 3)
        s.kill("mixed-1", signal.SIGSTOP)
        time.sleep(5)
        s.kill("mixed-1", signal.SIGCONT)
        assert x.whole() == want
        assert s.procs["mixed-1"].poll() is None and "event=give_up" not in s.log("mixed-1")


def test_a_long_step_does_not_hang(want):
    """A prompt's step takes longer than both limits, each layer of it less."""
    limits = {"router": {"stuck_ms": 3000}, "worker": {"step_timeout_ms": 3000}}
    with Suite("1p1d", sim={**SIM, "prefill": {"launch_us": 1000000.0}}, **limits) as s:
        began = time.time()
        assert s.tokens(PROMPT, 20) == want[:20]
        took = time.time() - began
        assert "event=attempt_lost" not in s.log("router") and "event=give_up" not in s.log("prefill-1")
        assert took > 3.5                                           # four layers


def test_a_stopped_rank():
    """With tensor parallel: the other rank waits for it in the middle of a step."""
    with Suite("1p2d", TINY_MODEL, worker={**BLOCK, "step_timeout_ms": 3000 * SLOW}, decode={"tensor_parallel": 2}, router={"stuck_ms": 1000 * SLOW}) as s:
        tokens = s.tokens(PROMPT, 440)
        for _ in range(10):                                         # until it was stopped in time
            x = Stream(s, PROMPT, 440)
            name = decoder(s, x)
            if not name:
                continue
            rank = ranks_of(s, name)[0]
            os.kill(rank, signal.SIGSTOP)
            assert x.whole() == tokens
            if s.log("router").count("event=attempt_lost"):
                break
            os.kill(rank, signal.SIGCONT)
        assert "stuck_ms" in s.log("router")
        assert ended(s, name) == 1
        assert "step_timeout_ms" in s.log(name)
        wait_for(lambda: not os.path.exists(f"/proc/{rank}") or open(f"/proc/{rank}/stat").read().split()[2] == "Z", "the stopped rank outlives its worker")


def test_a_crash_loop():
    """decode-1 ends a moment after it is up, again and again: it gets next to nothing of what is asked, and clients notice nothing."""
    with Suite("1p3d", sim={"base": "small", "time_scale": 0.5}, worker={"kv_memory_mb": 16}, router={"breaker_open_ms": 5000 * SLOW}) as s:
        stop, bad = threading.Event(), []

        def ask(i):
            k = 0
            while not stop.is_set():
                k += 1
                try:
                    s.tokens([3 + (31 * i + 7 * k + 13 * j) % 300 for j in range(20)], 10)
                except Exception as e:  # noqa: BLE001 - shown by the test
                    bad.append(repr(e))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for t in threads:
            t.start()
        placed = lambda: [line.split(" decode=")[1].split()[0] for line in s.log("router").splitlines() if "event=submitted" in line]  # noqa: E731
        try:
            for life in range(8):
                if life == 3:
                    before = len(placed())                          # from the third end in a row on
                ups = s.log("router").count("event=worker_up worker=decode-1")
                s.kill("decode-1")
                s.restart("decode-1")
                wait_for(lambda n=ups: s.log("router").count("event=worker_up worker=decode-1") > n)
                time.sleep(0.2)
            n = len(placed())
            wait_for(lambda: len(placed()) > n + 100 or bad, timeout=60)
        finally:
            stop.set()
            for t in threads:
                t.join()
        assert not bad, bad[:3]
        late = placed()[before:]
        assert len(late) > 100 and late.count("decode-1") <= 0.02 * len(late), (late.count("decode-1"), len(late))


def restarted_under_streams(s, n):
    """Whether streams of n tokens lasted until all decode workers had ended."""
    prompts = [[3 + (31 * i + 13 * j) % 300 for j in range(60)] for i in range(8)]
    with Suite("mixed", sim={"base": "small", "time_scale": 0.01}) as alone:
        want = [alone.tokens(p, n) for p in prompts]
    streams = [Stream(s, p, n) for p in prompts]
    wait_for(lambda: all(len(x.ids) > 3 for x in streams))
    moved, before = 0, s.log("router").count("event=attempt_moved")
    for name in ("decode-1", "decode-2", "decode-3"):
        moved += len(s.ctl(name, "requests"))
        assert s.kill(name, signal.SIGTERM) == 0                    # not after its streams: those last for longer than this test may
        in_time = all(x.is_alive() for x in streams)
        s.restart(name)
        s.ready()
    assert [x.whole() for x in streams] == want
    assert not in_time or moved >= 8 and s.log("router").count("event=attempt_moved") - before >= moved
    return in_time


def test_rolling_restart():
    """All decode workers are told to end, one after the other, under streams: each hands over what it has, at once, and no client sees more than a pause."""
    with Suite("1p3d", sim={**SIM, "decode": {"step_us": 24000.0}}, worker={"stop_timeout_ms": 600000}) as s:
        assert any(restarted_under_streams(s, n) for n in (500, 2000))
        assert "event=attempt_lost" not in s.log("router")
        s.quiet()


def test_a_report_of_a_reservation():
    """A reservation waits at decode-1, which stops hearing the prefill worker and gives it up. The prefill worker has asked the other by then, or will: the attempt goes on."""
    def ask(decode, n):
        c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=100 * SLOW)
        body = json.dumps({"prompt": [5, 6, 7, n % 300], "max_tokens": n, "temperature": 0, "ignore_eos": True})
        c.request("POST", "/v1/completions", body, {"Content-Type": "application/json", "X-Pdserve-Decode": decode})
        return c

    deaf = " ".join(f"type={t}:peer=prefill-1:dir=in:drop=100%" for t in ("HEARTBEAT", "KV_RENEW", "ACK", "REQUEST_CANCEL"))
    s = Suite("1p2d", sim={"base": "small", "decode": {"step_us": 20000.0}}, router={"allow_pinning": True},
              decode={"max_sequences": 1, "silence_ms": 400 * SLOW}, prefill={"silence_ms": 400 * SLOW})
    s.conf["decode-1"]["fault"] = deaf
    s.conf["decode-2"]["max_sequences"] = 2
    with s:
        full = ask("decode-1", 10000)
        wait_for(lambda: "active" in [r["state"] for r in s.ctl("decode-1", "requests")])
        c = ask("decode-1,decode-2", 50)
        wait_for(lambda: "event=reservation_dropped" in s.log("decode-1"), lambda: s.log("decode-1")[-2000:])
        assert c.getresponse().status == 200 and "event=attempt_lost" not in s.log("router")
        full.close()


def test_the_only_worker_ends():
    """Nobody can take its stream: it comes to its end there."""
    with Suite("mixed", sim={"base": "small", "time_scale": 0.01}) as s:
        want = s.tokens(PROMPT, 300)
    with Suite("mixed", sim=SIM, worker={"stop_timeout_ms": 600000}) as s:
        x = Stream(s, PROMPT, 300)
        wait_for(lambda: len(x.ids) > 3)
        s.kill("mixed-1", signal.SIGTERM, wait=False)
        assert x.whole() == want
        assert ended(s, "mixed-1") == 0
        assert "event=attempt_" not in s.log("router")
