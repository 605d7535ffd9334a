"""openai_spec.py - holds every answer, stream event and error that a test of this folder reads from an OpenAI path against OpenAI's own specification
(tests/data/openai), whatever the test itself looks at. watch() once; violations() then gives, and forgets, what was wrong."""
import functools
import http.client
import io
import json
import os
import re

from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match

DATA = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "data", "openai", "schemas.json")
with open(DATA) as f:
    SPEC = json.load(f)
found = []
checked = {}        # schema -> how many were held against it


@functools.cache
def validator(name):
    return Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": SPEC["$defs"]})


def check(name, value, where):
    checked[name] = checked.get(name, 0) + 1
    if not validator(name).is_valid(value):
        e = best_match(validator(name).iter_errors(value))
        found.append(f"{where}: {name} at {e.json_path}: {e.message[:300]}; in {json.dumps(value)[:600]}")


def violations():
    out = found[:]
    found.clear()
    return out


class Checked(http.client.HTTPResponse):
    """An answer that is looked at while it is read, by any of read, readline and iteration, which call one another."""
    depth = 0

    def begin_check(self, method, path):
        path = path.split("?")[0]
        self.route = f"{method} {re.sub('^/v1/models/.+', '/v1/models/{model}', path)}"
        self.schemas = SPEC["paths"].get(self.route)
        self.stream = self.getheader("Content-Type", "").startswith("text/event-stream")
        self.body = b""

    def seen(self, data):
        if not self.schemas or not self.depth == 0:
            return
        self.body += data
        if self.stream:
            *lines, self.body = self.body.split(b"\n")
            for line in lines:
                if line.startswith(b"data: {"):
                    self.event(json.loads(line[6:]))
        elif self.isclosed() and self.body and self.getheader("Content-Type", "").startswith("application/json"):
            value, self.body = json.loads(self.body), b""
            check(self.schemas[0] if self.status == 200 else SPEC["error"], value, f"{self.route} {self.status}")

    def event(self, value):
        name = self.schemas[1]
        if "type" in value and name == "ResponseStreamEvent":
            name = SPEC["events"].get(value["type"], name)
        elif "error" in value and name != "ResponseStreamEvent":
            name = SPEC["error"]
        check(name, value, f"{self.route} stream")

    def reading(self, how, *args):
        self.depth += 1
        try:
            data = how(self, *args)
        finally:
            self.depth -= 1
        self.seen(data)
        return data

    def read(self, *args):
        return self.reading(http.client.HTTPResponse.read, *args)

    def read1(self, *args):
        return self.reading(http.client.HTTPResponse.read1, *args)

    def readline(self, *args):
        return self.reading(http.client.HTTPResponse.readline, *args)


class Bytes:
    """what HTTPResponse wants of a socket"""
    def __init__(self, data):
        self.data = data

    def makefile(self, _mode):
        return io.BytesIO(self.data)


def check_raw(method, path, data):
    """An answer as it went over the wire, perhaps cut off. Returns its status."""
    r = Checked(Bytes(data), method=method)
    r.begin()
    r.begin_check(method, path)
    try:
        r.read()
    except http.client.IncompleteRead as e:
        r.seen(e.partial)
    return r.status


def watch():
    put, get = http.client.HTTPConnection.putrequest, http.client.HTTPConnection.getresponse

    def putrequest(self, method, url, *args, **kw):
        self.asked = method, url
        return put(self, method, url, *args, **kw)

    def getresponse(self):
        r = get(self)
        r.__class__ = Checked
        r.begin_check(*self.asked)
        return r
    http.client.HTTPConnection.putrequest, http.client.HTTPConnection.getresponse = putrequest, getresponse
