"""Access keys with limits, and cached prefixes that keys share or do not. Real daemons."""
import hashlib
import http.client
import json
import os
import re
import threading

import pytest
from suite import BIN, SLOW, Suite, wait_for

PROMPT = [(7 * i) % 200 + 3 for i in range(200)]     # three full blocks of 64 tokens


def ask(s, key, path="/v1/completions", **body):
    """(status, headers, JSON)"""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60 * SLOW)
    try:
        c.request("POST", path, json.dumps({"prompt": PROMPT, "max_tokens": 2, "temperature": 0, "ignore_eos": True, **body}),
                  {"Authorization": f"Bearer {key}"} if key else {})
        r = c.getresponse()
        return r.status, {k.lower(): v for k, v in r.getheaders()}, json.loads(r.read())
    finally:
        c.close()


def cached(s, key, **body):
    status, _, r = ask(s, key, **body)
    assert status == 200, r
    return r["usage"]["prompt_tokens_details"]["cached_tokens"]


def metric(s, name):
    m = re.search(rf"^{re.escape(name)} (\S+)$", s.get("/metrics")[1], re.M)
    return float(m[1]) if m else None


# --- prefixes

@pytest.mark.parametrize("layout", ["mixed", "1p1d"])
def test_prefixes_of_keys(tiny_model, layout):
    """A key finds its own, shared keys find each other's; a client's cache_salt divides further."""
    keys = {"a": "ka", "b": "kb", "s1": ("ks1", "shared-cache"), "s2": ("ks2", "shared-cache")}
    with Suite(layout, tiny_model, keys=keys) as s:
        assert cached(s, "ka") == 0
        assert cached(s, "ka") == 192
        assert cached(s, "kb") == 0             # the same prompt, another tenant
        assert cached(s, "kb") == 192
        assert cached(s, "ks1") == 0
        assert cached(s, "ks2") == 192
        assert cached(s, "ka", cache_salt="x") == 0
        assert cached(s, "ka", cache_salt="x") == 192
        assert cached(s, "kb", cache_salt="x") == 0
        assert cached(s, "ks1", cache_salt="x") == 0
        assert cached(s, "ks2", cache_salt="x") == 192
        answers = {json.dumps(ask(s, k, max_tokens=8)[2]["choices"]) for k in ("ka", "kb", "ks1")}
        assert len(answers) == 1                # a salt changes no token


def test_salt_survives_the_router(tiny_model):
    """A tenant's prefixes are found by its name: after the router was restarted, and with another key."""
    with Suite("mixed", tiny_model, keys={"a": "old"}) as s:
        assert cached(s, "old") == 0
        s.kill("router")
        s.write_keys({"a": "new", "b": "other"})
        s.restart("router")
        s.ready()
        assert cached(s, "other") == 0
        assert cached(s, "new") == 192


def test_salt_in_storage(tiny_model):
    """Blocks that went to storage are found there under the same salt alone."""
    with Suite("mixed", tiny_model, keys={"a": "ka", "b": "kb"}, worker={"kv_blocks": 8, "kv_memory_mb": 0}) as s:
        def stored():
            return float(re.search(r"^pdserve_decode_stored_tokens_total(?:{[^}]*})? (\S+)$", s.metrics("mixed-1"), re.M)[1])
        assert cached(s, "ka") == 0
        for i in range(6):      # others push them out of the pool
            assert ask(s, "kb", prompt=[3 + i] * 200)[0] == 200
        before = stored()
        assert cached(s, "kb") == 0 and stored() == before

        def found():
            for i in range(6):
                assert ask(s, "kb", prompt=[30 + i] * 200)[0] == 200
            before = stored()
            return cached(s, "ka") >= 64 and stored() > before

        wait_for(found)     # the worker decides whether, and how much of it, is worth reading: by how long reads took lately


def test_cache_salt_without_keys(tiny_model):
    with Suite("mixed", tiny_model) as s:
        assert cached(s, None) == 0
        assert cached(s, None, cache_salt="x") == 0
        assert cached(s, None, cache_salt="y") == 0
        assert cached(s, None, cache_salt="y") == 192
        assert cached(s, None) == 192
        for bad in ("", 71623, ["x71623"], "x71623" * 50):
            status, _, r = ask(s, None, cache_salt=bad)
            assert status == 400 and r["error"]["param"] == "cache_salt", r
            assert "71623" not in json.dumps(r)     # others could use it
        assert "71623" not in s.log("router")
        assert cached(s, None, cache_salt=None) == 192


# --- limits

@pytest.fixture(scope="module")
def limited(tiny_model):
    keys = {"few": ("few", "requests=3"), "small": ("small", "tokens=500"), "one": ("one", "concurrent=1"), "free": "free"}
    with Suite("mixed", tiny_model, keys=keys) as s:
        yield s


def refused(got, kind, least, most):
    status, headers, r = got
    assert status == 429 and r["error"]["code"] == "rate_limit_exceeded" and r["error"]["type"] == kind, got
    assert least <= int(headers["retry-after"]) <= most, headers
    return headers


