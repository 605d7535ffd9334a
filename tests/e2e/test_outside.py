# run: waits
"""Who is refused (PROTOCOL.md, "Who is who"): tried by a peer that is not built from our sources (outside.py), over tcp with keys and over ipc. Each refusal is
seen at the peer, counted, and logged once for all its repetitions; the daemon serves on, and the links of those who may talk stay as they are."""
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import traceback

import pytest

pytest.importorskip("zmq", reason="python3-zmq is not installed")
import outside  # noqa: E402
import suite  # noqa: E402
from outside import Peer, pack, process  # noqa: E402
from suite import BIN, ENV, SLOW, Suite, free_port, value, wait_for  # noqa: E402

ROLES = {"router": "router", "messager": "messager", "storage": "storage", "prefill-1": "worker", "decode-1": "worker"}
PROGRAMS = {"router": "pdrouterd", "messager": "pdmessagerd", "storage": "pdstoraged", "worker": "pddecoded", "operator": "pdctl"}
OUTSIDE = {"router-9": "router", "messager-9": "messager", "storage-9": "storage", "worker-9": "worker", "operator-9": "operator"}
PROMPT = [1, 2, 3]


def make_keys(folder, names, known):
    """One folder for all: the daemons and we find our secrets there. known: whose public keys are known."""
    for name, role in names.items():
        subprocess.run([os.path.join(BIN, "pdctl"), "-k", folder, "keygen", name, role], check=True, env=ENV, stdout=subprocess.DEVNULL)
        if name in known:
            os.link(os.path.join(folder, name + ".pub"), os.path.join(folder, "known", name + ".pub"))


class World(Suite):
    """A suite whose daemons listen on tcp as well."""

    def __init__(self):
        super().__init__("1p1d", model=suite.TINY_MODEL)
        self.keys = os.path.join(self.dir, "keys")
        self.at = {name: free_port() for name in self.names}
        self.askers = {}
        for name, conf in self.conf.items():
            conf.update(keys=self.keys, listen=f"tcp://127.0.0.1:{self.at[name]}")
        make_keys(self.keys, {**ROLES, **OUTSIDE, "stranger": "worker"}, [*ROLES, *OUTSIDE])

    def endpoint(self, daemon, transport):
        return f"tcp://127.0.0.1:{self.at[daemon]}" if transport == "tcp" else f"ipc://{self.dir}/{daemon}.ipc"

    def peer(self, daemon, transport, name, program=None, **more):
        """Ours, to that daemon, with the key of that name."""
        program = program or PROGRAMS[OUTSIDE.get(name, "worker")]
        if transport == "tcp":
            more = {"keys": self.keys, "server": daemon, **more}
        return Peer(self.endpoint(daemon, transport), name, program, **more)

    def status(self, daemon):
        """As `pdctl status`, without a process for each question."""
        if daemon not in self.askers:
            self.askers[daemon] = Peer(self.endpoint(daemon, "ipc"), "pdctl", "pdctl")
        code, text = self.askers[daemon].ask("status")
        assert code == 0, text
        return json.loads(text)

    def refused(self, daemon):
        st = self.status(daemon)
        return {**st["refused"], "bad": st["messages"]["bad"], "duplicates": st["messages"]["duplicates"]}

    def rightful(self):
        """The links of the suite's own daemons: {(daemon, peer): epoch}, and how often they have come up."""
        links = {(n, p["name"]): (p["epoch"], p["up"]) for n in self.names for p in self.status(n)["peers"] if p["name"] in ROLES}
        return links, {n: sum(self.log(n).count(f"event=peer_up peer={m} ") for m in ROLES) for n in self.names}

    def new_lines(self, daemon, event, since=0):
        return [x for x in self.log(daemon)[since:].splitlines() if f"event={event} " in x]


@pytest.fixture(scope="module")
def world():
    with World() as s:
        s.want = s.tokens(PROMPT, 8)
        before = s.rightful()
        yield s
        assert s.rightful() == before, "a rightful link was touched"
        assert s.tokens(PROMPT, 8) == s.want


@pytest.fixture(autouse=True)
def still_serves(request):
    yield
    if "world" in request.fixturenames:
        w = request.getfixturevalue("world")
        assert all(p.poll() is None for p in w.procs.values()), "a daemon has ended"
        assert w.tokens(PROMPT, 8) == w.want


