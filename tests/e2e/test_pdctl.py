"""pdctl's command line where no daemon is needed: help, version, mistyped commands, completion."""
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time

import pytest
from suite import BIN, ENV, SLOW, Suite, wait_for
from terminal import Terminal

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "completion")


def pdctl(*args, **env):
    r = subprocess.run([os.path.join(BIN, "pdctl"), *args], capture_output=True, text=True, timeout=60 * SLOW, env={**ENV, **env})
    return r.returncode, r.stdout, r.stderr


def commands():
    return [line.split()[0] for line in pdctl("help")[1].splitlines() if line.startswith("  ") and line[2].islower() and line[13] in " [<NMIT"]


def test_help_of_all_and_of_one():
    code, whole, _ = pdctl("help")
    assert code == 0 and whole == pdctl("--help")[1] and "role" in commands() and len(commands()) > 20
    for name in commands():
        code, text, _ = pdctl("help", name)
        assert name == "help" or (code == 0 and text.startswith(f"usage: pdctl {name} ")), text


def options(text):
    return re.findall(r"^  ((?:-\w, |    )--\w+.*?)  +", text.split("\noptions:\n")[1], re.M)


def test_help_of_one_has_its_options():
    """As the whole help has them; those of other commands are missing, and each belongs to one at least."""
    whole, asks = pdctl("help")[1], ["-r, --rundir DIR", "-e, --endpoint ADDR", "-k, --keys FOLDER", "-i, --identity NAME", "-d, --daemon NAME", "-j, --json", "-w, --wide",
                                        "-t, --timeout MS"]
    of = {name: options(pdctl("help", name)[1]) for name in commands() if name != "help"}
    assert of["status"] == of["stop"] == of["flush"] == asks
    assert of["keygen"] == ["-k, --keys FOLDER"] and of["workers"] == asks
    assert of["top"] == [*asks[:6], "    --interval S", "-n, --count N", "    --once", *asks[6:]]
    assert {x for o in of.values() for x in o} == set(options(whole))
    assert all(line in whole for name in of for line in pdctl("help", name)[1].split("\noptions:\n")[1].splitlines())


@pytest.mark.parametrize("typed,near", [("statsu", "status"), ("loglevel", "log-level"), ("tokenise", "tokenize"), ("quux", None), ("", None), ("a" * 5000, None)])
def test_mistyped(typed, near):
    for args in ([typed], ["help", typed]):
        code, out, err = pdctl(*args)
        assert code == 2 and not out and "unknown command" in err
        assert (f'did you mean "{near}"?' in err) if near else "did you mean" not in err


def test_a_wrong_option_is_the_last_thing_on_the_screen():
    for args in (["chat", "--temperature", "0", "hi"], ["-X"], ["trace", "--last"]):
        code, out, err = pdctl(*args)
        assert code == 2 and not out and len(err.splitlines()) == 2 and "option" in err.splitlines()[0] and "pdctl help" in err, err


def test_version():
    code, out, _ = pdctl("--version")
    assert code == 0 and re.fullmatch(r"pdctl \d+\.\d+\.\d+[-+]\S*[0-9a-f]{8}(-dirty)?, protocol version \d+\n", out)
    for name in ("pdrouterd", "pdprefilld", "pddecoded", "pdmessagerd", "pdstoraged", "pdrank", "pdbench"):
        said = subprocess.run([os.path.join(BIN, name), "--version"], capture_output=True, text=True, env=ENV).stdout
        assert said in (out.replace("pdctl", name), out.replace("pdctl", name).split(",")[0] + "\n"), said


def of_another_commit(folder):
    """A copy of pdctl that says that it was built from another commit."""
    version = pdctl("--version")[1].split()[1].rstrip(",")
    with open(os.path.join(BIN, "pdctl"), "rb") as f:
        image = f.read()
    path = os.path.join(folder, "pdctl")
    with open(path, "wb") as f:
        f.write(image.replace(version.encode(), b"0.0.9".ljust(len(version), b"+")))
    os.chmod(path, 0o755)
    return path, version


def test_fits_into_80_columns(tiny_model, tmp_path):
    """status and workers, also while a daemon is down or of another version; a refusal says what is refused."""
    other_pdctl, version = of_another_commit(tmp_path)
    with Suite("1p2d", tiny_model) as s:
        s.tokens([1, 2, 3], 200)
        s.kill("decode-2")
        wait_for(lambda: "down" in s.pdctl("workers").stdout)
        for command in ("status", "workers"):
            text = pdctl("-r", s.dir, command, COLUMNS="80")[1]
            assert max(map(len, text.splitlines())) <= 80, text
            assert re.search("^decode-2 .*down", text, re.M), text
        assert "version" not in s.pdctl("status").stdout
        text = subprocess.run([other_pdctl, "-r", s.dir, "status"], capture_output=True, text=True, env=ENV).stdout
        assert f"\n  {version}: router, decode-1, messager, prefill-1" in text and max(map(len, text.splitlines())) <= 80, text
        r = s.pdctl("log-level", "loud")
        assert r.returncode == 3 and "loud" in r.stderr and "debug, info, notice, warn" in r.stderr, r.stderr
        s.restart("decode-2")
        wait_for(lambda: s.pdctl("log-level", "loud").returncode == 1)
        assert 'no command "quux"' in s.pdctl("-d", "router", "quux").stderr


