"""Several hosts (hosts.py): mixed workers, and what prefill and decode workers of different hosts, and their messagers, learn of each other."""
import json
import os
import shutil
import subprocess
import sys
import time

import pytest
from hosts import NEEDS, ask, ask_in_background, net, workers  # noqa: F401
from suite import wait_for

pytestmark = NEEDS


def trio(net):
    """router | mixed-1 | mixed-2, which know each other's keys as they need to"""
    a, b, c = net.hosts
    a.keygen("router-1", "router")
    for host, name in ((b, "mixed-1"), (c, "mixed-2")):
        host.keygen(name, "worker")
        host.trust(a, "router-1")
        a.trust(host, name)
    a.router()
    for host, name in ((b, "mixed-1"), (c, "mixed-2")):
        host.mixed(name, [(a, "router-1")])
    return a, b, c


def test_same_tokens_over_hosts_and_a_killed_one(net):
    a, b, c = trio(net)
    wait_for(lambda: workers(a) == {"mixed-1": "up", "mixed-2": "up"}, "both workers at the router")
    want = [ask(a, a)[1] for _ in range(1)][0]
    assert len(want) == 24
    for _ in range(6):
        assert ask(c, a) == (200, want)
    b.kill("mixed-1")
    for _ in range(4):
        assert ask(c, a) == (200, want)
    b.mixed("mixed-1", [(a, "router-1")])
    wait_for(lambda: workers(a).get("mixed-1") == "up", "mixed-1 again")
    c.kill("mixed-2")
    wait_for(lambda: workers(a).get("mixed-2") != "up", "mixed-2 is down")
    assert ask(b, a) == (200, want)


def test_cut_and_heal(net):
    a, b, c = trio(net)
    wait_for(lambda: workers(a) == {"mixed-1": "up", "mixed-2": "up"}, "both workers at the router")
    want = ask(a, a)[1]
    b.cut()
    wait_for(lambda: workers(a).get("mixed-1") != "up", "a partition looks like a death", 30)
    assert ask(a, a) == (200, want)
    b.heal()
    wait_for(lambda: workers(a).get("mixed-1") == "up", "it is back after the cut", 30)
    c.kill("mixed-2")
    wait_for(lambda: workers(a).get("mixed-2") != "up", "mixed-2 is down")
    assert ask(a, a) == (200, want)


def test_a_cut_that_the_kernel_does_not_see(net):
    """TCP would try the old connection again at intervals that double, for a quarter of an hour: a new one is made, so that the worker is back with the network."""
    a, b, _ = trio(net)
    up = lambda: workers(a).get("mixed-1") == "up"  # noqa: E731
    wait_for(up, "the worker at the router")
    connections = lambda: b.run("ss", "-Htn", "state", "established", "dst", a.address).stdout  # noqa: E731
    assert ":7000" in connections()
    a.deaf(b)
    b.deaf(a)
    wait_for(lambda: not up(), "a partition looks like a death", 30)
    wait_for(lambda: not connections(), connections, 30)
    a.deaf(b, on=False)
    b.deaf(a, on=False)
    wait_for(up, "it is back after the cut", 10)


def test_the_router_restarts_and_a_second_one(net):
    a, b, c = trio(net)
    wait_for(lambda: workers(a) == {"mixed-1": "up", "mixed-2": "up"}, "both workers at the router")
    want = ask(a, a)[1]
    a.kill("router-1")
    a.router()
    wait_for(lambda: workers(a) == {"mixed-1": "up", "mixed-2": "up"}, "both workers at its next life")
    assert ask(b, a) == (200, want)
    # two routers without shared state: the second one on the host of mixed-2
    c.keygen("router-2", "router")
    c.trust(b, "mixed-1")
    b.trust(c, "router-2")
    c.router("router-2")
    b.kill("mixed-1")
    b.mixed("mixed-1", [(a, "router-1"), (c, "router-2")])
    wait_for(lambda: workers(c, "router-2").get("mixed-1") == "up" and workers(a).get("mixed-1") == "up", "mixed-1 at both")
    assert ask(a, c) == (200, want) and ask(b, a) == (200, want)


DNS = """
import json, socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind(("127.0.0.1", 53))
name = lambda n: b"".join(bytes([len(x)]) + x.encode() for x in n.split(".")) + b"\\0"
while True:
    q, peer = s.recvfrom(600)
    labels, at = [], 12
    while q[at]:
        labels.append(q[at + 1:at + 1 + q[at]].decode())
        at += q[at] + 1
    kind = {1: "A", 33: "SRV"}.get(q[at + 2])
    with open(sys.argv[1]) as f:
        zone = json.load(f)
    records = zone.get(".".join(labels), {})
    data = [socket.inet_aton(v) if kind == "A" else struct.pack(">HHH", 0, 0, 7000) + name(v) for v in records.get(kind, [])]
    head = q[:2] + struct.pack(">HHHHH", 0x8580 | (0 if records else 3), 1, len(data), 0, 0)
    s.sendto(head + q[12:at + 5] + b"".join(b"\\xc0\\x0c" + q[at + 1:at + 5] + struct.pack(">IH", 0, len(d)) + d for d in data), peer)
"""


