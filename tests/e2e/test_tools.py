"""pdctl, and the options that all daemons share: what they print, what they return, what they leave behind."""
import fcntl
import glob
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
from suite import BIN, GOLDEN, ROOT, SLOW, TINY_MODEL, Suite, wait_for

PROGRAMS = ["pdrouterd", "pdprefilld", "pddecoded", "pdrank", "pdmessagerd", "pdstoraged"]


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


def test_a_daemon_with_another_name(tmp_path):
    """The messager is the only one whose name begins so; with two of them pdctl asks which."""
    here, running = ["-r", str(tmp_path), "-t", "30000"], []
    try:
        for name, code in (("messager-1", 0), ("messager-2", 3)):
            p = subprocess.Popen([os.path.join(BIN, "pdmessagerd"), "-o", f"rundir={tmp_path}", "-o", f"name={name}"], stderr=subprocess.PIPE, text=True)
            running.append(p)
            while "event=ready" not in p.stderr.readline():
                assert p.poll() is None
            r = run(os.path.join(BIN, "pdctl"), *here, "links")
            assert r.returncode == code and ('no daemon named "messager"' in r.stderr) == (code == 3), r.stderr
            assert run(os.path.join(BIN, "pdctl"), *here, "-d", name, "links").returncode == 0
        assert 'no daemon named "mess"' in run(os.path.join(BIN, "pdctl"), *here, "-d", "mess", "links").stderr
    finally:
        for p in running:
            p.kill()
            p.wait()


def test_log_level_and_metrics(suite):
    assert json.loads(pdctl(suite, "-d", "storage", "--json", "log-level", "debug").stdout) == {"level": "debug"}
    r = pdctl(suite, "-d", "storage", "log-level", "loud")
    assert r.returncode == 1 and "not one of debug, info, notice, warn, error" in r.stderr
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


@pytest.mark.parametrize("args,key,part", [((), None, "there is none"), (("--api-key", "wrong"), None, "is wrong"), ((), "wrong", "is wrong")])
def test_chat_says_how_to_give_a_key(args, key, part):
    s = Suite("mixed", router={"model": ""}, wait=False, keys={"a": "alpha"})
    s.names = ["router"]
    with s:
        wait_for(lambda: "event=ready" in s.log("router"))
        env = {k: v for k, v in os.environ.items() if k != "OPENAI_API_KEY"} | ({"OPENAI_API_KEY": key} if key else {})
        r = run(os.path.join(BIN, "pdctl"), "-r", s.dir, *args, "chat", "Hi", env=env)
        assert r.returncode == 1 and part in r.stderr and "--api-key KEY" in r.stderr and "OPENAI_API_KEY" in r.stderr and "Bearer" not in r.stderr, r


def test_exit_status(suite):
    ctl = os.path.join(BIN, "pdctl")
    assert run(ctl).returncode == 2
    assert run(ctl, "--nonsense").returncode == 2
    assert pdctl(suite, "nonsense").returncode == 2
    assert pdctl(suite, "trace", "xyz").returncode == 1
    assert pdctl(suite, "trace", "--", "-1").returncode == 1
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
    assert "--print-config" in run(path, "-h").stdout and "--print-metrics" in run(path, "-h").stdout
    assert run(path, "--nonsense").returncode == 2
    assert run(path, "extra").returncode == 2
    conf = tmp_path / "x.conf"
    conf.write_text(run(path, "--print-config").stdout)
    r = run(path, "-t", "-c", str(conf))
    assert (r.returncode, r.stdout) == (0, "OK\n"), r.stderr
    conf.write_text("\nheartbeat_ms = 5;\n")
    r = run(path, "-t", "-c", str(conf))
    assert r.returncode == 1 and f"{conf}:2: heartbeat_ms = 5 is out of range: 10 to 60000 ms" in r.stderr


