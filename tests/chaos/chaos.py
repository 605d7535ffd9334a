"""chaos.py - everything goes wrong at once, for a while, over all daemons; then: no wrong answer, nothing hung, nothing leaked.

    python tests/chaos/chaos.py [--seconds 600] [--seed 1] [--clients 16] [--layout 2p2d]

Clients ask the tiny golden model, streamed and not, greedy and seeded, one answer or two; some leave in the middle, some speak no HTTP. Meanwhile daemons are killed (-9), stopped for a while (SIGSTOP), ended (SIGTERM) and started again, roles are switched, caches
flushed, and every daemon loses, repeats and delays messages. Prefill workers have two ranks, decode workers draft, storage has memory
and a disk, both small.

What an answer may be: the tokens of a calm run; or a status that says that it was not served (429, 503, 504, with a JSON error; in a
stream an error event after the first of these tokens); or a connection that was cut while the router itself was killed or ended. A cut
while it was there, a stream that ends in order without [DONE], and wrong tokens, whatever follows them, are faults of three kinds, counted
apart and told with the router's lines of that request. Anything else is a fault, too, and so is an answer that takes longer than the request's time limit, a daemon that ended by itself or does not end when told to, a block that is held
at the end, and memory that grows by more than 48 MiB in 600 calm requests after the storm.

Exit: 0, or 1 with each fault in words. `RESULT name=value` lines come last; cut, no_end, wrong and faults must be 0. KEEP=1 keeps the folder of logs of a run with faults.
"""
import argparse
import collections
import http.client
import json
import os
import random
import re
import signal
import socket
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", "e2e")]

import suite  # noqa: E402
from suite import TINY_MODEL, Suite  # noqa: E402

REQUEST_S = 30                  # request_timeout_ms of the router
LATE_S = 15                     # beyond that an answer has hung: threads of a busy machine, a stopped router
STOP_S = 4                      # longest SIGSTOP, longer than silence_ms
FAULTS = "seed={} drop=1% repeat=1% delay=2%:1-10ms cut=0.05%"
GROW_MIB = 48                   # of a daemon's private memory in 600 calm requests after the storm


def lines_of(answer):
    """The lines of a streamed answer. Iterating over http.client's response ends without a word where the connection is cut; this raises."""
    rest = b""
    while True:
        more = answer.read1(65536)
        if not more:
            return
        *lines, rest = (rest + more).split(b"\n")
        yield from lines


def read_stream(answer, leave_at=None):
    """The tokens of each choice, the error event's text or None, and how the stream ended: "done", "no_end" (in order, but without [DONE]), "cut" (the connection
    broke) or "left" (by this client, after so many events)."""
    got, error, events = {}, None, 0
    try:
        for line in lines_of(answer):
            if not line.startswith(b"data: "):
                continue
            if line.strip() == b"data: [DONE]":
                return got, error, "done"
            event = json.loads(line[6:])
            events += 1
            if "error" in event:
                error = event["error"].get("message", "")
            for x in event.get("choices", []):
                got.setdefault(x["index"], []).extend(x.get("token_ids") or [])
            if events == leave_at:
                return got, error, "left"
    except (OSError, http.client.HTTPException):
        return got, error, "cut"
    return got, error, "no_end"


def judge(got, error, end, want):
    """What an answer is: "right", "left", "not_served", or one of the three faults "cut", "no_end" and "wrong". Wrong tokens are that however the answer ended."""
    if any(k >= len(want) or want[k][:len(t)] != t for k, t in got.items()):
        return "wrong"
    if error is not None:
        return "not_served"
    if end != "done":
        return end
    return "right" if [got[k] for k in sorted(got)] == want else "wrong"


class Prompts:
    """Bodies and the tokens that a calm suite gives for them."""

    def __init__(self, seed):
        r = random.Random(seed)
        shared = [[r.randint(3, 300) for _ in range(70)] for _ in range(3)]
        self.bodies = []
        for i in range(30):
            ids = (shared[i % 3] if i % 2 else []) + [r.randint(3, 300) for _ in range(r.randint(1, 90))]
            body = {"prompt": ids, "max_tokens": r.choice((1, r.randint(4, 60), r.randint(4, 60))), "ignore_eos": True, "return_token_ids": True, "temperature": 0}
            if i % 3 == 1:
                body.update(temperature=0.8, seed=1000 + i)
            if i % 5 == 4:
                body.update(logprobs=2)
            if i % 7 == 6:
                body.update(n=2, temperature=0.9, seed=50 + i)
            self.bodies.append(body)

    def learn(self, s):
        self.want = [self._ids(s.post("/v1/completions", b)) for b in self.bodies]

    @staticmethod
    def _ids(answer):
        status, got = answer
        assert status == 200, answer
        return [c["token_ids"] for c in got["choices"]]


