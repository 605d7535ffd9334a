"""conftest.py - what every end-to-end test may use. The real model comes from PD_MODEL; without it, and under sanitizers, the tiny golden model serves."""
import os
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))
from suite import GOLDEN, SAN  # noqa: E402


@pytest.fixture(scope="session")
def real_model():
    path = os.environ.get("PD_MODEL")
    if not path or SAN:
        pytest.skip("PD_MODEL is not set, or a sanitizer build" if not SAN else "too slow under a sanitizer")
    return path


@pytest.fixture(scope="session")
def tiny_model():
    return os.path.join(GOLDEN, "llama")
