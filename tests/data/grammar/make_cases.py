#!/usr/bin/env python3
"""make_cases.py - writes cases.json: schemas, and for each texts that an independent validator (the package jsonschema, Draft 2020-12) accepts and near misses that it refuses.

    make_cases.py > cases.json          run when SCHEMAS change; the same each time for the same version of jsonschema

Texts are in the form that answers have (common/grammar/grammar.h): properties in the order of the schema, further ones behind them, integers without a fraction, compact.
What the grammar refuses beyond that and the validator accepts (years before 1000, 1.0 as an integer, numbers with exponents between bounds) is not drawn here.
"""
import decimal
import json
import random
import sys

import jsonschema

NAME = {"type": "string", "minLength": 1, "maxLength": 12}
SCHEMAS = [
    {"type": "boolean"},
    {"type": "null"},
    {"type": "integer"},
    {"type": "integer", "minimum": -5, "maximum": 17},
    {"type": "integer", "exclusiveMinimum": 99, "exclusiveMaximum": 1002},
    {"type": "integer", "maximum": -10},
    {"type": "integer", "minimum": 255},
    {"type": "number", "minimum": -3, "maximum": 12},
    {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
    {"type": "string", "minLength": 2, "maxLength": 5},
    {"type": "string", "minLength": 38, "maxLength": 41},
    {"type": "string", "pattern": "^[A-Z]{2}-\\d{3,4}$"},
    {"type": "string", "pattern": "\\d"},
    {"type": "string", "pattern": "^(foo|ba[rz])"},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "ipv4"},
    {"type": "string", "format": "uuid"},
    {"type": ["string", "null", "integer"]},
    {"enum": ["red", "green", 3, 4.5, None, [1, 2], {"a": "b"}]},
    {"const": {"k": [True, False]}},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 2, "maxItems": 4},
    {"type": "array", "items": {"type": "string", "maxLength": 3}, "minItems": 34, "maxItems": 36},
    {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, "maxItems": 3},
    {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a", "b"], "additionalProperties": False},
    {"type": "object", "properties": {"a": {"type": "integer"}, "ab": {"type": "string"}, "c": {"type": "null"}}, "required": ["ab"], "additionalProperties": False},
    {"type": "object", "properties": {"a": {"type": "integer"}, "ab": {"type": "null"}}, "required": ["ab"], "additionalProperties": {"type": "boolean"}},
    {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0}},
    {"type": "object", "properties": {}, "additionalProperties": False},
    {"type": "object", "properties": {"kind": {"const": "x"}, "of": {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}, "required": ["n"],
     "additionalProperties": False}}, "required": ["kind", "of"], "additionalProperties": False},
    {"anyOf": [{"type": "object", "properties": {"t": {"const": "a"}, "v": {"type": "integer"}}, "required": ["t", "v"], "additionalProperties": False},
               {"type": "object", "properties": {"t": {"const": "b"}, "v": {"type": "string"}}, "required": ["t", "v"], "additionalProperties": False}]},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"v": {"type": "integer", "minimum": 1, "maximum": 9}, "sub": {
        "type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2}}, "required": ["v", "sub"], "additionalProperties": False}}},
    {"type": "array", "items": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}, "maxItems": 2},
    {"type": "object", "properties": {"name": NAME, "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "minItems": 1}, "size": {"anyOf": [
        {"type": "number", "minimum": 0, "maximum": 300}, {"type": "null"}]}}, "required": ["name", "tags", "size"], "additionalProperties": False},
    {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["aa", "b", "a"], "additionalProperties": {"type": "integer", "minimum": 0}},
]
decimal.getcontext().prec = 1000    # of remainders
LETTERS = ["a", "B", "7", "-", " ", "\"", "\\", "\n", "\u00e4", "\u20ac", "\U0001f600"]
rng = random.Random(7)


def text_of(n):
    return "".join(rng.choice(LETTERS) for _ in range(n))


def formatted(s):
    if s["format"] == "date":
        return f"{rng.randint(1000, 2999):04}-{rng.randint(1, 12):02}-{rng.randint(1, 31):02}"
    if s["format"] == "ipv4":
        return ".".join(str(rng.choice([0, 9, 10, 99, 100, 199, 249, 255])) for _ in range(4))
    return "-".join("".join(rng.choice("0123456789abcdef") for _ in range(n)) for n in (8, 4, 4, 4, 12))


def string(s):
    if "format" in s:
        return formatted(s)
    if "pattern" in s:
        return rng.choice(["AB-123", "XY-0007", "foo", "baz!", "bar", "a1", "7", "\n0", text_of(4)])
    least = s.get("minLength", 0)
    return text_of(rng.choice([least, s.get("maxLength", least + 6)]))


def number(s):
    lo = s.get("minimum", s.get("exclusiveMinimum", s.get("maximum", s.get("exclusiveMaximum", 40)) - 40))
    hi = s.get("maximum", s.get("exclusiveMaximum", lo + 1500))
    n = rng.choice([lo, hi, lo + 1, hi - 1, rng.randint(lo, hi)])
    return n if s["type"] == "integer" or rng.random() < 0.4 else n + rng.choice([0.5, 0.25, -0.5, 0.125])


