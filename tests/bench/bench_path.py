"""bench_path.py - KV over TCP between two messagers (bench_path) against iperf3 over the same loopback, in turns, in words and as figures.

    python3 tests/bench/bench_path.py [-n TURNS] [--seconds S] [--connections 1,2,4] PROGRAM

CPU is user and system time of both processes, in seconds for each GB (10^9 bytes). An encrypted path cannot reach iperf3's rate where the CPUs
are the limit: each end also spends the cipher's own time, which `openssl speed` gives for the same library.
"""
import argparse
import json
import re
import shutil
import socket
import subprocess
import sys
import time

import benchlib

WAYS = [("iperf3", "iperf3"), ("plain", "KV, plain"), ("encrypted", "KV, encrypted")]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def iperf3(connections, seconds):
    """MB/s, CPU seconds per GB of sender and receiver."""
    port = str(free_port())
    server = subprocess.Popen(["iperf3", "-s", "-1", "-B", "127.0.0.1", "-p", port], stdout=subprocess.DEVNULL)
    try:
        for _ in range(50):
            time.sleep(0.1)
            out = subprocess.run(["iperf3", "-c", "127.0.0.1", "-p", port, "-t", str(seconds), "-P", str(connections), "-J"],
                                 stdout=subprocess.PIPE, text=True)
            end = json.loads(out.stdout).get("end", {})
            if "sum_received" in end:
                break
        else:
            sys.exit(f"iperf3 failed: {out.stdout}")
        got, cpu = end["sum_received"], end["cpu_utilization_percent"]
        gb = got["bytes"] / 1e9
        return [got["bytes"] / got["seconds"] / 1e6, cpu["host_total"] / 100 * got["seconds"] / gb, cpu["remote_total"] / 100 * got["seconds"] / gb]
    finally:
        server.kill()
        server.wait()


def cipher():
    """CPU seconds that AES-256-GCM takes for a GB in parts of 256 KiB, or None."""
    if not shutil.which("openssl"):
        return None
    out = subprocess.run(["openssl", "speed", "-seconds", "1", "-bytes", "262144", "-evp", "aes-256-gcm"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    rates = re.findall(r"^AES-256-GCM +([0-9.]+)k", out.stdout, re.M)
    return 1e6 / float(rates[0]) if rates else None


def path(program, connections, seconds, encrypted):
    out = subprocess.run([program, "-c", str(connections), "-s", str(seconds)] + ["-e"] * encrypted, stdout=subprocess.PIPE, text=True)
    if out.returncode or not out.stdout.startswith("path "):
        sys.exit(f"{program} ended with {out.returncode}: {out.stdout}")
    return [float(x) for x in out.stdout.split()[1:4]]


def main():
    a = argparse.ArgumentParser()
    a.add_argument("-n", type=int, default=5)
    a.add_argument("--seconds", type=float, default=3)
    a.add_argument("--connections", default="1,2,4")
    a.add_argument("program")
    a = a.parse_args()
    report = benchlib.Report("KV over TCP", "make bench-path")
    report.say(f"leases of 128 MiB (32 layers of 16 blocks of 256 KiB), two at once, from pool to pool over 127.0.0.1; medians of {a.n} turns of {a.seconds:g} s")
    for connections in (int(c) for c in a.connections.split(",")):
        seen = {way: [] for way, _ in WAYS}
        for _ in range(a.n):
            seen["iperf3"].append(iperf3(connections, a.seconds))
            seen["plain"].append(path(a.program, connections, a.seconds, 0))
            seen["encrypted"].append(path(a.program, connections, a.seconds, 1))
        for way, words in WAYS:
            rate, sender, receiver = (benchlib.median(x) for x in zip(*seen[way]))
            of_peer = benchlib.median([x[0] / y[0] for x, y in zip(seen[way], seen["iperf3"])])
            report.say(f"{words + ',':14} {connections} connections: {rate:6.0f} MB/s ({of_peer * 100:3.0f} % of iperf3), CPU {sender:.2f} + {receiver:.2f} s/GB")
            for name, value in (("mb_s", f"{rate:.0f}"), ("of_iperf3", f"{of_peer:.2f}"), ("cpu_s_gb", f"{sender + receiver:.3f}")):
                report.result(f"{way}_{connections}_{name}", value)
    alone = [x for x in (cipher() for _ in range(3)) if x]
    if alone:
        report.say(f"AES-256-GCM alone: {benchlib.median(alone):.2f} s/GB at each end")
        report.result("cipher_cpu_s_gb", f"{benchlib.median(alone):.3f}")
    report.end()


main()
