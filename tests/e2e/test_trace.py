"""pdctl trace: where it reads, what it draws, and that hostile logs do no harm."""
import json
import os
import re
import resource
import subprocess
import time
import xml.etree.ElementTree

import pytest
from suite import BIN, ENV, SAN, SLOW, Suite, wait_for

REMOTE = "/lib/systemd/systemd-journal-remote"
T0 = 1_790_000_000_000_000      # microseconds since 1970


def req(i):
    return f"{i:032x}"


def line(at_us, program, name, request, event, fields=""):
    us = T0 + at_us
    ts = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(us // 1_000_000)) + f".{us % 1_000_000:06}Z"
    return f"ts={ts} level=info prog={program} name={name} req={request} event={event} {fields}".rstrip() + "\n"


def life(request, at=0, why=""):
    """What the daemons log of one request: {name: text}."""
    return {
        "router": line(at, "pdrouterd", "router", request, "submitted", "attempt=1 tokens=37 prefill=prefill-1 decode=decode-1")
        + line(at + 185600, "pdrouterd", "router", request, "first_token", "attempt=1 index=0 from=decode-1 decode=decode-1")
        + line(at + 341900, "pdrouterd", "router", request, "request_done",
               "prompt_tokens=37 cached_tokens=0 output_tokens=8 queue_us=80 prepare_us=67 reserve_us=564 prefill_us=178429 transfer_us=173793 "
               f"first_token_us=185900 decode_us=156275 total_us=342170 prefill=prefill-1 decode=decode-1 attempts=1 finish=stop status=200{why}"),
        "prefill-1": line(at + 200, "pdprefilld", "prefill-1", request, "accepted", "attempt=1 tokens=37 candidates=1")
        + line(at + 179700, "pdprefilld", "prefill-1", request, "prefill_done",
               "attempt=1 tokens=37 queue_us=80 prepare_us=67 reserve_us=564 schedule_us=37 prefill_us=178429 decode=decode-1"),
        "messager": line(at + 174500, "pdmessagerd", "messager", request, "transfer_done", "attempt=1 from=prefill-1 to=decode-1 bytes=1474560 life_us=161016"),
        "decode-1": line(at + 700, "pddecoded", "decode-1", request, "granted", "attempt=1 prefill=prefill-1 lease=1 wait_us=11")
        + line(at + 180000, "pddecoded", "decode-1", request, "joined", "attempt=1 prompt=37 transfer_us=173793 wait_us=5540")
        + line(at + 341700, "pddecoded", "decode-1", request, "decode_done", "attempt=1 tokens=8 decode_us=161700"),
    }


def write_logs(folder, *lives):
    folder.mkdir(parents=True, exist_ok=True)
    for each in lives:
        for name, text in each.items():
            with open(folder / f"{name}.log", "a") as f:
                f.write(text)


def trace(rundir, *args, **more):
    return subprocess.run([os.path.join(BIN, "pdctl"), "-r", str(rundir), "trace", *args], capture_output=True, text=True, timeout=60 * SLOW, env=ENV, **more)


def svg_of(path):
    root = xml.etree.ElementTree.parse(path).getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    text = open(path).read()
    assert not re.search(r"<script|href|url\((?!#head\))|@import", text)        # complete in itself
    return ["".join(t.itertext()) for t in root.iter("{http://www.w3.org/2000/svg}text")]


def check_chrome(path):
    """The rules of the format; returns {process: [spans]} and the arrows as {(from, to, name): (from when, to when)}."""
    events = json.load(open(path))["traceEvents"]
    names, spans, flows = {}, {}, {}
    for e in events:
        assert isinstance(e["pid"], int) and isinstance(e["tid"], int) and isinstance(e["name"], str), e
        assert e["ph"] in ("M", "X", "i", "s", "f"), e
        if e["ph"] == "M":
            if e["name"] == "process_name":
                names[e["pid"]] = e["args"]["name"]
            continue
        assert e["ts"] >= 0 and e["cat"], e
        if e["ph"] == "X":
            assert e["dur"] >= 0, e
            spans.setdefault((e["pid"], e["tid"]), []).append(e)
        elif e["ph"] == "i":
            assert e["s"] == "t", e
        else:
            flows.setdefault(e["id"], {})[e["ph"]] = e
    for row in spans.values():      # those of one thread nest
        for a in row:
            for b in row:
                (a0, a1), (b0, b1) = ((x["ts"], x["ts"] + x["dur"]) for x in (a, b))
                assert a1 <= b0 + 1e-6 or b1 <= a0 + 1e-6 or (a0 <= b0 and b1 <= a1 + 1e-6) or (b0 <= a0 and a1 <= b1 + 1e-6), (a, b)
    for f in flows.values():
        assert set(f) == {"s", "f"} and f["s"]["ts"] <= f["f"]["ts"] and f["f"]["bp"] == "e", f
        for e in f.values():        # an arrow is bound to the span around it
            assert any(x["ts"] - 1e-6 <= e["ts"] <= x["ts"] + x["dur"] + 1e-6 for x in spans[e["pid"], e["tid"]]), e
    return ({names[p]: [x for (q, _), row in spans.items() if q == p for x in row] for p in names},
            {(names[f["s"]["pid"]], names[f["f"]["pid"]], f["s"]["name"]): (f["s"]["ts"], f["f"]["ts"]) for f in flows.values()})


EVENTS = ["submitted", "accepted", "granted", "transfer_done", "prefill_done", "joined", "first_token", "decode_done", "request_done"]
ARROWS = {("router", "prefill-1", "prompt"), ("prefill-1", "decode-1", "reserve"), ("prefill-1", "messager", "KV"), ("messager", "decode-1", "KV"),
          ("prefill-1", "decode-1", "first token"), ("decode-1", "router", "first token"), ("decode-1", "router", "last token")}


def test_draws_a_request(tmp_path, tiny_model):
    """Of real daemons."""
    with Suite("1p1d", tiny_model) as s:
        status, r = s.post("/v1/completions", {"prompt": [1, 2, 3, 4, 5], "max_tokens": 4, "temperature": 0, "ignore_eos": True})
        assert status == 200, r
        svg, chrome = str(tmp_path / "a.svg"), str(tmp_path / "a.json")

        def logged():       # at log_level info a request has no other lines
            t = trace(s.dir, r["id"], "--json")
            return t.returncode == 0 and sorted(e["event"] for e in json.loads(t.stdout)["events"]) == sorted([*EVENTS, "request_served"])
        wait_for(logged, "not all was logged")
        assert trace(s.dir, r["id"], "--svg", svg, "--chrome", chrome).returncode == 0
    processes, arrows = check_chrome(chrome)
    assert set(arrows) == ARROWS
    assert list(processes) == ["router", "prefill-1", "messager", "decode-1"]
    named = {p: {x["name"] for x in spans} for p, spans in processes.items()}
    assert {"request", "until first token", "other tokens"} <= named["router"] and "KV transfer" in named["messager"]
    assert {"request", "prefill"} <= named["prefill-1"] and {"receive KV", "decode"} <= named["decode-1"]
    texts = svg_of(svg)
    assert {"router", "prefill-1", "messager", "decode-1"} <= set(texts)
    assert any(re.search(r"■ prefill [\d.]+ (us|ms|s)$", t) for t in texts), texts


def test_places_spans(tmp_path):
    """The transfer runs beside the prefill; each span lies where the log says."""
    write_logs(tmp_path / "logs", life(req(1)))
    chrome = tmp_path / "a.json"
    assert trace(tmp_path, req(1), "--chrome", str(chrome)).returncode == 0
    processes, arrows = check_chrome(chrome)
    assert set(arrows) == ARROWS
    # the axis begins 300 us before the line "submitted": at first_token - first_token_us
    at = {(p, x["name"]): (round(x["ts"] - 300), round(x["ts"] + x["dur"] - 300)) for p, row in processes.items() for x in row}
    assert [round(t - 300) for k in (("prefill-1", "messager", "KV"), ("messager", "decode-1", "KV")) for t in arrows[k]] == [13484, 13484, 174500, 180000]
    want = {("prefill-1", "prefill"): (1271, 179700), ("prefill-1", "queue"): (200, 280), ("prefill-1", "reserve"): (347, 911), ("messager", "KV transfer"): (13484, 174500),
            ("decode-1", "receive KV"): (667, 174460), ("decode-1", "decode"): (180000, 341700), ("router", "until first token"): (-300, 185600)}
    assert {k: at[k] for k in want} == want
    r = trace(tmp_path, req(1), "--svg", "-")
    assert r.returncode == 0 and r.stdout.startswith("<svg ") and r.stdout.endswith("</svg>\n")
    r = trace(tmp_path, req(1), "--chrome", "/nonexistent/x")
    assert r.returncode == 1 and "cannot write /nonexistent/x: No such file" in r.stderr and f"request {req(1)}" in r.stdout


@pytest.mark.parametrize("late_us", [0, 5400, 50000, 160000])
def test_a_daemon_logs_late(tmp_path, late_us):
    """Its transfer then seems to begin after the prefill ended, or after the receiver had it: the arrows' ends still lie in the daemons' spans."""
    logs = life(req(1))
    logs["messager"] = life(req(1), late_us)["messager"].replace("life_us=161016", "life_us=100")
    assert "life_us=100\n" in logs["messager"]
    write_logs(tmp_path / "logs", logs)
    assert trace(tmp_path, req(1), "--chrome", str(tmp_path / "a.json")).returncode == 0
    _, arrows = check_chrome(tmp_path / "a.json")
    assert set(arrows) >= ARROWS - {("messager", "decode-1", "KV")}


def test_mixed_worker(tmp_path):
    """It logs no prefill: the router's summary has its times."""
    write_logs(tmp_path / "logs", {"router": life(req(1))["router"], "mixed-1": line(200, "pddecoded", "mixed-1", req(1), "accepted", "attempt=1 tokens=5 local=1")
                                   + line(341700, "pddecoded", "mixed-1", req(1), "decode_done", "attempt=1 tokens=8 decode_us=160000")})
    assert trace(tmp_path, req(1), "--chrome", str(tmp_path / "a.json")).returncode == 0
    processes, arrows = check_chrome(tmp_path / "a.json")
    assert [(x["name"], x["ts"] - 300, x["dur"]) for x in processes["mixed-1"]] == [
        ("request", 200, 341500), ("queue", 200, 80), ("prefill", 280, 178429), ("decode", 181700, 160000)]
    assert set(arrows) == {("router", "mixed-1", "prompt"), ("mixed-1", "router", "last token")}


def test_spans_nest_and_quotes_end(tmp_path):
    """Durations that overlap; a field within the quotes of another."""
    logs = {k: v.replace("reserve_us=564 schedule", "reserve_us=5000 schedule").replace("attempt=1 tokens=8", 'attempt=1 why="\\" decode_us=7 " tokens=8')
            for k, v in life(req(1)).items()}
    write_logs(tmp_path / "logs", logs)
    assert trace(tmp_path, req(1), "--chrome", str(tmp_path / "a.json")).returncode == 0
    processes, _ = check_chrome(tmp_path / "a.json")
    assert [x["dur"] for x in processes["decode-1"] if x["name"] == "decode"] == [161700]


def test_several_requests(tmp_path):
    write_logs(tmp_path / "logs", *(life(req(i), i * 1000) for i in range(1, 6)))
    r = trace(tmp_path, "--last", "3", "--json", "--svg", str(tmp_path / "a.svg"), "--chrome", str(tmp_path / "a.json"))
    assert [x["request"] for x in json.loads(r.stdout)] == [req(3), req(4), req(5)] and all(len(x["events"]) == 9 for x in json.loads(r.stdout))
    assert set(svg_of(tmp_path / "a.svg")) >= {req(3), req(4), req(5)}
    processes, _ = check_chrome(tmp_path / "a.json")
    assert sum(x["name"] == "decode" for x in processes["decode-1"]) == 3
    r = trace(tmp_path, req(2), f"cmpl-{req(4)}-0", req(2))
    assert re.findall(r"^request (\w+)", r.stdout, re.M) == [req(2), req(4)]
    r = trace(tmp_path, req(1), req(9))
    assert r.returncode == 1 and f"request {req(9)} is not in these logs (4 read)" in r.stderr and f"request {req(1)}" in r.stdout
    assert len(json.loads(trace(tmp_path, "--last", "100", "--json").stdout)) == 5


@pytest.mark.parametrize("args,code,part", [
    ([], 2, "a request id, or --last N"), (["--last", "0"], 2, "--last 0: a number from 1 to 100"), (["--last", "101"], 2, "from 1 to 100"),
    (["--last", "1", req(1)], 2, "and no request id"), (["12", "--from", "/dev/null"], 1, '"12" is no request'), (["--last", "1", "--from", "/nonexistent"], 3, "/nonexistent: No such file"),
    (["--last", "1", "--from", "/proc/self"], 3, "no *.log and no *.journal in this folder"), (["--last", "1", "--from", "/dev/null"], 1, "no request has ended in these logs (1 read)"),
])
def test_refuses(tmp_path, args, code, part):
    r = trace(tmp_path, *args)
    assert r.returncode == code and part in r.stderr and not r.stdout, r


def test_reads_renamed_logs_first(tmp_path):
    """NAME.log.1 has what came before; one of them may be missing."""
    for name, text in life(req(1)).items():
        rows = text.splitlines(keepends=True)
        write_logs(tmp_path / "logs", {name: "".join(rows[1:])})
        (tmp_path / "logs" / f"{name}.log.1").write_text("x" * 8191 + line(0, "pdrouterd", "router", req(1), "cut") + rows[0])
    (tmp_path / "logs" / "messager.log").unlink()
    t = json.loads(trace(tmp_path, req(1), "--json").stdout)
    assert t["done"] and [e["event"] for e in t["events"]] == EVENTS


def test_reads_a_pipe(tmp_path):
    """Of another host's journal, say: journalctl -o cat, -o short and -o export."""
    rows = "".join(life(req(1)).values())
    for text in rows, re.sub("(?m)^", "Nov 26 13:34:12 host1 pdrouterd[12]: ", rows), re.sub("(?m)^", "MESSAGE=", rows):
        r = trace(tmp_path, "--last", "1", "--json", "--from", "-", input=text)
        assert r.returncode == 0 and len(json.loads(r.stdout)[0]["events"]) == 9, r


HOSTILE = [
    ' why="<svg onload=alert(1)> & ]]> </title> \\" req=' + req(2) + ' event=request_done x=\\""',
    ' why="\x1b[31mred\x1b[0m \x07\x9b31m"', ' why="\udcff\udcfe\udcc0\udc80 \udced\udca0\udc80"', ' why="\ufffe\uffff \u009b31m"', " why=" + "x" * 1500, ' why="unended',
    " decode_us=nan prefill_us=inf total_us=-1 first_token_us=1e300 life_us=-5 transfer_us=nan",
]


@pytest.mark.parametrize("why", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text(tmp_path, why):
    folder = tmp_path / "logs"
    folder.mkdir()
    for name, text in life(req(1), why=why).items():
        for key, v in re.findall(r" (\w+_us)=(\S+)", why):
            text = re.sub(rf" {key}=\d+", f" {key}={v}", text)
        (folder / f"{name}.log").write_bytes(text.replace("decode_us=161700", "decode_us=161700" + why).encode(errors="surrogateescape"))
    r = trace(tmp_path, req(1), "--svg", str(tmp_path / "a.svg"), "--chrome", str(tmp_path / "a.json"))
    assert r.returncode == 0 and "decode_done" in r.stdout, r
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f]", r.stdout), r.stdout
    svg_of(tmp_path / "a.svg")
    check_chrome(tmp_path / "a.json")
    with open(folder / "decode-1.log", "a") as f:
        f.write(f'ts=2026-11-26T13:34:10.586927Z level=info prog=pdrouterd name=router event=x why=" req={req(1)} event=y "\n')
        f.write(line(0, "pddecoded", "\x1b[31mred", req(1), "stray") + line(0, "pddecoded", "x", req(1), "<b>\x1b[31m") + line(0, "pddecoded", "y" * 64, req(1), "z"))
    assert trace(tmp_path, req(1)).stdout == r.stdout
    with open(folder / "router.log", "ab") as f:
        for i, evil in enumerate((b"\x1b[31m" + b"x" * 27, b"<script>alert(1)</script>" + b"x" * 7, b"\xff" * 32, b"x" * 32)):
            f.write(line((i + 2) * 1_000_000, "pdrouterd", "router", "REQ", "request_done", "x=1").encode().replace(b"REQ", evil))
    assert trace(tmp_path, "--last", "9").stdout == r.stdout
    assert trace(tmp_path, req(2)).returncode == 1      # what stands in quotes is no line of its own


def test_a_nul_byte_ends_no_line(tmp_path):
    write_logs(tmp_path / "logs", {"router": "\0\n" + "".join(life(req(1)).values())})
    r = trace(tmp_path, req(1), "--json")
    assert [e["event"] for e in json.loads(r.stdout)["events"]] == EVENTS


def test_many_daemons(tmp_path):
    rows = [line(i, "pddecoded", f"d{i}", req(1), "decode_done", "attempt=1 decode_us=5") for i in range(257)]
    write_logs(tmp_path / "logs", {"router": life(req(1))["router"], "d": "".join(rows)})
    r = trace(tmp_path, req(1), "--svg", str(tmp_path / "a.svg"))
    assert r.returncode == 1 and "not drawn: these lines name more than 256 daemons" in r.stderr and "d256" in r.stdout
    (tmp_path / "logs" / "d.log").write_text("".join(rows[:255]) * 35)
    assert trace(tmp_path, req(1), "--svg", str(tmp_path / "a.svg")).returncode == 0
    assert "d254" in svg_of(tmp_path / "a.svg")


def test_clocks_that_differ(tmp_path):
    """The decode worker's host is two seconds behind: nothing has a negative length or begins before the axis."""
    ahead = life(req(1), 2_000_000)
    write_logs(tmp_path / "logs", {**life(req(1)), "prefill-1": ahead["prefill-1"], "messager": ahead["messager"]})
    r = trace(tmp_path, req(1), "--chrome", str(tmp_path / "a.json"), "--svg", str(tmp_path / "a.svg"))
    assert r.returncode == 0
    svg_of(tmp_path / "a.svg")
    json.load(open(tmp_path / "a.json"))
    assert all(e.get("ts", 0) >= 0 and e.get("dur", 0) >= 0 for e in json.load(open(tmp_path / "a.json"))["traceEvents"])


@pytest.mark.skipif(bool(SAN), reason="a sanitizer needs address space")
def test_memory_is_bounded(tmp_path):
    """A line without end, and more events than are kept, in 128 MiB."""
    limit = 128 << 20
    folder = tmp_path / "logs"
    write_logs(folder, life(req(1)))
    with open(folder / "router.log", "a") as f:
        for _ in range(150):
            f.write("x" * (1 << 20))
        f.write("\n")
        f.write(line(400000, "pdrouterd", "router", req(1), "stray", "x=" + "y" * 1000) * 15000)
    r = trace(tmp_path, req(1), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert r.returncode == 0 and "more than 10000 events: the others are left out" in r.stderr, (r.returncode, r.stderr)


def journal(path, lines, comm=None):
    """A journal with these lines, made by systemd-journal-remote."""
    text = ""
    for i, row in enumerate(lines):
        us = T0 + i
        text += (f"__CURSOR=s=1;i={i + 1:x};b=1;m={i:x};t={us:x};x={i:x}\n__REALTIME_TIMESTAMP={us}\n__MONOTONIC_TIMESTAMP={i + 1}\n_BOOT_ID={1:032x}\n"
                 f"_MACHINE_ID={2:032x}\n_COMM={comm or re.search('prog=([a-z]+)', row)[1]}\nMESSAGE={row.rstrip()}\n\n")
    r = subprocess.run([REMOTE, "-o", str(path), "-"], input=text, capture_output=True, text=True)
    assert r.returncode == 0, r.stderr


@pytest.mark.skipif(not os.path.exists(REMOTE), reason="systemd-journal-remote is not installed")
def test_reads_a_journal(tmp_path):
    """Of two hosts, in one folder; without lines of other programs."""
    folder = tmp_path / "j"
    folder.mkdir()
    one, two = (life(req(i), i * 1_000_000) for i in (1, 2))
    rows = sorted("".join([*one.values(), *two.values()]).splitlines())
    journal(folder / "host1.journal", [x for x in rows if "name=decode-1" not in x])
    journal(folder / "host2.journal", [x for x in rows if "name=decode-1" in x])
    journal(folder / "other.journal", [line(0, "pdrouterd", "router", req(1), "forged", "x=1")], comm="sh")
    t = json.loads(trace(tmp_path, req(1), "--json", "--from", str(folder)).stdout)
    assert t["done"] and len(t["events"]) == 9 and {e["daemon"] for e in t["events"]} == {"router", "prefill-1", "messager", "decode-1"}
    r = trace(tmp_path, "--last", "1", "--from", str(folder), "--svg", str(tmp_path / "a.svg"))
    assert r.returncode == 0 and f"request {req(2)}" in r.stdout and req(1) not in r.stdout
    assert req(2) in svg_of(tmp_path / "a.svg")


def test_the_end_of_a_request_comes_late(tmp_path):
    """The answer is there before the router's last line: one that has just happened is waited for, an old one, one that goes on and one of a clock that is ahead are not for long."""
    logs = tmp_path / "logs"
    logs.mkdir()

    def begun(ago_us):
        at = int(time.time() * 1e6) - T0 - ago_us
        *lines, last = life(req(1), at)["router"].splitlines(keepends=True)
        (logs / "router.log").write_text("".join(lines))
        return last

    def trace():
        t = time.time()
        p = subprocess.Popen([os.path.join(BIN, "pdctl"), "-r", tmp_path, "trace", req(1)], stdout=subprocess.PIPE, text=True, env=ENV)
        return p, t
    last = begun(200000)        # its last line here was 14 ms ago
    p, _ = trace()
    time.sleep(0.3)
    with open(logs / "router.log", "a") as f:
        f.write(last)
    assert "not finished" not in (text := p.communicate()[0]) and "185.9 ms" in text, text
    for ago_us, least, most in ((200000, 0.5, 1 + SLOW), (60_000_000, 0, 0.5 * SLOW), (-8_000_000, 0.5, 1 + SLOW)):
        begun(ago_us)
        p, t = trace()
        assert "not finished" in p.communicate()[0] and least <= time.time() - t < most