def draw(s, root, depth=0):
    """A value that is likely the schema's."""
    if "$ref" in s:
        target = root
        for step in s["$ref"].split("/")[1:]:
            target = target[step]
        return draw(target, root, depth + 1)
    if "anyOf" in s:
        return draw(s["anyOf"][0] if depth > 4 else rng.choice(s["anyOf"]), root, depth + 1)
    if "enum" in s or "const" in s:
        return rng.choice(s["enum"]) if "enum" in s else s["const"]
    kind = s["type"] if isinstance(s["type"], str) else rng.choice(s["type"])
    if kind in ("integer", "number"):
        return number({**s, "type": kind})
    if kind == "string":
        return string(s)
    if kind == "array":
        least = s.get("minItems", 0)
        n = least if depth > 3 else rng.choice([least, s.get("maxItems", least + 2), least + 1])
        return [draw(s["items"], root, depth + 1) for _ in range(n)]
    if kind == "object":
        out = {k: draw(v, root, depth + 1) for k, v in s.get("properties", {}).items() if k in s.get("required", []) or rng.random() < 0.6}
        more = s.get("additionalProperties")
        out.update((k, draw(more, root, depth + 1)) for k in sorted(s.get("required", [])) if k not in s.get("properties", {}))
        for name in rng.sample(["b", "abc", "aa", "x y", ""], rng.randint(0, 2)) if more else []:
            out.setdefault(name, draw(more, root, depth + 1))
        return out
    return None if kind == "null" else rng.random() < 0.5


def bent(v):
    """The value with one thing changed somewhere."""
    if isinstance(v, list) and v and rng.random() < 0.7:
        i = rng.randrange(len(v))
        return rng.choice([v[:i] + [bent(v[i])] + v[i + 1:], v[:i] + v[i + 1:], v + [v[i]]])
    if isinstance(v, dict) and rng.random() < 0.9:
        name = rng.choice(list(v)) if v else "k"
        other = {k: x for k, x in v.items() if k != name}
        return rng.choice([other, {**v, "zz": 1}, {k: bent(x) if k == name else x for k, x in v.items()}, {k: bent(x) if k == name else x for k, x in v.items()}])
    if isinstance(v, bool) or v is None:
        return rng.choice([0, "", [], {}, "null"])
    if isinstance(v, (int, float)):
        return rng.choice([v + 1, v - 1, -v, v * 10, v + 0.5, str(v), None])
    if isinstance(v, str):
        i = rng.randrange(len(v) + 1)
        return rng.choice([v[:i] + rng.choice(LETTERS) + v[i:], v[:i] + v[i + 1:], v[:-1], v + "1", v[:i] + "9" + v[i + 1:], 5])
    return rng.choice([None, 0, "x"])


def whole(v):
    """Without floats that are integers: as an integer they are not written so."""
    return not (isinstance(v, float) and v == int(v)) and all(map(whole, v.values() if isinstance(v, dict) else v if isinstance(v, list) else []))


FORMATS = ["date-time", "date", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"]    # those that constrain here


def meant(s):
    """The schema in the words of 2020-12: nullable and bounds that are excluded as in OpenAPI 3.0, items as an array as in draft 7."""
    if not isinstance(s, (dict, list)):
        return s
    if isinstance(s, list):
        return [meant(x) for x in s]
    s = {k: v if k in ("enum", "const", "default", "examples", "required") else meant(v) for k, v in s.items()}
    for bound, open_one in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(s.get(open_one), bool) and s.pop(open_one):
            s[open_one] = s.pop(bound)
    if isinstance(s.get("items"), list):
        s["prefixItems"] = s.pop("items")
        if "additionalItems" in s:
            s["items"] = s.pop("additionalItems")
    if s.pop("nullable", None) is True:
        kept = {k: s.pop(k) for k in ("$defs", "definitions") if k in s}
        s = {"anyOf": [s, {"type": "null"}], **kept}
    return s


def exact(v):
    """As Decimals: 0.07 is a multiple of 0.01."""
    return json.loads(json.dumps(v), parse_float=decimal.Decimal, parse_constant=decimal.Decimal)


def validator_of(schema):
    """Whether a value is valid."""
    known = getattr(jsonschema.Draft202012Validator, "FORMAT_CHECKER", None) or jsonschema.draft202012_format_checker
    formats = jsonschema.FormatChecker(())
    formats.checkers = {f: known.checkers[f] for f in FORMATS if f in known.checkers}
    validator = jsonschema.Draft202012Validator(exact(meant(schema)), format_checker=formats)
    return lambda v: validator.is_valid(exact(v))


def main():
    out = []
    for s in SCHEMAS:
        jsonschema.Draft202012Validator.check_schema(s)
        validator = jsonschema.Draft202012Validator(s, format_checker=jsonschema.FormatChecker())
        yes, no = [], []
        for _ in range(400):
            v = draw(s, s)
            for _ in range(rng.randint(0, 2)):
                v = bent(v)
            text = json.dumps(v, separators=(",", ":"), ensure_ascii=rng.random() < 0.3)
            to = yes if validator.is_valid(v) else no
            if whole(v) and len(text) < 400 and text not in to and len(to) < 9:
                to.append(text)
        assert yes and no, s
        out.append({"schema": s, "yes": yes, "no": no})
    lines = [json.dumps(c, ensure_ascii=False) for c in out]
    sys.stdout.write("[\n" + ",\n".join(lines) + "\n]\n")


if __name__ == "__main__":
    main()
