"""bench_cpu.py - the CPU engine against llama.cpp and against what this machine can do at most, in one run.

For each model both engines have the same file and the same threads, and take turns: prompts of 512 and 1,280 tokens, decoding with 1 and with 32 streams,
and the time from opening the file to the first token (files in the page cache). A figure is the median of the turns, a ratio the median of the turns' ratios.

Limits, measured here:
  decode   the bandwidth of reading a buffer of the size of the weights that a step reads, over that size; taken beside each run that it is the limit of, as it
           changes with what other machines on the same memory do
  prompt   products with weights at the peak rate of the instruction for them (int8 products for quantised files, float32 for BF16; where BF16+bf16 rounds
           activations to bfloat16, as the peer does, bfloat16 if there is such an instruction), then the attention at float32's. A product with a weight counts
           once, as two operations, however a kernel gets there: `useful`. Our kernels make a quantised product in two int8 passes, one for the activations'
           values and one for what rounding took from them (the peer leaves that out), so they execute twice as many: `executed` is the share of the limit with
           both passes counted.

Accuracy: mean difference of the log-probabilities that a float32 computation gave for the demo's weights (tests/data/smollm2), each token after the true ones
before it, and the share of positions with the same most probable token.

With --cpu both take one thread and the clock is their processor time, for machines that others use too; load times are then still by the clock.

    python bench_cpu.py [-t THREADS] [-n TURNS] [--only smollm2/Q4_1,ernie] [--cpu] [--llama-bench PATH]... DEMO_MODEL
"""
import argparse
import collections
import json
import os
import random
import subprocess
import sys
import time

from bench_peer import Peer
from benchlib import ROOT, Report, machine, median, percentile
from cpulib import Engine, Limits, model_files

REFERENCE = os.path.join(ROOT, "tests", "data", "smollm2", "reference.jsonl")
MODELS = [(m, t) for m in ("smollm2", "ernie") for t in ("Q4_1", "BF16", "BF16+bf16", "Q8_0", "Q4_0")]   # the demo's file first
TITLES = {"smollm2": "SmolLM2-135M", "ernie": "ERNIE-4.5-0.3B's shape, random weights, architecture llama"}
PROMPTS, STREAMS = (512, 1280), 32
TOKENS = {1: 64, STREAMS: 16}                        # of each stream
INT8_PASSES = 2                                      # kernels/cpu/fast_matmul.h
SCORED = 3                                           # of the reference's prompts every third, for files that are not the demo's

Test = collections.namedtuple("Test", "name title prompt streams")
TESTS = [Test(f"prefill{n}", f"prompt {n}", n, 0) for n in PROMPTS]
TESTS += [Test("decode", "decode, 1 stream", 0, 1), Test("batch32", f"decode, {STREAMS} streams", 0, STREAMS)]


def goal_vs_peer(test, kind):
    if test.prompt:
        return 3.0 if kind == "Q4_1" else 1.5
    return 2.0 if test.streams > 1 else 1.4 if kind == "Q4_1" else 1.2


def goal_of_limit(test, kind):
    if test.streams == 1:
        return 0.80
    return 0.60 if test.prompt and kind.startswith("Q") else None


