"""conftest.py - what every end-to-end test may use. The real model comes from PD_MODEL; without it, and under sanitizers, the tiny golden model serves."""
import os
import subprocess
import sys

import pytest

sys.path.insert(0, os.path.dirname(__file__))
import openai_spec  # noqa: E402
from suite import GOLDEN, ROOT, SAN  # noqa: E402


@pytest.fixture(scope="session")
def real_model():
    path = os.environ.get("PD_MODEL")
    if not path or SAN:
        pytest.skip("PD_MODEL is not set, or a sanitizer build" if not SAN else "too slow under a sanitizer")
    return path


@pytest.fixture(scope="session")
def short_model(real_model, tmp_path_factory):
    """The real model's vocabulary, template and sizes, and the first two of its 30 layers: a token takes two fifths of the time. For tests that need text, whatever it says."""
    path = str(tmp_path_factory.mktemp("short") / "short.gguf")
    subprocess.run([sys.executable, os.path.join(ROOT, "tools", "make-gguf"), "convert", "--layers", "2", real_model, "Q4_1", path], check=True)
    return path


@pytest.fixture(scope="session")
def tiny_model():
    return os.path.join(GOLDEN, "llama")


openai_spec.watch()


@pytest.fixture(autouse=True)
def as_openai_specifies():
    """What the test read from paths of OpenAI's API was all of it as OpenAI's specification says."""
    yield
    wrong = openai_spec.violations()
    assert not wrong, f"{len(wrong)} differ from OpenAI's specification {openai_spec.SPEC['version']}:\n" + "\n".join(wrong[:20])
