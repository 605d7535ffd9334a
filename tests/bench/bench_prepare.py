"""bench_prepare.py - what more prepare threads beside the schedule give: the same load with one and with five, on simulated accelerators.

One prefill and one decode worker, etc/sim/dense-14b: about 2,700 answer tokens a second at 256 requests at a time, prompts of 1,280 and answers of 700
tokens on average (drawn once, the same for all runs; pdbench sends them in that order). The decode worker hears every KV_RESERVE later by 0, 5 and 50 ms
(its `fault` layer: late, so that one request's delay does not hold up another's message).
    1        a stage of one prepare thread beside the schedule, no acknowledgement
    5        the same with five threads: the default
The bound is the same load on ideal workers by a virtual clock (ideal.py): there only the devices take time.

Time runs at --scale, the added latency with it. What the daemons' own messages and threads take is real and is not scaled: beside a modelled second
it weighs 1/scale of what it does in service. That goes against every row alike; the column `prepare` is the median from a request's turn to
its place in the schedule, in modelled time.

    python bench_prepare.py [--scale F] [-n REQUESTS] [--latencies 0,5,50] [--modes 1,5]
"""
import argparse
import json
import os
import random
import subprocess
import tempfile

import ideal
from benchlib import ROOT, Report, log_events, machine, median
from suite import Suite

BUDGET, BLOCK, CONCURRENCY = 8192, 64, 256
# its 40 layers modelled as 10 of four times the cost, so that a token's simulated KV is small
DEVICE = {"base": "dense-14b", "layers": 10, "params": 13.2e9, "hidden": 20480, "heads": 160, "kv_heads": 32, "launch_us": 120.0}
MODES = {"1": {"prepare_threads": 1}, "5": {"prepare_threads": 5}}


def lengths(n, seed=1):
    """Prompts spread as those of real loads are, answers evenly; the means exact. No answer is so long that a run ends with a few alone."""
    r = random.Random(seed)
    prompts = [min(8.0, max(0.05, r.lognormvariate(0, 0.6))) for _ in range(n)]
    answers = [r.uniform(400, 1000) for _ in range(n)]

    def exact(values, mean):
        k = mean * n / sum(values)
        return [round(v * k) for v in values]
    return list(zip(exact(prompts, 1280), exact(answers, 700)))


def run(a, mode, latency_ms, load):
    worker = {"max_batched_tokens": BUDGET, "max_sequences": CONCURRENCY, "block_tokens": BLOCK, "stall_ms": 60000}
    blocks = sum(-(-(p + o) // BLOCK) + 1 for p, o in load)
    decode = {"kv_blocks": blocks, "output_caching": False}
    if latency_ms:
        decode["fault"] = f"type=KV_RESERVE:dir=in:late=100%:{round(latency_ms * 1000 * a.scale)}us"
    prefill = {"kv_blocks": sum(p for p, _ in load) // BLOCK + len(load) + 1000, **MODES[mode]}
    with tempfile.TemporaryDirectory() as tmp:
        path, out = os.path.join(tmp, "lengths.jsonl"), os.path.join(tmp, "requests.jsonl")
        with open(path, "w") as f:
            f.writelines(json.dumps({"input_length": p, "output_length": o}) + "\n" for p, o in load)
        with Suite(layout="1p1d", sim={**DEVICE, "time_scale": a.scale}, worker=worker, prefill=prefill, decode=decode, storage={"memory_mb": 16}) as s:
            r = subprocess.run([os.path.join(ROOT, "build", "bin", "pdbench"), "-q", "-c", str(CONCURRENCY), "-n", str(len(load)), "--lengths", path, "--requests", out,
                                "--timeout", "300s", f"http://127.0.0.1:{s.port}"], capture_output=True, text=True, timeout=400, cwd=ROOT)
            if r.returncode:
                raise SystemExit(f"pdbench ended with {r.returncode}:\n{r.stdout[-2000:]}{r.stderr[-2000:]}")
            faults = sum(s.ctl(w, "status")["device_kv_faults"] for w in s.workers())
            done = log_events(s.log("prefill-1"), "prefill_done")
        assert faults == 0 and len(done) == len(load), (faults, len(done))
        with open(out) as f:
            asked = [json.loads(line) for line in f]
    total = max(r["sent_s"] + r["e2e_ms"] / 1e3 for r in asked) - min(r["sent_s"] for r in asked)
    return total / a.scale, sum(r["ttft_ms"] for r in asked) / len(asked) / a.scale / 1e3, median([d["prepare_us"] + d["reserve_us"] for d in done]) / a.scale / 1000


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--scale", type=float, default=0.085)
    p.add_argument("-n", "--requests", type=int, default=400)
    p.add_argument("--latencies", default="0,5,50")
    p.add_argument("--modes", default="1,5")
    a = p.parse_args()
    load = lengths(a.requests)
    device = ideal.Device.load(**DEVICE)
    bound = ideal.run([ideal.Session([ideal.Round(i, o)]) for i, o in load], device, device, budget=BUDGET, concurrency=CONCURRENCY, block_tokens=BLOCK).total_s
    rep = Report("Preparing beside the schedule", "make bench-prepare")
    rep.say(machine())
    rep.say(f"1p1d, {len(load)} requests, {CONCURRENCY} at a time, prompts of {sum(i for i, _ in load) / len(load):.0f} and answers of {sum(o for _, o in load) / len(load):.0f} "
            f"tokens on average, time x {a.scale:g}; all times below are modelled seconds")
    rep.say("1, 5: number of prepare threads beside the schedule. The bound: ideal workers, nothing but the devices takes time.")
    rep.say("The time scale makes our own messages weigh more, in every row")
    rep.say(f"bound {bound:.1f} s, {sum(o for _, o in load) / bound:.0f} answer tokens/s")
    rep.say(f"{'latency of D':>14}{'mode':>8}{'total':>10}{'x bound':>9}{'TTFT mean':>11}{'prepare':>11}")
    totals = {}
    for latency in [float(x) for x in a.latencies.split(",")]:
        for mode in a.modes.split(","):
            t, ttft, prepare_ms = run(a, mode, latency, load)
            totals[mode, latency] = t
            rep.say(f"{latency:>11g} ms{mode:>8}{t:>8.1f} s{t / bound:>9.4f}{ttft:>9.2f} s{prepare_ms:>8.2f} ms")
            rep.result(f"total_{mode}_{latency:g}ms_s", t, 2)
    if ("1", 5.0) in totals and ("5", 5.0) in totals:
        rep.result("speedup", totals["1", 5.0] / totals["5", 5.0], 4)
        rep.result("vs_bound", totals["5", 5.0] / bound, 4)
    rep.end()


if __name__ == "__main__":
    main()