def test_tables_fit_the_terminal():
    """Each table of a suite at work in 80 and 60 columns; what is missing is named, and -w and a pipe have all of it."""
    tables = (["status"], ["workers"], ["kv"], ["storage"], ["config"], ["config", "http_listen"], ["config", "log_level"], ["-d", "decode-1", "config"], ["tenants"], ["requests"], ["-d", "decode-1", "requests"],
              ["-d", "decode-1", "status"], ["-d", "router", "routes"], ["keys"], ["links"])
    with Suite("1p2d", sim="small", keys={"a-key-with-a-long-name": ("k", "requests=1000000 tokens=1000000000"), "b": "kb"}) as s:
        stream = s.stream("/v1/completions", {"prompt": list(range(3, 250)), "max_tokens": 3000, "ignore_eos": True}, headers={"Authorization": "Bearer k"})
        next(stream)
        for words in tables:
            all_of_it = pdctl("-r", s.dir, *words)[1]
            assert "not shown" not in all_of_it
            for columns in (60, 80):
                code, text, err = pdctl("-r", s.dir, *words, COLUMNS=str(columns))
                assert max(map(len, text.splitlines() or [""])) <= columns, (words, text)
                heads = set(re.findall(r"[A-Z][A-Z/-]+", all_of_it.splitlines()[0])) if all_of_it else set()
                assert heads <= set(re.findall(r"[A-Z][A-Z/-]+", text)), (words, text)
            assert len(pdctl("-r", s.dir, *words, "-w", COLUMNS="80")[1].splitlines()[:1]) == len(all_of_it.splitlines()[:1])
        assert all(len(pdctl("-r", s.dir, w, "-w", COLUMNS="80")[1].splitlines()[0]) > 120 for w in ("workers", "kv", "storage", "config", "tenants"))
        with Terminal("-r", s.dir, "kv", columns=80) as t:
            assert t.ends() == 0
            lines = t.raw.decode().replace("\r", "").splitlines()
            assert max(map(len, lines)) <= 80 and any(line.startswith("not shown: ") for line in lines), lines
        stream.close()


def test_help_of_a_daemon(tiny_model):
    with Suite("mixed", tiny_model) as s:
        assert "role" in s.pdctl("-d", "mixed-1", "help").stdout


def test_drain_ends_nothing(tiny_model):
    """A worker that is drained gets nothing new, and what it has goes on; without any other, requests wait or are refused; then it serves again."""
    with Suite("2mixed", tiny_model) as s:
        def state(name):
            return next(w["state"] for w in s.ctl("router", "workers") if w["name"] == name)
        answer = []
        t = threading.Thread(target=lambda: answer.append(s.tokens([1, 2, 3], 400)))
        t.start()
        busy = wait_for(lambda: next((n for n in ("mixed-1", "mixed-2") if s.ctl(n, "requests")), None) or answer and "mixed-1")
        r = s.pdctl("drain", busy)
        assert (r.returncode, r.stdout, state(busy)) == (0, f"{busy}: drained; known to: router\n", "drained"), r
        before = s.ctl(busy, "status")["prompt_tokens"]
        for i in range(6):
            assert len(s.tokens([5 + i, 6, 7], 3)) == 3
        t.join()
        assert len(answer[0]) == 400 and s.ctl(busy, "status")["prompt_tokens"] == before and s.ctl(busy, "status")["drained"] is True
        other = "mixed-2" if busy == "mixed-1" else "mixed-1"
        s.pdctl("-d", other, "drain")
        assert s.get("/ready")[0] == 503 and "all workers are draining" in s.get("/ready")[1]
        assert s.pdctl("undrain", busy).returncode == 0 and s.get("/ready")[0] == 200
        assert len(s.tokens([9, 9, 9], 3)) == 3 and s.ctl(busy, "status")["prompt_tokens"] > before
        assert s.pdctl("drain").returncode == 2 and s.pdctl("drain", "router").returncode == 1


def test_a_drain_outlives_the_worker(tiny_model):
    """It is drained from the moment that a router knows it again, until undrain; a router that does not answer is named."""
    with Suite("2mixed", tiny_model) as s:
        def state():
            return next(w["state"] for w in s.ctl("router", "workers") if w["name"] == "mixed-1")

        def ups():
            return s.log("router").count("event=worker_up worker=mixed-1")
        assert s.pdctl("drain", "mixed-1").returncode == 0
        for n, sig in ((2, signal.SIGTERM), (3, signal.SIGKILL)):
            s.kill("mixed-1", sig)
            wait_for(lambda: state() == "down")
            s.restart("mixed-1")
            wait_for(lambda: ups() == n)
            text = s.pdctl("status").stdout
            assert state() == "drained" and re.search("^mixed-1 .*, drained$", text, re.M), text
        for i in range(6):
            assert len(s.tokens([5 + i, 6, 7], 3)) == 3
        assert s.ctl("mixed-1", "status")["prompt_tokens"] == 0
        s.kill("router", signal.SIGSTOP, wait=False)
        r = s.pdctl("-t", "300", "undrain", "mixed-1")
        s.kill("router", signal.SIGCONT, wait=False)
        assert r.returncode == 1 and r.stderr == "pdctl: mixed-1: done, but not acknowledged within 300 ms by: router\n", r
        wait_for(lambda: state() == "up")
        s.kill("mixed-1")
        s.restart("mixed-1")
        wait_for(lambda: ups() == 4)
        assert state() == "up" and not os.path.exists(os.path.join(s.dir, "mixed-1.drained"))


