"""bench_path_shaped.py - KV over TCP between two messagers (bench_path) against iperf3 over the same shaped link, in turns, in words and as figures.

    python3 tests/bench/bench_path_shaped.py [-n TURNS] [--seconds S] [--connections 1,2,4] [--congestion cubic,bbr] [--links 10/40] [--mtu BYTES] PROGRAM

The link is a veth pair in a qemu guest (TCG), with netem in both directions: shaped_guest.sh. `--links` are MS/MBIT: delay in each direction, so the round trip
is twice that, and rate; 0 is the link without netem. CPU is user and system time of both processes in seconds for each GB (10^9 bytes): the emulated CPU's,
so it says something only beside iperf3's.
"""
import argparse
import collections
import json
import os
import subprocess
import sys

import benchlib

WAYS = [("iperf3", "iperf3"), ("plain", "KV, plain"), ("encrypted", "KV, encrypted")]


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
    """One link, congestion control and number of connections"""

    def __init__(self):
        self.ways = collections.defaultdict(list)

    def add(self, way, text):
        self.ways[way].append(iperf3_result(text) if way == "iperf3" else path_result(text))

    def report(self, report, link, congestion, connections):
        for way, words in WAYS:
            rate, sender, receiver = (benchlib.median(x) for x in list(zip(*self.ways[way]))[:3])
            of_peer = benchlib.median([x[0] / y[0] for x, y in zip(self.ways[way], self.ways["iperf3"])])
            report.say(f"{words + ',':14} {congestion}, {connections} connections: {rate:5.2f} MB/s ({of_peer * 100:3.0f} % of iperf3), CPU {sender:.0f} + {receiver:.0f} s/GB")
            name = f"{way}_{link.replace('/', 'ms_')}_{congestion}_{connections}"
            report.result(f"{name}_mb_s", f"{rate:.2f}")
            report.result(f"{name}_of_iperf3", f"{of_peer:.2f}")
            report.result(f"{name}_cpu_s_gb", f"{sender + receiver:.0f}")


def guest_lines(a):
    opts = {"links": a.links, "congestion": a.congestion, "connections": a.connections, "turns": a.n, "seconds": a.seconds, "blocks": a.blocks, "mtu": a.mtu}
    guest = subprocess.Popen([os.path.join(benchlib.HERE, "shaped.sh"), a.program, str(a.limit)] + [f"{k}={v}" for k, v in opts.items()], stdout=subprocess.PIPE, text=True)
    for line in guest.stdout:
        yield line.rstrip("\n").split(" ", 4)
    if guest.wait():
        sys.exit("the guest failed")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("-n", type=int, default=3)
    a.add_argument("--seconds", type=int, default=5)
    a.add_argument("--connections", default="1,2,4")
    a.add_argument("--congestion", default="cubic,bbr")
    a.add_argument("--links", default="10/40,5/40")
    a.add_argument("--mtu", type=int, default=9000)
    a.add_argument("--blocks", type=int, default=1, help="of a lease, each 8 MiB")
    a.add_argument("--limit", type=int, default=1800, help="seconds that the guest may run")
    a.add_argument("program")
    a = a.parse_args()
    report = benchlib.Report("KV over TCP through a shaped link", "make bench-path-shaped")
    report.say(f"qemu guest (TCG, 2 CPUs, Linux 6.1), veth pair, MTU {a.mtu}, no GSO; netem in each direction: delay and rate as named, loss 0.1 % of packets;")
    report.say(f"leases of {a.blocks * 8} and {a.blocks * 4} MiB, two at once; medians of {a.n} turns of {a.seconds} s; what is said about leases goes past the link")
    seen, last = Seen(), None
    verified, restarts = 0, 0
    for way, *rest in guest_lines(a):
        if way not in ("iperf3", "plain", "encrypted", "verified", "ping"):
            print(way, *rest, flush=True)
            continue
        link, congestion, connections, text = rest
        if last and last != (link, congestion, connections):
            seen.report(report, *last)
            seen, last = Seen(), None
        if way == "ping":
            report.say(f"--- {link.replace('/', ' ms each way, ')} Mbit/s; ping {text.replace('/', ' / ')} ms (min / avg / max)" if link != "0" else f"--- no netem; ping {text} ms")
            continue
        last = (link, congestion, connections)
        seen.add(way, text)
        if way == "verified":
            verified += 1
        if way != "iperf3":
            restarts += seen.ways[way][-1][3]
    if last:
        seen.report(report, *last)
    report.say(f"{verified} further runs, half of them encrypted, compared all bytes with the sender's: no difference. Connections cut in all runs: {restarts:.0f}")
    report.result("verified_runs", verified)
    report.result("restarts", f"{restarts:.0f}")
    report.end()


main()
