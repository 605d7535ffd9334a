"""load.py - many streaming completions at once from one light thread: non-blocking sockets, events read as they come, every stream checked to its end.

A stream is right when the status is 200, each event parses, the tokens are as many as asked for, a finish_reason came, and [DONE] was last. Anything else is an
error with its reason. Greedy streams of the same prompt and length must also bring the same tokens.
"""
import json
import random
import selectors
import socket
import time


class Stream:
    """One request on a connection of its own."""

    ASKS = {"return_token_ids": True}

    def __init__(self, port, key, body, now):
        self.key, self.want, self.began = key, body["max_tokens"], now
        self.tokens, self.first_at, self.done, self.finish = [], None, False, None
        self.arrivals, self.id = [], None
        self.head, self.body, self.events = bytearray(), bytearray(), bytearray()
        self.headed, self.chunk_left = False, None
        data = json.dumps({**body, "stream": True, **self.ASKS}).encode()
        self.sock = socket.create_connection(("127.0.0.1", port), timeout=10)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.sock.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
                          % len(data) + data)
        self.sock.setblocking(False)

    def feed(self, data, now):
        """-> None, "end", or what is wrong"""
        if not self.headed:
            self.head += data
            at = self.head.find(b"\r\n\r\n")
            if at < 0:
                return None
            data, head = bytes(self.head[at + 4:]), self.head[:at].decode("latin-1").lower()
            self.headed = True
            if " 200 " not in head.split("\r\n", 1)[0]:
                return f"status: {head.splitlines()[0]} {data[:300]!r}"
            if "transfer-encoding: chunked" not in head:
                return "answer is not chunked"
        self.body += data
        wrong = self._chunks() or self._events(now)
        return wrong or ("end" if self.done else None)

    def _chunks(self):
        b = self.body
        while True:
            if self.chunk_left is None:
                at = b.find(b"\r\n")
                if at < 0:
                    return None
                try:
                    self.chunk_left = int(bytes(b[:at]), 16) + 2
                except ValueError:
                    return f"bad chunk head {bytes(b[:40])!r}"
                del b[:at + 2]
            if len(b) < self.chunk_left:
                return None
            self.events += b[:self.chunk_left - 2]
            del b[:self.chunk_left]
            self.chunk_left = None

    def _events(self, now):
        if b"\r" in self.events:                     # both ends of a line are in the standard; JSON has no bare one
            self.events = self.events.replace(b"\r\n", b"\n")
        while True:
            at = self.events.find(b"\n\n")
            if at < 0:
                return None
            event = bytes(self.events[:at])
            del self.events[:at + 2]
            if not event.startswith(b"data: "):
                continue
            if event == b"data: [DONE]":
                self.done = True
                return self._judge()
            wrong = self._take(json.loads(event[6:]), now)
            if wrong:
                return wrong

    def _take(self, e, now):
        if "error" in e:
            return f"error in the stream: {e['error']}"
        self.id = self.id or e.get("id")
        for c in e["choices"]:
            ids = c.get("token_ids") or []
            if ids:
                self.first_at = self.first_at or now
                self.arrivals.append(now)
                self.tokens += ids
            self.finish = c.get("finish_reason") or self.finish
        return None

    def _judge(self):
        if self.finish != "length" or len(self.tokens) != self.want:
            return f"{len(self.tokens)} tokens of {self.want}, finish_reason {self.finish}"
        return None


class TextStream(Stream):
    """Of a server that does not say token ids. An event with text is a token, but some have none (parts of a character come with the next), so
    an answer that ran to its length counts as so many. One that ended early counts its events."""

    ASKS = {}

    def _take(self, e, now):
        if "error" in e:
            return f"error in the stream: {e['error']}"
        for c in e["choices"]:
            if c.get("text"):
                self.first_at = self.first_at or now
                self.arrivals.append(now)
                self.tokens.append(c["text"])
            self.finish = c.get("finish_reason") or self.finish
        return None

    def _judge(self):
        if self.finish == "length":
            self.tokens = self.tokens[:self.want] + [""] * (self.want - len(self.tokens))
        return None if self.finish in ("length", "stop") and self.first_at else f"{len(self.tokens)} events with text, finish_reason {self.finish}"


