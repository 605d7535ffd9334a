"""The examples under etc/kubernetes and etc/slurm, and the systemd units: what they contain is what the daemons take."""
import glob
import json
import os
import re
import signal
import stat
import subprocess
import urllib.request

import pytest
from suite import BIN, ENV, ROOT, SLOW, TINY_MODEL, free_port, wait_for

yaml = pytest.importorskip("yaml")

KUBERNETES = os.path.join(ROOT, "etc", "kubernetes*")
SBATCH = os.path.join(ROOT, "etc", "slurm", "pdserve.sbatch")
ENDS_S = 9      # a daemon ends at most this long after its stop_timeout_ms (common/svc/svc.c: LAST_WORDS_S, END_GRACE_S, STOP_S)


def documents():
    for path in sorted(glob.glob(os.path.join(KUBERNETES, "*.yaml"))):
        with open(path) as f:
            yield from yaml.safe_load_all(f)


DOCS = list(documents())
SETS = [d for d in DOCS if d["kind"] == "StatefulSet"]
SERVICES = {d["metadata"]["name"]: d["spec"] for d in DOCS if d["kind"] == "Service"}
CONFIGS = {d["metadata"]["name"]: d["data"] for d in DOCS if d["kind"] == "ConfigMap"}
TEXTS = CONFIGS["pdserve-config"]


def daemons(s):
    return [c for c in s["spec"]["template"]["spec"]["containers"] if c["command"][0].startswith("pd")]


def config_of(s):
    return next(v["configMap"]["name"] for v in s["spec"]["template"]["spec"]["volumes"] if v["name"] == "config")


def test_every_text_is_a_daemons():
    assert {d["kind"] for d in DOCS} == {"ConfigMap", "Service", "StatefulSet"} and not any("namespace" in d["metadata"] for d in DOCS)
    used = {(config_of(s), os.path.basename(c["command"][2])) for s in SETS for c in daemons(s)}
    assert used == {(name, text) for name, texts in CONFIGS.items() for text in texts}


@pytest.mark.parametrize("s", SETS, ids=lambda s: s["metadata"]["name"])
def test_kubernetes(s, tmp_path):
    name, pod = s["metadata"]["name"], s["spec"]["template"]["spec"]
    values, texts = {"POD_NAME": name + "-0", "POD_IP": "10.1.2.3"}, CONFIGS[config_of(s)]
    service = SERVICES[s["spec"]["serviceName"]]
    assert service["clusterIP"] == "None" and service["selector"] == s["spec"]["selector"]["matchLabels"] == s["spec"]["template"]["metadata"]["labels"]
    volumes, ports, stop_s = {v["name"] for v in pod["volumes"]}, {}, []
    for c in pod["initContainers"] + pod["containers"]:
        assert {m["name"] for m in c["volumeMounts"]} <= volumes
        text = json.dumps([c["command"], c.get("readinessProbe"), c.get("lifecycle")])
        assert set(re.findall(r"\$\(?(POD_\w+)", text)) <= {e["name"] for e in c.get("env", [])}, c["name"]
    assert pod.get("shareProcessNamespace") or len(pod["containers"]) == 1
    for c in daemons(s):
        program, flag, path, *options = [re.sub(r"\$\((\w+)\)", lambda m: values[m[1]], a) for a in c["command"]]
        assert flag == "-c" and os.path.dirname(path) == "/etc/pdserve"
        conf = tmp_path / os.path.basename(path)
        conf.write_text(texts[conf.name])
        # what another host has: the model, and the secret key
        here = ["-o", f"keys={tmp_path}/keys"] + (["-o", "model="] if "model" in texts[conf.name] else [])
        own = next((o.split("=")[1] for o in options if o.startswith("name=")), conf.name.split(".")[0])
        subprocess.run([os.path.join(BIN, "pdctl"), "-k", f"{tmp_path}/keys", "keygen", own, {"pdrouterd": "router", "pdrank": "rank", "pdmessagerd": "messager", "pdstoraged": "storage"}.get(program, "worker")],
                       capture_output=True, timeout=20 * SLOW)
        got = subprocess.run([os.path.join(BIN, program), "-t", "-c", conf, *options, *here], capture_output=True, text=True, timeout=20 * SLOW)
        assert (got.returncode, got.stdout) == (0, "OK\n"), got.stderr
        stop_s.append(int(re.search(r"stop_timeout_ms = (\d+);", texts[conf.name])[1]) / 1000)
        for listen in [o for o in options if o.startswith("listen=")] + re.findall(r"stage_port = (\d+);", texts[conf.name]):
            ports[int(listen.rsplit(":", 1)[-1])] = c
        if "shareProcessNamespace" in pod:
            messager = f"{values['POD_NAME']}-messager"
            assert ("messager=" + messager if c["name"] == "worker" else "name=" + messager) in options or c["name"] == "storage"
    for number, c in ports.items():
        assert number in [p["containerPort"] for p in c["ports"]] and number in [p["port"] for p in service["ports"]]
    # those that end after the worker have their time after it
    assert pod["terminationGracePeriodSeconds"] >= max(stop_s) + ENDS_S + (min(stop_s) + ENDS_S if len(stop_s) > 1 else 0)


