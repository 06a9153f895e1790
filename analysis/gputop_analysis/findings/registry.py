"""The catalogue: every finding is one function, registered by ``@finding``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

from gputop_analysis.findings.advice import Fix, as_text, offered, options_of
from gputop_analysis.model import Finding
from gputop_analysis.view import RunView

Cause = Literal["hang", "crash", "nan", "throttle", "straggler", "input", "comm", "host", "compute", "memory"]
CAUSES: tuple[Cause, ...] = (
    "hang",
    "crash",
    "nan",
    "throttle",
    "straggler",
    "input",
    "comm",
    "host",
    "compute",
    "memory",
)
"""Causes by precedence: of two findings about the same time, the one whose cause comes first explains the other."""

ESTIMATED = 0.95
"""Confidence in a finding that comes with an interval."""

Result = Finding | None | Iterable[Finding]
Check = Callable[[RunView], Result]


@dataclass(frozen=True, slots=True)
class Spec:
    """One line of the catalogue."""

    id: str
    name: str
    family: str
    cause: Cause
    trigger: str
    """The statistic and its threshold, in words."""
    fix: str
    """What to do in general; the finding itself has the user's own values."""
    check: Check
    explains: tuple[str, ...] = ()
    """Ids of the findings on the same rank that this one takes in."""
    immediate: bool = False
    """Shown at the first evaluation, not the third: what it reports is a fact and no estimate."""

    def make(self, severity: str, title: str, evidence: str, fix: Fix, **details: object) -> Finding:
        """A finding of this kind; what rests on a 95 % interval is no surer than that, unless it says so.

        ``fix`` is a text or options, the best first; those that cannot help in the run are left out afterwards.
        """
        if details.get("interval_ms_per_step") is not None:
            details.setdefault("confidence", ESTIMATED)
        options = options_of(fix)
        words = (self.id, self.name, severity, title, evidence, as_text(options))
        return Finding(*words, options=options, **details)  # type: ignore[arg-type]


STRICT = False
"""Whether a check that fails may raise, and a finding without proof is a fault. False outside the tests: one broken
check must not hide the others."""

CATALOGUE: dict[str, Spec] = {}
"""All findings by id, in the order of their families."""


def finding(
    *,
    id: str,
    name: str,
    family: str,
    cause: Cause,
    trigger: str,
    fix: str,
    explains: tuple[str, ...] = (),
    immediate: bool = False,
) -> Callable[[Callable[[RunView, Spec], Result]], Callable[[RunView, Spec], Result]]:
    """Register a check ``(view, spec) -> Finding | None | several`` in the catalogue.

    It must return None, not guess, when a signal that it needs is missing.
    """

    def register(check: Callable[[RunView, Spec], Result]) -> Callable[[RunView, Spec], Result]:
        def bound(view: RunView) -> list[Finding]:
            try:
                result = check(view, CATALOGUE[id])
                found = [offered(view, one) for one in as_list(result)]
                assert not STRICT or all(one.proof for one in found), f"{id} shows no proof"
                return found
            except Exception as error:
                if STRICT:
                    raise
                return [_broken(CATALOGUE[id], error)]

        assert id not in CATALOGUE, f"{id} is registered twice"
        CATALOGUE[id] = Spec(id, name, family, cause, trigger, fix, bound, explains, immediate)
        return check

    return register


def as_list(found: Result) -> list[Finding]:
    """What a check returned, as a list."""
    if found is None:
        return []
    return [found] if isinstance(found, Finding) else list(found)


def _broken(spec: Spec, error: Exception) -> Finding:
    what = f"{spec.id} could not be judged: {type(error).__name__}: {error}"
    return spec.make("info", what, "this is a fault of gputop and says nothing of the run", "report it", confidence=0.0)
