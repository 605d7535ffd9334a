"""tierlib.py - what the tier benchmarks share: a Redis of their own, the configuration of a stack of tiers, the model's block in bytes, waiting for write-outs."""
import os
import shutil
import subprocess
import tempfile
import time

TIERS = ("memory", "disk", "redis")


class Redis:
    """A redis-server on a unix socket in a folder of its own, in memory alone. `address` is what the storage daemon's setting `redis` takes."""

    def __init__(self, max_mb=1024):
        self.dir = tempfile.mkdtemp(prefix="pdserve-redis-")
        path = os.path.join(self.dir, "s")
        self.address = "unix:" + path
        self.process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--appendonly", "no", "--maxmemory", f"{max_mb}mb",
                                         "--maxmemory-policy", "allkeys-lru", "--dir", self.dir], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.time() + 20
        while not os.path.exists(path):
            if time.time() > end or self.process.poll() is not None:
                self.stop()
                raise RuntimeError("redis-server does not start")
            time.sleep(0.02)

    def stop(self):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)


def have_redis():
    return shutil.which("redis-server") is not None


class Stack:
    """The storage daemon's settings for these tiers: sizes = {"memory": MiB, "disk": MiB, "redis": MiB}, memory offloads to the next one below, disk writes through to Redis (a
    disk of a few dozen blocks has no share worth keeping free). Without any: the least that it starts with, for workers with storage = none.
    Folder and server live as long as the `with`."""

    def __init__(self, **sizes):
        self.sizes, self.redis, self.dir = sizes, None, None

    def __enter__(self):
        c = {"memory_mb": self.sizes.get("memory", 0 if self.sizes else 1), "memory_eviction": "offload", "offload_percent": 30,
             "disk_eviction": "write_through", "write_through_after": 0}
        if "disk" in self.sizes:
            # beside the results: /tmp may be memory
            self.dir = tempfile.mkdtemp(prefix="pdserve-tier-", dir=os.environ.get("BENCH_DISK") or "/var/tmp")
            c.update(disk_path=os.path.join(self.dir, "blocks"), disk_mb=self.sizes["disk"])
        if "redis" in self.sizes:
            self.redis = Redis(self.sizes["redis"])
            c.update(redis=self.redis.address)
        self.conf = c
        return self

    def __exit__(self, *exc):
        if self.redis:
            self.redis.stop()
        if self.dir:
            shutil.rmtree(self.dir, ignore_errors=True)


def figures(s, name):
    """One daemon's figures without labels: name -> number."""
    out = {}
    for line in s.metrics(name).splitlines():
        if line and not line.startswith("#"):
            key, value = line.rsplit(" ", 1)
            key = key.split("{", 1)[0]
            out[key] = out.get(key, 0) + float(value)
    return out


def tier_figures(s, what):
    """{"memory": n, ...} of pdserve_storage_TIER_`what`"""
    f = figures(s, "storage")
    return {t: int(f.get(f"pdserve_storage_{t}_{what}", 0)) for t in TIERS}


def settled(s, seconds=30):
    """Waits until nothing is being written out: the storage daemon has no batch, and its blocks are as many as a moment ago."""
    end, before = time.time() + seconds, None
    while time.time() < end:
        f = figures(s, "storage")
        now = (f["pdserve_storage_batches"], f["pdserve_storage_put_blocks_total"], *(f.get(f"pdserve_storage_{t}_write_bytes_total", 0) for t in TIERS))
        if now[0] == 0 and now == before:
            return
        before = now
        time.sleep(0.1)
    raise RuntimeError("storage does not come to rest")
