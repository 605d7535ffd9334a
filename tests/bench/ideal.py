"""ideal.py - a load on ideal workers, by a virtual clock: what no implementation of the same arrangement can beat.

The workers cost what the simulated accelerator costs (kernels/sim/program.c: the same operations of the same description). Nothing else takes time:
requests arrive, prefixes are matched, KV is handed over and tokens are reported in no time, and every worker always has room. Prefill
workers walk their jobs and fill a token budget, decode workers run one continuous batch, as the real ones do.

    device = Device.load("dense-14b", time_scale=0.2)
    sessions = [Session([Round(1280, 700)]) for _ in range(256)]
    r = run(sessions, device, device, prefills=1, decodes=1, budget=8192, concurrency=64)
    r.total_s, r.mean_ttft_s, r.busy_fraction

A session is a conversation: each round's prompt is all that was said before and `new` tokens; its full blocks of earlier prompts are cached
on the prefill worker. A load without conversations has sessions of one round.
"""
import argparse
import heapq
import itertools
import os
import re
import sys
from dataclasses import dataclass, field

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "e2e"))
from suite import sim_description  # noqa: E402


class Device:
    """The figures of a description; `step` is what a step costs, in seconds, time scale included."""

    DEFAULTS = {"params": 0.0, "active_params": 0.0, "weight_bytes": 2.0, "kv_bytes": 2.0, "launch_us": 0.0, "step_us": 0.0, "tp": 1, "exchange_us": 0.0,
                "link_bandwidth": 1e15, "time_scale": 1.0, "vocab": 320}

    def __init__(self, text):
        v = dict(self.DEFAULTS)
        text = re.sub(r"(?m)#.*$", "", text)
        v.update({k: float(n) for k, n in re.findall(r"(\w+)\s*=\s*([-+.\deE]+)\s*;", text)})
        tp = v["tp"]
        self.qkv = v["hidden"] * v["head_dim"] * (v["heads"] + 2 * v["kv_heads"])      # weights before a layer's KV is written
        self.rest = v["hidden"] * v["head_dim"] * v["heads"] + 3 * v["hidden"] * v["ffn"]
        self.head = v["hidden"] * v["vocab"]
        layers = (self.qkv + self.rest) * v["layers"]
        params = v["params"] or layers
        self.layers, self.scale = int(v["layers"]), v["time_scale"]
        self.weight_row_s = 2 * (v["active_params"] or params) / layers / (v["flops"] * tp)
        self.attended_s = 4 * v["heads"] * v["head_dim"] / (v["flops"] * tp)
        self.weight_s = v["weight_bytes"] * params / layers / (v["bandwidth"] * tp)
        self.context_s = 2 * v["kv_heads"] * v["head_dim"] * v["kv_bytes"] / (v["bandwidth"] * tp)
        self.exchange_row_s = 2 * v["hidden"] * 2 * 2 * (tp - 1) / tp / v["link_bandwidth"] if tp > 1 else 0.0
        self.exchange_s = v["exchange_us"] * 1e-6 if tp > 1 else 0.0
        self.launch_s, self.step_s = v["launch_us"] * 1e-6, v["step_us"] * 1e-6

    @classmethod
    def load(cls, base, **changes):
        return cls(sim_description(base, **changes))

    def _part(self, weights, rows, attended, context, exchanged=0):
        """Operations of one layer, or those of two layers between their KV writes; exchanged: rows whose sums are exchanged."""
        if not rows:
            return 0.0
        memory = self.weight_s * weights + self.context_s * context
        return max(self.weight_row_s * weights * rows + self.attended_s * attended, memory) + (self.exchange_s + self.exchange_row_s * exchanged) * bool(exchanged)

    def cost(self, rows, attended, context, tail=None):
        """rows of the step, positions that they attend to in sum, tokens whose KV is read in sum; tail: the same of the rows whose logits are
        wanted (None: of all), for which alone the last layer goes on past its KV and the head is computed."""
        t = tail or (rows, attended, context)
        layer = self._part(self.qkv + self.rest, rows, attended, context, rows)
        total = self._part(self.qkv, rows, 0, 0) + (self.layers - 1) * layer + self._part(self.rest + self.head, *t, t[0])
        return (self.step_s + self.layers * self.launch_s + total) * self.scale

    def step(self, spans, ends=None):
        """spans: (position of the first row, rows); ends: for each, whether its last row's logits are wanted (None: of all spans)."""
        last = [p + n for i, (p, n) in enumerate(spans) if ends is None or ends[i]]
        return self.cost(sum(n for _, n in spans), sum(n * p + n * (n + 1) / 2 for p, n in spans), sum(p + n for p, n in spans),
                         (len(last), sum(last), sum(last)))


