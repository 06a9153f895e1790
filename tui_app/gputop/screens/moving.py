"""The keys that move a cursor, for screens with panes."""

from __future__ import annotations

from typing import ClassVar


class Moving:
    """Mixed into a screen that says in ``_move`` what a step is."""

    PAGE: ClassVar[int] = 10
    """Steps of page up and page down."""

    def _move(self, step: int) -> None:
        raise NotImplementedError

    def action_up(self) -> None:
        self._move(-1)

    def action_down(self) -> None:
        self._move(1)

    def action_page_up(self) -> None:
        self._move(-self.PAGE)

    def action_page_down(self) -> None:
        self._move(self.PAGE)

    def action_home(self) -> None:
        self._move(-(10**6))

    def action_end(self) -> None:
        self._move(10**6)
