"""cpulib.py - what bench_cpu needs beside the peer: the model files that are compared, our engine as a child that runs what it is told, the machine's limits.

Files that tools/make-gguf makes lie beside the demo's model and are made once; another make-gguf makes them anew.
"""
import glob
import hashlib
import importlib.machinery
import importlib.util
import os
import re
import struct
import subprocess
import sys

from benchlib import ROOT

MAKE_GGUF = os.path.join(ROOT, "tools", "make-gguf")
BENCH = os.path.join(ROOT, "build", "bench")


def gguf_module():
    loader = importlib.machinery.SourceFileLoader("make_gguf", MAKE_GGUF)
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("make_gguf", loader))
    loader.exec_module(module)
    return module


class Model:
    """A GGUF file's sizes: what a step reads, what a token costs. kind: its type of weights, and after a + the type that activations are rounded to, if any."""

    def __init__(self, name, kind, path):
        self.name, self.kind, self.path = name, kind, path
        self.activations = kind.partition("+")[2] or "f32"
        r = gguf_module().Reader(path)
        meta = dict(r.metadata)

        def u32(key, absent=None):
            v = meta.get(b"llama." + key.encode())
            return absent if v is None else struct.unpack("<II", v)[1]
        heads, self.layers = u32("attention.head_count"), u32("block_count")
        self.attention_width = heads * u32("attention.key_length", u32("embedding_length") // heads)
        matrices = [(n, s, t) for n, s, t, _ in r.tensors if len(s) == 2]
        tied = not any(n == "output.weight" for n, _, _ in matrices)
        head = [s for n, s, _ in matrices if n == ("token_embd.weight" if tied else "output.weight")][0]
        self.layer_weights = sum(s[0] * s[1] for n, s, _ in matrices if n.startswith("blk."))
        self.head_weights = head[0] * head[1]
        self.bytes = sum(t.bytes(s[0] * s[1]) for n, s, t in matrices if tied or n != "token_embd.weight")

    def prompt_ops(self, n):
        """-> operations of n tokens' products with weights, and of their attention. The head is needed for the last token alone."""
        return 2.0 * (self.layer_weights * n + self.head_weights), 4.0 * self.attention_width * self.layers * n * (n + 1) / 2


def model_files(demo, wanted):
    """wanted: (model, kind) pairs -> Model of each; what is not there yet is made."""
    with open(MAKE_GGUF, "rb") as f:
        tag = hashlib.sha256(f.read() + str(os.path.getsize(demo)).encode()).hexdigest()[:8]
    folder, out = os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "pdserve"), []
    os.makedirs(folder, exist_ok=True)
    for name, kind in wanted:
        if (name, kind) == ("smollm2", "Q4_1"):
            out.append(Model(name, kind, demo))
            continue
        weights = kind.partition("+")[0]
        path = os.path.join(folder, f"bench-{name}.{weights}-{tag}.gguf")
        if not os.path.exists(path):
            for old in glob.glob(os.path.join(folder, f"bench-{name}.{weights}-*.gguf")):
                os.unlink(old)
            print(f"making {path}", flush=True)
            what = ["convert", demo] if name == "smollm2" else ["random", "ernie-4.5-0.3b"]
            subprocess.run([sys.executable, MAKE_GGUF, *what, weights, path], check=True)
        out.append(Model(name, kind, path))
    return out


class Engine:
    """bench_engine -i: one run at a time. `ready` is its time from opening the file to the first token."""

    def __init__(self, model, threads, prompt, streams, tokens, cpu=False):
        argv = [os.path.join(BENCH, "bench_engine"), "-i", "-t", str(threads), "-p", str(prompt), "-s", str(streams), "-n", str(tokens),
                "-a", model.activations, model.path]
        self.argv, self.field = argv, 1 if cpu else 0
        self.child = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.says = self._line()
        self.numerics = self.says.split(", ")[1]
        self.ready = float(self._line().split()[1])

    def _line(self):
        line = self.child.stdout.readline()
        if not line:
            sys.exit(f"{' '.join(self.argv)}: ended with {self.child.wait()}")
        return line

    def _ask(self, text):
        self.child.stdin.write(text + "\n")
        self.child.stdin.flush()
        return self._line().split()[1:]

    def prompt(self, n):
        return n / float(self._ask(f"pp {n}")[self.field])

    def generate(self, streams, tokens):
        return streams * tokens / float(self._ask(f"tg {streams} {tokens}")[self.field])

    def score(self, ids):
        return [(float(p), int(top)) for p, top in (x.split(":") for x in self._ask("score " + " ".join(map(str, ids))))]

    def close(self):
        self.child.stdin.close()
        self.child.stdout.close()
        if self.child.wait(60):
            sys.exit(f"{' '.join(self.argv)}: ended with {self.child.returncode}")


class Limits:
    """bench_limits: medians, GB/s and GOP/s."""

    def __init__(self, threads, cpu=False, repeats=11):
        self.argv = [os.path.join(BENCH, "bench_limits"), "-t", str(threads), "-r", str(repeats), *(["-c"] if cpu else [])]
        self.peaks = [(n, kind, float(v)) for n, kind, v in re.findall(r"peak (\S+) (\S+) median ([\d.]+)", self._run())]

    def _run(self, *more):
        return subprocess.run([*self.argv, *more], check=True, capture_output=True, text=True).stdout

    def peak(self, kind):
        """-> (name, operations a second) of the fastest instruction for products of that kind, or None"""
        of = [(v, n) for n, k, v in self.peaks if k == kind]
        return (max(of)[1], max(of)[0] * 1e9) if of else None

    def read(self, size):
        """bytes a second, reading so many bytes"""
        return float(re.search(r"read \S+ median ([\d.]+)", self._run("-p", "0", "-s", f"{size / 2**20:.2f}"))[1]) * 1e9
