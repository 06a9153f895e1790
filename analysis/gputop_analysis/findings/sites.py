"""Where in the user's code a phase's time goes, from the agent's stack samples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gputop_analysis.findings.input.loader_looks import surely
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
    counted_by_line,
    ends_at_loop,
    functions,
    line_of,
    lines_by_function,
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

ENOUGH = 5
"""Fewer samples than this name no place."""
MOSTLY = 0.5
"""Of the samples a place must hold more, at its interval's lower end, to be named."""
NEARLY_ALL = 0.9
MOSTLY_OF_TWO = 0.6
"""Of the samples two lines must hold more together, where neither holds most."""
SHOWN = 3
IN_FUNCTION = "in the function at"
NEAR_LINES = 3
_NAMELESS = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>", "<lambda>")


@dataclass(frozen=True, slots=True)
class Site:
    """The innermost line that surely holds most of a phase's samples, with all that it calls."""

    site: str | None
    """``train.py:118 get_batch``; None where no line holds most of them."""
    share: float
    """Of the phase's samples, 0 to 1; of the most frequent line where none is sure."""
    samples: int
    torch_share: float = 0.0
    """The phase's samples inside torch: a loss function or zero_grad, work and no overhead."""
    detail: str = ""
    """Library line that it was waiting in most often, if it was in one."""
    caller: str = ""
    """``train.py:90 run``, the line that mostly calls the function of the site."""
    trainers_share: float = 0.0
    """Of the phase's samples, those inside a trainer's own code."""
    spread: str = ""
    """The most frequent lines, where none holds most of the samples."""
    beside: str = ""
    """The second of two lines that hold most samples together."""
    where: str = "at"
    """``in the loop at`` its first line, or ``in the function at`` its most frequent line, where no
    line in it holds most of the samples.
    """

    @property
    def is_function(self) -> bool:
        """Whether no line in it holds most of the samples."""
        return self.where == IN_FUNCTION

    @property
    def least_share(self) -> float:
        """The lower end of the share's interval."""
        return surely(round(self.share * self.samples), self.samples)

    @property
    def most_share(self) -> float:
        """The upper end of the share's interval."""
        return 1 - surely(round((1 - self.share) * self.samples), self.samples)

    @property
    def words(self) -> str:
        """``most often at train.py:118 get_batch, called at train.py:90 run (80 % of 40 stack
        samples)``.
        """
        inside = f", inside {self.detail}" if self.detail else ""
        called = f", called at {self.caller}" if self.caller else ""
        if self.site is None:
            return f"{self.spread} (of {self.samples} stack samples)"
        return (
            f"most often {self.where} {self.site}{inside}{called} "
            f"({self.share * 100:.0f} %{self.beside} of {self.samples} stack samples)"
        )


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
    site = _place(view, rank, samples, _judged(samples), working)
    if all_work and site.site is None:
        site = _place(view, rank, samples, samples, working)
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
        site = _at_line(line, samples, count)
    else:
        site = _pair(samples, count) or _spread(samples, count)
    return _where_it_is_called(site, samples)


def heaviest_line(view: RunView, phase: str, rank: int) -> Site | None:
    """The user's line with most samples of host code, be they few of the phase."""
    samples = marked(view, phase, rank)
    users = [one for one in samples if not one.in_torch and not one.in_trainer]
    lines = counted_by_line(one for one in users if not one.waits)
    if not lines:
        return None
    line, count = lines.most_common(1)[0]
    if count < ENOUGH:
        return None
    site = replace(_at_line(line, users, total(samples)), share=count / total(samples))
    return _where_it_is_called(site, users)


def _place(
    view: RunView,
    rank: int | None,
    samples: list[PlacedSample],
    judged: list[PlacedSample],
    working: set[Path] | None,
) -> Site:
    """Where most of the judged samples lie, as a part of all."""
    site = _innermost_place(view, rank, samples, judged, working)
    return _where_it_is_called(site, judged)


def _innermost_place(
    view: RunView,
    rank: int | None,
    samples: list[PlacedSample],
    judged: list[PlacedSample],
    working: set[Path] | None,
) -> Site:
    line = surest(judged, lines_by_function(view, rank), working)
    count, trained = total(samples), _functions_of_training(view, rank)
    if line is not None:
        inside = None
        if _tells_little(line, judged, working or set()):
            inside = _function(judged, count, trained=trained)
        return inside or _two_below(line, judged, count) or _at_line(line, judged, count)
    return (
        _pair(judged, count) or _function(judged, count, trained=trained) or _spread(judged, count)
    )


