"""bench_server.py - whole servers on the same cores: the suite (1p1d and mixed) against llama.cpp's llama-server and against llama-cpp-python's server.

All servers are up at once and idle but for the one that is asked. The same 200 requests (text prompts of mixed lengths of which no two begin alike, answers of
mixed lengths, greedy) go to each of them at each concurrency, from one client program (load.py), on a connection each. Every server is told to go on past the
end of an answer (`ignore_eos`; llama-cpp-python's has no such word and gets a logit_bias against the end tokens), so that all give the same number of tokens.

llama-cpp-python's server takes one request after another (a lock around the model; without --interrupt_requests false each new request would end the one before
it): with several clients its TTFT is the time in the queue. llama-server batches, and is the harder peer; it is built from the package's own sources.

tokens_vs_peer_cN is the better of our two layouts over the better peer; each layout's own ratio to the better peer stands beside it.

    python bench_server.py [-t THREADS] [-n REQUESTS] [--concurrency 1,8,32] [--llama-server PROGRAM] [--servers pdserve-1p1d,...] MODEL
"""
import argparse
import contextlib
import http.client
import os
import random
import signal
import subprocess
import sys
import tempfile
import time

from benchlib import Report, machine, median, percentile
from load import Load, TextStream
from suite import Suite, free_port

WORDS = """the a of and to in is that it was for on are as with his they at be this from have or by one had not but what all were when we there can an your
which their said if do will each about how up out them then she many some so these would other into has more her two like him see time could no
make than first been its who now people my made over did down only way find use may water long little very after words called just where most know""".split()
PROMPT, ANSWER = (16, 256), (8, 64)                  # words, tokens
SLOT_TOKENS = 512                                    # of context for each stream: more than a prompt and its answer take
ENDS = (0, 2)                                        # SmolLM2's <|endoftext|> and <|im_end|>


def request(i):
    """The same i is the same request."""
    rnd = random.Random(1000 + i)
    text = f"{i} " + " ".join(rnd.choice(WORDS) for _ in range(rnd.randint(*PROMPT)))
    return {"prompt": text, "max_tokens": rnd.randint(*ANSWER), "temperature": 0}


