"""One access key with much to do costs another one little. Real daemons; times are compared with those of the same moment, since the machine may be busy."""
import http.client
import json
import statistics
import threading
import time

import pytest
from suite import SLOW, Suite


def ask(s, key, body):
    """(status, seconds)"""
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60 * SLOW)
    try:
        began = time.monotonic()
        c.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {key}"})
        r = c.getresponse()
        r.read()
        return r.status, time.monotonic() - began
    finally:
        c.close()


# what a greedy client sends, and on how many connections; what it may be answered
CASES = {
    "many_answers": (10, {"prompt": list(range(3, 67)), "n": 128, "max_tokens": 16, "ignore_eos": True}, 200),
    "long_texts": (24, {"prompt": [5] * 150000, "max_tokens": 1}, 400),     # longer than the context: known when it is parsed
}


@pytest.mark.parametrize("case", CASES)
def test_a_greedy_key_costs_another_little(tiny_model, case):
    """Its own requests wait for each other; another key's wait for a few of its steps or jobs."""
    connections, what, status = CASES[case]
    greedy, body, over = [], json.dumps(what), threading.Event()
    small = json.dumps({"prompt": [5, 6, 7], "max_tokens": 8, "ignore_eos": True})
    if status == 400:
        small += " " * 5000     # it goes to a text thread, too
    with Suite("1p1d", tiny_model, keys={"a": "ka", "b": "kb"}) as s:
        assert ask(s, "kb", small)[0] == 200

        def want():
            while not over.is_set():
                greedy.append(ask(s, "ka", body))

        threads = [threading.Thread(target=want) for _ in range(connections)]
        for t in threads:
            t.start()
        while len(greedy) < connections:
            time.sleep(0.01)
        got = [ask(s, "kb", small) for _ in range(15)]
        over.set()
        for t in threads:
            t.join()
    assert {g[0] for g in greedy} == {status}
    assert [g[0] for g in got] == [200] * 15
    waited, theirs = statistics.median(g[1] for g in got), statistics.median(g[1] for g in greedy)
    assert waited < theirs / 4, f"another key's request takes {waited:.3f} s, one of the greedy key's {theirs:.3f} s"
