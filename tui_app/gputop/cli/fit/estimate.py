"""``gputop estimate``: how much GPU memory a training needs, before it runs."""

from __future__ import annotations

import argparse
import gc
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gputop.cli.errors import ENVIRONMENT, CliError, cli_errors
from gputop.cli.fit import estimate_refined
from gputop.cli.fit.estimate_options import (
    add_options,
    existing_file,
    given,
    refuse_beside,
    refuse_idle,
)
from gputop.cli.named import gpu_named, model_of
from gputop.cli.notices import notice, notice_runs_code
from gputop.cli.parsing import Parser, split_at_dashes
from gputop.cli.working import working

if TYPE_CHECKING:
    from gputop_analysis.view import RunView
    from gputop_analysis.vram.estimate import Estimate
    from gputop_analysis.vram.setup import ModelShape, Setup

_USAGE = """gputop estimate --model NAME|PATH|MODULE:FACTORY [options] [--json]
       gputop estimate --model NAME --gpus 2xA100 [options]    (as gputop fit)
       gputop estimate train.py [options] [-- ARGUMENTS OF THE SCRIPT]
       gputop estimate --run RUN [options]
       gputop estimate --csv FILE [--json]
       gputop estimate                       (the estimator screen)"""


def execute(words: list[str]) -> int:
    """Print an estimate, or open the screen where nothing is asked."""
    gc.disable()  # a tenth of the time of a command that ends with its answer
    try:
        return _execute(words)
    finally:
        gc.enable()


def _execute(words: list[str]) -> int:
    options_words, arguments = split_at_dashes(words)
    options = parser().parse_args(options_words)
    if options.gpus:
        return _fit(options)
    options.gpu = gpu_named(options.gpu).name if options.gpu else ""
    if options.script and not options.model:
        _take_factory(options)
    sources = [name for name in ("model", "script", "csv", "run") if getattr(options, name)]
    if len(sources) > 1 and sources not in (["model", "script"], ["model", "run"]):
        other = "a script" if sources[1] == "script" else f"--{sources[1]}"
        raise CliError(f"--{sources[0]} and {other} are two questions: ask one at a time")
    refuse_beside(options, arguments)
    if not sources:
        gc.enable()
        return _open_screen(options)
    if options.csv:
        from gputop.cli.fit.estimate_csv import batch

        return batch(
            existing_file(options.csv, or_else=""), given(options), options.tier, options.json
        )
    if options.script:
        from gputop.cli.fit.estimate_script import estimate_script

        answer = estimate_script(options, arguments)
    else:
        answer = _of_setup(options)
    _print(answer, options.json)
    return 0


def _of_setup(options: argparse.Namespace) -> Estimate:
    """The estimate of a model by its name or of a run; of a run whose model has no configuration,
    that of its script.
    """
    try:
        setup = _setup(options)
    except UntoldModelError as untold:
        if untold.script is None:
            raise
        from gputop.cli.fit.estimate_script import estimate_script

        options.script = str(untold.script)
        if untold.world and not options.dp:
            options.dp = str(untold.world)
        notice(f"run {options.run} does not tell its model's configuration: its script is traced")
        return estimate_script(options, untold.arguments)
    with working("estimating"):
        answer = _answer(setup, options)
    limit = 0.0
    if answer.peak.tier != "trace":
        limit = estimate_refined.seconds(options)
    if limit:
        answer = estimate_refined.refined(answer, setup, options, limit)
    return answer


def _fit(options: argparse.Namespace) -> int:
    """The answer of ``gputop fit``: one question, one answer."""
    from gputop.cli.fit import fit

    fit.refuse_beside(options)
    if not options.model:
        raise CliError("which model? give --model NAME beside --gpus")
    where = fit.gpus_of(options.gpu or None, options.gpus)
    return fit.answer(options.model, where, given(options), options.json)


def _take_factory(options: argparse.Namespace) -> None:
    """``gputop estimate module:factory`` names a model, not a script."""
    from gputop.api import is_factory

    if is_factory(options.script):
        options.model, options.script = options.script, None


_SAID_OTHERWISE = {
    "--galore": "--optimizer galore",
    "--gptq": "frozen weights in 4 bits, with adapters, are --quant gptq --lora",
    "--awq": "frozen weights in 4 bits, with adapters, are --quant awq --lora",
    "--bf16": "--dtype bf16 is the default",
    "--fp16": "--dtype fp16",
    "--mixed-precision": "weights in fp32, computed in 16 bits, are --amp",
    "--num-gpus": "--dp N, and --fsdp or --zero N where they share states",
    "--nproc-per-node": "--dp N, and --fsdp or --zero N where they share states",
    "--use-dora": "--dora",
}
"""What people ask for by an option of their trainer, and how it is said here."""


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "estimate", "How much GPU memory a training needs, and on which GPUs it fits.", _USAGE
    )
    parser.instead = _SAID_OTHERWISE
    parser.add_argument(
        "script",
        nargs="?",
        metavar="train.py",
        help="trace this script: its code runs, reads what you may read, and writes nowhere",
    )
    parser.add_argument(
        "--model",
        metavar="NAME|PATH",
        help="a name of the catalog, a Hugging Face name, a path, module:factory or "
        "file.py:factory",
    )
    parser.add_argument(
        "--run", metavar="RUN", help="start from what a run trains (`last`, a name, a directory)"
    )
    parser.add_argument(
        "--csv", metavar="FILE", help="one estimate a row; columns are called as the options"
    )
    parser.add_argument(
        "--tier", choices=("trace", "profile", "formula"), help="which tier answers"
    )
    parser.add_argument(
        "--trace", action="store_const", const="trace", dest="tier", help="--tier trace"
    )
    parser.add_argument(
        "--wait",
        type=_seconds,
        metavar="S",
        help="seconds that a trace may take to refine the quick answer: 30 on a terminal, else 0",
    )
    parser.add_argument("--gpu", metavar="NAME", default="", help="the GPU that it is to run on")
    parser.add_argument(
        "--gpus", metavar="NxNAME", help="whether it fits on so many, as 2xA100: as gputop fit"
    )
    parser.add_argument(
        "--python", metavar="PATH", help="the interpreter that traces (this one by default)"
    )
    parser.add_argument(
        "--no-execute", action="store_true", help="only read the script, run nothing of it"
    )
    parser.add_argument(
        "--no-calibration", action="store_true", help="leave out what runs here have measured"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.elsewhere = "a script's own go after --"
    add_options(parser)
    return parser


def _seconds(text: str) -> float:
    """A number of seconds from 0 on.

    Raises:
        argparse.ArgumentTypeError: it is none.
    """
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"takes seconds from 0 on, not {text!r}")
    return seconds


