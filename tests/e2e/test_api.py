# run: long
"""The OpenAI API as a client sees it: answers, streams, refusals, limits, and clients that go away. Real daemons; text needs PD_MODEL."""
import gzip
import http.client
import json
import re
import select
import socket
import time

import pytest
from suite import SLOW, Suite, wait_for

IDS = [17, 3, 99, 250, 8, 41, 7]


@pytest.fixture(scope="module")
def ids(tiny_model):
    """Token ids only: the model has no tokenizer."""
    with Suite("1p1d", tiny_model, router={"served_model_name": "tiny"}) as s:
        yield s


@pytest.fixture(scope="module")
def text(short_model):
    with Suite("1p1d", short_model, router={"served_model_name": "smol"}) as s:
        yield s


@pytest.fixture(scope="module")
def slow():
    """A device on which an answer of 400 tokens takes seconds, however fast the machine is: what a test does meanwhile comes in time. Only for answers that are not waited for."""
    with Suite("1p1d", sim={"base": "small", "decode": {"step_us": 10000.0 * SLOW}}, router={"max_requests": 150}) as s:
        yield s


def chunks(s, path, body):
    return list(s.stream(path, body))


def complete(s, **body):
    status, r = s.post("/v1/completions", {"temperature": 0, "max_tokens": 8, **body})
    assert status == 200, (status, r)
    return r


# --- what is refused ---------------------------------------------------------------------------------------------------------

BAD = [
    # body, status, param, part of the message
    ("{", 400, None, "not valid JSON"),
    ("[]", 400, None, "must be a JSON object"),
    ("", 400, None, "not valid JSON"),
    (b'{"prompt": "\xff"}', 400, None, "not valid JSON"),
    ({}, 400, "prompt", "required"),
    ({"prompt": None}, 400, "prompt", "required"),
    ({"prompt": 7}, 400, "prompt", "prompt must be"),
    ({"prompt": []}, 400, "prompt", "0 items"),
    ({"prompt": [[]]}, 400, "prompt", "empty"),
    ({"prompt": [1, "a"]}, 400, "prompt", 'got "a"'),
    ({"prompt": [1, 2.5]}, 400, "prompt", "got 2.5"),
    ({"prompt": [[1], 2]}, 400, "prompt", "prompt must be"),
    ({"prompt": [-1]}, 400, "prompt", "-1"),
    ({"prompt": [1, 4294967296]}, 400, "prompt", "4294967296"),
    ({"prompt": [320]}, 400, "prompt", "vocabulary has 320"),
    ({"prompt": [1] * 100000}, 400, "prompt", "context length"),
    ({"prompt": "text"}, 400, "prompt", "no tokenizer"),
    ({"prompt": IDS, "model": "other"}, 404, "model", "tiny"),
    ({"prompt": IDS, "model": 5}, 400, "model", "string"),
    ({"prompt": IDS, "max_tokens": -1}, 400, "max_tokens", "got -1"),
    ({"prompt": IDS, "max_tokens": 0}, 400, "max_tokens", "from 1"),
    ({"prompt": IDS, "max_tokens": 1.5}, 400, "max_tokens", "got 1.5"),
    ({"prompt": IDS, "max_tokens": "8"}, 400, "max_tokens", 'got "8"'),
    ({"prompt": IDS, "max_tokens": 10**9}, 400, "max_tokens", "context length"),
    ({"prompt": IDS, "max_tokens": 10**18}, 400, "max_tokens", "integer"),
    ('{"prompt": [1], "max_tokens": 1e400}', 400, None, "not valid JSON"),
    ({"prompt": IDS, "temperature": -0.1}, 400, "temperature", "got -0.1"),
    ({"prompt": IDS, "temperature": 101}, 400, "temperature", "to 100"),
    ({"prompt": IDS, "temperature": "hot"}, 400, "temperature", "number"),
    ({"prompt": IDS, "temperature": True}, 400, "temperature", "got true"),
    ({"prompt": IDS, "top_p": 0}, 400, "top_p", "greater than 0"),
    ({"prompt": IDS, "top_p": 1.01}, 400, "top_p", "greater than 0 and at most 1, got 1.01"),
    ({"prompt": IDS, "top_p": 1.1}, 400, "top_p", "got 1.1"),
    ({"prompt": IDS, "min_p": 2}, 400, "min_p", "to 1"),
    ({"prompt": IDS, "top_k": -2}, 400, "top_k", "got -2"),
    ({"prompt": IDS, "seed": "a"}, 400, "seed", "integer"),
    ({"prompt": IDS, "seed": 2**63}, 400, "seed", "to 9223372036854775807"),
    ({"prompt": IDS, "seed": -2**63 - 1}, 400, "seed", "from -9223372036854775808"),
    ({"prompt": [2**64], "seed": 1}, 400, "prompt", "to 9223372036854775807"),
    ({"prompt": IDS, "n": 0}, 400, "n", "from 1"),
    ({"prompt": IDS, "timings_per_token": 1}, 400, "timings_per_token", "true or false"),
    ({"prompt": IDS, "n": 100000}, 400, "n", "128"),
    ({"prompt": [[1]] * 100, "n": 2}, 400, "prompt", "max_choices"),
    ({"prompt": IDS, "n": 2, "best_of": 3}, 400, "best_of", "got 3"),
    ({"prompt": IDS, "logprobs": 21}, 400, "logprobs", "to 20"),
    ({"prompt": IDS, "logprobs": True}, 400, "logprobs", "integer"),
    ({"prompt": IDS, "stop": 5}, 400, "stop", "got 5"),
    ({"prompt": IDS, "stop": ["a", 5]}, 400, "stop", "stop[1]"),
    ({"prompt": IDS, "stop": ["a", ""]}, 400, "stop", "stop[1]"),
    ({"prompt": IDS, "stop": ["a"] * 17}, 400, "stop", "17"),
    ({"prompt": IDS, "stop": "x" * 1025}, 400, "stop", "1025"),
    ({"prompt": IDS, "stop_token_ids": [-3]}, 400, "stop_token_ids", "-3"),
    ({"prompt": IDS, "stream": "yes"}, 400, "stream", "true or false"),
    ({"prompt": IDS, "stream": True, "stream_options": 1}, 400, "stream_options", "object"),
    ({"prompt": IDS, "stream_options": {"include_usage": True}}, 400, "stream_options", "stream is true"),
    ({"prompt": IDS, "stream": True, "stream_options": {"include_usage": 1}}, 400, "stream_options", "stream_options.include_usage"),
    ({"prompt": IDS, "user": 5}, 400, "user", "got 5"),
    ({"prompt": IDS, "echo": 1}, 400, "echo", "got 1"),
    ({"prompt": IDS, "ignore_eos": "x"}, 400, "ignore_eos", "true or false"),
    ({"prompt": IDS, "logit_bias": {"5": "1"}}, 400, "logit_bias", "-100 to 100"),
    ({"prompt": IDS, "logit_bias": {"320": 1}}, 400, "logit_bias", "vocabulary has 320"),
    ({"prompt": IDS, "logit_bias": {str(i): 1 for i in range(1025)}}, 400, "logit_bias", "1024"),
    ({"prompt": IDS, "allowed_token_ids": []}, 400, "allowed_token_ids", "1 to"),
    ({"prompt": IDS, "allowed_token_ids": [5, 320]}, 400, "allowed_token_ids", "allowed_token_ids[1]"),
    ({"prompt": IDS, "bad_words": ["x"]}, 400, "bad_words", "tokenizer"),
    ({"prompt": IDS, "min_tokens": 9, "max_tokens": 8}, 400, "min_tokens", "more than max_tokens, which is 8"),
    ({"prompt": IDS, "min_tokens": 17}, 400, "min_tokens", "which is 16"),
    ({"prompt": IDS, "truncate_prompt_tokens": 10**6}, 400, "truncate_prompt_tokens", "maximum context"),
    ({"prompt": IDS, "prompt_logprobs": 2, "stream": True}, 400, "prompt_logprobs", "stream"),
    ({"prompt": IDS, "prompt_logprobs": -1}, 400, "prompt_logprobs", "0 to 20"),
    ({"prompt": IDS, "use_beam_search": True}, 400, "use_beam_search", "not supported"),
    ({"prompt": IDS, "suffix": "x"}, 400, "suffix", "not supported"),
    ({"prompt": IDS, "response_format": {"type": "json_object"}}, 400, "response_format", "needs the model's vocabulary"),
]


