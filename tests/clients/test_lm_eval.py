"""lm-eval, unchanged: its command line, with tasks in files here, tokens from /tokenizer_info and /tokenize. The same scores whether it sends token ids or text."""
import glob
import json
import os
import subprocess
import sys

import pytest

ROWS = [{"text": "The capital of France is", "choices": ["Paris", "Oslo"], "label": 0},
        {"text": "The sun rises in the", "choices": ["west", "east"], "label": 1},
        {"text": "Two and two make", "choices": ["four", "nine"], "label": 0}]
WORD = '" {{choices[label]}}"'
TASKS = {       # output_type, doc_to_text, doc_to_target, metrics, more
    "facts": ("multiple_choice", '"{{text}}"', "label", "acc acc_norm", "doc_to_choice: choices"),
    "words": ("loglikelihood", '"{{text}}"', WORD, "acc perplexity", ""),
    "prose": ("loglikelihood_rolling", '""', '"{{text}}"', "word_perplexity byte_perplexity", ""),
    "asks": ("generate_until", '"{{text}}"', WORD, "exact_match", 'generation_kwargs: {until: ["."], max_gen_toks: 6, temperature: 0}')}
TASK = """task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {rows}}}}}
test_split: test
output_type: {kind}
doc_to_text: {text}
doc_to_target: {target}
metric_list: [{metrics}]
{more}
"""


@pytest.fixture(scope="module")
def scores(url, model, tmp_path_factory):
    """The results of all tasks. args: more of --model_args; kind: the kind of model that lm-eval takes the server for."""
    d = tmp_path_factory.mktemp("lm_eval")
    (d / "rows.jsonl").write_text("".join(json.dumps(r) + "\n" for r in ROWS))
    for name, (kind, text, target, metrics, more) in TASKS.items():
        (d / f"{name}.yaml").write_text(TASK.format(name=name, rows=d / "rows.jsonl", kind=kind, text=text, target=target, more=more,
                                                    metrics=", ".join(f"{{metric: {m}}}" for m in metrics.split())))

    def run(args, *more, kind="local-completions", path="completions", tasks=TASKS):
        out = d / f"out-{len(os.listdir(d))}"
        subprocess.run([sys.executable, "-m", "lm_eval", "run", "--model", kind, "--model_args", f"base_url={url}/{path},model={model},{args}", "--tasks", *tasks,
                        "--include_path", str(d), "--output_path", str(out), *more], check=True, timeout=400,
                       env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(d / "hf")})
        with open(glob.glob(f"{out}/**/results_*.json", recursive=True)[0]) as f:
            got = json.load(f)["results"]
        return {(t, k): v for t, r in got.items() for k, v in r.items() if k.endswith(",none") and "stderr" not in k}
    return run


def test_scores_do_not_depend_on_how_prompts_are_sent(scores):
    ids = scores("tokenizer_backend=remote,tokenized_requests=True")
    assert ids["facts", "acc,none"] == 1 and ids["asks", "exact_match,none"] is not None
    assert 1 < ids["words", "perplexity,none"] < 50 and 1 < ids["prose", "byte_perplexity,none"] < 20
    assert scores("tokenizer_backend=auto,tokenized_requests=False,num_concurrent=4") == ids
    assert scores("tokenizer_backend=remote", "--batch_size", "3") == ids


def test_chat(scores):
    got = scores("num_concurrent=2", "--apply_chat_template", kind="local-chat-completions", path="chat/completions", tasks=["asks"])
    assert 0 <= got["asks", "exact_match,none"] <= 1
