"""Sections of tables: budget, ranks, devices, settings, the sources of all figures."""

from __future__ import annotations

import shlex
from typing import Any

from gputop_analysis.budget import LINES, OF_ALL_STEPS
from gputop_analysis.goodput import PARTS
from gputop_analysis.html.charts import bar
from gputop_analysis.html.colours import BUDGET, GOODPUT, STARTUP
from gputop_analysis.html.elements import details, pairs, section, shares, table
from gputop_analysis.report.build import Report
from gputop_analysis.report.figures import figures
from gputop_analysis.report.words import (
    ADDED_NOT_MEASURED,
    balance,
    figure,
    peak_memory,
    ranks_to_show,
    utilisation,
)
from gputop_analysis.text import MISSING, RANKS_ON_A_PAGE, capitalised, duration, gib, ms, whole

SHORT_NS = 100_000_000
"""Parts of the start below this are told in milliseconds."""


def budget_section(report: Report) -> str:
    """The efficiency budget: wall time of all ranks, split into lines that add up to it."""
    budget = report.budget
    lines = [name for name in LINES if budget.lines_ns[name] > 0]
    if not lines:
        return ""
    rows = []
    for line in lines:
        rows.append(
            (BUDGET[line], LINES[line].title, budget.share(line), (ms(budget.ms_per_step(line)),))
        )
    parts = {}
    for line in lines:
        parts[line] = (
            BUDGET[line],
            budget.share(line),
            (f"{LINES[line].title}: {ms(budget.ms_per_step(line))} ms a step"),
        )
    note = (
        f"Wall time of all ranks, added up, {OF_ALL_STEPS}. "
        f"Useful compute: {budget.compute_anchor}."
    )
    if shares_of_peak := utilisation(budget):
        note += f" {', '.join(shares_of_peak)}."
    if budget.not_told_apart:
        note += f" Not told apart: {budget.not_told_apart}."
    meaning = details(
        "What each line means",
        pairs((LINES[line].title, f"{LINES[line].text} ({LINES[line].source})") for line in lines),
    )
    return section(
        "Efficiency budget", bar(parts) + shares(("line", "ms a step"), rows) + meaning, note
    )


def goodput_section(report: Report) -> str:
    """Section on the session's time: productive, or lost to what."""
    goodput = report.goodput
    if goodput is None or goodput.session_ns <= 0:
        return ""
    parts = {name: value for name, value in goodput.parts_ns.items() if value > 0}
    rows = []
    for name, value in parts.items():
        rows.append(
            (
                GOODPUT[name],
                name.replace("_", " "),
                value / goodput.session_ns,
                (duration(value / 1e9),),
            )
        )
    note = (
        f"{100 * goodput.goodput:.1f} % of {duration(goodput.session_ns / 1e9)} went into "
        "steps that count."
    )
    meaning = details(
        "What each part means", pairs((name.replace("_", " "), PARTS[name]) for name in parts)
    )
    return section("Goodput of the session", shares(("part", "time"), rows) + meaning, note)


def startup_section(report: Report) -> str:
    """Section on the way to the first step."""
    startup = report.startup
    if startup is None or not startup.has_milestones:
        return ""
    total_ns = startup.until_ns - startup.began_ns
    rows = []
    for part in startup.parts:
        colour = STARTUP.get(part.name, "muted")
        if part.ns < SHORT_NS:
            time = f"{part.ns / 1e6:.0f} ms"
        else:
            time = duration(part.ns / 1e9)
        label = part.words
        if part.site and not part.before:
            label += f" ({part.site})"
        rows.append((colour, label, part.ns / total_ns, (time,)))
    if startup.done:
        until = "to the end of the first step"
    else:
        until = "so far, without a first step"
    rank = "" if startup.rank is None else f" Rank {startup.rank}."
    note = f"{duration(startup.seconds)} from the command's start {until}.{rank}"
    return section("Until the first step", shares(("part", "time"), rows), note)


def ranks(report: Report) -> str:
    """One row a rank."""
    summaries = report.summary.ranks
    if not summaries:
        return ""
    memory = peak_memory(summaries)
    shown, selection = ranks_to_show(summaries, RANKS_ON_A_PAGE)
    rows = []
    for r in shown:
        rows.append(
            (
                f"{r.rank}",
                r.host,
                r.device or MISSING,
                f"{r.steps:,}",
                ms(r.step_time_p50_ms),
                ms(r.step_time_p95_ms),
                ms(r.wait_mean_ms),
                gib(memory.gib(r)),
                f"{r.dropped_records:,}",
            )
        )
    head = (
        "rank",
        "host",
        "device",
        "steps",
        "p50 ms",
        "p95 ms",
        "mean wait ms",
        memory.head,
        "dropped",
    )
    notes = []
    for text in (selection, balance(report.rank_table)):
        if text:
            notes.append(f"{capitalised(text)}.")
    return section("Ranks", table(head, rows, left=(0, 1, 2), sortable=True), " ".join(notes))


