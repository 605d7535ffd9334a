"""bench_prefill_sched.py - what a scheduler of its own gives prefill: conversations that grow to tens of thousands of tokens, one prefill and three
decode workers on simulated accelerators.

The device is etc/sim/dense-70b-tp8 (70 billion weights, eight accelerators, tensor parallel), its 80 layers modelled as 20 of four times the cost, so
that a token's simulated KV is small; time runs at --scale. The same conversations, lengths and pauses run with the
prefill scheduler and, by a virtual clock, on ideal workers of the same cost (ideal.py): nothing but the devices takes time there. That is the bound.
Every run is made with decode workers that answer at once, and with such that hear a reservation 5 ms late (modelled time, by their `fault` layer): another
host, or a decode worker that looks at its messages between two steps.
A conversation's next prompt is everything said before, the answer included, and new tokens; it follows its answer after a pause. So the load
is a closed loop, and a slow first token delays all that comes after it.

    TTFT     from sending the request until its first event was read, by the client
    total    from the first request until the last answer's end
    busy     the prefill device's own count of the time in which it had work, of the time in which some request waited for its first token

    python bench_prefill_sched.py [--scale F] [--sessions N] [--rounds N] [--latencies 0,5]
"""
import argparse
import http.client
import json
import random
import re
import threading
import time

import ideal
from benchlib import Report, percentile
from suite import Suite

BUDGET, BLOCK, SEQUENCES = 8192, 64, 64
DEVICE = {"base": "dense-70b-tp8", "layers": 20, "params": 7.0e10, "heads": 256, "kv_heads": 32, "hidden": 32768, "launch_us": 120.0, "exchange_us": 80.0,
          "link_bandwidth": 3.0e11}


def conversations(a):
    """Lengths and pauses (modelled seconds), drawn once for all runs."""
    r = random.Random(a.seed)

    def one():
        return ideal.Session([ideal.Round(r.randrange(1000, 4000) if k == 0 else r.randrange(400, 1600), r.randrange(40, 160), r.uniform(0, 1.5) * a.scale)
                              for k in range(a.rounds)], at_s=r.uniform(0, 8.0) * a.scale)
    return [one() for _ in range(a.sessions)]


# --- the client -------------------------------------------------------------------------------------------------------------

class Conversation(threading.Thread):
    def __init__(self, port, number, session, begin):
        super().__init__(daemon=True)
        self.port, self.session, self.begin, self.done, self.error = port, session, begin, [], None
        self.ids = random.Random(number + 1000)

    def run(self):
        try:
            self.talk()
        except Exception as e:      # a thread's own words, for the main one
            self.error = e

    def talk(self):
        said = ""
        conn = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        conn.connect()
        time.sleep(max(0.0, self.begin + self.session.at_s - time.monotonic()))
        for k, rnd in enumerate(self.session.rounds):
            said += ("," if said else "") + ",".join(str(self.ids.randrange(3, 320)) for _ in range(rnd.new))
            body = f'{{"prompt":[{said}],"max_tokens":{rnd.answer},"temperature":0,"ignore_eos":true,"stream":true,"return_token_ids":true}}'
            if k:
                time.sleep(max(0.0, self.done[-1][2] + rnd.think_s - time.monotonic()))
            sent = time.monotonic()
            conn.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
            r = conn.getresponse()
            head = r.readline()
            first = time.monotonic()
            rest = head + r.read()
            self.done.append((sent, first, time.monotonic()))
            ids = [i for piece in re.findall(rb'"token_ids":\[([\d,]*)\]', rest) for i in piece.decode().split(",") if i]
            if r.status != 200 or len(ids) != rnd.answer:
                raise RuntimeError(f"round {k}: status {r.status}, {len(ids)} of {rnd.answer} tokens: {rest[-300:]}")
            said += "," + ",".join(ids)


class Run:
    """One load on real daemons: TTFTs in seconds, total, how busy the prefill device was while work was there."""

    def __init__(self, a, latency_ms, sessions):
        most = sum(sum(r.new + r.answer for r in s.rounds) for s in sessions)
        blocks = most // BLOCK + 40 * len(sessions)
        worker = {"max_batched_tokens": BUDGET, "max_sequences": SEQUENCES, "block_tokens": BLOCK, "kv_blocks": blocks, "output_caching": False}
        late = {"fault": f"type=KV_RESERVE:dir=in:late=100%:{round(latency_ms * 1000 * a.scale)}us"} if latency_ms else {}
        with Suite(layout=f"1p{a.decodes}d", sim={**DEVICE, "time_scale": a.scale}, worker=worker,
                            decode=late, storage={"memory_mb": 16}) as s:
            before = s.ctl("prefill-1", "status")["device_busy_us"]
            threads = [Conversation(s.port, i, x, time.monotonic() + 0.5) for i, x in enumerate(sessions)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
                if t.error:
                    raise t.error
            self.busy_s = (s.ctl("prefill-1", "status")["device_busy_us"] - before) / 1e6
            self.faults = sum(s.ctl(w, "status")["device_kv_faults"] for w in s.workers())
        done = [d for t in threads for d in t.done]
        self.ttft = [first - sent for sent, first, _ in done]
        self.work_s = ideal.union_s((sent, first) for sent, first, _ in done)
        self.total_s = max(end for *_, end in done) - min(sent for sent, *_ in done)
        self.mean = sum(self.ttft) / len(self.ttft)
        self.p90 = percentile(self.ttft, 90)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--scale", type=float, default=0.3)
    p.add_argument("--sessions", type=int, default=42)
    p.add_argument("--rounds", type=int, default=18)
    p.add_argument("--decodes", type=int, default=3)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--latencies", default="0,5")
    a = p.parse_args()
    rep = Report("Prefill scheduler", "make bench-prefill-sched")
    sessions = conversations(a)
    device = ideal.Device.load(**{**DEVICE, "time_scale": a.scale})
    bound = ideal.run(sessions, device, device, 1, a.decodes, BUDGET, max_sequences=SEQUENCES, block_tokens=BLOCK)
    longest = max(r.prompt for r in bound.requests)
    rep.say(f"1p{a.decodes}d, {len(sessions)} conversations of {a.rounds} rounds, contexts up to {longest} tokens, time x {a.scale:g}")
    rep.say(f"{'':18}{'total':>9}{'TTFT mean':>12}{'p90':>10}{'prefill device busy':>22}")
    rep.say(f"{'bound':18}{bound.total_s:>7.2f} s{bound.mean_ttft_s * 1e3:>9.1f} ms{bound.p90_ttft_s * 1e3:>7.0f} ms{bound.busy_fraction:>14.1%} of {bound.work_s:.1f} s")
    for latency in map(float, a.latencies.split(",")):
        r = Run(a, latency, sessions)
        rep.say(f"{f'{latency:g} ms':18}{r.total_s:>7.2f} s{r.mean * 1e3:>9.1f} ms{r.p90 * 1e3:>7.0f} ms{r.busy_s / r.work_s:>14.1%} of {r.work_s:.1f} s")
        assert r.faults == 0, f"{r.faults} steps found wrong KV"
        suffix = f"_{latency:g}ms" if latency else ""
        rep.result(f"busy{suffix}_pct", 100 * r.busy_s / r.work_s, 2)
        rep.result(f"ttft_vs_bound{suffix}", r.mean / bound.mean_ttft_s, 4)
    rep.end()


if __name__ == "__main__":
    main()
