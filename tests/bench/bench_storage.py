"""bench_storage.py - storage's memory tier against memcpy, and its disk tier against fio on the same file system, with the same block size and depth.

Memory: build/bench/bench_storage takes memcpy, put and get in turns; memory_fraction is the less of put and get.

Disk: in each turn fio writes and reads one file (O_DIRECT, io_uring, sequential, preallocated as it does by itself), and the tier stores as many bytes in a
folder beside it and gives them back; both begin with nothing there, and who comes first changes from turn to turn. The tier's time is from the first put until the last one is acknowledged (checksum, data,
index), and from the first get until the last block is verified and copied out. A fraction is the median of the turns' ratios. disk_write_fraction and
disk_read_fraction are those of the model's blocks (1474560 bytes) by io_uring; other sizes and the threads that stand in for io_uring are told beside.
fio's buffers are ordinary pages, as it has them by itself; the tier's are huge pages, of which a device's queue takes more at a time: that is where it reads faster.
A single turn says little: on virtual disks both are fast or slow by turns.
How much of the segment files is left in the page cache says whether it was polluted.

    python bench_storage.py [--dir FOLDER] [--mib N] [--turns N] [--memory-turns N] [--depth N]
"""
import argparse
import json
import os
import shutil
import subprocess
import tempfile

from benchlib import ROOT, Report, machine, median

PROGRAM = os.path.join(ROOT, os.environ.get("BUILD", "build"), "bench", "bench_storage")
BLOCK_BYTES = {"small": 184320, "model": 1474560, "large": 8388608}


def results(command):
    p = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert p.returncode == 0, (command, p.stdout, p.stderr)
    return {k: float(v) for k, v in (line[7:].split("=", 1) for line in p.stdout.splitlines() if line.startswith("RESULT "))}


def fio(folder, way, bytes_, block_bytes, depth):
    """Bytes per second."""
    p = subprocess.run(["fio", "--name=x", f"--filename={folder}/fio", f"--rw={way}", f"--bs={block_bytes}", f"--iodepth={depth}", "--ioengine=io_uring",
                        "--direct=1", f"--size={bytes_ // block_bytes * block_bytes}", "--output-format=json"], capture_output=True, text=True, timeout=300)
    assert p.returncode == 0, (p.stdout, p.stderr)
    return json.loads(p.stdout[p.stdout.index("{"):])["jobs"][0][way]["bw_bytes"]


def cached_kib():
    with open("/proc/meminfo") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("Cached:"))


def turn(folder, block, mib, depth, io, ours_first):
    """-> our write, our read, fio's write, fio's read, bytes/s; growth of the page cache in bytes, bytes"""
    def tier():
        path = os.path.join(folder, "tier")
        os.mkdir(path)
        before = cached_kib()
        r = results([PROGRAM, "disk", path, str(mib), block, str(depth), io])
        grown = (cached_kib() - before) * 1024
        shutil.rmtree(path)
        return r, grown

    def peer():
        r = [fio(folder, way, mib << 20, BLOCK_BYTES[block], depth) for way in ("write", "read")]
        os.unlink(os.path.join(folder, "fio"))
        return r

    both = {f: f() for f in ((tier, peer) if ours_first else (peer, tier))}
    (ours, grown), theirs = both[tier], both[peer]
    return ours["write_bytes_s"], ours["read_bytes_s"], *theirs, grown, ours["bytes"]


def disk(rep, folder, block, mib, depth, io, turns):
    rows = [turn(folder, block, mib, depth, io, i % 2 == 0) for i in range(turns)]
    w, r = ([row[i] / row[i + 2] for row in rows] for i in (0, 1))
    mb = [median([row[i] for row in rows]) / 1e6 for i in range(4)]
    rep.say(f"{io:<9}{BLOCK_BYTES[block]:>9}{depth:>6}{mb[0]:>9.0f}{mb[2]:>9.0f}{median(w):>8.2f} ({min(w):.2f}..{max(w):.2f}){mb[1]:>9.0f}{mb[3]:>9.0f}"
            f"{median(r):>8.2f} ({min(r):.2f}..{max(r):.2f})")
    return median(w), median(r), median([row[4] / row[5] for row in rows])


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--dir", default=os.environ.get("TMPDIR", "/var/tmp"), help="a folder on the file system to measure")
    ap.add_argument("--mib", type=int, default=1024)
    ap.add_argument("--turns", type=int, default=7)
    ap.add_argument("--memory-turns", type=int, default=21)
    ap.add_argument("--depth", type=int, default=16)
    a = ap.parse_args()
    rep = Report("Storage: memory tier against memcpy, disk tier against fio", f"make bench-storage{'' if a.turns == 7 else f' TURNS={a.turns}'}")
    rep.say(machine())
    m = results([PROGRAM, "memory", str(a.memory_turns)])
    rep.say(f"memory: memcpy {m['storage_memcpy_gb_s']:.2f} GB/s, put {m['storage_put_gb_s']:.2f}, get {m['storage_get_gb_s']:.2f} (one thread, 1474560-byte blocks)")
    folder = tempfile.mkdtemp(prefix="pdserve-bench-", dir=a.dir)
    try:
        rep.say("disk: MB/s (10^6), medians; ratio = median of the turns' ratios (smallest..largest)")
        rep.say("io           block depth   write      fio   ratio                 read      fio   ratio")
        w, r, cached = disk(rep, folder, "model", a.mib, a.depth, "io_uring", a.turns)
        small = disk(rep, folder, "small", a.mib, a.depth, "io_uring", a.turns)
        for block, io in (("large", "io_uring"), ("model", "threads")):
            disk(rep, folder, block, a.mib, a.depth, io, max(1, a.turns // 2))
    finally:
        shutil.rmtree(folder)
    rep.say(f"page cache: grew by {100 * cached:.1f} % of the bytes that were written and read (all of the machine, so others' files are in it)")
    for name in ("memcpy", "put", "get"):
        rep.result(f"storage_{name}_gb_s", m[f"storage_{name}_gb_s"], 2)
    rep.result("memory_write_fraction", m["memory_write_fraction"])
    rep.result("memory_read_fraction", m["memory_read_fraction"])
    rep.result("memory_fraction", min(m["memory_write_fraction"], m["memory_read_fraction"]))
    rep.result("disk_write_fraction", w)
    rep.result("disk_read_fraction", r)
    rep.result("disk_small_write_fraction", small[0])
    rep.result("disk_small_read_fraction", small[1])
    rep.result("disk_page_cache_percent", 100 * cached, 1)
    rep.end()


if __name__ == "__main__":
    main()
