"""outside.py - speaks the protocol of PROTOCOL.md from outside: its own encoding of protobuf, its own hand-shake, libzmq through pyzmq. Nothing of common/msg
is used but the numbers: of fields from proto/*.proto, of types from common/msg/types.h.

    p = Peer("tcp://127.0.0.1:7000", "worker-9", "pddecoded", keys=FOLDER, server="router")
    p.hello()
    p.await_type("WELCOME")
"""
import glob
import os
import re
import signal
import struct
import time

import zmq

from suite import ROOT, SLOW

VERSION = 5

# --- protobuf ----------------------------------------------------------------------------------------------------------


def _read_proto():
    """{message: {field: (number, type, repeated)}}; enums are fields of a type that is no message."""
    messages, name = {}, None
    for path in glob.glob(os.path.join(ROOT, "proto", "*.proto")):
        with open(path) as f:
            for line in f:
                line = line.split("//")[0].strip()
                if m := re.match(r"(message|enum) (\w+) \{(\})?", line):
                    name = m[2] if m[1] == "message" else None
                    if name:
                        messages[name] = {}
                elif name and (m := re.match(r"(repeated )?(\w+) (\w+) = (\d+);", line)):
                    messages[name][m[3]] = (int(m[4]), m[2], bool(m[1]))
    return messages


def _read_types():
    """{type: (number, message)}"""
    with open(os.path.join(ROOT, "common", "msg", "types.h")) as f:
        rows = re.findall(r"X\((\w+), (\d+), (\w+),", f.read())
    return {n: (int(i), "".join(w.title() for w in body.split("_"))) for n, i, body in rows}


MESSAGES, TYPES = _read_proto(), _read_types()
TYPE_NAMES = {number: name for name, (number, _) in TYPES.items()}


def varint(v):
    v &= (1 << 64) - 1
    out = bytearray()
    while v > 127:
        out.append(v & 127 | 128)
        v >>= 7
    return bytes(out + bytes([v]))


def _pack_one(number, kind, v):
    if kind == "fixed64":
        return varint(number << 3 | 1) + struct.pack("<Q", v)
    if kind == "float":
        return varint(number << 3 | 5) + struct.pack("<f", v)
    if kind in MESSAGES or kind in ("string", "bytes"):
        b = pack(kind, v) if kind in MESSAGES else v if isinstance(v, bytes) else v.encode()
        return varint(number << 3 | 2) + varint(len(b)) + b
    return varint(number << 3) + varint((v << 1 ^ v >> 63) if kind == "sint32" else int(v))


def pack(message, fields):
    """Repeated numbers are written one by one, which every decoder must take."""
    out = b""
    for field, v in fields.items():
        number, kind, repeated = MESSAGES[message][field]
        out += b"".join(_pack_one(number, kind, x) for x in (v if repeated else [v]))
    return out


def _take_varint(b, i):
    v = shift = 0
    while True:
        v |= (b[i] & 127) << shift
        shift, i = shift + 7, i + 1
        if b[i - 1] < 128:
            return v, i


def unpack(message, b):
    """{field: value} of the fields that are there; of a repeated one the last value."""
    by_number = {number: (field, kind) for field, (number, kind, _) in MESSAGES[message].items()}
    out, i = {}, 0
    while i < len(b):
        tag, i = _take_varint(b, i)
        field, kind = by_number.get(tag >> 3, (None, None))
        if tag & 7 == 0:
            v, i = _take_varint(b, i)
        elif tag & 7 in (1, 5):
            n = 8 if tag & 7 == 1 else 4
            v, i = struct.unpack("<Q" if n == 8 else "<f", b[i:i + n])[0], i + n
        else:
            n, i = _take_varint(b, i)
            v, i = b[i:i + n], i + n
            v = unpack(kind, v) if kind in MESSAGES else v.decode() if kind == "string" else v
        if field:
            out[field] = v
    return out


# --- who we are --------------------------------------------------------------------------------------------------------

def process(pid=None, **changes):
    """What HELLO says about this process."""
    pid = pid or os.getpid()
    with open("/proc/sys/kernel/random/boot_id") as f:
        boot = f.read().strip()
    with open(f"/proc/{pid}/stat") as f:
        ticks = int(f.read().rsplit(")", 1)[1].split()[19])
    return {"boot_id": boot, "pid_namespace": os.stat("/proc/self/ns/pid").st_ino, "pid": pid, "start_ticks": ticks, **changes}


