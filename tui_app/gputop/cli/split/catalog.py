"""``gputop catalog``: GPUs, what they can do and what they cost."""

from __future__ import annotations

import json
import sys
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.named import gpu_named
from gputop.cli.parsing import Parser
from gputop.cli.printing import writing
from gputop.cli.terminal import has_terminal
from gputop_analysis.text import wrap

if TYPE_CHECKING:
    from gputop_analysis.catalog.listing import Listed

_USAGE = (
    "gputop catalog [[list] [WORD...] | show NAME... | prices NAME | import FILE]   (alone in a "
    "terminal: the screen)"
)


def execute(words: list[str]) -> int:
    """List, show, prices or import; other words are looked for in the names; without words in a
    terminal, the screen.
    """
    if not words and has_terminal():
        from gputop.app.catalog import run_catalog

        run_catalog()
        return 0
    actions = {"list": _list, "show": _show, "prices": _prices, "import": _import}
    if not words or words[0] not in actions:
        return _list(words)
    return actions[words[0]](words[1:])


def _list(words: list[str]) -> int:
    from gputop_analysis.catalog.listing import chosen, listed

    options = list_parser().parse_args(words)
    from gputop.own_prices import load

    rows = chosen(
        listed(load()), options.sort, options.vendor, options.min_memory, " ".join(options.words)
    )
    if options.json:
        print(json.dumps([row.to_json() for row in rows], indent=2))
    elif not rows:
        raise CliError(_none_of(options.words))
    else:
        print("\n".join(table(rows)))
    return 0


def _none_of(words: list[str]) -> str:
    from gputop_analysis.catalog import nearest_gpus

    if not words:
        return "no GPU matches: ask for less with --min-memory, or leave out --vendor"
    name = " ".join(words)
    return (
        f"no GPU with {name!r} in its name; the nearest names are {', '.join(nearest_gpus(name))}"
    )


def list_parser() -> Parser:
    """Options of the command."""
    from gputop_analysis.catalog.listing import SORTS

    parser = Parser("catalog list", "List GPUs with memory, speed and rent.", usage=_USAGE)
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="only those with all these words in their name"
    )
    parser.add_argument("--sort", choices=tuple(SORTS), default="", help="the best first")
    parser.add_argument("--vendor", default="", help="NVIDIA, AMD, Intel, Google, ...")
    parser.add_argument(
        "--min-memory", type=float, default=0.0, metavar="GB", help="as cards are sold: 80"
    )
    parser.add_argument("--json", action="store_true", help="print them as JSON")
    return parser


def table(rows: list[Listed]) -> list[str]:
    """One line a GPU; rents in dollars an hour for one GPU."""
    from gputop.feed.catalog import MISSING, dollars

    width = max(len(row.spec.name) for row in rows) + 1
    head = (
        f"{'GPU':<{width}} {'GiB':>6} {'GB/s':>6} {'TFLOP/s':>7} {'fp8':>6} {'W':>5} "
        f"{'$/h':>6} {'TF/$':>5}  year"
    )
    lines = [head]
    for row in rows:
        spec = row.spec
        tflops = f"{row.tflops:,.0f}" if row.tflops else MISSING
        name = spec.name + ("?" if spec.doubtful else "")
        fp8 = spec.dense_flops.get("fp8", 0.0) / 1e12
        lines.append(
            f"{name:<{width}} {spec.usable_gib:>6.1f} {spec.bandwidth_gb_s:>6,.0f} "
            f"{tflops:>7} {f'{fp8:,.0f}' if fp8 else MISSING:>6} "
            f"{f'{spec.power_w:,.0f}' if spec.power_w else MISSING:>5} "
            f"{dollars(row.usd_per_hour):>6} "
            f"{f'{row.tflops_per_usd:,.0f}' if row.tflops_per_usd else MISSING:>5}  "
            f"{spec.release_year or ''}".rstrip()
        )
    if any(row.spec.doubtful for row in rows):
        lines.append("? a figure could not be confirmed: gputop catalog show NAME says which")
    if unpriced := sum(row.usd_per_hour is None for row in rows):
        lines.append(
            f"{unpriced} of {len(rows)} have no published rent: gputop catalog import FILE adds "
            "yours"
        )
    return [
        *lines,
        "TFLOP/s: dense, 16-bit; $/h: median of published on-demand rents, which age: gputop "
        "catalog prices NAME",
    ]


