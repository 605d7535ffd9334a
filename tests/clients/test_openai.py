"""The openai package from PyPI, unchanged, sync and async."""
import asyncio
import json
import typing

import openai
import pydantic
import pytest

from conftest import KEY, ONCE

CHAT = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "What is the capital of France?"}]
PROMPT = "The capital of France is"


@pytest.fixture(scope="module")
def c(url):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(c):
    return c.models.list().data[0].id


def run(url, fn):
    async def go():
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await fn(client)
    return asyncio.run(go())


# --- models ---------------------------------------------------------------------------------------------------------------

def test_models(c, model):
    page = c.models.list()
    assert page.object == "list" and [m.object for m in page.data] == ["model"]
    assert c.models.retrieve(model).id == model
    with pytest.raises(openai.NotFoundError) as e:
        c.models.retrieve("no-such-model")
    assert e.value.code == "model_not_found" and e.value.param == "model"


# --- completions ------------------------------------------------------------------------------------------------------------

def test_completion(c, model):
    r = c.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0)
    assert r.object == "text_completion" and r.id.startswith("cmpl-") and r.model == model
    assert "Paris" in r.choices[0].text and r.choices[0].finish_reason == "length"
    assert (r.usage.prompt_tokens, r.usage.completion_tokens, r.usage.total_tokens) == (5, 8, 13)


def test_completion_stream_with_usage(c, model):
    want = c.completions.create(model=model, prompt=PROMPT, max_tokens=12, temperature=0).choices[0].text
    parts = list(c.completions.create(model=model, prompt=PROMPT, max_tokens=12, temperature=0, stream=True, stream_options={"include_usage": True}))
    assert "".join(p.choices[0].text for p in parts[:-1]) == want
    assert parts[-1].choices == [] and parts[-1].usage.completion_tokens == 12
    assert [p.choices[0].finish_reason for p in parts[:-1]] == [None] * (len(parts) - 2) + ["length"]


def test_lists_of_prompts(c, model):
    a, b = ["The capital of France is", "One, two, three,"], [[504, 3575, 282, 4649, 314], [42]]
    r = c.completions.create(model=model, prompt=a, max_tokens=4, temperature=0, n=2)
    assert [x.index for x in r.choices] == [0, 1, 2, 3] and r.choices[0].text == r.choices[1].text != r.choices[2].text
    ids = c.completions.create(model=model, prompt=b, max_tokens=4, temperature=0)
    assert ids.choices[0].text == r.choices[0].text and len(ids.choices) == 2
    one = c.completions.create(model=model, prompt=b[0], max_tokens=4, temperature=0)
    assert one.choices[0].text == r.choices[0].text
    got = {}
    for p in c.completions.create(model=model, prompt=a, max_tokens=4, temperature=0, stream=True):
        for x in p.choices:
            got[x.index] = got.get(x.index, "") + x.text
    assert got == {0: r.choices[0].text, 1: r.choices[2].text}


def test_completion_logprobs_and_echo(c, model):
    r = c.completions.create(model=model, prompt=PROMPT, max_tokens=4, temperature=0, logprobs=3, echo=True)
    lp = r.choices[0].logprobs
    assert r.choices[0].text.startswith(PROMPT) and "".join(lp.tokens) == r.choices[0].text
    assert lp.token_logprobs[0] is None and all(v <= 0 for v in lp.token_logprobs[1:])
    assert all(3 <= len(t) <= 4 for t in lp.top_logprobs[1:]) and lp.text_offset[:3] == [0, 3, 11]


def test_seed_and_n(c, model):
    def go(seed, n=1):
        return [x.text for x in c.completions.create(model=model, prompt="Once", max_tokens=8, temperature=1, seed=seed, n=n).choices]
    assert go(7) == go(7) and go(7, 2) == go(7) + go(8) and go(7) != go(8)


def test_stop(c, model):
    r = c.completions.create(model=model, prompt=PROMPT, max_tokens=16, temperature=0, stop=["ris", "never"])
    assert r.choices[0].text == " Pa" and r.choices[0].finish_reason == "stop"
    parts = c.completions.create(model=model, prompt=PROMPT, max_tokens=16, temperature=0, stop="ris", stream=True)
    assert "".join(p.choices[0].text for p in parts) == " Pa"


def test_vllm_extras(c, model):
    r = c.completions.create(model=model, prompt=PROMPT, max_tokens=4, temperature=0,
                             extra_body={"return_token_ids": True, "ignore_eos": True, "top_k": 5, "min_p": 0.01})
    assert r.choices[0].prompt_token_ids == [504, 3575, 282, 4649, 314] and len(r.choices[0].token_ids) == 4


# --- chat ---------------------------------------------------------------------------------------------------------------------

def test_chat(c, model):
    r = c.chat.completions.create(model=model, messages=CHAT, max_tokens=16, temperature=0)
    assert r.object == "chat.completion" and r.id.startswith("chatcmpl-")
    assert r.choices[0].message.role == "assistant" and r.choices[0].message.content
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    raw = c.chat.completions.with_raw_response.create(model=model, messages=CHAT, max_tokens=2)
    assert raw.headers["x-request-id"] == raw.parse().id


