"""``gputop fit``: whether a model can be trained on the GPUs at hand, and what it would take."""

from __future__ import annotations

import argparse
import json
import re
import shlex
from typing import TYPE_CHECKING, Any

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.fit.estimate_options import add_options, given, refuse_idle
from gputop.cli.named import gpus_named, model_of, refuse_two_counts, refuse_two_names
from gputop.cli.notices import notice
from gputop.cli.parsing import Parser, refuse_below_one
from gputop.cli.printing import report_width
from gputop.cli.working import working
from gputop_analysis.text import wrap
from gputop_analysis.units import GIB
from gputop_analysis.vram.fits import usable

if TYPE_CHECKING:
    from gputop_analysis.catalog import GpuSpec
    from gputop_analysis.vram.fitting import FittingWays, Way
    from gputop_analysis.vram.setup import Setup

_USAGE = """gputop fit MODEL --gpus 2xA100 [options of gputop estimate] [--json]
       gputop fit 70b --gpus 8xH100 --qlora"""
_OF_SIZE = {
    "1b": "llama-3.2-1b",
    "3b": "llama-3.2-3b",
    "7b": "llama-2-7b",
    "8b": "llama-3.1-8b",
    "13b": "llama-2-13b",
    "14b": "qwen2.5-14b",
    "32b": "qwen2.5-32b",
    "34b": "yi-34b",
    "70b": "llama-3.3-70b",
    "72b": "qwen2.5-72b",
    "405b": "llama-3.1-405b",
}
"""The model that stands for a size alone."""


def parser() -> Parser:
    """Options of the command."""
    parser = Parser("fit", "Whether a training fits on your GPUs, and what it would take.", _USAGE)
    parser.add_argument(
        "model", nargs="?", metavar="MODEL", help="a name, a path, or a size as 70b"
    )
    parser.add_argument(
        "--model", dest="named", metavar="NAME|PATH", help="the same, as in other commands"
    )
    parser.add_argument("--gpus", metavar="N|NxNAME", help="how many and which, as 2xA100")
    parser.add_argument("--gpu", metavar="NAME", help="which, beside --gpus N")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_options(parser)
    return parser


def execute(words: list[str]) -> int:
    """Print whether it fits."""
    options = parser().parse_args(words)
    if options.model and options.named:
        raise CliError("the model is named twice: leave --model out")
    name = options.model or options.named
    if not name:
        raise CliError("which model? as in `gputop fit 70b --gpus 2xA100`")
    return answer(name, gpus_of(options.gpu, options.gpus), given(options), options.json)


def gpus_of(gpu: str | None, gpus: str | None) -> tuple[GpuSpec, int]:
    """The kind of GPU and how many: of ``--gpus 2xA100``, or ``--gpu A100 --gpus 2``.

    Raises:
        CliError: no GPU is named, none has that name, or the numbers differ.
    """
    digits = re.fullmatch(r"\s*(\d+)\s*", gpus or "")
    count = int(digits[1]) if digits else None
    refuse_below_one("--gpus", count)
    text = gpu or ("" if digits else gpus)
    if not text:
        raise CliError("on which GPUs? as --gpus 2xA100, or --gpu A100 --gpus 2")
    if gpu and gpus and count is None:
        refuse_two_names(gpu, gpus)
    match = gpus_named(text)
    if count is None:
        return match.spec, match.count
    refuse_two_counts(gpu, match.count, count)
    return match.spec, count


def answer(
    model: str, where: tuple[GpuSpec, int], values: dict[str, Any], as_json: bool = False
) -> int:
    """Print whether ``model``, trained by ``values``, fits.

    Raises:
        CliError: no such model, or a training that is impossible.
    """
    from gputop_analysis.vram.fitting import fit
    from gputop_analysis.vram.options import setup_of
    from gputop_analysis.vram.tiers import refuse_traced

    name = _OF_SIZE.get(model.strip().lower(), model)
    shape = model_of(name)
    if name != model:
        notice(f"{model} is taken as {name}; name another with its full name")
    with cli_errors(ValueError, LookupError):
        setup = setup_of(shape, values)
        refuse_traced(setup)
        _refuse_ranks(setup, where[1])
        refuse_idle(values, setup)
        with working("trying ways to train it"):
            fitting = fit(setup, *where)
    if as_json:
        print(json.dumps(as_data(fitting, name), indent=2))
    else:
        print("\n".join(text(fitting, name, setup, *where)))
    return 0


