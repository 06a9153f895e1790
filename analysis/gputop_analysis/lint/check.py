"""Runs the rules over a file, and over the line that a finding names."""

from __future__ import annotations

import re
from pathlib import Path

from gputop_analysis.lint.model import RULES, Hit, Remark, Rule
from gputop_analysis.lint.module import Module
from gputop_analysis.lint.source import Source, SourceError

_SITE = re.compile(r"(.+\.py):(\d+)\b")


def lint(path: str, data: bytes) -> list[Remark]:
    """All remarks on one file, in its order.

    Raises:
        SourceError: it is no Python; the message is one line that names the line.
    """
    return remarks_of(Source.parse(path, data))


def remarks_of(source: Source) -> list[Remark]:
    """All remarks on a parsed file."""
    module = Module(source)
    found = [_remark(source, rule, hit) for rule in all_rules().values() for hit in rule.check(module)]
    return sorted(set(found), key=lambda one: (one.line, one.column, one.rule))


def all_rules() -> dict[str, Rule]:
    """All rules by id, loader first."""
    from gputop_analysis.lint import rules_loader, rules_loop, rules_update  # isort: skip
    from gputop_analysis.lint import rules_distributed, rules_precision

    assert all((rules_loader, rules_loop, rules_update, rules_precision, rules_distributed))  # they register themselves
    return RULES


def lint_file(path: Path) -> list[Remark]:
    """All remarks on the file at ``path``.

    Raises:
        SourceError: it is no Python.
        OSError: it cannot be read.
    """
    return lint(str(path), path.read_bytes())


def rules_at(site: str | None, root: Path) -> list[Remark]:
    """What the source says at the place that a finding names (``Finding.site``, ``file.py:118 name``).

    Args:
        site: the finding's site; None gives nothing.
        root: where the run was started (the manifest's ``cwd``).
    """
    match = _SITE.match(site or "")
    if match is None:
        return []
    path = root / match.group(1)
    try:
        remarks = lint_file(path)
    except (SourceError, OSError):
        return []
    line = int(match.group(2))
    return [one for one in remarks if one.line <= line <= one.end_line]


def in_source(site: str | None, root: str) -> str:
    """The same in one sentence that says how to see the patch; empty where the source says nothing there."""
    remarks = rules_at(site, Path(root))
    said = "; ".join(f"{one.rule}, {one.message}" for one in remarks)
    file = (site or "").rpartition(":")[0]
    return said + (f" (`gputop lint --diff {file}` shows the patch)" if any(one.fixable for one in remarks) else "")


def _remark(source: Source, rule: Rule, hit: Hit) -> Remark:
    node = hit.node
    column = source.start(node) - source.line_start(node) + 1
    spans = not hasattr(node, "body")  # of a loop or a function only the first line is meant
    end_line = (node.end_lineno or node.lineno) if spans else node.lineno
    text = (hit.message, rule.why, hit.fix)
    place = (source.path, node.lineno, column, end_line)
    return Remark(rule.id, rule.finding, rule.severity, *place, *text, hit.edits)
