"""Constrained output: every answer has the form that was asked for, and is the same in every arrangement: mixed or split, with drafts or without, preempted, or gone on with on another
worker after a kill -9. On a model that knows nothing of the forms."""
import json
import re
import threading
import time

import pytest
from suite import SLOW, Suite, wait_for

PERSON = {"type": "object", "additionalProperties": False, "required": ["name", "age", "email", "tags", "size"], "properties": {
    "name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120},
    "email": {"anyOf": [{"type": "string", "format": "email"}, {"type": "null"}]},
    "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "minItems": 1, "maxItems": 4},
    "size": {"type": "object", "properties": {"unit": {"const": "cm"}, "of": {"type": "number", "minimum": 1, "exclusiveMaximum": 300}},
             "required": ["unit", "of"], "additionalProperties": False}}}
TREE = {"$ref": "#/$defs/node", "$defs": {"node": {"type": "object", "properties": {
    "value": {"type": "integer", "minimum": 1, "maximum": 9}, "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2}},
    "required": ["value", "children"], "additionalProperties": False}}}
WORDS = {"type": "array", "items": {"type": "string", "minLength": 3, "maxLength": 12}, "minItems": 12, "maxItems": 16}


def schema(s, strict=True):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": s, "strict": strict}}}


def chat(text, n=110, **more):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": n, "return_token_ids": True, "temperature": 0, **more}


ASKED = [chat("Describe a person as JSON.", **schema(PERSON)),
         chat("Describe a person as JSON.", **{**schema(PERSON), "temperature": 1.0, "seed": 5, "logprobs": True, "top_logprobs": 2}),
         chat("A tree, please.", **{**schema(TREE), "temperature": 1.0, "seed": 2}),
         chat("Name words.", **schema(WORDS, strict=False)),
         chat("Is the sky blue?", guided_choice=["yes", "no", "perhaps"]),
         chat("When was the war?", guided_regex=r"(19|20)\d{2}-(0[1-9]|1[0-2])(, about)?"),
         chat("When?", guided_regex=r"(19|20)\d{2}(, about)?", ignore_eos=True),
         chat("Is the sky blue?", **{"grammar": 'root ::= "(" (root | [a-z]+) ")"', "temperature": 1.0, "seed": 3}),
         chat("A number.", **{"response_format": {"type": "json_object", "schema": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99, "minimum": 10}},
                                                                                    "required": ["n"], "additionalProperties": False}}}),
         chat("An object.", **{"response_format": {"type": "json_object"}, "temperature": 0.8, "seed": 4})]


def check(asked, r):
    """What came has the form, if it came to an end."""
    c = r["choices"][0]
    text = c["message"]["content"]
    if c["finish_reason"] != "stop":
        assert c["finish_reason"] == "length" and ("response_format" in asked or "grammar" in asked), c
        return
    if "grammar" in asked:
        inner = text.strip("()")
        assert re.fullmatch("[a-z]+", inner) and text in ("(" * n + inner + ")" * n for n in range(1, 80)), text
        return
    if "guided_choice" in asked:
        assert text in asked["guided_choice"]
    elif "guided_regex" in asked:
        assert re.fullmatch(asked["guided_regex"], text), text
        assert not asked.get("ignore_eos") or text.endswith("about")      # it ends where nothing else is allowed
    else:
        value = json.loads(text)
        form = asked["response_format"].get("json_schema", asked["response_format"]).get("schema", {"type": "object"})
        try:
            import jsonschema
            jsonschema.Draft202012Validator(form).validate(value)
        except ImportError:
            assert isinstance(value, list if form.get("type") == "array" else dict)


def answer(s, asked):
    status, r = s.post("/v1/chat/completions", asked)
    assert status == 200, r
    check(asked, r)
    c = r["choices"][0]
    return c["token_ids"], c["finish_reason"], c["logprobs"]


def at_once(s, asked):
    out = [None] * len(asked)
    threads = [threading.Thread(target=lambda i=i: out.__setitem__(i, answer(s, asked[i]))) for i in range(len(asked))]
    for t in threads:
        t.start()
    for t in threads:
        t.join(240 * SLOW)
    return out


@pytest.fixture(scope="module")
def want(short_model):
    with Suite("mixed", short_model) as s:
        out = [answer(s, b) for b in ASKED]
        s.quiet()
    assert sum(finish == "stop" for _, finish, _ in out) >= 5, out
    return out


def test_split_and_drafts_change_nothing(short_model, want):
    with Suite("1p1d", short_model, worker={"speculative": "ngram"}) as s:
        for _ in range(5):                   # whether a draft is worth its rows depends on what rows seem to cost
            assert at_once(s, ASKED) == want
            if s.ctl("decode-1", "status")["drafts"]:
                break
        assert s.ctl("decode-1", "status")["drafts"] > 0
        s.quiet()


