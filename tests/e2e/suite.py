"""suite.py - starts real daemons for a test, with a folder of their own, and lets the test kill, stop, restart and question each.

    with Suite(layout="1p1d", model=PATH, worker={"threads": 1}) as s:
        s.post("/v1/completions", {...})
        s.kill("decode-1", signal.SIGKILL)

Daemons: router, messager, storage, prefill-N, decode-N, mixed-N. Nothing is shared between two suites; everything ends with the `with`.
"""
import hashlib
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SAN = os.environ.get("SAN", "")
BUILD = os.path.join(ROOT, "build" + ("-" + SAN if SAN else ""))
BIN = os.path.join(BUILD if os.path.isdir(BUILD) else ROOT, "bin")      # in the folder of `make dist` the root has it
FAULTY = os.path.join(os.path.dirname(BIN), "faulty")
GOLDEN = os.path.join(ROOT, "tests", "data", "golden")
TINY_MODEL = os.path.join(GOLDEN, "llama")
SIM = os.path.join(ROOT, "etc", "sim")
CUDA_HOST = os.path.join(BUILD, "cuda_host")
CUDA_QUICK = os.path.join(CUDA_HOST, "quick")      # without the backend's self-test
SLOW = 12 if SAN else 4         # all limits of time times this: sanitizers make everything slower, and so do other programs of a busy machine
ENV = {**os.environ, "ASAN_OPTIONS": "detect_leaks=1:exitcode=99", "UBSAN_OPTIONS": "print_stacktrace=1",
       "TSAN_OPTIONS": "exitcode=98:suppressions=" + os.path.join(ROOT, "tests", "data", "tsan.supp")}


_ports = []


def free_port(host="127.0.0.1", port=0):
    """A port that stays ours while this process lives, although nobody listens: the system gives it to no other bind() or connect(). A daemon, which says
    SO_REUSEADDR, can listen there, again and again. host: "" for all addresses of this machine. port: this one, or OSError."""
    s = socket.socket()
    s.bind((host, port))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    _ports.append(s)
    return s.getsockname()[1]


def need_descriptors(n):
    """Raises this process's own limit of open files to n; the test is skipped where the system allows fewer."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < n:
        raise unittest.SkipTest(f"it needs {n} open files, the system allows {hard} (ulimit -Hn)")
    if soft != resource.RLIM_INFINITY and soft < n:
        resource.setrlimit(resource.RLIMIT_NOFILE, (n, hard))


def wait_for(cond, what="waited too long", timeout=20):
    """Until it is true; returns what it gave. what: said when it never is, or a function that gives that."""
    end = time.time() + timeout * SLOW
    while not (got := cond()):
        assert time.time() < end, what() if callable(what) else what
        time.sleep(0.01)
    return got


def log_thread_rests(pid):
    """Waits while the log's thread of this process has something to do and waits for a processor, or writes."""
    try:
        tasks = [f"/proc/{pid}/task/{t}/" for t in os.listdir(f"/proc/{pid}/task")]
        for task in [t for t in tasks if open(t + "comm").read() == "log\n"]:
            wait_for(lambda task=task: open(task + "stat").read().rsplit(")", 1)[1].split()[0] not in "RD", "the log's thread does not come to rest", 60)
    except OSError:     # it has ended
        pass


def value(v):
    if isinstance(v, bool):
        return "true" if v else "false"
    if isinstance(v, (int, float)):
        return repr(v)
    if isinstance(v, (list, tuple)):
        return "(" + ", ".join(json.dumps(x) for x in v) + ")"
    return json.dumps(v)


DEVICE_KEYS = ("flops", "bandwidth", "launch_us", "step_us", "tp", "exchange_us", "link_bandwidth", "time_scale", "check", "hang_step")


def sim_description(base, **changes):
    """The text of etc/sim/BASE.conf with other values of some keys: sim_description("small", time_scale=0.1, layers=8)."""
    with open(os.path.join(SIM, base + ".conf")) as f:
        text = f.read()
    for key, v in changes.items():
        line = f"{key} = {'[ ' + ', '.join(map(str, v)) + ' ]' if isinstance(v, (list, tuple)) else value(v)};"
        text, n = re.subn(rf"(?m)^\t{key} = [^;]*;", "\t" + line, text)
        if not n:
            group = "device" if key in DEVICE_KEYS else "model"
            text = re.sub(rf"(?m)^{group} = {{$", f"{group} = {{\n\t{line}", text)
    return text


