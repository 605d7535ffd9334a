#!/usr/bin/python3
"""make_schemas.py - what OpenAI's specification says of answers, as JSON Schema without its prose: writes schemas.json beside this file.

    git clone https://github.com/openai/openai-openapi && tests/data/openai/make_schemas.py openai-openapi/openapi.yaml

Kept are types, members, enumerations and limits of the schemas that an answer of ours can reach: of unions only the alternatives in OURS. The published
schemas contradict what OpenAI itself sends, and what its own clients read, in the few places of ERRATA.
"""
import json
import os
import sys

import yaml

ROOTS = {"POST /v1/chat/completions": ("CreateChatCompletionResponse", "CreateChatCompletionStreamResponse"),
         "POST /v1/completions": ("CreateCompletionResponse", "CreateCompletionResponse"),
         "POST /v1/embeddings": ("CreateEmbeddingResponse", None),
         "POST /v1/responses": ("Response", "ResponseStreamEvent"),
         "GET /v1/models": ("ListModelsResponse", None), "GET /v1/models/{model}": ("Model", None)}
ERROR = "ErrorResponse"
KEEP = ("type", "properties", "required", "enum", "const", "items", "prefixItems", "anyOf", "oneOf", "allOf", "$ref", "additionalProperties", "nullable",
        "minItems", "maxItems", "minimum", "maximum", "exclusiveMinimum", "minLength", "maxLength", "pattern")
# alternatives of a union that are told apart by their `type`
OURS = {"message", "function_call", "function_call_output", "reasoning", "function", "output_text", "input_text", "refusal", "summary_text", "reasoning_text",
        "text", "json_object", "json_schema", "allowed_tools"}
EVENTS = ("response.created", "response.in_progress", "response.completed", "response.failed", "response.incomplete", "response.queued", "response.output_",
          "response.content_part.", "response.function_call_arguments.", "response.reasoning_", "response.refusal.", "error")


# Where the published schemas contradict what OpenAI sends and its clients read. Each: schema, place in it, what it may be as well, why
ERRATA = (
    ("CreateCompletionResponse", ("choices", "items", "finish_reason"), {"type": "null"}, "of a stream, whose events have this schema: until the answer ends"),
    ("CreateCompletionResponse", ("usage",), {"type": "null"}, "of a stream with include_usage: in all but its last event"),
    ("CreateCompletionResponse", ("choices", "items", "logprobs", "anyOf", 0, "token_logprobs", "items"), {"type": "null"}, "echo: a prompt's first token"),
    ("CreateCompletionResponse", ("choices", "items", "logprobs", "anyOf", 0, "top_logprobs", "items"), {"type": "null"}, "the same"),
    ("Response", ("allOf", 2, "usage"), {"type": "null"}, "until it has ended; the specification's own examples have it"),
    ("ModelResponseProperties", ("user",), {"type": "null"}, "the same"),
    ("Embedding", ("embedding",), {"type": "string"}, 'encoding_format "base64"'),
)
# What we add, as vLLM does
ADDED = (
    ("CreateCompletionResponse", ("choices", "items", "finish_reason"), {"const": "abort"}, "ended by /v1/abort"),
    ("CreateChatCompletionResponse", ("choices", "items", "finish_reason"), {"const": "abort"}, "the same"),
    ("CreateChatCompletionStreamResponse", ("choices", "items", "finish_reason"), {"const": "abort"}, "the same"),
)


def schema(x):
    """x without what no validation needs; OpenAPI 3.0's nullable, of which 3.1 knows nothing but the file has many, as a type."""
    out = {k: {n: schema(v) for n, v in x[k].items()} if k == "properties" else [schema(v) for v in x[k]] if k in ("anyOf", "oneOf", "allOf", "prefixItems")
           else schema(x[k]) if isinstance(x[k], dict) else x[k] for k in KEEP if k in x}
    if "$ref" in out:
        out["$ref"] = "#/$defs/" + out["$ref"].rsplit("/", 1)[1]
    if {"type": "string"} in out.get("anyOf", ()):     # and names of OpenAI's own models
        out["anyOf"] = [a for a in out["anyOf"] if "enum" not in a]
    if out.pop("nullable", False):
        out = {"anyOf": [out, {"type": "null"}]}
    return out


def refs(x):
    for k, v in x.items() if isinstance(x, dict) else enumerate(x):
        if k == "$ref":
            yield v.rsplit("/", 1)[1]
        elif isinstance(v, (dict, list)):
            yield from refs(v)


def main(path):
    with open(path) as f:
        spec = yaml.load(f, Loader=yaml.CSafeLoader)
    source = spec["components"]["schemas"]

    def kinds(name):
        """the values that `type` may have in this schema; none: it is not told apart by it"""
        t = source[name].get("properties", {}).get("type", {})
        return t.get("enum") or ([t["const"]] if "const" in t else [])

    def prune(x):
        for k, v in x.items() if isinstance(x, dict) else enumerate(x):
            if k in ("anyOf", "oneOf"):
                x[k] = [a for a in v if not (of := kinds(a["$ref"].rsplit("/", 1)[1]) if "$ref" in a else []) or OURS & set(of) or
                        any(t.startswith(EVENTS) for t in of)]
            if isinstance(v, (dict, list)):
                prune(x[k])

    defs, todo = {}, [ERROR] + [n for pair in ROOTS.values() for n in pair if n]
    while todo:
        name = todo.pop()
        if name not in defs:
            defs[name] = schema(source[name])
            prune(defs[name])
            todo += refs(defs[name])
    for name, place, also, _ in ERRATA + ADDED:
        at, last = defs[name], None
        for step in place:
            at = at["properties"] if "properties" in at else at
            last, at = at, at[step]
        last[place[-1]] = {"anyOf": [at, also]}
    events = {t: n for a in defs["ResponseStreamEvent"]["anyOf"] for n in refs(a) for t in kinds(n)}
    out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "schemas.json")
    with open(out, "w") as f:
        f.write("{" + ",\n".join(f'"{k}": {json.dumps(v)}' for k, v in
                                 (("version", spec["info"]["version"]), ("paths", ROOTS), ("error", ERROR), ("events", events))) + ',\n"$defs": {\n')
        f.write(",\n".join(f'"{n}": {json.dumps(defs[n], separators=(",", ":"), sort_keys=True)}' for n in sorted(defs)) + "\n}}\n")
    print(f"{out}: {len(defs)} schemas of version {spec['info']['version']}, {os.path.getsize(out)} bytes")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("make_schemas: give the path of openai-openapi's openapi.yaml")
    main(sys.argv[1])
