"""The whole page, from the verdict down to where each number comes from."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from gputop_analysis.html import charts_section, findings_section, tables, top
from gputop_analysis.html.script import POLICY, SCRIPT
from gputop_analysis.html.style import STYLE
from gputop_analysis.report.build import Report

Section = Callable[[Report], str]

SECTIONS: tuple[Section, ...] = (
    top.verdict,
    top.tiles,
    findings_section.findings,
    charts_section.phases,
    tables.budget_section,
    tables.goodput_section,
    tables.startup_section,
    charts_section.details,
    charts_section.rank_grid,
    tables.ranks,
    tables.gpus,
    tables.extras,
    tables.run,
    tables.sources,
)


def as_html(report: Report) -> str:
    """The page; every text of the record is escaped."""
    body = "\n".join(part for section in SECTIONS if (part := section(report)))
    version = report.record.manifest.gputop_version
    footer = (
        f"Made by gputop from the record of the run (recorded by version {version or 'unknown'})."
    )
    return whole(f"gputop: {report.record.name}", body, footer)


def whole(title: str, body: str, made: str) -> str:
    """A page with the style and the script. ``title`` and ``made`` are texts, ``body`` is HTML."""
    head = (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"{POLICY}<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
    )
    script = f"<script>{SCRIPT}</script>"
    return f"{head}\n{body}\n<footer>{escape(made)}</footer></main>{script}</body></html>\n"
