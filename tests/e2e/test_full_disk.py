"""A full disk under the run directory: one line that says so, nothing left running; daemons that run already go on and can be restarted.

The disk is a small tmpfs, mounted for each test; where this user may not mount, the tests are skipped.
"""
import http.client
import os
import shutil
import signal
import subprocess
import time

import pytest
from suite import BIN, ROOT, SLOW, wait_for
from test_launcher import LAUNCH, PROGRAMS, Launcher, run

MODEL = os.path.join(ROOT, "tests", "data", "golden", "llama")


class Disk:
    def __init__(self, path, options):
        self.path = str(path)
        os.makedirs(self.path)
        if not shutil.which("mount"):
            pytest.skip("there is no mount program here")
        r = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "pdserve-test", self.path], capture_output=True, text=True)
        if r.returncode:
            pytest.skip(f"cannot mount a small disk here: {r.stderr.strip() or r.returncode}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        subprocess.run(["umount", "-l", self.path], check=True)

    def fill(self):
        with open(os.path.join(self.path, "ballast"), "wb", buffering=0) as f:
            try:
                while True:
                    f.write(b"x" * 4096)
            except OSError:
                pass
        assert os.statvfs(self.path).f_bavail == 0

    def clear(self):
        os.unlink(os.path.join(self.path, "ballast"))


def one_line(r, *parts):
    assert r.returncode == 1, r
    assert len(r.stderr.strip().split("\n")) == 1 and all(p in r.stderr for p in parts), r.stderr


def small_model(program):
    return ["-o", f"model={MODEL}"] if program in ("pdrouterd", "pdprefilld", "pddecoded") else []


@pytest.mark.parametrize("program", PROGRAMS)
def test_daemon_on_a_full_disk(tmp_path, program):
    with Disk(tmp_path / "d", "size=64k") as d:
        d.fill()
        one_line(run(os.path.join(BIN, program), "-o", f"rundir={d.path}", *small_model(program)), "cannot start", ".lock: No space left", "free some space, or set rundir")


@pytest.mark.parametrize("program,files", [(p, 2) for p in PROGRAMS] + [("pdmessagerd", 3), ("pdstoraged", 3)])
def test_daemon_without_room_for_another_file(tmp_path, program, files):
    """Room for the folder, the lock and, with 3, one socket: whichever cannot be made is named."""
    with Disk(tmp_path / "d", f"size=64k,nr_inodes={files}") as d:
        one_line(run(os.path.join(BIN, program), "-o", f"rundir={d.path}", *small_model(program)), "cannot start", "No space left", "free some space")


def test_pdctl_on_a_full_disk(tmp_path):
    with Disk(tmp_path / "d", "size=64k") as d:
        d.fill()
        r = run(os.path.join(BIN, "pdctl"), "-r", d.path, "status")
        assert r.returncode == 3 and r.stderr.startswith("pdctl: no daemon runs in ")


@pytest.mark.parametrize("program", PROGRAMS)
def test_output_to_a_full_disk(program):
    """What was asked for on stdout could not be written: the exit status says so."""
    assert to_full_disk(program, "--print-config") != 0


def to_full_disk(program, *args):
    with open("/dev/full", "w") as full:
        return subprocess.run([os.path.join(BIN, program), *args], stdout=full, stderr=subprocess.PIPE, timeout=60 * SLOW).returncode


@pytest.mark.parametrize("options,part", [("size=64k", "2048 are needed"), ("size=8m,nr_inodes=4", "more files can be created")])
def test_launcher_on_a_full_disk(tmp_path, options, part):
    with Disk(tmp_path / "d", options) as d:
        l = Launcher(tmp_path / "d", MODEL)
        if "nr_inodes" not in options:
            d.fill()
        r = run(LAUNCH, "run", env=l.env)
        one_line(r, "is full", part, "RUNDIR=/var/tmp/pdserve")
        assert r.stdout == "" and l.gone()


def test_disk_fills_while_all_runs(tmp_path):
    """Requests are answered, a killed worker is started again, pdctl answers; what could not be logged is missing, later events are logged again."""
    with Disk(tmp_path / "d", "size=6m") as d, Launcher(tmp_path / "d", MODEL) as l:
        d.fill()

        def ask():
            c = http.client.HTTPConnection("127.0.0.1", l.port, timeout=60 * SLOW)
            try:
                c.request("POST", "/v1/completions", '{"prompt":[5,6,7],"max_tokens":4,"temperature":0,"ignore_eos":true,"return_token_ids":true}')
                return c.getresponse().read().decode()
            except OSError as e:
                return repr(e)
            finally:
                c.close()

        first = ask()
        assert '"token_ids":[' in first, first
        for _ in range(20):
            assert '"token_ids":[' in ask()
        before = l.pids()
        for name in ("decode-1", "router", "messager"):
            os.kill(before[name], signal.SIGKILL)
            l.until(f"{name} died: killed (SIGKILL): restarting it")
        end = time.time() + 30 * SLOW
        while '"token_ids":[' not in ask():
            assert time.time() < end, (l.pids(), before)
            time.sleep(0.1)
        wait_for(lambda: all(l.pids().get(n, before[n]) != before[n] for n in ("decode-1", "router", "messager")), l.pids)
        r = wait_for(lambda: (r := run(os.path.join(BIN, "pdctl"), "-r", l.dir, "status")).returncode == 0 and r, "not all of them answer")
        assert "router" in r.stdout, r
        assert to_full_disk("pdctl", "-r", l.dir, "status") == 1
        log = os.path.join(l.dir, "logs", "router.log")
        d.clear()
        logged = os.path.getsize(log)
        assert '"token_ids":[' in ask()
        end = time.time() + 10 * SLOW
        while "event=request_done" not in open(log).read()[logged:]:
            assert time.time() < end
            time.sleep(0.05)
        l.p.terminate()
        assert l.p.wait(20 * SLOW) == 0
        assert not l.pids()
