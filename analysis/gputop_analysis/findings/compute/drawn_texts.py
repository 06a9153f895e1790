"""Compute efficiency: texts that are drawn without a cache of keys and values."""

from __future__ import annotations

import numpy as np

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import phases
from gputop_analysis.findings.registry import STRAGGLERS, Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.findings.told import Event, on_ranks
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

READ_AGAIN, LARGE = 0.1, 0.3
"""Share of the time, and the one from which it is high."""
LEAST_RUNS = 4
RUNS_FOR_INTERVAL = 6
"""Between the least and the largest of so many lies their median with 97 % (1 - 2 / 2**6)."""
AT_MOST = 0.9
"""Of the time of a text: with a cache each token is a call still."""


@finding(
    id="CE15",
    name="drawn without a cache",
    family="compute",
    cause="compute",
    trigger="a network without gradients is given its own texts again and again, each time one "
    f"token longer, and the tokens that it had read take more than {percent(READ_AGAIN)} of the "
    f"time in three of four texts; high above {percent(LARGE)}",
    fix="keep keys and values between two tokens",
    no_use="where the network can keep nothing between two tokens",
    reads="checkup events (drawn_ms, read_again_ms, drawn_steps, drawn_at), steps.wall_ns",
    silent=f"fewer than {LEAST_RUNS} texts in the steps after the looks; calls whose time does not "
    "grow with the length of the text, as where the host is the limit",
    traps="a text that is read whole once, as its prompt is",
    seen_on=CPU,
    explained_by=STRAGGLERS,
    pictures=(phases("forward", "eval"),),
)
def drawn_without_cache(view: RunView, spec: Spec) -> Finding | None:
    """A loop that gives the network the whole text for each token that it draws."""

    def of_rank(rank: int, looks: list[Event]) -> Finding | None:
        drawing = [look for look in looks if look.get("read_again_ms")]
        drawn_ms = np.array([ms for look in drawing for ms in look.get("drawn_ms") or ()])
        again_ms = np.array([ms for look in drawing for ms in look["read_again_ms"]])
        if len(again_ms) < LEAST_RUNS or len(again_ms) != len(drawn_ms):
            return None
        steps = sum(look.get("drawn_steps") or 1 for look in drawing)
        a_step_ms = np.minimum(again_ms, AT_MOST * drawn_ms) * len(again_ms) / steps
        wall_ms = view.per_rank[rank].mean_ms("wall_ns")
        if float(np.quantile(a_step_ms, 0.25)) <= READ_AGAIN * wall_ms:
            return None
        won_ms, site = float(np.median(a_step_ms)), drawing[-1].get("drawn_at")
        tokens = round(float(np.median([look.get("drawn_tokens") or 0 for look in drawing])))
        return spec.make(
            severity="high" if won_ms > LARGE * wall_ms else "medium",
            title="each token that is drawn has the network read the whole text again"
            + (f": {site}" if site else ""),
            evidence=f"texts were drawn {len(again_ms)} times in {steps} steps, {tokens} tokens or "
            f"so in {np.median(drawn_ms):,.0f} ms, of which {np.median(again_ms):,.0f} ms went "
            "into tokens that the call before had read: "
            f"{won_ms:.1f} ms of {wall_ms:.1f} ms a step" + (f", at {site}" if site else ""),
            fix="keep keys and values between two tokens: generate(..., use_cache=True), and no "
            "gradient checkpointing while it draws, which switches the cache off in training mode; "
            "a network of your own needs a cache, or a state that it goes on from",
            rank=everybody(view),
            site=site,
            confidence=0.8,
            recoverable_ms_per_step=won_ms,
            interval_ms_per_step=(max(0.0, float(a_step_ms.min())), float(a_step_ms.max()))
            if len(again_ms) >= RUNS_FOR_INTERVAL
            else None,
            proof=Proof(
                statistic="time of tokens that were read before / step time, lower quartile of "
                "the texts",
                value=100 * float(np.quantile(a_step_ms, 0.25)) / wall_ms,
                threshold=100 * READ_AGAIN,
                unit="%",
                formula="recoverable = median over texts of slope x (tokens read - calls), at most "
                f"{percent(AT_MOST)} of the text's time, x texts a step; slope: least squares of "
                "the time from one call to the next over the tokens that it read",
                inputs=(
                    Input("texts", len(again_ms), "", f"checkup events, rank {rank}"),
                    Input("steps followed", steps, "", f"checkup events, rank {rank}"),
                    Input("step time", wall_ms, "ms", f"steps.wall_ns, rank {rank}"),
                ),
            ),
        )

    return on_ranks(view, "checkup", of_rank)
