"""What of a record was left out, in figures and in words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gputop_probes.record.events import GrowingLines
    from gputop_probes.record.tables import GrowingTable

_NAMED = 8
"""Files that are named; of more the rest is counted."""


@dataclass
class Damage:
    """What of a record cannot be read or cannot be true."""

    rows: int = 0
    """Rows of tables that cannot be true."""
    events: int = 0
    """Lines that are no event, and fields of events that have a wrong type."""
    notes: list[str] = field(default_factory=list)
    """One for each file: what is wrong with it."""

    def __bool__(self) -> bool:
        return bool(self.notes)

    def add(self, note: str) -> None:
        """Say one more thing."""
        self.notes.append(note)

    def add_table(self, name: str, table: GrowingTable) -> None:
        """Count a table's damage under its file's name."""
        if table.problem:
            self.add(f"{name}: {table.problem}")
        if table.damaged:
            self.rows += table.damaged
            self.add(f"{name}: {_counted(table.damaged, 'damaged row')} left out")
        if table.unread:
            self.add(
                f"{name}: damaged, so the {_counted(table.unread, 'earlier row')} were not read"
            )

    def add_events(self, name: str, lines: GrowingLines) -> None:
        """Count an event file's damage under its name."""
        if lines.problem:
            self.add(f"{name}: {lines.problem}")
        if lines.damaged:
            self.events += lines.damaged
            of = ""
            if lines.wrong_fields:
                of = f" ({', '.join(lines.wrong_fields)})"
            self.add(
                f"{name}: "
                f"{_counted(lines.damaged, 'damaged line or field', 'damaged lines or fields')} "
                f"left out{of}"
            )
        if lines.left_out:
            self.add(
                f"{name}: {_counted(lines.left_out, 'event')} of types that come too often left out"
            )
        if lines.unread_bytes:
            self.add(f"{name}: {_counted(lines.unread_bytes, 'byte')} at its end not read")

    def told(self) -> str:
        """One line for people; empty where nothing is damaged."""
        if not self.notes:
            return ""
        shown = "; ".join(self.notes[:_NAMED])
        more = len(self.notes) - _NAMED
        return shown + (f"; and {more:,} more files" if more > 0 else "")


def _counted(count: int, one: str, several: str = "") -> str:
    return f"{count:,} {one if count == 1 else several or one + 's'}"
