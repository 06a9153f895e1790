"""The end of what a command printed, as the record has it."""

from __future__ import annotations

from collections.abc import Iterator

from gputop_analysis.view import RunView
from gputop_probes.record.files import tail_text
from gputop_probes.record.layout import OUTPUT_FILES

TAIL_BYTES = 32_768


def last_outputs(view: RunView) -> Iterator[str]:
    """The last 32 KiB of each file of recorded output, errors first; empty: not readable."""
    for host in view.record.hosts.values():
        for name in OUTPUT_FILES:
            yield tail_text(host.path / name, TAIL_BYTES)