def _refuse_ranks(setup: Setup, gpus: int) -> None:
    split = setup.parallel
    inner = split.tp * split.pp * split.cp
    if gpus % inner:
        raise ValueError(f"tp x pp x cp = {inner} does not divide {gpus} GPUs")
    if split.dp > 1 and split.world != gpus:
        raise ValueError(f"the split is of {split.world} GPUs, --gpus says {gpus}: leave --dp out")


def text(answer: FittingWays, name: str, setup: Setup, gpu: GpuSpec, gpus: int) -> list[str]:
    """The lines of the answer, the verdict first."""
    offered = f"{usable(gpu, setup) / GIB:.1f}"
    if setup.server_share:
        offered += f" of {gpu.usable_bytes / GIB:.1f}"
    lines = [
        *_verdicts(answer, name, gpu, gpus),
        f"a GPU offers {offered} GiB; sequences of {setup.seq:,}, micro-batch {setup.micro_batch}",
        "",
    ]
    for way in answer.ways:
        lines += [*_row(way), *([] if way.verdict == "no" else [f"        {command(way, name)}"])]
    if answer.more:
        lines += ["", "what it would take:"]
        for way in answer.more:
            lines += [*_row(way, f"{way.gpus} x {way.gpu}: "), f"        {command(way, name)}"]
    fitting = [*(way for way in answer.ways if way.verdict != "no"), *answer.more]
    if fitting and fitting[0].gpus > 1:
        lines += ["", "how fast, and other splits:", f"        {planned(fitting[0], name)}"]
    return lines


def _verdicts(answer: FittingWays, name: str, gpu: GpuSpec, gpus: int) -> list[str]:
    by_verdict = {
        verdict: [way.purpose for way in answer.ways if way.verdict == verdict]
        for verdict in ("yes", "tight", "no")
    }
    first = answer.verdict
    order = [first, *(verdict for verdict in by_verdict if verdict != first)]
    parts = [
        f"{verdict_} for {' and '.join(by_verdict[verdict_])}"
        for verdict_ in order
        if by_verdict[verdict_]
    ]
    return [f"{', '.join(parts)}: {name} on {gpus} x {gpu.name}"]


def _row(way: Way, before: str = "") -> list[str]:
    how = ", ".join(way.changes) or ("as asked" if way.gpus == 1 else "plain data parallel")
    needs = way.estimate.device_total / GIB
    size = f"needs {needs:.1f} GiB a GPU, at most {way.at_most / GIB:.1f}"
    if way.host_bytes:
        size += f", and {way.host_bytes / GIB:,.0f} GiB of host memory (slow)"
    if way.verdict != "no":
        text = f"{how}: {size}"
    else:
        text = f"{size}, even with {how}"
    first = f"  {way.verdict:<6}{before}{way.purpose}: "
    return wrap(f"{first}{text}", report_width(), subsequent_indent=8 * " ", drop_whitespace=True)


def command(way: Way, name: str) -> str:
    """The command that estimates a way in full."""
    words = ["gputop", "estimate", "--model", name, *way.words, "--gpu", way.gpu]
    return shlex.join(words)


def planned(way: Way, name: str) -> str:
    """The command that plans on the GPUs of a way."""
    words = ["gputop", "plan", "--model", name, "--gpu", way.gpu, "--gpus", str(way.gpus)]
    setup = way.estimate.setup
    if setup.lora is not None:
        words.append("--qlora" if setup.quantized else "--lora")
    return shlex.join([*words, "--seq", str(setup.seq)])


def as_data(answer: FittingWays, name: str) -> dict[str, Any]:
    """The answer under stable names; sizes in GiB."""
    return {
        "model": name,
        "verdict": answer.verdict,
        "ways": [_data(way, name) for way in answer.ways],
        "more_gpus": [_data(way, name) for way in answer.more],
    }


def _data(way: Way, name: str) -> dict[str, Any]:
    return {
        "purpose": way.purpose,
        "verdict": way.verdict,
        "gpu": way.gpu,
        "gpus": way.gpus,
        "changes": list(way.changes),
        "tier": way.estimate.peak.tier,
        "device_total_gib": way.estimate.device_total / GIB,
        "at_most_gib": way.at_most / GIB,
        "host_gib": way.host_bytes / GIB,
        "command": command(way, name),
    }


def refuse_beside(options: argparse.Namespace) -> None:
    """Options of ``gputop estimate`` that mean nothing beside ``--gpus``.

    Raises:
        CliError: one was given.
    """
    for name in ("script", "run", "csv", "tier", "python"):
        if getattr(options, name):
            raise CliError(
                f"{'a script' if name == 'script' else '--' + name} has no meaning beside --gpus: "
                "it asks what fits on them, for a --model"
            )