class Bench:
    def __init__(self, a):
        self.a, self.threads = a, 1 if a.cpu else a.threads
        self.clock = time.process_time if a.cpu else time.perf_counter
        self.limits = Limits(self.threads, a.cpu)
        self.goals = []
        command = f"make bench-cpu THREADS={self.threads} TURNS={a.turns}" + (" CPU_TIME=1" if a.cpu else "")
        self.rep = Report("The CPU engine against llama.cpp and the machine's limits" + (", processor time" if a.cpu else ""), command)

    def result(self, model, name, value, digits=3):
        prefix = "" if (model.name, model.kind) == MODELS[0] else f"{model.name}_{model.kind.lower().replace('+', '_')}_"
        self.rep.result(("cpu_" if self.a.cpu else "") + prefix + name, value, digits)

    def goal(self, reached):
        self.goals.append(reached)
        return "+" if reached else "-"

    # --- both engines on a file

    def engine(self, model, threads=None):
        return Engine(model, threads or self.threads, max(PROMPTS), STREAMS, max(TOKENS.values()), self.a.cpu)

    def peer(self, model):
        """-> a peer that has computed its first token, seconds"""
        begin = time.perf_counter()
        p = Peer(model.path, self.threads, self.clock)
        p.prompt(max(PROMPTS))                       # the context that all tests of one stream share
        p.score([1, 2])
        return p, time.perf_counter() - begin

    def load(self, model):
        """-> our engine, the peer, times to their first tokens of each turn: what either reads is in the page cache, and libraries are loaded"""
        times, ours, theirs = [], self.engine(model), self.peer(model)[0]
        for _ in range(self.a.turns):
            ours.close()
            theirs.close()
            ours = self.engine(model)
            theirs, peer_s = self.peer(model)
            times.append((ours.ready, peer_s))
        return ours, theirs, times

    def one(self, ours, test):
        return ours.prompt(test.prompt) if test.prompt else ours.generate(test.streams, TOKENS[test.streams])

    def peers_run(self, peer, test, threads=None):
        return peer.prompt(test.prompt, threads) if test.prompt else peer.generate(test.streams, TOKENS[test.streams], threads)

    def turns(self, model, ours, peer):
        """-> test name -> (ours, peer's) tokens/s of each turn; who begins changes. And of each turn how fast memory was read"""
        runs = {t.name: self.peers_run(peer, t) for t in TESTS}
        out, reads = {t.name: [] for t in TESTS}, []
        for t in TESTS[0], TESTS[-1]:                # memory touched, threads there
            runs[t.name]()
            self.one(ours, t)
        for turn in range(self.a.turns):
            for t in TESTS:
                theirs = runs[t.name]() if turn % 2 else None
                if t.streams == 1:
                    reads.append(self.limits.read(model.bytes))
                mine = self.one(ours, t)
                out[t.name].append((mine, theirs or runs[t.name]()))
        return out, reads

    # --- limits, tokens/s

    def limit(self, model, test, read, passes=1):
        if not test.prompt:
            return read / model.bytes if test.streams == 1 else None
        products, attention = model.prompt_ops(test.prompt)
        f32 = self.limits.peak("f32")
        peak = self.limits.peak("int8" if model.kind.startswith("Q") else model.activations) or f32
        return test.prompt / (products * passes / peak[1] + attention / f32[1]) if peak and f32 else None

    # --- the table

    def line(self, model, test, pairs, reads):
        mine, theirs, ratio = median([o for o, _ in pairs]), median([p for _, p in pairs]), [o / p for o, p in pairs]
        r, want = median(ratio), goal_vs_peer(test, model.kind)
        text = f"  {test.title:<20}{mine:>9.1f}{theirs:>11.1f}{r:>8.2f} ({min(ratio):.2f}..{max(ratio):.2f}) {self.goal(r >= want)}{want:.1f}"
        self.result(model, test.name + "_tok_s", mine, 1)
        self.result(model, test.name + "_peer_tok_s", theirs, 1)
        self.result(model, test.name + "_vs_peer", r)
        limits = [self.limit(model, test, read) for read in reads]
        if limits[0]:
            limit, want = median(limits), goal_of_limit(test, model.kind)
            share = median([o / of for (o, _), of in zip(pairs, limits)])
            text = f"{text:<68}{limit:>9.0f}{share:>8.1%} " + (f"{self.goal(share >= want)}{want:.0%}" if want else "")
            self.result(model, test.name + "_of_limit", share)
            if test.prompt and model.kind.startswith("Q"):
                executed = mine / self.limit(model, test, reads[0], INT8_PASSES)
                text = f"{text:<92}{executed:>7.1%}"
                self.result(model, test.name + "_of_limit_executed", executed)
        self.rep.say(text)

    def load_line(self, model, times):
        mine, theirs = median([o for o, _ in times]), median([p for _, p in times])
        allowed = theirs + model.bytes / 2e9
        self.rep.say(f"  {'load to first token':<20}{mine:>8.3f}s{theirs:>10.3f}s{mine / theirs:>8.2f} (peer's + repacking at 2 GB/s: {allowed:.3f} s) "
                     f"{self.goal(mine <= allowed)}")
        self.result(model, "load_s", mine)
        self.result(model, "load_vs_peer", mine / theirs)
        self.result(model, "load_vs_allowed", mine / allowed)

    def model(self, model):
        ours, peer, times = self.load(model)
        out, reads = self.turns(model, ours, peer)
        if not self.goals:
            self.rep.say(f"ours: {ours.numerics}; peer: llama-cpp-python {peer.version}, built natively: {peer.system}")
        self.rep.say(f"{TITLES[model.name]}, {model.kind}: {model.bytes / 2**20:.1f} MiB of weights, read at {median(reads) / 1e9:.1f} GB/s")
        self.rep.say(f"  {'':<20}{'pdserve':>9}{'llama.cpp':>11}{'ratio':>8}{'':>13} goal{'':>4}{'limit':>9}{'useful':>8} goal {'executed':>10}")
        self.load_line(model, times)
        for t, pairs in zip(TESTS, out.values()):
            self.line(model, t, pairs, reads)
        self.agreement(model, ours, peer)
        if model.name == "smollm2":
            self.accuracy(model, ours, peer)
        for program in self.a.llama_bench:
            self.llama_bench(model, program)
        if (model.name, model.kind) == MODELS[0] and self.threads > 1:
            self.scaling(model, ours, peer)
        ours.close()
        peer.close()

    # --- what they say

    def agreement(self, model, ours, peer):
        """That both computed the same model, at all."""
        rnd = random.Random(3)
        ids = [rnd.randrange(3, peer.vocab) for _ in range(65)]
        both = list(zip(ours.score(ids), peer.score(ids)))
        same, apart = sum(o[1] == p[1] for o, p in both), sum(abs(o[0] - p[0]) for o, p in both) / len(both)
        self.rep.say(f"  64 random ids: the same most probable token after {same}, mean difference of a log-probability {apart:.3f}")
        self.result(model, "agreement_with_peer", same / len(both))

    def accuracy(self, model, ours, peer):
        with open(REFERENCE) as f:
            rows = [json.loads(line) for line in f]
        demo = (model.name, model.kind) == MODELS[0]
        found = {}
        for who, engine in ("pdserve", ours), ("llama.cpp", peer):
            apart, top = [], []
            for row in rows if demo else rows[::SCORED]:
                want = list(zip(row["prompt_logprobs"] + [s["top"][0][1] for s in row["steps"]], row["prompt_top1"] + row["greedy"]))
                got = engine.score(row["ids"] + row["greedy"])
                apart += [abs(g[0] - w[0]) for g, w in zip(got, want)]
                top += [g[1] == w[1] for g, w in zip(got, want)]
            found[who] = sum(apart) / len(apart), sum(top) / len(top)
            self.rep.say(f"  against float32, {len(apart)} positions: {who:<9} mean |difference of log-probability| {found[who][0]:.4f}, 99th percentile "
                         f"{percentile(apart, 99):.3f}, top-1 agreement {found[who][1]:.2%}")
        mine, theirs = found["pdserve"], found["llama.cpp"]
        self.rep.say(f"  no larger than the peer's {self.goal(mine[0] <= theirs[0])}, at most half {'+' if mine[0] <= theirs[0] / 2 else '-'}, "
                     f"top-1 no lower {self.goal(mine[1] >= theirs[1])}")
        for name, (error, top) in (("", mine), ("_peer", theirs)):
            self.result(model, "logprob_error" + name, error, 4)
            self.result(model, "top1_agreement" + name, top, 4)

    def llama_bench(self, model, program):
        """The peer's own benchmark, of the same or another build: not in turns, so take its figures as rough."""
        argv = [program, "-m", model.path, "-p", ",".join(map(str, PROMPTS)), "-n", str(TOKENS[1]), "-t", str(self.threads), "-r", "3", "-o", "json"]
        r = subprocess.run(argv, capture_output=True, text=True)
        if r.returncode:
            sys.exit(f"{' '.join(argv)}: {r.returncode}\n{r.stderr[-2000:]}")
        said = [(f"prompt {x['n_prompt']}" if x["n_prompt"] else "decode", x["avg_ts"]) for x in json.loads(r.stdout)]
        self.rep.say(f"  {program}: " + ", ".join(f"{what} {v:.1f}" for what, v in said))

    # --- threads

    def scaling(self, model, ours, peer):
        """T_n = T_1 (s + (1 - s) / n): s is what no thread shares, found from n = self.threads. Memory bandwidth that one thread uses up counts as serial here:
        how it scales by itself is said first."""
        n, single, one = self.threads, Limits(1), self.engine(model, 1)
        products = self.limits.peaks[0][2] / single.peaks[0][2] if single.peaks else float("nan")
        self.rep.say(f"  {n} threads against 1: products in registers {products:.2f} times as fast")
        for t in (x for x in TESTS if x.prompt != max(PROMPTS)):
            alone, all_of = self.peers_run(peer, t, 1), self.peers_run(peer, t, n)
            rows = [(self.one(ours, t) / self.one(one, t), all_of() / alone(), self.limits.read(model.bytes) / single.read(model.bytes)) for _ in range(5)]
            mine, theirs, memory = (median([r[i] for r in rows]) for i in (0, 1, 2))
            serial, peers = (max(0.0, (n / x - 1) / (n - 1)) for x in (mine, theirs))
            by = ", ".join(f"{1 / (serial + (1 - serial) / k):.1f} at {k}" for k in (8, 64))
            self.rep.say(f"  {t.title:<20}{mine:>6.2f} times as fast: serial part {serial:.1%} (it alone would allow {by} threads); "
                         f"llama.cpp {theirs:.2f}, {peers:.1%}; reading memory {memory:.2f}")
            self.result(model, f"{t.name}_scaling", mine)
            self.result(model, f"{t.name}_serial", serial)
            self.result(model, f"{t.name}_peer_scaling", theirs)
            self.result(model, f"{t.name}_read_scaling", memory)
        one.close()

    def run(self):
        begin = time.monotonic()
        wanted = [m for m in MODELS if not self.a.only or any("/".join(m).lower().startswith(o.lower()) for o in self.a.only.split(","))]
        models = model_files(self.a.model, wanted)
        policy = os.environ.get("OMP_WAIT_POLICY")
        self.rep.say(f"{machine()}; {self.threads} thread{'s' * (self.threads > 1)}, {self.a.turns} turns" + (f", OMP_WAIT_POLICY={policy}" if policy else ""))
        self.rep.say("peaks, GOP/s: " + ", ".join(f"{n} {v:.0f}" for n, _, v in self.limits.peaks))
        self.rep.say(f"tokens/s of {'processor time' if self.a.cpu else 'time'}; + and - before a goal: reached, not reached")
        for m in models:
            self.model(m)
        self.rep.say(f"goals reached: {sum(self.goals)} of {len(self.goals)}; {time.monotonic() - begin:.0f} s")
        self.rep.result(("cpu_" if self.a.cpu else "") + "goals_reached", sum(self.goals))
        self.rep.result(("cpu_" if self.a.cpu else "") + "goals", len(self.goals))
        self.rep.end()


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model", help="the demo's SmolLM2 Q4_1 file")
    ap.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    ap.add_argument("-n", "--turns", type=int, default=5)
    ap.add_argument("--only", help="models by the beginning of NAME/TYPE, several with commas")
    ap.add_argument("--llama-bench", action="append", default=[], help="further builds of the peer: their llama-bench")
    ap.add_argument("--cpu", action="store_true")
    Bench(ap.parse_args()).run()


if __name__ == "__main__":
    main()
