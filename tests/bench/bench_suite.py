"""bench_suite.py - the whole suite as its clients see it: tokens/s and latencies for several layouts and numbers of streams.

Each stream asks for TOKENS tokens after a new prompt of PROMPT tokens, again and again for SECONDS. With one machine's cores shared by all workers this says
what the arrangement costs, not what several machines would give.

    python bench_suite.py [--layouts 1p1d,mixed] [--streams 1,8,32] [--seconds 12] [-t THREADS] MODEL
"""
import argparse
import os
import random

from benchlib import Report, machine, median, percentile
from load import Load
from suite import Suite

PROMPT, TOKENS = 128, 64


def source():
    rnd = random.Random(5)

    def body():
        ids = [rnd.randint(3, 40000) for _ in range(PROMPT)]
        return None, {"prompt": ids, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    return body


def measure(rep, s, layout, streams, seconds, body):
    load = Load(s.port, body, streams).run(seconds)
    assert not load.errors, load.errors[:3]
    rate = load.token_count / load.wall_s
    rep.say(f"{layout:<8}{streams:>8}{load.completed:>10}{rate:>10.1f}{load.completed * PROMPT / load.wall_s:>11.1f}{median(load.ttft) * 1e3:>11.0f}"
            f"{percentile(load.ttft, 99) * 1e3:>9.0f}{median(load.itl) * 1e3:>9.1f}{percentile(load.itl, 99) * 1e3:>9.1f}")
    rep.result(f"suite_{layout}_{streams}_tok_s", rate, 1)
    rep.result(f"suite_{layout}_{streams}_ttft_p50_ms", median(load.ttft) * 1e3, 1)
    rep.result(f"suite_{layout}_{streams}_itl_p50_ms", median(load.itl) * 1e3, 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model")
    ap.add_argument("-t", "--threads", type=int, default=0, help="of each worker; 0: the cores divided among the workers")
    ap.add_argument("--layouts", default="1p1d,mixed")
    ap.add_argument("--streams", default="1,8,32")
    ap.add_argument("--seconds", type=float, default=12)
    a = ap.parse_args()
    rep = Report("The whole suite", f"make bench-suite SECONDS={a.seconds:g}")
    rep.say(f"{os.path.basename(a.model)}, prompts of {PROMPT} new tokens, {TOKENS} tokens out, greedy; {machine()}")
    rep.say(f"{'layout':<8}{'streams':>8}{'answers':>10}{'out tok/s':>10}{'in tok/s':>11}{'TTFT p50 ms':>12}{'p99':>8}{'ITL p50':>9}{'p99':>9}")
    for layout in a.layouts.split(","):
        workers = 1 if layout == "mixed" else sum(int(c) for c in layout if c.isdigit())
        threads = a.threads or max(1, (os.cpu_count() or 1) // workers)
        with Suite(layout, a.model, worker={"threads": threads, "kv_memory_mb": 512}) as s:
            body = source()
            Load(s.port, body, 2).run(1)
            for n in a.streams.split(","):
                measure(rep, s, layout, int(n), a.seconds, body)
    rep.end()


if __name__ == "__main__":
    main()