def _judged(samples: list[PlacedSample]) -> list[PlacedSample]:
    """The samples to look for a place in: the user's host code, else all host code, else all."""
    host_code = [sample for sample in samples if not sample.in_torch]
    users = [sample for sample in host_code if not sample.in_trainer]
    if total(users) >= ENOUGH:
        return users
    return host_code or samples


def _at_line(line: str, judged: list[PlacedSample], count: int) -> Site:
    """The place of a line, with the line of a library that most of its samples fell into."""
    at_line = [sample for sample in judged if line in sample.path]
    insides = Counter[str]()
    for sample in at_line:
        insides[sample.inside if sample.line == line else ""] += sample.count
    caller, place = _caller(line, at_line), line.removeprefix(LOOP)
    if _is_of_comprehension(place, caller):
        place, caller = caller, ""
    return Site(
        site=place,
        share=total(at_line) / count,
        samples=count,
        detail=insides.most_common(1)[0][0],
        caller=caller,
        where="in the loop at" if line.startswith(LOOP) else "at",
    )


def _where_it_is_called(site: Site, judged: Sequence[PlacedSample]) -> Site:
    """The place, or the call of its function where that is one of several lines that call it: a
    tool is not to be mended for one of its users.
    """
    if site.site is None:
        return site
    labels = {site.site, f"{LOOP}{site.site}"}
    call = _shared_call(site.site, [one for one in judged if not labels.isdisjoint(one.path)])
    if not call:
        return site
    through = total(sample for sample in judged if call in sample.path)
    return Site(site=call, share=through / site.samples, samples=site.samples, detail=site.site)


def _shared_call(line: str, at_line: Sequence[PlacedSample]) -> str:
    """The line that calls the function of most samples at a line, where other lines call it, too;
    empty where none does.
    """
    calls: Counter[str] = Counter()
    for sample in at_line:
        reached = line if line in sample.path else f"{LOOP}{line}"
        outer = list(_lines(replace(sample, path=sample.path[: sample.path.index(reached)])))
        innermost = line
        while _is_nameless(innermost) and outer:
            innermost = outer.pop()
        if outer and outer[-1] in sample.shared_calls:
            calls[outer[-1]] += sample.count
    call, count = calls.most_common(1)[0] if calls else ("", 0)
    return call if count > MOSTLY * total(at_line) else ""


def _is_nameless(label: str) -> bool:
    """Whether it lies in a comprehension or a lambda."""
    return label.rpartition(" ")[2] in _NAMELESS


def _is_of_comprehension(line: str, caller: str) -> bool:
    """Whether a line is a comprehension's in the statement that goes through it, or right above."""
    file, _, rest = line.partition(":")
    number, _, function = rest.partition(" ")
    calls_file, _, calls = caller.partition(":")
    calls_number = calls.partition(" ")[0]
    return (
        function in _NAMELESS
        and file == calls_file
        and number.isdigit()
        and calls_number.isdigit()
        and 0 <= int(calls_number) - int(number) <= NEAR_LINES
    )


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
    return _lines(replace(sample, path=sample.path[sample.path.index(line) + 1 :]))


def _caller(line: str, at_line: Sequence[PlacedSample]) -> str:
    """The line that most of the samples at a line were called at, comprehensions passed over; empty
    where several share them.
    """
    callers: Counter[str] = Counter()
    for sample in at_line:
        outer = _lines(replace(sample, path=sample.path[: sample.path.index(line)]))
        named_outer = [label for label in outer if not _is_nameless(label)]
        callers[named_outer[-1] if named_outer else ""] += sample.count
    caller, count = callers.most_common(1)[0]
    return caller if count > MOSTLY * callers.total() else ""


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


def _in_loop(sample: PlacedSample, trained: set[Path]) -> PlacedSample:
    """The sample at the line where its path leaves those of training, or as it is."""
    trained_functions = {functions(path) for path in trained}
    for path in prefixes(sample.path)[:-1]:
        leaves = not ends_at_loop(path) and path not in trained
        if leaves and functions(path) in trained_functions:
            inside = sample.path[len(path)].removeprefix(LOOP)
            return replace(sample, path=path, inside=inside, code="")
    return sample


