"""Random answers of schemas, as an automaton allows them token by token: an independent validator accepts every one. Left out without the package jsonschema."""
import json
import os
import subprocess

import pytest
from suite import BIN, ROOT

jsonschema = pytest.importorskip("jsonschema")
PROGRAM = os.path.join(os.path.dirname(BIN), "test", "test_grammar_cases")


def test_walks_are_valid():
    with open(os.path.join(ROOT, "tests", "data", "grammar", "cases.json"), encoding="utf-8") as f:
        validators = [jsonschema.Draft202012Validator(c["schema"], format_checker=jsonschema.FormatChecker()) for c in json.load(f)]
    out = subprocess.run([PROGRAM, "--walks", "60"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    seen = [0] * len(validators)
    for line in out.rstrip("\n").split("\n"):
        i, _, text = line.partition("\t")
        validators[int(i)].validate(json.loads(text))
        seen[int(i)] += 1
    assert min(seen) >= 20, seen
