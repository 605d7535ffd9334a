# run: waits
"""test_openapi.py - what the router says of itself: GET /, /version, and /openapi.json, which is held against the router and against docs/api.md. Needs PD_MODEL."""
import html.parser
import http.client
import json
import os
import re
import subprocess

import openai_spec
import pytest
from jsonschema import Draft202012Validator
from suite import ROOT, SLOW, Suite

MESSAGES = [{"role": "user", "content": "x"}]
SMALLEST = {"/v1/completions": {"prompt": "x"}, "/v1/chat/completions": {"messages": MESSAGES}, "/v1/responses": {"input": "x"},
            "/v1/messages": {"messages": MESSAGES, "max_tokens": 1}, "/v1/embeddings": {"input": "x"}, "/tokenize": {"messages": MESSAGES}}
ONE_TOKEN = {"/v1/completions": {"max_tokens": 1}, "/v1/chat/completions": {"max_tokens": 1}, "/v1/responses": {"max_output_tokens": 1}}
KEYS = {"a": "key-a"}


@pytest.fixture(scope="module")
def text(short_model):
    with Suite("1p1d", short_model, router={"served_model_name": "s<m>l", "model_aliases": ["gpt-4o", "*"]}) as s:
        yield s
        s.quiet()


@pytest.fixture(scope="module")
def doc(text):
    status, body = text.get("/openapi.json")
    assert status == 200
    return json.loads(body)


def properties(doc, path):
    return doc["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]


def test_form_of_the_document(doc, text):
    assert doc["openapi"] == "3.1.0" and doc["info"] == {"title": "pdserve", "version": json.loads(text.get("/version")[1])["version"]}
    for path, item in doc["paths"].items():
        (method, op), = item.items()
        assert method in ("get", "post") and op["summary"] and "200" in op["responses"] and "security" not in op
        assert [p["name"] for p in op.get("parameters", [])] == re.findall(r"\{(\w+)\}", path)
        assert ("requestBody" in op) == (method == "post")
        if method == "post":
            schema = op["requestBody"]["content"]["application/json"]["schema"]
            Draft202012Validator.check_schema(schema)
            assert set(schema["required"]) <= set(schema["properties"])


def test_each_path_is_there(doc, text):
    """Whatever it answers, it is not that there is no such path, nor such a method. Others are not in the document."""
    for path, item in doc["paths"].items():
        (method, _), = item.items()
        status, _ = text.get(path.replace("{model}", "gpt-4o")) if method == "get" else text.post(path.replace("{model}", "gpt-4o"), {})
        assert status in (200, 400) or (path, status) == ("/v1/abort", 404), path
    assert text.get("/nothing")[0] == 404 and text.get("//")[0] == 404


def answer(s, path, **more):
    """-> (status, the parameter that is wrong)"""
    status, r = s.post(path, {**SMALLEST[path], **ONE_TOKEN.get(path, {}), **more})
    e = r.get("error") or {}
    return status, e.get("param") or e.get("message", "")


@pytest.mark.parametrize("path", SMALLEST)
def test_types_and_ranges(doc, text, path):
    """Of each number that the document has, the first one outside its range is refused, and the last one inside is not; a value of another type is refused."""
    n = 0
    for name, schema in properties(doc, path).items():
        kind = schema.get("type")
        if kind not in ("integer", "number", "boolean"):
            continue
        n += 1
        beside = {"logprobs": True} if name == "top_logprobs" and path == "/v1/chat/completions" else {"echo": True} if name == "max_tokens" and path == "/v1/completions" else {}
        bad, good = ["x"], []
        step = 1 if kind == "integer" else 1e-3
        if "minimum" in schema:
            bad.append(schema["minimum"] - step)
            good.append(schema["minimum"])
        if "exclusiveMinimum" in schema:
            bad.append(schema["exclusiveMinimum"])
            good.append(schema["exclusiveMinimum"] + step)
        if "maximum" in schema:
            bad.append(schema["maximum"] + step)
            good.append(schema["maximum"])
        good += [True, False] if kind == "boolean" and name != "stream" else []
        for v in bad:
            status, which = answer(text, path, **beside, **{name: v})
            assert status == 400 and name in which, (name, v, which)
        for v in good:
            status, which = answer(text, path, **beside, **{name: v})
            # what is in its range may be too much for this model or for the rest of the request
            assert status == 200 or "must be" not in which and name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "dimensions",
                                                                          "truncate_prompt_tokens", "continue_final_message", "add_generation_prompt", "best_of"), (name, v, status, which)
    assert n > 1
    assert all("$.temperature: 100 is greater" in x for x in openai_spec.violations())      # /v1/responses repeats it