@pytest.mark.parametrize("option", ["name=a b", "metrics_listen=foo", "metrics_listen=127.0.0.1:70000", "advertise=10.0.0.1:7000", "listen=10.0.0.1:7000",
                                    "control_group=nobody-has-this-one", "metrics_listen=1.2.3.4.5:80", "log_level=loud", "dns_servers=nowhere"])
@pytest.mark.parametrize("program", ["pdrouterd", "pddecoded", "pdrank", "pdmessagerd", "pdstoraged"])
def test_a_check_finds_what_a_start_would(program, option):
    got = subprocess.run([os.path.join(BIN, program), "-t", "-o", option], capture_output=True, text=True, timeout=20 * SLOW)
    assert got.returncode == 1 and got.stdout == "" and option.split("=")[0] in got.stderr and option.split("=")[1] in got.stderr, got


# (text of x, of which settings name it; what is said of it)
@pytest.mark.parametrize("program,text,options,part", [
    ("pdrouterd", "no key\n", ["api_keys_file=x"], "x:1: "),
    ("pdrouterd", "no certificate\n", ["http_tls_cert=x", "http_tls_key=x"], "http_tls_cert"),
    ("pdrouterd", "this is no model, but a text\n", ["model=x"], "not a GGUF file"),
    ("pdrouterd", "{% if %}", ["chat_template=x"], "x"),
    ("pddecoded", "this is no model, but a text\n", ["model=x"], "not a GGUF file"),
    ("pdprefilld", "GGUF", ["model=x"], "x"),
    ("pdmessagerd", "no key\n", ["name=x", "keys=.", "listen=tcp://127.0.0.1:7000"], "x.secret"),
    ("pddecoded", "", ["block_tokens=9"], "block_tokens 9"),
    ("pdstoraged", "", ["memory_mb=0"], "no tier is configured"),
    ("pdrouterd", "", ["http_listen=1.2.3.4.5:80"], "http_listen"),
    ("pdrouterd", "", ["http_listen=127.0.0.1:http"], "http_listen"),
    ("pdrouterd", "", ["served_model_name=gpt-4o", "model_aliases=gpt-4o"], 'model_aliases: "gpt-4o" is a name of the model already'),
    ("pdrouterd", "", ["http_listen=127.0.0.1:70000"], "http_listen"),
])
def test_a_check_reads_what_a_start_would(program, text, options, part, tmp_path):
    """Also a file that is not there."""
    def check(*more):
        return subprocess.run([os.path.join(BIN, program), "-t", *[x for o in more for x in ("-o", o)]], capture_output=True, text=True, timeout=20 * SLOW, cwd=tmp_path)
    files = [o for o in options if o.endswith("=x") and not o.startswith("name=")]
    if files:
        got = check(*options)
        assert got.returncode == 1 and got.stdout == "" and f"{files[0].split('=')[0]}: x: No such file or directory" in got.stderr, got
    for name in ("x", "x.secret"):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o600)
    got = check(*options)
    assert got.returncode == 1 and got.stdout == "" and part in got.stderr, got
    start = subprocess.run([os.path.join(BIN, program), *[x for o in [f"rundir={tmp_path}/run", *options] for x in ("-o", o)]], capture_output=True, text=True, timeout=60 * SLOW, cwd=tmp_path)
    assert start.returncode == 1 and got.stderr.split(": ", 1)[1].strip() in start.stderr, start


