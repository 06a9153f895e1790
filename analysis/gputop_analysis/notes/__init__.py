"""Small print of the catalogue: what each finding reads, when it stays silent, what looks the same and is none."""

from __future__ import annotations

from gputop_analysis.notes import communication, compute, ends, hardware, host, input, memory, numerics, reproducibility
from gputop_analysis.notes.helps import USELESS
from gputop_analysis.notes.note import CPU, RECORDS, Note

__all__ = ["CPU", "NOTES", "RECORDS", "USELESS", "Note"]

NOTES: dict[str, Note] = {
    **input.NOTES,
    **host.NOTES,
    **compute.NOTES,
    **memory.NOTES,
    **communication.NOTES,
    **hardware.NOTES,
    **numerics.NOTES,
    **reproducibility.NOTES,
    **ends.NOTES,
}
"""By the finding's id."""
