"""One snapshot out of a record: the analysis and the app's own series put together."""

from __future__ import annotations

from gputop.feed.history import history
from gputop.feed.notices import notices
from gputop.feed.snapshot import Snapshot
from gputop.feed.timeline import timeline
from gputop.feed.window import short
from gputop.occasions import hang_of
from gputop.panels import PANELS, imported
from gputop_analysis.findings.registry import STANDING_STILL
from gputop_analysis.model import SEVERITIES, Finding
from gputop_analysis.summary import summarise
from gputop_analysis.text import counted
from gputop_analysis.verdict import verdict
from gputop_probes.record.reader import RunRecord


def devices(record: RunRecord) -> dict[int, tuple[str, int]]:
    """The GPU of each rank: by its UUID, which CUDA_VISIBLE_DEVICES cannot renumber, else by the
    index it gave; an added one by the rank that it was given to.
    """
    by_uuid: dict[str, tuple[str, int]] = {}
    by_rank: dict[int, tuple[str, int]] = {}
    for host, files in record.hosts.items():
        for gpu in files.state.gpus:
            if gpu.uuid:
                by_uuid[gpu.uuid] = (host, gpu.index)
            if gpu.added and gpu.rank is not None:
                by_rank[gpu.rank] = (host, gpu.index)
    some_host = next(iter(record.hosts), "")
    for rank in record.ranks():
        hello = record.hello(rank) or {}
        if not str(hello.get("device", "")).startswith("cuda"):
            continue
        location = _by_uuid(str(hello.get("device_uuid") or ""), by_uuid)
        index = hello.get("device_index")
        if location is None and isinstance(index, int) and index >= 0:
            location = (str(hello.get("host") or some_host), index)
        if location is not None:
            by_rank[rank] = location
    return by_rank


def _by_uuid(uuid: str, locations: dict[str, tuple[str, int]]) -> tuple[str, int] | None:
    """The GPU whose UUID contains what torch says of it, which lacks the prefix."""
    if not uuid:
        return None
    return next((location for full_uuid, location in locations.items() if uuid in full_uuid), None)


def by_worth(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """What stops the run first, then by what the fix wins back, what is worth knowing last."""

    def place(finding: Finding) -> tuple[int, float, int]:
        group = {"critical": 0, "info": 2}.get(finding.severity, 1)
        if finding.id == STANDING_STILL:
            group = 0
        return group, -(finding.recoverable_ms_per_step or 0.0), SEVERITIES.index(finding.severity)

    return tuple(sorted(findings, key=place))


def read_panels(record: RunRecord) -> dict[str, object]:
    """What panels show that no other one needs."""
    return {spec.id: imported(spec.reads)(record) for spec in PANELS if spec.reads}


def _damage(record: RunRecord) -> str:
    damage = record.damage
    if damage.rows:
        return f"{counted(damage.rows, 'damaged row')} left out"
    return "the record is damaged" if damage else ""


def build(
    record: RunRecord,
    findings: tuple[Finding, ...],
    *,
    window_steps: int,
    now_ns: int,
    ended: bool = False,
    settled: bool = True,
) -> Snapshot:
    """The snapshot of ``record`` as it is.

    Args:
        record: a refreshed record, or a cut of one.
        findings: what was found, already judged.
        window_steps: steps the summary looks back while the run goes on.
        now_ns: the moment that is shown.
        ended: sum up the whole run, where that can be done at once.
        settled: whether the findings were looked for long enough to call the run healthy.
    """
    complete = ended and short(record)
    summary = summarise(record, None if complete else window_steps, now_ns)
    states = [host.state for host in record.hosts.values()]
    return Snapshot(
        summary=summary,
        verdict=verdict(summary, list(findings), settled),
        findings=by_worth(findings),
        timeline=timeline(record, summary.ended_ns or now_ns),
        history=history(record),
        panels=read_panels(record),
        devices=devices(record),
        hang=hang_of(record),
        name=record.manifest.name,
        run_dir=record.path,
        recording=record.manifest.recording,
        gpu_note=next((s.gpu_note for s in states if s.gpu_note), ""),
        output_note=next((s.output_note for s in states if s.output_note), ""),
        damage=_damage(record),
        notices=notices(record),
        window_steps=None if complete else window_steps,
    )