class Refusals:
    """Within it `times` attempts, or as many again, are refused at the daemon: counted each, logged once."""

    def __init__(self, world, daemon, counter, event, why="", times=3, again=False):
        self.w, self.daemon, self.counter, self.event, self.why, self.times, self.again = world, daemon, counter, event, why, times, again

    def __enter__(self):
        self.before, self.since = self.w.refused(self.daemon), len(self.w.log(self.daemon))
        return self

    def now(self):
        return self.w.refused(self.daemon)[self.counter] - self.before[self.counter]

    def lines(self):
        return [x for x in self.w.new_lines(self.daemon, self.event, self.since) if re.search(self.why, x)]

    def __exit__(self, kind, *_):
        if kind:
            return
        wait_for(lambda: self.now() >= self.times, lambda: f"{self.counter}: {self.now()} of {self.times} are counted")
        assert self.now() == self.times or (self.again and self.now() % self.times == 0)
        assert len(self.lines()) == 1, self.lines() or self.w.new_lines(self.daemon, self.event, self.since)


# --- the same peer, with the right key and name, is welcome -----------------------------------------------------------------------

@pytest.mark.parametrize("transport", ["tcp", "ipc"])
@pytest.mark.parametrize("daemon", list(ROLES))
def test_who_may_come_in(world, daemon, transport):
    before = world.refused(daemon)
    for name, role in OUTSIDE.items():
        with world.peer(daemon, transport, name) as p:
            got = p.welcomed()
            if role == "operator":      # pdctl asks without a link; its HELLO only learns which protocol is spoken
                assert got["refused"] and got["reason"] == "pdctl has no links" and p.ask("status")[0] == 0, got
                continue
            assert not got.get("refused") and got["program"] == Suite.PROGRAM[daemon.split("-")[0]], got
            assert p.ask("status")[0] == 0
            p.goodbye()
            assert p.await_type("GOODBYE")
    assert world.refused(daemon) == before


# --- HELLO -------------------------------------------------------------------------------------------------------------------

def epoch_of(w, name):
    return w.status(name)["epoch"]


HELLOS = [  # what, daemon, transport, key, HELLO, envelope, why
    ("another process", "router", "ipc", "worker-9", lambda w: {"process": process(w.procs["router"].pid)}, None, "says that it is process \\d+, but the conn"),
    ("no process", "messager", "ipc", "worker-9", lambda w: {"process": None}, None, "does not say which process it is"),
    ("another host", "storage", "ipc", "worker-9", lambda w: {"process": process(boot_id="x")}, None, "says that it runs on another host"),
    ("a living process's name", "router", "ipc", "worker-9", None, lambda w: {"sender": "decode-1"}, "the name decode-1 is taken by process \\d+, which lives"),
    ("a living epoch, ipc", "messager", "ipc", "worker-9", None, lambda w: {"sender": "decode-1", "epoch": epoch_of(w, "decode-1")}, "is taken by process \\d+"),
    ("a living epoch, tcp", "router", "tcp", "worker-9", None, lambda w: {"sender": "decode-1", "epoch": epoch_of(w, "decode-1")}, "has the key of worker-9, not of decode"),
    ("an older process", "storage", "ipc", "worker-9", None, lambda w: {"sender": "prefill-1", "epoch": 1}, "belongs to a newer process: its epoch is \\d+, yours is 1"),
    ("the daemon's own name", "router", "ipc", "worker-9", None, lambda w: {"sender": "router"}, "this is my own name"),
    ("another key's name", "decode-1", "tcp", "worker-9", None, lambda w: {"sender": "messager-9"}, "has the key of worker-9, not of messager-9"),
    ("a living daemon's name, tcp", "storage", "tcp", "worker-9", None, lambda w: {"sender": "prefill-1"}, "has the key of worker-9, not of prefill-1"),
    ("another role", "messager", "tcp", "worker-9", lambda w: {"program": "pdrouterd"}, None, "for the role worker, not for pdrouterd"),
    ("an unknown program", "prefill-1", "tcp", "worker-9", lambda w: {"program": "x"}, None, "for the role worker, not for x"),
    ("an operator as a daemon", "decode-1", "tcp", "operator-9", lambda w: {"program": "pddecoded"}, None, "for the role operator, not for pddecoded"),
    ("an older version", "router", "tcp", "worker-9", None, lambda w: {"version": 1}, "worker-9 speaks protocol version 1, this daemon 5"),
    ("a newer version", "decode-1", "ipc", "worker-9", None, lambda w: {"version": 6}, "worker-9 speaks protocol version 6, this daemon 5"),
]


