"""What the reading dialogs say: help, a finding, stacks, a profile. Pure; colours come from the theme's variables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from textual.content import Content

from gputop import palette
from gputop.actions import Action, applies, on_screen
from gputop.feed.snapshot import Notice
from gputop.render import numbers

Colours = Mapping[str, str]


def help_text(mode: str, control: bool, colours: Colours, screen: str = "main") -> Content:
    """All actions that apply on a screen, by group, then what the colours mean."""
    groups: dict[str, list[Action]] = {}
    for action in on_screen(screen):
        if applies(action, mode, control):
            groups.setdefault(action.group, []).append(action)
    lines: list[Content] = []
    for group, actions in groups.items():
        lines.append(Content.styled(group, f"bold {colours['role-accent']}"))
        for action in actions:
            lines.append(
                Content.assemble((f"  {action.shown:<11}", "bold"), (action.description, ""))
            )
        lines.append(Content(""))
    lines.append(Content.styled("Colours", f"bold {colours['role-accent']}"))
    lines.append(Content.assemble("  ", *_phase_samples(colours)))
    lines.append(Content.assemble("  ", *_severity_samples(colours)))
    lines.append(
        Content.styled(
            "  ctrl+p finds every action by name and changes the theme.", colours["role-muted"]
        )
    )
    return Content("\n").join(lines)


def _phase_samples(colours: Colours) -> list[tuple[str, str]]:
    samples = []
    for phase in palette.PHASES:
        samples += [("■ ", colours[f"phase-{phase.name}"]), (phase.name + "  ", "")]
    return samples


def _severity_samples(colours: Colours) -> list[tuple[str, str]]:
    return [
        (f"{mark.glyph} {mark.word}   ", colours[f"role-{mark.style}"])
        for mark in palette.SEVERITY.values()
    ]


def notice_title(notice: Notice) -> str:
    """Title of the dialog that shows what an agent sent."""
    rank = "" if notice.rank is None else f" of rank {notice.rank}"
    return {"profile": "Profile", "stack_dump": "Stacks"}.get(notice.kind, notice.kind) + rank


def notice_text(notice: Notice) -> str:
    """What an agent sent on request, as text."""
    return _profile(notice.body) if notice.kind == "profile" else _stacks(notice.body)


def _profile(body: Mapping[str, Any]) -> str:
    table = [row for row in body.get("table") or [] if isinstance(row, dict)]
    on_device = any(row.get("device_ms") for row in table)
    head = f"{'operator':<44}{'calls':>8}{'cpu ms':>10}" + f"{'device ms':>11}" * on_device
    lines = [f"{body.get('steps', '?')} steps", head]
    for row in table:
        name = str(row.get("op", "?"))
        name = name if len(name) <= 43 else name[:42] + "…"
        line = f"{name:<44}{row.get('calls', 0):>8}{numbers.ms(float(row.get('cpu_ms') or 0)):>10}"
        device = row.get("device_ms")
        shown = numbers.NONE if device is None else numbers.ms(float(device))
        lines.append(line + f"{shown:>11}" * on_device)
    return "\n".join(lines)


def _stacks(body: Mapping[str, Any]) -> str:
    lines = [f"in {body.get('phase', '?')}, step {body.get('step', '?')}"]
    for thread in body.get("threads") or []:
        mark = " (training)" if thread.get("training") else ""
        lines += ["", f"{thread.get('name', 'thread')}{mark}"]
        lines += [f"  {frame}" for frame in thread.get("frames") or []]
    return "\n".join(lines)
