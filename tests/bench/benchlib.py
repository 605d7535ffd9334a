"""benchlib.py - what the benchmarks share: percentiles, RESULT lines, the machine in words, log lines as dicts, sections of RESULTS.md.

A benchmark says every figure twice: in words for the reader as it runs, and as `RESULT name=value` lines last, for scripts.
With BENCH_WRITE=1 its section of RESULTS.md is written anew; the other sections stay as they are.
"""
import datetime
import os
import re
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
sys.path.insert(0, os.path.join(ROOT, "tests", "e2e"))

RESULTS = os.path.join(HERE, "RESULTS.md")


def percentile(values, p):
    """Nearest rank: an observed value, never one between two."""
    v = sorted(values)
    return v[min(len(v) - 1, int(len(v) * p / 100))] if v else float("nan")


def median(values):
    return statistics.median(values) if values else float("nan")


def cpu_name():
    with open("/proc/cpuinfo") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return "unknown CPU"


def cpu_features():
    with open("/proc/cpuinfo") as f:
        flags = next((line.split(":", 1)[1].split() for line in f if line.startswith("flags")), [])
    return " ".join(x for x in ("avx2", "avx512_vnni", "avx512_bf16", "amx_tile") if x in flags)


def machine():
    gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return f"{cpu_name()} ({cpu_features()}), {os.cpu_count()} cores, {gib:.0f} GiB"


def load_average():
    return os.getloadavg()[0]


_FIELD = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')


def log_events(text, event):
    """All lines of that event as dicts; figures are numbers."""
    out = []
    for line in text.splitlines():
        if f"event={event}" not in line:
            continue
        d = {k: v.strip('"') for k, v in _FIELD.findall(line)}
        if d.get("event") == event:
            out.append({k: int(v) if v.lstrip("-").isdigit() else v for k, v in d.items()})
    return out


class Report:
    """Collects figures and a table; `end` prints the RESULT lines and, when asked, writes the section."""

    def __init__(self, section, command):
        self.section, self.command = section, command
        self.figures, self.text = [], []
        self.load = load_average()

    def say(self, line=""):
        print(line, flush=True)
        self.text.append(line)

    def result(self, name, value, digits=3):
        self.figures.append((name, f"{value:.{digits}f}" if isinstance(value, float) else str(value)))

    def end(self):
        for name, value in self.figures:
            print(f"RESULT {name}={value}", flush=True)
        if os.environ.get("BENCH_WRITE"):
            self._write()

    def _write(self):
        head = f"## {self.section}"
        date = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
        body = [head, "", f"- {date}, {machine()}; load average before the run {self.load:.1f}", f"- `{self.command}`", "", "```"]
        body += self.text + [f"RESULT {n}={v}" for n, v in self.figures] + ["```", ""]
        old = open(RESULTS).read() if os.path.exists(RESULTS) else "# Results\n"
        parts = re.split(r"(?m)^(?=## )", old)
        new = "\n".join(body) + "\n"
        at = next((i for i, p in enumerate(parts) if p.split("\n", 1)[0] == head), None)
        if at is None:
            parts.append(new)
        else:
            parts[at] = new
        with open(RESULTS, "w") as f:
            f.write("".join(p if p.endswith("\n\n") else p.rstrip("\n") + "\n\n" for p in parts).rstrip("\n") + "\n")


def real_model():
    path = os.environ.get("PD_MODEL")
    if not path:
        sys.exit("PD_MODEL is not set: the path of the model's .gguf (make bench sets it; tools/fetch-model prints it)")
    return path
