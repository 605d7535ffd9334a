#!/usr/bin/env python3
"""make_clients.py - writes clients.json: schemas as clients send them, each with a text that it allows and near misses that an independent validator refuses.

    make_clients.py > clients.json      run when the schemas change; needs the packages pydantic (2) and jsonschema

Three kinds: what Pydantic makes of a model, the parameters of tools as MCP servers describe them, and keywords of OpenAPI, of Gemini and of older drafts.
"""
import collections
import dataclasses
import datetime
import enum
import ipaddress
import json
import pathlib
import random
import sys
import typing
import uuid

import make_cases
from pydantic import BaseModel, ConfigDict, Field, HttpUrl, RootModel, SecretStr, TypeAdapter, conint, conlist, constr
from typing_extensions import Required, TypedDict

Color = enum.Enum("Color", {"RED": "red", "GREEN": "green", "BLUE": "blue"})
Level = enum.IntEnum("Level", {"LOW": 1, "HIGH": 10})
Lit = typing.Literal
T = typing.TypeVar("T")


class Link(BaseModel):
    name: str = Field(min_length=1, description="shown")
    url: HttpUrl


class Cat(BaseModel):
    kind: Lit["cat"]
    lives: int = Field(ge=0, le=9)


class Dog(BaseModel):
    kind: Lit["dog"]
    tricks: list[str] = []


class Pet(BaseModel):
    pet: typing.Union[Cat, Dog] = Field(discriminator="kind")


class Add(BaseModel):
    op: Lit["add"] = "add"
    left: "Expression"
    right: "Expression"


class Number(BaseModel):
    op: Lit["number"] = "number"
    value: int


Expression = typing.Annotated[typing.Union[Add, Number], Field(discriminator="op")]


class Point(typing.NamedTuple):
    x: int
    y: int
    label: str = ""


class Shape(BaseModel):
    at: Point
    box: tuple[int, int, str]
    path: tuple[int, ...] = ()


class Tags(BaseModel):
    tags: set[Lit["a", "b", "c"]]
    flags: frozenset[bool] = frozenset()
    colors: set[Color] = Field(min_length=1, max_length=2)


class Steps(BaseModel):
    percent: conint(multiple_of=5, ge=0, le=100)
    minute: conint(multiple_of=15)
    price: float = Field(ge=0, multiple_of=0.01)


class Counts(BaseModel):
    of: dict[str, int]
    by_code: dict[constr(pattern="^[A-Z]{2}$"), int]
    by_color: dict[Color, bool] = {}
    some: dict[str, str] = Field(min_length=1)


