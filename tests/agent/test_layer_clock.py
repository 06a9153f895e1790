"""Times of layers where a backward runs inside another one, as re-entrant checkpoints have it."""

import time

import pytest

torch = pytest.importorskip("torch")

from gputop_agent.runtime.session import session  # noqa: E402
from gputop_agent.watchers.layers.layer_clock import BACKWARD, LayerClock  # noqa: E402

OUTER, INNER = 0, 1
SLEEP_S = 0.05


def test_after_an_inner_backward_the_time_is_the_outer_layers(monkeypatch):
    monkeypatch.setattr(session, "torch", torch)
    clock = LayerClock(2, {})

    class Recomputed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            x = ctx.saved_tensors[0].detach().requires_grad_()
            with torch.enable_grad():
                clock.enter(INNER, clock.stop())
                again = x * 2
                clock.leave(clock.stop())
            clock.hook_nodes([again], False)
            torch.autograd.backward(again, gradient)
            time.sleep(SLEEP_S)
            return x.grad

    x = torch.ones(4, requires_grad=True)
    clock.enter(OUTER, clock.stop())
    loss = Recomputed.apply(x).sum()
    clock.leave(clock.stop())
    clock.hook_nodes([loss], True)
    clock.backward_begins()
    loss.backward()
    clock.backward_ended()
    backward_ns = clock.self_ns[BACKWARD]
    assert backward_ns[OUTER] >= SLEEP_S * 1e9
    assert 0 < backward_ns[INNER] < SLEEP_S * 1e9
    assert torch.equal(x.grad, torch.full((4,), 2.0))
