"""Live switches of roles under load: no request is lost, no token differs from those of a suite that was left alone."""
import json
import os
import random
import subprocess
import threading
import time

import pytest
from suite import BIN, ENV, SLOW, Suite

RND = random.Random(11)
PROMPTS = [[RND.randrange(3, 300) for _ in range(n)] for n in (5, 17, 40, 63, 90, 130, 200)]
TOKENS = 48
WORKER = {"block_tokens": 16, "kv_blocks": 200, "kv_type": "f32"}


@pytest.fixture(scope="module")
def wanted(tiny_model):
    with Suite("mixed", tiny_model, worker=WORKER) as s:
        return [s.tokens(p, TOKENS) for p in PROMPTS]


class Clients:
    """Some threads that ask again and again until stopped; what is wrong is kept."""

    def __init__(self, suite, wanted, n=3):
        self.suite, self.wanted, self.wrong, self.done, self.stop, self.turn, self.lock = suite, wanted, [], 0, False, 0, threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(n)]

    def run(self, i):
        while not self.stop:
            k = i % len(PROMPTS)
            i += 1
            turn, said = self.turn, None
            try:
                got = self.suite.tokens(PROMPTS[k], TOKENS)
                if got != self.wanted[k]:
                    said = f"prompt {k}: {got}, wanted {self.wanted[k]}"
            except Exception as e:  # noqa: BLE001
                said = f"prompt {k}: {e!r}"
            with self.lock:
                self.done += 1
                if said and turn == self.turn:
                    self.wrong.append(said)

    def forgive(self):
        """What was asked before now does not count."""
        with self.lock:
            self.turn += 1
            self.wrong.clear()

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *exc):
        self.stop = True
        for t in self.threads:
            t.join()

    def some_more(self, n=6):
        """At least n answers more: what is switched now is in use."""
        want, end = self.done + n, time.time() + 60 * SLOW
        while self.done < want and not self.wrong:
            assert time.time() < end, "no answers"
            time.sleep(0.01)
        assert not self.wrong, self.wrong[:3]


def switch(s, name, role):
    r = subprocess.run([f"{BIN}/pdctl", "-r", s.dir, "-t", "60000", "--json", "role", name, role], capture_output=True, text=True, timeout=200 * SLOW, env=ENV)
    assert r.returncode == 0, (name, role, r.stderr, s.log(name)[-2000:])
    assert json.loads(r.stdout) == {"role": role, "switching": None}


def role_at_router(s, name):
    return next((w["role"] for w in s.ctl("router", "workers") if w["name"] == name), None)


def wait_role(s, name, role):
    end = time.time() + 30 * SLOW
    while role_at_router(s, name) != role:
        assert time.time() < end, (name, role_at_router(s, name))
        time.sleep(0.02)


def test_roles_go_round_under_load(tiny_model, wanted):
    with Suite("2p2d", tiny_model, worker=WORKER) as s:
        with Clients(s, wanted) as c:
            c.some_more()
            for name, roles in (("decode-2", ["mixed", "prefill", "decode"]), ("prefill-1", ["mixed", "decode", "prefill"])):
                for role in roles:
                    switch(s, name, role)
                    wait_role(s, name, role)
                    c.some_more()
        assert not c.wrong, c.wrong[:3]
        s.quiet()
        # what the switched ones are now, they do: a hand-over between the two
        assert "event=role_switched" in s.log("decode-2")
        assert s.ctl("decode-2", "status")["role"] == "decode"


@pytest.mark.parametrize("seed,timeout_ms", [(1, 20), (2, 0), (3, 10000)] if os.environ.get("PD_FULL") else [(1, 20)])
def test_switches_at_random(tiny_model, wanted, seed, timeout_ms):
    """Nobody waits for anybody: several switches at once, in the middle of prompts, hand-overs and answers. One decode worker stays."""
    rnd = random.Random(seed)
    with Suite("2p2d", tiny_model, worker={**WORKER, "role_switch_timeout_ms": timeout_ms}) as s:
        with Clients(s, wanted, 6) as c:
            c.some_more()
            threads = []
            for _ in range(12):
                name = rnd.choice(["prefill-1", "prefill-2", "decode-2"])
                role = rnd.choice(["prefill", "decode", "mixed"])
                if s.ctl(name, "role")["switching"] is None:
                    threads.append(threading.Thread(target=switch, args=(s, name, role)))
                    threads[-1].start()
                time.sleep(rnd.random() * 0.1)
            for t in threads:
                t.join()
            c.some_more()
        assert not c.wrong, c.wrong[:3]
        s.quiet()


