"""attack.py - one client that asks too much, in a process of its own: many connections from one epoll loop, each sending bytes that were made beforehand.

It is bounded in connections, rate and time, connects to 127.0.0.1 alone, and ends by itself. The processor time that it takes is small, and reported: `cpu`, a share
of one core. With `busy` it takes at least that share: the harmless client of a comparison uses the processor as much as the attack did.
"""
import dataclasses
import json
import multiprocessing
import select
import socket
import struct
import time

IP_BIND_ADDRESS_NO_PORT = 24
OPENED_AT_ONCE = 256            # connections begun in one turn of the loop
AGAIN_S = 1.0                   # a refused request is sent again after this time, as Retry-After says
DRIBBLE_S = 2.0                 # between two bytes of a slow writer
RESET = struct.pack("ii", 1, 0)


def request(path, body, key="hog-key"):
    """The bytes of a POST; the server closes the connection after its answer."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return (b"POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
            % (path.encode(), key.encode(), len(data)) + data)


@dataclasses.dataclass
class Spec:
    payloads: tuple = ()        # what connections send, in turn
    connections: int = 0        # open at the same time; a finished one is followed by the next
    per_second: float = 1e6     # connections begun a second
    total: int = 1 << 30        # connections begun in all
    addresses: int = 1          # 127.0.0.2 and so on, in turn
    read: str = "all"           # or "never", or "first": hang up when the first bytes of the answer arrive
    slow_after: int = 1 << 30   # bytes of the payload that are sent at once; the rest is sent byte by byte
    drop_s: float = 1e6         # hang up when this time has passed since the connection was begun
    abort: bool = False         # half of them are not hung up then, but ended by /v1/abort
    busy: float = 0.0           # least share of a core that is used


class Connection:
    def __init__(self, spec, port, n, now, payload):
        self.payload, self.began, self.sent, self.next_byte, self.status, self.head = payload, now, 0, 0.0, None, b""
        self.sock = s = socket.socket()
        s.setblocking(False)
        s.setsockopt(socket.SOL_IP, IP_BIND_ADDRESS_NO_PORT, 1)
        if spec.read == "never":
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        s.bind((f"127.0.0.{2 + n % spec.addresses}", 0))
        s.connect_ex(("127.0.0.1", port))

    def close(self):
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.sock.close()


class Crowd:
    """The connections of one attack."""

    def __init__(self, spec, port):
        self.spec, self.port, self.poll, self.open = spec, port, select.epoll(), {}
        self.begun, self.answers, self.later = 0, {}, []

    def run(self, seconds):
        self.start = time.monotonic()
        cpu = time.process_time()
        while (now := time.monotonic()) < self.start + seconds:
            self.begin_some(now)
            for fd, events in self.poll.poll(0.01):
                c = self.open[fd]
                if events & select.EPOLLOUT:
                    self.send(c, now)
                if events & ~select.EPOLLOUT:
                    self.receive(fd, c)
            if self.spec.drop_s < 1e6 or self.spec.slow_after < 1 << 30:
                self.by_the_clock(now)
            while time.process_time() - cpu < self.spec.busy * (time.monotonic() - self.start):
                pass
        spent = (time.process_time() - cpu) / seconds
        for c in self.open.values():
            c.close()
        return {"cpu": spent, "begun": self.begun, "answers": self.answers}

    def begin_some(self, now):
        spec = self.spec
        self.later = [t for t in self.later if t > now]
        due = min(spec.total, int((now - self.start) * spec.per_second) + 1) - self.begun
        for _ in range(min(due, spec.connections - len(self.open) - len(self.later), OPENED_AT_ONCE)):
            self.begin(now, spec.payloads[self.begun % len(spec.payloads)])
            self.begun += 1

    def begin(self, now, payload):
        c = Connection(self.spec, self.port, self.begun, now, payload)
        self.open[c.sock.fileno()] = c
        self.poll.register(c.sock, select.EPOLLOUT | (select.EPOLLIN if self.spec.read != "never" else 0))

    def send(self, c, now):
        try:
            c.sent += c.sock.send(c.payload[c.sent:min(len(c.payload), max(self.spec.slow_after, c.sent + 1))])
        except BlockingIOError:
            return
        except OSError:
            return self.end(c.sock.fileno(), c, "broken")
        if c.sent == len(c.payload) or c.sent >= self.spec.slow_after:
            c.next_byte = now + DRIBBLE_S
            self.poll.modify(c.sock, select.EPOLLIN if self.spec.read != "never" else 0)

    def receive(self, fd, c):
        if self.spec.read == "never":       # hung up, or an error
            return self.end(fd, c, "broken")
        try:
            data = c.sock.recv(1 << 18)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if len(c.head) < 512:
            c.head += data[:512]
        if c.status is None and data:
            c.status = data[9:12].decode("latin-1") if data.startswith(b"HTTP/1.") else "other"
        if not data or self.spec.read == "first":
            self.end(fd, c, c.status or "broken")

    def end(self, fd, c, how):
        self.answers[how] = self.answers.get(how, 0) + 1
        if how not in ("200", "other", "dropped"):
            self.later.append(time.monotonic() + AGAIN_S)
        self.poll.unregister(fd)
        del self.open[fd]
        c.close()

    def by_the_clock(self, now):
        for fd, c in [x for x in self.open.items() if now - x[1].began > self.spec.drop_s]:
            at = c.head.find(b"X-Request-Id: ") if self.spec.abort and fd % 2 else -1
            if at < 0:
                self.end(fd, c, "dropped")
            else:                           # its stream then ends
                c.began = float("inf")
                self.begin(now, request("/v1/abort", {"request_id": c.head[at + 14:].split(b"\r", 1)[0].decode()}))
        if self.spec.slow_after < 1 << 30:
            for c in self.open.values():
                if now >= c.next_byte and 0 < c.sent < len(c.payload):
                    c.next_byte = now + DRIBBLE_S
                    self.poll.modify(c.sock, select.EPOLLOUT | select.EPOLLIN)


class Attack:
    """with Attack(spec, port, seconds) as a: a.go(); ...; a.result()"""

    def __init__(self, spec, port, seconds):
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.get_context("fork").Process(target=self.main, args=(spec, port, seconds, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.pipe.recv()

    @staticmethod
    def main(spec, port, seconds, pipe):
        crowd = Crowd(spec, port)
        pipe.send("ready")
        pipe.recv()
        pipe.send(crowd.run(seconds))

    def __enter__(self):
        return self

    def go(self):
        self.pipe.send("go")

    def result(self):
        return self.pipe.recv()

    def __exit__(self, *exc):
        self.process.terminate()
        self.process.join()
