"""bench_fp8.py - decoding with FP8 weights on the CPU, one row by matrices of 4096 x 4096, beside other types and beside reading memory, in turns within one run.

One thread, by processor time, for machines that others use too. A figure is the median of the turns, a ratio the median of the turns' ratios; the limit is
reading a buffer of as many bytes as the FP8 weights.

    python bench_fp8.py [-n TURNS] [VARIANT]
"""
import argparse
import os
import re
import subprocess

from benchlib import ROOT, Report, machine, median
from cpulib import BENCH, Limits

TYPES = ("f8_e4m3", "q8_0", "bf16", "f16")
READ_BYTES = 8 * 4096 * 4096 * 132 // 128


def run(kind, variant):
    """-> microseconds of a product, GB/s of its weights"""
    out = subprocess.run([os.path.join(BENCH, "bench_kernels"), "decode", kind, *variant], check=True, capture_output=True, text=True).stdout
    return [float(x) for x in re.search(r"([\d.]+) us ([\d.]+) GB/s", out).groups()]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("-n", "--turns", type=int, default=9)
    ap.add_argument("variant", nargs="?")
    a = ap.parse_args()
    variant = [a.variant] if a.variant else []
    rep = Report("FP8 weights on the CPU: decoding", f"make bench-fp8 TURNS={a.turns}" + (f" VARIANT={a.variant}" if a.variant else ""))
    rep.say(machine())
    limits, reads, turns = Limits(1, True, 3), [], {t: [] for t in TYPES}
    for i in range(a.turns):
        reads.append(limits.read(READ_BYTES) / 1e9)
        for t in TYPES[i % len(TYPES):] + TYPES[:i % len(TYPES)]:
            turns[t].append(run(t, variant))
    rep.say(f"reading memory {median(reads):10.2f} GB/s")
    rep.say(f"{'type':<10}{'us a product':>14}{'GB/s':>8}{'of reading':>12}{'time of FP8, times':>20}")
    for t in TYPES:
        us, gb = (median([x[i] for x in turns[t]]) for i in (0, 1))
        of_read = median([x[1] / r for x, r in zip(turns[t], reads)])
        slower = median([x[0] / f[0] for x, f in zip(turns[t], turns[TYPES[0]])])
        rep.say(f"{t:<10}{us:>14.1f}{gb:>8.2f}{of_read:>11.0%} {slower:>19.2f}")
        rep.result(f"fp8_decode_{t}_gb_s", gb, 2)
        rep.result(f"fp8_decode_{t}_of_reading", of_read, 2)
        rep.result(f"fp8_decode_{t}_times", slower, 2)
    rep.end()


if __name__ == "__main__":
    main()
