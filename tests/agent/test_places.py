"""Whom the collective that the training thread stands in takes from."""

import threading
import types

import pytest

torch = pytest.importorskip("torch")

from gputop_agent.runtime.session import session  # noqa: E402
from gputop_agent.watchers.stacks import places  # noqa: E402

SOURCE = """
def broadcast(tensor, src=None, group=None, group_src=None):
    standing.set()
    go_on.wait()

def all_reduce(tensor, group=None):
    standing.set()
    go_on.wait()
"""


CHOICES = """
for batch in loader:
    if asks:
        halve = still and check(
            batch
        )
        halve = check() and still
        halve = check() if still else False
        if still or check():
            pass
"""


@pytest.mark.parametrize(
    ("line", "innermost"),
    [(4, "4 and"), (7, "3 if"), (8, "8 if"), (9, "9 or"), (10, "9 if")],
)
def test_a_call_that_the_same_expression_may_leave_out_is_in_a_branch_of_its_own(line, innermost):
    assert places.blocks(CHOICES, line)[-1] == innermost


@pytest.mark.parametrize(
    ("call", "root"),
    [
        (lambda module: module.broadcast(0, 3), 3),
        (lambda module: module.broadcast(0, group="tp", group_src=1), 5),
        (lambda module: module.all_reduce(0), None),
    ],
)
def test_the_root_is_read_from_the_call_that_stands(monkeypatch, call, root):
    """A thread stands in a module of the name of torch's own."""
    standing, go_on = threading.Event(), threading.Event()
    module = types.ModuleType("distributed_c10d")
    module.__dict__.update(standing=standing, go_on=go_on)
    exec(compile(SOURCE, "torch/distributed/distributed_c10d.py", "exec"), module.__dict__)
    c10d = torch.distributed.distributed_c10d
    monkeypatch.setattr(c10d, "get_global_rank", lambda group, rank: {"tp": [4, 5]}[group][rank])
    thread = threading.Thread(target=call, args=(module,))
    thread.start()
    assert standing.wait(10)
    monkeypatch.setattr(session, "thread_ident", thread.ident)
    try:
        assert places.collective_root() == root
    finally:
        go_on.set()
        thread.join()
