"""Evidence as text: the verdict, what was seen, the pictures, what cannot be known."""

from __future__ import annotations

from collections.abc import Iterator

from gputop_analysis.evidence.model import Evidence
from gputop_analysis.snapshots.text import as_text as memory_text
from gputop_analysis.snapshots.text import wrapped
from gputop_analysis.stragglers import StragglerJudgement
from gputop_analysis.text import bar, paragraphs, rank_list

_LEVELS = " .:-=+*#%@"
_SHOWN = 8


def as_text(evidence: Evidence, width: int, fancy: bool = False) -> str:
    """All of it, at most ``width`` columns wide."""
    parts = [wrapped(_verdict(evidence), width), wrapped(evidence.findings, width)]
    parts += [list(_devices(evidence, width, fancy))]
    if evidence.what_if is not None:
        parts += [list(_heat_map(evidence.what_if)), list(_operations(evidence.what_if))]
    if evidence.memory is not None:
        parts.append(memory_text(evidence.memory, width, fancy).splitlines())
    if evidence.fixes:
        parts.append(["what to do, and what it is worth at most:"])
        parts[-1] += wrapped((f"- {fix.fix}: {fix.worth}" for fix in evidence.fixes), width)
    if evidence.unknown:
        parts.append(["cannot be known from this:"])
        parts[-1] += wrapped((f"- {sentence}" for sentence in evidence.unknown), width)
    return paragraphs(parts, width)


def _verdict(evidence: Evidence) -> Iterator[str]:
    files = evidence.files[0]
    if len(evidence.files) > 1:
        files += f" and {len(evidence.files) - 1} more"
    yield f"{evidence.kind}: {files}"
    verdict = evidence.cause
    if evidence.rank is not None:
        verdict += f", {rank_list(evidence.ranks or (evidence.rank,))}"
    if evidence.host:
        verdict += f" on {evidence.host}"
    if evidence.slowdown is not None:
        verdict += f", slowdown x{evidence.slowdown:.2f}"
    yield verdict


def _devices(evidence: Evidence, width: int, fancy: bool) -> Iterator[str]:
    room = max(6, min(24, width - 60))
    for device in evidence.devices:
        wall = device.busy_ms + device.idle_ms
        rank = "" if device.rank is None else f"rank {device.rank}, "
        yield f"{rank}{device.name}: {wall:,.1f} ms, busy {device.busy_ms:,.1f} ms"
        parts = {
            "compute": device.compute_ms,
            "communication, exposed": device.exposed_communication_ms,
            "copy, exposed": device.copy_ms,
            "idle": device.idle_ms,
        }
        for name, value in parts.items():
            share = value / wall if wall else 0.0
            line = f"  {name:<24}{value:>12,.2f} ms{share * 100:>6.1f} %  {bar(share, room, fancy)}"
            yield line.rstrip()
        yield f"  {'communication, all':<24}{device.communication_ms:>12,.2f} ms"


def _heat_map(what_if: StragglerJudgement) -> Iterator[str]:
    """Slowdown of each worker, data-parallel ranks down and stages across."""
    timeline = what_if.timeline
    worst = max(what_if.by_worker.values(), default=1.0)
    yield "slowdown by worker (rows: data-parallel rank, columns: pipeline stage)"
    yield "       " + "".join(f"{stage:>9}" for stage in range(min(timeline.stages, 10)))
    for dp in range(min(timeline.dp, 64)):
        cells = ""
        for stage in range(min(timeline.stages, 10)):
            slowdown = what_if.by_worker.get(timeline.ranks.get((dp, stage), -1), 1.0)
            span = max(worst - 1.0, 0.05)
            level = min(len(_LEVELS) - 1, max(0, int((slowdown - 1.0) / span * (len(_LEVELS) - 1))))
            cells += f"  {_LEVELS[level]} {slowdown:5.2f}"
        yield f"  {dp:>4} {cells}"


def _operations(what_if: StragglerJudgement) -> Iterator[str]:
    yield "slowdown by stage and by operation, each alone as it was and all else ordinary"
    for stage, slowdown in list(what_if.by_stage.items())[:_SHOWN]:
        yield f"  stage {stage:<26}{slowdown:>8.3f}"
    for name, slowdown in list(what_if.by_operation.items())[:_SHOWN]:
        yield f"  {name:<32}{slowdown:>8.3f}"