class Zone:
    """A name server on the host, at 127.0.0.1, which the host's resolv.conf names."""

    def __init__(self, host):
        self.host, self.path, self.etc = host, os.path.join(host.dir, "zone"), f"/etc/netns/{host.ns}"
        os.makedirs(self.etc)
        with open(os.path.join(self.etc, "resolv.conf"), "w") as f:
            f.write("nameserver 127.0.0.1\n")
        self.set({})
        host.procs["dns"] = subprocess.Popen(["ip", "netns", "exec", host.ns, sys.executable, "-c", DNS, self.path])

    def set(self, routers):
        """routers: their names, and the hosts that they are on"""
        zone = {f"{n}.routers.test": {"A": [h.address]} for n, h in routers.items()}
        zone["_pdserve._tcp.routers.test"] = {"SRV": list(zone)}
        with open(self.path + ".new", "w") as f:
            json.dump(zone, f)
        os.rename(self.path + ".new", self.path)

    def close(self):
        shutil.rmtree(self.etc)


@pytest.fixture
def zone(net):
    z = Zone(net.hosts[1])
    yield z
    z.close()


def test_routers_by_name(net, zone):
    """Workers that know a router by its host's name, or by its service, follow it to another address, and find one that is added."""
    a, b, c = net.hosts
    both = {"mixed-1": "up", "mixed-2": "up"}
    a.keygen("router-1", "router")
    a.keygen("router-2", "router")
    for name in ("mixed-1", "mixed-2"):
        b.keygen(name, "worker")
        a.trust(b, name)
    for name in ("router-1", "router-2"):
        b.trust(a, name)
    shutil.copytree(a.keys, c.keys)
    zone.set({"router-1": a})
    a.router()
    b.mixed("mixed-1", ["srv://_pdserve._tcp.routers.test"], resolve_s=1)
    b.mixed("mixed-2", ["router-1@tcp://router-1.routers.test:7000"])
    wait_for(lambda: workers(a) == both, "both workers at the router")
    want = ask(a, a)[1]
    a.cut()  # its address does not even refuse connections
    c.router()
    zone.set({"router-1": c})
    wait_for(lambda: workers(c) == both, "both workers at its new address")
    a.kill("router-1")
    a.heal()
    a.router("router-2")
    zone.set({"router-1": c, "router-2": a})
    wait_for(lambda: workers(a, "router-2") == {"mixed-1": "up"}, "a router that was added to the service")
    # without DNS, what is there stays, and what was down comes back
    b.kill("dns")
    a.kill("router-2")
    a.router("router-2")
    wait_for(lambda: workers(a, "router-2") == {"mixed-1": "up"}, "the router is back where it was")
    time.sleep(3)
    assert workers(c) == both and ask(b, c) == (200, want)


def test_who_is_refused(net):
    a, b, c = net.hosts
    a.keygen("router-1", "router")
    b.keygen("mixed-1", "worker")
    b.trust(a, "router-1")
    a.router()
    b.mixed("mixed-1", [(a, "router-1")])
    wait_for(lambda: "event=key_refused" in a.log("router-1"), "an unknown key is refused, and logged")
    time.sleep(1)
    assert workers(a) == {} and a.log("router-1").count("event=key_refused") == 1
    a.trust(b, "mixed-1")  # without a restart
    wait_for(lambda: workers(a) == {"mixed-1": "up"}, "a key that was added counts")
    # a key of another name, and one of another role
    shutil.copytree(b.keys, c.keys)
    for what in ("secret", "pub"):
        os.rename(os.path.join(c.keys, "mixed-1." + what), os.path.join(c.keys, "mixed-2." + what))
    path = os.path.join(c.keys, "mixed-2.secret")
    with open(path) as f:
        text = f.read()
    with open(path, "w") as f:
        f.write(text.replace("name mixed-1", "name mixed-2"))
    c.mixed("mixed-2", [(a, "router-1")])
    wait_for(lambda: "has the key of mixed-1, not of mixed-2" in a.log("router-1"), "a name that comes with another key")
    assert workers(a) == {"mixed-1": "up"}
    # commands: what changes something needs an operator's key
    b.keygen("operator", "operator")
    b.trust(a, "router-1")
    at = f"router-1@tcp://{a.address}:7000"
    refused = b.pdctl("-i", "operator", "-e", at, "status")
    assert refused.returncode == 3, refused.stdout
    asked = b.pdctl("-i", "mixed-1", "-e", at, "log-level", "debug")
    assert asked.returncode == 1 and "needs a key of the role operator" in asked.stdout
    a.trust(b, "operator")
    wait_for(lambda: b.pdctl("-i", "operator", "-e", at, "log-level", "debug").returncode == 0, "an operator's key")
    # a key that is taken away ends its link
    os.unlink(os.path.join(a.keys, "known", "mixed-1.pub"))
    assert a.pdctl("-d", "router-1", "reload").returncode == 0
    wait_for(lambda: workers(a).get("mixed-1") != "up", "mixed-1 is not known any more")


