"""A line of text that keys are typed into."""

from __future__ import annotations

from textual.events import Key


def typed_text(text: str, key: Key) -> str | None:
    """The text of a line that takes this key, and keeps it; None where it types nothing."""
    if key.key == "backspace":
        typed = text[:-1]
    elif key.character and key.is_printable:
        typed = text + key.character
    else:
        return None
    key.stop()
    key.prevent_default()
    return typed


def begins_figure(key: Key) -> bool:
    """Whether typing begins with this key, in a line that takes figures."""
    return key.character is not None and key.character.isdigit()
