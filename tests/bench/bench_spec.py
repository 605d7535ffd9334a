"""bench_spec.py - speculative decoding by prompt look-up against none: tokens per step, tokens per second, and what it costs where nothing repeats.

Two workers (role mixed, the real model), one with speculative=ngram and one with off, are asked the same in turn, one at a time, so that the machine's mood meets both alike.
All answers must be the same token for token. Greedy decoding throughout, but where it says otherwise.

    copy        the task that prompt look-up is made for: the prompt has a text three times and begins a fourth one; the model goes on for as many tokens as the text has left.
                Six texts: prose, a manual, code, a list, records, a log. How much of the answers really is the text is printed (copied), as a small model may wander off.
    copy xN     the same texts, N at a time: the rows of a step are shared by N sequences, and the worker drafts less the less it pays
    chat        what people ask: "Repeat the following text word for word", to the end that the model chooses
    sampled     the copying task at temperature 0.7 with a seed
    no repeats  stories at temperature 1.2: hardly any three tokens stand twice. What the look-up costs here is off_overhead

Times are from an answer's first token to its last, as its client sees them: the prompt is no part of it. Speeds are sums over all answers of a task, of the fastest of TURNS turns for each answer.

    python bench_spec.py [-t THREADS] [-n TURNS] MODEL
"""
import argparse
import concurrent.futures
import difflib
import re
import time

from benchlib import Report, log_events, machine
from suite import Suite

TEXTS = {
    "prose": "The lighthouse keeper counted the ships each evening and wrote their names into a ledger bound in blue cloth. On the ninth of March a vessel without a name came "
             "round the cape, and the keeper left the line empty. In the morning the harbour master asked him why, and he answered that he had not wished to lie.",
    "manual": "To reset the pump, close valve A, wait ten seconds, press the red button twice and open valve B slowly. If the lamp stays dark, unplug the cable, check fuse F3 and "
              "begin again. Never open both valves while the motor runs, and note every reset with date and hour in the log beside the door.",
    "code": "def mean(values):\n    total = 0\n    count = 0\n    for value in values:\n        if value is None:\n            continue\n        total += value\n        count += 1\n"
            "    if count == 0:\n        return None\n    return total / count\n",
    "list": "Ada Lovelace, 1815, London, mathematician\nAlan Turing, 1912, London, logician\nGrace Hopper, 1906, New York, admiral\nEdsger Dijkstra, 1930, Rotterdam, physicist\n"
            "Barbara Liskov, 1939, Los Angeles, engineer\nDonald Knuth, 1938, Milwaukee, author\n",
    "records": '{"id": 17, "name": "bolt", "size": 8, "price": 0.12}\n{"id": 23, "name": "washer", "size": 9, "price": 0.03}\n{"id": 31, "name": "spring", "size": 14, "price": 0.85}\n'
               '{"id": 48, "name": "hinge", "size": 60, "price": 2.40}\n',
    "log": "07:14 door opened by guest\n07:15 light on in hall\n07:31 kettle on, 1800 W\n07:36 kettle off\n08:02 door opened by owner\n08:03 alarm set for 18:30\n08:40 window closed in kitchen\n",
}
STORIES = ["Write a story about a clockmaker and a whale.", "Describe a market in a city under the sea.", "What did the old map in the attic show?", "Tell me about a train that never stops."]
BEGIN = re.compile(r"\w+\W+\w+")       # what the prompt already has of the fourth copy


class Pair:
    """The same suite twice, with and without."""

    def __init__(self, model, threads):
        worker = {"threads": threads, "kv_memory_mb": 96}
        self.off = Suite("mixed", model, worker={**worker, "speculative": "off"})
        self.on = Suite("mixed", model, worker={**worker, "speculative": "ngram"})

    def __enter__(self):
        self.off.__enter__()
        try:
            self.on.__enter__()
        except BaseException:
            self.off.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, *exc):
        self.on.__exit__(*exc)
        self.off.__exit__(*exc)


def ask(s, path, body):
    """-> (token ids, text, seconds from the first token to the last)"""
    ids, text, first, last = [], "", None, None
    for e in s.stream(path, {**body, "return_token_ids": True}):
        if not e["choices"]:
            continue
        c = e["choices"][0]
        now = time.perf_counter()
        if c.get("token_ids"):
            ids += c["token_ids"]
            first, last = first or now, now
            text += c["text"] if "text" in c else c["delta"].get("content", "")
    return ids, text, last - first


def count(s, text):
    return s.post("/tokenize", {"prompt": text, "add_special_tokens": False})[1]["count"]


def copying(s):
    """-> [(path, body, the text that is to come)]"""
    out = []
    for text in TEXTS.values():
        begin = BEGIN.search(text).group()
        rest = text[text.index(begin) + len(begin):]
        body = {"prompt": f"{text}\n" * 3 + text[:-len(rest)], "max_tokens": count(s, rest), "temperature": 0, "ignore_eos": True}
        out.append(("/v1/completions", body, rest))
    return out


