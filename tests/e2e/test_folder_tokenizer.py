"""A Hugging Face folder as the model: router and workers from one folder, text in and out by its tokenizer.json. Real daemons, the tiny golden model."""
import json
import os
import shutil
import subprocess

import pytest
from suite import BIN, ROOT, SLOW, Suite

PIECES = ["▁", "▁▁", "a", "b", "c", "d", "e", "h", "l", "o", "r", "w", "▁h", "el", "lo", "▁hel", "▁hello", "▁w", "or", "ld", "▁wor", "▁world", "漢", "字", "!"]
MERGES = ["▁ h", "e l", "l o", "▁h el", "▁hel lo", "▁ w", "o r", "l d", "▁w or", "▁wor ld", "▁ ▁"]
PLAIN = ("{{ bos_token }}{% for d in documents or [] %}[{{ d.text }}]{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
         "{% if add_generation_prompt %}<{{ name | default('bot') }}>{% endif %}")
TOOL_USE = ("{{ tools | tojson }}{% for m in messages %}{{ m.role }}: {{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.arguments.items() | list }}"
            "</tool_call>{% endfor %}|{% endfor %}")
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
    (path / "chat_template.jinja").write_text(PLAIN, encoding="utf-8")
    (path / "additional_chat_templates").mkdir()
    (path / "additional_chat_templates" / "tool_use.jinja").write_text(TOOL_USE, encoding="utf-8")
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


# --- pdctl on the same folder, without the daemons

def pdctl(command, model, *args, stdin=""):
    r = subprocess.run([os.path.join(BIN, "pdctl"), command, model, *args], input=stdin.encode(), capture_output=True, timeout=60 * SLOW)
    return r.returncode, r.stdout.decode(), r.stderr.decode()


HELLO = [{"role": "system", "content": "held"}, {"role": "user", "content": "hello é 漢 <s>world"}]
CALLED = [*HELLO, {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}, {"role": "tool", "content": "2"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@pytest.mark.parametrize("body", [
    {"messages": HELLO},
    {"messages": HELLO, "add_generation_prompt": False, "add_special_tokens": True},
    {"messages": HELLO, "chat_template_kwargs": {"name": "world"}, "documents": [{"text": "hello"}]},
    {"messages": [*HELLO, {"role": "assistant", "content": " hello wor"}], "continue_final_message": True},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}]},
    {"messages": CALLED, "tools": TOOLS},
    {"messages": HELLO, "tools": TOOLS, "tool_choice": "none"},
])
def test_pdctl_renders_what_the_router_does(hf, folder, body):
    status, want = hf.post("/tokenize", {**body, "return_token_strs": True})
    assert status == 200, want
    code, out, err = pdctl("render", folder, "--json", stdin=json.dumps(body))
    assert (code, err) == (0, ""), err
    got = json.loads(out)
    assert (got["tokens"], got["count"]) == (want["tokens"], want["count"])
    code, out, err = pdctl("render", folder, "-", stdin=json.dumps(body))
    assert (code, out) == (0, got["prompt"])
    assert out.startswith("[{" if body.get("tools") and "tool_choice" not in body else "<s>")   # which of the two templates it was
    set_special = "add_special_tokens=" + json.dumps(body.get("add_special_tokens", False))
    assert json.loads(pdctl("tokenize", folder, "--json", "-s", set_special, stdin=out)[1]) == {k: want[k] for k in ("count", "tokens", "token_strs")}


@pytest.mark.parametrize("body", [
    {"messages": []}, {"messages": [5]}, {"messages": HELLO, "tools": 5}, {"messages": HELLO, "add_generation_prompt": 1}, {"messages": HELLO, "chat_template_kwargs": []},
    {"messages": HELLO, "continue_final_message": True, "add_generation_prompt": True}, {"messages": [{"role": "user", "content": 5}]},
    {"messages": HELLO, "tools": TOOLS, "tool_choice": "any"},
])
def test_pdctl_refuses_what_the_router_does(hf, folder, body):
    status, want = hf.post("/tokenize", body)
    assert status == 400, want
    assert pdctl("render", folder, stdin=json.dumps(body)) == (1, "", f"pdctl: {want['error']['message']}\n")


def test_pdctl_tokenize_and_back(hf, folder):
    for text in ("hello world", " hello", "é!", "漢<s>字"):
        status, want = hf.post("/tokenize", {"prompt": text, "return_token_strs": True})
        code, out, err = pdctl("tokenize", folder, text, "--json")
        assert (code, json.loads(out)) == (0, {k: want[k] for k in ("count", "tokens", "token_strs")}), err
        status, back = hf.post("/detokenize", {"tokens": want["tokens"]})
        assert pdctl("detokenize", folder, *map(str, want["tokens"])) == (0, back["prompt"], "")
        assert json.loads(pdctl("detokenize", folder, "--json", stdin=str(want["tokens"]))[1]) == back
    assert pdctl("tokenize", folder, "é\n!", "-s", "add_special_tokens=false")[1].split("\n") == [
        '     259  " "', '     198  "\\xc3"', '     172  "\\xa9"', '      13  "\\n"', '     283  "!"', ""]