def test_everybody_changes_sides(tiny_model, wanted):
    """1p1d becomes 1d1p: the link between the two is there in the other direction, too."""
    with Suite("1p1d", tiny_model, worker=WORKER) as s:
        with Clients(s, wanted, 2) as c:
            c.some_more(3)
            # somebody decodes at any time, as the router sees it
            for name, role in (("prefill-1", "mixed"), ("decode-1", "prefill"), ("prefill-1", "decode")):
                switch(s, name, role)
                wait_role(s, name, role)
            joined = s.log("prefill-1").count("event=joined")
            c.some_more()
            assert s.log("prefill-1").count("event=joined") > joined      # handed over, from the former decode worker
            for name, role in (("decode-1", "decode"), ("prefill-1", "prefill")):
                switch(s, name, role)
                wait_role(s, name, role)
            c.some_more()
        assert not c.wrong, c.wrong[:3]
        s.quiet()


def test_long_answer_goes_on_elsewhere(tiny_model):
    """The bound of the drain: what still runs then is continued by another worker, each token once."""
    with Suite("mixed", tiny_model, worker=WORKER) as s:
        want = s.tokens(PROMPTS[0], 450)
    with Suite("1p2d", tiny_model, worker={**WORKER, "role_switch_timeout_ms": 0}) as s:
        with Clients(s, [want] * len(PROMPTS), 0):
            box = []
            threads = [threading.Thread(target=lambda: box.append(s.tokens(PROMPTS[0], 450))) for _ in range(4)]
            for t in threads:
                t.start()
            end = time.time() + 20 * SLOW
            while not s.ctl("decode-2", "requests") and len(box) < 4 and time.time() < end:
                pass
            switch(s, "decode-2", "mixed")       # at once
            switch(s, "decode-2", "prefill")
            switch(s, "decode-2", "decode")
            for t in threads:
                t.join()
        assert box == [want] * 4
        s.quiet()


def test_refused(tiny_model):
    with Suite("mixed", tiny_model, worker={**WORKER, "messager": "none"}) as s:
        for words, why in ((["prefill"], "messager"), (["king"], "king")):
            with pytest.raises(RuntimeError, match=why):
                s.ctl("mixed-1", "role", *words)
        assert s.ctl("mixed-1", "role") == {"role": "mixed", "switching": None}
        for words, code in (([], 2), (["nobody"], 3), (["mixed-1", "king"], 1), (["mixed-1", "prefill"], 1), (["mixed-1"], 0), (["mixed-1", "mixed"], 0)):
            r = subprocess.run([f"{BIN}/pdctl", "-r", s.dir, "role", *words], capture_output=True, text=True, timeout=60 * SLOW, env=ENV)
            assert r.returncode == code, (words, r)
            assert (r.stdout if code == 0 else r.stderr), words
        assert len(s.tokens(PROMPTS[0], 4)) == 4


@pytest.mark.parametrize("who", ["messager", "router"])
def test_others_die_during_a_switch(tiny_model, wanted, who):
    with Suite("2p2d", tiny_model, worker=WORKER) as s:
        with Clients(s, wanted) as c:
            c.some_more()
            done = []
            t = threading.Thread(target=lambda: done.append(switch(s, "decode-2", "prefill")))
            t.start()
            s.kill(who)
            s.restart(who)
            t.join()
            s.ready()
            if who == "router":
                c.forgive()                      # its clients' connections broke, and the next one began without workers
            c.some_more()
        assert len(done) == 1
        wait_role(s, "decode-2", "prefill")
        assert not c.wrong, c.wrong[:3]
        assert [s.tokens(p, TOKENS) for p in PROMPTS] == wanted
        switch(s, "decode-2", "decode")
        wait_role(s, "decode-2", "decode")
        assert [s.tokens(p, TOKENS) for p in PROMPTS] == wanted
        s.quiet()
