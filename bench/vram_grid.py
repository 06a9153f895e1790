"""Real steps of 36 configurations on the GPU here, against the three tiers. One JSON line.

    python bench/vram_grid.py [--out FILE] [--device cuda|cpu] [--limit N] [--tiers
    formula,profile,trace]

Each configuration takes a few real steps in a process of its own (``gputop probe``), so that one
that runs out of memory harms no other. What was measured is kept in ``FILE``, a JSON line a
configuration with the GPU, its driver and the versions of torch and transformers; those that are
there already for this GPU and torch are not run again. On a CPU the mechanics run, but there is no
peak to measure, so nothing is kept.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

from gputop.api import answer
from gputop.models import resolve
from gputop.probing import probe
from gputop_analysis.units import GIB
from gputop_analysis.vram.options import setup_of
from gputop_analysis.vram.setup import Setup

KEPT = Path(__file__).parent / "data/vram_grid.jsonl"
TIERS = ("formula", "profile", "trace")
SMALL, MIDDLE, LARGE = "qwen2.5-0.5b", "llama-3.2-1b", "llama-3-8b"
Row = dict[str, Any]


def grid() -> list[tuple[str, Row]]:
    """(model, options as on the command line) of every configuration: sizes, batch, sequence,
    checkpointing, LoRA, optimizers, attention.
    """
    found: list[tuple[str, Row]] = []
    for model, seq, size, kept in product((SMALL, MIDDLE), (512, 2048), (1, 4), ("none", "full")):
        found.append((model, {"seq": seq, "micro_batch": size, "checkpointing": kept}))
    for optimizer in (
        "adamw-fused",
        "adamw-loop",
        "sgd",
        "sgd-momentum",
        "adafactor",
        "adamw-8bit",
    ):
        found.append((MIDDLE, {"seq": 1024, "optimizer": optimizer}))
    for attention, model in product(("eager", "sdpa"), (SMALL, "gpt2")):
        found.append((model, {"seq": 1024, "micro_batch": 2, "attention": attention}))
    for rank, model in product((8, 64), (MIDDLE, LARGE)):
        found.append(
            (
                model,
                {"seq": 1024, "micro_batch": 2, "lora_rank": rank, "lora_targets": "all-linear"},
            )
        )
    for weights, loss in (("fp32", "plain"), ("", "fused"), ("", "chunked")):
        found.append((MIDDLE, {"seq": 2048, "weights": weights, "loss": loss}))
    for seq, size in ((1024, 1), (4096, 2)):
        found.append((LARGE, {"seq": seq, "micro_batch": size, "lora_rank": 16, "quant": "nf4"}))
    return found + [(LARGE, {"seq": 2048, "optimizer": "sgd", "checkpointing": "full"})]


def measured(model: str, options: Row, tiers: tuple[str, ...], device: str = "") -> Row:
    """One configuration: its real steps and what each tier says; ``failed`` where the steps or a
    tier did not run.
    """
    row: Row = {"model": model, "options": options}
    setup = setup_of(
        resolve(model), {name: value for name, value in options.items() if value != ""}
    )
    try:
        seen = probe(setup, None, device=device)
    except (ValueError, ImportError) as error:
        return {**row, "failed": str(error)}
    row |= {"gpu": seen.get("gpu"), "device": seen["device"], "versions": seen["versions"]}
    row |= {name: _gib(seen.get(f"{name}_bytes")) for name in ("peak_allocated", "peak_reserved")}
    return row | {"tiers": {tier: _estimated(setup, tier) for tier in tiers}}


def _estimated(setup: Setup, tier: str) -> Row:
    try:
        peak = answer(setup, tier, calibrate=False, advice=False).peak
    except (ValueError, LookupError, ImportError) as error:
        return {"failed": str(error)}
    return {"peak_allocated": _gib(peak.allocated), "peak_reserved": _gib(peak.reserved)}


def errors(rows: list[Row], tier: str) -> Row:
    """Median and largest error of a tier in percent, of what is allocated and what is reserved."""
    found: Row = {}
    for name in ("peak_allocated", "peak_reserved"):
        pairs = [(row["tiers"].get(tier, {}).get(name), row[name]) for row in rows if row.get(name)]
        off = [abs(100 * (said / seen - 1)) for said, seen in pairs if said]
        found[name] = (
            {"runs": len(off), "median_pct": round(median(off), 2), "most_pct": round(max(off), 2)}
            if off
            else {}
        )
    return found


def driver() -> str:
    """The version of NVIDIA's driver; empty without one."""
    if not shutil.which("nvidia-smi"):
        return ""
    asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip().partition("\n")[0]


def _gib(size: int | None) -> float | None:
    return None if size is None else round(size / GIB, 4)


def _kept(path: Path) -> list[Row]:
    return (
        [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []
    )


def main() -> None:
    """Run what is not there yet, keep it, and print the errors of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=KEPT)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--limit", type=int, help="configurations at most")
    parser.add_argument("--tiers", default=",".join(TIERS))
    options = parser.parse_args()
    tiers = tuple(options.tiers.split(","))
    kept, failed = _kept(options.out), 0
    here, ran = driver(), 0
    if options.device == "cuda" and not here:
        print(
            "no NVIDIA driver here, so nothing to measure: --device cpu runs the mechanics",
            file=sys.stderr,
        )
        raise SystemExit(3)
    known = {
        json.dumps([row["model"], row["options"]]) for row in kept if row.get("driver") == here
    }
    for model, asked in grid()[: options.limit]:
        if json.dumps([model, asked]) in known:
            continue
        row = {**measured(model, asked, tiers, options.device), "driver": here}
        print(
            f"{model} {asked}: {row.get('failed') or row['peak_allocated']}",
            file=sys.stderr,
            flush=True,
        )
        ran, failed = ran + 1, failed + ("failed" in row)
        if row.get("peak_allocated"):
            kept.append(row)
            options.out.parent.mkdir(parents=True, exist_ok=True)
            with options.out.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(row) + "\n")
    found = {tier: errors(kept, tier) for tier in tiers}
    print(
        json.dumps(
            {
                "bench": "vram_grid",
                "configurations": len(grid()),
                "ran": ran,
                "failed": failed,
                **found,
            }
        )
    )


if __name__ == "__main__":
    main()
