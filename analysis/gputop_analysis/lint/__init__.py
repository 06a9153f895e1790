"""Reads training scripts for what will cost time or memory, before they run. Nothing is executed:
only ``ast``.

``lint_file(path) -> list[Remark]``; ``fixed(path, data)`` makes the mechanical edits, ``diff``
shows them as a patch; ``rules_at(site, root)`` finds what the source says at the line that a live
finding names, and ``in_source`` says it in a sentence.
"""

from __future__ import annotations

from gputop_analysis.lint.check import all_rules, in_source, lint, lint_file, rules_at
from gputop_analysis.lint.model import RULES, Remark, Rule
from gputop_analysis.lint.patch import diff, fixed, write
from gputop_analysis.lint.source import SourceError

__all__ = [
    "RULES",
    "Remark",
    "Rule",
    "SourceError",
    "all_rules",
    "diff",
    "fixed",
    "in_source",
    "lint",
    "lint_file",
    "rules_at",
    "write",
]
