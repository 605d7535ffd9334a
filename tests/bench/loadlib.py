"""loadlib.py - runs pdbench for a benchmark and brings its figures back."""
import json
import os
import subprocess
import tempfile

import benchlib  # noqa: F401  (it says where suite.py is)
from suite import BIN

PDBENCH = os.path.join(BIN, "pdbench")


class Load:
    """One run of pdbench in the background. `wait` gives its JSON; `stop` ends it as Ctrl-C does, and gives what it had by then."""

    def __init__(self, port, *args, requests=False):
        self.dir = tempfile.TemporaryDirectory(prefix="pdbench-")
        self.path = os.path.join(self.dir.name, "out.json")
        self.lines = os.path.join(self.dir.name, "requests.jsonl")
        argv = [PDBENCH, "--quiet", "--json", self.path, *(["--requests", self.lines] if requests else []), *map(str, args), f"http://127.0.0.1:{port}"]
        self.process = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def wait(self, timeout=120, may_fail=False):
        try:
            said = self.process.communicate(timeout=timeout)[1]
        except BaseException:
            self.process.kill()
            self.process.communicate()
            raise
        if self.process.returncode and not may_fail:
            raise RuntimeError(f"pdbench ended with {self.process.returncode}: {said}")
        with open(self.path) as f:
            out = json.load(f)
        if os.path.exists(self.lines):
            with open(self.lines) as f:
                out["requests"] = [json.loads(line) for line in f]
        self.dir.cleanup()
        return out

    def stop(self):
        self.process.send_signal(2)
        return self.wait(may_fail=True)


def load(port, *args, **more):
    return Load(port, *args, **more).wait()
