"""Hosts as network namespaces: each has an address, a run directory and keys of its own; what joins them is TCP over a bridge that tests cut and heal.

Needs root, iproute2 and iptables (`make check-hosts`).
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time

import pytest

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "../.."))
sys.path.insert(0, os.path.join(ROOT, "tests/e2e"))
from suite import BIN, GOLDEN, wait_for  # noqa: E402

MODEL = os.path.join(GOLDEN, "llama")
PROMPT = [5, 17, 40, 63, 90, 130, 200, 3, 9]
TAG = f"pd{os.getpid() % 10000}"
NET = "10.77.0."

NEEDS = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip"), reason="network namespaces need root and iproute2")


def ip(*args):
    subprocess.run(["ip", *args], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


class Host:
    def __init__(self, net, number):
        self.net, self.number, self.ns, self.address = net, number, f"{TAG}h{number}", f"{NET}{number}"
        self.dir = os.path.join(net.dir, f"h{number}")
        self.keys = os.path.join(self.dir, "keys")
        self.procs, self.how = {}, {}
        os.makedirs(self.dir)
        ip("netns", "add", self.ns)
        self.port = f"{TAG}v{number}"
        ip("link", "add", self.port, "netns", net.ns, "type", "veth", "peer", "name", "eth0", "netns", self.ns)
        ip("-n", net.ns, "link", "set", self.port, "master", "br0", "up")
        ip("-n", self.ns, "addr", "add", self.address + "/24", "dev", "eth0")
        for dev in ("lo", "eth0"):
            ip("-n", self.ns, "link", "set", dev, "up")

    def cut(self):
        ip("-n", self.net.ns, "link", "set", self.port, "down")

    def heal(self):
        ip("-n", self.net.ns, "link", "set", self.port, "up")

    def lose(self, percent):
        """Drops so many of the packets that arrive at this host and that leave it; 0: none any more"""
        for chain in ("INPUT", "OUTPUT"):
            self.must("iptables", "-F", chain)
            if percent:
                self.must("iptables", "-A", chain, "-o" if chain == "OUTPUT" else "-i", "eth0", "-m", "statistic", "--mode", "random",
                          "--probability", str(percent / 100), "-j", "DROP")

    def deaf(self, to, on=True):
        """Nothing that the host `to` sends arrives here. Unlike `cut` no kernel hears of it"""
        self.must("iptables", "-A" if on else "-D", "INPUT", "-s", to.address, "-j", "DROP")

    def must(self, *argv):
        out = self.run(*argv)
        assert out.returncode == 0, out.stdout

    def run(self, *argv, **more):
        return subprocess.run(["ip", "netns", "exec", self.ns, *argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)

    def pdctl(self, *args):
        return self.run(os.path.join(BIN, "pdctl"), "-r", self.dir, "-k", self.keys, *args)

    def keygen(self, name, role):
        out = self.pdctl("keygen", name, role)
        assert out.returncode == 0, out.stdout

    def trust(self, other, name):
        os.makedirs(os.path.join(self.keys, "known"), exist_ok=True)
        shutil.copy(os.path.join(other.keys, name + ".pub"), os.path.join(self.keys, "known"))

    def know_all(self):
        for h in self.net.hosts:
            for f in os.listdir(h.keys) if os.path.isdir(h.keys) else []:
                if f.endswith(".pub"):
                    self.trust(h, f[:-4])

    def log(self, name):
        with open(os.path.join(self.dir, name + ".log")) as f:
            return f.read()

    def start(self, program, name, **conf):
        path = os.path.join(self.dir, name + ".conf")
        own = {} if program in ("pdmessagerd", "pdstoraged") else {"model": MODEL}
        conf = {"name": name, "rundir": self.dir, "keys": self.keys, **own, **conf}
        self.how[name] = (program, conf)
        with open(path, "w") as f:
            for k, v in conf.items():
                text = json.dumps(v) if not isinstance(v, list) else "(" + ", ".join(json.dumps(x) for x in v) + ")"
                f.write(f"{k} = {text};\n")
        with open(os.path.join(self.dir, name + ".log"), "ab") as log:
            self.procs[name] = subprocess.Popen(["ip", "netns", "exec", self.ns, os.path.join(BIN, program), "-c", path], stdout=log, stderr=log)

    def router(self, name="router-1", **conf):
        self.start("pdrouterd", name, http_listen="0.0.0.0:8080", listen=f"tcp://{self.address}:7000", **conf)

    def mixed(self, name, routers, **conf):
        """routers: (host, name), or an entry of the configuration"""
        self.start("pddecoded", name, role="mixed", messager="none", storage="none", block_tokens=16, kv_blocks=200, kv_type="f32",
                   routers=[r if isinstance(r, str) else f"{r[1]}@tcp://{r[0].address}:7000" for r in routers], **conf)

    def worker(self, program, name, port, routers, **conf):
        """A prefill or decode worker beside the messager and the storage of this host, which listens on `port`"""
        self.start(program, name, listen=f"tcp://{self.address}:{port}", messager=f"messager-{self.number}",
                   routers=[f"{r}@tcp://{h.address}:7000" for h, r in routers],
                   **{"storage": f"storage-{self.number}", "block_tokens": 16, "kv_type": "f32", "threads": 1, "kv_blocks": 200, **conf})

    def prefill(self, name, routers, port=7100, **conf):
        self.worker("pdprefilld", name, port, routers, **conf)

    def decode(self, name, routers, port=7200, **conf):
        self.worker("pddecoded", name, port, routers, **conf)

    def messager(self, **conf):
        self.start("pdmessagerd", f"messager-{self.number}", listen=f"tcp://{self.address}:7003", **conf)

    def storage(self, **conf):
        self.start("pdstoraged", f"storage-{self.number}", **conf)

    def kill(self, name):
        p = self.procs.pop(name)
        p.kill()
        p.wait()

    def terminate(self, name):
        p = self.procs.pop(name)
        p.terminate()
        p.wait(60)

    def restart(self, name):
        program, conf = self.how[name]
        self.start(program, **conf)

    def kill_all(self):
        """The host loses its power, as far as its processes go; returns what ran"""
        names = list(self.procs)
        for n in names:
            self.procs[n].kill()
        for n in names:
            self.procs.pop(n).wait()
        return names

    def stop(self):
        for p in self.procs.values():
            p.kill()
        for p in self.procs.values():
            p.wait()


class Net:
    def __init__(self, hosts):
        self.dir, self.ns = tempfile.mkdtemp(prefix="pdh"), TAG + "n"
        ip("netns", "add", self.ns)
        ip("-n", self.ns, "link", "add", "br0", "type", "bridge")
        ip("-n", self.ns, "link", "set", "br0", "up")
        self.hosts = []
        for i in range(hosts):
            self.hosts.append(Host(self, i + 1))

    def close(self):
        for h in self.hosts:
            h.stop()
        for ns in [h.ns for h in self.hosts] + [self.ns]:
            ip("netns", "del", ns)
        shutil.rmtree(self.dir)


@pytest.fixture
def net():
    n = None
    try:
        n = Net(3)
        yield n
    finally:
        if n:
            n.close()


ASK = """
import http.client, json, sys
c = http.client.HTTPConnection(sys.argv[1], 8080, timeout=float(sys.argv[3]))
c.request("POST", "/v1/completions", sys.argv[2], {"Content-Type": "application/json"})
r = c.getresponse()
print(json.dumps([r.status, json.loads(r.read())]))
"""


def ask(client, router, n=24, timeout=20, prompt=PROMPT):
    """(status, token ids), asked from the host `client`"""
    body = json.dumps({"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_token_ids": True})
    out = client.run(sys.executable, "-c", ASK, router.address, body, str(timeout))
    assert out.returncode == 0, out.stdout
    status, answer = json.loads(out.stdout)
    return status, answer["choices"][0].get("token_ids") if status == 200 else answer


def ask_in_background(client, router, n=24, timeout=60):
    body = json.dumps({"prompt": PROMPT, "max_tokens": n, "temperature": 0, "ignore_eos": True})
    return subprocess.Popen(["ip", "netns", "exec", client.ns, sys.executable, "-c", ASK, router.address, body, str(timeout)], stdout=subprocess.DEVNULL,
                            stderr=subprocess.DEVNULL)


def workers(router, name="router-1"):
    out = router.pdctl("-d", name, "workers", "--json")
    return {w["name"]: w["state"] for w in json.loads(out.stdout)} if out.returncode == 0 else {}
