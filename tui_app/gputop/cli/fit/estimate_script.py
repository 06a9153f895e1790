"""``gputop estimate train.py``: the memory of a user's own script."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.fit.estimate_options import existing_file, given
from gputop.cli.named import gpu_named
from gputop.cli.notices import notice

if TYPE_CHECKING:
    from gputop.script_tracing import ScriptTrace
    from gputop_analysis.vram.estimate import Estimate
    from gputop_analysis.vram.eventlog import EventLog
    from gputop_analysis.vram.levers import Lever
    from gputop_analysis.vram.setup import Setup

_HOW = {
    "ran": "its code ran on fake tensors to the second optimizer step",
    "module": "its code could not be run to an optimizer step: a model class of it was built and "
    "trained by itself",
    "source": "only its source was read: it names the model",
}
_NAMED = "it tells no model, so --model does; its source says how it is trained"
_NOT_USED = (
    "not used, since the script itself says how it trains: {options}; its own arguments go after --"
)
_OF_ANY_SCRIPT = ("dp", "allocator")
_SAID = (("seq", "sequence length"), ("micro_batch", "micro-batch"), ("dtype", "number format"))
_ASSUMED = "no {name} is said in the source: {value} is assumed, --{option} sets it"


def estimate_script(options: argparse.Namespace, arguments: list[str]) -> Estimate:
    """The estimate of a script; stderr tells what is done with it.

    Raises:
        CliError: nothing about it could be found out; the message ends with what was tried.
    """
    from gputop.script_tracing import trace_script

    script = existing_file(options.script)
    if not options.python:
        _require_python(script)
    if options.no_execute:
        notice(f"only reading {script}; nothing of it runs")
    else:
        notice(
            f"running the code of {script} on fake tensors: in an empty folder, without "
            "GPU and network; --no-execute only reads it"
        )
    values = given(options)
    world = int(values.get("dp") or 0)
    with cli_errors(ValueError):
        traced = trace_script(
            script.resolve(), arguments, options.python, world=world, execute=not options.no_execute
        )
    if traced.traceback and traced.how != "ran" and not traced.syntax_error:
        print(traced.traceback.rstrip(), file=sys.stderr)
    if traced.log is not None:
        return _of_log(traced, script, values, options)
    if traced.pretrained:
        return _of_source(traced, script, values, options)
    if options.model:
        named = replace(traced, pretrained=(options.model,))
        return _of_source(named, script, values, options, f"{_NAMED} ({_tried(traced)})")
    raise CliError(_nothing(traced, script, options.no_execute))


def _require_python(script: Path) -> None:
    """Refuse what this interpreter cannot parse, before anything is begun.

    Raises:
        CliError: it is no Python source, or cannot be read.
    """
    from gputop_analysis.lint.source import parsed

    try:
        parsed(script.read_bytes(), str(script))
    except OSError as error:
        raise CliError(f"cannot read {script}: {error.strerror}") from None
    except SyntaxError as error:
        where = f"line {error.lineno}: " if error.lineno else ""
        raise CliError(f"{script} cannot be parsed: {where}{error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise CliError(f"{script} cannot be parsed: {error or type(error).__name__}") from None


def _nothing(script_trace: ScriptTrace, script: Path, only_read: bool) -> str:
    """Why there is no estimate, and what would help."""
    if script_trace.syntax_error:
        return f"{script} cannot be parsed: {script_trace.syntax_error}"
    if only_read:
        return (
            f"the source of {script} names no model: leave --no-execute out, or name the model "
            "with --model"
        )
    return (
        f"nothing to estimate in {script}: {_tried(script_trace)}; mend that, or name the model "
        "with --model"
    )


def _tried(script_trace: ScriptTrace) -> str:
    """What came of each way, as parts of one sentence."""
    return (
        "; ".join(
            _sentence(attempt.get("way", ""), attempt.get("outcome", ""))
            for attempt in script_trace.tried
        )
        or "only read"
    )


def _sentence(way: str, outcome: str) -> str:
    if way == "ran" and not outcome.startswith("its "):
        start = "it"
    elif way == "source":
        start = "its source"
    else:
        start = ""
    return f"{start} {outcome}".lstrip()


def _of_log(
    script_trace: ScriptTrace, script: Path, values: dict[str, Any], options: argparse.Namespace
) -> Estimate:
    from gputop_analysis.vram.fits import usable
    from gputop_analysis.vram.question import estimate
    from gputop_analysis.vram.recalibrated import recalibrated

    assert script_trace.log is not None
    setup = setup_of_log(script_trace, script, values)
    capacity = usable(gpu_named(options.gpu), setup) if options.gpu else None
    answer = estimate(setup, "trace", capacity, log=script_trace.log, gpu=options.gpu, advice=False)
    if not options.no_calibration:
        answer = recalibrated(answer, _measured(script), options.gpu, advice=False)
    notes = (
        f"{script.name}: {_HOW.get(script_trace.how, script_trace.how)}",
        *_unused(values),
        *answer.notes,
    )
    guessed = _guessed(script_trace)
    return replace(
        answer,
        guessed=guessed,
        notes=tuple(dict.fromkeys(notes)),
        levers=_levers(answer, script_trace.log),
    )


def _guessed(script_trace: ScriptTrace) -> tuple[str, ...]:
    """What is not the script's own, and why it could not be."""
    if script_trace.how == "ran":
        return script_trace.guessed
    outcomes = (
        attempt.get("outcome", "") for attempt in script_trace.tried if attempt.get("way") == "ran"
    )
    failed = next(outcomes, "")
    if not failed:
        return script_trace.guessed
    return (*script_trace.guessed, f"since {_sentence('ran', failed)}")


