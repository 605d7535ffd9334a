"""test_pdbench.py - pdbench against real daemons: closed loop, open loop, conversations, a slice of a trace, workers that die while it measures."""
import contextlib
import http.server
import json
import os
import re
import signal
import subprocess
import threading
import time
import xml.dom.minidom

import pytest
from suite import BIN, ENV, ROOT, SLOW, Suite, free_port, wait_for

TRACE = os.path.join(ROOT, "tests", "data", "traces", "conversation_tenth_20min.jsonl")


def pdbench(port, line, rc=0, **more):
    r = subprocess.run([os.path.join(BIN, "pdbench"), *line.split(), f"http://127.0.0.1:{port}"], capture_output=True, text=True, timeout=120 * SLOW, env=ENV, **more)
    assert r.returncode == rc, (r.returncode, r.stdout, r.stderr)
    return r


def figures(port, line, **more):
    return json.loads(pdbench(port, "--json - " + line, **more).stdout)


@pytest.fixture(scope="module")
def suite(tiny_model):
    with Suite("1p2d", tiny_model) as s:
        yield s
        s.quiet()


def test_closed_loop_with_all_outputs(suite, tmp_path):
    out = {k: tmp_path / k for k in ("json", "svg", "requests")}
    r = pdbench(suite.port, "-c 4 -n 40 -w 4 -i 10-40 -o 4-12 --slo ttft=100s,tpot=100s --result-prefix t_ --title <a&b> "
                + " ".join(f"--{k} {p}" for k, p in out.items()))
    all_ = json.loads(out["json"].read_text())
    f = all_["figures"]
    assert f["requests"] == f["completed"] == 40 and f["failed"] == 0 and f["goodput_pct"] == 100
    assert f["ttft_p50_ms"] <= f["ttft_p99_ms"] <= f["ttft_max_ms"] <= f["e2e_max_ms"]
    lines = [json.loads(x) for x in out["requests"].read_text().splitlines()]
    assert len(lines) == 44 and sum(x["measured"] for x in lines) == 40
    assert all(x["output_tokens"] == x["max_tokens"] and x["prompt_tokens"] == x["input_tokens"] and x["good"] for x in lines)
    results = dict(re.findall(r"(?m)^RESULT t_(\w+)=(\S+)$", r.stdout))
    assert results["completed"] == "40" and float(results["ttft_p50_ms"]) == pytest.approx(f["ttft_p50_ms"], abs=0.001)
    assert re.search(r"(?m)^  TTFT +\S+ \S+", r.stdout) and "40 completed, 0 failed" in r.stdout
    page = xml.dom.minidom.parse(str(out["svg"]))
    assert "<a&b>" in "".join(t.firstChild.data for t in page.getElementsByTagName("text") if t.firstChild and t.firstChild.nodeType == 3)
    assert len(page.getElementsByTagName("rect")) > 5


def test_open_loop(suite):
    f = figures(suite.port, "-r 40 --arrivals constant -d 1500ms -w 500ms -i 16 -o 6")["figures"]
    assert f["failed"] == 0 and f["requests"] == 60
    assert f["late_p99_ms"] < f["window_s"] * 1000


def test_conversations_hit_the_cache(suite):
    out = figures(suite.port, "-c 3 -n 30 -i 20-30 -o 8 --rounds 5 --think 2ms-9ms --prefix-tokens 80 --seed 77")
    f = out["figures"]
    assert f["failed"] == 0 and f["requests"] == 30
    assert f["cached_pct"] > 30, f      # rounds and the shared prefix; blocks of 64


def test_a_slice_of_a_trace(suite):
    out = figures(suite.port, f"--trace {TRACE} --sample 0.1 --time-scale 1000 --length-scale 64 --over clip --sessions")
    f = out["figures"]
    assert f["failed"] == 0 and f["requests"] > 15
    assert out["load"].startswith("open loop, a trace") and out["times_from"] == "due"
    skipped = figures(suite.port, f"--trace {TRACE} --sample 0.1 --time-scale 1000 --length-scale 64")
    assert skipped["skipped"] == out["clipped"] and skipped["figures"]["requests"] + skipped["skipped"] == f["requests"]


