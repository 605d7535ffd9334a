"""bench_peer.py - our engine against llama.cpp: the same file, the same threads, in turns within one run.

The peer is llama-cpp-python's llama_decode, called through the package's C functions with prepared batches: no Python runs
between two tokens but a loop over the streams' positions. It samples nothing; ours draws greedily, as it does when serving.
A turn is one start of build/bench/bench_engine (median of its runs) and then as many runs of the peer (their median); the ratio is taken within
the turn, so that a machine that others use too slows both.

With --cpu both take one thread and the clock is their processor time: what other programs do on the machine then hardly counts.

    python bench_peer.py [-t THREADS] [-n TURNS] [--runs RUNS] [--tests pp512,pp1280,tg1,tg4,tg16,tg32] [--cpu] MODEL
"""
import argparse
import contextlib
import os
import re
import resource
import subprocess
import sys
import time

from benchlib import ROOT, Report, machine, median

GENERATE = 128
UBATCH = 512


@contextlib.contextmanager
def quiet():
    """The peer's library writes its loading to stderr, past its own log callback."""
    keep, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, 2)
    try:
        yield
    finally:
        os.dup2(keep, 2)
        os.close(keep)
        os.close(null)


class Peer:
    def __init__(self, model, threads, clock):
        self.clock = clock
        with quiet():
            import llama_cpp
            self.c = llama_cpp
            llama_cpp.llama_backend_init()
            self.model = llama_cpp.llama_model_load_from_file(model.encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            sys.exit(f"the peer cannot load {model}")
        self.contexts, self.threads, self.vocab = {}, threads, llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.version = llama_cpp.__version__
        self.system = llama_cpp.llama_print_system_info().decode().split("CPU :", 1)[-1].strip(" |")

    def _context(self, tokens, streams, threads=None):
        """With room for so many tokens of each stream; kept, so that one serves all tests it has room for."""
        for (room, n, t), ctx in self.contexts.items():
            if room >= tokens and n == streams and t == (threads or self.threads):
                return ctx
        p = self.c.llama_context_default_params()
        p.n_ctx, p.n_seq_max = (tokens + 32) * streams, streams
        p.n_batch = p.n_ubatch = UBATCH
        p.n_threads = p.n_threads_batch = threads or self.threads
        with quiet():
            ctx = self.c.llama_init_from_model(self.model, p)
        if not ctx:
            sys.exit("the peer has no memory for its context")
        self.contexts[tokens, streams, threads or self.threads] = ctx
        return ctx

    def close(self):
        with quiet():
            for ctx in self.contexts.values():
                self.c.llama_free(ctx)
            self.c.llama_model_free(self.model)

    def _fill(self, batch, i, token, pos, seq, logits):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = token, pos, 1, seq, logits

    def _decode(self, ctx, batch):
        if self.c.llama_decode(ctx, batch):
            sys.exit("the peer's llama_decode failed")

    def _prompt_batches(self, n):
        """One batch for each chunk; logits of the last token alone, as bench_engine asks for."""
        out = []
        for at in range(0, n, UBATCH):
            m = min(UBATCH, n - at)
            b = self.c.llama_batch_init(m, 0, 1)
            b.n_tokens = m
            for i in range(m):
                self._fill(b, i, ((at + i) * 7919 + 17) % self.vocab, at + i, 0, at + i == n - 1)
            out.append(b)
        return out

    def prompt(self, n, threads=None):
        """-> a function that runs once and returns tokens/s"""
        ctx, batches = self._context(n, 1, threads), self._prompt_batches(n)

        def run():
            self.c.llama_memory_clear(self.c.llama_get_memory(ctx), False)
            begin = self.clock()
            for b in batches:
                self._decode(ctx, b)
            self.c.llama_synchronize(ctx)
            return n / (self.clock() - begin)
        return run

    def generate(self, streams, tokens=GENERATE, threads=None):
        ctx, b = self._context(tokens, streams, threads), self.c.llama_batch_init(streams, 0, 1)
        b.n_tokens = streams
        for i in range(streams):
            self._fill(b, i, i + 1, 0, i, 1)

        def run():
            self.c.llama_memory_clear(self.c.llama_get_memory(ctx), False)
            begin = self.clock()
            for k in range(tokens):
                for i in range(streams):
                    b.token[i], b.pos[i] = (k * 31 + i * 7 + 1) % self.vocab, k
                self._decode(ctx, b)
                self.c.llama_synchronize(ctx)
            return tokens * streams / (self.clock() - begin)
        return run

    def score(self, ids):
        """-> (log-probability, most probable id) of each id but the first, after those before it"""
        import numpy as np
        ctx, out = self._context(len(ids), 1), []
        self.c.llama_memory_clear(self.c.llama_get_memory(ctx), False)
        for at in range(0, len(ids) - 1, UBATCH):
            part, then = ids[at:min(at + UBATCH, len(ids) - 1)], np.array(ids[at + 1:at + 1 + UBATCH])
            b = self.c.llama_batch_init(len(part), 0, 1)
            b.n_tokens = len(part)
            for i, token in enumerate(part):
                self._fill(b, i, token, at + i, 0, 1)
            self._decode(ctx, b)
            logits = np.ctypeslib.as_array(self.c.llama_get_logits(ctx), (len(part), self.vocab))
            top = logits.argmax(axis=1)
            best = logits.max(axis=1)
            total = np.log(np.exp(logits - best[:, None]).sum(axis=1, dtype=np.float64))
            out += zip((logits[np.arange(len(part)), then] - best - total).tolist(), top.tolist())
            self.c.llama_batch_free(b)
        return out

    def test(self, name):
        return self.prompt(int(name[2:])) if name.startswith("pp") else self.generate(int(name[2:]))


class Ours:
    def __init__(self, engine, model, threads):
        self.argv = [engine, model, "-t", str(threads), "-c", str(UBATCH), "-n", str(GENERATE)]

    def _run(self, name, runs):
        part = ["-p", name[2:], "-s", "0"] if name.startswith("pp") else ["-p", "0", "-s", name[2:]]
        argv = [*self.argv, "-r", str(runs), *part]
        r = subprocess.run(argv, capture_output=True, text=True, timeout=600)
        m = re.search(r"tok/s median\s+([\d.]+)", r.stdout)
        if r.returncode or not m:
            sys.exit(f"{' '.join(argv)}: {r.returncode}\n{r.stdout}{r.stderr}")
        self.numerics = r.stdout.splitlines()[0]
        return float(m[1])

    def wall(self, name, runs):
        return self._run(name, runs)

    def cpu(self, name, runs):
        """The difference between 1 + runs and 1 is the runs alone: loading and warming up are in both."""
        used = []
        for n in (1, 1 + runs):
            had = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
            self._run(name, n)
            used.append(resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - had)
        tokens = int(name[2:]) if name.startswith("pp") else GENERATE * int(name[2:])
        return runs * tokens / (used[1] - used[0])


def title(name):
    return f"prompt {name[2:]}" if name.startswith("pp") else f"decode {GENERATE} x {name[2:]} stream{'s' * (name != 'tg1')}"


def turns(a, mine, theirs, name):
    """-> (ours, peer's) tokens/s of each turn"""
    begin = time.perf_counter()
    theirs()
    runs = a.runs or (3 if time.perf_counter() - begin < 1.5 else 1)
    return [(mine(name, runs), median([theirs() for _ in range(runs)])) for _ in range(a.turns)]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model")
    ap.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    ap.add_argument("-n", "--turns", type=int, default=5)
    ap.add_argument("--runs", type=int, default=0, help="in a turn; 0: 3, or 1 where one takes more than 1.5 s")
    ap.add_argument("--tests", default="pp512,pp1280,tg1,tg4,tg16,tg32")
    ap.add_argument("--engine", default=os.path.join(ROOT, "build", "bench", "bench_engine"))
    ap.add_argument("--cpu", action="store_true")
    a = ap.parse_args()
    threads = 1 if a.cpu else a.threads
    peer = Peer(a.model, threads, time.process_time if a.cpu else time.perf_counter)
    policy = os.environ.get("OMP_WAIT_POLICY")     # the peer's: passive on a busy machine, or its threads spin for each other
    ours, pre = Ours(a.engine, a.model, threads), "cpu_" if a.cpu else ""
    rep = Report("Engine against llama.cpp, 1 thread, processor time" if a.cpu else f"Engine against llama.cpp, {threads} threads",
                 f"{f'OMP_WAIT_POLICY={policy} ' if policy else ''}make bench-peer THREADS={threads} TURNS={a.turns}")
    rep.say(f"model {os.path.basename(a.model)}; {machine()}")
    rep.say(f"peer: llama-cpp-python {peer.version}, built natively: {peer.system}")
    rep.say(f"tokens per second of {'processor time' if a.cpu else 'time'}, {a.turns} turns, a turn's figure is the median of its runs; "
            "ratio = median of the turns' ratios (smallest..largest)")
    head = True
    for name in a.tests.split(","):
        pairs = turns(a, ours.cpu if a.cpu else ours.wall, peer.test(name), name)
        if head:
            rep.say(f"ours: {ours.numerics}")
            rep.say(f"{'':<26}{'pdserve':>10}{'llama.cpp':>11}{'ratio':>8}")
            head = False
        ratios, mine, theirs = [o / p for o, p in pairs], median([o for o, _ in pairs]), median([p for _, p in pairs])
        rep.say(f"{title(name):<26}{mine:>10.1f}{theirs:>11.1f}{median(ratios):>8.2f}   ({min(ratios):.2f}..{max(ratios):.2f})")
        rep.result(f"{pre}{name}_tok_s", mine, 1)
        rep.result(f"{pre}{name}_peer_tok_s", theirs, 1)
        rep.result(f"{pre}{name}_ratio", median(ratios))
    rep.end()


if __name__ == "__main__":
    main()
