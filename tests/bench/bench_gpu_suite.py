"""bench_gpu_suite.py - whole suites on this machine's GPUs, with random weights in the shape of a known model: what bench_gpu.c, which has no daemons, cannot show.

    start      a worker's start until it is ready and until a client has its first token; the model's file is in the page cache. --pcie-gbs (pinned memory to the
               device, as gpu_limits measures it) says how much of that is more than moving the weights.
    handover   1p1d: the rate at which KV is copied from pool to pool, of prompts that are being computed, and of prompts that the prefill worker has cached, whose KV
               can be copied at once; and what is left to copy when a prompt's last token has been computed, in time and in layers' copies.
    itl        1p1d: the gaps between the tokens of some streams while nothing else happens, and while prompts arrive evenly (so often that the prefill worker is busy for
               LOAD of its time): whole prompts; computing alone, which is embeddings of as many tokens, whose KV stays; copies alone, which is prompts that the prefill
               worker has cached but for less than a block.
    tp         a mixed worker on one GPU and one on two: tokens a second and gaps.

handover and itl run on one GPU that both workers share, and where there are two also on two. Figures are those of clients on this machine and of the daemons' log
lines. The rows together take at most --seconds (writing the model not counted); each gets an equal part of what is left, and says so where that is too short.

    python bench_gpu_suite.py [--shape 1b] [--seconds 180] [--kv-mb N] [--gpus N] [--pcie-gbs N] [--rows start,handover,itl,tp] [--prompt 4096] [--window 3]
"""
import argparse
import contextlib
import ctypes
import json
import math
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from concurrent.futures import ThreadPoolExecutor

import random_model
from benchlib import Report, log_events, machine, median, percentile
from load import Client, gaps
from loadlib import load
from suite import Suite, wait_for

STREAMS, OWN_PROMPT, OWN_ANSWER, LOAD = 4, 64, 30000, 0.6
BLOCK = 64      # tokens, the default of block_tokens


class Late(Exception):
    """A row's time is over."""


class Limited(Suite):
    """A suite without a tokenizer that Late ends at `deadline`."""

    deadline = math.inf

    def __init__(self, layout, model, a, **more):
        worker = {"model": model, "backend": "cuda", "kv_memory_mb": a.kv_mb, "activation_type": "bf16", "embeddings": True, "storage": "none", **more.pop("worker", {})}
        super().__init__(layout, None, worker=worker, router={"model": ""}, **more)

    def __enter__(self):
        signal.setitimer(signal.ITIMER_REAL, max(0.001, self.deadline - time.monotonic()))
        return super().__enter__()

    def __exit__(self, *exc):
        signal.setitimer(signal.ITIMER_REAL, 0)
        super().__exit__(*((None, None, None) if exc[0] is Late else exc))       # what daemons that are only slow did is not printed


def late(*_):
    raise Late


class Split(Limited):
    """A prefill and a decode worker on the GPUs that are given."""

    def __init__(self, model, a, gpus):
        super().__init__("1p1d", model, a, prefill={"device": 0, "stall_ms": 60000}, decode={"device": gpus - 1}, messager={"stall_ms": 60000})


def places(a):
    return [(1, "one GPU"), (2, "two GPUs")][:min(a.gpus, 2)]


def new_prompt(a, rnd):
    return [rnd.randrange(3, random_model.SHAPES[a.shape][-1]) for _ in range(a.prompt)]


def transfers(s, had=0):
    """The transfers that have ended, without the first of them."""
    return log_events(s.log("messager"), "transfer_done")[had:]


def computed(s, had=0):
    """How many tokens of each prompt the prefill worker computed, without the first prompts."""
    return [d["tokens"] - d["cached"] for d in log_events(s.log("prefill-1"), "prefill_done")[had:]]


# --- start

class Started(Limited):
    def start(self, name):
        if name == "mixed-1":
            self.began = time.time()
        super().start(name)


def one_start(model, a):
    """-> seconds until ready, until the first token"""
    with Started("mixed", model, a, worker={"messager": "none"}, wait=False) as s:
        def answers():
            assert s.procs["mixed-1"].poll() is None, s.log("mixed-1")[-2000:]
            with contextlib.suppress(OSError):
                return s.get("/ready")[0] == 200
        wait_for(answers, "the worker does not become ready", 60)
        ready = time.time() - s.began
        s.tokens(list(range(3, 35)), 1)
        return ready, time.time() - s.began


