"""Remarks, edits, and the table of the rules."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from gputop_analysis.lint.edits import NONE, Edits
from gputop_analysis.model import Severity

if TYPE_CHECKING:
    from gputop_analysis.lint.module import Module


class Hit(NamedTuple):
    """One place where a rule applies."""

    node: ast.expr | ast.stmt
    message: str
    fix: str
    edits: Edits = NONE


Check = Callable[["Module"], Iterator[Hit]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One thing that can be seen in source."""

    id: str
    finding: str | None
    """Id of the finding that would show it in a run; None where none does."""
    severity: Severity
    why: str
    check: Check


RULES: dict[str, Rule] = {}
"""All rules by id."""


def rule(id: str, finding: str | None, severity: Severity, why: str) -> Callable[[Check], Check]:
    """Register a check. It must stay silent where it is not sure."""

    def register(check: Check) -> Check:
        assert id not in RULES, f"{id} is registered twice"
        RULES[id] = Rule(id, finding, severity=severity, why=why, check=check)
        return check

    return register


@dataclass(frozen=True, slots=True)
class Remark:
    """A rule applied to a place of a file."""

    rule: str
    finding: str | None
    severity: Severity
    path: str
    line: int
    column: int
    """Column, counted in characters from 1."""
    end_line: int
    message: str
    why: str
    fix: str
    edits: Edits = NONE

    @property
    def fixable(self) -> bool:
        """Whether a mechanical edit exists."""
        return bool(self.edits)
