"""bench_reserve.py - how much room should a decode worker keep for the growth of its sequences? The share that adapts, from several starts.

1P1D on simulated accelerators (etc/sim/dense-14b.conf, time four times as fast). The decode worker's pool holds about two dozen sequences of the mean size, and the
closed loop asks for more than twice as many. Answers may have up to MOST tokens and end by themselves after a geometric number of them, as real ones do, so that a share of 1
keeps room that hardly anybody uses, and a share of 0 lets sequences outgrow the pool: then the youngest is preempted and computed again.

For each start (adapt: the default): preemptions, prompt tokens that were computed twice for them, answers, tokens/s, and TTFT.

    python bench_reserve.py [--ratios adapt,0,0.1,0.3,0.7,1] [--seconds 7] [--concurrency 56]
"""
import argparse
import re
import time

from benchlib import Report, machine
from loadlib import Load
from suite import Suite

DEVICE = {"base": "dense-14b", "time_scale": 0.25}
INPUT, MOST, END_RATE = "lognormal:512,0.8,3000", 1500, 1 / 300
DECODE_BLOCKS = 300
WARMUP_S = 4


def metric(text, name):
    m = re.search(rf"^{re.escape(name)}(?:{{[^}}]*}})? ([0-9.e+]+)$", text, re.M)
    return float(m[1]) if m else 0.0


def figures(s):
    text = s.ctl("decode-1", "metrics")["text"]
    return {k: metric(text, n) for k, n in {"preemptions": "pdserve_decode_preemptions_total", "again": "pdserve_decode_prompt_tokens_total"}.items()}


def settings(ratio):
    if ratio == "adapt":
        return {}
    return {"growth_ratio": float(ratio)}


def measure(ratio, a):
    decode = {"kv_blocks": DECODE_BLOCKS, **settings(ratio)}
    with Suite("1p1d", sim={**DEVICE, "eos_rate": END_RATE}, worker={"storage": "none"}, prefill={"kv_blocks": 4096}, decode=decode) as s:
        run = Load(s.port, "-c", a.concurrency, "-w", f"{WARMUP_S}s", "-d", f"{a.seconds}s", "-i", INPUT, "-o", MOST, "--natural-end")
        time.sleep(WARMUP_S)             # by then the share has come down from where it starts
        before = figures(s)
        f = run.wait()["figures"]
        after = figures(s)
        d = {k: after[k] - before[k] for k in before}
        return {**f, **d, "ratio": s.ctl("decode-1", "status")["growth_ratio"]}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--ratios", default="adapt,0,0.1,0.3,0.7,1")
    ap.add_argument("--seconds", type=float, default=7)
    ap.add_argument("--concurrency", type=int, default=56)
    a = ap.parse_args()
    rep = Report("Room kept for growth", "make bench-reserve")
    rep.say(machine())
    rep.say(f"# 1P1D simulated, {a.concurrency} at a time, prompts of 512 tokens on average, answers of 300 on average and {MOST} at most, {DECODE_BLOCKS} blocks of 64 at the decode worker")
    rep.say(f"{'share':<8}{'at end':>8}{'answers':>9}{'tokens/s':>10}{'TTFT mean':>11}{'p90':>9}{'preempted':>11}{'computed again':>16}")
    best, adapt = None, None
    for ratio in a.ratios.split(","):
        f = measure(ratio, a)
        rep.say(f"{ratio:<8}{f['ratio']:>8.3f}{f['completed']:>9.0f}{f['output_tokens_per_s']:>10.1f}{f['ttft_mean_ms']:>8.0f} ms{f['ttft_p90_ms']:>6.0f} ms"
                f"{f['preemptions']:>11.0f}{f['again']:>9.0f} tokens")
        name = (ratio if ratio == "adapt" else "from_" + ratio).replace(".", "_")
        rep.result(f"reserve_{name}_tok_s", f["output_tokens_per_s"], 1)
        rep.result(f"reserve_{name}_ttft_mean_ms", f["ttft_mean_ms"], 1)
        rep.result(f"reserve_{name}_preemptions", f["preemptions"], 0)
        if ratio == "adapt":
            adapt = f["output_tokens_per_s"]
        elif (best is None or f["output_tokens_per_s"] > best[1]):
            best = (ratio, f["output_tokens_per_s"])
    if best and adapt:
        rep.say(f"best other start: {best[0]}; the default reaches {100 * adapt / best[1]:.1f} % of its tokens/s")
        rep.result("reserve_best_start", best[0])
        rep.result("adapt_vs_best_fixed", adapt / best[1], 3)
    rep.end()


if __name__ == "__main__":
    main()
