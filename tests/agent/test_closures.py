"""What an optimizer's closure does is booked apart from the update, whoever made it."""

from functools import partial

import pytest

from gputop_agent.hooks import closures
from gputop_agent.runtime.session import OTHER
from gputop_agent.timing import clock


def loss(value=3.0):
    return value


@pytest.mark.parametrize(("closure", "value"), [(loss, 3.0), (partial(loss, 5.0), 5.0)])
@pytest.mark.parametrize("named", [True, False])
def test_a_closure_is_host_code_while_it_runs(monkeypatch, closure, value, named):
    phases = []
    monkeypatch.setattr(clock, "enter", phases.append)
    monkeypatch.setattr(clock, "unwind", lambda depth: phases.append("left"))
    optimizer = object()
    given = ((optimizer,), {"closure": closure}) if named else ((optimizer, closure), {})
    args, kwargs = closures.timed(*given)
    called = kwargs["closure"] if named else args[1]
    assert called() == value and phases == [OTHER, "left"]


@pytest.mark.parametrize("closure", [None, object()])
def test_what_is_no_plain_callable_stays_as_it_is(closure):
    assert closures.timed((object(), closure), {}) is None
