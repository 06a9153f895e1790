"""Programs outside the run that take the cores are named; the run's own never are."""

import os
import subprocess
import sys
import time

import pytest

from gputop_probes.samplers import neighbours
from gputop_probes.samplers.tree import ProcessTree

SPIN = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"


def _pids(told):
    return {one["pid"] for _, fields in told for one in fields["processes"]}


def test_the_front_and_the_recorder_are_nobodys_neighbours():
    read, write = os.pipe()
    recorder = os.fork()
    if recorder == 0:
        os.write(write, " ".join(str(pid) for pid in neighbours.gputops_own()).encode())
        os._exit(0)
    os.waitpid(recorder, 0)
    told = {int(pid) for pid in os.read(read, 99).split()}
    os.close(read), os.close(write)
    assert told == {recorder, os.getpid()}


def test_another_parent_than_the_front_is_not_gputops():
    words = "from gputop_probes.samplers import neighbours; print(len(neighbours.gputops_own()))"
    told = subprocess.run([sys.executable, "-c", words], capture_output=True, check=True)
    assert told.stdout.strip() == b"1"


@pytest.mark.parametrize(("ours", "named"), [(False, True), (True, False)])
def test_a_busy_program_is_named_where_it_is_not_the_runs_own(monkeypatch, ours, named):
    monkeypatch.setattr(neighbours, "_FIRST_S", 0.0)
    monkeypatch.setattr(neighbours, "_LEAST_CORES", 0.01)
    monkeypatch.setattr(neighbours, "_TOP", 10_000)
    monkeypatch.setattr(neighbours, "gputops_own", set)  # the busy program is this process's child
    busy = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        tree = ProcessTree(busy.pid if ours else os.getpid(), "nobody's run")
        tree.members.clear()
        if ours:
            tree.refresh()
        told = []
        watch = neighbours.NeighbourWatch(
            tree, "box", lambda kind, fields: told.append((kind, fields))
        )
        deadline = time.monotonic() + 15
        watch.check()
        looks = 0
        while (
            busy.pid not in _pids(told) and time.monotonic() < deadline and not (ours and looks > 3)
        ):
            time.sleep(0.3)
            watch._due_s, looks = 0.0, looks + 1
            watch.check()
    finally:
        busy.kill()
        busy.wait()
    assert (busy.pid in _pids(told)) is named
    assert all(kind == "neighbours" and fields["host"] == "box" for kind, fields in told)
