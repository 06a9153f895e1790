"""When tensors are counted: soon again after the first count, then by larger rises."""

import pytest
import torch

from gputop_agent.runtime.session import session
from gputop_agent.watchers import growth

MIB = 1 << 20


@pytest.fixture
def memory(monkeypatch):
    """Memory in MiB as the guest reads it, to be set; nothing is sent."""
    used = {"mib": 300}
    monkeypatch.setattr(growth, "current", growth.NextCount())
    monkeypatch.setattr(growth.memory, "last", lambda: used["mib"] * MIB)
    monkeypatch.setattr(growth.transport, "send_event", lambda *args, **fields: None)
    monkeypatch.setattr(session, "torch", torch)
    growth.current.base = 300 * MIB
    return used


def test_a_second_count_comes_after_a_small_rise(memory):
    memory["mib"] = 350
    growth.count()
    assert growth.current.next_bytes == 350 * MIB + growth.RISE_AGAIN_BYTES
    memory["mib"] = 362
    growth.count()
    assert growth.current.next_bytes == (362 + 62) * MIB
