"""The line of the user's in a stack of ``file:line function`` frames."""

from __future__ import annotations

import sys


def user_line(frames: list[str]) -> str | None:
    """The innermost ``file:line function`` of a dump that is not torch's or the library's."""
    for frame in frames:
        file = frame.partition(":")[0]
        is_library = file.startswith(("torch/", "<")) or (
            "/" not in file and file[:-3] in sys.stdlib_module_names
        )
        if not is_library:
            return frame
    return frames[0] if frames else None
