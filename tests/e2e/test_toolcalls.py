"""Calls of tools and thoughts through real daemons. SmolLM2 knows neither, but it copies what it saw itself say in the conversation; that is enough to see calls come
out whole and streamed. What each format looks like is tests/unit/test_toolcall.c's."""
import json
import os

import pytest
from suite import Suite

TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather now",
                                           "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Oslo"}}\n</tool_call>'


def shown(text, times=4):
    """A conversation in which the assistant always said this."""
    turns = [{"role": "user", "content": "Weather in Oslo?"}, {"role": "assistant", "content": text}]
    return turns * times + turns[:1]


@pytest.fixture(scope="module")
def s(real_model):
    with Suite("1p1d", real_model, router={"tool_parser": "hermes", "reasoning_parser": "think"}) as suite:
        yield suite


def ask(s, messages, **more):
    status, r = s.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 64, **more})
    assert status == 200, r
    return r["choices"][0]


def streamed(s, messages, **more):
    """The deltas put together, as a client does it."""
    message, finish = {}, None
    for chunk in s.stream("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 64, "stream": True, **more}):
        delta = chunk["choices"][0]["delta"]
        finish = chunk["choices"][0]["finish_reason"] or finish
        for key in ("content", "reasoning_content"):
            if delta.get(key):
                message[key] = message.get(key, "") + delta[key]
        for call in delta.get("tool_calls", []):
            calls = message.setdefault("tool_calls", [])
            if call["index"] == len(calls):
                calls.append({"id": call["id"], "name": call["function"]["name"], "arguments": ""})
            calls[call["index"]]["arguments"] += call["function"]["arguments"]
    return message, finish


def test_call(s):
    r = ask(s, shown(CALL), tools=TOOLS)
    call = r["message"]["tool_calls"][0]
    assert r["finish_reason"] == "tool_calls" and r["message"]["content"] is None
    assert call["type"] == "function" and call["function"]["name"] == "get_weather" and json.loads(call["function"]["arguments"]) == {"city": "Oslo"}
    message, finish = streamed(s, shown(CALL), tools=TOOLS)
    assert finish == "tool_calls" and "content" not in message
    assert [(c["name"], c["arguments"]) for c in message["tool_calls"]] == [("get_weather", call["function"]["arguments"])]
    assert ask(s, shown(CALL), tools=TOOLS, tool_choice="none")["message"]["content"] == CALL


def test_conversation_goes_on(s):
    """What was answered can be sent back, as clients do."""
    message = ask(s, shown(CALL), tools=TOOLS)["message"]
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "cold"}
    assert ask(s, shown(CALL) + [message, result], tools=TOOLS)["message"]["role"] == "assistant"


def test_thoughts(s):
    said = "<think>\nIt is cold there.\n</think>\n\nCold."
    r = ask(s, shown(said))["message"]
    assert (r["reasoning_content"], r["reasoning"], r["content"]) == ("It is cold there.", "It is cold there.", "Cold.")
    assert streamed(s, shown(said))[0] == {"reasoning_content": "It is cold there.", "content": "Cold."}
    assert ask(s, shown(said), separate_reasoning=False)["message"]["content"] == said


BOOK = {"type": "function", "function": {"name": "book", "parameters": {"type": "object", "additionalProperties": False, "required": ["seats", "class"], "properties": {
    "seats": {"type": "integer", "minimum": 1, "maximum": 9}, "class": {"enum": ["first", "second"]}, "note": {"type": "string", "maxLength": 12}}}}}
CITY = {"type": "function", "function": {"name": "get_weather", "parameters": {
    "type": "object", "additionalProperties": False, "required": ["city"], "properties": {"city": {"type": "string", "maxLength": 16}}}}}
MUST = [{"tools": [BOOK], "tool_choice": "required", "parallel_tool_calls": False},
        {"tools": [CITY, BOOK], "tool_choice": "required", "temperature": 1.0, "seed": 2},
        {"tools": [CITY, BOOK], "tool_choice": {"type": "function", "function": {"name": "book"}}}]

