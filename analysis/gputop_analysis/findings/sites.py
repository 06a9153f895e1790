"""Where in the user's code a phase's time goes, from the agent's stack samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from gputop_analysis.findings.input.loader_looks import surely
from gputop_analysis.findings.places import (
    at_line,
    most_frequent_below,
    pair,
    place_of,
    spread,
    surest,
)
from gputop_analysis.findings.shared_calls import where_it_is_called
from gputop_analysis.findings.site import ENOUGH, MOSTLY, Site
from gputop_analysis.findings.stack_samples import (
    ASKED,
    COMPUTE,
    LOOP,
    TRAINERS,
    TRAINING,
    WORKERS,
    Event,
    Path,
    PlacedSample,
    calls_around_training,
    counted_by_line,
    ends_at_loop,
    functions,
    line_of,
    marked,
    module_samples,
    paths_within,
    prefixes,
    samples_of,
    total,
    with_loops,
    working_loops,
)
from gputop_analysis.view import RunView

NEARLY_ALL = 0.9


def top_site(
    view: RunView, phase: str, rank: int | None = None, *, nested: int = 0, all_work: bool = False
) -> Site | None:
    """Where a phase's samples lie, on one rank or on all; None with fewer than 5 samples.

    Of evaluations it is the line of the training's loop that asks for them: there they are made
    less often. With ``nested``, operators on tensors inside so many loops in which no model runs
    count as host code: such a loop goes through the elements of tensors. With ``all_work`` the
    place may be of tensor work where it is of no host code, as that of a phase that has grown.
    """
    samples = marked(view, phase, rank)
    if phase == "eval":
        trained = paths_within(view, rank, COMPUTE)
        samples = [_in_loop(sample, trained) for sample in samples]
    if total(samples) < ENOUGH:
        return None
    working = working_loops(view, rank)
    if nested:
        samples = with_loops(samples, working, nested)
    judged = samples if phase == "comm" else _judged(samples)  # a wait lies in what it calls
    site = place_of(view, rank, samples, judged, working)
    if all_work and site.site is None:
        site = place_of(view, rank, samples, samples, working)
    return replace(
        site,
        torch_share=total(sample for sample in samples if sample.in_torch) / site.samples,
        trainers_share=total(sample for sample in samples if sample.in_trainer) / site.samples,
    )


def place_in_workers(view: RunView, rank: int) -> Site | None:
    """Where the workers of a rank's loader spend the time in which they make batches; None with
    fewer than 5 samples.
    """
    samples = list(samples_of(view, (WORKERS,), rank))
    count = total(samples)
    if count < ENOUGH:
        return None
    lines: Counter[Path] = Counter()
    for path in {path for sample in samples for path in prefixes(sample.path)}:
        if not ends_at_loop(path):
            lines[functions(path)] += 1
    line = surest(samples, lines)
    if line is not None:
        site = at_line(line, samples, count)
    else:
        site = pair(samples, count) or spread(samples, count)
    return where_it_is_called(site, samples)


def heaviest_line(view: RunView, phase: str, rank: int) -> Site | None:
    """The user's line with most samples of host code, be they few of the phase."""
    samples = marked(view, phase, rank)
    users = [sample for sample in samples if not sample.in_torch and not sample.in_trainer]
    lines = counted_by_line(sample for sample in users if not sample.waits)
    if not lines:
        return None
    line, count = lines.most_common(1)[0]
    if count < ENOUGH:
        return None
    site = replace(at_line(line, users, total(samples)), share=count / total(samples))
    return where_it_is_called(site, users, calls_around_training(view, rank))


def _judged(samples: list[PlacedSample]) -> list[PlacedSample]:
    """The samples to look for a place in: the user's host code, else all host code, else all."""
    host_code = [sample for sample in samples if not sample.in_torch]
    users = [sample for sample in host_code if not sample.in_trainer]
    if total(users) >= ENOUGH:
        return users
    return host_code or samples


def _in_loop(sample: PlacedSample, trained: set[Path]) -> PlacedSample:
    """The sample at the line where its path leaves those of training, in a function that trains if
    there is one, as a callback does not; or as it is.
    """
    trained_functions = {functions(path) for path in trained}
    leaving = [
        path
        for path in prefixes(sample.path)[:-1]
        if not ends_at_loop(path) and path not in trained
    ]
    for path in leaving:
        if functions(path) in trained_functions:
            return _at_end_of(path, sample)
    return _at_end_of(leaving[0], sample) if leaving else sample


def _at_end_of(path: Path, sample: PlacedSample) -> PlacedSample:
    """The sample at the end of a path that its own begins with."""
    inside = sample.path[len(path)].removeprefix(LOOP)
    return replace(sample, path=path, inside=inside, code="")