def start(rep, model, a):
    file = os.path.join(model, "model.safetensors")
    size = os.path.getsize(file)
    with open(file, "rb") as f:
        while f.read(64 << 20):
            pass
    turns = [one_start(model, a) for _ in range(3)]
    ready, first = (median(x) for x in zip(*turns))
    rep.say(f"start: ready after {ready:.2f} s, the first token after {first:.2f} s; {size / 1e9:.2f} GB of weights: {size / ready / 1e9:.2f} GB/s until ready")
    rep.result("start_ready_s", ready)
    rep.result("start_first_token_s", first)
    rep.result("start_weights_bytes", size)
    rep.result("start_gb_s", size / ready / 1e9)
    if a.pcie_gbs:
        least = size / a.pcie_gbs / 1e9
        rep.say(f"       moving the weights at {a.pcie_gbs:g} GB/s takes {least:.2f} s; above that until ready: {ready - least:.2f} s")
        rep.result("start_above_s", ready - least)


# --- hand-over

def copies(s, prompts):
    """Each in turn, with a token of the decode worker's -> its transfers"""
    had = len(transfers(s))
    for p in prompts:
        s.tokens(p, 2)
    got = wait_for(lambda: (t := transfers(s, had)) and len(t) >= len(prompts) and t, f"not {len(prompts)} transfers")
    return [d for d in got if d["copy_us"]]


def rate(done):
    return median([d["bytes"] / d["copy_us"] / 1e3 for d in done])


def handover(rep, model, a):
    layers, rnd = random_model.SHAPES[a.shape][0], random.Random(5)
    for gpus, words in places(a):
        with Split(model, a, gpus) as s:
            copies(s, [new_prompt(a, rnd) for _ in range(2)])
            new, prompts = copies(s, [new_prompt(a, rnd) for _ in range(a.number)]), [new_prompt(a, rnd) for _ in range(a.number)]
            for p in prompts:
                s.tokens(p, 1)
            cached = copies(s, prompts)
            assert max(computed(s, -a.number)) <= BLOCK, f"prompts were not cached: {computed(s)}"
        tail, layer = [d["tail_us"] for d in new], median([d["copy_us"] for d in new]) / layers
        rep.say(f"handover, {words}: {len(new)} prompts of {a.prompt} tokens, {median([d['bytes'] for d in new]) / 2**20:.1f} MiB each; while they are computed "
                f"{rate(new):.2f} GB/s, cached ones {rate(cached):.2f} GB/s")
        rep.say(f"       left to copy after the last token: p50 {percentile(tail, 50)} us, most {max(tail)} us; p50 is {median(tail) / layer:.2f} of a layer's copies")
        rep.result(f"handover_{gpus}_gpu_gb_s", rate(new), 2)
        rep.result(f"handover_{gpus}_gpu_cached_gb_s", rate(cached), 2)
        rep.result(f"handover_{gpus}_gpu_tail_p50_us", percentile(tail, 50))
        rep.result(f"handover_{gpus}_gpu_tail_layers", median(tail) / layer, 2)


# --- tokens of others

def send(s, path, bodies, interval):
    """One each interval, without waiting for answers to the former; ends the process."""
    begin, json_bodies = time.monotonic(), [json.dumps(b) for b in bodies]
    with ThreadPoolExecutor(32) as pool:
        sent = []
        for i, body in enumerate(json_bodies):
            time.sleep(max(0, begin + i * interval - time.monotonic()))
            sent.append(pool.submit(s.post, path, body, raw=True))
    wrong = [r for r in (x.result() for x in sent) if r[0] != 200]
    if wrong:
        sys.exit(f"{path}: {wrong[0]}")


@contextlib.contextmanager
def arriving(*args):
    """Prompts that a process of its own sends, so that sending takes nothing from the one that looks at the clock."""
    p = multiprocessing.get_context("fork").Process(target=send, args=args, daemon=True)
    p.start()
    try:
        yield
        p.join()
        if p.exitcode:
            raise RuntimeError("a prompt failed, see above")
    finally:
        p.kill()


