"""bench_preempt.py - a preemption storm on the real model: 24 requests at once, a pool for 3 of them. The same answers as with room for all; what saving to storage spares
against computing again; and with storage killed every second.

    python bench_preempt.py MODEL
"""
import os
import sys
import time

from benchlib import Report, machine

os.environ["PD_MODEL"] = sys.argv[1]
from storms import N, POOL, REAL, Disturber, at_the_start, counts, kill_and_restart, storm  # noqa: E402


def timed(s):
    begin = time.time()
    got, errors = storm(s, REAL)
    assert not errors, errors
    return got, time.time() - begin


def unpressured(rep):
    with REAL.suite("mixed", pool=False) as s:
        want, took = timed(s)
    rep.say(f"{N} requests of {len(REAL.prompts[0])}-{len(REAL.prompts[-1])} tokens and {REAL.answer} more, room for all: {took:.1f} s")
    return want


def under_pressure(rep, want, name, disturb=None, **options):
    """name: the first word of its figures."""
    with REAL.suite("mixed", **options) as s:
        if disturb:
            with Disturber(s, 1.0, disturb) as d:
                got, took = timed(s)
            rep.result(f"{name}_kills", d.rounds)
        else:
            got, took = timed(s)
        at_the_start(s)
        c = counts(s)
    same = sum(a == b for a, b in zip(got, want))
    rep.say(f"{name}: {took:.1f} s, {same} of {N} answers the same; {c['preemptions']} preemptions, {c['saved_blocks']} blocks saved, {c['saves_void']} waits over; came back "
            f"{c['restores_read']} by reading {c['restored_blocks']} blocks, {c['restores_computed']} by computing, {c['restores_kept']} with all in the pool; nothing is held")
    rep.result(f"{name}_same_answers", same)
    for k in ("preemptions", "restores_read", "restores_computed", "restores_kept"):
        rep.result(f"{name}_{k}", c[k])
    rep.result(f"{name}_s", took, 1)


def main():
    rep = Report("Preemption storm", "make bench-preempt")
    rep.say(f"{machine()}; pool of {REAL.blocks} blocks of 32 tokens, for {POOL} sequences; one mixed worker, 1 thread")
    want = unpressured(rep)
    under_pressure(rep, want, "preempt_computed", save_preempted_kv=False, output_caching=False, storage_read="never")
    under_pressure(rep, want, "preempt_saved", storage_read="auto")
    under_pressure(rep, want, "preempt_killed", kill_and_restart, storage_read="auto")
    rep.end()


if __name__ == "__main__":
    main()