def gpus(report: Report) -> str:
    """One row a GPU of the run."""
    ours = [gpu for gpu in report.summary.gpus if gpu.ours]
    rows = []
    for g in ours:
        rows.append(
            (
                f"{g.index}",
                g.name,
                g.host,
                gib(g.peak_used_gib),
                gib(g.memory_total_gib),
                *map(whole, _rates(g)),
            )
        )
    head = ("gpu", "name", "host", "peak GiB", "total GiB", "util %", "power W", "limit W", "C")
    if report.summary.gpus_added:
        note = f"{ADDED_NOT_MEASURED}."
    else:
        note = ""
    if rows:
        return section("GPUs", table(head, rows, left=(0, 1, 2), sortable=True), note)
    return ""


def _rates(gpu: Any) -> tuple[float, ...]:
    return gpu.util_mean_pct, gpu.power_mean_w, gpu.power_limit_w, gpu.temperature_c


def extras(report: Report) -> str:
    """Sections that were asked for: a comparison, a trace."""
    return "".join(part.html for part in report.extras if part.html)


def run(report: Report) -> str:
    """Section on the run's settings: model, loader, versions, device."""
    if not report.view.ranks:
        return ""
    hello = report.view.hello()
    model, optimizer = hello.get("model") or {}, hello.get("optimizer") or {}
    count = model.get("parameters")
    items = [
        ("model", f"{model.get('class', '')} {f'{count:,} parameters' if count else ''}".strip()),
        ("optimizer", _joined(optimizer, "class", "lr", "fused", "foreach")),
        (
            "loader",
            _joined(
                hello.get("dataloader"), "class", "batch_size", "num_workers", "pin_memory", "site"
            ),
        ),
        ("precision", _joined(hello.get("amp"), "autocast", "dtype", "grad_scaler")),
        ("parallel", _joined(hello.get("parallel"), "backend")),
        ("device", str(hello.get("device_name") or hello.get("device") or "")),
        ("torch", str(hello.get("torch") or "")),
        ("python", str(hello.get("python") or "")),
        ("cuda", str(hello.get("cuda_version") or "")),
    ]
    context = report.summary.context
    for name, value in context.items():
        if value:
            items.append((name, _context_text(name, value)))
    return section("The run", pairs(items))


def _context_text(name: str, value: Any) -> str:
    if name == "environment" and isinstance(value, dict):
        return ", ".join(f"{variable}={setting}" for variable, setting in value.items())
    if isinstance(value, list):
        return shlex.join(map(str, value))
    if isinstance(value, dict):
        return _joined(value)
    return str(value)


def _joined(settings: Any, *names: str) -> str:
    """``AdamW, lr 0.001``: the values of a dictionary that are known."""
    if not isinstance(settings, dict):
        return ""
    known_settings = []
    for n in names or settings:
        if settings.get(n) not in (None, "", {}, []):
            known_settings.append((n, settings.get(n)))
    return ", ".join(_setting(name, value) for name, value in known_settings)


def _setting(name: str, value: Any) -> str:
    """``lr 0.001``, ``no autocast``, ``dirty``."""
    words = name.replace("_", " ")
    if isinstance(value, bool):
        return words if value else f"no {words}"
    if name in ("class", "backend"):
        return str(value)
    return f"{words} {value}"


def sources(report: Report) -> str:
    """Every figure with what it means and what was read for it, folded."""
    shown = []
    for each_figure in figures(report):
        if not each_figure.name.startswith(("ranks.", "gpus.")):
            shown.append(each_figure)
    rows = []
    for f in shown:
        rows.append(
            (
                f.name,
                MISSING if f.value is None else figure(f.value),
                f.unit,
                f.definition,
                f.source,
                f.read,
            )
        )
    head = ("figure", "value", "unit", "meaning", "source", "read")
    note = (
        "`gputop report RUN --explain NAME` prints the same, and for each finding its inputs, "
        "statistic and threshold."
    )
    return section(
        "Where the numbers come from",
        details(f"{len(rows)} figures", table(head, rows, left=(0, 2, 3, 4, 5))),
        note,
    )
