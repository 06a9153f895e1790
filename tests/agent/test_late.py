"""Values of the user's tensors, at once on a CPU and later from a device."""

import torch

from gputop_agent.runtime import late
from gputop_agent.runtime.session import session


class Event:
    passed = False

    def query(self):
        return self.passed


class OnDevice:
    """A tensor that says it lies on a GPU."""

    is_cpu = False

    def __init__(self, values):
        self.values = torch.tensor(values)


def test_on_a_cpu_the_value_is_that_of_now():
    values, tensor = late.Late(), torch.tensor([0.0, 2.0, 3.0])
    values.put("some", late.count_nonzero, [tensor])
    tensor.zero_()
    assert values.read() == {"some": 2}


def test_from_a_device_it_comes_once_the_copies_are_there(monkeypatch):
    event = Event()
    monkeypatch.setattr(late, "_copied", lambda parts: ([part.values for part in parts], event))
    values = late.Late()
    values.put("some", late.count_nonzero, [OnDevice([0.0, 1.0]), OnDevice([2.0, 3.0])])
    values.put("now", late.first_number, [torch.tensor(7.0)])
    assert values.read() is None and values.known == {"now": 7.0}
    event.passed = True
    assert values.read() == {"some": 3, "now": 7.0}
    assert values.read() == {"some": 3, "now": 7.0}


def test_copies_lie_apart_whatever_their_types(monkeypatch):
    """With memory that is not pinned and events that have passed."""
    empty = torch.empty

    class Cuda:
        Event = type("Recorded", (Event,), {"record": lambda self: None, "passed": True})

        @staticmethod
        def device(_):
            return torch.no_grad()

    class Torch:
        uint8, cuda = torch.uint8, Cuda

        @staticmethod
        def empty(size, *, dtype, device, pin_memory):
            assert pin_memory
            return empty(size, dtype=dtype, device=device)

    monkeypatch.setattr(session, "torch", Torch)
    parts = [
        torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        torch.tensor([3], dtype=torch.int64),
        torch.tensor([True, False, True]),
        torch.tensor(2.25),
    ]
    copies, event = late._copied(parts)
    assert event.query()
    assert [copy.tolist() for copy in copies] == [[1.5, -2.0], [3], [True, False, True], [2.25]]


def test_some_values_are_those_of_the_first_ones_device():
    parts = late.some_values([torch.arange(10), torch.empty(3, device="meta")], 4)
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3]]
