"""locust, unchanged: users that post completions and streamed chats for a few seconds. No failure, and as many requests as the server counted."""
import json
import os
import subprocess
import sys

USERS = '''
from locust import HttpUser, constant, task

class Asks(HttpUser):
    wait_time = constant(0)
    stop_timeout = 60

    @task
    def complete(self):
        with self.client.post("/v1/completions", json={"prompt": "Once", "max_tokens": 4, "ignore_eos": True}, catch_response=True) as r:
            if r.status_code != 200 or r.json()["usage"]["completion_tokens"] != 4:
                r.failure(r.text)

    @task
    def chat(self):
        body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "ignore_eos": True, "stream": True}
        with self.client.post("/v1/chat/completions", json=body, stream=True, catch_response=True) as r:
            lines = [line for line in r.iter_lines() if line]
            if lines[-1] != b"data: [DONE]":
                r.failure(str(lines[-1:]))
'''


def test_figures(server, counts, tmp_path):
    (tmp_path / "locustfile.py").write_text(USERS)
    before = counts()
    r = subprocess.run([os.path.join(os.path.dirname(sys.executable), "locust"), "-f", str(tmp_path / "locustfile.py"), "--headless", "-u", "4", "-r", "4", "-t", "5s",
                        "--stop-timeout", "60", "-H", server, "--json"], check=True, timeout=200, stdout=subprocess.PIPE)
    requests, _, generated = [b - a for a, b in zip(before, counts())]
    got = json.loads(r.stdout)
    assert sum(x["num_requests"] for x in got) == requests > 0 and sum(x["num_failures"] for x in got) == 0 and generated == 4 * requests