def test_plan_memory(tmp_path):
    """What a model takes of GPUs, from its config.json alone; nothing is started, and no GPU is needed."""
    def plan(model, *more, program="pddecoded", backend="cuda", arg=""):
        return run(os.path.join(BIN, program), "--plan-memory" + arg, "-o", f"backend={backend}", "-o", f"model={model}", *more)

    deepseek = os.path.join(GOLDEN, "..", "models", "deepseek-v3.json")
    r = plan(deepseek)
    assert r.returncode == 0, r.stderr
    head, lines = r.stdout.split("\n")[0], {int(n): rest for n, *rest in map(str.split, r.stdout.splitlines()[3:])}
    assert head == "deepseek-v3.json: 671.0 billion parameters, context of 163840 tokens; steps of 8192 tokens, 256 sequences, KV in bf16"
    assert list(lines) == [1, 2, 4, 8, 16]
    assert lines[8][0] == "81.73" and lines[8][-2:-1] == ["no"] and int(lines[8][-1]) > 500000 and int(lines[16][-2]) > 300000
    fp8 = plan(deepseek, "-o", "kv_type=fp8", arg="=139", program="pdprefilld").stdout.splitlines()[-2].split()
    assert 1.9 < int(fp8[-1]) / int(lines[8][-1]) < 2.0, "one size, and half the bytes of KV"
    r = plan(deepseek, "-o", "tensor_parallel=3")
    assert r.returncode == 0 and [x.split()[0] for x in r.stdout.splitlines()[3:]] == ["1", "2", "3", "4", "8", "16"]
    r = plan(deepseek, "-o", "pipeline_parallel=2")
    lines = {int(n): rest for n, *rest in map(str.split, r.stdout.splitlines()[3:])}
    assert r.stdout.split("\n")[0].endswith("KV in bf16, 2 stages")
    assert list(lines) == [2, 4, 8, 16, 32] and lines[16][0] == "43.32" and int(lines[16][-2]) > 600000
    assert "32  pipeline_parallel is 2, tensor_parallel 16: a KV pool of 32 parts" in r.stdout
    assert "the model has 2 KV heads" in plan(TINY_MODEL, "-o", "tensor_parallel=3").stdout
    for r, why in [(plan(deepseek, backend="cpu"), "backend is cpu"), (plan(deepseek, arg="=big"), "expected 1 to 4096 GiB"), (plan(deepseek, arg="=nan"), "expected 1 to 4096 GiB"),
                   (plan(tmp_path / "none.json"), "No such file"), (plan(""), "no model"), (run(os.path.join(BIN, "pdrouterd"), "--plan-memory"), "there is no --plan-memory")]:
        assert r.returncode == 1 and why in r.stderr, r.stderr


def test_queue_without_a_place(tmp_path):
    """Each reservation passes through the queue, also one that is granted at once."""
    conf = tmp_path / "x.conf"
    conf.write_text(f'model = "{tmp_path}";\nmax_queued = 0;\n')
    r = run(os.path.join(BIN, "pddecoded"), "-t", "-c", str(conf))
    assert r.returncode == 1 and f"{conf}:2: max_queued = 0 is out of range: 1 to 100000 reservations" in r.stderr


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


# --- systemd, models and tests

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


