# run: waits
"""The router's HTTP edge against clients that break the protocol, flood it, or sit on it; and its
end. Real daemons."""
import json
import os
import re
import select
import signal
import socket
import threading
import time

import pytest
from suite import ROOT, SAN, SLOW, Suite, need_descriptors, wait_for

IDS = [17, 3, 99, 250, 8, 41, 7]
KEY = b"Authorization: Bearer alpha\r\n"
BODY = 4 << 20      # as much as max_body_bytes allows


def dial(s, source="127.0.0.1"):
    c = socket.socket()
    c.settimeout(30 * SLOW)
    c.bind((source, 0))
    c.connect(("127.0.0.1", s.port))
    return c


def post(path, body, *headers, length=None):
    head = b"POST %s HTTP/1.1\r\nHost: x\r\n%s" % (path, b"".join(headers))
    return head + b"Content-Length: %d\r\n\r\n" % (len(body) if length is None else length) + body


def completion(prompt, **more):
    body = {"prompt": prompt, "max_tokens": 400, "ignore_eos": True, **more}
    return post(b"/v1/completions", json.dumps(body).encode())


def answers(data):
    """(status, head, body) of each answer with a length."""
    got = []
    while data:
        head, _, rest = data.partition(b"\r\n\r\n")
        n = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
        got.append((int(head.split()[1]), head, rest[:n]))
        assert len(rest) >= n, data
        data = rest[n:]
    return got


def receive(c, until=None):
    """What comes until the end, or until this is true of it."""
    data = b""
    while not (until and until(data)):
        try:
            part = c.recv(65536)
        except ConnectionResetError:
            part = b""
        if not part:
            break
        data += part
    return data


def whole(data):
    try:
        return len(answers(data)) == 1
    except (AssertionError, TypeError):
        return False


def memory(s):
    """MiB of the router's own."""
    with open(f"/proc/{s.procs['router'].pid}/status") as f:
        return int(re.search(r"RssAnon:\s+(\d+)", f.read())[1]) / 1024


def metric(s, name):
    return float(re.search(rf"^{name}{{[^}}]*}} (\S+)$", s.get("/metrics")[1], re.M)[1])


def router_alone(keys=None, **conf):
    """A router, and no worker."""
    s = Suite("mixed", router={"model": "", **conf}, wait=False, keys=keys)
    s.names = ["router"]
    return s


@pytest.fixture(scope="module")
def alone():
    with router_alone(max_connections=4000) as s:
        wait_for(lambda: "event=ready" in s.log("router"))
        yield s


# --- framing

def case_bytes(v):
    parts = [v] if isinstance(v, str) else v
    return "".join(p if isinstance(p, str) else p[0] * p[1] for p in parts).encode("latin-1")


with open(os.path.join(ROOT, "tests", "data", "http-cases.json")) as f:
    CASES = json.load(f)


@pytest.mark.parametrize("case", CASES, ids=[c["name"] for c in CASES])
def test_framing(alone, case):
    """As tests/unit/test_router_frame.c has it in all ways to cut the bytes: these answers, no
    others, and the connection stays or not."""
    probe = b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    probe = probe if case["end"] == "kept" else b""
    with dial(alone) as c:
        try:
            c.sendall(case_bytes(case["bytes"]) + probe)
        except (ConnectionResetError, BrokenPipeError):
            pass
        got = answers(receive(c))
    assert [status for status, _, _ in got] == case["statuses"] + ([200] if probe else []), got
    for status, head, body in got:
        assert status == 200 or json.loads(body)["error"]["message"]
    assert b"\r\nConnection: close" in got[-1][1]


def test_empty_lines_do_not_keep_a_connection():
    with router_alone(read_timeout_ms=700, idle_timeout_ms=60000) as s:
        wait_for(lambda: "event=ready" in s.log("router"))
        with dial(s) as c:
            c.settimeout(0.05)
            begun, closed = time.time(), False
            while not closed and time.time() < begun + 20 * SLOW:
                try:
                    c.sendall(b"\r\n")
                    closed = c.recv(1000) == b""
                except TimeoutError:
                    pass
                except OSError:
                    closed = True
            assert closed


# --- floods