def test_requests_a_minute(limited):
    for left in (2, 1, 0):
        status, headers, _ = ask(limited, "few")
        assert status == 200
        assert headers["x-ratelimit-limit-requests"] == "3"
        assert int(headers["x-ratelimit-remaining-requests"]) in (left, left + 1)
        assert "x-ratelimit-limit-tokens" not in headers
    # 20 s for each; a slow machine may have earned one meanwhile
    got = ask(limited, "few")
    got = ask(limited, "few") if got[0] == 200 else got
    headers = refused(got, "requests", 1, 20)
    assert headers["x-ratelimit-remaining-requests"] == "0"
    assert re.fullmatch(r"(\d+m)?\d+s", headers["x-ratelimit-reset-requests"])
    assert ask(limited, "free")[0] == 200
    assert metric(limited, 'pdserve_tenant_refused_total{tenant="few",limit="requests"}') >= 1
    assert metric(limited, 'pdserve_tenant_requests_total{tenant="few"}') >= 3


def test_tokens_a_minute(limited):
    """200 of the prompt, then 250 that are generated: into debt."""
    status, headers, r = ask(limited, "small", max_tokens=250)
    assert status == 200 and r["usage"]["completion_tokens"] == 250
    refused(ask(limited, "small"), "tokens", 1, 40)
    assert ask(limited, "small", prompt=[5])[0] in (200, 429)
    t = {x["name"]: x for x in limited.ctl("router", "tenants")}["small"]
    assert t["prompt_tokens"] >= 200 and t["generated_tokens"] >= 250 and t["refused"] >= 1
    assert t["limit_tokens"] == 500 and t["limit_requests"] is None and t["running"] == 0
    shown = limited.pdctl("tenants").stdout
    assert "small" in shown and "LIMIT-TOKENS" in shown and "few" in shown


def test_refusals_take_nothing(tiny_model):
    """What is refused for want of a worker costs neither a request nor tokens; a wrong request counts as one."""
    with Suite("mixed", tiny_model, router={"retry_wait_ms": 300}, keys={"a": ("ka", "requests=3 tokens=500")}) as s:
        status, headers, _ = ask(s, "ka", temperature="hot")
        assert status == 400 and headers["x-ratelimit-remaining-requests"] == "2", headers
        s.kill("mixed-1")
        wait_for(lambda: ask(s, "ka")[0] == 503)
        for _ in range(3):
            status, headers, _ = ask(s, "ka")
            assert status == 503 and headers["x-ratelimit-remaining-tokens"] == "500", headers
            assert int(headers["x-ratelimit-remaining-requests"]) >= 2, headers  # it grows with time


def test_requests_at_once(limited):
    for _ in range(40):     # until one is asked before the stream is complete
        c = http.client.HTTPConnection("127.0.0.1", limited.port, timeout=60 * SLOW)
        c.request("POST", "/v1/completions", json.dumps({"prompt": [5], "max_tokens": 450, "ignore_eos": True, "stream": True}),
                  {"Authorization": "Bearer one"})
        r = c.getresponse()
        assert r.status == 200
        got = ask(limited, "one", prompt=[6])
        c.close()           # a client that leaves frees its place
        r.close()
        wait_for(lambda: ask(limited, "one", prompt=[6])[0] == 200)
        if got[0] != 200:
            break
    refused(got, "requests", 1, 60)


def test_body_of_a_refused_key_is_not_read(limited):
    """Beyond its limit a request is refused by its head."""
    def far_beyond():       # the next one is not earned before this test has asked
        status, headers, _ = ask(limited, "few")
        return status == 429 and int(headers["retry-after"]) > 4
    wait_for(far_beyond)
    c = http.client.HTTPConnection("127.0.0.1", limited.port, timeout=20 * SLOW)
    c.putrequest("POST", "/v1/completions")
    c.putheader("Authorization", "Bearer few")
    c.putheader("Content-Length", "100000")
    c.endheaders()
    assert c.getresponse().status == 429
    c.close()


# --- the file

def test_reload_of_keys(tiny_model):
    """A file with a mistake changes nothing and says where it is; pdctl reload fails."""
    with Suite("mixed", tiny_model, keys={"a": "ka"}) as s:
        def load(text):
            with open(f"{s.dir}/api_keys", "w") as f:
                f.write(text)
            return s.pdctl("-d", "router", "reload")
        r = load("a sha256:12\n")
        assert r.returncode == 1 and "api_keys:1: the key's hash is missing or wrong" in r.stderr, r.stderr
        assert ask(s, "ka")[0] == 200 and "event=reload_failed" in s.log("router")
        made = s.pdctl("apikey", "b", "--requests", "7", "--shared-cache", "--concurrent", "2")
        assert made.returncode == 0
        key = re.fullmatch(r"key (pds-[0-9a-f]{40}) .*\n", made.stderr)[1]
        assert made.stdout == f"b sha256:{hashlib.sha256(key.encode()).hexdigest()} requests=7 concurrent=2 shared-cache\n"
        assert load("# mine\n" + made.stdout).returncode == 0
        assert ask(s, "ka")[0] == 401 and ask(s, key)[0] == 200
        assert key not in s.log("router")


