"""bench_handover.py - what the split costs a request that nobody delays: P->D hand-shake, the KV's way from pool to pool, and the router's added time.

First the messager (bench_kv.py): its reaction to a finished layer (progress stored until the bytes are in D's pool, with a producer that sleeps between layers as an
accelerator would let its host do), its rate against memcpy of the same bytes, and with the real model the tail: what is left to copy when the last token has been
computed, against one layer's share of the transfer. memcpy_fraction is the least of four layouts, reaction_p50_us the larger of two models.

Then the tiny model, 1p1d, one request at a time on one connection, so that all that is left is messages. The figures come from the daemons' own log lines:
    hand-shake    prefill_done reserve_us: KV_RESERVE sent until KV_GRANT taken, by the prefill worker
    hand-over     joined transfer_us: granted until all KV had arrived, by the decode worker (prefill included)
    router in     client's send until event=accepted at the prefill worker (loopback TCP, parsing, tokenizing, placing, a message between two processes)
    router out    event=first_token at the router until the client has read the event (formatting, loopback TCP, waking the client, which is a bare socket)
    added         time of a request of one token, as its client sees it, less the stages that the prefill worker names (queue, prepare, prefill): what the router,
                  two messages between processes and the client's own socket cost together

Last, build/bench/bench_router: the router alone with scripted workers, processor time by request and by token.

    python bench_handover.py [-n REQUESTS] [MODEL]
"""
import argparse
import datetime
import json
import os
import random
import re
import socket
import subprocess
import sys
import time

import bench_kv
from benchlib import ROOT, Report, log_events, machine, percentile
from suite import GOLDEN, Suite


def stamp(d):
    return datetime.datetime.fromisoformat(d["ts"].replace("Z", "+00:00")).timestamp() * 1e6


def connect(port):
    s = socket.create_connection(("127.0.0.1", port), timeout=30)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def ask(conn, ids, n, stream):
    """-> (sent, first event read, all read), µs since 1970. A bare socket: http.client alone takes 100 µs and more to read a head."""
    body = json.dumps({"prompt": ids, "max_tokens": n, "temperature": 0, "ignore_eos": True, "stream": stream})
    request = f"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
    reply, got = b"", 0
    sent = time.time_ns() / 1000
    conn.sendall(request)
    while not (reply.endswith(b"0\r\n\r\n") if stream else b"\r\n\r\n" in reply and is_whole(reply)):
        reply += conn.recv(65536)
        got = got or (time.time_ns() / 1000 if not stream or b"data: {" in reply else 0)
    end = time.time_ns() / 1000
    assert reply.startswith(b"HTTP/1.1 200") and (not stream or b"data: [DONE]" in reply), reply
    return sent, got, end


def is_whole(reply):
    head, _, body = reply.partition(b"\r\n\r\n")
    return len(body) >= int(re.search(rb"(?i)content-length: (\d+)", head)[1])


def percentiles(rep, name, words, values, least=0):
    p50, p99 = percentile(values, 50), percentile(values, 99)
    rep.say(f"{words:<34}{len(values):>6} requests   p50 {p50:>8.0f} us   p99 {p99:>8.0f} us")
    rep.result(f"{name}_p50_us", p50, 0)
    rep.result(f"{name}_p99_us", p99, 0)
    assert len(values) >= least, f"{name}: {len(values)} of {least} requests found in the logs"


def by_request(s, name, event):
    return {d["req"]: d for d in log_events(s.log(name), event)}


def figures(rep, s, streamed, ones):
    """One connection, one request at a time: the n-th request is the n-th `submitted` line; that names it, and the rest is found by its id."""
    ids = [d["req"] for d in log_events(s.log("router"), "submitted")]
    skip, n = len(ids) - len(streamed) - len(ones), len(streamed)
    accepted, first = by_request(s, "prefill-1", "accepted"), by_request(s, "router", "first_token")
    done, joined = by_request(s, "prefill-1", "prefill_done"), by_request(s, "decode-1", "joined")
    stream_ids, one_ids = ids[skip:skip + n], ids[skip + n:]
    percentiles(rep, "handshake", "hand-shake P->D", [done[r]["reserve_us"] for r in stream_ids], n)
    percentiles(rep, "handover", "hand-over, prefill included", [joined[r]["transfer_us"] for r in stream_ids], n)
    percentiles(rep, "router_in", "client to prefill worker", [stamp(accepted[r]) - t[0] for r, t in zip(stream_ids, streamed)], n)
    percentiles(rep, "router_out", "router's token to client", [t[1] - stamp(first[r]) for r, t in zip(stream_ids, streamed) if r in first], n * 9 // 10)
    stages = [sum(done[r][k] for k in ("queue_us", "prepare_us", "reserve_us", "prefill_us")) for r in one_ids]
    percentiles(rep, "one_token", "one token, end to end", [t[2] - t[0] for t in ones], len(ones))
    percentiles(rep, "added", "added: one token less its stages", [t[2] - t[0] - g for t, g in zip(ones, stages)], len(ones))


def router_alone(rep, model):
    r = subprocess.run([os.path.join(ROOT, "build", "bench", "bench_router"), *([model] if model else [])], capture_output=True, text=True, timeout=300, cwd=ROOT)
    if r.returncode:
        sys.exit(f"bench_router: {r.returncode}\n{r.stdout}{r.stderr[-2000:]}")
    lines = [line for line in r.stdout.splitlines() if "cpu_us/request" in line]
    rep.say("# the router alone: processor time (its scripted clients and workers included)")
    for line in lines:
        rep.say(line)
    rep.result("router_cpu_us_per_request", float(re.search(r"cpu_us/request=([\d.]+)", lines[0])[1]), 1)
    rep.result("router_cpu_us_per_token", min(float(m[1]) for m in (re.search(r"cpu_us/token=([\d.]+)", x) for x in lines) if m), 2)


def handshakes(rep, n):
    rep.say("# tiny model, 1p1d, one request at a time, prompts of 3 to 60 tokens")
    rnd = random.Random(3)
    with Suite("1p1d", os.path.join(GOLDEN, "llama"), worker={"kv_memory_mb": 16}) as s:
        conn = connect(s.port)

        def many(n, tokens, stream):
            return [ask(conn, [rnd.randint(3, 319) for _ in range(rnd.randint(3, 60))], tokens, stream) for _ in range(n)]
        many(30, 2, True)
        streamed = many(n, 4, True)
        ones = many(n, 1, False)
        time.sleep(0.3)
        figures(rep, s, streamed, ones)


def transfers(rep, model, n):
    memcpy, share, reaction = bench_kv.synthetic(rep)
    rep.result("memcpy_fraction", share, 2)
    rep.result("reaction_p50_us", reaction)
    tail, layer = bench_kv.real(rep, model, n, memcpy)
    rep.result("tail_p50_us", tail, 0)
    rep.result("layer_transfer_us", layer, 0)
    rep.result("tail_of_layer", tail / layer, 2)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("-n", "--requests", type=int, default=600)
    ap.add_argument("model")
    a = ap.parse_args()
    rep = Report("Hand-over: hand-shake, messager, the router's added time", f"make bench-handover REQUESTS={a.requests}")
    rep.say(machine())
    transfers(rep, a.model, 16)
    handshakes(rep, a.requests)
    router_alone(rep, a.model)
    rep.end()


if __name__ == "__main__":
    main()
