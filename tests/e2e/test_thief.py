"""test_thief.py - another process of the host offers memory of its own under a worker's name, at messager.sock and at storage.sock: it gets no KV, takes no name, and
the client beside it gets the right tokens."""
import array
import fcntl
import mmap
import os
import re
import signal
import socket
import struct
import traceback

import pytest
from outside import Peer, in_fork
from suite import Suite, wait_for

NOBODY = 65534
PROMPT, TOKENS = [3 + i * 7 % 310 for i in range(140)], 12
PAGE = 4096
SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class Memory:
    """A KV pool, of the layout that a worker says it has, whose control memory shows generation 1 for every block."""

    def __init__(self, status):
        layers, heads, dim, kind, tokens = re.fullmatch(r"(\d+)x(\d+)x(\d+):(\w+):(\d+)", status["layout"]).groups()
        assert kind == "bf16"
        self.layers, self.heads, self.tokens, self.k_bytes = int(layers), int(heads), int(tokens), 2 * int(dim)
        self.blocks, block_bytes = status["blocks"], self.layers * self.heads * self.tokens * 2 * self.k_bytes
        control = struct.pack("=QIIQ", 0x314e4f4947455250, 1, self.blocks, block_bytes).ljust(PAGE, b"\0") + struct.pack("=Q", 1) * self.blocks
        self.control = self._new(control, -len(control) // PAGE * -PAGE)
        self.data = self._new(b"", self.blocks * block_bytes)

    @staticmethod
    def _new(contents, size):
        fd = os.memfd_create("thief", os.MFD_ALLOW_SEALING)
        os.truncate(fd, size)
        os.pwrite(fd, contents, 0)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, SEALS)
        return fd

    def hello(self, name, epoch):
        layer = struct.pack("=IIII", self.heads, self.k_bytes, self.k_bytes, 0)
        h = struct.pack("=II48sQIIIIIIII16i16s", 0x31764f68, 5, name.encode(), epoch, self.blocks, 0, 0, self.layers, self.tokens, 0, 1, 1, *[0] * 16, b"cpu")
        h += (layer * self.layers).ljust(256 * 16, b"\0")
        return h.ljust((len(h) + 7) // 8 * 8, b"\0")

    def offer(self, path, name, epoch, timeout=0.3):
        """The open connection and what it was answered: "" for accepted; None, or the connection was closed, for nothing at all."""
        c = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        c.settimeout(timeout)
        try:
            c.connect(path)
            c.sendmsg([self.hello(name, epoch)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [self.control, self.data]))])
            reply = c.recv(4096)
        except OSError as e:
            c.close()
            return None, type(e).__name__
        if not reply:
            c.close()
            return None, "closed"
        code, text = struct.unpack_from("=IIQi232s", reply)[3:]
        return c, "" if code == 0 else text.split(b"\0")[0].decode()

    def stolen(self):
        """Bytes that somebody has written."""
        with mmap.mmap(self.data, 0, prot=mmap.PROT_READ) as m:
            return len(m) - m[:].count(0)


class Child:
    """A process that runs what(said) and is killed at the end; `said` is what it has to say, of up to 4 KiB."""

    def __init__(self, what, uid=0):
        self.page = mmap.mmap(-1, PAGE)
        self.pid = os.fork()
        if self.pid:
            return
        try:
            in_fork(uid)
            what(self)
            signal.pause()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def say(self, text):
        self.page[:PAGE] = text.encode()[:PAGE - 1].ljust(PAGE, b"\0")

    def said(self):
        return self.page[:].split(b"\0")[0].decode()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def suite(**more):
    """Its sockets belong to a group, as the sockets of pdserve to a group that operators are in."""
    s = Suite("1p1d", worker={"block_tokens": 16, "kv_memory_mb": 4}, **more)
    os.chown(s.dir, -1, NOBODY)
    os.chmod(s.dir, 0o2750)
    return s


@pytest.fixture(scope="module")
def want():
    with Suite("mixed", worker={"block_tokens": 16, "kv_memory_mb": 4}) as s:
        return s.tokens(PROMPT, TOKENS)


