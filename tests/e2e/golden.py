"""golden.py - the tiny models of tests/data/golden in whole suites: what is asked of each, the reference's tokens, and what suites answer."""
import array
import json
import os
import shutil
import struct

from suite import GOLDEN, TINY_MODEL, Suite

ALL = sorted(f for f in os.listdir(GOLDEN) if os.path.isdir(os.path.join(GOLDEN, f)))
WORKER = {"block_tokens": 16, "kv_blocks": 96, "output_caching": False}


def asked(family):
    """The two prompts, each with the reference's greedy continuation."""
    def load(name):
        with open(os.path.join(GOLDEN, family, name)) as f:
            return json.load(f)

    prompts, golden = load("prompt.json"), load("golden.json")["continuations"]
    return [(prompts[k], golden[k]["greedy"]) for k in ("short", "long")]


def wanted(family):
    return [want for _, want in asked(family)]


def suite(family, layout, kv_type, file="", **more):
    return Suite(layout, os.path.join(GOLDEN, family, file), worker={**WORKER, "kv_type": kv_type}, **more)


def with_nan(folder, token):
    """Makes TINY_MODEL there, with a NaN in the embedding of that token."""
    for f in os.listdir(TINY_MODEL):
        shutil.copy(os.path.join(TINY_MODEL, f), folder)
    with open(os.path.join(folder, "model.safetensors"), "r+b") as f:
        n, = struct.unpack("<Q", f.read(8))
        t = json.loads(f.read(n))["model.embed_tokens.weight"]
        assert t["dtype"] == "BF16"
        f.seek(8 + n + t["data_offsets"][0] + 2 * (token * t["shape"][1] + 3))
        f.write(b"\xc0\x7f")


def in_circles(folder):
    """Makes the golden model there with its attention turned down (o_proj times 2**-5 in all layers), so that its answers run in circles. -> the folder"""
    shutil.copytree(os.path.join(GOLDEN, "llama"), folder)
    path = os.path.join(folder, "model.safetensors")
    with open(path, "rb") as f:
        data = bytearray(f.read())
    size = int.from_bytes(data[:8], "little")
    for name, t in json.loads(data[8:8 + size]).items():
        if not name.endswith("o_proj.weight"):
            continue
        assert t["dtype"] == "BF16"
        begin, end = (8 + size + x for x in t["data_offsets"])
        w = array.array("H", data[begin:end])
        data[begin:end] = array.array("H", [x - (5 << 7) if (x >> 7) & 0xff > 5 else 0 for x in w]).tobytes()
    with open(path, "wb") as f:
        f.write(data)
    return folder


def scored(s, prompt, n):
    """The greedy tokens, and the log-probabilities of those and of others: where the tokens are the same by chance, these show another bit."""
    body = {"prompt": prompt, "max_tokens": n, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "logprobs": 5}
    status, r = s.post("/v1/completions", body)
    assert status == 200, (status, r)
    choice = r["choices"][0]
    return choice["token_ids"], choice["logprobs"]["token_logprobs"], choice["logprobs"]["top_logprobs"]


def answers(family, layout, kv_type, n=None, rounds=1, ask=Suite.tokens, **more):
    """Of all rounds, which must be alike: with what the first left in the pools the second computes less. n: tokens, None for as many as the reference has."""
    with suite(family, layout, kv_type, **more) as s:
        out = [[ask(s, p, n or len(want)) for p, want in asked(family)] for _ in range(rounds)]
        assert all(o == out[0] for o in out)
        s.quiet()
        return out[0]


def through_storage(family, length, n, prefill=None, **more):
    """A pool for about one prompt of that length: what it evicts goes to storage and comes back, and the tokens are those of a worker that has room."""
    prompts = [[(7 * i + j) % 300 + 3 for i in range(length)] for j in (0, 100, 200)]
    with suite(family, "mixed", "f32", **more) as s:
        want = [s.tokens(p, n) for p in prompts]
    small = {**(prefill or {}), "kv_blocks": 16, "kv_eviction": "offload", "storage_read": "always", "storage_lookup_wait_ms": 60000, "storage_read_wait_ms": 60000}
    with suite(family, "1p1d", "f32", prefill=small, **more) as s:
        for _ in range(20):              # what is evicted before it was written is computed again, and has another chance
            assert [s.tokens(p, n) for p in prompts] == want
            if s.ctl("storage", "status")["hits"]:
                break
        assert s.ctl("storage", "status")["hits"] > 0
        assert ("memory_pinned" in s.log("storage")) == ("gpu" in more)
        s.quiet()
