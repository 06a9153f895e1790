"""Ranks that wait for one of them, told long before it counts as a hang."""

from __future__ import annotations

from gputop_analysis.findings.advice import Fix
from gputop_analysis.findings.crash.hang_advice import advice_on
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import STACKS
from gputop_analysis.findings.registry import STANDING_STILL, Spec, finding
from gputop_analysis.hangs.cause import MISMATCHES, words_so_far
from gputop_analysis.hangs.episodes import Episode, newest_episode, standing_episode
from gputop_analysis.hangs.facts import cause_so_far
from gputop_analysis.hangs.standing import Cause
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import rank_list
from gputop_analysis.view import RunView

_FOR_GOOD = ("ended early", "died", "raised", "stopped", *MISMATCHES)
"""Kinds of which no waiting makes the others go on."""


@finding(
    id=STANDING_STILL,
    name="standing still",
    family="crash",
    cause="hang",
    trigger="no step for 8 s and three times the longest step, while ranks wait in a collective or "
    "for a message of one that is not there",
    fix="every rank must call the same collectives in the same order",
    explains=("HC09",),
    immediate=True,
    no_use="where one rank does by itself what takes long, and the others are to wait for it",
    reads="standing and stack_dump events, flight recorder",
    silent="one rank; ranks in eval, checkpoint or compile; a rank that does not answer; from the "
    "moment on that a hang is suspected (HC01), and once steps come again",
    traps="work that one rank does alone",
    seen_on=CPU,
    pictures=(STACKS,),
)
def standing_still(view: RunView, spec: Spec) -> Finding | None:
    """All but one rank wait for that one; it may yet come."""
    episode = standing_episode(view.record)
    if episode is None or _is_suspected_since(view, episode):
        return None
    cause = cause_so_far(view)
    if cause is None:
        return None
    suspected = episode.suspected
    silent_s = float(suspected.get("silent_s") or 0)
    limit_s = float(suspected.get("limit_s") or 0)
    for_good = cause.kind in _FOR_GOOD
    words = words_so_far(cause)
    ranks = rank_list(suspected.get("ranks") or [])
    return spec.make(
        severity="high",
        title=f"{words}; {cause.waiting}"[:140],
        evidence=f"no step for {silent_s:.0f} s (limit {limit_s:.0f} s); {cause.waiting}",
        fix=_fix(cause, suspected.get("threads") or [], for_good),
        rank=cause.rank,
        site=cause.site,
        confidence=cause.confidence if for_good else 0.7,
        proof=Proof(
            statistic="time without a step on the ranks that stand still",
            value=silent_s,
            threshold=limit_s,
            unit="s",
            formula="limit = max(8 s, 3 x longest step); where each rank is comes from its stack "
            "and its last collectives",
            inputs=(Input("ranks without a step", ranks, "", "standing.ranks"),),
        ),
    )


def _is_suspected_since(view: RunView, episode: Episode) -> bool:
    """Whether a hang was suspected after the look."""
    hang = newest_episode(view.record)
    looked_ns = int(episode.suspected.get("t_ns", 0))
    return hang is not None and int(hang.suspected.get("t_ns", 0)) >= looked_ns


def _fix(cause: Cause, threads: list[dict], for_good: bool) -> Fix:
    if for_good:
        thread = next((thread for thread in threads if thread.get("rank") == cause.rank), {})
        return advice_on(cause, thread)
    return (
        f"look at {cause.site or 'its stack'}: the others go on once it reaches "
        "the same call; what one rank does alone keeps all from training"
    )
