"""Embeddings by the openai package from PyPI, unchanged: by default it asks for base64 and decodes it."""
import asyncio
import math

import openai
import pytest

TEXTS = ["The capital of France is Paris.", "Paris is the capital of France.", "Sodium reacts violently with water."]


@pytest.fixture(scope="module")
def c(url):
    with openai.OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def model(c):
    return c.models.list().data[0].id


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


def test_one(c, model):
    r = c.embeddings.create(model=model, input=TEXTS[0])
    assert r.object == "list" and r.model == model and len(r.data) == 1
    e = r.data[0]
    assert e.object == "embedding" and e.index == 0
    assert all(isinstance(x, float) for x in e.embedding) and abs(dot(e.embedding, e.embedding) - 1) < 1e-5
    assert r.usage.prompt_tokens == r.usage.total_tokens > 0


def test_formats_are_the_same(c, model):
    decoded = c.embeddings.create(model=model, input=TEXTS[0]).data[0].embedding
    floats = c.embeddings.create(model=model, input=TEXTS[0], encoding_format="float").data[0].embedding
    assert max(abs(a - b) for a, b in zip(decoded, floats, strict=True)) < 1e-8
    assert isinstance(c.embeddings.create(model=model, input=TEXTS[0], encoding_format="base64").data[0].embedding, str)


def test_several(c, model):
    r = c.embeddings.create(model=model, input=TEXTS, user="me")
    assert [e.index for e in r.data] == [0, 1, 2]
    for text, e in zip(TEXTS, r.data):
        assert c.embeddings.create(model=model, input=text).data[0].embedding == e.embedding


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_meaning(c, model, pooling):
    a, b, other = (e.embedding for e in c.embeddings.create(model=model, input=TEXTS, extra_body={"pooling": pooling}).data)
    assert dot(a, b) > dot(a, other)


def test_ids_and_dimensions(c, model):
    r = c.embeddings.create(model=model, input=[[1, 2, 3], [4, 5]], dimensions=16)
    assert [len(e.embedding) for e in r.data] == [16, 16] and r.usage.prompt_tokens == 5
    whole = c.embeddings.create(model=model, input=[1, 2, 3]).data[0].embedding
    size = math.sqrt(dot(whole[:16], whole[:16]))
    assert max(abs(a - b / size) for a, b in zip(r.data[0].embedding, whole)) < 1e-6


def test_raw_response(c, model):
    r = c.embeddings.with_raw_response.create(model=model, input="hello")
    assert r.headers["x-request-id"].startswith("embd-") and len(r.parse().data) == 1


def test_async(url, model):
    async def go():
        async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
            return await asyncio.gather(*(client.embeddings.create(model=model, input=[t] * 5) for t in TEXTS))
    for r in asyncio.run(go()):
        assert len(r.data) == 5 and all(e.embedding == r.data[0].embedding for e in r.data)


@pytest.mark.parametrize("body, param", [
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": "word " * 50000}, "input"),
    ({"input": "hello", "dimensions": 1 << 20}, "dimensions"),
    ({"input": "hello", "extra_body": {"pooling": "cls"}}, "pooling"),
])
def test_errors(c, model, body, param):
    with pytest.raises(openai.BadRequestError) as e:
        c.embeddings.create(model=model, **body)
    assert e.value.param == param


def test_other_model(c):
    with pytest.raises(openai.NotFoundError) as e:
        c.embeddings.create(model="no-such-model", input="hello")
    assert e.value.code == "model_not_found"