def site(host, router, *workers_of):
    """A messager, and the workers that are given as (start, name), of a host that knows all keys"""
    host.know_all()
    host.messager()
    for start, name in workers_of:
        start(name, router)


def test_pairs_of_two_hosts_find_each_other(net):
    a, b, c = net.hosts
    for host, name, role in ((a, "router-1", "router"), (b, "prefill-1", "worker"), (b, "messager-2", "messager"), (c, "decode-1", "worker"),
                             (c, "messager-3", "messager")):
        host.keygen(name, role)
    router = [(a, "router-1")]
    a.know_all()
    a.router()
    site(b, router, (b.prefill, "prefill-1"))
    site(c, router, (c.decode, "decode-1"))
    wait_for(lambda: workers(a) == {"prefill-1": "up", "decode-1": "up"}, "both workers at the router")
    wait_for(lambda: "event=peer_up peer=decode-1" in b.log("prefill-1"), "a link from worker to worker before any request")
    wait_for(lambda: "event=messager_told peers=1" in b.log("prefill-1"), "the messager is told of the other one")
    told = {w["name"]: w for w in json.loads(a.pdctl("-d", "router-1", "workers", "--json").stdout)}
    assert told["decode-1"]["remote"] == f"decode-1@tcp://{c.address}:7200" and told["decode-1"]["handover"] == "hosts"
    assert told["prefill-1"]["messager"] == f"messager-2@tcp://{b.address}:7003" and told["prefill-1"]["site"] != told["decode-1"]["site"]
    # the request gets its lease over there
    asking = ask_in_background(a, a)
    wait_for(lambda: "event=granted" in c.log("decode-1"), "a lease is granted")
    wait_for(lambda: "event=prefill_done" in b.log("prefill-1"), "the prompt is computed")
    asking.kill()
    asking.wait()
    # the messager of decode-1 dies: nothing is placed there from here until it is back
    c.kill("messager-3")
    wait_for(lambda: {w["name"]: w["messager"] for w in json.loads(a.pdctl("-d", "router-1", "workers", "--json").stdout)}["decode-1"] == "",
             "the router hears that the messager is gone")
    wait_for(lambda: "event=messager_told peers=0" in b.log("prefill-1"), "and the other messager")
    c.restart("messager-3")
    wait_for(lambda: b.log("prefill-1").count("event=messager_told peers=1") == 2, "and that it is back")


@pytest.mark.parametrize("conf, why", [
    ({"listen": "tcp://10.77.0.1:7000"}, "pdctl keygen router-1"),
    ({"listen": "http://10.77.0.1:7000"}, "allowed is tcp://ADDRESS:PORT"),
    ({"listen": "tcp://10.77.0.1"}, "allowed is tcp://ADDRESS:PORT"),
    ({"endpoint": "tcp://10.77.0.1:7000"}, "for links between hosts set listen"),
])
def test_what_does_not_start(net, conf, why):
    a = net.hosts[0]
    a.start("pdrouterd", "router-1", http_listen="127.0.0.1:8080", **conf)
    assert a.procs["router-1"].wait(10) == 1
    assert why in a.log("router-1")


def test_rdma_required(net):
    """A messager that must use RDMA does not start without a device, and says what is missing; with auto it says that it has none, and goes on."""
    a = net.hosts[0]
    a.keygen("messager-1", "messager")
    a.messager(rdma="required")
    if os.path.isdir("/sys/class/infiniband"):
        pytest.skip("this machine has an RDMA device")
    assert a.procs["messager-1"].wait(10) == 1
    assert 'rdma = "required", rdma_device = "": no RDMA device' in a.log("messager-1")
    a.procs.pop("messager-1")
    a.messager(rdma="auto")
    wait_for(lambda: "event=no_rdma transport=tcp" in a.log("messager-1"), "it says that it uses TCP")
    wait_for(lambda: a.pdctl("-d", "messager-1", "links").returncode == 0, "it runs")
