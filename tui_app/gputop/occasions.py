"""What cannot wait until somebody looks: the first critical finding, a hang, the end of a run.

The one mechanism of it: webhooks and commands (``notify``), the bell and the desktop
(``app.terminal_words``) are told by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from gputop_analysis.text import MISSING

if TYPE_CHECKING:
    from gputop_analysis.model import Finding
    from gputop_probes.record.reader import RunRecord


class Occasion(NamedTuple):
    """Something to be told once."""

    event: str
    """One of ``settings.EVENTS``."""
    text: str


class Occasions:
    """Knows what was told already; a hang that is over may come again."""

    def __init__(self) -> None:
        self._announced: set[str] = set()

    def new(self, findings: Sequence[Finding], hang: str, end: str) -> list[Occasion]:
        """What is new since the last call.

        Args:
            findings: of the run as it stands.
            hang: what hangs, in words; empty while nothing does.
            end: the verdict on a run that is over; empty while it goes on.
        """
        critical = next((item for item in findings if item.severity == "critical"), None)
        texts = {"finding": finding_line(critical) if critical else "", "hang": hang, "end": end}
        if not hang:
            self._announced.discard("hang")
        new = [Occasion(e, text) for e, text in texts.items() if text and e not in self._announced]
        self._announced.update(item.event for item in new)
        return new


def finding_line(finding: Finding) -> str:
    """Id, title and place in one line."""
    rank = "" if finding.rank is None else f", rank {finding.rank}"
    site = f", {finding.site}" if finding.site else ""
    return f"{finding.id} {finding.name}: {finding.title}{rank}{site}"


def hang_of(record: RunRecord) -> str:
    """The newest hang that is not over, in words; empty without one."""
    text = ""
    for event in sorted(record.events("hang_suspected", "hang_over"), key=lambda one: one["t_ns"]):
        text = ""
        if event["type"] == "hang_suspected":
            ranks = ", ".join(map(str, event.get("ranks") or [MISSING]))
            text = f"hang: no step for {event.get('silent_s', 0):.0f} s, silent ranks {ranks}"
    return text