def test_failed_starts_under_systemd_come_slower_and_slower(tmp_path):
    """However long each takes, and also if the daemon was ready for less than 10 s; a good start, an end in order, and time make the next one immediate again."""
    file = tmp_path / "pdstoraged.starting"

    def start(*options):
        env = {**os.environ, "NOTIFY_SOCKET": str(tmp_path / "notify"), "RUNTIME_DIRECTORY": str(tmp_path)}
        return subprocess.Popen([os.path.join(BIN, "pdstoraged"), "--die-with-parent", str(os.getpid()), "-o", f"rundir={tmp_path}", "-o", "memory_mb=1", *options], env=env, stderr=subprocess.DEVNULL)

    def seconds(option="-omemory_mb=x", status=1):
        t = time.time()
        assert start(option).wait(60 * SLOW) == status
        return time.time() - t
    for s, *failure in ((0, "--nonsense", 2), (1, "--nonsense", 2), (2,), (4,)):
        assert s <= seconds(*failure) < s + 0.9 * SLOW
    assert file.read_text() == "4\n"
    os.utime(file, (0, time.time() - 60))    # it took a minute to fail
    assert 8 <= seconds() and file.read_text() == "8\n"
    os.utime(file, (0, time.time() - 3600))
    assert seconds() < 0.9 * SLOW and file.read_text() == "0\n"
    p = start()
    wait_for(lambda: file.read_text() == "1\n", lambda: "it does not pause")
    p.terminate()
    assert p.wait() == 0 and not file.exists(), "told to end while it waits"

    def ready():
        return subprocess.run([os.path.join(BIN, "pdctl"), "-r", tmp_path, "status"], capture_output=True).returncode == 0
    for s in (0, 1, 2):
        p, t = start(), time.time()
        wait_for(ready)
        assert s <= time.time() - t < s + 0.9 * SLOW
        p.kill()     # a crash soon after it was ready
        p.wait()
    p = start()
    wait_for(ready)
    assert file.exists()
    wait_for(lambda: not file.exists())
    p.kill()     # a crash of one that was ready for long
    p.wait()
    p, t = start(), time.time()
    wait_for(ready)
    assert time.time() - t < 0.9 * SLOW and file.exists()
    p.terminate()
    assert p.wait() == 0 and not file.exists()


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


def test_fetch_model_is_not_packed_alone():
    """It calls tools/setup, and so does what the launcher says: `make dist` packs that, too."""
    packed = re.search(r"^cp (tools/pdserve-launch .*) \"\$to/tools\"$", open(os.path.join(ROOT, "tools", "make-dist")).read(), re.M)[1].split()
    assert {"tools/fetch-model", "tools/setup"} <= set(packed), packed


@pytest.mark.parametrize("words,want", [
    (["rol"], ["role"]), (["role"], ["role"]), (["role", "decode-1", "pre"], ["prefill"]), (["log-level", "d"], ["debug"])])
def test_bash_completes(words, want):
    script = f'. {ROOT}/tools/completion/pdctl.bash; COMP_WORDS=(pdctl "$@") COMP_CWORD=$#; _pdctl; printf "%s\\n" "${{COMPREPLY[@]}}"'
    r = run("bash", "-c", script, "bash", *words, env={**os.environ, "PATH": BIN + ":" + os.environ["PATH"]})
    assert r.stdout.split() == want and not r.stderr, r


# --- make

@pytest.mark.parametrize("given,says", [("Port=1", ", PORT is"), ("MODLE=x", ", MODEL is"), ("LAYUOT=1p1d", ", LAYOUT is"), ("SOAKSECOND=1", ", SOAK_SECONDS is")])
def test_a_misspelt_variable_of_make(given, says):
    r = run("make", "-n", "help", given, cwd=ROOT, env={**os.environ, "MAKEFLAGS": ""})
    assert r.returncode == 2 and f"{given.split('=')[0]} is not a variable of this Makefile{says}" in r.stderr, r
    name, value = given.split("=")
    assert run("make", "-n", "help", cwd=ROOT, env={**os.environ, "MAKEFLAGS": "", name: value}).returncode == 0, "one of the environment is not make's"


@pytest.mark.parametrize("given,warns", [
    (["FLAVOUR=1", "X=1"], 2), (["LDFLAGS=-s", "CPPFLAGS=", "CXXFLAGS=-g", "INSTALL=install -p", "AM_UPDATE_INFO_DIR=no", "DEB_HOST_MULTIARCH=x86_64-linux-gnu", "V=1", "VERBOSE=1"], 0)])
def test_other_variables_of_make(given, warns):
    """Packaging tools pass their own. One that is like none of ours is a warning."""
    env = {k: v for k, v in os.environ.items() if k != "MAKELEVEL"}
    r = run("make", "-n", "help", *given, cwd=ROOT, env={**env, "MAKEFLAGS": ""})
    assert r.returncode == 0 and r.stderr.count("is not a variable of this Makefile, so it has no effect") == len(r.stderr.splitlines()) == warns, r


