"""KV that real daemons hand over by RDMA, in the guest of run.sh: a router; prefill worker and messager; decode worker and messager. Control messages go over
TCP between network namespaces (tests/hosts), KV goes from one software NIC to the other over a wire of its own, which tests cut and heal.

rdma_rxe carries packets in the first namespace only, but all namespaces may use its devices. So the two ends of the wire are both in the first namespace, and
rules for each address make packets leave by its interface, although the other address is local, too.
"""
import json
import re
import shutil
import subprocess
import sys
import time

import pytest
from hosts import Net, ip, workers
from suite import wait_for
from test_handover import PROMPTS, Storm, all_up, count, keygen, linked, links, more

TO, FROM = ("to", "messager-3"), ("from", "messager-2")
REQUIRED = {"rdma": "required", "canary_ms": 1000}  # the canaries show in `pdctl links`
LOGS = "/tmp/logs"  # guest.sh prints them if a test fails
N = 12  # tokens of an answer
# the reference kernels are the fastest on a processor in software
WORKER = {"variant": "reference", "storage": "none"}

# Asks for each prompt in turn; prints [token ids, their log-probabilities] of each, or what was answered instead
ASK = """
import http.client, json, sys
router, prompts, n = json.loads(sys.argv[1])
out = []
for p in prompts:
    c = http.client.HTTPConnection(router, 8080, timeout=60)
    c.request("POST", "/v1/completions", json.dumps({"prompt": p, "max_tokens": n, "temperature": 0, "ignore_eos": True, "logprobs": 3,
                                                        "return_token_ids": True}),
              {"Content-Type": "application/json"})
    r = c.getresponse()
    body = r.read().decode()
    choice = json.loads(body)["choices"][0] if r.status == 200 else None
    out.append([choice["token_ids"], choice["logprobs"]["top_logprobs"]] if choice else [r.status, body])
print(json.dumps(out))
"""


def ask(host, prompts):
    out = host.run(sys.executable, "-c", ASK, json.dumps([host.address, prompts, N]))
    assert out.returncode == 0, out.stdout
    return json.loads(out.stdout)


class Wire:
    """Host N's NIC is nicN, with the address 10.78.0.N and the interface roceN; a bridge joins them."""

    def __init__(self, numbers):
        self.numbers = numbers
        ip("rule", "add", "pref", "100", "lookup", "local")
        ip("rule", "del", "pref", "0")
        ip("link", "add", "wire", "mtu", "4200", "type", "bridge")
        for n in numbers:
            ip("link", "add", f"roce{n}", "mtu", "4200", "address", f"02:00:0a:4e:00:0{n}", "type", "veth", "peer", "name", f"plug{n}", "mtu", "4200")
            with open(f"/proc/sys/net/ipv4/conf/roce{n}/accept_local", "w") as f:
                f.write("1")
            ip("link", "set", f"plug{n}", "master", "wire", "up")
            ip("addr", "add", f"10.78.0.{n}/24", "dev", f"roce{n}")
            ip("link", "set", f"roce{n}", "up")
            ip("route", "add", "10.78.0.0/24", "dev", f"roce{n}", "table", str(n))
            ip("rule", "add", "pref", "10", "iif", "lo", "from", f"10.78.0.{n}", "lookup", str(n))
        self.heal()
        for n in numbers:
            for other in numbers:
                if other != n:
                    ip("neigh", "add", f"10.78.0.{other}", "lladdr", f"02:00:0a:4e:00:0{other}", "dev", f"roce{n}", "nud", "permanent")
            subprocess.run(["rdma", "link", "add", f"nic{n}", "type", "rxe", "netdev", f"roce{n}"], check=True)

    def cut(self):
        """Nothing arrives any more, and neither end is told"""
        ip("link", "set", "wire", "down")

    def heal(self):
        ip("link", "set", "wire", "up")

    def unplug(self, n):
        ip("link", "set", f"plug{n}", "down")

    def plug(self, n):
        ip("link", "set", f"plug{n}", "up")

    def sent(self, n):
        with open(f"/sys/class/net/roce{n}/statistics/tx_bytes") as f:
            return int(f.read())


@pytest.fixture(scope="module")
def wire():
    return Wire((2, 3))


