"""What each optimisation would win on this very configuration, as a dialog to read and copy."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from gputop.render.rows import shorten
from gputop.screens.dialog import TextDialog

if TYPE_CHECKING:
    from gputop.feed.whatif import WhatIf
    from gputop_analysis.planner.whatif import Change

WON = -1.0
"""Percent of the step: what takes off more is drawn as a gain."""
NAME, FIGURES = 44, 44
"""Columns of a change's name at most, and of its figures."""
BORDER = 8
"""Columns that the frame, its padding and a scrollbar take."""


class WhatIfDialog(TextDialog):
    """Opens at once and fills as soon as the worker has the answer: it takes longer than a key should."""

    class Found(Message):
        """The answer, or why there is none."""

        def __init__(self, found: WhatIf | None, problem: str = ""):
            super().__init__()
            self.found = found
            self.problem = problem

    def __init__(self, ask: Callable[[], WhatIf]):
        super().__init__("What if", Content("Computing each change alone."))
        self._ask = ask

    def on_mount(self) -> None:
        self.run_worker(self._work, thread=True, exit_on_error=False)

    def _work(self) -> None:
        try:
            self.post_message(self.Found(self._ask()))
        except (ValueError, LookupError) as error:
            self.post_message(self.Found(None, str(error.args[0])))

    def on_what_if_dialog_found(self, message: Found) -> None:
        box, found = self.query_one(".box"), message.found
        if found is None:
            self.query_one(Static).update(Content(message.problem))
            return
        rows = table(found, min(self.app.size.width * 96 // 100, 100) - BORDER)
        colours = self.app.theme_variables
        body = [Content.styled(found.now, colours["role-muted"]), Content("")]
        body += [Content.styled(text, colours[f"role-{role}"]) for text, role in rows]
        self._copy = "\n".join([found.title, found.now, "", *(text for text, _ in rows)])
        box.border_title, box.border_subtitle = found.title, "y copy · esc back"
        self.query_one(Static).update(Content("\n").join(body))


def table(found: WhatIf, width: int) -> list[tuple[str, str]]:
    """Lines of at most ``width`` columns with the role of their colour, the fastest first; those that fit no GPU and
    those that break a rule at the end."""
    name = min(NAME, width - FIGURES - 2)
    cost = "$/Mtok" if found.usd_per_million_tokens is not None else "no rent"
    can = sorted((one for one in found.changes if not one.rule), key=lambda one: (not one.fits, one.step_s))
    rows = [(f"  {'each alone':<{name}}{'step':>10}{'':>8}{'GiB':>8}{'':>8}{cost:>10}", "muted")]
    rows += [_row(one, found, name) for one in can]
    if any(not one.fits for one in can):
        rows += [("", "muted"), ("✖ does not fit into the GPU's memory", "muted")]
    rows += [(f"not {one.name}: {one.rule}", "muted") for one in found.changes if one.rule]
    return rows


def _row(one: Change, found: WhatIf, name: int) -> tuple[str, str]:
    step = f"{one.step_s:.2f} s" if one.step_s >= 1 else f"{1e3 * one.step_s:.0f} ms"
    rent = found.usd_per_million_tokens
    cost = "" if rent is None else f"{rent * one.step_s / one.before_s:.3f}"
    said = f"{'  ' if one.fits else '✖ '}{shorten(one.name, name - 1):<{name}}{step:>10}{one.step_pct:>+7.1f}%"
    said += f"{one.device_total_gib:>8.1f}{one.device_total_gib - one.before_gib:>+8.1f}{cost:>10}"
    return said, "muted" if not one.fits else "good" if one.step_pct < WON else "text"
