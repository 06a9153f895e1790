"""What the reading dialogs say: help, a finding, stacks, a profile. Pure; colours come from the theme's variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.content import Content

from gputop import palette
from gputop.app.actions import ACTIONS, Action, applies
from gputop.feed.snapshot import Notice
from gputop.render import numbers
from gputop_analysis.model import Finding

Colours = Mapping[str, str]


def help_text(mode: str, control: bool, colours: Colours) -> Content:
    """All actions that apply, by group, then what the colours mean."""
    groups: dict[str, list[Action]] = {}
    for action in ACTIONS:
        if applies(action, mode, control):
            groups.setdefault(action.group, []).append(action)
    lines: list[Content] = []
    for group, actions in groups.items():
        lines.append(Content.styled(group, f"bold {colours['role-accent']}"))
        for action in actions:
            lines.append(Content.assemble((f"  {action.shown:<11}", "bold"), (action.description, "")))
        lines.append(Content(""))
    lines.append(Content.styled("Colours", f"bold {colours['role-accent']}"))
    lines.append(Content.assemble("  ", *_phase_samples(colours)))
    lines.append(Content.assemble("  ", *_severity_samples(colours)))
    lines.append(Content.styled("  ctrl+p finds every action by name and changes the theme.", colours["role-muted"]))
    return Content("\n").join(lines)


def _phase_samples(colours: Colours) -> list[tuple[str, str]]:
    samples = []
    for phase in palette.PHASES:
        samples += [("■ ", colours[f"phase-{phase.name}"]), (phase.name + "  ", "")]
    return samples


def _severity_samples(colours: Colours) -> list[tuple[str, str]]:
    return [(f"{mark.glyph} {mark.word}   ", colours[f"role-{mark.style}"]) for mark in palette.SEVERITY.values()]


def finding_text(finding: Finding, colours: Colours) -> Content:
    """Everything about one finding, the fix on its own lines so that it can be typed off."""
    mark = palette.SEVERITY[finding.severity]
    muted, colour = colours["role-muted"], colours[f"role-{mark.style}"]
    lines = [Content.assemble((f"{mark.glyph} {mark.word}  ", f"bold {colour}"), (finding.title, "bold")), Content("")]
    for label, text in _finding_fields(finding):
        lines += [Content.styled(label, muted), Content.styled(text, "bold" if label == "fix" else ""), Content("")]
    return Content("\n").join(lines[:-1])


def _finding_fields(finding: Finding) -> list[tuple[str, str]]:
    fields = [("evidence", finding.evidence), ("fix", finding.fix)]
    where = [
        f"rank {finding.rank}" if finding.rank is not None else "",
        f"GPU {finding.gpu}" if finding.gpu is not None else "",
    ]
    where += [finding.host or "", finding.site or ""]
    if place := ", ".join(part for part in where if part):
        fields.append(("where", place))
    if finding.recoverable_ms_per_step is not None:
        fields.append(("worth", _worth(finding)))
    fields.append(("how sure", f"{finding.confidence * 100:.0f} %"))
    if finding.absorbed:
        fields.append(("explains", ", ".join(finding.absorbed)))
    return fields


def _worth(finding: Finding) -> str:
    text = f"{numbers.duration_ms(finding.recoverable_ms_per_step)} a step"
    if finding.interval_ms_per_step is not None:
        low, high = finding.interval_ms_per_step
        text += f" (95 %: {numbers.duration_ms(low)} to {numbers.duration_ms(high)})"
    if finding.recoverable_hours is not None:
        text += f", {numbers.span(finding.recoverable_hours * 3600)} over the rest of the run"
    return text


def notice_title(notice: Notice) -> str:
    """Title of the dialog that shows what an agent sent."""
    rank = "" if notice.rank is None else f" of rank {notice.rank}"
    return {"profile": "Profile", "stack_dump": "Stacks"}.get(notice.kind, notice.kind) + rank


def notice_text(notice: Notice) -> str:
    """What an agent sent on request, as text."""
    return _profile(notice.body) if notice.kind == "profile" else _stacks(notice.body)


def _profile(body: Mapping[str, Any]) -> str:
    table = [row for row in body.get("table") or [] if isinstance(row, dict)]
    lines = [f"{body.get('steps', '?')} steps", f"{'operator':<44}{'calls':>8}{'cpu ms':>10}{'device ms':>11}"]
    for row in table:
        name = str(row.get("op", "?"))
        name = name if len(name) <= 43 else name[:42] + "…"
        device = row.get("device_ms")
        shown = numbers.NONE if device is None else numbers.ms(float(device))
        lines.append(f"{name:<44}{row.get('calls', 0):>8}{numbers.ms(float(row.get('cpu_ms') or 0)):>10}{shown:>11}")
    return "\n".join(lines)


def _stacks(body: Mapping[str, Any]) -> str:
    lines = [f"in {body.get('phase', '?')}, step {body.get('step', '?')}"]
    for thread in body.get("threads") or []:
        mark = " (training)" if thread.get("training") else ""
        lines += ["", f"{thread.get('name', 'thread')}{mark}"]
        lines += [f"  {frame}" for frame in thread.get("frames") or []]
    return "\n".join(lines)
