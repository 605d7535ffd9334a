"""The anthropic package from PyPI, unchanged, sync and async: /v1/messages."""
import asyncio
import json

import anthropic
import pytest
from hermes import ASKED, SAID, SCHEMA, good, hermes  # noqa: F401

ASK = [{"role": "user", "content": "What is the capital of France?"}]
SHOWN = [{"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID}] * 4 + [{"role": "user", "content": ASKED}]
BOOK = {"name": "book", "description": "Books seats", "input_schema": SCHEMA}


@pytest.fixture(scope="module")
def c(hermes):  # noqa: F811
    with anthropic.Anthropic(base_url=hermes, api_key="secret", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(c):
    return c.models.list().data[0].id


GREEDY = {"temperature": 0}    # newer versions of the package have no argument for it


def ask(c, model, /, **more):
    return c.messages.create(**{"model": model, "max_tokens": 16, "extra_body": GREEDY, "messages": ASK, **more})


def test_text(c, model):
    m = ask(c, model, system=[{"type": "text", "text": "You are brief.", "cache_control": {"type": "ephemeral"}}], metadata={"user_id": "u1"})
    assert (m.type, m.role, m.model) == ("message", "assistant", model) and m.id.startswith("msg_") and m._request_id == m.id
    assert [b.type for b in m.content] == ["text"] and m.content[0].text
    assert m.stop_reason in ("end_turn", "max_tokens") and m.stop_sequence is None and m.usage.output_tokens <= 16
    again = ask(c, model, system="You are brief.")
    assert again.content[0].text == m.content[0].text and again.usage.cache_creation_input_tokens == 0
    assert again.usage.input_tokens + again.usage.cache_read_input_tokens == m.usage.input_tokens + m.usage.cache_read_input_tokens
    assert ask(c, model, max_tokens=1).stop_reason == "max_tokens"


def test_text_streamed(c, model):
    want = ask(c, model)
    with c.messages.stream(model=model, max_tokens=16, extra_body=GREEDY, messages=ASK) as s:
        kinds = [e.type for e in s if e.type not in ("text", "content_block_delta")]
        got = s.get_final_message()
    assert kinds == ["message_start", "content_block_start", "content_block_stop", "message_delta", "message_stop"]
    assert (got.content[0].text, got.stop_reason, got.usage.output_tokens) == (want.content[0].text, want.stop_reason, want.usage.output_tokens)


def test_stop_sequences(c, model):
    text = ask(c, model).content[0].text
    m = ask(c, model, stop_sequences=[text[4:6], "never"])
    assert (m.stop_reason, m.stop_sequence, m.content[0].text) == ("stop_sequence", text[4:6], text[:text.index(text[4:6])])


def test_the_answer_is_begun(c, model):
    m = ask(c, model, messages=ASK + [{"role": "assistant", "content": "The capital of France is the city of"}], max_tokens=4)
    assert "Paris" in m.content[0].text


@pytest.mark.parametrize("choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "book"}], ids=["any", "tool"])
def test_tools(c, model, choice):
    m = ask(c, model, tools=[BOOK], tool_choice=choice, max_tokens=200)
    assert m.stop_reason == "tool_use" and [b.type for b in m.content] == ["tool_use"] and m.content[0].name == "book"
    good(dict(m.content[0].input))
    with c.messages.stream(model=model, max_tokens=200, extra_body=GREEDY, messages=ASK, tools=[BOOK], tool_choice=choice) as s:
        parts = "".join(e.partial_json for e in s if e.type == "input_json")
        got = s.get_final_message()
    assert json.loads(parts) == got.content[0].input == m.content[0].input and got.stop_reason == "tool_use"
    turn = [{"role": "assistant", "content": m.content}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": m.content[0].id, "content": [{"type": "text", "text": "done"}]}, {"type": "text", "text": "And?"}]}]
    assert ask(c, model, messages=ASK + turn, tools=[BOOK]).usage.output_tokens > 0


def test_a_call_that_is_cut_off(c, model):
    m = ask(c, model, tools=[BOOK], tool_choice={"type": "any"}, max_tokens=38)
    assert m.stop_reason == "max_tokens" and [b.input for b in m.content] == [{}]


def test_schema(c, model):
    form = {"format": {"type": "json_schema", "schema": SCHEMA}}
    good(json.loads(ask(c, model, max_tokens=200, output_config=form).content[0].text))
    with c.messages.stream(model=model, max_tokens=200, messages=ASK, output_config=form) as s:
        good(json.loads(s.get_final_text()))


def test_thinking(c, model):
    m = ask(c, model, messages=SHOWN, thinking={"type": "enabled", "budget_tokens": 1024}, max_tokens=64)
    assert [(b.type, getattr(b, "thinking", None) or b.text) for b in m.content] == [("thinking", "It is cold there."), ("text", "Cold.")]
    with c.messages.stream(model=model, max_tokens=64, extra_body=GREEDY, messages=SHOWN) as s:
        got = s.get_final_message()
    assert [b.to_dict() for b in got.content if b.type == "text"] == [b.to_dict() for b in m.content if b.type == "text"]
    assert got.content[0].thinking == m.content[0].thinking and got.content[0].signature
    turns = SHOWN + [{"role": "assistant", "content": m.content}, {"role": "user", "content": ASKED}]
    assert ask(c, model, messages=turns).usage.output_tokens > 0
    assert [b.type for b in ask(c, model, messages=SHOWN, thinking={"type": "adaptive", "display": "omitted"}, max_tokens=64).content] == ["text"]


def test_count_tokens(c, model):
    n = c.messages.count_tokens(model=model, messages=ASK, system="You are brief.").input_tokens
    m = ask(c, model, system="You are brief.")
    assert n == m.usage.input_tokens + m.usage.cache_read_input_tokens
    assert c.messages.count_tokens(model=model, messages=ASK * 2000).input_tokens > 8192


ERRORS = [
    ({"extra_body": {"temperature": -1}}, anthropic.BadRequestError, "temperature must be"),
    ({"max_tokens": 0}, anthropic.BadRequestError, "max_tokens must be"),
    ({"max_tokens": 20000}, anthropic.BadRequestError, "maximum context length"),
    ({"model": "none"}, anthropic.NotFoundError, "the model"),
    ({"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "x"}}]}]}, anthropic.BadRequestError,
     "messages[0].content[0] has the type \"image\""),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, anthropic.BadRequestError, "web_search_20250305"),
    ({"stop_sequences": [""]}, anthropic.BadRequestError, "stop_sequences[0]"),
    ({"messages": [{"role": "user", "content": "x" * 5_000_000}]}, anthropic.RequestTooLargeError, "max_body_bytes"),
]


@pytest.mark.parametrize("more,kind,says", ERRORS, ids=range(len(ERRORS)))
def test_errors(c, model, more, kind, says):
    for stream in (False, True):
        with pytest.raises(kind) as e:
            ask(c, model, stream=stream, **more)
        assert e.value.body["type"] == "error" and says in e.value.body["error"]["message"]


def test_keys(hermes, model):  # noqa: F811
    with pytest.raises(anthropic.AuthenticationError) as e:
        ask(anthropic.Anthropic(base_url=hermes, api_key="wrong", max_retries=0), model)
    assert e.value.body["error"]["type"] == "authentication_error"
    assert ask(anthropic.Anthropic(base_url=hermes, auth_token="secret", api_key=None, max_retries=0), model).content


def test_async(hermes, c, model):  # noqa: F811
    want = ask(c, model).content[0].text

    async def go():
        async with anthropic.AsyncAnthropic(base_url=hermes, api_key="secret", max_retries=0) as a:
            async with a.messages.stream(model=model, max_tokens=16, extra_body=GREEDY, messages=ASK) as s:
                assert "".join([t async for t in s.text_stream]) == want
            m = await a.messages.create(model=model, max_tokens=16, extra_body=GREEDY, messages=ASK)
            assert m.content[0].text == want
            return True
    assert asyncio.run(go())
