"""For every test: a check that fails raises, in place of being reported as one that could not be judged."""

import pytest

from gputop_analysis.findings import registry


@pytest.fixture(autouse=True)
def strict_findings(monkeypatch: pytest.MonkeyPatch) -> None:
    """See ``registry.STRICT``."""
    monkeypatch.setattr(registry, "STRICT", True)