@dataclass
class Round:
    new: int                   # tokens that the prompt has more than what was said before
    answer: int
    think_s: float = 0.0       # between the answer before and this prompt


@dataclass
class Session:
    rounds: list
    at_s: float = 0.0          # when it begins; not looked at with `concurrency`


@dataclass
class Request:
    session: int
    round: int
    prompt: int
    cached: int
    answer: int
    at_s: float
    computed: int = 0
    first_s: float = 0.0
    end_s: float = 0.0

    @property
    def ttft_s(self):
        return self.first_s - self.at_s


@dataclass
class Result:
    requests: list
    prefill_busy_s: list       # of each prefill worker
    work_s: float              # time in which some request waited for its first token
    total_s: float
    mean_ttft_s: float = field(init=False)
    p90_ttft_s: float = field(init=False)
    busy_fraction: float = field(init=False)

    def __post_init__(self):
        t = sorted(r.ttft_s for r in self.requests)
        self.mean_ttft_s = sum(t) / len(t)
        self.p90_ttft_s = t[min(len(t) - 1, int(len(t) * 0.9))]
        self.busy_fraction = sum(self.prefill_busy_s) / len(self.prefill_busy_s) / self.work_s if self.work_s else 0.0


def union_s(intervals):
    """Length of what the intervals cover."""
    total, end = 0.0, float("-inf")
    for a, b in sorted(intervals):
        total += max(0.0, b - max(a, end))
        end = max(end, b)
    return total


ORDERS = ("fifo", "srpt")      # by arrival; the shortest remaining first, less the share of ageing_s that it has waited


class _Worker:
    def __init__(self, world, device):
        self.world, self.device, self.jobs, self.busy, self.busy_s = world, device, [], False, 0.0

    def add(self, job):
        self.jobs.append(job)
        self.world.wake(self)

    def begin(self):
        """Called when something came in at this instant, after all that came in with it."""
        if self.busy or not self.jobs:
            return
        duration = self.plan()
        self.busy, self.busy_s = True, self.busy_s + duration
        self.world.at(self.world.now + duration, self.end)

    def end(self):
        self.busy = False
        self.finish()
        self.world.wake(self)


class _Prefill(_Worker):
    def left(self, r):
        return (r.prompt - r.computed) * max(0.0, 1 - (self.world.now - r.at_s) / self.world.ageing_s)

    def plan(self):
        w, left = self.world, self.world.budget
        if w.order == "srpt":
            self.jobs.sort(key=self.left)
        self.taken = []
        for r in self.jobs:
            n = min(left, r.prompt - r.computed)
            if not n or len(self.taken) == w.max_sequences:
                break
            self.taken.append((r, n))
            left -= n
        return self.device.step([(r.computed, n) for r, n in self.taken], [r.computed + n == r.prompt for r, n in self.taken])

    def finish(self):
        for r, n in self.taken:
            r.computed += n
            if r.computed == r.prompt:
                r.first_s = self.world.now
                self.jobs.remove(r)
                self.world.prefilled(r)


class _Decode(_Worker):
    """Keeps the sum over its sequences, and when in its steps each of them ends."""

    def __init__(self, world, device):
        super().__init__(world, device)
        self.steps, self.context, self.running, self.ends, self.ties = 0, 0, 0, [], itertools.count()

    def begin(self):
        if not self.busy:
            room = self.world.max_sequences - self.running
            joining, self.jobs = self.jobs[:room], self.jobs[room:]
            for r in joining:
                self.running += 1
                self.context += r.prompt + 1
                heapq.heappush(self.ends, (self.steps + r.answer - 1, next(self.ties), r))
            if self.running:
                duration = self.device.cost(self.running, self.context, self.context)
                self.busy, self.busy_s = True, self.busy_s + duration
                self.world.at(self.world.now + duration, self.end)

    def finish(self):
        self.steps += 1
        self.context += self.running
        while self.ends and self.ends[0][0] == self.steps:
            r = heapq.heappop(self.ends)[2]
            self.running -= 1
            self.context -= r.prompt + r.answer
            self.world.ended(r)


