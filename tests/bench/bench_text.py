#!/usr/bin/env python3
"""bench_text.py - what stands between a client's text and the tokens, against the programs that others use for it, in turns in one run.

    bench_text.py [-n TURNS] [--only PART,...] MODEL

Each part is a file text_PART.py beside this one with a function run(model, turns, say); it prints its table and calls say(name, value) for each figure, which comes
out as "RESULT name=value". A part that lacks a package says so and is left out. With BENCH_WRITE=1 all of it is a section of RESULTS.md.
"""
import argparse
import importlib
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from benchlib import Report  # noqa: E402


class Tee:
    """What is printed, to the screen and to a report."""

    def __init__(self, screen):
        self.screen, self.said = screen, ""

    def write(self, text):
        self.said += text
        return self.screen.write(text)

    def flush(self):
        self.screen.flush()


def parts():
    return sorted(f[5:-3] for f in os.listdir(HERE) if f.startswith("text_") and f.endswith(".py"))


def say(name, value):
    print(f"RESULT {name}={value:.4g}" if isinstance(value, float) else f"RESULT {name}={value}", flush=True)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("-n", "--turns", type=int, default=5)
    p.add_argument("--only", default="")
    p.add_argument("model")
    args = p.parse_args()
    rep = Report("Text: tokenizers, chat templates, constrained output", "make bench-text")
    sys.stdout = tee = Tee(sys.stdout)
    for part in args.only.split(",") if args.only else parts():
        print(f"--- {part} ---", flush=True)
        importlib.import_module("text_" + part).run(args.model, args.turns, say)
    sys.stdout = tee.screen
    rep.text = tee.said.splitlines()
    if os.environ.get("BENCH_WRITE"):
        rep.end()


if __name__ == "__main__":
    main()
