"""Against an earlier run of the same thing: what is set up differently, and the step at which the
losses part.

Only where the view has a baseline, as with ``gputop report --baseline``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gputop_analysis.findings.note import PAIR
from gputop_analysis.findings.registry import Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.view import RunView, once_per_view

if TYPE_CHECKING:
    from gputop_analysis.diff import Diff

NAMED = 3


@once_per_view
def _diff(view: RunView) -> Diff | None:
    if view.baseline is None or not view.ranks:
        return None
    from gputop_analysis.diff import compare  # which looks at findings itself

    return compare(view.baseline, view.record)


@finding(
    id="RE01",
    name="another environment than the baseline",
    family="reproducibility",
    cause="compute",
    trigger="versions, hardware, environment, switches or the number of ranks differ from the "
    "baseline; medium where the run is also surely 5 % slower",
    fix="put back what differs, one at a time, and compare again with `gputop diff`",
    no_use="where the difference is wanted",
    reads="hello and context of this run and of the baseline",
    silent="no baseline",
    traps="an upgrade that is intended",
    seen_on=PAIR,
)
def environment_drift(view: RunView, spec: Spec) -> Finding | None:
    """Two runs are compared that did not run in the same surroundings."""
    diff = _diff(view)
    if diff is None:
        return None
    drifted = [
        change
        for change in diff.changes
        if change.group == "environment" or change.name.startswith(("flags.", "world_size"))
    ]
    if not drifted:
        return None
    changes = "; ".join(f"{change.name}: {change.a} -> {change.b}"[:120] for change in drifted)
    if len(drifted) == 1:
        count = "one setting differs"
    else:
        count = f"{len(drifted)} settings differ"
    first = ", ".join(c.name for c in drifted[:NAMED])
    return spec.make(
        severity="medium" if diff.is_regression else "info",
        title=f"{count} from the baseline: {first}" + (", ..." if len(drifted) > NAMED else ""),
        evidence=f"against {diff.a_name}: {changes}",
        fix="put back what differs, one at a time, and compare again: "
        + ", ".join(c.name for c in drifted[:NAMED]),
        rank=everybody(view),
        proof=Proof(
            statistic="settings in which this run and the baseline differ",
            value=len(drifted),
            threshold=0,
            unit="settings",
            formula="hello and context of both runs, value by value; no time is claimed",
            inputs=tuple(
                Input(c.name, f"{c.a} -> {c.b}", "", "hello, host.json: context") for c in drifted
            ),
        ),
    )


@finding(
    id="RE04",
    name="the losses part",
    family="reproducibility",
    cause="compute",
    trigger="same seed, code and configuration as the baseline, but the losses of a step differ",
    fix="look at what that step does: its batch, an operation that adds in any order, TF32, "
    "another library version",
    no_use="where runs need not be repeatable",
    reads="the loss of both runs step by step",
    silent="no baseline; another configuration or seed",
    traps="TF32 and atomic adds",
    seen_on=PAIR,
)
def first_divergence(view: RunView, spec: Spec) -> Finding | None:
    """A run that ought to repeat the baseline does not, from one step on."""
    diff = _diff(view)
    loss = diff.loss if diff else None
    if diff is None or loss is None or loss.first_values is None or loss.same_seed is not True:
        return None
    if any(c.group != "environment" for c in diff.changes):
        return None
    a, b = loss.first_values
    title = f"the loss differs from the baseline's at step {loss.first_step:,}"
    if loss.equal_until is not None:
        title += f", equal at step {loss.equal_until:,}"
    apart = "never 0.1 % apart: rounding"
    if loss.first_visible_step is not None:
        apart = f"more than 0.1 % apart from step {loss.first_visible_step:,} on"
    read = f"rank {loss.rank}, {loss.compared:,} steps"
    return spec.make(
        severity="info",
        title=title,
        evidence=f"same seed and configuration as {diff.a_name}; step {loss.first_step:,}: "
        f"{a:.9g} there, {b:.9g} here; {apart}",
        fix=(
            f"look at step {loss.first_step:,}: its batch, operations that add in any order "
            "(torch.use_deterministic_algorithms(True) names them)",
            "TF32 on in one run and off in the other (torch.get_float32_matmul_precision())",
        ),
        rank=loss.rank,
        proof=Proof(
            statistic="first step at which the losses of both runs are not equal",
            value=float(loss.first_step or 0),
            threshold=float(loss.last_step),
            unit="step",
            formula="losses compared bit by bit at each step that both runs have; raised where one "
            "differs before the last",
            inputs=(
                Input("loss of the baseline", a, "", f"steps.loss or device.loss, {read}"),
                Input("loss of this run", b, "", f"steps.loss or device.loss, {read}"),
                Input("seed", "the same", "", "hello.flags.seed"),
            ),
        ),
    )
