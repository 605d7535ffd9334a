"""guidellm, unchanged: a short benchmark of a file of prompts, and one of synthetic prompts. Its figures are the server's."""
import json
import os
import subprocess
import sys

import pytest



@pytest.mark.parametrize("data", ["file", "synthetic"])
def test_figures(server, model, counts, tokenizer, tmp_path, data):
    (tmp_path / "p.jsonl").write_text("".join(json.dumps({"prompt": f"Tell me fact number {i}.", "output_tokens_count": 8}) + "\n" for i in range(20)))
    source = {"file": [str(tmp_path / "p.jsonl"), "--data-args", '{"prompt_column": "prompt"}'], "synthetic": ["prompt_tokens=24,output_tokens=8"]}[data]
    before = counts()
    subprocess.run([os.path.join(os.path.dirname(sys.executable), "guidellm"), "benchmark", "run", "--target", server, "--model", model, "--processor", tokenizer,
                    "--rate-type", "concurrent", "--rate", "2", "--max-requests", "10", "--disable-progress", "--output-path", str(tmp_path / "out.json"), "--data", *source],
                   check=True, timeout=400, env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)})
    requests, prompt, generated = [b - a for a, b in zip(before, counts())]
    with open(tmp_path / "out.json") as f:
        got = json.load(f)["benchmarks"][0]
    assert got["request_totals"] == {"successful": 10, "errored": 0, "incomplete": 0, "total": 10}
    total = [got["metrics"][f"{k}_token_count"]["successful"]["total_sum"] for k in ("prompt", "output")]
    probes = requests - 10      # it tries the server before, with two tokens in and one out
    assert (prompt, generated) == (total[0] + 2 * probes, total[1] + probes) and total[1] == 80 and probes <= 3
    assert got["metrics"]["time_to_first_token_ms"]["successful"]["mean"] > 0 and got["metrics"]["inter_token_latency_ms"]["successful"]["mean"] > 0
