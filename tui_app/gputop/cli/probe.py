"""``gputop probe``: a few real steps, and how far the estimate was off."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from gputop.cli.errors import CliError
from gputop.cli.estimate_options import add_options, existing_file, given
from gputop.cli.parsing import Parser

if TYPE_CHECKING:
    from gputop_analysis.vram.estimate import Estimate

GIB = 1 << 30
_CATEGORIES = ("weights", "gradients", "optimizer", "activations")
_USAGE = """gputop probe --model NAME|PATH [options] [--device cuda|cpu] [--json]
       gputop probe train.py [-- ARGUMENTS OF THE SCRIPT]"""


def execute(words: list[str]) -> int:
    """Run the steps, print estimate against measured, and keep the difference where a GPU measured it."""
    at = words.index("--") if "--" in words else len(words)
    options = _parser().parse_args(words[:at])
    if options.script:
        return _of_script(options, words[at + 1 :])
    if not options.model:
        raise CliError("say what to probe: `gputop probe --model gpt2`, or `gputop probe train.py`")
    return _of_model(options)


def _parser() -> Parser:
    parser = Parser("probe", "A few real training steps: what they take, against the estimate.", _USAGE)
    parser.add_argument("script", nargs="?", metavar="train.py", help="run this script until its figures are stable")
    parser.add_argument("--model", metavar="NAME|PATH", help="a name of the catalog, a Hugging Face name, a path")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="", help="where (the GPU if there is one)")
    parser.add_argument("--steps", type=int, default=3, metavar="N", help="real steps (default 3)")
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="a script is stopped after this long")
    parser.add_argument("--tier", choices=("trace", "profile", "formula"), help="which tier is compared")
    parser.add_argument("--python", metavar="PATH", help="the interpreter that runs the steps (this one by default)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_options(parser)
    return parser


def _of_model(options: argparse.Namespace) -> int:
    from gputop.api import answer
    from gputop.cli.estimate import model_of
    from gputop.probing import probe
    from gputop_analysis.vram.options import setup_of

    try:
        setup = setup_of(model_of(options.model), given(options))
        estimate = answer(setup, options.tier, python=options.python, calibrate=False, advice=False)
        measured = probe(setup, options.python, options.device, options.steps)
    except (ValueError, LookupError, ImportError) as error:
        raise CliError(str(error)) from None
    compared = comparison(estimate, measured)
    if measured["peak_allocated_bytes"]:
        _keep(estimate, measured)
        compared["stored"] = True
    print(json.dumps(compared, indent=2)) if options.json else _print(compared)
    return 0


def comparison(estimate: Estimate, measured: dict[str, Any]) -> dict[str, Any]:
    """Estimate against measured under stable names, GiB; None where one of the two does not know."""
    rows = []
    breakdown = estimate.peak.breakdown
    for name in _CATEGORIES:
        rows.append(_row(name, breakdown.get(name), measured.get(f"{name}_bytes")))
    phases = measured.get("phases_bytes") or {}
    for name, size in phases.items():
        rows.append(_row(f"peak in {name}", estimate.peak.phases.get(name), size))
    rows.append(_row("peak allocated", estimate.peak.allocated, measured.get("peak_allocated_bytes")))
    rows.append(_row("peak reserved", estimate.peak.reserved, measured.get("peak_reserved_bytes")))
    return {
        "model": estimate.setup.model.name,
        "tier": estimate.peak.tier,
        "device": measured["device"],
        "gpu": measured.get("gpu"),
        "versions": measured.get("versions", {}),
        "compared": rows,
        "stored": False,
    }


def _row(name: str, estimated: int | None, measured: int | None) -> dict[str, Any]:
    off = 100 * (measured / estimated - 1) if estimated and measured else None
    return {
        "what": name,
        "estimated_gib": None if estimated is None else estimated / GIB,
        "measured_gib": None if measured is None else measured / GIB,
        "difference_pct": off,
    }


def _keep(estimate: Estimate, measured: dict[str, Any]) -> None:
    from gputop.calibration import remember
    from gputop_analysis.vram.comparison import Comparison, Measured

    seen = Measured(measured["peak_allocated_bytes"], measured.get("peak_reserved_bytes") or 0)
    found = Comparison(estimate.setup, estimate.peak.tier, estimate.peak.allocated, seen)
    try:
        remember(found.record(f"probe on {measured.get('gpu') or 'a GPU'}", time.time_ns()))
    except OSError as error:
        print(f"gputop: the difference was not kept: {error.strerror or error}", file=sys.stderr)


def _print(compared: dict[str, Any]) -> None:
    where = compared["gpu"] or "CPU"
    print(f"{compared['model']} on {where}, against the {compared['tier']} tier\n")
    print(f"{'GiB':<22}{'estimated':>12}{'measured':>12}{'off':>10}")
    for row in compared["compared"]:
        off = f"{row['difference_pct']:+.1f} %" if row["difference_pct"] is not None else "–"
        print(f"{row['what']:<22}{_gib(row['estimated_gib']):>12}{_gib(row['measured_gib']):>12}{off:>10}")
    print()
    if compared["stored"]:
        print("kept: later estimates of this model start from it")
    else:
        print("a CPU has no caching allocator: the peak is not measured there, and nothing is kept")
    print("estimated categories are those alive at the estimated peak; measured ones the most of each")


def _gib(size: float | None) -> str:
    return "–" if size is None else f"{size:.3f}"


def _of_script(options: argparse.Namespace, arguments: list[str]) -> int:
    """The script itself, under the recorder, until step time and memory are stable."""
    from gputop.cli.run import execute as run

    script = existing_file(options.script)
    python = options.python or sys.executable
    words = ["--headless", "--calibrate", "--timeout", str(options.timeout), *(["--json"] if options.json else [])]
    return run([*words, "--", python, str(script), *arguments])