def read_key(path):
    with open(path) as f:
        return dict(line.split() for line in f if line.strip() and not line.startswith("#"))


def now_us():
    return int(time.time() * 1e6)


class Peer:
    """One connection that talks as the daemon `name`. keys: the folder that has NAME.secret and known/SERVER.pub; None: no CURVE. key: the name whose key is used
    (default: its own). identity: a routing id of our choice."""

    context = None

    def __init__(self, endpoint, name, program, keys=None, server=None, key=None, identity=None, epoch=None, pair=None):
        if not Peer.context:
            Peer.context = zmq.Context(io_threads=1)
            Peer.context.max_sockets = 4096
        self.name, self.program, self.epoch = name, program, epoch or now_us()
        self.nth = self.seq = self.link = self.their_epoch = 0
        self.z = Peer.context.socket(zmq.DEALER)
        self.z.linger = 0
        self.z.sndtimeo = 20000 * SLOW
        if identity:
            self.z.routing_id = identity
        if keys:
            own = read_key(os.path.join(keys, (key or name) + ".secret"))
            self.z.curve_publickey, self.z.curve_secretkey = pair or (own["public"].encode(), own["secret"].encode())
            self.z.curve_serverkey = read_key(os.path.join(keys, "known", server + ".pub"))["public"].encode()
        self.z.connect(endpoint)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.z.close()

    def send(self, frames):
        self.z.send_multipart(frames)

    def say(self, kind, body=None, **env):
        """A message that is not numbered, or with the number `seq`."""
        number, message = TYPES[kind]
        head = {"version": VERSION, "type": number, "sender": self.name, "epoch": self.epoch, **env}
        self.send([pack("Envelope", head), body if isinstance(body, bytes) else pack(message, body or {})])

    def hello(self, body=None, **env):
        self.nth += 1
        hello = {"program": self.program, "process": process(), "silence_ms": 60000, "nth": self.nth, **(body or {})}
        self.say("HELLO", {k: v for k, v in hello.items() if v is not None}, **env)

    def number(self, kind, body=None, **env):
        """The next message of our link."""
        about = {"request_hi": 1, "request_lo": 2, "attempt": 1}
        if "seq" not in env:
            self.seq += 1
        self.say(kind, body, **{"seq": self.seq, "ack_epoch": self.their_epoch, "link": self.link, **about, **env})

    def take(self, timeout=5):
        """(type, envelope, body) or None."""
        if not self.z.poll(timeout * 1000):
            return None
        frames = self.z.recv_multipart()
        env = unpack("Envelope", frames[0])
        kind = TYPE_NAMES[env["type"]]
        return kind, env, unpack(TYPES[kind][1], frames[1])

    def await_type(self, kind, timeout=5 * SLOW):
        """The next message of this type as (envelope, body), or None."""
        end = time.time() + timeout
        while (left := end - time.time()) > 0:
            got = self.take(left)
            if got and got[0] == kind:
                return got[1:]
        return None

    def welcomed(self, body=None, **env):
        """Says HELLO and returns the WELCOME's body."""
        self.hello(body, **env)
        got = self.await_type("WELCOME")
        assert got, f"no answer to the HELLO of {self.name}"
        self.their_epoch, self.link = got[0]["epoch"], got[1].get("link", 0)
        return got[1]

    def ask(self, command, *args, timeout=5 * SLOW):
        """As pdctl does: the answer's (code, text), or None."""
        self.say("CTL_REQUEST", {"command": command, "args": args}, sender="pdctl", epoch=0)
        got = self.await_type("CTL_REPLY", timeout)
        if not got:
            return None
        code = got[1].get("code", 0)
        return code - (1 << 64) if code >> 63 else code, got[1].get("text", "")

    def goodbye(self):
        self.say("GOODBYE", {})


def in_fork(uid=0):
    """What a forked process is to do first: it has no sockets of ours, ends by itself, and becomes another user if uid is not 0."""
    signal.alarm(120 * SLOW)
    Peer.context = None
    if uid:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