class Suite:
    """sim: workers run on a simulated accelerator. A name in etc/sim ("small"), or a dict: {"base": "small", "time_scale": 0.1, "prefill": {...}}: changes
    of the description, and of it for prefill or decode workers alone. The router then has no tokenizer, prompts are token ids, unless
    router={"model": ...} names one whose vocabulary is not larger.
    gpu: workers run on the CUDA backend, on the host's stand-in for a GPU (tests/cuda_host) or, with PD_GPU=1, on the machine's. A dict of daemons' names and
    the environment that each gets ({} for none): {"decode-1": {"CUDA_HOST_FAIL": "embed_rows:9"}}.
    {"fault": RULES} among a daemon's settings is no setting: it runs as the program of `make faulty`, which loses, repeats and delays messages by these rules
    (tests/fault/fault.h).
    keys: access keys of clients: {"name": "key"}, or ("key", "requests=5 shared-cache").
    """

    def __init__(self, layout="1p1d", model=None, worker=None, prefill=None, decode=None, router=None, messager=None, storage=None, wait=True, sim=None,
                 gpu=None, keys=None):
        self.model = model or os.environ.get("PD_MODEL") or os.path.join(GOLDEN, "llama")
        self.dir = tempfile.mkdtemp(prefix="pdserve-test-")
        if keys is not None:
            router = {"api_keys_file": self.write_keys(keys), **(router or {})}
        if sim:
            sim = {"base": sim} if isinstance(sim, str) else dict(sim)
            roles = {k: sim.pop(k, {}) for k in ("prefill", "decode")}
            for role, changes in roles.items():
                with open(os.path.join(self.dir, f"sim-{role}.conf"), "w") as f:
                    f.write(sim_description(**{**sim, **changes}))
            worker = {"backend": "sim", **(worker or {})}
            router = {"model": "", **(router or {})}
        self.gpu = gpu
        if gpu is not None:
            # not the GPU's own defaults, but those of the CPU, with whose tokens the GPU's are compared; {"defaults": True}: without these
            more = dict(worker or {})
            alike = {} if more.pop("defaults", False) else {"activation_type": "f32", "max_batched_tokens": 512, "max_sequences": 64, "embeddings": True}
            worker = {"backend": "cuda", **alike, **more}
            # a step of the stand-in takes seconds on a busy machine
            messager, prefill = {"stall_ms": 2000 * SLOW, **(messager or {})}, {"stall_ms": 5000 * SLOW, **(prefill or {})}
        self.port = free_port()
        self.procs, self.argv, self.logs = {}, {}, {}
        self.wait = wait
        self.names = self._names(layout)
        base = {"model": self.model, "threads": 1, "kv_memory_mb": 128, **(worker or {})}
        self.conf = {}
        for name in self.names:
            kind = name.split("-")[0]
            if kind == "router":
                c = {"model": self.model, "http_listen": f"127.0.0.1:{self.port}", **(router or {})}
            elif kind == "messager":
                c = dict(messager or {})
            elif kind == "storage":
                c = {"memory_mb": 64, **(storage or {})}
            else:
                if sim:
                    base["model"] = os.path.join(self.dir, f"sim-{'prefill' if kind == 'prefill' else 'decode'}.conf")
                c = {**base, **((prefill if kind == "prefill" else decode) or {})}
                if kind == "mixed":
                    c["role"] = "mixed"
            self.conf[name] = {"name": name, "rundir": self.dir, **c}

    def write_keys(self, keys):
        path = os.path.join(self.dir, "api_keys")
        with open(path, "w") as f:
            for name, v in keys.items():
                key, more = v if isinstance(v, tuple) else (v, "")
                f.write(f"{name} sha256:{hashlib.sha256(key.encode()).hexdigest()} {more}\n")
        return path

    @staticmethod
    def _names(layout):
        m = re.fullmatch(r"(\d+)p(\d+)d", layout)
        if m:
            return (["router", "messager", "storage"] + [f"prefill-{i + 1}" for i in range(int(m[1]))]
                    + [f"decode-{i + 1}" for i in range(int(m[2]))])
        m = re.fullmatch(r"(\d*)mixed", layout)
        return ["router", "storage"] + [f"mixed-{i + 1}" for i in range(int(m[1] or 1))]

    PROGRAM = {"router": "pdrouterd", "messager": "pdmessagerd", "storage": "pdstoraged", "prefill": "pdprefilld", "decode": "pddecoded", "mixed": "pddecoded"}

    # --- life
    def __enter__(self):
        try:
            for name in self.names:
                self.start(name)
            if self.wait:
                self.ready()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def start(self, name):
        path = os.path.join(self.dir, name + ".conf")
        with open(path, "w") as f:
            for k, v in self.conf[name].items():
                if k == "fault":
                    continue
                f.write(f"{k} = {value(v)};\n")
        argv = [os.path.join(FAULTY if self.conf[name].get("fault") else BIN, self.PROGRAM[name.split("-")[0]]), "-c", path]
        log = open(os.path.join(self.dir, name + ".log"), "ab")
        self.procs[name] = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=self._env(name))
        log.close()

    def _env(self, name):
        env = {**ENV, "PDSERVE_FAULT": self.conf[name]["fault"]} if self.conf[name].get("fault") else ENV
        if self.gpu is None or os.environ.get("PD_GPU"):
            return env
        # without the self-test, which takes most of a start on the stand-in
        return {**env, "PDSERVE_BACKENDS": CUDA_QUICK, "PDSERVE_CUDA_WGMMA": "0", **self.gpu.get(name, {})}

    def ready(self, timeout=60):
        """Waits until all that was started is one whole: every link stands, between lives that are there now, and both ends say so. What a daemon was before it
        was restarted, or has not noticed yet, does not count."""
        end, lacks = time.time() + timeout * SLOW, "not asked yet"
        while time.time() < end:
            for n, p in self.procs.items():
                if p.poll() is not None:
                    raise RuntimeError(f"{n} ended with {p.returncode}:\n{self.log(n)[-3000:]}")
            lacks = self._lacks()
            if not lacks:
                return
            time.sleep(0.05)
        raise RuntimeError(f"not ready: {lacks}\n{self.log('router')[-3000:]}")

    def _lacks(self):
        """What is missing, or None."""
        r = self.pdctl("--json", "-t", "2000", "status")
        try:
            rows = {d["name"]: d for d in json.loads(r.stdout)}
        except ValueError:
            return r.stderr.strip()
        for n, p in self.procs.items():
            if rows.get(n, {}).get("pid") != p.pid or rows[n]["state"] != "running":
                return f"{n} does not answer as a running daemon: {rows.get(n)}"
        for a, b in self._links(rows):
            for x, y in ((a, b), (b, a)):
                if not any(p["name"] == y and p["up"] and p["epoch"] == rows[y]["epoch"] for p in rows[x]["peers"]):
                    return f"no link from {x} to {y}'s present life: {rows[x]['peers']}"
        return self._lacks_memory(rows) or self._lacks_at_router(rows)

    def _uses(self, worker, name):
        return name in self.procs and self.conf[worker].get(name) != "none"

    def _links(self, rows):
        workers = [n for n in self.workers() if n in self.procs]
        links = [("router", w) for w in workers if "router" in self.procs]
        links += [(w, n) for n in ("messager", "storage") for w in workers if self._uses(w, n)]
        return links + [(p, d) for p in workers for d in workers if (rows[p]["role"], rows[d]["role"]) == ("prefill", "decode")]

    def _lacks_memory(self, rows):
        """The workers' memory is mapped by the messager and by storage, and both sides know."""
        for w in (w for w in self.workers() if w in self.procs):
            if self._uses(w, "messager"):
                epoch = rows["messager"]["epoch"]
                if not any(a["name"] == w and a["epoch"] == rows[w]["epoch"] and a["linked"] for a in rows["messager"]["attached"]):
                    return f"the messager has not mapped {w}'s memory: {rows['messager']['attached']}"
                log = self.log(w)
                if log.rfind(f"event=attach_on to=messager epoch={epoch}") <= log.rfind("event=worker_ready"):
                    return f"{w} does not know that the messager has its memory"
            if self._uses(w, "storage") and not rows[w].get("storage_ready"):
                return f"{w} is not attached to storage"
        return None

    def _lacks_at_router(self, rows):
        if "router" not in self.procs:
            return None
        try:
            if self.get("/ready")[0] != 200:
                return "the router says that it is not ready"
        except OSError as e:
            return f"the router's port: {e}"
        r = self.pdctl("--json", "-t", "2000", "workers")
        known = {w["name"]: w for w in json.loads(r.stdout)} if r.returncode == 0 else {}
        for n in (n for n in self.workers() if n in self.procs):
            w = known.get(n, {})
            if w.get("state") != "up" or int(w["epoch"], 16) != rows[n]["epoch"] or w["role"] != rows[n]["role"]:
                return f"the router does not know {n} as it is: {w}"
            if self._uses(n, "messager") and w["role"] != "mixed" and w["handover"] == "none":
                return f"the router does not know that {n} has a messager: {w}"
        return None

    def __exit__(self, *exc):
        for p in self.procs.values():
            if p.poll() is None:
                p.send_signal(signal.SIGCONT)
                p.terminate()
        codes = {}
        end = time.time() + 30 * SLOW
        for n, p in self.procs.items():
            try:
                codes[n] = p.wait(max(0.1, end - time.time()))
            except subprocess.TimeoutExpired:
                p.kill()
                codes[n] = "killed: did not end by SIGTERM"
        bad = {n: c for n, c in codes.items() if c not in (0, -signal.SIGKILL, -signal.SIGTERM)}
        if exc[0] is not None:
            self._tell(codes)
        text = "\n".join(f"--- {n} {c}\n{self.log(n)[-4000:]}" for n, c in bad.items())
        if exc[0] is None or not os.environ.get("KEEP"):
            shutil.rmtree(self.dir, ignore_errors=True)
        if bad and exc[0] is None:
            raise AssertionError("daemons ended badly:\n" + text)

    def _tell(self, codes):
        """What the daemons did before a test failed; pytest shows it with the failure."""
        for n, c in codes.items():
            lines = self.log(n).splitlines()
            odd = [x for x in lines[:-20] if " level=info " not in x and " level=debug " not in x]
            print(f"--- {n} ended with {c}", *odd[-20:], "   ...", *lines[-20:], sep="\n")

    def kill(self, name, sig=signal.SIGKILL, wait=True):
        self.procs[name].send_signal(sig)
        if wait and sig in (signal.SIGKILL, signal.SIGTERM):
            return self.procs[name].wait(30 * SLOW)

    def restart(self, name):
        self.start(name)

    def log(self, name):
        """All that a daemon has logged so far. A living one's lines lie with its log's thread for up to 20 ms (LINGER_MS in log.c) after that thread was woken, and
        until it has a processor afterwards."""
        if name in self.procs and self.procs[name].poll() is None:
            log_thread_rests(self.procs[name].pid)
            time.sleep(0.025)
            log_thread_rests(self.procs[name].pid)
        try:
            with open(os.path.join(self.dir, name + ".log"), errors="replace") as f:
                return f.read()
        except OSError:
            return ""

    # --- talking
    def pdctl(self, *args):
        return subprocess.run([os.path.join(BIN, "pdctl"), "-r", self.dir, *args], capture_output=True, text=True, timeout=60 * SLOW, env=ENV)

    def _ask(self, name, *args):
        """One that has just been started is waited for; one that has ended is not."""
        end = time.time() + 60 * SLOW
        while True:
            r = self.pdctl("-t", "5000", "-d", name, *args)
            if r.returncode == 0:
                return r.stdout
            if r.returncode != 3 or self.procs[name].poll() is not None or time.time() > end:
                raise RuntimeError(f"pdctl {args} at {name}: {r.returncode} {r.stderr}")
            time.sleep(0.02)

    def ctl(self, name, *args):
        return json.loads(self._ask(name, "--json", *args))

    def metrics(self, name):
        """One daemon's figures as Prometheus text."""
        return self._ask(name, "metrics")

    def connection(self, timeout=20):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOW)

    def get(self, path, timeout=10):
        if path == "/metrics":
            time.sleep(0.11)  # a page is kept for 100 ms; this one is of now
        c = self.connection(timeout)
        try:
            c.request("GET", path)
            r = c.getresponse()
            return r.status, r.read().decode()
        finally:
            c.close()

    def post(self, path, body, timeout=120, raw=False):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOW)
        try:
            c.request("POST", path, body if raw else json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            text = r.read().decode()
            return r.status, json.loads(text) if text else None
        finally:
            c.close()

    def stream(self, path, body, timeout=120, headers=None):
        """Yields the JSON of each SSE event; ends at [DONE]."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout * SLOW)
        try:
            c.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json", **(headers or {})})
            r = c.getresponse()
            assert r.status == 200, (r.status, r.read())
            for line in r:
                line = line.decode().strip()
                if line.startswith("data: "):
                    if line == "data: [DONE]":
                        return
                    yield json.loads(line[6:])
        finally:
            c.close()

    def tokens(self, prompt, n=16, **more):
        """Greedy token ids of a completion (prompt: text or ids)."""
        status, r = self.post("/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_token_ids": True, **more})
        assert status == 200, (status, r)
        return r["choices"][0]["token_ids"]

    def workers(self):
        return [n for n in self.names if n.split("-")[0] in ("prefill", "decode", "mixed")]

    def kv(self, name):
        return self.ctl(name, "kv")

    def quiet(self, timeout=15):
        """All workers hold nothing: waits for it, and fails naming what is held."""
        end, held = time.time() + timeout * SLOW, {}
        while time.time() < end:
            held = {}
            for n in self.workers():
                if self.procs[n].poll() is not None:
                    continue
                k = self.kv(n)
                assert k["sum"] == k["blocks"], k
                if k["held"] or k["leased"] or self.ctl(n, "requests"):
                    held[n] = (k["held"], self.ctl(n, "requests"))
            if not held:
                return
            time.sleep(0.1)
        raise AssertionError(f"still held: {held}")
