"""Looking for autocast disturbs nobody."""

import warnings

import torch

from gputop_agent.hooks import forward
from gputop_agent.runtime.session import session


def test_it_is_seen_without_a_warning_that_a_user_may_have_made_an_error(monkeypatch):
    monkeypatch.setattr(session, "torch", torch)
    monkeypatch.setattr(session, "autocast_seen", False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        forward._look_for_autocast()
        assert session.autocast_seen is False
        with torch.autocast("cpu", dtype=torch.float16):
            forward._look_for_autocast()
    assert session.autocast_seen is torch.float16
