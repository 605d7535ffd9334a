"""bench_path_shaped.py - KV over TCP between two messagers (bench_path) against iperf3 over the same shaped link, in turns, in words and as figures.

    python3 tests/bench/bench_path_shaped.py [-n TURNS] [--seconds S] [--connections 1,2,4] [--cases 10/40/cubic/plain,...] [--mtu BYTES] PROGRAM

The link is a veth pair in a qemu guest (TCG), with netem in both directions: shaped_guest.sh. A case is MS/MBIT/CONGESTION/WAY: delay in each direction, so
the round trip is twice that; rate; cubic or bbr; plain or encrypted. With 0 ms there is no netem. CPU is user and system time of both processes in seconds
for each GB (10^9 bytes): the emulated CPU's, so it says something only beside iperf3's. Encrypted cases need a lower rate, one that the emulator can fill.
"""
import argparse
import collections
import json
import os
import subprocess
import sys

import benchlib

WORDS = {"iperf3": "iperf3", "plain": "KV, plain", "encrypted": "KV, encrypted"}


def iperf3_result(text):
    """MB/s, CPU seconds of sender and receiver for each GB"""
    end = json.loads(text)["end"]
    got, cpu = end["sum_received"], end["cpu_utilization_percent"]
    per_gb = got["seconds"] / 100 / (got["bytes"] / 1e9)
    return [got["bytes"] / got["seconds"] / 1e6, cpu["host_total"] * per_gb, cpu["remote_total"] * per_gb]


def path_result(text):
    """The same, connections made again, and MB sent again"""
    if not text.startswith("path "):
        sys.exit(f"bench_path said: {text}")
    return [float(x) for x in text.split()[1:]]


class Seen:
    """One case with one number of connections"""

    def __init__(self, case, connections):
        self.case, self.connections = case, connections
        self.ways = collections.defaultdict(list)

    def add(self, way, text):
        self.ways[way].append(iperf3_result(text) if way == "iperf3" else path_result(text))

    def report(self, report):
        ms, mbit, congestion, kv = self.case.split("/")
        for way in ("iperf3", kv):
            rate, sender, receiver = (benchlib.median(x) for x in list(zip(*self.ways[way]))[:3])
            of_peer = benchlib.median([x[0] / y[0] for x, y in zip(self.ways[way], self.ways["iperf3"])])
            report.say(f"{WORDS[way] + ',':14} {self.connections} connections: {rate:5.2f} MB/s ({of_peer * 100:3.0f} % of iperf3), CPU {sender:.0f} + {receiver:.0f} s/GB")
            name = f"{way}_{ms}ms_{mbit}mbit_{congestion}_{self.connections}"
            report.result(f"{name}_mb_s", f"{rate:.2f}")
            report.result(f"{name}_of_iperf3", f"{of_peer:.2f}")
            report.result(f"{name}_cpu_s_gb", f"{sender + receiver:.0f}")


def guest_lines(a):
    opts = {"cases": a.cases, "connections": a.connections, "turns": a.n, "seconds": a.seconds, "blocks": a.blocks, "mtu": a.mtu}
    guest = subprocess.Popen([os.path.join(benchlib.HERE, "shaped.sh"), a.program, str(a.limit)] + [f"{k}={v}" for k, v in opts.items()], stdout=subprocess.PIPE, text=True)
    for line in guest.stdout:
        yield line.rstrip("\n").split(" ", 3)
    if guest.wait():
        sys.exit("the guest failed")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("-n", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--connections", default="1,2,4")
    parser.add_argument("--cases", default="10/40/cubic/plain,10/40/bbr/plain,10/8/cubic/encrypted")
    parser.add_argument("--mtu", type=int, default=9000)
    parser.add_argument("--blocks", type=int, default=1, help="of a lease, each 8 MiB")
    parser.add_argument("--limit", type=int, default=1800, help="seconds that the guest may run")
    parser.add_argument("program")
    a = parser.parse_args()
    given = [("MTU", "mtu"), ("CASES", "cases"), ("CONNECTIONS", "connections"), ("TURNS", "n"), ("SECONDS", "seconds")]
    changed = [f"{name}={getattr(a, key)}" for name, key in given if getattr(a, key) != parser.get_default(key)]
    report = benchlib.Report(f"KV over TCP through a shaped link, MTU {a.mtu}", " ".join(["make bench-path-shaped", *changed]))
    report.say(f"qemu guest (TCG, 2 CPUs, Linux 6.1), veth pair, MTU {a.mtu}, no GSO; netem in each direction: delay, rate, 0.1 % of packets lost;")
    report.say(f"leases of {a.blocks * 8} and {a.blocks * 4} MiB, two at once; medians of {a.n} turns of {a.seconds} s; messages about leases go past the link")
    seen, verified, restarts = None, 0, 0
    for way, *rest in guest_lines(a):
        if way not in (*WORDS, "verified", "ping"):
            print(way, *rest, flush=True)
            continue
        case, connections, text = rest
        if seen and (seen.case, seen.connections) != (case, connections):
            seen.report(report)
            seen = None
        if way == "ping":
            ms, mbit, congestion, _ = case.split("/")
            report.say(f"--- {f'{ms} ms each way, {mbit} Mbit/s' if ms != '0' else 'no netem'}, {congestion}; ping {text.replace('/', ' / ')} ms (min / avg / max)")
            continue
        seen = seen or Seen(case, connections)
        seen.add(way, text)
        verified += way == "verified"
        restarts += 0 if way == "iperf3" else seen.ways[way][-1][3]
    seen.report(report)
    report.say(f"in {verified} further runs the receiver compared all bytes with the sender's: no difference; data connections cut in all runs: {restarts:.0f}")
    report.result("verified_runs", verified)
    report.result("restarts", f"{restarts:.0f}")
    report.end()


main()
