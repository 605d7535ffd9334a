"""isolation.py - what one client can cost another. Exit status 1 if a row misses its goal.

    python tests/isolation/isolation.py [--only "handshakes burst"] [--bin FOLDER] [--seconds 8] MODEL

A row has two phases of --seconds, each with daemons of its own. In the first the neighbour (neighbour.py, a key of its own, from 127.0.0.1) runs beside the attack
(attack.py, another key, from 127.0.0.2 and following), in the second it gets its fair share:

    of a router         A client that computes nothing has no right to slow down another. The fair share is the neighbour alone, beside a process that burns
                        as much processor time as the attacker took (`cpu`, a share of one core): a row shows what the server lets through, not that the
                        attacker's own program runs on the same two cores.
    of workers          A client that computes has a right to its part of the machine. The fair share is the neighbour beside a harmless client of the other
                        key, which asks for the same work (and burns at least as much processor time as the attacker):
      expensive grammars  as many answers of the same length, with a constraint that costs nothing ([a-z ]*)
      flood, burst        the same requests, as many at once as the neighbour leaves seats for: whoever wants less than half gets it, and the other the rest
      logprobs            the same answers without log-probabilities
      slow-reads          the same streams, read
      aborts              as many requests a second, of as many tokens as an aborted one had

Goals, unless a row names others: tokens/s of the neighbour's streams at least 0.9 of the fair share; p99 of its time to first token at most 1.1 times as long, or at
most 5 ms longer (time slices of two busy cores). In every row: no request of the neighbour fails, no link goes down (peer_down), no worker is taken out
(breaker_opened), no attempt of the neighbour is lost (attempt_lost). A request without an answer at the end of a phase counts with the time that it has waited.

Rows about the router, or about who gets a seat, run on simulated accelerators (a token each 20 ms). Grammars and log-probabilities are computed, on two workers, by the
first two layers of MODEL with its whole vocabulary: a token is cheap beside a mask. There stuck_ms is 5 s, not 30: a worker that would be taken for stuck shows in time.

A row that misses its goal is measured again after all others, as long as less than LIMIT_S have passed: what the server does shows twice, what else the machine did
does not. The later figures count.

A process of another user at the sockets of messager and storage is no row here: tests/e2e has it.
"""
import argparse
import dataclasses
import http.client
import os
import resource
import ssl
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, "..", x) for x in ("bench", "e2e")] + [HERE]

import suite  # noqa: E402
from attack import Attack, Spec, request  # noqa: E402
from benchlib import ROOT, Report, log_events, machine  # noqa: E402
from neighbour import PROMPT, measure  # noqa: E402
from suite import Suite, wait_for  # noqa: E402

BEFORE_S = 1.0                  # the neighbour runs alone before an attack begins
FLOOR_S = 0.005                 # two waits that differ by less are equal
TOKENS, P99 = 0.9, 1.1
KEYS = {"hog": "hog-key", "neighbour": "neighbour-key"}
SEATS = 64                      # max_sequences of a decode worker
SIM = {"base": "small", "time_scale": 20.0}
BURST = 12500
LIMIT_S = 430                   # after this time no row is measured again


# --- suites
class Isolated(Suite):
    """Ends its daemons at once: what an attack left behind is not waited for. Says which had ended before."""

    def __init__(self, *args, **more):
        super().__init__(*args, keys=KEYS, **more)

    def ended(self):
        return [f"{n} ended with {p.returncode}" for n, p in self.procs.items() if p.poll() is not None]

    def __exit__(self, *exc):
        for p in self.procs.values():
            if p.poll() is None:
                p.kill()
        super().__exit__(*exc)

    def log_sizes(self):
        return {n: os.path.getsize(os.path.join(self.dir, n + ".log")) for n in self.procs}

    def log_since(self, name, size):
        with open(os.path.join(self.dir, name + ".log"), "rb") as f:
            f.seek(size)
            return f.read().decode(errors="replace")


