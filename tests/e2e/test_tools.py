"""pdctl, the options that all daemons share, and the launcher: what they print, what they return, what they leave behind."""
import fcntl
import hashlib
import http.client
import http.server
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time

import pytest
from suite import BIN, ROOT, SLOW, Suite, free_port

PROGRAMS = ["pdrouterd", "pdprefilld", "pddecoded", "pdmessagerd", "pdstoraged"]
LAUNCH = os.path.join(ROOT, "tools", "pdserve-launch")


def run(*argv, **more):
    return subprocess.run(argv, capture_output=True, text=True, timeout=60 * SLOW, **more)


@pytest.fixture(scope="module")
def suite(tiny_model):
    with Suite("1p1d", tiny_model) as s:
        os.makedirs(os.path.join(s.dir, "logs"), exist_ok=True)
        yield s


def pdctl(s, *args):
    return s.pdctl("-t", "30000", *args)


# --- pdctl

def test_status(suite):
    r = pdctl(suite, "status")
    assert r.returncode == 0, r.stderr
    assert r.stdout.split("\n")[0].split() == ["NAME", "STATE", "PID", "UP", "LINKS", "WHAT", "IT", "DOES"]
    rows = {line.split()[0]: line.split() for line in r.stdout.strip().split("\n")[1:]}
    assert set(rows) == set(suite.names)
    assert all(row[1] == "running" for row in rows.values())
    daemons = json.loads(pdctl(suite, "--json", "status").stdout)
    assert {d["name"]: d["pid"] for d in daemons} == {n: p.pid for n, p in suite.procs.items()}
    assert daemons[0]["name"] == "router"


def test_workers_and_kv(suite):
    assert {w["name"] for w in json.loads(pdctl(suite, "workers", "--json").stdout)} == {"prefill-1", "decode-1"}
    assert "prefill-1" in pdctl(suite, "workers").stdout
    kv = json.loads(pdctl(suite, "--json", "kv").stdout)
    assert set(kv) == {"prefill-1", "decode-1"}
    assert all(k["sum"] == k["blocks"] for k in kv.values())


def test_config(suite):
    keys = json.loads(pdctl(suite, "-d", "decode-1", "--json", "config").stdout)
    assert keys["threads"]["value"] == 1 and keys["threads"]["source"].endswith("decode-1.conf:4"), keys["threads"]
    assert keys["heartbeat_ms"]["source"] == "default"
    r = pdctl(suite, "-d", "decode-1", "config", "threads")
    assert r.returncode == 0 and "0 to 256" in r.stdout
    assert pdctl(suite, "config", "nonsense").returncode == 1


def test_log_level_and_metrics(suite):
    assert json.loads(pdctl(suite, "-d", "storage", "--json", "log-level", "debug").stdout) == {"level": "debug"}
    r = pdctl(suite, "-d", "storage", "log-level", "loud")
    assert r.returncode == 1 and "not one of debug, info, warn, error" in r.stderr
    pdctl(suite, "-d", "storage", "log-level", "info")
    text = pdctl(suite, "-d", "decode-1", "metrics").stdout
    assert re.search(r'^pdserve_uptime_seconds\{name="decode-1",role="decode"\} \d+$', text, re.M)
    assert '# TYPE pdserve_messages_sent_total counter' in text


def test_trace(suite):
    status, r = suite.post("/v1/completions", {"prompt": [1, 2, 3, 4, 5], "max_tokens": 4, "temperature": 0, "ignore_eos": True})
    assert status == 200, r
    end = time.time() + 20 * SLOW
    while time.time() < end:
        said = pdctl(suite, "--json", "trace", r["id"]).stdout
        t = json.loads(said or '{"done": false}')        # nothing is known before the log has it
        if t["done"] and any(e["event"] == "decode_done" for e in t["events"]) and {"router", "prefill-1", "decode-1"} <= {e["daemon"] for e in t["events"]}:
            break
        time.sleep(0.1)
    assert t["request"] in r["id"] and t["done"]
    stages = {s["stage"]: s for s in t["stages"]}
    assert list(stages) == ["queue", "prepare", "reserve", "prefill", "transfer", "first token", "decode"]
    assert stages["prefill"]["us"] > 0 and stages["first token"]["us"] >= stages["prefill"]["us"]
    assert {"router", "prefill-1", "decode-1"} <= {e["daemon"] for e in t["events"]}
    at = [e["at_us"] for e in t["events"]]
    assert at == sorted(at) and at[0] == 0
    text = pdctl(suite, "trace", t["request"]).stdout
    assert re.search(r"^  decode +[\d.]+ (us|ms|s)  [.#]{44}$", text, re.M), text
    assert all(e["fields"] in text for e in t["events"] if e["event"] != "request_done"), text


