"""Other tools' recordings judged as a run is: traces, snapshots, timelines, collectives, logs."""

from __future__ import annotations

from gputop_analysis.evidence.model import Evidence, EvidenceError
from gputop_analysis.evidence.sources import gather, is_evidence

__all__ = ["Evidence", "EvidenceError", "gather", "is_evidence"]
