"""terminal.py - runs a program at a terminal of its own (a pty) and reads its screen as a person does; a played server for chats.

    with Terminal("chat", rundir=DIR) as t:
        t.type("hello\\r")
        t.shows("some text")
"""
import fcntl
import http.server
import json
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import threading
import time

import pyte
from suite import BIN, ENV, SLOW, wait_for


class Terminal:
    """raw: all bytes that the program wrote. screen: pyte's 80x24 with a history of what scrolled out."""

    def __init__(self, *args, rows=24, columns=80, env=None, program="pdctl"):
        self.screen = pyte.HistoryScreen(columns, rows, history=1000)
        self.stream = pyte.ByteStream(self.screen)
        self.raw, self.lock = b"", threading.Lock()
        self.master, self.slave = pty.openpty()
        self._size(rows, columns)
        base = {k: v for k, v in ENV.items() if k not in ("NO_COLOR", "OPENAI_API_KEY", "XDG_STATE_HOME")}
        self.before = termios.tcgetattr(self.slave)
        self.proc = subprocess.Popen([os.path.join(BIN, program), *args], stdin=self.slave, stdout=self.slave, stderr=self.slave,
                                     env={**base, "TERM": "xterm", "LANG": "C.UTF-8", **(env or {})}, preexec_fn=self._own_terminal)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _own_terminal(self):
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    def _size(self, rows, columns):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def _read(self):
        while True:
            try:
                select.select([self.master], [], [])
                with self.lock:
                    data = os.read(self.master, 65536)
                    if not data:
                        return
                    self.raw += data
                    self.stream.feed(data)
            except OSError:
                return

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if exc[0] is not None:
            print("\n".join(self.lines()))
        if self.proc.poll() is None:
            self.proc.kill()
            self.proc.wait()
        os.close(self.slave)
        self.reader.join(5)
        os.close(self.master)

    def resize(self, rows, columns):
        with self.lock:
            self.screen.resize(rows, columns)
        self._size(rows, columns)

    def type(self, text):
        os.write(self.master, text.encode())

    def lines(self):
        """The screen's lines without blanks at their ends."""
        with self.lock:
            return [line.rstrip() for line in self.screen.display]

    def text(self):
        return "\n".join(self.lines())

    def scrolled(self):
        """How many lines have left the screen at its top."""
        with self.lock:
            return len(self.screen.history.top)

    def shows(self, text, timeout=20):
        wait_for(lambda: text in self.text(), lambda: f"no {text!r} on:\n{self.text()}", timeout)

    def said(self, data, timeout=20):
        """The program has written these bytes."""
        wait_for(lambda: data in self.raw, lambda: f"no {data!r} in {self.raw[-3000:]!r}", timeout)

    def prompt(self):
        """It waits for input: the line of the cursor is an empty prompt."""
        wait_for(lambda: self.lines()[self.screen.cursor.y] == ">", lambda: f"no prompt:\n{self.text()}")

    def ends(self, timeout=20):
        """The exit status; all that it wrote has been read then."""
        code = self.proc.wait(timeout * SLOW)
        wait_for(lambda: time.sleep(0.1) or self._all_read())
        return code

    def _all_read(self):
        with self.lock:
            return not select.select([self.master], [], [], 0)[0]

    def restored(self):
        """The terminal's settings are those from before."""
        return termios.tcgetattr(self.slave) == self.before


class PlayedServer:
    """Answers chats from a script and keeps what it was asked. answers: for each turn a list of pieces: a text, a dict (a whole delta), a number (seconds to
    wait) or ("status", code, message). The last is repeated. A prompt's tokens are its words; context: the model's."""

    def __init__(self, answers, context=1000, finish="stop"):
        self.asked, self.counted, self.closed = [], [], []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                if self.path == "/tokenize":
                    outer.counted.append(body)
                    return self.say(200, {"count": sum(len(m["content"].split()) for m in body["messages"]), "max_model_len": outer.context})
                outer.asked.append(body)
                pieces = outer.answers[min(len(outer.asked), len(outer.answers)) - 1]
                if pieces and isinstance(pieces[0], tuple):
                    return self.say(pieces[0][1], {"error": {"message": pieces[0][2]}})
                try:
                    self.play(pieces)
                except OSError:
                    outer.closed.append(len(outer.asked))

            def say(self, status, body):
                self.send_response(status)
                self.end_headers()
                self.wfile.write(json.dumps(body).encode())

            def event(self, **more):
                self.wfile.write(b"data: " + json.dumps({"id": "chatcmpl-1", **more}).encode() + b"\n\n")
                self.wfile.flush()

            def play(self, pieces):
                self.send_response(200)
                self.end_headers()
                n = 0
                for p in pieces:
                    if isinstance(p, (int, float)):
                        time.sleep(p)
                        continue
                    self.event(choices=[{"index": 0, "delta": p if isinstance(p, dict) else {"content": p}, "finish_reason": None}])
                    n += 1
                self.event(choices=[{"index": 0, "delta": {}, "finish_reason": outer.finish}])
                self.event(choices=[], usage={"completion_tokens": n})
                self.wfile.write(b"data: [DONE]\n\n")

            def log_message(self, *_):
                pass

        self.answers, self.context, self.finish = answers, context, finish
        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def __enter__(self):
        threading.Thread(target=self.http.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc):
        self.http.shutdown()
        self.http.server_close()


def interrupt(t):
    """Ctrl-C, as the terminal sends it."""
    t.type("\x03")


__all__ = ["Terminal", "PlayedServer", "interrupt", "signal"]