@pytest.mark.parametrize("body,status,param,part", BAD, ids=range(len(BAD)))
def test_bad_completion(ids, body, status, param, part):
    got, r = ids.post("/v1/completions", body, raw=isinstance(body, (str, bytes)))
    assert got == status, r
    e = r["error"]
    assert e["param"] == param and part in e["message"], e
    assert e["type"] == "invalid_request_error" and set(e) == {"message", "type", "param", "code"}
    assert e["code"] == ("model_not_found" if status == 404 else "context_length_exceeded" if "context length" in part else None)


NEUTRAL = {"frequency_penalty": 0, "presence_penalty": 0.0, "repetition_penalty": 1, "typical_p": 1, "min_tokens": 0, "bad_words": [], "logit_bias": {}, "suffix": None, "best_of": 1, "n": 1, "top_k": -1, "min_p": 0, "user": "me",
           "stop": None, "logprobs": None, "response_format": {"type": "text"}, "stream_options": None}


def test_neutral_and_unknown_values_change_nothing(ids):
    want = complete(ids, prompt=IDS, return_token_ids=True)["choices"][0]["token_ids"]
    assert len(want) == 8
    assert complete(ids, prompt=IDS, return_token_ids=True, **NEUTRAL, something_unknown=[1, {"a": None}])["choices"][0]["token_ids"] == want
    assert complete(ids, prompt=IDS, return_token_ids=True, max_tokens=8.0)["choices"][0]["token_ids"] == want


UNKNOWN = {"temprature": 0.5, "messages": [], "max_tokens_": None, "x" * 5000: 1}
WARNINGS = ["temprature is not a parameter of this server; did you mean temperature?", "messages is not a parameter of this server",
            "x" * 64 + " is not a parameter of this server"]


def test_unknown_parameters_are_told(ids):
    """In the answer, in a stream's first event alone, and once in the log."""
    assert "warnings" not in complete(ids, prompt=IDS, max_completion=None)
    for _ in range(2):
        assert complete(ids, prompt=IDS, **UNKNOWN)["warnings"] == WARNINGS
    events = chunks(ids, "/v1/completions", {"prompt": IDS, "max_tokens": 4, "n": 2, "stream_options": {"include_usage": True}, **UNKNOWN})
    assert [e.get("warnings") for e in events] == [WARNINGS] + [None] * (len(events) - 1)
    assert ids.log("router").count('warnings="\\"temprature') == 1
    many = complete(ids, prompt=IDS, **{f"of_another_server_{i}": 1 for i in range(1000)})["warnings"]
    assert len(many) == 9 and many[8] == "and 992 parameters more"


def test_unknown_parameters_can_be_refused(tiny_model):
    with Suite("mixed", tiny_model, router={"unknown_parameters": "refuse"}) as s:
        status, r = s.post("/v1/completions", {"prompt": IDS, "max_tokens": 1, **UNKNOWN})
        assert status == 400 and r["error"]["param"] == "temprature" and r["error"]["message"] == WARNINGS[0]
        assert "warnings" not in complete(s, prompt=IDS, **NEUTRAL)


BAD_CHAT = [
    ({}, "messages", "required"),
    ({"messages": []}, "messages", "1 to"),
    ({"messages": "hi"}, "messages", "array"),
    ({"messages": [5]}, "messages", "messages[0] must be an object"),
    ({"messages": [{"content": "x"}]}, "messages", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages", "messages[0].content"),
    ({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": None}]}, "messages", "messages[1].content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", 'messages[0].content[0] has the type "image_url", which is not supported'),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]}]}, "messages", 'content[1] has the type "input_audio", which'),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages", "messages[0].content[0] must be"),
    ({"messages": [{"role": "user", "content": "a"}], "top_logprobs": 2}, "top_logprobs", "needs logprobs"),
    ({"messages": [{"role": "user", "content": "a"}], "logprobs": 2}, "logprobs", "true or false"),
    ({"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": -4}, "max_completion_tokens", "got -4"),
    ({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}, "tools", "function must be an object"),
    ({"messages": [{"role": "user", "content": "a"}], "echo": True}, "echo", "not supported"),
    ({"messages": [{"role": "assistant", "content": "a", "tool_calls": [{}]}]}, "messages", "messages[0].tool_calls"),
]


@pytest.mark.parametrize("body,param,part", BAD_CHAT, ids=range(len(BAD_CHAT)))
def test_bad_chat(text, body, param, part):
    status, r = text.post("/v1/chat/completions", body)
    assert status == 400 and r["error"]["param"] == param and part in r["error"]["message"], r


def test_chat_without_tokenizer(ids):
    status, r = ids.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})
    assert status == 400 and "no tokenizer" in r["error"]["message"]


# --- answers by token ids -----------------------------------------------------------------------------------------------------

def test_stream_and_whole_are_the_same(ids):
    whole = complete(ids, prompt=IDS, max_tokens=20, return_token_ids=True)
    c = chunks(ids, "/v1/completions", {"prompt": IDS, "max_tokens": 20, "temperature": 0, "return_token_ids": True,
                                        "stream_options": {"include_usage": True}})
    assert whole["choices"][0]["prompt_token_ids"] == IDS == c[0]["choices"][0]["prompt_token_ids"]
    assert sum((x["choices"][0]["token_ids"] for x in c[:-1]), []) == whole["choices"][0]["token_ids"]
    assert [x["choices"][0]["finish_reason"] for x in c[:-1]][-1] == "length" == whole["choices"][0]["finish_reason"]
    assert all(x["choices"][0]["finish_reason"] is None and x["usage"] is None for x in c[:-2])
    assert c[-1]["choices"] == [] and c[-1]["usage"]["completion_tokens"] == 20 == whole["usage"]["completion_tokens"]
    assert len({x["id"] for x in c}) == 1 and c[0]["object"] == "text_completion"


def test_lists_of_prompts_and_n(ids):
    r = complete(ids, prompt=[IDS, IDS[:3]], n=3, temperature=1, seed=7, return_token_ids=True)
    assert [c["index"] for c in r["choices"]] == list(range(6))
    assert [c["prompt_token_ids"] for c in r["choices"]] == [IDS] * 3 + [IDS[:3]] * 3
    assert r["usage"]["prompt_tokens"] == 10 and r["usage"]["completion_tokens"] == 48
    for i in range(3):   # choice i has seed + i
        one = complete(ids, prompt=IDS[:3], temperature=1, seed=7 + i, return_token_ids=True)
        assert one["choices"][0]["token_ids"] == r["choices"][3 + i]["token_ids"]
    assert len({tuple(c["token_ids"]) for c in r["choices"][:3]}) > 1