class Chaos:
    def __init__(self, args):
        self.args, self.over = args, threading.Event()
        self.lock, self.faults, self.counts = threading.Lock(), [], collections.Counter()
        self.router_gone = []       # (from, to): times at which the router was away or about to be
        self.prompts = Prompts(args.seed)
        self.random = random.Random(args.seed)
        self.longest = 0.0

    def fault(self, text):
        with self.lock:
            if len(self.faults) < 40:
                print("FAULT", text, flush=True)
            self.faults.append(text)

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    # --- clients
    def router_was_away(self, begun):
        """At any time since begun, or it is now."""
        with self.lock:
            return any(to is None or to >= begun for _, to in self.router_gone)

    def cut(self, begun, i, request, what):
        time.sleep(0.3)             # who ends the router says so before, but another thread may be late
        if self.router_was_away(begun - 1):
            self.count("cut by the router's end")
        else:
            self.bad("cut", i, request, f"the connection was cut although the router was there: {what}")

    def bad(self, kind, i, request, text):
        """One of the three kinds of faults of an answer, with what the router says of it."""
        self.count(f"FAULT {kind}")
        number = (request or "").rpartition("-")[2]
        said = [x for x in self.s.log("router").splitlines() if number and number in x][-20:]
        self.fault("\n    ".join([f"request {i} ({request}): {kind}: {text}", *said]))

    def ask(self, r, i):
        body = dict(self.prompts.bodies[i], stream=r.random() < 0.6)
        begun, request = time.time(), None
        c = http.client.HTTPConnection("127.0.0.1", self.s.port, timeout=REQUEST_S + 2 * LATE_S)
        try:
            c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            a = c.getresponse()
            request = a.getheader("X-Request-Id")
            if a.status != 200:
                self.not_served(a, i)
            elif body["stream"]:
                self.take(begun, i, request, *read_stream(a, r.randint(1, 20) if r.random() < 0.1 else None))
            else:
                self.take(begun, i, request, {x["index"]: x["token_ids"] for x in json.loads(a.read())["choices"]}, None, "done")
        except (OSError, http.client.HTTPException) as e:
            self.cut(begun, i, request, repr(e))
        finally:
            c.close()
            took = time.time() - begun
            self.longest = max(self.longest, took)
            if took > REQUEST_S + LATE_S:
                self.fault(f"request {i} took {took:.1f} s")

    def not_served(self, a, i):
        text = a.read().decode(errors="replace")
        try:
            said = json.loads(text)["error"]["message"]
        except (ValueError, KeyError, TypeError):
            said = None
        if a.status in (429, 503, 504) and said:
            self.count(f"not served: {a.status} {re.sub(r'[0-9]+', 'N', said)[:100]}")
        else:
            self.fault(f"request {i}: status {a.status}: {text[:300]}")

    def take(self, begun, i, request, got, error, end):
        want = self.prompts.want[i]
        what = judge(got, error, end, want)
        if what == "not_served":
            self.count(f"not served: error event {re.sub(r'[0-9]+', 'N', error)[:100]}")
        elif what == "cut":
            self.cut(begun, i, request, f"after {got}")
        elif what in ("no_end", "wrong"):
            self.bad(what, i, request, f"{got} instead of {want}, the stream's end: {end}, its error: {error}")
        else:
            self.count(what)

    def garbage(self, r):
        try:
            with socket.create_connection(("127.0.0.1", self.s.port), timeout=2) as c:
                c.sendall(r.choice([b"GET / HTTP/1.1\nHost: x\n\n", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n{",
                                    bytes(r.randrange(256) for _ in range(200)), b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
                                    b"Transfer-Encoding: chunked\r\n\r\nzz\r\n"]))
                c.recv(100)
        except OSError:
            pass
        self.count("garbage")

    def client(self, k):
        r = random.Random(self.args.seed * 1000 + k)
        while not self.over.is_set():
            try:
                x = r.random()
                if x < 0.04:
                    self.garbage(r)
                else:
                    self.ask(r, r.randrange(len(self.prompts.bodies)))
            except Exception as e:  # noqa: BLE001 - a fault of this program is one as well
                self.fault(f"client: {e!r}")
            if self.router_was_away(time.time()):
                time.sleep(0.05)

    # --- what goes wrong
    def away(self, name):
        with self.lock:
            if name == "router":
                self.router_gone.append([time.time(), None])

    def back(self, name):
        if name != "router":
            return
        end = time.time() + 60
        while time.time() < end:
            try:
                if self.s.get("/health", timeout=1)[0] == 200:
                    break
            except OSError:
                time.sleep(0.02)
        with self.lock:
            self.router_gone[-1][1] = time.time()

    def alive(self, name):
        code = self.s.procs[name].poll()
        if code is None:
            return True
        # a worker that was told of its rank's end, or whose step hung, ends with 1 and is started again, as by systemd
        self.count("ended by itself" if code == 1 and self.said_why(name) else "crashed")
        if code != 1 or not self.said_why(name):
            self.fault(f"{name} ended with {code}: {self.s.log(name)[-1500:]}")
        self.s.start(name)
        return False

    def said_why(self, name):
        return "event=give_up" in self.s.log(name)[-4000:]

    def one_event(self):
        name = self.random.choice(self.s.names)
        if not self.alive(name):
            return
        x = self.random.random()
        if x < 0.35:
            self.away(name)
            self.s.kill(name)
            self.count(f"killed {name}")
            self.over.wait(self.random.random() * 1.5)
            self.s.start(name)
            self.back(name)
        elif x < 0.60:
            self.s.kill(name, signal.SIGSTOP)
            self.count(f"stopped {name}")
            self.over.wait(self.random.random() * STOP_S)
            self.s.kill(name, signal.SIGCONT)
        elif x < 0.75:
            self.away(name)
            code = self.s.kill(name, signal.SIGTERM)
            self.count(f"ended {name}")
            if code != 0:
                self.fault(f"{name} ended by SIGTERM with {code}: {self.s.log(name)[-1500:]}")
            self.s.start(name)
            self.back(name)
        elif x < 0.85 and name.startswith("decode"):
            self.s.pdctl("-t", "2000", "-d", name, "role", self.random.choice(["mixed", "decode"]))
            self.count("roles switched")
        elif x < 0.95:
            self.s.pdctl("-t", "2000", "flush")
            self.count("flushed")
        else:
            self.s.pdctl("-t", "2000", "-d", name, "reload")

    def private_mib(self):
        out = {}
        for n, p in self.s.procs.items():
            with open(f"/proc/{p.pid}/smaps_rollup") as f:
                out[n] = sum(int(line.split()[1]) for line in f if line.startswith(("Private_Clean", "Private_Dirty"))) / 1024
        return out

    # --- the run
    def suite(self, faults):
        more = {"fault": FAULTS.format(self.args.seed)} if faults else {}
        disk = {"memory_mb": 16, "disk_path": os.path.join(self.folder, "disk"), "disk_mb": 64} if faults else {}
        worker = {"kv_memory_mb": 24, "block_tokens": 16, "storage_read": "always", **more}
        return Suite(self.args.layout, TINY_MODEL, worker=worker, prefill={"tensor_parallel": 2}, decode={"speculative": "ngram"},
                     router={"request_timeout_ms": REQUEST_S * 1000, **more}, messager=more, storage={**disk, **more})

    def run(self):
        with tempfile.TemporaryDirectory(prefix="pdserve-chaos-") as name:
            self.folder = name
            with self.suite(False) as s:
                self.prompts.learn(s)
            with self.suite(True) as s:
                self.s = s
                self.storm()
                self.calm()
        return self.report()

    def storm(self):
        threads = [threading.Thread(target=self.client, args=(k,)) for k in range(self.args.clients)]
        for t in threads:
            t.start()
        end = time.time() + self.args.seconds
        try:
            while time.time() < end:
                self.over.wait(self.random.random())
                self.one_event()
        finally:
            self.over.set()
            limit = time.time() + REQUEST_S + 3 * LATE_S
            for t in threads:
                t.join(max(0.1, limit - time.time()))
            for t in threads:
                if t.is_alive():
                    self.fault("a client's request never ended")

    def calm(self):
        for name in self.s.names:
            self.alive(name)
        try:
            self.s.ready()
            self.s.quiet(60)
        except (RuntimeError, AssertionError) as e:
            self.fault(f"after the storm: {e}")
            return
        for i in range(len(self.prompts.bodies)):
            status, got = self.s.post("/v1/completions", self.prompts.bodies[i])
            if status != 200 or [c["token_ids"] for c in got["choices"]] != self.prompts.want[i]:
                self.fault(f"after the storm request {i}: {status} {got}")
        self.s.quiet(60)
        small = self.private_mib()
        for _ in range(20):         # what a daemon keeps for itself is taken once, not again and again
            for b in self.prompts.bodies:
                self.s.post("/v1/completions", b)
        for name, mib in self.private_mib().items():
            if mib > small[name] + GROW_MIB:
                self.fault(f"{name}: {small[name]:.0f} MiB of private memory became {mib:.0f} in 600 calm requests")

    def report(self):
        asked = sum(n for what, n in self.counts.items() if what.startswith(("right", "not served", "cut", "left", "FAULT")))
        for what, n in sorted(self.counts.items()):
            print(f"{n:>8}  {what}")
        print(f"RESULT requests={asked}\nRESULT right={self.counts['right']}")
        for kind in ("cut", "no_end", "wrong"):
            print(f"RESULT {kind}={self.counts['FAULT ' + kind]}")
        print(f"RESULT faults={len(self.faults)}\nRESULT longest_s={self.longest:.1f}")
        return 1 if self.faults else 0


def main():
    p = argparse.ArgumentParser(description="everything goes wrong at once, over all daemons")
    p.add_argument("--seconds", type=float, default=600)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--clients", type=int, default=16)
    p.add_argument("--layout", default="2p2d")
    return Chaos(p.parse_args()).run()


if __name__ == "__main__":
    sys.exit(main())