def setup_of_log(script_trace: ScriptTrace, script: Path, values: dict[str, Any]) -> Setup:
    """What is known of the setup: enough for the context, NCCL and the allocator."""
    from gputop_analysis.parallelism.split import Split
    from gputop_analysis.vram.setup import ModelShape, Setup

    assert script_trace.log is not None
    world = int(script_trace.log.meta.get("world") or 1)
    layout = Split(dp=world, sharding="ddp" if world > 1 else "none")
    setup = Setup(ModelShape(name=script.name, source=str(script)), parallel=layout)
    return setup.but(allocator=str(values.get("allocator", "")))


def _levers(answer: Estimate, log: EventLog) -> tuple[Lever, ...]:
    """What changes nothing of the script itself can be played again: another allocator."""
    from gputop_analysis.vram.levers import WORTH, Lever
    from gputop_analysis.vram.replay import EXPANDABLE, Replay

    if answer.setup.allocator:
        return ()
    share = Replay(log, EXPANDABLE).reserved() / Replay(log).reserved()
    reserved = round(answer.peak.reserved * share)
    saves = answer.peak.reserved - reserved
    changed = answer.setup.but(allocator="expandable_segments:True")
    if saves >= WORTH:
        return (Lever("expandable segments", changed, reserved, saves),)
    return ()


def _measured(script: Path) -> list[dict[str, Any]]:
    """What a probe of this very file measured."""
    from gputop.calibration import recall

    return [{**record, "model": script.name} for record in recall(str(script.resolve()))]


def _unused(values: dict[str, Any]) -> list[str]:
    """Options of a setup beside a script that was run: how it trains is its own business."""
    named = [f"--{name.replace('_', '-')}" for name in values if name not in _OF_ANY_SCRIPT]
    return [_NOT_USED.format(options=", ".join(named))] if named else []


def _of_source(
    script_trace: ScriptTrace,
    script: Path,
    values: dict[str, Any],
    options: argparse.Namespace,
    how: str = _HOW["source"],
) -> Estimate:
    """By the model that the source names, or the user beside it, trained as the source says."""
    from_source = _options_said(script_trace)
    trouble = ""
    for name in script_trace.pretrained:
        try:
            setup = _said_of(name, from_source, values)
        except (LookupError, ValueError) as error:
            trouble = trouble or str(error).partition("; the nearest names")[0]
            continue
        result = _answered(setup, options)
        unsaid = [pair for pair in _SAID if pair[0] not in from_source and pair[0] not in values]
        note = f"{script.name}: {how}, {name}; the {result.peak.tier} tier answers"
        guessed = ["read from its source, not run"]
        guessed += [f"{label} {getattr(setup, field)}" for field, label in unsaid]
        return replace(
            result,
            guessed=(*guessed, *_guessed(script_trace)),
            notes=(*result.notes, note, *_assumed(setup, unsaid, from_source, values)),
        )
    raise CliError(_nothing_known(script_trace, script, trouble))


def _options_said(script_trace: ScriptTrace) -> dict[str, Any]:
    """What the source says of its training, by the names of the estimate's options."""
    from gputop_analysis.vram.options import OPTION

    from_source = {}
    for name, value in script_trace.options.items():
        option = "quant" if name == "quantized" else name
        if option in OPTION:
            from_source[option] = value
    if from_source.get("quant") and not from_source.get("lora_rank"):
        from_source["lora_rank"] = 16  # quantised weights are trained by adapters only
    return from_source


def _answered(setup: Setup, options: argparse.Namespace) -> Estimate:
    from gputop.api import answer

    tier = None if options.tier == "trace" else options.tier
    with cli_errors(ValueError, LookupError):
        return answer(setup, tier, options.gpu, calibrate=not options.no_calibration)


def _assumed(
    setup: Setup, unsaid: list[tuple[str, str]], from_source: dict[str, Any], values: dict[str, Any]
) -> list[str]:
    """What neither the source nor the user says, and what is taken for it; a note each."""
    notes = []
    for field, label in unsaid:
        option = field.replace("_", "-")
        notes.append(_ASSUMED.format(name=label, value=getattr(setup, field), option=option))
    if setup.lora and "lora_targets" not in values:
        targets = ",".join(setup.lora.targets)
        if setup.lora.targets != tuple(from_source.get("lora_targets") or ()):
            notes.append(
                _ASSUMED.format(name="layer with adapters", value=targets, option="lora-targets")
            )
    return notes


def _nothing_known(script_trace: ScriptTrace, script: Path, trouble: str) -> str:
    reasons = []
    for attempt in script_trace.tried:
        if attempt.get("way") == "ran":
            reasons.append(_sentence("ran", attempt.get("outcome", "")))
    names = ", ".join(script_trace.pretrained)
    reasons.append(f"it names {names}, which is not known here ({trouble})")
    return (
        f"nothing to estimate in {script}: {'; '.join(reasons)}; mend that, or name the "
        "model with --model"
    )


def _said_of(name: str, from_source: dict[str, Any], values: dict[str, Any]) -> Setup:
    """The model as the source trains it. Of modules that get adapters the catalog may not know the
    names.

    Raises:
        LookupError, ValueError: no such model, or options that cannot be.
    """
    from gputop.models import resolve
    from gputop_analysis.vram.options import setup_of
    from gputop_analysis.vram.rules import check

    setup = setup_of(resolve(name), {**from_source, **values})
    if "lora_targets" in from_source and "lora_targets" not in values:
        try:
            check(setup)
        except ValueError:
            from_source = {
                option: value for option, value in from_source.items() if option != "lora_targets"
            }
            return setup_of(setup.model, {**from_source, **values})
    return setup