def test_stop_token_ids(ids):
    free = complete(ids, prompt=IDS, max_tokens=20, ignore_eos=True, return_token_ids=True)["choices"][0]["token_ids"]
    at = next(i for i in range(3, 20) if free[i] not in free[:i])
    r = complete(ids, prompt=IDS, max_tokens=20, ignore_eos=True, return_token_ids=True, stop_token_ids=[free[at]])["choices"][0]
    assert r["token_ids"] == free[:at + 1] and r["finish_reason"] == "stop" and r["stop_reason"] == free[at]


def test_one_token(ids):
    r = complete(ids, prompt=IDS, max_tokens=1, return_token_ids=True)
    assert len(r["choices"][0]["token_ids"]) == 1 and r["choices"][0]["finish_reason"] == "length"
    ids.quiet()


def test_context_is_filled_to_the_last_token(ids):
    context = json.loads(ids.get("/v1/models")[1])["data"][0]["max_model_len"]
    prompt = [i % 300 for i in range(context - 1)]
    assert complete(ids, prompt=prompt, max_tokens=1)["usage"]["total_tokens"] == context
    assert ids.post("/v1/completions", {"prompt": prompt, "max_tokens": 2})[0] == 400
    # log-probabilities of a prompt come with a token that is not shown, and takes room
    score = {"echo": True, "max_tokens": 0, "logprobs": 1}
    assert f"you requested {context + 1} tokens ({context} in the prompt, 1 for the answer)" in too_long(ids, context, **score)
    assert complete(ids, prompt=prompt + [7, 7], **score, truncate_prompt_tokens=-1)["usage"]["prompt_tokens"] == context - 1
    assert complete(ids, prompt=prompt + [7], echo=True, max_tokens=0)["usage"]["prompt_tokens"] == context


# --- text ---------------------------------------------------------------------------------------------------------------------

CHAT = [{"role": "user", "content": "What is the capital of France?"}]


def served(s):
    return json.loads(s.get("/v1/models")[1])["data"][0]["max_model_len"]


def too_long(s, n, **more):
    status, r = s.post("/v1/completions", {"prompt": [5] * n, **more})
    assert status == 400 and r["error"]["code"] == "context_length_exceeded", (status, r)
    return r["error"]["message"]


def test_context_is_what_can_be_served(tiny_model, ids):
    """As long as the smaller of the model's context and the workers' KV blocks, or max_model_len."""
    whole = served(ids)
    with Suite("mixed", tiny_model, worker={"kv_blocks": 6, "block_tokens": 16}) as s:
        assert served(s) == 96 < whole
        says = too_long(s, 90, max_tokens=7)
        assert says.startswith("This model's maximum context length is 96 tokens. However, you requested 97 tokens (90 in the prompt, 7 for the answer)."), says
        assert too_long(s, 5, max_tokens=96).endswith(" Lower max_tokens.")
        for n, more in ((90, {"max_tokens": 7}), (96, {"max_tokens": 1}), (96, {})):    # clients that look for this shorten the conversation
            assert " The prompt is too long: shorten it" in too_long(s, n, **more)
        assert too_long(s, 96).startswith("This model's maximum context length is 96 tokens. However, your prompt has 96 tokens, and the answer needs room")
        assert complete(s, prompt=[5] * 90, max_tokens=6, ignore_eos=True)["usage"]["completion_tokens"] == 6
        assert complete(s, prompt=[5] * 90, max_tokens=None, ignore_eos=True)["usage"]["completion_tokens"] == 6
    with Suite("1p1d", tiny_model, prefill={"kv_blocks": 4}, decode={"kv_blocks": 6}, worker={"block_tokens": 16}, router={"max_model_len": 80}) as s:
        assert served(s) == 80 and s.post("/v1/completions", {"prompt": [5] * 64, "max_tokens": 16})[0] == 200
        assert "length is 80 tokens. However, you requested 81 tokens" in too_long(s, 64, max_tokens=17)
        assert "length is 64 tokens for a prompt here. However, your prompt has 65 tokens. The prompt is too long" in too_long(s, 65, max_tokens=1)


def test_workers_of_different_size(tiny_model):
    """A limit that only the larger worker can keep goes there; an answer without a limit goes to either, and ends where the worker's room does."""
    suite = Suite("2mixed", tiny_model, worker={"block_tokens": 16})
    suite.conf["mixed-1"]["kv_blocks"], suite.conf["mixed-2"]["kv_blocks"] = 6, 12

    def served_by(s):
        return [s.ctl(n, "status")["prompt_tokens"] for n in ("mixed-1", "mixed-2")]
    with suite as s:
        assert served(s) == 192
        for i in range(4):
            assert complete(s, prompt=[9 + i] * 90, max_tokens=16, ignore_eos=True)["usage"]["completion_tokens"] == 16
        assert served_by(s)[0] == 0
        lengths = {complete(s, prompt=[19 + i] * 90, max_tokens=None, ignore_eos=True)["usage"]["completion_tokens"] for i in range(6)}
        assert all(served_by(s)) and max(lengths) == 16 > min(lengths) >= 6, (lengths, served_by(s))


def test_text_of_stream_and_whole(text):
    for prompt in ["The capital of France is", "Count: one, two,", "Emoji 😀😃 and Ünïcödé"]:
        whole = complete(text, prompt=prompt, max_tokens=24, ignore_eos=True)["choices"][0]["text"]
        parts = chunks(text, "/v1/completions", {"prompt": prompt, "max_tokens": 24, "temperature": 0, "ignore_eos": True})
        assert "".join(c["choices"][0]["text"] for c in parts) == whole


def test_chat_shapes(text):
    status, r = text.post("/v1/chat/completions", {"messages": CHAT, "temperature": 0, "max_tokens": 10, "logprobs": True, "top_logprobs": 3,
                                                   "return_token_ids": True})
    assert status == 200 and r["object"] == "chat.completion" and r["id"].startswith("chatcmpl-")
    m, lp = r["choices"][0]["message"], r["choices"][0]["logprobs"]["content"]
    assert m["role"] == "assistant" and len(lp) == r["usage"]["completion_tokens"] == len(r["choices"][0]["token_ids"])
    assert b"".join(bytes(t["bytes"]) for t in lp).decode().startswith(m["content"])
    assert all(len(t["top_logprobs"]) == 3 and t["top_logprobs"][0]["logprob"] >= t["logprob"] for t in lp)
    assert r["choices"][0]["logprobs"]["refusal"] is None
    parts = chunks(text, "/v1/chat/completions", {"messages": CHAT, "temperature": 0, "max_tokens": 10, "return_token_ids": True, "logprobs": True})
    rows = [p["choices"][0]["logprobs"] for p in parts if p["choices"][0]["logprobs"]]
    assert sum(len(x["content"]) for x in rows) == 10 and all(x["refusal"] is None for x in rows)
    assert parts[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""} and parts[0]["prompt_token_ids"] == r["prompt_token_ids"]
    assert "".join(p["choices"][0]["delta"].get("content", "") for p in parts) == m["content"]


@pytest.mark.parametrize("options, want", [
    ({"include_usage": True, "continuous_usage_stats": True}, [0, 1, 2, 3, 3]),
    ({"continuous_usage_stats": True}, [0, 1, 2, 3, 3]),
    ({"include_usage": True}, [None, None, None, None, 3]),
    ({"include_usage": False, "continuous_usage_stats": True}, ["no"] * 4),
    ({}, ["no"] * 4),
])
def test_usage_of_a_stream(text, options, want):
    """The event of the role, one for each token, and the last one with the sum."""
    parts = chunks(text, "/v1/chat/completions", {"messages": CHAT, "temperature": 0, "max_tokens": 3, "stream_options": options})
    got = [p["usage"]["completion_tokens"] if p.get("usage") else p.get("usage", "no") for p in parts]
    assert got == want, parts


