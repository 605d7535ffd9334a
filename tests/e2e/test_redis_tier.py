"""Redis as the only tier below the device, under load: killed, stopped, refused and back. Answers stay those of a suite without storage, no request
waits for it longer than its limits, and what is stored is found again when it is back. On the tiny model, whose pool holds a few of the prompts."""
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

import pytest
from suite import BIN, SLOW, TINY_MODEL, Suite

N = 12                          # tokens of an answer
PROMPTS = [[3 + (11 * k + 37 * i) % 310 for k in range(150)] for i in range(10)]
WORKER = {"block_tokens": 16, "kv_eviction": "offload", "storage_read": "always"}
SMALL = {"kv_blocks": 30}       # about three prompts


class Redis:
    """A redis-server on a local socket. Nothing of it outlives the `with`, nor this process."""

    def __init__(self, *more):
        self.dir = tempfile.mkdtemp(prefix="pdserve-redis-")
        self.path = os.path.join(self.dir, "redis")
        self.more = more
        self.proc = None

    def start(self):
        if os.path.exists(self.path):
            os.unlink(self.path)
        argv = ["setpriv", "--pdeathsig", "KILL", "redis-server", "--port", "0", "--unixsocket", self.path, "--save", "", "--appendonly", "no", "--dir", self.dir,
                *self.more]
        self.proc = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        end = time.time() + 30 * SLOW
        while time.time() < end:
            try:
                if self("PING"):
                    return
            except OSError:
                assert self.proc.poll() is None, "redis-server ended; tools/setup --test installs it"
                time.sleep(0.01)
        raise AssertionError("redis-server does not answer")

    def __call__(self, *args):
        """One command; the first line of the answer."""
        with socket.socket(socket.AF_UNIX) as c:
            c.settimeout(20 * SLOW)
            c.connect(self.path)
            c.sendall(b"*%d\r\n" % len(args) + b"".join(b"$%d\r\n%s\r\n" % (len(a), a.encode()) for a in args))
            return c.makefile("rb").readline().decode().strip()

    def kill(self):
        self.proc.kill()
        self.proc.wait()

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *exc):
        if self.proc.poll() is None:
            self.kill()
        shutil.rmtree(self.dir, ignore_errors=True)


@pytest.fixture(scope="module")
def want():
    with Suite("1p1d", TINY_MODEL, worker={"block_tokens": 16, "storage": "none"}) as s:
        return [s.tokens(p, N) for p in PROMPTS]


def suite(redis, **storage):
    return Suite("1p1d", TINY_MODEL, worker=WORKER, prefill=SMALL, decode=SMALL,
                 storage={"memory_mb": 0, "redis": "unix:" + redis.path, "redis_timeout_ms": 300 * SLOW, "redis_lookup_ms": 200 * SLOW, **storage})


def tier(s):
    """Redis's part of what pdctl storage says."""
    return next(t for t in s.ctl("storage", "storage")["tiers"] if t["tier"] == "redis")


def until(what, f, timeout=30):
    end = time.time() + timeout * SLOW
    while not f():
        assert time.time() < end, what
        time.sleep(0.02)


def rounds(s, want, n=1):
    for _ in range(n):
        assert [s.tokens(p, N) for p in PROMPTS] == want


def hits_come(s, want):
    """What is asked again is read from Redis."""
    before = tier(s)["hits"]

    def more():
        rounds(s, want)
        return tier(s)["hits"] > before + 5
    until("no hits", more)


def refused_writes(s):
    return sum(float(line.split()[1]) for w in s.workers() for line in s.metrics(w).splitlines() if re.match("pdserve_[a-z]+_kv_not_written_blocks_total", line))


class Load:
    """Asks on, a few at a time; every answer must be the right one, and come in time."""

    def __init__(self, s, want, threads=3):
        self.s, self.want = s, want
        self.stop, self.bad, self.n, self.slowest = threading.Event(), [], 0, 0.0
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(threads)]

    def run(self, i):
        while not self.stop.is_set():
            begun = time.time()
            try:
                if self.s.tokens(PROMPTS[i % len(PROMPTS)], N) != self.want[i % len(PROMPTS)]:
                    self.bad.append(f"a wrong answer to {i % len(PROMPTS)}")
            except Exception as e:  # noqa: BLE001 - shown by the test
                self.bad.append(repr(e))
            self.slowest = max(self.slowest, time.time() - begun)
            self.n += 1
            i += 3

    def more(self, n=6):
        """So many answers from now on."""
        now = self.n
        until("answers", lambda: self.n >= now + n or self.bad, 60)

    def __enter__(self):
        for t in self.threads:
            t.start()
        return self

    def __exit__(self, *exc):
        self.stop.set()
        for t in self.threads:
            t.join()
        if exc[0] is None:
            assert not self.bad, self.bad[:3]


