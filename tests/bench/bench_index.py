"""bench_index.py - the disk tier with an index that is larger than the memory that the process may have: it fills, is asked, is started again and is asked again.

bench_storage runs in a memory cgroup (version 1 or 2; made here, so as root) whose limit counts its own memory and the pages of its files. Blocks are tiny, so that
nearly all is index. The index is mapped from its file: what of it is resident the system takes away when the limit is near, what is the process's own it
cannot. So a limit far below the index's size that everything survives, with its own memory a small part of it, shows that the index need not fit into memory. The file system's own page
cache of the index counts as well. A process that wanted more of its own would be killed there.

    python bench_index.py [--dir FOLDER] [--blocks N] [--mib N]
"""
import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time

from bench_storage import PROGRAM
from benchlib import Report, machine


class MemoryLimit:
    """A cgroup with so many MiB. Processes join it by `join`, before they exec."""

    def __init__(self, mib):
        name = f"pdserve-bench-{os.getpid()}"
        if os.path.exists("/sys/fs/cgroup/cgroup.controllers"):
            self.dir, limit, self.events = os.path.join("/sys/fs/cgroup", name), "memory.max", "memory.events"
        else:
            self.dir, limit, self.events = os.path.join("/sys/fs/cgroup/memory", name), "memory.limit_in_bytes", "memory.failcnt"
        try:
            os.mkdir(self.dir)
            with open(os.path.join(self.dir, limit), "w") as f:
                f.write(str(mib << 20))
        except OSError as e:
            self.remove()
            sys.exit(f"a memory cgroup of {mib} MiB cannot be made ({e}): run this as root, where the memory controller is to be had")

    def join(self):
        with open(os.path.join(self.dir, "cgroup.procs"), "w") as f:
            f.write(str(os.getpid()))

    def hits(self):
        """How often the limit was met."""
        with open(os.path.join(self.dir, self.events)) as f:
            words = f.read().split()
        return int(words[0]) if len(words) == 1 else int(words[words.index("max") + 1])

    def remove(self):
        for _ in range(50):
            try:
                os.rmdir(self.dir)
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.1)


def run(folder, blocks, limit):
    p = subprocess.run([PROGRAM, "index", folder, str(blocks)], capture_output=True, text=True, preexec_fn=limit.join)
    if p.returncode != 0:
        sys.exit(f"bench_storage ended with {p.returncode}{' (killed: the limit was not enough)' if p.returncode == -9 else ''}: {p.stderr[-500:]}")
    return {k: float(v) for k, v in (line[7:].split("=", 1) for line in p.stdout.splitlines() if line.startswith("RESULT "))}


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dir", default=os.environ.get("TMPDIR", "/var/tmp"), help="a folder on a disk")
    ap.add_argument("--blocks", type=int, default=300000)
    ap.add_argument("--mib", type=int, default=64)
    a = ap.parse_args()
    rep = Report("Disk tier: an index larger than memory", f"make bench-index BLOCKS={a.blocks} MIB={a.mib}")
    rep.say(machine())
    limit, folder = MemoryLimit(a.mib), tempfile.mkdtemp(prefix="pdserve-bench-", dir=a.dir)
    try:
        r = run(os.path.join(folder, "tier"), a.blocks, limit)
        index_mib = os.path.getsize(os.path.join(folder, "tier", "index")) / 2**20
        hits = limit.hits()
    finally:
        shutil.rmtree(folder)
        limit.remove()
    rep.say(f"{a.blocks} blocks of 64 bytes in slots of 4096, their index {index_mib:.0f} MiB; a limit of {a.mib} MiB for all of the process, met {hits} times")
    rep.say(f"{'':<14}{'puts/s':>10}{'keys looked up/s':>18}{'gets/s':>10}{'own memory MiB':>16}{'of files MiB':>14}")
    rep.say(f"{'empty':<14}{'':>38}{r['empty_own_mib']:>16.1f}{r['empty_file_mib']:>14.1f}")
    for name, label in (("filled", "filled"), ("again", "started again")):
        puts = f"{r['puts_s']:.0f}" if name == "filled" else ""
        rep.say(f"{label:<14}{puts:>10}{r[f'{name}_keys_s']:>18.0f}{r[f'{name}_gets_s']:>10.0f}{r[f'{name}_own_mib']:>16.1f}{r[f'{name}_file_mib']:>14.1f}")
    rep.say(f"start with {r['blocks']:.0f} blocks: {r['start_s']:.2f} s; {r['wrong']:.0f} wrong answers")
    rep.result("index_mib", index_mib, 1)
    rep.result("index_of_limit", index_mib / a.mib, 2)
    rep.result("index_limit_met", hits)
    rep.result("index_bytes_per_block", index_mib * 2**20 / a.blocks, 0)
    for k in ("puts_s", "filled_keys_s", "filled_gets_s", "again_keys_s", "again_gets_s", "filled_own_mib", "again_own_mib", "start_s", "wrong"):
        rep.result(f"index_{k}" if not k.startswith("index") else k, r[k], 2 if k in ("start_s", "filled_own_mib", "again_own_mib") else 0)
    rep.end()
    sys.exit(r["wrong"] != 0)


if __name__ == "__main__":
    main()
