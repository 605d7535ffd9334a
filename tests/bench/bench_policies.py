"""bench_policies.py - what the router's placement is worth: a slice of a published conversation trace on simulated 4P4D, once for every policy.

The trace (tests/data/traces/README.md): a tenth of its conversations, their first minutes, at ten times their speed, which is as many requests a second
as all of the trace's conversations make. `--slice other` takes another tenth, forty minutes later and at 24 times its speed, on which nothing was tuned. The accelerators are modelled:
etc/sim/dense-14b.conf on four devices each. Modelled time runs RATE times as fast as the clock on the wall, so that a run takes seconds; all times
below are modelled ones (wall times RATE), with the host's own work (parsing a prompt of 14,000 ids, hashing it, copying its KV between eight pools on one
messager) in them RATE times too large. Where the host has no core left for that work the figures are the host's and not the policy's, first of all
TPOT, as the second token waits for the last block: `busy` is the share of the machine's cores that was in use, by whomever. Blocks are of 256
tokens, which is a quarter of the messager's work on blocks of 64 and, as the trace's equal pieces are of 512, the same hits.

Every policy serves prefill and decode alike. Without the storage tier, so that a prefix is found only where a request is sent. Each run begins with
empty caches; nothing is left out as warm-up.

    hit       share of the prompts' tokens that needed no computing (usage.prompt_tokens_details.cached_tokens, added up)
    goodput   requests/s whose TTFT and TPOT are within the SLO, and their share; failed ones are misses

    python bench_policies.py [--policies kv_aware,random] [--slice first|other] [--rate R] [-n REQUESTS]
"""
import argparse
import json
import os

from benchlib import ROOT, Report, machine
from loadlib import load
from suite import Suite

SLICES = {"first": "conversation_tenth_20min.jsonl", "other": "conversation_other_tenth_15min.jsonl"}
TRACES = os.path.join(ROOT, "tests", "data", "traces")
POLICIES = ["kv_aware", "least_tokens", "least_requests", "power_of_two", "round_robin", "random", "session_affinity"]
SPEED = {"first": 10, "other": 24}   # of the trace, in modelled time: the other one's prompts are shorter
SLO_TTFT_S, SLO_TPOT_MS = 5.0, 40
DEVICE = {"base": "dense-14b", "tp": 4, "exchange_us": 20.0, "link_bandwidth": 3.0e11}
KV_TOKENS = 400000              # room of each worker
BLOCK = 256


def cores_busy():
    """Jiffies of all cores since the machine started: in use, and all."""
    with open("/proc/stat") as f:
        v = [int(x) for x in f.readline().split()[1:9]]
    return sum(v) - v[3] - v[4], sum(v)


def run(policy, a):
    worker = {"kv_blocks": KV_TOKENS // BLOCK, "block_tokens": BLOCK, "max_batched_tokens": 2048, "max_sequences": 256, "storage": "none"}
    router = {"prefill_policy": policy, "decode_policy": policy}
    with Suite("4p4d", sim={**DEVICE, "time_scale": 1 / a.rate}, worker=worker, router=router) as s:
        slo = f"ttft={SLO_TTFT_S / a.rate * 1e6:.0f}us,tpot={SLO_TPOT_MS / a.rate * 1e3:.0f}us"
        begin = cores_busy()
        out = load(s.port, "--trace", os.path.join(TRACES, SLICES[a.slice]), "--time-scale", SPEED[a.slice] * a.rate, "--sessions", "--slo", slo, "--allow-errors", "100%",
                   *(["-n", a.requests] if a.requests else []))
        end = cores_busy()
        s.quiet()
    out["busy_pct"] = 100 * (end[0] - begin[0]) / max(1, end[1] - begin[1])
    return out


def best_hit_percent(name, n):
    """One cache that never forgets and knows everything at once; blocks of the trace, less the last token, which is always computed."""
    seen, hit, total = set(), 0, 0
    with open(os.path.join(TRACES, SLICES[name])) as f:
        records = [json.loads(line) for line in f][:n or None]
    for r in records:
        known = next((i for i, h in enumerate(r["hash_ids"]) if h not in seen), len(r["hash_ids"]))
        hit += min(known * 512, r["input_length"] - 1)
        total += r["input_length"]
        seen.update(r["hash_ids"])
    return 100 * hit / total


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--policies", default=",".join(POLICIES))
    ap.add_argument("--slice", choices=SLICES, default="first")
    ap.add_argument("--rate", type=float, help="default 6, or 3 for the other slice")
    ap.add_argument("-n", "--requests", type=int, default=220, help="of the slice, 0: all of it")
    a = ap.parse_args()
    a.rate = a.rate or (6 if a.slice == "first" else 3)
    first = a.slice == "first"
    rep = Report("Placement policies on a trace" if first else "Placement policies on another slice of the trace", "make bench-policies" + ("" if first else f" SLICE={a.slice}"))
    rep.say(machine())
    rep.say(f"# 4P4D simulated (14B, 4 devices a worker, {KV_TOKENS} tokens of KV each), a tenth of the trace's conversations at {SPEED[a.slice]} times their speed; modelled time, {a.rate:g} times the wall's")
    rep.say(f"# SLO: TTFT <= {SLO_TTFT_S:g} s and TPOT <= {SLO_TPOT_MS:g} ms")
    best = best_hit_percent(a.slice, a.requests)
    rep.say(f"# one cache for all that forgets nothing would hit {best:.1f} %")
    rep.say(f"{'policy':<18}{'requests':>9}{'hit %':>8}{'TTFT mean':>11}{'p50':>9}{'p90':>9}{'p99':>9}{'TPOT p50':>10}{'p90':>9}{'goodput':>17}{'failed':>8}{'busy':>7}")
    for policy in a.policies.split(","):
        out = run(policy, a)
        f = out["figures"]
        ttft = {k: f[f"ttft_{k}_ms"] * a.rate / 1e3 for k in ("mean", "p50", "p90", "p99")}
        tpot = {k: f[f"tpot_{k}_ms"] * a.rate for k in ("p50", "p90")}
        rep.say(f"{policy:<18}{f['requests']:>9}{f['cached_pct']:>8.1f}{ttft['mean']:>9.2f} s{ttft['p50']:>7.2f} s{ttft['p90']:>7.2f} s{ttft['p99']:>7.2f} s"
                f"{tpot['p50']:>7.1f} ms{tpot['p90']:>6.1f} ms{f['goodput_per_s'] / a.rate:>7.2f}/s ({f['goodput_pct']:>5.1f} %){f['failed']:>8}{out['busy_pct']:>5.0f} %")
        for e in out["errors"]:
            rep.say(f"    {e['count']} x status {e['status']}: {e['text']}")
        rep.result(f"{policy}_hit_pct", f["cached_pct"], 2)
        rep.result(f"{policy}_ttft_mean_ms", ttft["mean"] * 1e3, 0)
        rep.result(f"{policy}_ttft_p90_ms", ttft["p90"] * 1e3, 0)
        rep.result(f"{policy}_tpot_p90_ms", tpot["p90"], 2)
        rep.result(f"{policy}_goodput_pct", f["goodput_pct"], 2)
        rep.result(f"{policy}_failed", f["failed"])
        rep.result(f"{policy}_busy_pct", out["busy_pct"], 0)
    rep.result("best_hit_pct", best, 2)
    rep.end()


if __name__ == "__main__":
    main()