class Maybe(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: typing.Optional[str] = None
    age: int | None = Field(default=None, ge=0)
    level: Level = Level.LOW
    color: Color


class Address(BaseModel):
    street: str
    zip: str = Field(pattern=r"^\d{5}(-\d{4})?$", examples=["12345"])


class Person(BaseModel):
    """Somebody."""
    name: str
    home: Address
    work: Address | None = None
    others: list[Address] = Field(default_factory=list, max_length=3)


class Tree(BaseModel):
    value: int
    children: list["Tree"] = []


class Times(BaseModel):
    at: datetime.datetime
    day: datetime.date
    hour: datetime.time
    span: datetime.timedelta | None


class Ids(BaseModel):
    id: uuid.UUID
    v4: ipaddress.IPv4Address
    v6: ipaddress.IPv6Address | None = None
    where: pathlib.Path
    secret: SecretStr
    raw: bytes


class Bounds(BaseModel):
    name: typing.Annotated[str, Field(min_length=2, max_length=8)]
    share: typing.Annotated[float, Field(ge=0, lt=1)]
    rank: typing.Annotated[int, Field(gt=0)]
    of: conlist(int, min_length=1, max_length=3)


class Mixed(BaseModel):
    model_config = ConfigDict(extra="allow")
    value: int | str | bool | None
    one: Lit["x"]
    some: Lit["x", 2, None]
    any: typing.Any
    more: dict[str, typing.Any]


class Page(BaseModel, typing.Generic[T]):
    items: list[T]
    next: str | None = Field(alias="nextPage")


@dataclasses.dataclass
class Options:
    retries: int = 3
    mode: Lit["fast", "safe"] = "safe"


class Typed(TypedDict, total=False):
    title: Required[str]
    year: int


HOME = {"street": "Elm", "zip": "12345"}
PYDANTIC = [
    (Link, {"name": "docs", "url": "https://example.org/"}),
    (Pet, {"pet": {"kind": "cat", "lives": 9}}),
    (Pet, {"pet": {"kind": "dog", "tricks": ["sit"]}}),
    (Add, {"op": "add", "left": {"op": "number", "value": 1}, "right": {"op": "add", "left": {"op": "number", "value": 2}, "right": {"op": "number", "value": 3}}}),
    (Shape, {"at": [1, 2, "p"], "box": [0, 5, "b"], "path": [1, 2, 3]}),
    (Tags, {"tags": ["c", "a"], "flags": [False, True], "colors": ["blue", "red"]}),
    (Steps, {"percent": 95, "minute": -45, "price": 19.99}),
    (Counts, {"of": {"a": 1}, "by_code": {"DE": 1, "FR": 2}, "by_color": {"red": True, "blue": False}, "some": {"k": "v"}}),
    (Maybe, {"name": None, "age": 5, "level": 10, "color": "red"}),
    (Person, {"name": "Ann", "home": HOME, "work": None, "others": [HOME, HOME]}),
    (Tree, {"value": 1, "children": [{"value": 2, "children": []}, {"value": 3}]}),
    (Times, {"at": "2024-02-29T12:00:00Z", "day": "2024-02-29", "hour": "23:59:59Z", "span": "P1DT2H"}),
    (Ids, {"id": "123e4567-e89b-12d3-a456-426614174000", "v4": "10.0.0.1", "v6": "::1", "where": "/tmp/x", "secret": "s", "raw": "b"}),
    (Bounds, {"name": "abc", "share": 0.5, "rank": 1, "of": [1, 2]}),
    (Mixed, {"value": "v", "one": "x", "some": 2, "any": {"a": [1]}, "more": {"k": None}, "extra": 1}),
    (Page[Cat], {"items": [{"kind": "cat", "lives": 1}], "nextPage": None}),
    (Options, {"retries": 1, "mode": "fast"}),
    (Typed, {"title": "T", "year": 1999}),
    (RootModel[list[Cat]], [{"kind": "cat", "lives": 3}]),
    (RootModel[typing.Annotated[typing.Union[Cat, Dog], Field(discriminator="kind")]], {"kind": "dog", "tricks": []}),
    (RootModel[tuple[Lit["a"], int | None]], ["a", None]),
]


def text(**more):
    return {"type": "string", **more}


def listed(items, **more):
    return {"type": "array", "items": items, **more}


def tool(properties, required=None, **more):
    return {"type": "object", "properties": properties, **({"required": required} if required else {}), **more}


ZOD = {"additionalProperties": False, "$schema": "http://json-schema.org/draft-07/schema#"}
WHOLE = {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991}
ENTITY = tool({"name": text(description="The name of the entity"), "entityType": text(), "observations": listed(text())}, ["name", "entityType", "observations"], additionalProperties=False)
MCP = [
    (tool({"path": text(), "head": {"type": "number", "description": "first lines"}, "tail": {"type": "number"}}, ["path"], **ZOD), {"path": "/a", "tail": 5}),
    (tool({"paths": listed(text(), minItems=1, description="files")}, ["paths"], **ZOD), {"paths": ["a", "b"]}),
    (tool({"path": text(), "edits": listed(tool({"oldText": text(), "newText": text()}, ["oldText", "newText"], additionalProperties=False)), "dryRun": {"type": "boolean", "default": False}},
          ["path", "edits"], **ZOD), {"path": "a", "edits": [{"oldText": "x", "newText": "y"}], "dryRun": True}),
    (tool({"path": text(), "sortBy": text(enum=["name", "size"], default="name"), "excludePatterns": listed(text(), default=[])}, ["path"], **ZOD), {"path": ".", "sortBy": "size", "excludePatterns": ["*.o"]}),
    (tool({"url": text(description="URL to fetch", format="uri", minLength=1, title="Url"),
           "max_length": {"default": 5000, "exclusiveMaximum": 1000000, "exclusiveMinimum": 0, "title": "Max Length", "type": "integer"},
           "start_index": {"default": 0, "minimum": 0, "type": "integer"}, "raw": {"default": False, "type": "boolean"}}, ["url"], title="Fetch"), {"url": "https://a.b", "max_length": 999999, "raw": False}),
    (tool({"owner": text(), "repo": text(), "title": text(), "body": text(), "assignees": listed(text()), "milestone": {"type": "number"}, "labels": listed(text())}, ["owner", "repo", "title"], **ZOD),
     {"owner": "o", "repo": "r", "title": "t", "labels": ["bug"]}),
    (tool({"owner": text(), "state": text(enum=["open", "closed", "all"]), "sort": text(enum=["created", "updated"]), "page": {"type": "number", "minimum": 1}, "perPage": {"type": "number", "minimum": 1,
          "maximum": 100}, "since": text(format="date-time")}, ["owner"]), {"owner": "o", "state": "open", "perPage": 100, "since": "2024-01-01T00:00:00Z"}),
    (tool({"branch": text(), "files": listed(tool({"path": text(), "content": text()}, ["path", "content"], additionalProperties=False), minItems=1), "message": text()}, ["branch", "files", "message"], **ZOD),
     {"branch": "main", "files": [{"path": "a", "content": "b"}], "message": "m"}),
    (tool({"pullNumber": WHOLE, "event": text(enum=["APPROVE", "REQUEST_CHANGES", "COMMENT"]), "comments": listed({"anyOf": [
        tool({"path": text(), "position": {"type": "number"}, "body": text()}, ["path", "position", "body"], additionalProperties=False),
        tool({"path": text(), "line": {"type": "number"}, "body": text()}, ["path", "line", "body"], additionalProperties=False)]})}, ["pullNumber", "event"], **ZOD),
     {"pullNumber": 7, "event": "COMMENT", "comments": [{"path": "a", "line": 3, "body": "x"}]}),
    (tool({"repo_path": {"title": "Repo Path", "type": "string"}, "max_count": {"default": 10, "type": "integer"},
           "start_timestamp": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "description": "since"}}, ["repo_path"], title="GitLog"), {"repo_path": ".", "start_timestamp": None}),
    (tool({"source_timezone": text(), "time": text(pattern="^([01][0-9]|2[0-3]):[0-5][0-9]$"), "target_timezone": text()}, ["source_timezone", "time", "target_timezone"]),
     {"source_timezone": "UTC", "time": "23:59", "target_timezone": "Asia/Tokyo"}),
    (tool({"entities": listed(ENTITY)}, ["entities"], **ZOD), {"entities": [{"name": "n", "entityType": "t", "observations": ["o"]}]}),
    (tool({"thought": text(), "nextThoughtNeeded": {"type": "boolean"}, "thoughtNumber": {"type": "integer", "minimum": 1}, "branchId": text()}, ["thought", "nextThoughtNeeded", "thoughtNumber"]),
     {"thought": "t", "nextThoughtNeeded": False, "thoughtNumber": 1}),
    (tool({"query": text(maxLength=400), "count": {"type": "number", "minimum": 1, "maximum": 20, "default": 10}, "safe": {"not": {}}}, ["query"], **ZOD), {"query": "q", "count": 20}),
    (tool({"selector": text(), "button": {"enum": ["left", "right"], "type": "string", "enumNames": ["Left", "Right"]}, "modifiers": listed({"enum": ["Alt", "Shift", "Meta"]}, uniqueItems=True)}, ["selector"],
          strict=True), {"selector": "#a", "button": "left", "modifiers": ["Shift", "Alt"]}),
    (tool({"filter": {"oneOf": [tool({"property": text(), "equals": text()}, ["property", "equals"], additionalProperties=False),
                                tool({"property": text(), "contains": text()}, ["property", "contains"], additionalProperties=False), {"type": "null"}]}, "limit": {"type": "integer", "multipleOf": 10}}, ["filter"]),
     {"filter": {"property": "p", "contains": "c"}, "limit": 50}),
    (tool({"env": {"type": "object", "propertyNames": {"pattern": "^[A-Z_]+$"}, "additionalProperties": text()}, "args": {"type": "array", "items": [text(), {"type": "integer"}], "additionalItems": False, "minItems": 2}},
          ["env", "args"], **ZOD), {"env": {"HOME": "/"}, "args": ["a", 1]}),
    (tool({}, **ZOD), {}),
]
OTHERS = [
    (tool({"id": {"type": "integer", "format": "int64", "example": 5}, "tag": text(nullable=True, xml={"name": "t"}), "state": text(enum=["a", "b"], errorMessage="no")}, ["id", "tag"],
          externalDocs={"url": "x"}, propertyOrdering=["tag", "id"]), {"id": 5, "tag": None, "state": "a"}),
    ({"type": "number", "minimum": 0, "exclusiveMinimum": True, "maximum": 9, "exclusiveMaximum": False}, 0.5),
    ({"$ref": "#/$defs/a", "nullable": True, "$defs": {"a": listed({"type": "integer"})}}, None),
    ({"type": "array", "prefixItems": [text(maxLength=3), {"type": "integer"}], "items": {"type": "boolean"}, "minItems": 3, "maxItems": 5}, ["a", 1, True]),
    ({"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": False}, [1, 2]),
    ({"type": "array", "contains": {"const": "end"}, "maxItems": 4}, ["x", "end", 3]),
    ({"type": "array", "items": {"enum": ["a", "b", "c"]}, "contains": {"const": "b"}, "minContains": 1, "maxContains": 2, "minItems": 2}, ["a", "b", "b", "c"]),
    ({"type": "array", "items": {"enum": ["k%02d" % i for i in range(12)]}, "uniqueItems": True, "minItems": 2, "maxItems": 4}, ["k01", "k04", "k11"]),
    ({"type": "array", "items": {"enum": ["a", "b", 3, None], "not": {"enum": [None, "b"]}}, "uniqueItems": True}, [3, "a"]),
    (tool({"a": {}, "b": {}, "c": {}, "d": {}}, minProperties=2, maxProperties=3, additionalProperties=False), {"a": 1, "d": 2}),
    (tool({"a": {"type": "null"}}, minProperties=2, maxProperties=3, additionalProperties={"type": "integer"}), {"a": None, "b": 1, "c": 2}),
    ({"type": "object", "propertyNames": {"enum": ["x", "y", "z"]}, "additionalProperties": {"type": "integer"}, "minProperties": 1}, {"x": 1, "z": 2}),
    ({"type": "object", "propertyNames": {"maxLength": 3}, "additionalProperties": {"type": "boolean"}}, {"abc": True}),
    (tool({"name": text()}, ["name"], patternProperties={"^x-": {"type": "integer"}}, additionalProperties=False), {"name": "n", "x-a": 1}),
    ({"type": "integer", "multipleOf": 7, "minimum": 100}, 105),
    ({"type": "integer", "multipleOf": 25, "minimum": -130, "exclusiveMaximum": 1000}, -125),
    ({"type": "number", "multipleOf": 0.1, "minimum": -1, "maximum": 2}, 1.9),
    ({"type": "number", "multipleOf": 0.01, "exclusiveMinimum": 0, "maximum": 1}, 0.05),
    ({"type": "string", "not": {"enum": ["no", "none", ""]}}, "non"),
    ({"type": "integer", "minimum": 0, "maximum": 20, "not": {"const": 7}}, 8),
    ({"type": ["string", "boolean", "null"], "not": {"enum": [None, True]}}, False),
    ({"not": {"type": ["object", "array"]}}, 5),
    ({"enum": ["a", "b", 1], "not": {"const": "a"}}, "b"),
]


