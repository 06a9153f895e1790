"""Runs the rules over a file, and over the line that a finding names."""

from __future__ import annotations

from pathlib import Path

from gputop_analysis.lint.model import RULES, Hit, Remark, Rule
from gputop_analysis.lint.module import Module
from gputop_analysis.lint.source import SourceError, SourceFile
from gputop_analysis.text import file_and_line


def lint(path: str, data: bytes) -> list[Remark]:
    """All remarks on one file, in its order.

    Raises:
        SourceError: it is no Python; the message is one line that names the line.
    """
    return remarks_of(SourceFile.parse(path, data))


def remarks_of(source: SourceFile, seen_line: int = 0) -> list[Remark]:
    """All remarks on a parsed file; at ``seen_line`` a run may have seen what one is about."""
    module = Module(source, seen_line)
    remarks = [
        _remark(source, rule, hit) for rule in all_rules().values() for hit in rule.check(module)
    ]
    return sorted(set(remarks), key=lambda remark: (remark.line, remark.column, remark.rule))


def all_rules() -> dict[str, Rule]:
    """All rules by id, loader first."""
    from gputop_analysis.lint import rules_loader, rules_loop, rules_update  # isort: skip
    from gputop_analysis.lint import rules_distributed, rules_precision

    # they register themselves
    assert all((rules_loader, rules_loop, rules_update, rules_precision, rules_distributed))
    return RULES


def lint_file(path: Path) -> list[Remark]:
    """All remarks on the file at ``path``.

    Raises:
        SourceError: it is no Python.
        OSError: it cannot be read.
    """
    return lint(str(path), path.read_bytes())


def rules_at(site: str | None, root: Path) -> list[Remark]:
    """Remarks of the source at the place that a finding names (``Finding.site``, ``file.py:118
    name``).

    Args:
        site: the finding's site; None gives nothing.
        root: where the run was started (the manifest's ``cwd``).
    """
    place = file_and_line(site)
    if place is None:
        return []
    name, line = place
    try:
        remarks = lint_file(root / name)
    except (SourceError, OSError):
        return []
    return [remark for remark in remarks if remark.line <= line <= remark.end_line]


def in_source(site: str | None, root: str) -> str:
    """The same in a sentence that tells how to see the patch; empty without a remark."""
    remarks = rules_at(site, Path(root))
    summary = "; ".join(f"{remark.rule}, {remark.message}" for remark in remarks)
    file = (site or "").rpartition(":")[0]
    if any(remark.fixable for remark in remarks):
        summary += f" (`gputop lint --diff {file}` shows the patch)"
    return summary


def _remark(source: SourceFile, rule: Rule, hit: Hit) -> Remark:
    node = hit.node
    column = source.start(node) - source.line_start(node) + 1
    spans = not hasattr(node, "body")  # of a loop or a function only the first line is meant
    end_line = (node.end_lineno or node.lineno) if spans else node.lineno
    text = (hit.message, rule.why, hit.fix)
    position = (source.path, node.lineno, column, end_line)
    return Remark(rule.id, rule.finding, rule.severity, *position, *text, hit.edits)
