"""Reader of the table that ``rocm-smi`` prints without options, again and again: a row a GPU.

Its columns have changed over the years; a value is told by its unit.
"""

from __future__ import annotations

import io
import re
from itertools import islice

from gputop_analysis.evidence.gpu_samples import SAMPLES_AT_MOST, Samples, add_told

_TITLES = ("SCLK", "MCLK", "GPU%")
_GPU = re.compile(r"\s{0,8}(\d{1,4})\s")
_CLOCK = re.compile(r"\s(\d{1,5})Mhz\s", re.IGNORECASE)
_TEMPERATURE = re.compile(r"\s(\d{1,3}(?:\.\d)?) ?°?C\s", re.IGNORECASE)
_POWER = re.compile(r"\s(\d{1,5}(?:\.\d{1,3})?)W\s")
_USED = re.compile(r"\s(\d{1,3})%\s*$")


def is_title(line: str) -> bool:
    """Whether a line is the header of such a table."""
    return all(title in line for title in _TITLES)


def read_rocm_tables(text: str) -> Samples:
    """One sample a row. Used memory is left out: it is told as a share alone."""
    samples: Samples = {}
    in_table = False
    for line in islice(io.StringIO(text), SAMPLES_AT_MOST):
        if is_title(line):
            in_table = True
        elif in_table and (gpu := _GPU.match(line)):
            add_told(samples, f"GPU {gpu[1]}", _values(line))
    return samples


def _values(line: str) -> dict[str, str]:
    """The values of a row; what a watt is before the first clock is drawn, after it a limit."""
    clock = _CLOCK.search(line)
    before_clock = line[: clock.start() + 1] if clock else ""
    matches = {
        "utilization": _USED.search(line),
        "clock": clock,
        "temperature": _TEMPERATURE.search(before_clock),
        "power": _POWER.search(before_clock),
    }
    return {name: match[1] for name, match in matches.items() if match}