def test_killed_and_back_under_load(want):
    """Killed -9 twice under load, with nothing kept: nothing hangs, no answer is wrong, hits come back."""
    with Redis() as redis, suite(redis) as s:
        hits_come(s, want)
        with Load(s, want) as load:
            for _ in range(2):
                load.more()
                redis.kill()
                until("away", lambda: tier(s)["state"].startswith("away"))
                load.more()
                redis.start()
                until("ready", lambda: tier(s)["state"] == "ready")
        assert load.slowest < 20 * SLOW
        hits_come(s, want)
        assert tier(s)["corrupt"] == 0
        s.quiet()


def test_stopped_and_back_under_load(want):
    with Redis() as redis, suite(redis) as s:
        hits_come(s, want)
        with Load(s, want) as load:
            load.more()
            redis.proc.send_signal(signal.SIGSTOP)
            until("away", lambda: tier(s)["state"].startswith("away"))
            load.more()
            redis.proc.send_signal(signal.SIGCONT)
            until("ready", lambda: tier(s)["state"] == "ready")
        assert load.slowest < 20 * SLOW
        hits_come(s, want)
        s.quiet()


def test_there_later(want):
    """The suite starts without it, serves, and uses it once it is there; another suite finds what this one left."""
    with Redis() as redis:
        redis.kill()
        with suite(redis) as s:
            rounds(s, want)
            until("away", lambda: tier(s)["state"].startswith("away"))
            assert refused_writes(s) < 500          # the same blocks are not offered again and again
            redis.start()
            until("ready", lambda: tier(s)["state"] == "ready")
            hits_come(s, want)
            until("blocks are not written", lambda: int(redis("DBSIZE")[1:]) > 20 or rounds(s, want))
            s.quiet()
        with suite(redis) as s:
            hits_come(s, want)
            s.quiet()


def test_full_and_damaged(want):
    """maxmemory without eviction, then every stored block damaged: computed again, and dropped there."""
    with Redis() as redis, suite(redis) as s:
        hits_come(s, want)
        redis("CONFIG", "SET", "maxmemory", "1000")
        rounds(s, want)
        redis("CONFIG", "SET", "maxmemory", "0")
        redis("EVAL", "for _, k in ipairs(redis.call('KEYS', '*')) do redis.call('SETRANGE', k, 500, 'damaged') end return 1", "0")
        rounds(s, want)
        until("none is found damaged", lambda: rounds(s, want) or tier(s)["corrupt"] > 0)
        hits_come(s, want)
        s.quiet()


def test_flush_says_what_it_did(want):
    """pdctl waits until the keys are gone, longer than for other answers, while the daemon goes on; a Redis that dies meanwhile is told."""
    with Redis() as redis, suite(redis, redis_timeout_ms=60000) as s:
        rounds(s, want)
        until("nothing is stored", lambda: redis("DBSIZE") != ":0")
        for killed in (False, True):
            os.kill(redis.proc.pid, signal.SIGSTOP)
            flush = subprocess.Popen([os.path.join(BIN, "pdctl"), "-r", s.dir, "flush", "redis"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            until("it is not being flushed", lambda: tier(s)["state"] == "ready, being flushed")
            time.sleep(2.5)
            assert flush.poll() is None and tier(s)["state"] == "ready, being flushed"
            if killed:
                redis.kill()
            else:
                os.kill(redis.proc.pid, signal.SIGCONT)
            out, err = flush.communicate(timeout=60 * SLOW)
            if killed:
                assert flush.returncode == 1 and "redis flush incomplete" in err, err
            else:
                assert flush.returncode == 0 and "blocks dropped" in out and redis("DBSIZE") == ":0", out + err
