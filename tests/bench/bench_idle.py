"""bench_idle.py - what a suite costs that nobody uses: processor time and wake-ups of each daemon, by thread.

1p1d, the tiny model (the model is not touched by an idle worker), a few requests first, a rest of two seconds, then --seconds of nothing. The figures are the
scheduler's own (/proc/PID/task/*/schedstat, nanoseconds on a processor; status, voluntary switches), not ticks.

    python bench_idle.py [--seconds 60]
"""
import argparse
import os
import time

from benchlib import Report
from suite import GOLDEN, Suite


def threads(pid):
    """{thread id: (name, ns on a processor, times it went to sleep)}"""
    out = {}
    for t in os.listdir(f"/proc/{pid}/task"):
        at = f"/proc/{pid}/task/{t}/"
        with open(at + "schedstat") as s, open(at + "comm") as c, open(at + "status") as st:
            switches = next(int(line.split()[1]) for line in st if line.startswith("voluntary_ctxt_switches"))
            out[t] = (c.read().strip(), int(s.read().split()[0]), switches)
    return out


def spent(before, after):
    """[(thread's name, ms, sleeps)] of threads that ran, the busiest first."""
    rows = []
    for t, (name, ns, switches) in after.items():
        _, ns0, switches0 = before.get(t, (name, 0, 0))
        if ns > ns0:
            rows.append((name, (ns - ns0) / 1e6, switches - switches0))
    return sorted(rows, key=lambda r: -r[1])


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--seconds", type=float, default=60)
    seconds = a.parse_args().seconds
    rep = Report("Idle", "make bench-idle")
    with Suite("1p1d", os.path.join(GOLDEN, "llama"), worker={"kv_memory_mb": 16}) as s:
        for i in range(5):
            s.tokens(list(range(3 + i, 60)), 8)
        time.sleep(2)
        before = {n: threads(s.procs[n].pid) for n in s.names}
        begin = time.monotonic()
        time.sleep(seconds)
        after = {n: threads(s.procs[n].pid) for n in s.names}
        minutes = (time.monotonic() - begin) / 60
    rep.say(f"# 1p1d, tiny model, {seconds:.0f} s without a request: processor time a minute, wake-ups a second, threads that ran")
    for n in s.names:
        rows = spent(before[n], after[n])
        total = sum(ms for _, ms, _ in rows) / minutes
        rep.say(f"{n:<10} {total:>6.1f} ms  {sum(k for _, _, k in rows) / minutes / 60:>5.1f}/s   " +
                ", ".join(f"{name} {ms / minutes:.1f} ms {k / minutes / 60:.1f}/s" for name, ms, k in rows))
        rep.result("idle_ms_per_min_" + n.split("-")[0], total, 1)
    rep.end()


main()
