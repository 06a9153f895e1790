"""How far the planner's predictions are from published runs, and what its pick would have cost.

    python bench/planner_accuracy.py DIR [--json] [--half first|second] [--write]

``DIR`` holds CSV files of runs (columns: model, params, hidden, layers, heads, kv_heads, ffn,
vocab, n_experts, top_k, seq, micro_batch, global_batch, gpus, gpus_per_node, gpu_model, dtype, tp,
pp, vpp, dp, cp, ep, zero, act_ckpt, tokens_per_s_per_gpu, step_time_s, status, peak_mem_gib,
framework, interconnect, notes; what a file lacks is left open and the planner takes the fastest
choice that fits, as people who tune do). Every row is predicted from what it says; none is looked
up, and its measurement is used for the score alone. ``--write`` makes docs/planner_accuracy.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import zlib
from collections import Counter, defaultdict
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from planner_scores import errors, regrets, spearman

from gputop_analysis import run_tables
from gputop_analysis.planner.answers import Answer, answers
from gputop_analysis.planner.calibrate import calibrate
from gputop_analysis.planner.intervals import new_axes, rest_share, uncalibrated
from gputop_analysis.planner.preference import preferred
from gputop_analysis.planner.rows import Case, Unreadable, read
from gputop_analysis.planner.search import model_flops

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs/planner_accuracy.md"
CALIBRATION_ROWS = 5
STALL_S = 0.6
"""Seconds above the prediction for each micro-batch: the Playbook's stalls take 1.1 to 1.3, other
errors of its runs less than 0.4.
"""


def main(argv: list[str] | None = None) -> int:
    """Prints a table, or JSON of one object a source."""
    options = _parser().parse_args(argv)
    found = {
        path.stem: score(path, options.half) for path in sorted(Path(options.folder).rglob("*.csv"))
    }
    found = {name: one for name, one in found.items() if one}
    for path in sorted(Path(options.folder).rglob("*.csv")):
        if path.stem not in found:
            print(
                f"{path.name}: not scored, without rows or the columns seq, gpus and global_batch",
                file=sys.stderr,
            )
    if not found:
        print(
            f"no CSV file in {options.folder} has the columns seq, gpus and global_batch",
            file=sys.stderr,
        )
        return 2
    print(json.dumps(found, indent=2) if options.json else table(found))
    if options.write:
        halves = {half: _halves(Path(options.folder), half) for half in ("first", "second")}
        DOCUMENT.write_text(document(found, halves), "utf-8")
    return 0


def score(path: Path, half: str = "") -> dict[str, Any]:
    """All figures of one source; empty if the file is of another kind."""
    count, every, skipped = _answered(path)
    if not count:
        return {}
    said = [one for one in every if not half or _half(one.case) == half]
    timed = [one for one in said if one.case.ran and one.case.step_s]
    result: dict[str, Any] = {"rows_read": count, "rows_used": len(said), "rows_timed": len(timed)}
    result |= {"rows_skipped": dict(skipped)}
    if timed:
        result |= _speed(timed) | {"baselines": _baselines(timed), "calibrated": _calibrated(timed)}
    return result | _memory(said)


@lru_cache
def _answered(path: Path) -> tuple[int, list[Answer], Counter[str]]:
    """Rows of a file, what is said of those that can be predicted, and why others cannot; 0 rows of
    another kind.
    """
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = list(run_tables.read(file).rows)
    if not rows or not {"seq", "gpus", "global_batch"} <= set(rows[0]):
        return 0, [], Counter()
    cases, skipped = _read(rows)
    try:
        return len(rows), answers(cases), skipped
    except Exception:  # one row of a kind that was not thought of must not take the others with it
        return len(rows), _one_by_one(cases, skipped), skipped


def _one_by_one(cases: list[Case], skipped: Counter[str]) -> list[Answer]:
    found: list[Answer] = []
    for case in cases:
        try:
            found += answers([case])
        except Exception as error:
            skipped[f"its prediction failed: {type(error).__name__}: {error}"] += 1
    return found


def _read(rows: list[dict[str, str]]) -> tuple[list[Case], Counter[str]]:
    cases, skipped = [], Counter()
    for row in rows:
        try:
            cases.append(read(row))
        except Unreadable as reason:
            skipped[str(reason)] += 1
        except Exception as error:
            skipped[f"it cannot be read: {type(error).__name__}: {error}"] += 1
    return cases, skipped


def _speed(timed: list[Answer]) -> dict[str, Any]:
    predicted, measured = _arrays(timed)
    within = [
        spearman(predicted[index], measured[index])
        for index in _cells(timed).values()
        if len(index) > 4
    ]
    within = [one for one in within if one == one]
    return (
        errors(predicted, measured)
        | {
            "spearman": spearman(predicted / _tokens(timed), measured / _tokens(timed)),
            "spearman_within_cells": float(np.mean(within)) if within else None,
        }
        | {"inside_interval_pct": _covered(timed)}
        | _regret(_picked(timed, predicted), timed)
        | _steady(timed)
    )


def _steady(timed: list[Answer]) -> dict[str, Any]:
    """Regret and coverage among the runs that did not stall."""
    steady = [one for one in timed if not stalled(one)]
    predicted, _ = _arrays(steady)
    found = _regret(_picked(steady, predicted), steady)
    return {
        "rows_stalled": len(timed) - len(steady),
        "regret_steady_mean_pct": found.get("regret_mean_pct"),
        "inside_interval_steady_pct": _covered(steady),
    }


def stalled(answer: Answer) -> bool:
    """Whether each micro-batch took ``STALL_S`` more than predicted."""
    case = answer.case
    micro = max(case.job.global_batch / answer.layout["micro_batch"] / answer.layout["dp"], 1.0)
    return (case.step_s - answer.seconds) / micro > STALL_S


def _picked(timed: list[Answer], predicted: np.ndarray) -> np.ndarray:
    """A score of 0 for what the planner takes in each cell and 1 for the rest."""
    tight = np.array([one.tight for one in timed])
    split = np.array([one.layout["tp"] * one.layout["pp"] * one.layout["cp"] for one in timed])
    scores = np.ones(len(timed))
    for index in _cells(timed).values():
        scores[preferred(index, predicted, split, tight)] = 0.0
    return scores


def _covered(timed: list[Answer]) -> float:
    """Percent of the rows inside the interval of their prediction, which is to be 80."""
    found = []
    for one in timed:
        low, high = interval_of(one)
        found.append(low <= one.case.step_s / one.seconds <= high)
    return 100 * float(np.mean(found))


def interval_of(answer: Answer) -> tuple[float, float]:
    """Factors on a prediction, wider for what was never calibrated and for fields left open."""
    case = answer.case
    new = new_axes(case.job, case.cluster, answer.layout)
    left_open = ("fields left open",) if len(case.layouts) > 1 else ()
    return uncalibrated(float(rest_share(answer.parts)[0]), (*new, *left_open))


def _regret(scores: np.ndarray, timed: list[Answer]) -> dict[str, Any]:
    _, measured = _arrays(timed)
    found = list(regrets(scores, measured, [one.case.cell for one in timed]).values())
    if not found:
        return {"cells": 0}
    return {
        "cells": len(found),
        "regret_mean_pct": 100 * float(np.mean(found)),
        "regret_worst_pct": 100 * max(found),
        "top1_pct": 100 * float(np.mean([one < 0.005 for one in found])),
    }


def _baselines(timed: list[Answer]) -> dict[str, Any]:
    """Two rules of thumb. The MFU of a GPU is the median over the very rows that are scored, which
    favours it.
    """
    _, measured = _arrays(timed)
    least = np.array(
        [one.layout["tp"] * one.layout["pp"] * 1e6 - one.layout["micro_batch"] for one in timed],
        dtype=float,
    )
    ideal = np.array(
        [
            model_flops(one.case.job)
            / one.case.cluster.gpus
            / one.case.cluster.device.flops(one.case.job.dtype)
            for one in timed
        ]
    )
    names = np.array([one.case.cluster.device.name for one in timed])
    mfu = {name: float(np.median((ideal / measured)[names == name])) for name in set(names)}
    constant = ideal / np.array([mfu[name] for name in names])
    return {
        "least_tp_pp_then_largest_micro_batch": _regret(least - least.min() + 1, timed),
        "one_mfu_per_gpu": errors(constant, measured)
        | {"spearman": spearman(constant / _tokens(timed), measured / _tokens(timed))}
        | _regret(constant, timed),
    }


def _calibrated(timed: list[Answer]) -> dict[str, Any]:
    """Each model on each GPU corrected by five of its rows (the first of a fixed shuffle), scored
    on the others.
    """
    groups: defaultdict[tuple[str, str], list[Answer]] = defaultdict(list)
    for one in timed:
        groups[one.case.row.get("model", ""), one.case.cluster.device.name].append(one)
    off, before, left_out, inside = [], [], [], []
    for group in groups.values():
        if len(group) < CALIBRATION_ROWS + 2:
            continue
        order = sorted(
            group, key=lambda one: zlib.crc32(repr(sorted(one.case.row.items())).encode())
        )
        known, rest = order[:CALIBRATION_ROWS], order[CALIBRATION_ROWS:]
        found = calibrate([one.parts for one in known], [one.case.step_s for one in known])
        left_out.append(found.leave_one_out)
        for one in rest:
            off.append(float(found.seconds(one.parts)[0]) / one.case.step_s - 1)
            before.append(one.seconds / one.case.step_s - 1)
            low, high = found.interval or interval_of(one)
            inside.append(low <= 1 / (1 + off[-1]) <= high)
    if not off:
        return {"rows": 0}
    return {
        "rows": len(off),
        "groups": len(left_out),
        "mape_pct": 100 * float(np.mean(np.abs(off))),
        "median_error_pct": 100 * float(np.median(np.abs(off))),
        "mape_uncalibrated_pct": 100 * float(np.mean(np.abs(before))),
        "leave_one_out_pct": 100 * float(np.mean(left_out)),
        "inside_interval_pct": 100 * float(np.mean(inside)),
    }


def _memory(said: list[Answer]) -> dict[str, Any]:
    """Error of the peak where it was measured, and precision and recall of "fits"."""
    result: dict[str, Any] = {}
    known = [one for one in said if one.case.ran and one.case.peak_gib]
    if known:
        off = np.array([100 * (one.allocated_gib / one.case.peak_gib - 1) for one in known])
        result["memory"] = {
            "rows": len(known),
            "median_error_pct": float(np.median(np.abs(off))),
            "mean_error_pct": float(np.mean(np.abs(off))),
            "bias_pct": float(np.median(off)),
        }
    if any(not one.case.ran for one in said):
        ran, fits = np.array([one.case.ran for one in said]), np.array([one.fits for one in said])
        result["fits"] = {
            "rows_ran": int(ran.sum()),
            "rows_out_of_memory": int((~ran).sum()),
            "precision_pct": 100 * float((ran & fits).sum() / max(fits.sum(), 1)),
            "recall_pct": 100 * float((ran & fits).sum() / max(ran.sum(), 1)),
        }
    return result


def _arrays(timed: list[Answer]) -> tuple[np.ndarray, np.ndarray]:
    return np.array([one.seconds for one in timed]), np.array([one.case.step_s for one in timed])


def _tokens(timed: list[Answer]) -> np.ndarray:
    return np.array([one.case.job.tokens / one.case.cluster.gpus for one in timed])


def _cells(timed: list[Answer]) -> dict[tuple[str, ...], np.ndarray]:
    found: defaultdict[tuple[str, ...], list[int]] = defaultdict(list)
    for i, one in enumerate(timed):
        found[one.case.cell].append(i)
    return {cell: np.array(index) for cell, index in found.items()}


def _half(case: Case) -> str:
    """Which half of the cells a row belongs to, by hash."""
    return "first" if zlib.crc32(repr(case.cell).encode()) % 2 else "second"


def _halves(folder: Path, half: str) -> dict[str, Any]:
    found = {path.stem: score(path, half) for path in sorted(folder.rglob("*.csv"))}
    return {name: one for name, one in found.items() if one.get("rows_timed")}


HEAD = (
    "source",
    "rows",
    "MAPE %",
    "median %",
    "Spearman",
    "in cells",
    "regret %",
    "worst %",
    "without stalls %",
    "inside %",
    "5 rows: MAPE %",
    "left out %",
    "inside %",
    "memory %",
    "fits: precision / recall %",
)


def table(found: dict[str, Any]) -> str:
    """A Markdown table, one line a source."""
    lines = ["| " + " | ".join(HEAD) + " |", "|" + "---|" * len(HEAD)]
    for name, one in found.items():
        memory, calibrated = one.get("memory", {}), one.get("calibrated", {})
        cells = (
            f"{one['rows_timed']} of {one['rows_read']}",
            *(_figure(one.get(key)) for key in ("mape_pct", "median_error_pct")),
            *(_figure(one.get(key), 2) for key in ("spearman", "spearman_within_cells")),
            *(_figure(one.get(key)) for key in ("regret_mean_pct", "regret_worst_pct")),
            _figure(one.get("regret_steady_mean_pct")),
            _figure(one.get("inside_interval_pct"), 0),
            _figure(calibrated.get("mape_pct")),
            _figure(calibrated.get("leave_one_out_pct")),
            _figure(calibrated.get("inside_interval_pct"), 0),
            _figure(memory.get("median_error_pct")),
            " / ".join(_figure(one["fits"][key], 0) for key in ("precision_pct", "recall_pct"))
            if "fits" in one
            else "",
        )
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _fits(found: dict[str, float] | None) -> str:
    return f"{found['precision_pct']:.0f} / {found['recall_pct']:.0f}" if found else ""


def _figure(value: float | None, digits: int = 1) -> str:
    return "" if value is None or value != value else f"{value:.{digits}f}"


LEGEND = """\
Spearman over all rows and within cells (the mean); regret of the pick, mean and worst, and its mean
among runs that did not stall (each micro-batch 0.6 s above the prediction, of the whole sweep one
in four); inside: measured runs within the 80 % interval of their prediction. 5 rows: each model on
each GPU corrected by five of its rows and scored on the others, the error that leaving each of the
five out foretold, rows inside the interval that follows. Fits: of rows that were said to fit those
that ran, and of rows that ran those that were said to fit; failed runs may have crashed for another
reason than memory."""


def _baseline_table(found: dict[str, Any]) -> str:
    lines = [
        "| source | planner | least TP x PP, then largest micro-batch | one MFU per GPU | its "
        "MAPE % | its Spearman |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in found.items():
        if not one.get("rows_timed"):
            continue
        rule, constant = one["baselines"].values()
        figures = [
            one.get("regret_mean_pct"),
            rule.get("regret_mean_pct"),
            constant.get("regret_mean_pct"),
        ]
        rest = (_figure(constant.get("mape_pct")), _figure(constant.get("spearman"), 2))
        lines.append(f"| {name} | " + " | ".join((*map(_figure, figures), *rest)) + " |")
    return "\n".join(lines)


def document(found: dict[str, Any], halves: dict[str, Any]) -> str:
    """The whole of docs/planner_accuracy.md."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    notes = (ROOT / "bench/planner_accuracy_notes.md").read_text("utf-8")
    parts = [
        "# How accurate the planner is",
        "Made by `python bench/planner_accuracy.py DIR --write` at commit "
        f"{commit.stdout.strip() or 'unknown'}.",
        "Step time against published runs; nothing is calibrated but in the columns that say so.",
        LEGEND,
        table(found),
        "## The same by halves",
        "The cells in two halves by hash. Both were looked at while the constants were chosen, so "
        "this shows how much\nthe figures depend on the rows and is no held-out test; that is "
        "what sources unseen so far are for.",
        "First half:\n\n" + table(halves["first"]),
        "Second half:\n\n" + table(halves["second"]),
        "## What the pick costs, against two rules of thumb",
        "Mean regret in percent over cells of (model, GPUs, global batch, sequence, GPU, type).",
        _baseline_table(found),
        "## Rows left out\n\n" + _left_out(found),
        notes.strip(),
    ]
    return "\n\n".join(parts) + "\n"


def _left_out(found: dict[str, Any]) -> str:
    lines = [
        f"- {name}: {count} rows, {reason}"
        for name, one in found.items()
        for reason, count in one["rows_skipped"].items()
    ]
    return "\n".join(lines) or "None."


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", metavar="DIR")
    parser.add_argument("--json", action="store_true", help="all figures")
    parser.add_argument(
        "--half", choices=("first", "second"), default="", help="only the cells of that half"
    )
    parser.add_argument("--write", action="store_true", help=f"make {DOCUMENT.relative_to(ROOT)}")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