@pytest.mark.parametrize("what, daemon, transport, key, hello, env, why", HELLOS, ids=[r[0] for r in HELLOS])
def test_hello_is_refused(world, what, daemon, transport, key, hello, env, why):
    with world.peer(daemon, transport, key) as p, Refusals(world, daemon, "hellos", "hello_refused", why):
        for _ in range(3):
            got = p.welcomed(hello and hello(world), **(env(world) if env else {}))
            assert got.get("refused") and re.search(why, got["reason"]), got
        p.seq = 0
        p.number("PEERS", {})       # nobody's message
        assert p.await_type("WHO")


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_replay_is_heard_once(world, transport):
    with world.peer("router", transport, "worker-9") as p:
        assert not p.welcomed().get("refused")
        before = world.refused("router")
        p.nth -= 1
        p.hello()               # the same HELLO
        for seq in (1, 1, 1):   # one message, three times
            p.number("KV_DENY", {}, seq=seq)
        wait_for(lambda: world.refused("router")["duplicates"] - before["duplicates"] == 3, "a repeated HELLO and two repeated messages are counted")
        assert world.refused("router")["messages"] - before["messages"] == 1
        assert p.take(0) is None or p.await_type("WELCOME", 0.1) is None
        p.goodbye()
        assert p.await_type("GOODBYE")


# --- keys --------------------------------------------------------------------------------------------------------------------

def is_silent(p, seconds=0.3):
    p.hello()
    return p.take(seconds) is None


def test_an_unknown_key(world):
    before, since = world.refused("storage")["keys"], len(world.log("storage"))
    for _ in range(2):
        with world.peer("storage", "tcp", "stranger") as p:
            assert is_silent(p)
    wait_for(lambda: world.refused("storage")["keys"] - before >= 2, "each connection is counted")
    assert len(world.new_lines("storage", "key_refused", since)) == 1
    metrics = world.metrics("storage")
    assert re.search(r'^pdserve_keys_refused_total\{name="storage",role="storage"\} [1-9]', metrics, re.M), "the metric counts it too"


@pytest.mark.parametrize("how", ["no CURVE", "another server's key", "null bytes", "http"])
def test_no_handshake(world, how):
    """These get no further than libzmq: nothing of them is read."""
    before = world.refused("decode-1")
    if how == "no CURVE":
        with Peer(world.endpoint("decode-1", "tcp"), "worker-9", "pddecoded") as p:
            assert is_silent(p)
    elif how == "another server's key":
        with world.peer("decode-1", "tcp", "worker-9", server="router") as p:
            assert is_silent(p)
    else:
        with socket.create_connection(("127.0.0.1", world.at["decode-1"]), timeout=20 * SLOW) as c:
            c.sendall(bytes(200) if how == "null bytes" else b"GET / HTTP/1.1\r\n\r\n" * 20)
            try:
                while c.recv(4096):
                    pass
            except ConnectionResetError:
                pass
    assert world.refused("decode-1") == before


class Recorder:
    """Passes one connection on and keeps what the client said."""

    def __init__(self, port):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port, self.to, self.said = self.listener.getsockname()[1], port, []
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self):
        a, _ = self.listener.accept()
        b = socket.create_connection(("127.0.0.1", self.to))
        threading.Thread(target=self._pass, args=(b, a, []), daemon=True).start()
        self._pass(a, b, self.said)

    @staticmethod
    def _pass(a, b, kept):
        try:
            while got := a.recv(65536):
                kept.append(got)
                b.sendall(got)
        except OSError:
            pass
        b.close()


def test_recorded_bytes_of_a_connection_are_worthless(world):
    tap = Recorder(world.at["router"])
    with Peer(f"tcp://127.0.0.1:{tap.port}", "worker-9", "pddecoded", keys=world.keys, server="router") as p:
        assert not p.welcomed().get("refused")
        epoch = p.epoch
        before = world.refused("router")
        with socket.create_connection(("127.0.0.1", world.at["router"]), timeout=20 * SLOW) as c:
            try:
                for part in tap.said:
                    c.sendall(part)
                    time.sleep(0.02)
                while c.recv(4096):     # until libzmq closes it
                    pass
            except (ConnectionResetError, BrokenPipeError):
                pass
        assert world.refused("router") == before
        assert any(x["name"] == "worker-9" and x["up"] and x["epoch"] == epoch for x in world.status("router")["peers"])
        p.goodbye()
        assert p.await_type("GOODBYE")


# --- later messages of a link --------------------------------------------------------------------------------------------------

