"""Reader of ``nvidia-smi pmon``: what each process takes of its GPU, a line a process."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice

from gputop_analysis.evidence.gpu_samples import NUMBER, SAMPLES_AT_MOST, Samples, add_told

_NOTHING = "-"
_FIELDS = {"utilization": "sm", "memory": "fb"}
"""Their titles in the log; they are added up over the processes of a GPU."""

_Line = dict[str, str]
"""The cells of a line by title; the words of the command's name are left out."""


def is_of_processes(head: str) -> bool:
    """Whether the beginning of a file is of such a log."""
    return any(_titles(line) for line in head.splitlines()[:40])


def read_processes(text: str) -> Samples:
    """A sample a GPU and round; a round ends where a process of the GPU comes again."""
    samples: Samples = {}
    rounds: dict[str, dict[str, _Line]] = {}
    for line in _lines(text):
        of_gpu = rounds.setdefault(line["gpu"], {})
        if line["pid"] in of_gpu:
            _close(samples, line["gpu"], of_gpu)
        of_gpu[line["pid"]] = line
    for gpu, of_gpu in rounds.items():
        _close(samples, gpu, of_gpu)
    return samples


def _close(samples: Samples, gpu: str, of_gpu: dict[str, _Line]) -> None:
    sums = {}
    for field, title in _FIELDS.items():
        numbers = [
            float(line[title]) for line in of_gpu.values() if NUMBER.fullmatch(line.get(title, ""))
        ]
        runs_nothing = of_gpu.keys() == {_NOTHING} and title in of_gpu[_NOTHING]
        if numbers or runs_nothing:
            sums[field] = str(sum(numbers))
    add_told(samples, f"GPU {gpu}", sums)
    of_gpu.clear()


def _lines(text: str) -> Iterator[_Line]:
    titles: list[str] = []
    for line in islice(io.StringIO(text), SAMPLES_AT_MOST):
        if "#" in line:
            titles = _titles(line) or titles
            continue
        cells = dict(zip(titles, line.replace(",", " ").split(), strict=False))
        if cells.get("gpu", "").isdigit() and "pid" in cells:
            yield {**cells, "gpu": cells["gpu"][:6]}


def _titles(line: str) -> list[str]:
    """The titles of a header that names processes; empty for another line."""
    words = line.replace("#", " ").replace(",", " ").split()
    if "#" in line and {"gpu", "pid", "type"} <= set(words):
        return words
    return []
