"""Model families in whole suites: tiny models of tests/data/golden give the reference's tokens, however a request is run, with keys and values handed over
from worker to worker in blocks of the model's own shape. All families with PD_MODELS=all (make check-models), else a few that are unlike."""
import os

import pytest
from golden import ALL, WORKER, answers, scored, through_storage, wanted
from suite import GOLDEN, SLOW, Suite

FEW = ("qwen3_moe", "deepseek_v3")          # experts over ordinary attention; experts over one latent for all heads
FAMILIES = ALL if os.environ.get("PD_MODELS") == "all" else FEW
IN_GGUF = [f for f in (ALL if os.environ.get("PD_MODELS") == "all" else ("gemma3",)) if os.path.exists(os.path.join(GOLDEN, f, "model.gguf"))]
LATENT = os.path.join(GOLDEN, "deepseek_v3")


@pytest.mark.parametrize("layout", ["mixed", "1p1d"])
@pytest.mark.parametrize("family", FAMILIES)
def test_golden_tokens(family, layout):
    assert answers(family, layout, "f32") == wanted(family)


@pytest.mark.parametrize("family", IN_GGUF)
def test_folder_and_gguf(family):
    """One model in both containers: names, order of rows, norms and scales differ, the tokens do not."""
    assert answers(family, "1p1d", "f32") == wanted(family)
    assert answers(family, "1p1d", "f32", file="model.gguf") == wanted(family)


@pytest.mark.parametrize("family", FAMILIES)
def test_split_is_mixed(family):
    """In the type that caches are kept in; in small chunks, and the second time from the pools: the same bits."""
    split = answers(family, "1p1d", "bf16", rounds=2, ask=scored, prefill={"max_batched_tokens": 48})
    assert split == answers(family, "mixed", "bf16", ask=scored)


@pytest.mark.parametrize("kv_type", ["int8", "fp8", "f16"])
def test_latents_of_all_types(kv_type):
    """One scale for a token's latent, where the type has scales."""
    assert answers("deepseek_v3", "1p1d", kv_type) == answers("deepseek_v3", "mixed", kv_type)


def test_latents_through_storage():
    through_storage("deepseek_v3", 150, 24)


def test_latents_are_not_shared_out():
    """Ranks each keep some heads' keys and values; of one latent there is nothing to share out. The worker says so and does not start."""
    with Suite("mixed", LATENT, worker={**WORKER, "tensor_parallel": 2}, wait=False) as s:
        assert s.procs["mixed-1"].wait(30 * SLOW) != 0
        assert "tensor_parallel is 2: deepseek_v3 keeps one latent for all heads" in s.log("mixed-1")
        s.procs.pop("mixed-1")


def test_fp8_of_two_ranks():
    """A rank's rows begin inside a block of 128 x 128."""
    assert answers("qwen3-fp8", "1p1d", "f32", decode={"tensor_parallel": 2, "threads": 2}) == wanted("qwen3-fp8")


def test_experts_of_two_ranks():
    """Each rank computes some columns of every expert: the same tokens."""
    assert answers("qwen3_moe", "1p1d", "f32", decode={"tensor_parallel": 2, "threads": 2}) == wanted("qwen3_moe")
