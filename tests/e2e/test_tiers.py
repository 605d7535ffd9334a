"""The tiers below the device, as clients meet them: memory, disk and Redis alone and as a stack, shared by workers, damaged, flushed. Every answer is that of a suite without
storage. On the tiny model, whose pool holds a few of the prompts. What an operator does: test_storage_tiers.py; Redis's own troubles: test_redis_tier.py; answers that
are stored: test_output_caching.py."""
import glob
import os
import shutil
import subprocess
import tempfile
import time

import pytest
from suite import SLOW, TINY_MODEL, Suite

N = 12                          # tokens of an answer
BLOCK = 16
PROMPTS = [[3 + (13 * k + 41 * i) % 310 for k in range(150)] for i in range(10)]
BLOCKS = len(PROMPTS) * (150 // BLOCK)      # full blocks of all prompts
WORKER = {"block_tokens": BLOCK, "kv_eviction": "offload", "storage_read": "always", "kv_blocks": 30, "storage_lookup_wait_ms": 60000, "storage_read_wait_ms": 60000,
          "offload_wait_ms": 2000}


@pytest.fixture(scope="module")
def want():
    with Suite("1p1d", TINY_MODEL, worker={"block_tokens": BLOCK, "storage": "none"}) as s:
        return [s.tokens(p, N) for p in PROMPTS]


LARGE = [[3 + (17 * k + 41 * i) % 310 for k in range(480)] for i in range(12)]      # 4 MiB of blocks
LARGE_WORKER = {"kv_type": "f32", "kv_blocks": 40}


@pytest.fixture(scope="module")
def want_large():
    with Suite("1p1d", TINY_MODEL, worker={"block_tokens": BLOCK, "storage": "none", "kv_type": "f32"}) as s:
        return [s.tokens(p, N) for p in LARGE]


@pytest.fixture
def folder():
    d = tempfile.mkdtemp(prefix="pdserve-tier-")      # short: it also holds a socket
    yield d
    shutil.rmtree(d, ignore_errors=True)


@pytest.fixture
def redis(folder):
    path = os.path.join(folder, "redis")
    p = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--dir", folder],
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    end = time.time() + 30 * SLOW
    while not os.path.exists(path):
        assert time.time() < end and p.poll() is None, "redis-server does not start; tools/setup --test installs it"
        time.sleep(0.01)
    yield "unix:" + path
    p.kill()
    p.wait()


def suite(layout="1p1d", worker=None, **storage):
    return Suite(layout, TINY_MODEL, worker={**WORKER, **(worker or {})}, storage={"memory_mb": 0, "redis_timeout_ms": 1000 * SLOW, "redis_lookup_ms": 200 * SLOW, **storage})


def on_disk(folder, mb=64):
    return {"disk_path": os.path.join(folder, "blocks"), "disk_mb": mb}


def tier(s, name):
    """Of what pdctl storage says."""
    return next(t for t in s.ctl("storage", "storage")["tiers"] if t["tier"] == name)


def until(what, f, timeout=60, seen=lambda: ""):
    end = time.time() + timeout * SLOW
    while not f():
        assert time.time() < end, (what, seen())
        time.sleep(0.02)


def ask_all(s, want):
    assert [s.tokens(p, N) for p in PROMPTS] == want


def at_rest(s):
    """Nothing is being written: by no worker, in no batch, and no more blocks were put than a moment ago."""
    def same():
        a = s.ctl("storage", "storage")
        time.sleep(0.15)
        b = s.ctl("storage", "storage")
        return ([t["puts"] for t in a["tiers"]] == [t["puts"] for t in b["tiers"]] and not any(w["batches"] for w in b["workers"])
                and not any(s.kv(w)["writing"] for w in s.workers()))
    until("storage does not come to rest", same)


def fill(s, want, name):
    """Asks until all that falls out of the pool is in the tier. On a busy machine what is evicted was not always written before: it is computed again, and has another chance."""
    def most():
        ask_all(s, want)
        at_rest(s)
        t = tier(s, name)
        stored = t["puts"] - t["known"] if name == "redis" else t["blocks"]      # Redis says now and then only how many blocks it has
        return stored >= BLOCKS - WORKER["kv_blocks"]
    until("blocks are not written", most)


def hits_grow(s, want, name, n):
    """Asks until so many more are found there: a read that comes too late, on a busy machine, is given up and its blocks computed."""
    begun = read_from(s)[name], tier(s, name)["hits"]
    until("blocks are not read", lambda: ask_all(s, want) or (read_from(s)[name] > begun[0] + n and tier(s, name)["hits"] > begun[1] + n))


def read_from(s):
    """Blocks that the prefill worker has read, by tier."""
    return {t["tier"]: t["read_blocks"] for t in s.kv("prefill-1")["storage"]["tiers"]}


@pytest.mark.parametrize("name", ["memory", "disk", "redis"])
def test_one_tier(want, folder, redis, name):
    """What leaves the pool is written there, and read from there."""
    conf = {"memory": {"memory_mb": 64}, "disk": on_disk(folder), "redis": {"redis": redis}}[name]
    with suite(**conf) as s:
        fill(s, want, name)
        hits_grow(s, want, name, BLOCKS // 2)
        t = tier(s, name)
        assert t["corrupt"] == 0 and t["errors"] == 0, t
        got = read_from(s)
        assert got[name] > BLOCKS // 2 and sum(got.values()) == got[name], got
        s.quiet()


def test_stack(want_large, folder, redis):
    """Each tier too small for all: what one has no room for is copied to the next, and found there."""
    conf = {"memory_mb": 1, "memory_eviction": "offload", "offload_percent": 50, "disk_eviction": "offload", "redis": redis}
    with suite(worker=LARGE_WORKER, **conf, **on_disk(folder, 2)) as s:

        def all_hit():
            assert [s.tokens(p, N) for p in LARGE] == want_large
            at_rest(s)
            return tier(s, "disk")["hits"] > 30 and tier(s, "redis")["hits"] > 30
        until("not both of disk and Redis are read", all_hit, timeout=180, seen=lambda: (s.ctl("storage", "storage")["tiers"], s.log("storage")[-2000:]))
        memory, disk, below = (tier(s, t) for t in ("memory", "disk", "redis"))
        assert memory["bytes"] <= 1 << 20 and disk["bytes"] <= 2 << 20, (memory, disk)
        assert memory["corrupt"] + disk["corrupt"] + below["corrupt"] == 0
        s.quiet()


def test_damaged_segments(want, folder):
    """Bytes of blocks change while nobody looks: their checksums say so, and they are computed again."""
    with suite(**on_disk(folder)) as s:
        fill(s, want, "disk")
        s.kill("storage")
        files = glob.glob(os.path.join(folder, "blocks", "segment-*"))
        assert files, (os.listdir(os.path.join(folder, "blocks")), s.log("storage")[-2000:])
        for f in files:
            with open(f, "r+b") as data:
                for at in range(100, os.path.getsize(f), 4096):
                    data.seek(at)
                    data.write(b"\x5a\xa5")
        s.restart("storage")
        s.ready()
        ask_all(s, want)
        until("none is found damaged", lambda: ask_all(s, want) or tier(s, "disk")["corrupt"] > 0)
        s.quiet()


def test_two_workers_store_a_block_once(want):
    """Two prefill workers, two decode workers: nobody's block is there twice, and one finds what another wrote."""
    with suite("2p2d", memory_mb=64) as s:
        for _ in range(3):
            ask_all(s, want)
        until("no hit", lambda: ask_all(s, want) or tier(s, "memory")["hits"] > 0)
        at_rest(s)
        t = tier(s, "memory")
        assert t["blocks"] <= len(PROMPTS) * ((150 + N) // BLOCK), t
        assert t["corrupt"] == 0, t
        s.quiet()


def test_flush(want, folder):
    with suite(memory_mb=64, memory_eviction="write_through", write_through_after=0, **on_disk(folder)) as s:
        fill(s, want, "memory")
        fill(s, want, "disk")
        assert s.ctl("storage", "flush", "memory")["blocks"] > 0
        assert tier(s, "memory")["blocks"] == 0 and tier(s, "disk")["blocks"] > 0
        before = sum(read_from(s).values())
        until("nothing is read", lambda: ask_all(s, want) or sum(read_from(s).values()) > before)
        s.quiet()
        for w in s.workers():                             # what they do not have they do not write again
            s.ctl(w, "flush")
        at_rest(s)
        s.ctl("storage", "flush")
        hits = tier(s, "memory")["hits"] + tier(s, "disk")["hits"]
        assert s.tokens(PROMPTS[0], N) == want[0]
        assert tier(s, "memory")["hits"] + tier(s, "disk")["hits"] == hits
        s.quiet()
