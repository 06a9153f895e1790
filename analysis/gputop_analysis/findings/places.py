"""The place among stack samples: the innermost line, pair of lines or function that surely holds
most of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from gputop_analysis.findings.input.loader_looks import surely
from gputop_analysis.findings.shared_calls import (
    is_nameless,
    is_of_comprehension,
    where_it_is_called,
)
from gputop_analysis.findings.site import IN_FUNCTION, MOSTLY, Site
from gputop_analysis.findings.stack_samples import (
    ASKED,
    COMPUTE,
    LOOP,
    Path,
    PlacedSample,
    calls_around_training,
    counted_by_line,
    ends_at_loop,
    functions,
    lines_by_function,
    lines_in,
    paths_within,
    total,
)
from gputop_analysis.view import RunView

MOSTLY_OF_TWO = 0.6
"""Of the samples two lines must hold more together, where neither holds most."""
NEARLY = 2 / 3
"""Of the samples at a line that a line below it must surely hold to be the place instead."""
SHOWN = 3


def place_of(
    view: RunView,
    rank: int | None,
    samples: list[PlacedSample],
    judged: list[PlacedSample],
    working: set[Path] | None,
) -> Site:
    """Where most of the judged samples lie, as a part of all."""
    site = _innermost_place(view, rank, samples, judged, working)
    return where_it_is_called(site, judged, calls_around_training(view, rank))


def _innermost_place(
    view: RunView,
    rank: int | None,
    samples: list[PlacedSample],
    judged: list[PlacedSample],
    working: set[Path] | None,
) -> Site:
    """The innermost of them, wherever it is called."""
    line = surest(judged, lines_by_function(view, rank), working)
    count, trained = total(samples), _functions_of_training(view, rank)
    if line is not None:
        inside = None
        if _tells_little(line, judged, working or set()):
            inside = _function(judged, count, trained=trained)
        return inside or _two_below(line, judged, count) or at_line(line, judged, count)
    return pair(judged, count) or _function(judged, count, trained=trained) or spread(judged, count)


def at_line(line: str, judged: list[PlacedSample], count: int) -> Site:
    """The place of a line, with the line of a library that most of its samples fell into."""
    there = [sample for sample in judged if line in sample.path]
    insides = Counter[str]()
    for sample in there:
        insides[sample.inside if sample.line == line else ""] += sample.count
    caller, place = _caller(line, there), line.removeprefix(LOOP)
    if is_of_comprehension(place, caller):
        place, caller = caller, ""
    return Site(
        site=place,
        share=total(there) / count,
        samples=count,
        detail=insides.most_common(1)[0][0],
        caller=caller,
        where="in the loop at" if line.startswith(LOOP) else "at",
    )


def _caller(line: str, at_line: Sequence[PlacedSample]) -> str:
    """The line that most of the samples at a line were called at, comprehensions passed over; empty
    where several share them.
    """
    callers: Counter[str] = Counter()
    for sample in at_line:
        outer = lines_in(sample.path[: sample.path.index(line)])
        named_outer = [label for label in outer if not is_nameless(label)]
        callers[named_outer[-1] if named_outer else ""] += sample.count
    caller, count = callers.most_common(1)[0]
    return caller if count > MOSTLY * callers.total() else ""


def pair(samples: Sequence[PlacedSample], count: int) -> Site | None:
    """The first of two lines that together surely hold most samples; None where no two do."""
    users = [sample for sample in samples if not sample.in_trainer]
    return _first_of_two(counted_by_line(users), total(samples), count)


def _first_of_two(lines: Counter[str], judged: int, count: int) -> Site | None:
    """The first of the two most frequent lines, if they surely hold most of the judged samples
    together.
    """
    top_two = lines.most_common(2)
    if surely(sum(at_line for _, at_line in top_two), judged) <= MOSTLY_OF_TWO:
        return None
    (first, at_first), *second = top_two
    beside = "".join(f" and {100 * at_line / count:.0f} % at {line}" for line, at_line in second)
    return Site(first, at_first / count, count, beside=beside)


def _two_below(line: str, judged: Sequence[PlacedSample], count: int) -> Site | None:
    """The first of two lines of the function that a line calls, where they hold most of the samples
    together; else None.
    """
    below: Counter[str] = Counter()
    for sample in judged:
        deeper = _lines_below(line, sample)
        if deeper:
            below[deeper[0]] += sample.count
    in_functions = {functions((label,)) for label, _ in below.most_common(2)}
    if len(below) < 2 or len(in_functions) > 1:
        return None
    site = _first_of_two(below, total(judged), count)
    return replace(site, caller=line) if site is not None else None


def _lines_below(line: str, sample: PlacedSample) -> Path:
    """The lines of a sample's path behind one of them; none where it has not that one."""
    if line not in sample.path:
        return ()
    return lines_in(sample.path[sample.path.index(line) + 1 :])


