"""Runs the benches one after the other and prints the table of docs/performance.md; ``--write``
puts it there.

    python bench/table.py [--write]

Each row stands beside its budget. All rows come from one machine and one run, with nothing else on
it if you can.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

BENCH = Path(__file__).parent
PAGE = BENCH.parent / "docs" / "performance.md"
BEGIN, END = "<!-- performance: made by bench/table.py -->", "<!-- /performance -->"


def run(name: str, *words: str) -> dict[str, Any]:
    """One bench's JSON line; a bench whose figures miss a promise ends with 1, and has its row."""
    print(f"{name} ...", file=sys.stderr)
    kept = {
        name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
    }  # as most users'
    done = subprocess.run(
        [sys.executable, str(BENCH / f"{name}.py"), *words],
        capture_output=True,
        text=True,
        env=kept,
    )
    if not done.stdout.strip():
        raise SystemExit(f"{name} told no figures:\n{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def rows() -> list[tuple[str, str, str]]:
    """What, budget, measured."""
    table = []
    overhead = run("overhead")
    for step in ("0.1ms", "1ms", "20ms"):
        found = overhead[step]
        measured = (
            f"+{found['added_us']:.0f} us on {found['step_us']:.0f} us (x{found['ratio']:.3f})"
        )
        table.append(
            (
                f"agent, added to a step of nominal {step[:-2]} ms",
                "<= 15 us; x1.015 at 1 ms",
                measured,
            )
        )
    ingest = run("ingest")
    for way in ("folded", "unfolded"):
        cpu_pct, rss_mb, lost = (
            ingest[f"{way}_{what}"] for what in ("cpu_pct", "rss_mb", "records_lost")
        )
        measured = f"{cpu_pct:.1f} % of a core, {rss_mb:.0f} MB, {lost} lost"
        table.append(
            (
                f"recorder, 8 ranks x 1000 steps/s, {way}",
                "<= 10 % of a core, <= 40 MB, none lost",
                measured,
            )
        )
    first = run("first_frame")
    beside = (
        f"bare Python: {first['python_ms']} ms, a Textual application of one label: "
        f"{first['label_ms']} ms"
    )
    table.append(("first frame of `gputop run`", "<= 400 ms", f"{first['run_ms']} ms ({beside})"))
    table.append(("first frame of `gputop open`", "<= 400 ms", f"{first['open_ms']} ms"))
    measured = (
        f"{first['numbers_ms']} ms (the script alone reaches its first step after "
        f"{first['first_step_ms']} ms)"
    )
    table.append(("first live numbers of a training", "<= 3 s", measured))
    paint = run("paint")
    measured = (
        f"{paint['cpu_pct']:.1f} % of a core, {paint['kb_per_s']:.0f} kB/s, "
        f"{paint['rss_mb']:.0f} MB"
    )
    table.append(
        ("live screen, 200x50, 8 ranks", "<= 5 % of a core, <= 100 kB/s, <= 80 MB", measured)
    )
    table.append(("the same, idle", "< 0.5 % of a core", f"{paint['idle_cpu_pct']:.2f} %"))
    many = run("paint", "--ranks", "1024", "--steps-per-s", "1")
    measured = f"{many['cpu_pct']:.1f} % of a core, a frame every {1 / many['frames_per_s']:.0f} s"
    table.append(("live screen, 200x50, 1024 ranks", "<= 8 % of a core", measured))
    large = run("open_large")
    measured = f"{large['first_frame_ms']} ms (its figures: {large['first_figures_ms']} ms)"
    table.append(("first frame of a record of 10 million steps", "<= 1 s", measured))
    return [*table, *analysis_rows()]


def analysis_rows() -> list[tuple[str, str, str]]:
    """What the analysis costs, and how often the straggler test is wrong."""
    table = []
    live = run("live_findings")
    for ranks in (8, 1024):
        measured = (
            f"{live[f'tick_ms_{ranks}_ranks']:.0f} ms, at most "
            f"{live[f'worst_tick_ms_{ranks}_ranks']:.0f} (in a view's first 20 s "
            f"{live[f'all_checks_ms_{ranks}_ranks']:.0f}, at most "
            f"{live[f'worst_young_tick_ms_{ranks}_ranks']:.0f})"
        )
        budget = f"<= {live[f'budget_ms_{ranks}_ranks']} ms"
        table.append(
            (f"all {live['findings']} findings evaluated live, {ranks} ranks", budget, measured)
        )
    million = run("million")
    measured = f"{million['report_s']:.1f} s, {million['peak_rss_mb']} MB"
    table.append(("report of 1 million steps x 8 ranks", "<= 5 s, <= 500 MB", measured))
    straggler = run("straggler")
    for what, budget in (("false_alarms", "<= 1 %"), ("power_5_percent_slow", ">= 95 %")):
        shares = ", ".join(
            f"{100 * share:.1f} % at {rho}" for rho, share in straggler[what].items()
        )
        table.append(
            (f"straggler test, {what.replace('_', ' ')}, by autocorrelation", budget, shares)
        )
    return table


def main() -> None:
    """Print the table, and write it where asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="put it into docs/performance.md")
    options = parser.parse_args()
    lines = ["| what | budget | measured |", "|---|---|---|"]
    lines += [f"| {what} | {budget} | {measured} |" for what, budget, measured in rows()]
    machine = (
        f"{os.cpu_count()} cores, no GPU, Python {platform.python_version()}, Linux; "
        "made by `python bench/table.py`."
    )
    text = "\n".join([BEGIN, machine, "", *lines, END])
    print(text)
    if options.write:
        page = PAGE.read_text()
        PAGE.write_text(
            re.sub(f"{re.escape(BEGIN)}.*{re.escape(END)}", text, page, flags=re.DOTALL)
        )


if __name__ == "__main__":
    main()
