"""OpenAI's specification and the answers of programs that have their own clients: those of this folder's tests are looked at by conftest.py."""
import os
import subprocess

import openai_spec
import pytest
from suite import BUILD, ENV, SLOW

PROGRAMS = ("answers", "api", "dialects", "template", "tools")


@pytest.mark.parametrize("name", PROGRAMS)
def test_answers_of_a_router_with_scripted_workers(name, tmp_path):
    """Every way in which an answer can end, fail or be cut into pieces: the unit tests of the router's API have them all."""
    program = os.path.join(BUILD, "test", "test_router_" + name)
    if not os.path.exists(program):
        pytest.skip(f"{program} is not built: make {os.path.relpath(program)}")
    subprocess.run([program], env={**ENV, "PD_ANSWERS": str(tmp_path)}, stdout=subprocess.DEVNULL, check=True, timeout=240 * SLOW)
    before, statuses = dict(openai_spec.checked), set()
    for answer in sorted(tmp_path.iterdir()):
        path, _, data = answer.read_bytes().partition(b"\n")
        if data.startswith(b"HTTP/1."):
            statuses.add(openai_spec.check_raw("POST", path.decode(), data))
    held = {n: k - before.get(n, 0) for n, k in openai_spec.checked.items() if k != before.get(n, 0)}
    print(name, statuses, held)
    assert 200 in statuses and sum(held.values()) >= 10, (statuses, held)


def test_a_violation_is_found():
    """An answer without its id, an event of a kind that there is not, and an error whose code is a number."""
    def answer(body, kind="application/json", status=200):
        body = body.encode()
        return b"HTTP/1.1 %d x\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n%s" % (status, kind.encode(), len(body), body)
    openai_spec.check_raw("POST", "/v1/completions", answer('{"object":"text_completion","created":1,"model":"m","choices":[]}'))
    openai_spec.check_raw("POST", "/v1/responses", answer('data: {"type":"response.nothing","sequence_number":1}\n\n', "text/event-stream"))
    openai_spec.check_raw("GET", "/v1/models/m?x", answer('{"error":{"message":"m","type":"t","param":null,"code":404}}', status=404))
    openai_spec.check_raw("GET", "/metrics", answer("no JSON"))
    wrong = openai_spec.violations()
    assert len(wrong) == 3 and "'id' is a required" in wrong[0] and "ErrorResponse at $.error.code" in wrong[2], wrong
