"""The findings as text, Markdown and data: what ``gputop findings`` and docs/findings.md say."""

from __future__ import annotations

from collections.abc import Iterator

from gputop_analysis.findings import CATALOGUE
from gputop_analysis.findings.families import FAMILIES, family_of
from gputop_analysis.findings.registry import Spec, explained_ids
from gputop_analysis.text import wrapped

_HEAD = """\
# Findings

What gputop can find wrong with a training. `gputop findings --markdown` makes this page from the
checks themselves; `gputop findings ID` prints one of them, and `gputop report RUN --explain ID` the
numbers behind one that a run has.

A share of the step is judged by the lower end of a block-bootstrap 95 % interval over steady steps:
without the first ten and without those that hold an evaluation, a checkpoint or a compilation. A
signal that is missing makes a check abstain. On a live screen a finding appears after three
evaluations in a row and goes after five without; facts appear at once. Of two findings about the
same time the deeper cause takes in the other: hang, crash, NaN, throttle, straggler, input,
communication, host, compute, memory.

A finding offers only what can win something in the run that it is about: an option is left out
where the run lacks what its words presuppose (a GPU, several ranks, a loop of one's own, a
version), or where the record shows that it cannot help; what is promised is at most what the
options can change. Findings that would pull one setting in opposite directions are one finding.
`no use` says when the fix is of no use.
"""


def specs() -> list[Spec]:
    """Every finding, by family and number."""
    return sorted(CATALOGUE.values(), key=lambda spec: (_place(spec.family), spec.id))


def entry(spec: Spec) -> dict[str, object]:
    """One finding as data with stable names."""
    return {
        "id": spec.id,
        "name": spec.name,
        "family": family_of(spec.family).title,
        "cause": spec.cause,
        "trigger": spec.trigger,
        "fix": spec.fix,
        "cannot_help": spec.no_use or None,
        "reads": spec.reads or None,
        "abstains": spec.silent or None,
        "traps": spec.traps or None,
        "takes_in": list(explained_ids(spec)),
        "appears_at_once": spec.immediate,
        "seen_on": spec.seen_on,
    }


def as_text(spec: Spec, width: int) -> str:
    """One finding for people, at most ``width`` columns wide."""
    lines = [f"{spec.id}  {spec.name}  ({family_of(spec.family).title})"]
    for label, content in _lines(spec):
        lines += wrapped(label, content, width, indent=2)
    return "\n".join(lines)


def as_list(width: int) -> str:
    """All findings for people, one a line below the name of their family."""
    lines: list[str] = []
    for family, members in _by_family():
        lines += ["", family] if lines else [family]
        name_width = max(len(spec.name) for spec in members)
        for spec in members:
            line = f"  {spec.id}  {spec.name:<{name_width}}  {spec.trigger}"
            lines.append(line if len(line) <= width else line[: width - 3] + "...")
    return "\n".join(lines)


def as_markdown() -> str:
    """The page docs/findings.md."""
    parts = [_HEAD]
    for family, members in _by_family():
        parts.append(f"## {family}\n\n| id | finding | raised when |\n|---|---|---|")
        parts += [f"| [{s.id}](#{_anchor(s)}) | {s.name} | {_cell(s.trigger)} |" for s in members]
        for spec in members:
            parts.append(f"\n### {spec.id} {spec.name}\n")
            parts += [f"- **{label}**: {content}" for label, content in _lines(spec)]
        parts.append("")
    return "\n".join(parts)


def _lines(spec: Spec) -> Iterator[tuple[str, str]]:
    labelled = {
        "raised": spec.trigger,
        "fix": spec.fix,
        "no use": spec.no_use,
        "reads": spec.reads,
        "silent": spec.silent,
        "traps": spec.traps,
        "takes in": ", ".join(explained_ids(spec)),
        "seen on": spec.seen_on,
    }
    yield from ((label, content) for label, content in labelled.items() if content)


def _by_family() -> Iterator[tuple[str, list[Spec]]]:
    families: dict[str, list[Spec]] = {}
    for spec in specs():
        families.setdefault(family_of(spec.family).title, []).append(spec)
    yield from families.items()


def _place(family: str) -> int:
    order = list(FAMILIES)
    return order.index(family) if family in order else len(order)


def _anchor(spec: Spec) -> str:
    """The anchor that Markdown renderers make of the heading: lower case, without punctuation."""
    characters = "".join(c for c in f"{spec.id} {spec.name}".lower() if c.isalnum() or c in " -_")
    return characters.replace(" ", "-")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