STORY = [{"role": "user", "content": "Tell me a story."}]


def good(asked, calls):
    """Calls of the tools, with arguments of their schemas."""
    assert 1 <= len(calls) <= 8
    for name, arguments in calls:
        a = json.loads(arguments)
        if name == "book":
            assert 1 <= a.pop("seats") <= 9 and a.pop("class") in ("first", "second") and len(a.pop("note", "")) <= 12 and a == {}
        else:
            assert name == "get_weather" and CITY in asked["tools"] and list(a) == ["city"] and len(a["city"]) <= 16


def calls_of(r):
    return [(c["function"]["name"], c["function"]["arguments"]) for c in r["message"].get("tool_calls", [])]


@pytest.fixture(scope="module")
def forced(real_model):
    """The answers in both arrangements: whole and streamed; streamed."""
    def stream(suite, asked):
        message, finish = streamed(suite, STORY, **asked, max_tokens=900)
        return [(c["name"], c["arguments"]) for c in message["tool_calls"]], finish
    own = {"router": {"tool_parser": "hermes", "reasoning_parser": "none"}}
    with Suite("1p1d", real_model, **own) as suite:
        answers = [(ask(suite, STORY, **asked, max_tokens=900), *stream(suite, asked)) for asked in MUST]
    with Suite("mixed", real_model, **own) as suite:
        return answers, [stream(suite, asked) for asked in MUST]


@pytest.mark.parametrize("n", range(len(MUST)))
def test_must_call(forced, n):
    r, told, finish = forced[0][n]
    calls = calls_of(r)
    want = "tool_calls" if MUST[n]["tool_choice"] == "required" else "stop"
    assert r["finish_reason"] == finish == want and r["message"]["content"] is None
    good(MUST[n], calls)
    assert told == calls
    if want == "stop" or n == 0:
        assert [name for name, _ in calls] == ["book"]


def test_must_call_is_the_same_everywhere(forced):
    assert [a[1:] for a in forced[0]] == forced[1]


def test_harmony(short_model):
    """The template shows the format, and its history is what the model sees; one call an answer. A form is that of the final message."""
    template = os.path.join(os.path.dirname(__file__), "..", "data", "chat", "templates", "own-harmony.jinja")
    user = {"role": "user", "content": "Tell me a story."}
    with Suite("1p1d", short_model, router={"chat_template": os.path.abspath(template)}) as suite:
        said = [user, {"role": "assistant", "content": "Once."}, user]
        r = ask(suite, said, max_tokens=900, guided_choice=["yes", "no"], logit_bias=no_thoughts(suite))
        assert r["message"]["content"] in ("yes", "no") and r["finish_reason"] == "stop", r
        for asked in MUST:
            r = ask(suite, said, **{**asked, "max_tokens": 900, "logit_bias": no_thoughts(suite)})
            good(asked, calls_of(r))
            assert len(calls_of(r)) == 1 and r["message"]["content"] is None
        message, _ = streamed(suite, said, **{**asked, "max_tokens": 900, "logit_bias": no_thoughts(suite)})
        assert [(c["name"], c["arguments"]) for c in message["tool_calls"]] == calls_of(r)
        result = {"role": "tool", "tool_call_id": r["message"]["tool_calls"][0]["id"], "content": "done"}
        assert ask(suite, said + [{**r["message"], "reasoning_content": "Hm.", "content": "So."}, result], tools=asked["tools"])["message"]["role"] == "assistant"


def no_thoughts(suite):
    """This model would think for ever: its tokens cannot begin the word analysis."""
    return {str(t): -100 for word in ("a", "an", "ana", "anal", "analy", "analys", "analysis")
            for t in suite.post("/tokenize", {"prompt": word, "add_special_tokens": False})[1]["tokens"][:1]}