def chats():
    return [("/v1/chat/completions", {"messages": [{"role": "user", "content": f"Repeat the following text word for word.\n\n{t}"}], "max_tokens": 160, "temperature": 0}, t)
            for t in TEXTS.values()]


def stories():
    return [("/v1/completions", {"prompt": p, "max_tokens": 192, "temperature": 1.2, "seed": i + 1, "ignore_eos": True}, None) for i, p in enumerate(STORIES)]


def share_copied(text, want):
    """Of the text's characters, those that stand in the answer in their order, in pieces of 8 and more."""
    blocks = difflib.SequenceMatcher(None, want, text, autojunk=False).get_matching_blocks()
    return sum(b.size for b in blocks if b.size >= 8) / len(want)


def counters(s):
    st = s.ctl("mixed-1", "status")
    return [st[k] for k in ("generated_tokens", "drafted_tokens", "accepted_tokens")]


def together(s, questions, width):
    """-> [(ids, text, seconds)]; width at a time"""
    if width == 1:
        return [ask(s, path, body) for path, body, _ in questions]
    with concurrent.futures.ThreadPoolExecutor(width) as pool:
        return list(pool.map(lambda q: ask(s, q[0], q[1]), questions))


class Task:
    """Asks both workers TURNS times; the order within a turn alternates."""

    def __init__(self, pair, questions, turns, width=1):
        self.tokens = 0
        self.best = {"off": [float("inf")] * len(questions), "on": [float("inf")] * len(questions)}
        before = counters(pair.on)
        for turn in range(turns):
            order = [("off", pair.off), ("on", pair.on)]
            answers = {}
            for name, s in order if turn % 2 == 0 else order[::-1]:
                answers[name] = together(s, questions, width)
                self.best[name] = [min(b, a[2]) for b, a in zip(self.best[name], answers[name])]
            assert [a[0] for a in answers["off"]] == [a[0] for a in answers["on"]], "other tokens with drafts than without"
        self.tokens = sum(len(a[0]) - 1 for a in answers["on"])
        self.copied = [share_copied(a[1], q[2]) for a, q in zip(answers["on"], questions) if q[2]]
        made, self.drafted, self.accepted = [b - a for a, b in zip(before, counters(pair.on))]
        decoded = made - turns * len(questions)                   # the first tokens are the prompts' steps
        self.per_step = decoded / (decoded - self.accepted)
        self.speed = {k: self.tokens / sum(v) for k, v in self.best.items()}
        self.speedup = self.speed["on"] / self.speed["off"]

    def row(self, rep, name):
        copied = f"{100 * sum(self.copied) / len(self.copied):>8.0f}" if self.copied else f"{'-':>8}"
        share = f"{100 * self.accepted / self.drafted:>8.0f}" if self.drafted else f"{'-':>8}"
        rep.say(f"{name:<22}{self.tokens:>8}{copied}{self.drafted:>9}{share}{self.per_step:>10.2f}{self.speed['off']:>10.1f}{self.speed['on']:>10.1f}{self.speedup:>9.2f}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("-t", "--threads", type=int, default=0, help="compute threads of a worker (0: all cores; only one of the two computes at a time)")
    ap.add_argument("-n", "--turns", type=int, default=3)
    ap.add_argument("model")
    a = ap.parse_args()
    rep = Report("Speculative decoding: prompt look-up", f"make bench-spec THREADS={a.threads} TURNS={a.turns}")
    rep.say(machine())
    rep.say(f"{'task':<22}{'tokens':>8}{'copied%':>8}{'drafted':>9}{'right%':>8}{'per step':>10}{'off tok/s':>10}{'on tok/s':>10}{'speedup':>9}")
    with Pair(a.model, a.threads) as pair:
        copy = copying(pair.off)
        Task(pair, copy[:2], 1)                     # both have seen work, and the one that drafts has seen what rows cost
        one = Task(pair, copy, a.turns)
        one.row(rep, "copy")
        chat = Task(pair, chats(), a.turns)
        chat.row(rep, "chat: repeat this")
        sampled = Task(pair, [(p, {**b, "temperature": 0.7, "seed": 5}, t) for p, b, t in copy], a.turns)
        sampled.row(rep, "copy, temperature 0.7")
        few = Task(pair, copy, a.turns, 3)
        few.row(rep, "copy x3")
        none = Task(pair, stories(), a.turns)
        none.row(rep, "no repeats")
    for name, v in (("spec_speedup", one.speedup), ("spec_tokens_per_step", one.per_step), ("spec_acceptance", one.accepted / one.drafted),
                    ("spec_off_overhead_pct", 100 * (none.speed["off"] / none.speed["on"] - 1)), ("spec_tok_s_off", one.speed["off"]), ("spec_tok_s_ngram", one.speed["on"]),
                    ("spec_copied", sum(one.copied) / len(one.copied)), ("spec_chat_speedup", chat.speedup), ("spec_sampled_speedup", sampled.speedup), ("spec_speedup_x3", few.speedup)):
        rep.result(name, v, 2)
    rep.end()


if __name__ == "__main__":
    main()
