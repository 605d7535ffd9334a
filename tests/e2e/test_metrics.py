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
from suite import BIN, ROOT, SLOW, Suite, free_port, wait_for

NAMES = ("router", "messager", "storage", "prefill-1", "decode-1")
OWN = {"router": r"(vllm:|pdserve_(http|worker|router|tenant|placed|requests|answers|tokens|messages|attempts|sequences|workers|cached|prepare)_)"}
NO_SAMPLES = {f"pdserve_{n}" for n in ("requests_refused_total", "requests_failed_total", "tenant_requests_total", "tenant_running",
                                       "tenant_prompt_tokens_total", "tenant_generated_tokens_total", "tenant_refused_total")}
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
    assert re.search(rf'(?m)^pdserve_build_info{{name="{name}",role="{role}",program="pd\w+",version="[\d.]+",commit="\S*[0-9a-f]{{8}}\S*"}} 1$', page)
    assert float(re.search(r"(?m)^process_resident_memory_bytes\S* (\d+)", page)[1]) > 1e6
    names = re.findall(r"(?m)^# TYPE (\S+) ", page)
    assert len(names) == len(set(names)) > 30 and all(re.fullmatch("[a-z_:][a-z0-9_:]*", n) for n in names)
    own = OWN.get(name, rf"pdserve_{role}_" if role in ("storage", "messager") else rf"pdserve_{role}_|vllm:iteration_tokens_total$")
    strange = [n for n in names if not re.match(COMMON, n) and not re.match(own, n)]
    assert not strange
    assert get(suite.metrics_port[name], "/health")[0] == 200 and get(suite.metrics_port[name], "/tokenizer_info")[0] == 404


@pytest.mark.parametrize("name", NAMES)
def test_metrics_are_printed(suite, name):
    """--print-metrics lists what the daemon serves and nothing else: names, types, meanings, and the labels of what has samples."""
    page = get(suite.metrics_port[name], "/metrics")[1]
    program = re.search(r'pdserve_build_info.*program="(\w+)"', page)[1]
    printed = subprocess.run([os.path.join(BIN, program), "--print-metrics"], capture_output=True, text=True, check=True).stdout
    listed = {m[1]: m.groups()[1:] for m in re.finditer(r"(?m)^([\w:]+)\{([\w,]+)\} (\w+): (.+)$", printed)}
    assert len(listed) == printed.count("\n")
    served = {n: (t, h) for n, h, t in re.findall(r"(?m)^# HELP (\S+) (.*)\n# TYPE \1 (\w+)$", page)}
    assert served == {n: (t, h) for n, (_, t, h) in listed.items()}
    seen = set()
    for sample, labels in re.findall(r"(?m)^([\w:]+)(\{\S*\})? ", page):
        n = sample if sample in listed else re.sub("_(bucket|sum|count)$", "", sample)
        assert [x for x in re.findall(r'(\w+)="', labels) if x != "le"] == listed[n][0].split(","), sample
        seen.add(n)
    assert {n for n in listed if n not in seen} <= NO_SAMPLES


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
    """It complains of nothing but vLLM's names."""
    r = subprocess.run([promtool(), "check", "metrics"], input=get(suite.metrics_port[name], "/metrics")[1], capture_output=True, text=True)
    rest = [x for x in (r.stdout + r.stderr).splitlines() if x and not (x.startswith("vllm:") and x.endswith("metric names should not contain ':'"))]
    assert not [x for x in rest if not x.startswith("vllm:iteration_tokens_total non-counter metrics should not have")]
    assert r.returncode == (0 if name in ("messager", "storage") else 3)


# What vLLM's dashboards for Grafana ask for (its repository, examples/observability: grafana.json, performance_statistics.json, query_statistics.json), and then,
# what others ask for: the time per token under both names that it had, the prefix cache, preemptions.
DASHBOARDS = """e2e_request_latency_seconds time_to_first_token_seconds inter_token_latency_seconds prompt_tokens_total generation_tokens_total
    num_requests_running num_requests_waiting kv_cache_usage_perc request_prompt_tokens request_generation_tokens request_max_num_generation_tokens
    request_success_total request_queue_time_seconds request_prefill_time_seconds request_decode_time_seconds iteration_tokens_total
    request_time_per_output_token_seconds time_per_output_token_seconds prefix_cache_queries_total prefix_cache_hits_total num_preemptions_total""".split()


