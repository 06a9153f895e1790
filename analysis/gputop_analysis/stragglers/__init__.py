"""What stragglers cost a pipelined training: its recorded operations played again with some of them
made ordinary.

After "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI 2025), whose
timelines this reads.
"""

from __future__ import annotations

from gputop_analysis.stragglers.timeline import OperationTimeline, TimelineError, load
from gputop_analysis.stragglers.whatif import StragglerJudgement, judge

__all__ = [
    "OperationTimeline",
    "StragglerJudgement",
    "TimelineError",
    "judge",
    "load",
]
