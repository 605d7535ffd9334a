"""neighbour.py - the client that must not notice: a few streams of tokens without a break, and short requests beside them, from 127.0.0.1.

    tokens/s    tokens of the streams that arrived while it was measured, over that time
    wait        of a short request: from when it was due to its first token, or to its whole answer where it is no stream (`whole`); one that has none when the
                measurement ends has waited until then
    failed      short requests and streams that were refused, broke or ended with an error

Prompts are random ids of PROMPT tokens, a length that no attack uses: by it the router's log tells the neighbour's attempts from all others.
"""
import asyncio
import json
import random
import re
import time

PROMPT = 19


class Neighbour:
    def __init__(self, port, streams=4, each_s=0.05, in_turn=False, stream_tokens=64, probe_tokens=1, probe=None, whole=False, tls=None, vocab=300):
        self.port, self.streams, self.each_s, self.in_turn, self.stream_tokens, self.probe_tokens = port, streams, each_s, in_turn, stream_tokens, probe_tokens
        self.probe, self.whole, self.tls, self.random, self.vocab = probe, whole, tls, random.Random(7), vocab
        self.arrived, self.waits, self.waiting, self.failed, self.why = [], [], {}, 0, ""

    def body(self, tokens):
        ids = [self.random.randrange(3, self.vocab) for _ in range(PROMPT)]
        return {"prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True, "return_token_ids": True}

    async def ask(self, path, body):
        """Yields, for each event or for the whole answer, the number of tokens in it. Raises OSError."""
        data = json.dumps(body).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls, limit=1 << 24)
        try:
            writer.write(b"POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer neighbour-key\r\nContent-Type: application/json\r\nConnection: close\r\n"
                         b"Content-Length: %d\r\n\r\n" % (path.encode(), len(data)) + data)
            status = await reader.readline()
            if b" 200 " not in status:
                said = re.search(rb'"message":"([^"]*)', await reader.read(4000))
                raise OSError(f"{status.decode()[9:12]} {said[1].decode(errors='replace') if said else ''}")
            if not body.get("stream"):
                await reader.read()
                yield 0
                return
            while line := await reader.readline():
                if line.startswith(b"data: [DONE]"):
                    return
                if line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        raise OSError(event["error"])
                    yield sum(len(c.get("token_ids") or ()) for c in event["choices"])
            raise OSError("the stream has no end")
        finally:
            writer.transport.abort()

    def fail(self, e):
        self.failed += 1
        self.why = self.why or str(e) or repr(e)

    async def stream(self):
        while True:
            try:
                async for n in self.ask("/v1/completions", self.body(self.stream_tokens)):
                    self.arrived.append((time.monotonic(), n))
            except OSError as e:
                self.fail(e)
                await asyncio.sleep(0.05)

    async def short(self, due):
        self.waiting[due] = True
        try:
            path, body = self.probe or ("/v1/completions", self.body(self.probe_tokens))
            async for _ in self.ask(path, body):
                if not self.whole and due in self.waiting:
                    self.waits.append((due, time.monotonic() - due))
                    del self.waiting[due]
            if due in self.waiting:
                self.waits.append((due, time.monotonic() - due))
        except OSError as e:
            self.fail(e)
            self.waits.append((due, time.monotonic() - due))
        finally:
            self.waiting.pop(due, None)

    async def shorts(self):
        due, tasks = time.monotonic(), set()
        while True:
            if self.in_turn:
                due = time.monotonic()
                await self.short(due)
                await asyncio.sleep(self.each_s)
            else:
                tasks.add(task := asyncio.create_task(self.short(due)))
                task.add_done_callback(tasks.discard)
                due += self.each_s
                await asyncio.sleep(max(0, due - time.monotonic()))

    async def measure(self, before_s, seconds, go):
        """Starts, waits, calls go(), measures."""
        tasks = [asyncio.create_task(self.stream()) for _ in range(self.streams)]
        tasks += [asyncio.create_task(self.shorts())] if self.each_s is not None else []
        await asyncio.sleep(before_s)
        self.failed, self.why, begin = 0, "", time.monotonic()
        go()
        await asyncio.sleep(seconds)
        end = time.monotonic()
        waits = sorted([w for due, w in self.waits if begin <= due < end] + [end - due for due in self.waiting])
        unanswered = len(self.waiting)
        tokens = sum(n for at, n in self.arrived if begin <= at < end)
        failed, why = self.failed, self.why
        rest = [t for t in asyncio.all_tasks() if t is not asyncio.current_task()]
        for t in rest:
            t.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        for t in tasks:
            if not t.cancelled() and t.exception():
                raise t.exception()
        return Figures(tokens / (end - begin), waits, unanswered, failed, why)


class Figures:
    """waits: seconds, sorted; those of the unanswered requests are among them."""

    def __init__(self, tokens_s, waits, unanswered, failed, why):
        self.tokens_s, self.waits, self.unanswered, self.failed, self.why = tokens_s, waits, unanswered, failed, why

    def wait(self, p):
        """Seconds; nearest rank."""
        return self.waits[min(len(self.waits) - 1, int(len(self.waits) * p / 100))] if self.waits else float("nan")

    @property
    def longest(self):
        return self.waits[-1] if self.waits else float("nan")


def measure(port, before_s, seconds, go, **more):
    return asyncio.run(Neighbour(port, **more).measure(before_s, seconds, go))
