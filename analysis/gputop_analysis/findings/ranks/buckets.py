"""Buckets of DDP that are too small to carry anything."""

from __future__ import annotations

from gputop_analysis.findings.dialect import phrase
from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.note import CPU
from gputop_analysis.findings.registry import STRAGGLERS, Spec, finding
from gputop_analysis.findings.shares import everybody
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.view import RunView

SMALL_CAP_BYTES = 256 << 10
"""No link is so quick that a message of less is worth its start."""
MANY_BUCKETS = 8


@finding(
    id="CR16",
    name="buckets too small",
    family="ranks",
    cause="comm",
    trigger=f"bucket_cap_mb below 0.25, and {MANY_BUCKETS} buckets or more of less than that in "
    "the mean",
    fix="bucket_cap_mb=25, the default",
    no_use="where gradients are as large as a bucket each",
    reads="ddp event: bucket_cap_bytes and the sizes of the buckets as rebuilt",
    silent="FSDP, DeepSpeed; before the buckets are rebuilt",
    traps="a model of a few kilobytes, which has one bucket",
    seen_on=CPU,
    explained_by=STRAGGLERS,
)
def small_buckets(view: RunView, spec: Spec) -> Finding | None:
    """Each bucket is an all-reduce of its own, and its start takes longer than its bytes."""
    events = [event for event in view.record.events("ddp") if event.get("bucket_bytes")]
    if not events:
        return None
    sizes, cap = events[-1]["bucket_bytes"], events[-1].get("bucket_cap_bytes") or SMALL_CAP_BYTES
    mean = sum(sizes) / len(sizes)
    if cap >= SMALL_CAP_BYTES or len(sizes) < MANY_BUCKETS or mean >= SMALL_CAP_BYTES:
        return None
    needed = max(1, round(sum(sizes) / (25 << 20)))
    return spec.make(
        severity="medium",
        title=f"DDP sums gradients in {len(sizes)} buckets of {mean / 1e3:,.0f} kB, where {needed} "
        "would do",
        evidence=f"bucket_cap_mb={cap / (1 << 20):.4g} splits {sum(sizes) / 1e6:,.2f} MB of "
        f"gradients into {len(sizes)} all-reduces in each backward; each has a start of its own, "
        f"and below {SMALL_CAP_BYTES >> 10} KiB the start takes longer than the bytes",
        fix=phrase(Facts(view, view.ranks[0]), "bucket", size=25),
        rank=everybody(view),
        confidence=0.9,
        proof=Proof(
            statistic="buckets of a backward",
            value=len(sizes),
            threshold=MANY_BUCKETS - 1,
            unit="buckets",
            formula="no time is claimed: what the starts cost beside the backward is not measured",
            inputs=(
                Input("bucket_cap_mb", cap / (1 << 20), "MiB", "ddp event, bucket_cap_bytes"),
                Input("gradients", sum(sizes) / 1e6, "MB", "ddp event, bucket_bytes"),
            ),
        ),
    )