def completions(prompts):
    return "/v1/completions", [{"prompt": p, "max_tokens": 2, "temperature": 0, "ignore_eos": True} for p in prompts]


def embeddings(prompts):
    return "/v1/embeddings", [{"model": "default", "input": [p], "encoding_format": "base64"} for p in prompts]


def window(s, a, path, bodies, interval):
    """While these arrive -> gaps of the streams, GB/s of KV handed over, tokens that the prefill worker computed of each"""
    c = Client(s.port, random_model.SHAPES[a.shape][-1])
    own = [c.ask(c.prompt(OWN_PROMPT), OWN_ANSWER) for _ in range(STREAMS)]
    c.until(time.monotonic() + 60, lambda: all(len(x.tokens) > 20 for x in own))
    had, had_prompts = len(transfers(s)), len(computed(s))
    with arriving(s, path, bodies, interval):
        begin = time.monotonic()
        c.until(begin + a.window)
        seen = gaps(own, begin, begin + a.window)
        assert not any(x.done for x in own), f"a stream ended: {OWN_ANSWER} tokens are too few for --window {a.window:g}"
        for x in list(c.open):
            c.close(x)
    s.quiet()
    tokens = computed(s, had_prompts)
    assert len(tokens) == len(bodies), f"{len(tokens)} of {len(bodies)} prompts in the log"
    return seen, sum(d["bytes"] for d in transfers(s, had)) / a.window / 1e9, median(tokens or [0])


def windows(s, a):
    """-> milliseconds between prompts; quiet, and by name while something happens: what `window` gives"""
    rnd = random.Random(6)
    copies(s, [new_prompt(a, rnd) for _ in range(4)])
    interval = median([d["prefill_us"] for d in log_events(s.log("prefill-1"), "prefill_done")[1:]]) / 1e6 / LOAD
    n, room = math.ceil(a.window / interval), s.ctl("prefill-1", "status")["blocks"] * BLOCK // (a.prompt + BLOCK)
    if n > room:
        raise RuntimeError(f"{n} prompts of {a.prompt} tokens arrive in {a.window:g} s, {a.kv_mb} MiB of KV have room for {room}: give a larger --kv-mb or a smaller --window")
    whole, computing, cached = ([new_prompt(a, rnd) for _ in range(n)] for _ in range(3))
    quiet = window(s, a, "", [], interval)
    loaded = {"prompts": window(s, a, *completions(whole), interval), "computing": window(s, a, *embeddings(computing), interval)}
    for p in cached:
        s.tokens(p, 1)
    loaded["copies"] = window(s, a, *completions(cached), interval)
    quiet[0].extend(window(s, a, "", [], interval)[0])
    bad = [name for name, (_, kv, tokens) in loaded.items() if (kv > 0) != (name != "computing") or (tokens == a.prompt) != (name != "copies")]
    assert not bad, f"{bad} did not do what they measure: {[(name, x[1:]) for name, x in loaded.items()]}"
    return interval * 1e3, quiet, loaded


def itl(rep, model, a):
    said = {"prompts": "prompts", "computing": "computing alone", "copies": "copies alone"}
    for gpus, words in places(a):
        with Split(model, a, gpus) as s:
            interval, quiet, loaded = windows(s, a)
        q50, q99 = percentile(quiet[0], 50), percentile(quiet[0], 99)
        rep.say(f"itl, {words}: {STREAMS} streams; a prompt of {a.prompt} tokens each {interval:.0f} ms")
        rep.say(f"       {'quiet':<16} p50 {q50:>8.3f} ms             p99 {q99:>8.3f} ms")
        rep.result(f"itl_{gpus}_gpu_quiet_p50_ms", q50)
        rep.result(f"itl_{gpus}_gpu_quiet_p99_ms", q99)
        for name, (seen, kv, _) in loaded.items():
            p50, p99 = percentile(seen, 50), percentile(seen, 99)
            more50, more99 = (100 * (x / q - 1) for x, q in ((p50, q50), (p99, q99)))
            rep.say(f"       {said[name]:<16} p50 {p50:>8.3f} ms {more50:>+8.1f} %  p99 {p99:>8.3f} ms {more99:>+8.1f} %  {kv:.2f} GB/s of KV")
            rep.result(f"itl_{gpus}_gpu_{name}_p50_percent", more50, 1)
            rep.result(f"itl_{gpus}_gpu_{name}_p99_percent", more99, 1)