def test_clients_that_leave_and_leave_nothing(suite):
    f = figures(suite.port, "-c 8 -n 80 -i 30 -o 200 --abort 40%")["figures"]
    assert f["failed"] == 0 and f["left"] > 10 and f["left"] + f["completed"] == 80
    suite.quiet()


def test_refused_requests(suite):
    r = pdbench(suite.port, "-c 1 -n 3 --text", rc=1)
    assert "3 x status 400" in r.stdout and "3 of 3 requests failed" in r.stderr
    pdbench(suite.port, "-c 1 -n 3 --text --allow-errors 3", rc=1)       # and none succeeded
    f = figures(suite.port, "-c 1 -n 4 --text --allow-errors 100%", rc=1)
    assert f["figures"]["failed"] == 4 and f["errors"][0]["status"] == 400
    vocab = json.loads(suite.get("/v1/models")[1])["data"][0]["vocab_size"]
    assert f"vocabulary has {vocab} tokens" in pdbench(suite.port, f"-n 1 --vocab 3-{vocab + 1}", rc=2).stderr
    pdbench(suite.port, f"-n 1 -i 50 -o 2 --vocab {vocab - 2}-{vocab}")
    assert "no request fits" in pdbench(suite.port, "-c 1 -i 5000", rc=2).stderr


def test_nobody_there():
    assert "Connection refused" in pdbench(free_port(), "-n 1", rc=3).stderr


def test_files_that_cannot_be_written(suite):
    assert "/nowhere/x" in pdbench(suite.port, "-n 1 --json /nowhere/x", rc=1).stderr
    assert "No space" in pdbench(suite.port, "-n 1 -i 5 -o 2 --json /dev/full", rc=1).stderr


def test_interrupted(suite):
    before = suite.log("router").count("event=submitted")
    p = subprocess.Popen([os.path.join(BIN, "pdbench"), "-c", "2", "-d", "100s", "-i", "8", "-o", "4", "--json", "-", f"http://127.0.0.1:{suite.port}"],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV)
    while suite.log("router").count("event=submitted") == before and p.poll() is None:
        time.sleep(0.02)
    p.send_signal(signal.SIGINT)
    out, err = p.communicate(timeout=30 * SLOW)
    assert p.returncode == 1 and json.loads(out)["interrupted"] and "interrupted" in err
    suite.quiet()


def on_a_terminal(suite, options):
    """-> (what it says there, on stdout)"""
    tty, end = os.openpty()
    p = subprocess.Popen([os.path.join(BIN, "pdbench"), *options.split(), f"http://127.0.0.1:{suite.port}"], stdout=subprocess.PIPE, stderr=end, text=True, env=ENV)
    os.close(end)
    parts = []

    def read():
        try:
            while part := os.read(tty, 4096):
                parts.append(part)
        except OSError:         # EIO: nobody has the other end any more
            pass
    t = threading.Thread(target=read)
    t.start()
    out = p.communicate(timeout=60 * SLOW)[0]
    t.join()
    os.close(tty)
    seen = b"".join(parts).decode()
    assert p.returncode == 0, (seen, out)
    return seen, out


def test_progress_on_a_terminal(suite):
    """A line on stderr that is written over, and gone at the end; nothing of it in the figures."""
    shown = None
    for seconds in (1.5, 6, 24):             # until an answer was complete before the last line
        seen, out = on_a_terminal(suite, f"-c 2 -d {int(seconds * 1000)}ms -i 8 -o 4")
        shown = re.search(r"\r\x1b\[K +[\d.]+ s  \d+ sent  \d+ in flight .* tokens/s  ttft p50", seen)
        if shown:
            break
    assert shown and seen.endswith("\r\x1b[K"), seen
    assert "in flight (" not in out


