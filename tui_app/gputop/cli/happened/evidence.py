"""What ``open``, ``report`` and ``why`` do with a path that is no run: another tool's recording."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gputop.cli.errors import cli_errors
from gputop.cli.printing import json_text, report_width, wants_colour
from gputop.cli.working import working
from gputop_probes.record import layout

if TYPE_CHECKING:
    from gputop_analysis.evidence import Evidence


def evidence_at(name: str) -> Evidence | None:
    """The judgement on a file or folder of another tool; None where the name is that of a run.

    Raises:
        CliError: there is such a file, and it cannot be read.
    """
    path = Path(name)
    try:
        if name == "last" or not path.exists() or (path / layout.MANIFEST_FILE).is_file():
            return None
    except (OSError, ValueError):
        return None
    from gputop_analysis.evidence import EvidenceError, gather, is_evidence

    if not is_evidence(path):
        return None
    with cli_errors(EvidenceError, in_one_line=True), working("reading the recording"):
        return gather(path)


def evidence_text(evidence: Evidence) -> str:
    """For a terminal."""
    from gputop_analysis.evidence.text import as_text

    return as_text(evidence, report_width(), fancy=wants_colour())


def rendered(evidence: Evidence, form: str) -> str:
    """As text, JSON or Markdown."""
    if form == "json":
        return json_text(evidence.as_data())
    text = evidence_text(evidence)
    return f"```\n{text}\n```\n" if form == "md" else text + "\n"