# --- tensor parallel

def tp(rep, model, a):
    if a.gpus < 2:
        rep.say("tp: needs two GPUs, this machine has one")
        return
    rep.say(f"{'tp: GPUs':>10}{'streams':>9}{'tokens/s':>10}{'gap p50 ms':>12}{'p99 ms':>8}")
    for ranks in (1, 2):
        with Limited("mixed", model, a, worker={"tensor_parallel": ranks, "messager": "none"}) as s:
            for n in map(int, a.streams.split(",")):
                r = load(s.port, "-c", n, "-w", n, "-n", 2 * n, "-i", 32, "-o", a.answer)["figures"]
                rep.say(f"{ranks:>10}{n:>9}{r['full_load_tokens_per_s']:>10.0f}{r['itl_p50_ms']:>12.3f}{r['itl_p99_ms']:>8.3f}")
                rep.result(f"tp{ranks}_{n}_tokens_s", r["full_load_tokens_per_s"], 1)
                rep.result(f"tp{ranks}_{n}_itl_p50_ms", r["itl_p50_ms"])


ROWS = {"start": start, "handover": handover, "itl": itl, "tp": tp}


def gpus_here():
    """As CUDA counts them, where there is its driver."""
    n = ctypes.c_int(1)
    with contextlib.suppress(OSError):
        cuda = ctypes.CDLL("libcuda.so.1")
        if cuda.cuInit(0) or cuda.cuDeviceGetCount(ctypes.byref(n)):
            n.value = 1
    return n.value


def run(rep, name, model, a, seconds):
    """-> False: the row failed"""
    Limited.deadline = time.monotonic() + seconds
    try:
        ROWS[name](rep, model, a)
    except Late:
        rep.say(f"{name}: what is missing above was not measured: it takes more than {seconds:.1f} s (--seconds {a.seconds:g} for all rows)")
    except Exception:       # the other rows are measured all the same
        traceback.print_exc()
        rep.say(f"{name}: failed, see above")
        return False
    return True


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--shape", choices=random_model.SHAPES, default="1b")
    ap.add_argument("--seconds", type=float, default=180)
    ap.add_argument("--kv-mb", type=int, default=12000, help="of each worker; two share a GPU")
    ap.add_argument("--gpus", type=int, default=gpus_here())
    ap.add_argument("--pcie-gbs", type=float)
    ap.add_argument("--rows", default=",".join(ROWS))
    ap.add_argument("--prompt", type=int, default=4096, help="tokens")
    ap.add_argument("--window", type=float, default=3, help="seconds in which gaps are observed")
    ap.add_argument("-n", "--number", type=int, default=12, help="prompts whose hand-over is measured")
    ap.add_argument("--streams", default="1,16,64", help="of row tp")
    ap.add_argument("--answer", type=int, default=256, help="tokens of an answer in row tp")
    a = ap.parse_args()
    rows = a.rows.split(",")
    if unknown := set(rows) - set(ROWS):
        ap.error(f"--rows {','.join(sorted(unknown))}: choose from {','.join(ROWS)}")
    signal.signal(signal.SIGALRM, late)
    rep = Report("Whole suites on a GPU", " ".join(["bench_gpu_suite.py", *sys.argv[1:]]))
    rep.say(f"shape {a.shape}, random weights in BF16, activations in BF16, {a.gpus} GPU{'s' * (a.gpus > 1)}; {machine()}")
    with tempfile.TemporaryDirectory(prefix="pdserve-bench-") as model:
        random_model.write(model, a.shape)
        end = time.monotonic() + a.seconds
        good = [run(rep, name, model, a, (end - time.monotonic()) / (len(rows) - i)) for i, name in enumerate(rows)]
    rep.end()
    sys.exit(not all(good))


if __name__ == "__main__":
    main()