def test_a_decode_worker_dies_while_it_measures(tiny_model):
    """The router resubmits: no client sees it, and pdbench counts every token once."""
    with Suite("1p2d", tiny_model) as s:
        p = subprocess.Popen([os.path.join(BIN, "pdbench"), *"-c 6 -n 120 -i 16-48 -o 60 --token-ids --json -".split(), f"http://127.0.0.1:{s.port}"],
                             stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENV)
        while "event=request_done" not in s.log("router") and p.poll() is None:
            time.sleep(0.01)
        s.kill("decode-1")
        out, err = p.communicate(timeout=100 * SLOW)
        f = json.loads(out)["figures"]
        assert p.returncode == 0, (json.loads(out)["errors"], err)
        assert f["completed"] == 120 and f["output_tokens_mean"] == 60


# --- servers of others: strict as OpenAI's, each of which takes less than pdserve does

OPENAI = {"model", "prompt", "messages", "temperature", "stream", "max_tokens"}


class Strict(http.server.BaseHTTPRequestHandler):
    """Refuses, with 400, what its server does not take: ids (prompts of token ids), extra (parameters that OpenAI does not have), options (stream_options and seed),
    usage (no usage in streams), anywhere (nor in answers), pieces (has several tokens in a piece of text), list (takes ids for words); with 404 a path that it does not have. A word has three tokens, and a prompt five beside."""
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body, kind="application/json"):
        text = body if isinstance(body, str) else json.dumps(body)
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def refuse(self, text, status=400):
        self.answer(status, {"error": {"message": text, "type": "invalid_request_error"}})

    def do_GET(self):
        self.answer(200, {"data": [{"id": "strict"}]})

    def do_POST(self):
        q = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        lacks, chat = self.server.lacks, self.path.endswith("/chat/completions")
        if self.path in lacks:
            return self.refuse("not found", 404)
        if "key" in lacks and self.headers.get("Authorization") != "Bearer sk":
            return self.refuse("no key", 401)
        unknown = set(q) - OPENAI - (set() if "options" in lacks else {"stream_options", "seed"})
        if "extra" in lacks and (unknown or set(q.get("stream_options", {})) - {"include_usage"}):
            return self.refuse(f"unknown parameter: {unknown}")
        prompt = " ".join(m["content"] for m in q["messages"]) if chat else q["prompt"]
        if not isinstance(prompt, str) and "ids" in lacks:
            return self.refuse("prompt must be a string")
        n = 5 + 3 * len(prompt.split()) if isinstance(prompt, str) else len(prompt) * (3 if "list" in lacks else 1)
        self.server.seen.append((self.path, n, q))
        used = {"prompt_tokens": n, "completion_tokens": q["max_tokens"], "total_tokens": n + q["max_tokens"]}
        if not q.get("stream"):
            return self.answer(200, {"choices": [{"text": "a b"}], **({} if "anywhere" in lacks else {"usage": used})})
        piece = {"delta": {"content": " x"}} if chat else {"text": " x"}
        events = [{"choices": [piece]}] * (q["max_tokens"] - (2 if "pieces" in lacks else 0)) + [{"choices": [{"finish_reason": "length"}]}]
        if "usage" not in lacks and q.get("stream_options", {}).get("include_usage"):
            events.append({"choices": [], "usage": used})
        self.answer(200, "".join(f"data: {json.dumps(e)}\n\n" for e in events) + "data: [DONE]\n\n", "text/event-stream")


@contextlib.contextmanager
def strict(*lacks):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Strict)
    server.lacks, server.seen = lacks, []
    threading.Thread(target=server.serve_forever).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


BENCH = "-c 2 -n 8 -i 200 -o 6"


