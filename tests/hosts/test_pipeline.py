"""A worker whose pipeline goes over two hosts: a router; a mixed worker, which is the first stage; a rank, which is the second one. Whatever is killed or cut,
each answer has the tokens that one process gives, and the worker serves again by itself.
"""
import os
import subprocess
import threading
import time

import pytest
from hosts import MODEL, NEEDS, PROMPT, ask, net, workers  # noqa: F401
from suite import BIN, wait_for
from test_handover import PROMPTS, Storm, all_up, count, keygen, more

pytestmark = NEEDS


def rank(host, name, worker, **conf):
    host.start("pdrank", name, model="", worker=f"decode-1@tcp://{worker.address}:7001", threads=1, **conf)


def staged(b, router, **conf):
    b.mixed("decode-1", [(router, "router-1")], listen=f"tcp://{b.address}:7001", **{"pipeline_parallel": 2, "remote_stages": 1, "threads": 1, **conf})


def keep_up(host, name, stop):
    """What a service manager does: starts a daemon again that has ended"""
    while not stop.wait(0.05):
        p = host.procs.get(name)
        if p and p.poll() is not None:
            host.restart(name)


class Kept:
    def __init__(self, host, name):
        self.stop = threading.Event()
        self.thread = threading.Thread(target=keep_up, args=(host, name, self.stop))

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def keys(net):
    a, b, c = net.hosts
    keygen(a, router_1="router", decode_0="worker")
    keygen(b, decode_1="worker")
    keygen(c, rank_1="rank", rank_2="rank")
    for h in net.hosts:
        h.know_all()
    return a, b, c


def one_process(a, prompts=None, n=24):
    """The tokens of a worker that is one process"""
    a.mixed("decode-0", [(a, "router-1")], threads=1)
    all_up(a, "decode-0")
    want = [ask(a, a, n, prompt=p)[1] for p in prompts or [PROMPT]]
    a.terminate("decode-0")
    wait_for(lambda: workers(a).get("decode-0") != "up", "it is gone")
    return want


def doing(host, name):
    return host.pdctl("-d", name, "status").stdout


def children(pid):
    return [int(p) for p in subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True).stdout.split()]


def alive(pid):
    return os.path.exists(f"/proc/{pid}")


def stage_pid(host, name="rank-1"):
    """The stage's process, whose children compute"""
    return children(host.procs[name].pid)[0]


def test_same_tokens_over_two_hosts(net):
    a, b, c = keys(net)
    a.router()
    want = one_process(a, PROMPTS)
    staged(b, a)
    wait_for(lambda: "waiting for stages of its pipeline: 0 of 1 here" in doing(b, "decode-1"), lambda: doing(b, "decode-1"))
    assert workers(a).get("decode-1") is None
    rank(c, "rank-1", b)
    all_up(a, "decode-1")
    assert "stage 1 of 2 at decode-1@tcp://" in doing(c, "rank-1")
    for _ in range(2):
        for p, w in zip(PROMPTS, want):
            assert ask(a, a, prompt=p) == (200, w)


def told_in_time(host, name, kill, seconds=1):
    """`kill` ends something of the group: the worker says why within a second"""
    before, at = count(host, name, "event=engine_broken"), time.time()
    kill()
    wait_for(lambda: count(host, name, "event=engine_broken") > before, "the reason is logged", 15)
    assert time.time() - at < seconds
    return [line for line in host.log(name).splitlines() if "event=engine_broken" in line][-1]


def test_a_stage_that_is_killed_under_load(net):
    a, b, c = keys(net)
    a.router()
    want = one_process(a, PROMPTS)
    staged(b, a)
    rank(c, "rank-1", b)
    all_up(a, "decode-1")
    with Kept(b, "decode-1"), Storm(a, [a], want, clients=4) as storm:
        more(a, "router-1", "event=request_done", 5)
        # the stage's process, and one that computes
        for i, says in enumerate(("has ended its connection", "ended by signal 9")):
            pid = stage_pid(c) if i == 0 else children(stage_pid(c))[0]
            ready = count(b, "decode-1", "event=worker_ready")
            line = told_in_time(b, "decode-1", lambda: os.kill(pid, 9))
            assert "stage 1 (rank-1)" in line and says in line, line
            wait_for(lambda: count(b, "decode-1", "event=worker_ready") > ready, "a new group")
            more(a, "router-1", "event=request_done", 5)
    print(storm.times)
    # a retry of the router, not an error for the client
    assert count(a, "router-1", "event=attempt_lost") > 0


