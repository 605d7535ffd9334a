"""litellm, unchanged: the providers that its users take for such a server (openai, hosted_vllm, text-completion-openai), its own exceptions and its router."""
import asyncio
import json
from typing import Literal, Optional

import litellm
import pytest
from pydantic import BaseModel, Field

from conftest import KEY, ONCE

CHAT = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "What is the capital of France?"}]
TOOLS = [{"type": "function", "function": {"name": name, "description": name, "parameters": {
    "type": "object", "required": ["city"], "properties": {"city": {"type": "string", "maxLength": 12}}}}} for name in ("weather", "time")]


class Leg(BaseModel):
    to: str = Field(max_length=12)
    seat: Literal["window", "aisle"]


class Trip(BaseModel):
    legs: list[Leg] = Field(min_length=1, max_length=2)
    days: int = Field(ge=1, le=9)
    note: Optional[str] = Field(None, max_length=12)


@pytest.fixture(params=["openai", "hosted_vllm"])
def call(request, url, model):
    """Arguments of every call, by provider."""
    return {"model": f"{request.param}/{model}", "api_base": url, "api_key": "none", "temperature": 0, "max_tokens": 12, "max_retries": 0}


def text_of(parts):
    return "".join(p.choices[0].delta.content or "" for p in parts if p.choices)


def test_chat_and_stream(call):
    r = litellm.completion(messages=CHAT, **call)
    assert r.choices[0].message.content and r.usage.completion_tokens == 12 and r.choices[0].finish_reason == "length"
    parts = list(litellm.completion(messages=CHAT, stream=True, stream_options={"include_usage": True}, **call))
    assert text_of(parts) == r.choices[0].message.content
    whole = litellm.stream_chunk_builder(parts, messages=CHAT)
    assert whole.choices[0].message.content == r.choices[0].message.content
    assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (r.usage.prompt_tokens, 12)


def test_text_completion(url, model):
    call = {"model": f"text-completion-openai/{model}", "api_base": url, "api_key": "none", "temperature": 0, "max_tokens": 8}
    r = litellm.text_completion(prompt="The capital of France is", logprobs=2, **call)
    assert "Paris" in r.choices[0].text and len(r.choices[0].logprobs.tokens) == 8
    parts = litellm.text_completion(prompt="The capital of France is", stream=True, **call)
    assert "".join(p.choices[0].text or "" for p in parts if p.choices) == r.choices[0].text


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "time"}}], ids=["required", "named"])
def test_tools(call, choice):
    call = {**call, "max_tokens": 64}
    r = litellm.completion(messages=CHAT, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, **call)
    made = r.choices[0].message.tool_calls
    assert len(made) == 1 and made[0].function.name in ("weather", "time") and set(json.loads(made[0].function.arguments)) == {"city"}
    parts = list(litellm.completion(messages=CHAT, tools=TOOLS, tool_choice=choice, parallel_tool_calls=False, stream=True, **call))
    again = litellm.stream_chunk_builder(parts, messages=CHAT).choices[0].message.tool_calls
    assert [(c.function.name, c.function.arguments) for c in again] == [(c.function.name, c.function.arguments) for c in made]
    follow = CHAT + [r.choices[0].message.model_dump(), {"role": "tool", "tool_call_id": made[0].id, "content": "12:00"}]
    assert litellm.completion(messages=follow, tools=TOOLS, tool_choice="none", **call).choices[0].message.content


def test_structured(call):
    call = {**call, "max_tokens": 120}
    r = litellm.completion(messages=CHAT, response_format=Trip, **call)
    assert 1 <= Trip.model_validate_json(r.choices[0].message.content).days <= 9
    r = litellm.completion(messages=CHAT, response_format={"type": "json_schema", "json_schema": {"name": "leg", "schema": Leg.model_json_schema()}}, **call)
    Leg.model_validate_json(r.choices[0].message.content)


def test_logprobs_n_seed(call):
    r = litellm.completion(messages=CHAT, logprobs=True, top_logprobs=2, **call)
    lp = r.choices[0].logprobs.content
    assert len(lp) == 12 and all(len(t.top_logprobs) == 2 and t.logprob <= 0 for t in lp)
    warm = {**call, "temperature": 1}
    a, b = (litellm.completion(messages=CHAT, n=2, seed=5, **warm) for _ in range(2))
    assert [c.message.content for c in a.choices] == [c.message.content for c in b.choices] and len(a.choices) == 2


def test_errors(call, keyed):
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=[{"role": "user", "content": "word " * 20000}], **call)
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(messages=CHAT, **{**call, "max_tokens": 100000})
    with pytest.raises(litellm.BadRequestError, match="temperature"):
        litellm.completion(messages=CHAT, **{**call, "temperature": -1})
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(messages=CHAT, **{**call, "model": call["model"].split("/")[0] + "/no-such-model"})
    locked = {**call, "api_base": keyed + "/v1"}
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(messages=CHAT, **locked)
    assert litellm.completion(messages=CHAT, **{**locked, "api_key": KEY}).choices


def test_rate_limit(keyed, model):
    def ask():
        return litellm.completion(model=f"openai/{model}", messages=CHAT, api_base=keyed + "/v1", api_key=ONCE, max_tokens=1, max_retries=0)
    with pytest.raises(litellm.RateLimitError):
        for _ in range(2):
            ask()


def test_async_timeout_and_early_close(call):
    async def go():
        r = await litellm.acompletion(messages=CHAT, **call)
        parts = [p async for p in await litellm.acompletion(messages=CHAT, stream=True, **call)]
        assert text_of(parts) == r.choices[0].message.content
        with pytest.raises(litellm.Timeout):
            await litellm.acompletion(messages=CHAT, timeout=0.05, **{**call, "max_tokens": 1000})
        async for _ in await litellm.acompletion(messages=CHAT, stream=True, **{**call, "max_tokens": 1000}):
            break
    asyncio.run(go())


def test_router_falls_back(url, model):
    params = {"model": f"openai/{model}", "api_key": "none", "temperature": 0, "max_tokens": 4}
    router = litellm.Router(model_list=[{"model_name": "gone", "litellm_params": {**params, "api_base": "http://127.0.0.1:9/v1"}},
                                        {"model_name": "here", "litellm_params": {**params, "api_base": url}}],
                            fallbacks=[{"gone": ["here"]}], num_retries=0)
    assert router.completion("gone", messages=CHAT).choices[0].message.content
