"""KV that is handed over between hosts: a router; prefill worker, messager and storage; decode worker, messager and storage. Whatever is cut, lost or killed, each
answer has the tokens that one host gives.
"""
import json
import os
import subprocess
import sys
import time

import pytest
from hosts import NEEDS, ask, net, workers  # noqa: F401
from suite import wait_for

pytestmark = NEEDS

LONG = [3 + (i * 37 + 11) % 317 for i in range(150)]
# what the second one shares with the first are full blocks
PROMPTS = [LONG[:100], LONG[:80] + [7] * 20, LONG[50:], LONG[:33], LONG[::-1]]

# Several clients: each asks for the prompts in turn, again after what a client shall ask again after (503 with Retry-After, a connection that breaks),
# until the file is gone. Prints [prompt, status or error, tokens, seconds] of each answer, tries that failed included in the time.
STORM = """
import http.client, json, os, sys, threading, time
routers, file, prompts, n, clients = json.loads(sys.argv[1])
out, lock = [], threading.Lock()

def ask(router, prompt):
    c = http.client.HTTPConnection(router, 8080, timeout=60)
    c.request("POST", "/v1/completions", json.dumps({"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_token_ids": True}),
              {"Content-Type": "application/json"})
    r = c.getresponse()
    body = r.read()
    return (r.status, json.loads(body)["choices"][0]["token_ids"]) if r.status == 200 else (r.status, body.decode())

def client(k):
    i = k
    while os.path.exists(file):
        begin = time.time()
        while True:
            try:
                status, answer = ask(routers[(i + k) % len(routers)], prompts[i % len(prompts)])
            except (OSError, http.client.HTTPException) as e:
                status, answer = "broken", str(e)
            if status not in (503, "broken") or time.time() > begin + 60:
                break
            time.sleep(0.2)
            k += 1
        with lock:
            out.append([i % len(prompts), status, answer, time.time() - begin])
        i += 1

all = [threading.Thread(target=client, args=(k,)) for k in range(clients)]
for t in all: t.start()
for t in all: t.join()
print(json.dumps(out))
"""


