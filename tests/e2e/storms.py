"""storms.py - preemption storms: many more sequences than the pool holds, on real daemons. For test_preempt.py and bench_preempt.py."""
import os
import signal
import threading
import time

from suite import SLOW, Suite

N = 24                          # requests
POOL = 3                        # sequences that the pool holds
COUNTS = ("saved_blocks", "unsaved_blocks", "saves_void", "restores_read", "restores_computed", "restores_kept", "restores_abandoned", "restored_blocks")


class Scale:
    def __init__(self, model, prompts, answer, block_tokens):
        self.model, self.prompts, self.answer = model, prompts, answer
        longest = max(len(p) for p in prompts) + answer
        self.worker = {"block_tokens": block_tokens, "growth_ratio": 0.0, "storage_read": "always"}
        self.blocks = POOL * -(-longest // block_tokens)
        self.want = None

    def suite(self, layout, pool=True, storage=None, **decode):
        blocks = self.blocks if pool else self.blocks * N // POOL
        return Suite(layout, self.model, worker={**self.worker, "kv_memory_mb": 1024}, decode={"kv_blocks": blocks, **decode}, storage=storage)

    def ask(self, s, i):
        seeded = {"temperature": 0.8, "seed": 100 + i} if i % 2 else {}
        return s.tokens(self.prompts[i], self.answer, **seeded)

    def unpressured(self):
        if self.want is None:
            with self.suite("mixed", pool=False) as s:
                self.want = [self.ask(s, i) for i in range(N)]
        return self.want


REAL = Scale(os.environ.get("PD_MODEL"), [[5 + (97 * k + 1009 * i) % 40000 for k in range(200 + 5 * i)] for i in range(N)], 100, 32)


def decoder(s):
    return [w for w in s.workers() if not w.startswith("prefill")][0]


def counts(s):
    name, out = decoder(s), {}
    for line in s.metrics(name).splitlines():
        for c in COUNTS:
            for full in (f"pdserve_decode_preempt_{c}_total", f"pdserve_decode_{c}_total"):
                if line.startswith(full):
                    out[c] = int(float(line.split()[-1]))
    out["preemptions"] = s.ctl(name, "status")["preemptions"]
    return out


def storm(s, scale):
    """All at once; returns (answers, errors)."""
    got, errors = [None] * N, []

    def one(i):
        try:
            got[i] = scale.ask(s, i)
        except Exception as e:  # noqa: BLE001 - shown by the test
            errors.append(repr(e))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(N)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return got, errors


def storms(s, scale, over):
    """One after the other until it is over: a storm of the tiny model takes a moment, and what happens in it is a matter of time."""
    got, errors = storm(s, scale)
    want, end = scale.unpressured(), time.time() + 60 * SLOW
    while not errors and not over():
        assert got == want
        assert time.time() < end, counts(s)
        s.ctl(decoder(s), "flush")
        got, errors = storm(s, scale)
    return got, errors


def preempted(s, *kinds):
    """Often, and each of these kinds was there."""
    c = counts(s)
    return c["preemptions"] >= N / 4 and all(c[k] for k in kinds)


def disturbed(s, disturber, least=3):
    return lambda: disturber.error is not None or (disturber.rounds >= least and preempted(s))


def at_the_start(s):
    """Leases, blocks and pins as before the storm."""
    s.quiet(30)
    end = time.time() + 30 * SLOW
    while True:
        k, st = s.kv(decoder(s)), s.ctl(decoder(s), "status")
        left = {"readers": k["readers"], "held": k["held"], "leased": k["leased"], "at_storage": st["at_storage"], "saving_blocks": st["saving_blocks"],
                "preempted": st["preempted"], "running": st["running"], "waiting": st["waiting"], **st["sequences"]}
        if not any(left.values()) and k["free"] + k["cached"] == k["blocks"]:
            return
        assert time.time() < end, left
        time.sleep(0.05)


class Disturber(threading.Thread):
    """Does something to storage every `period` seconds, until told to stop."""

    def __init__(self, s, period, act):
        super().__init__()
        self.s, self.period, self.act, self.over, self.rounds, self.error = s, period, act, threading.Event(), 0, None

    def run(self):
        while not self.over.wait(self.period):
            try:
                self.act(self.s)
                self.rounds += 1
            except Exception as e:  # noqa: BLE001
                self.error = e
                return

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        self.over.set()
        self.join()
        assert self.error is None, self.error


def kill_and_restart(s):
    s.kill("storage", signal.SIGKILL)
    s.restart("storage")


def stop_for_a_while(s):
    s.kill("storage", signal.SIGSTOP)
    time.sleep(0.15)
    s.kill("storage", signal.SIGCONT)