@pytest.mark.parametrize("name", ["CPPFLAGS", "LDFLAGS"])
def test_flags_of_packaging_tools(name):
    r = run("make", "-n", "-W", "tools/pdctl/main.c", "build/bin/pdctl", f"{name}=-DFOR_THE_TEST", cwd=ROOT, env={**os.environ, "MAKEFLAGS": ""})
    lines = [line for line in r.stdout.splitlines() if "-DFOR_THE_TEST" in line]
    assert len(lines) == 1 and (" -c " in lines[0]) == (name == "CPPFLAGS"), r


def test_variables_of_make_that_are_documented():
    """Those of `make help`, tests/bench/bench.mk and docs/run.md."""
    make = ["make", "-s", "help"]
    env = {**os.environ, "MAKEFLAGS": ""}
    bench, table = (open(os.path.join(ROOT, *path)).read() for path in (("tests", "bench", "bench.mk"), ("docs", "run.md")))
    names = set(re.findall(r"\b([A-Z][A-Z_]*)=", run(*make, cwd=ROOT, env=env).stdout + "".join(re.findall(r"(?m)^#.*\n", bench))))
    names |= {name for cell in re.findall(r"(?m)^\| (`[^|]*) \|", table) for name in re.findall("`([A-Z_]+)`", cell)}
    assert {"PORT", "KV_DISK_MB", "SOAK_SECONDS", "CONNECTIONS", "SAN", "SEED"} <= names, names
    r = run(*make, *(f"{n}=" for n in names), cwd=ROOT, env=env)
    assert r.returncode == 0, r.stderr


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
    (tmp_path / "Makefile").write_text("all:\n\t@touch all\nprograms faulty:\n\t@true\nparsers:\n\t@echo test_msg\n")
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
    assert lines[-6:-3] == ["  1 plain test_a: no avx9", "  1 plain test_a: no disk here",
                            "  1 plain test_c: no moon"], r.stdout
    assert lines[-3].startswith("3 skipped, ") and lines[-2] == "failed: plain test_b, 1" and "slowest:" in lines
    r = run(str(tool), "test_a", env={**os.environ, "PD_MODEL": "/dev/null", "JOBS": "2"})   # no parser: nothing is built for them
    assert r.stdout.rstrip().endswith("2 passed, 0 failed") and not (tmp_path / "all").exists(), r.stdout
    r = run(str(tool), "plain", "test_d")
    assert (r.returncode, r.stderr) == (2, "run-tests: there is no test test_d\n"), r.stdout


def test_the_flags_of_others_have_settings_here():
    """docs/from-vllm.md: each setting exists in the daemon that it names, each variable at the launcher."""
    with open(os.path.join(ROOT, "docs", "from-vllm.md")) as f:
        page = f.read()
    keys = {d: set(re.findall(r"(?m)^#(\w+) = ", run(os.path.join(BIN, p), "--print-config").stdout)) for d, p in
            {"router": "pdrouterd", "prefill": "pdprefilld", "decode": "pddecoded", "storage": "pdstoraged", "messager": "pdmessagerd"}.items()}
    keys["worker"] = keys["prefill"] & keys["decode"]
    named = re.findall(r"`(?:SET=\")?(router|worker|prefill|decode|storage|messager)\.(\w+)", page)
    assert len(set(named)) > 40 and [f"{d}.{k}" for d, k in named if k not in keys[d]] == []
    with open(os.path.join(ROOT, "docs", "run.md")) as f:
        variables = set(re.findall(r"`([A-Z_]+)`", "".join(line.split("|")[1] for line in f if line.startswith("| `"))))
    used = set(re.findall(r"`([A-Z_]+)=", page))
    assert len(used) > 10 and used <= variables


# --- man pages

