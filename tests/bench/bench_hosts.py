"""bench_hosts.py - what another host costs: hand-shake and hand-over between prefill and decode workers on one host and on two, in turn.

Hosts are network namespaces joined by a bridge (tests/hosts/hosts.py; needs root and iproute2), so the wire is free: what is measured is what our daemons add.
    hand-shake   prefill_done reserve_us: KV_RESERVE sent until KV_GRANT taken; across hosts by TCP and CURVE
    tail         transfer_done tail_us at the sender's messager: the last layer seen computed until all bytes have arrived and the slot is marked
    iperf3       one TCP connection between the same two namespaces, in the same run

    python bench_hosts.py [-n REQUESTS] [MODEL]
"""
import argparse
import json
import os
import random
import re
import subprocess
import sys
import time

from benchlib import ROOT, Report, log_events, machine, percentile

sys.path.insert(0, os.path.join(ROOT, "tests/hosts"))
sys.path.insert(0, os.path.join(ROOT, "tests/e2e"))
import hosts as ns  # noqa: E402
from suite import GOLDEN, wait_for  # noqa: E402

ASK = """
import http.client, json, sys
address, prompts, n = json.loads(sys.stdin.read())
c = http.client.HTTPConnection(address, 8080, timeout=120)
for p in prompts:
    c.request("POST", "/v1/completions", json.dumps({"prompt": p, "max_tokens": n, "temperature": 0, "ignore_eos": True}), {"Content-Type": "application/json"})
    r = c.getresponse()
    body = r.read()
    assert r.status == 200, body
"""


def ask(client, router, prompts, n):
    done = subprocess.run(["ip", "netns", "exec", client.ns, sys.executable, "-c", ASK], input=json.dumps([router.address, prompts, n]), text=True, capture_output=True)
    assert done.returncode == 0, done.stderr[-2000:]


def start(net, model, two, encrypted, **worker):
    """Router on the first host, prefill on the second, decode on the second or third"""
    a, b, c = net.hosts
    d = c if two else b
    ns.MODEL = model
    a.keygen("router-1", "router")
    for h, name, role in ((b, "prefill-1", "worker"), (d, "decode-1", "worker"), (b, "messager-2", "messager"), (c, "messager-3", "messager")):
        h.keygen(name, role)
    for h in {b, d}:
        h.know_all()
        h.messager(data_encrypted=encrypted)
    a.know_all()
    a.router()
    common = {"storage": "none", "threads": 1, **worker}
    b.prefill("prefill-1", [(a, "router-1")], **common)
    d.decode("decode-1", [(a, "router-1")], **common)
    wait_for(lambda: ns.workers(a) == {"prefill-1": "up", "decode-1": "up"}, lambda: str(ns.workers(a)), 60)
    if two:
        wait_for(lambda: "event=path_up" in b.log("messager-2"), "the path is up", 30)
    return a, b, d


def measure(rep, name, model, two, encrypted, prompts, tokens, **worker):
    net = ns.Net(3)
    try:
        a, b, d = start(net, model, two, encrypted, **worker)
        ask(a, a, prompts[:10], tokens)
        skip = len(log_events(b.log("prefill-1"), "prefill_done"))
        ask(a, a, prompts[10:], tokens)
        n = len(prompts) - 10
        wait_for(lambda: len(log_events(b.log("messager-2"), "transfer_done")) >= skip + n, "all transfers are done")
        hand = [e["reserve_us"] for e in log_events(b.log("prefill-1"), "prefill_done")][skip:]
        done = log_events(b.log("messager-2"), "transfer_done")[skip:]
        tail, size = [e["tail_us"] for e in done], [e["bytes"] for e in done]
        for what, v in (("handshake", hand), ("tail", tail)):
            rep.say(f"{name:<28} {what:<10} {len(v):>5} requests   p50 {percentile(v, 50):>7.0f} us   p99 {percentile(v, 99):>7.0f} us")
        rep.say(f"{name:<28} bytes of a transfer: p50 {percentile(size, 50) / 1e6:.2f} MB")
        key = re.sub(r"\W+", "_", name)
        rep.result(f"{key}_handshake_p50_us", percentile(hand, 50), 0)
        rep.result(f"{key}_tail_p50_us", percentile(tail, 50), 0)
        if two:
            link = wait_for(lambda: [x for x in json.loads(b.pdctl("-d", "messager-2", "links", "--json").stdout) if x["direction"] == "to" and x["canary_us"]], "a canary")[0]
            rep.say(f"{name:<28} pdctl links: canary {link['canary_us']} us, {link['canary_mbit_s']} Mbit/s, {link['via']}")
        return net.hosts and iperf(b, d) if two else None
    finally:
        net.close()


def iperf(b, d):
    """Mbit/s of one connection between the two, or None without iperf3"""
    try:
        server = subprocess.Popen(["ip", "netns", "exec", d.ns, "iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
    except OSError:
        return None
    time.sleep(0.5)
    out = b.run("iperf3", "-c", d.address, "-t", "3", "-J")
    server.wait(10)
    return json.loads(out.stdout)["end"]["sum_received"]["bits_per_second"] / 1e6


def main():
    p = argparse.ArgumentParser()
    p.add_argument("-n", type=int, default=200)
    p.add_argument("model", nargs="?")
    a = p.parse_args()
    rep = Report("Two hosts", "make bench-hosts")
    rep.say(f"# {machine()}")
    rnd = random.Random(5)
    short = [[rnd.randint(3, 319) for _ in range(rnd.randint(20, 60))] for _ in range(a.n + 10)]
    tiny = os.path.join(GOLDEN, "llama")
    for name, two, encrypted in (("tiny one host", 0, False), ("tiny two hosts", 1, False), ("tiny two hosts encrypted", 1, True)):
        rate = measure(rep, name, tiny, two, encrypted, short, 2)
    if a.model:
        long = [[rnd.randint(100, 40000) for _ in range(512)] for _ in range(10 + max(10, a.n // 10))]
        for name, two, encrypted in (("model one host", 0, False), ("model two hosts", 1, False), ("model two hosts encrypted", 1, True)):
            rate = measure(rep, name, a.model, two, encrypted, long, 2, block_tokens=64) or rate
    if rate:
        rep.say(f"iperf3 between the namespaces: {rate:.0f} Mbit/s")
        rep.result("iperf3_mbit_s", rate, 0)
    rep.end()


if __name__ == "__main__":
    main()