@pytest.mark.parametrize("args,key,want", [
    ((), None, {"temperature": 0.7, "min_p": 0.05}),
    (("-s", "temperature=0", "-s", "top_k=5"), "alpha", {"temperature": 0, "min_p": 0.05, "top_k": 5}),
])
def test_chat_asks(args, key, want):
    asked = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append((self.headers.get("Authorization"), json.loads(self.rfile.read(int(self.headers["Content-Length"])))))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b'data: {"id":"chatcmpl-1","choices":[{"delta":{"content":"Hello"},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n')

        def log_message(self, *_):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        env = {k: v for k, v in os.environ.items() if k != "OPENAI_API_KEY"} | ({"OPENAI_API_KEY": key} if key else {})
        r = run(os.path.join(BIN, "pdctl"), "-u", f"http://127.0.0.1:{server.server_port}", *args, "chat", "Hi", env=env)
    assert (r.returncode, r.stdout) == (0, "Hello\n"), r.stderr
    assert asked[0][0] == (f"Bearer {key}" if key else None)
    assert {k: v for k, v in asked[0][1].items() if k not in ("messages", "stream", "stream_options")} == want


def test_exit_status(suite):
    ctl = os.path.join(BIN, "pdctl")
    assert run(ctl).returncode == 2
    assert run(ctl, "--nonsense").returncode == 2
    assert pdctl(suite, "nonsense").returncode == 2
    assert pdctl(suite, "trace", "xyz").returncode == 2
    assert pdctl(suite, "trace", "--", "-1").returncode == 2
    assert pdctl(suite, "-d", "decode-1", "nonsense").returncode == 1
    assert pdctl(suite, "trace", "0" * 32).returncode == 1
    assert pdctl(suite, "-d", "nobody", "status").returncode == 3
    r = run(ctl, "-r", "/nonexistent", "status")
    assert r.returncode == 3 and "/nonexistent" in r.stderr
    assert run(ctl, "-e", "ipc:///nonexistent", "-t", "200", "status").returncode == 3


def test_killed_daemon_shows_as_down(suite):
    suite.kill("storage")
    try:
        r = pdctl(suite, "status")
        assert r.returncode == 3
        assert re.search(r"^storage +down", r.stdout, re.M), r.stdout
    finally:
        suite.restart("storage")
    suite.ready()
    assert pdctl(suite, "status").returncode == 0


def test_who_looks_does_not_keep_a_daemon_from_starting(tmp_path):
    """Whether a daemon lives is told by its lock, which who looks has for a moment; a daemon that starts in that moment starts all the same."""
    lock = tmp_path / "messager.lock"
    lock.write_text("1 1\n")
    over = threading.Event()

    def look():
        with open(lock) as f:
            while not over.is_set():
                fcntl.flock(f, fcntl.LOCK_SH)
                time.sleep(0.002)
                fcntl.flock(f, fcntl.LOCK_UN)
                time.sleep(0.0005)
    looker = threading.Thread(target=look)
    looker.start()
    try:
        for _ in range(5):
            p = subprocess.Popen([os.path.join(BIN, "pdmessagerd"), "-o", f"rundir={tmp_path}"], stderr=subprocess.PIPE, text=True)
            line = p.stderr.readline()
            while line and "event=ready" not in line:
                line = p.stderr.readline()
            p.terminate()
            rest = p.communicate(timeout=20 * SLOW)[1]
            assert (line != "", p.returncode) == (True, 0), rest
    finally:
        over.set()
        looker.join()