def in_child(what, *args, uid=0):
    """Runs it in another process, which has no sockets of ours."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            outside.in_fork(uid)
            code = 0 if what(*args) else 2
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def beats_as(endpoint, identity, epoch, keys=None, server=None):
    """Takes over the routing id of a connection that is gone, and speaks on as its owner, with another key or from another process. libzmq takes the id as
    soon as it has noticed the end of the first connection."""
    for _ in range(40):
        with Peer(endpoint, "worker-9", "pddecoded", keys=keys, server=server, key="messager-9", identity=identity, epoch=epoch) as p:
            for _ in range(4):
                p.say("HEARTBEAT", {})
            if p.take(0.1) is None and p.ask("status", timeout=2):
                return True
    return False


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_link_continued_by_another(world, transport):
    identity = b"chosen-" + transport.encode()
    with world.peer("router", transport, "worker-9", identity=identity) as p:
        assert not p.welcomed().get("refused")
        epoch = p.epoch
    with Refusals(world, "router", "bad", "bad_message", "as worker-9, but (from process|with another key)", 4, again=True):
        at = world.endpoint("router", transport)
        if transport == "tcp":
            assert beats_as(at, identity, epoch, world.keys, "router")
        else:
            assert in_child(beats_as, at, identity, epoch) == 0
    with world.peer("router", transport, "worker-9", epoch=epoch) as p:     # the rightful one comes back
        p.nth = 1
        assert not p.welcomed({"knows_epoch": 0}).get("refused")
        p.goodbye()
        assert p.await_type("GOODBYE")


# --- KV: those who are known, but have nothing to do with these leases --------------------------------------------------------------

LEASE = {"lease": {"id": 1, "epoch": 1, "generation": 1}}
REQUEST = {"request": {"tokens": [1, 2, 3], "prompt_tokens": 3, "max_tokens": 2, "sampling": {"seed": 1}}}
BODIES = {"REQUEST_SUBMIT": REQUEST, "KV_RESERVE": REQUEST, "REQUEST_FIRST_TOKEN": {"token": {"id": 1}}, "KV_GRANT": LEASE, "LEASE_OPEN": LEASE,
          "LEASE_OPENED": LEASE, "LEASE_REVOKE": LEASE, "LEASE_REVOKED": LEASE, "KV_READY": LEASE, "KV_READY_ACK": LEASE,
          "WORKER_UPDATE": {"worker": {"role": "decode"}}, "PIPELINE_TAKE": {"stage": 1, "stages": 2, "port": 1, "ticket": 1, "secret": bytes(32)}}

KV = [  # daemon, who, type, body, why
    ("decode-1", "messager-9", "LEASE_OPEN", {**LEASE, "prefill": "prefill-1"}, "not the one that we are connected to"),
    ("decode-1", "messager-9", "LEASE_REVOKED", LEASE, "not the one that we are connected to"),
    ("decode-1", "messager-9", "KV_READY", LEASE, "not the one that we are connected to"),
    ("prefill-1", "messager-9", "KV_SENT", {"slot": 0, "generation": 1}, "not the one that we are connected to"),
    ("prefill-1", "messager-9", "TRANSFER_FAILED", {"slot": 0, "generation": 1, "fault": 8}, "not the one that we are connected to"),
    ("prefill-1", "worker-9", "KV_GRANT", LEASE, "not the one that we are connected to"),
    ("prefill-1", "worker-9", "PEERS", {"peers": [{"name": "x", "endpoint": "tcp://127.0.0.1:1", "role": "decode"}]}, "not the one that we are conn"),
    ("messager", "worker-9", "LEASE_OPENED", {**LEASE, "blocks": [1], "generations": [1], "tokens": 16}, "its memory is not attached"),
    ("messager", "worker-9", "PEERS", {"peers": [{"name": "x", "endpoint": "e", "role": "decode", "messager": "m@tcp://127.0.0.1:1"}]}, ""),
    ("messager", "router-9", "LEASE_OPENED", LEASE, "pdrouterd may not send it"),
    ("decode-1", "router-9", "KV_RESERVE", REQUEST, "pdrouterd may not send it"),
    ("decode-1", "router-9", "REQUEST_SUBMIT", REQUEST, "not the one that we are connected to"),
    ("decode-1", "storage-9", "KV_EVENTS", {"tier": 1, "reset": True}, "not the one that we are connected to"),
]


@pytest.mark.parametrize("daemon, who, kind, body, why", KV, ids=[f"{r[1]}-{r[2]}" for r in KV])
def test_kv_messages_of_others(world, daemon, who, kind, body, why):
    # a name of its own, so that the refusal is new: what was logged before is not logged again
    with world.peer(daemon, "ipc", f"{who}-{kind}", PROGRAMS[OUTSIDE[who]]) as p:
        assert not p.welcomed().get("refused")
        with Refusals(world, daemon, "messages", "message_dropped", f"type={kind} .*{why}"):
            for _ in range(3):
                p.number(kind, body)
        assert p.await_type("LEASE_OPENED", 0.05) is None and p.await_type("KV_READY_ACK", 0.05) is None
        p.goodbye()
        assert p.await_type("GOODBYE")


# --- each type, from each program ------------------------------------------------------------------------------------------------

LINK_TYPES = {"HELLO", "WELCOME", "WHO", "ACK", "GOODBYE", "CTL_REQUEST", "CTL_REPLY"}
NOT_NUMBERED = {"HEARTBEAT", "KV_RENEW"}

# What a peer of this role that has connected to the daemon may send it: the tables of PROTOCOL.md. All else is refused, also what the daemon takes only from the
# peers that it has connected to itself: its router, its messager, its storage.
TO_WORKER = {"router": {"REQUEST_CANCEL"}, "worker": {"REQUEST_CANCEL", "REQUEST_FIRST_TOKEN", "KV_RESERVE", "KV_RENEW"}}
MAY = {
    "router": {"worker": {"REQUEST_FIRST_TOKEN", "REQUEST_PROMPT_LOGPROBS", "REQUEST_EMBEDDING", "REQUEST_TOKENS", "REQUEST_FAILED", "KV_EVENTS", "WORKER_UPDATE"}},
    "prefill-1": TO_WORKER,
    "decode-1": TO_WORKER,
    "messager": {"worker": {"LEASE_REVOKE"},
                 "messager": {"LEASE_OPEN", "LEASE_OPENED", "LEASE_REVOKE", "LEASE_REVOKED", "KV_READY", "KV_READY_ACK", "POOLS", "PATH"}},
    "storage": {"worker": {"STORE_PUT", "STORE_GET", "STORE_LOOKUP", "STORE_FENCE", "STORE_LIST"}},
}


def refused_of(world, daemon, p, types):
    """How many of these messages are refused. The daemon answers a question on the link when it has handled all that came before it."""
    before = world.refused(daemon)
    for t in types:
        p.number(t, BODIES.get(t), **({"seq": 0} if t in NOT_NUMBERED else {}))
    assert p.ask("status")[0] == 0
    after = world.refused(daemon)
    assert after["bad"] == before["bad"], (types, before, after)
    return after["messages"] - before["messages"]


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
@pytest.mark.parametrize("daemon", list(ROLES))
def test_each_type_from_each_program(world, daemon, transport):
    for name, role in OUTSIDE.items():
        if role == "operator":
            continue
        may = MAY[daemon].get(role, set()) | LINK_TYPES | {"HEARTBEAT"}
        wrong = [t for t in outside.TYPES if t not in may]
        with world.peer(daemon, transport, name) as p:
            assert not p.welcomed().get("refused")
            if (n := refused_of(world, daemon, p, wrong)) != len(wrong):
                taken = [t for t in wrong if refused_of(world, daemon, p, [t]) != 1]
                pytest.fail(f"{daemon} refused {n} of {len(wrong)} types of messages from {name}; it takes {taken}")
            after = world.refused(daemon)
            p.say("HEARTBEAT", {})      # that is for everybody
            p.goodbye()
            assert p.await_type("GOODBYE")
            assert world.refused(daemon)["messages"] == after["messages"]
    lines = [re.search(r"peer=(\S+) type=(\S+) .*why=(.*)", x).groups() for x in world.new_lines(daemon, "message_dropped")]
    assert lines and len(lines) == len(set(lines)), "the same refusal is logged once"


# --- messages that are none ------------------------------------------------------------------------------------------------------

def env(**changes):
    return pack("Envelope", {"version": outside.VERSION, "type": outside.TYPES["HEARTBEAT"][0], "sender": "worker-9", "epoch": 1, **changes})


def of(kind, **changes):
    return env(type=outside.TYPES[kind][0], **changes)


BAD = {
    "one frame": [b"x"],
    "three frames": [env(), b"", b""],
    "a thousand frames": [env()] + [b"x" * 100] * 1000,
    "no envelope": [b"", b""],
    "an envelope of nonsense": [b"\xff" * 50, b""],
    "an envelope cut off": [env()[:-1], b""],
    "no sender": [env(sender=""), b""],
    "a long sender": [env(sender="x" * 48), b""],
    "a sender with other characters": [env(sender="a b"), b""],
    "an unknown type": [env(type=99), b""],
    "another version": [env(version=9), b""],
    "a request without an id": [of("KV_DENY", seq=1, attempt=1), b""],
    "a request without an attempt": [of("KV_DENY", seq=1, request_lo=1), b""],
    "a long HELLO": [of("HELLO"), bytes(20000)],
    "HELLO with a long text": [of("HELLO"), pack("Hello", {"program": "x" * 2000})],
    "a HELLO of nonsense": [of("HELLO"), b"\xff" * 100],
    "a question of nonsense": [of("CTL_REQUEST"), b"\xff" * 100],
    "a heartbeat in parts": [env(more=True), b""],
}


def test_malformed_messages(world):
    since = len(world.log("messager"))
    for transport in ("tcp", "ipc"):
        say_malformed(world, transport)
    lines = [x.split(" text=")[1] for x in world.new_lines("messager", "bad_message", since)]
    assert len(BAD) - 2 <= len(lines) == len(set(lines)) <= len(BAD), "each kind is logged once"


def say_malformed(world, transport):
    with world.peer("messager", transport, "worker-9") as p:
        before = world.refused("messager")
        for n, frames in enumerate(BAD.values()):
            p.send(frames)
        wait_for(lambda: world.refused("messager")["bad"] - before["bad"] >= len(BAD),
                 lambda: f"{world.refused('messager')['bad'] - before['bad']} of {len(BAD)} are bad")
        assert world.refused("messager")["bad"] - before["bad"] == len(BAD)
        assert p.take(0) is None, "it is answered"
        assert not p.welcomed().get("refused"), "the connection goes on"
        p.goodbye()
        assert p.await_type("GOODBYE")


@pytest.mark.parametrize("transport", ["tcp", "ipc"])
def test_a_frame_that_is_too_large_ends_its_connection(world, transport):
    with world.peer("storage", transport, "worker-9") as p:
        assert not p.welcomed().get("refused")
        m = p.z.get_monitor_socket(outside.zmq.EVENT_DISCONNECTED)
        rss = resident(world.procs["storage"].pid)
        p.send([env(), bytes(64 << 20)])
        assert m.poll(20000 * SLOW), "the connection is not closed"
        p.z.disable_monitor()
        assert resident(world.procs["storage"].pid) - rss < 8 << 20
    with world.peer("storage", transport, "worker-9", epoch=p.epoch) as q:      # the same process may come again
        q.nth = p.nth
        assert not q.welcomed({"knows_epoch": p.their_epoch, "link": p.link}).get("refused")
        q.goodbye()
        assert q.await_type("GOODBYE")


def resident(pid):
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# --- commands ----------------------------------------------------------------------------------------------------------------------

COMMANDS = [("stop",), ("config",), ("reload",), ("log-level",), ("log-level", "debug")]
OWN = {"storage": [("flush",)], "decode-1": [("role", "mixed"), ("role",)], "prefill-1": [("role", "mixed")]}


@pytest.mark.parametrize("daemon", list(ROLES))
def test_commands_need_the_operators_key(world, daemon):
    for name in ("router-9", "worker-9", "messager-9", "storage-9"):
        with world.peer(daemon, "tcp", name) as p:
            before, since = world.refused(daemon)["commands"], len(world.log(daemon))
            commands = COMMANDS + OWN.get(daemon, [])
            for c in commands:
                for _ in range(2):
                    code, text = p.ask(*c)
                    assert code < 0 and f"{c[0]} from another host needs a key of the role operator" in text, (c, text)
            assert world.refused(daemon)["commands"] - before == 2 * len(commands)
            wanted = sorted({c[0] for c in commands})

            def logged():
                return sorted(re.search(r"command=(\S+)", x)[1] for x in world.new_lines(daemon, "command_refused", since))
            wait_for(lambda: logged() == wanted, lambda: f"the log has {logged()} instead of {wanted}")     # a thread of the daemon writes it
            assert p.ask("status")[0] == 0      # whoever is known may look
    with world.peer(daemon, "tcp", "operator-9") as p:
        assert p.ask("log-level", "info")[0] == 0 and p.ask("config")[0] == 0


def asks_in_vain(endpoint):
    with Peer(endpoint, "pdctl", "pdctl") as p:
        return all((got := p.ask(c)) and got[0] < 0 and "is for user 0, root and the group" in got[1] for c in ("stop", "stop", "config")) and p.ask("status")[0] == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is played, which root alone can do")
def test_commands_of_another_user(world):
    path = os.path.join(world.dir, "storage.ipc")
    os.chmod(world.dir, 0o755)
    os.chmod(path, 0o777)
    above = os.path.dirname(world.dir)
    os.chmod(above, os.stat(above).st_mode | 0o011)
    with Refusals(world, "storage", "commands", "command_refused", "command=stop uid=65534", 3):
        assert in_child(asks_in_vain, "ipc://" + path, uid=65534) == 0
    os.chmod(path, 0o770)


# --- what does not start -----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("conf, why", [
    ({"listen": "tcp://127.0.0.1:1"}, "pdctl keygen s ROLE --keys .*/nokeys"),
    ({"listen": "tcp://127.0.0.1"}, "allowed is tcp://ADDRESS:PORT"),
    ({"listen": "ipc:///tmp/x"}, "allowed is tcp://ADDRESS:PORT"),
    ({"endpoint": "tcp://127.0.0.1:1"}, "for links between hosts set listen"),
])
def test_a_tcp_endpoint_without_keys_is_refused_at_start(tmp_path, conf, why):
    conf = {"name": "s", "rundir": str(tmp_path), "keys": str(tmp_path / "nokeys"), **conf}
    path = tmp_path / "s.conf"
    path.write_text("".join(f"{k} = {value(v)};\n" for k, v in conf.items()))
    r = subprocess.run([os.path.join(BIN, "pdstoraged"), "-c", str(path)], capture_output=True, text=True, timeout=30 * SLOW, env=ENV)
    assert r.returncode == 1 and re.search(why, r.stderr), r.stderr


# --- one daemon alone: what is hard on it --------------------------------------------------------------------------------------------

class Alone:
    """A storage daemon that listens."""

    def __init__(self, folder, descriptors=None, **conf):
        self.dir, self.keys, self.port = str(folder), str(folder / "keys"), free_port()
        make_keys(self.keys, {"s": "storage", "w": "worker", "o": "operator"}, ["s", "w", "o"])
        conf = {"name": "s", "rundir": self.dir, "keys": self.keys, "listen": f"tcp://127.0.0.1:{self.port}", "memory_mb": 16, **conf}
        with open(os.path.join(self.dir, "s.conf"), "w") as f:
            f.writelines(f"{k} = {value(v)};\n" for k, v in conf.items())
        with open(self.path("s.log"), "ab") as log:
            argv = ["sh", "-c", f"ulimit -n {descriptors or '$(ulimit -Hn)'}; exec \"$0\" -c \"$1\"", os.path.join(BIN, "pdstoraged"), self.path("s.conf")]
            self.proc = subprocess.Popen(argv, stdout=log, stderr=log, env=ENV)
        wait_for(lambda: os.path.exists(self.path("s.ipc")) and self.status(), "storage starts")

    def path(self, name):
        return os.path.join(self.dir, name)

    def log(self):
        suite.log_thread_rests(self.proc.pid)
        time.sleep(0.025)
        suite.log_thread_rests(self.proc.pid)
        with open(self.path("s.log")) as f:
            return f.read()

    def pdctl(self, *args):
        return subprocess.run([os.path.join(BIN, "pdctl"), "-r", self.dir, "-t", str(2000 * SLOW), "-d", "s", *args], capture_output=True, text=True, env=ENV)

    def status(self):
        r = self.pdctl("--json", "status")
        return json.loads(r.stdout) if r.returncode == 0 else None

    def peer(self, name="w", program="pddecoded", **more):
        return Peer(f"tcp://127.0.0.1:{self.port}", name, program, keys=self.keys, server="s", **more)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        alive = self.proc.poll() is None
        self.proc.send_signal(signal.SIGTERM)
        code = self.proc.wait(30 * SLOW)
        assert kind or (alive and code == 0), (alive, code, self.log()[-3000:])


def test_a_removed_key_asks_no_more(tmp_path):
    with Alone(tmp_path) as s, s.peer() as p:
        assert not p.welcomed().get("refused") and p.ask("status")[0] == 0
        os.unlink(os.path.join(s.keys, "known", "w.pub"))
        assert s.pdctl("reload").returncode == 0
        assert all(x["name"] != "w" for x in s.status()["peers"]), "its link has ended"
        before = s.status()
        assert p.ask("status", timeout=0.3) is None, "its open connection may still ask"
        got = p.welcomed()
        assert got["refused"] and "has no known key" in got["reason"]
        after = s.status()
        assert after["messages"]["bad"] - before["messages"]["bad"] == 1 and after["refused"]["hellos"] - before["refused"]["hellos"] == 1
        assert "CTL_REQUEST over a connection whose key is not known any more" in s.log()
        with s.peer() as q:
            assert is_silent(q)
        wait_for(lambda: s.status()["refused"]["keys"] > 0, "a new connection gets no further than its handshake")


def test_too_many_peers(tmp_path):
    most = 1024
    suite.need_descriptors(2 * most + 500)
    with Alone(tmp_path) as s:
        peers = [Peer(f"ipc://{s.dir}/s.ipc", f"w-{i}", "pddecoded") for i in range(most + 3)]
        try:
            for p in peers[:most]:
                p.hello()
            for p in peers[:most]:
                assert not p.await_type("WELCOME")[1].get("refused")
            for p in peers[most:]:
                for _ in range(2):
                    got = p.welcomed()
                    assert got["refused"] and got["reason"] == f"{most} peers are connected, the limit is {most}", got
            assert s.status()["refused"]["hellos"] == 6
            assert s.log().count("event=hello_refused") == 3      # once for each of them
            peers[0].goodbye()
            assert peers[0].await_type("GOODBYE")
            assert not peers[-1].welcomed().get("refused"), "one that left made room"
        finally:
            for p in peers:
                p.close()


def beats(s, seconds, during, enough):
    """The longest time that the rightful peer's link heard nothing, in seconds, while `during` runs again and again, for so long and until it is enough: its HELLO
    declares a silence that makes the daemon send at least four heartbeats within it."""
    with s.peer() as p:
        assert not p.welcomed({"silence_ms": 800 * SLOW}).get("refused")
        end, last, longest, beat = time.monotonic() + seconds, time.monotonic(), 0.0, 0.0
        stop = threading.Event()
        t = threading.Thread(target=lambda: [during() for _ in iter(lambda: not stop.is_set(), False)])
        t.start()
        try:
            while (alive := t.is_alive()) and (time.monotonic() < end or not enough()):
                if time.monotonic() - beat > 0.1:
                    beat = time.monotonic()
                    p.say("HEARTBEAT", {}, ack_epoch=p.their_epoch, link=p.link)
                if p.take(0.05):
                    longest, last = max(longest, time.monotonic() - last), time.monotonic()
        finally:
            stop.set()
            t.join()
        assert alive, "`during` has failed"
        state = [x for x in s.status()["peers"] if x["name"] == "w"]
        assert state and state[0]["up"] and state[0]["epoch"] == p.epoch, "the link went down"
        p.goodbye()
        return max(longest, time.monotonic() - last)


def test_hostile_connections_disturb_nobody(tmp_path):
    begun = time.monotonic()
    with Alone(tmp_path) as s:
        pid, made = s.proc.pid, [0]
        address = ("127.0.0.1", s.port)

        def garbage():
            """Unknown keys, garbage, and connections that say nothing and stay for a while."""
            held = []
            for i in range(50):
                c = socket.create_connection(address, timeout=20 * SLOW)
                c.setblocking(False)
                try:
                    c.send(os.urandom(300) if i % 2 else b"\xff" + bytes(8) + b"\x7f\x03\x00CURVE" + bytes(48) + os.urandom(200))
                except OSError:
                    pass
                held.append(c)
            strangers = [s.peer(pair=outside.zmq.curve_keypair()) for _ in range(10)]
            for p in strangers:
                p.hello()
            made[0] += len(held) + len(strangers)
            time.sleep(0.05)
            for c in held + strangers:
                c.close()

        garbage()
        rss = resident(pid)
        gap = beats(s, 5, garbage, lambda: made[0] >= 300)
        assert gap < 0.8 * SLOW, f"no heartbeat for {gap:.2f} s"
        assert resident(pid) - rss < 32 << 20, (rss, resident(pid))
        st = s.status()
        assert st["refused"]["keys"] >= 10
        assert s.log().count("event=key_refused") <= 32 + 5 * (time.monotonic() - begun) + 1, "lines about keys that are all different are limited"


def test_silent_connections_leave_room(tmp_path):
    """More connections than descriptors: pdctl and the rightful peer go on, and it is said."""
    limit = 300
    with Alone(tmp_path, descriptors=limit, workers_max=2) as s, s.peer() as p:
        assert not p.welcomed().get("refused")
        held = []

        def more(n):
            for _ in range(n):
                held.append(socket.socket())
                held[-1].setblocking(False)
                held[-1].connect_ex(("127.0.0.1", s.port))

        def refuses():
            """The daemon ends those that say nothing: where it took long to accept them, others take their place."""
            if s.status()["refused"]["connections"]:
                return True
            time.sleep(0.1)
            more(20 if len(held) < 800 else 0)
            return False
        try:
            more(limit)
            wait_for(refuses, "none is refused")
            used = len(os.listdir(f"/proc/{s.proc.pid}/fd"))
            assert used <= limit - 64 + 10, used    # those of pdctl
            assert p.ask("status")[0] == 0 and s.pdctl("status").returncode == 0
            assert 1 <= s.log().count("event=connections_refused") <= 10
            assert "event=descriptors_exhausted" not in s.log()
        finally:
            for c in held:
                c.close()
        wait_for(lambda: not said_nothing(s), "a new rightful connection gets in when they are gone")


def said_nothing(s):
    with s.peer("o", "pdctl") as q:
        return q.ask("status", timeout=4) is None
