# run: waits
"""test_counters.py - the counters that dashboards show. After each of these acts, of all counters of all daemons exactly these have moved, by exactly this much.

An act is a function and what it must move: {daemon: {counter: amount}}, without `_total`; a histogram counts its observations. What always moves together has a
name (prefilled, decoded, ...); `add` sums such parts. MOVES: the amount depends on time, but it is not 0.
"""
import http.client
import json
import re
import socket
import time

import pytest
from suite import SLOW, Suite

KEYS = {"a": "key-a", "b": "key-b"}
BLOCK = 64                              # tokens
KV = 3 * 2 * 2 * 16 * 2                 # bytes of a token's KV in the tiny model: 3 layers of K and V, 2 heads of 16 numbers of 2 bytes
MOVES = "moves"

# They depend on time: heartbeats and acknowledgements, the processor's time, how often the messager looked while a prompt was computed, and which of two workers'
# links brings the first token, the last one or both to the router first.
BY_TIME = re.compile("process_cpu_seconds|pdserve_messages_(sent|received|stale)|pdserve_tokens_repeated|pdserve_messager_transfer_(copies|reaction_seconds)")
TELLING = re.compile('(?:worker|tenant|stage|reason|status)="([^"]*)"')


class CountedSuite(Suite):
    asked = 0       # requests of the suite's own: for pages, for whether it is ready

    def get(self, *args, **more):
        self.asked += 1
        return super().get(*args, **more)

    def counters(self):
        out = {}
        for daemon in self.procs:
            page = self.get("/metrics")[1] if daemon == "router" else self.metrics(daemon)
            kinds = dict(re.findall(r"(?m)^# TYPE (\S+) (\S+)", page))
            for name, labels, v in re.findall(r"(?m)^([a-z_:][a-z0-9_:]*)(?:\{([^}]*)\})? (\S+)$", page):
                family = name if name in kinds else re.sub("_(bucket|sum|count)$", "", name)
                if kinds[family] == "gauge" or family != name and not name.endswith("_count"):
                    continue
                short = re.sub("_(total|count)$", "", name)
                if not BY_TIME.fullmatch(short):
                    key = daemon, " ".join([short, *TELLING.findall(labels)])
                    out[key] = out.get(key, 0) + float(v)
        out["router", "pdserve_http_requests"] -= self.asked
        return out


def add(*parts):
    out = {}
    for part in parts:
        for daemon, moved in part.items():
            mine = out.setdefault(daemon, {})
            for name, n in moved.items():
                mine[name] = MOVES if MOVES in (n, mine.get(name)) else mine.get(name, 0) + n
    return out


# --- what moves together

def asked(prompt, tenant="a"):
    """A request that is answered. prompt: its tokens"""
    return {"router": {"pdserve_http_requests": 1, "pdserve_prepare_seconds": 1, f"pdserve_tenant_requests {tenant}": 1, f"pdserve_tenant_prompt_tokens {tenant}": prompt}}


def refused(status, prepared=0, counted=0):
    """prepared: its body was read; counted: against the key's limits"""
    return {"router": {"pdserve_http_requests": 1, f"pdserve_requests_refused {status}": 1, "pdserve_prepare_seconds": prepared, "pdserve_tenant_requests a": counted}}


def prefilled(prompt, cached=0, stored=0, drawn=1, steps=1):
    """A prompt at the prefill worker. cached, stored: tokens that were in its pool, and in storage; drawn: first tokens"""
    new = prompt - cached - stored
    hits = cached + stored
    return {"prefill-1": {"pdserve_prefill_requests": 1, "pdserve_prefill_prompt_tokens": new, "pdserve_prefill_generated_tokens": drawn, "pdserve_prefill_cached_tokens": cached,
                          "pdserve_prefill_prompt_seconds": 1, "pdserve_prefill_steps": steps, "pdserve_prefill_step_seconds": steps,
                          "vllm:iteration_tokens_total": steps},
            "router": {"pdserve_placed prefill only": 1, "pdserve_worker_prompt_tokens prefill-1": new, "pdserve_worker_generated_tokens prefill-1": drawn,
                       "pdserve_worker_cached_tokens prefill-1": cached, "vllm:prompt_tokens": prompt, "vllm:prefix_cache_queries": prompt,
                       "vllm:prefix_cache_hits": hits, "pdserve_cached_prompt_tokens": hits, "pdserve_router_kv_hit_tokens_predicted": hits,
                       "pdserve_router_kv_hit_tokens_actual": hits}}