def test_drain_against_undrain(tiny_model):
    """The last command counts, and who waits for another one is told. A drain that is asked for again makes the file again."""
    with Suite("mixed", tiny_model) as s:
        file = os.path.join(s.dir, "mixed-1.drained")
        s.kill("router", signal.SIGSTOP, wait=False)
        for first, last in (("drain", "undrain"), ("undrain", "drain")):
            waits = subprocess.Popen([os.path.join(BIN, "pdctl"), "-r", s.dir, "-t", "20000", first, "mixed-1"], stderr=subprocess.PIPE, text=True)
            wait_for(lambda: s.ctl("mixed-1", "status")["drained"] is (first == "drain"))
            time.sleep(0.1)
            assert s.pdctl("-t", "300", last, "mixed-1").returncode == 1
            assert waits.communicate()[1] == f"pdctl: mixed-1: somebody has {last}ed it meanwhile\n" and waits.returncode == 1
            assert s.ctl("mixed-1", "status")["drained"] is os.path.exists(file) is (last == "drain")
        s.kill("router", signal.SIGCONT, wait=False)
        os.unlink(file)
        r = s.pdctl("drain", "mixed-1", "--json")
        assert r.returncode == 0 and json.loads(r.stdout) == {"drained": True, "routers": [{"name": "router", "knows": True}]} and os.path.exists(file), r


def complete(rundir, *words):
    script = f'PATH={BIN}:$PATH; . {TOOLS}/pdctl.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _pdctl; printf "%s\\n" "${{COMPREPLY[@]}}"'
    r = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, timeout=60 * SLOW, env={**ENV, "PDSERVE_RUNDIR": str(rundir)})
    assert r.returncode == 0 and not r.stderr, r
    return r.stdout.split()


def test_completion(tmp_path):
    for name in ("router", "decode-1", "decode-2"):
        (tmp_path / f"{name}.lock").touch()
    assert complete(tmp_path, "pdctl", "st") == ["status", "storage", "stop"]
    assert complete(tmp_path, "pdctl", "--sh") == ["--shared-cache"]
    assert complete(tmp_path, "pdctl", "top", "--on") == ["--once"] and complete(tmp_path, "pdctl", "to") == ["top", "tokenize"]
    assert complete(tmp_path, "pdctl", "-d", "de") == complete(tmp_path, "pdctl", "stop", "de") == ["decode-1", "decode-2"]
    assert complete(tmp_path, "pdctl", "role", "decode-1", "") == ["prefill", "decode", "mixed"]
    assert complete(tmp_path, "pdctl", "log-level", "w") == ["warn"]
    assert sorted(complete(tmp_path, "pdctl", "help", "")) == sorted(commands())
    assert complete(tmp_path, "pdctl", "keygen", "a", "") == ["router", "worker", "messager", "storage", "operator"]
    assert complete(tmp_path, "pdctl", "-d", "decode-1", "role", "p") == ["prefill"]
    for whole in (["status", ""], ["log-level", "debug", ""], ["flush", "disk", ""], ["role", "decode-1", "mixed", ""], ["-t", ""], ["chat", "-s", ""], ["chat", "--api-key", ""]):
        assert complete(tmp_path, "pdctl", *whole) == [], whole
    assert complete(tmp_path, "pdctl", "chat", "--i") == ["--identity", "--insecure"] and complete(tmp_path, "pdctl", "render", "--te") == ["--template"]


def test_completion_asks_the_daemons():
    """Keys of config, commands of the daemon that -d names, and workers where only they will do."""
    with Suite("1p1d", sim="small") as s:
        assert set(complete(s.dir, "pdctl", "config", "http_")) >= {"http_listen", "http_tls_cert"}
        assert complete("/nowhere", "pdctl", "-r", s.dir, "-d", "decode-1", "config", "threa") == ["threads"]
        assert "cancel" in complete(s.dir, "pdctl", "-d", "router", "") and "cancel" not in complete(s.dir, "pdctl", "-d", "storage", "")
        for command in ("drain", "undrain", "role"):
            assert complete(s.dir, "pdctl", command, "") == ["decode-1", "prefill-1"], command
        assert complete(s.dir, "pdctl", "stop", "") == ["all", "decode-1", "messager", "prefill-1", "router", "storage"]


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh here")
def test_completion_of_zsh_parses():
    assert subprocess.run(["zsh", "-n", os.path.join(TOOLS, "_pdctl")]).returncode == 0
