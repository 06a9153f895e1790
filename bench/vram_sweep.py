"""The formula against traces of setups drawn at random: families, ways of training, sharding.

    python bench/vram_sweep.py [--seed N] [--limit-s S] [--jsonl FILE]
    python bench/vram_sweep.py --setups FILE

No measured run decides what is drawn, so that an error shows a mechanism that the formula does not
know, wherever the published runs lie. ``--setups``: a JSON list of [model, options] instead, with
the options' names of ``gputop estimate``. A trace takes 1 to 5 s; needs torch, transformers, peft.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import vram_traces

from gputop.models import resolve
from gputop_analysis.catalog.models import models
from gputop_analysis.units import GIB
from gputop_analysis.vram.options import setup_of
from gputop_analysis.vram.question import estimate

Options = dict[str, Any]
Asked = tuple[str, Options]
LEFT_OUT = ("t5", "clip", "vit", "llava", "internvl", "mllama")
"""Families with images or two stacks, and those that the formula leaves to the trace."""
OPEN: dict[str, tuple[Any, ...]] = {
    "seq": (512, 1024, 2048, 4096),
    "micro_batch": (1, 2, 4),
    "attention": ("sdpa", "flash", "eager"),
    "checkpointing": ("none", "full"),
    "loss": ("plain", "plain", "fused"),
    "optimizer": (
        "adamw",
        "adamw",
        "adamw-fused",
        "adamw-8bit",
        "adafactor",
        "sgd-momentum",
        "lion",
    ),
    "sharding": ("none", "none", "none", "fsdp1", "fsdp2", "zero1", "zero2", "zero3"),
}
GROUPS = ("family", "method", "sharding", "optimizer", "attention", "checkpointing", "loss")
WORST = 15


def main() -> int:
    """Prints a line a setup, then errors by what was drawn."""
    options = _parser().parse_args()
    if options.setups:
        asked: Iterable[Asked] = [(model, given) for model, given in json.loads(options.setups)]
    else:
        asked = drawn(random.Random(options.seed), time.monotonic() + options.limit_s)
    rows = []
    for model, given in asked:
        row = compared(model, given)
        rows.append(row)
        print(json.dumps(row), flush=True)
    if not options.setups:
        print("\n".join(_summary([row for row in rows if "failed" not in row])), file=sys.stderr)
    return 0


def drawn(chance: random.Random, until: float) -> Iterator[Asked]:
    """Setups that can be trained, until a reading of the monotonic clock."""
    by_family = defaultdict(list)
    for shape in models():
        if shape.family not in LEFT_OUT and not shape.vision_layers:
            by_family[shape.family].append(shape.name)
    while time.monotonic() < until:
        model = chance.choice(by_family[chance.choice(sorted(by_family))])
        given = {name: chance.choice(values) for name, values in OPEN.items()}
        given["dp"] = 1 if given["sharding"] == "none" else chance.choice((2, 4, 8))
        given |= chance.choice(({}, {}, _adapted(chance), _adapted(chance) | {"quant": "nf4"}))
        if "quant" not in given and not given["sharding"].startswith("zero"):
            given |= chance.choice(({}, {"weights": "fp32"}))
        try:
            setup = setup_of(resolve(model), given)
            estimate(setup, "formula", advice=False)
        except (ValueError, LookupError):
            continue
        yield model, given


def _adapted(chance: random.Random) -> Options:
    return {
        "lora_rank": chance.choice((8, 16, 64)),
        "lora_targets": chance.choice(("q_proj,v_proj", "all-linear")),
        "lora_dtype": chance.choice(("fp32", "bf16")),
    }


def compared(model: str, given: Options) -> dict[str, Any]:
    """What both tiers say, GiB, and the formula's errors over the trace's, percent."""
    setup = setup_of(resolve(model), given)
    method = "full"
    if setup.lora:
        method = "qlora" if setup.quantized else "lora"
    row: dict[str, Any] = {"model": model, "family": setup.model.family, "method": method, **given}
    formula = estimate(setup, "formula", advice=False).peak
    try:
        log = vram_traces.trace(setup)
        traced = estimate(setup, "trace", log=log, advice=False).peak
    except ValueError as error:
        return row | {"failed": str(error)[-200:]}
    for name in ("allocated", "reserved"):
        said, replayed = getattr(formula, name), getattr(traced, name)
        row[f"{name}_gib"] = [round(said / GIB, 3), round(replayed / GIB, 3)]
        row[f"{name}_error_pct"] = round(100 * (said / replayed - 1), 1)
    return row | {"at": [formula.operation, traced.operation]}


def _summary(rows: list[dict[str, Any]]) -> Iterator[str]:
    if not rows:
        return
    for name in ("allocated", "reserved"):
        yield f"{name}: {_errors(rows, name)}"
    for group in GROUPS:
        by_value = defaultdict(list)
        for row in rows:
            by_value[row[group]].append(row)
        for value, some in by_value.items():
            yield f"  {group} {value}: allocated {_errors(some, 'allocated')}"
    for row in sorted(rows, key=lambda row: -abs(row["allocated_error_pct"]))[:WORST]:
        yield json.dumps(row)


def _errors(rows: list[dict[str, Any]], name: str) -> str:
    """Median and 90th percentile of the errors without their signs."""
    errors = sorted(abs(row[f"{name}_error_pct"]) for row in rows)
    tenth = errors[int(0.9 * (len(errors) - 1))]
    return (
        f"{len(rows)} setups, median {statistics.median(errors):.1f} %, 90 % within {tenth:.1f} %"
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit-s", type=float, default=300.0, help="draw no more after so long")
    parser.add_argument(
        "--setups", type=lambda path: Path(path).read_text(), help="file of setups to take instead"
    )
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
