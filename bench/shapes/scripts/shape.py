"""What the scripts share: which fault is injected, and a clock for what it costs.

A comment ``# at: NAME`` in a script marks a line that a finding about the fault NAME may point at.
"""

import json
import os
import time

FAULT = os.environ.get("FAULT", "none")
STEPS = int(os.environ.get("STEPS", "0"))


class Cost:
    """Adds the time that is spent inside to what the fault costs."""

    def __init__(self):
        self.seconds = 0.0

    def __enter__(self):
        self.begin = time.perf_counter()

    def __exit__(self, *_):
        self.seconds += time.perf_counter() - self.begin

    def print(self, steps):
        print(json.dumps({"truth_ms_per_step": self.seconds * 1000 / steps}), flush=True)


def on(*names):
    """Whether one of the faults is injected."""
    return FAULT in names