class Storm:
    """Requests from the host `client` as long as the `with` lasts; at its end all must have been answered, with these tokens."""

    def __init__(self, client, routers, want, n=24, clients=4):
        self.times = ""
        self.file, self.want = os.path.join(client.dir, "storm"), want
        open(self.file, "w").close()
        what = json.dumps([[h.address for h in routers], self.file, PROMPTS, n, clients])
        self.proc = subprocess.Popen(["ip", "netns", "exec", client.ns, sys.executable, "-c", STORM, what], stdout=subprocess.PIPE, text=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        os.unlink(self.file)
        out, _ = self.proc.communicate(timeout=120)
        if kind:
            return
        answers = json.loads(out)
        wrong = [a for a in answers if a[1] != 200 or a[2] != self.want[a[0]]]
        assert not wrong, (len(wrong), len(answers), wrong[:3])
        assert len(answers) >= len(PROMPTS)
        took = sorted(a[3] for a in answers)
        self.times = f"{len(took)} answers, median {took[len(took) // 2]:.3f} s, slowest {took[-1]:.3f} s"


def keygen(host, **roles):
    for name, role in roles.items():
        host.keygen(name.replace("_", "-"), role)


def all_up(router, *names, name="router-1"):
    wait_for(lambda: sum(workers(router, name).get(w) == "up" for w in names) == len(names), lambda: f"{names} at {name}: {workers(router, name)}", 30)


def linked(*hosts):
    """Each prefill worker's messager has heard of the others"""
    for h in hosts:
        wait_for(lambda h=h: any("event=messager_told peers=" in h.log(w) for w in h.procs if w.startswith("prefill")), "its messager is told of the others")


def messagers(*hosts, **conf):
    """conf: of each host's messager, by its number"""
    for h in hosts:
        h.know_all()
        h.messager(**conf.get(f"h{h.number}", {}))
        h.storage()


def links(host):
    """What `pdctl links` says on this host: {(direction, messager): state}"""
    out = host.pdctl("-d", f"messager-{host.number}", "links", "--json")
    return {(x["direction"], x["messager"]): x for x in json.loads(out.stdout)} if out.returncode == 0 else {}


def trio(net, n=24, messager={}, **conf):
    """router | prefill-1, messager, storage | decode-1, messager, storage; and what one host answers. messager: see messagers; conf: of all workers"""
    a, b, c = net.hosts
    keygen(a, router_1="router", prefill_0="worker", decode_0="worker", messager_1="messager", storage_1="storage")
    keygen(b, prefill_1="worker", decode_2="worker", messager_2="messager", storage_2="storage")
    keygen(c, decode_1="worker", messager_3="messager", storage_3="storage")
    messagers(a, b, c, **messager)
    a.router()
    a.prefill("prefill-0", [(a, "router-1")], **conf)
    a.decode("decode-0", [(a, "router-1")], **conf)
    all_up(a, "prefill-0", "decode-0")
    want = [ask(a, a, n, prompt=p)[1] for p in PROMPTS]
    assert all(len(w) == n for w in want)
    a.kill("prefill-0")
    a.kill("decode-0")
    b.prefill("prefill-1", [(a, "router-1")], **conf)
    c.decode("decode-1", [(a, "router-1")], **conf)
    all_up(a, "prefill-1", "decode-1")
    wait_for(lambda: workers(a).get("decode-0") != "up" and workers(a).get("prefill-0") != "up", "they are gone")
    linked(b)
    return a, b, c, want


def count(host, name, text):
    return host.log(name).count(text)


def more(host, name, text, n=10):
    """Waits for n more of such lines"""
    before = count(host, name, text)
    wait_for(lambda: count(host, name, text) >= before + n, lambda: f"{name}: {count(host, name, text) - before} of {n}: {text}", 60)


def answers(router, n=10, name="router-1"):
    more(router, name, "event=request_done", n)


def test_same_tokens_as_on_one_host(net):
    a, b, c, want = trio(net)
    for _ in range(3):
        for p, w in zip(PROMPTS, want):
            assert ask(a, a, prompt=p) == (200, w)
    done = len(PROMPTS) * 3
    # an answer may come before these lines
    wait_for(lambda: count(c, "decode-1", "event=joined") == done, "all have joined")
    wait_for(lambda: count(b, "messager-2", "event=transfer_done") == done, "all transfers are done")
    wait_for(lambda: count(b, "prefill-1", "event=prefill_done") == done, "all jobs are done")
    assert count(c, "decode-1", "local=1") == 0
    # both had the prefixes: decode-1's blocks were not sent again, prefill-1's not computed
    assert "cached=96" in c.log("decode-1") and "cached=96" in b.log("prefill-1")


def test_a_storm(net):
    a, b, c, want = trio(net)
    with Storm(a, [a], want, clients=8):
        answers(a, 500)
    assert count(c, "decode-1", "local=1") == 0


def test_cut_and_heal_in_mid_stream(net):
    n = 350
    a, b, c, want = trio(net, n, variant="reference")  # slow steps: streams last longer than a partition goes unnoticed
    b.decode("decode-2", [(a, "router-1")], variant="reference")
    all_up(a, "decode-2")
    for _ in range(2):
        before = count(c, "decode-1", "event=joined")
        with Storm(a, [a], want, n, clients=8):
            wait_for(lambda: count(c, "decode-1", "event=joined") > before, "streams over there")
            c.cut()
            wait_for(lambda: workers(a).get("decode-1") != "up", "a partition looks like a death", 30)
            c.heal()
            all_up(a, "decode-1")
    b.kill("decode-2")
    wait_for(lambda: workers(a).get("decode-2") != "up", "decode-2 is down")
    before = count(c, "decode-1", "event=joined")
    assert ask(a, a, n, prompt=PROMPTS[0]) == (200, want[0])
    wait_for(lambda: count(c, "decode-1", "event=joined") == before + 1, "KV is handed over")


@pytest.mark.skipif(subprocess.run(["sh", "-c", "command -v iptables"], stdout=subprocess.DEVNULL).returncode != 0, reason="losing packets needs iptables")
def test_lost_packets(net):
    a, b, c, want = trio(net)
    b.lose(3)
    c.lose(3)
    with Storm(a, [a], want):
        answers(a, 50)
    b.lose(0)
    c.lose(0)
    with Storm(a, [a], want):
        answers(a, 50)
    assert count(b, "messager-2", "event=transfer_done") > len(PROMPTS)


@pytest.mark.parametrize("host, name", [(1, "prefill-1"), (1, "messager-2"), (1, "storage-2"), (2, "decode-1"), (2, "messager-3"), (2, "storage-3"),
                                        (0, "router-1")])
def test_kill_each_daemon(net, host, name):
    a, b, c, want = trio(net)
    h = net.hosts[host]
    with Storm(a, [a], want):
        for pause in (0, 0.5, 0):
            answers(a)
            h.kill(name)
            time.sleep(pause)  # it is not back at once
            h.restart(name)
            all_up(a, "prefill-1", "decode-1")
    # and hand-over works again
    before = count(c, "decode-1", "event=joined")
    wait_for(lambda: ask(a, a, prompt=PROMPTS[2]) == (200, want[2]) and count(c, "decode-1", "event=joined") > before, "KV is handed over again")


def test_a_host_is_killed(net):
    a, b, c, want = trio(net)
    b.decode("decode-2", [(a, "router-1")])
    all_up(a, "decode-2")
    with Storm(a, [a], want):
        answers(a)
        names = c.kill_all()
        wait_for(lambda: workers(a).get("decode-1") != "up", "its worker is down", 30)
        answers(a)
        for n in names:
            c.restart(n)
        all_up(a, "decode-1")
        answers(a)
        names = b.kill_all()  # decode workers prefill themselves
        wait_for(lambda: workers(a).get("prefill-1") != "up", "its workers are down", 30)
        answers(a)
        for n in names:
            b.restart(n)
        all_up(a, "prefill-1", "decode-2")


def test_how_long_a_user_waits(net, capsys):
    """No limits but those of Storm; the times are printed"""
    a, b, c, want = trio(net)

    def restart(host, name, end, pause):
        end(name)
        if pause:
            answers(a)
        host.restart(name)

    def cut():
        c.cut()
        wait_for(lambda: workers(a).get("decode-1") != "up", "decode-1 is cut off", 30)
        c.heal()
        all_up(a, "decode-1")

    def measure(what, act, *args, handed_over=True):
        with Storm(a, [a], want) as storm:
            answers(a)
            act(*args)
            begin = time.time()
            if handed_over:
                more(c, "decode-1", "event=joined")
            again = time.time() - begin
        with capsys.disabled():
            print(f"\n{what}: {storm.times}; 10 handed over {again:.3f} s later", end="", flush=True)

    measure("nothing", lambda: None)
    for h, name in ((c, "messager-3"), (b, "messager-2"), (c, "decode-1"), (b, "prefill-1")):
        measure(f"kill and restart of {name}", restart, h, name, h.kill, False)
        measure(f"stop and restart of {name}", restart, h, name, h.terminate, False)
        if name != "decode-1":
            measure(f"kill of {name}, restart after 10 answers", restart, h, name, h.kill, True)
    b.decode("decode-2", [(a, "router-1")])
    all_up(a, "decode-2")
    measure("cut, with decode-2 beside the prefill worker", cut, handed_over=False)


def test_links_of_both_ends(net):
    fast = {f"h{i}": {"canary_ms": 200} for i in (1, 2, 3)}
    a, b, c, want = trio(net, messager=fast)
    for p, w in zip(PROMPTS, want):
        assert ask(a, a, prompt=p) == (200, w)
    to, back = (("to", "messager-3"), ("from", "messager-2")), (("to", "messager-2"), ("from", "messager-3"))
    for one, other in ((b, c), (c, b)):
        way, other_way = (to if one is b else back)
        wait_for(lambda: links(one).get(way, {}).get("canaries", 0) >= 2, lambda: f"canaries of {one.ns}: {links(one)}")
        sent, got = links(one)[way], links(other)[other_way]
        assert sent["up"] and got["up"] and sent["transport"] == got["transport"] == "tcp"
        assert sent["canary_us"] > 0 and sent["canary_mbit_s"] > 0 and sent["canaries_lost"] == 0 and sent["errors"] == got["errors"] == 0
        assert other.address in sent["via"] and "2 of 2 connections" in sent["via"]
    # all bytes that were handed over, and none of them twice
    done = sum(int(x.split("bytes=")[1].split()[0]) for x in b.log("messager-2").splitlines() if "event=transfer_done" in x)
    assert done > 0 and links(b)[to[0]]["bytes"] == done == links(c)[to[1]]["bytes"]
    assert links(b)[to[0]]["repeated_bytes"] == 0 and links(c)[back[0]]["bytes"] == 0
    text = b.pdctl("-d", "messager-2", "links")
    assert text.returncode == 0 and "messager-3" in text.stdout
    # and what is wrong, while the other end is gone
    c.kill("messager-3")
    wait_for(lambda: not links(b)[to[0]]["up"] and links(b)[to[0]]["why"], "the way is down")
    c.restart("messager-3")
    wait_for(lambda: links(b)[to[0]]["up"], "the way is up again")
    assert ask(a, a, prompt=PROMPTS[0]) == (200, want[0])


@pytest.mark.parametrize("sender, receiver, cipher", [(True, False, True), (False, True, True), (False, False, False)])
def test_encrypted_if_one_end_wants_it(net, sender, receiver, cipher):
    a, b, c, want = trio(net, messager={"h2": {"data_encrypted": sender}, "h3": {"data_encrypted": receiver}})
    for p, w in zip(PROMPTS, want):
        assert ask(a, a, prompt=p) == (200, w)
    wait_for(lambda: count(c, "decode-1", "event=joined") == len(PROMPTS), "all were handed over")
    via = links(b)[("to", "messager-3")]["via"]
    assert via.endswith("plain") != cipher, via


@pytest.mark.parametrize("without", ["messager-2", "messager-3"])
def test_a_messager_whose_key_the_other_does_not_have(net, without):
    """Each answer comes all the same, and the log says what is missing, once"""
    a, b, c, want = trio(net)
    h, other = (c, b) if without == "messager-2" else (b, c)
    os.unlink(os.path.join(h.keys, "known", without + ".pub"))
    for name in [n for n in h.procs if n.startswith(("messager", "prefill", "decode"))]:
        h.kill(name)
        h.restart(name)
    all_up(a, "prefill-1", "decode-1")
    wait_for(lambda: f"event=messager_down messager=messager-{h.number} " in other.log(f"messager-{other.number}"), "the old link is down")
    for p, w in zip(PROMPTS, want):
        assert ask(a, a, prompt=p) == (200, w)
    log = h.log(f"messager-{h.number}")
    refused, failed = log.count("event=key_refused"), log.count("event=messager_without_key")
    assert 1 <= refused <= 3 and 1 <= failed <= 2, (refused, failed)
    assert "no way to decode-1: " in b.log("messager-2")
    # the key is added
    b.know_all()
    c.know_all()

    def handed_over():
        before = count(c, "decode-1", "event=joined")
        return ask(a, a, prompt=PROMPTS[0]) == (200, want[0]) and count(c, "decode-1", "event=joined") > before

    wait_for(handed_over, "KV is handed over", 30)


@pytest.mark.parametrize("host, name", [(1, "messager-2"), (2, "messager-3")])
def test_messager_killed_again_and_again(net, host, name):
    """Between any two steps of a transfer, in particular between the mark and KV_SENT: resumed, or computed again; never wrong"""
    a, b, c, want = trio(net)
    h = net.hosts[host]
    with Storm(a, [a], want, clients=8):
        for i in range(12):
            before = count(c, "decode-1", "event=joined")
            wait_for(lambda: count(c, "decode-1", "event=joined") > before + i, "KV is handed over", 60)
            h.kill(name)
            h.restart(name)
    assert "transfer_done" in b.log("messager-2")


def two_routers(net, prefills, decodes, mixed):
    """router-1 | prefill workers | router-2, decode workers; mixed workers beside the prefill workers; each worker knows both routers"""
    a, b, c = net.hosts
    keygen(a, router_1="router")
    keygen(b, messager_2="messager", storage_2="storage", **{f"prefill_{i}": "worker" for i in range(prefills)}, **{f"mixed_{i}": "worker" for i in range(mixed)})
    keygen(c, router_2="router", messager_3="messager", storage_3="storage", **{f"decode_{i}": "worker" for i in range(decodes)})
    a.know_all()
    messagers(b, c)
    a.router()
    c.router("router-2")
    routers = [(a, "router-1"), (c, "router-2")]
    for i in range(prefills):
        b.prefill(f"prefill-{i}", routers, 7100 + i)
    for i in range(mixed):
        b.mixed(f"mixed-{i}", routers, threads=1)
    for i in range(decodes):
        c.decode(f"decode-{i}", routers, 7200 + i)
    names = [f"{r}-{i}" for r, n in (("prefill", prefills), ("decode", decodes), ("mixed", mixed)) for i in range(n)]
    all_up(a, *names)
    all_up(c, *names, name="router-2")
    want = [ask(a, a, prompt=p)[1] for p in PROMPTS]
    return a, b, c, names, want


@pytest.mark.parametrize("prefills, decodes, mixed", [(0, 0, 2), (1, 1, 0), (2, 2, 1), (8, 8, 0)])
def test_two_routers_without_shared_state(net, prefills, decodes, mixed):
    a, b, c, names, want = two_routers(net, prefills, decodes, mixed)
    with Storm(b, [a, c], want):
        answers(a)
        a.kill("router-1")
        for p, w in zip(PROMPTS, want):
            assert ask(b, c, prompt=p) == (200, w)
        a.restart("router-1")
        wait_for(lambda: "up" in workers(a).values(), "a worker is back at the restarted router")
        # whole: within a second of the first, if the machine is not busy
        wait_for(lambda: sum(workers(a).get(w) == "up" for w in names) == len(names), lambda: f"all are: {workers(a)}", 1)
        for p, w in zip(PROMPTS, want):
            assert ask(c, a, prompt=p) == (200, w)
        c.kill("router-2")
        for p, w in zip(PROMPTS, want):
            assert ask(b, a, prompt=p) == (200, w)
        c.restart("router-2")
        all_up(c, *names, name="router-2")
    if prefills:
        assert sum(count(c, f"decode-{i}", "event=joined") for i in range(decodes)) > len(PROMPTS)
        assert sum(count(b, f"prefill-{i}", "event=prefill_done") for i in range(prefills)) > len(PROMPTS)
    if (prefills, decodes) == (8, 8):
        for i in range(8):
            for k in range(8):
                assert f"event=peer_up peer=decode-{k} " in b.log(f"prefill-{i}")