def trainers_call(view: RunView, rank: int | None) -> str | None:
    """The line of the user's that runs a trainer, such as ``trainer.fit(...)``: the innermost one
    below which nearly all samples of the training lie. None without a trainer.
    """
    samples = list(samples_of(view, TRAINING, rank))
    if not any(sample.inside.startswith(TRAINERS) for sample in samples):
        return None
    line, prefix = None, ()
    while True:
        label, count = _most_frequent_below(samples, prefix)
        if not label or count < NEARLY_ALL * total(samples):
            return line
        prefix = (*prefix, label)
        if not label.startswith(("(", LOOP)):
            line = label


def _most_frequent_below(samples: Sequence[PlacedSample], prefix: Path) -> tuple[str, int]:
    """The next line or loop of most samples behind a path, and of how many; empty: none goes on."""
    depth = len(prefix)
    below: Counter[str] = Counter()
    for sample in samples:
        if len(sample.path) > depth and sample.path[:depth] == prefix:
            below[sample.path[depth]] += sample.count
    return below.most_common(1)[0] if below else ("", 0)


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
            own = (path for path in prefixes(sample.path) if ends_at_loop(path))
            outermost = next((path for path in own if path not in of_models), None)
            if outermost is not None:
                loops.add(outermost)
    return loops


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


def _pair(samples: Sequence[PlacedSample], count: int) -> Site | None:
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


def _function(samples: Sequence[PlacedSample], count: int, *, trained: set[Path]) -> Site | None:
    """The innermost function below which surely most samples lie, at its most frequent line; None
    where there is none but those that the training runs in, or these are not known.
    """
    depth, inside = 0, list(samples)
    while True:
        deeper = _most_in_a_function([one for one in inside if len(_lines(one)) > depth], depth)
        if surely(total(deeper), total(samples)) <= MOSTLY:
            break
        depth, inside = depth + 1, deeper
    if not depth or not trained or functions(inside[0].path)[:depth] in trained:
        return None
    lines: Counter[str] = Counter()
    for sample in inside:
        lines[_lines(sample)[depth - 1]] += sample.count
    line = lines.most_common(1)[0][0]
    return Site(line, total(inside) / count, count, where=IN_FUNCTION)


def _most_in_a_function(samples: Sequence[PlacedSample], depth: int) -> list[PlacedSample]:
    """Of samples that share their functions down to a depth those of the most frequent next."""
    by_function: dict[str, list[PlacedSample]] = {}
    for sample in samples:
        by_function.setdefault(functions(sample.path)[depth], []).append(sample)
    return max(by_function.values(), key=total, default=[])


def _lines(sample: PlacedSample) -> Path:
    """The lines of a sample's path, without loops."""
    return tuple(label for label in sample.path if not label.startswith(LOOP))


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


def _functions_of_training(view: RunView, rank: int | None) -> set[Path]:
    """Functions in which forwards, backwards and updates happen, or rollouts."""
    return {functions(path) for path in paths_within(view, rank, (*COMPUTE, *ASKED))}


def _spread(samples: Sequence[PlacedSample], count: int) -> Site:
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


def named(site: Site | None, words: str = "{}") -> str:
    """Words with the place in them; empty where none is sure."""
    return words.format(site.site) if site is not None and site.site else ""


def surest(
    samples: Sequence[PlacedSample], lines: Counter[Path], working: set[Path] | None = None
) -> str | None:
    """The innermost line or loop below which surely most of the samples lie.

    A line of the loop or deeper: one at which its function stands in all samples, such as the call
    of ``main``, is where everything happens and tells nothing. ``lines`` counts the lines that each
    function was seen at. Loops that are ``working`` are no place: what they do is the training.
    """
    chosen, prefix = None, ()
    while True:
        label, count = _most_frequent_below(samples, prefix)
        if not label or surely(count, total(samples)) <= MOSTLY:
            return chosen
        prefix = (*prefix, label)
        if label.startswith(LOOP):
            if working is not None and prefix not in working:
                chosen = label
            continue
        ends = total(
            sample for sample in samples if sample.path == prefix and not sample.in_trainer
        )
        moves = lines[functions(prefix)] > 1
        if not label.startswith("(") and (moves or surely(ends, total(samples)) > MOSTLY):
            chosen = label