def handed_over(prompt, cached=0):
    """A prompt's KV from the prefill worker to the decode worker, which has `cached` tokens of it."""
    first, last = cached // BLOCK, (prompt + BLOCK - 1) // BLOCK
    return {"prefill-1": {"pdserve_prefill_reserve_seconds": 1},
            "messager": {"pdserve_messager_transfers_sent": 1, "pdserve_messager_transfer_pieces": 3 * (last - first), "pdserve_messager_transfer_bytes": KV * BLOCK * (last - first),
                         "pdserve_messager_transfer_seconds": 1, "pdserve_messager_transfer_copy_seconds": 1, "pdserve_messager_transfer_tail_seconds": 1},
            "decode-1": {"pdserve_decode_requests": 1, "pdserve_decode_leases_granted": 1, "pdserve_decode_reservation_wait_seconds": 1, "pdserve_decode_transfer_seconds": 1},
            "router": {"pdserve_placed decode only": 1}}


def decoded(tokens, steps=None):
    """tokens: those after the first"""
    steps = steps or tokens
    return {"decode-1": {"pdserve_decode_generated_tokens": tokens, "pdserve_decode_steps": steps, "pdserve_decode_step_seconds": steps, "vllm:iteration_tokens_total": steps},
            "router": {"pdserve_worker_generated_tokens decode-1": tokens, "vllm:inter_token_latency_seconds": tokens, "vllm:time_per_output_token_seconds": 1, "vllm:request_time_per_output_token_seconds": 1}}


def answered(tokens, why="length", tenant="a", longest=1):
    """longest: of its prompt's answers"""
    router = {f"pdserve_answers_{why}": 1, f"vllm:request_success {why}": 1, "vllm:e2e_request_latency_seconds": 1, "vllm:request_prompt_tokens": 1}
    if tokens:
        router.update({"vllm:generation_tokens": tokens, f"pdserve_tenant_generated_tokens {tenant}": tokens, "vllm:time_to_first_token_seconds": 1,
                       "vllm:request_generation_tokens": 1, "vllm:request_max_num_generation_tokens": longest,
                       "vllm:request_prefill_time_seconds": 1, "vllm:request_decode_time_seconds": 1})
    return {"router": {**router, "vllm:request_queue_time_seconds": 1 if tokens else 0}}


def whole(prompt, tokens, why="length", cached=0, tenant="a"):
    return add(asked(prompt, tenant), prefilled(prompt, cached), handed_over(prompt, cached), decoded(tokens - 1), answered(tokens, why, tenant))


def stored(blocks):
    """Full blocks of a new prompt: published by both workers, written to storage by the decode worker."""
    n, size = blocks, blocks * KV * BLOCK
    return {"prefill-1": {"pdserve_prefill_kv_events": n, "pdserve_prefill_storage_lookup_blocks": n, "pdserve_prefill_store_events": n},
            "decode-1": {"pdserve_decode_kv_events": n, "pdserve_decode_kv_output_blocks": n, "pdserve_decode_kv_written_blocks": n, "pdserve_decode_kv_write_seconds": 1},
            "router": {"pdserve_router_kv_events": MOVES},
            "storage": {"pdserve_storage_lookups": 1, "pdserve_storage_kv_events": 2 * n, "pdserve_storage_memory_puts": n, "pdserve_storage_memory_write_bytes": size,
                        "pdserve_storage_put_blocks": n, "pdserve_storage_put_bytes": size, "pdserve_storage_put_seconds": 1}}