def attached(s, door):
    """{name: epoch} of the workers whose memory it has."""
    rows = s.ctl("messager", "status")["attached"] if door == "messager" else s.ctl("storage", "storage")["workers"]
    return {w["name"]: w["epoch"] for w in rows}


def tries(path, memory, name, epoch):
    """Offers the memory, again and again, until it is taken."""
    def run(child):
        answers = {}
        for n in range(1, 1 << 30):
            c, answer = memory.offer(path, name, epoch)
            answers[answer] = answers.get(answer, 0) + 1
            child.say(f"{'refused' if answer else 'taken'} {n}: {answers}")
            if not answer:
                signal.pause()
    return run


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.parametrize("user, mode", [(NOBODY, None), (NOBODY, 0o666), (0, None)], ids=["another-user", "another-user-that-may-connect", "another-process"])
@pytest.mark.parametrize("door", ["messager", "storage"])
def test_a_thief_gets_no_kv(want, door, user, mode):
    """The thief has the worker's real name and epoch, and tries without a pause while the daemon restarts."""
    with suite() as s:
        status, path = s.ctl("decode-1", "status"), os.path.join(s.dir, door + ".sock")
        memory = Memory(status)
        s.kill(door)
        with Child(tries(path, memory, "decode-1", status["epoch"]), user) as thief:
            s.restart(door)
            wait_for(lambda: len(attached(s, door)) == 2, "decode-1's memory is not attached")
            if mode:
                os.chmod(path, mode)
            tried = int(re.sub(r"\D*(\d+).*", r"\1", thief.said()) or 0)
            wait_for(lambda: thief.said().startswith("taken") or int(re.sub(r"\D*(\d+).*", r"\1", thief.said())) > tried + 2, "the thief does not try")
            got = s.tokens(PROMPT, TOKENS)
            wrong, stolen = sum(a != b for a, b in zip(got, want)), memory.stolen()
            assert (wrong, stolen, thief.said().split()[0]) == (0, 0, "refused"), \
                f"{wrong} of {TOKENS} tokens wrong, {stolen} bytes of KV in the thief's memory: {thief.said()}"
            assert "version" not in thief.said(), thief.said()
            if mode:
                assert "'closed'" in thief.said() or "'ConnectionResetError'" in thief.said() or "'BrokenPipeError'" in thief.said()
                assert f"runs as user {user}; allowed are user 0 and root" in s.log(door)
        s.ready()
        assert s.tokens(PROMPT, TOKENS) == want


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_process_has_the_names_of_its_links():
    """One that has links of its own gets memory in under their names alone, and under half of workers_max of them at most."""
    with suite(messager={"workers_max": 6}) as s:
        status, path = s.ctl("decode-1", "status"), os.path.join(s.dir, "messager.sock")
        memory, endpoint = Memory(status), f"ipc://{s.dir}/messager.ipc"

        def offers(child):
            links = [Peer(endpoint, f"worker-{i}", "pddecoded") for i in range(4)]
            answers = [str(p.welcomed().get("refused", False)) for p in links]
            kept = [memory.offer(path, *who, timeout=20) for who in
                    [("decode-1", status["epoch"]), (links[0].name, links[0].epoch + 1)] + [(p.name, p.epoch) for p in links]]
            child.say("\n".join(answers + [answer for _, answer in kept] + ["end"]))
            signal.pause()

        with Child(offers) as child:
            wait_for(lambda: child.said().endswith("end"), "its offers are not answered")
            *answers, _ = child.said().split("\n")
            assert answers[:4] == ["False"] * 4
            for answer, name in zip(answers[4:6], ("decode-1", "worker-0")):
                assert f"process {child.pid} has no link as {name} of epoch" in answer
            assert answers[6:9] == [""] * 3
            assert f"process {child.pid} has handed over memory as 3 workers: one process may do so for half of workers_max (6)" == answers[9]
            assert sorted(attached(s, "messager")) == ["decode-1", "prefill-1", "worker-0", "worker-1", "worker-2"]
        wait_for(lambda: len(attached(s, "messager")) == 2, "the memory of a process that has ended stays")
        assert len(s.tokens(PROMPT, TOKENS)) == TOKENS and memory.stolen() == 0
