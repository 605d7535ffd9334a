"""bench_overlap.py - how long the device waits for the host between the steps of decoding, with and without steps that overlap (overlap_steps).

Two workers (role mixed) of one model, one with each setting, are given the same streams in turn, TURNS times each. The device's own time at work (device_busy_us)
and its steps are read twice, some seconds apart, while all streams decode:

    idle        share of that time in which the device did nothing
    gap         microseconds of it for each step
    step        microseconds of the device for each step

By default on the simulated accelerator, with a model of one billion weights on a device of 2.6 TB/s, where a step of one stream takes 0.9 ms: the host is the
real one, and the model's time is known. On a GPU: --backend cuda MODEL.

    python bench_overlap.py [--backend sim|cuda] [--streams 1,16,64] [-n TURNS] [MODEL]
"""
import argparse
import os
import subprocess
import tempfile
import time

from benchlib import Report, machine, median
from suite import BIN, Suite, wait_for

SIM = """model = { name = "sim-1b"; layers = 16; hidden = 2048; heads = 32; kv_heads = 8; head_dim = 64; ffn = 8192; context = 131072; vocab = 320; eos = [ 2 ];
seed = 1; };
device = { flops = 5.0e14; bandwidth = 2.6e12; launch_us = 3.0; step_us = 20.0; time_scale = 1.0; };
"""
SECONDS = 4
ANSWER = 30000      # tokens: more than a stream gets in that time


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


def measure(suite, n):
    """-> percent of the time that the device was idle; that in microseconds a step; the device's microseconds a step"""
    with Streams(suite, n):
        t0, busy0, steps0, _ = look(suite)
        time.sleep(SECONDS)
        t1, busy1, steps1, running = look(suite)
    assert running == n, f"{running} of {n} streams were left"
    wall, busy, steps = (t1 - t0) * 1e6, busy1 - busy0, steps1 - steps0
    return 100 * (1 - busy / wall), (wall - busy) / steps, busy / steps


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model", nargs="?")
    ap.add_argument("--backend", choices=("sim", "cuda"), default="sim")
    ap.add_argument("--streams", default="1,16,64")
    ap.add_argument("-n", "--turns", type=int, default=3)
    a = ap.parse_args()
    counts = [int(n) for n in a.streams.split(",")]
    rep = Report("Steps that overlap: the device between them", f"make bench-overlap STREAMS={a.streams} TURNS={a.turns}")
    rep.say(machine())
    rep.say(f"{'streams':>7}  {'steps':<12}{'idle %':>8}{'gap us':>8}{'step us':>9}")
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as sim:
        sim.write(SIM)
        sim.flush()
        worker = {"model": a.model or sim.name, "backend": a.backend, "kv_memory_mb": 3000, "max_sequences": max(counts), "messager": "none", "storage": "none"}
        router = {} if a.model else {"model": ""}
        with Suite("mixed", a.model, worker={**worker, "overlap_steps": False}, router=router) as off, Suite("mixed", a.model, worker=worker, router=router) as on:
            for n in counts:
                turns = [(measure(off, n), measure(on, n)) for _ in range(a.turns)]
                for which, name in enumerate(("waiting", "overlapping")):
                    idle, gap, step = (median([t[which][k] for t in turns]) for k in range(3))
                    rep.say(f"{n:>7}  {name:<12}{idle:>8.2f}{gap:>8.0f}{step:>9.0f}")
                    rep.result(f"idle_percent_{name}_{n}", idle, 2)
    rep.end()


if __name__ == "__main__":
    main()
