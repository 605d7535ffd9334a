"""baselib.py - a Suite whose prefill workers run one of the designs that ours is measured against (tests/bench/baseline/main.c)."""
import os

import suite


class Baseline(suite.Suite):
    PROGRAM = {**suite.Suite.PROGRAM, "prefill": "../bench/pdprefilld_baseline"}


def suite_of(mode):
    """The class for this mode: "serial" and "shared" are baselines, every other one is the product."""
    if mode not in ("serial", "shared"):
        return suite.Suite
    suite.ENV["PREFILL_BASELINE"] = os.environ["PREFILL_BASELINE"] = mode
    return Baseline
