"""bench_overlap.py - how long the device waits for the host between the steps of decoding, with and without steps that overlap (overlap_steps).

Two workers (role mixed) of one model, one with each setting, are given the same streams in turn, TURNS times each. The device's own time at work (device_busy_us)
and its steps are read twice, some seconds apart, while all streams decode:

    idle        share of that time in which the device did nothing
    gap         microseconds of it for each step
    step        microseconds of the device for each step

By default on the simulated accelerator, with a model of one billion weights on a device of 2.6 TB/s, where a step of one stream takes 0.9 ms: the host is the
real one, and the model's time is known. On a GPU: --backend cuda, with MODEL, or with random weights in the shape of a known model (`make bench-gpu`: 1b). Each
worker takes kv_mb for its KV.

    python bench_overlap.py [--backend sim|cuda] [--shape 1b] [--streams 1,16,64] [-n TURNS] [--seconds 4] [--kv-mb N] [--speculative ngram] [MODEL]
"""
import argparse
import contextlib
import os
import subprocess
import tempfile
import time

import random_model
from benchlib import Report, machine, median
from suite import BIN, Suite, wait_for

SIM = """model = { name = "sim-1b"; layers = 16; hidden = 2048; heads = 32; kv_heads = 8; head_dim = 64; ffn = 8192; context = 131072; vocab = 320; eos = [ 2 ];
seed = 1; };
device = { flops = 5.0e14; bandwidth = 2.6e12; launch_us = 3.0; step_us = 20.0; time_scale = 1.0; };
"""
ANSWER = 30000      # tokens: more than a stream gets while it is looked at


class Streams:
    """N answers that go on until this ends."""

    def __init__(self, suite, n):
        self.suite = suite
        url = f"http://127.0.0.1:{suite.port}"
        self.load = subprocess.Popen([os.path.join(BIN, "pdbench"), url, "-c", str(n), "-n", str(n), "-i", "32", "-o", str(ANSWER), "-w", "0"],
                                     stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: look(suite)[3] == n, f"{n} streams do not begin", 60)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.load.kill()
        self.load.wait()
        self.suite.quiet()


def look(suite):
    s = suite.ctl("mixed-1", "status")
    return time.monotonic(), s["device_busy_us"], s["device_steps"], s["running"]


def measure(suite, n, seconds):
    """-> percent of the time that the device was idle; that in microseconds a step; the device's microseconds a step"""
    with Streams(suite, n):
        t0, busy0, steps0, _ = look(suite)
        time.sleep(seconds)
        t1, busy1, steps1, running = look(suite)
    assert running == n, f"{running} of {n} streams were left"
    wall, busy, steps = (t1 - t0) * 1e6, busy1 - busy0, steps1 - steps0
    return 100 * (1 - busy / wall), (wall - busy) / steps, busy / steps


@contextlib.contextmanager
def model_of(a):
    """The path of the model that is asked for."""
    if a.model:
        yield a.model
        return
    with tempfile.TemporaryDirectory(prefix="pdserve-bench-") as folder:
        if a.backend == "sim":
            path = os.path.join(folder, "sim.conf")
            with open(path, "w") as f:
                f.write(SIM)
            yield path
        else:
            random_model.write(folder, a.shape)
            yield folder


def device(suite):
    d = suite.ctl("mixed-1", "status").get("device") or {}
    return d.get("name") or "simulated"


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model", nargs="?")
    ap.add_argument("--backend", choices=("sim", "cuda"), default="sim")
    ap.add_argument("--shape", choices=random_model.SHAPES, default="1b")
    ap.add_argument("--streams", default="1,16,64")
    ap.add_argument("-n", "--turns", type=int, default=3)
    ap.add_argument("--seconds", type=float, default=4)
    ap.add_argument("--kv-mb", type=int, default=3000)
    ap.add_argument("--speculative", choices=("off", "ngram"), default="off")
    a = ap.parse_args()
    counts = [int(n) for n in a.streams.split(",")]
    sim = a.backend == "sim"
    drafts = "" if a.speculative == "off" else f" SPECULATIVE={a.speculative}"
    rep = Report("Steps that overlap: the device between them" + ("" if sim else ", on a GPU") + (f", with {a.speculative} drafts" if drafts else ""),
                 f"make bench-overlap STREAMS={a.streams} TURNS={a.turns}{drafts}" if sim else f"bench_overlap.py --backend cuda {a.model or '--shape ' + a.shape} -n {a.turns}{drafts}")
    rep.say(machine())
    with model_of(a) as model:
        worker = {"model": model, "backend": a.backend, "kv_memory_mb": a.kv_mb, "max_sequences": max(counts), "messager": "none", "storage": "none",
                  "speculative": a.speculative}
        router = {} if a.model else {"model": ""}
        with Suite("mixed", a.model, worker={**worker, "overlap_steps": False}, router=router) as off, Suite("mixed", a.model, worker=worker, router=router) as on:
            rep.say(f"device: {device(on)}")
            rep.say(f"{'streams':>7}  {'steps':<12}{'idle %':>8}{'gap us':>8}{'step us':>9}")
            for n in counts:
                turns = [(measure(off, n, a.seconds), measure(on, n, a.seconds)) for _ in range(a.turns)]
                for which, name in enumerate(("waiting", "overlapping")):
                    idle, gap, step = (median([t[which][k] for t in turns]) for k in range(3))
                    rep.say(f"{n:>7}  {name:<12}{idle:>8.2f}{gap:>8.0f}{step:>9.0f}")
                    rep.result(f"idle_percent_{name}_{n}", idle, 2)
    rep.end()


if __name__ == "__main__":
    main()
