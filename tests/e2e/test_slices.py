"""Threads that only pass messages have a short time slice, threads that compute have the kernel's default (common/util/slice.h)."""
import ctypes
import os

import pytest
from suite import Suite

SYS_SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
SHORT_NS = 100_000
LIBC = ctypes.CDLL(None, use_errno=True)


class SchedAttr(ctypes.Structure):
    _fields_ = [("size", ctypes.c_uint32), ("policy", ctypes.c_uint32), ("flags", ctypes.c_uint64), ("nice", ctypes.c_int32), ("priority", ctypes.c_uint32),
                ("runtime", ctypes.c_uint64), ("deadline", ctypes.c_uint64), ("period", ctypes.c_uint64)]


def slice_ns(tid):
    attr, number = SchedAttr(), SYS_SCHED_GETATTR.get(os.uname().machine)
    if number is None:
        pytest.skip("no number of sched_getattr is known for " + os.uname().machine)
    if LIBC.syscall(number, tid, ctypes.byref(attr), ctypes.sizeof(attr), 0) != 0:
        return None  # it has ended
    return attr.runtime


def threads(pid):
    """name -> slices of the threads of that name; "main": the event loop"""
    found = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/comm") as f:
            name = "main" if int(tid) == pid else f.read().strip()
        found.setdefault(name, []).append(slice_ns(int(tid)))
    return found


def test_who_has_a_short_slice(tiny_model):
    if slice_ns(os.getpid()) == 0:
        pytest.skip("this kernel has no time slices of threads (Linux 6.12)")
    with Suite("1p1d", tiny_model, worker={"threads": 2}) as s:
        s.tokens([1, 2, 3], 4)
        for name, p in s.procs.items():
            found = threads(p.pid)
            assert found["main"] == [SHORT_NS], name
            for thread, slices in found.items():
                if thread.startswith("ZMQ"):
                    assert set(slices) == {SHORT_NS}, (name, thread)
            if name.startswith(("prefill", "decode")):
                assert SHORT_NS not in found["compiler"], name
                # the schedule thread, the compute threads and (prefill) the prepare threads have the daemon's name
                computing = [ns for thread, slices in found.items() if thread.startswith("pd") for ns in slices]
                assert computing and SHORT_NS not in computing, (name, found)
