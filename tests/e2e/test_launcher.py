"""tools/pdserve-launch: what it says, what it restarts, what it leaves behind."""
import hashlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

import pytest
from suite import BIN, ROOT, SLOW, free_port, wait_for
from test_tls import context, make_cert
from test_tools import PROGRAMS, run

LAUNCH = os.path.join(ROOT, "tools", "pdserve-launch")

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
        host = env.get("HOST", "")
        self.port = free_port(host if host.startswith("127.") else "127.0.0.1")
        self.env = {**os.environ, "RUNDIR": self.dir, "PORT": str(self.port), "MODEL": model, "THREADS": "1", "KV_MB": "64", "KV_MEMORY_MB": "64", "BIN": BIN, "METRICS_PORT": "off", **env}

    def start(self):
        self.p = subprocess.Popen([LAUNCH, "run"], env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines = []

    def __enter__(self):
        self.start()
        self.until("ready http://", "ready https://")
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
        l.until("decode-1 died: killed (SIGKILL)")
        end = time.time() + 10 * SLOW
        while len(l.pids()) < 5 and time.time() < end:
            time.sleep(0.05)
        assert l.pids()["decode-1"] != before["decode-1"]
        r = run(LAUNCH, "run", env={**l.env, "RUNDIR": l.dir + "2"})
        assert r.returncode == 1 and f"port {l.port} is in use" in r.stderr
        r = run(LAUNCH, "run", env={**l.env, "PORT": str(free_port())})
        assert r.returncode == 1 and "another pdserve is running in" in r.stderr
        l.p.send_signal(signal.SIGINT)
        l.until("all daemons have ended")
        assert l.lines[-2] == "pdserve: stopping\n" and l.p.wait(20 * SLOW) == 0, l.lines
        assert not l.pids()


def test_launcher_with_tls(tmp_path, tiny_model):
    cert, key = make_cert(str(tmp_path), "one")
    with Launcher(tmp_path, tiny_model, SET=f"router.http_tls_cert={cert}; router.http_tls_key={key}") as l:
        assert l.lines[-1] == f"ready https://127.0.0.1:{l.port}\n"
        c = http.client.HTTPSConnection("127.0.0.1", l.port, timeout=20 * SLOW, context=context(cert))
        c.request("GET", "/ready")
        assert c.getresponse().status == 200
        c.close()


class Asked(Launcher):
    """A launcher with TLS, whose openssl says 503 instead of asking the router until there is a file `open`. It begins without being ready."""

    def __init__(self, tmp_path, model, **env):
        cert, key = make_cert(str(tmp_path), "one")
        self.open, self.asked, tools = tmp_path / "open", tmp_path / "asked", tmp_path / "tools"
        tools.mkdir()
        (tools / "openssl").write_text(f"""#!/bin/sh
            echo "$*" >>{self.asked}
            [ -e {self.open} ] && exec {shutil.which("openssl")} "$@"
            echo "HTTP/1.1 503 Service Unavailable"\n""")
        (tools / "openssl").chmod(0o755)
        super().__init__(tmp_path, model, SET=f"router.http_tls_cert={cert}; router.http_tls_key={key}", PATH=f"{tools}:{os.environ['PATH']}", **env)

    def __enter__(self):
        self.start()
        return self

    def times(self):
        return self.asked.read_text().count(f":{self.port}\n") if self.asked.exists() else 0

    def workers_up(self):
        return run(os.path.join(BIN, "pdctl"), "-r", self.dir, "--json", "workers").stdout.count('"state": "up"') == 2


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_launcher_asks_the_router_over_tls(tmp_path, tiny_model, host):
    with Asked(tmp_path, tiny_model, HOST=host) as l:
        wait_for(l.workers_up, "the workers do not come up")
        before = l.times()
        wait_for(lambda: l.times() >= before + 3, "the router is not asked")
        assert not os.path.exists(os.path.join(l.dir, "ready")), "ready, although the router is not"
        l.open.touch()
        l.until(f"ready https://{host}:{l.port}")
        assert f"s_client -quiet -connect {host}:{l.port}" in l.asked.read_text()


def test_launcher_with_tls_but_without_openssl(tmp_path, tiny_model):
    cert, key = make_cert(str(tmp_path), "one")
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin", "/usr/sbin", "/sbin"):
        for name in os.listdir(folder):
            if name != "openssl" and not os.path.lexists(tools / name):
                os.symlink(os.path.join(folder, name), tools / name)
    with Launcher(tmp_path, tiny_model, SET=f"router.http_tls_cert={cert}; router.http_tls_key={key}", PATH=str(tools)) as l:
        assert [x for x in l.lines if "openssl is missing" in x]


def test_launcher_divides_models(tmp_path, tiny_model):
    with Launcher(tmp_path, tiny_model, TP="2", PP="3") as l:
        with open(os.path.join(l.dir, "logs", "decode-1.log")) as f:
            assert " tp=2 pp=3 " in f.read()


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
        assert all(f"{n} died: killed (SIGKILL): restarting it\n" in said for n in victims), said
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
        l.until("storage died 5 times in 10 s, the last time: it cannot live", "storage died 12 times in 10 min, the last time: it cannot live")     # where a start takes seconds
        assert sum("storage died: " in x for x in l.lines) == (4 if "10 s," in l.lines[-1] else 11)
        assert l.p.wait(20 * SLOW) == 1
        assert not l.pids()


def test_launcher_tiers_and_settings(tmp_path, tiny_model):
    disk = tmp_path / 'a "disk"'
    with Launcher(tmp_path, tiny_model, KV_DISK=str(disk), KV_DISK_MB="64", KV_REDIS=f"unix:{tmp_path}/none", KV_EVICTION="write_through", HOST="127.0.0.2",
                  SET="worker.kv_type=f32; decode.max_sequences=8; router.served_model_name=my model") as l:
        def tiers_now():
            r = run(os.path.join(BIN, "pdctl"), "-r", l.dir, "--json", "-d", "storage", "storage")
            return {t["tier"]: t for t in json.loads(r.stdout)["tiers"]}

        def states():
            return [tiers_now()[t]["state"][:5] for t in ("memory", "disk", "redis")]
        wait_for(lambda: states() == ["ready", "ready", "away:"], states)
        tiers = tiers_now()
        assert [tiers[t]["capacity_bytes"] >> 20 for t in ("memory", "disk")] == [64, 64]
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
    """A METRICS_PORT at which these ports are free, and stay so."""
    while True:
        base = free_port() - offsets[0]
        try:
            for n in offsets[1:]:
                free_port(port=base + n)
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


@pytest.mark.parametrize("asked", [False, True])
def test_launcher_keeps_metrics_ports_off_port(tmp_path, tiny_model, asked):
    """PORT is one of the metrics ports: go without them, or, if they were asked for, refuse."""
    l = Launcher(tmp_path, tiny_model, LAYOUT="mixed")
    base = l.port - 1
    if asked:
        r = run(LAUNCH, "run", env={**l.env, "METRICS_PORT": str(base)})
        assert r.returncode == 1 and f"port {l.port} of METRICS_PORT={base} is PORT: choose another METRICS_PORT, or off" in r.stderr, r.stderr
        return
    launcher = tmp_path / "launch"
    launcher.write_text(open(LAUNCH).read().replace("METRICS_PORT:-9400", f"METRICS_PORT:-{base}").replace('$(dirname "$0")/..', ROOT))
    launcher.chmod(0o755)
    p = subprocess.Popen([str(launcher), "run"], env={k: v for k, v in l.env.items() if k != "METRICS_PORT"}, stdout=subprocess.PIPE, text=True)
    lines = iter(p.stdout.readline, "")
    assert f"port {l.port} is PORT: no metrics ports of the daemons" in next(lines)
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
    ({"KV_MB": "099"}, "KV_MB=099 is not a size: use 1 to 999999 (MiB)"),
    ({"THREADS": "010"}, "THREADS=010 is not a number of threads"),
    ({"PP": "0"}, "PP=0 is not a number of stages: use 1 to 64"),
    ({"BACKEND": "cuda", "GPUS": "3", "TP": "2", "PP": "2"}, "PP=2 with TP=2 needs 4 GPUs, there are 3"),
    ({"KV_DISK_MB": "10485760", "MODEL": "/nonexistent"}, "MODEL=/nonexistent cannot be read"),
    ({"BACKEND": "sim", "MODEL": "small", "TOKENIZER": "/nonexistent/t.gguf"}, "TOKENIZER=/nonexistent/t.gguf cannot be read"),
    ({"RUNDIR": "/tmp/" + "é" * 60}, "is too long for socket paths: at most 80 bytes"),
    ({"KV_MB": "900000"}, "too little memory"),
    ({"MODEL": "/nonexistent"}, "MODEL=/nonexistent cannot be read"),
    ({"MODEL": os.path.join(ROOT, "README.md")}, "the configuration of router is refused: " + os.path.join(ROOT, "README.md") + ": magic: not a GGUF file"),
    ({"SET": "worker.kv_blocks=1"}, "ended while starting"),
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


DEATHS = [      # what a daemon does at its end, what the launcher says of it
    ("echo 'pdstoraged: cannot start: the disk is full: free some space'; exit 1", "the disk is full: free some space"),
    ("echo 'out of memory while allocating 64 bytes'; exit 1", "out of memory while allocating 64 bytes"),
    ("echo 'ts=2026-01-01T00:00:00.000000Z level=error prog=pdstoraged name=storage event=give_up why=\"the \\\"disk\\\" is gone\"'\n"
     "echo 'ts=2026-01-01T00:00:00.000001Z level=info prog=pdstoraged name=storage event=stopped status=1'; exit 1", 'the "disk" is gone'),
    ("echo 'level=panic event=bug file=daemons/storage/stack.c line=12 text=\"check failed: n > 0\"'\n"
     "echo '/x/pdstoraged(check_panic+0xca) [0x55d0c0ffee00]'\necho '/lib/libc.so.6(+0x2724a) [0x7f0123456789]'; kill -ABRT $$",
     "a bug: check failed: n > 0 (daemons/storage/stack.c:12); its backtrace: LOG"),
    ("echo 'malloc(): corrupted top size'; kill -ABRT $$", "crashed (SIGABRT): malloc(): corrupted top size; its log: LOG"),
    ("kill -SEGV $$", "crashed (SIGSEGV); its log: LOG"),
    ("exit 7", "status 7; its log: LOG"),
]


@pytest.mark.parametrize("part", [DEATHS[:3], DEATHS[3:6], DEATHS[6:]], ids=["words", "signals", "none"])
def test_launcher_says_why_a_daemon_died(tmp_path, tiny_model, part):
    """In its own words: not those of an earlier life, no frame of a backtrace."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for p in PROGRAMS + ["pdctl"]:
        (programs / p).symlink_to(os.path.join(BIN, p))
    with Launcher(tmp_path, tiny_model, BIN=str(programs), LAYOUT="mixed") as l:
        storage = programs / "pdstoraged"
        storage.unlink()
        arms = "".join(f"{i}) {does} ;;\n" for i, (does, _) in enumerate(part))
        storage.write_text(f"#!/bin/bash\nulimit -c 0\nexec 2>&1\nn=$(cat {tmp_path}/n 2>/dev/null || echo 0); echo $((n + 1)) >{tmp_path}/n\n"
                           f"case $n in\n{arms}*) exec {BIN}/pdstoraged \"$@\" ;;\nesac\n")
        storage.chmod(0o755)
        os.kill(l.pids()["storage"], signal.SIGKILL)
        l.until("storage died: killed (SIGKILL): restarting it\n")
        for _, says in part:
            l.lines.append("")      # the next one
            l.until("storage died")
            assert l.lines[-1] == "pdserve: storage died: " + says.replace("LOG", f"{l.dir}/logs/storage.log") + ": restarting it\n"


def test_launcher_names_the_oom_killer(tmp_path, tiny_model):
    """The kernel counts what it kills for want of memory; here a file has that count."""
    count = tmp_path / "oom_kill"
    count.write_text("3\n")
    (tmp_path / "awk").write_text(f"#!/bin/bash\n[[ $1 == *oom_kill* ]] && exec cat {count}\nexec {shutil.which('awk')} \"$@\"\n")
    (tmp_path / "awk").chmod(0o755)
    with Launcher(tmp_path, tiny_model, LAYOUT="mixed", PATH=f"{tmp_path}:{os.environ['PATH']}") as l:
        count.write_text("4\n")
        os.kill(l.pids()["storage"], signal.SIGKILL)
        l.until("storage died: killed (SIGKILL), probably by the kernel, which was out of memory: use a smaller KV_MB")
        wait_for(lambda: "storage" in l.pids(), "not restarted")
        os.kill(l.pids()["storage"], signal.SIGKILL)
        l.until("storage died: killed (SIGKILL): restarting it")


def test_launcher_limits_logs(tmp_path, tiny_model):
    """A log that is full is renamed; its request can still be traced, and the end of the daemon is in the new one."""
    with Launcher(tmp_path, tiny_model, SET="worker.log_file_max_mb=1; router.log_file_max_mb=1; worker.log_level=debug", LAYOUT="mixed") as l:
        def ask():
            c = http.client.HTTPConnection("127.0.0.1", l.port, timeout=60 * SLOW)
            c.request("POST", "/v1/completions", '{"prompt":[5,6,7],"max_tokens":4,"temperature":0,"ignore_eos":true}')
            return json.loads(c.getresponse().read())["id"]

        first = ask()
        log = os.path.join(l.dir, "logs", "router.log")
        wait_for(lambda: any("event=request_done" in x and first[5:37] in x for x in open(log)), lambda: open(log).read()[-2000:])
        with open(log, "a") as f:
            f.write(("x" * 99 + "\n") * 10486)      # just above 1 MiB
        second = ask()
        wait_for(lambda: os.path.exists(log + ".1") and second[5:37] in open(log).read(), "no new log was begun")
        assert os.path.getsize(log) < 1 << 16 and first[5:37] in open(log + ".1").read()
        for request in first, second:
            def traced():
                r = run(os.path.join(BIN, "pdctl"), "-r", l.dir, "trace", request)
                return r.returncode == 0 and re.search(r"^  decode ", r.stdout, re.M)
            wait_for(traced, lambda: run(os.path.join(BIN, "pdctl"), "-r", l.dir, "trace", request))
        os.kill(l.pids()["mixed-1"], signal.SIGABRT)
        l.until("mixed-1 died: crashed (SIGABRT)")
        l.p.terminate()
        assert l.p.wait(20 * SLOW) == 0
        assert "event=stopped " in open(log).read()


def test_launcher_names_a_redis_that_does_not_answer(tmp_path, tiny_model):
    with Launcher(tmp_path, tiny_model, LAYOUT="mixed", KV_REDIS=f"127.0.0.1:{free_port()}") as l:
        assert any(re.search(r"KV_REDIS=127.0.0.1:\d+ does not answer: its tier is used as soon as it does", x) for x in l.lines), l.lines


def test_launcher_does_not_wait_for_a_redis_that_drops_packets(tmp_path, tiny_model):
    """As a listener does whose queue is full: the kernel would try for two minutes."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for s in first, second:
            s.setblocking(False)
            s.connect_ex(full.getsockname())
        with Launcher(tmp_path, tiny_model, LAYOUT="mixed", KV_REDIS="127.0.0.1:%d" % full.getsockname()[1]) as l:
            assert any("does not answer" in x for x in l.lines), l.lines


def test_launcher_asks_a_redis_at_an_ipv6_address(tmp_path, tiny_model):
    with socket.socket(socket.AF_INET6) as s:
        try:
            s.bind(("::1", 0))
        except OSError:
            pytest.skip("no IPv6 here")
        s.listen()
        with Launcher(tmp_path, tiny_model, LAYOUT="mixed", KV_REDIS="[::1]:%d" % s.getsockname()[1]) as l:
            assert not any("does not answer" in x for x in l.lines), l.lines


def test_demo(tmp_path, real_model):
    """What README says first: an answer, its timeline, all daemons running; then nothing is left."""
    r = run(LAUNCH, "demo", env={**os.environ, "RUNDIR": str(tmp_path / "r"), "PORT": str(free_port()), "MODEL": real_model, "METRICS_PORT": "off", "BIN": BIN, "KV_MB": "64", "KV_MEMORY_MB": "64"})
    assert r.returncode == 0, r.stdout + r.stderr
    assert "capital of France is Paris" in r.stdout and re.search(r"^request [0-9a-f]{32}: \d+ prompt tokens", r.stdout, re.M) and re.search(r"^  first token ", r.stdout, re.M), r.stdout
    assert sorted(re.findall(r"^(\S+) +running ", r.stdout, re.M)) == ["decode-1", "messager", "prefill-1", "router", "storage"], r.stdout
