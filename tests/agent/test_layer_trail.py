"""Which stretches of a step the device's trail of layers times."""

import pytest
import torch

from gputop_agent.runtime.session import session
from gputop_agent.watchers.layers.layer_clock import OUTSIDE, DeviceTrail, LayerClock


class Stamp:
    """An event on a device whose clock moves by a millisecond an event."""

    now_ms = 0

    def record(self):
        Stamp.now_ms += 1
        self.at_ms = Stamp.now_ms

    def elapsed_time(self, end):
        return float(end.at_ms - self.at_ms)


class Trail(DeviceTrail):
    def mark(self, way, layer):
        stamp = Stamp()
        stamp.record()
        self._marks.append((stamp, way, layer))


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(session, "torch", torch)
    layer_clock = LayerClock(2, {})
    layer_clock.device = Trail()
    return layer_clock


def test_what_follows_the_backward_is_nobodys(clock):
    """The update, and whatever the device does until the next forward."""
    clock.enter(0, clock.stop())
    clock.leave(clock.stop())
    clock.backward_begins()
    clock.switch(1)
    clock.backward_ended()
    for _ in range(50):
        Stamp().record()
    clock.enter(0, clock.stop())
    forward, backward = clock.device.times_ns(2)
    assert forward == [1_000_000, 0, 0]
    assert backward[1] == 1_000_000 and backward[OUTSIDE] == 1_000_000