def test_reload(suite):
    path = os.path.join(suite.dir, "router.conf")
    old = open(path).read()
    open(path, "w").write(old + 'log_level = "debug";\nwindow_messages = 1000;\n')
    r = json.loads(pdctl(suite, "-d", "router", "--json", "reload").stdout)
    assert r == {"changed": "log_level", "needs_restart": "window_messages"}
    open(path, "w").write("nonsense = 1;\n")
    r = pdctl(suite, "-d", "router", "reload")
    assert r.returncode == 1 and "router.conf:1: unknown key" in r.stderr
    open(path, "w").write(old)
    suite.procs["router"].send_signal(signal.SIGHUP)
    end = time.time() + 20 * SLOW
    while "debug" in pdctl(suite, "-d", "router", "log-level").stdout and time.time() < end:
        time.sleep(0.05)
    assert "info" in pdctl(suite, "-d", "router", "log-level").stdout


# --- options of every daemon

@pytest.mark.parametrize("program", PROGRAMS)
def test_options(program, tmp_path):
    path = os.path.join(BIN, program)
    assert run(path, "-V").stdout.startswith(program + " ")
    assert "--print-config" in run(path, "-h").stdout
    assert run(path, "--nonsense").returncode == 2
    assert run(path, "extra").returncode == 2
    conf = tmp_path / "x.conf"
    conf.write_text(run(path, "--print-config").stdout)
    r = run(path, "-t", "-c", str(conf))
    assert (r.returncode, r.stdout) == (0, "OK\n"), r.stderr
    conf.write_text("\nheartbeat_ms = 5;\n")
    r = run(path, "-t", "-c", str(conf))
    assert r.returncode == 1 and f"{conf}:2: heartbeat_ms = 5 is out of range: 10 to 60000 ms" in r.stderr


@pytest.mark.parametrize("option,part", [
    ("rundir=/proc/none", "cannot make the run directory /proc/none"),
    ("rundir=relative", "not an absolute path"),
    ("name=a/b", "only letters, digits"),
])
def test_cannot_start(option, part, tmp_path):
    r = run(os.path.join(BIN, "pdmessagerd"), "-o", f"rundir={tmp_path}", "-o", option)
    assert r.returncode == 1 and part in r.stderr


# where others are to connect to, as far as it can be known at start
@pytest.mark.parametrize("program,listen,advertise,part", [
    ("pdmessagerd", "tcp://0.0.0.0:7003", "", 'set advertise = "HOST:PORT"'),
    ("pdmessagerd", "tcp://*:7003", "", 'set advertise = "HOST:PORT"'),
    ("pdmessagerd", "tcp://[::]:7003", "", 'set advertise = "HOST:PORT"'),
    ("pdmessagerd", "tcp://lo:7003", "", 'set advertise = "HOST:PORT"'),
    ("pddecoded", "tcp://0.0.0.0:7001", "", 'set advertise = "HOST:PORT"'),
    ("pdprefilld", "tcp://0:7001", "", 'set advertise = "HOST:PORT"'),
    ("pdmessagerd", "tcp://0.0.0.0:7003", "0.0.0.0:7003", "is a wildcard"),
    ("pdrouterd", "tcp://10.0.0.1:7000", "*:7000", "is a wildcard"),
    ("pdmessagerd", "tcp://0.0.0.0:7003", "10.0.0.1", "allowed is HOST:PORT"),
    ("pdmessagerd", "tcp://0.0.0.0:7003", "tcp://10.0.0.1:7003", "allowed is HOST:PORT"),
    ("pdmessagerd", "", "10.0.0.1:7003", "`listen`, which is not set"),
    # these say it; what is missing next are the keys
    ("pdmessagerd", "tcp://0.0.0.0:7003", "10.0.0.1:7003", "pdctl keygen"),
    ("pddecoded", "tcp://10.0.0.1:7001", "", "pdctl keygen"),
    ("pdrouterd", "tcp://0.0.0.0:7000", "", "pdctl keygen"),
    ("pdstoraged", "tcp://0.0.0.0:7000", "", "pdctl keygen"),
])
def test_no_wildcard_is_advertised(program, listen, advertise, part, tmp_path):
    r = run(os.path.join(BIN, program), "-o", f"rundir={tmp_path}", "-o", f"keys={tmp_path}", "-o", f"listen={listen}", "-o", f"advertise={advertise}")
    assert r.returncode == 1 and part in r.stderr, r.stderr