def check_timings(t, prompt, cached, tokens):
    assert (t["prompt_n"], t["cache_n"], t["predicted_n"]) == (prompt - cached, cached, tokens)
    for name in ("prompt", "predicted"):
        n, ms = t[f"{name}_n"], t[f"{name}_ms"]
        assert t[f"{name}_per_token_ms"] == pytest.approx(ms / n, abs=1e-3)
        assert t[f"{name}_per_second"] == (pytest.approx(1000 * n / ms, rel=1e-3) if ms else 0)


def test_timings(text):
    """prompt_ms is what the log says at prefill_us, of both prompts and all answers; predicted_ms is within what the client has waited."""
    body = {"prompt": ["Once upon a time, in a land", "One, two, three,"], "n": 2, "max_tokens": 9, "temperature": 0, "ignore_eos": True}
    assert "timings" not in complete(text, **body)
    for asked in ({"return_timings": True}, {"timings_per_token": True}, {"timings_per_token": True, "return_timings": False}):
        had, began = text.log("router").count("event=request_done"), time.monotonic()
        r = complete(text, **body, **asked)
        took_ms = (time.monotonic() - began) * 1000
        done = wait_for(lambda: (x := re.findall(r"event=request_done .*cached_tokens=(\d+) .*prefill_us=(\d+)", text.log("router"))[had:]) and len(x) == 4 and x)
        check_timings(r["timings"], 2 * r["usage"]["prompt_tokens"], sum(int(c) for c, _ in done), 36)
        assert r["timings"]["prompt_ms"] == sum(int(us) for _, us in done) / 1000
        assert 0 < r["timings"]["predicted_ms"] < 4 * took_ms


@pytest.mark.parametrize("path, body", [("/v1/completions", {"prompt": "Once upon a time"}), ("/v1/chat/completions", {"messages": CHAT})])
def test_timings_of_a_stream(text, path, body):
    body = {**body, "max_tokens": 4, "temperature": 0, "ignore_eos": True, "stream_options": {"include_usage": True}}
    for asked, having in (({}, []), ({"return_timings": True}, [4]), ({"timings_per_token": True}, [1, 2, 3, 4])):
        parts = chunks(text, path, {**body, **asked})
        with_them = [p for p in parts if "timings" in p]
        assert [p["timings"]["predicted_n"] for p in with_them] == having
        if having:
            usage = parts[-1]["usage"]
            check_timings(with_them[-1]["timings"], usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], 4)
            assert with_them[-1]["timings"]["prompt_ms"] > 0 and with_them[-1]["choices"][0]["finish_reason"] == "length"


def test_content_in_parts(text):
    parts = [{"role": "user", "content": [{"type": "text", "text": "What is the "}, {"type": "text", "text": "capital of France?"}]}]
    a = text.post("/tokenize", {"messages": CHAT})[1]
    assert text.post("/tokenize", {"messages": parts})[1] == a and a["count"] == len(a["tokens"]) == 37


@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings(text, stream):
    free = complete(text, prompt="The capital of France is", max_tokens=24, ignore_eos=True)["choices"][0]["text"]

    def run(**more):
        body = {"prompt": "The capital of France is", "max_tokens": 24, "temperature": 0, "ignore_eos": True, **more}
        if not stream:
            c = complete(text, **body)["choices"][0]
            return c["text"], c["finish_reason"], c["stop_reason"]
        parts = chunks(text, "/v1/completions", body)
        return "".join(p["choices"][0]["text"] for p in parts), parts[-1]["choices"][0]["finish_reason"], parts[-1]["choices"][0]["stop_reason"]

    for a, b in [(3, 5), (5, 16), (10, 11), (0, 2), (12, 30)]:   # across the borders of tokens
        stop = free[a:b]
        at = free.index(stop)
        assert run(stop=stop) == (free[:at], "stop", stop)
        assert run(stop=["never said", stop]) == (free[:at], "stop", stop)
        assert run(stop=[stop], include_stop_str_in_output=True) == (free[:at] + stop, "stop", stop)
    assert run(stop=free[-3:] + "~") == (free, "length", None)   # held back, then given
    text.quiet()


def test_echo_with_logprobs(text):
    prompt = "The capital of Österreich is 😀"
    r = complete(text, prompt=prompt, echo=True, logprobs=2, max_tokens=5, return_token_ids=True)
    c = r["choices"][0]
    lp, n = c["logprobs"], r["usage"]["prompt_tokens"]
    assert c["text"].startswith(prompt) and lp["token_logprobs"][0] is None and lp["top_logprobs"][0] is None
    assert len(lp["tokens"]) == len(lp["token_logprobs"]) == len(lp["top_logprobs"]) == len(lp["text_offset"]) == n + len(c["token_ids"])
    assert all(x < 0 for x in lp["token_logprobs"][1:]) and lp["text_offset"][0] == 0
    assert lp["text_offset"] == sorted(lp["text_offset"]) and all(len(t) in (2, 3) for t in lp["top_logprobs"][1:])
    assert all(top[t] == v for t, v, top in zip(lp["tokens"][1:], lp["token_logprobs"][1:], lp["top_logprobs"][1:]))   # the token itself is always there
    for i, t in enumerate(lp["tokens"]):
        if not t.startswith("bytes:") and lp["text_offset"][i] + len(t) <= len(c["text"]):
            assert c["text"][lp["text_offset"][i]:][:len(t)] == t
    # the same from a stream, from a prompt that is scored only, and when decoding begins where the prompt ended
    parts = chunks(text, "/v1/completions", {"prompt": prompt, "echo": True, "logprobs": 2, "max_tokens": 5, "temperature": 0})
    assert sum((p["choices"][0]["logprobs"]["token_logprobs"] for p in parts), []) == lp["token_logprobs"]
    assert "".join(p["choices"][0]["text"] for p in parts) == c["text"]
    scored = complete(text, prompt=prompt, echo=True, logprobs=2, max_tokens=0)
    assert scored["choices"][0]["text"] == prompt and scored["usage"]["completion_tokens"] == 0
    assert scored["choices"][0]["logprobs"]["token_logprobs"] == lp["token_logprobs"][:n]
    assert complete(text, prompt=prompt, echo=True, max_tokens=0)["choices"][0]["text"] == prompt
    text.quiet()


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("prompt", ["hello<|im_end|>world", [504, 28120, 1, 2, 905], "I 🦩"], ids=["text", "ids", "cut"])
def test_offsets_are_those_of_the_text(text, prompt, skip):
    """Text comes back as it was given, with special tokens; ids as an answer would be written. The last prompt ends inside a character."""
    if prompt == "I 🦩":
        prompt = text.post("/tokenize", {"prompt": prompt})[1]["tokens"][:-1]
    body = {"prompt": prompt, "echo": True, "skip_special_tokens": skip}
    r = complete(text, **body, logprobs=0, max_tokens=4)
    c, n = r["choices"][0], r["usage"]["prompt_tokens"]
    lp = c["logprobs"]
    assert lp["text_offset"][n] == len(complete(text, **body, max_tokens=0)["choices"][0]["text"])
    for i, (t, at) in enumerate(zip(lp["tokens"], lp["text_offset"])):
        is_hidden = t.startswith("<|") and skip and (i >= n or not isinstance(prompt, str))
        if not t.startswith("bytes:") and not is_hidden:
            assert c["text"][at:][:len(t)] == t, (i, t, at, c["text"])


