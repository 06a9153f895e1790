"""What tests of the planner share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def nothing_of_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No prices, calibrations or fleet but the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