@pytest.mark.parametrize("program,option,part", [
    ("pddecoded", "routers=foo", 'routers: "foo": allowed is NAME@tcp://HOST:PORT, srv://_SERVICE._tcp.DOMAIN, or ipc:///PATH'),
    ("pddecoded", "routers=r@tcp://1.2.3.4.5:7000", "routers: "),
    ("pddecoded", "routers=srv://a:7", "routers: "),
    ("pddecoded", "remote_stages=1", "remote_stages is 1 of 1 (pipeline_parallel)"),
    ("pdrank", "worker=tcp://10.0.0.1:7000", "worker = \"tcp://10.0.0.1:7000\": allowed are NAME@tcp://HOST:PORT"),
    ("pdstoraged", "redis=host:70000", "redis address"),
    ("pdstoraged", "redis_password_file=/nope", "redis_password_file: /nope: No such file"),
])
def test_a_check_reads_what_is_used_later(program, option, part):
    got = subprocess.run([os.path.join(BIN, program), "-t", "-o", option], capture_output=True, text=True, timeout=20 * SLOW)
    assert got.returncode == 1 and got.stdout == "" and part in got.stderr, got
    for right in ("routers=ipc:///run/pdserve/r.ipc", "routers=r@tcp://[::1]:7000", "routers=srv://_pdserve._tcp.example.org") if program == "pddecoded" else ():
        assert subprocess.run([os.path.join(BIN, program), "-t", "-o", right], capture_output=True, text=True, timeout=20 * SLOW).stdout == "OK\n"


def test_a_check_reads_good_files(tmp_path, tiny_model):
    for program in ("pdrouterd", "pddecoded", "pdprefilld"):
        got = subprocess.run([os.path.join(BIN, program), "-t", "-o", f"model={tiny_model}"], capture_output=True, text=True, timeout=20 * SLOW)
        assert (got.returncode, got.stdout, got.stderr) == (0, "OK\n", ""), got


@pytest.mark.parametrize("unit", sorted(glob.glob(os.path.join(ROOT, "systemd", "*.service"))), ids=os.path.basename)
def test_units_allow_what_the_daemons_do(unit):
    """ZeroMQ asks the kernel for the host's addresses, by netlink, when it listens on one of them; a unit that forbids it ends the daemon at once. RDMA pins memory and opens devices."""
    text = open(unit).read()
    families = re.search(r"^RestrictAddressFamilies=(.*)$", text, re.M)[1].split()
    assert {"AF_UNIX", "AF_INET", "AF_INET6", "AF_NETLINK"} == set(families)
    # a reload that fails fails, and a start that fails is tried again for ever
    name = (re.search(r"name=(\S+)", text) or [0, os.path.basename(unit)[2:-len("d.service")]])[1]
    assert f"\nExecReload=/usr/local/bin/pdctl -r /run/pdserve -d {name} -t 10000 reload\n" in text
    assert "\nStartLimitIntervalSec=0\n" in text and "StartLimitBurst" not in text and "\nRestartSec=200ms\n" in text
    if "pdmessagerd" in unit:
        assert "\nLimitMEMLOCK=infinity\n" in text and "\nDeviceAllow=char-infiniband_verbs rw\n" in text


def test_the_second_routers_unit():
    """What docs/proxies.md makes of pdrouterd.service starts and reloads the second router."""
    line = re.search(r"^    (sed .* pdrouterd\.service) \| sudo tee pdrouterd-2\.service", open(os.path.join(ROOT, "docs", "proxies.md")).read(), re.M)[1]
    text = subprocess.run(["bash", "-c", line], cwd=os.path.join(ROOT, "systemd"), capture_output=True, text=True, check=True).stdout
    assert "\nExecStart=/usr/local/bin/pdrouterd -c /etc/pdserve/router-2.conf\n" in text and "\nExecReload=/usr/local/bin/pdctl -r /run/pdserve -d router-2 -t 10000 reload\n" in text
    assert "router.conf" not in text and "-d router " not in text


def test_workers_find_the_routers():
    """The port's name and the Service's are those of the SRV records that workers ask for; their hosts are the routers' names."""
    for text in (TEXTS["prefill.conf"], TEXTS["decode.conf"]):
        port, service = re.search(r'routers = \( "srv://_(\w+)\._tcp\.([\w-]+)" \);', text).groups()
        assert SERVICES[service]["publishNotReadyAddresses"]
        routers = next(s for s in SETS if s["spec"]["serviceName"] == service)
        command = daemons(routers)[0]["command"]
        assert command[0] == "pdrouterd" and "name=$(POD_NAME)" in command
        number = next(p["port"] for p in SERVICES[service]["ports"] if p["name"] == port)
        assert f"listen=tcp://$(POD_IP):{number}" in command


