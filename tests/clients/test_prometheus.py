"""test_prometheus.py - Prometheus itself (the Debian package, or PROMETHEUS=FILE) scrapes all daemons of a suite, with the configuration that docs/operate.md shows."""
import json
import os
import re
import shutil
import subprocess
import sys
import urllib.parse
import urllib.request

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))
from suite import TINY_MODEL, Suite, free_port, wait_for    # noqa: E402

PROMETHEUS = os.environ.get("PROMETHEUS") or shutil.which("prometheus")
PORTS = {"router": 8080, "storage": 9401, "messager": 9402, "prefill-1": 9501, "decode-1": 9601}     # in docs/operate.md


def config(ports):
    """That of docs/operate.md, with these ports."""
    with open(os.path.join(ROOT, "docs", "operate.md")) as f:
        text = re.search(r"(?ms)^    scrape_configs:\n(?:^    .*?\n)+", f.read())[0]
    for name, port in PORTS.items():
        assert text.count(f"127.0.0.1:{port}") == 1, f"docs/operate.md does not name the port of {name}"
        text = text.replace(f"127.0.0.1:{port}", f"127.0.0.1:{ports[name]}")
    return "global: {scrape_interval: 1s}\n" + re.sub(r"(?m)^    ", "", text)


def query(port, what):
    """{instance: value}"""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?" + urllib.parse.urlencode({"query": what}), timeout=10) as r:
        return {x["metric"]["instance"]: float(x["value"][1]) for x in json.load(r)["data"]["result"]}


@pytest.mark.skipif(not PROMETHEUS, reason="no prometheus (Debian package prometheus, or PROMETHEUS=FILE)")
def test_all_targets_are_up(tmp_path):
    s = Suite("1p1d", TINY_MODEL)
    ports = {n: free_port() for n in PORTS if n != "router"}
    for name, port in ports.items():
        s.conf[name]["metrics_listen"] = f"127.0.0.1:{port}"
    ports["router"], own = s.port, free_port()
    (tmp_path / "p.yml").write_text(config(ports))
    with s:
        log = open(tmp_path / "log", "w")
        p = subprocess.Popen([PROMETHEUS, f"--config.file={tmp_path}/p.yml", f"--storage.tsdb.path={tmp_path}/data", f"--web.listen-address=127.0.0.1:{own}"],
                             stdout=log, stderr=log)
        try:
            s.tokens([1, 2, 3], 8)

            def up():
                assert p.poll() is None, (tmp_path / "log").read_text()
                try:
                    return query(own, "up")
                except OSError:
                    return {}
            want = {f"127.0.0.1:{port}": 1 for port in ports.values()}
            wait_for(lambda: up() == want, lambda: f"{up()}\n{(tmp_path / 'log').read_text()[-3000:]}")
            assert query(own, "count by (instance) (pdserve_build_info)") == want
            assert query(own, "pdserve_decode_generated_tokens_total") == {f"127.0.0.1:{ports['decode-1']}": 7}
            assert len(query(own, "process_resident_memory_bytes > 1e6")) == 5
        finally:
            p.terminate()
            p.wait(30)
            log.close()