def test_epoch_grows_when_the_clock_is_set_back(tmp_path):
    lock, late = tmp_path / "messager.lock", 4102444800000000
    lock.write_text(f"1 {late}\n")
    p = subprocess.Popen([os.path.join(BIN, "pdmessagerd"), "-o", f"rundir={tmp_path}"], stderr=subprocess.PIPE, text=True)
    try:
        line = p.stderr.readline()
        while "event=ready" not in line:
            line = p.stderr.readline()
            assert line
        assert int(re.search(r"epoch=(\d+)", line)[1]) == late + 1
    finally:
        p.terminate()
        assert p.wait(10 * SLOW) == 0
    assert not (tmp_path / "messager.ipc").exists()


# --- the launcher

@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_of_the_launcher(word):
    r = run(LAUNCH, word)
    assert r.returncode == 0 and r.stdout.startswith("pdserve-launch - ") and "SPECULATIVE" in r.stdout and not r.stderr
    assert run(LAUNCH, "hlep").returncode == 2


def test_launcher_says_what_is_wrong_with_the_model(tmp_path):
    env = {**os.environ, "RUNDIR": str(tmp_path / "r"), "PORT": str(free_port()), "BIN": BIN, "METRICS_PORT": "off", "KV_MB": "64", "KV_MEMORY_MB": "64"}
    r = run(LAUNCH, "run", env={**env, "MODEL": "Qwen/Qwen3-0.6B"})
    assert r.returncode == 1 and "not downloaded by the name of a hub" in r.stderr
    (tmp_path / "x.gguf").write_bytes(b"PK\x03\x04 an archive, no model")
    r = run(LAUNCH, "run", env={**env, "MODEL": str(tmp_path / "x.gguf")})
    assert r.returncode == 1 and 'not a GGUF file: it starts with "PK.. an "' in r.stderr, r


