"""Whatever a record holds, analysis gives plain finite data and no exception."""

import json
import re

import numpy as np
import pytest
from analysis_support import T0, Builder, pack

from gputop_agent import wire
from gputop_analysis.calibrate import stable
from gputop_analysis.export import to_csv
from gputop_analysis.findings import evaluate
from gputop_analysis.findings.live import LiveFindings
from gputop_analysis.html import as_html
from gputop_analysis.report import Report, as_markdown, as_text, report_data
from gputop_analysis.report.figures import figures
from gputop_analysis.summary import summarise
from gputop_analysis.verdict import verdict
from gputop_probes.record.layout import TABLES

EVENTS = (
    "hello hello_update stacks checkpoint gc exception nonfinite stack_dump flight_recorder "
    "goodbye rank_start rank_lost hang_suspected hang_over interrupt"
)


def random_value(random, code):
    if code in "fd":
        return float(random.choice([np.nan, 0.0, 1.0, random.exponential() * 10, np.inf, -3.0]))
    return int(random.choice([0, 0, 1, random.integers(0, 10**6), random.integers(0, 10**9)]))


def wild(path, seed):
    """A record of random length and content: absurd values, gaps, restarts, half-filled tables,
    bare events.
    """
    random = np.random.default_rng(seed)
    build = Builder(path)
    for rank in range(int(random.integers(1, 4))):
        step = -1
        for _ in range(int(random.integers(1, 120))):
            row = {name: random_value(random, code) for name, code in wire.STEP_FIELDS}
            row["wall_ns"] = sum(row[f"{name}_ns"] for name in wire.PHASES)
            inside = ("wall_max_ns", "gc_ns", "agent_ns", "cpu_ns", "compute_cpu_ns")
            row |= {name: min(row[name], row["wall_ns"]) for name in inside}
            step = int(random.choice([step + 1, step + 1, step + 1, step + 5, 0]))
            flags = int(random.choice([0, 0, 0, 1 << int(random.integers(0, 12))]))
            row |= {
                "step": step,
                "n_steps": int(random.choice([1, 1, min(7, step + 1)])),
                "flags": flags,
            }
            row["t_end_ns"] = T0 + step * 10**7
            build.writer.append_rank("steps", rank, pack("steps", **row))
            if random.random() < 0.5:
                for table in ("comm", "device"):
                    values = {name: random_value(random, code) for name, code in TABLES[table]}
                    build.writer.append_rank(
                        table,
                        rank,
                        pack(table, **(values | {"step": step, "t_end_ns": row["t_end_ns"]})),
                    )
    for table in ("gpu", "host", "process"):
        for tick in range(int(random.integers(0, 20))):
            values = {name: random_value(random, code) for name, code in TABLES[table]}
            values |= {"t_ns": T0 + tick * 10**9}
            values |= {key: tick % 2 for key in ("rank", "kind", "index", "pid") if key in values}
            build.sample(table, **values)
    for kind in random.permutation(EVENTS.split()):
        build.event(str(kind), rank=int(random.integers(0, 3)))
    if random.random() < 0.5:
        build.end(exit_code=int(random.choice([0, 1, 3, 137, 255])))
    return build.open()


@pytest.mark.parametrize("seed", range(40))
def test_nothing_breaks_and_every_number_is_finite(tmp_path, seed):
    record = wild(tmp_path / "r", seed)
    for window in (None, 1, 50):
        summary = summarise(record, window)
        findings = evaluate(record, window)
        assert verdict(summary, findings).headline
    LiveFindings(record).tick()
    stable(record)
    json.dumps(report_data(record), allow_nan=False)
    report = Report(record)
    assert as_text(report, 80, colour=False).isascii()
    assert as_markdown(report)
    page = as_html(report)
    assert page.endswith("</html>\n") and not re.search(r'="[^"]*\b(nan|inf)\b', page)
    assert len(figures(report)) >= 10
    assert len(list(to_csv(record))) == 1 + sum(len(record.steps(rank)) for rank in record.ranks())