def _setup(options: argparse.Namespace) -> Setup:
    """What the options describe.

    Raises:
        CliError: no such model or run, or an option that takes no such value.
    """
    from gputop.api import factory_shape, is_factory
    from gputop_analysis.vram.options import setup_of

    if options.run and options.model:
        named = model_of(options.model)
    else:
        named = None
    base = setup_of_run(options.run, named) if options.run else None
    with cli_errors(ValueError):
        if base:
            shape = base.model
        elif is_factory(options.model):
            shape = factory_shape(options.model)
        else:
            shape = None
        values = given(options)
        setup = setup_of(shape or model_of(options.model, traces=True), values, base)
    refuse_idle(values, setup)
    return setup


class UntoldModelError(CliError):
    """A run does not tell its model's configuration; what it ran may."""

    script: Path | None
    """Its script, where that can still be read."""
    arguments: list[str]
    world: int | None
    """Its ranks; None for one."""

    def __init__(self, name: str, view: RunView):
        from gputop_analysis.lint.mends import script_of

        manifest = view.record.manifest
        self.script = script_of(manifest)
        self.world = view.world_size if view.world_size > 1 else None
        if self.script is None:
            self.arguments, instead = [], ""
        else:
            paths = [Path(manifest.cwd, word) for word in manifest.command]
            self.arguments = manifest.command[paths.index(self.script) + 1 :]
            instead = f", or trace its script: gputop estimate {self.script}"
        super().__init__(
            f"run {name} does not tell its model's configuration: name a model with its "
            f"dimensions by --model{instead}"
        )


def setup_of_run(name: str, named: ModelShape | None = None) -> Setup | None:
    """How a recorded run trains; ``named`` is what the user says that it trains, where it does not
    tell.

    Returns:
        None for a run whose model has a name from the user, but whose batches hold no sequences.

    Raises:
        UntoldModelError: its model has no configuration.
        CliError: no such run.
    """
    from gputop.cli.records import open_record
    from gputop_analysis.view import RunView
    from gputop_analysis.vram.from_run import setup_of

    view = RunView(open_record(name))
    setup = setup_of(view, instead=named)
    if setup is None and named is None:
        raise UntoldModelError(name, view)
    return setup


def _answer(setup: Setup, options: argparse.Namespace) -> Estimate:
    from gputop.api import answer, is_factory

    factory = setup.model.name if is_factory(options.model) else ""
    traced_alone = bool(factory) or not setup.model.hidden
    if traced_alone and options.tier not in (None, "trace"):
        raise CliError(
            f"{setup.model.name} is traced: the {options.tier} tier knows transformers by their "
            "dimensions only"
        )
    tier = "trace" if traced_alone else options.tier
    if factory:
        notice_runs_code(factory)
    if tier == "trace":
        notice("tracing the model on fake tensors; nothing is allocated")
    try:
        return answer(
            setup,
            tier,
            options.gpu,
            python=options.python,
            calibrate=not options.no_calibration,
            factory=factory,
        )
    except (ValueError, LookupError) as error:
        raise CliError(str(error)) from None
    except ImportError as error:
        if traced_alone:
            raise CliError(str(error), ENVIRONMENT) from None
        return _instead(setup, options, str(error))


def _instead(setup: Setup, options: argparse.Namespace, why: str) -> Estimate:
    """The tier that answers where a trace cannot."""
    from gputop.api import answer

    estimated = answer(setup, None, options.gpu, calibrate=not options.no_calibration)
    text = f"no trace: {why}; the {estimated.peak.tier} tier answers instead"
    notice(text)
    return replace(estimated, notes=(*estimated.notes, text))


def _open_screen(options: argparse.Namespace) -> int:
    from gputop.cli.terminal import has_terminal

    if not has_terminal():
        raise CliError(
            "say what to estimate: `gputop estimate --model llama-3-8b`, "
            "or `gputop estimate train.py`"
        )
    from gputop.app.estimator import run_estimator

    run_estimator(_first_setup(options))
    return 0


def _first_setup(options: argparse.Namespace) -> Setup | None:
    values = given(options)
    if not values:
        return None
    from gputop_analysis.vram.options import setup_of

    with cli_errors(ValueError):
        return setup_of(model_of("llama-3-8b"), values)


def _print(estimate: Estimate, as_json: bool) -> None:
    if as_json:
        print(json.dumps(estimate.to_json(), indent=2))
        return
    from gputop.cli.fit.estimate_text import show

    show(estimate)
