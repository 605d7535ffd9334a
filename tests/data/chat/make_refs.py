"""Writes renderings.jsonl: what transformers' apply_chat_template renders for every template and conversation here.

usage: make_refs.py    (needs transformers 5.23 and jinja2 3.1.6 from PyPI; tests only read the file)
"""
import json
import os
from datetime import datetime

from tokenizers import Tokenizer
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils as reference

HERE = os.path.dirname(os.path.abspath(__file__))


class StoppedClock(datetime):
    @classmethod
    def now(cls, tz=None):
        return datetime(2024, 7, 26, 12, 34, 56)


def load(name):
    with open(os.path.join(HERE, name), encoding="utf-8") as f:
        return json.load(f)


def outcome(call):
    try:
        return {"text": call()}
    except Exception as e:
        return {"error": f"{type(e).__name__}: {str(e).split('Final message to continue')[0]}"}


def main():
    reference.datetime = StoppedClock
    with open(os.path.join(HERE, "renderings.jsonl"), "w", encoding="utf-8", newline="\n") as out:
        for name, tokens in load("templates.json").items():
            with open(os.path.join(HERE, "templates", name + ".jinja"), encoding="utf-8", newline="") as f:
                tokenizer = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(BPE()), chat_template=f.read(), **tokens)
            for c in load("conversations.json"):
                for prompt in [False] if c.get("continue_final_message") else [False, True]:
                    options = {"tools": c.get("tools"), "add_generation_prompt": prompt, "continue_final_message": c.get("continue_final_message", False), **c.get("variables", {})}
                    whole = outcome(lambda: tokenizer.apply_chat_template(c["messages"], tokenize=False, **options))
                    alone = outcome(lambda: reference.render_jinja_template([c["messages"]], chat_template=tokenizer.chat_template, **tokenizer.special_tokens_map, **options)[0][0])
                    row = {"template": name, "conversation": c["name"], "add_generation_prompt": prompt, **whole}
                    if alone != whole:
                        row["with_nulls"] = alone
                    out.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
