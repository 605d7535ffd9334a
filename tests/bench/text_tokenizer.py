"""text_tokenizer.py - encoding speed on one core, against Hugging Face `tokenizers` and, for the same byte-level vocabulary, `tiktoken`.

The same texts for all: cases of tests/data/tokenizer/corpus.jsonl joined to 1 MB. Processor time, the best of several turns, one program after the other in each
turn. Whatever a peer keeps between calls (both keep words they have seen) it may keep; ours keeps nothing.
"""
import json
import os
import resource
import struct
import subprocess

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
DATA = os.path.join(ROOT, "tests", "data", "tokenizer")
OURS = os.path.join(ROOT, "build", "bench", "bench_tokenizer")
SIZE = 1 << 20
SPANS = {"prose": (1272, 1822), "code": (1822, 2419), "Chinese": (6687, 6765), "Russian": (7185, 7258)}
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def texts():
    cases = [json.loads(line) for line in open(os.path.join(DATA, "corpus.jsonl"), encoding="utf-8", newline="\n")]
    out = {}
    for name, (first, end) in SPANS.items():
        text, i, size = [], first, 0
        while size < SIZE:
            text.append(cases[i] + "\n")
            size += len(text[-1].encode())
            i = i + 1 if i + 1 < end else first
        out[name] = "".join(text)
    return out


def cpu():
    r = resource.getrusage(resource.RUSAGE_SELF)
    return r.ru_utime + r.ru_stime


def timed(encode, text):
    begin = cpu()
    n = len(encode(text))
    return cpu() - begin, n


def metadata(path):
    """tokens, types and merges of a GGUF file"""
    with open(path, "rb") as f:
        data = f.read(64 << 20)
    at = 24

    def number(fmt):
        nonlocal at
        v = struct.unpack_from("<" + fmt, data, at)[0]
        at += struct.calcsize(fmt)
        return v

    def string():
        nonlocal at
        n = number("Q")
        at += n
        return data[at - n:at].decode("utf-8", "replace")

    def value(kind):
        if kind == 8:
            return string()
        if kind == 9:
            inner, n = number("I"), number("Q")
            return [value(inner) for _ in range(n)]
        return number({0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}[kind])

    keys = struct.unpack_from("<Q", data, 16)[0]
    return {string(): value(number("I")) for _ in range(keys)}


def peers(model):
    """name -> function from text to ids, with the model's own vocabulary; the expression is SmolLM2's: digits one by one, then GPT-2's"""
    meta, out = metadata(model), {}
    tokens, types, merges = (meta["tokenizer.ggml." + k] for k in ("tokens", "token_type", "merges"))
    specials = [t for t, kind in zip(tokens, types) if kind == 3]
    try:
        from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
        t = Tokenizer(models.BPE({p: i for i, p in enumerate(tokens)}, [tuple(m.split(" ")) for m in merges]))
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
        t.add_special_tokens([AddedToken(s, special=True, normalized=False) for s in specials])
        out["tokenizers"] = lambda text: t.encode(text, add_special_tokens=False).ids
    except ImportError:
        print("tokenizers: not installed (pip install tokenizers)")
    try:
        import tiktoken
        printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
        rest = [b for b in range(256) if b not in printable]
        byte_of = {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(rest)}
        # tiktoken merges by the rank of the result: ids in the order of the merges that make them, single bytes first
        order = [t for t in tokens if len(t) == 1 and t in byte_of] + ["".join(m.split(" ")) for m in merges]
        ranks = {}
        for piece in order:
            ranks.setdefault(bytes(byte_of[c] for c in piece), len(ranks))
        for b in range(256):
            ranks.setdefault(bytes([b]), len(ranks))
        first = len(ranks)
        enc = tiktoken.Encoding("smollm", pat_str=r"\p{N}|" + GPT2.replace(r"| ?\p{N}+", ""), mergeable_ranks=ranks,
                                special_tokens={s: first + i for i, s in enumerate(specials)})
        out["tiktoken"] = lambda text: enc.encode(text, allowed_special="all")
    except ImportError:
        print("tiktoken: not installed (pip install tiktoken)")
    return out


def ours(model, path):
    line = subprocess.run([OURS, "--file", path, model], check=True, capture_output=True, text=True).stdout.split()
    return float(line[0]), int(line[1])      # seconds of processor time, tokens


def run(model, turns, say):
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    others = peers(model)
    print(f"{'MB/s of one core':<18}" + "".join(f"{n:>12}" for n in ["pdserve", *others]) + "   tokens")
    for name, text in texts().items():
        path = os.path.join(ROOT, "build", f"bench-text-{name}.txt")
        data = text.encode()
        with open(path, "wb") as f:
            f.write(data)
        best, count = {}, {}
        for _ in range(turns):
            for who, encode in [("pdserve", None), *others.items()]:
                took, count[who] = ours(model, path) if not encode else timed(encode, text)
                best[who] = min(best.get(who, took), took)
        os.unlink(path)
        print(f"{name:<18}" + "".join(f"{len(data) / 1e6 / s:12.1f}" for s in best.values()) + f"   {' '.join(map(str, count.values()))}")
        for who, s in best.items():
            say(f"tokenizer_{name.lower()}_{who}_mb_s", len(data) / 1e6 / s)
