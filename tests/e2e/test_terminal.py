"""pdctl at a terminal: the conversation of `pdctl chat` and the screen of `pdctl top`, on a pty whose screen an emulator keeps."""
import json
import os
import re
import resource
import signal
import stat
import subprocess
import threading
import time

import pytest
from suite import BIN, ENV, SAN, SLOW, Suite, wait_for
from terminal import PlayedServer, Terminal, interrupt


def piped(url, text, *args, env=None):
    r = subprocess.run([os.path.join(BIN, "pdctl"), "-u", url, *args, "chat"], input=text, capture_output=True, text=True, timeout=120 * SLOW,
                       env={k: v for k, v in ENV.items() if k != "OPENAI_API_KEY"} | (env or {}))
    return r.returncode, r.stdout, r.stderr


def contents(request):
    return [(m["role"], m["content"]) for m in request["messages"]]


@pytest.fixture
def state(tmp_path):
    return {"XDG_STATE_HOME": str(tmp_path / "state")}


@pytest.fixture
def history(tmp_path):
    return tmp_path / "state" / "pdserve" / "chat_history"


# --- a conversation ---------------------------------------------------------------------------------------------------------

def test_control_characters_are_shown_and_not_obeyed(state):
    evil = ["a\x1b]0;title\x07b", "\x9b31mred", "\x1b[2J", "\u202eback\u2066", "\x00nul\r\n", "tab\tend"]
    with PlayedServer([evil]) as s, Terminal("-u", s.url, "chat", env={**state, "NO_COLOR": "1"}) as t:
        t.prompt()
        t.type("go\r")
        t.shows("tab     end")
        t.prompt()
        assert "a^[]0;title^Gb<U+009B>31mred^[[2J<U+202E>back<U+2066>^@nul" in t.text()
        answer = t.raw[t.raw.index(b"go\r\n"):t.raw.index(b"\tend")]
        assert b"\x1b" not in answer and b"\x07" not in answer and b"\x9b" not in answer.replace("…".encode(), b"")
        assert contents(s.asked[0]) == [("user", "go")]
        t.type("more\r")
        wait_for(lambda: len(s.asked) == 2)
        assert s.asked[1]["messages"][1]["content"] == "".join(evil)        # the model gets back what it said


def test_a_wrong_key(state):
    """What to do, and what the server itself says: it may be a proxy with its own keys."""
    with PlayedServer([[("status", 401, "the key has expired")]]) as s:
        code, out, err = piped(s.url, "hi\n", "--api-key", "x", env=state)
        assert code and "this one is wrong: give --api-key KEY, or set OPENAI_API_KEY (the server says: the key has expired)\n" in err, (code, out, err)


def test_an_error_of_the_server_is_shown_safely(state):
    with PlayedServer([[("status", 400, "no\x1b[31m way")], ["fine"]]) as s, Terminal("-u", s.url, "chat", env=state) as t:
        t.prompt()
        t.type("one\r")
        t.shows("no^[[31m way")
        t.prompt()
        t.type("two\r")
        t.shows("fine")
        assert contents(s.asked[1]) == [("user", "two")]                    # as if the first had not been


def test_ctrl_c_ends_the_answer_and_not_the_conversation(state):
    with PlayedServer([["Once upon ", 0.3] + ["a time ", 0.1] * 300, ["done"]]) as s, Terminal("-u", s.url, "chat", env=state) as t:
        t.prompt()
        t.type("tell\r")
        t.shows("Once upon a time")
        interrupt(t)
        t.shows("(stopped)")
        t.prompt()
        wait_for(lambda: s.closed == [1], "the connection stays open")
        t.type("and then?\r")
        t.shows("done")
        role, text = contents(s.asked[1])[1]
        assert role == "assistant" and text.startswith("Once upon a time ") and text.endswith("…")
        t.prompt()
        interrupt(t)
        t.shows("Ctrl-D or /bye ends")
        t.type("half a line")
        interrupt(t)
        t.shows("half a line^C")
        t.prompt()
        t.type("\x04")
        assert t.ends() == 0 and t.restored()
        assert len(s.asked) == 2


