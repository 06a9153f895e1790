"""Where in the source a finding is to be mended."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import NamedTuple

from gputop_analysis.lint import Remark, SourceError, lint
from gputop_analysis.lint.mends import script_of
from gputop_analysis.lint.source import parsed
from gputop_analysis.model import Finding
from gputop_analysis.text import file_and_line
from gputop_probes.record.manifest import Manifest

_CALLS: dict[str, tuple[str, ...]] = {
    "IN": ("DataLoader",),
    "HO03": ("collect", "backward"),
    "HO07": ("save",),
    "HO08": ("eval",),
    "HO11": ("AdamW", "Adam", "SGD"),
    "HO14": ("set_num_threads",),
    "HO16": ("set_detect_anomaly", "detect_anomaly", "profile"),
    "CE03": ("GradScaler", "autocast"),
    "CE07": ("grad", "backward"),
    "CR": ("DistributedDataParallel", "backward"),
}
"""Calls that a finding, or its family, is about; the first that the script has."""
_STEP = ("backward", "step")


class ScriptLine(NamedTuple):
    """A line of a script."""

    where: str
    """``train.py:12``; empty: not known."""
    how: str
    """How it is known."""


def place_of(finding: Finding, manifest: Manifest) -> ScriptLine:
    """The line that a finding measured, or else the one of the script that it is about."""
    named = file_and_line(finding.site)
    if named:
        return ScriptLine(f"{named[0]}:{named[1]}", f"measured: {finding.site}")
    script = script_of(manifest)
    if script is None:
        return ScriptLine("", "the run's script cannot be read here")
    name = os.path.relpath(script, manifest.cwd or ".")
    if name.startswith(".."):
        name = str(script)
    for remark in _remarks(script):
        if remark.finding == finding.id:
            return ScriptLine(f"{name}:{remark.line}", f"read in the source: {remark.rule}")
    calls = _CALLS.get(finding.id) or _CALLS.get(finding.id[:2]) or ()
    line, call = _first_call(script, (*calls, *_STEP))
    if line and call in calls:
        return ScriptLine(f"{name}:{line}", f"read in the source: what the fix concerns, {call}()")
    if line:
        return ScriptLine(f"{name}:{line}", f"the training step, {call}(): the cause has no line")
    return ScriptLine("", "the cause has no line")


def _remarks(path: Path) -> list[Remark]:
    try:
        return lint(str(path), path.read_bytes())
    except (SourceError, OSError):
        return []


def _first_call(path: Path, names: tuple[str, ...]) -> tuple[int, str]:
    """Line of the first call of the first of these names that is called; 0 where none is."""
    try:
        tree = parsed(path.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
        return 0, ""
    lines: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            lines[name] = min(lines.get(name, node.lineno), node.lineno)
    called = next((name for name in names if name in lines), "")
    return lines.get(called, 0), called