def test_dashboards_of_vllm(suite):
    """Each of them is on some page, and has a model_name where it is asked for by model."""
    pages = {n: get(suite.metrics_port[n], "/metrics")[1] for n in NAMES}
    assert not [x for x in DASHBOARDS if not any(f"\n# TYPE vllm:{x} " in p for p in pages.values())]
    assert not [x for x in DASHBOARDS if x != "iteration_tokens_total" and not re.search(rf'(?m)^vllm:{x}(_sum)?\{{model_name="', pages["router"])]


def sums(s):
    """Of the histograms that count tokens: the router's, and of all steps of all workers."""
    out = dict(re.findall(r"(?m)^vllm:(request_(?:prompt|generation|max_num_generation)_tokens_sum)\S* (\d+)$", s.get("/metrics")[1]))
    out["steps"] = sum(int(re.search(r"(?m)^vllm:iteration_tokens_total_sum\S* (\d+)$", s.metrics(n))[1]) for n in ("prefill-1", "decode-1"))
    return {k: int(v) for k, v in out.items()}


def test_tokens_of_a_request(suite):
    """Two answers of 3 and 5 tokens to 6 tokens: the prompt is computed once for each, then each token but the last is put in."""
    body = {"prompt": [9, 8, 7, 6, 5, 4], "n": 2, "max_tokens": 5, "temperature": 1, "seed": 3, "ignore_eos": True, "return_token_ids": True}
    ids = [c["token_ids"] for c in suite.post("/v1/completions", body)[1]["choices"]]
    stop = next(t for t in ids[0] if t not in ids[1] and ids[0].index(t) < 4)
    length = ids[0].index(stop) + 1
    was = sums(suite)
    got = suite.post("/v1/completions", {**body, "stop_token_ids": [stop]})[1]["choices"]
    assert [len(c["token_ids"]) for c in got] == [length, 5]
    wait_for(lambda: sums(suite)["steps"] - was["steps"] == 12 + length - 1 + 4)
    assert {k: v - was[k] for k, v in sums(suite).items()} == {"request_prompt_tokens_sum": 12, "request_generation_tokens_sum": length + 5,
                                                               "request_max_num_generation_tokens_sum": 5, "steps": 12 + length - 1 + 4}


ALERTS = os.path.join(ROOT, "etc", "prometheus", "alerts.yml")


def test_alerts_are_about_metrics_that_exist():
    """And about labels that they have: those that are summed over or shown."""
    with open(ALERTS) as f:
        text = f.read()
    listed = {}
    for d in ("pdrouterd", "pdprefilld", "pddecoded", "pdmessagerd", "pdstoraged"):
        printed = subprocess.run([os.path.join(BIN, d), "--print-metrics"], capture_output=True, text=True, check=True).stdout
        listed.update(re.findall(r"(?m)^([\w:]+)\{([\w,]+)\}", printed))
    used = set(re.findall(r"\b(?:pdserve_|vllm:|process_)\w+", text))
    assert len(used) > 15 and {re.sub("_bucket$", "", n) for n in used} <= set(listed)
    labels = set(re.findall(r"\$labels\.(\w+)", text)) | set(re.split("[, ]+", ", ".join(re.findall(r"by \(([^)]*)\)", text))))
    assert labels <= {"instance", "le"} | {x for v in listed.values() for x in v.split(",")}


@pytest.mark.skipif(not promtool(), reason="no promtool (Debian package prometheus, or PROMTOOL=FILE)")
@pytest.mark.parametrize("args", [("check", "rules", ALERTS), ("test", "rules", os.path.join(ROOT, "tests", "data", "alerts_test.yml"))], ids=lambda a: a[0])
def test_promtool_accepts_the_alerts(args):
    r = subprocess.run([promtool(), *args], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout + r.stderr


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
