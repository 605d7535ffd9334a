"""Random answers of schemas, as an automaton allows them token by token: an independent validator accepts every one. Left out without the package jsonschema."""
import json
import os
import subprocess
import sys

import pytest
from suite import BIN, ROOT

pytest.importorskip("jsonschema")
DATA = os.path.join(ROOT, "tests", "data", "grammar")
sys.path.insert(0, DATA)
from make_cases import validator_of  # noqa: E402

PROGRAM = os.path.join(os.path.dirname(BIN), "test", "test_grammar_cases")


def test_walks_are_valid():
    cases = []
    for name in ("cases.json", "clients.json"):
        with open(os.path.join(DATA, name), encoding="utf-8") as f:
            cases += json.load(f)
    valid = [validator_of(c["schema"]) for c in cases]
    out = subprocess.run([PROGRAM, "--walks", "60"], cwd=ROOT, check=True, capture_output=True).stdout.decode()
    seen = [0] * len(cases)
    for line in out.rstrip("\n").split("\n"):
        i, _, text = line.partition("\t")
        assert valid[int(i)](json.loads(text)), (cases[int(i)]["schema"], text)
        seen[int(i)] += 1
    assert min(seen) >= 20, (seen, cases[seen.index(min(seen))])
