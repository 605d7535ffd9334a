"""The router's HTTP interface over TLS, against clients that speak it well, badly or not at all. Real daemons."""
import concurrent.futures
import http.client
import json
import os
import re
import selectors
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest
from suite import BIN, ENV, SLOW, Suite, need_descriptors, wait_for
from terminal import PlayedServer, Terminal, interrupt

BODY = {"prompt": [5, 6, 7], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
HEALTH = b"GET /live HTTP/1.1\r\nHost: x\r\n\r\n"


EC = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")


def make_cert(folder, name, algorithm=EC):
    """(certificate, key), self-signed for 127.0.0.1."""
    cert, key = os.path.join(folder, name + ".crt"), os.path.join(folder, name + ".key")
    subprocess.run(["openssl", "req", "-x509", *algorithm, "-nodes", "-keyout", key, "-out", cert, "-days", "2", "-subj", f"/CN={name}",
                    "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)
    return cert, key


def context(cert, **more):
    c = ssl.create_default_context(cafile=cert)
    for k, v in more.items():
        setattr(c, k, v)
    return c


class Secure(Suite):
    """A suite whose clients use TLS."""

    def __init__(self, folder, *args, router=None, algorithm=EC, **more):
        self.cert, self.key = make_cert(folder, "one", algorithm)
        super().__init__(*args, router={"http_tls_cert": self.cert, "http_tls_key": self.key, **(router or {})}, **more)

    def connection(self, timeout=20):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout * SLOW, context=context(self.cert))

    def ask(self, method, path, body=None):
        c = self.connection()
        try:
            c.request(method, path, body)
            r = c.getresponse()
            return r.status, r.read().decode()
        finally:
            c.close()

    def raw(self, source="127.0.0.1"):
        c = socket.socket()
        c.settimeout(20 * SLOW)
        c.bind((source, 0))
        c.connect(("127.0.0.1", self.port))
        return c

    def dial(self, ctx=None):
        return (ctx or context(self.cert)).wrap_socket(self.raw(), server_hostname="127.0.0.1")


@pytest.fixture(scope="module")
def secure(tiny_model, tmp_path_factory):
    with Secure(str(tmp_path_factory.mktemp("tls")), "mixed", tiny_model, router={"max_connections": 64}) as s:
        yield s


def metric(s, name):
    return float(re.search(rf"^{name}{{[^}}]*}} (\S+)$", s.get("/metrics")[1], re.M)[1])


def alive(s):
    assert s.get("/live")[0] == 200


def receive(c):
    data = bytearray()
    try:
        while part := c.recv(65536):
            data += part
    except (ConnectionResetError, ssl.SSLError):
        pass
    return data


# --- as it should be

def test_answers_and_streams(secure):
    """On one connection, as a client of OpenAI's API uses it."""
    c = secure.connection()
    texts = set()
    for _ in range(3):
        c.request("POST", "/v1/completions", json.dumps(BODY))
        r = c.getresponse()
        assert r.status == 200
        texts.add(json.loads(r.read())["choices"][0]["text"])
        c.request("POST", "/v1/completions", json.dumps({**BODY, "stream": True}))
        r = c.getresponse()
        events = [line[6:].strip() for line in r.read().decode().splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        texts.add("".join(json.loads(e)["choices"][0]["text"] for e in events[:-1]))
    assert len(texts) == 1
    c.close()


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_versions_and_protocol(secure, version):
    v = ssl.TLSVersion[version]
    ctx = context(secure.cert, minimum_version=v, maximum_version=v)
    ctx.set_alpn_protocols(["h2", "http/1.1"])
    ctx.options &= ~getattr(ssl, "OP_IGNORE_UNEXPECTED_EOF", 0)
    with secure.dial(ctx) as c:
        assert c.selected_alpn_protocol() == "http/1.1" and c.compression() is None
        c.sendall(HEALTH)
        assert c.recv(4096).startswith(b"HTTP/1.1 200 ")
        # close_notify before the end, so that a client knows that nothing is missing
        c.sendall(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        data = b""
        c.suppress_ragged_eofs = False
        while part := c.recv(65536):
            data += part
        assert data.startswith(b"HTTP/1.1 200 ")


def test_old_versions_and_other_protocols_are_refused(secure):
    before = metric(secure, "pdserve_http_tls_failed_total")
    p = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{secure.port}", "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"],
                       input=b"", capture_output=True, timeout=20 * SLOW)
    assert p.returncode != 0 and b"alert protocol version" in p.stderr, p.stderr
    ctx = context(secure.cert)
    ctx.set_alpn_protocols(["h2"])
    with pytest.raises((ssl.SSLError, ConnectionResetError)):
        secure.dial(ctx)
    assert metric(secure, "pdserve_http_tls_failed_total") == before + 2
    assert "event=http_tls_failed" in secure.log("router")


def read_answers(c, n):
    """The bodies of n answers with a length."""
    got, bodies = b"", []
    while len(bodies) < n:
        head, end, rest = got.partition(b"\r\n\r\n")
        size = int(re.search(rb"Content-Length: (\d+)", head)[1]) if end else 1
        if not end or len(rest) < size:
            part = c.recv(65536)
            assert part, (len(bodies), got[:300])
            got += part
            continue
        assert head.startswith(b"HTTP/1.1 200 "), got[:500]
        bodies.append(rest[:size])
        got = rest[size:]
    assert not got
    return bodies


@pytest.mark.parametrize("size", [1000, 16384, 16500, 32768, 40000, 100001, 1000000])
def test_long_requests_and_answers(secure, size):
    """Requests and answers of many records, in pieces that no buffer fits: nothing waits for bytes that are there already."""
    body = json.dumps({"prompt": [[5] * 100] * 100, "max_tokens": 0, "echo": True, "return_token_ids": True}).encode()
    data = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % max(size, len(body)) + body.ljust(size)
    with secure.dial() as c:
        for record in (16384, 5000, 700):
            for i in range(0, len(data), record):
                c.sendall(data[i:i + record])
            assert len(read_answers(c, 1)[0]) > 20000


@pytest.mark.parametrize("n", [1, 455, 470, 900, 3000])
def test_pipelined_requests(secure, n):
    """Sent while another is answered: the input fills, what OpenSSL has read already waits, and all are answered in order."""
    body = json.dumps({**BODY, "max_tokens": 100}).encode()
    first = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with secure.dial() as c:
        for _ in range(3):
            c.sendall(first + HEALTH * n)
            got = read_answers(c, n + 1)
            assert b"choices" in got[0] and all(g == b'{"status":"ok"}' for g in got[1:])


def test_half_close_cuts_no_answer(secure):
    """After close_notify the client still reads: what the router has begun to answer comes whole, and close_notify after it."""
    before = metric(secure, "pdserve_http_requests_total")
    inner, outer = ssl.MemoryBIO(), ssl.MemoryBIO()
    t = context(secure.cert).wrap_bio(inner, outer, server_hostname="127.0.0.1")
    with secure.raw() as c:
        while True:
            try:
                t.do_handshake()
                break
            except ssl.SSLWantReadError:
                c.sendall(outer.read())
                inner.write(c.recv(65536))
        t.write(HEALTH.replace(b"/live", b"/metrics") * 1500)
        c.sendall(outer.read())
        time.sleep(1)       # the answers fill the buffers of both kernels, and the router's
        with pytest.raises(ssl.SSLWantReadError):
            t.unwrap()      # writes close_notify
        c.sendall(outer.read())
        encrypted = receive(c)
    inner.write(encrypted)
    inner.write_eof()
    data = bytearray()
    try:
        while part := t.read(65536):
            data += part
    except ssl.SSLZeroReturnError:
        pass                # close_notify; without it: SSLEOFError
    whole = at = 0
    while at < len(data):
        body = data.index(b"\r\n\r\n", at) + 4
        at = body + int(re.search(rb"Content-Length: (\d+)", data[at:body])[1])
        whole += 1
    assert at == len(data)
    assert whole == metric(secure, "pdserve_http_requests_total") - before - 1


def test_client_closes_without_notice(secure):
    """A client that leaves, with or without close_notify, ends its request."""
    for polite in (False, True):
        c = secure.dial()
        body = json.dumps({**BODY, "max_tokens": 400, "stream": True}).encode()
        c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        assert c.recv(100)
        if polite:
            c.setblocking(False)
            try:
                c.unwrap()
            except (ssl.SSLError, OSError):
                pass
        c.close()
        wait_for(lambda: not secure.ctl("router", "requests"))
    secure.quiet()
    alive(secure)


def chat(*args, **env):
    r = subprocess.run([os.path.join(BIN, "pdctl"), *args, "chat", "hello"], capture_output=True, text=True, timeout=60 * SLOW,
                       env={k: v for k, v in ENV.items() if k != "OPENAI_API_KEY"} | env)
    return r.returncode, r.stdout, r.stderr


def test_pdctl_chat(tmp_path):
    """A certificate is checked, its name too; streaming, and stopping, is as without TLS."""
    cert, key = make_cert(str(tmp_path), "one")
    with PlayedServer([["Hel", 0.05, "lo"], ["never", 60, "ending"]]) as s:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(cert, key)
        s.http.socket = server.wrap_socket(s.http.socket, server_side=True)
        url = s.url.replace("http:", "https:")
        for args, why in (((), "self-signed certificate"), (("--cacert", make_cert(str(tmp_path), "two")[0]), "certificate"), (("--cacert", "/nowhere"), "/nowhere")):
            code, out, err = chat("-u", url, *args)
            assert code == 3 and not out and err.count("\n") == 1 and why in err and (args == ("--cacert", "/nowhere") or "--cacert" in err), err
        code, out, err = chat("-u", url.replace("127.0.0.1", "localhost"), "--cacert", cert)
        assert code == 3 and "no alternative certificate subject name" in err, err
        assert chat("-u", url + "/v1/", "--cacert", cert) == (0, "Hello\n", ""), "a base address as OpenAI's clients have it"
        with Terminal("-u", url, "--insecure", "chat", env={"XDG_STATE_HOME": str(tmp_path)}) as t:
            t.prompt()
            t.type("go on\r")
            t.shows("never")
            interrupt(t)
            t.shows("(stopped)")
            t.prompt()
            t.type("\x04")
            assert t.ends() == 0
    assert len(s.asked) == 2


def test_pdctl_chat_by_the_routers_status(secure):
    """It learns from the router that it speaks TLS; the model has no tokenizer, which only the router can say."""
    code, _, err = chat("-r", secure.dir, "--cacert", secure.cert)
    assert code == 1 and "tokenizer" in err, err
    assert chat("-r", secure.dir)[0] == 3
    code, _, err = chat("-u", f"http://127.0.0.1:{secure.port}")
    assert code == 1 and "use https://" in err, err
    s = Suite("mixed", router={"model": ""}, wait=False)
    s.names = ["router"]
    with s:
        wait_for(lambda: "event=ready" in s.log("router"))
        code, _, err = chat("-u", f"https://127.0.0.1:{s.port}")
        assert code == 3 and "http://?" in err, err


def bench(url, *args, **more):
    r = subprocess.run([os.path.join(BIN, "pdbench"), url, *args], capture_output=True, text=True, timeout=120 * SLOW, env=ENV, **more)
    return r.returncode, r.stdout, r.stderr


def test_pdbench(secure):
    """Answers, and a request longer than a record of TLS, over kept connections and over fresh ones; all is as without TLS."""
    url, trust = f"https://127.0.0.1:{secure.port}", ("--cacert", secure.cert)
    for more, connections in (((), 4), (("--fresh-connections",), 40)):
        code, out, err = bench(url, *trust, "-c", "4", "-n", "40", "-w", "0", "-i", "300", "-o", "100", "--requests", "-", *more)
        assert code == 0 and len(out.splitlines()) == 40, err      # the table is on stderr then
        assert re.search(rf" at {url}: .* 40 completed, 0 failed;.* {connections} connections, ", err, re.S), err
    code, out, err = bench(url, *trust, "-n", "3", "-o", "2", "-e", json.dumps({"user": "x" * 100_000}))
    assert code == 0 and f"at {url}: " in out, err


def test_pdbench_says_why_not(secure, tmp_path):
    url = f"https://127.0.0.1:{secure.port}"
    for to, args, part in ((url, (), "self-signed certificate"), (url, ("--cacert", make_cert(str(tmp_path), "two")[0]), "self-signed certificate"), (url, ("--cacert", "/nowhere"), "/nowhere"),
                           (url.replace("127.0.0.1", "localhost"), ("--cacert", secure.cert), "hostname mismatch"), ("https://127.0.0.1:1", (), "Connection refused")):
        code, out, err = bench(to, "-n", "1", *args)
        assert code == 3 and not out and part in err and err.count("\n") == 1, err
    code, _, err = bench(url.replace("https", "http"), "-n", "1")
    assert code == 1 and "use https://" in err, err
    s = Suite("mixed", router={"model": ""}, wait=False)
    s.names = ["router"]
    with s:
        wait_for(lambda: "event=ready" in s.log("router"))
        code, _, err = bench(f"https://127.0.0.1:{s.port}", "-n", "1")
        assert code == 3 and "http://?" in err, err
    alive(secure)


# --- as it should not be

def test_plain_http_on_the_tls_port(secure):
    """It is told what is wrong, as an API error; a body that it goes on sending is dropped."""
    before = metric(secure, "pdserve_http_tls_failed_total")
    c = http.client.HTTPConnection("127.0.0.1", secure.port, timeout=20 * SLOW)
    for method, body in (("GET", None), ("POST", json.dumps(BODY)), ("OPTIONS", None), ("POST", "x" * 3_000_000)):
        c.request(method, "/v1/completions", body)
        r = c.getresponse()
        said = json.loads(r.read())
        assert r.status == 400 and "use https://" in said["error"]["message"] and r.getheader("Connection") == "close", said
        c.close()
    wait_for(lambda: "why=\"this port speaks TLS: use https://" in secure.log("router"))
    assert metric(secure, "pdserve_http_tls_failed_total") == before
    alive(secure)


def test_tls_on_a_plain_port(tiny_model, tmp_path):
    cert, _ = make_cert(str(tmp_path), "one")
    s = Suite("mixed", router={"model": ""}, wait=False)
    s.names = ["router"]
    with s:
        wait_for(lambda: "event=ready" in s.log("router"))
        with socket.create_connection(("127.0.0.1", s.port), 20 * SLOW) as c, pytest.raises((ssl.SSLError, ConnectionResetError)):
            context(cert).wrap_socket(c, server_hostname="127.0.0.1")
        assert s.get("/live")[0] == 200


GARBAGE = {
    "zeroes": b"\0" * 5000,
    "text": b"hello\r\n" * 100,
    "a record of nonsense": b"\x16\x03\x01\x40\x00" + bytes(range(256)) * 64,
    "an alert": b"\x15\x03\x03\x00\x02\x02\x28",
    "data before the handshake": b"\x17\x03\x03\x00\x20" + b"x" * 32,
    "a record too long": b"\x16\x03\x03\xff\xff" + b"x" * 70000,
    "SSL 2": b"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10" + b"x" * 40,
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage(secure, name):
    before = metric(secure, "pdserve_http_tls_failed_total")
    with secure.raw() as c:
        try:
            c.sendall(GARBAGE[name])
        except OSError:
            pass
        receive(c)
    wait_for(lambda: metric(secure, "pdserve_http_tls_failed_total") == before + 1)


def test_garbage_after_the_handshake(secure):
    c = secure.dial()
    c.sendall(HEALTH)
    assert c.recv(4096).startswith(b"HTTP/1.1 200 ")
    with socket.socket(fileno=c.detach()) as plain:
        plain.settimeout(20 * SLOW)
        plain.sendall(b"\x17\x03\x03\x00\x20" + b"x" * 32)
        receive(plain)
    alive(secure)


def test_renegotiation_is_refused(secure):
    """TLS 1.2, asked for by the client (`R` of s_client): refused, and the router goes on."""
    p = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{secure.port}", "-tls1_2", "-CAfile", secure.cert],
                       input=b"R\n", capture_output=True, timeout=20 * SLOW)
    text = p.stdout + p.stderr
    assert b"RENEGOTIATING" in text and b"no renegotiation" in text, text
    alive(secure)


def client_hello(cert):
    out = ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context(cert).wrap_bio(ssl.MemoryBIO(), out, server_hostname="127.0.0.1").do_handshake()
    return out.read()


def dripped(c, data):
    """Whether all of it was sent, byte by byte; not if the other side closed before the last one."""
    for i in range(len(data)):
        try:
            c.sendall(data[i:i + 1])
        except OSError:
            return False
        time.sleep(0.02)
    return True


def test_half_handshakes_are_cut(tiny_model, tmp_path):
    """One that sends nothing, one that stops in the middle, one that drips: all are gone after read_timeout_ms."""
    with Secure(str(tmp_path), "mixed", tiny_model, router={"read_timeout_ms": 1500}) as s:
        hello = client_hello(s.cert)
        with s.raw() as silent, s.raw() as half, s.raw() as drip:
            half.sendall(hello[:len(hello) // 2])
            assert not dripped(drip, hello[:-1])        # all of it takes several times as long
            for c in (silent, half, drip):
                receive(c)                              # until it ends
        wait_for(lambda: s.get("/live")[0] == 200)


def test_half_handshakes_lock_nobody_out(secure):
    """More of them than max_connections, from several addresses: each newcomer takes the place of one."""
    idle = [secure.raw(f"127.0.0.{2 + i % 5}") for i in range(200)]
    for _ in range(3):
        alive(secure)
    assert secure.ctl("router", "status")["connections"] <= 64 + 64 // 8 + 16
    for c in idle:
        c.close()


def storm(port, hello, rate, seconds):
    """Begins so many handshakes a second from 127.0.0.2, all with the same ClientHello, and leaves when they are answered. How many were begun."""
    begun, start = 0, time.time()
    with selectors.DefaultSelector() as sel:
        while time.time() < start + seconds:
            while begun < (time.time() - start) * rate:
                c = socket.socket()
                c.bind(("127.0.0.2", 0))
                c.setblocking(False)
                c.connect_ex(("127.0.0.1", port))
                sel.register(c, selectors.EVENT_WRITE)
                begun += 1
            for key, ready in sel.select(0.005):
                try:
                    if ready & selectors.EVENT_WRITE:
                        key.fileobj.send(hello)
                        sel.modify(key.fileobj, selectors.EVENT_READ)
                        continue
                except OSError:
                    pass
                sel.unregister(key.fileobj)
                key.fileobj.close()
        for key in list(sel.get_map().values()):
            key.fileobj.close()
    return begun


def test_a_storm_of_handshakes(tmp_path):
    """One address begins more of them than a core can compute. No link falls, a stream goes on with its attempt, and others connect."""
    rate, seconds = 500, 6
    need_descriptors(rate * seconds + 200)
    with Secure(str(tmp_path), "1p1d", sim={"base": "small", "time_scale": 0.2}, algorithm=("-newkey", "rsa:4096")) as s:
        stream, waits = s.connection(60), []
        stream.request("POST", "/v1/completions", json.dumps({**BODY, "max_tokens": 3000, "stream": True}))
        answer = stream.getresponse()
        reader = threading.Thread(target=answer.read, daemon=True)
        reader.start()
        with concurrent.futures.ProcessPoolExecutor(1) as pool:
            begun = pool.submit(storm, s.port, client_hello(s.cert), rate, seconds)
            while not begun.done():
                t = time.time()
                alive(s)
                waits.append(time.time() - t)
            assert begun.result() > rate * seconds / 4
        reader.join(60 * SLOW)
        for name in s.names:
            log = s.log(name)
            assert "event=peer_down" not in log and "event=attempt_lost" not in log, (name, log[-3000:])
        assert max(waits) < 0.5 * SLOW, (len(waits), sorted(waits)[-5:])


def test_too_many_at_work(tiny_model, tmp_path):
    """Without room the connection is closed in its handshake; nothing is answered in the clear."""
    with Secure(str(tmp_path), "mixed", tiny_model, router={"max_connections": 4}) as s:
        busy = [s.dial() for _ in range(2)]
        for c in busy:
            c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        wait_for(lambda: s.ctl("router", "status")["connections"] == 2)
        with s.raw() as c:
            c.sendall(HEALTH)
            assert b"HTTP" not in receive(c)
        for c in busy:
            c.close()
        wait_for(lambda: s.ctl("router", "status")["connections"] == 0)
        alive(s)


# --- certificates

def served(s, cert):
    try:
        c = context(cert).wrap_socket(s.raw(), server_hostname="127.0.0.1")
    except ssl.SSLError:
        return False
    c.close()
    return True


def test_reload_of_the_certificate(tiny_model, tmp_path):
    """New connections get the new one, those that are open go on; a bad pair keeps the old one and pdctl reload says why."""
    with Secure(str(tmp_path), "mixed", tiny_model) as s:
        old = s.connection()
        old.request("GET", "/live")
        assert old.getresponse().read()
        other_cert, other_key = make_cert(str(tmp_path), "two", ("-newkey", "rsa:2048"))
        saved = open(s.cert).read(), open(s.key).read()

        def load(cert, key):
            open(s.cert, "w").write(cert)
            open(s.key, "w").write(key)
            return s.pdctl("-d", "router", "reload")
        for cert, key, part in ((open(other_cert).read(), saved[1], "http_tls_key"), ("nonsense", saved[1], "http_tls_cert"),
                                (saved[0], "", "http_tls_key")):
            r = load(cert, key)
            assert r.returncode == 1 and f"{part} {tmp_path}" in r.stderr, r.stderr
        open(tmp_path / "first.crt", "w").write(saved[0])
        assert served(s, tmp_path / "first.crt") and not served(s, other_cert)
        assert load(open(other_cert).read(), open(other_key).read()).returncode == 0
        assert served(s, other_cert) and not served(s, tmp_path / "first.crt")
        old.request("POST", "/v1/completions", json.dumps(BODY))
        assert old.getresponse().status == 200
        old.close()


def test_renewal_under_load(tiny_model, tmp_path):
    """New certificates while clients connect for each request, and a decode worker that is restarted meanwhile: no request fails."""
    with Secure(tmp_path, "1p2d", tiny_model) as s:
        load = subprocess.Popen([os.path.join(BIN, "pdbench"), "-c", "4", "-d", "5s", "--fresh-connections", "-i", "32", "-o", "16", "--insecure", "-q",
                                 "--result-prefix", "", f"https://127.0.0.1:{s.port}"], stdout=subprocess.PIPE, text=True)
        for i in range(5):
            for new, old in zip(make_cert(tmp_path, f"renewed-{i}", EC), (s.cert, s.key)):
                os.replace(new, old)
            assert s.pdctl("-d", "router", "reload").returncode == 0
            assert served(s, s.cert)
            if i == 2:
                s.kill("decode-1", signal.SIGTERM)
                s.start("decode-1")
            time.sleep(0.6)
        said = load.communicate(timeout=60 * SLOW)[0]
        assert load.returncode == 0 and int(re.search(r"RESULT requests=(\d+)", said)[1]) > 20 and "RESULT failed=0" in said, said


def test_bad_certificate_at_start(tmp_path):
    cert, key = make_cert(str(tmp_path), "one")
    other, other_key = make_cert(str(tmp_path), "two")
    locked = str(tmp_path / "locked.key")
    subprocess.run(["openssl", "ec", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked], check=True, capture_output=True)
    for c, k, part in ((cert, "", "http_tls_key is missing"), ("", key, "http_tls_cert is missing"), (cert, other_key, f"http_tls_key {other_key}: key values mismatch"),
                       ("/nonexistent", key, "http_tls_cert /nonexistent: No such file"), (key, key, f"http_tls_cert {key}: no start line"),
                       (cert, locked, f"http_tls_key {locked}: it has a passphrase")):
        conf = tmp_path / "router.conf"
        conf.write_text(f'rundir = "{tmp_path}"; model = ""; http_listen = "127.0.0.1:0"; http_tls_cert = "{c}"; http_tls_key = "{k}";\n')
        r = subprocess.run([f"{BIN}/pdrouterd", "-c", str(conf)], capture_output=True, text=True, timeout=60 * SLOW, stdin=subprocess.DEVNULL)
        assert r.returncode != 0 and part in r.stderr, (part, r.stderr)
    assert other


def test_open_to_others_is_said(tmp_path):
    """Listening for other hosts without keys is allowed, and logged once."""
    for listen, said in (("0.0.0.0:0", 1), ("127.0.0.1:0", 0)):
        s = Suite("mixed", router={"model": "", "http_listen": listen}, wait=False)
        s.names = ["router"]
        with s:
            wait_for(lambda: "event=ready" in s.log("router"))
            assert s.log("router").count("event=http_open_to_others") == said
