"""Findings in words, for places that take text."""

from __future__ import annotations

from gputop.occasions import finding_line
from gputop.publish.reading import Reading


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
