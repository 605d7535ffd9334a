"""pydantic-ai, unchanged: agents with text, output by tool, by JSON schema and by prompt, tools, streams, errors."""
import asyncio
from typing import Literal, Optional

import pydantic_ai
import pytest
from pydantic import BaseModel, Field
from pydantic_ai import Agent, ModelHTTPError, NativeOutput, PromptedOutput, ToolOutput
from pydantic_ai.capabilities import PrepareOutputTools, PrepareTools
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from conftest import KEY

ASK = "What is the capital of France?"


class Leg(BaseModel):
    to: str = Field(max_length=12)
    seat: Literal["window", "aisle"]


class Trip(BaseModel):
    """A trip."""
    legs: list[Leg] = Field(min_length=1, max_length=2)
    days: int = Field(ge=1, le=9)
    note: Optional[str] = Field(None, max_length=12)


@pytest.fixture
def make(url, model):
    def agent(base=url, key="none", name=model, settings=(), **more):
        chat = OpenAIChatModel(name, provider=OpenAIProvider(base_url=base, api_key=key))
        return Agent(chat, system_prompt="You are brief.", model_settings={"temperature": 0, "max_tokens": 160, **dict(settings)}, **more)
    return agent


def test_text_and_stream(make):
    agent = make(settings={"max_tokens": 12})
    r = agent.run_sync(ASK)
    assert r.output and r.usage.output_tokens == 12 and r.usage.input_tokens > 12

    async def streamed():
        async with agent.run_stream(ASK) as s:
            return "".join([t async for t in s.stream_text(delta=True)]), s.usage
    text, usage = asyncio.run(streamed())
    assert text == r.output and usage.output_tokens == 12 and usage.input_tokens == r.usage.input_tokens
    again = agent.run_sync("And of Norway?", message_history=r.all_messages())
    assert again.output and again.usage.input_tokens > r.usage.input_tokens


@pytest.mark.parametrize("output", [Trip, ToolOutput(Trip, strict=True), NativeOutput(Trip), PromptedOutput(Leg), [Leg, Trip]],
                         ids=["tool", "strict-tool", "native", "prompted", "either"])
def test_structured(make, output):
    try:
        r = make(output_type=output, retries=0).run_sync(ASK)
    except pydantic_ai.UnexpectedModelBehavior:
        assert isinstance(output, PromptedOutput)       # JSON of whatever form: this model does not follow the prompt
        return
    assert isinstance(r.output, (Leg, Trip))


def test_structured_streamed(make):
    async def go():
        async with make(output_type=NativeOutput(Trip)).run_stream(ASK) as s:
            return [o async for o in s.stream_output(debounce_by=None)]
    got = asyncio.run(go())
    assert len(got) > 1 and 1 <= got[-1].days <= 9


def test_tools(make):
    """First a tool must be called, then the output's."""
    asked = []

    def weather(city: Literal["Oslo", "Rome"]) -> str:
        """The weather in a city."""
        asked.append(city)
        return "rain"
    agent = make(tools=[weather], output_type=Trip, capabilities=[PrepareTools(lambda ctx, defs: [] if asked else defs),
                                                                  PrepareOutputTools(lambda ctx, defs: defs if asked else [])])
    r = agent.run_sync(ASK)
    assert asked and set(asked) <= {"Oslo", "Rome"} and isinstance(r.output, Trip) and r.usage.requests == 2


def test_logprobs(make):
    r = make(settings={"max_tokens": 4, "openai_logprobs": True, "openai_top_logprobs": 2}).run_sync(ASK)
    details = r.all_messages()[-1].provider_details
    assert len(details["logprobs"]) == 4 and all(len(t["top_logprobs"]) == 2 for t in details["logprobs"])


@pytest.mark.parametrize("more,status,code", [({"name": "no-such-model"}, 404, "model_not_found"), ({"settings": {"max_tokens": 100000}}, 400, "context_length_exceeded"),
                                              ({"settings": {"temperature": -1}}, 400, None)], ids=["model", "context", "temperature"])
def test_errors(make, more, status, code):
    with pytest.raises(ModelHTTPError) as e:
        make(**more).run_sync(ASK)
    assert e.value.status_code == status and e.value.body["code"] == code


def test_keys(make, keyed):
    with pytest.raises(ModelHTTPError) as e:
        make(base=keyed + "/v1").run_sync(ASK)
    assert e.value.status_code == 401
    assert make(base=keyed + "/v1", key=KEY, settings={"max_tokens": 4}).run_sync(ASK).output


def test_many_and_cancelled(make):
    async def go():
        agent = make(settings={"max_tokens": 6})
        got = await asyncio.gather(*[agent.run(ASK) for _ in range(8)])
        assert len({r.output for r in got}) == 1
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(make(settings={"max_tokens": 1000}).run(ASK), 0.2)
    asyncio.run(go())
