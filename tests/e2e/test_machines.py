"""State machines: the drawing at the top of a header, the transition table, the step functions and PROTOCOL.md say the same.

Read as text, with the conventions that all actors follow:
  drawing   ` *   STATE -> NEXT, NEXT     text`, one line for each state that something may follow
  table     `[PREFIX_STATE] = {..., TO(NEXT) | TO(NEXT), ...}`
  protocol  | what | `header` | STATE → (STATE) → STATE; text → STATE |, where (STATE) may be passed over
  steps     `static enum X_state step_state(...)`, which the table names, returns the next state; only X_step calls X_enter, or assigns it
"""
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# name, prefix of the states, file with the drawing, folder of the sources
MACHINES = [
    ("connection", "CONNECTION", "common/http/conn.h", "common/http"),
    ("request", "REQUEST", "daemons/router/request/request.h", "daemons/router/request"),
    ("attempt", "ATTEMPT", "daemons/router/attempt/attempt.h", "daemons/router/attempt"),
    ("job", "JOB", "daemons/prefill/prefill.h", "daemons/prefill"),
    ("sequence", "SEQUENCE", "daemons/decode/decode.h", "daemons/decode"),
    ("transfer", "TRANSFER", "daemons/messager/mover.h", "daemons/messager"),
    ("inbound", "INBOUND", "daemons/messager/inbound.h", "daemons/messager"),
    ("tcp_out", "TCP_OUT", "daemons/messager/path/tcp_out.h", "daemons/messager/path"),
    ("tcp_in", "TCP_IN", "daemons/messager/path/tcp_in.h", "daemons/messager/path"),
    ("rdma_qp", "RDMA_QP", "daemons/messager/path/rdma_qp.h", "daemons/messager/path"),
    ("rdma_lease", "RDMA_LEASE", "daemons/messager/path/rdma_intake.h", "daemons/messager/path"),
]
IDS = [m[0] for m in MACHINES]


def sources(folder):
    return {p: p.read_text() for p in sorted((ROOT / folder).rglob("*.c"))}


def strip(text):
    """Without comments and strings."""
    return re.sub(r'/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"', " ", text, flags=re.S)


def functions(text):
    """(type, name, body) of each function of a file laid out by clang-format."""
    return re.findall(r"^([a-z][^\n;{}()]*?)\b(\w+)\([^;{}]*?\)\n\{\n(.*?)^\}", strip(text), re.S | re.M)


def drawing(machine):
    _, _, header, _ = machine
    comment = (ROOT / header).read_text().split("*/")[0]
    lines = re.findall(r"^ \*   ([A-Z_]+) +-> ([A-Z_, ]*[A-Z_])(?:  .*)?$", comment, re.M)
    return {state: set(re.split(r", *", nexts)) for state, nexts in lines}


def table(machine):
    _, prefix, _, folder = machine
    rows = {}
    for text in sources(folder).values():
        for state, row in re.findall(r"\[%s_([A-Z_]+)\]\s*=\s*\{([^{}]*)\}" % prefix, strip(text)):
            if "TO(" not in row and "step_" not in row and "NULL" not in row:
                continue  # of another table
            rows[state] = set(re.findall(r"TO\(([A-Z_]+)\)", row))
    return rows


def step_names(machine):
    """state -> the step function that the table names, without step_"""
    _, prefix, _, folder = machine
    found = [re.findall(r"\[%s_([A-Z_]+)\]\s*=\s*\{[^{}]*\bstep_(\w+)" % prefix, strip(text)) for text in sources(folder).values()]
    return {state: step for pairs in found for state, step in pairs}


def steps(machine):
    """Step function -> states that it may return; states that X_step, or a function that it asks, may choose in several states."""
    name, prefix, _, folder = machine
    returned, common = {}, set()
    for text in sources(folder).values():
        for kind, function, body in functions(text):
            states = set()
            for statement in re.findall(r"\breturn\b([^;]*);", body):
                states |= set(re.findall(r"\b%s_([A-Z_]+)\b" % prefix, statement))
            if function.startswith("step_") and "enum %s_state" % name in kind:
                returned[function[len("step_"):]] = states
            elif function in (name + "_step", name + "_common") or "enum %s_state" % name in kind:
                common |= states
                for statement in re.findall(r"\bnext = ([^;]*);", body):
                    common |= set(re.findall(r"\b%s_([A-Z_]+)\b" % prefix, statement))
    return returned, common


@pytest.mark.parametrize("machine", MACHINES, ids=IDS)
def test_drawing_is_the_table(machine):
    drawn, rows = drawing(machine), table(machine)
    assert len(drawn) > 2, "no drawing in %s" % machine[2]
    assert drawn == {state: nexts for state, nexts in rows.items() if nexts}


@pytest.mark.parametrize("machine", MACHINES, ids=IDS)
def test_steps_are_the_table(machine):
    rows, names, (returned, common) = table(machine), step_names(machine), steps(machine)
    states = set(rows)
    for state, nexts in rows.items():
        if not nexts:
            continue
        step = names.get(state, state.lower())
        assert step in returned, "no function step_%s" % step
        may = (returned[step] & states) - {state}
        assert may <= nexts <= may | common, "step_%s returns %s, the table has %s" % (step, sorted(may), sorted(nexts))


@pytest.mark.parametrize("machine", MACHINES, ids=IDS)
def test_only_the_step_function_enters(machine):
    name, _, _, folder = machine
    callers = set()
    for text in sources(folder).values():
        for _, function, body in functions(text):
            if re.search(r"\b%s_enter\(|->state = next;" % name, body):
                callers.add(function)
    assert callers - {name + "_enter"} == {name + "_step"}


def paths(machine):
    """PROTOCOL.md's row for the machine: the states and the transitions that it names; None: it has no row."""
    row = re.search(r"^\|[^|\n]*\| `%s` \|([^|\n]*)\|$" % re.escape(machine[2]), (ROOT / "proto/PROTOCOL.md").read_text(), re.M)
    if not row:
        return None
    text = re.sub(r"\([^()]*[a-z][^()]*\)", "", row[1])  # explanations
    pairs = set()
    for chain in re.split(r"[;.:]", text):
        steps = [re.search(r"^\s*(\()?([A-Z_]{2,})|([A-Z_]{2,})\s*$", x) for x in chain.split("→")]
        for i, left in enumerate(steps):
            for right in steps[i + 1:]:
                if not left or not right or right[3]:
                    break
                pairs.add((left[2] or left[3], right[2]))
                if not right[1]:
                    break
    return set(re.findall(r"[A-Z_]{2,}", text)), pairs


@pytest.mark.parametrize("machine", MACHINES, ids=IDS)
def test_protocol_is_the_drawing(machine):
    drawn, told = drawing(machine), paths(machine)
    if not told:
        return  # of one process's own
    assert told[1], "PROTOCOL.md: no path in the row of %s" % machine[2]
    unknown = told[0] - set(drawn) - set().union(*drawn.values())
    assert not unknown, "PROTOCOL.md names states that %s does not have: %s" % (machine[2], sorted(unknown))
    wrong = sorted((a, b) for a, b in told[1] if b not in drawn.get(a, set()))
    assert not wrong, "PROTOCOL.md has transitions that are not in %s: %s" % (machine[2], wrong)


def test_protocol_has_the_machines_of_requests():
    assert {m[0] for m in MACHINES if paths(m)} >= {"attempt", "job", "sequence", "transfer", "inbound", "rdma_qp", "rdma_lease"}
