# run: waits
"""test_prefill.py - prefill workers as clients meet them: one leaves under load, prompts share a beginning, the order of a schedule. On simulated accelerators."""
import concurrent.futures
import random
import re
import signal
import time

import pytest
from suite import SLOW, Suite, wait_for

SIM = {"base": "small", "check": "always", "time_scale": 0.2}


def prompt(seed, n, common=()):
    r = random.Random(seed)
    return list(common) + [r.randrange(3, 320) for _ in range(n)]


def in_hand(log):
    """Requests that the worker has accepted and not yet computed, by its log."""
    return len(re.findall("event=accepted ", log)) - len(re.findall("event=prefill_done ", log))


def test_one_leaves_under_load():
    """SIGTERM of a prefill worker that computes: its requests are handed over or run on the other, no client notices."""
    prompts = [prompt(i, 700 + 40 * i) for i in range(24)]
    with Suite(layout="2p1d", sim={**SIM, "time_scale": 2, "prefill": {"time_scale": 20}}) as s:   # the log comes 20 ms late: prompts must take longer
        want = [s.tokens(p, n=12) for p in prompts]
        for w in s.workers():
            s.ctl(w, "flush")
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            for _ in range(20):     # until four are in its hands at once: threads of a client on a busy machine may ask one after the other
                begin = len(s.log("prefill-1"))
                got = [pool.submit(s.tokens, p, n=12) for p in prompts]
                while in_hand(s.log("prefill-1")[begin:]) < 4 and not all(g.done() for g in got):   # from the log: asking takes longer than computing, under a sanitizer
                    time.sleep(0.002)
                if not all(g.done() for g in got):
                    break
                for w in s.workers():
                    s.ctl(w, "flush")
            s.procs["prefill-1"].send_signal(signal.SIGTERM)
            assert [g.result() for g in got] == want
        assert s.procs["prefill-1"].wait(20 * SLOW) == 0
        assert in_hand(s.log("prefill-1")[begin:].split("event=stopping")[0]) > 0
        assert all(s.ctl(w, "status")["device_kv_faults"] == 0 for w in s.workers() if w != "prefill-1")


def test_its_decode_worker_leaves():
    """SIGTERM of the decode worker that holds the lease of a prompt which is being computed: the prompt goes to another one, and that is no loss."""
    sim = {"base": "small", "prefill": {"step_us": 1500000.0 * SLOW}}
    with Suite("1p2d", sim=sim, router={"max_attempts": 1}, decode={"stop_timeout_ms": 200 * SLOW}, messager={"stall_ms": 30000}) as s:
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            got = pool.submit(s.tokens, [7] * 40, n=8)
            name = []
            wait_for(lambda: name.extend(d for d in ("decode-1", "decode-2") if s.ctl(d, "requests")) or name)
            name = name[0]
            s.kill(name, signal.SIGTERM)
            assert len(got.result()) == 8
        log = s.log("router")
        assert f"event=attempt_moved attempt=1 state=submitted worker={name} " in log and "event=attempt_lost" not in log


def test_waiting_for_a_turn_is_no_stall():
    """Prompts that wait for others, several times as long as the messager's stall limit: P says that it has
    them in hand, and none is given up."""
    prompts = [prompt(2000 + i, 600) for i in range(6)]
    sim = {"base": "small", "time_scale": 1.0, "prefill": {"time_scale": 160.0}}
    with Suite(layout="1p1d", sim=sim, messager={"stall_ms": 1500}, prefill={"max_batched_tokens": 256}) as s:
        begin = time.time()
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            assert all(len(t) == 2 for t in pool.map(lambda p: s.tokens(p, n=2), prompts))
        assert time.time() - begin > 4.5
        assert 'pdserve_messager_transfers_stalled_total{name="messager",role="messager"} 0\n' in s.metrics("messager")
        assert "event=attempt_lost" not in s.log("router")


@pytest.mark.parametrize("order", ["fifo", "srpt"])
def test_shared_beginnings(order):
    """Two dozen prompts at once over three beginnings: each beginning is computed about once, and every answer is that of the prompt alone."""
    beginnings = [prompt(1000 + k, 1500) for k in range(3)]
    prompts = [prompt(i, 20 + i, beginnings[i % 3]) for i in range(24)]
    with Suite(layout="1p2d", sim=SIM, prefill={"prefill_order": order, "max_batched_tokens": 256}) as s:
        want = [s.tokens(p, n=8) for p in prompts]
        for w in s.workers():
            s.ctl(w, "flush")
        before = s.ctl("prefill-1", "status")["prompt_tokens"]
        with concurrent.futures.ThreadPoolExecutor(len(prompts)) as pool:
            assert list(pool.map(lambda p: s.tokens(p, n=8), prompts)) == want
        computed = s.ctl("prefill-1", "status")["prompt_tokens"] - before
        tails = sum(len(p) - 1500 for p in prompts)
        assert computed < 3 * 1500 + tails + 24 * 64 + 2 * 1500, f"{computed} tokens computed of {sum(map(len, prompts))}"
        assert all(s.ctl(w, "status")["device_kv_faults"] == 0 for w in s.workers())
