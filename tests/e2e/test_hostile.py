# run: address
"""What surrounds the daemons turns against them: a log that nobody reads, no descriptors, processes that are none of theirs."""
import fcntl
import os
import resource
import socket
import subprocess
import threading
import time

import pytest

import suite
from suite import ENV, Suite, wait_for


class PipedSuite(Suite):
    """All daemons write their log into one small pipe. It is read until `stop_reading`, and again after `read_on`."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.out, self.into = os.pipe()
        fcntl.fcntl(self.into, fcntl.F_SETPIPE_SZ, 4096)
        self.text, self.reading = b"", threading.Event()
        self.read_on()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        while True:
            self.reading.wait()
            got = os.read(self.out, 4096)
            if not got:
                return
            self.text += got

    def stop_reading(self):
        self.reading.clear()

    def read_on(self):
        self.reading.set()

    def start(self, name):
        path = os.path.join(self.dir, name + ".conf")
        with open(path, "w") as f:
            f.writelines(f"{k} = {suite.value(v)};\n" for k, v in self.conf[name].items())
        argv = [os.path.join(suite.BIN, self.PROGRAM[name.split("-")[0]]), "-c", path]
        self.procs[name] = subprocess.Popen(argv, stdout=self.into, stderr=self.into, stdin=subprocess.DEVNULL, env=ENV)

    def log(self, name):
        return "\n".join(line for line in self.text.decode(errors="replace").split("\n") if f" name={name} " in line)

    def __exit__(self, *exc):
        try:
            super().__exit__(*exc)
        finally:
            self.read_on()
            os.close(self.into)
            self.reader.join()
            os.close(self.out)


def dropped(s, name):
    return next(float(line.rsplit(" ", 1)[1]) for line in s.metrics(name).splitlines()
                if line.startswith("pdserve_log_lines_dropped_total"))


def fill(s):
    """More lines of the first than the pipe, which all share, holds; and some of each other, which wait for it."""
    for name in s.names:
        for _ in range(60 if name == s.names[0] else 5):
            s.ctl(name, "log-level", "info")


def test_a_log_that_nobody_reads_stops_nobody():
    with PipedSuite(model=suite.TINY_MODEL) as s:
        want = s.tokens([1, 2, 3], 8)
        s.stop_reading()
        fill(s)
        assert s.get("/health")[0] == 200
        assert s.tokens([1, 2, 3], 8) == want
        while dropped(s, "router") == 0:
            for _ in range(100):
                s.tokens([1, 2, 3], 1)          # three lines or more each
        assert s.tokens([1, 2, 3], 8) == want
        s.read_on()
        wait_for(lambda: "event=log_lines_dropped" in s.log("router"), "the router does not say what was lost")
        s.stop_reading()
        fill(s)
        for name in reversed(s.names):
            assert s.kill(name, suite.signal.SIGTERM) == 0, name    # ends, though nobody reads why


# --- descriptors -----------------------------------------------------------------------------------------------------------

def connect(address, kind=socket.SOCK_STREAM):
    """A connection that says nothing, or None: the other side did not take it."""
    c = socket.socket(socket.AF_INET if isinstance(address, tuple) else socket.AF_UNIX, kind)
    c.settimeout(5 * suite.SLOW)
    try:
        c.connect(address)
        return c
    except OSError:
        c.close()
        return None


def cpu_s(pid):
    with open(f"/proc/{pid}/stat") as f:
        fields = f.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def doors(s, name):
    """Where a daemon takes connections."""
    at = [(os.path.join(s.dir, name + ".ipc"), socket.SOCK_STREAM)]
    if name in ("messager", "storage"):
        at.append((os.path.join(s.dir, name + ".sock"), socket.SOCK_SEQPACKET))
    if name == "router":
        at.append((("127.0.0.1", s.port), socket.SOCK_STREAM))
    return at


def refused(s, name):
    return next(float(line.rsplit(" ", 1)[1]) for line in s.metrics(name).splitlines()
                if line.startswith("pdserve_connections_without_descriptor_total"))


def test_no_descriptors_left_ends_and_hangs_nobody():
    with Suite(model=suite.TINY_MODEL) as s:
        want = s.tokens([1, 2, 3], 8)
        for name in s.names:
            pid = s.procs[name].pid
            limits, full = resource.prlimit(pid, resource.RLIMIT_NOFILE), time.monotonic()
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (len(os.listdir(f"/proc/{pid}/fd")) + 3, limits[1]))
            open_ones = [c for at, kind in doors(s, name) for _ in range(20) if (c := connect(at, kind))]
            assert s.pdctl("-t", "300", "-d", name, "status").returncode in (0, 3)      # one connection more
            used, began = cpu_s(pid), time.monotonic()
            time.sleep(0.5)
            assert cpu_s(pid) - used < 0.5 * (time.monotonic() - began), f"{name} spins"
            assert s.procs[name].poll() is None, f"{name} ended"
            resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
            for c in open_ones:
                c.close()
            wait_for(lambda: s.pdctl("-d", name, "status").returncode == 0, f"{name} does not answer any more")
            assert refused(s, name) > 0
            assert s.log(name).count("event=descriptors_exhausted") <= time.monotonic() - full + 2      # once a second
        assert s.tokens([1, 2, 3], 8) == want


def test_more_connections_than_descriptors_are_refused_at_start():
    with Suite(model=suite.TINY_MODEL, wait=False) as s:
        s.kill("router")
        path = os.path.join(s.dir, "router.conf")
        r = subprocess.run(["sh", "-c", 'ulimit -n 500; exec "$0" "$@"', os.path.join(suite.BIN, "pdrouterd"), "-c", path], capture_output=True, text=True,
                           timeout=30 * suite.SLOW, env=ENV)
        assert r.returncode == 1 and "max_connections = 8192: needs 9492 file descriptors, the system allows 500" in r.stderr, r.stderr


@pytest.mark.parametrize("program, name", [("pdmessagerd", "messager"), ("pdstoraged", "storage")])
def test_more_workers_than_descriptors_are_refused_at_start(program, name, tmp_path):
    conf = tmp_path / "d.conf"
    conf.write_text(f'name = "{name}";\nrundir = "{tmp_path}";\nworkers_max = 100;\n')
    r = subprocess.run(["sh", "-c", 'ulimit -n 500; exec "$0" "$@"', os.path.join(suite.BIN, program), "-c", str(conf)], capture_output=True, text=True,
                       timeout=30 * suite.SLOW, env=ENV)
    assert r.returncode == 1 and "workers_max = 100: needs 856 file descriptors, the system allows 500" in r.stderr, r.stderr


# --- who may command -----------------------------------------------------------------------------------------------------------

@pytest.mark.skipif(os.geteuid() != 0, reason="another user is played, which root alone can do")
def test_another_user_may_look_and_change_nothing():
    def as_nobody(*args, group="nogroup"):
        return subprocess.run(["setpriv", "--reuid", "nobody", "--regid", group, "--clear-groups", os.path.join(suite.BIN, "pdctl"), "-r", s.dir, *args],
                              capture_output=True, text=True, timeout=60 * suite.SLOW, env=ENV)

    with Suite("mixed", model=suite.TINY_MODEL, storage={"control_group": "daemon"}) as s:
        os.chmod(s.dir, 0o755)
        os.chmod(os.path.dirname(s.dir), os.stat(os.path.dirname(s.dir)).st_mode | 0o011)
        for name in s.names:
            os.chmod(os.path.join(s.dir, name + ".ipc"), 0o777)
        for name in s.names:
            assert as_nobody("-d", name, "status").returncode == 0
            for command in ("stop", "config", "reload", "log-level"):
                r = as_nobody("-d", name, command)
                assert r.returncode == 1 and f"{command} is for user 0, root and the group control_group" in r.stderr, (name, command, r)
        assert as_nobody("-d", "mixed-1", "role", "decode").returncode == 1
        assert as_nobody("-d", "storage", "flush").returncode == 1
        assert as_nobody("-d", "storage", "flush", group="daemon").returncode == 0
        assert as_nobody("-d", "router", "reload", group="daemon").returncode == 1
        r = as_nobody("chat", "hello")      # needs only the router's status, then asks over HTTP
        assert r.returncode == 1 and "has no tokenizer here" in r.stderr, r
        assert all(p.poll() is None for p in s.procs.values())