class Tls(Isolated):
    def __init__(self, *args, **more):
        cert, key = "router.crt", "router.key"
        super().__init__(*args, router={"http_tls_cert": cert, "http_tls_key": key}, **more)
        self.conf["router"].update(http_tls_cert=os.path.join(self.dir, cert), http_tls_key=os.path.join(self.dir, key))
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", key, "-out", cert, "-days", "2",
                        "-subj", "/CN=router"], check=True, capture_output=True, cwd=self.dir)

    def connection(self, timeout=20):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=trusting())


def trusting():
    c = ssl.create_default_context()
    c.check_hostname, c.verify_mode = False, ssl.CERT_NONE
    return c


def client_hello():
    """The first bytes of a hand-shake. The server cannot tell that they are always the same."""
    out = ssl.MemoryBIO()
    try:
        trusting().wrap_bio(ssl.MemoryBIO(), out).do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


def simulated(**router):
    return lambda a: Isolated("1p1d", sim=SIM, router=router)


def tokenizing(a):
    return Isolated("1p1d", sim={**SIM, "vocab": 49152}, router={"model": a.model})


def real(a):
    return Isolated("2mixed", a.two_layers, router={"stuck_ms": 5000}, worker={"kv_memory_mb": 512})


# --- what is asked
def empties(levels):
    return "".join(f"e{i} ::= e{i - 1} e{i - 1}\n" for i in range(levels, 0, -1)) + 'e0 ::= ""\n'


def tracker(empty, n=10):
    """Remembers which of the last n letters were in two classes: few positions at a time, but another set of them after each text. Each costs what `empty` costs."""
    return rf"[a-z ]*(?:[aeiou](?:[a-z ]{empty}){{{n}}}|[ tnsr](?:[a-z ]{empty}){{{n}}}x)"


CHEAP = {"guided_regex": "[a-z ]*"}
EXPENSIVE = {"gbnf": {"guided_grammar": 'root ::= [a-z ]* ([aeiou] x{12} | [ tnsr] x{12} "x")\nx ::= [a-z ] e8\n' + empties(8)},
             "star": {"guided_regex": tracker("(?:(?:)*){64}")},
             "none": {"guided_regex": tracker("(?:x{0}){64}")}}


def completion(**more):
    """(bytes,): prompts of another length than the neighbour's, each of its own."""
    return tuple(request("/v1/completions", {"prompt": [3 + (i * 37 + k * 11) % 290 for k in range(24)], "ignore_eos": True, **more}) for i in range(100))