def test_refused(s):
    bad = {"type": "function", "function": {"name": "bad", "parameters": {"type": "object", "properties": {"a": {"if": {}}}}}}
    for more, param, says in (({"tools": [CITY, bad], "tool_choice": "required"}, "tools", "tools[1].function.parameters: /properties/a/if"),
                              ({"tools": TOOLS, "tool_choice": "required", "response_format": {"type": "json_object"}}, "tool_choice", "bind both")):
        status, r = s.post("/v1/chat/completions", {"messages": shown("x"), **more})
        assert status == 400 and r["error"]["param"] == param and says in r["error"]["message"]


SUM = {"type": "function", "function": {"name": "add", "description": "Adds", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}}}


def user(text):
    return [{"role": "user", "content": text}]


def test_a_model_without_a_format(real_model):
    """auto finds none in its template: it is told of the tools, and what it writes has the generic form. What it says is SmolLM2's."""
    with Suite("1p1d", real_model) as s:
        r = ask(s, user("What is 2+3?"), tools=[*TOOLS, SUM])
        call = r["message"]["tool_calls"][0]["function"]
        assert r["finish_reason"] == "tool_calls" and (call["name"], json.loads(call["arguments"])) == ("add", {"a": 2, "b": 3})
        message, finish = streamed(s, user("What is 2+3?"), tools=[*TOOLS, SUM])
        assert finish == "tool_calls" and [(c["name"], c["arguments"]) for c in message["tool_calls"]] == [("add", call["arguments"])] and "content" not in message
        r = ask(s, user("What is the capital of France?"), tools=[*TOOLS, SUM])
        assert r["finish_reason"] == "stop" and r["message"]["content"].startswith("Paris")
        assert streamed(s, user("What is the capital of France?"), tools=[*TOOLS, SUM]) == ({"content": r["message"]["content"]}, "stop")
        for choice in ("required", {"type": "function", "function": {"name": "get_weather"}},
                       {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": TOOLS}}):
            calls = ask(s, user("Tell me a joke."), tools=[*TOOLS, SUM], tool_choice=choice)["message"]["tool_calls"]
            assert len(calls) == 1 and (choice == "required" or calls[0]["function"]["name"] == "get_weather")
        called = {"role": "assistant", "content": None, "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city":"Oslo"}'}}]}
        history = [*user("Weather in Oslo?"), called, {"role": "tool", "tool_call_id": "c1", "content": "18 degrees, sunny"}]
        assert "18" in ask(s, history, tools=TOOLS)["message"]["content"]
        assert s.post("/v1/responses", {"input": "What is 2+3?", "tools": [{"type": "function", **SUM["function"]}], "tool_choice": "required", "temperature": 0,
                                        "max_output_tokens": 64})[1]["output"][0]["name"] == "add"
        s.quiet()


def test_a_model_that_calls_nothing(real_model):
    with Suite("1p1d", real_model, router={"tool_parser": "none"}) as suite:
        status, r = suite.post("/v1/chat/completions", {"messages": shown("x"), "tools": TOOLS})
        assert status == 400 and r["error"]["param"] == "tools" and "tool_parser" in r["error"]["message"]


def test_a_form_that_is_too_long(real_model):
    """Definitions are written for each parameter that refers to them: a short request may ask for a form without end, and is refused."""
    def ask(s, values, parameters):
        schema = {"type": "object", "$defs": {"d": {"enum": [f"v{i}" for i in range(values)]}}, "properties": {f"p{i}": {"type": "array", "items": {"$ref": "#/$defs/d"}} for i in range(parameters)}}
        return s.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, "tool_choice": "required",
                                               "tools": [{"type": "function", "function": {"name": "f", "parameters": schema}}]})
    with Suite("mixed", real_model, router={"tool_parser": "glm"}) as s:
        assert ask(s, 20, 2)[0] == 200
        status, r = ask(s, 3000, 12)
        assert status == 400 and r["error"]["param"] == "tool_choice" and "the tools' schemas give has more than 131072 bytes" in r["error"]["message"], r
