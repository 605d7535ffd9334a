"""pdctl's command line where no daemon is needed: help, version, mistyped commands, completion."""
import os
import re
import shutil
import subprocess
import threading

import pytest
from suite import BIN, ENV, Suite, wait_for

TOOLS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tools", "completion")


def pdctl(*args, **env):
    r = subprocess.run([os.path.join(BIN, "pdctl"), *args], capture_output=True, text=True, timeout=60, env={**ENV, **env})
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
    whole, asks = pdctl("help")[1], ["-r, --rundir DIR", "-e, --endpoint ADDR", "-k, --keys FOLDER", "-i, --identity NAME", "-d, --daemon NAME", "-j, --json", "-t, --timeout MS"]
    of = {name: options(pdctl("help", name)[1]) for name in commands() if name != "help"}
    assert of["status"] == of["stop"] == of["flush"] == asks
    assert of["keygen"] == ["-k, --keys FOLDER"] and of["workers"] == [*asks[:6], "-w, --wide", asks[6]]
    assert of["top"] == [*asks[:6], "    --interval S", "-n, --count N", "    --once", asks[6]]
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
    daemon = subprocess.run([os.path.join(BIN, "pdrouterd"), "--version"], capture_output=True, text=True, env=ENV).stdout
    assert code == 0 and out.split()[1:] == daemon.split()[1:]


def test_fits_into_80_columns(tiny_model):
    """status and workers, also while a daemon is down; a refusal says what is refused."""
    with Suite("1p2d", tiny_model) as s:
        s.tokens([1, 2, 3], 200)
        s.kill("decode-2")
        wait_for(lambda: "down" in s.pdctl("workers").stdout)
        for command in ("status", "workers"):
            text = s.pdctl(command).stdout
            assert max(map(len, text.splitlines())) <= 80, text
            assert re.search("^decode-2 .*down", text, re.M), text
        assert len(s.pdctl("workers", "--wide").stdout.splitlines()[0]) > 200
        r = s.pdctl("log-level", "loud")
        assert r.returncode == 3 and "loud" in r.stderr and "debug, info, notice, warn" in r.stderr, r.stderr
        s.restart("decode-2")
        wait_for(lambda: s.pdctl("log-level", "loud").returncode == 1)
        assert 'no command "quux"' in s.pdctl("-d", "router", "quux").stderr


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
        assert s.pdctl("drain", busy).returncode == 0
        wait_for(lambda: state(busy) == "draining")
        before = s.ctl(busy, "status")["prompt_tokens"]
        for i in range(6):
            assert len(s.tokens([5 + i, 6, 7], 3)) == 3
        t.join()
        assert len(answer[0]) == 400 and s.ctl(busy, "status")["prompt_tokens"] == before and s.ctl(busy, "status")["drained"] is True
        other = "mixed-2" if busy == "mixed-1" else "mixed-1"
        s.pdctl("-d", other, "drain")
        wait_for(lambda: s.get("/ready")[0] == 503)
        assert "all workers are draining" in s.get("/ready")[1]
        assert s.pdctl("undrain", busy).returncode == 0
        wait_for(lambda: s.get("/ready")[0] == 200)
        assert len(s.tokens([9, 9, 9], 3)) == 3 and s.ctl(busy, "status")["prompt_tokens"] > before
        assert s.pdctl("drain").returncode == 2 and s.pdctl("drain", "router").returncode == 1


def complete(rundir, *words):
    script = f'PATH={BIN}:$PATH; . {TOOLS}/pdctl.bash; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _pdctl; printf "%s\\n" "${{COMPREPLY[@]}}"'
    r = subprocess.run(["bash", "-c", script, "bash", *words], capture_output=True, text=True, timeout=60, env={**ENV, "PDSERVE_RUNDIR": str(rundir)})
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


@pytest.mark.skipif(not shutil.which("zsh"), reason="no zsh here")
def test_completion_of_zsh_parses():
    assert subprocess.run(["zsh", "-n", os.path.join(TOOLS, "_pdctl")]).returncode == 0
