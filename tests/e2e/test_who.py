"""What the router's log and its counters say of who asked for what, and names that come from outside. Real daemons."""
import http.client
import json
import re
import threading
import time

import pytest
from suite import SLOW, Suite, wait_for

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"
BODY = {"prompt": [3, 4, 5], "max_tokens": 4, "ignore_eos": True}


def ask(s, path="/v1/completions", body=BODY, method="POST", key="ka", **headers):
    """(status, headers, JSON)"""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60 * SLOW)
    try:
        own = {"Authorization": f"Bearer {key}"} if key else {}
        c.request(method, path, json.dumps(body) if isinstance(body, dict) else body, {**own, **{k.replace("_", "-"): v for k, v in headers.items()}})
        r = c.getresponse()
        return r.status, {k.lower(): v for k, v in r.getheaders()}, json.loads(r.read() or b"null")
    finally:
        c.close()


def lines(s, event):
    """The fields of each such line of the router's log"""
    return [{k: v.strip('"') for k, v in re.findall(r'(\w+)=("(?:[^"\\]|\\.)*"|\S+)', line)} for line in s.log("router").splitlines() if f" event={event} " in line]


def next_line(s, event, had):
    wait_for(lambda: len(lines(s, event)) > had, f"no line event={event}")
    return lines(s, event)[had]


@pytest.fixture(scope="module")
def s():
    with Suite("1p1d", keys={"alice": "ka", "bob": ("kb", "requests=2"), "carol": "kc"}) as it:
        yield it


REFUSED = {     # status: what is asked
    401: {"key": "wrong"},
    404: {"path": "/v1/nothing", "counted": "other"},
    405: {"method": "GET"},
    413: {"path": "/v1/abort", "body": json.dumps({"request_id": "x" * 5000})},
    415: {"Content_Encoding": "br"},
    400: {"body": {**BODY, "max_tokens": -2}},
}


@pytest.mark.parametrize("status", REFUSED)
def test_a_refused_request_leaves_a_line_and_a_count(s, status):
    what = dict(REFUSED[status])
    path, counted = what.get("path", "/v1/completions"), what.pop("counted", what.get("path", "/v1/completions"))
    event = "request_failed" if status == 400 else "request_refused"
    sample = re.compile(rf'^pdserve_requests_refused_total{{path="{counted}",status="{status}"}} (\d+)$', re.M)
    had, count = len(lines(s, event)), sample.search(s.get("/metrics")[1])
    assert ask(s, X_Request_Id="mine-9", **what)[0] == status
    line = next_line(s, event, had)
    assert (line["status"], line["client"], line["path"], line["client_id"]) == (str(status), "127.0.0.1", path, "mine-9")
    assert line["key"] == ("-" if status in (401, 404, 405) else "alice") and len(line["why"]) > 10
    assert int(sample.search(s.get("/metrics")[1])[1]) == (int(count[1]) if count else 0) + 1
    assert len(lines(s, event)) == had + 1


def test_a_limit_names_its_key(s):
    had = len(lines(s, "request_refused"))
    assert [ask(s, key="kb")[0] for _ in range(3)] == [200, 200, 429]
    line = next_line(s, "request_refused", had)
    assert (line["status"], line["key"]) == ("429", "bob") and "2 requests a minute" in line["why"]


def test_a_missing_model_names_the_key_that_asked(s):
    had = len(lines(s, "request_refused"))
    assert ask(s, path="/v1/models/gpt-4", method="GET")[0] == 404
    line = next_line(s, "request_refused", had)
    assert (line["status"], line["key"]) == ("404", "alice")


def test_strangers_cannot_fill_the_log(s):
    """Nor do their lines take the place of those of keys."""
    had = len(lines(s, "request_refused"))
    for i in range(200):
        assert ask(s, path="/wp-login.php", key=None)[0] == 404
        if i % 50 == 49:
            assert ask(s, key="kc", Content_Encoding="br")[0] == 415
    of_key = [x for x in lines(s, "request_refused")[had:] if x["key"] == "carol"]
    assert [x["status"] for x in of_key] == 4 * ["415"]
    time.sleep(1.1)
    assert ask(s, path="/wp-login.php", key=None)[0] == 404
    now = [x for x in lines(s, "request_refused")[had:] if x["key"] == "-"]
    assert len(now) < 150 and len(now) + sum(int(x["more"]) for x in now) == 201


