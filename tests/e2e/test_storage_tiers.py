"""Storage's tiers in a whole suite: what disk has outlives storage and workers, sizes change by SIGHUP, a disk that is not there is no end, pdctl shows all of it."""
import os
import random
import shutil
import signal
import tempfile
import time

import pytest
from suite import SLOW, Suite, value

RND = random.Random(5)
PROMPTS = [[RND.randrange(3, 300) for _ in range(n)] for n in (70, 100, 150, 200)]
WORKER = {"block_tokens": 16, "kv_blocks": 96, "kv_type": "f32", "kv_eviction": "write_through", "write_through_after": 0, "storage_read": "always",
          "storage_lookup_wait_ms": 60000, "storage_read_wait_ms": 60000}


@pytest.fixture(scope="module")
def wanted(tiny_model):
    with Suite("mixed", tiny_model, worker={**WORKER, "storage": "none"}) as s:
        return [s.tokens(p, 12) for p in PROMPTS]


@pytest.fixture
def disk():
    path = tempfile.mkdtemp(prefix="pdserve-test-disk-")
    yield os.path.join(path, "blocks")
    shutil.rmtree(path, ignore_errors=True)


def tiers(s):
    return {t["tier"]: t for t in s.ctl("storage", "storage")["tiers"]}


def until(cond, what, timeout=30):
    end = time.time() + timeout * SLOW
    while not cond():
        assert time.time() < end, what()
        time.sleep(0.02)


def figure(s, name, daemon):
    return sum(float(line.rsplit(" ", 1)[1]) for line in s.metrics(daemon).splitlines() if line.split("{")[0] == name)


def pdctl(s, *args):
    return s.pdctl("-t", "30000", *args)


def all_stored(s):
    """Nothing that is cached is still to be written."""
    return not any(k["due"] or k["writing"] for k in map(s.kv, s.workers()))


def same_answers(s, wanted):
    for prompt, want in zip(PROMPTS, wanted):
        assert s.tokens(prompt, 12) == want


def test_disk_outlives_storage_and_workers(tiny_model, wanted, disk):
    storage = {"memory_mb": 16, "memory_eviction": "write_through", "write_through_after": 0, "disk_path": disk, "disk_mb": 64}
    with Suite("1p1d", tiny_model, worker=WORKER, storage=storage) as s:
        same_answers(s, wanted)
        s.quiet()
        until(lambda: all_stored(s) and tiers(s)["memory"]["blocks"] > 20 and tiers(s)["disk"]["blocks"] == tiers(s)["memory"]["blocks"], lambda: tiers(s))
        had = tiers(s)["disk"]["blocks"]
        for name in ("storage", "prefill-1", "decode-1"):
            s.kill(name, signal.SIGKILL)
        for name in ("storage", "prefill-1", "decode-1"):
            s.restart(name)
        s.ready()
        assert tiers(s)["disk"]["blocks"] == had
        assert tiers(s)["memory"]["blocks"] == 0
        same_answers(s, wanted)
        t = tiers(s)
        assert t["disk"]["hits"] > 20 and t["disk"]["corrupt"] == 0, t
        until(lambda: tiers(s)["disk"]["promoted"] > 20, lambda: tiers(s))      # they are in memory again
        assert figure(s, "pdserve_prefill_stored_tokens_total", "prefill-1") >= 16 * 20
        s.quiet()


