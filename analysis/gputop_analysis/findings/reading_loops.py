"""Python loops that take values out of tensors, by stack samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gputop_analysis.findings.site import ENOUGH, Site
from gputop_analysis.findings.stack_samples import (
    LOOP,
    TRAINING,
    Path,
    PlacedSample,
    ends_at_loop,
    functions,
    paths_within,
    prefixes,
    samples_of,
    total,
)
from gputop_analysis.view import RunView


def reading_loops(view: RunView, phases: Sequence[str], rank: int) -> Site | None:
    """Python loops inside phases that take values out of tensors, and what makes a tensor of them
    again in the same function; None where they were seen less than five times.

    Loops that run modules, and those of the training itself, are none.
    """
    samples = list(samples_of(view, phases, rank))
    loops = _loops_that_read(samples, _paths_of_models(view, samples, phases=phases, rank=rank))
    loop_functions = {functions((*loop, loop[-1].removeprefix(LOOP))) for loop in loops}
    inside = []
    for sample in samples:
        makes_again = sample.makes_tensor and functions(sample.path) in loop_functions
        if makes_again or not loops.isdisjoint(prefixes(sample.path)):
            inside.append(sample)
    if total(inside) < ENOUGH:
        return None
    lines: Counter[str] = Counter()
    for sample in inside:
        lines[_line_of_loop(sample, loops)] += sample.count
    line, _ = lines.most_common(1)[0]
    return Site(line, total(inside) / total(samples), total(samples))


def _line_of_loop(sample: PlacedSample, loops: set[Path]) -> str:
    """The line of the innermost loop that the sample lies in, rather than of what that calls; its
    own line where it is in none of these loops.
    """
    if loops.isdisjoint(prefixes(sample.path)):
        return sample.line
    innermost = max(at for at, label in enumerate(sample.path) if label.startswith(LOOP))
    inside = sample.path[innermost + 1 :]
    return inside[0] if inside else sample.path[innermost].removeprefix(LOOP)


def _paths_of_models(
    view: RunView, samples: list[PlacedSample], *, phases: Sequence[str], rank: int
) -> set[Path]:
    """Paths that other phases of the training have too, or that run modules."""
    paths = paths_within(view, rank, [other for other in TRAINING if other not in phases])
    for sample in samples:
        if sample.in_module:
            paths.update(prefixes(sample.path))
    return paths


def _loops_that_read(samples: list[PlacedSample], of_models: set[Path]) -> set[Path]:
    """The outermost loop of each sample that takes values out of tensors, those of models apart."""
    loops = set()
    for sample in samples:
        if sample.reads_out:
            around_sample = (path for path in prefixes(sample.path) if ends_at_loop(path))
            outermost = next((path for path in around_sample if path not in of_models), None)
            if outermost is not None:
                loops.add(outermost)
    return loops
