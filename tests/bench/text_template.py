"""text_template.py - renderings of a conversation of 20 messages per second of one core, against Jinja2 in the environment of transformers' chat templates.

Templates: those of tests/data/chat, and of ../shared/data/chat (or PD_CHAT_REFS) where it is there. Processor time, the best of several turns, one program after the
other in each turn; Jinja2's template is compiled beforehand, as ours is parsed.
"""
import json
import os
import resource
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OURS = os.path.join(ROOT, "build", "bench", "bench_template")
N = 200
WANTED = ["own-mistral-v3", "own-tools", "Qwen-Qwen3-0.6B", "meta-llama-Llama-3.1-8B-Instruct", "deepseek-ai-DeepSeek-V3.1", "openai-gpt-oss-120b"]
TOOL = {"type": "function", "function": {"name": "get_weather", "description": "Weather at a place.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Name of the city"}, "days": {"type": "integer"}}, "required": ["city"]}}}


def conversation():
    text = "A sentence of some length, as people write it. "
    messages = [{"role": "user" if i % 2 == 0 else "assistant", "content": text * (4 + i % 5)} for i in range(19)]
    return {"messages": [{"role": "system", "content": "You are brief."}] + messages, "tools": [TOOL]}


def environment():
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    def refuse(text):
        raise jinja2.exceptions.TemplateError(text)

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    env.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
    env.globals.update(raise_exception=refuse, strftime_now=lambda f: "26 Jul 2024")
    return env


def templates():
    for folder in (os.path.join(ROOT, "tests", "data", "chat"), os.environ.get("PD_CHAT_REFS") or os.path.join(ROOT, "..", "shared", "data", "chat")):
        try:
            tokens = json.load(open(os.path.join(folder, "templates.json"), encoding="utf-8"))
        except OSError:
            continue
        for name in WANTED:
            if name in tokens and (name.startswith("own-")) == folder.startswith(os.path.join(ROOT, "tests")):
                yield name, os.path.join(folder, "templates", name + ".jinja"), tokens[name]


def cpu():
    r = resource.getrusage(resource.RUSAGE_SELF)
    return r.ru_utime + r.ru_stime


def run(model, turns, say):
    try:
        env = environment()
    except ImportError:
        print("left out: no package jinja2")
        return
    print(f"{'template':38} {'ours/s':>10} {'Jinja2/s':>10} {'ratio':>7}")
    for name, path, tokens in templates():
        c = conversation()
        compiled = env.from_string(open(path, encoding="utf-8", newline="").read())
        best, peer = 1e9, 1e9
        with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
            json.dump({**c, "special_tokens": tokens}, f)
            f.flush()
            for _ in range(turns):
                seconds, size = subprocess.run([OURS, path, f.name, str(N)], check=True, capture_output=True, text=True).stdout.split()
                best = min(best, float(seconds))
                begin = cpu()
                for _ in range(N):
                    text = compiled.render(messages=c["messages"], tools=c["tools"], documents=None, add_generation_prompt=True, **tokens)
                peer = min(peer, (cpu() - begin) / N)
        if "26 Jul" not in text:   # (the clocks differ)
            assert len(text.encode()) == int(size), (name, len(text.encode()), size)
        print(f"{name:38} {1 / best:10.0f} {1 / peer:10.0f} {peer / best:7.1f}")
        say(f"template_{name}_per_s", 1 / best)
        say(f"template_{name}_x_jinja2", peer / best)
