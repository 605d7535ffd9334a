"""bench_tiers_idle.py - what cache tiers cost when nothing is ever found in them: throughput against a suite without tiers.

Two suites stand side by side and get the same load in turns, so that whatever the machine does in the long run meets both: windows of REQUESTS new prompts each,
CLIENTS at a time. One has no storage at all. The other writes everything out (kv_eviction = offload, output_caching) through a small memory tier, which
offloads to a disk tier, which recycles: both are full from the warm-up on, so that each block is copied out, checksummed, copied down and evicted, and each prompt is looked up, in vain.
zero_hit_loss_pct is the median of the pairs' losses of tokens/s (prompts and answers). The processor time of all daemons by token says what an idle core may hide.

    python bench_tiers_idle.py [--pairs 7] [-n REQUESTS] MODEL
"""
import argparse
import os
import random

from benchlib import Report, log_events, machine, median
from load import Load
from suite import Suite
from tierlib import Stack, figures, settled

PROMPT, TOKENS, CLIENTS = 512, 32, 4
MEMORY_MB, DISK_MB, POOL_MB = 96, 96, 64


def window(s, seed, n):
    """-> (tokens/s, processor seconds of all daemons)"""
    rnd = random.Random(seed)
    bodies = iter([{"prompt": [rnd.randrange(3, 40000) for _ in range(PROMPT)], "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True} for _ in range(n)])
    begin = processor_seconds(s)
    load = Load(s.port, lambda: next(((None, b) for b in bodies), None), CLIENTS).run()
    assert not load.errors and load.completed == n, load.errors[:3]
    return n * (PROMPT + TOKENS) / load.wall_s, processor_seconds(s) - begin


def processor_seconds(s):
    ticks = 0
    for p in s.procs.values():
        with open(f"/proc/{p.pid}/stat") as f:
            ticks += sum(map(int, f.read().rsplit(")", 1)[1].split()[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def suite(model, stack):
    on = {"kv_eviction": "offload", "output_caching": True} if stack.sizes else {"storage": "none"}
    return Suite("1p1d", model, worker={"threads": 1, "kv_memory_mb": POOL_MB, **on}, storage=stack.conf)


def check_no_hits(s, stack):
    f = figures(s, "storage")
    assert f["pdserve_storage_hits_total"] == 0, "something was found"
    assert sum(d["cached"] for d in log_events(s.log("prefill-1"), "prefill_done")) == 0
    if stack.sizes:
        assert f["pdserve_storage_memory_evictions_total"] > 0 and f["pdserve_storage_disk_evictions_total"] > 0, "the tiers are not full: nothing was evicted"
    return f


def compare(rep, off, on, pairs, n):
    ratios, cpu, rates = [], {"off": [], "on": []}, {"off": [], "on": []}
    for s in (off, on):
        window(s, 1, 2 * n)
    for i in range(pairs):
        for name, s in (("off", off), ("on", on)) if i % 2 == 0 else (("on", on), ("off", off)):
            settled(s)
            rate, seconds = window(s, 100 + i, n)
            rates[name].append(rate)
            cpu[name].append(seconds / (n * (PROMPT + TOKENS)))
        ratios.append(rates["on"][-1] / rates["off"][-1])
        rep.say(f"pair {i + 1}: off {rates['off'][-1]:>7.1f} tokens/s, on {rates['on'][-1]:>7.1f} ({ratios[-1]:.3f}); processor us a token {cpu['off'][-1] * 1e6:.0f}, {cpu['on'][-1] * 1e6:.0f}")
    rep.result("zero_hit_off_tok_s", median(rates["off"]), 1)
    rep.result("zero_hit_on_tok_s", median(rates["on"]), 1)
    rep.result("zero_hit_loss_pct", (1 - median(ratios)) * 100, 2)
    rep.result("zero_hit_processor_more_pct", (median([b / a for a, b in zip(cpu["off"], cpu["on"])]) - 1) * 100, 2)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model")
    ap.add_argument("--pairs", type=int, default=7)
    ap.add_argument("-n", "--requests", type=int, default=7)
    a = ap.parse_args()
    rep = Report("Cache tiers that never hit", f"make bench-tiers-idle PAIRS={a.pairs} REQUESTS={a.requests}")
    rep.say(f"{os.path.basename(a.model)}, 1p1d, one thread a worker, pools of {POOL_MB} MiB, windows of {a.requests} new prompts of {PROMPT} tokens, {TOKENS} tokens out, {CLIENTS} at a time; {machine()}")
    rep.say(f"on: memory {MEMORY_MB} MiB (offload), disk {DISK_MB} MiB, workers offload and store answers")
    with Stack() as none, Stack(memory=MEMORY_MB, disk=DISK_MB) as stack, suite(a.model, none) as off, suite(a.model, stack) as on:
        compare(rep, off, on, a.pairs, a.requests)
        check_no_hits(off, none)
        f = check_no_hits(on, stack)
        rep.say(f"written out {f['pdserve_storage_put_bytes_total'] / 2**20:.0f} MiB, to disk {f['pdserve_storage_disk_write_bytes_total'] / 2**20:.0f} MiB; nothing was found in"
                f" {f['pdserve_storage_lookups_total']:.0f} look-ups")
    rep.end()


if __name__ == "__main__":
    main()