def read_back(blocks):
    """Blocks that the prefill worker gets from storage instead of computing them."""
    n, size = blocks, blocks * KV * BLOCK
    return {"prefill-1": {"pdserve_prefill_kv_events": n, "pdserve_prefill_storage_lookup_blocks": n, "pdserve_prefill_storage_found_memory_blocks": n,
                          "pdserve_prefill_storage_read_memory_blocks": n, "pdserve_prefill_storage_read_seconds": 1, "pdserve_prefill_stored_tokens": n * BLOCK},
            "router": {"pdserve_router_kv_events": MOVES, "pdserve_router_kv_hit_tokens_stored_predicted": n * BLOCK, "pdserve_router_kv_hit_tokens_stored_actual": n * BLOCK},
            "storage": {"pdserve_storage_lookups": 1, "pdserve_storage_hits": n, "pdserve_storage_get_bytes": size, "pdserve_storage_get_seconds": 1,
                        "pdserve_storage_memory_hits": n, "pdserve_storage_memory_gets": n, "pdserve_storage_memory_read_bytes": size}}


# --- acts

def prompt(n, first):
    """first: makes it one that no other act uses"""
    return [first] + [(7 * i) % 200 + 3 for i in range(1, n)]


def ask(s, length, first, path="/v1/completions", key="key-a", status=200, max_tokens=4, **body):
    c = http.client.HTTPConnection("127.0.0.1", s.port, timeout=60 * SLOW)
    try:
        c.request("POST", path, json.dumps({"prompt": prompt(length, first), "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **body}), {"Authorization": f"Bearer {key}"})
        r = c.getresponse()
        got = json.loads(r.read())
        assert r.status == status, got
        return got
    finally:
        c.close()


def send(s, data):
    """data on a connection of its own; returns it after the first bytes of the answer"""
    k = socket.create_connection(("127.0.0.1", s.port), timeout=20 * SLOW)
    k.sendall(data)
    assert k.recv(4096)
    return k


def stop_at_third(s):
    third = ask(s, 10, 20, max_tokens=3, return_token_ids=True)["choices"][0]["token_ids"][2]
    assert ask(s, 10, 20, max_tokens=8, stop_token_ids=[third])["choices"][0]["finish_reason"] == "stop"


def leave(s):
    """A client that leaves after the first bytes of a long answer."""
    body = json.dumps({"prompt": prompt(10, 30), "max_tokens": 480, "stream": True, "ignore_eos": True})
    send(s, f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key-a\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()).close()
    s.quiet()


def restart_prefill(s):
    s.kill("prefill-1")
    s.restart("prefill-1")
    s.ready()


def lose_decode(s):
    """The decode worker is killed in the middle of an answer and comes back; the client gets the whole answer."""
    body = json.dumps({"prompt": prompt(10, 40), "max_tokens": 300, "stream": True, "ignore_eos": True, "temperature": 0, "stream_options": {"include_usage": True}})
    k = send(s, f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer key-a\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    s.kill("decode-1")
    s.restart("decode-1")
    text = b"".join(iter(lambda: k.recv(65536), b""))
    assert b'"completion_tokens":300' in text.replace(b" ", b"")
    s.ready()


# An answer that is cut moves these as far as it has come.
HOW_FAR = re.compile("(prefill-1|decode-1|messager|storage) |router pdserve_(worker_|router_kv_events)")

# name: before, act, what moves, what of it is not compared
ACTS = {
    "nothing": (None, lambda s: time.sleep(0.5), {}),
    "a short answer": (None, lambda s: ask(s, 10, 50), whole(10, 4)),
    "a prompt of three blocks": (None, lambda s: ask(s, 200, 51), add(whole(200, 4), stored(3))),
    "a prompt that is cached": (lambda s: ask(s, 200, 52), lambda s: ask(s, 200, 52), whole(200, 4, cached=192)),
    "a prompt that is in storage": (lambda s: (ask(s, 200, 53), restart_prefill(s)), lambda s: ask(s, 200, 53),
                                    add(asked(200), prefilled(200, stored=192), handed_over(200, 192), decoded(3), answered(4), read_back(3))),
    "another key": (None, lambda s: ask(s, 10, 54, key="key-b"), whole(10, 4, tenant="b")),
    "a single token": (None, lambda s: ask(s, 10, 55, max_tokens=1), add(asked(10), prefilled(10), answered(1))),
    "a token that stops": (None, stop_at_third, add(whole(10, 3), whole(10, 3, why="stop"))),
    "two answers": (None, lambda s: ask(s, 10, 56, n=2),
                    add(asked(10), prefilled(10, steps=MOVES), prefilled(10, steps=MOVES), handed_over(10), handed_over(10), decoded(3, MOVES), decoded(3, MOVES), answered(4), answered(4, longest=0))),
    "an embedding": (None, lambda s: ask(s, 10, 57, "/v1/embeddings", input=prompt(10, 57)), add(asked(10), prefilled(10, drawn=0), answered(0, "stop"))),
    "a parameter out of range": (None, lambda s: ask(s, 10, 58, status=400, max_tokens=-4), refused(400, prepared=1, counted=1)),
    "an unknown path": (None, lambda s: ask(s, 10, 59, "/nope", status=404), refused(404)),
    "a wrong key": (None, lambda s: ask(s, 10, 60, key="wrong", status=401), refused(401)),
    "a client that leaves": (None, leave, add(asked(10), {"router": {
        "pdserve_placed prefill only": 1, "pdserve_placed decode only": 1, "pdserve_sequences_cancelled": 1, "vllm:prompt_tokens": 10, "vllm:prefix_cache_queries": 10,
        "vllm:generation_tokens": MOVES, "pdserve_tenant_generated_tokens a": MOVES}}), HOW_FAR, re.compile("router vllm:inter_token_latency_seconds")),
    "a decode worker that is killed": (None, lose_decode, add(asked(10), answered(300), {"router": {
        "pdserve_placed prefill only": MOVES, "pdserve_placed decode only": MOVES, "pdserve_attempts_retried": MOVES, "vllm:prompt_tokens": 10, "vllm:prefix_cache_queries": 10,
        "vllm:time_per_output_token_seconds": 1, "vllm:request_time_per_output_token_seconds": 1, "vllm:inter_token_latency_seconds": 299}}), HOW_FAR),
    "no HTTP": (None, lambda s: send(s, b"NONSENSE\r\n\r\n").close(), {"router": {"pdserve_http_refused": 1, "pdserve_requests_refused 400": 1}}),
}


@pytest.fixture(scope="module")
def suite(tiny_model):
    with CountedSuite("1p1d", tiny_model, keys=KEYS) as s:
        yield s
        s.quiet()


def settled(s):
    """The counters once they stand still: blocks are written, and workers' figures arrive with their heartbeats, after the answer."""
    had, since = s.counters(), time.monotonic()
    while time.monotonic() - since < 0.7:
        now = s.counters()
        if now != had:
            had, since = now, time.monotonic()
    return had


def differ(moved, want):
    want = {(daemon, name): n for daemon, names in want.items() for name, n in names.items() if n}
    return {" ".join(k): f"{moved.get(k, 0)}, not {want.get(k, 0)}" for k in moved.keys() | want.keys()
            if moved.get(k, 0) != want.get(k, 0) and not (want.get(k) == MOVES and moved.get(k, 0) > 0)}


@pytest.mark.parametrize("name", ACTS)
def test_counters_after(suite, name):
    before, act, want, *left_out = ACTS[name]
    if before:
        before(suite)
    was = settled(suite)
    act(suite)
    now = settled(suite)
    moved = {k: v - was.get(k, 0) for k, v in now.items() if v != was.get(k, 0) and not any(x.match(" ".join(k)) for x in left_out)}
    assert not differ(moved, want)