def test_preempted(short_model, want):
    """Four long answers at once where there is room for two."""
    with Suite("1p1d", short_model, decode={"kv_blocks": 8}, worker={"block_tokens": 32}) as s:
        for _ in range(20):      # until enough of them are there at once
            assert at_once(s, ASKED[:4]) == want[:4]
            if s.ctl("decode-1", "status")["preemptions"] > 0:
                break
        assert s.ctl("decode-1", "status")["preemptions"] > 0
        s.quiet()


def test_decode_killed_midway(short_model, want):
    with Suite("1p2d", short_model) as s:
        seen, box = [], {}

        def read():
            try:
                for e in s.stream("/v1/chat/completions", ASKED[3]):
                    for c in e["choices"]:
                        seen.extend(c.get("token_ids") or [])
            except Exception as e:  # noqa: BLE001
                box["error"] = e
        t = threading.Thread(target=read)
        t.start()
        end = time.time() + 60 * SLOW
        while len(seen) < 15 and t.is_alive() and time.time() < end:
            time.sleep(0.002)
        victim = next(n for n in ("decode-1", "decode-2") if "event=joined" in s.log(n))
        s.kill(victim)
        t.join(120 * SLOW)
        assert not box and seen == want[3][0], (box, seen)


REFUSED = [
    (schema({"type": "object", "properties": {"a": {"if": {}}}}, strict=False), "response_format", "/properties/a/if: this keyword is not supported"),
    (schema({"type": "object", "properties": {"a": {}}}), "response_format", "strict"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "json_schema.schema must be an object"),
    ({"response_format": {"type": "grammar"}}, "response_format", "must be text, json_object or json_schema"),
    ({"response_format": 5}, "response_format", "got 5"),
    ({"guided_regex": "a(?=b)"}, "guided_regex", "lookahead and lookbehind are not supported at offset 1"),
    ({"guided_regex": 7}, "guided_regex", "must be a regular expression"),
    ({"guided_regex": "((((((((((a{9}){9}){9}){9}){9}){9}b){8}){8}){8}|x{8}){8}.{10000}){8}(\\w{9}|x{8}){10000}(a|bc|de){10000}" * 8}, "guided_regex", "too"),
    ({"guided_choice": []}, None, None),
    ({"guided_choice": ["a", 1]}, "guided_choice", "must be a string"),
    ({"guided_json": {"$ref": "#"}}, "guided_json", "infinite recursion"),
    ({"guided_grammar": "root ::= x"}, "guided_grammar", "the rule x is used in line 1, and not defined"),
    ({"grammar": 7}, "grammar", "must be a grammar in GBNF"),
    ({"structured_outputs": {"grammar": "roo ::= \"x\""}}, "structured_outputs", "has no rule root"),
    ({"json_schema": 7}, "json_schema", "must be a JSON schema"),
    ({"grammar": "root ::= \"a\"", "json_schema": {"type": "null"}}, "grammar", "given twice"),
    ({"response_format": {"type": "json_object", "schema": 7}}, "response_format", "must be a JSON schema"),
    ({"structured_outputs": {"lark": "x"}}, "structured_outputs", "structured_outputs.lark is not supported"),
    ({"structured_outputs": {"choice": ["a"]}, "guided_regex": "a"}, "structured_outputs", "given twice"),
]


def test_refused(short_model):
    with Suite("mixed", short_model) as s:
        for more, param, says in REFUSED:
            status, r = s.post("/v1/completions", {"prompt": "x", "max_tokens": 2, **more})
            if param is None:
                assert status == 200, r
                continue
            assert status == 400 and r["error"]["param"] == param and says in r["error"]["message"], (more, r)
        status, r = s.post("/v1/completions", {"prompt": "x", "max_tokens": 8, "structured_outputs": {"choice": ["abc"]}})
        assert status == 200 and r["choices"][0]["text"] == "abc", r


IGNORED = {"type": "object", "properties": {"a": {"type": "string", "format": "iri", "maxLength": 9, "title": "A", "x-order": 1}, "b": {"format": "iri", "type": ["integer", "null"], "widget": "slider"}},
           "required": ["b"], "additionalProperties": False, "examples": [{"b": 1}], "discriminator": {"propertyName": "b"}}
WARNED = ['format "iri" of {} constrains nothing on this server', "widget of {} constrains nothing on this server"]
TOOL = {"type": "function", "function": {"name": "f", "parameters": IGNORED}}