FAKES = {
    "scontrol": 'case "$1 $2 $3" in "show hostnames nodes") printf "127.0.0.%s\\n" 2 3 4 ;; *) exit 1 ;; esac\n',
    # as the real one: runs the command there, and hands signals to it
    "srun": 'for a; do case $a in --nodelist=*) export SLURMD_NODENAME=${a#*=}; shift ;; --*) shift ;; *) break ;; esac; done\nexec "$@"\n',
}


def port_of_two():
    """A port that is free, as the one after it, on all addresses, and stays so."""
    while True:
        port = free_port("")
        try:
            free_port("", port + 1)
            return port
        except (OSError, OverflowError):
            pass


# stages of each worker's pipeline, the workers, who has a key, how many daemons run
@pytest.mark.parametrize("stages,names,keys_of,n", [
    (1, ["prefill-1", "decode-1"], ["decode-1-messager", "decode-1", "prefill-1-messager", "prefill-1", "router-1"], 7),
    (2, ["mixed-1"], ["mixed-1", "rank-1-1", "router-1"], 3),
], ids=["1", "2"])
def test_slurm(stages, names, keys_of, n, tmp_path):
    """Three nodes on this machine: their names are addresses of loopback."""
    if not subprocess.run(["getent", "ahostsv4", "127.0.0.2"], capture_output=True).stdout:
        pytest.skip("getent gives no address: this machine has no network but loopback")
    assert subprocess.run(["bash", "-n", SBATCH]).returncode == 0
    bin_dir, job, tmp = tmp_path / "bin", tmp_path / "job", tmp_path / "tmp"
    for d in (bin_dir, tmp):
        d.mkdir()
    for name, text in FAKES.items():
        (bin_dir / name).write_text("#!/bin/bash\n" + text)
        (bin_dir / name).chmod(0o755)
    http, port = free_port(""), port_of_two()
    env = {**ENV, "PATH": f"{bin_dir}:{os.environ['PATH']}", "BIN": BIN, "MODEL": TINY_MODEL, "JOBDIR": str(job), "TMPDIR": str(tmp), "HTTP_PORT": str(http),
           "PORT": str(port), "STORAGE_MB": "16", "STAGES": str(stages), "WORKER_CONF": "threads = 1; kv_memory_mb = 64;", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "nodes"}
    with open(tmp_path / "out", "w") as out:
        p = subprocess.Popen(["bash", SBATCH], env=env, stdout=out, stderr=out, start_new_session=True)
    try:
        def all_ready():
            return len(logs := list(job.glob("*.log"))) == n and all("event=ready" in f.read_text() for f in logs)

        def workers():
            assert p.poll() is None, (tmp_path / "out").read_text()
            got = subprocess.run([os.path.join(BIN, "pdctl"), "-r", tmp / "pdserve-7-router-1", "-d", "router-1", "workers", "--json"], env=env, capture_output=True,
                                 text=True)
            return got.returncode == 0 and {w["name"]: w["state"] for w in json.loads(got.stdout)} == {name: "up" for name in names}
        wait_for(workers, lambda: "".join(f.read_text() for f in [tmp_path / "out", *job.glob("*.log")])[-5000:], 60)
        wait_for(all_ready, "all daemons are ready", 60)
        with urllib.request.urlopen(f"http://127.0.0.2:{http}/health", timeout=10 * SLOW) as r:
            assert r.status == 200
        keys = sorted(os.listdir(job / "keys"))
        assert [k for k in keys if k.endswith(".secret")] == [k + ".secret" for k in keys_of]
        assert not any(stat.S_IMODE((job / "keys" / k).stat().st_mode) & 0o077 for k in keys if k.endswith(".secret"))
        os.killpg(p.pid, signal.SIGTERM)
        p.wait(60 * SLOW)
        wait_for(lambda: not list(tmp.iterdir()), "the nodes' run directories are removed")
        for f in job.glob("*.log"):
            assert f.read_text().count("event=stopping") == 1 and "stopped_at_once" not in f.read_text(), f.read_text()
    finally:
        try:
            os.killpg(p.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