def constrained(n, constraint):
    """n = 1: two requests, one for each worker."""
    return Spec((request("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 100, "n": n, "temperature": 1, "ignore_eos": True, **constraint}),),
                2 if n == 1 else 1)


def probabilities(**more):
    """Longer than a phase: 72 answers all the time."""
    return Spec(tuple(request("/v1/chat/completions", {"messages": [{"role": "user", "content": "Write a story."}], "n": n, "max_tokens": 1000, "ignore_eos": True,
                                                       "temperature": 1, "stream": True, **more}) for n in (8, 64)), 2)


# --- goals: (figure, beside the attack, fair share or limit, met)
@dataclasses.dataclass
class Got:
    beside: object
    fair: object
    falls: dict
    hog: dict
    harmless: dict
    seconds: float


def share(g):
    r = g.beside.tokens_s / g.fair.tokens_s
    return f"tokens/s {g.beside.tokens_s:.0f} of {g.fair.tokens_s:.0f} = {r:.2f}", r >= TOKENS, {"tokens": r}


def first_token(g):
    now, fair = g.beside.wait(99), g.fair.wait(99)
    return f"p99 {ms(now)} / {ms(fair)} = {now / fair:.2f}", now <= max(P99 * fair, fair + FLOOR_S), {"p99": now / fair}


def longest_within(limit_s):
    return lambda g: (f"longest {ms(g.beside.longest)} (fair share {ms(g.fair.longest)}), limit {ms(limit_s)}", g.beside.longest <= limit_s,
                      {"longest_ms": g.beside.longest * 1e3})


def two_jobs(g):
    job = g.seconds / max(1, g.harmless["answers"].get("200", 0))
    return f"longest {ms(g.beside.longest)}, limit two jobs of {ms(job)}", g.beside.longest <= 2 * job, {"longest_jobs": g.beside.longest / job}


def twice(g):
    r = g.beside.longest / g.fair.longest
    return f"longest {ms(g.beside.longest)} / {ms(g.fair.longest)} = {r:.2f}, p50 {ms(g.beside.wait(50))} / {ms(g.fair.wait(50))}", r <= 2, {"longest": r}


def ms(s):
    return f"{s * 1e3:.0f} ms"


@dataclasses.dataclass
class Row:
    name: str
    what: str
    suite: object               # function of the options
    attack: object              # function: Spec
    fair: object = None         # function: Spec of the harmless client; None: alone
    neighbour: dict = dataclasses.field(default_factory=dict)
    goals: tuple = (share, first_token)
    same_busy: bool = True      # the harmless client uses the processor as much as the attack


def grammar_row(n, kind):
    return Row(f"{kind}-{n}", f"expensive {'grammar' if kind == 'gbnf' else 'regex'}, n = {n}", real, lambda: constrained(n, EXPENSIVE[kind]), lambda: constrained(n, CHEAP),
               {"each_s": 0.1, "vocab": 40000})


HALF = SEATS // 2
REST = SEATS - 8                 # the neighbour has four streams, and short requests beside them
ROWS = [
    *[grammar_row(n, kind) for kind in EXPENSIVE for n in (1, 64)],
    Row("flood", "4,000 requests of one client at once, and again", simulated(), lambda: Spec(completion(max_tokens=16), 4000),
        lambda: Spec(completion(max_tokens=16), REST)),
    Row("handshakes", "500 TLS hand-shakes a second", lambda a: Tls("1p1d", sim=SIM), lambda: Spec((client_hello(),), 4000, 500, read="first", drop_s=2),
        neighbour={"tls": trusting()}, goals=(share, first_token, longest_within(0.2))),
    Row("slow-reads", f"{HALF} streams that nobody reads", simulated(), lambda: Spec(completion(max_tokens=1000, stream=True, logprobs=5), HALF, read="never"),
        lambda: Spec(completion(max_tokens=1000, stream=True, logprobs=5), HALF)),
    Row("slow-writes", "4,000 requests sent byte by byte", simulated(), lambda: Spec(completion(max_tokens=1), 4000, 2000, slow_after=200)),
    Row("logprobs", "n = 8 and n = 64, top_logprobs = 20", real, lambda: probabilities(logprobs=True, top_logprobs=20), probabilities,
        {"each_s": 0.1, "vocab": 40000}),
    Row("aborts", "60 requests a second, hung up or ended by /v1/abort", simulated(),
        lambda: Spec(completion(max_tokens=200, stream=True), 400, 60, drop_s=0.3, abort=True), lambda: Spec(completion(max_tokens=25, stream=True), 400, 60)),
    Row("burst", f"{BURST:,} connections at once, a request on each", simulated(max_connections=16000, max_requests=16000),
        lambda: Spec(completion(max_tokens=8), BURST, total=BURST, addresses=4), lambda: Spec(completion(max_tokens=8), REST)),
    Row("tokenize", "48 x 600 KB of digits to /tokenize; the neighbour: 20 KB", tokenizing, lambda: Spec((request("/tokenize", {"prompt": "7" * 600000}),), 48),
        lambda: Spec((request("/tokenize", {"prompt": "7" * 600000}),), 1),
        {"probe": ("/tokenize", {"prompt": "The quick brown fox " * 1000}), "whole": True, "in_turn": True}, (two_jobs,), same_busy=False),
    Row("n128", "10 requests with n = 128; the neighbour: one request of 8 tokens at a time", simulated(), lambda: Spec(completion(max_tokens=64, n=128), 10),
        neighbour={"streams": 0, "in_turn": True, "each_s": 0.02, "probe_tokens": 8, "whole": True}, goals=(twice,)),
]


# --- a row
def falls(s, sizes):
    """What happened to links, workers and the neighbour's attempts since then."""
    out = {"links down": 0, "workers taken out": 0, "attempts lost": 0}
    for n in s.procs:
        out["links down"] += len(log_events(s.log_since(n, sizes[n]), "peer_down"))
    router = s.log("router")
    own = {e["req"] for e in log_events(router, "submitted") if e["attempt"] == 1 and e["tokens"] == PROMPT}
    recent = s.log_since("router", sizes["router"])
    out["workers taken out"] = len(log_events(recent, "breaker_opened"))
    out["attempts lost"] = sum(e["req"] in own for e in log_events(recent, "attempt_lost"))
    return out


def phase(row, a, spec):
    """-> the neighbour's figures, falls, what the other client says of itself"""
    with row.suite(a) as s, Attack(spec, s.port, a.seconds + 0.5) as other:
        sizes = {}

        def go():
            sizes.update(s.log_sizes())
            other.go()
        figures = measure(s.port, BEFORE_S, a.seconds, go, **row.neighbour)
        said = other.result()
        fell = falls(s, sizes)
        gone = s.ended()
        if gone:
            fell["daemons ended"] = len(gone)
        return figures, fell, said


def run_row(row, a, known):
    """known: fair shares of this run, which rows with the same harmless client use together."""
    beside, fell, hog = phase(row, a, row.attack())
    spec = row.fair() if row.fair else Spec()
    key = (row.suite, spec.payloads, spec.connections) if row.suite is real else row.name
    if key not in known:
        known[key] = phase(row, a, dataclasses.replace(spec, busy=hog["cpu"] if row.same_busy else 0))
    fair, _, harmless = known[key]
    return Got(beside, fair, fell, hog, harmless, a.seconds + 0.5)


def judge(row, g):
    """-> lines, met, figures"""
    lines, met, figures = [], True, {}
    for goal in row.goals:
        text, ok, more = goal(g)
        lines.append(text + ("" if ok else "  <-- missed"))
        met &= ok
        figures.update(more)
    bad = [f"{k} {v}" for k, v in g.falls.items() if v] + ([f"failed {g.beside.failed}: {g.beside.why[:90]}"] if g.beside.failed else [])
    if bad:
        lines.append(", ".join(bad) + "  <-- missed")
    figures["falls"] = sum(g.falls.values()) + g.beside.failed
    lines.append("(" + "; ".join(f"{who}: {c['begun']} begun, {', '.join(f'{n} x {k}' for k, n in sorted(c['answers'].items())) or 'no answer'}, cpu {c['cpu']:.2f}"
                                 for who, c in (("attack", g.hog), ("harmless", g.harmless)) if c["begun"]) + ")")
    return lines, met and not bad, figures


# --- without a messager
def one_by_one(s, seconds):
    """-> figures of single requests of 8 tokens, their mean time"""
    figures = measure(s.port, 0, seconds, lambda: None, streams=0, in_turn=True, each_s=0, probe_tokens=8, whole=True)
    return figures, sum(figures.waits) / len(figures.waits)


def kill_it(s):
    s.kill("messager")


def stop_it(s):
    s.kill("messager", 19)


def fill_it(s):
    """It has places for two workers, which two prefill workers take: it refuses the decode worker's memory."""
    s.kill("decode-1")
    s.conf["prefill-2"] = {**s.conf["prefill-1"], "name": "prefill-2"}
    s.start("prefill-2")
    wait_for(lambda: "event=attach_on to=messager" in s.log("prefill-2"), "prefill-2 is not attached")
    s.start("decode-1")
    wait_for(lambda: "event=handover_refused worker=" in s.log("messager"), "the messager refuses nobody")
    wait_for(lambda: s.get("/ready")[0] == 200, "not ready")


def without_messager(act, a):
    """-> lines, met, figures: single requests from 2 s after, then with the decode worker alone"""
    with Isolated("1p1d", sim=SIM, messager={"workers_max": 2}) as s:
        act(s)
        time.sleep(2)
        sizes = s.log_sizes()
        got, mean = one_by_one(s, a.seconds)
        lost = falls(s, sizes)["attempts lost"]
        for n in [n for n in s.procs if n.startswith("prefill")]:
            s.kill(n)
        wait_for(lambda: s.pdctl("--json", "workers").stdout.count('"up"') == 1, "the router does not see that prefill workers ended")
        alone, fair = one_by_one(s, a.seconds / 2)
    met = mean <= max(1.2 * fair, fair + FLOOR_S) and not lost and not got.failed
    line = (f"mean of {len(got.waits)} requests {ms(mean)} / {ms(fair)} at the decode worker alone = {mean / fair:.2f}, attempts lost {lost}, failed {got.failed}, "
            f"without an answer yet {got.unanswered}")
    return [line + ("" if met else "  <-- missed")], met, {"request": mean / fair, "falls": lost + got.failed}


MESSAGER = {"messager-dead": ("the messager is killed", kill_it), "messager-stopped": ("the messager is stopped", stop_it),
            "messager-refuses": ("the messager refuses the decode worker", fill_it)}


def tried(measured):
    """A row that cannot be measured has missed its goal; the others still run."""
    try:
        return measured()
    except (RuntimeError, AssertionError, OSError, EOFError) as e:
        return [f"not measured: {repr(e)[:300]}"], False, {}


def measured(name, a, known):
    for row in ROWS:
        if row.name == name:
            return row.what, *tried(lambda: judge(row, run_row(row, a, known)))
    what, act = MESSAGER[name]
    return what, *tried(lambda: without_messager(act, a))


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--only", default="")
    ap.add_argument("--bin", help="folder of the programs, instead of build/bin")
    ap.add_argument("--seconds", type=float, default=8)
    ap.add_argument("model")
    a = ap.parse_args()
    names = [r.name for r in ROWS] + list(MESSAGER)
    only = a.only.split()
    if set(only) - set(names):
        sys.exit(f"no such row: {' '.join(sorted(set(only) - set(names)))}; there are {' '.join(names)}")
    suite.BIN = os.path.abspath(a.bin) if a.bin else suite.BIN
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rep = Report("Isolation: what one client can cost another", "make isolation" + (f' ONLY="{a.only}"' if only else ""))
    rep.say(f"{os.path.basename(a.model)} and simulated accelerators, {a.seconds:g} s a phase; {machine()}")
    begun, figures = time.monotonic(), {}

    def measure_rows(names, again):
        """-> those that missed their goal"""
        missed, known = [], {}
        for name in names:
            if again and time.monotonic() - begun > LIMIT_S:
                return missed + names[names.index(name):]
            what, lines, met, figures[name] = measured(name, a, known)
            rep.say(f"{name:<17}{'met   ' if met else 'MISSED'}  {what}{', again' if again else ''}")
            for line in lines:
                rep.say(f"{'':<25}{line}")
            if not met:
                missed.append(name)
        return missed

    with tempfile.TemporaryDirectory(prefix="isolation-") as folder:
        a.two_layers = os.path.join(folder, "two-layers.gguf")
        subprocess.run([sys.executable, os.path.join(ROOT, "tools", "make-gguf"), "convert", "--layers", "2", a.model, "Q4_1", a.two_layers], check=True)
        missed = measure_rows(measure_rows([n for n in names if n in only or not only], False), True)
    for name, values in figures.items():
        for k, v in values.items():
            rep.result(f"{name.replace('-', '_')}_{k}", v, 2)
    rep.result("rows", len(figures))
    rep.result("missed", len(missed))
    rep.end()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