def test_tokenize_and_back(text):
    for prompt in ["Hello world", "", "a\u0000b", "😀 Ü\n\t", "x" * 50000]:
        status, r = text.post("/tokenize", {"prompt": prompt})
        assert status == 200 and r["count"] == len(r["tokens"]) and r["max_model_len"] == served(text)
        assert text.post("/detokenize", {"tokens": r["tokens"]})[1]["prompt"] == prompt
    assert text.post("/tokenize", {"prompt": "Hello world", "return_token_strs": True})[1]["token_strs"] == ["Hello", " world"]
    assert text.post("/detokenize", {"tokens": [10**6]})[1]["error"]["param"] == "tokens"
    assert text.post("/detokenize", {"tokens": "x"})[1]["error"]["param"] == "tokens"
    assert text.post("/tokenize", {"prompt": 5})[1]["error"]["param"] == "prompt"


def test_tokenizer_info(text, ids):
    """What lm-eval's remote tokenizer asks for; its chat template gives the prompts that the server makes."""
    info = json.loads(text.get("/tokenizer_info")[1])
    assert (info["bos_token"], info["eos_token"], info["vocab_size"], info["model_max_length"]) == ("<|im_start|>", "<|im_end|>", 49152, served(text))
    assert "<|im_start|>" in info["chat_template"] and "add_generation_prompt" in info["chat_template"]
    assert ids.get("/tokenizer_info")[0] == 404


def test_special_tokens_can_be_shown(text):
    body = {"messages": CHAT, "temperature": 0, "max_tokens": 3}
    hidden = text.post("/v1/chat/completions", {**body, "stop": ["<|im_end|>"]})[1]
    assert hidden["choices"][0]["finish_reason"] in ("stop", "length")
    r = text.post("/v1/completions", {"prompt": "<|im_start|>", "echo": True, "max_tokens": 0, "return_token_ids": True})[1]
    assert r["choices"][0]["prompt_token_ids"] == [1] and r["choices"][0]["text"] == "<|im_start|>"


def answered_meanwhile(s, body):
    """Short requests, up to three, that are answered before this one is."""
    with socket.create_connection(("127.0.0.1", s.port), timeout=120 * SLOW) as c:
        c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        n = 0
        while n < 3:
            assert s.get("/health")[0] == 200
            if select.select([c], [], [], 0)[0]:
                break                            # it is no longer at work
            n += 1
        assert c.recv(4096).startswith(b"HTTP/1.1 200")
    return n


def test_long_prompt_does_not_stop_the_others(text):
    """1.5 MB of one word take the tokenizer a moment; short requests go on meanwhile, though not each time for a client whom a busy machine lets wait as long."""
    body = json.dumps({"prompt": "x" * 1500000}).encode()
    assert any(answered_meanwhile(text, body) == 3 for _ in range(20))


# --- the HTTP edge -------------------------------------------------------------------------------------------------------------

def raw(s, data, close=False, timeout=5):
    """Sends bytes, returns all that comes until the server closes or nothing comes for a while."""
    with socket.create_connection(("127.0.0.1", s.port), timeout=timeout * SLOW) as c:
        c.sendall(data)
        if close:
            c.shutdown(socket.SHUT_WR)
        out = b""
        try:
            while True:
                part = c.recv(65536)
                if not part:
                    return out
                out += part
        except TimeoutError:
            return out + b"<open>"


RAW = [
    (b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"200 OK"),
    (b"GET /health HTTP/1.0\r\n\r\n", b"200 OK"),
    (b"HEAD /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"200 OK"),
    (b"\r\nGET /health?x=1 HTTP/1.1\r\nHost: x\r\nconnection: CLOSE\r\n\r\n", b"200 OK"),
    (b"GET http://host/health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"200 OK"),
    (b"GET /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"404 Not Found"),
    (b"GET /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", b"405 Method Not Allowed"),
    (b"nonsense\r\n\r\n", b"400 Bad Request"),
    (b"GET /health HTTP/1.1\nHost: x\n\r\n\r\n", b"400 Bad Request"),
    (b"GET /health HTTP/2.0\r\n\r\n", b"505 "),
    (b"G(T /health HTTP/1.1\r\nHost: x\r\n\r\n", b"400 Bad Request"),
    (b"GET /he\x01alth HTTP/1.1\r\nHost: x\r\n\r\n", b"400 Bad Request"),
    (b"GET /health FTP/1.1\r\n\r\n", b"400 Bad Request"),
    (b"GET health HTTP/1.1\r\nHost: x\r\n\r\n", b"400 Bad Request"),
    (b"GET http://host HTTP/1.1\r\nHost: x\r\n\r\n", b"400 Bad Request"),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nExpect: x\r\n\r\n", b"400 Bad Request"),
    (b"GET /health HTTP/1.1\r\nHost: x\r\n: c\r\n\r\n", b"400 Bad Request"),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nA: b\x01\r\n\r\n", b"400 Bad Request"),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nA: b\x00\r\n\r\n", b"400 Bad Request"),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n", b"400 Bad Request"),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nA b: c\r\n\r\n", b"400 Bad Request"),
    (b"GET /health HTTP/1.1\r\nHost: x\r\nA\x00: c\r\n\r\n", b"400 Bad Request"),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", b"400 Bad Request"),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999999999999999\r\n\r\n", b"400 Bad Request"),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\n", b"400 Bad Request"),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n", b"400 Bad Request"),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", b"501 Not Implemented"),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n", b"413 Content Too Large"),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n", b"413 Content Too Large"),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n", b"400 Bad Request"),
    (b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}}}\r\n", b"400 Bad Request"),
    (b"GET /" + b"a" * 70000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", b"431 "),
    (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 70000, b"431 "),
]


@pytest.mark.parametrize("data,want", RAW, ids=range(len(RAW)))
def test_raw_requests(ids, data, want):
    got = raw(ids, data)
    assert got.startswith(b"HTTP/1.1 " + want) and not got.endswith(b"<open>"), got[:300]
    if want[0:1] in b"45":
        json.loads(got.split(b"\r\n\r\n", 1)[1])["error"]


def test_chunked_body_and_pipelining(ids):
    body = json.dumps({"prompt": IDS, "max_tokens": 3, "temperature": 0}).encode()
    cut = [body[i:i + 7] for i in range(0, len(body), 7)]
    chunked = b"".join(b"%x;ext=1\r\n%s\r\n" % (len(c), c) for c in cut) + b"0\r\nTrailer: x\r\n\r\n"
    head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"
    one = head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked
    two = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    last = b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    got = raw(ids, one + two + last, timeout=20)
    assert got.count(b"HTTP/1.1 200 OK") == 3 and got.count(b"text_completion") == 2 and got.endswith(b'{"status":"ok"}'), got


def test_request_in_small_pieces(ids):
    body = json.dumps({"prompt": IDS, "max_tokens": 2}).encode()
    data = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    with socket.create_connection(("127.0.0.1", ids.port), timeout=20 * SLOW) as c:
        c.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(0, len(data), 3):
            c.sendall(data[i:i + 3])
            time.sleep(0.001)
        got = b""
        while part := c.recv(65536):
            got += part
    assert got.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n"), got


def test_http_1_0_stream(ids):
    body = json.dumps({"prompt": IDS, "max_tokens": 4, "stream": True}).encode()
    got = raw(ids, b"POST /v1/completions HTTP/1.0\r\nContent-Length: %d\r\n\r\n" % len(body) + body, timeout=20)
    head, rest = got.split(b"\r\n\r\n", 1)
    assert b"chunked" not in head and rest.startswith(b"data: {") and rest.endswith(b"data: [DONE]\n\n")