def test_ctrl_c_before_the_first_token(state):
    with PlayedServer([[30, "late"], ["second"]]) as s, Terminal("-u", s.url, "chat", env=state) as t:
        t.prompt()
        t.type("first\r")
        wait_for(lambda: s.asked)
        interrupt(t)
        t.shows("(stopped before an answer)")
        t.prompt()
        t.type("next\r")
        t.shows("second")
        assert contents(s.asked[1]) == [("user", "next")]


def test_ctrl_c_right_after_enter(state, history):
    """It may come before the answer is waited for, or while the history is written."""
    with PlayedServer([["fine"]]) as s, Terminal("-u", s.url, "chat", env=state) as t:
        t.prompt()
        for i in range(10):
            t.type(f"question {i}\r")
            time.sleep(0.0002)
            os.kill(t.proc.pid, signal.SIGINT)      # not from the terminal, which then drops what is on its way to the screen
            t.shows(f"question {i}")
            t.prompt()
            assert t.proc.poll() is None
        assert os.listdir(history.parent) == ["chat_history"]
        t.type("/bye\r")
        assert t.ends() == 0 and t.restored()


def test_ctrl_c_during_regen_loses_nothing(state):
    with PlayedServer([["A"], [30, "late"], ["C"]]) as s, Terminal("-u", s.url, "chat", env=state) as t:
        t.prompt()
        t.type("one\r")
        t.shows("\nA\n")
        t.prompt()
        t.type("/regen\r")
        wait_for(lambda: len(s.asked) == 2)
        interrupt(t)
        t.shows("(stopped before an answer)")
        t.prompt()
        t.type("two\r")
        t.shows("\nC\n")
        assert contents(s.asked[2]) == [("user", "one"), ("assistant", "A"), ("user", "two")]


def test_ctrl_c_cancels_at_the_router(short_model, state):
    with Suite("mixed", short_model, worker={"max_sequences": 2}) as s:
        with Terminal("-r", s.dir, "-s", "ignore_eos=true", "-s", "max_tokens=400", "-s", "temperature=0", "chat", env=state) as t:
            t.prompt()
            t.type("hello\r")
            wait_for(lambda: s.ctl("router", "status")["requests"] == 1 and len(t.lines()[2]) > 3)
            interrupt(t)
            t.shows("(stopped")
            wait_for(lambda: s.ctl("router", "status")["requests"] == 0 and s.ctl("router", "status")["cancelled"] == 1)
            s.quiet()
            t.type("\x04")
            assert t.ends() == 0


def test_tokens_appear_as_they_come(state):
    with PlayedServer([["first", 2, " second"]]) as s, Terminal("-u", s.url, "chat", env=state) as t:
        t.prompt()
        t.type("x\r")
        t.shows("first")
        assert "second" not in t.text()
        t.shows("first second")