class Load:
    """Keeps `concurrency` streams open; bodies come from `source()` -> (key, body) or None when there are no more. Of a hundred clients `leave` go away
    somewhere in their stream, some before the first token."""

    def __init__(self, port, source, concurrency, limit_s=120, leave=0, stream=Stream):
        self.stream = stream
        self.leave, self.left, self.random = leave, 0, random.Random(23)
        self.port, self.source, self.concurrency, self.limit_s = port, source, concurrency, limit_s
        self.sel, self.errors, self.known = selectors.DefaultSelector(), [], {}
        self.open, self.completed, self.token_count, self.compared = set(), 0, 0, 0
        self.ttft, self.itl, self.e2e = [], [], []
        self.more, self.on_stuck = True, None

    def _start(self):
        while self.more and len(self.open) < self.concurrency:
            item = self.source()
            if item is None:
                self.more = False
                return
            try:
                s = self.stream(self.port, item[0], item[1], time.monotonic())
            except OSError as e:
                self.errors.append(f"connect: {e}")
                self.more = len(self.errors) < 20
                return
            s.leave_at = self.random.randrange(s.want) if self.random.random() * 100 < self.leave else None
            self.open.add(s)
            self.sel.register(s.sock, selectors.EVENT_READ, s)

    def _drop(self, s):
        self.sel.unregister(s.sock)
        s.sock.close()
        self.open.discard(s)

    def _close(self, s, wrong):
        self._drop(s)
        if wrong:
            self.errors.append(f"{s.key}: {wrong}")
            return
        self.completed += 1
        self.e2e.append(time.monotonic() - s.began)
        self.ttft.append(s.first_at - s.began)
        self.itl += [b - a for a, b in zip(s.arrivals, s.arrivals[1:])]
        if s.key is not None:
            had = self.known.setdefault(s.key, s.tokens)
            self.compared += had is not s.tokens
            if had != s.tokens:
                self.errors.append(f"{s.key}: other tokens than before: {s.tokens} {had}")

    def _read(self, s):
        now = time.monotonic()
        try:
            data = s.sock.recv(65536)
        except BlockingIOError:
            return
        except OSError as e:
            return self._close(s, f"read: {e}")
        had = len(s.tokens)
        result = s.feed(data, now) if data else f"connection closed after {len(s.tokens)} tokens"
        self.token_count += len(s.tokens) - had
        if not result and s.leave_at is not None and len(s.tokens) >= s.leave_at:
            self.left += 1
            self._drop(s)
        elif result:
            self._close(s, None if result == "end" else result)

    def run(self, seconds=None, each=None):
        """Until the source ends, or for `seconds`; what is open then is read to its end. `each` is called about four times a second."""
        end, began = None if seconds is None else time.monotonic() + seconds, time.monotonic()
        tick = 0
        while True:
            now = time.monotonic()
            if end is not None and now >= end:
                self.more = False
            self._start()
            if not self.open and not self.more:
                break
            for key, _ in self.sel.select(0.25):
                self._read(key.data)
            if each and now - tick >= 0.25:
                tick = now
                each()
            for s in [s for s in self.open if now - s.began > self.limit_s]:
                if self.on_stuck:
                    self.on_stuck(s)
                    self.on_stuck = None
                self._close(s, f"no end after {self.limit_s} s, {len(s.tokens)} tokens of {s.want}")
        self.wall_s = time.monotonic() - began
        return self


class Client:
    """Streams in an open loop, read from one thread; their ends are checked, errors end the benchmark."""

    def __init__(self, port, vocab=40000):
        self.port, self.sel, self.rnd, self.vocab = port, selectors.DefaultSelector(), random.Random(29), vocab
        self.open = set()

    def prompt(self, tokens):
        """A new one."""
        return [self.rnd.randrange(3, self.vocab) for _ in range(tokens)]

    def ask(self, ids, answer):
        s = Stream(self.port, None, {"prompt": ids, "max_tokens": answer, "temperature": 0, "ignore_eos": True}, time.monotonic())
        self.open.add(s)
        self.sel.register(s.sock, selectors.EVENT_READ, s)
        return s

    def close(self, s):
        self.sel.unregister(s.sock)
        s.sock.close()
        self.open.discard(s)

    def until(self, end, cond=None):
        """Reads until that time; with a condition until it holds, and that time is the limit."""
        while (now := time.monotonic()) < end and not (cond and cond()):
            for key, _ in self.sel.select(min(0.05, end - now)):
                s, now = key.data, time.monotonic()
                data = s.sock.recv(65536)
                result = s.feed(data, now) if data else "connection closed"
                if result:
                    assert result == "end", result
                    self.close(s)
        assert not cond or cond(), "no end in time"


def gaps(streams, begin, end):
    """Milliseconds between the tokens that arrived in that time."""
    return [(b - a) * 1e3 for s in streams for a, b in zip(s.arrivals, s.arrivals[1:]) if begin <= a and b <= end]