def test_lists_have_their_bounds(doc, text):
    for name, schema in properties(doc, "/v1/completions").items():
        if "maxItems" in schema:
            item = "ab" if schema["items"]["type"] == "string" else 5
            assert answer(text, "/v1/completions", **{name: [item] * (schema["maxItems"] + 1)}) == (400, name)
            assert answer(text, "/v1/completions", **{name: [item] * schema["maxItems"]})[0] == 200, name


def test_documented_parameters_are_in_it(doc):
    with open(os.path.join(ROOT, "docs", "api.md")) as f:
        tables = re.findall(r"(?m)^\| parameter \|.*\n((?:\|.*\n)+)", f.read())
    names = {x for t in tables for row in t.splitlines()[1:] for x in re.findall("`([a-z_]+)`", row.split("|")[1])}
    assert len(tables) == 2 and {"temperature", "max_completion_tokens", "pooling"} <= names
    assert not names - {x for path in SMALLEST for x in properties(doc, path)}


def test_validator_accepts_it(text):
    """The validator of the OpenAPI Initiative's schema, where there is one."""
    try:
        found = subprocess.run(["openapi-spec-validator", "--help"], capture_output=True)
    except FileNotFoundError:
        pytest.skip("no openapi-spec-validator")
    if found.returncode:
        pytest.skip("openapi-spec-validator does not run")
    path = os.path.join(text.dir, "openapi.json")
    with open(path, "w") as f:
        f.write(text.get("/openapi.json")[1])
    r = subprocess.run(["openapi-spec-validator", path], capture_output=True, text=True)
    assert r.returncode == 0, r.stdout + r.stderr


class Page(html.parser.HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.text, self.links, self.open = "", [], []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "img", "link", "iframe")
        self.links += [v for k, v in attrs if k == "href"]

    def handle_data(self, data):
        self.text += data


def test_page(text):
    """Its curl line works as it stands, and what it links to is there."""
    status, page = text.get("/")
    assert status == 200 and len(page) < 2048
    p = Page(page)
    assert "s<m>l" in p.text and "gpt-4o" in p.text and "*" not in p.text
    curl = re.search(r"curl .*\}'", p.text)[0]
    got = json.loads(subprocess.run(["sh", "-c", curl.replace("]}'", '],"max_tokens":2}\'') + " -s"], capture_output=True, check=True, timeout=60 * SLOW).stdout)
    assert got["usage"]["completion_tokens"] == 2
    assert p.links and all(text.get(x)[0] == 200 for x in p.links)
    assert text.get("/version")[1] == json.dumps({"version": json.loads(text.get("/version")[1])["version"]}, separators=(",", ":"))


def test_with_access_keys(tiny_model):
    """All three are open; the document says which paths are not."""
    with Suite("1p1d", tiny_model, router={"served_model_name": "tiny", "model_aliases": ["for-customer-x"]}, keys=KEYS) as s:
        for path in ("/", "/version", "/openapi.json"):
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=10 * SLOW)
            c.request("GET", path, headers={"Host": "a;$(b)"})
            r = c.getresponse()
            page = r.read().decode()
            assert r.status == 200
            if path == "/":
                assert "Authorization: Bearer KEY" in page and "http://ADDRESS:PORT/" in page and "(b)" not in page
                assert "tiny" in page and "for-customer-x" not in page     # aliases are for who has a key
        doc = json.loads(page)
        without = {p for p, item in doc["paths"].items() for op in item.values() if "security" not in op}
        assert without == {"/", "/openapi.json", "/version", "/live", "/health", "/ready", "/metrics"}
        assert set(doc["components"]["securitySchemes"]) == {"bearer", "x-api-key", "api-key"}
