"""``gputop probe``: a few real steps, and how far the estimate was off."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from gputop.cli.errors import ENVIRONMENT, CliError
from gputop.cli.fit.estimate_options import add_options, given
from gputop.cli.fit.probe_text import show
from gputop.cli.notices import notice_runs_code
from gputop.cli.parsing import Parser, split_at_dashes
from gputop.cli.working import working

if TYPE_CHECKING:
    from gputop_analysis.vram.estimate import Estimate
    from gputop_analysis.vram.eventlog import EventLog
    from gputop_analysis.vram.setup import Setup

_USAGE = """gputop probe --model NAME|PATH|MODULE:FACTORY [options] [--device cuda|cpu] [--json]
       gputop probe train.py [-- ARGUMENTS OF THE SCRIPT]"""


def execute(words: list[str]) -> int:
    """Run the steps, print estimate against measured, and keep the difference."""
    from gputop.api import is_factory

    own_words, script_words = split_at_dashes(words)
    options = parser().parse_args(own_words)
    if options.script and not options.model and is_factory(options.script):
        options.model, options.script = options.script, None
    if options.script and options.model:
        raise CliError("--model and a script are two questions: ask one at a time")
    if options.script:
        from gputop.cli.fit.probe_script import probe_script

        return probe_script(options, script_words)
    if not options.model:
        raise CliError("say what to probe: `gputop probe --model gpt2`, or `gputop probe train.py`")
    return _of_model(options)


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "probe", "A few real training steps: what they take, against the estimate.", _USAGE
    )
    parser.add_argument(
        "script", nargs="?", metavar="train.py", help="run this script until its figures are stable"
    )
    parser.add_argument(
        "--model",
        metavar="NAME|PATH",
        help="a name of the catalog, a Hugging Face name, a path, module:factory",
    )
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="", help="where (the GPU if there is one)"
    )
    parser.add_argument(
        "-n",
        "--steps",
        type=_steps,
        default=3,
        metavar="N",
        help="real steps (default 3, the least)",
    )
    parser.add_argument(
        "--timeout",
        type=float,
        default=300.0,
        metavar="S",
        help="a script is stopped after this long",
    )
    parser.add_argument(
        "--tier", choices=("trace", "profile", "formula"), help="which tier is compared"
    )
    parser.add_argument(
        "--python", metavar="PATH", help="the interpreter that runs the steps (this one by default)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.elsewhere = "a script's own go after --"
    add_options(parser)
    return parser


def _steps(text: str) -> int:
    if not text.isdigit() or int(text) < 3:
        raise argparse.ArgumentTypeError(
            f"{text!r}: from 3 on, since the first two bring everything into memory"
        )
    return int(text)


def _of_model(options: argparse.Namespace) -> int:
    from gputop.api import factory_shape, is_factory
    from gputop.cli.named import model_of
    from gputop.probing import probe
    from gputop_analysis.vram.options import setup_of

    factory = options.model if is_factory(options.model) else ""
    if factory:
        notice_runs_code(factory)
    try:
        setup = setup_of(
            factory_shape(factory) if factory else model_of(options.model), given(options)
        )
        with working("estimating"):
            estimate, log = _estimated(setup, options, factory)
        with working(f"training {options.steps} steps"):
            measured = probe(
                setup, options.python, device=options.device, steps=options.steps, factory=factory
            )
    except ImportError as error:
        raise CliError(str(error), ENVIRONMENT) from None
    except (ValueError, LookupError) as error:
        raise CliError(str(error)) from None
    show(estimate, log, measured, options.json)
    return 0


def _estimated(
    setup: Setup, options: argparse.Namespace, factory: str
) -> tuple[Estimate, EventLog | None]:
    """The estimate by a tier alone, and the events that it comes from; a formula has none."""
    from gputop.api import answer
    from gputop.models import configuration
    from gputop.tracing import trace
    from gputop_analysis.vram import profiles, question

    if factory or options.tier == "trace":
        log = trace(setup, options.python, config=configuration(setup.model), factory=factory)
        return question.estimate(setup, "trace", log=log, advice=False), log
    estimated = answer(setup, options.tier, calibrate=False, advice=False)
    return estimated, profiles.events(setup) if estimated.peak.tier == "profile" else None
