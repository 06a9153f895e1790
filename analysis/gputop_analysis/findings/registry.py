"""The catalogue: every finding is one function, registered by ``@finding``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from gputop_analysis.findings.advice import Fix, as_text, offered, options_of
from gputop_analysis.findings.families import family_of
from gputop_analysis.findings.note import RECORDS
from gputop_analysis.findings.pictures import Picture
from gputop_analysis.model import Finding, Severity
from gputop_analysis.view import RunView

Cause = Literal[
    "hang", "crash", "nan", "throttle", "straggler", "input", "comm", "host", "compute", "memory"
]
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
"""Causes by precedence: of two findings on the same time, the earlier explains the other."""

STANDING_STILL = "HC11"
"""Says for whom ranks wait that make no step; told before all but critical ones, as those are of
steps that no longer come.
"""
STRAGGLERS = ("CR01", "CR02", "CR03", "CR04", "CR15")
"""Findings about one slow rank; they explain what else that rank shows."""

ESTIMATED = 0.95
"""Confidence in a finding that comes with an interval."""

Result = Finding | None | Iterable[Finding]
Check = Callable[[RunView], Result]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """One line of the catalogue: all that is said of a finding, in one place."""

    id: str
    name: str
    family: str
    """A key of ``families.FAMILIES``."""
    cause: Cause
    trigger: str
    """The statistic and its threshold, in words."""
    fix: str
    """What to do in general; the finding itself has the user's own values."""
    no_use: str = ""
    """When the fix cannot help. An option is not shown in a run where this is known to hold."""
    reads: str = ""
    """Signals and columns of the record that it is judged by."""
    silent: str = ""
    """When it abstains although the trigger might hold."""
    traps: str = ""
    """What looks the same and is none."""
    seen_on: str = RECORDS
    """Where the check was tried: ``note.CPU``, ``PAIR`` or ``RECORDS``."""
    explains: tuple[str, ...] = ()
    """Ids of the findings on the same rank that this one takes in."""
    explained_by: tuple[str, ...] = ()
    """Ids of the findings that take this one in: the same said from the other end."""
    pictures: tuple[Picture, ...] = ()
    """What shows it, the telling one first; none for those of its family."""
    immediate: bool = False
    """Shown at the first evaluation, not the third: what it reports is a fact and no estimate."""
    check: Check

    @property
    def shown_by(self) -> tuple[Picture, ...]:
        """The pictures that show it: its own, else its family's."""
        return self.pictures or family_of(self.family).pictures

    def make(
        self, *, severity: Severity, title: str, evidence: str, fix: Fix, **details: Any
    ) -> Finding:
        """A finding of this kind; what rests on a 95 % interval is no surer than that, unless it
        says so.

        ``fix`` is a text or options, the best first; those that cannot help in the run are left out
        afterwards.
        """
        if details.get("interval_ms_per_step") is not None:
            details.setdefault("confidence", ESTIMATED)
        options = options_of(fix)
        return Finding(
            id=self.id,
            name=self.name,
            severity=severity,
            title=title,
            evidence=evidence,
            fix=as_text(options),
            options=options,
            **details,
        )


STRICT = False
"""Whether a check that fails may raise, and a finding without proof is a fault. False outside the
tests: one broken check must not hide the others.
"""

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
    no_use: str = "",
    reads: str = "",
    silent: str = "",
    traps: str = "",
    seen_on: str = RECORDS,
    explains: tuple[str, ...] = (),
    explained_by: tuple[str, ...] = (),
    pictures: tuple[Picture, ...] = (),
    immediate: bool = False,
) -> Callable[[Callable[[RunView, Spec], Result]], Callable[[RunView, Spec], Result]]:
    """Register a check ``(view, spec) -> Finding | None | several`` in the catalogue; ``Spec`` says
    what each word is.

    It must return None, not guess, when a signal that it needs is missing.
    """

    def register(check: Callable[[RunView, Spec], Result]) -> Callable[[RunView, Spec], Result]:
        def bound(view: RunView) -> list[Finding]:
            try:
                result = check(view, CATALOGUE[id])
                findings = [placed(offered(view, judged)) for judged in as_list(result)]
                assert not STRICT or all(judged.proof for judged in findings), (
                    f"{id} shows no proof"
                )
                return findings
            except Exception as error:
                if STRICT:
                    raise
                return [_broken(CATALOGUE[id], error)]

        assert id not in CATALOGUE, f"{id} is registered twice"
        CATALOGUE[id] = Spec(
            id=id,
            name=name,
            family=family,
            cause=cause,
            trigger=trigger,
            fix=fix,
            no_use=no_use,
            reads=reads,
            silent=silent,
            traps=traps,
            seen_on=seen_on,
            explains=explains,
            explained_by=explained_by,
            pictures=pictures,
            immediate=immediate,
            check=bound,
        )
        return check

    return register


def explained_ids(cause: Spec) -> tuple[str, ...]:
    """Ids of the findings that ``cause`` takes in, whichever end says so."""
    said_there = sorted(spec.id for spec in CATALOGUE.values() if cause.id in spec.explained_by)
    return tuple(dict.fromkeys((*cause.explains, *said_there)))


def placed(finding: Finding) -> Finding:
    """The finding with its place before the fix, where no sentence of it names the place."""
    place = (finding.site or "").partition(" ")[0]
    text = f"{finding.title} {finding.evidence} {finding.fix}"
    if not place or not finding.fix or place in text:
        return finding
    return replace(finding, fix=f"at {place}: {finding.fix}")


def as_list(result: Result) -> list[Finding]:
    """What a check returned, as a list."""
    if result is None:
        return []
    return [result] if isinstance(result, Finding) else list(result)


def _broken(spec: Spec, error: Exception) -> Finding:
    message = f"{spec.id} could not be judged: {type(error).__name__}: {error}"
    return spec.make(
        severity="info",
        title=message,
        evidence="this is a fault of gputop and says nothing of the run",
        fix="report it",
        confidence=0.0,
    )