def test_man_pages(tmp_path):
    """A page for each program with all of its options, for each configuration file with all of its keys and defaults, and one with all metrics."""
    assert run(os.path.join(ROOT, "tools", "make-man"), BIN, str(tmp_path)).returncode == 0
    macros = {".TH", ".SH", ".PP", ".TP", ".B", ".BR", ".nf", ".fi", ".ad"}

    def page(name, section):
        text = (tmp_path / f"man{section}" / f"{name}.{section}").read_text()
        assert text.startswith(f".TH {name.upper()} {section} ") and f"\n{name} \\- " in text
        assert {line.split()[0] for line in text.split("\n") if line[:1] in (".", "'")} <= macros, text
        return text.replace("\\-", "-").replace("\\e", "\\").replace("\\&", "")

    for program, section in [*((p, 8) for p in PROGRAMS), ("pdctl", 1), ("pdbench", 1)]:
        text = page(program, section)
        for option in re.findall(r"^ +(-\w, --[\w-]+)", run(os.path.join(BIN, program), "--help").stdout, re.M):
            assert f".TP\n.B {option}" in text, (program, option)
    for program in PROGRAMS:
        keys = re.findall(r"^#(\w+) = (.*);$", run(os.path.join(BIN, program), "--print-config").stdout, re.M)
        conf = {"pdrouterd": "router", "pdprefilld": "prefill", "pddecoded": "decode", "pdrank": "rank", "pdmessagerd": "messager", "pdstoraged": "storage"}[program]
        text = page(f"pdserve-{conf}.conf", 5)
        got = re.findall(r'^\.TP\n\.BR "(\w+)" " = (.*)"\n(?!\.)\S', text, re.M)
        assert got == [(k, v.replace('"', '""')) for k, v in keys], program
        assert not re.search(r"[^:]\|[^\\]", text), program  # a line can break between choices
    metrics = page("pdserve-metrics", 7)
    shown = [n.replace("pdserve_prefill_", "pdserve_decode_") for n in re.findall(r'^\.TP\n\.BR "(\S+)" " \{\S+\} \w+"\n(?!\.)\S', metrics, re.M)]
    listed = {n for p in PROGRAMS if p != "pdprefilld" for n in re.findall(r"^[\w:]+", run(os.path.join(BIN, p), "--print-metrics").stdout, re.M)}
    assert sorted(shown) == sorted(listed)
    assert "\nNAME sha256:HEX" in page("pdserve-api_keys", 5).replace("  ", "") and "\nmodel = {" in page("pdserve-sim.conf", 5)
    for continued in ("min_p=0.05),\nof render's body", "from when a request\nwas due, so a server that stalls cannot hide it.\n.SH EXIT STATUS\n0 done, 1 requests failed or"):
        assert continued in page("pdctl", 1) + page("pdbench", 1)
    for part in (".SH EXAMPLES\n", ".SH FILES\n", ".SH ENVIRONMENT\n", ".B PDSERVE_RUNDIR\n", ".B OPENAI_API_KEY\n"):
        assert part in page("pdctl", 1)


def test_uninstall_leaves_the_configuration_alone(tmp_path):
    """All that make install has put somewhere goes, but for the configuration, which may have been changed."""
    def make(target):
        r = run("make", "-s", "-o", "all", "NVCC=", f"DESTDIR={tmp_path}", "PREFIX=/usr", target, cwd=ROOT, env={**os.environ, "MAKEFLAGS": ""})
        assert r.returncode == 0, r
        return {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if not p.is_dir()}, r.stdout
    put, _ = make("install")
    assert {"usr/bin/pdctl", "usr/share/man/man1/pdctl.1", "usr/lib/systemd/system/pdrouterd.service", "etc/pdserve/router.conf", "usr/share/doc/pdserve/docs/run.md"} <= put
    for mine in ("usr/bin/pdother", "usr/share/man/man5/pdserve-mine.5", "usr/lib/systemd/system/mine.service"):
        (tmp_path / mine).write_text("")
    left, said = make("uninstall")
    assert left == {f for f in put if f.startswith("etc/")} | {"usr/bin/pdother", "usr/share/man/man5/pdserve-mine.5", "usr/lib/systemd/system/mine.service"}
    assert "/etc/pdserve" in said and not (tmp_path / "usr/share/doc/pdserve").exists()