def upload_all(socks, data, enough=None):
    """Sends to all at once, as much as they take; ends when each has an answer, or when `enough` have one and the others have sent all."""
    at, got = {c: 0 for c in socks}, {c: b"" for c in socks}
    for c in socks:
        c.setblocking(False)

    def answered(g):
        return b"\r\n\r\n" in g and not g.endswith(b"100 Continue\r\n\r\n")

    def over():
        n = sum(answered(g) for g in got.values())
        return n == len(socks) or (enough and n >= enough and all(answered(got[c]) or at[c] == len(data) for c in socks))
    end = time.time() + 30 * SLOW
    while time.time() < end and not over():
        sending = [c for c in socks if at[c] < len(data)]
        readable, writable, _ = select.select(socks, sending, [], 0.1)
        for c in readable:
            try:
                part = c.recv(65536)
                got[c] += part
                if not part:
                    at[c] = len(data)
            except OSError:
                at[c] = len(data)
        for c in writable:
            try:
                at[c] += c.send(memoryview(data)[at[c]:at[c] + 262144])
            except OSError:
                at[c] = len(data)
    return list(got.values())


def flood(s, n, data, source="127.0.0.1"):
    socks = [dial(s, source) for _ in range(n)]
    before, peak, over = memory(s), [0], []

    def watch():
        while not over:
            peak[0] = max(peak[0], memory(s))
            time.sleep(0.01)
    t = threading.Thread(target=watch)
    t.start()
    try:
        got = upload_all(socks, data)
    finally:
        over.append(1)
        t.join()
        for c in socks:
            c.close()
    return got, peak[0] - before


@pytest.fixture(scope="module")
def keyed():
    with router_alone(keys={"a": "alpha"}) as s:
        wait_for(lambda: "event=ready" in s.log("router"))
        yield s


def test_body_without_a_key_is_not_read(keyed):
    """200 of 4 MiB: each is refused by its head, before it is asked for more."""
    data = post(b"/v1/completions", b" " * (BODY - 1), b"Expect: 100-continue\r\n", length=BODY)
    got, grown = flood(keyed, 200, data)
    assert all(g.startswith(b"HTTP/1.1 401 ") for g in got), {g[:40] for g in got}
    assert grown < 64, grown


@pytest.mark.skipif(SAN != "", reason="a sanitizer keeps what is freed")
def test_bodies_have_a_budget(keyed):
    """With a key as many as there is room for are read; the memory goes back when they are gone;
    meanwhile another address is served."""
    before = memory(keyed)
    data = post(b"/v1/completions", b" " * (BODY - 1), KEY, length=BODY)
    socks = [dial(keyed) for _ in range(60)]
    got = upload_all(socks, data, enough=50)
    refused = [g for g in got if g.startswith(b"HTTP/1.1 503 ")]
    assert len(refused) >= 50
    assert all(b"Retry-After: " in g and b"input_bytes_max" in g for g in refused)
    assert metric(keyed, "pdserve_http_input_bytes") <= 32 << 20
    with dial(keyed, "127.0.0.2") as c:
        body = b'{"prompt":' + b" " * 4000000 + b'[1],"max_tokens":0,"echo":true}'
        c.sendall(post(b"/v1/completions", body, KEY))
        assert answers(receive(c, whole))[0][0] == 200
    for c in socks:
        c.close()
    assert memory(keyed) < before + 200
    wait_for(lambda: metric(keyed, "pdserve_http_input_bytes") < 1000)
    wait_for(lambda: memory(keyed) < before + 24, lambda: f"{memory(keyed)} MiB, before {before}")
    assert keyed.log("router").count("event=http_full") < 30 * SLOW


def test_many_values_are_refused(keyed):
    """A body that would take 80 times its size when it is read."""
    with dial(keyed) as c:
        c.sendall(post(b"/v1/completions", b'{"prompt":[' + b"{}," * 1300000 + b"1]}", KEY))
        status, _, body = answers(receive(c, whole))[0]
    assert status == 400 and b"max_request_memory_mb" in body


