"""bench_index.py - the disk tier with many blocks: it fills, is asked, is started again and is asked again.

Blocks are tiny, one in each slot of 4096 bytes, so that nearly all of it is index. `per block` is what the process has of its own memory after the start, less what it
had before, divided by the blocks; the limit is LIMIT_BYTES. A start reads the heads: 64 bytes for each block.

    python bench_index.py [--dir FOLDER] [--blocks N]
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile

from bench_storage import PROGRAM
from benchlib import Report, machine

LIMIT_BYTES = 96


def run(folder, blocks):
    p = subprocess.run([PROGRAM, "index", folder, str(blocks)], capture_output=True, text=True)
    if p.returncode != 0:
        sys.exit(f"bench_storage ended with {p.returncode}: {p.stderr[-500:]}")
    return {k: float(v) for k, v in (line[7:].split("=", 1) for line in p.stdout.splitlines() if line.startswith("RESULT "))}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dir", default=os.environ.get("TMPDIR", "/var/tmp"), help="a folder on a disk")
    ap.add_argument("--blocks", type=int, default=1000000)
    a = ap.parse_args()
    rep = Report("Disk tier: a million blocks", f"make bench-index BLOCKS={a.blocks}")
    rep.say(machine())
    folder = tempfile.mkdtemp(prefix="pdserve-bench-", dir=a.dir)
    try:
        r = run(os.path.join(folder, "tier"), a.blocks)
    finally:
        shutil.rmtree(folder)
    per_block = (r["again_own_mib"] - r["closed_own_mib"]) * 2**20 / a.blocks
    rep.say(f"{a.blocks} blocks of 64 bytes in slots of 4096")
    rep.say(f"{'':<14}{'puts/s':>10}{'keys looked up/s':>18}{'gets/s':>10}{'own memory MiB':>16}")
    rep.say(f"{'empty':<14}{'':>38}{r['empty_own_mib']:>16.1f}")
    for name, label in (("filled", "filled"), ("again", "started again")):
        puts = f"{r['puts_s']:.0f}" if name == "filled" else ""
        rep.say(f"{label:<14}{puts:>10}{r[f'{name}_keys_s']:>18.0f}{r[f'{name}_gets_s']:>10.0f}{r[f'{name}_own_mib']:>16.1f}")
    rep.say(f"start with {r['blocks']:.0f} blocks: {r['start_s']:.2f} s, {per_block:.0f} bytes of memory per block (limit {LIMIT_BYTES}); {r['wrong']:.0f} wrong answers")
    for k in ("puts_s", "filled_keys_s", "filled_gets_s", "again_keys_s", "again_gets_s", "start_s", "wrong"):
        rep.result(f"index_{k}", r[k], 2 if k == "start_s" else 0)
    rep.result("index_bytes_per_block", per_block, 1)
    rep.end()
    sys.exit(r["wrong"] != 0 or per_block > LIMIT_BYTES)


if __name__ == "__main__":
    main()
