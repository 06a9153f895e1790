"""When tensors are counted: soon again after the first count, then by larger rises."""

import weakref

import pytest
import torch

from gputop_agent.runtime.session import session
from gputop_agent.watchers.memory import growth

MIB = 1 << 20


@pytest.fixture
def memory(monkeypatch):
    """Memory in MiB as the guest reads it, to be set; nothing is sent."""
    used = {"mib": 300}
    monkeypatch.setattr(growth, "current", growth.NextCount())
    monkeypatch.setattr(growth.memory, "last", lambda: used["mib"] * MIB)
    monkeypatch.setattr(growth.transport, "send_event", lambda *args, **fields: None)
    monkeypatch.setattr(session, "torch", torch)
    monkeypatch.setattr(growth, "MAX_LOOK_NS", 10**11)
    growth.current.base = 300 * MIB
    return used


def test_a_second_count_comes_after_a_small_rise(memory):
    memory["mib"] = 350
    growth.count()
    assert growth.current.next_bytes == 350 * MIB + growth.RISE_AGAIN_BYTES
    memory["mib"] = 362
    growth.count()
    assert growth.current.next_bytes == (362 + 62) * MIB


def test_where_a_count_takes_long_there_are_three(memory, monkeypatch):
    monkeypatch.setattr(growth, "MAX_LOOK_NS", 0)
    for mib in (350, 362, 500):
        memory["mib"] = mib
        assert growth.due(growth.FIRST_STEP) or mib == 350
        growth.count()
    assert growth.current.next_bytes >= (362 + 64) * MIB
    memory["mib"] = 5000
    assert not growth.due(growth.FIRST_STEP)


def test_what_has_risen_is_told_with_how_much_of_it_is_in_use(memory, monkeypatch):
    sent = []
    monkeypatch.setattr(growth.transport, "send_event", lambda *args, **fields: sent.append(fields))
    heap = {"bytes": 100 * MIB}
    monkeypatch.setattr(growth.heap, "in_use", lambda: heap["bytes"])
    monkeypatch.setattr(growth, "_blocks", lambda: 1_000_000)
    growth.current.base = -1
    memory["mib"] = 300
    assert not growth.due(growth.FIRST_STEP)
    memory["mib"], heap["bytes"] = 340, 110 * MIB
    assert growth.due(growth.FIRST_STEP + 5)
    growth.count()
    assert (sent[-1]["risen_bytes"], sent[-1]["in_use_bytes"]) == (40 * MIB, 10 * MIB)
    heap["bytes"] = -1  # another allocator
    growth.count()
    assert "in_use_bytes" not in sent[-1]


def test_what_a_training_has_anyway_is_no_pile(memory, monkeypatch):
    """Adam's state of a small model is more than sixty tensors; to search all objects for what
    keeps them took 0.3 s of a training step.
    """
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(20)))
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    monkeypatch.setattr(session, "roots", [weakref.ref(model)])
    monkeypatch.setattr(session, "optimizers", {id(optimizer): weakref.ref(optimizer)})
    assert growth._of_training() == 40 + 40 + 40 * 3
    searched = []
    monkeypatch.setattr(growth.current.keeper, "look", lambda *a, **k: searched.append(a) or {})
    alive = [*model.parameters(), *(p.grad for p in model.parameters()), *[torch.ones(1)] * 120]
    growth._kept([*alive, *[torch.ones(1)] * (growth.MIN_PILE - 1)], [], 400 * MIB, search=True)
    assert not searched
    pile = [*alive, *[torch.ones(1)] * growth.MIN_PILE]
    growth._kept(pile, [], 400 * MIB, search=False)
    assert not searched
    growth._kept(pile, [], 400 * MIB, search=True)
    assert searched


def test_the_heap_knows_what_is_handed_out():
    before = growth.heap.in_use()
    if before < 0:
        pytest.skip("this C library does not tell")
    held = [bytearray(40_000) for _ in range(500)]
    assert growth.heap.in_use() - before > 15_000_000
    del held
    assert growth.heap.in_use() - before < 5_000_000


def test_nested_tensors_are_left_out_of_a_count(memory, monkeypatch):
    """A nn.TransformerEncoder in eval mode makes them of padded texts, and they have no shape."""
    events = []
    monkeypatch.setattr(growth.transport, "send_event", lambda *_, **fields: events.append(fields))
    growth.count()
    nested = [torch.nested.nested_tensor([torch.ones(3), torch.ones(4)]) for _ in range(4)]
    nested.append(torch.nested.nested_tensor([torch.ones(3)], requires_grad=True) * 2)
    memory["mib"] = 500
    growth.count()
    assert len(events) == 2 and nested


@pytest.mark.parametrize(("graphs", "is_searched"), [(35, True), (5, False)])
def test_kept_outputs_are_searched_for_although_most_of_the_rise_is_freed(
    memory, monkeypatch, graphs, is_searched
):
    """A small output that is kept pins what was freed around it: of 429 MB 4 were in use."""
    searched = []
    monkeypatch.setattr(growth, "_is_freed", lambda risen: True)
    monkeypatch.setattr(growth, "_of_training", lambda: 10**9)
    monkeypatch.setattr(session, "step", 31)
    monkeypatch.setattr(
        type(growth.current.keeper), "look", lambda *_, **more: searched.append(more) or {}
    )
    outputs = [torch.ones(2, requires_grad=True).exp() for _ in range(graphs)]
    memory["mib"] = 500
    growth.count()
    assert bool(searched) is is_searched and outputs