class Launcher:
    def __init__(self, tmp_path, model, **env):
        self.dir = str(tmp_path / "r")
        self.port = free_port()
        self.env = {**os.environ, "RUNDIR": self.dir, "PORT": str(self.port), "MODEL": model, "THREADS": "1", "KV_MB": "64", "KV_MEMORY_MB": "64", "BIN": BIN, "METRICS_PORT": "off", **env}

    def __enter__(self):
        self.p = subprocess.Popen([LAUNCH, "run"], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines = []
        self.until("ready http://")
        return self

    def __exit__(self, *_):
        self.p.kill()
        self.p.wait()
        self.p.stdout.close()

    def until(self, *parts):
        """Reads what it says up to a line with one of these; a launcher that never says it is killed, and the test fails."""
        limit = threading.Timer(30 * SLOW, self.p.kill)
        limit.start()
        try:
            while not self.lines or not any(part in self.lines[-1] for part in parts):
                line = self.p.stdout.readline()
                assert line, (parts, self.lines)
                self.lines.append(line)
        finally:
            limit.cancel()

    def pids(self):
        """Daemons of this run directory."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                argv = open(f"/proc/{pid}/cmdline").read().split("\0")
            except OSError:
                continue
            if len(argv) > 2 and argv[1] == "-c" and argv[2].startswith(self.dir):
                found[os.path.basename(argv[2])[:-5]] = int(pid)
        return found

    def gone(self):
        end = time.time() + 10 * SLOW
        while self.pids() and time.time() < end:
            time.sleep(0.05)
        return not self.pids()


def test_launcher_restarts_and_ends(tmp_path, tiny_model):
    with Launcher(tmp_path, tiny_model) as l:
        before = l.pids()
        assert set(before) == {"router", "messager", "storage", "prefill-1", "decode-1"}
        os.kill(before["decode-1"], signal.SIGKILL)
        l.until("decode-1 died with status 137")
        end = time.time() + 10 * SLOW
        while len(l.pids()) < 5 and time.time() < end:
            time.sleep(0.05)
        assert l.pids()["decode-1"] != before["decode-1"]
        r = run(LAUNCH, "run", env={**l.env, "RUNDIR": l.dir + "2"})
        assert r.returncode == 1 and f"port {l.port} is in use" in r.stderr
        r = run(LAUNCH, "run", env={**l.env, "PORT": str(free_port())})
        assert r.returncode == 1 and "another pdserve is running in" in r.stderr
        l.p.terminate()
        assert l.p.wait(20 * SLOW) == 0
        assert not l.pids()


def test_launcher_restarts_all_that_die_at_once(tmp_path, tiny_model):
    with Launcher(tmp_path, tiny_model) as l:
        before = l.pids()
        victims = set(before) - {"prefill-1"}
        for name in victims:
            os.kill(before[name], signal.SIGKILL)
        end = time.time() + 10 * SLOW
        while not all(l.pids().get(n, before[n]) != before[n] for n in victims):
            assert time.time() < end, (before, l.pids())
            time.sleep(0.05)
        l.p.terminate()
        assert l.p.wait(20 * SLOW) == 0
        said = "".join(l.lines) + l.p.stdout.read()
        assert all(f"{n} died with status 137: restarting it\n" in said for n in victims), said
        assert "Killed" not in said and not l.pids()      # no notes of the shell


def test_launcher_lets_a_stopped_daemon_be(tmp_path, tiny_model):
    """Ended in order by an operator: not started again, the rest goes on; as systemd with Restart=on-failure."""
    with Launcher(tmp_path, tiny_model) as l:
        assert run(os.path.join(BIN, "pdctl"), "-r", l.dir, "stop", "storage").returncode == 0
        l.until("storage was stopped")
        time.sleep(0.5)
        assert set(l.pids()) == {"router", "messager", "prefill-1", "decode-1"}
        l.p.terminate()
        assert l.p.wait(20 * SLOW) == 0


def test_launcher_ends_a_crash_loop(tmp_path, tiny_model):
    """A daemon that cannot live ends everything after five deaths in ten seconds, with its last words."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for p in PROGRAMS + ["pdctl"]:
        (programs / p).symlink_to(os.path.join(BIN, p))
    with Launcher(tmp_path, tiny_model, BIN=str(programs)) as l:
        bad = programs / "pdstoraged"
        bad.unlink()
        bad.write_text("#!/bin/sh\necho 'level=error event=broken why=\"it cannot live\"' >&2\nexit 3\n")
        bad.chmod(0o755)
        os.kill(l.pids()["storage"], signal.SIGKILL)
        l.until("storage died 5 times in 10 s, the last time with status 3: ", "storage died 12 times in 10 min, the last time with status 3: ")     # where a start takes seconds
        assert "it cannot live" in l.lines[-1]
        assert sum("storage died with status" in x for x in l.lines) == (4 if "10 s," in l.lines[-1] else 11)
        assert l.p.wait(20 * SLOW) == 1
        assert not l.pids()


def told_to_systemd(sock, text):
    while True:
        said = sock.recv(4096).decode()
        if text in said:
            return said


@pytest.mark.parametrize("stop_s", [5, 60])
def test_systemd_waits_as_long_as_a_stop_may_take(tmp_path, stop_s):
    """However long stop_timeout_ms is, the unit's TimeoutStopSec does not cut the stop."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.bind(str(tmp_path / "notify"))
        sock.settimeout(20 * SLOW)
        p = subprocess.Popen([os.path.join(BIN, "pdstoraged"), "-o", f"rundir={tmp_path}", "-o", "memory_mb=1", "-o", f"stop_timeout_ms={stop_s * 1000}"],
                             env={**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify")}, stderr=subprocess.DEVNULL)
        try:
            told_to_systemd(sock, "READY=1")
            p.terminate()
            extends = [x for x in told_to_systemd(sock, "STOPPING=1").split("\n") if x.startswith("EXTEND_TIMEOUT_USEC=")]
            assert stop_s + 8 <= int(extends[0].split("=")[1]) / 1e6 <= stop_s + 15
            assert p.wait(20 * SLOW) == 0
        finally:
            p.kill()


def test_launcher_tiers_and_settings(tmp_path, tiny_model):
    disk = tmp_path / 'a "disk"'
    with Launcher(tmp_path, tiny_model, KV_DISK=str(disk), KV_DISK_MB="64", KV_REDIS=f"unix:{tmp_path}/none", KV_EVICTION="write_through", HOST="127.0.0.2",
                  SET="worker.kv_type=f32; decode.max_sequences=8; router.served_model_name=my model") as l:
        r = run(os.path.join(BIN, "pdctl"), "-r", l.dir, "--json", "-d", "storage", "storage")
        tiers = {t["tier"]: t for t in json.loads(r.stdout)["tiers"]}
        assert [tiers[t]["capacity_bytes"] >> 20 for t in ("memory", "disk")] == [64, 64]
        assert [tiers[t]["state"][:5] for t in ("memory", "disk", "redis")] == ["ready", "ready", "away:"]
        assert tiers["memory"]["eviction"] == tiers["disk"]["eviction"] == "write_through"
        assert disk.is_dir()
        r = run(os.path.join(BIN, "pdctl"), "-r", l.dir, "--json", "-d", "decode-1", "config")
        keys = json.loads(r.stdout)
        assert keys["kv_eviction"]["value"] == "write_through"
        assert (keys["kv_type"]["value"], keys["max_sequences"]["value"]) == ("f32", 8)
        r = run(os.path.join(BIN, "pdctl"), "-r", l.dir, "--json", "-d", "prefill-1", "config")
        assert json.loads(r.stdout)["kv_type"]["value"] == "f32" and json.loads(r.stdout)["max_sequences"]["value"] == 64
        r = run(os.path.join(BIN, "pdctl"), "-r", l.dir, "--json", "config")
        assert json.loads(r.stdout)["served_model_name"]["value"] == "my model"
        l.p.terminate()
        assert l.p.wait(20 * SLOW) == 0


def test_launcher_hides_settings(tmp_path, tiny_model):
    """What SET says stands in no command line, at no time, in files of this user alone, and works."""
    keys_file = tmp_path / "keys *"
    keys_file.write_text("".join(f"{k} sha256:{hashlib.sha256(k.encode()).hexdigest()}\n" for k in ("sk-one", "sk-two")))
    seen, over = set(), threading.Event()

    def look():
        while not over.is_set():
            for pid in filter(str.isdigit, os.listdir("/proc")):
                try:
                    line = open(f"/proc/{pid}/cmdline").read()
                except OSError:
                    continue
                if str(keys_file) in line or "sk two" in line:
                    seen.add(line)
    t = threading.Thread(target=look)
    t.start()
    try:
        with Launcher(tmp_path, tiny_model, LAYOUT="mixed", SET=f'router.api_keys_file={keys_file}; '
                      'router.served_model_name=sk two "q"; router.allow_pinning=yes; '
                      'worker.max_sequences=5; router.kv_load_weight=0.25') as l:
            for file in os.listdir(os.path.join(l.dir, "etc")):
                assert os.stat(os.path.join(l.dir, "etc", file)).st_mode & 0o077 == 0, file

            def conf(name):
                r = run(os.path.join(BIN, "pdctl"), "-r", l.dir, "--json", "-d", name, "config")
                return {k: v["value"] for k, v in json.loads(r.stdout).items()}
            keys = conf("router")
            assert keys["api_keys_file"] == str(keys_file) and keys["served_model_name"] == 'sk two "q"'
            assert (keys["allow_pinning"], keys["kv_load_weight"]) == (True, 0.25)
            assert conf("mixed-1")["max_sequences"] == 5

            def status(key):
                c = http.client.HTTPConnection("127.0.0.1", l.port, timeout=10 * SLOW)
                c.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
                return c.getresponse().status
            assert [status(k) for k in ("sk-one", "sk-two", "sk-", "sk-one sk-two")] == [200, 200, 401, 401]
            l.p.terminate()
            assert l.p.wait(20 * SLOW) == 0
    finally:
        over.set()
        t.join()
    assert not seen


def metrics_base(*offsets):
    """A METRICS_PORT at which these ports are free."""
    while True:
        base = free_port() - offsets[0]
        try:
            for n in offsets[1:]:
                with socket.socket() as s:
                    s.bind(("127.0.0.1", base + n))
            return base
        except (OSError, OverflowError):
            pass


def test_launcher_metrics_ports(tmp_path, tiny_model):
    """Each daemon but the router has one; if one of them is in use, the launcher says so: that it goes without them, or, if they were asked for, that it does not."""
    base = metrics_base(1, 301)
    env = {"LAYOUT": "mixed", "METRICS_PORT": str(base)}
    with Launcher(tmp_path, tiny_model, **env) as l:
        for name, port in {"storage": base + 1, "mixed-1": base + 301}.items():
            c = http.client.HTTPConnection("127.0.0.1", port, timeout=10 * SLOW)
            c.request("GET", "/health")
            assert json.loads(c.getresponse().read())["name"] == name
        r = run(LAUNCH, "run", env={**l.env, "RUNDIR": str(tmp_path / "2"), "PORT": str(free_port())})
        assert r.returncode == 1 and f"port {base + 1} of METRICS_PORT={base} is in use" in r.stderr, r.stderr
        l.p.terminate()
        assert l.p.wait(20 * SLOW) == 0
    with socket.create_server(("127.0.0.1", 0)) as taken:
        launcher = (tmp_path / "launch")
        launcher.write_text(open(LAUNCH).read().replace("METRICS_PORT:-9400", f"METRICS_PORT:-{taken.getsockname()[1] - 1}").replace('$(dirname "$0")/..', ROOT))
        launcher.chmod(0o755)
        env = {k: v for k, v in l.env.items() if k != "METRICS_PORT"}
        p = subprocess.Popen([str(launcher), "run"], env={**env, "RUNDIR": str(tmp_path / "3"), "PORT": str(free_port())}, stdout=subprocess.PIPE, text=True)
        lines = iter(p.stdout.readline, "")
        assert f"port {taken.getsockname()[1]} is in use: no metrics ports of the daemons" in next(lines)
        assert any(x.startswith("ready http://") for x in lines)
        p.terminate()
        assert p.wait(20 * SLOW) == 0
        p.stdout.close()


def test_launcher_refuses_a_wrong_setting(tmp_path, tiny_model):
    """As the daemon says it: file, line, key, range."""
    for setting, part in (
            ("worker.max_sequences=many", "max_sequences = many is of the wrong type"),
            ("router.max_requests=0", "max_requests = 0 is out of range"),
            ("router.nonsense=1", 'unknown key "nonsense"')):
        l = Launcher(tmp_path, tiny_model, SET=setting)
        r = run(LAUNCH, "run", env=l.env)
        assert r.returncode == 1 and part in r.stderr and ".conf:" in r.stderr, r.stderr
        assert l.gone()


def test_launcher_killed_leaves_nothing(tmp_path, tiny_model):
    with Launcher(tmp_path, tiny_model, LAYOUT="mixed") as l:
        assert set(l.pids()) == {"router", "storage", "mixed-1"}
        l.p.kill()
        assert l.gone()


@pytest.mark.parametrize("env,part", [
    ({"LAYOUT": "1p"}, "LAYOUT=1p is not a layout"),
    ({"PORT": "0"}, "PORT=0 is not a port"),
    ({"METRICS_PORT": "65500"}, "METRICS_PORT=65500 is not a port: use 1 to 65136, or off"),
    ({"THREADS": "many"}, "THREADS=many"),
    ({"KV_MB": "900000"}, "too little memory"),
    ({"MODEL": "/nonexistent"}, "MODEL=/nonexistent cannot be read"),
    ({"MODEL": os.path.join(ROOT, "README.md")}, "ended while starting"),
    ({"RUNDIR": "/proc/none"}, "cannot create RUNDIR"),
    ({"KV_EVICTION": "never"}, "KV_EVICTION=never is not a policy"),
    ({"KV_MEMORY_MB": "0"}, "leaves nowhere to store blocks"),
    ({"KV_DISK": "/proc/none"}, "cannot create KV_DISK"),
    ({"SET": "max_sequences=8"}, '"max_sequences" is not a setting: use NAME.KEY=VALUE'),
    ({"SET": "router.max_requests=9; decode-2.max_sequences=8"}, "there is no daemon decode-2"),
])
def test_launcher_refuses(tmp_path, tiny_model, env, part):
    l = Launcher(tmp_path, tiny_model, **env)
    r = run(LAUNCH, "run", env=l.env)
    assert r.returncode == 1 and part in r.stderr, (r.stdout, r.stderr)
    assert len(r.stderr.strip().split("\n")) == 1, r.stderr
    assert l.gone()


def test_launcher_tells_who_was_refused(tmp_path, real_model):
    """A simulated worker with fewer tokens than the router's tokenizer never becomes ready: said at once, not after a long wait."""
    l = Launcher(tmp_path, "small", BACKEND="sim", TOKENIZER=real_model)
    r = run(LAUNCH, "run", env=l.env)
    assert r.returncode == 1 and re.search(r'^pdserve: \S+ was refused by "router" reason=".*320 tokens.*"$', r.stderr.strip()), (r.stdout, r.stderr)
    assert l.gone()


def test_fetch_model_without_a_network(tmp_path):
    """A damaged file in the cache is not given out, and what cannot be had is said in one line; nothing half-done stays."""
    if run("python3", "-m", "pip", "--version").returncode:
        pytest.skip("no pip here")
    cache = tmp_path / "pdserve"
    cache.mkdir()
    (cache / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(b"GGUF")
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path), "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_NO_INDEX": "", "PIP_FIND_LINKS": "", "PIP_CONFIG_FILE": "/dev/null",
           "PIP_RETRIES": "1"}
    r = run(os.path.join(ROOT, "tools", "fetch-model"), env={k: v for k, v in env.items() if v})
    lines = r.stderr.strip().split("\n")
    assert r.returncode == 1 and r.stdout == "", r
    assert lines[0].endswith("is damaged: downloading it again"), r.stderr
    assert lines[-1].startswith("model: no network: ") and "MODEL=path" in lines[-1] and "WARNING" not in r.stderr, r.stderr
    assert [f.name for f in cache.iterdir()] == ["SmolLM2-135M-Instruct.Q4_1.gguf"]