def test_pdctl(tiny_model, wanted, disk):
    with Suite("1p1d", tiny_model, worker=WORKER, storage={"memory_mb": 16, "memory_eviction": "write_through", "write_through_after": 0,
                                                           "disk_path": disk, "disk_mb": 64}) as s:
        same_answers(s, wanted)
        s.quiet()
        until(lambda: all_stored(s) and tiers(s)["disk"]["blocks"] == tiers(s)["memory"]["blocks"] > 0, lambda: tiers(s))      # and nothing comes later
        for command in ("storage", "kv"):
            r = pdctl(s, command)
            rows = [line.split() for line in r.stdout.splitlines()]
            assert r.returncode == 0 and all(any(row[:3] == ["storage", t, "ready"] for row in rows) for t in ("memory", "disk")), r
        r = pdctl(s, "flush", "disk")
        assert r.returncode == 0 and r.stdout.startswith("disk: "), r
        until(lambda: tiers(s)["disk"]["blocks"] == 0 and tiers(s)["memory"]["blocks"] > 0, lambda: tiers(s))
        assert pdctl(s, "flush").returncode == 0
        until(lambda: tiers(s)["memory"]["blocks"] == 0, lambda: tiers(s))
        for bad in (("flush", "tape"), ("flush", "redis"), ("-d", "router", "flush")):
            r = pdctl(s, *bad)
            assert r.returncode == 1 and r.stderr, (bad, r)
        same_answers(s, wanted)


def set_conf(s, **changes):
    s.conf["storage"].update(changes)
    with open(os.path.join(s.dir, "storage.conf"), "w") as f:
        f.writelines(f"{k} = {value(v)};\n" for k, v in s.conf["storage"].items())
    s.kill("storage", signal.SIGHUP)


def test_sighup(tiny_model, wanted, disk):
    with Suite("1p1d", tiny_model, worker=WORKER, storage={"memory_mb": 16, "memory_eviction": "recycle", "disk_path": disk, "disk_mb": 64}) as s:
        same_answers(s, wanted)
        assert tiers(s)["disk"]["blocks"] == 0
        until(lambda: tiers(s)["memory"]["blocks"] > 20, lambda: tiers(s))
        set_conf(s, memory_mb=1, disk_mb=32, memory_eviction="offload", offload_percent=50)
        until(lambda: tiers(s)["memory"]["capacity_bytes"] == 1 << 20 and tiers(s)["disk"]["capacity_bytes"] == 32 << 20, lambda: tiers(s))
        until(lambda: tiers(s)["memory"]["bytes"] <= 1 << 20, lambda: tiers(s))
        until(lambda: tiers(s)["disk"]["blocks"] > 0, lambda: tiers(s))
        same_answers(s, wanted)
        set_conf(s, memory_mb=8)
        until(lambda: tiers(s)["memory"]["capacity_bytes"] == 8 << 20, lambda: tiers(s))
        set_conf(s, memory_mb=0, disk_mb=16)                        # not without a restart; then nothing of it counts
        until(lambda: "event=reload_failed" in s.log("storage"), lambda: s.log("storage"))
        assert (s.ctl("storage", "config")["memory_mb"]["value"], tiers(s)["disk"]["capacity_bytes"]) == (8, 32 << 20)
        same_answers(s, wanted)


def test_a_disk_that_is_named_is_used(tiny_model, wanted, disk):
    """Nothing said of eviction: memory that is full copies down, the last tier drops."""
    with Suite("1p1d", tiny_model, worker=WORKER, storage={"memory_mb": 1, "disk_path": disk, "disk_mb": 64}) as s:
        same_answers(s, wanted)
        until(lambda: tiers(s)["disk"]["blocks"] > 0, lambda: tiers(s))
        assert tiers(s)["memory"]["eviction"] == "offload" and tiers(s)["disk"]["eviction"] == "recycle"


@pytest.mark.parametrize("path", ["/dev/null/blocks", "/proc/blocks", "/nonexistent/folder/blocks"])
def test_no_disk(tiny_model, wanted, path):
    with Suite("1p1d", tiny_model, worker=WORKER, storage={"memory_mb": 16, "disk_path": path, "memory_eviction": "offload"}) as s:
        until(lambda: tiers(s)["disk"]["state"].startswith("unavailable: "), lambda: tiers(s))
        until(lambda: "event=tier_missing" in s.log("storage"), lambda: s.log("storage"))
        same_answers(s, wanted)
        assert tiers(s)["memory"]["state"] == "ready"
