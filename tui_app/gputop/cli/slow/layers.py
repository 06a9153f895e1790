"""``gputop layers [RUN]``: which layer takes the time and the memory."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputop.cli.errors import CliError
from gputop.cli.notices import notice
from gputop.cli.parsing import Parser
from gputop.cli.records import find_readable

if TYPE_CHECKING:
    from gputop_analysis.layers import Layer, Layers
    from gputop_probes.record.reader import RunRecord

_POLL_S = 0.2
_SORTS = ("order", "time", "forward", "backward", "activation", "parameters", "flops", "name")


def execute(words: list[str]) -> int:
    """Print the tree; while the run goes on with no step watched yet, have some watched."""
    from gputop.cli.printing import report_width
    from gputop.render.layers import summary, table
    from gputop.render.rows import row_text
    from gputop_probes.record.reader import RunRecord

    options = parser().parse_args(words)
    run_dir = find_readable(options.run)
    record = RunRecord.open(run_dir)
    _watch_if_needed(run_dir, record, options.timeout)
    layers = _of_rank(record, options.rank)
    if options.versus is None:
        beside = None
    else:
        beside = _of_rank(record, options.versus)
    if options.json:
        print(json.dumps(_data(layers), indent=2))
        return 0
    width = report_width()
    rows = table(
        layers,
        width,
        sort=options.sort,
        search=options.search,
        folded=not options.all,
        depth=options.depth,
        beside=beside,
    )
    for row in [*summary(layers, width), [], *rows]:
        print(row_text(row).rstrip())
    return 0


def parser() -> Parser:
    """Options of the command."""
    usage = "gputop layers [RUN] [--rank R] [--versus R] [--sort COLUMN] [--search TEXT] [--json]"
    parser = Parser("layers", "Say which layer takes the time and the memory.", usage=usage)
    parser.add_run()
    parser.add_argument("--rank", type=int, metavar="R", help="this rank (default: the first)")
    parser.add_argument("--versus", type=int, metavar="R", help="times of another rank beside it")
    parser.add_argument("--sort", choices=_SORTS, default="order", help="default: as they run")
    parser.add_argument(
        "--search", default="", metavar="TEXT", help="only layers whose name or class has it"
    )
    parser.add_argument("--all", action="store_true", help="alike layers one by one")
    parser.add_argument("--depth", type=int, default=12, metavar="N", help="so many levels")
    parser.add_argument(
        "--timeout",
        type=float,
        default=60.0,
        metavar="S",
        help="wait so long for watched steps of a running training (default 60)",
    )
    parser.add_argument("--json", action="store_true", help="print all layers as JSON")
    return parser


def _of_rank(record: RunRecord, rank: int | None) -> Layers:
    from gputop.feed.layers import layers_with_peak
    from gputop_analysis.layers import watched_ranks

    layers = layers_with_peak(record, rank)
    if layers is None:
        ranks = ", ".join(map(str, watched_ranks(record)))
        raise CliError(f"rank {rank} was not watched layer by layer; these were: {ranks}")
    return layers


def _watch_if_needed(run_dir: Path, record: RunRecord, timeout_s: float) -> None:
    from gputop_analysis.layers import watched_ranks
    from gputop_probes.client import send_command

    if watched_ranks(record):
        return
    answer = send_command(run_dir, {"cmd": "layers", "steps": 3})
    if answer is None or not answer.get("ok"):
        raise CliError(
            f"no layer of {run_dir.name} was watched: start the training with `gputop run --layers`"
        )
    notice("watching three steps layer by layer")
    deadline = time.monotonic() + timeout_s
    while not watched_ranks(record):
        if time.monotonic() > deadline:
            raise CliError(
                f"no step was watched in {timeout_s:g} s: is it making steps? --timeout gives it"
                " longer",
                exit_code=1,
            )
        time.sleep(_POLL_S)
        record.refresh()


def _data(layers: Layers) -> dict[str, Any]:
    return {
        "rank": layers.rank,
        "steps": list(layers.steps),
        "clock": layers.clock,
        "forward_ms": layers.forward_ms,
        "backward_ms": layers.backward_ms,
        "outside_forward_ms": layers.outside_forward_ms,
        "outside_backward_ms": layers.outside_backward_ms,
        "layers": [_layer(layers, layer) for layer in layers.root.walk()],
    }


def _layer(layers: Layers, layer: Layer) -> dict[str, Any]:
    return {
        "path": layer.path,
        "class": layer.kind,
        "forward_ms": round(layer.forward_ms, 4),
        "backward_ms": round(layer.backward_ms, 4),
        "own_forward_ms": round(layer.own_forward_ms, 4),
        "own_backward_ms": round(layer.own_backward_ms, 4),
        "share": round(layers.share(layer), 5),
        "calls": layer.calls,
        "activation_bytes": layer.activation_bytes,
        "parameter_bytes": layer.parameter_bytes,
        "gradient_bytes": layer.gradient_bytes,
        "optimizer_bytes": layer.optimizer_bytes,
        "flops": layer.flops if layers.counted_flops else None,
        "share_of_peak": layers.of_peak(layer),
        "dtype": layer.dtype,
        "recomputed": layer.recomputed,
        "compiled": layer.compiled,
    }