def test_refused_upload_sees_its_answer(tiny_model):
    with Suite("mixed", tiny_model, router={"max_body_bytes": 4096, "max_header_bytes": 2048}) as s:
        status, r = s.post("/v1/completions", {"prompt": [1] * 3000000})
        assert status == 413 and "longer than this path takes: at most 4096 bytes (max_body_bytes)" in r["error"]["message"]
        chunked = raw(s, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1388\r\n" + b"x" * 5000)
        assert chunked.startswith(b"HTTP/1.1 413") and b"at most 4096 bytes (max_body_bytes)" in chunked
        head = raw(s, b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 3000 + b"\r\n\r\n")
        assert b"longer than this server takes: at most 2048 bytes (max_header_bytes)" in head
        assert raw(s, b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 3000 + b"\r\n\r\n").startswith(b"HTTP/1.1 431")


def test_slow_and_idle_clients_are_closed(tiny_model):
    with Suite("mixed", tiny_model, router={"read_timeout_ms": 500, "idle_timeout_ms": 500}) as s:
        assert raw(s, b"GET /hea").startswith(b"HTTP/1.1 408")
        assert raw(s, b"") == b""


# --- clients that go away ------------------------------------------------------------------------------------------------------

SECOND = {"base": "small", "step_us": 2500.0}      # for 400 tokens


def long_request(s, stream, count=64, sock=None):
    body = json.dumps({"prompt": [IDS] * count, "max_tokens": 400, "ignore_eos": True, "stream": stream}).encode()
    c = sock or socket.socket()
    c.settimeout(20 * SLOW)
    c.connect(("127.0.0.1", s.port))
    c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return c


def generated(s):
    return s.ctl("decode-1", "status")["generated_tokens"]


def gone_count(s):
    return s.log("router").count("event=client_gone")


@pytest.mark.parametrize("phase", ["at-once", "before-the-answer", "in-the-stream", "reset"])
def test_disconnect_cancels_everywhere(slow, phase):
    s = slow
    before, tokens = gone_count(s), generated(s)
    s.quiet()
    c = long_request(s, stream=phase != "before-the-answer", count=128)
    if phase == "in-the-stream":
        while b"data: " not in c.recv(65536):
            pass
    elif phase != "at-once":
        wait_for(lambda: s.ctl("decode-1", "requests"))
    if phase == "reset":
        c.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    c.close()
    wait_for(lambda: gone_count(s) > before)
    s.quiet()
    assert gone_count(s) == before + 1
    assert generated(s) - tokens < 128 * 400 * 3 // 4       # cancelled, not finished for nobody
    wait_for(lambda: s.ctl("router", "requests") == [])
    assert len(s.tokens(IDS, 4)) == 4


def test_client_that_does_not_read_is_given_up(tiny_model):
    with Suite("mixed", tiny_model, router={"client_buffer_bytes": 65536, "write_timeout_ms": 1500}) as s:
        body = json.dumps({"prompt": [IDS] * 64, "max_tokens": 200, "ignore_eos": True, "stream": True, "logprobs": 20}).encode()
        with socket.socket() as c:
            c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            c.connect(("127.0.0.1", s.port))
            c.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            end = time.time() + 30 * SLOW
            while "does not take its answer" not in s.log("router") and "event=client_gone" not in s.log("router"):
                assert time.time() < end
                time.sleep(0.1)
            s.quiet()


def test_answers_without_a_worker_need_no_room(tiny_model):
    """Prompts that are only echoed, far longer together than what a client may be behind with: all of them come."""
    with Suite("mixed", tiny_model, router={"client_buffer_bytes": 65536}) as s:
        parts = chunks(s, "/v1/completions", {"prompt": [[5] * 400] * 16, "n": 8, "echo": True, "max_tokens": 0, "return_token_ids": True})
        assert sorted(p["choices"][0]["index"] for p in parts if p["choices"][0]["finish_reason"]) == list(range(128))
        s.quiet()


def test_abort_when_the_first_answer_has_ended(slow):
    """A client knows its request by the id of the first answer's attempt."""
    prompts = [[1, 2, 3, 4], [9, 8, 7, 6, 5]]
    some = [slow.tokens(p, n) for p, n in zip(prompts, (6, 40))]
    stop = next(t for t in some[0] if t not in some[1])
    rid, ends = None, {}
    for c in slow.stream("/v1/completions", {"prompt": prompts, "max_tokens": 400, "temperature": 0, "ignore_eos": True, "stop_token_ids": [stop]}):
        ends |= {x["index"]: x["finish_reason"] for x in c["choices"] if x["finish_reason"]}
        if 0 in ends and rid is None:
            rid = c["id"]
            assert slow.post("/v1/abort", {"request_id": rid}) == (200, {"aborted": True})
    assert ends == {0: "stop", 1: "abort"}
    assert slow.post("/v1/abort", {"request_id": rid})[0] == 404
    slow.quiet()


def test_abort_endpoint(slow):
    tokens = generated(slow)
    c = long_request(slow, stream=True, count=128)
    data = b""
    while b"\n" not in data.partition(b"data: ")[2]:
        data += c.recv(65536)
    rid = json.loads(data.split(b"data: ", 1)[1].split(b"\n", 1)[0])["id"]
    assert slow.post("/v1/abort", {"request_id": rid}) == (200, {"aborted": True})
    while b"[DONE]" not in data:
        data += c.recv(65536)
    c.close()
    assert b'"finish_reason":"abort"' in data
    assert slow.post("/v1/abort", {"request_id": rid})[0] == 404
    assert slow.post("/v1/abort", {"request_id": "x"})[0] == 400
    for text, says in ((rid, "no request " + rid), ("resp_" + "0" * 32, "no request resp_0"), ("x" * 32, "cancel takes one request id")):
        assert says in slow.pdctl("-d", "router", "cancel", text).stderr
    slow.quiet()
    assert generated(slow) - tokens < 128 * 400 * 3 // 4


# --- limits, keys, and workers that are not there --------------------------------------------------------------------------------

def test_access_keys(tiny_model):
    with Suite("mixed", tiny_model, keys={"a": "alpha", "b": "beta"}) as s:
        def status(path, key=None):
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=10 * SLOW)
            c.request("GET", path, headers={"Authorization": "Bearer " + key} if key else {})
            r = c.getresponse()
            r.read()
            return r.status
        assert [status("/v1/models", k) for k in (None, "alph", "alphaa", "alpha", "beta")] == [401, 401, 401, 200, 200]
        assert [status(p) for p in ("/health", "/ready", "/metrics")] == [200, 200, 200]


def ask(s, method, path, body=None, **headers):
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=20 * SLOW)
    c.request(method, path, body if body is None else json.dumps(body), {k.replace("_", "-"): v for k, v in headers.items()})
    r = c.getresponse()
    return r.status, dict(r.getheaders()), r.read()


