"""langchain-openai, unchanged: chat and completion models, chains, tools, structured output, async."""
import asyncio
from typing import Literal, Optional

import langchain_openai
import openai
import pytest
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.tools import tool
from pydantic import BaseModel, Field

from conftest import KEY

CHAT = [SystemMessage("You are brief."), HumanMessage("What is the capital of France?")]


class Leg(BaseModel):
    """A part of a trip."""
    to: str = Field(max_length=12)
    seat: Literal["window", "aisle"]


class Trip(BaseModel):
    """A trip."""
    legs: list[Leg] = Field(min_length=1, max_length=2)
    days: int = Field(ge=1, le=9)
    note: Optional[str] = Field(None, max_length=12)


@tool
def weather(city: Literal["Oslo", "Rome"], days: int = 1) -> str:
    """The weather in a city."""
    return f"{city}: rain"


@pytest.fixture
def make(url, model):
    def chat(**more):
        return langchain_openai.ChatOpenAI(**{"model": model, "base_url": url, "api_key": "none", "temperature": 0, "max_tokens": 12, "max_retries": 0, **more})
    return chat


def test_invoke_stream_batch(make):
    llm = make()
    r = llm.invoke(CHAT)
    assert r.content and r.usage_metadata["output_tokens"] == 12 and r.response_metadata["finish_reason"] == "length"
    whole = None
    for part in llm.stream(CHAT, stream_usage=True):
        whole = part if whole is None else whole + part
    assert whole.content == r.content
    assert (whole.usage_metadata["input_tokens"], whole.usage_metadata["output_tokens"]) == (r.usage_metadata["input_tokens"], 12)
    assert [x.content for x in llm.batch([CHAT, CHAT])] == [r.content] * 2
    chain = ChatPromptTemplate.from_messages([("system", "You are brief."), ("human", "What is the capital of {country}?")]) | llm
    assert chain.invoke({"country": "France"}).content == r.content


def test_completion_model(url, model):
    llm = langchain_openai.OpenAI(model=model, base_url=url, api_key="none", temperature=0, max_tokens=8)
    text = llm.invoke("The capital of France is")
    assert "Paris" in text and "".join(llm.stream("The capital of France is")) == text


def test_embeddings(url, model):
    """Unless it is told not to check lengths it sends ids of OpenAI's tokenizers, which mean other tokens here."""
    e = langchain_openai.OpenAIEmbeddings(model=model, base_url=url, api_key="none", max_retries=0, check_embedding_ctx_length=False)
    texts = ["The capital of France is Paris.", "Paris is the capital of France.", "Sodium reacts violently with water."]
    near, also, far = e.embed_documents(texts)
    assert e.embed_query(texts[0]) == near and asyncio.run(e.aembed_query(texts[0])) == near
    assert sum(x * y for x, y in zip(near, also)) > sum(x * y for x, y in zip(near, far))


@pytest.mark.parametrize("choice", ["any", "weather", "required"])
def test_tools(make, choice):
    llm = make(max_tokens=64).bind_tools([weather], tool_choice=choice, parallel_tool_calls=False)
    r = llm.invoke(CHAT)
    assert [c["name"] for c in r.tool_calls] == ["weather"] and r.tool_calls[0]["args"]["city"] in ("Oslo", "Rome") and not r.invalid_tool_calls
    whole = None
    for part in llm.stream(CHAT):
        whole = part if whole is None else whole + part
    assert [(c["name"], c["args"]) for c in whole.tool_calls] == [(c["name"], c["args"]) for c in r.tool_calls]
    result = weather.invoke(r.tool_calls[0])
    assert isinstance(result, ToolMessage) and make().invoke(CHAT + [r, result]).content


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
@pytest.mark.parametrize("strict", [None, True])
def test_structured(make, method, strict):
    got = make(max_tokens=150).with_structured_output(Trip, method=method, strict=strict, include_raw=True).invoke(CHAT)
    assert got["parsing_error"] is None and 1 <= got["parsed"].days <= 9 and got["parsed"].legs[0].seat in ("window", "aisle")


def test_structured_streamed_and_json_mode(make):
    parts = list(make(max_tokens=60).with_structured_output(Leg, method="json_schema").stream(CHAT))
    assert isinstance(parts[-1], Leg)
    assert "".join(p.content for p in make().bind(response_format={"type": "json_object"}).stream(CHAT)).startswith("{")


def test_logprobs_and_seed(make):
    r = make(logprobs=True, top_logprobs=2).invoke(CHAT)
    lp = r.response_metadata["logprobs"]["content"]
    assert len(lp) == 12 and all(len(t["top_logprobs"]) == 2 for t in lp)
    assert make(temperature=1, seed=3).invoke(CHAT).content == make(temperature=1, seed=3).invoke(CHAT).content
    assert "Paris" not in make(stop=["Paris"]).invoke(CHAT).content


def test_errors(make, keyed):
    from langchain_core.exceptions import ContextOverflowError
    with pytest.raises(ContextOverflowError):
        make().invoke("word " * 20000)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        make(temperature=-1).invoke(CHAT)
    with pytest.raises(openai.NotFoundError):
        make(model="no-such-model").invoke(CHAT)
    with pytest.raises(openai.AuthenticationError):
        make(base_url=keyed + "/v1").invoke(CHAT)
    assert make(base_url=keyed + "/v1", api_key=KEY).invoke(CHAT).content


def test_azure(keyed, model):
    llm = langchain_openai.AzureChatOpenAI(azure_endpoint=keyed, azure_deployment=model, api_version="2024-10-21", api_key=KEY, temperature=0, max_tokens=8)
    r = llm.invoke(CHAT)
    assert r.content and "".join(p.content for p in llm.stream(CHAT)) == r.content


def test_async_timeout_and_early_close(make):
    async def go():
        llm = make()
        want = (await llm.ainvoke(CHAT)).content
        assert "".join([p.content async for p in llm.astream(CHAT)]) == want
        assert [r.content for r in await llm.abatch([CHAT] * 4)] == [want] * 4
        with pytest.raises(openai.APITimeoutError):
            await make(timeout=0.05, max_tokens=1000).ainvoke(CHAT)
        async for _ in make(max_tokens=1000).astream(CHAT):
            break
    asyncio.run(go())