def test_chat_stream(c, model):
    want = c.chat.completions.create(model=model, messages=CHAT, max_completion_tokens=16, temperature=0)
    parts = list(c.chat.completions.create(model=model, messages=CHAT, max_completion_tokens=16, temperature=0, stream=True,
                                           stream_options={"include_usage": True}))
    assert parts[0].choices[0].delta.role == "assistant" and parts[-1].usage == want.usage
    assert "".join(p.choices[0].delta.content or "" for p in parts[:-1]) == want.choices[0].message.content
    assert parts[-2].choices[0].finish_reason == want.choices[0].finish_reason


def test_chat_logprobs(c, model):
    r = c.chat.completions.create(model=model, messages=CHAT, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2)
    lp = r.choices[0].logprobs.content
    assert len(lp) == r.usage.completion_tokens and all(len(t.top_logprobs) == 2 for t in lp)
    assert all(t.logprob <= 0 and bytes(t.bytes).decode(errors="replace") == t.token for t in lp)
    parts = list(c.chat.completions.create(model=model, messages=CHAT, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2, stream=True))
    got = [t for p in parts for t in (p.choices[0].logprobs.content if p.choices[0].logprobs else [])]
    assert [t.token for t in got] == [t.token for t in lp]
    none = c.chat.completions.create(model=model, messages=CHAT, max_tokens=2, temperature=0)
    assert none.choices[0].logprobs is None


def test_chat_n_stop_seed(c, model):
    r = c.chat.completions.create(model=model, messages=CHAT, max_tokens=6, temperature=1, n=3, seed=11)
    assert [x.index for x in r.choices] == [0, 1, 2]
    again = c.chat.completions.create(model=model, messages=CHAT, max_tokens=6, temperature=1, n=3, seed=11)
    assert [x.message.content for x in again.choices] == [x.message.content for x in r.choices]
    text = r.choices[0].message.content
    cut = c.chat.completions.create(model=model, messages=CHAT, max_tokens=6, temperature=1, seed=11, stop=text[2:4])
    assert cut.choices[0].message.content == text[:text.index(text[2:4])] and cut.choices[0].finish_reason == "stop"


def test_stream_helper_and_early_close(c, model):
    want = c.chat.completions.create(model=model, messages=CHAT, max_tokens=8, temperature=0).choices[0].message.content
    with c.chat.completions.stream(model=model, messages=CHAT, max_tokens=8, temperature=0) as stream:
        assert "".join(e.delta for e in stream if e.type == "content.delta") == want
    for part in c.completions.create(model=model, prompt="Once", max_tokens=500, stream=True, extra_body={"ignore_eos": True}):
        break   # the client leaves; the fixture checks that nothing stays held


# --- errors -----------------------------------------------------------------------------------------------------------------------

ERRORS = [
    ({"prompt": PROMPT, "temperature": -1}, openai.BadRequestError, "temperature", None),
    ({"prompt": PROMPT, "max_tokens": 100000}, openai.BadRequestError, "max_tokens", "context_length_exceeded"),
    ({"prompt": "word " * 20000}, openai.BadRequestError, "prompt", "context_length_exceeded"),
    ({"prompt": [99999999]}, openai.BadRequestError, "prompt", None),
    ({"prompt": PROMPT, "logit_bias": {"5": 101}}, openai.BadRequestError, "logit_bias", None),
    ({"prompt": PROMPT, "model": "no-such-model"}, openai.NotFoundError, "model", "model_not_found"),
]


@pytest.mark.parametrize("body,kind,param,code", ERRORS, ids=range(len(ERRORS)))
def test_errors(c, model, body, kind, param, code):
    with pytest.raises(kind) as e:
        c.completions.create(**{"model": model, **body})
    assert e.value.param == param and e.value.code == code and e.value.type == "invalid_request_error"
    with pytest.raises(kind):
        list(c.completions.create(**{"model": model, "stream": True, **body}))


def test_chat_errors(c, model):
    with pytest.raises(openai.BadRequestError) as e:
        c.chat.completions.create(model=model, messages=[{"role": "user", "content": None}])
    assert "messages[0].content" in e.value.message


# --- async ------------------------------------------------------------------------------------------------------------------------

def test_async(url, c, model):
    want = c.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0).choices[0].text

    async def go(a):
        assert (await a.models.list()).data[0].id == model
        whole, chat = await asyncio.gather(a.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0),
                                           a.chat.completions.create(model=model, messages=CHAT, max_tokens=8, temperature=0))
        assert whole.choices[0].text == want and chat.choices[0].message.content
        text = ""
        async for p in await a.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0, stream=True):
            text += p.choices[0].text
        assert text == want
        with pytest.raises(openai.NotFoundError):
            await a.completions.create(model="no-such-model", prompt="x")
        return True
    assert run(url, go)


