"""Requests for one token, as evaluations and classifiers send them: the prefill worker answers alone, whatever else the request wants, and as a worker that does both would."""
import concurrent.futures
import random
import re

import pytest
from suite import Suite, wait_for

SIM = {"base": "small", "check": "always", "time_scale": 0.2}
IDS = [5, 9, 200, 13, 5, 5, 77, 31]


def prompt(seed, n):
    r = random.Random(seed)
    return [r.randrange(3, 320) for _ in range(n)]


def count(s, name, what):
    return len(re.findall(what, s.log(name)))


def test_needs_no_decode_worker():
    """Neither a place there nor a copy of the prompt's KV, and it need not be up."""
    prompts = [prompt(3000 + i, 300) for i in range(4)]
    with Suite(layout="1p1d", sim=SIM) as s:
        granted, copied = (lambda name=name, what=what: count(s, name, what) for name, what in (("decode-1", "event=granted"), ("messager", "event=transfer_done")))
        want = [s.tokens(p, n=2)[:1] for p in prompts]
        wait_for(lambda: granted() == copied() == len(prompts), "what the log says comes later")
        assert [s.tokens(p, n=1) for p in prompts] == want
        s.kill("decode-1")
        assert [s.tokens(p, n=1) for p in prompts] == want
        assert granted() == len(prompts)
        s.restart("decode-1")
        s.ready()
        assert [s.tokens(p, n=2)[:1] for p in prompts] == want
        wait_for(lambda: copied() >= 2 * len(prompts), "what the log says comes later")
        assert copied() == granted() == 2 * len(prompts)
        s.quiet()


def ask(**body):
    return "/v1/completions", {"prompt": IDS, "max_tokens": 1, "temperature": 0, "return_token_ids": True, **body}


def chat(text, **body):
    return "/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": 1, "temperature": 0, "return_token_ids": True, **body}


ASKED = {"plain": ask(), "logprobs": ask(logprobs=5), "prompt_logprobs": ask(prompt_logprobs=2, logprobs=1), "echo": ask(echo=True, logprobs=2),
         "bias": ask(logit_bias={"44": 100}), "penalties": ask(repetition_penalty=3, presence_penalty=2, logprobs=1), "many": ask(n=4, temperature=2, seed=3, logprobs=1),
         "prompts": ask(prompt=[IDS, IDS[::-1], [7]]), "random": ask(temperature=1.5, seed=9, top_p=0.9, min_p=0.01),
         "salt": ask(cache_salt="x"), "long": ask(prompt=prompt(1, 150), prompt_logprobs=1), "no tokens": ask(max_tokens=0, echo=True, logprobs=1),
         "chat": chat("Is the sky blue?", logprobs=True, top_logprobs=4), "choice": chat("Is the sky blue?", guided_choice=["yes", "no"], logprobs=True, top_logprobs=4),
         "regex": chat("A number?", guided_regex="[0-9]", temperature=1.0, seed=2), "schema": chat("A person", response_format={"type": "json_object"})}


def answer(s, path, body, streams):
    """All that must be the same of an answer."""
    def part(e):
        return {k: v for k, v in e.items() if k in ("choices", "usage")}
    if streams:     # several answers come in any order
        got = [part(e) for e in s.stream(path, {**body, "stream_options": {"include_usage": True}})]
        return sorted(got, key=lambda e: e["choices"][0]["index"] if e["choices"] else len(got))
    status, r = s.post(path, body)
    assert status == 200, r
    return part(r)


@pytest.fixture(scope="module")
def both(short_model):
    with Suite("mixed", short_model) as one, Suite("1p1d", short_model) as two:
        yield one, two


@pytest.mark.parametrize("kind,streams", [(k, s) for k in ASKED for s in (False, True) if not (s and "prompt_logprobs" in ASKED[k][1])])
def test_as_a_worker_that_does_both(both, kind, streams):
    path, body = ASKED[kind]
    one, two = both
    for _ in range(2):      # the second time from the prefix cache
        assert answer(two, path, body, streams) == answer(one, path, body, streams)


def test_a_stop_string_that_is_the_token(both):
    one, two = both
    for body in ({}, {"include_stop_str_in_output": True}):
        text = one.post(*ask())[1]["choices"][0]["text"]
        path, asked = ask(stop=text, **body)
        got = answer(two, path, asked, False)
        assert got == answer(one, path, asked, False)
        assert got["choices"][0]["finish_reason"] == "stop" and got["choices"][0]["text"] == (text if body else "")


def test_logs_name_no_decode_worker(both):
    """And none had part in any of those requests."""
    two = both[1]
    two.tokens(IDS, n=1)
    wait_for(lambda: count(two, "router", "event=submitted ") == count(two, "router", "event=request_done "), "all requests are done")
    lines = [x for x in two.log("router").splitlines() if re.search("event=(submitted|first_token|request_done) ", x)]
    assert lines and all(" prefill=prefill-1 decode=- " in x or x.endswith(" from=prefill-1 decode=-") for x in lines), lines
    assert count(two, "decode-1", "event=(granted|accepted)") == 0


def test_all_at_once():
    """More than a ring has slots, of which they take none, beside answers that do."""
    prompts = [prompt(i, 40 + i) for i in range(96)]
    with Suite(layout="1p1d", sim=SIM, prefill={"max_jobs": 128}) as s, concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
        n_of = lambda i: 1 if i % 4 else 3  # noqa: E731
        want = [s.tokens(p, n=n_of(i)) for i, p in enumerate(prompts)]
        for w in s.workers():
            s.ctl(w, "flush")
        assert list(pool.map(lambda i: s.tokens(prompts[i], n=n_of(i)), range(len(prompts)))) == want
        s.quiet()
