"""hermes.py - a pdserve whose model is said to write calls as Hermes does and thoughts in <think>: the tests' model knows neither, but forms make it call, and it
repeats what it saw itself say."""
import os

import pytest


@pytest.fixture(scope="module")
def hermes():
    """Its address, without /v1."""
    if not os.environ.get("PD_MODEL"):
        pytest.skip("PD_MODEL (a GGUF file) is not set")
    from suite import Suite
    with Suite("1p1d", os.environ["PD_MODEL"], router={"tool_parser": "hermes", "reasoning_parser": "think"}, keys={"me": "secret"}) as s:
        yield f"http://127.0.0.1:{s.port}"
        s.quiet()


SAID = "<think>\nIt is cold there.\n</think>\n\nCold."
ASKED = "Weather in Oslo?"
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["seats", "class"],
          "properties": {"seats": {"type": "integer", "minimum": 1, "maximum": 9}, "class": {"enum": ["first", "second"]}}}


def good(booking):
    assert 1 <= booking.pop("seats") <= 9 and booking.pop("class") in ("first", "second") and booking == {}
