"""bench_interference.py - what long prompts do to the tokens that others are being given: 1p1d against mixed, the real model, one thread and one core a worker.

A few streams decode all the time. For a while prompts of 1,500 new tokens (answers of 8) arrive evenly in an open loop, at a rate that keeps one prefill worker busy
for LOAD of its time. The streams' inter-token latency then is compared with theirs before and after (unloaded), in the same layout and minute.

Two cores are two workers' machine: 1p1d has the prefill worker on core 0 and the decode worker on core 1; mixed has two mixed workers, one on each: the same cores,
the same prompts, the same rate, streams and prompts placed by the router. Messager and storage are on core 0; router and client, which take a few percent, on core 1
with the decode worker (with a computing prefill worker they would wait for its time slice, which is not what is asked here). What they cost is in the unloaded figure too.

    python bench_interference.py [--streams 4] [--seconds 20] [--load 0.6] MODEL
"""
import argparse
import os
import time

from benchlib import Report, machine, median, percentile
from load import Client, gaps
from suite import Suite

PROMPT, ANSWER, OWN_PROMPT, OWN_ANSWER = 1500, 8, 64, 6000
QUIET_S = 7          # unloaded, before and after
CORES = {"prefill-1": 0, "decode-1": 1, "mixed-1": 0, "mixed-2": 1, "router": 1, "messager": 0, "storage": 0}
CLIENT_CORE = 1


class Pinned(Suite):
    def start(self, name):
        os.sched_setaffinity(0, {CORES[name]})      # children have it from their first instruction
        try:
            super().start(name)
        finally:
            os.sched_setaffinity(0, {CLIENT_CORE})


def measure(model, layout, a, interval):
    """-> unloaded gaps, loaded gaps, seconds of a prompt alone, interval, times to first token of the prompts (ms, s)"""
    with Pinned(layout, model, worker={"threads": 1, "kv_memory_mb": 1024}) as s:
        c = Client(s.port)
        alone = c.ask(c.prompt(PROMPT), ANSWER)
        c.until(time.monotonic() + 60, lambda: alone.done)
        t_alone = alone.first_at - alone.began
        interval = interval or t_alone / a.load
        own = [c.ask(c.prompt(OWN_PROMPT), OWN_ANSWER) for _ in range(a.streams)]
        c.until(time.monotonic() + 60, lambda: all(len(x.tokens) > 20 for x in own))
        begin = time.monotonic()
        c.until(begin + QUIET_S)
        loaded, prompts = time.monotonic(), []
        while time.monotonic() < loaded + a.seconds:
            prompts.append(c.ask(c.prompt(PROMPT), ANSWER))
            c.until(prompts[-1].began + interval)
        loaded_end = time.monotonic()
        c.until(loaded_end + 60, lambda: all(p.done for p in prompts))
        rest = time.monotonic()
        c.until(rest + QUIET_S)
        for x in list(c.open):
            c.close(x)
        end = time.monotonic()
        return (gaps(own, begin, loaded) + gaps(own, rest, end), gaps(own, loaded, loaded_end), t_alone, interval,
                [p.first_at - p.began for p in prompts])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model")
    ap.add_argument("--streams", type=int, default=4)
    ap.add_argument("--seconds", type=float, default=20)
    ap.add_argument("--load", type=float, default=0.6)
    a = ap.parse_args()
    rep = Report("Interference: long prompts and other people's tokens", f"make bench-interference SECONDS={a.seconds:g}")
    rep.say(f"{os.path.basename(a.model)}, {a.streams} streams, prompts of {PROMPT} tokens; {machine()}")
    if (os.cpu_count() or 1) < 2 or not {0, 1} <= os.sched_getaffinity(0):
        raise SystemExit("bench-interference needs cores 0 and 1")
    figures, interval = {}, None
    rep.say(f"{'':<10}{'unloaded ITL p50':>17}{'p99':>8}{'loaded ITL p50':>16}{'p99':>8}{'max':>8}  p99 ratio   prompts: every   TTFT p50")
    for name, layout in (("1p1d", "1p1d"), ("mixed", "2mixed")):
        free, loaded, t_alone, interval, ttft = measure(a.model, layout, a, interval)
        f50, f99, l50, l99 = percentile(free, 50), percentile(free, 99), percentile(loaded, 50), percentile(loaded, 99)
        figures[name] = (f99, l99)
        rep.say(f"{name:<10}{f50:>14.1f} ms{f99:>8.1f}{l50:>13.1f} ms{l99:>8.1f}{max(loaded):>8.1f}{l99 / f99:>11.2f}{interval:>13.2f} s{median(ttft):>9.2f} s")
        rep.result(f"itl_p50_unloaded_{name}_ms", f50, 2)
        rep.result(f"itl_p50_{name}_ms", l50, 2)
    rep.result("itl_p99_unloaded_ms", figures["1p1d"][0], 2)
    rep.result("itl_p99_1p1d_ms", figures["1p1d"][1], 2)
    rep.result("itl_p99_mixed_ms", figures["mixed"][1], 2)
    rep.result("itl_p99_unloaded_mixed_ms", figures["mixed"][0], 2)
    rep.result("ratio", figures["1p1d"][1] / figures["1p1d"][0], 2)
    rep.result("ratio_mixed", figures["mixed"][1] / figures["mixed"][0], 2)
    rep.end()


if __name__ == "__main__":
    main()
