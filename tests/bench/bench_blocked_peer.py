"""bench_blocked_peer.py - does a decode worker without room slow the requests that go to another one?

1P2D on simulated accelerators (etc/sim/dense-14b.conf, time four times as fast), candidates pinned by X-Pdserve-Decode. decode-2 has a small pool and a slow
device, and one long request fills it. Measured is a closed loop of requests that are pinned to decode-1, in pairs of runs that take turns at being first:

    free       nothing else
    blocked    BLOCKED further requests, pinned to decode-2, wait for room there all the while, parked at the prefill worker that both share

    loss       of throughput and of mean TTFT, each the median over the pairs; other_peer_loss_pct is the larger of the two

A pair counts only if none of the blocked requests got a token and all of them were waiting before the run began.

    python bench_blocked_peer.py [--pairs 5] [--seconds 5] [--blocked 40] [--concurrency 8]
"""
import argparse
import os
import time

from benchlib import Report, machine, median
from loadlib import Load, load
from suite import Suite, sim_description

DEVICE = {"base": "dense-14b", "time_scale": 0.25}
INPUT, OUTPUT = 512, 64
HOLDER_INPUT, HOLDER_OUTPUT = 3000, 1000     # 47 blocks of 64, up to 63
ROOM_BLOCKS = 64
BLOCKED_INPUT = 2000                         # 32 blocks


def suite():
    s = Suite("1p2d", sim=DEVICE, worker={"kv_blocks": 4096, "storage": "none"}, router={"allow_pinning": True})
    slow = os.path.join(s.dir, "sim-slow.conf")
    with open(slow, "w") as f:
        f.write(sim_description(**{**DEVICE, "bandwidth": 2.0e10}))
    s.conf["decode-2"].update(model=slow, kv_blocks=ROOM_BLOCKS)
    return s


def wait_for(what, is_so, limit_s=30):
    end = time.time() + limit_s
    while not is_so():
        if time.time() > end:
            raise RuntimeError(f"not within {limit_s} s: {what}")
        time.sleep(0.05)


def at_prefill(s):
    return len(s.ctl("prefill-1", "requests"))


class Bench:
    def __init__(self, s, a):
        self.s, self.a, self.seed = s, a, 100

    def pinned(self, decode, *args, **more):
        self.seed += 1           # other prompts each time: nothing comes from a cache
        return Load(self.s.port, "-H", f"X-Pdserve-Decode: {decode}", "--seed", self.seed, *args, **more)

    def hold(self):
        holder = self.pinned("decode-2", "-c", 1, "-n", 1, "-i", HOLDER_INPUT, "-o", HOLDER_OUTPUT)
        wait_for("the request that fills decode-2 runs there", lambda: self.s.kv("decode-2")["held"] * 64 >= HOLDER_INPUT and not at_prefill(self.s))
        return holder

    def measure(self):
        a = self.a
        return self.pinned("decode-1", "-c", a.concurrency, "-d", f"{a.seconds}s", "-w", "1s", "-i", INPUT, "-o", OUTPUT).wait()["figures"]

    def blocked(self):
        n = self.a.blocked
        others = self.pinned("decode-2", "-c", n, "-n", n, "-i", BLOCKED_INPUT, "-o", 8, requests=True)
        wait_for(f"{n} requests wait at the prefill worker", lambda: at_prefill(self.s) >= n)
        f = self.measure()
        waiting = at_prefill(self.s)
        out = others.stop()["requests"]
        if waiting < n or any(r["output_tokens"] for r in out) or any(r["outcome"] != "cut" for r in out):
            raise RuntimeError(f"not all of the {n} requests were blocked all the while: {waiting} at the end, {[r['outcome'] for r in out]}")
        wait_for("the blocked requests are gone", lambda: at_prefill(self.s) == 0)
        return f

    def pair(self, blocked_first):
        if blocked_first:
            b = self.blocked()
            return self.measure(), b
        f = self.measure()
        return f, self.blocked()


def loss(free, blocked, name, higher_is_better):
    return 100 * (1 - blocked[name] / free[name] if higher_is_better else blocked[name] / free[name] - 1)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--pairs", type=int, default=5)
    ap.add_argument("--seconds", type=float, default=5)
    ap.add_argument("--blocked", type=int, default=40)
    ap.add_argument("--concurrency", type=int, default=8)
    a = ap.parse_args()
    rep = Report("A decode worker without room", "make bench-blocked-peer")
    rep.say(machine())
    rep.say(f"# 1P2D simulated; {a.concurrency} requests at a time to decode-1 ({INPUT} in, {OUTPUT} out), alone and beside {a.blocked} that wait for decode-2")
    rep.say(f"{'pair':<6}{'tokens/s free':>15}{'blocked':>10}{'loss':>9}{'TTFT mean free':>17}{'blocked':>11}{'loss':>9}")
    throughput, ttft = [], []
    with suite() as s:
        bench = Bench(s, a)
        holder = bench.hold()
        for i in range(a.pairs):
            f, b = bench.pair(i % 2 == 1)
            throughput.append(loss(f, b, "output_tokens_per_s", True))
            ttft.append(loss(f, b, "ttft_mean_ms", False))
            rep.say(f"{i + 1:<6}{f['output_tokens_per_s']:>15.1f}{b['output_tokens_per_s']:>10.1f}{throughput[-1]:>7.2f} %"
                    f"{f['ttft_mean_ms']:>14.2f} ms{b['ttft_mean_ms']:>8.2f} ms{ttft[-1]:>7.2f} %")
        if s.kv("decode-2")["held"] * 64 < HOLDER_INPUT:
            raise RuntimeError("the request that fills decode-2 ended before the measurements")
        holder.stop()
    rep.result("throughput_loss_pct", median(throughput), 2)
    rep.result("ttft_loss_pct", median(ttft), 2)
    rep.result("other_peer_loss_pct", max(median(throughput), median(ttft)), 2)
    rep.end()


if __name__ == "__main__":
    main()
