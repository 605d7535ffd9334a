"""The openai package from PyPI, unchanged, sync and async: /v1/responses."""
import asyncio
import json

import openai
import pytest
from hermes import ASKED, SAID, SCHEMA, good, hermes  # noqa: F401

ASK = "What is the capital of France?"
SHOWN = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID}] * 4 + [{"role": "user", "content": ASKED}]
BOOK = {"type": "function", "name": "book", "description": "Books seats", "parameters": SCHEMA, "strict": True}


@pytest.fixture(scope="module")
def c(hermes):  # noqa: F811
    with openai.OpenAI(base_url=hermes + "/v1", api_key="secret", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(c):
    return c.models.list().data[0].id


def ask(c, model, /, **more):
    return c.responses.create(**{"model": model, "max_output_tokens": 16, "temperature": 0, "input": ASK, **more})


def plain(output):
    """What is the same whenever it is asked: all but the ids."""
    return [{k: v for k, v in item.to_dict().items() if k not in ("id", "call_id")} for item in output]


def events(c, model, /, **more):
    """All events of a stream, whose order and numbers are checked."""
    seen = list(ask(c, model, stream=True, **more))
    assert [e.sequence_number for e in seen] == list(range(len(seen)))
    assert [e.type for e in seen[:2]] == ["response.created", "response.in_progress"] and seen[0].response.status == "in_progress"
    open_item, text = None, ""
    for e in seen[2:-1]:
        if e.type == "response.output_item.added":
            assert open_item is None and e.item.status == "in_progress"
            open_item, text = e.item.id, ""
        elif e.type == "response.output_item.done":
            assert e.item.id == open_item and e.item == seen[-1].response.output[e.output_index]
            open_item = None
        else:
            assert e.item_id == open_item
            text += e.delta if e.type.endswith(".delta") else ""
            if e.type.endswith("_text.done") or e.type.endswith("arguments.done"):
                assert (e.text if e.type.endswith("text.done") else e.arguments) == text
    assert open_item is None
    return seen


def test_text(c, model):
    r = ask(c, model, instructions="You are brief.", metadata={"a": "b"}, store=True, user="u1")
    assert (r.object, r.model, r.instructions, r.metadata, r.max_output_tokens) == ("response", model, "You are brief.", {"a": "b"}, 16)
    assert r.id.startswith("resp_") and r.status in ("completed", "incomplete") and r.output_text and r.error is None
    assert r.usage.total_tokens == r.usage.input_tokens + r.usage.output_tokens and r.usage.output_tokens_details.reasoning_tokens == 0
    cut = ask(c, model, max_output_tokens=1)
    assert (cut.status, cut.incomplete_details.reason, cut.output[0].status) == ("incomplete", "max_output_tokens", "incomplete")
    parts = ask(c, model, input=[{"role": "user", "content": [{"type": "input_text", "text": ASK}]}])
    assert parts.output_text == ask(c, model).output_text


def test_text_streamed(c, model):
    want = ask(c, model)
    seen = events(c, model)
    assert [e.type.removeprefix("response.") for e in seen if not e.type.endswith("delta")] == [
        "created", "in_progress", "output_item.added", "content_part.added", "output_text.done", "content_part.done", "output_item.done",
        "completed" if want.status == "completed" else "incomplete"]
    assert plain(seen[-1].response.output) == plain(want.output) and seen[-1].response.usage.output_tokens == want.usage.output_tokens


def test_conversation(c, model):
    first = ask(c, model, max_output_tokens=64)
    turns = [{"role": "user", "content": ASK}] + first.output + [{"role": "user", "content": "And of Italy?"}]
    assert ask(c, model, input=turns, store=False).usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens


@pytest.mark.parametrize("choice", ["required", {"type": "function", "name": "book"},
                                    {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "book"}]}], ids=["required", "named", "allowed"])
