# run: waits
"""test_proxies.py - the configurations of docs/proxies.md, as they are on the page but for the ports, before a suite with two routers. nginx and haproxy are Debian's;
envoy is ENVOY=FILE or in the PATH. What is not installed is skipped."""
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import threading
import time

import pytest
from suite import ENV, ROOT, SLOW, Suite, free_port, wait_for

STEP_MS = 20
PROGRAM = {"nginx": "nginx", "HAProxy": "haproxy", "Envoy": os.environ.get("ENVOY", "envoy")}


def on_page(heading):
    """The first block of code below a heading."""
    with open(os.path.join(ROOT, "docs", "proxies.md")) as f:
        section = f.read().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.sub("(?m)^    ", "", re.search(r"((?:    .*\n|\n)+)", section)[1])


def program(name):
    found = shutil.which(PROGRAM[name], path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin")
    if not found:
        pytest.skip(f"no {PROGRAM[name]} (Debian packages nginx-light, haproxy; ENVOY=FILE)")
    return found


@pytest.fixture(scope="module")
def suite():
    s = Suite("1p1d", sim={"base": "small", "decode": {"step_us": STEP_MS * 1000.0}})
    s.ports = [s.port, free_port()]
    s.conf["router-2"] = {**s.conf["router"], "name": "router-2", "http_listen": f"127.0.0.1:{s.ports[1]}"}
    for w in s.workers():
        s.conf[w]["routers"] = [f"ipc://{s.dir}/{r}.ipc" for r in ("router", "router-2")]
    with s:
        s.start("router-2")
        wait_for(lambda: all(ready(p) for p in s.ports))
        yield s
        s.quiet()


def ready(port):
    try:
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=10 * SLOW)
        c.request("GET", "/ready")
        return c.getresponse().status == 200
    except OSError:
        return False


@pytest.fixture(params=list(PROGRAM))
def proxy(suite, request, tmp_path):
    """Its port."""
    name, text, port = request.param, on_page(request.param), free_port()
    text = text.replace("listen 8000;", f"listen 127.0.0.1:{port};").replace("bind :8000 ", f"bind 127.0.0.1:{port} ")
    text = text.replace("0.0.0.0, port_value: 8000}", f"127.0.0.1, port_value: {port}}}")
    text = re.sub(r"\b808([01])\b", lambda m: str(suite.ports[int(m[1])]), text)
    assert all(text.count(f"{p}") == 1 for p in (port, *suite.ports)), text
    if name == "nginx":
        places = "".join(f"{x}_temp_path {tmp_path}/{x};" for x in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        text = f"{'user root; ' if os.geteuid() == 0 else ''}daemon off; pid {tmp_path}/pid; events {{}} http {{ access_log off; {places}\n{text} }}"
    elif name == "HAProxy":
        text = "global\n    maxconn 1000\n" + text
    file = tmp_path / "proxy.yaml"
    file.write_text(text)
    argv = [program(name), *{"nginx": ["-e", f"{tmp_path}/log", "-c"], "HAProxy": ["-db", "-f"], "Envoy": ["--concurrency", "1", "--disable-hot-restart", "-c"]}[name], str(file)]
    with open(tmp_path / "log", "ab") as log:
        p = subprocess.Popen(argv, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=ENV)
    wait_for(lambda: p.poll() is not None or ready(port), lambda: (tmp_path / "log").read_text()[-3000:])
    assert p.poll() is None, (tmp_path / "log").read_text()
    yield port
    p.terminate()
    p.wait(30 * SLOW)


def ask(port, n, headers=None, **more):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=60 * SLOW)
    body = {"prompt": [5, 6, 7], "max_tokens": n, "ignore_eos": True, "return_token_ids": True, **more}
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
    return c, c.getresponse()


def logs(suite):
    return suite.log("router") + suite.log("router-2")


def test_events_pass_at_once(suite, proxy):
    _, r = ask(proxy, 32, stream=True)
    times, text = [], b""
    while b := r.read1(65536):
        times.append(time.monotonic())
        text += b
    assert r.status == 200 and text.rstrip().endswith(b"data: [DONE]")
    apart = sum(b - a > STEP_MS / 4000 for a, b in zip(times, times[1:]))
    assert apart >= 16, f"{apart} gaps in an answer of 32 tokens, {len(times)} reads"


def test_client_that_leaves(suite, proxy):
    before = logs(suite).count("event=client_gone")
    c, r = ask(proxy, 2000, stream=True)
    r.read1(1)
    r.close()
    c.close()
    wait_for(lambda: logs(suite).count("event=client_gone") > before)


def test_ids_and_addresses(suite, proxy):
    mine = f"mine-{proxy}"
    _, r = ask(proxy, 2, {"X-Request-Id": mine})
    assert r.getheader("X-Request-Id") == mine
    _, r = ask(proxy, 2)
    its = r.getheader("X-Request-Id")
    assert its and not its.startswith("cmpl-")
    for one in (mine, its):
        wait_for(lambda: f'client_id="{one}"' in logs(suite))
        assert re.search(rf'client_id="{one}" .*forwarded_for="', logs(suite))


def test_what_is_refused(suite, proxy):
    c = http.client.HTTPConnection("127.0.0.1", proxy, timeout=60 * SLOW)
    c.request("GET", "/metrics")
    assert c.getresponse().status == 403
    for path in ("//metrics", "/%6detrics", "/metrics/", "/./metrics"):   # for what a proxy does not take for /metrics
        c = http.client.HTTPConnection("127.0.0.1", suite.port, timeout=60 * SLOW)
        c.request("GET", path)
        assert c.getresponse().status == 404, path
    _, r = ask(proxy, 2, padding="x" * (9 << 19))
    assert r.status == 413 and "max_body_bytes" in r.read().decode()


def test_routers_restart_in_turn(suite, proxy):
    """None of the requests that arrive meanwhile fails."""
    over, seen = threading.Event(), []

    def client():
        while not over.is_set():
            try:
                c, r = ask(proxy, 8)
                seen.append((r.status, r.read()[:200]))
                c.close()
            except (OSError, http.client.HTTPException, ValueError) as e:
                seen.append((0, repr(e), getattr(e, "doc", "")))

    threads = [threading.Thread(target=client) for _ in range(4)]
    for t in threads:
        t.start()
    for name, port in zip(("router", "router-2"), suite.ports):
        n = len(seen)
        wait_for(lambda: len(seen) > n + 8)
        suite.kill(name, signal.SIGTERM)
        wait_for(lambda: len(seen) > n + 16)
        suite.start(name)
        wait_for(lambda: ready(port))
        time.sleep(2.1)     # until the proxy uses it again, as the page says of nginx
    over.set()
    for t in threads:
        t.join()
    assert len(seen) > 32 and {x[0] for x in seen} == {200}, [x for x in seen if x[0] != 200][:3]