def test_what_constrains_nothing_is_told(short_model):
    """Once each, for a form as for tools, if the answer is bound by it; and refused where unknown parameters are."""
    asked = [({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": IGNORED}}}, "response_format", "the answer's schema"),
             ({"tools": [TOOL], "tool_choice": "required"}, "tools", "the schema of tools[0]")]
    with Suite("mixed", short_model, router={"tool_parser": "hermes"}) as s:
        for more, _, where in asked:
            status, r = s.post("/v1/chat/completions", chat("An object.", 60, **more))
            assert status == 200 and sorted(r["warnings"]) == [w.format(where) for w in WARNED], r
        status, r = s.post("/v1/chat/completions", chat("An object.", 60, **schema(PERSON), tools=[TOOL], tool_choice="none"))
        assert status == 200 and "warnings" not in r, r
    with Suite("mixed", short_model, router={"tool_parser": "hermes", "unknown_parameters": "refuse"}) as s:
        for more, param, where in asked:
            status, r = s.post("/v1/chat/completions", chat("An object.", 60, **more))
            assert status == 400 and r["error"]["param"] == param and r["error"]["message"] in [w.format(where) for w in WARNED], r


def test_names_of_other_servers(short_model):
    """SGLang's constrain, too; what would constrain elsewhere and cannot here is refused, not left out."""
    with Suite("mixed", short_model) as s:
        for path, body in (("/v1/chat/completions", chat("Is the sky blue?")), ("/v1/completions", {"prompt": "The sky is", "max_tokens": 20})):
            for form in ({"regex": "(Yes|No)"}, {"ebnf": 'root ::= "Yes" | "No"'}):
                status, r = s.post(path, {**body, **form})
                c = r["choices"][0]
                assert status == 200 and (c["message"]["content"] if "message" in c else c["text"]) in ("Yes", "No") and "warnings" not in r
            for name, value in (("structural_tag", {"type": "structural_tag"}), ("guided_whitespace_pattern", "[ ]?"), ("custom_logit_processor", "x"), ("logits_processors", ["x"])):
                status, r = s.post(path, {**body, name: value})
                assert status == 400 and r["error"]["param"] == name and "is not supported by this server" in r["error"]["message"]


def test_ids_of_control_tokens(short_model):
    """Pushed by their bias, ids 1 (<|im_start|>) and 2 (<|im_end|>, the end) come only where they may. The same text as another kind is another constraint."""
    with Suite("mixed", short_model) as s:
        def ask(**more):
            status, r = s.post("/v1/completions", {"prompt": "x", "max_tokens": 24, "temperature": 0, "return_token_ids": True, **more})
            assert status == 200, r
            return r["choices"][0]
        assert ask(guided_regex="a(b(cd)?)?", logit_bias={"2": 100})["text"] == "a"
        assert ask(guided_regex="a(b(cd)?)?", logit_bias={"2": 100}, ignore_eos=True)["text"] == "abcd"
        c = ask(guided_regex=r"<\|im_start\|>!", logit_bias={"1": 100})
        assert c["text"] == "<|im_start|>!" and 1 not in c["token_ids"], c
        assert ask(guided_choice=["abc"])["text"] == "abc"
        assert ask(guided_regex='["abc"]')["text"] in list('abc"')


def test_no_vocabulary():
    with Suite("mixed", sim="small") as s:
        status, r = s.post("/v1/completions", {"prompt": [1, 2, 3], "guided_regex": "a"})
        assert status == 400 and "vocabulary" in r["error"]["message"], r


# Each mask is computed anew, as the last letters make a difference: some milliseconds, or more than one may take.
EXPENSIVE = {
    "empty rules": {"grammar": "root ::= [^\\n]* [a-m] x x x x x x x x\nx ::= e7 [^\\n]\ne0 ::= \"~~\"?\n" + "".join(f"e{i} ::= e{i - 1} e{i - 1}\n" for i in range(1, 8))},
    "empty loops": {"guided_regex": r"(?:.*[a-m](?:.(?:(?:)*){64}){7})?(?:.*[k-z](?:.(?:x{0}){64}){6})?"},
}


def test_neighbours_of_an_expensive_constraint(short_model):
    """Beside it, alone and 64 times, two streams go on; it ends or is refused by name, and costs nobody an attempt."""
    with Suite("2mixed", short_model) as s:
        for name, form in EXPENSIVE.items():
            for n in (1, 64):
                box, seen, stop = {}, [0, 0], threading.Event()

                def ask(form=form, n=n, box=box):
                    box["status"], box["r"] = s.post("/v1/completions", {"prompt": "Tell me", "max_tokens": 24, "n": n, "temperature": 1.0, "seed": 1, **form}, timeout=200 * SLOW)

                def read(i, seen=seen, stop=stop):
                    for _ in s.stream("/v1/completions", {"prompt": f"Once {i}", "max_tokens": 4000, "ignore_eos": True}, timeout=200 * SLOW):
                        seen[i] += 1
                        if stop.is_set():
                            return
                threads = [threading.Thread(target=read, args=(i,)) for i in range(2)] + [threading.Thread(target=ask)]
                for t in threads:
                    if t is threads[2]:
                        wait_for(lambda seen=seen: all(seen), "the streams do not begin")
                    t.start()
                gaps = []
                while threads[2].is_alive() and threads[0].is_alive():
                    before = list(seen)
                    time.sleep(2 * SLOW)
                    gaps.append([b - a for a, b in zip(before, seen)])
                threads[2].join()
                stop.set()
                for t in threads:
                    t.join()
                assert all(min(g) > 0 for g in gaps[:-1]), (name, n, gaps)
                assert box["status"] == 200 or box["status"] == 400 and "too expensive" in box["r"]["error"]["message"], (name, n, box)
        log = s.log("router")
        assert not [line for line in log.splitlines() if "event=attempt_lost" in line and "too expensive" not in line]
        assert "event=breaker_opened" not in log
