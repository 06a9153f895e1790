"""Reader of ``nvidia-smi -q``: a page for people, again and again with ``-l``.

A page names each GPU by its bus; below it come sections, indented by four blanks, with a key and a
value a line.
"""

from __future__ import annotations

import io
import re
from itertools import islice

from gputop_analysis.evidence.clock_limits import limits
from gputop_analysis.evidence.gpu_samples import SAMPLES_AT_MOST, Samples, add_told

TITLE = "NVSMI LOG"
_GPU = re.compile(r"GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*$")
_SECTION = re.compile(r" {4}(\S[^:]{0,60}?)\s*$")
_VALUE = re.compile(r" {8,16}(\S[^:]{0,40}?) +: (.{1,40}?)\s*$")
_REASONS = ("Clocks Throttle Reasons", "Clocks Event Reasons")
_POWER = ("Power Readings", "GPU Power Readings")
_FIELDS = {
    ("Utilization", "Gpu"): "utilization",
    ("Utilization", "GPU"): "utilization",
    ("Clocks", "SM"): "clock",
    **{(section, "Instantaneous Power Draw"): "power" for section in _POWER},
    **{(section, "Average Power Draw"): "power" for section in _POWER},
    **{(section, "Power Draw"): "power" for section in _POWER},
    ("Temperature", "GPU Current Temp"): "temperature",
    ("FB Memory Usage", "Used"): "memory",
}


def is_page(head: str) -> bool:
    """Whether the beginning of a file is of such a page."""
    return TITLE in head[:200]


def read_pages(text: str) -> Samples:
    """One sample a GPU and page."""
    samples: Samples = {}
    gpu, section = "", ""
    values: dict[str, str] = {}
    reasons: dict[str, str] = {}

    def close() -> None:
        if gpu and (values or reasons):
            add_told(samples, gpu, {**values, **limits(reasons)})
        values.clear()
        reasons.clear()

    for line in islice(io.StringIO(text), SAMPLES_AT_MOST):
        if (match := _GPU.match(line)) or TITLE in line:
            close()
            gpu, section = f"GPU {match[1]}" if match else "", ""
        elif match := _SECTION.match(line):
            section = match[1]
        elif match := _VALUE.match(line):
            key, value = match.groups()
            if section in _REASONS:
                reasons[key.lower().replace(" ", "_")] = value
            elif (field := _FIELDS.get((section, key))) and field not in values:
                values[field] = value
    close()
    return samples
