"""Host and Python: a network that is asked for the rows of a batch one after the other."""

from __future__ import annotations

from statistics import median

from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.pictures import STEP_TIME, phases
from gputop_analysis.findings.registry import STRAGGLERS, Spec, finding
from gputop_analysis.findings.shares import everybody, on_device
from gputop_analysis.findings.told import Event, on_ranks
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.text import percent
from gputop_analysis.view import RunView

IN_ROWS, LARGE = 0.1, 0.3
"""Share of the step in such calls, and the one from which it is high."""
SURE_LOOKS = 2
SHORT_MS = 1.0
"""A longer call on a CPU has enough to compute: rows together take as long as rows in turn."""
WON_BACK, WON_BACK_AT_LEAST, WON_BACK_AT_MOST = 0.8, 0.45, 0.98
"""Of such calls on a CPU: 16 and 64 rows of two MLPs, an encoder and a GRU in turn and together, on
one core (0.47 to 0.98, in the median 0.84; two CNNs -0.1 to 0.2, but for one case).
"""


@finding(
    id="HO18",
    name="network asked row by row",
    family="host",
    cause="host",
    trigger="a module is called eight times or more in a step without a backward in between, each "
    f"time with another row of the same tensors, and this takes more than {percent(IN_ROWS)} of "
    f"the step; high above {percent(LARGE)}",
    fix="give the module all rows in one call",
    no_use="where rows differ in what is computed, or all of them do not fit into memory",
    reads="checkup events (row_calls, row_calls_ms, row_calls_at), steps.wall_ns",
    silent=f"on a CPU modules with convolutions and calls of more than {SHORT_MS:.0f} ms, which "
    "win nothing; rows that are copies; evaluations; fewer than two looks that found it",
    traps="a world or a recurrent cell that makes each row from the answer to the one before",
    seen_on=CPU,
    explained_by=STRAGGLERS,
    pictures=(phases("forward"), STEP_TIME),
)
def asked_row_by_row(view: RunView, spec: Spec) -> Finding | None:
    """A loop over a batch that calls the network for each row."""

    def of_rank(rank: int, looks: list[Event]) -> Finding | None:
        asking = [look for look in looks if look.get("row_calls")]
        if len(asking) < SURE_LOOKS or not looks[-1].get("row_calls"):
            return None
        on_cpu = not on_device(view, rank)
        calls = round(median(look["row_calls"] for look in asking))
        spent_ms = median(look["row_calls_ms"] for look in asking)
        wall_ms = view.per_rank[rank].mean_ms("wall_ns")
        if spent_ms <= IN_ROWS * wall_ms:
            return None
        if on_cpu and (asking[-1].get("row_calls_convolve") or spent_ms > SHORT_MS * calls):
            return None
        site = asking[-1].get("row_calls_at")
        return spec.make(
            severity="high" if spent_ms > LARGE * wall_ms else "medium",
            title=f"a network is asked for {calls} rows one by one" + (f": {site}" if site else ""),
            evidence=f"in {len(asking)} of {len(looks)} looks a module was called {calls} times "
            f"with one row each of the same tensors: {spent_ms:.1f} ms of {wall_ms:.1f} ms a step"
            + (f", at {site}" if site else ""),
            fix="call it once with all rows" + (f" in place of the loop at {site}" if site else ""),
            rank=everybody(view),
            site=site,
            confidence=0.8,
            recoverable_ms_per_step=WON_BACK * spent_ms if on_cpu else None,
            interval_ms_per_step=(WON_BACK_AT_LEAST * spent_ms, WON_BACK_AT_MOST * spent_ms)
            if on_cpu
            else None,
            proof=Proof(
                statistic="time in calls with one row each / step time",
                value=100 * spent_ms / wall_ms,
                threshold=100 * IN_ROWS,
                unit="%",
                formula=f"recoverable = {WON_BACK} x time in them = {WON_BACK * spent_ms:.3f} ms "
                "a step (by measured modules without convolutions)"
                if on_cpu
                else "what one call takes on this device was not measured",
                inputs=(
                    Input("calls", calls, "", f"checkup events, rank {rank}, median"),
                    Input("time in them", spent_ms, "ms", f"checkup events, rank {rank}, median"),
                    Input("step time", wall_ms, "ms", f"steps.wall_ns, rank {rank}"),
                ),
            ),
        )

    return on_ranks(view, "checkup", of_rank)
