"""Keys that are typed faster than screens come and go, as a slow line delivers them: in bursts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.await_complete import AwaitComplete
from textual.events import Event, Key

if TYPE_CHECKING:
    from textual.screen import Screen

    Base = Screen[Any]
else:
    Base = object  # a screen's style sheet is inherited from its first base that is a node


class Typed(Base):
    """Mixed into a screen: it leaves a key to the one on top of it, or beneath it once it has been
    closed.

    Textual queues a key for the screen of the moment at which it came; the key before it may have
    changed that.
    """

    async def on_event(self, event: Event) -> None:
        if isinstance(event, Key) and not self._on_top:
            self.app.post_message(Key(event.key, event.character))
        else:
            await super().on_event(event)

    def dismiss(self, result: Any = None) -> AwaitComplete:
        """Close this screen, once."""
        if self._on_top:
            return super().dismiss(result)
        return AwaitComplete.nothing()

    @property
    def _on_top(self) -> bool:
        return not self.app._exit and self.app.screen_stack[-1:] == [self]
