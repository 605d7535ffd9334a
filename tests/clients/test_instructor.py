"""instructor, unchanged: each of its modes for such a server, partial and iterable streams, async."""
import asyncio
from typing import Literal, Optional

import instructor
import openai
import pytest
from instructor.core.exceptions import IncompleteOutputException, InstructorRetryException
from pydantic import BaseModel, ConfigDict, Field

from conftest import KEY

CHAT = [{"role": "system", "content": "You are brief."}, {"role": "user", "content": "Plan a trip."}]


class Leg(BaseModel):
    model_config = ConfigDict(extra="forbid")
    to: str = Field(max_length=12)
    seat: Literal["window", "aisle"]


class Trip(BaseModel):
    """A trip."""
    model_config = ConfigDict(extra="forbid")
    legs: list[Leg] = Field(min_length=1, max_length=2)
    days: int = Field(ge=1, le=9)
    note: Optional[str] = Field(max_length=12)


@pytest.fixture
def make(url, model):
    def client(mode=instructor.Mode.TOOLS, kind=openai.OpenAI, base=url, key="none", got=None):
        c = instructor.from_openai(kind(base_url=base, api_key=key, max_retries=0), mode=mode)
        c.on("completion:response", lambda r, **_: got is not None and got.append(r))
        return lambda fn="create", **args: getattr(c.chat.completions, fn)(
            **{"model": model, "messages": CHAT, "temperature": 0, "max_tokens": 160, "max_retries": 0, **args})
    return client


@pytest.mark.parametrize("mode", ["TOOLS", "TOOLS_STRICT", "JSON_SCHEMA"])
def test_modes(make, mode):
    trip, raw = make(instructor.Mode[mode])("create_with_completion", response_model=Trip)
    assert isinstance(trip, Trip) and 1 <= trip.days <= 9 and raw.usage.completion_tokens > 4


def test_json_mode(make):
    """The schema is in the prompt only, which this model does not follow: what it writes is JSON in any case."""
    got = []
    try:
        make(instructor.Mode.JSON, got=got)(response_model=Trip, max_tokens=40)
    except (InstructorRetryException, IncompleteOutputException):
        pass
    assert got[0].choices[0].message.content.startswith("{")


def test_partial_and_iterable(make):
    parts = list(make()("create_partial", response_model=Trip))
    assert len(parts) > 2 and parts[-1].days in range(1, 10) and parts[-1].legs[0].seat in ("window", "aisle")
    legs = list(make()("create_iterable", response_model=Leg, max_tokens=60))
    assert all(isinstance(leg, Leg) for leg in legs)


def test_retries_and_validation(make):
    class Never(BaseModel):
        a: Literal["x"]

        def model_post_init(self, context):
            raise ValueError("never right")
    with pytest.raises(InstructorRetryException) as e:
        make()(response_model=Never, max_retries=1)
    assert e.value.n_attempts == 2


def test_errors(make, keyed):
    for ask, args, status in [(make(), {"model": "no-such-model"}, 404), (make(), {"max_tokens": 100000}, 400), (make(base=keyed + "/v1"), {}, 401)]:
        with pytest.raises(InstructorRetryException, match=f"Error code: {status}"):
            ask(response_model=Leg, **args)
    assert isinstance(make(base=keyed + "/v1", key=KEY)(response_model=Leg), Leg)


def test_async(make):
    async def go():
        ask = make(kind=openai.AsyncOpenAI)
        got = await asyncio.gather(*[ask(response_model=Leg) for _ in range(4)])
        assert len({(g.to, g.seat) for g in got}) == 1
        async for part in ask("create_partial", response_model=Trip):
            pass
        assert 1 <= part.days <= 9
    asyncio.run(go())
