"""What to do about what a recording shows, and what that is worth at most."""

from __future__ import annotations

from collections.abc import Iterator

from gputop_analysis.evidence.devices import TracedDevice
from gputop_analysis.evidence.model import Evidence, Fix
from gputop_analysis.snapshots.analyse import Memory
from gputop_analysis.snapshots.text import size
from gputop_analysis.stragglers import StragglerJudgement

_NOTABLE = 0.05
"""Share of the time, or of the memory, from which on a fix is worth a word."""
_BUBBLE = 0.1


def fixes(evidence: Evidence) -> list[Fix]:
    """Of the device that loses most, the slow rank, the stages, the memory: each kind's largest."""
    advised = list(_of_devices(evidence.devices))
    if evidence.what_if is not None:
        advised += _of_stages(evidence.what_if)
    elif evidence.rank is not None and evidence.slowdown is not None:
        where = f" on {evidence.host}" if evidence.host else ""
        text = f"look at rank {evidence.rank}{where}: its data, its GPU's clocks, its neighbours"
        advised.insert(0, Fix(text, f"up to x{evidence.slowdown:.2f}"))
    if evidence.memory is not None:
        advised += _of_memory(evidence.memory)
    return advised


def _of_devices(devices: list[TracedDevice]) -> Iterator[Fix]:
    """By kind of loss, for the device that loses most by it."""
    kinds = {
        "idle_ms": "feed the GPU: more loader workers, fewer synchronisations (.item(), .cpu()), "
        "torch.compile or CUDA graphs where kernels are short",
        "exposed_communication_ms": "hide communication behind compute: larger buckets, gradient "
        "accumulation with no_sync, FSDP prefetch, a faster link",
        "copy_ms": "copy beside compute: pin_memory=True and non_blocking=True",
    }
    for name, text in kinds.items():
        shares = [(_share(traced, name), traced) for traced in devices]
        share, device = max(shares, key=lambda pair: pair[0], default=(0.0, None))
        if device is not None and _NOTABLE <= share < 1:
            worth = f"up to x{1 / (1 - share):.2f} ({getattr(device, name):,.1f} ms, {device.name})"
            yield Fix(text, worth)


def _share(device: TracedDevice, name: str) -> float:
    wall = device.busy_ms + device.idle_ms
    return float(getattr(device, name)) / wall if wall > 0 else 0.0


def _of_stages(what_if: StragglerJudgement) -> Iterator[Fix]:
    lost_s = what_if.step_s - what_if.ideal_s
    for share, text in (
        (what_if.worker_share, f"mend or replace worker {what_if.rank}, and those beside it"),
        (
            what_if.last_stage_share,
            "give the last stage fewer layers: the loss and the head are its",
        ),
    ):
        named = what_if.rank is not None or not text.startswith("mend")
        if named and share * lost_s >= _NOTABLE * what_if.step_s:
            after_s = what_if.step_s - share * lost_s
            worth = (
                f"x{what_if.step_s / after_s:.2f} ({share * lost_s:.2f} s of {what_if.step_s:.2f})"
            )
            yield Fix(text, worth)
    widest = max(what_if.bubbles, default=0.0)
    if len(what_if.bubbles) > 1 and widest >= _BUBBLE:
        yield Fix(
            "more micro-batches a step, or an interleaved or zero-bubble schedule",
            f"a part of the bubble, {100 * widest:.0f} % of the step at most",
        )


def _of_memory(memory: Memory) -> Iterator[Fix]:
    """The setting that would have reserved least."""
    recorded = memory.baseline
    reserved_by_setting = [
        (setting.peak_reserved, setting.name)
        for setting in memory.tried
        if setting.peak_reserved is not None
    ]
    if not recorded or not reserved_by_setting:
        return
    lowest, name = min(reserved_by_setting)
    if recorded - lowest >= _NOTABLE * recorded:
        yield Fix(f"run with {name}", f"{size(recorded - lowest)} of {size(recorded)} reserved")