def test_pdctl_renders_the_committed_rows(folder):
    """--template instead of the model's own: what transformers renders with SmolLM2's."""
    data = os.path.join(ROOT, "tests", "data", "chat")
    with open(os.path.join(data, "smollm2.jsonl"), encoding="utf-8") as f:
        rows = [json.loads(line) for line in f]
    # a template that knows no tools gets what tools gave as text of the user (test_toolcalls.py)
    rows = [r for r in rows if "text" in r and not any(m.get("role") == "tool" for m in r["messages"])]
    assert len(rows) > 20
    for row in rows[::6]:
        body = {k: row[k] for k in ("messages", "add_generation_prompt", "continue_final_message") if k in row}
        code, out, err = pdctl("render", folder, "--template", os.path.join(data, "smollm2.jinja"), stdin=json.dumps(body))
        assert (code, out) == (0, row["text"]), err


def test_pdctl_says_what_is_wrong(folder, tmp_path):
    def refused(code, *words, args=(), stdin=""):
        got, out, err = pdctl(*args, stdin=stdin)
        assert (got, out, err.count("\n")) == (code, "", 1) and all(w in err for w in words), err

    (tmp_path / "loop.jinja").write_text("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", encoding="utf-8")
    (tmp_path / "wrong.jinja").write_text("\n{% if %}", encoding="utf-8")
    (tmp_path / "bad.gguf").write_bytes(b"GGUF\3\0\0\0" + b"\xff" * 16)
    hello = json.dumps({"messages": HELLO})
    refused(2, "MODEL [FILE|-]", args=("render", "--json"))
    refused(2, "MODEL [TEXT|-]", args=("tokenize", folder, "a", "b"))
    refused(1, "/nowhere", "No such file", args=("tokenize", "/nowhere", "a"))
    refused(1, "bad.gguf", args=("tokenize", str(tmp_path / "bad.gguf"), "a"))
    refused(1, "/nowhere", "No such file", args=("render", folder, "/nowhere"))
    refused(1, "not valid JSON", "line 1", args=("render", folder), stdin="{")
    refused(1, "must be a JSON object", args=("render", folder), stdin="[]")
    refused(1, "no tokenizer", args=("tokenize", str(tmp_path), "a"))
    refused(1, "no chat template", "--template", args=("render", str(tmp_path)), stdin=hello)
    refused(1, "wrong.jinja: line 2", args=("render", folder, "--template", str(tmp_path / "wrong.jinja")), stdin=hello)
    refused(1, "line 1", "needs more than", args=("render", folder, "--template", str(tmp_path / "loop.jinja")), stdin=hello)
    refused(1, "from 0 to 283", "284", args=("detokenize", folder, "284"))
    refused(1, "-1", args=("detokenize", folder, "--", "-1"))
    refused(1, "5x", args=("detokenize", folder, "1,5x"))


THINK, CLOSE = FIRST + len(PIECES), FIRST + len(PIECES) + 1
SWITCHED = PLAIN + "{% if add_generation_prompt and enable_thinking is false %}<think></think>{% endif %}"


def test_thoughts_before_a_bound_answer(folder, tmp_path):
    """As Qwen 3 has it: what opens thoughts is one token, and the template leaves them to the model unless the request wants none."""
    path = shutil.copytree(folder, tmp_path / "thinker")
    own = tokenizer()
    for i, text in ((THINK, "<think>"), (CLOSE, "</think>")):
        own["added_tokens"].append({**own["added_tokens"][0], "id": i, "content": text, "special": False})
    (path / "tokenizer.json").write_text(json.dumps(own, ensure_ascii=False), encoding="utf-8")
    (path / "chat_template.jinja").write_text(SWITCHED, encoding="utf-8")
    body = {"messages": [{"role": "user", "content": "hello"}], "guided_choice": ["hello"], "max_tokens": 24, "temperature": 0,
            "separate_reasoning": False}
    with Suite("1p1d", str(path), router={"reasoning_parser": "think"}) as s:
        for think, more, want in ((50, {}, "<think></think>hello"), (-100, {}, "hello"),
                                  (50, {"chat_template_kwargs": {"enable_thinking": False}}, "hello")):
            status, r = s.post("/v1/chat/completions", {**body, **more, "logit_bias": {str(THINK): think, str(CLOSE): 100}})
            assert status == 200, r
            assert (r["choices"][0]["message"]["content"], r["choices"][0]["finish_reason"]) == (want, "stop")