@pytest.mark.parametrize("name", ["X-Request-Id", "X-Client-Request-Id"])
def test_names_from_outside(s, name):
    """They are in the log and in the answer, and `pdctl trace` finds the request by each of them."""
    had, mine = len(lines(s, "request_served")), f"mine-{name}"
    status, headers, answer = ask(s, **{name: mine, "traceparent": PARENT, "X-Forwarded-For": "192.0.2.7, 10.0.0.1"})
    assert (status, headers["x-request-id"], headers["traceparent"]) == (200, mine, PARENT)
    line = next_line(s, "request_served", had)
    assert (line["key"], line["client_id"], line["trace_id"], line["forwarded_for"]) == ("alice", mine, TRACE, "192.0.2.7, 10.0.0.1")
    assert (line["req"], line["output_tokens"], line["prompt_tokens"], line["status"]) == (answer["id"].split("-")[1], "4", "3", "200")
    for given in (mine, TRACE, line["req"], answer["id"]):
        r = s.pdctl("trace", given)
        assert r.returncode == 0 and f"request {line['req']}" in r.stdout, (given, r)
    r = s.pdctl("trace", "mine-unknown")
    assert r.returncode == 1 and '"mine-unknown" is no request' in r.stderr


@pytest.mark.parametrize("bad", ["x" * 129, "two words", "caf\u00e9"])
def test_an_odd_name_is_left_out(s, bad):
    had = len(lines(s, "request_served"))
    status, headers, answer = ask(s, X_Request_Id=bad.encode(), traceparent="00-" + "0" * 32 + "-00f067aa0ba902b7-01")
    line = next_line(s, "request_served", had)
    assert status == 200 and headers["x-request-id"] == answer["id"] and "traceparent" not in headers
    assert "client_id" not in line and "trace_id" not in line


def test_requests_of_one_key(s):
    done = []
    threads = [threading.Thread(target=lambda k=k: done.append(ask(s, key=k, body={**BODY, "max_tokens": 3000})[0])) for k in ("ka", "kc")]
    for t in threads:
        t.start()
    wait_for(lambda: len(json.loads(s.pdctl("-d", "router", "--json", "requests").stdout)) == 2, "the requests are not at work")
    rows = json.loads(s.pdctl("--json", "requests", "carol").stdout)
    assert [(r["key"], r["client"]) for r in rows] == [("carol", "127.0.0.1")]
    assert [t["name"] for t in json.loads(s.pdctl("--json", "tenants", "carol").stdout)] == ["carol"]
    r = s.pdctl("requests", "nobody")
    assert r.returncode == 1 and 'no access key has the name "nobody"' in r.stderr
    for row in json.loads(s.pdctl("-d", "router", "--json", "requests").stdout):
        s.ctl("router", "cancel", row["id"])
    for t in threads:
        t.join()
    assert done == [200, 200]


def test_a_client_that_hangs_up(s):
    had = len(lines(s, "client_gone"))
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60 * SLOW)
    c.request("POST", "/v1/completions", json.dumps({**BODY, "max_tokens": 5000, "stream": True}), {"Authorization": "Bearer ka", "X-Request-Id": "gone-1"})
    r = c.getresponse()
    r.readline()
    r.close()
    c.close()
    line = next_line(s, "client_gone", had)
    assert (line["status"], line["client_id"], line["key"]) == ("499", "gone-1", "alice") and len(line["req"]) == 32
    assert f"request {line['req']}" in s.pdctl("trace", "gone-1").stdout


def test_one_line_a_request():
    """At the level `notice`, from all daemons together."""
    with Suite("1p1d", router={"log_level": "notice"}, worker={"log_level": "notice"}, messager={"log_level": "notice"}, storage={"log_level": "notice"}) as s:
        assert ask(s, key=None)[0] == 200
        wait_for(lambda: lines(s, "request_served"), "no line")
        had = {n: s.log(n).count("\n") for n in s.procs}
        for n in (1, 3):
            assert ask(s, key=None, body={**BODY, "n": n, "temperature": 1})[0] == 200
        wait_for(lambda: len(lines(s, "request_served")) == 3, "no line")
        assert {n: s.log(n).count("\n") - had[n] for n in s.procs} == {n: 2 * (n == "router") for n in s.procs}
        assert [x["answers"] for x in lines(s, "request_served")] == ["1", "1", "3"]
