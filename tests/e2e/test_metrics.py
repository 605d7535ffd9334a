# run: waits
"""test_metrics.py - what Prometheus reads: the page of every daemon of a suite (metrics_listen), and what the router says of waiting requests."""
import http.client
import os
import re
import shutil
import subprocess
import threading
import time

import pytest
from suite import SLOW, Suite, free_port, wait_for

NAMES = ("router", "messager", "storage", "prefill-1", "decode-1")
OWN = {"router": r"(vllm:|pdserve_(http|worker|router|tenant|placed|requests|answers|tokens|messages|attempts|sequences|workers|cached|prepare)_)"}
COMMON = r"(process_|pdserve_(build_info|uptime_|peers_|messages_|log_|connections_|keys_|hellos_|commands_))"


def get(port, path, method="GET"):
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=20 * SLOW)
    try:
        c.request(method, path)
        r = c.getresponse()
        return r.status, r.read().decode()
    finally:
        c.close()


def promtool():
    return os.environ.get("PROMTOOL") or shutil.which("promtool")


@pytest.fixture(scope="module")
def suite(tiny_model):
    s = Suite("1p1d", tiny_model)
    s.metrics_port = {n: free_port() for n in NAMES}
    for n in NAMES:
        s.conf[n]["metrics_listen"] = f"127.0.0.1:{s.metrics_port[n]}"
    with s:
        s.tokens([1, 2, 3, 4], 8)
        yield s
        s.quiet()


@pytest.mark.parametrize("name", NAMES)
def test_every_daemon_has_a_page(suite, name):
    status, page = get(suite.metrics_port[name], "/metrics")
    role = name.split("-")[0]
    assert status == 200
    assert re.search(rf'(?m)^pdserve_build_info{{name="{name}",role="{role}",program="pd\w+",version="[\d.]+"}} 1$', page)
    assert float(re.search(r"(?m)^process_resident_memory_bytes\S* (\d+)", page)[1]) > 1e6
    names = re.findall(r"(?m)^# TYPE (\S+) ", page)
    assert len(names) == len(set(names)) > 30 and all(re.fullmatch("[a-z_:][a-z0-9_:]*", n) for n in names)
    strange = [n for n in names if not re.match(COMMON, n) and not re.match(OWN.get(name, rf"pdserve_{role}_"), n)]
    assert not strange
    assert get(suite.metrics_port[name], "/health")[0] == 200 and get(suite.metrics_port[name], "/v1/models")[0] == 404


def test_pages_are_of_now(suite):
    """Gauges of a worker are as they are now, not as of its last heartbeat; the router's page is the same on both of its ports."""
    free = {n: int(re.search(r"_kv_blocks_free\S* (\d+)", get(suite.metrics_port[n], "/metrics")[1])[1]) for n in ("prefill-1", "decode-1")}
    assert all(free[n] > 0 for n in free)
    here, there = (set(re.findall(r"(?m)^# TYPE (\S+) ", get(p, "/metrics")[1])) for p in (suite.port, suite.metrics_port["router"]))
    assert here == there and "vllm:num_requests_waiting" in here
    assert suite.metrics("decode-1").count("# TYPE") == get(suite.metrics_port["decode-1"], "/metrics")[1].count("# TYPE")


def test_a_page_is_made_once(suite):
    """Whoever asks, on either of the router's ports, ten pages a second are made at most."""
    ports, began, pages = (suite.port, suite.metrics_port["router"]), time.monotonic(), set()
    for i in range(60):
        pages.add(get(ports[i % 2], "/metrics")[1])
    assert len(pages) <= (time.monotonic() - began) * 10 + 2


@pytest.mark.skipif(not promtool(), reason="no promtool (Debian package prometheus, or PROMTOOL=FILE)")
@pytest.mark.parametrize("name", NAMES)
def test_promtool_accepts_it(suite, name):
    """It complains of nothing but the colons in vLLM's names."""
    r = subprocess.run([promtool(), "check", "metrics"], input=get(suite.metrics_port[name], "/metrics")[1], capture_output=True, text=True)
    rest = [x for x in (r.stdout + r.stderr).splitlines() if x and not (x.startswith("vllm:") and x.endswith("metric names should not contain ':'"))]
    assert not rest
    assert r.returncode == (3 if name == "router" else 0)


def test_a_port_in_use(suite):
    at = f'127.0.0.1:{suite.metrics_port["storage"]}'
    with Suite("1mixed", suite.model, wait=False, worker={"metrics_listen": at}) as s:
        wait_for(lambda: s.procs["mixed-1"].poll() is not None)
        assert s.procs.pop("mixed-1").returncode == 1
        assert f'cannot start: cannot listen on metrics_listen "{at}": Address already in use; stop what uses the port, or choose another' in s.log("mixed-1")


def requests(s):
    """(running, waiting) as the router says it"""
    page = s.get("/metrics")[1]
    return tuple(int(re.search(rf"(?m)^vllm:num_requests_{n}\S* (\d+)", page)[1]) for n in ("running", "waiting"))


@pytest.mark.parametrize("decode, why", [({"kv_blocks": 64}, "for the device of the prefill worker"), ({"kv_blocks": 16}, "for room at the decode worker")])
def test_waiting_requests(decode, why):
    """One prompt is computed for seconds and others wait behind it: each request is counted once, as running or as waiting."""
    with Suite("1p1d", sim={"base": "small", "prefill": {"flops": 1.5e9}}, decode=decode) as s:
        assert requests(s) == (0, 0)
        threads = [threading.Thread(target=s.post, args=("/v1/completions", {"prompt": [5 + i] * 400, "max_tokens": 4, "ignore_eos": True})) for i in range(4)]
        threads[0].start()
        wait_for(lambda: requests(s) == (1, 0), lambda: f"{requests(s)}: one request that runs does not wait anywhere")
        for t in threads[1:]:
            t.start()
        wait_for(lambda: requests(s) == (1, 3), lambda: f"{requests(s)}: three wait {why}")
        for t in threads:
            t.join()
        wait_for(lambda: requests(s) == (0, 0), lambda: f"{requests(s)} at the end")