def _tells_little(line: str, samples: Sequence[PlacedSample], working: set[Path]) -> bool:
    """Whether a line only calls what most samples lie in, and does not say what that is: in a loop
    of its own, as one that goes through callbacks, or as the head of the training's loop, which
    fetches.
    """
    called = 0
    for sample in samples:
        if line in sample.path[:-1]:
            before = sample.path[: sample.path.index(line)]
            in_turn = bool(before) and ends_at_loop(before) and before not in working
            if in_turn or before[-1:] == (f"{LOOP}{line}",):
                called += sample.count
    return surely(called, total(samples)) > MOSTLY


def _function(samples: Sequence[PlacedSample], count: int, *, trained: set[Path]) -> Site | None:
    """The innermost function below which surely most samples lie, at its most frequent line; None
    where there is none but those that the training runs in, or these are not known.
    """
    depth, inside = 0, list(samples)
    while True:
        long_enough = [sample for sample in inside if len(lines_in(sample.path)) > depth]
        deeper = _most_in_a_function(long_enough, depth)
        if surely(total(deeper), total(samples)) <= MOSTLY:
            break
        depth, inside = depth + 1, deeper
    if not depth or not trained or functions(inside[0].path)[:depth] in trained:
        return None
    lines: Counter[str] = Counter()
    for sample in inside:
        lines[lines_in(sample.path)[depth - 1]] += sample.count
    line = lines.most_common(1)[0][0]
    return Site(line, total(inside) / count, count, where=IN_FUNCTION)


def _most_in_a_function(samples: Sequence[PlacedSample], depth: int) -> list[PlacedSample]:
    """Of samples that share their functions down to a depth those of the most frequent next."""
    by_function: dict[str, list[PlacedSample]] = {}
    for sample in samples:
        by_function.setdefault(functions(sample.path)[depth], []).append(sample)
    return max(by_function.values(), key=total, default=[])


def _functions_of_training(view: RunView, rank: int | None) -> set[Path]:
    """Functions in which forwards, backwards and updates happen, or rollouts."""
    return {functions(path) for path in paths_within(view, rank, (*COMPUTE, *ASKED))}


def spread(samples: Sequence[PlacedSample], count: int) -> Site:
    """Samples of which no line surely holds most: the few most frequent ones."""
    lines: Counter[str] = Counter()
    for sample in samples:
        inside = f", inside {sample.inside}" if sample.in_trainer else ""
        lines[sample.line + inside] += sample.count
    most_common = lines.most_common(SHOWN)
    words = "; ".join(f"{line} {100 * at_line / count:.0f} %" for line, at_line in most_common)
    if len(lines) > 1:
        words = f"spread over {len(lines)} lines: {words}"
    return Site(None, most_common[0][1] / count, count, spread=words)


def surest(
    samples: Sequence[PlacedSample], lines: Counter[Path], working: set[Path] | None = None
) -> str | None:
    """The innermost line or loop below which surely most of the samples lie.

    A line of the loop or deeper: one at which its function stands in all samples, such as the call
    of ``main``, is where everything happens and tells nothing. ``lines`` counts the lines that each
    function was seen at. Loops that are ``working`` are no place: what they do is the training.
    """
    chosen, prefix, of_chosen = None, (), total(samples)
    while True:
        label, count = most_frequent_below(samples, prefix)
        if not label or not _goes_deeper(count, of_chosen, total(samples)):
            return chosen
        prefix = (*prefix, label)
        if label.startswith(LOOP):
            if working is not None and prefix not in working:
                chosen, of_chosen = label, count
            continue
        ends = total(
            sample for sample in samples if sample.path == prefix and not sample.in_trainer
        )
        moves = lines[functions(prefix)] > 1
        if not label.startswith("(") and (moves or surely(ends, total(samples)) > MOSTLY):
            chosen, of_chosen = label, count


def _goes_deeper(count: int, of_chosen: int, of_all: int) -> bool:
    """Whether a line below the chosen one tells more: it surely holds most of all samples, or
    nearly all of the chosen one's and no less than a third of all.
    """
    if surely(count, of_all) > MOSTLY:
        return True
    return of_chosen < of_all and surely(count, of_chosen) > NEARLY and 3 * count >= of_all


def most_frequent_below(samples: Sequence[PlacedSample], prefix: Path) -> tuple[str, int]:
    """The next line or loop of most samples behind a path, and of how many; empty: none goes on."""
    depth = len(prefix)
    below: Counter[str] = Counter()
    for sample in samples:
        if len(sample.path) > depth and sample.path[:depth] == prefix:
            below[sample.path[depth]] += sample.count
    return below.most_common(1)[0] if below else ("", 0)
