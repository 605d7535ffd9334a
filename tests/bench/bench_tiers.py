"""bench_tiers.py - what the cache tiers give: the time to the first token of conversations whose KV has left the device, and of one long prefix from each tier.

Conversations. One client that waits for each answer talks in CONVERSATIONS conversations, a turn of each in an order drawn from a seed, such that at least
MIN_APART others come between two turns of one: its KV has left the device by then. All KV together is four times the KV pool of each worker. A prompt is all that was
said before and USER new tokens; the answer (ANSWER tokens, greedy) is the model's own and must be the same in every run. The runs: device only, then one tier more
each time. The lowest tier of a run has room for everything; those above it hold as much as the pool. Prefill offloads what it evicts; decode stores nothing, or with output caching
prompts and answers that have ended. TTFT and hit rate are those of all turns but the first: the hit rate is the share of a prompt's earlier tokens, in full blocks, that was not computed again.

One prefix of PREFIX tokens, read back from each tier alone into pools that have forgotten it (write_through, then `flush` of both workers before each request), against computing it
and against finding it on the device. With storage_read = always; what the worker would choose by itself (auto) is said beside it: by the rates that it has measured, blocks are
worth reading from break_even blocks on.

    python bench_tiers.py [--only conversations|prefix] MODEL
"""
import argparse
import os
import random
import time

from benchlib import Report, log_events, machine, percentile
from suite import Suite
from tierlib import Stack, TIERS, have_redis, settled, tier_figures

CONVERSATIONS, TURNS, FIRST, USER, ANSWER = 8, 4, 480, 48, 96
MIN_APART = 3
BLOCK = 64
PREFIX, OWN = 2000, 16
ROOMY_MB = 1024


def order(rnd):
    """One round after the other, each with every conversation once, and at least MIN_APART others between two turns of one."""
    out = []
    for _ in range(TURNS):
        while True:
            turn = rnd.sample(range(CONVERSATIONS), CONVERSATIONS)
            if all(c not in (out + turn)[len(out) + i - MIN_APART:len(out) + i] for i, c in enumerate(turn)):
                break
        out += turn
    return out


def words(rnd, n):
    return [rnd.randrange(3, 40000) for _ in range(n)]


