"""soak.py - many streams for a while, then: no error, the same tokens for the same prompt, every block back, memory, descriptors and threads flat.

    python tests/soak/soak.py [--quick] [--tiers] [--layout 1p2d] [--seconds 60] [--warm 25] [--streams 64] [--leave 0] [--model PATH]

The default is the real model (PD_MODEL); --quick takes the tiny golden model with prompts of token ids. Half of the requests repeat prompts of a fixed set (their
prefixes are shared and their greedy answers are compared), half are new (they fill the pools, so that eviction, offload and reading back run all the time).
A private memory of a daemon is flat when its mean of the last third is at most 3 % + 3 MiB above its mean of the first third. The prefill
worker's pool and the storage daemon's memory are small, so that both are full before the measuring begins. KV pools are shared memory and touched as they
fill: a worker's may not exceed its size (+ 4 MiB for ring and board).

--tiers: everything moves all the time. The pools hold a few sequences, nothing is kept free for their growth, so that they preempt each other; storage has
a memory that is smaller than the pools and a disk behind it, both full before the measuring begins, and a Redis for what the disk has no room for. At the end storage
is killed, started again, and asked for what it had acknowledged: the known prompts, once more, with empty pools (how much of them disk and Redis have is told; what is
hot in pools and memory never went there). A tier that was not used, or no preemption, is a fault: then it proved nothing.
Exit: 0, or 1 with each fault in words. `RESULT name=value` lines come last.
"""
import argparse
import os
import random
import shutil
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "e2e"), os.path.join(HERE, "..", "bench")]

from benchlib import Report, machine, median, percentile  # noqa: E402
from load import Load  # noqa: E402
from suite import GOLDEN, Suite  # noqa: E402
from tierlib import Redis, figures  # noqa: E402

GROW_SHARE, GROW_KIB = 0.03, 3 * 1024
BLOCK, POOL = 32, {"prefill": 64, "decode": 64, "mixed": 96}   # with --tiers: tokens, blocks; a sequence has up to 10
HEADS_KIB = 32 * 1024         # the disk tier's heads lie beside its blocks