def test_apikey_is_checked(tmp_path):
    import subprocess
    for args in ([], ["a b"], ["x" * 64], ["a", "--tokens", "0"], ["a", "--requests", "many"], ["a", "--concurrent", "1000001"]):
        r = subprocess.run([f"{BIN}/pdctl", "apikey", *args], capture_output=True, text=True)
        assert r.returncode == 2 and not r.stdout, (args, r)


def test_apikey_replaces_a_key(tiny_model):
    """With owner, mode, limits and all else of the file; what cannot be done changes nothing."""
    with Suite("mixed", tiny_model, keys={"a": ("ka", "requests=1000"), "ab": ("kab", "tokens=9")}) as s:
        real, path = f"{s.dir}/api_keys", f"{s.dir}/link"
        os.symlink("api_keys", path)
        with open(real) as f:
            old = "# mine\n" + f.read() + f"  a\tsha256:{'0' * 64}\n"
        with open(real, "w") as f:
            f.write(old)
        os.chmod(real, 0o640)
        if os.geteuid() == 0:
            os.chown(real, 12, 34)
        before = os.stat(real)
        r = s.pdctl("apikey", "a", "--replace", path)
        key = r.stderr.split()[1]
        want = old.replace(hashlib.sha256(b"ka").hexdigest(), hashlib.sha256(key.encode()).hexdigest()).replace(f"  a\tsha256:{'0' * 64}\n", "")
        with open(real) as f:
            assert (r.returncode, r.stdout, f.read()) == (0, "", want) and "reload" in r.stderr
        after = os.stat(real)
        assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode) and os.path.islink(path)
        assert ask(s, "ka")[0] == 200 and s.pdctl("-d", "router", "reload").returncode == 0
        assert ask(s, "ka")[0] == 401 and ask(s, key)[0] == ask(s, "kab")[0] == 200
        for args, code, why in ((["b", "--replace", path], 1, "has no key of b"), (["a", "--replace", f"{s.dir}/none"], 1, "No such file"),
                                (["a", "--replace", path, "--tokens", "5"], 2, "keeps the limits")):
            r = s.pdctl("apikey", *args)
            assert (r.returncode, r.stdout) == (code, "") and why in r.stderr and "pds-" not in r.stderr, r
        open(f"{real}.new", "w").close()
        r = s.pdctl("apikey", "a", "--replace", path)
        assert r.returncode == 1 and f"api_keys.new: File exists, so nothing was changed; if no other pdctl is at work, one was killed: rm {os.path.realpath(real)}.new\n" in r.stderr, r
        os.unlink(f"{real}.new")
        with open(real) as f:
            assert f.read() == want and not os.path.exists(f"{real}.new")


def test_bad_file_at_start(tmp_path):
    import subprocess
    keys = tmp_path / "keys"
    keys.write_text("# x\nb nonsense\n")
    conf = tmp_path / "router.conf"
    conf.write_text(f'rundir = "{tmp_path}"; model = ""; http_listen = "127.0.0.1:0"; api_keys_file = "{keys}";\n')
    r = subprocess.run([f"{BIN}/pdrouterd", "-c", str(conf)], capture_output=True, text=True, timeout=60 * SLOW)
    assert r.returncode != 0 and f"{keys}:2: the key's hash is missing or wrong" in r.stderr, r.stderr


def test_a_key_is_replaced_under_load(tiny_model):
    """Old and new key work side by side; no request fails."""
    with Suite("mixed", tiny_model, keys={"a": ("old", "requests=1000000")}) as s:
        def line(key, more=""):
            return f"a sha256:{hashlib.sha256(key.encode()).hexdigest()}{more}\n"

        def load(*lines):
            with open(f"{s.dir}/api_keys", "w") as f:
                f.write("".join(lines))
            assert s.pdctl("-d", "router", "reload").returncode == 0
        used, got, over = ["old"], [], threading.Event()

        def client():
            while not over.is_set():
                key = used[0]
                got.append((key, ask(s, key)[0], threading.get_ident()))
        threads = [threading.Thread(target=client) for _ in range(4)]
        for t in threads:
            t.start()
        wait_for(lambda: len(got) > 20)
        load(line("old", " requests=1000000"), line("new"))
        used[0] = "new"
        wait_for(lambda: len({thread for k, _, thread in got if k == "new"}) == len(threads))
        load(line("new", " requests=1000000"))
        had = len(got)
        wait_for(lambda: len(got) > had + 20)
        over.set()
        for t in threads:
            t.join()
        assert {status for _, status, _ in got} == {200} and {k for k, _, _ in got[-20:]} == {"new"}
        assert ask(s, "old")[0] == 401 and len(s.ctl("router", "tenants")) == 1
