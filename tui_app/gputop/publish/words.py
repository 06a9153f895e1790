"""Findings in words, for places that take text."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gputop.occasions import finding_line
from gputop.publish.reading import Reading
from gputop_analysis.model import Finding

PAGE = "gputop-report.html"
FINDINGS = "gputop/findings"
"""Where trackers have the text of the findings."""


class Alerts:
    """Findings that are worth an alert, each once."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def due(self, reading: Reading) -> list[Finding]:
        """The serious ones that were in no reading before."""
        serious = [
            finding
            for finding in reading.findings
            if finding.severity in ("critical", "high") and finding.id not in self._ids
        ]
        self._ids |= {finding.id for finding in serious}
        return serious


@contextmanager
def page_file(report: str) -> Iterator[Path]:
    """A file with the page of the report, there as long as the context lasts."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / PAGE
        page.write_text(report, encoding="utf-8")
        yield page


def findings_text(reading: Reading) -> str:
    """The verdict and every finding with its fix, as Markdown."""
    lines = [reading.verdict.headline, ""]
    for finding in reading.findings:
        lines.append(f"- **{finding.severity}** {finding_line(finding)}  ")
        lines.append(f"  {finding.fix}")
    return "\n".join(lines)


def tags(reading: Reading) -> list[str]:
    """A tag a finding above ``info``: ``gputop:IN02``."""
    serious = [finding for finding in reading.findings if finding.severity != "info"]
    return sorted({f"gputop:{finding.id}" for finding in serious})