@pytest.mark.parametrize("env,dim", [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_reasoning_is_marked(state, env, dim):
    pieces = [{"reasoning_content": "is it"}, {"reasoning_content": " Paris?"}, "Paris"]
    with PlayedServer([pieces]) as s, Terminal("-u", s.url, "chat", env={**state, **env}) as t:
        t.shows(">")
        t.type("capital?\r")
        t.shows("\nParis")
        assert "thinking: is it Paris?" in t.lines()
        assert (b"\x1b[2mthinking: is it\x1b[0m\x1b[2m Paris?\x1b[0m\r\n\r\nParis" in t.raw) == dim
        t.type("ok\r")
        wait_for(lambda: len(s.asked) == 2)
        assert contents(s.asked[1])[1] == ("assistant", "Paris")
    with PlayedServer([pieces]) as s:
        assert piped(s.url, "capital?\n")[1] == "Paris\n"


def test_wide_characters_are_edited_by_character(state):
    with PlayedServer([["ok"]]) as s, Terminal("-u", s.url, "chat", env=state) as t:
        t.prompt()
        t.type("日本語é")
        t.shows("> 日本語é")
        wait_for(lambda: t.screen.cursor.x == 2 + 3 * 2 + 1)
        t.type("\x1b[D\x1b[D\x7f中\x1b[3~")                       # left twice, rub out 本, insert, delete 語
        t.shows("> 日中é")
        wait_for(lambda: t.screen.cursor.x == 6)
        t.type("\r")
        t.shows("ok")
        assert contents(s.asked[0]) == [("user", "日中é")]


def test_a_line_goes_on_after_a_resize(state):
    with PlayedServer([["ok"]]) as s, Terminal("-u", s.url, "chat", env=state) as t:
        t.prompt()
        t.type("a" * 100)
        t.shows("a" * 78 + "\n" + "a" * 22)
        t.resize(24, 50)
        time.sleep(0.5)             # right as well before it has noticed
        t.type("bc\x7f\r")
        t.shows("ok")
        assert contents(s.asked[0]) == [("user", "a" * 100 + "b")]


def test_several_lines(state):
    with PlayedServer([["ok"]]) as s, Terminal("-u", s.url, "chat", env=state) as t:
        t.prompt()
        for text, last, n in (('"""\rone "two"\r\rthree\r"""\r', "three", 1), ("four \\\rfive\r", "five", 2), ('/system """be\rbrief"""\r', 'brief"""', 2),
                              ('"""a""" b"""\r', "b", 3), ('"""\rdropped', "dropped", 3)):
            t.type(text)
            t.shows(last)
            wait_for(lambda: len(s.asked) == n)
            if last != "dropped":
                t.prompt()
        t.type("\x03six\r")
        wait_for(lambda: len(s.asked) == 4)
        got = [r["messages"][-1]["content"] for r in s.asked]
        assert got == ['one "two"\n\nthree', "four \nfive", 'a""" b', "six"]
        assert contents(s.asked[2])[0] == ("system", "be\nbrief")


def test_history_is_kept_private_and_bounded(state, history):
    with PlayedServer([["ok"]]) as s:
        with Terminal("-u", s.url, "chat", env=state) as t:
            t.prompt()
            t.type("first question é\r")
            t.shows("ok")
            t.prompt()
            t.type("second\r")
            wait_for(lambda: len(s.asked) == 2)
            t.proc.kill()                                               # nothing that was typed is lost
        assert stat.S_IMODE(history.stat().st_mode) == 0o600 and stat.S_IMODE(history.parent.stat().st_mode) == 0o700
        assert os.listdir(history.parent) == ["chat_history"]
        with open(history, "a") as f:
            f.writelines(f"line{i}\n" for i in range(3000))
        with Terminal("-u", s.url, "chat", env=state) as t:
            t.prompt()
            t.type("\x1b[A")
            t.shows("> line2999")
            t.type("\x03")
            t.type("newest\r")
            t.shows("ok")
            t.prompt()
            t.type("\x04")
            assert t.ends() == 0
        lines = history.read_text().splitlines()
        assert len(lines) <= 1001 and lines[-1] == "newest"


def test_history_of_two_chats(state, history, tmp_path):
    """Each keeps the other's lines; an empty file is a history, and a link stays one."""
    history.parent.mkdir(parents=True)
    (tmp_path / "elsewhere").write_text("")
    history.symlink_to(tmp_path / "elsewhere")
    with PlayedServer([["ok"]]) as s, Terminal("-u", s.url, "chat", env=state) as a, Terminal("-u", s.url, "chat", env=state) as b:
        for i, (t, text) in enumerate(((a, "one"), (b, "two"), (a, "three"))):
            t.prompt()
            t.type(text + "\r")
            wait_for(lambda: len(s.asked) == i + 1)
        assert (tmp_path / "elsewhere").read_text().splitlines()[1:] == ["one", "two", "three"]
        assert history.is_symlink() and "no history" not in a.text() + b.text()


def test_a_file_that_is_no_history_is_left_alone(state, history):
    history.parent.mkdir(parents=True)
    history.write_text("mine\n")
    with PlayedServer([["ok"]]) as s, Terminal("-u", s.url, "chat", env=state) as t:
        t.shows("no history is kept")
        t.prompt()
        t.type("x\r")
        t.shows("ok")
    assert history.read_text() == "mine\n"


def test_set_asks_the_server(short_model, state):
    with Suite("mixed", short_model) as s, Terminal("-r", s.dir, "chat", env=state) as t:
        def says(command, answer):
            t.prompt()
            t.type(command + "\r")
            t.shows("> " + command)
            t.shows(answer)
        says("/set", "nothing is set; chat's defaults: temperature 0.7")
        says("/set temperature -3", "not set: temperature must be a number from 0 to 100, got -3")
        says("/set quux 5", "not set: quux is not a parameter of this server")
        says("/set seed many", "not set: seed")
        says("/set messages []", "messages cannot be set in a conversation")
        says("/set seed", "/set takes a name and a value")
        says("/set max_tokens 7", ">")
        says("/set ignore_eos true", ">")
        says("/set", "max_tokens 7")
        says("hello", "(cut at 7 tokens; /set max_tokens N changes the limit)")
        says("/set max_tokens default", ">")
        says("/ste", "unknown command /ste; did you mean /set?")
        says("/help", "/regen")
        says("/set", "ignore_eos true")
        wait_for(lambda: [line for line in t.lines() if line][-3:] == ["> /set", "ignore_eos true", ">"], t.text)
        t.type("/bye\r")
        assert t.ends() == 0
        s.quiet()


def test_commands_change_the_conversation():
    with PlayedServer([["A"], ["B"], ["C"], ["D"]]) as s:
        text = "/system Be kind.\none\n/regen\n/system Be rude.\ntwo\n/clear\n/etc/passwd is what?\n/bye\nnever\n"
        code, out, err = piped(s.url, text, "-S", "Be.", "-s", "top_k=3")
        assert (code, out) == (0, "A\nB\nC\nD\n"), err
        assert [contents(r) for r in s.asked] == [
            [("system", "Be kind."), ("user", "one")],
            [("system", "Be kind."), ("user", "one")],
            [("system", "Be rude."), ("user", "one"), ("assistant", "B"), ("user", "two")],
            [("system", "Be rude."), ("user", "/etc/passwd is what?")]]
        assert all(r["top_k"] == 3 and r["max_tokens"] > 0 for r in s.asked)


def test_a_failed_regen_loses_nothing():
    with PlayedServer([["A"], [("status", 503, "busy")], ["C"]]) as s:
        code, out, err = piped(s.url, "one\n/regen\ntwo\n")
        assert (code, out) == (1, "A\nC\n") and "busy" in err
        assert contents(s.asked[2]) == [("user", "one"), ("assistant", "A"), ("user", "two")]


# --- from a pipe ----------------------------------------------------------------------------------------------------------

def test_pipe_gets_text_alone(state):
    with PlayedServer([["\x1b[31mraw\n"]]) as s:
        code, out, err = piped(s.url, "one\r\n\ntwo", env=state)
        assert (code, out, err) == (0, "\x1b[31mraw\n" * 2, "")               # as the model said it; no prompt, no id
        assert not os.path.exists(state["XDG_STATE_HOME"])
    assert piped(s.url, "one\ntwo\n")[0] == 3
    with PlayedServer([[("status", 400, "bad")], ["ok"]]) as s:
        code, out, err = piped(s.url, "one\ntwo\n")
        assert (code, out) == (1, "ok\n") and err == "pdctl: bad\n"
    with PlayedServer([["x"]]) as s:
        assert piped(s.url, "/set\n/quit-now\n/none\n")[0] == 2
        assert piped(s.url, "")[0] == 0


def test_inputs_that_are_too_long():
    with PlayedServer([["ok"]]) as s:
        for text in ("x" * (4 << 20) + "\\", "\\\n" + "x" * (4 << 20) + "\\\n", '"""\n' + "x" * (5 << 20)):
            code, out, err = piped(s.url, text)
            assert (code, out) == (0, "") and "an input of more than 4194304 bytes is dropped" in err, (code, err)
        code, out, err = piped(s.url, "x" * (5 << 20) + "\nshort\n")
        assert (code, out) == (0, "ok\n") and contents(s.asked[0]) == [("user", "short")]


@pytest.mark.skipif(bool(SAN), reason="a sanitizer needs address space")
def test_a_line_is_read_in_bounded_memory():
    limit = 200 << 20
    r = subprocess.run([os.path.join(BIN, "pdctl"), "-u", "http://127.0.0.1:1", "chat"], input=b"x" * (250 << 20) + b"\n/bye\n", capture_output=True, timeout=120 * SLOW,
                       env=ENV, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert r.returncode == 0 and b"an input of more than 4194304 bytes is dropped" in r.stderr, r


def test_a_line_of_an_answer_that_is_too_long():
    with PlayedServer([["x" * (1 << 20)]]) as s:
        code, out, err = piped(s.url, "go\n")
        assert (code, out) == (1, "") and "a line of the answer has more than 1048576 bytes" in err, (code, err)


def test_one_question_prints_no_id():
    with PlayedServer([["Hi"]], finish="length") as s:
        r = subprocess.run([os.path.join(BIN, "pdctl"), "-u", s.url, "chat", "hello"], capture_output=True, text=True, timeout=60 * SLOW, env=ENV)
        assert (r.returncode, r.stdout, r.stderr) == (0, "Hi\n", "(cut at 1 tokens; -s max_tokens=N changes the limit)\n")
        assert not s.counted and "max_tokens" not in s.asked[0]


# --- the length of a conversation ---------------------------------------------------------------------------------------

def test_oldest_turns_are_dropped():
    """Words are tokens: a context of 40 leaves a quarter to the answer."""
    with PlayedServer([["five words are the answer"]], context=40) as s:
        code, out, err = piped(s.url, "".join(f"turn {i} has five words\n" for i in range(6)) + "w " * 60 + "\nlast\n", "-S", "System text.")
        assert code == 0 and err.count("the oldest 1 turn of the conversation is dropped") >= 2, err
        for r in s.asked[:6] + s.asked[7:]:
            size = sum(len(m["content"].split()) for m in r["messages"])
            assert size <= 30 and r["max_tokens"] == 40 - size
            assert contents(r)[0] == ("system", "System text.")
            assert r["messages"][1]["role"] == "user"
        assert contents(s.asked[5])[-1] == ("user", "turn 5 has five words") and len(s.asked[5]["messages"]) == 6
        # a message that fits alone into no context drops nothing: the server says why
        assert len(s.asked[6]["messages"]) == 8


def test_long_conversation_with_a_model(short_model):
    with Suite("mixed", short_model, router={"max_model_len": 256}) as s:
        turns = [f"tell me about number {i}" for i in range(8)]
        code, out, err = piped(f"http://127.0.0.1:{s.port}", "\n".join(turns), "-s", "temperature=0", "-s", "max_tokens=30", "-s", "ignore_eos=true")
        assert code == 0, err
        assert "the context of 256 tokens is full: the oldest 1 turn of the conversation is dropped" in err
        assert err.count("(cut at 30 tokens; /set max_tokens N changes the limit)") == 8


def test_the_end_of_the_context_is_named():
    with PlayedServer([["w"] * 35], context=40, finish="length") as s:
        assert "(cut at 35 tokens: the context of 40 is full)" in piped(s.url, "five words are my question\n")[2]


# --- top ----------------------------------------------------------------------------------------------------------------------

def row(t, name):
    return next((line for line in t.lines() if line.startswith(name + " ")), "")


def test_top_shows_a_suite_that_breaks(tiny_model):
    """Also while daemons are killed, stopped and hang; on a screen of 80x24, never beyond it."""
    with Suite("1p2d", tiny_model, worker={"max_sequences": 4}) as s:
        stop, served = threading.Event(), []

        def load():
            while not stop.is_set():
                try:
                    served.append(s.post("/v1/completions", {"prompt": [len(served) % 50 + 3] * 300, "max_tokens": 20, "ignore_eos": True}))
                except OSError:
                    pass
                time.sleep(0.05)        # some load is enough
        loader = threading.Thread(target=load)
        loader.start()
        try:
            with Terminal("-r", s.dir, "-t", "5000", "--interval", "0.3", "top") as t:
                t.shows("FROM")
                wait_for(lambda: re.search(r"^prefill-1 +decode-\d +[\d.]+ +[\d.]+ .?i?B +[\d.]+ .s +\d+", t.text(), re.M))
                wait_for(lambda: re.search(r"TTFT +p50 [\d.]+ .?s +p99 [\d.]+ .?s +ITL +p50 [\d.]+ .?s", t.text()))
                wait_for(lambda: re.search(r"tokens/s +[1-9]\S* in \(computed\), [1-9]\S* out", t.text()))
                wait_for(lambda: re.search(r"tail +p50 (?!0 )[\d.]+ .?s +p99 (?!0 )[\d.]+ .?s", t.text()), t.text)
                wait_for(lambda: re.search(r"since start \d+ %", t.text()))
                assert "6 daemons" in t.lines()[0]
                s.kill("decode-2")
                wait_for(lambda: re.match(r"decode-2 +decode +down +- +- +- +\d+ +- +- +\d+ s", row(t, "decode-2")), lambda: t.text())
                t.shows("1 of 6 daemons not running")
                table = [line for line in t.lines() if re.match(r"(prefill|decode)-\d +(prefill|decode) ", line)]
                assert table[0].startswith("decode-2 ")                 # trouble first
                s.kill("storage", signal.SIGTERM)
                wait_for(lambda: re.match(r"storage +stopped +\d+ s", row(t, "storage")), lambda: t.text())
                s.kill("messager", signal.SIGSTOP)
                wait_for(lambda: re.match(r"messager +no answer +\d+ s", row(t, "messager")), lambda: t.text())
                began = time.time()
                for _ in range(4):
                    clock = t.lines()[0]
                    wait_for(lambda: t.lines()[0] != clock, "a daemon that hangs stops the clock")
                assert time.time() - began < 4 * 5                      # screens that each waited for its answer would take that long
                s.kill("messager", signal.SIGCONT)
                wait_for(lambda: "running" in row(t, "messager"))
                s.restart("decode-2")
                wait_for(lambda: "running" in row(t, "decode-2"))
                assert t.scrolled() == 0 and all(len(line) <= 80 for line in t.lines())
                t.type("q")
                assert t.ends() == 0 and t.restored()
                wait_for(lambda: t.raw.endswith(b"\x1b[?7h\x1b[?25h\x1b[?1049l"), lambda: t.raw[-100:])
        finally:
            stop.set()
            loader.join()
        s.restart("storage")
        s.ready()


def screens_since_cleared(t, at):
    """How many screens it has begun since it noticed a new size, after `at` bytes."""
    _, cleared, since = t.raw[at:].partition(b"\x1b[2J")
    return since.count(b"\x1b[H") if cleared else 0


def test_top_follows_the_size(tiny_model):
    with Suite("2p2d", tiny_model) as s, Terminal("-r", s.dir, "--interval", "0.2", "top") as t:
        t.shows("storage")
        for rows, columns in ((14, 60), (9, 30), (24, 80), (50, 160), (3, 10), (24, 80)):
            at = len(t.raw)
            t.resize(rows, columns)
            wait_for(lambda: screens_since_cleared(t, at) > 2)          # one of the old size may have been under way
            before = t.scrolled()
            n = screens_since_cleared(t, at)
            wait_for(lambda: screens_since_cleared(t, at) > n + 2)
            lines = t.lines()
            assert t.scrolled() == before and len(lines) == rows and lines[0].startswith("pdserve "), t.text()
            wait_for(lambda: t.lines()[1] == "requests  0 running, waiting: prefill 0, decode 0; 0/s done, 0/s failed"[:columns].rstrip(), t.text)
            whole = rows >= 24
            assert all((row(t, n) != "") for n in s.names) == whole, t.text()
            assert ("more" in t.text()) == (5 < rows < 24), t.text()
            assert ("PREEMPTED" in t.text()) == (columns == 160)
        os.kill(t.proc.pid, signal.SIGTSTP)
        wait_for(lambda: t.raw.endswith(b"\x1b[?1049l") and t.restored())
        os.kill(t.proc.pid, signal.SIGCONT)
        t.shows("storage")
        os.kill(t.proc.pid, signal.SIGTERM)
        assert t.ends() == -signal.SIGTERM and t.restored()
        wait_for(lambda: t.raw.endswith(b"\x1b[?1049l"), lambda: t.raw[-100:])


def test_top_without_a_screen(tiny_model):
    with Suite("mixed", tiny_model) as s:
        assert len(s.tokens([1, 2, 3], 5)) == 5
        s.quiet()
        wait_for(lambda: not any(w["running"] or w["requests"] for w in s.ctl("router", "workers")))
        r = s.pdctl("top", "--interval", "0.2", "-n", "2")
        assert r.returncode == 0 and r.stdout.count("pdserve  ") == 2 and "\x1b" not in r.stdout and max(map(len, r.stdout.splitlines())) <= 80
        assert re.search(r"^mixed-1 +mixed +running +0 +0 +\d+ +\d+ +0 +0 +\d+ s$", r.stdout, re.M), r.stdout
        assert s.pdctl("top").stdout.count("pdserve  ") == 1
        view = json.loads(s.pdctl("top", "--json", "--interval", "0.2").stdout)
        assert view["workers"][0]["name"] == "mixed-1" and view["out_per_s"] == 0 and view["ttft_us"] is None
        assert [d["name"] for d in view["daemons"]] == ["router", "storage"]
        with Terminal("-r", s.dir, "--interval", "0.2", "top", rows=60, env={"TERM": "dumb"}) as t:
            wait_for(lambda: t.text().count("pdserve  ") >= 2)
            assert b"\x1b" not in t.raw
            interrupt(t)
            assert t.ends() == -signal.SIGINT
        for args, word in ((("--interval", "0"), "--interval"), (("-n", "x"), "-n")):
            r = s.pdctl("top", *args)
            assert r.returncode == 2 and word in r.stderr and repr(args[1])[1:-1] in r.stderr
        s.kill("mixed-1")                                               # before top has seen it
        wait_for(lambda: "down" in s.pdctl("workers").stdout)
        r = s.pdctl("top", "--once", "--interval", "0.2")
        assert r.returncode == 3 and re.search(r"^mixed-1 +mixed +down +- +- +- +\d+ +- +- +\d+ s$", r.stdout, re.M), r.stdout
        s.restart("mixed-1")
        s.ready()


def test_top_keeps_its_pace(tiny_model):
    """With a daemon that hangs: only the first screen waits for it."""
    with Suite("mixed", tiny_model) as s:
        s.kill("storage", signal.SIGSTOP)
        began = time.time()
        r = s.pdctl("-t", "2500", "top", "--interval", "0.2", "-n", "12")
        took = time.time() - began
        s.kill("storage", signal.SIGCONT)
        assert r.stdout.count("pdserve  ") == 12 and took < 12 * 2.5, took      # as long as if each waited
        s.ready()


def test_top_is_coloured_unless_told_otherwise(tiny_model):
    with Suite("mixed", tiny_model) as s:
        for env, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
            with Terminal("-r", s.dir, "top", env=env) as t:
                t.shows("storage")
                assert (b"\x1b[1m" in t.raw) == coloured
                interrupt(t)
                assert t.ends() == 0 and t.restored()


# --- status and workers -------------------------------------------------------------------------------------------------------

def test_status_of_daemons_that_are_gone(tiny_model):
    with Suite("1p2d", tiny_model) as s:
        s.kill("storage", signal.SIGTERM)
        s.kill("decode-2")
        wait_for(lambda: "down" in s.pdctl("workers").stdout)
        r = s.pdctl("status")
        assert r.returncode == 3 and max(map(len, r.stdout.splitlines())) <= 80
        assert re.search(r"^storage +stopped +- +- +- +last heard [\d.]+ m?s ago$", r.stdout, re.M), r.stdout
        assert re.search(r"^decode-2 +down +- +- +- +last heard [\d.]+ m?s ago$", r.stdout, re.M), r.stdout
        assert re.search(r"^decode-2 +decode +down +0 +- +\d+ +- +\d+\b", s.pdctl("workers").stdout, re.M), s.pdctl("workers").stdout
        gone = {d["name"]: d for d in json.loads(s.pdctl("--json", "status").stdout) if "pid" not in d}
        assert set(gone) == {"storage", "decode-2"} and all(0 < d["heard_us_ago"] < 60e6 for d in gone.values())
        s.restart("decode-2")
        s.restart("storage")
        s.ready()
        with open(os.path.join(s.dir, "decode-9.lock"), "w") as f:      # of a suite before: nobody misses it
            f.write("1 1\n")
        assert "decode-9" not in s.pdctl("status").stdout


def test_status_waits_once_for_all_that_hang(tiny_model):
    with Suite("1p2d", tiny_model) as s:
        hung = ("decode-1", "decode-2", "messager", "storage")
        for name in hung:
            s.kill(name, signal.SIGSTOP)
        began = time.time()
        r = s.pdctl("-t", "4000", "status")
        took = time.time() - began
        for name in hung:
            s.kill(name, signal.SIGCONT)
        assert r.returncode == 3 and took < 4 * 4, took                 # as long as if it waited for one after the other
        assert len(re.findall("^[a-z]+(?:-[12])? +no answer", r.stdout, re.M)) == 4, r.stdout
        assert re.search("^router +running", r.stdout, re.M)
        s.ready()
