"""``gputop topo``: how GPUs and network cards hang together: here, in a text, or rented."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gputop.cli.errors import ENVIRONMENT, CliError
from gputop.cli.parsing import Parser

if TYPE_CHECKING:
    from gputop_analysis.topology.model import Topology

_USAGE = "gputop topo [--from FILE | --preset NAME | --presets] [--json]"


def execute(words: list[str]) -> int:
    """Print a node's topology."""
    options = parser().parse_args(words)
    if options.presets:
        return _list(options.json)
    if options.preset:
        topology = _of_preset(options.preset)
    elif options.file:
        topology = _of_text(options.file)
    else:
        topology = _of_this_machine()
    if options.json:
        print(json.dumps(topology.to_json(), indent=2))
        return 0
    from gputop.cli.printing import report_width
    from gputop_analysis.topology.text import as_text

    print(as_text(topology, report_width()))
    return 0


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "topo", "Show how the GPUs and network cards of a node hang together.", usage=_USAGE
    )
    parser.elsewhere = "a file is named with --from, a server with --preset"
    of = parser.add_mutually_exclusive_group()
    of.add_argument(
        "--from",
        dest="file",
        metavar="FILE",
        help="text of `nvidia-smi topo -m`; - reads it from stdin",
    )
    of.add_argument("--preset", metavar="NAME", help="a known server or cloud instance")
    of.add_argument("--presets", action="store_true", help="list those that are known")
    parser.add_argument("--json", action="store_true", help="print it as JSON")
    return parser


def _list(as_json: bool) -> int:
    from gputop_analysis.topology.presets import PRESETS

    if as_json:
        print(json.dumps([preset._asdict() for preset in PRESETS], indent=2))
        return 0
    width = max(len(preset.name) for preset in PRESETS)
    for preset in PRESETS:
        if preset.nvlinks:
            inside = f"NVLink x {preset.nvlinks}"
        elif "V100" in preset.gpu:
            inside = "NVLink mesh"
        else:
            inside = "PCIe"
        print(
            f"{preset.name:<{width}}  {preset.gpus} x {preset.gpu or 'any':<16} {inside:<12} "
            f"{preset.nic_gbit:>5g} Gbit/s"
        )
    return 0


def _of_this_machine() -> Topology:
    from gputop.this_machine import NoDriverError, node_topology

    try:
        return node_topology()
    except NoDriverError as error:
        raise CliError(str(error), ENVIRONMENT) from None


def _of_preset(name: str) -> Topology:
    from gputop_analysis.topology import presets

    try:
        return presets.topology(presets.find(name))
    except LookupError as error:
        raise CliError(error.args[0]) from None


def _of_text(file: str) -> Topology:
    from gputop_analysis.topology import smi

    try:
        if file == "-":
            text = sys.stdin.read()
        else:
            text = Path(file).read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise CliError(f"cannot read {file}: {error.strerror}") from None
    try:
        return smi.parse(text, "stdin" if file == "-" else file)
    except ValueError as error:
        raise CliError(f"{file}: {error}") from None
