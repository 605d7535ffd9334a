"""bench_embeddings.py - POST /v1/embeddings beside prefill of the same prompts by the same worker, in turns within one run.

A prefill worker with one thread, by its processor time, for machines that others use too. Prompts are random tokens, so none has a prefix in the cache.
A figure is the median of the turns; the limit of an embedding is the prefill of its tokens.

    python bench_embeddings.py [-n TURNS] [--inputs N] [--tokens N] MODEL
"""
import argparse
import os
import random
import time

from benchlib import Report, machine, median
from suite import Suite

WAYS = ("prefill", "last", "mean")


def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def ask(s, way, prompts):
    if way == "prefill":
        status, r = s.post("/v1/completions", {"prompt": prompts, "max_tokens": 1, "temperature": 0})
    else:
        status, r = s.post("/v1/embeddings", {"input": prompts, "pooling": way, "encoding_format": "base64"})
    assert status == 200, r


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("-n", "--turns", type=int, default=3)
    ap.add_argument("--inputs", type=int, default=64)
    ap.add_argument("--tokens", type=int, default=512)
    ap.add_argument("model")
    a = ap.parse_args()
    rep = Report("Embeddings beside prefill", f"make bench-embeddings TURNS={a.turns} INPUTS={a.inputs} TOKENS={a.tokens}")
    rep.say(machine())
    turns = {way: [] for way in WAYS}
    with Suite("1p1d", a.model, worker={"kv_memory_mb": 1024, "threads": 1}, router={"max_choices": 128}) as s:
        worker = s.procs["prefill-1"].pid
        ids = random.Random(1)
        for i in range(a.turns):
            for way in WAYS[i % len(WAYS):] + WAYS[:i % len(WAYS)]:
                prompts = [[ids.randrange(100, 49000) for _ in range(a.tokens)] for _ in range(a.inputs)]
                cpu, begun = cpu_s(worker), time.time()
                ask(s, way, prompts)
                wall = time.time() - begun
                s.quiet()
                n = a.inputs * a.tokens
                turns[way].append((n / (cpu_s(worker) - cpu), n / wall))
    rep.say(f"{a.inputs} inputs of {a.tokens} tokens{'':<6}tokens per s of CPU   of prefill   tokens/s")
    for way in WAYS:
        of_cpu, of_wall = (median([x[i] for x in turns[way]]) for i in (0, 1))
        ratio = median([x[0] / y[0] for x, y in zip(turns[way], turns["prefill"])])
        rep.say(f"{way:<30}{of_cpu:>18.0f}{ratio:>13.2f}{of_wall:>11.0f}")
        rep.result(f"embeddings_{way}_tokens_cpu_s", of_cpu, 0)
        rep.result(f"embeddings_{way}_of_prefill", ratio, 2)
    rep.end()


if __name__ == "__main__":
    main()
