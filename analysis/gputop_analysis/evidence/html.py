"""Evidence as one self-contained page."""

from __future__ import annotations

from html import escape

from gputop_analysis.evidence.model import Evidence
from gputop_analysis.evidence.text import as_text

_WIDTH = 110
_STYLE = "body{margin:2em;font-family:sans-serif}pre{font-family:monospace;line-height:1.3}"


def as_html(evidence: Evidence) -> str:
    """The page."""
    title = escape(f"gputop: {evidence.kind}")
    text = escape(as_text(evidence, _WIDTH, fancy=True))
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{title}</h1><pre>{text}</pre></body></html>\n"
    )
