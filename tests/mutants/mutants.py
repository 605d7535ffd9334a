"""mutants.py - breaks one operator at a time in what safety depends on, and looks whether a test notices.

    python3 tests/mutants/mutants.py [--n 100] [--seed 1] [--only WORD] [--list]

`table` names the files and, for each, the tests nearest to it. Of their lines those are mutated that speak of leases, epochs, generations, fences, authority,
references, checksums or acknowledgements (WORDS). A mutant that does not compile, or whose object is the same, is drawn again. Each is built and tested in a copy of the
tree (build-mutants/), one copy per processor; the first red test ends it. A survivor is printed with its line, and the last line counts. `explained` lists the survivors
that change nothing that anybody can see, each with the reason. Exit status 1 if another one survives.
"""
import argparse
import concurrent.futures
import filecmp
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
WORK = os.path.join(ROOT, "build-mutants")
WORDS = re.compile(r"lease|epoch|generation|\bgen\b|fence|revok|seal|quarantine|writer|attached|\buid\b|\bpid\b|forged|\btag\b|refs|readers|users|\bpins?\b|\bsum\b|hash|\backs?|acked|known|owner|attempt|number")

# an operator in code, and what takes its place
SWAPS = [(r"(?<![<>=!])==", "!="), (r"!=", "=="), (r"(?<![<>-])<(?![<=])", "<="), (r"<=(?!>)", "<"), (r"(?<![->])>(?![>=])", ">="), (r"(?<!-)>=", ">"),
         (r"&&", "||"), (r"\|\|", "&&"), (r"(?<![\w!])!(?=[\w(])", ""), (r"\+\+", "--"), (r"(?<=[\w)\]] )\+(?= )", "-"), (r"(?<=[\w)\]] )-(?= )", "+")]
# a comparison that is taken for true, or for false
SIDE = r"[*&]?\w[\w>.\[\]-]*(?:\([^()]*\))?"
COMPARED = re.compile(f"{SIDE} (?:==|!=|<|<=|>|>=) {SIDE}")
STATEMENT = re.compile(r"^\t+(?!return|break|continue|goto|case|default|else|if|for|while|do|switch|struct|const|enum|static|u?int|size_t|char|unsigned|void|bool)[\w>.\[\]*-]+(?:\(| [-+|&]?= ).*;\s*$")


def masked(text):
    """The text with comments and strings blanked, so that offsets stay."""
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\])\'', lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.S)


def mutants_of(path):
    """[(line number, line, mutated line)] of a file"""
    with open(os.path.join(ROOT, path)) as f:
        text = f.read()
    out, function = [], ""
    for n, (line, code) in enumerate(zip(text.splitlines(), masked(text).splitlines()), 1):
        if re.match(r"[a-z].*\(", code):
            function = re.match(r"[^(]*?(\w+)\(", code)[1]
        if "verify" in function:        # a structure's check of itself, for tests
            continue
        if not code.startswith("\t") or not WORDS.search(code) or re.search(r"PANIC|CHECK|log_", code):
            continue
        for pattern, new in SWAPS:
            out += [(n, line, line[:m.start()] + new + line[m.end():]) for m in re.finditer(pattern, code)]
        if re.search(r"\b(if|while|return)\b|&&|\|\|", code):
            for m in COMPARED.finditer(code):
                out += [(n, line, line[:m.start()] + new + line[m.end():]) for new in ("1", "0")]
        if STATEMENT.match(code):
            out.append((n, line, re.match(r"\t+", line)[0] + ";"))
    return out


def read_table():
    """{file: [tests]}; a line is FILE TEST..., a test of tests/e2e has its .py"""
    table = {}
    with open(os.path.join(HERE, "table")) as f:
        for line in f:
            if line.strip() and not line.startswith("#"):
                path, *tests = line.split()
                table[path] = tests
    return table


def read_explained():
    """{(file, line without blanks, mutated line): reason}"""
    out = {}
    with open(os.path.join(HERE, "explained")) as f:
        rows = [line.rstrip("\n") for line in f if line.strip() and not line.startswith("#")]
    for path, before, after, why in zip(*[iter(rows)] * 4):
        out[path.strip(), before.strip(), after.strip()] = why.strip()
    return out