def test_pages_of_other_origins(ids, tiny_model):
    """CORS: off by default; the preflight needs no key; errors carry the header, too."""
    status, headers, _ = ask(ids, "OPTIONS", "/v1/completions", Origin="https://a.example")
    assert status == 405 and not any(h.startswith("Access-Control") for h in headers)
    with Suite("mixed", tiny_model, router={"cors_allow_origin": "https://a.example"}, keys={"a": "alpha"}) as s:
        asked = "authorization,content-type,x-stainless-os"
        status, headers, body = ask(s, "OPTIONS", "/v1/chat/completions", Origin="https://a.example", Access_Control_Request_Method="POST",
                                    Access_Control_Request_Headers=asked)
        assert status == 200 and body == b"" and headers["Access-Control-Allow-Headers"] == asked and "POST" in headers["Access-Control-Allow-Methods"]
        for key, want in (("alpha", 200), ("beta", 401)):
            status, headers, _ = ask(s, "POST", "/v1/completions", {"prompt": IDS, "max_tokens": 2, "stream": True}, Authorization="Bearer " + key)
            assert status == want and headers["Access-Control-Allow-Origin"] == "https://a.example" and headers["Vary"] == "Origin"
    with pytest.raises(Exception):
        Suite("mixed", tiny_model, router={"cors_allow_origin": "https://a.example, https://b.example"}).__enter__()


def test_paths_and_keys_of_azure(tiny_model):
    with Suite("mixed", tiny_model, router={"served_model_name": "ti/ny"}, keys={"a": "alpha"}) as s:
        path, body = "/openai/deployments/ti%2Fny/completions?api-version=2024-10-21", {"prompt": IDS, "max_tokens": 2}
        assert [ask(s, "POST", path, body, **h)[0] for h in ({"api_key": "alpha"}, {"x_api_key": "alpha"}, {"api_key": "beta"}, {})] == [200, 200, 401, 401]
        assert ask(s, "POST", path, body, api_key="alpha", Authorization="Bearer beta")[0] == 401
        status, _, text = ask(s, "POST", "/openai/deployments/other/completions", body, api_key="alpha")
        assert status == 404 and json.loads(text)["error"]["code"] == "model_not_found"
        assert ask(s, "POST", "/openai/deployments/ti%2Fny/x/completions", body, api_key="alpha")[0] == 404
        assert ask(s, "GET", "/openai/deployments/ti%2Fny/chat/completions", api_key="alpha")[0] == 405


def test_other_names_of_the_model(tiny_model):
    with Suite("mixed", tiny_model, router={"served_model_name": "tiny", "model_aliases": ["gpt-4o", "a/b"]}) as s:
        assert [m["id"] for m in json.loads(s.get("/v1/models")[1])["data"]] == ["tiny", "gpt-4o", "a/b"]
        for name, want in (("tiny", 200), ("gpt-4o", 200), ("a/b", 200), ("gpt-4", 404), ("*", 404)):
            status, _, text = ask(s, "POST", "/v1/completions", {"model": name, "prompt": IDS, "max_tokens": 2})
            assert status == want and (status != 200 or json.loads(text)["model"] == "tiny")
        assert [ask(s, "GET", "/v1/models/" + name)[0] for name in ("gpt-4o", "a%2Fb", "gpt-4")] == [200, 200, 404]
        assert ask(s, "POST", "/openai/deployments/gpt-4o/completions", {"prompt": IDS, "max_tokens": 2})[0] == 200
    with Suite("mixed", tiny_model, router={"model_aliases": ["*"]}) as s:
        assert ask(s, "POST", "/v1/completions", {"model": "claude-3-7-sonnet-latest", "prompt": IDS, "max_tokens": 2})[0] == 200
        assert len(json.loads(s.get("/v1/models")[1])["data"]) == 1


def test_proxies_pass_streams_on(ids):
    """nginx would collect events, if it were not told."""
    for stream, want in ((True, "no"), (False, None)):
        status, headers, _ = ask(ids, "POST", "/v1/completions", {"prompt": IDS, "max_tokens": 2, "stream": stream})
        assert status == 200 and headers.get("X-Accel-Buffering") == want


def test_fingerprint_and_default_length(ids, tiny_model):
    r = complete(ids, prompt=IDS)
    assert re.fullmatch("fp_[0-9a-f]{12}", r["system_fingerprint"])
    assert {e["system_fingerprint"] for e in chunks(ids, "/v1/completions", {"prompt": IDS})} == {r["system_fingerprint"]}
    with Suite("mixed", tiny_model, worker={"block_tokens": 32}, router={"default_max_tokens": 5}) as s:
        other = complete(s, prompt=IDS, max_tokens=None, ignore_eos=True)
        assert other["usage"]["completion_tokens"] == 5 and other["system_fingerprint"] != r["system_fingerprint"]
        assert complete(s, prompt=IDS, max_tokens=7, ignore_eos=True)["usage"]["completion_tokens"] == 7
        n = served(s)
        assert complete(s, prompt=[5] * (n - 3), max_tokens=None, ignore_eos=True)["usage"]["completion_tokens"] == 3


def test_compressed_bodies(tiny_model):
    """gzip within max_body_bytes; what does not inflate, or is another coding, is 415; a bomb 413."""
    with Suite("mixed", tiny_model, router={"max_body_bytes": 100000}) as s:
        text = json.dumps({"prompt": IDS, "max_tokens": 4}).encode()
        whole = gzip.compress(text)

        def status(body, coding="gzip", path="/v1/completions"):
            c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=20 * SLOW)
            c.request("POST", path, body, {"Content-Encoding": coding})
            r = c.getresponse()
            return r.status, r.read().decode()
        assert [status(b, k)[0] for b, k in ((whole, "gzip"), (whole, "GZIP"), (text, "identity"), (gzip.compress(text.ljust(100000)), "gzip"))] == [200] * 4
        for body, says in ((text, "no gzip data"), (whole[:-9], "ends within"), (whole[:-1] + b"x", "no gzip data"), (whole + b"x", "more behind"), (b"", "ends within")):
            got, answer = status(body)
            assert got == 415 and says in answer, (body, answer)
        assert status(text, "br")[0] == status(whole, path="/v1/abort")[0] == 415
        assert status(gzip.compress(b" " * (50 << 20)))[0] == status(gzip.compress(text.ljust(100001)))[0] == 413
        assert status(gzip.compress(b"[]"))[0] == 400
        s.quiet()


