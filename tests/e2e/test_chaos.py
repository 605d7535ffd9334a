"""What make chaos makes of an answer, at a server that answers as the test says: a cut stream, one that ends without [DONE], and wrong tokens are told apart,
whatever else is wrong with that answer, and each is counted and told with the router's lines of its request."""
import argparse
import json
import os
import random
import socket
import sys
import threading
import time

import pytest
from suite import ROOT

sys.path.insert(0, os.path.join(ROOT, "tests", "chaos"))
import chaos  # noqa: E402

WANT = [[[7, 8, 9]]]         # of each prompt, of each choice
ID = "cmpl-0123456789abcdef"
HEAD = f"HTTP/1.1 200 OK\r\nX-Request-Id: {ID}\r\n"


def event(**body):
    return "data: " + json.dumps(body) + "\n\n"


def tokens(*ids):
    return event(choices=[{"index": 0, "token_ids": list(ids)}])


def chunk(text):
    return f"{len(text):x}\r\n{text}\r\n"


ERROR, DONE, END = event(error={"message": "no worker came back"}), "data: [DONE]\n\n", "0\r\n\r\n"
STREAMS = {   # what is sent in chunks, whether the last chunk follows, and what it is
    "right": ([tokens(7), tokens(8, 9), DONE], True, "right"),
    "error event": ([tokens(7), ERROR, DONE], True, "not served: error event no worker came back"),
    "error event, no [DONE]": ([tokens(7), ERROR], True, "not served: error event no worker came back"),
    "cut": ([tokens(7)], False, "FAULT cut"),
    "cut before the first event": ([], False, "FAULT cut"),
    "cut within an event": ([tokens(7), tokens(8)[:9]], False, "FAULT cut"),
    "no [DONE]": ([tokens(7, 8, 9)], True, "FAULT no_end"),
    "wrong": ([tokens(7), tokens(5, 9), DONE], True, "FAULT wrong"),
    "too few": ([tokens(7), DONE], True, "FAULT wrong"),
    "too many": ([tokens(7, 8, 9, 9), DONE], True, "FAULT wrong"),
    "another choice": ([event(choices=[{"index": 1, "token_ids": [7]}]), DONE], True, "FAULT wrong"),
    "wrong, then cut": ([tokens(7), tokens(5)], False, "FAULT wrong"),
    "wrong, no [DONE]": ([tokens(7), tokens(5)], True, "FAULT wrong"),
    "wrong, then an error event": ([tokens(5), ERROR, DONE], True, "FAULT wrong"),
}
WHOLE = {
    "right": ({"choices": [{"index": 0, "token_ids": [7, 8, 9]}]}, True, "right"),
    "wrong": ({"choices": [{"index": 0, "token_ids": [7, 5, 9]}]}, True, "FAULT wrong"),
    "cut": ({"choices": [{"index": 0, "token_ids": [7, 8, 9]}]}, False, "FAULT cut"),
}


class Played:
    """The suite: its router sends one answer, and has a log."""

    def __init__(self, answer):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.serve, args=(answer,), daemon=True).start()

    def serve(self, answer):
        c, _ = self.listener.accept()
        with c:
            c.recv(65536)
            c.sendall(answer.encode())

    def log(self, name):
        return f"{name} event=submitted req=0123456789abcdef\n{name} event=submitted req=ffff\n"


class Always(random.Random):
    """Streams or not, and does not leave."""

    def __init__(self, value):
        super().__init__(1)
        self.value = value

    def random(self):
        return self.value


def outcome(answer, streams, router_gone=()):
    c = chaos.Chaos(argparse.Namespace(seed=1))
    c.s, c.prompts.want, c.router_gone = Played(answer), WANT, list(router_gone)
    c.ask(Always(0.5 if streams else 0.9), 0)
    return c


def expect(c, want):
    assert dict(c.counts) == {want: 1}, c.faults
    assert len(c.faults) == want.startswith("FAULT")
    for text in c.faults:
        assert ID in text and "router event=submitted req=0123456789abcdef" in text and "req=ffff" not in text


@pytest.mark.parametrize("name", STREAMS)
def test_streams(name):
    parts, ends, want = STREAMS[name]
    expect(outcome(HEAD + "Transfer-Encoding: chunked\r\n\r\n" + "".join(map(chunk, parts)) + (END if ends else ""), True), want)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_answers(name):
    body, ends, want = WHOLE[name]
    text = json.dumps(body)
    expect(outcome(HEAD + f"Content-Length: {len(text)}\r\n\r\n" + (text if ends else text[:-9]), False), want)


def test_the_routers_end_excuses_a_cut_alone():
    gone = [[time.time() - 1, None]]
    head = HEAD + "Transfer-Encoding: chunked\r\n\r\n"
    assert dict(outcome(head + chunk(tokens(7)), True, gone).counts) == {"cut by the router's end": 1}
    expect(outcome(head + chunk(tokens(5)), True, gone), "FAULT wrong")
    expect(outcome(head + chunk(tokens(7)) + END, True, gone), "FAULT no_end")


def test_the_summary_has_each_kind(capsys):
    c = outcome(HEAD + "Transfer-Encoding: chunked\r\n\r\n" + chunk(tokens(5)) + END, True)
    assert c.report() == 1
    lines = capsys.readouterr().out.splitlines()
    assert {"RESULT cut=0", "RESULT no_end=0", "RESULT wrong=1", "RESULT faults=1", "RESULT requests=1", "RESULT right=0"} <= set(lines)