def ask(s, prompt, n):
    """-> (seconds to the first token, token ids)"""
    begin, first, ids = time.monotonic(), None, []
    for e in s.stream("/v1/completions", {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_token_ids": True}):
        for c in e["choices"]:
            if c.get("token_ids"):
                first = first or time.monotonic() - begin
                ids += c["token_ids"]
    assert len(ids) == n, (len(ids), n)
    return first, ids


def computed(s):
    """(prompt tokens, of these not computed, of these read from storage) of each request, in order."""
    return [(d["tokens"], d["cached"], d["stored"]) for d in log_events(s.log("prefill-1"), "prefill_done")]


def talk(s):
    """-> (TTFT of each later turn, share of earlier tokens that was not computed, all answers)"""
    rnd = random.Random(17)
    said = [words(rnd, FIRST) for _ in range(CONVERSATIONS)]
    turn, ttft, answers, earlier = [0] * CONVERSATIONS, [], [], []
    for c in order(rnd):
        first, ids = ask(s, said[c], ANSWER)
        answers.append(ids)
        earlier.append((len(said[c]) - USER - 1) // BLOCK * BLOCK if turn[c] else 0)      # nobody has computed the KV of the last token
        if turn[c]:
            ttft.append(first)
        said[c] = said[c] + ids + words(rnd, USER)
        turn[c] += 1
    done = computed(s)
    assert len(done) == len(answers)
    hits = sum(min(cached, e) for (_, cached, _), e in zip(done, earlier)) / sum(earlier)
    return ttft, hits, answers


def total_blocks():
    return CONVERSATIONS * ((FIRST + TURNS * ANSWER + (TURNS - 1) * USER) // BLOCK)


def workers(stack, **more):
    return {"threads": os.cpu_count() or 1, "block_tokens": BLOCK, **({} if stack.sizes else {"storage": "none"}), **more}


def pool_mb(blocks, block_bytes):
    return max(1, blocks * block_bytes // 2**20)


def conversations(rep, model, block_bytes):
    pool = total_blocks() // 4
    mb = pool_mb(pool, block_bytes)
    rep.say(f"# {CONVERSATIONS} conversations of {TURNS} turns: {FIRST} tokens, then {USER} more each time, answers of {ANSWER}; {total_blocks()} blocks of {BLOCK} tokens in all,"
            f" pools of {pool} ({mb} MiB) in both workers")
    rep.say("lost: blocks evicted that were not known to be stored elsewhere, by the two workers + by the tiers")
    rep.say(f"{'tiers':<30}{'answers cached':>15}{'hit rate':>10}{'TTFT mean ms':>14}{'p90':>8}{'lost':>9}   blocks read from each tier")
    runs = [("device", {}), ("memory", {"memory": ROOMY_MB}), ("disk", {"memory": mb, "disk": ROOMY_MB})]
    if have_redis():
        runs.append(("redis", {"memory": mb, "disk": mb, "redis": ROOMY_MB}))
    want, base = None, None
    for name, sizes in runs:
        for caching in (False, True) if sizes else (False,):
            with Stack(**sizes) as stack, Suite("1p1d", model, worker=workers(stack, kv_blocks=pool), prefill={"kv_eviction": "offload"},
                                                decode={"output_caching": caching}, storage=stack.conf) as s:
                ttft, hits, answers = talk(s)
                read = tier_figures(s, "hits_total")
                lost = [sum(k["evictions"] - k["evicted_stored"] for k in map(s.kv, s.workers())), sum(tier_figures(s, "lost_total").values())]
            want = want or answers
            assert answers == want, f"{name}: other answers than with the device alone"
            mean, p90 = sum(ttft) / len(ttft) * 1e3, percentile(ttft, 90) * 1e3
            base = base or mean
            words_ = "device only" if not sizes else "device, " + ", ".join(sizes)
            rep.say(f"{words_:<30}{('-' if not sizes else 'yes' if caching else 'no'):>15}{hits * 100:>9.1f}%{mean:>14.0f}{p90:>8.0f}{'%d+%d' % tuple(lost):>9}   "
                    + ", ".join(f"{t} {read[t]}" for t in sizes))
            tag = f"talk_{name}" + ("_outputs" if caching else "")
            rep.result(f"{tag}_hit_pct", hits * 100, 1)
            rep.result(f"{tag}_ttft_mean_ms", mean, 0)
            rep.result(f"{tag}_ttft_p90_ms", p90, 0)
            if sizes and caching:
                rep.result(f"talk_{name}_ttft_vs_device", mean / base, 3)


def again(s, words_, times, rnd, forget):
    """-> TTFT of each request for the prefix, after one that made it known. forget: neither worker has anything of any prompt."""
    ask(s, words_ + words(rnd, OWN), 1)
    ttft = []
    for _ in range(times):
        settled(s)
        for w in s.workers() if forget else ():
            s.ctl(w, "flush")
        ttft.append(ask(s, words_ + words(rnd, OWN), 1)[0])
    return ttft


def rates_of(s):
    """What the prefill worker has learned of reading and computing."""
    storage = s.kv("prefill-1")["storage"]
    return storage["compute_tokens_per_s"], {t["tier"]: t for t in storage["tiers"]}


def prefix_run(model, sizes, times, forget=True):
    """-> (TTFT of each, the share of their prompts that was not computed, what the worker has measured)"""
    rnd = random.Random(5)
    keep = {"kv_eviction": "write_through", "write_through_after": 0, "output_caching": False, "storage_read": "always"}
    with Stack(**sizes) as stack, Suite("1p1d", model, worker=workers(stack, **keep), storage=stack.conf) as s:
        ttft = again(s, words(rnd, PREFIX), times, rnd, forget)
        done = computed(s)[1:]
        return ttft, sum(c for _, c, _ in done) / sum(n for n, _, _ in done), rates_of(s) if sizes else {}


def say_prefix(rep, name, ttft, hit, note=""):
    ms = sorted(ttft)[len(ttft) // 2] * 1e3
    rep.say(f"{name:<12}{ms:>10.1f}{min(ttft) * 1e3:>10.1f}{max(ttft) * 1e3:>10.1f}{hit * 100:>10.1f}%   {note}")
    rep.result(f"ttft_{name}_ms", ms, 1)
    return ms


def prefix(rep, model):
    rep.say(f"# a prefix of {PREFIX} tokens and {OWN} new ones: time to the first token, median")
    rep.say(f"{'from':<12}{'ms':>10}{'least':>10}{'most':>10}{'cached':>11}   the worker's own rates")
    base = say_prefix(rep, "recompute", *prefix_run(model, {}, 4)[:2])
    ms = say_prefix(rep, "device", *prefix_run(model, {}, 8, forget=False)[:2])
    rep.result("ttft_device_vs_recompute", ms / base, 3)
    for t in TIERS:
        if t == "redis" and not have_redis():
            continue
        ttft, hit, rates = prefix_run(model, {t: ROOMY_MB}, 8)
        compute, r = rates[0], rates[1][t]
        ms = say_prefix(rep, t, ttft, hit, f"{r['read_begin_us']:.0f} us + {r['read_bytes_per_s'] / 1e6:.0f} MB/s, against {compute:.0f} tokens/s: read from {r['break_even_blocks']} blocks on")
        rep.result(f"ttft_{t}_vs_recompute", ms / base, 3)
        if isinstance(r["break_even_blocks"], int):
            rep.result(f"break_even_{t}_blocks", r["break_even_blocks"])


def block_bytes_of(model):
    with Suite("mixed", model, worker={"kv_memory_mb": 64, "block_tokens": BLOCK, "storage": "none"}) as s:
        return 64 * 2**20 // s.kv("mixed-1")["blocks"]


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("model")
    ap.add_argument("--only", choices=("conversations", "prefix"))
    a = ap.parse_args()
    rep = Report("Cache tiers: conversations, and a prefix from each tier", "make bench-tiers")
    size = block_bytes_of(a.model)
    rep.say(f"{os.path.basename(a.model)}, 1p1d, {os.cpu_count()} threads a worker, blocks of {size / 2**20:.2f} MiB; {machine()}")
    if a.only != "prefix":
        conversations(rep, a.model, size)
    if a.only != "conversations":
        prefix(rep, a.model)
    rep.end()


if __name__ == "__main__":
    main()