def test_bounded(slow):
    """Of the sequences that max_requests allows, two clients have nearly all."""
    held = [long_request(slow, stream=True, count=60) for _ in range(2)]
    for c in held:
        assert b"200 OK" in c.recv(4096)
    body = json.dumps({"prompt": [[1]] * 31}).encode()
    got = raw(slow, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert got.startswith(b"HTTP/1.1 429") and re.search(rb"Retry-After: [1-9]\d*\r\n", got) and b"max_requests" in got
    for c in held:
        c.close()
    slow.quiet()
    assert slow.post("/v1/completions", {"prompt": [1], "max_tokens": 2})[0] == 200


def test_too_many_connections(tiny_model):
    """Those that only wait make room; those with a request do not."""
    with Suite("mixed", tiny_model, router={"max_connections": 16}) as s:
        idle = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(20)]
        assert raw(s, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200")
        busy = [socket.create_connection(("127.0.0.1", s.port)) for _ in range(8)]
        for c in busy:
            c.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        wait_for(lambda: s.ctl("router", "status")["connections"] == 8)
        got = raw(s, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert got.startswith(b"HTTP/1.1 503") and b"Retry-After" in got and b"max_connections" in got
        for c in idle + busy:
            c.close()
        end = time.time() + 20 * SLOW
        while not raw(s, b"GET /health HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").startswith(b"HTTP/1.1 200"):
            assert time.time() < end


def test_reload():
    """SIGHUP: limits and keys change while requests run; what needs a restart stays."""
    with Suite("mixed", sim=SECOND) as s:
        c = long_request(s, stream=True)
        data = c.recv(4096)
        keys = s.write_keys({"k": "k"})
        with open(f"{s.dir}/router.conf", "w") as f:
            f.write(f'name = "router"; rundir = "{s.dir}"; model = ""; http_listen = "127.0.0.1:1"; api_keys_file = "{keys}";\n')
        s.kill("router", 1, wait=False)
        end = time.time() + 20 * SLOW
        while s.get("/v1/models")[0] != 401:
            assert time.time() < end
            time.sleep(0.02)
        while part := c.recv(65536):
            data += part
            if b"data: [DONE]" in data[-40:]:
                break
        assert data.count(b"finish_reason\":\"length") == 64
        c.close()


def test_reload_is_all_or_nothing(tiny_model, tmp_path):
    """Access keys that cannot be read: neither they nor what else changed counts, and that is what the daemon shows."""
    with Suite("mixed", tiny_model) as s:
        conf = f"{s.dir}/router.conf"
        before = open(conf).read()
        for bad in ("", "no key at all"):
            path = tmp_path / f"keys{len(bad)}"
            if bad:
                path.write_text(bad)
            with open(conf, "w") as f:
                f.write(before + f'max_choices = 1;\napi_keys_file = "{path}";\n')
            r = s.pdctl("-d", "router", "reload")
            assert r.returncode == 1 and str(path) in r.stderr, r
            shown = s.ctl("router", "config")
            assert shown["api_keys_file"]["value"] == "" and shown["max_choices"]["value"] > 1
            assert s.post("/v1/completions", {"prompt": [5], "max_tokens": 1, "n": 2})[0] == 200
        log = s.log("router")
        assert log.count("event=reload_failed") == 2 and "event=reloaded" not in log


def test_no_worker(tiny_model):
    with Suite("mixed", tiny_model, router={"retry_wait_ms": 300}) as s:
        assert s.get("/ready")[0] == s.get("/health")[0] == 200
        s.kill("mixed-1")
        end = time.time() + 20 * SLOW
        while s.get("/ready")[0] != 503:
            assert time.time() < end
        got = raw(s, b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 15\r\n\r\n" + b'{"prompt": [1]}')
        assert got.startswith(b"HTTP/1.1 503") and b"Retry-After: " in got and b'"error"' in got
        assert json.loads(s.get("/health")[1]) == {"status": "no worker", "workers": 0}
        assert s.get("/live")[0] == 200
        # an operator sees requests that failed, not clients that gave up
        status = s.ctl("router", "status")
        assert (status["failed"], status["cancelled"]) == (1, 0), status
        assert re.search('event=request_done .* finish=error status=503 why="no worker came back in time', s.log("router"))
        time.sleep(0.3)     # now it counts no more as one that restarts
        t = time.time()
        status, r = s.post("/v1/completions", {"prompt": [1]})
        assert status == 503 and r["error"]["message"].startswith("no worker is ready") and (SLOW > 1 or time.time() - t < 0.3), r


def test_what_is_missing(tiny_model):
    with Suite("1p1d", tiny_model) as s:
        s.kill("decode-1")
        wait_for(lambda: s.get("/health")[0] == 503)
        assert json.loads(s.get("/ready")[1]) == {"status": "no decode worker", "workers": 1}
        s.restart("decode-1")
        wait_for(lambda: s.get("/health")[0] == 200)
        s.kill("prefill-1")         # the decode worker does it all
        wait_for(lambda: json.loads(s.get("/ready")[1])["workers"] == 1)
        assert s.get("/ready")[0] == 200


def test_tools_that_the_template_does_not_show(text, real_model):
    """SmolLM2's template knows no tools."""
    assert "event=template_without_tools" not in text.log("router")
    with Suite("mixed", real_model, router={"tool_parser": "hermes"}) as s:
        assert "event=template_without_tools tool_parser=\"hermes\"" in s.log("router")


def test_deadline(tiny_model):
    with Suite("mixed", tiny_model, router={"request_timeout_ms": 300, "retry_wait_ms": 600000, "stuck_ms": 600000}) as s:
        s.kill("mixed-1", 19)   # SIGSTOP
        status, r = s.post("/v1/completions", {"prompt": IDS})      # this waits for a smaller part of the other limits
        assert status in (503, 504), r
        s.kill("mixed-1", 18)
        s.quiet()


def test_end_in_order():
    """SIGTERM: what runs is finished, new clients are turned away, a client who takes his time has all of his answer, the exit status is 0."""
    with Suite("mixed", sim=SECOND, router={"stop_timeout_ms": 20000 * SLOW}) as s, socket.socket() as c:
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)     # most of it stays at the router
        long_request(s, stream=True, sock=c)
        data = c.recv(65536)
        s.kill("router", 15, wait=False)

        def refused():
            try:
                return s.get("/health") is None
            except OSError:
                return True
        wait_for(refused)
        wait_for(lambda: s.log("router").count("event=request_done") == 64 or s.procs["router"].poll() is not None)
        while part := c.recv(1 << 20):
            data += part
        assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n") and data.count(b"finish_reason\":\"length") == 64
        assert s.procs["router"].wait(20 * SLOW) == 0


def test_metrics_and_models(ids):
    ids.tokens(IDS, 4)
    wait_for(lambda: 'vllm:num_requests_running{model_name="tiny"} 0' in ids.get("/metrics")[1])     # a sequence is there until the prefill worker's account has come, too
    text = ids.get("/metrics")[1]
    for name in ('vllm:num_requests_running{model_name="tiny"} 0', 'vllm:time_to_first_token_seconds_count{model_name="tiny"} ',
                 'vllm:request_success_total{model_name="tiny",finished_reason="length"} ', 'pdserve_workers_up{model_name="tiny"} 2',
                 'pdserve_worker_up{worker="prefill-1",role="prefill"} 1', 'vllm:kv_cache_usage_perc{model_name="tiny"} '):
        assert name in text, text

    def value(name):
        return float(re.search(rf'^{name}{{model_name="tiny"}} (\S+)$', ids.get("/metrics")[1], re.M)[1])
    names = ["vllm:inter_token_latency_seconds_count", "vllm:request_queue_time_seconds_count", "vllm:prefix_cache_queries_total", "vllm:prefix_cache_hits_total"]
    before, prompt = [value(n) for n in names], [(7 * i) % 300 + 9 for i in range(100)]
    for _ in range(2):
        complete(ids, prompt=prompt, max_tokens=5, ignore_eos=True)
    wait_for(lambda: [value(n) - b for n, b in zip(names, before)] == [8, 2, 200, 64], lambda: [value(n) for n in names])
    assert json.loads(ids.get("/v1/models/tiny")[1])["id"] == "tiny"
    assert ids.get("/v1/models/other")[0] == 404

    def workers():
        return {x["name"]: (x["role"], x["state"], x["requests"]) for x in ids.ctl("router", "workers")}
    wait_for(lambda: workers() == {"prefill-1": ("prefill", "up", 0), "decode-1": ("decode", "up", 0)}, workers)


def test_one_summary_line_a_request(ids):
    r = complete(ids, prompt=IDS, max_tokens=5)
    mine = f"req={r['id'].removeprefix('cmpl-')} event=request_done "
    wait_for(lambda: mine in ids.log("router"))
    complete(ids, prompt=IDS, max_tokens=5)
    lines = [x for x in ids.log("router").splitlines() if mine in x]
    assert len(lines) == 1
    f = dict(x.split("=", 1) for x in lines[0].split() if "=" in x)
    assert f["output_tokens"] == "5" and f["prefill"] == "prefill-1" and f["decode"] == "decode-1"
    assert f["finish"] == "length" and f["status"] == "200" and f["attempts"] == "1" and int(f["total_us"]) > int(f["first_token_us"]) > 0
