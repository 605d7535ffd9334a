"""aiperf, unchanged: a short run of synthetic chats, streamed. Its figures are the server's."""
import glob
import json
import os
import subprocess
import sys

import pytest



@pytest.mark.parametrize("kind", ["chat", "completions"])
def test_figures(server, model, counts, tokenizer, tmp_path, kind):
    before = counts()
    subprocess.run([os.path.join(os.path.dirname(sys.executable), "aiperf"), "profile", "-m", model, "--url", server, "--endpoint-type", kind, "--streaming",
                    "--concurrency", "2", "--request-count", "10", "--tokenizer", tokenizer, "--isl", "24", "--osl", "8", "--extra-inputs", "ignore_eos:true",
                    "--use-server-token-count", "--ui", "none", "--workers-max", "2", "--artifact-dir", str(tmp_path)], check=True, timeout=400)
    requests, prompt, generated = [b - a for a, b in zip(before, counts())]
    with open(glob.glob(f"{tmp_path}/**/profile_export_aiperf.json", recursive=True)[0]) as f:
        got = json.load(f)
    assert got["request_count"]["avg"] == requests == 10 and generated == 80 and not got.get("error_summary"), got
    assert got["time_to_first_token"]["avg"] > 0 and got["inter_token_latency"]["avg"] > 0
    assert got["output_sequence_length"]["avg"] == 8 and got["input_sequence_length"]["avg"] * 10 == prompt