class Ours:
    """One layout of the suite. The cores are shared out among its workers."""

    go_on = {"ignore_eos": True}

    def __init__(self, layout, model, threads):
        self.name = "pdserve-" + layout
        workers = 1 if layout == "mixed" else sum(int(c) for c in layout if c.isdigit())
        self.suite = Suite(layout, model, worker={"threads": max(1, threads // workers), "kv_memory_mb": 512})
        self.said = f"{max(1, threads // workers)} thread{'s' * (threads > workers)} each of {workers} worker{'s' * (workers > 1)}"

    def __enter__(self):
        self.port = self.suite.__enter__().port
        return self

    def __exit__(self, *exc):
        self.suite.__exit__(*exc)


class Theirs:
    """A program that listens on a port; up when /v1/models answers."""

    def __init__(self, name, argv, go_on, said):
        self.name, self.argv, self.go_on, self.said = name, argv, go_on, said

    def __enter__(self):
        self.port, self.log = free_port(), tempfile.TemporaryFile()
        argv = [*self.argv, "--host", "127.0.0.1", "--port", str(self.port)]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        end = time.monotonic() + 120
        while not self._up():
            if self.process.poll() is not None or time.monotonic() > end:
                self.log.seek(0)
                said = self.log.read().decode(errors="replace")[-2000:]
                self.__exit__()
                sys.exit(f"{' '.join(argv)}: does not come up: {said}")
            time.sleep(0.1)
        return self

    def _up(self):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            c.request("GET", "/v1/models")
            return c.getresponse().status == 200
        except OSError:
            return False
        finally:
            c.close()

    def __exit__(self, *exc):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()


def servers(a):
    t, most = str(a.threads), max(a.concurrency)
    out = [Ours("1p1d", a.model, a.threads), Ours("mixed", a.model, a.threads)]
    if a.llama_server:
        argv = [a.llama_server, "-m", a.model, "-t", t, "-tb", t, "-np", str(most), "-c", str(most * SLOT_TOKENS), "-cram", "0", "--log-disable"]
        out.append(Theirs("llama-server", argv, {"ignore_eos": True, "cache_prompt": False}, f"{t} threads, {most} slots"))
    argv = [sys.executable, "-m", "llama_cpp.server", "--model", a.model, "--n_threads", t, "--n_threads_batch", t, "--n_ctx", str(2 * SLOT_TOKENS),
            "--interrupt_requests", "false", "--verbose", "false"]
    out.append(Theirs("llama_cpp.server", argv, {"logit_bias": {str(i): -100.0 for i in ENDS}}, f"{t} threads, one request at a time"))
    return [s for s in out if not a.servers or s.name in a.servers.split(",")]


def measure(server, concurrency, ids):
    left = iter(ids)

    def source():
        i = next(left, None)
        return None if i is None else (None, {**request(i), **server.go_on})
    load = Load(server.port, source, concurrency, limit_s=1200, stream=TextStream).run()
    if load.errors:
        sys.exit(f"{server.name} at {concurrency} streams: {load.errors[:3]}")
    return load


def say(rep, server, concurrency, load, wanted):
    rate = load.token_count / load.wall_s
    short = f"  ({wanted - load.token_count} tokens short: ended early)" if load.token_count != wanted else ""
    rep.say(f"{concurrency:>7}  {server.name:<18}{rate:>8.1f}{median(load.ttft) * 1e3:>10.0f}{percentile(load.ttft, 99) * 1e3:>9.0f}"
            f"{median(load.itl) * 1e3:>9.1f}{percentile(load.itl, 99) * 1e3:>9.1f}{load.wall_s:>9.1f}{short}")
    name = f"{server.name.replace('-', '_').replace('.', '_')}_c{concurrency}"
    rep.result(name + "_tok_s", rate, 1)
    rep.result(name + "_ttft_p50_ms", median(load.ttft) * 1e3, 1)
    rep.result(name + "_ttft_p99_ms", percentile(load.ttft, 99) * 1e3, 1)
    rep.result(name + "_itl_p50_ms", median(load.itl) * 1e3, 1)
    rep.result(name + "_itl_p99_ms", percentile(load.itl, 99) * 1e3, 1)
    return rate


def compare(rep, concurrency, rates):
    ours = {n: r for n, r in rates.items() if n.startswith("pdserve-")}
    theirs = {n: r for n, r in rates.items() if n not in ours}
    if not ours or not theirs:
        return
    peer = max(theirs, key=theirs.get)
    rep.say(f"{'':>7}  tokens/s over {peer}'s: " + ", ".join(f"{n} {r / theirs[peer]:.2f}" for n, r in ours.items()))
    rep.result(f"tokens_vs_peer_c{concurrency}", max(ours.values()) / theirs[peer], 2)
    for n, r in ours.items():
        rep.result(f"tokens_{n.split('-')[1]}_vs_peer_c{concurrency}", r / theirs[peer], 2)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model")
    ap.add_argument("-t", "--threads", type=int, default=os.cpu_count(), help="of a server in all")
    ap.add_argument("-n", "--requests", type=int, default=200)
    ap.add_argument("--concurrency", type=lambda s: [int(x) for x in s.split(",")], default=[1, 8, 32])
    ap.add_argument("--llama-server", help="the program; without it llama-cpp-python's server is the one peer")
    ap.add_argument("--servers", help="only these, by name")
    a = ap.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))   # the servers end, too
    rep = Report("Whole servers on the same cores", f"make bench-server REQUESTS={a.requests}")
    rep.say(f"{os.path.basename(a.model)}; {machine()}; {a.requests} requests, prompts of {PROMPT[0]}-{PROMPT[1]} words, "
            f"answers of {ANSWER[0]}-{ANSWER[1]} tokens, greedy")
    wanted = sum(request(i)["max_tokens"] for i in range(a.requests))
    with contextlib.ExitStack() as stack:
        up = [stack.enter_context(s) for s in servers(a)]
        for s in up:
            rep.say(f"{s.name}: {s.said}")
            measure(s, 2, range(a.requests, a.requests + 4))
        rep.say(f"{'clients':>7}  {'server':<18}{'tok/s':>8}{'TTFT p50':>10}{'p99 ms':>9}{'ITL p50':>9}{'p99 ms':>9}{'seconds':>9}")
        for n in a.concurrency:
            compare(rep, n, {s.name: say(rep, s, n, measure(s, n, range(a.requests)), wanted) for s in up})
    rep.end()


if __name__ == "__main__":
    main()