def test_tools(c, model, choice):
    more = {"tools": [BOOK], "tool_choice": choice, "parallel_tool_calls": False, "max_output_tokens": 200}
    r = ask(c, model, **more)
    assert r.status == "completed" and [i.type for i in r.output] == ["function_call"] and r.output[0].name == "book"
    good(json.loads(r.output[0].arguments))
    seen = events(c, model, **more)
    assert plain(seen[-1].response.output) == plain(r.output) and {e.type for e in seen if "delta" in e.type} == {"response.function_call_arguments.delta"}
    turns = [{"role": "user", "content": ASK}] + r.output + [{"type": "function_call_output", "call_id": r.output[0].call_id, "output": "done"}]
    assert ask(c, model, input=turns, tools=[BOOK]).usage.output_tokens > 0


def test_schema(c, model):
    more = {"text": {"format": {"type": "json_schema", "name": "booking", "schema": SCHEMA, "strict": True}}, "max_output_tokens": 200}
    good(json.loads(ask(c, model, **more).output_text))
    with c.responses.stream(model=model, input=ASK, **more) as s:
        good(json.loads(s.get_final_response().output_text))


def test_thoughts(c, model):
    r = ask(c, model, input=SHOWN, max_output_tokens=64, reasoning={"effort": "low", "summary": "auto"})
    assert [i.type for i in r.output] == ["reasoning", "message"] and r.output[0].content[0].text == "It is cold there." and r.output_text == "Cold."
    assert r.usage.output_tokens > r.usage.output_tokens_details.reasoning_tokens > 0
    seen = events(c, model, input=SHOWN, max_output_tokens=64)
    assert plain(seen[-1].response.output) == plain(r.output) and "response.reasoning_text.delta" in {e.type for e in seen}
    assert ask(c, model, input=SHOWN + r.output + [{"role": "user", "content": ASKED}]).usage.output_tokens > 0


def test_logprobs(c, model):
    r = ask(c, model, top_logprobs=2, include=["message.output_text.logprobs"], max_output_tokens=4)
    rows = r.output[0].content[0].logprobs
    assert len(rows) == 4 and all(len(t.top_logprobs) == 2 for t in rows) and "".join(t.token for t in rows) == r.output_text
    seen = events(c, model, top_logprobs=2, max_output_tokens=4)
    assert [t.token for e in seen if e.type == "response.output_text.delta" for t in e.logprobs] == [t.token for t in rows]
    assert plain(seen[-1].response.output) == plain(r.output)


def test_stream_helper(c, model):
    want = ask(c, model)
    with c.responses.stream(model=model, input=ASK, temperature=0, max_output_tokens=16) as s:
        assert "".join(e.delta for e in s if e.type == "response.output_text.delta") == want.output_text


ERRORS = [
    ({"temperature": -1}, openai.BadRequestError, "temperature"),
    ({"max_output_tokens": 0}, openai.BadRequestError, "max_output_tokens"),
    ({"max_output_tokens": 100000}, openai.BadRequestError, "max_output_tokens"),
    ({"model": "none"}, openai.NotFoundError, "model"),
    ({"previous_response_id": "resp_1"}, openai.BadRequestError, "previous_response_id"),
    ({"conversation": "conv_1"}, openai.BadRequestError, "conversation"),
    ({"background": True}, openai.BadRequestError, "background"),
    ({"tools": [{"type": "web_search"}]}, openai.BadRequestError, "tools[0]"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, openai.BadRequestError, "input[0].content[0]"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "nothing"}}}}, openai.BadRequestError, "text.format"),
]


@pytest.mark.parametrize("more,kind,param", ERRORS, ids=range(len(ERRORS)))
def test_errors(c, model, more, kind, param):
    for stream in (False, True):
        with pytest.raises(kind) as e:
            ask(c, model, stream=stream, **more)
        assert e.value.param == param and e.value.type == "invalid_request_error" and param.split("[")[0] in e.value.message


def test_async(hermes, c, model):  # noqa: F811
    want = ask(c, model).output_text

    async def go():
        async with openai.AsyncOpenAI(base_url=hermes + "/v1", api_key="secret", max_retries=0) as a:
            text = ""
            async for e in await a.responses.create(model=model, input=ASK, temperature=0, max_output_tokens=16, stream=True):
                text += e.delta if e.type == "response.output_text.delta" else ""
            assert text == want == (await a.responses.create(model=model, input=ASK, temperature=0, max_output_tokens=16)).output_text
            return True
    assert asyncio.run(go())
