"""What surrounds the daemons turns against them: a log that nobody reads."""
import fcntl
import os
import subprocess
import threading

import suite
from suite import ENV, Suite, wait_for


class PipedSuite(Suite):
    """All daemons write their log into one small pipe. It is read until `stop_reading`, and again after `read_on`."""

    def __init__(self, *args, **more):
        super().__init__(*args, **more)
        self.out, self.into = os.pipe()
        fcntl.fcntl(self.into, fcntl.F_SETPIPE_SZ, 4096)
        self.text, self.reading = b"", threading.Event()
        self.read_on()
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        while True:
            self.reading.wait()
            got = os.read(self.out, 4096)
            if not got:
                return
            self.text += got

    def stop_reading(self):
        self.reading.clear()

    def read_on(self):
        self.reading.set()

    def start(self, name):
        path = os.path.join(self.dir, name + ".conf")
        with open(path, "w") as f:
            f.writelines(f"{k} = {suite.value(v)};\n" for k, v in self.conf[name].items())
        argv = [os.path.join(suite.BIN, self.PROGRAM[name.split("-")[0]]), "-c", path]
        self.procs[name] = subprocess.Popen(argv, stdout=self.into, stderr=self.into, stdin=subprocess.DEVNULL, env=ENV)

    def log(self, name):
        return "\n".join(line for line in self.text.decode(errors="replace").split("\n") if f" name={name} " in line)

    def __exit__(self, *exc):
        try:
            super().__exit__(*exc)
        finally:
            self.read_on()
            os.close(self.into)
            self.reader.join()
            os.close(self.out)


def dropped(s, name):
    return next(float(line.rsplit(" ", 1)[1]) for line in s.metrics(name).splitlines()
                if line.startswith("pdserve_log_lines_dropped_total"))


def fill(s, name):
    """More lines than the pipe holds."""
    for _ in range(60):
        s.ctl(name, "log-level", "info")


def test_a_log_that_nobody_reads_stops_nobody():
    with PipedSuite(model=suite.TINY_MODEL) as s:
        want = s.tokens([1, 2, 3], 8)
        s.stop_reading()
        for name in s.names:
            fill(s, name)
        assert s.get("/health")[0] == 200
        assert s.tokens([1, 2, 3], 8) == want
        while dropped(s, "router") == 0:
            for _ in range(100):
                s.tokens([1, 2, 3], 1)          # three lines or more each
        assert s.tokens([1, 2, 3], 8) == want
        s.read_on()
        wait_for(lambda: "event=log_lines_dropped" in s.log("router"), "the router does not say what was lost")
        s.stop_reading()
        for name in s.names:
            fill(s, name)
        for name in reversed(s.names):
            assert s.kill(name, suite.signal.SIGTERM) == 0, name    # ends, though nobody reads why
