"""conftest.py - a running pdserve for client packages: PD_URL names one, else the suite is started here with PD_MODEL."""
import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "e2e"))


@pytest.fixture(scope="session")
def url():
    if os.environ.get("PD_URL"):
        yield os.environ["PD_URL"].rstrip("/") + "/v1"
        return
    if not os.environ.get("PD_MODEL"):
        pytest.skip("neither PD_URL (a running server) nor PD_MODEL (a GGUF file) is set")
    from suite import Suite
    with Suite("1p1d", os.environ["PD_MODEL"]) as s:
        yield f"http://127.0.0.1:{s.port}/v1"
        s.quiet()