class Suite:
    """router-1 | prefill-1, messager-2 | decode-1, messager-3; `want`: what one host answers"""

    def __init__(self, wire):
        self.wire, self.net = wire, Net(3)
        self.a, self.b, self.c = self.net.hosts

    def start(self):
        a, b, c = self.a, self.b, self.c
        keygen(a, router_1="router", mixed_0="worker")
        keygen(b, prefill_1="worker", messager_2="messager")
        keygen(c, decode_1="worker", messager_3="messager")
        for h in self.net.hosts:
            h.know_all()
        self.messager(b, **REQUIRED)
        self.messager(c, **REQUIRED)
        a.router()
        a.mixed("mixed-0", [(a, "router-1")], threads=1, variant=WORKER["variant"])
        all_up(a, "mixed-0")
        self.want = ask(a, PROMPTS)
        assert all(len(w[0]) == N for w in self.want), self.want
        a.kill("mixed-0")
        b.prefill("prefill-1", [(a, "router-1")], **WORKER)
        # a small pool, so that its cache does not spare most of the transfers
        c.decode("decode-1", [(a, "router-1")], kv_blocks=24, **WORKER)
        all_up(a, "prefill-1", "decode-1")
        wait_for(lambda: workers(a).get("mixed-0") != "up", "it is gone")
        linked(b)
        self.up()

    def messager(self, host, **conf):
        host.messager(**{"rdma_device": f"nic{host.number}" if conf["rdma"] != "off" else "", **conf})

    def replace(self, host, **conf):
        host.kill(f"messager-{host.number}")
        self.messager(host, **conf)

    def links(self):
        """The sender's end and the receiver's"""
        return links(self.b).get(TO), links(self.c).get(FROM)

    def up(self, transport="rdma"):
        wait_for(lambda: all(x and x["up"] and x["transport"] == transport for x in self.links()), lambda: f"the way is up: {self.links()}", 30)

    def handed_over(self):
        return count(self.c, "decode-1", "event=joined")

    def ask_all(self):
        assert ask(self.a, PROMPTS) == self.want

    def hands_over_again(self):
        def once():
            before = self.handed_over()
            assert ask(self.a, PROMPTS[2:3]) == self.want[2:3]
            return self.handed_over() > before
        wait_for(once, "KV is handed over again", 30)

    def storm(self):
        return Storm(self.a, [self.a], [w[0] for w in self.want], N)

    def answers(self):
        more(self.a, "router-1", "event=request_done", 5)

    def transfers_done(self):
        """What messager-2 says of each transfer: {bytes, copy_us, tail_us, life_us, ...}"""
        lines = [x for x in self.b.log("messager-2").splitlines() if "event=transfer_done" in x]
        return [{k: int(v) for k, v in re.findall("([a-z_]+)=([0-9]+)(?= |$)", x)} for x in lines]

    def asked(self, host, name, *what):
        out = host.pdctl("-d", name, *what, "--json")
        return json.loads(out.stdout) if out.returncode == 0 else None

    def quiet(self):
        """No block is leased, held or in quarantine at either end, and no transfer is open"""
        def held():
            kv = [self.asked(h, name, "kv") for h, name in ((self.b, "prefill-1"), (self.c, "decode-1"))]
            assert all(k["sum"] == k["blocks"] for k in kv), kv
            return [k for k in kv if k["leased"] or k["held"]] + self.asked(self.b, "messager-2", "transfers")
        wait_for(lambda: not held(), lambda: f"still held: {held()}", 10)

    def close(self):
        shutil.copytree(self.net.dir, LOGS, ignore=lambda d, names: [n for n in names if "." in n and not n.endswith((".log", ".conf"))])
        self.net.close()


@pytest.fixture(scope="module")
def suite(wire):
    s = Suite(wire)
    try:
        s.start()
        yield s
    finally:
        s.close()


def test_same_tokens_and_all_bytes_by_rdma(suite):
    before = suite.wire.sent(2)
    for _ in range(2):
        suite.ask_all()
    done = 2 * len(PROMPTS)
    wait_for(lambda: count(suite.b, "messager-2", "event=transfer_done") == done, "all transfers are done")
    wait_for(lambda: suite.handed_over() == done, "all have joined")
    moved = sum(t["bytes"] for t in suite.transfers_done())
    sent, got = suite.links()
    assert moved > 0 and sent["bytes"] == moved and sent["repeated_bytes"] == sent["errors"] == got["errors"] == 0, (moved, sent, got)
    for end, n in ((sent, 2), (got, 3)):
        assert end["transport"] == "rdma" and re.match(rf"nic{n} port 1, GID [0-9]+ 10\.78\.0\.{n}, MTU 4096", end["via"]), end
    assert suite.wire.sent(2) - before >= moved
    for h in (suite.b, suite.c):
        assert all(x["transport"] == "rdma" for x in links(h).values()) and "transport=tcp" not in h.log(f"messager-{h.number}")
    suite.quiet()