@pytest.mark.parametrize("lacks, said", [
    ((), None),
    (("ids",), ["text prompts, as the server takes no token ids", "3.00 tokens per word and 5 beside"]),
    (("ids", "extra"), ["text prompts", "answers may end early, as it takes no ignore_eos", "3.00 tokens per word"]),
    (("ids", "extra", "options"), ["no seed and no stream_options", "a piece of text counts as a token", "3.00 tokens per word"]),
    (("ids", "usage"), ["a piece of text counts as a token, as its streams have no usage", "3.00 tokens per word"]),
    (("list",), ["text prompts, as the server takes no token ids", "3.00 tokens per word"]),
    (("usage", "pieces"), ["a piece of text counts as a token, as its streams have no usage"]),
    (("ids", "usage", "anywhere"), ["lengths of prompts are in words, as it does not count tokens"]),
    (("extra",), ["answers may end early"]),
    (("/v1/completions",), ["chat, as /v1/completions does not take such requests", "3.00 tokens per word"]),
    (("/v1/completions", "extra", "options", "usage", "anywhere"), ["chat", "no seed and no stream_options", "in words"]),
])
def test_adapts_to_strict_servers(lacks, said):
    """All that it sends in the run is taken, of about the length that was asked for; one line and the report say what is other than asked."""
    with strict(*lacks) as server:
        r = pdbench(server.server_port, BENCH + " --json -")
        out = json.loads(r.stdout)
        f, run = out["figures"], server.seen[-8:]
        assert f["completed"] == 8 and f["output_tokens_mean"] == (4 if "pieces" in lacks else 6)
        path, asked = ("/v1/chat/completions" if "/v1/completions" in lacks else "/v1/completions"), (605 if "anywhere" in lacks else 200)
        assert all(p == path and abs(n - asked) <= 3 for p, n, _ in run), run
        assert ("ignore_eos" in run[0][2]) == ("extra" not in lacks) and ("seed" in run[0][2]) == ("options" not in lacks)
        if said is None:
            assert out["adapted"] == "" and "adapted" not in r.stderr
            return
        assert all(x in out["adapted"] for x in said), out["adapted"]
        line = f"adapted to the server: {out['adapted']}\n"
        assert r.stderr.count(line) == 1 and f"  adapted     {out['adapted']}\n" in r.stderr


def test_adapts_conversations_and_traces():
    with strict("/v1/completions", "extra") as server:
        f = figures(server.server_port, "-c 2 -n 12 -i 40 -o 6 --rounds 3 --prefix-tokens 60")["figures"]
        assert f["completed"] == 12
        assert [m["role"] for m in max((q["messages"] for _, _, q in server.seen), key=len)] == ["user", "assistant"] * 2 + ["user"]
        f = figures(server.server_port, f"--trace {TRACE} --sample 0.1 --time-scale 1000 --length-scale 64 --over clip")["figures"]
        assert f["failed"] == 0 and f["requests"] > 15
        assert all(len(q["messages"]) == 1 for _, _, q in server.seen[-15:])


def test_does_not_adapt():
    """To what was asked for, to pdserve, to a server that wants a key or refuses everything."""
    with strict("ids", "key") as server:
        assert "denied access with status 401: give --api-key" in pdbench(server.server_port, BENCH, rc=3).stderr
        pdbench(server.server_port, BENCH + " --api-key sk")
    with strict("/v1/completions", "/v1/chat/completions") as server:
        r = pdbench(server.server_port, BENCH, rc=1)
        assert "no form of requests was taken (the last: status 404: not found): continuing with requests as they were asked for" in r.stderr
        assert "8 x status 404: not found" in r.stdout


def test_asks_pdserve_nothing_more(suite):
    def submitted():
        return suite.log("router").count("event=submitted")
    suite.quiet()
    time.sleep(0.5)         # the log is written later
    before = submitted()
    figures(suite.port, "-c 1 -n 3 -i 8 -o 2")
    wait_for(lambda: submitted() - before >= 3)
    time.sleep(0.5)
    assert submitted() - before == 3


def test_planned_restarts_of_the_only_decode_worker(tiny_model):
    """New requests wait for it, as do those that it had: nobody is refused."""
    with Suite("1p1d", tiny_model, router={"retry_wait_ms": 60000 * SLOW}) as s:
        got = []
        t = threading.Thread(target=lambda: got.append(figures(s.port, "-r 50 -d 4s -i 20-60 -o 20-40")))
        t.start()
        for n in (1, 2, 3):
            wait_for(lambda: s.log("router").count("event=worker_up worker=decode-1") == n and s.log("decode-1").count("event=decode_done") >= n)
            s.kill("decode-1", signal.SIGTERM)
            wait_for(lambda: s.log("router").count("event=worker_down worker=decode-1") == n and s.log("router").count("event=waiting_for_worker") >= n)
            s.restart("decode-1")
        t.join()
        f = got[0]["figures"]
        assert f["failed"] == 0 and f["requests"] > 100, f
        s.quiet()
