"""The two lines above the estimator: what is estimated, and what the line at the cursor means."""

from __future__ import annotations

from gputop.feed.form import Form
from gputop.render.rows import Row, row_width, shorten, shorten_middle, spread
from gputop.render.vram import words
from gputop.widgets.canvas import Canvas


def draw(form: Form, source: str, meaning: str, width: int) -> list[Row]:
    """Two rows."""
    name = form.setup.model.name
    start: Row = [
        ("gputop estimate", "bold accent"),
        ("   " + name, "bold text"),
        (_size(form), "muted"),
    ]
    space = width - row_width(start) - 3
    if len(source) > space:
        source = source.partition(":")[0]
    end: Row = (
        [(shorten_middle(source, space), "accent")] if source and space >= len("from run") else []
    )
    room = width - row_width(start) - row_width(end) - 4
    if room > 12:
        start += [("   " + shorten(words(form.setup), room), "text")]
    return [spread(start, end, width), [(shorten(meaning, width), "muted")]]


def _size(form: Form) -> str:
    count = parameters(form)
    if not count:
        return ""
    if count < 1e6:
        return f"  {count / 1e3:.0f} K"
    if count >= 1e9:
        return f"  {count / 1e9:.2f} B"
    return f"  {count / 1e6:.0f} M"


def parameters(form: Form) -> int:
    """Of the model; 0 where they cannot be counted."""
    from gputop_analysis import catalog

    try:
        return form.setup.model.params or catalog.total(form.setup.model)
    except (ValueError, KeyError, ArithmeticError):
        return 0


class EstimateTitle(Canvas):
    """Docked on top."""

    _shown: tuple[Form, str, str] | None = None

    def show(self, form: Form, source: str, meaning: str) -> None:
        """Another form, or another line of it."""
        self._shown = form, source, meaning
        self.redraw()

    def rows(self, width: int, height: int) -> list[Row]:
        if self._shown is None:
            return []
        return [[(" ", ""), *row] for row in draw(*self._shown, width - 2)]