def strings_of(rng, v):
    """A copy with another string, number or word somewhere: bent() of cases, and names of properties."""
    if isinstance(v, dict) and v and rng.random() < 0.3:
        name = rng.choice(list(v))
        return {(k + rng.choice(["", "x", "Z"]) if k == name else k): x for k, x in v.items()}
    return make_cases.bent(v)


def misses(rng, schema, yes):
    valid, out = make_cases.validator_of(schema), []
    assert valid(yes), (schema, yes)
    for _ in range(600):
        v = yes
        for _ in range(rng.randint(1, 2)):
            v = strings_of(rng, v)
        t = json.dumps(v, separators=(",", ":"), ensure_ascii=False)
        if not valid(v) and t not in out and len(out) < 9:
            out.append(t)
    return out


def main():
    rng, lines, cases = random.Random(5), [], collections.OrderedDict()
    for schema, yes in [(TypeAdapter(m).json_schema(), yes) for m, yes in PYDANTIC] + MCP + OTHERS:
        case = cases.setdefault(json.dumps(schema), {"schema": schema, "yes": [], "no": []})
        case["yes"].append(json.dumps(yes, separators=(",", ":"), ensure_ascii=False))
        case["no"] += [t for t in misses(rng, schema, yes) if t not in case["no"]]
        assert case["no"], schema
    for c in cases.values():
        lines.append(json.dumps(c, ensure_ascii=False))
    sys.stdout.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
