"""A trial's result under stable names: whether it works, time, memory, estimate, plan."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputop_analysis.units import GIB
from gputop_probes.record.files import tail_text
from gputop_probes.record.layout import OUTPUT_FILES

if TYPE_CHECKING:
    from gputop_analysis.trial import Failure, Trial
    from gputop_probes.record.reader import RunRecord

_LAST_BYTES, _LAST_COLUMNS = 4096, 200


def as_data(
    trial: Trial, record: RunRecord, *, code: int, stopped: str, gpu: str, wanted: int
) -> dict[str, Any]:
    """The whole answer.

    Args:
        trial: what was seen.
        record: of the run.
        code: the command's exit code.
        stopped: why it was ended from outside; empty where it ended by itself.
        gpu: the GPU that is planned for; empty: the one that it ran on.
        wanted: steps that were asked for.
    """
    ok, verdict_text = verdict(trial, record, code, stopped, wanted)
    on_gpu = _known(trial.device)
    return {
        "ok": ok,
        "said": verdict_text,
        "steps": trial.steps,
        "ranks": len(trial.ranks),
        "world_size": trial.world,
        "device": trial.device or None,
        "layers": {"ran": trial.layers[0], "of": trial.layers[1]} if trial.layers else None,
        "not_cut_to_layers": trial.not_cut or None,
        "exit_code": code,
        "failure": _failure(trial.failure),
        "critical": _critical(trial),
        "timing": _timing(trial),
        "memory": [{**holder._asdict()} for holder in trial.held],
        "estimate": _estimate(trial, gpu or on_gpu),
        "plan": _plan(trial, gpu, on_gpu),
        "stored": _store(record) if ok and trial.layers is None else "",
        "corrects_plan": ok and _corrects(record),
        "run": _name(record),
    }


def verdict(
    trial: Trial, record: RunRecord, code: int, stopped: str, wanted: int
) -> tuple[bool, str]:
    """Whether every rank made its steps, and the sentence that says what happened."""
    if trial.failure is not None:
        return False, _failed(trial.failure)
    if not trial.ranks:
        return False, _no_step(record, code, stopped)
    missing = sorted(set(range(trial.world)) - set(trial.ranks))
    if missing:
        return False, f"rank {', '.join(map(str, missing))} of {trial.world} made no step"
    if stopped and trial.timing is None:
        return False, f"stopped after {stopped}"
    if code and not stopped:
        last = _last_line(record)
        return False, f"exit code {code} after {trial.steps} steps; the last line: {last}"
    if trial.critical is not None:
        return False, f"{trial.critical.title} ({trial.critical.id}): {trial.critical.fix}"
    return True, _succeeded(trial, stopped, wanted)


def _no_step(record: RunRecord, code: int, stopped: str) -> str:
    words = f"the command ended with exit code {code}"
    if stopped:
        words = f"stopped after {stopped}"
    words += " and made no training step"
    last = _last_line(record) if code or stopped else ""
    return f"{words}; its last line: {last}" if last else words


def _succeeded(trial: Trial, stopped: str, wanted: int) -> str:
    words = f"{trial.steps} steps"
    if trial.world > 1:
        words += f" on each of {trial.world} ranks"
    if trial.steps < wanted and not stopped:
        words += ", then the script ended by itself"
    words += ": forward, backward and optimizer work"
    if stopped:
        words += f"; then stopped: {stopped}"
    if trial.doubt:
        words += f"; but {trial.doubt}"
    return words


def _failed(failure: Failure) -> str:
    from gputop_analysis.trial import PHASES_OF_A_STEP

    if failure.phase in PHASES_OF_A_STEP:
        where = f"in {failure.phase}"
    else:
        where = f"outside the model ({failure.phase})"
    where += f" at step {failure.step}" + (f", {failure.site}" if failure.site else "")
    if failure.out_of_memory:
        module = f", in {failure.module}" if failure.module else ""
        return f"rank {failure.rank} runs out of GPU memory {where}{module}"
    return f"rank {failure.rank} fails {where}: {failure.kind}: {failure.message}"[:400]


def _failure(failure: Failure | None) -> dict[str, Any] | None:
    if failure is None:
        return None
    return {**failure._asdict(), "later_ranks": list(failure.later_ranks)}


def _critical(trial: Trial) -> dict[str, Any] | None:
    finding = trial.critical
    if finding is None:
        return None
    return {
        "id": finding.id,
        "title": finding.title,
        "evidence": finding.evidence,
        "fix": finding.fix,
    }


def _timing(trial: Trial) -> dict[str, Any] | None:
    timing = trial.timing
    if timing is None:
        return None
    return {
        "timed_steps": timing.steps,
        "step_time_p50_ms": timing.step_ms,
        "first_step_ms": timing.first_step_ms,
        "phases_mean_ms": timing.phases_ms,
        "tokens_per_s": timing.tokens_per_s,
        "samples_per_s": timing.samples_per_s,
    }


def _estimate(trial: Trial, gpu: str) -> dict[str, Any] | None:
    """Of the whole model; with what was measured where that ran on a GPU."""
    from gputop.api import answer

    if trial.setup is None:
        return None
    try:
        estimated = answer(trial.setup, gpu=gpu, advice=False)
    except (ValueError, LookupError):
        return None
    if trial.layers is None:
        measured = max((holder.allocated_gib or 0.0 for holder in trial.held), default=0.0)
    else:
        measured = 0.0
    allocated = estimated.peak.allocated / GIB
    return {
        "model": trial.setup.model.name,
        "tier": estimated.peak.tier,
        "peak_allocated_gib": allocated,
        "device_total_gib": estimated.device_total / GIB,
        "gpu": gpu or None,
        "fits": estimated.runs_in_capacity,
        "smallest_gpu": next((fit.gpu for fit in estimated.fits if fit.fits), None),
        "measured_allocated_gib": measured or None,
        "off_pct": 100 * (measured / allocated - 1) if measured and allocated else None,
    }


def _plan(trial: Trial, gpu: str, on_gpu: str) -> dict[str, Any] | None:
    """The step that the planner predicts for this split, and how far it is off if measured."""
    from gputop_analysis.planner.choices import PARTS
    from gputop_analysis.planner.hardware import cluster
    from gputop_analysis.planner.measured import predicted

    name = gpu or on_gpu
    if trial.setup is None or not name:
        return None
    try:
        parts = predicted(trial.setup, cluster(name, trial.setup.parallel.world))
    except (ValueError, LookupError):
        return None
    step_ms = 1e3 * float(parts.seconds[0])
    here = trial.timing if trial.layers is None and name == on_gpu else None
    return {
        "gpu": name,
        "gpus": trial.setup.parallel.world,
        "step_time_ms": step_ms,
        "parts_ms": {part: 1e3 * float(getattr(parts, part)[0]) for part in PARTS},
        "off_pct": 100 * (here.step_ms / step_ms - 1)
        if here and math.isfinite(here.step_ms)
        else None,
    }


def _known(device: str) -> str:
    """The catalog's name of the device it ran on; empty for a CPU and unknown ones."""
    from gputop_analysis.catalog import find_gpu

    spec = find_gpu(device) if device else None
    return spec.name if spec else ""


def _store(record: RunRecord) -> str:
    """Keep its measurements for later estimates; says so, or why not; empty without any."""
    from gputop.feed.prediction import remember_run

    try:
        return remember_run(record)
    except OSError as error:
        return f"what it measured was not kept: {error.strerror or error}"


def _corrects(record: RunRecord) -> bool:
    """Whether it is long enough, on a GPU of the catalog, for ``gputop plan --run``."""
    from gputop_analysis.planner.measured import from_run, measured_run
    from gputop_analysis.view import RunView

    try:
        run = measured_run(RunView(record))
        return run is not None and from_run(run).rows > 0
    except (ValueError, LookupError):
        return False


def _name(record: RunRecord) -> str:
    from gputop_probes.runs import shell_name

    return shell_name(record.path)


def _last_line(record: RunRecord) -> str:
    """Of stderr where that is apart, else of all output."""
    for host in record.hosts.values():
        for name in OUTPUT_FILES:
            if lines := _tail(host.path / name):
                return lines[-1][:_LAST_COLUMNS]
    return ""


def _tail(path: Path) -> list[str]:
    lines = tail_text(path, _LAST_BYTES).splitlines()
    return [line.strip() for line in lines if line.strip()]
