"""A Hugging Face folder as the model: router and workers from one folder, text in and out by its tokenizer.json. Real daemons, the tiny golden model."""
import json
import os
import shutil

import pytest
from suite import Suite

PIECES = ["▁", "▁▁", "a", "b", "c", "d", "e", "h", "l", "o", "r", "w", "▁h", "el", "lo", "▁hel", "▁hello", "▁w", "or", "ld", "▁wor", "▁world", "漢", "字", "!"]
MERGES = ["▁ h", "e l", "l o", "▁h el", "▁hel lo", "▁ w", "o r", "l d", "▁w or", "▁wor ld", "▁ ▁"]
BOS, EOS, FIRST = 1, 2, 3 + 256          # 0 is <unk>, then the bytes


def tokenizer():
    vocab = {t: i for i, t in enumerate(["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *PIECES])}
    added = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} for i, t in enumerate(["<unk>", "<s>", "</s>"])]
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    return {
        "version": "1.0", "added_tokens": added, "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]}, "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
                                                     {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "unk_token": "<unk>", "fuse_unk": True, "byte_fallback": True, "vocab": vocab, "merges": MERGES}}


def ids(*pieces):
    return [FIRST + PIECES.index(p) if p in PIECES else 3 + p for p in pieces]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, tiny_model):
    path = tmp_path_factory.mktemp("hf") / "tiny-hf"
    path.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(tiny_model, name), path)
    (path / "tokenizer.json").write_text(json.dumps(tokenizer(), ensure_ascii=False), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": True}), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def hf(folder):
    with Suite("1p1d", folder) as s:
        yield s


def test_tokenize_and_back(hf):
    want = {"hello world": ids("▁hello", "▁world"), " hello": ids("▁", "▁hello"), "é!": ids("▁", 0xC3, 0xA9, "!"), "漢字": ids("▁", "漢", "字"), "": []}
    for text, tokens in want.items():
        status, r = hf.post("/tokenize", {"prompt": text, "return_token_strs": True})
        assert (status, r["tokens"], r["count"]) == (200, [BOS, *tokens], len(tokens) + 1), text
        status, r = hf.post("/detokenize", {"tokens": tokens})
        assert (status, r["prompt"]) == (200, text)
    status, r = hf.post("/tokenize", {"prompt": "hello world", "return_token_strs": True, "add_special_tokens": False})
    assert r["token_strs"] == [" hello", " world"]
    status, r = hf.post("/tokenize", {"prompt": "hello<s>hello", "add_special_tokens": False})
    assert r["tokens"] == ids("▁hello") + [BOS] + ids("▁hello")


def text_of(tokens):
    """What the tokens add to a text that goes on."""
    names = {v: k for k, v in tokenizer()["model"]["vocab"].items()}
    raw = b"".join(bytes([t - 3]) if 3 <= t < FIRST else b"" if t < 3 or t not in names else names[t].replace("▁", " ").encode() for t in tokens)
    return raw.decode("utf-8", "replace")


def test_text_in_text_out(hf):
    """The answer goes on from the prompt: its first space is its own. Streamed and at once it is the same, and what its tokens say; ids that the tokenizer lacks are no text."""
    body = {"prompt": "hello world", "max_tokens": 24, "temperature": 1.0, "seed": 5, "ignore_eos": True, "return_token_ids": True}
    status, whole = hf.post("/v1/completions", body)
    assert status == 200, whole
    assert whole["usage"]["prompt_tokens"] == 3 and whole["model"] == "tiny-hf"
    choice = whole["choices"][0]
    assert choice["text"] == text_of(choice["token_ids"])
    parts = [c["choices"][0]["text"] for c in hf.stream("/v1/completions", {**body, "stream": True}) if c.get("choices")]
    assert "".join(parts) == choice["text"]
    status, by_ids = hf.post("/v1/completions", {**body, "prompt": [BOS, *ids("▁hello", "▁world")]})
    assert by_ids["choices"][0]["text"] == choice["text"]


def test_first_space_is_the_answers(hf):
    """What an answer begins with is not the beginning of a text: its space stays."""
    status, r = hf.post("/v1/completions", {"prompt": "hello", "max_tokens": 2, "temperature": 0, "ignore_eos": True, "logit_bias": {str(ids("▁world")[0]): 100}})
    assert (status, r["choices"][0]["text"]) == (200, " world world")
