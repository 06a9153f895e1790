"""The one line on top: is the run healthy, and if not, what comes first."""

from __future__ import annotations

import math

from gputop_analysis.findings.registry import CATALOGUE, STANDING_STILL
from gputop_analysis.model import Finding
from gputop_analysis.overview import JUDGED_AFTER, Health, RunSummary, Verdict
from gputop_analysis.step_parts import parts_of
from gputop_analysis.text import counted, duration

NAMED_PHASES = 3
NO_STEP = (
    "no training step was seen (`gputop.step()` in a loop shows one that no hook of torch's sees)"
)
_OWN_ENDS = ("crash", "hang")
"""Causes that end a run, and so are the reason where it failed."""
_EXIT = "HC09"
"""The finding that says how the command ended, which the headline says anyway."""
_SPEAKING = ("hang", "crash", "nan", "straggler")
"""Causes whose titles need no name before them."""


def verdict(summary: RunSummary, findings: list[Finding], settled: bool = True) -> Verdict:
    """Judge a run by its state and its first finding above ``info``.

    Args:
        summary: of the run.
        findings: worst first.
        settled: whether the findings have been looked for long enough to call a run without one
            healthy.
    """
    serious = [finding for finding in findings if finding.severity != "info"]
    if summary.state in ("ended", "lost"):
        return Verdict(_final_health(summary, serious), _final(summary, serious, findings))
    critical = bool(serious) and serious[0].severity == "critical"
    waited_for = next((finding for finding in serious if finding.id == STANDING_STILL), None)
    if waited_for is not None and not critical:
        return Verdict("attention", _waiting(summary, waited_for))
    if summary.stands and not critical:
        return Verdict("attention", _standing(summary))
    if serious:
        return Verdict("critical" if critical else "attention", _problem(serious, findings))
    if summary.steps == 0 and summary.unseen:
        return Verdict("attention", _blind(summary))
    if summary.steps == 0:
        return Verdict("waiting", "waiting for the first step")
    if summary.steps < JUDGED_AFTER:
        return Verdict(
            "waiting", f"{_steps(summary)} so far: judged once {JUDGED_AFTER} have been seen"
        )
    if not settled:
        return Verdict("looking", f"looking: {breakdown(summary)}")
    return Verdict("healthy", f"healthy: {breakdown(summary)}")


def _waiting(summary: RunSummary, finding: Finding) -> str:
    """Who is waited for, and for how long no step has come."""
    if not summary.silent_s:
        return finding.title
    return f"{_silent(summary)}: {finding.title}"


def _silent(summary: RunSummary) -> str:
    return f"no step for {duration(math.floor(summary.silent_s))}"


def _standing(summary: RunSummary) -> str:
    """What stands first while the run does: findings are of steps that no longer come."""
    silent = _silent(summary)
    if not math.isfinite(summary.step_time_p50_ms):
        return silent
    usual_ms = summary.step_time_p50_ms
    usual = duration(usual_ms / 1e3) if usual_ms >= 1000 else f"{usual_ms:.0f} ms"
    return f"{silent}, where one took {usual}"


def breakdown(summary: RunSummary) -> str:
    """The largest parts of a step, ``backward 58 %, forward 30 %``."""
    largest = sorted(parts_of(summary), key=lambda part: -part.share)[:NAMED_PHASES]
    return ", ".join(
        f"{part.name} {100 * part.share:.0f} %" for part in largest if part.share >= 0.01
    )


def _problem(serious: list[Finding], findings: list[Finding]) -> str:
    """The first serious finding, and how many are listed beside it, those of ``info`` too."""
    first = serious[0]
    others = [finding for finding in findings if finding is not first and finding.id != _EXIT]
    more = f" (+{len(others)} more)" if others else ""
    return f"{in_words(first)}{more}"


def in_words(finding: Finding) -> str:
    """Its title, with its name before it where the title alone does not say what is wrong."""
    if finding.id in CATALOGUE and CATALOGUE[finding.id].cause in _SPEAKING:
        return finding.title
    return f"{finding.name}: {finding.title}"


def _final_health(summary: RunSummary, serious: list[Finding]) -> Health:
    if summary.ending.kind in ("failed", "lost"):
        return "failed"
    if any(finding.severity == "critical" and finding.id != _EXIT for finding in serious):
        return "critical"
    if summary.ending.kind in ("stopped", "terminated"):
        return "stopped"
    return "attention" if serious else "ended"


def _final(summary: RunSummary, serious: list[Finding], findings: list[Finding]) -> str:
    ending_kind = summary.ending.kind
    if ending_kind == "lost":
        return (
            f"lost: the recorder went silent after {_steps(summary)}; `gputop attach` takes the "
            "run up again"
        )
    if ending_kind in ("stopped", "terminated"):
        other_findings = [finding for finding in serious if finding.id != _EXIT]
        if other_findings:
            rest_text = _problem(other_findings, findings)
        else:
            rest_text = breakdown(summary)
        return f"{_stopped(summary)}; {rest_text}".removesuffix("; ")
    if ending_kind == "failed":
        serious = sorted(serious, key=lambda finding: not _ends_a_run(finding))
    if serious and serious[0].id == _EXIT:  # its title begins with the exit code
        return f"ended: {_steps(summary)}, {serious[0].title}"
    if summary.exit_code is None:
        how = "exit code unknown"
    else:
        how = f"exit {summary.exit_code}"
    if serious:
        text = _problem(serious, findings)
    else:
        text = breakdown(summary) or (_blind(summary) if summary.unseen else NO_STEP)
    return f"ended: {_steps(summary)}, {how}; {text}"


def _stopped(summary: RunSummary) -> str:
    """``stopped by you at step 383``; of a signal from outside also who sends one."""
    if summary.steps:
        at = f" at step {summary.steps:,}"
    else:
        at = " before the first step"
    if summary.ending.kind == "terminated":
        outside = " (a scheduler, `timeout` or `kill`)"
    else:
        outside = ""
    return f"{summary.ending.words}{at}{outside}"


def _ends_a_run(finding: Finding) -> bool:
    return finding.id in CATALOGUE and CATALOGUE[finding.id].cause in _OWN_ENDS


def _blind(summary: RunSummary) -> str:
    first, *other_ranks = summary.unseen
    more = f" (+{len(other_ranks)} more)" if other_ranks else ""
    return f"no step can be seen, as the agent is not in {first}{more}"


def _steps(summary: RunSummary) -> str:
    return counted(summary.steps, "step")
