"""bench_redis.py - the Redis tier's throughput (bench_storage_redis), in words and as figures.

    python3 tests/bench/bench_redis.py [-n TURNS] PROGRAM
"""
import argparse
import re
import subprocess
import sys

import benchlib

SAID = [
    ("socket", "the same bytes through a plain local socket, one thread each side"),
    ("hiredis_set", "hiredis, one SET after the other"),
    ("redis_put", "the tier: copied out of the pool, checksum, SET"),
    ("hiredis_get", "hiredis, one GET after the other, and a copy"),
    ("redis_get", "the tier: GETRANGE, checksum verified, copied into the pool"),
]


def main():
    a = argparse.ArgumentParser()
    a.add_argument("-n", type=int, default=7)
    a.add_argument("program")
    a = a.parse_args()
    report = benchlib.Report("Redis tier", "make bench-redis")
    out = subprocess.run([a.program, str(a.n)], stdout=subprocess.PIPE, text=True)
    figures = {m[1]: m[2] for m in re.finditer(r"(?m)^RESULT (\w+)=(\S+)$", out.stdout)}
    if out.returncode or not figures:
        sys.exit(f"{a.program} ended with {out.returncode}: {out.stdout}")
    report.say(f"128 blocks of 1.44 MB to a redis-server of its own on a local socket and back, new to it each time; medians of {a.n} turns")
    for name, words in SAID:
        report.say(f"{figures[name + '_mb_s']:>6} MB/s  {words}")
    for name, value in figures.items():
        report.result(name, value)
    report.end()


main()
