"""Model families in whole suites: tiny models of tests/data/golden give the reference's tokens, however a request is run, with keys and values handed over
from worker to worker in blocks of the model's own shape. All families with PD_MODELS=all (make check-models), else a few that are unlike."""
import json
import os

import pytest
from suite import GOLDEN, SLOW, Suite

FEW = ("qwen3_moe", "deepseek_v3")          # experts over ordinary attention; experts over one latent for all heads
FAMILIES = sorted(f for f in os.listdir(GOLDEN) if os.path.isdir(os.path.join(GOLDEN, f))) if os.environ.get("PD_MODELS") == "all" else FEW
IN_GGUF = [f for f in (FAMILIES if os.environ.get("PD_MODELS") == "all" else ("gemma3",)) if os.path.exists(os.path.join(GOLDEN, f, "model.gguf"))]
LATENT = os.path.join(GOLDEN, "deepseek_v3")
WORKER = {"block_tokens": 16, "kv_blocks": 96, "output_caching": False}


def load(family, name):
    with open(os.path.join(GOLDEN, family, name)) as f:
        return json.load(f)


def asked(family):
    """The two prompts, and how many tokens the reference has of each."""
    prompts, n = load(family, "prompt.json"), load(family, "golden.json")["continuations"]
    return [(prompts[k], len(n[k]["greedy"])) for k in ("short", "long")]


def answers(family, layout, kv_type, rounds=1, file="", **more):
    """Of all rounds, which must be alike: with what the first left in the pools the second computes less."""
    with Suite(layout, os.path.join(GOLDEN, family, file), worker={**WORKER, "kv_type": kv_type}, **more) as s:
        out = [[s.tokens(p, n) for p, n in asked(family)] for _ in range(rounds)]
        assert all(o == out[0] for o in out)
        s.quiet()
        return out[0]


@pytest.mark.parametrize("layout", ["mixed", "1p1d"])
@pytest.mark.parametrize("family", FAMILIES)
def test_golden_tokens(family, layout):
    golden = load(family, "golden.json")["continuations"]
    assert answers(family, layout, "f32") == [golden[k]["greedy"] for k in ("short", "long")]


@pytest.mark.parametrize("family", IN_GGUF)
def test_folder_and_gguf(family):
    """One model in both containers: names, order of rows, norms and scales differ, the tokens do not."""
    golden = load(family, "golden.json")["continuations"]
    want = [golden[k]["greedy"] for k in ("short", "long")]
    assert answers(family, "1p1d", "f32") == want
    assert answers(family, "1p1d", "f32", file="model.gguf") == want


@pytest.mark.parametrize("family", FAMILIES)
def test_split_is_mixed(family):
    """In the type that caches are kept in; in small chunks, and the second time from the pools."""
    assert answers(family, "1p1d", "bf16", rounds=2, prefill={"max_batched_tokens": 48}) == answers(family, "mixed", "bf16")


@pytest.mark.parametrize("kv_type", ["int8", "fp8", "f16"])
def test_latents_of_all_types(kv_type):
    """One scale for a token's latent, where the type has scales."""
    assert answers("deepseek_v3", "1p1d", kv_type) == answers("deepseek_v3", "mixed", kv_type)


def test_latents_through_storage():
    """A pool for about one long prompt: what it evicts goes to storage and comes back, all of it latents."""
    prompts = [[(7 * i + j) % 300 + 3 for i in range(150)] for j in (0, 100, 200)]
    with Suite("mixed", LATENT, worker={**WORKER, "kv_type": "f32"}) as s:
        want = [s.tokens(p, 24) for p in prompts]
    prefill = {"kv_blocks": 16, "kv_eviction": "offload", "storage_read": "always", "storage_lookup_wait_ms": 60000, "storage_read_wait_ms": 60000}
    with Suite("1p1d", LATENT, worker={**WORKER, "kv_type": "f32"}, prefill=prefill) as s:
        for _ in range(20):              # what is evicted before it was written is computed again, and has another chance
            assert [s.tokens(p, 24) for p in prompts] == want
            if s.ctl("storage", "status")["hits"]:
                break
        assert s.ctl("storage", "status")["hits"] > 0
        s.quiet()


def test_latents_are_not_shared_out():
    """Ranks each keep some heads' keys and values; of one latent there is nothing to share out. The worker says so and does not start."""
    with Suite("mixed", LATENT, worker={**WORKER, "tensor_parallel": 2}, wait=False) as s:
        assert s.procs["mixed-1"].wait(30 * SLOW) != 0
        assert "tensor_parallel is 2: deepseek_v3 keeps one latent for all heads" in s.log("mixed-1")
        s.procs.pop("mixed-1")


def test_experts_of_two_ranks():
    """Each rank computes some columns of every expert: the same tokens."""
    golden = load("qwen3_moe", "golden.json")["continuations"]
    got = answers("qwen3_moe", "1p1d", "f32", decode={"tensor_parallel": 2, "threads": 2})
    assert got == [golden[k]["greedy"] for k in ("short", "long")]
