"""``gputop probe train.py``: some real steps of a script, beside the trace of it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.fit.estimate_options import existing_file, given
from gputop.cli.notices import notice

if TYPE_CHECKING:
    from gputop_analysis.view import RunView

_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int64": 8, "int32": 4}


def probe_script(options: argparse.Namespace, arguments: list[str]) -> int:
    """Run the script under the recorder until its figures are stable, then trace it and compare.

    Returns:
        The script's own exit code where it failed; then nothing is compared.

    Raises:
        CliError: options of a setup beside a script, which says itself how it trains.
    """
    from gputop.cli.slow.run import watched

    script = existing_file(options.script)
    if unused := [f"--{name.replace('_', '-')}" for name in given(options)]:
        raise CliError(
            f"the script says itself how it trains: leave {', '.join(unused)} out; its own go "
            "after --"
        )
    python = options.python or sys.executable
    words = ["--headless", "--calibrate", "--timeout", str(options.timeout)]
    if options.device == "cpu":
        import os

        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the script inherits it
    code, run_dir = watched(
        [*words, "--", python, str(script), *arguments], output_to_stderr=options.json
    )
    return code or _compare(options, script, arguments, run_dir)


def _compare(options: argparse.Namespace, script: Path, arguments: list[str], run_dir: Path) -> int:
    from gputop.cli.fit.estimate_script import setup_of_log
    from gputop.cli.fit.probe_text import show
    from gputop.cli.records import open_record
    from gputop.script_tracing import trace_script
    from gputop_analysis.view import RunView
    from gputop_analysis.vram import question

    view = RunView(open_record(str(run_dir)))
    measured = measured_of(view)
    if measured is None:
        raise CliError(
            f"{script} made no step that could be measured: see `gputop report {run_dir.name}`"
        )
    notice(f"tracing {script} for what it is compared with")
    world = view.world_size if view.world_size > 1 else 0
    with cli_errors(ValueError):
        traced = trace_script(script.resolve(), arguments, options.python, world=world)
    if traced.log is None or traced.how != "ran":
        raise CliError(
            f"{script} ran, but a trace of it did not: `gputop estimate {script}` says why"
        )
    estimate = question.estimate(
        setup_of_log(traced, script, {}), "trace", log=traced.log, advice=False
    )
    show(estimate, traced.log, measured, options.json, str(script.resolve()))
    return 0


def measured_of(view: RunView) -> dict[str, Any] | None:
    """What a run tells of its memory, as a probe of a model would; None before its second step."""
    from gputop_analysis.vram.comparison import ENOUGH_STEPS, measured

    ranks = view.ranks
    hello = view.hello(ranks[0]) if ranks else None
    if not hello or view.per_rank[ranks[0]].total_steps() < ENOUGH_STEPS:
        return None
    model = hello.get("model") or {}
    peak = measured(view)
    return {
        "device": "cpu" if peak is None else "cuda",
        "gpu": None if peak is None else hello.get("device_name"),
        "weights_bytes": _size(model.get("by_dtype")) + int(model.get("buffer_bytes") or 0) or None,
        "gradients_bytes": _size(model.get("trainable_by_dtype")) or None,
        "peak_allocated_bytes": None if peak is None else peak.allocated,
        "peak_reserved_bytes": None if peak is None else peak.reserved,
        "versions": {"torch": str(hello.get("torch"))},
    }


def _size(values: Any) -> int:
    """Bytes of so many values by type."""
    return sum(_BYTES.get(name, 0) * count for name, count in (values or {}).items())