class Requests:
    """Bodies without end, always the same ones for the same seed."""

    def __init__(self, quick, seed=7):
        self.random, self.count = random.Random(seed), 0
        self.vocab, self.longest = (320, 200) if quick else (49000, 256)
        self.out = (8, 48) if quick else (8, 64)
        self.shared = [self._ids(self.longest // 2) for _ in range(4)]
        self.known = [self._body(self.shared[i % 4] + self._ids(self.random.randint(1, self.longest // 2))) for i in range(24)]

    def _ids(self, n):
        return [self.random.randint(3, self.vocab - 1) for _ in range(n)]

    def _body(self, ids):
        return {"prompt": ids, "max_tokens": self.random.randint(*self.out), "temperature": 0, "ignore_eos": True}

    def __call__(self):
        self.count += 1
        if self.count % 2:
            i = self.random.randrange(len(self.known))
            return f"prompt {i}", self.known[i]
        return None, self._body(self._ids(self.random.randint(1, self.longest)))


def memory_kib(pid):
    """(private, shared) resident memory"""
    private = shared = 0
    with open(f"/proc/{pid}/status") as f:
        for line in f:
            if line.startswith("RssAnon:"):
                private = int(line.split()[1])
            elif line.startswith("RssShmem:"):
                shared = int(line.split()[1])
    return private, shared


def handles(pid):
    """Descriptors and threads. The disk tier's segment files come as it fills; their number is bounded by its size."""
    def name(fd):
        try:
            return os.path.basename(os.readlink(f"/proc/{pid}/fd/{fd}"))
        except FileNotFoundError:
            return ""
    return sum(not name(fd).startswith(("segment-", "heads-")) for fd in os.listdir(f"/proc/{pid}/fd")), len(os.listdir(f"/proc/{pid}/task"))


class Watch:
    """Samples every daemon's memory while the load runs."""

    def __init__(self, suite):
        self.suite, self.samples = suite, {n: [] for n in suite.names}

    def __call__(self):
        for n, p in self.suite.procs.items():
            if p.poll() is None:
                self.samples[n].append(memory_kib(p.pid))

    def thirds(self, name, which):
        v = [s[which] for s in self.samples[name]]
        k = max(1, len(v) // 3)
        return sum(v[:k]) / k, sum(v[-k:]) / k


def block_state(suite):
    """What must come back: nothing held, leased or in quarantine, and the sum right; free and cached together are the rest."""
    out = {}
    for n in suite.workers():
        k = suite.kv(n)
        busy = {s: v for s, v in k.items() if s in ("held", "leased", "quarantine", "readers") and v}
        out[n] = (k["sum"], busy, len(k["owners"]))
    return out


def stuck(suite, load, rep):
    """What the daemons know about the first stream that did not end: to be read before its client gives it up."""
    def look(s):
        rep.say(f"STUCK {s.id} {s.key}: {len(s.tokens)} tokens of {s.want}")
        for n in suite.names:
            try:
                rep.say(f"  {n} requests: {str(suite.ctl(n, 'requests'))[:1500]}")
            except Exception as e:  # noqa: BLE001
                rep.say(f"  {n}: {e}")
        rid = (s.id or "no id").split("-")[-1]
        for n in suite.names:
            for line in [x for x in suite.log(n).splitlines() if rid in x][:30]:
                rep.say("  " + line)
    load.on_stuck = look


def judge_memory(watch, rep, faults):
    rep.say(f"{'daemon':<12}{'private KiB: first third':>26}{'last third':>12}{'growth':>9}{'shared KiB, last':>18}")
    worst = 0.0
    for n in watch.samples:
        a, b = watch.thirds(n, 0)
        shared = watch.thirds(n, 1)[1]
        grow = (b - a) / a
        worst = max(worst, grow)
        rep.say(f"{n:<12}{a:>26.0f}{b:>12.0f}{grow:>9.2%}{shared:>18.0f}")
        if n in watch.suite.workers() and shared > watch.suite.conf[n]["kv_memory_mb"] * 1024 + 4096:
            faults.append(f"{n} has {shared:.0f} KiB of shared memory, its pool {watch.suite.conf[n]['kv_memory_mb']} MiB")
        if b - a > a * GROW_SHARE + GROW_KIB:
            faults.append(f"memory of {n} grew from {a:.0f} to {b:.0f} KiB")
    rep.result("soak_memory_growth_worst_percent", worst * 100, 2)


def judge_blocks(suite, before, handles_before, faults):
    try:
        suite.quiet(30)
    except AssertionError as e:
        faults.append(f"blocks: {e}")
    after = block_state(suite)
    faults += [f"blocks of {n}: {before[n]} before, {after[n]} after" for n in after if after[n] != before[n]]
    time.sleep(1)
    for n, p in suite.procs.items():
        if p.poll() is not None:
            faults.append(f"{n} ended with {p.returncode}")
            continue
        now = handles(p.pid)
        if now[0] > handles_before[n][0] + 4 or now[1] != handles_before[n][1]:
            faults.append(f"{n}: descriptors and threads {handles_before[n]} before, {now} after")
    router = suite.ctl("router", "requests")
    if router.get("requests") if isinstance(router, dict) else router:
        faults.append(f"the router still knows requests: {str(router)[:300]}")


class Once:
    """Each of the known prompts once."""

    def __init__(self, known):
        self.left = list(enumerate(known))

    def __call__(self):
        if not self.left:
            return None
        i, body = self.left.pop()
        return f"prompt {i}", body


def stored_figures(s):
    """What moved between workers and tiers, and what preemption did."""
    f = figures(s, "storage")
    moved = {f"{t} {what}": int(f[f"pdserve_storage_{t}_{what}"]) for t in ("memory", "disk", "redis") for what in ("puts_total", "hits_total", "evictions_total")
             if (t, what) != ("redis", "evictions_total")}
    decode = [figures(s, n) for n in s.workers() if not n.startswith("prefill")]
    preempt = {k.removeprefix("pdserve_decode_").removesuffix("_total"): int(sum(d.get(k, 0) for d in decode)) for k in
               ("pdserve_decode_preemptions_total", "pdserve_decode_preempt_saved_blocks_total", "pdserve_decode_restores_read_total", "pdserve_decode_restores_computed_total",
                "pdserve_decode_restores_kept_total")}
    return moved, preempt


def judge_tiers(a, s, source, known, rep, faults):
    moved, preempt = stored_figures(s)
    rep.say(f"tiers: {moved}; {preempt}")
    faults += [f"{k} is 0: this was not tried" for k, v in {**moved, "preemptions": preempt["preemptions"]}.items() if not v]
    bad = sum(int(v) for k, v in figures(s, "storage").items() if k.endswith(("_corrupt_total", "_errors_total")))
    if bad:
        faults.append(f"storage counts {bad} damaged blocks and errors of devices")
    disk_kib = sum(os.stat(os.path.join(a.disk, f)).st_blocks // 2 for f in os.listdir(a.disk))
    rep.say(f"on disk {disk_kib} KiB, {a.disk_mb} MiB allowed and the heads beside")
    if disk_kib > a.disk_mb * 1024 + HEADS_KIB:
        faults.append(f"the disk tier takes {disk_kib} KiB, allowed are {a.disk_mb} MiB and {HEADS_KIB} KiB of heads")
    s.kill("storage")
    s.restart("storage")
    s.ready()
    for n in s.workers():
        s.ctl(n, "flush")
    again = Load(s.port, Once(source.known), 4, a.limit + 10)
    again.known = known
    again.run(None)
    faults += again.errors
    f = figures(s, "storage")
    rep.say(f"storage killed and started again: {again.completed} known prompts, {again.compared} compared, {f['pdserve_storage_disk_hits_total']:.0f} blocks came from its disk, "
            f"{f['pdserve_storage_redis_hits_total']:.0f} from Redis")


def suite_of(a):
    worker = {"threads": a.threads, "log_level": a.log_level, "kv_eviction": "offload"}
    storage, router = {"memory_mb": a.storage_mb}, {"request_timeout_ms": int(a.limit * 1000)}
    if not a.tiers:
        return Suite(a.layout, a.model, worker={"kv_memory_mb": a.kv_mb, **worker}, prefill={"kv_memory_mb": max(1, a.kv_mb // 4)}, storage=storage, router=router)
    storage.update(memory_eviction="offload", offload_percent=30, disk_path=a.disk, disk_mb=a.disk_mb, redis=a.redis.address)
    worker.update(kv_memory_mb=a.kv_mb, block_tokens=BLOCK, growth_ratio=0.0, storage_read="always")
    pools = {kind: {"kv_blocks": n} for kind, n in POOL.items()}
    return Suite(a.layout, a.model, worker=worker, prefill=pools["prefill"], decode=pools["decode" if "p" in a.layout else "mixed"], storage=storage, router=router)


def soak(a, rep):
    faults, source = [], Requests(a.quick)
    with suite_of(a) as s:
        Load(s.port, Requests(a.quick, 1), 4).run(1)          # each daemon has met each other once
        s.quiet(30)
        before, had = block_state(s), {n: handles(p.pid) for n, p in s.procs.items()}
        warm = Load(s.port, source, a.streams, a.limit + 10)
        stuck(s, warm, rep)
        warm.run(a.warm)
        watch = Watch(s)
        load = Load(s.port, source, a.streams, a.limit + 10, a.leave)
        load.known = warm.known
        stuck(s, load, rep)
        load.run(a.seconds, watch)
        faults += warm.errors + load.errors
        rep.say(f"{load.completed} streams in {load.wall_s:.1f} s, {load.token_count} tokens ({load.token_count / load.wall_s:.0f}/s), "
                f"{load.compared} answers compared with an earlier one, {load.left} clients left early, {len(warm.errors + load.errors)} errors")
        if load.completed:
            rep.say(f"first token p50 {median(load.ttft):.3f} s, p99 {percentile(load.ttft, 99):.3f} s; "
                    f"between tokens p50 {median(load.itl) * 1e3:.1f} ms, p99 {percentile(load.itl, 99) * 1e3:.1f} ms")
        else:
            faults.append("no stream ended")
        judge_blocks(s, before, had, faults)
        judge_memory(watch, rep, faults)
        preempted = sum(s.log(n).count("event=preempted") for n in s.workers())
        evicted = {n: s.kv(n)["evictions"] for n in s.workers()}
        rep.say(f"blocks back: {'yes' if not any('blocks' in f for f in faults) else 'NO'}; evictions {evicted}, preemptions {preempted}")
        if a.tiers:
            judge_tiers(a, s, source, load.known, rep, faults)
        if faults and os.environ.get("KEEP"):
            print(f"logs: {s.dir}")
    rep.result("soak_streams_completed", load.completed)
    rep.result("soak_tokens_per_s", load.token_count / load.wall_s, 1)
    rep.result("soak_errors", len(warm.errors + load.errors))
    return faults


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--quick", action="store_true")
    ap.add_argument("--tiers", action="store_true", help="small pools, memory, disk and Redis below them, preemption")
    ap.add_argument("--layout", default="1p2d")
    ap.add_argument("--seconds", type=float, default=60)
    ap.add_argument("--warm", type=float, default=0, help="seconds before them, until pools and storage are full; default 25, with --tiers 60, quick 10")
    ap.add_argument("--streams", type=int, default=64)
    ap.add_argument("--leave", type=float, default=0, help="of a hundred clients, so many go away in mid-stream")
    ap.add_argument("--threads", type=int, default=1)
    ap.add_argument("--model", default=os.environ.get("PD_MODEL"))
    ap.add_argument("--kv-mb", type=int, default=0)
    ap.add_argument("--storage-mb", type=int, default=0)
    ap.add_argument("--disk-mb", type=int, default=0)
    ap.add_argument("--limit", type=float, default=0, help="the request's time in seconds; default 180, quick 20")
    ap.add_argument("--log-level", default="info")
    a = ap.parse_args()
    if a.quick:
        a.model = os.path.join(GOLDEN, "llama")
    if not a.model:
        sys.exit("PD_MODEL is not set: the path of the model's .gguf (or --quick for the tiny model)")
    a.kv_mb = a.kv_mb or (4 if a.quick else 384)
    a.storage_mb = a.storage_mb or ((1 if a.tiers else 8) if a.quick else 32 if a.tiers else 16)
    a.disk_mb = a.disk_mb or (8 if a.quick else 96)
    a.warm = a.warm or (10 if a.quick else 60 if a.tiers else 25)
    a.limit = a.limit or (20 if a.quick else 180)
    kind = "tiny model" if a.quick else "real model"
    more = (f" SOAK_LEAVE={a.leave:g}" if a.leave else "") + (" SOAK_TIERS=1" if a.tiers else "") + (" QUICK=1" if a.quick else "")
    rep = Report(f"Soak: {a.streams} streams, {a.layout}, {kind}{', clients that leave' if a.leave else ''}{', tiers and preemption' if a.tiers else ''}",
                 f"make soak LAYOUT={a.layout} SOAK_SECONDS={a.seconds:g} SOAK_STREAMS={a.streams}{more}")
    rep.say(f"{os.path.basename(a.model)}, {a.layout}, {a.streams} streams, {a.seconds:g} s after {a.warm:g} s of warming up; {machine()}")
    if a.tiers:
        rep.say(f"blocks of {BLOCK} tokens, pools of {POOL} blocks; storage: memory {a.storage_mb} MiB, disk {a.disk_mb} MiB, Redis {10 * a.disk_mb} MiB")
        a.redis = Redis(10 * a.disk_mb)
        a.disk = tempfile.mkdtemp(prefix="pdserve-soak-", dir="/var/tmp")
    try:
        faults = soak(a, rep)
    finally:
        if a.tiers:
            shutil.rmtree(a.disk, ignore_errors=True)
            a.redis.stop()
    for f in faults[:20]:
        rep.say(f"FAULT {f[:2000]}")
    rep.result("soak_ok", int(not faults))
    rep.end()
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