def test_idle_connections_lock_nobody_out(alone):
    """More than max_connections of them, from a few addresses; who comes then is served, and so is
    each after him."""
    need_descriptors(6500)
    idle = [dial(alone, f"127.0.0.{2 + i % 5}") for i in range(6000)]
    assert metric(alone, "pdserve_http_connections") <= 4000
    for source in ("127.0.0.1", "127.0.0.2", "127.0.0.9"):
        with dial(alone, source) as c:
            c.sendall(b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            assert answers(receive(c))[0][0] == 200
    assert metric(alone, "pdserve_http_closed_waiting_total") >= 2000
    assert alone.log("router").count("event=http_full") < 60 * SLOW
    for c in idle:
        c.close()


# --- keys

@pytest.mark.parametrize("value,status", [
    (b"Bearer alpha", 200), (b"bearer alpha", 200), (b"BEARER   alpha", 200), (b"alpha", 401),
    (b"Basic alpha", 401), (b"Bearer\talpha", 401), (b"Bearer alphaa", 401), (b"Bearer", 401),
    (b"", 401), (b"Bearer alpha, Bearer alpha", 401),
])
def test_authorization(keyed, value, status):
    with dial(keyed) as c:
        c.sendall(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nAuthorization: " + value + b"\r\n\r\n")
        got = answers(receive(c, whole))[0]
    assert got[0] == status and (status == 200) != (b"WWW-Authenticate: Bearer\r\n" in got[1])


def test_keys_are_not_shown(keyed):
    for args in (["config"], ["--json", "config"], ["tenants"], ["--json", "tenants"]):
        r = keyed.pdctl("-d", "router", *args)
        assert r.returncode == 0 and "alpha" not in r.stdout, r.stdout
    assert "alpha" not in keyed.log("router")


# --- the end

STATES = {
    "a part of a head": b"GET /hea",
    "a part of a body": post(b"/v1/completions", b'{"prompt"', length=500),
    "an answer under way": completion(IDS),
    "several answers under way": completion([IDS] * 3, n=2),
    "a stream under way": completion(IDS, stream=True),
}


@pytest.mark.parametrize("at_once", [True, False], ids=["at once", "after its time"])
def test_stopped_in_every_state(at_once):
    """SIGTERM: whoever is not answered in stop_timeout_ms is told so, in HTTP; nobody sees a
    connection that just ends; the log does not say that they left."""
    sim = {"base": "small", "decode": {"step_us": 10000.0 * SLOW}}
    with Suite("1p1d", sim=sim, router={"stop_timeout_ms": 0 if at_once else 300}) as s:
        socks = {}
        for name, sent in STATES.items():
            socks[name] = dial(s)
            socks[name].sendall(sent)
        waits = dial(s)
        stream = socks["a stream under way"]
        data = receive(stream, lambda d: d.count(b"data: ") >= 3)
        wait_for(lambda: len(s.ctl("router", "requests")) == 8)
        s.kill("router", signal.SIGTERM, wait=False)
        for name, c in socks.items():
            if name == "a stream under way":
                data += receive(c)
                assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"), data[-300:]
                assert b'data: {"error":{"message":"this server was stopped' in data
                continue
            got = answers(receive(c))
            assert [x[0] for x in got] == [503] and b"Retry-After: " in got[0][1], (name, got)
            assert json.loads(got[0][2])["error"]["code"] == "unavailable"
        assert receive(waits) == b""
        assert s.procs["router"].wait(20 * SLOW) == 0
        log = s.log("router")
        assert log.count("event=request_done") == 8
        assert "status=499" not in log and "event=client_gone" not in log
        assert log.count("status=503") >= 8
        wait_for(lambda: all(s.ctl(w, "requests") == [] for w in s.workers()))
        for c in [*socks.values(), waits]:
            c.close()


def asked_while_it_drains(tokens):
    """Whether an answer of so many tokens lasted until others had been told that it drains."""
    sim = {"base": "small", "decode": {"step_us": 10000.0 * SLOW}}
    with Suite("1p1d", sim=sim, router={"stop_timeout_ms": 600000}) as s, dial(s) as runs, dial(s) as asks, dial(s) as ready:
        runs.sendall(completion(IDS, max_tokens=tokens))
        wait_for(lambda: len(s.ctl("router", "requests")) == 1)
        s.kill("router", signal.SIGTERM, wait=False)
        wait_for(lambda: "event=stopping" in s.log("router"))
        try:
            asks.sendall(post(b"/v1/completions", b'{"prompt":[1]}'))
            refused = answers(receive(asks))
            ready.sendall(b"GET /ready HTTP/1.1\r\nHost: x\r\n\r\n")
            drains = answers(receive(ready))
        except OSError:
            refused = drains = []
        late = select.select([runs], [], [], 0)[0]              # it has the answer: the router may have ended before it was asked
        got = answers(receive(runs))
        assert got[0][0] == 200 and json.loads(got[0][2])["choices"][0]["finish_reason"] == "length"
        assert s.procs["router"].wait(20 * SLOW) == 0
        if late and not (refused and drains):
            return False
        assert refused[0][0] == 503 and b"Retry-After: " in refused[0][1], refused
        assert b"shutting down" in refused[0][2], refused
        assert drains[0][0] == 503 and b"draining" in drains[0][2], drains
        return True


def test_draining():
    """While what runs goes on, connections that are open get 503 for new work, and are told that it
    drains."""
    assert any(asked_while_it_drains(n) for n in (100, 400, 1600))
