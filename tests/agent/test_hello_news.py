"""What makes the guest send an update of its hello, and what does not."""

import pytest

from gputop_agent.injection import hello


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(
        hello, "_sent", {"optimizer": {"class": "AdamW", "lr": 1e-3}, "amp": {"autocast": False}}
    )


def test_a_learning_rate_that_moves_is_no_news(told):
    assert not hello._is_news("optimizer", {"class": "AdamW", "lr": 5e-4})


def test_another_optimizer_or_setting_is_news(told):
    assert hello._is_news("optimizer", {"class": "SGD", "lr": 1e-3})
    assert hello._is_news("amp", {"autocast": True})
    assert hello._is_news("total_steps", 100)
