"""What tests of estimates share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs measured is kept in a store of the test's own, empty at first."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