def test_async_many_at_once(url, c, model):
    async def one(a, i):
        text = ""
        async for p in await a.completions.create(model=model, prompt=f"{i}:", max_tokens=8, temperature=0, stream=True):
            text += p.choices[0].text
        return text

    async def go(a):
        return await asyncio.gather(*[one(a, i) for i in range(16)])
    got = run(url, go)
    assert got[3] == c.completions.create(model=model, prompt="3:", max_tokens=8, temperature=0).choices[0].text


def test_async_cancel(url, model):
    async def go(a):
        task = asyncio.create_task(a.completions.create(model=model, prompt="Once", max_tokens=500, extra_body={"ignore_eos": True}))
        await asyncio.sleep(0.3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return (await a.completions.create(model=model, prompt=PROMPT, max_tokens=1)).choices[0].text
    assert run(url, go)


# --- other ways to the server -------------------------------------------------------------------------------------------------

TOOLS = [{"type": "function", "function": {"name": name, "parameters": {
    "type": "object", "additionalProperties": False, "required": ["city"], "properties": {"city": {"type": "string", "maxLength": 12}}}}} for name in ("weather", "time")]


class Leg(pydantic.BaseModel):
    to: str = pydantic.Field(max_length=12)
    seat: typing.Literal["window", "aisle"]


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "time"}}], ids=["required", "named"])
def test_tools(c, model, choice):
    args = {"model": model, "messages": CHAT, "tools": TOOLS, "tool_choice": choice, "parallel_tool_calls": False, "temperature": 0, "max_tokens": 64}
    call = c.chat.completions.create(**args).choices[0].message.tool_calls[0]
    assert call.function.name in ("weather", "time") and set(json.loads(call.function.arguments)) == {"city"}
    with c.chat.completions.stream(**args) as stream:
        got = stream.get_final_completion().choices[0].message.tool_calls
    assert [(x.function.name, x.function.arguments) for x in got] == [(call.function.name, call.function.arguments)]


def test_parse(c, model):
    r = c.chat.completions.parse(model=model, messages=CHAT, response_format=Leg, temperature=0, max_tokens=60)
    assert isinstance(r.choices[0].message.parsed, Leg)
    with pytest.raises(openai.LengthFinishReasonError):
        c.chat.completions.parse(model=model, messages=CHAT, response_format=Leg, max_tokens=2)
    tool = openai.pydantic_function_tool(Leg)
    r = c.chat.completions.parse(model=model, messages=CHAT, tools=[tool], tool_choice={"type": "function", "function": {"name": "Leg"}}, max_tokens=60)
    assert isinstance(r.choices[0].message.tool_calls[0].function.parsed_arguments, Leg)


def test_keys_and_limits(keyed, model):
    with openai.OpenAI(base_url=keyed + "/v1", api_key="wrong", max_retries=0) as c, pytest.raises(openai.AuthenticationError) as e:
        c.models.list()
    assert e.value.status_code == 401
    with openai.OpenAI(base_url=keyed + "/v1", api_key=KEY) as c:
        assert c.chat.completions.create(model=model, messages=CHAT, max_tokens=2).choices
    with openai.OpenAI(base_url=keyed + "/v1", api_key=ONCE, max_retries=0) as c, pytest.raises(openai.RateLimitError) as e:
        for _ in range(2):
            c.completions.create(model=model, prompt=PROMPT, max_tokens=1)
    assert int(e.value.response.headers["retry-after"]) > 0


def test_azure(keyed, model):
    args = {"azure_endpoint": keyed, "api_version": "2024-10-21", "max_retries": 0}
    with openai.AzureOpenAI(api_key=KEY, **args) as c:
        want = c.chat.completions.create(model=model, messages=CHAT, max_tokens=8, temperature=0).choices[0].message.content
        parts = c.chat.completions.create(model=model, messages=CHAT, max_tokens=8, temperature=0, stream=True)
        assert want and "".join(p.choices[0].delta.content or "" for p in parts if p.choices) == want
        assert "Paris" in c.completions.create(model=model, prompt=PROMPT, max_tokens=8, temperature=0).choices[0].text
    with openai.AzureOpenAI(api_key="wrong", **args) as c, pytest.raises(openai.AuthenticationError):
        c.chat.completions.create(model=model, messages=CHAT)
    with openai.AzureOpenAI(api_key=KEY, azure_deployment="no-such-model", **args) as c, pytest.raises(openai.NotFoundError):
        c.chat.completions.create(model="no-such-model", messages=CHAT)


def test_timeout_and_close(c, model):
    with pytest.raises(openai.APITimeoutError):
        c.with_options(timeout=0.1).completions.create(model=model, prompt="Once", max_tokens=1000, extra_body={"ignore_eos": True})
    with c.completions.create(model=model, prompt="Once", max_tokens=1000, stream=True, extra_body={"ignore_eos": True}) as parts:
        next(iter(parts))
