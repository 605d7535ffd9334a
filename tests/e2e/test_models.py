"""Model families in whole suites: tiny models of tests/data/golden give the reference's tokens, however a request is run, with keys and values handed over
from worker to worker in blocks of the model's own shape. All families with PD_MODELS=all (make check-models), else a few that are unlike."""
import os

import pytest
from golden import ALL, answers, scored, through_storage, wanted
from suite import GOLDEN

FEW = ("qwen3_moe", "deepseek_v3")          # experts over ordinary attention; experts over one latent for all heads
FAMILIES = ALL if os.environ.get("PD_MODELS") == "all" else FEW
IN_GGUF = [f for f in (ALL if os.environ.get("PD_MODELS") == "all" else ("gemma3",)) if os.path.exists(os.path.join(GOLDEN, f, "model.gguf"))]


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


@pytest.mark.parametrize("prefill, decode", [(4, 1), (1, 2), (2, 4)])
def test_latents_of_ranks(prefill, decode):
    """Each rank has the whole latent and some of the heads that read it: the same tokens, handed over between any two numbers of ranks."""
    more = {"prefill": {"tensor_parallel": prefill, "max_batched_tokens": 48}, "decode": {"tensor_parallel": decode}}
    assert answers("deepseek_v3", "1p1d", "f32", rounds=2, **more) == wanted("deepseek_v3")


def test_heads_of_several_ranks():
    """Two KV heads, each on two of four ranks, and one on all of three."""
    assert answers("qwen3_moe", "1p1d", "f32", prefill={"tensor_parallel": 4}, decode={"tensor_parallel": 2}) == wanted("qwen3_moe")
    assert answers("gemma3", "1p1d", "f32", decode={"tensor_parallel": 3}) == wanted("gemma3")


def test_fp8_of_two_ranks():
    """A rank's rows begin inside a block of 128 x 128."""
    assert answers("qwen3-fp8", "1p1d", "f32", decode={"tensor_parallel": 2, "threads": 2}) == wanted("qwen3-fp8")


def test_experts_of_two_ranks():
    """Each rank computes some columns of every expert: the same tokens."""
    assert answers("qwen3_moe", "1p1d", "f32", decode={"tensor_parallel": 2, "threads": 2}) == wanted("qwen3_moe")


@pytest.mark.parametrize("family, prefill, decode", [
    ("deepseek_v3", {"tensor_parallel": 4, "expert_parallel": True, "max_batched_tokens": 48}, {"tensor_parallel": 2, "expert_parallel": True}),
    ("gpt_oss", {"tensor_parallel": 2, "pipeline_parallel": 2, "expert_parallel": True}, {"tensor_parallel": 2}),
])
def test_whole_experts(family, prefill, decode):
    """Each rank has some of the experts: the same tokens, also beside a worker whose ranks have some columns of each."""
    assert answers(family, "1p1d", "f32", rounds=2, prefill=prefill, decode=decode) == wanted(family)
