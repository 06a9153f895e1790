"""Findings in words, for places that take text."""

from __future__ import annotations

from gputop.publish.reading import Reading
from gputop_analysis.model import Finding


def finding_line(finding: Finding) -> str:
    """Id, title and place in one line."""
    rank = "" if finding.rank is None else f", rank {finding.rank}"
    site = f", {finding.site}" if finding.site else ""
    return f"{finding.id} {finding.name}: {finding.title}{rank}{site}"


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
