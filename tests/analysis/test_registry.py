"""One check that fails does not hide the others."""

import pytest
from analysis_support import Builder

from gputop_analysis.findings import evaluate, registry


def test_a_broken_check_is_said_and_the_others_are_judged(tmp_path, monkeypatch) -> None:
    build = Builder(tmp_path / "r")
    build.hello(0)
    for step in range(150):
        bad = step == 140
        build.step(
            0, data=10.0, forward=5.0, loss=float("nan") if bad else 1.0, flags=128 if bad else 0
        )
    build.end()

    @registry.finding(
        id="XX01", name="broken", family="test", cause="host", trigger="never", fix="none"
    )
    def broken(view, spec):
        raise ZeroDivisionError("by nothing")

    try:
        with pytest.raises(ZeroDivisionError):
            evaluate(build.open())
        monkeypatch.setattr(registry, "STRICT", False)
        found = {one.id: one for one in evaluate(build.open())}
    finally:
        del registry.CATALOGUE["XX01"]
    assert found["XX01"].severity == "info"
    assert "could not be judged" in found["XX01"].title
    assert "NU01" in found


def test_the_place_stands_before_the_fix_unless_a_sentence_names_it():
    spec = registry.CATALOGUE["HO06"]
    told = {"severity": "medium", "title": "slow", "evidence": "seen", "fix": "do less"}
    nowhere = spec.make(**told)
    assert registry.placed(nowhere).fix == "do less"
    placed = registry.placed(spec.make(**told, site="train.py:9 log"))
    assert (placed.fix, registry.placed(placed)) == ("at train.py:9: do less", placed)
    named = spec.make(**told | {"evidence": "at train.py:9 log"}, site="train.py:9 log")
    assert registry.placed(named).fix == "do less"
