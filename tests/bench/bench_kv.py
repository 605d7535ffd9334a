"""bench_kv.py - how fast KV moves: the messager against memcpy of the same bytes, then the transfers of real requests.

First build/bench/bench_transfer (a real messager, synthetic transfers; memcpy and the messager take turns). Then 1p1d with the real model and new prompts of about
a thousand tokens: bytes and copy_us come from the messager's transfer_done lines; tail_us is what is left to copy when the last token has been computed, that is
what a request waits for after its prefill.

    python bench_kv.py [-n REQUESTS] MODEL
"""
import argparse
import os
import random
import re
import subprocess
import sys

from benchlib import ROOT, Report, log_events, machine, median, percentile
from suite import Suite


LAYERS = 30   # of SmolLM2-135M


def synthetic(rep):
    """-> memcpy GB/s of the first model's neighbouring blocks, the least of the messager's shares of memcpy, the largest median reaction"""
    argv = [os.path.join(ROOT, "build", "bench", "bench_transfer")]
    r = subprocess.run(argv, capture_output=True, text=True, timeout=300, cwd=ROOT)
    for line in r.stdout.splitlines():
        rep.say(line)
    if r.returncode:
        sys.exit(f"bench_transfer: {r.returncode}\n{r.stderr[-2000:]}")
    names, memcpy, shares, reactions = ("smollm2", "8b"), None, [], []
    for name, part in zip(names, r.stdout.split("# ")[1:]):
        for kind in ("neighbours", "scattered"):
            m = re.search(kind + r".*memcpy\s+([\d.]+) GB/s, messager copying\s+([\d.]+) GB/s.*KV_READY\s+([\d.]+) GB/s", part)
            if m:
                memcpy = memcpy or float(m[1])
                for what, v in zip(("memcpy_gb_s", "messager_gb_s", "end_to_end_gb_s"), m.groups()):
                    rep.result(f"kv_{name}_{kind}_{what}", float(v), 2)
                shares.append(float(m[2]) / float(m[1]))
                rep.result(f"kv_{name}_{kind}_of_memcpy", shares[-1], 2)
        m = re.search(r"reaction.*median\s+(\d+) us, p90\s+(\d+) us, p99\s+(\d+) us", part)
        if m:
            reactions.append(int(m[1]))
            rep.result(f"kv_{name}_reaction_p50_us", int(m[1]))
            rep.result(f"kv_{name}_reaction_p99_us", int(m[3]))
    assert len(shares) == 4 and len(reactions) == 2, r.stdout
    return memcpy, min(shares), max(reactions)


def real(rep, model, n, memcpy):
    """-> median µs left when the last token was computed, median µs that one layer of one transfer takes"""
    rnd = random.Random(11)
    # two pools' worth of requests: the later transfers write into blocks whose pages exist
    with Suite("1p1d", model, worker={"kv_memory_mb": 128}) as s:
        for _ in range(n):
            s.tokens([rnd.randint(3, 40000) for _ in range(rnd.randint(900, 1100))], 2)
        done = log_events(s.log("messager"), "transfer_done")
    assert len(done) >= n, f"{len(done)} transfers for {n} requests"
    fresh, warm = done[:3], done[len(done) // 2:]
    gbs = [d["bytes"] / d["copy_us"] / 1e3 for d in warm if d["copy_us"]]
    tails = [d["tail_us"] for d in warm]
    rep.say(f"# real requests: {len(done)} transfers of {median([d['bytes'] for d in done]) / 2**20:.1f} MiB (median), the prefill worker computing beside them")
    rep.say(f"into touched blocks  {median(gbs):.2f} GB/s while copying ({median(gbs) / memcpy:.0%} of memcpy above); "
            f"first into a new pool {median([d['bytes'] / max(1, d['copy_us']) / 1e3 for d in fresh]):.2f} GB/s")
    rep.say(f"left when the last token was computed: p50 {percentile(tails, 50)} us, p99 {percentile(tails, 99)} us "
            f"of {median([d['life_us'] for d in warm]) / 1e3:.0f} ms; while the pool is new p50 {median([d['tail_us'] for d in fresh]):.0f} us")
    rep.result("kv_real_gb_s", median(gbs), 2)
    rep.result("kv_real_of_memcpy", median(gbs) / memcpy, 2)
    rep.result("kv_real_tail_p50_us", percentile(tails, 50))
    rep.result("kv_real_tail_p99_us", percentile(tails, 99))
    layer = median([d["copy_us"] for d in warm]) / LAYERS
    rep.say(f"one layer's transfer (copying / {LAYERS} layers): p50 {layer:.0f} us; the tail is {median(tails) / layer:.2f} of it")
    return median(tails), layer


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model")
    ap.add_argument("-n", "--requests", type=int, default=16)
    a = ap.parse_args()
    rep = Report("KV transfer against memcpy", "make bench-kv")
    rep.say(machine())
    real(rep, a.model, a.requests, synthetic(rep)[0])
    rep.end()


if __name__ == "__main__":
    main()