def trainers_call(view: RunView, rank: int | None) -> str | None:
    """The line of the user's that runs a trainer, such as ``trainer.fit(...)``: the innermost one
    below which nearly all samples of the training lie. None without a trainer.
    """
    samples = list(samples_of(view, TRAINING, rank))
    if not any(sample.inside.startswith(TRAINERS) for sample in samples):
        return None
    line, prefix = None, ()
    while True:
        label, count = most_frequent_below(samples, prefix)
        if not label or count < NEARLY_ALL * total(samples):
            return line
        prefix = (*prefix, label)
        if not label.startswith(("(", LOOP)):
            line = label


def loop_of_evaluation(view: RunView, rank: int) -> str | None:
    """The innermost line in a loop of the user's that runs models again and again for a batch of a
    trainer's evaluation, as one that decodes does, below which surely most of its samples lie.
    """
    lines: Counter[str] = Counter()
    samples = list(samples_of(view, ASKED, rank))
    for sample in samples:
        path = sample.path
        hooks = [index for index, label in enumerate(path) if label.startswith("(")]
        inside = path[hooks[0] :] if hooks else ()
        loops = [index for index, label in enumerate(inside[:-1]) if label.startswith(LOOP)]
        if loops:
            lines[inside[loops[-1] + 1]] += sample.count
    line, count = next(iter(lines.most_common(1)), (None, 0))
    return line if surely(count, total(samples)) > MOSTLY else None


def called_from(view: RunView, phase: str, rank: int) -> str | None:
    """The line of the training's own loop, the function that calls the backward, that surely most
    samples of a phase come from.
    """
    loop_functions = {functions(path) for path in _backward_calls(view, rank)}
    lines: Counter[str] = Counter()
    for sample in samples_of(view, (phase,), rank):
        lines[_innermost_in(sample.path, loop_functions)] += sample.count
    if not lines:
        return None
    line, count = lines.most_common(1)[0]
    enough = count >= ENOUGH and surely(count, lines.total()) > MOSTLY
    if not enough:
        return None
    return line or None


def _innermost_in(path: Path, wanted: set[Path]) -> str:
    """The innermost line of a path in one of these functions; empty: none is."""
    for prefix in reversed(prefixes(path)):
        if not ends_at_loop(prefix) and functions(prefix) in wanted:
            return prefix[-1]
    return ""


def _backward_calls(view: RunView, rank: int) -> set[Path]:
    """Paths to the lines of the user's that call a backward."""
    samples = samples_of(view, ("backward",), rank)
    inside = ("torch/autograd/", *TRAINERS)
    return {sample.path for sample in samples if sample.inside.startswith(inside)}


def line_with(view: RunView, words: str, rank: int) -> str | None:
    """The most sampled line of source with certain words in it; None where none was seen."""
    lines: Counter[str] = Counter()
    for event in view.events("stacks", rank=rank):
        for fields in event.get("samples", ()):
            if words in str(fields.get("code") or ""):
                lines[line_of(fields)] += int(fields.get("count", 1))
    return lines.most_common(1)[0][0] if lines else None


def samples_where(
    view: RunView, phase: str, rank: int, wanted: Callable[[Event], bool]
) -> tuple[int, int]:
    """Stack samples of a phase on a rank: those that are wanted, and all of them."""
    chosen = count = 0
    for event in view.events("stacks", rank=rank):
        if event.get("phase") != phase:
            continue
        for fields in event.get("samples", ()):
            number = int(fields.get("count", 1))
            count += number
            if wanted(fields):
                chosen += number
    return chosen, count


def runs_training(view: RunView, rank: int | None, line: str) -> bool:
    """Whether a line stands in a function from which forwards, backwards or updates are called."""
    paths = paths_within(view, rank, COMPUTE)
    return functions((line,)) in {functions(path[-1:]) for path in paths if not ends_at_loop(path)}


def runs_models_in_turn(view: RunView, rank: int, line: str) -> bool:
    """Whether what lies below a line between the phases is mostly in a loop that runs models, again
    and again within a step: it is a solver's or a sampler's work with the model.
    """
    around_backward = {path for call in _backward_calls(view, rank) for path in prefixes(call)}
    loops: set[Path] = set()
    for sample in module_samples(view, (*TRAINING, *ASKED), rank):
        if line in sample.path[:-1]:
            loops.update(filter(ends_at_loop, prefixes(sample.path)))
    loops -= around_backward
    below = [sample for sample in samples_of(view, ("other",), rank) if line in sample.path]
    in_loops = [sample for sample in below if not loops.isdisjoint(prefixes(sample.path))]
    return total(in_loops) > MOSTLY * total(below)
