"""/v1/responses and /v1/messages over plain HTTP with real daemons: what the vendors' packages do not show (tests/clients has those)."""
import http.client
import json
import socket

import pytest
from suite import SLOW, Suite

SAY = {"messages": [{"role": "user", "content": "Say a word."}], "max_tokens": 8}
# Thinks unless it is told not to.
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:{% if enable_thinking is defined and not enable_thinking %}<think>\n</think>{% endif %}"


@pytest.fixture(scope="module")
def s(real_model, tmp_path_factory):
    template = tmp_path_factory.mktemp("dialects") / "t.jinja"
    template.write_text(TEMPLATE)
    keys = {"me": "secret", "slow": ("other", "requests=1")}
    with Suite("1p1d", real_model, router={"chat_template": str(template), "reasoning_parser": "think", "max_body_bytes": 65536, "cors_allow_origin": "*"},
               keys=keys) as suite:
        yield suite
        suite.quiet()


def ask(s, method, path, body=None, **headers):
    """(status, headers, JSON or text)"""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60 * SLOW)
    try:
        c.request(method, path, json.dumps(body) if body is not None else None, headers)
        r = c.getresponse()
        text = r.read().decode()
        return r.status, {k.lower(): v for k, v in r.getheaders()}, json.loads(text) if "json" in r.getheader("content-type", "") else text
    finally:
        c.close()


KEY = {"x-api-key": "secret"}


@pytest.mark.parametrize("method,path,body,headers,status,kind", [
    ("POST", "/v1/messages", SAY, {}, 401, "authentication_error"),
    ("GET", "/v1/messages", None, KEY, 405, "invalid_request_error"),
    ("POST", "/v1/messages/batches", SAY, KEY, 404, "not_found_error"),
    ("POST", "/v1/messages", {**SAY, "model": "none"}, KEY, 404, "not_found_error"),
    ("POST", "/v1/messages", {**SAY, "system": "x" * 70000}, KEY, 413, "request_too_large"),
    ("POST", "/v1/messages", [1], KEY, 400, "invalid_request_error"),
])
def test_errors_have_the_shape_of_their_path(s, method, path, body, headers, status, kind):
    got, _, r = ask(s, method, path, body, **headers)
    assert got == status and r["type"] == "error" and r["error"]["type"] == kind and r["error"]["message"], r


def test_limits_of_a_key(s):
    assert ask(s, "POST", "/v1/messages", SAY, authorization="Bearer other")[0] == 200
    status, headers, r = ask(s, "POST", "/v1/messages", SAY, authorization="Bearer other")
    assert (status, r["error"]["type"]) == (429, "rate_limit_error") and int(headers["retry-after"]) > 0


def test_edge_refuses_in_the_shape_of_the_path(s):
    """A body whose length is not known before: the router's edge ends it."""
    for path, want in ((b"/v1/messages?beta=true", '{"type":"error","error":{"type":"request_too_large",'), (b"/v1/responses", '{"error":{"message":')):
        with socket.create_connection(("127.0.0.1", s.port)) as c:
            c.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nx-api-key: secret\r\nTransfer-Encoding: chunked\r\n\r\n" + b"11170\r\n" + b"x" * 65000)
            data = b""
            while b"}" not in data:
                data += c.recv(65536)
        assert data.startswith(b"HTTP/1.1 413 ") and want in data.decode(), data


def test_raw_streams(s):
    status, headers, text = ask(s, "POST", "/v1/messages?beta=true", {**SAY, "stream": True}, **KEY)
    events = [e.split("\n") for e in text.removesuffix("\n\n").split("\n\n")]
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    assert all(len(e) == 2 and e[0] == "event: " + json.loads(e[1].removeprefix("data: "))["type"] for e in events)
    first = json.loads(events[0][1][6:])["message"]
    assert headers["request-id"] == headers["x-request-id"] == first["id"] and events[-1][0] == "event: message_stop"
    status, headers, text = ask(s, "POST", "/v1/responses", {"input": "Say a word.", "max_output_tokens": 8, "stream": True}, **KEY)
    events = [e.split("\n") for e in text.removesuffix("\n\n").split("\n\n")]
    assert all(len(e) == 2 and e[0] == "event: " + json.loads(e[1].removeprefix("data: "))["type"] for e in events)
    assert "[DONE]" not in text and events[-1][0] in ("event: response.completed", "event: response.incomplete")


def test_thinking_is_the_templates(s):
    def count(**more):
        return ask(s, "POST", "/v1/messages/count_tokens", {"messages": SAY["messages"], **more}, **KEY)[2]["input_tokens"]
    assert count() == count(thinking={"type": "enabled", "budget_tokens": 2000}) < count(thinking={"type": "disabled"})


def test_cached_tokens_are_counted_apart(s):
    body = {**SAY, "system": "Tell the truth. " * 60}
    usage = [ask(s, "POST", "/v1/messages", body, **KEY)[2]["usage"] for _ in range(2)]
    assert usage[0]["cache_read_input_tokens"] == 0 < usage[1]["cache_read_input_tokens"]
    assert usage[0]["input_tokens"] == usage[1]["input_tokens"] + usage[1]["cache_read_input_tokens"]


def test_abort(s):
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60 * SLOW)
    c.request("POST", "/v1/responses", json.dumps({"input": "Say words.", "max_output_tokens": 1500, "ignore_eos": True, "stream": True}), KEY)
    r = c.getresponse()
    lines = iter(r.readline, b"")
    rid = next(json.loads(line[6:])["response"]["id"] for line in lines if line.startswith(b"data: "))
    assert ask(s, "POST", "/v1/abort", {"request_id": rid}, **KEY)[0] == 200
    last = [json.loads(line[6:]) for line in lines if line.startswith(b"data: ")][-1]
    c.close()
    assert last["type"] == "response.incomplete" and last["response"]["incomplete_details"] is None and last["response"]["output"]
