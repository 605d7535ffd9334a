"""LlamaIndex (llama-index-llms-openai-like), unchanged: chat and completion models, tools, structured output, async."""
import asyncio
from typing import Literal, Optional

import openai
import pytest
from llama_index.core.llms import ChatMessage
from llama_index.core.prompts import PromptTemplate
from llama_index.core.tools import FunctionTool
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel, Field

from conftest import KEY

CHAT = [ChatMessage(role="system", content="You are brief."), ChatMessage(role="user", content="What is the capital of France?")]


class Leg(BaseModel):
    to: str = Field(max_length=12)
    seat: Literal["window", "aisle"]


class Trip(BaseModel):
    """A trip."""
    legs: list[Leg] = Field(min_length=1, max_length=2)
    days: int = Field(ge=1, le=9)
    note: Optional[str] = Field(None, max_length=12)


def weather(city: Literal["Oslo", "Rome"]) -> str:
    """The weather in a city."""
    return f"{city}: rain"


@pytest.fixture
def make(url, model):
    def llm(**more):
        return OpenAILike(**{"model": model, "api_base": url, "api_key": "none", "temperature": 0, "max_tokens": 12, "max_retries": 0,
                                         "is_chat_model": True, "is_function_calling_model": True, "context_window": 2048, **more})
    return llm


def test_chat_and_stream(make):
    r = make().chat(CHAT)
    assert r.message.content and r.raw.usage.completion_tokens == 12
    parts = list(make(additional_kwargs={"stream_options": {"include_usage": True}}).stream_chat(CHAT))
    assert "".join(p.delta or "" for p in parts) == parts[-1].message.content == r.message.content
    assert parts[-1].raw.usage.completion_tokens == 12


def test_complete_and_stream(make):
    llm = make(is_chat_model=False)
    text = llm.complete("The capital of France is").text
    assert "Paris" in text and "".join(p.delta for p in llm.stream_complete("The capital of France is")) == text
    assert make().complete("What is the capital of France?").text


def test_tools(make):
    llm, tools = make(max_tokens=64), [FunctionTool.from_defaults(weather)]
    r = llm.chat_with_tools(tools, "Weather in Oslo?", tool_required=True)
    calls = llm.get_tool_calls_from_response(r)
    assert calls and calls[0].tool_name == "weather" and calls[0].tool_kwargs["city"] in ("Oslo", "Rome")
    assert "rain" in str(llm.predict_and_call(tools, "Weather in Oslo?", tool_required=True))
    for part in llm.stream_chat_with_tools(tools, "Weather in Oslo?", tool_required=True):
        pass
    assert llm.get_tool_calls_from_response(part)[0].tool_kwargs == calls[0].tool_kwargs


@pytest.mark.parametrize("native", [False, True], ids=["tool", "schema"])
def test_structured(make, native):
    llm = make(max_tokens=160, should_use_structured_outputs=native)
    trip = llm.structured_predict(Trip, PromptTemplate("Plan a trip to {city}."), city="Oslo")
    assert isinstance(trip, Trip) and 1 <= trip.days <= 9
    assert isinstance(llm.as_structured_llm(Leg).chat(CHAT).raw, Leg)


def test_logprobs(make):
    r = make(logprobs=True, top_logprobs=2).chat(CHAT)
    assert len(r.logprobs) == 12 and all(len(t) == 2 for t in r.logprobs)


def test_errors(make, keyed):
    for more, kind in [({"model": "no-such-model"}, openai.NotFoundError), ({"max_tokens": 100000}, openai.BadRequestError),
                       ({"api_base": keyed + "/v1"}, openai.AuthenticationError)]:
        with pytest.raises(kind):
            make(**more).chat(CHAT)
    assert make(api_base=keyed + "/v1", api_key=KEY).chat(CHAT).message.content


def test_async_and_timeout(make):
    async def go():
        want = (await make().achat(CHAT)).message.content
        assert "".join([p.delta async for p in await make().astream_chat(CHAT)]) == want
        assert [r.message.content for r in await asyncio.gather(*[make().achat(CHAT) for _ in range(4)])] == [want] * 4
        with pytest.raises(openai.APITimeoutError):
            await make(timeout=0.05, max_tokens=1000).achat(CHAT)
    asyncio.run(go())