class _World:
    def __init__(self, sessions, prefill, decode, prefills, decodes, budget, concurrency, max_sequences, block_tokens, order, ageing_s):
        self.sessions, self.budget, self.max_sequences, self.block, self.order, self.ageing_s = sessions, budget, max_sequences, block_tokens, order, ageing_s
        self.now, self.events, self.ties, self.due = 0.0, [], itertools.count(), []
        self.prefills = [_Prefill(self, prefill) for _ in range(prefills)]
        self.decodes = [_Decode(self, decode) for _ in range(decodes)]
        self.requests, self.said, self.waiting = [], {}, iter(())
        if concurrency:
            self.waiting = iter(range(concurrency, len(sessions)))
        for i, s in enumerate(sessions[:concurrency] if concurrency else sessions):
            self.at(0.0 if concurrency else s.at_s, lambda i=i: self.ask(i, 0))

    def at(self, when, what):
        heapq.heappush(self.events, (when, next(self.ties), what))

    def wake(self, worker):
        if worker not in self.due:
            self.due.append(worker)

    def ask(self, session, number):
        before, cached = self.said.get(session, (0, 0))
        rnd = self.sessions[session].rounds[number]
        prompt = before + rnd.new
        cached = min(cached, (prompt - 1) // self.block * self.block)
        r = Request(session, number, prompt, cached, rnd.answer, self.now, computed=cached)
        self.requests.append(r)
        self.prefills[session % len(self.prefills)].add(r)

    def prefilled(self, r):
        self.said[r.session] = (r.prompt + r.answer, r.prompt // self.block * self.block)
        if r.answer == 1:
            self.ended(r)
        else:
            min(self.decodes, key=lambda d: d.running + len(d.jobs)).add(r)

    def ended(self, r):
        r.end_s = self.now
        rounds = self.sessions[r.session].rounds
        if r.round + 1 < len(rounds):
            self.at(self.now + rounds[r.round + 1].think_s, lambda: self.ask(r.session, r.round + 1))
            return
        follower = next(self.waiting, None)
        if follower is not None:
            self.ask(follower, 0)

    def run(self):
        while self.events:
            self.now, _, what = heapq.heappop(self.events)
            what()
            if self.events and self.events[0][0] == self.now:
                continue
            due, self.due = self.due, []
            for w in due:
                w.begin()


def run(sessions, prefill, decode, prefills=1, decodes=1, budget=8192, concurrency=None, max_sequences=256, block_tokens=64, order="fifo", ageing_s=2.0):
    """concurrency: so many sessions at once, the next one begins when one has ended; None: each begins at its own time."""
    w = _World(sessions, prefill, decode, prefills, decodes, budget, concurrency, max_sequences, block_tokens, order, ageing_s)
    w.run()
    work = union_s((r.at_s, r.first_s) for r in w.requests)
    return Result(w.requests, [p.busy_s for p in w.prefills], work, max(r.end_s for r in w.requests))


def main():
    p = argparse.ArgumentParser(description="a load without conversations on ideal workers")
    p.add_argument("base", help="a name in etc/sim")
    p.add_argument("--prefills", type=int, default=1)
    p.add_argument("--decodes", type=int, default=1)
    p.add_argument("--requests", type=int, default=1000)
    p.add_argument("--concurrency", type=int, default=256)
    p.add_argument("--input", type=int, default=1280)
    p.add_argument("--output", type=int, default=700)
    p.add_argument("--budget", type=int, default=8192)
    p.add_argument("--time-scale", type=float, default=1.0)
    p.add_argument("--order", choices=ORDERS, default="fifo")
    a = p.parse_args()
    d = Device.load(a.base, time_scale=a.time_scale)
    sessions = [Session([Round(a.input, a.output)]) for _ in range(a.requests)]
    r = run(sessions, d, d, a.prefills, a.decodes, a.budget, a.concurrency, order=a.order)
    print(f"total {r.total_s:.2f} s, {a.requests * a.output / r.total_s:.0f} answer tokens/s, mean TTFT {r.mean_ttft_s * 1e3:.1f} ms, "
          f"p90 {r.p90_ttft_s * 1e3:.1f} ms, prefill busy {r.busy_fraction:.1%} of {r.work_s:.2f} s")


if __name__ == "__main__":
    main()
