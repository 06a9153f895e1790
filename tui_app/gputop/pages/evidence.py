"""Behind a finding: its picture, the statistic against its threshold, inputs, fix."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby

from gputop import palette
from gputop.feed.evidence import EvidenceLoader, FindingDetails
from gputop.feed.plots import Plot
from gputop.pages.page import Page
from gputop.render import numbers
from gputop.render.rows import (
    Row,
    beside,
    left,
    right,
    row_width,
    shorten,
    spread,
    text_width,
    wrap,
)
from gputop.widgets import plots
from gputop.widgets.findings import as_text
from gputop_analysis.model import Finding, Input, Proof
from gputop_analysis.report.words import confidence, covered
from gputop_analysis.text import with_minus

WIDE = 150
CRASH = "HC"
"""Findings on what ended a run: words say more than a picture of before, and come first."""
PLOT_LEAST, PLOT_MOST = 7, 18
GROUP = 3
"""Inputs of one kind from which on they have a heading."""


def draw(evidence: FindingDetails, width: int, height: int, mono: bool = False) -> list[Row]:
    """All rows of the page: stacked, or pictures beside the words where there is room."""
    rows = _spaced(evidence, width, height, mono)
    spare = len(rows) - height
    blank = [index for index, row in enumerate(rows) if not row]
    closed = set(blank[-spare:]) if spare > 0 else set()  # a line to read before one between
    return [row for index, row in enumerate(rows) if index not in closed]


def _spaced(evidence: FindingDetails, width: int, height: int, mono: bool) -> list[Row]:
    finding = evidence.finding
    head = heading(finding, width)
    if width >= WIDE and evidence.plots:
        side = width * 56 // 100
        pictures = _pictures(evidence.plots, side, height - len(head) - 1, mono)
        room = width - side - 3
        words = [
            *fix(finding, room, evidence.in_source),
            [],
            *statistic(finding, room),
            [],
            *inputs(finding, room),
        ]
        return [*head, [], *beside(pictures, side, words, 3)]
    gap: list[Row] = []
    if height > 24:
        gap = [[]]
    if finding.id.startswith(CRASH):
        text_rows = [*statistic(finding, width), *gap, *fix(finding, width, evidence.in_source)]
        pictures = _pictures(evidence.plots[:1], width, PLOT_LEAST + 1, mono)
        return [*head, *gap, *text_rows, *gap, *pictures, *gap, *inputs(finding, width)]
    words = [
        *fix(finding, width, evidence.in_source),
        *gap,
        *statistic(finding, width),
        *gap,
        *inputs(finding, width),
    ]
    room = height - len(head) - len(words) - 2 * len(gap)
    plots_shown = evidence.plots[:2]
    if room < 24:
        plots_shown = evidence.plots[:1]
    pictures = _pictures(plots_shown, width, max(room, PLOT_LEAST + 1), mono)
    if pictures:
        pictures += gap
    return [*head, *gap, *pictures, *words]


def _pictures(drawings: tuple[Plot, ...], width: int, height: int, mono: bool) -> list[Row]:
    rows: list[Row] = []
    for index, plot in enumerate(drawings):
        share = (height - len(rows)) // (len(drawings) - index)
        rows += plots.draw(plot, width, max(PLOT_LEAST, min(share - 1, PLOT_MOST)), mono)
        if index < len(drawings) - 1:
            rows += [[]]
    return rows


def heading(finding: Finding, width: int) -> list[Row]:
    """Severity and name, the title, and what is to be won."""
    mark = palette.SEVERITY[finding.severity]
    start: Row = [
        (f"{mark.glyph} {mark.word}", f"bold {mark.style}"),
        (f"  {finding.id} {finding.name}", "muted"),
    ]
    rows = [spread(start, [(_sure(finding), "muted")], width)]
    rows += [[(line, "bold text")] for line in wrap(finding.title, width)]
    worth_row = worth(finding, width)
    if worth_row:
        return [*rows, worth_row]
    return rows


def _sure(finding: Finding) -> str:
    return f"{confidence(finding.confidence)} sure"


def worth(finding: Finding, width: int) -> Row:
    """Gain of the fix: a step, over the rest of the run, in money; with room its interval."""
    if finding.recoverable_ms_per_step is None:
        return []
    row: Row = [
        ("wins back ", "muted"),
        (numbers.duration_ms(finding.recoverable_ms_per_step), "bold good"),
    ]
    row += [(" a step", "text")]
    parts: list[tuple[str, str]] = []
    if finding.recoverable_hours is not None:
        parts.append(
            (
                f" · {numbers.span(finding.recoverable_hours * 3600)} over the rest of the run",
                "text",
            )
        )
    if (dollars := getattr(finding, "recoverable_usd", None)) is not None:
        parts.append((f" · ${dollars:,.2f}", "text"))
    if finding.interval_ms_per_step is not None:
        low, high = finding.interval_ms_per_step
        parts.append(
            (f"  (95 %: {numbers.duration_ms(low)} to {numbers.duration_ms(high)})", "muted")
        )
    for part in parts:
        if row_width([*row, part]) <= width:
            row += [part]
    return row


def statistic(finding: Finding, width: int) -> list[Row]:
    """The evidence in words, and where it is known the statistic against its threshold."""
    rows: list[Row] = [plots.ruled("what was measured", [], width)]
    proof = finding.proof
    if proof is not None:
        rows += gauge(proof, finding.severity, width)
    return [*rows, *([(line, "text")] for line in wrap(finding.evidence, width))]


def gauge(proof: Proof, severity: str, width: int) -> list[Row]:
    """The value on a line with the threshold marked; heavy between the two."""
    value, limit = _amount(proof.value, proof.unit), _amount(proof.threshold, proof.unit)
    rows: list[Row] = [[(line, "muted")] for line in wrap(proof.statistic, width)]
    end: Row = [("  ", ""), (value, "bold text"), ("  threshold ", "muted"), (limit, "text")]
    cells = min(60, width - row_width(end))
    if not (math.isfinite(proof.value) and math.isfinite(proof.threshold)) or cells < 12:
        return [*rows, end[1:]]
    top = max(abs(proof.value), abs(proof.threshold)) * 1.1 or 1.0
    at, level = (
        min(cells - 1, max(0, int(abs(v) / top * cells))) for v in (proof.value, proof.threshold)
    )
    low, high = sorted((at, level))
    line = (
        [("─", "track")] * low
        + [("━", severity)] * (high - low)
        + [("─", "track")] * (cells - high)
    )
    line[level], line[at] = ("┃", "text"), ("●", f"bold {severity}")
    return [*rows, [*line, *end]]


def _amount(value: float, unit: str) -> str:
    if unit.startswith("ms"):
        digits = numbers.ms(value)
    else:
        digits = numbers.scalar(value)
    return f"{digits} {unit}".rstrip()


def fix(finding: Finding, width: int, in_source: str = "") -> list[Row]:
    """The fix as it is typed, where, and what the source says there."""
    rows: list[Row] = [plots.ruled("fix", [("y copies it", "muted")], width)]
    rows += [[(line, "bold good")] for line in wrap(finding.fix, width)]
    if location := where(finding):
        rows += [[("at ", "muted"), (location, "accent")]]
    if in_source:
        rows += [[(line, "text")] for line in wrap(f"lint: {in_source}", width)]
    if finding.absorbed:
        rows += [[("covers ", "muted"), (covered(finding), "text")]]
    return rows


def where(finding: Finding) -> str:
    """Site, rank, GPU and host, as far as they are known."""
    rank = ""
    if finding.rank is not None:
        rank = f"rank {finding.rank}"
    gpu = ""
    if finding.gpu is not None:
        gpu = f"GPU {finding.gpu}"
    return ", ".join(part for part in (finding.site or "", rank, gpu, finding.host or "") if part)


def inputs(finding: Finding, width: int) -> list[Row]:
    """Inputs of the statistic, each with where it lies in the record, and the formula."""
    proof = finding.proof
    if proof is None or not (proof.inputs or proof.formula):
        return []
    rows: list[Row] = [plots.ruled("computed from", [], width)]
    groups = _grouped(proof.inputs)
    items = [item for _, group in groups for item in group]
    names = min(max((len(item.name) for item in items), default=0) + 2, max(width // 3, 12))
    values = min(max((text_width(_value(item)) for item in items), default=0), max(width // 3, 12))
    for heading_, group in groups:
        if heading_:
            rows.append([(shorten(heading_, width), "muted")])
        for item in group:
            rows += _input(item, names, values, width)
    if proof.formula:
        rows += [[(line, "muted")] for line in wrap(proof.formula, width)]
    return rows


def _grouped(inputs_: tuple[Input, ...]) -> list[tuple[str, list[Input]]]:
    """Runs of inputs with a heading: what all their names say but for the first word, and their
    unit, are said once.
    """
    groups: list[tuple[str, list[Input]]] = []
    for (ending, unit), run in groupby(
        inputs_, key=lambda item: (item.name.partition(" ")[2], item.unit)
    ):
        items = list(run)
        if not ending or len(items) < GROUP:
            groups.append(("", items))
            continue
        shorter = [
            replace(item, name="  " + item.name.partition(" ")[0], value=value, unit="")
            for item, value in zip(items, _aligned(items), strict=True)
        ]
        groups.append((f"{ending}, {unit}" if unit else ending, shorter))
    return groups


def _aligned(items: list[Input]) -> list[str | float]:
    """Their values, milliseconds with as many decimals each."""
    amounts = [item.value for item in items if not isinstance(item.value, str)]
    if not items[0].unit.startswith("ms") or len(amounts) < len(items):
        return [item.value for item in items]
    digits = numbers.digits_for(max(map(abs, amounts)))
    return [with_minus(numbers.ms_column(amount, digits)) for amount in amounts]


def _value(item: Input) -> str:
    if isinstance(item.value, str):
        value = item.value
    else:
        value = numbers.scalar(item.value)
    return f"{value} {item.unit}".rstrip()


def _input(item: Input, names: int, values: int, width: int) -> list[Row]:
    value = right(shorten(_value(item), values), values)
    start: Row = [(left(shorten(item.name, names - 2), names), "text"), (value + "  ", "bold text")]
    room = width - row_width(start)
    if room < 24:
        return [start, *([("  " + line, "muted")] for line in wrap(item.source, width - 2))]
    first, *more = wrap(item.source, room)
    return [
        [*start, (first, "muted")],
        *([(" " * row_width(start) + line, "muted")] for line in more),
    ]


class EvidencePage(Page):
    """The evidence of one finding; the next one is a key away."""

    key = "5"
    title = "Evidence"
    reads = FindingDetails

    def __init__(self, finding: Finding, *, id: str | None = None):
        super().__init__(id=id)
        self.finding = finding

    def loader(self) -> EvidenceLoader:
        return EvidenceLoader(self.finding.id, self.finding.rank)

    @property
    def page(self) -> object | None:
        """The words need no reading: they are there at once, the pictures follow."""
        page = super().page
        shown = (self.finding.id, self.finding.rank)
        if isinstance(page, FindingDetails) and (page.finding.id, page.finding.rank) == shown:
            self.finding = page.finding
            return page
        return FindingDetails(self.finding)  # nothing read yet, or for the finding before

    def idle(self) -> frozenset[str]:
        several = self.snapshot is not None and len(self.snapshot.findings) > 1
        return frozenset() if several else frozenset({"next_finding"})

    def note(self) -> Row:
        findings = ()
        if self.snapshot:
            findings = self.snapshot.findings
        keys = [(f.id, f.rank) for f in findings]
        here = (self.finding.id, self.finding.rank)
        if here not in keys:
            return [("no longer seen", "high")]
        return [(f"{keys.index(here) + 1} of {len(keys)}", "muted")]

    def content(self, page: object, width: int, height: int) -> list[Row]:
        assert isinstance(page, FindingDetails)
        return draw(page, width, height, self.mono)

    def step(self, by: int) -> None:
        """Go to the next finding of the list."""
        findings = ()
        if self.snapshot:
            findings = self.snapshot.findings
        if not findings:
            return
        keys = [(f.id, f.rank) for f in findings]
        here = (self.finding.id, self.finding.rank)
        position = 0
        if here in keys:
            position = (keys.index(here) + by) % len(findings)
        self.finding = findings[position]
        self.first = 0
        self.redraw()

    def copy_text(self) -> str:
        """The fix alone: it is what one wants to paste. ``Y`` copies everything."""
        return self.finding.fix

    def copy_all_text(self) -> str:
        """The finding with its figures, for an issue."""
        return as_text(self.finding)
