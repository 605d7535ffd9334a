"""conftest.py - a running pdserve for client packages: PD_URL names one, else the suite is started here with PD_MODEL. A second one asks for keys.

SmolLM2 writes no tool calls by itself, so tests force them: what a call looks like then follows from its schema.
"""
import json
import os
import re
import shutil
import sys
import time
import urllib.request

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))
KEY, ONCE = "sk-client", "sk-once"      # ONCE: one request a minute


def _suite(layout, **more):
    if not os.environ.get("PD_MODEL"):
        pytest.skip("PD_MODEL (a GGUF file) is not set")
    from suite import Suite
    return Suite(layout, os.environ["PD_MODEL"], router={"tool_parser": "hermes"}, **more)


@pytest.fixture(scope="session")
def server():
    """The address of a router, without a path."""
    if os.environ.get("PD_URL"):
        yield os.environ["PD_URL"].rstrip("/")
        return
    with _suite("1p1d") as s:
        yield f"http://127.0.0.1:{s.port}"
        s.quiet()


@pytest.fixture(scope="session")
def url(server):
    return server + "/v1"


@pytest.fixture(scope="session")
def keyed():
    """The address of a router that asks for KEY, or ONCE."""
    with _suite("1mixed", keys={"client": KEY, "once": (ONCE, "requests=1")}) as s:
        yield f"http://127.0.0.1:{s.port}"
        s.quiet()


@pytest.fixture(scope="session")
def model(url):
    with urllib.request.urlopen(url + "/models", timeout=60) as r:
        return json.load(r)["data"][0]["id"]


@pytest.fixture(scope="session")
def counts(server):
    """What the router has counted so far: requests that ended well, tokens of prompts, tokens of answers."""
    def read():
        time.sleep(0.11)        # a page is kept for 100 ms
        with urllib.request.urlopen(server + "/metrics", timeout=60) as r:
            text = r.read().decode()
        return [sum(float(v) for v in re.findall(rf"(?m)^vllm:{name}(?:{{[^}}]*}})? (\S+)$", text))
                for name in ("request_success_total", "prompt_tokens_total", "generation_tokens_total")]
    return read


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory):
    """A folder with some tokenizer, for benchmarks that make their prompts themselves: none comes from a hub."""
    d = tmp_path_factory.mktemp("tokenizer")
    shutil.copy(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "data", "tokenizer", "gpt2", "tokenizer.json"), d)
    (d / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    return str(d)