def test_figures(suite):
    """Of prompts whose KV the prefill worker has and the decode worker has not any more; printed beside ib_write_bw"""
    prompts = [[3 + (i * k) % 317 for i in range(16 * 12 + 1)] for k in (41, 53, 67)]
    ask(suite.a, prompts)
    before = len(suite.transfers_done())
    ask(suite.a, prompts * 2)
    wait_for(lambda: len(suite.transfers_done()) == before + 6, "all transfers are done")
    done = suite.transfers_done()[before:]
    wait_for(lambda: suite.links()[0]["canary_us"] > 0, "a canary is back")
    tails, whole = sorted(t["tail_us"] for t in done), sorted(t["life_us"] for t in done)
    sent = suite.links()[0]
    print(f"FIGURE: {len(done)} transfers of {done[0]['bytes']} bytes, one token computed: after the last layer {tails[len(tails) // 2]} us (median), "
          f"{whole[len(whole) // 2]} us in all; canary of 65536 bytes: {sent['canary_us']} us, {sent['canary_mbit_s'] / 8:.1f} MB/s")


@pytest.mark.parametrize("what, seconds", [("cut", 1), ("cut", 5), ("unplug", 2), ("host", 3)])
def test_cut_and_heal(suite, what, seconds):
    """The wire is cut, without either end being told; the cable is pulled; the host is cut off with all that it has"""
    wire = suite.wire
    with suite.storm():
        suite.answers()
        wire.unplug(3) if what == "unplug" else wire.cut()
        if what == "host":
            suite.c.cut()
        time.sleep(seconds)
        if what == "host":
            suite.c.heal()
        wire.plug(3) if what == "unplug" else wire.heal()
        all_up(suite.a, "decode-1")
        suite.up()
        suite.answers()
    suite.hands_over_again()
    suite.quiet()


@pytest.mark.parametrize("host", [3, 2])
def test_kill_a_messager(suite, host):
    h, name = suite.net.hosts[host - 1], f"messager-{host}"
    with suite.storm():
        for pause in (0, 1):
            suite.answers()
            h.kill(name)
            time.sleep(pause)  # it is not back at once
            h.restart(name)
        all_up(suite.a, "prefill-1", "decode-1")
        suite.up()
    suite.hands_over_again()
    suite.quiet()


def refused(suite, sender, receiver):
    """Both ends say what they have; nothing is handed over, least of all by TCP, and each answer comes all the same"""
    why = (f"it takes KV over {receiver} only, which this messager does not have (it has: {sender})",
           f"this messager takes KV over {receiver} only, which the other one does not have (it has: {sender})")
    wait_for(lambda: all(x and x["why"] == w for x, w in zip(suite.links(), why)), lambda: f"both ends say why: {suite.links()}")
    for h, w in zip((suite.b, suite.c), why):
        assert any("event=path_refused" in x and w in x for x in h.log(f"messager-{h.number}").splitlines())
    assert all(not x["up"] and x["transport"] == "-" for x in suite.links())
    before, done = suite.handed_over(), len(suite.transfers_done())
    assert ask(suite.a, PROMPTS[:2]) == suite.want[:2]
    assert (suite.handed_over(), len(suite.transfers_done())) == (before, done)
    assert "no way to decode-1: its messager messager-3@tcp://10.77.0.3:7003 refuses: it takes KV over" in suite.b.log("messager-2")
    assert not any("event=path_up" in x and "transport=tcp" in x for x in suite.b.log("messager-2").splitlines())
    suite.quiet()


def test_required_and_off(suite):
    suite.replace(suite.c, rdma="off")
    refused(suite, "rdma", "tcp")
    suite.replace(suite.b, rdma="off")
    suite.replace(suite.c, **REQUIRED)
    refused(suite, "tcp", "rdma")


def test_auto_says_that_it_uses_tcp(suite):
    suite.replace(suite.c, rdma="off")
    suite.replace(suite.b, rdma="auto")
    suite.up("tcp")
    for why in ("take", "have"):  # as the sender and as the receiver
        assert f'event=path_fallback messager=messager-3 transport=tcp why="the messager over there does not {why} a better one"' in suite.b.log("messager-2")
    before, by_rdma = suite.handed_over(), suite.wire.sent(2)
    suite.ask_all()
    wait_for(lambda: suite.handed_over() == before + len(PROMPTS), "all have joined")
    assert suite.links()[0]["bytes"] > 0 and suite.wire.sent(2) - by_rdma < 1000
    # and RDMA again once the other end has it
    suite.replace(suite.c, **REQUIRED)
    suite.up()
    suite.hands_over_again()
    suite.quiet()
