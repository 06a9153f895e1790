"""One definition of what goes over the wire: what is sent, what readers check and what the page
says agree with it.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gputop_agent import contracts
from gputop_agent.contracts.kinds import Range
from gputop_probes.record import recorder_events, schema
from gputop_probes.record.damage import Damage
from gputop_probes.record.derive import fields_of, needed
from gputop_probes.record.events import GrowingLines
from gputop_probes.record.fields import Tally

ROOT = Path(__file__).parents[2]
EVENT = {"t_ns": 1_700_000_000 * 10**9, "step": 3, "rank": 0}
RIGHT = {
    "line": "a line",
    "text": "a text",
    "scalar": 1.5,
    "count": 1,
    "amount": 1.5,
    "num": 1.5,
    "real": 1.5,
}


def sent(folder: Path, function: str) -> Iterator[tuple[str, str, set[str]]]:
    """(Place, event type, fields that are written out) of each call of ``function`` in a folder."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            if name == function and node.args and isinstance(node.args[0], ast.Constant):
                fields = {keyword.arg for keyword in node.keywords if keyword.arg is not None}
                yield f"{path.relative_to(ROOT)}:{node.lineno}", str(node.args[0].value), fields


@pytest.mark.parametrize(
    ("folder", "function", "events"),
    [
        ("probes/gputop_agent", "send_event", contracts.EVENTS),
        ("probes/gputop_probes", "event", recorder_events.EVENTS),
    ],
)
def test_what_is_sent_is_in_the_contract(folder: str, function: str, events: dict) -> None:
    calls = list(sent(ROOT / folder, function))
    assert len(calls) > 10
    unknown = [(place, kind) for place, kind, _ in calls if kind not in events]
    assert not unknown
    shared = set(fields_of(recorder_events.EveryEvent))
    extra = [
        (place, kind, fields - shared - set(fields_of(events[kind])))
        for place, kind, fields in calls
    ]
    assert not [found for found in extra if found[2]]


def test_commands_are_those_of_the_contract() -> None:
    handled = {"dump", "flight_recorder", "profile", "layers", "memory_snapshot", "detach"}
    assert set(contracts.COMMANDS) == handled
    for name, contract in contracts.COMMANDS.items():
        assert f"Literal['{name}']" in repr(fields_of(contract)["cmd"])


@pytest.mark.parametrize("kind", sorted(schema.KNOWN))
def test_a_field_of_a_wrong_type_is_left_out_and_counted(kind: str) -> None:
    contract = schema.EVENTS[kind]
    for name, wanted in fields_of(contract).items():
        if repr(wanted) == "typing.Any":
            continue
        tally = Tally()
        event = {**EVENT, "type": kind, **filled(contract), name: [[[object]]]}
        checked = schema.event(event, tally)
        assert tally.dropped >= 1, (kind, name)
        if name not in needed(contract):
            assert checked is not None and checked.get(name, []) == [], (kind, name)


def test_right_fields_pass_as_they_are() -> None:
    for kind, contract in schema.EVENTS.items():
        event = {
            **EVENT,
            "type": kind,
            **{name: right(wanted) for name, wanted in fields_of(contract).items()},
        }
        event = {name: value for name, value in event.items() if value is not None}
        tally = Tally()
        assert schema.event(dict(event), tally) == event and not tally.dropped, kind


def filled(contract: Any) -> dict[str, Any]:
    """The needed fields of a contract."""
    return {name: right(fields_of(contract)[name]) for name in needed(contract)}


def right(wanted: Any) -> Any:
    """A value that a plain field may have; None for a field that is an object or a list."""
    marks = getattr(wanted, "__metadata__", ())
    for mark in marks:
        if isinstance(mark, Range):
            return max(1, mark.low)
    return next((RIGHT[mark] for mark in marks if mark in RIGHT), None)


def test_the_guest_never_imports_its_contract() -> None:
    guest = ROOT / "probes/gputop_agent"
    for path in set(guest.rglob("*.py")) - set((guest / "contracts").iterdir()):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                named = {*(node.module or "").split("."), *(alias.name for alias in node.names)}
                assert "contracts" not in named, path


def test_the_page_is_current() -> None:
    made = subprocess.run(
        [sys.executable, "bench/record_page.py"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "probes")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert made == (ROOT / "docs/events.md").read_text(), (
        "make it anew: python bench/record_page.py > docs/events.md"
    )


def test_damage_names_the_fields_of_a_wrong_type(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    events = [
        {**EVENT, "type": "stacks", "total": "many"},
        {**EVENT, "type": "stacks", "total": "many", "samples": [{"site": 3}]},
        {**EVENT, "type": "gc", "duration_ms": -1},
    ]
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    lines = GrowingLines(path)
    lines.refresh()
    damage = Damage()
    damage.add_events("events.jsonl", lines)
    assert damage.events == 4
    assert damage.notes == [
        "events.jsonl: 4 damaged lines or fields left out (stacks.total, stacks.site, "
        "gc.duration_ms)"
    ]
