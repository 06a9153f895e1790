"""An analysed trace as a piece of a page."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from gputop_analysis.text import MISSING, ms
from gputop_analysis.traces.model import COMM, MEANING, Lane, TraceReport
from gputop_analysis.traces.text import remarks

_SHOWN = 12


def as_html(report: TraceReport) -> str:
    """See ``TraceReport.to_html``."""
    torn = ""
    if report.torn:
        torn = f"<p>The file is not whole ({escape(report.torn)}): this is what it still has.</p>"
    notes = "".join(f"<li>{escape(remark)}</li>" for remark in remarks(report))
    lanes = "".join(_lane(lane) for lane in report.lanes)
    head = f"<h2>Trace</h2><p><code>{escape(report.path)}</code>, {report.events:,} events</p>"
    return f'<section class="trace">{head}{torn}<ul>{notes}</ul>{lanes}</section>'


def _lane(lane: Lane) -> str:
    parts = []
    for name, value in lane.parts_ms.items():
        parts.append(
            (
                _label(name),
                ms(value),
                _percent(value, lane),
                MEANING[name],
            )
        )
    collectives = []
    for c in lane.collectives[:_SHOWN]:
        collectives.append(
            (
                c.name,
                f"{c.count:,}",
                ms(c.total_ms),
                ms(c.exposed_ms),
                _mib(c.bytes),
            )
        )
    hot = []
    for h in lane.hot[:_SHOWN]:
        hot.append((h.name, f"{h.count:,}", ms(h.total_ms), f"{100 * h.share:.1f} %"))
    steps = []
    for s in lane.steps[:_SHOWN]:
        steps.append((s.name, ms(s.wall_ms), *(ms(s.parts_ms[n]) for n in lane.parts_ms)))
    return (
        f"<h3>{escape(lane.name)}: {ms(lane.wall_ms)} ms</h3>"
        + _table(("part", "ms", "share", "what it is"), parts)
        + _table(("collective", "calls", "total ms", "exposed ms", "MiB"), collectives)
        + _table(
            (
                "kernel" if lane.kind == "device" else "operator, self time",
                "calls",
                "total ms",
                "share",
            ),
            hot,
        )
        + _table(("step", "wall ms", *(name.replace("_", " ") for name in lane.parts_ms)), steps)
    )


def _label(part: str) -> str:
    return part.replace("_", " ") + (", exposed" if part == COMM else "")


def _mib(size: int | None) -> str:
    if size is None:
        return MISSING
    return f"{size / 2**20:,.1f}"


def _percent(value: float, lane: Lane) -> str:
    if lane.wall_ms:
        return f"{100 * value / lane.wall_ms:.1f} %"
    return MISSING


def _table(head: Iterable[str], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    top = _cells("th", head)
    body = "".join(f"<tr>{_cells('td', row)}</tr>" for row in rows)
    return f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"


def _cells(tag: str, texts: Iterable[str]) -> str:
    return "".join(f"<{tag}>{escape(text)}</{tag}>" for text in texts)