def _show(words: list[str]) -> int:
    options = show_parser().parse_args(words)
    rows = [_named(name) for name in options.names[:4]]
    if options.json:
        entries = [row.to_json() for row in rows]
        print(json.dumps(entries if len(entries) > 1 else entries[0], indent=2))
        return 0
    from gputop.cli.printing import report_width

    print("\n".join(side_by_side(rows, report_width())))
    return 0


def show_parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "catalog show", "Show all that is known of some GPUs, side by side.", usage=_USAGE
    )
    parser.example = "gputop catalog show H100"
    parser.add_argument(
        "names", nargs="+", metavar="NAME", help="a name or alias, as H100 or 4090; up to four"
    )
    parser.add_argument("--json", action="store_true", help="print them as JSON")
    return parser


def side_by_side(rows: list[Listed], total: int = 120) -> list[str]:
    """One column a GPU, what is long in several lines."""
    from gputop.feed.catalog import facts

    columns = [facts(row) for row in rows]
    width = min(60, max(26, (total - 18) // len(rows)))
    lines = []
    for key in columns[0]:
        cells = [wrap(column[key], width - 2) or [""] for column in columns]
        for number, parts in enumerate(zip_longest(*cells, fillvalue="")):
            label = "" if number else key
            cells_of_line = "".join(f"{part:<{width}}" for part in parts)
            lines.append(f"{label:<18}{cells_of_line}".rstrip())
    return lines


def _named(name: str) -> Listed:
    from gputop.own_prices import load
    from gputop_analysis.catalog.listing import listed

    spec = gpu_named(name)
    return next(row for row in listed(load()) if row.spec.name == spec.name)


def _prices(words: list[str]) -> int:
    options = prices_parser().parse_args(words)
    from dataclasses import asdict

    from gputop.feed.catalog import dollars
    from gputop.own_prices import load
    from gputop_analysis.catalog import offers

    name = _named(options.name).spec.name
    prices = [price for price in (*load(), *offers()) if price.gpu == name]
    prices.sort(
        key=lambda price: price.on_demand_usd_per_hour or price.spot_usd_per_hour or float("inf")
    )
    if options.json:
        print(json.dumps([asdict(price) for price in prices], indent=2))
        return 0
    if not prices:
        print(
            f"no published rent of the {name} in the catalog: gputop catalog import FILE adds "
            "yours",
            file=sys.stderr,
        )
        return 0
    print(
        f"{name}: dollars an hour for one GPU\n{'on demand':>9} {'spot':>7}  {'provider':<26} "
        f"{'instance':<26} seen"
    )
    for price in prices:
        rents = f"{dollars(price.on_demand_usd_per_hour):>9} {dollars(price.spot_usd_per_hour):>7}"
        print(
            f"{rents}  {price.provider[:26]:<26} {f'{price.gpus} x  {price.instance}'[:26]:<26} "
            f"{price.as_of.split(' (')[0]}"
        )
    return 0


def prices_parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "catalog prices", "List the published rents of a GPU, cheapest first.", usage=_USAGE
    )
    parser.add_argument("name", metavar="NAME", help="a name or alias, as H100 or 4090")
    parser.add_argument("--json", action="store_true", help="print them as JSON")
    return parser


def _import(words: list[str]) -> int:
    options = import_parser().parse_args(words)
    from gputop import own_prices
    from gputop_analysis.catalog.own_prices import parse

    try:
        text = Path(options.file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(
            f"cannot read {options.file}: {getattr(error, 'strerror', None) or error}"
        ) from None
    with cli_errors(ValueError):
        prices = parse(text, options.file)
    with writing(own_prices.path()):
        stored = own_prices.keep(text)
    print(
        f"{len(prices)} prices of {len({price.gpu for price in prices})} GPUs kept in {stored}",
        file=sys.stderr,
    )
    return 0


def import_parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "catalog import", "Use your own prices, before the packaged ones.", usage=_USAGE
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="CSV with the columns gpu and usd_per_hour; replaces an earlier one",
    )
    return parser