# --- run-tests

UNIT_SKIPS = """
echo Running; echo SKIP 1: no disk here; echo; echo SKIP 0: no avx9
echo "100%: Checks: 3, Failures: 0, Errors: 0"
"""
UNIT_FAILS_ONCE = """
[ -e again ] && echo "100%: Checks: 1, Failures: 0, Errors: 0" && exit 0
touch again; echo "0%: Checks: 1, Failures: 1, Errors: 0"; exit 1
"""
UNIT_WAITS = 'echo "100%: Checks: 1, Failures: 0, Errors: 0"'
PYTEST_SKIPS = """
import pytest

def test_a():
    pytest.skip("no moon")

def test_b():
    pass
"""


def test_run_tests_counts(tmp_path):
    """What is skipped has not passed, and is named with its reason; what fails has failed, though it
    would pass if it were asked again."""
    for folder in ("tools", "tests/unit", "tests/e2e", "build/test"):
        (tmp_path / folder).mkdir(parents=True)
    tool = tmp_path / "tools" / "run-tests"
    tool.write_text(open(os.path.join(ROOT, "tools", "run-tests")).read())
    tool.chmod(0o755)
    (tmp_path / "Makefile").write_text("all programs unit-build:\n\t@true\n")
    (tmp_path / "tests" / "e2e" / "test_c.py").write_text(PYTEST_SKIPS)
    for name, script in (("test_a", UNIT_SKIPS), ("test_b", UNIT_FAILS_ONCE),
                         ("test_msg", UNIT_WAITS)):     # one of MOSTLY_WAIT
        (tmp_path / "tests" / "unit" / (name + ".c")).touch()
        program = tmp_path / "build" / "test" / name
        program.write_text("#!/bin/sh\n" + script + "\n")
        program.chmod(0o755)
    r = run(str(tool), "plain", env={**os.environ, "PD_MODEL": "/dev/null", "JOBS": "2"})
    assert r.returncode == 1, r.stdout
    lines = r.stdout.rstrip().split("\n")
    assert lines[-1] == "4 passed, 1 failed", r.stdout
    assert lines[-5:-2] == ["  1 plain test_a: no avx9", "  1 plain test_a: no disk here",
                            "  1 plain test_c: no moon"], r.stdout
    assert lines[-2].startswith("3 skipped, ") and "slowest:" in lines
