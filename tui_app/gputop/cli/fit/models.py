"""``gputop models``: the architectures that estimates and plans know by name."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from gputop.cli.errors import CliError
from gputop.cli.parsing import Parser

if TYPE_CHECKING:
    from gputop_analysis.vram.setup import ModelShape


def execute(words: list[str]) -> int:
    """List the models, or show one."""
    options = parser().parse_args(words)
    from gputop_analysis import catalog

    try:
        shape_ = catalog.model(options.name) if options.name else None
        shapes = [shape_] if shape_ else list(catalog.models())
    except LookupError as error:
        shape_, part = None, options.name.lower()
        shapes = [
            shape
            for shape in catalog.models()
            if part in f"{shape.name} {catalog.hf_id(shape)} {shape.family}".lower()
        ]
        if not shapes:
            raise CliError(error.args[0]) from None
    if options.json:
        data = [
            {**asdict(shape), "hf_id": catalog.hf_id(shape), "params": catalog.total(shape)}
            for shape in shapes
        ]
        print(json.dumps(data[0] if shape_ else data, indent=2))
    elif shape_:
        _show(shape_)
    else:
        _list(shapes)
    return 0


def parser() -> Parser:
    """Options of the command."""
    parser = Parser(
        "models",
        "List the models that are known by name, or show one.",
        usage="gputop models [NAME]",
    )
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="a name, a Hugging Face id, or part of names"
    )
    parser.add_argument("--json", action="store_true", help="print as JSON")
    return parser


def _list(model_shapes: list[ModelShape]) -> None:
    from gputop_analysis import catalog

    width = max(len(shape.name) for shape in model_shapes)
    print(
        f"{'model':<{width}}  {'params':>8}  {'layers':>6} {'hidden':>6} {'heads':>9} "
        f"{'vocab':>7}  family"
    )
    for shape in model_shapes:
        heads = f"{shape.heads}/{shape.kv_heads or shape.heads}"
        print(
            f"{shape.name:<{width}}  {_count(catalog.total(shape)):>8}  {shape.layers:>6} "
            f"{shape.hidden:>6} {heads:>9} {shape.vocab:>7}  {shape.family}"
        )


def _show(shape: ModelShape) -> None:
    from gputop_analysis import catalog

    print(f"{shape.name}  ({catalog.hf_id(shape)}, {shape.family})")
    print(f"  {'parameters':<18} {_count(catalog.total(shape))}")
    for part, count in catalog.params(shape).items():
        if count:
            print(f"    {part.replace('_', ' '):<16} {_count(int(count))}")
    skipped = ("name", "family", "params", "source", "hidden_act")
    for key, value in asdict(shape).items():
        if value and key not in skipped:
            if isinstance(value, int) and not isinstance(value, bool):
                text = f"{value:,}"
            else:
                text = str(value)
            print(f"  {key.replace('_', ' '):<18} {text}")
    print(f"  {'source':<18} {shape.source}")


def _count(value: float) -> str:
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:,.0f}"
