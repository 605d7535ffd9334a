"""text_grammar.py - constrained output beside llguidance (the engine of guidance, used by vLLM, SGLang and llama.cpp): compiling common schemas, and masks per token of one answer
over the model's vocabulary.

Processor time, the best of several runs, one program after the other in each turn. Both get the same vocabulary, the same tokens of the answer, and compact JSON. "first": the first
time that a constraint is used, "again": by a later answer of the same form; llguidance begins anew with each answer. Its times include the calls from Python, about a microsecond.
"""
import json
import os
import subprocess
import tempfile
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OURS = os.path.join(ROOT, "build", "bench", "bench_grammar")
N = 5


def objects(required, **properties):
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


STRING, WHOLE = {"type": "string"}, {"type": "integer"}
PERSON = objects(["name", "age", "email", "tags"], name={"type": "string", "maxLength": 40}, age={"type": "integer", "minimum": 0, "maximum": 120},
                 email={"anyOf": [STRING, {"type": "null"}]}, tags={"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 8})
CALL = {"anyOf": [objects(["name", "arguments"], name={"const": "get_weather"}, arguments=objects(["city"], city=STRING, days={"type": "integer", "minimum": 1, "maximum": 14})),
                  objects(["name", "arguments"], name={"const": "search"}, arguments=objects(["query"], query=STRING, limit=WHOLE)),
                  objects(["name", "arguments"], name={"const": "send_mail"}, arguments=objects(["to", "text"], to={"type": "array", "items": STRING}, text=STRING))]}
TREE = {"$ref": "#/$defs/node", "$defs": {"node": objects(["value", "children"], value=WHOLE, children={"type": "array", "items": {"$ref": "#/$defs/node"}})}}
WIDE = objects([f"field_{i}" for i in range(0, 40, 2)], **{f"field_{i}": [STRING, WHOLE, {"type": "boolean"}, {"type": "array", "items": STRING}][i % 4] for i in range(40)})
COUNTED = objects(["title", "code", "notes", "lines"], title={"type": "string", "maxLength": 30}, code={"type": "string", "pattern": "^[a-z]{3,20}-[0-9]{1,4}$"},
                  notes={"type": "string", "minLength": 3, "maxLength": 60}, lines={"type": "array", "items": {"type": "string", "maxLength": 16}, "maxItems": 10})
CASES = {
    "person": (PERSON, {"name": "Ada Lovelace of London", "age": 36, "email": "ada@example.org", "tags": ["red", "blue"]}),
    "tool_call": (CALL, {"name": "search", "arguments": {"query": "the history of computing machines, in short", "limit": 20}}),
    "tree": (TREE, {"value": 1, "children": [{"value": 22, "children": []}, {"value": 333, "children": [{"value": 4, "children": []}]}]}),
    "counted": (COUNTED, {"title": "the engines of thought", "code": "engine-1843", "notes": "a short note, and some words", "lines": ["one thing", "another", "x"]}),
    "wide": (WIDE, {f"field_{i}": ["some text, of a few words", 7, True, ["a", "list"]][i % 4] for i in range(40)}),
}


def peer_tokenizer(model, llguidance):
    class Vocabulary:
        def __init__(self):
            lines = subprocess.run([OURS, "--vocab", model], check=True, capture_output=True, text=True).stdout.split("\n")[:-1]
            self.special_token_ids = [i for i, s in enumerate(lines) if s == "-"]
            self.tokens = [f"<|{i}|>".encode() if s == "-" else bytes.fromhex(s) for i, s in enumerate(lines)]
            self.eos_token_id = self.special_token_ids[0]
            self.bos_token_id = None
            self.by_bytes = {t: i for i, t in enumerate(self.tokens)}

        def __call__(self, text):
            return [self.by_bytes.get(bytes([b]), 0) for b in (text if isinstance(text, bytes) else text.encode())]

    return llguidance.LLTokenizer(llguidance.TokenizerWrapper(Vocabulary()), slices=llguidance.LLTokenizer.json_slices())


def peer_once(llguidance, tokenizer, schema, ids):
    begin = time.process_time()
    grammar = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides={"whitespace_flexible": False, "item_separator": ",", "key_separator": ":"})
    m = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
    compiled = time.process_time()
    for token in ids:
        m.compute_bitmask()
        assert m.consume_token(token), m.get_error()
    assert m.is_accepting(), m.get_error()
    m.compute_bitmask()
    return compiled - begin, (time.process_time() - compiled) / (len(ids) + 1)


def run(model, turns, say):
    try:
        import llguidance
    except ImportError:
        print("left out: no package llguidance")
        return
    tokenizer = peer_tokenizer(model, llguidance)
    print(f"{'us':12}{'compile':>10}{'peer':>10}{'first':>10}{'slowest':>10}{'again':>10}{'peer':>10}{'again x':>9}  (masks: per token; slowest: of the first ones)")
    for name, (schema, value) in CASES.items():
        best, peer = [1e9] * 4, [1e9] * 2
        with tempfile.TemporaryDirectory() as folder:
            files = [os.path.join(folder, "text"), os.path.join(folder, "answer")]
            for path, v in zip(files, (schema, value)):
                with open(path, "w", encoding="utf-8") as f:
                    json.dump(v, f, separators=(",", ":"))
            for _ in range(turns):
                out = subprocess.run([OURS, model, "json_schema", *files, str(N)], check=True, capture_output=True, text=True).stdout.split("\n")
                best = [min(a, float(b)) for a, b in zip(best, out[0].split())]
                ids = [int(i) for i in out[1].split()]
                for _ in range(N):
                    peer = [min(a, b) for a, b in zip(peer, peer_once(llguidance, tokenizer, schema, ids))]
        us = [x * 1e6 for x in best + peer]
        print(f"{name:12}{us[0]:10.1f}{us[4]:10.1f}{us[1]:10.1f}{us[3]:10.1f}{us[2]:10.2f}{us[5]:10.2f}{us[5] / us[2]:9.1f}  {len(ids)} tokens")
        for key, x in zip(("compile_us", "first_mask_us", "mask_us", "slowest_first_mask_us", "llguidance_compile_us", "llguidance_mask_us"), us):
            say(f"grammar_{name}_{key}", x)