class Tree:
    """A copy of the sources with a build of its own."""

    def __init__(self, i):
        self.dir = os.path.join(WORK, str(i))
        self.tmp = tempfile.mkdtemp(prefix="pdm-")      # short: sockets lie there
        os.chmod(self.tmp, 0o711)                       # for tests that become another user
        files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
        for f in filter(None, files):
            src, to = os.path.join(ROOT, f), os.path.join(self.dir, f)
            if os.path.exists(src) and not (os.path.exists(to) and filecmp.cmp(src, to, shallow=False)):     # also after a run that was killed
                os.makedirs(os.path.dirname(to), exist_ok=True)
                shutil.copy(src, to)
        for f in read_table():      # an object may be that of a mutant, after a run that was killed
            os.utime(os.path.join(self.dir, f))

    def make(self, *targets):
        r = subprocess.run(["make", "--no-print-directory", *targets], cwd=self.dir, capture_output=True, text=True)
        return r.returncode == 0, r.stdout + r.stderr

    def run(self, test, limit):
        """Seconds, or None if it is red or takes longer than the limit."""
        began = time.monotonic()
        if test.endswith(".py"):
            cmd = ["/usr/bin/python3", "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "tests/e2e/" + test]
        else:
            cmd = ["build/test/" + test]
        env = {**os.environ, "TMPDIR": self.tmp, "CK_DEFAULT_TIMEOUT": str(int(limit)), "CK_VERBOSITY": "silent", "PDSERVE_BACKENDS": os.path.join(self.dir, "build", "cuda_host")}
        p = subprocess.Popen(cmd, cwd=self.dir, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            rc = p.wait(limit)
        except subprocess.TimeoutExpired:
            rc = None
        try:
            os.killpg(p.pid, signal.SIGKILL)    # what it started
        except ProcessLookupError:
            pass
        p.wait()
        return time.monotonic() - began if rc == 0 else None

    def object_of(self, path):
        with open(os.path.join(self.dir, "build", "obj", path[:-2] + ".o"), "rb") as f:
            return f.read()

    def try_mutant(self, path, n, after, tests, usual):
        """The test that is red, "" if none is, None if it is no mutant. usual: a test's seconds."""
        at = os.path.join(self.dir, path)
        with open(at) as f:
            text = f.read()
        lines = text.splitlines(keepends=True)
        lines[n - 1] = after + "\n"
        obj = "build/obj/" + path[:-2] + ".o"
        was = self.object_of(path)
        try:
            with open(at, "w") as f:
                f.write("".join(lines))
            if not self.make(obj)[0] or self.object_of(path) == was:
                return None
            whole = [t for t in tests if t.endswith(".py") or os.path.exists(os.path.join(ROOT, "tests", "daemon", t + ".c"))]     # they start daemons
            for t in tests:
                if whole and t == whole[0] and not self.make("programs")[0]:
                    return None
                if not t.endswith(".py") and not self.make("build/test/" + t)[0]:
                    return None
                if self.run(t, 3 * usual[t] + 20) is None:
                    return t
            return ""
        finally:
            with open(at, "w") as f:
                f.write(text)
            self.make(obj)


def main():
    a = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    a.add_argument("--n", type=int, default=100, help="mutants")
    a.add_argument("--seed", type=int, default=1)
    a.add_argument("--only", default="", help="files whose name contains it")
    a.add_argument("--jobs", type=int, default=os.cpu_count())
    a.add_argument("--list", action="store_true", help="print the mutants that would be drawn, and stop")
    o = a.parse_args()
    table = {f: t for f, t in read_table().items() if o.only in f}
    rng = random.Random(o.seed)
    pool = [(f, *m) for f in table for m in mutants_of(f)]
    rng.shuffle(pool)
    # each file gets its share: one drawn line after the other, files in turn
    by_file = {f: [m for m in pool if m[0] == f] for f in table}
    order = []
    while any(by_file.values()):
        order += [by_file[f].pop() for f in table if by_file[f]]
    if o.list:
        for f, n, before, after in order[:o.n]:
            print(f"{f}:{n}\n  - {before.strip()}\n  + {after.strip()}")
        print(len(order), "possible")
        return 0
    explained = read_explained()
    trees = [Tree(i) for i in range(o.jobs)]
    tests = sorted({t for row in table.values() for t in row})
    usual = {}
    for tree in trees:
        ok, text = tree.make("-j%d" % o.jobs, "programs", *("build/test/" + t for t in tests if not t.endswith(".py")))
        if not ok:
            sys.exit("mutants: the build fails without a mutant:\n" + text[-3000:])
    for t in tests:
        usual[t] = trees[0].run(t, 600)
        if usual[t] is None:
            sys.exit(f"mutants: {t} is red without a mutant")
    lock, left = threading.Lock(), iter(order)
    results = []

    def worker(tree):
        while True:
            with lock:
                m = next(left, None) if len(results) < o.n else None
            if m is None:
                return
            f, n, before, after = m
            by = tree.try_mutant(f, n, after, sorted(table[f], key=lambda t: (t.endswith(".py"), usual[t])), usual)
            if by is None:
                continue
            with lock:
                if len(results) >= o.n:
                    return
                why = explained.get((f, before.strip(), after.strip()))
                results.append("caught" if by else "explained" if why else "SURVIVED")
                print(f"{len(results):4} {results[-1]:9} {f}:{n} {by or why or ''}", *([] if by else [f"\n       - {before.strip()}\n       + {after.strip()}"]), flush=True)

    with concurrent.futures.ThreadPoolExecutor(len(trees)) as pool:
        for r in [pool.submit(worker, t) for t in trees]:
            r.result()
    for tree in trees:
        shutil.rmtree(tree.tmp, ignore_errors=True)
    n = {k: results.count(k) for k in ("caught", "explained", "SURVIVED")}
    print(f"{len(results)} mutants (seed {o.seed}): {n['caught']} caught ({100 * n['caught'] / max(1, len(results)):.0f} %), {n['explained']} explained, {n['SURVIVED']} survived")
    return 1 if n["SURVIVED"] else 0


if __name__ == "__main__":
    sys.exit(main())