def test_the_hosts_of_a_pipeline_are_killed(net):
    """Another rank takes the place of one whose host is gone; a rank outlives its worker"""
    a, b, c = keys(net)
    a.router()
    want = one_process(a)[0]
    staged(b, a)
    rank(c, "rank-1", b)
    all_up(a, "decode-1")
    rank(c, "rank-2", b)
    wait_for(lambda: "offered to decode-1" in doing(c, "rank-2"), lambda: doing(c, "rank-2"))
    with Kept(b, "decode-1"):
        told_in_time(b, "decode-1", lambda: c.kill("rank-1"))
        wait_for(lambda: "stage 1 of 2" in doing(c, "rank-2"), lambda: doing(c, "rank-2"), 20)
        all_up(a, "decode-1")
        assert ask(a, a) == (200, want)
        pid = stage_pid(c, "rank-2")
        b.procs["decode-1"].kill()
        wait_for(lambda: not alive(pid), "the stage has ended with its worker", 5)
        all_up(a, "decode-1")
        assert ask(a, a) == (200, want)


def test_a_host_that_is_cut_off(net):
    a, b, c = keys(net)
    a.router()
    want = one_process(a)[0]
    staged(b, a)
    rank(c, "rank-1", b)
    all_up(a, "decode-1")
    pid = stage_pid(c)
    with Kept(b, "decode-1"):
        line = told_in_time(b, "decode-1", c.cut, 15)
        assert "stage 1 (rank-1) has said nothing for 10 s" in line or "has ended its connection" in line, line
        wait_for(lambda: not alive(pid), "the stage has ended, too", 15)
        wait_for(lambda: "0 of 1 here" in doing(b, "decode-1"), lambda: doing(b, "decode-1"))
        c.heal()
        all_up(a, "decode-1")
        assert ask(a, a) == (200, want)


def test_who_may_not_be_a_stage(net):
    a, b, c = keys(net)
    a.router()
    # a worker's key
    c.keygen("rank-3", "worker")
    b.trust(c, "rank-3")
    # one that the worker does not know
    c.keygen("rank-4", "rank")
    staged(b, a)
    wait_for(lambda: "0 of 1 here" in doing(b, "decode-1"), lambda: doing(b, "decode-1"))
    rank(c, "rank-3", b)
    rank(c, "rank-4", b)
    wait_for(lambda: "event=hello_refused" in b.log("decode-1") and "event=key_refused" in b.log("decode-1"), lambda: b.log("decode-1"))
    assert "0 of 1 here" in doing(b, "decode-1")
    rank(c, "rank-1", b)
    all_up(a, "decode-1")


def test_what_a_pipeline_cannot_do(net):
    _, b, _ = net.hosts
    worker = [os.path.join(BIN, "pddecoded"), "-t", "-o", f"rundir={b.dir}", "-o", f"model={MODEL}", "-o", "pipeline_parallel=2"]
    for more_of, says in ((["remote_stages=1"], 'set messager and storage to "none"'),
                          (["remote_stages=2", "messager=none", "storage=none"], "remote_stages is 2 of 2 (pipeline_parallel)")):
        out = subprocess.run([*worker, *[x for o in more_of for x in ("-o", o)]], capture_output=True, text=True)
        assert out.returncode == 1 and says in out.stderr, out.stderr
    out = subprocess.run([os.path.join(BIN, "pdrank"), "-o", f"rundir={b.dir}"], capture_output=True, text=True)
    assert out.returncode == 1 and "set `worker`" in out.stderr
