"""Where in the user's code a phase's time goes, from the agent's stack samples."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gputop_analysis.findings.input_looks import surely
from gputop_analysis.view import RunView

Event = dict[str, Any]

TRAINERS = (
    "transformers/trainer",
    "accelerate/",
    "lightning/",
    "pytorch_lightning/",
    "trl/",
    "deepspeed/",
)
"""Packages that own the loop: what they do between phases, no line of the user's spares."""
ENOUGH = 5
"""Fewer samples than this name no place."""
MOSTLY = 0.5
"""Of the samples a place must hold more, at its interval's lower end, to be named."""
NEARLY_ALL = 0.9
MOSTLY_OF_TWO = 0.6
"""Of the samples two lines must hold more together, where neither holds most."""
SHOWN = 3
LOOP = "loop "
"""Before the first line of a loop, in a path."""
TRAINING = ("data", "h2d", "forward", "backward", "optimizer", "other")
"""Phases of the loop itself."""
COMPUTE = ("forward", "backward", "optimizer")

Path = tuple[str, ...]

_READS_OUT = re.compile(r"\.(item|tolist)\(|(?<![\w.])float\(")
_UPDATES = re.compile(
    r"\.(add|addcdiv|addcmul|addmm|clamp|copy|div|fill|lerp|mul|sub|zero)_\(|=.*\.data\b"
)
_NETWORKS = "torch/nn/"
_MODULES = "torch/nn/modules/"
_FILES = (
    "torch/serialization.py",
    "torch/hub.py",
    "torch/utils/tensorboard/",
    "torch/_tensor_str.py",
)
"""Parts of torch that read and write files, or what tensors look like."""
_ABOUT_MODULES = re.compile(
    r"^torch/nn/modules/module\.py:\d+ (_?named_|_?(save|load)|parameters|buffers|children|modules"
    r"|state_dict|apply)"
)
"""What is asked of a module without running it."""
_TENSOR_CALL = re.compile(
    r"\b(?:torch|F|functional)\.(?:\w+\.)*(?!(?:tensor|as_tensor|from_numpy|save|load)\b)\w+\("
)
_MAKES_TENSOR = re.compile(r"\b(?:as_)?tensor\(")
_LOOP = re.compile(r"\bfor\b")
_MAKES_LOSS = re.compile(r"^\s*\w*loss\w*\s*\+?=[^=]")
_OPERATORS = "torch/_C"
"""An operator of torch's that the line itself calls."""
_BY_ROWS = "torch/_tensor.py"
"""Iterating over a tensor in Python ends in its ``__iter__``."""


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
    trainers_share: float = 0.0
    """Of the phase's samples, those inside a trainer's own code."""
    spread: str = ""
    """The most frequent lines, where none holds most of the samples."""
    beside: str = ""
    """The second of two lines that hold most samples together."""
    is_loop: bool = False
    """Whether it is the first line of a loop, and no line in it holds most of the samples."""

    @property
    def words(self) -> str:
        """``most often at train.py:118 get_batch (80 % of 40 stack samples)``."""
        inside = f", inside {self.detail}" if self.detail else ""
        if self.site is None:
            return f"{self.spread} (of {self.samples} stack samples)"
        where = "in the loop at" if self.is_loop else "at"
        return (
            f"most often {where} {self.site}{inside} ({self.share * 100:.0f} %{self.beside} of "
            f"{self.samples} stack samples)"
        )


@dataclass(frozen=True, slots=True)
class _Sample:
    path: Path
    inside: str
    count: int
    code: str = ""
    called: bool = False
    """Its line is a trainer's call, such as ``trainer.fit``, whatever runs inside."""
    runs_model: bool = False
    """Its line was seen to run a model, too."""
    of_networks: bool = False
    """It lies in a package that forwards and backwards run through, at a line that they begin at or
    that makes a loss: GPyTorch works after the forward has returned, and so do the losses of MONAI.
    """
    loops: int = 0
    """Loops around it in which no model runs, where they count as host code."""

    @property
    def in_torch(self) -> bool:
        """Whether it is tensor work: inside torch, or an update of tensors in place.

        Not where a line takes values out of tensors, whatever part of that the sample fell into,
        unless that is a loss: what is read out is for the eyes, not for the update.
        """
        if _READS_OUT.search(self.code) and not self.inside.startswith(_NETWORKS):
            return False
        if self.loops and self.operates:
            return False
        if self.inside.startswith(_BY_ROWS) and self.inside.endswith("__iter__"):
            return False
        if self.inside.startswith(_FILES) or _ABOUT_MODULES.match(self.inside):
            return False
        if self.inside:
            in_torch = self.inside.startswith("torch/") or self.of_networks
            return in_torch or bool(_UPDATES.search(self.code))
        return bool(_UPDATES.search(self.code)) or self.calls_tensors or self.runs_model

    @property
    def operates(self) -> bool:
        """Whether it is an operator on tensors, and no update of them."""
        direct = not self.inside or self.inside.startswith((_OPERATORS, "torch/_tensor.py"))
        return direct and not _UPDATES.search(self.code)

    @property
    def calls_tensors(self) -> bool:
        """Whether a line calls torch, as a loss does, and was seen between two such calls."""
        return bool(_TENSOR_CALL.search(self.code)) and not _LOOP.search(self.code)

    @property
    def in_trainer(self) -> bool:
        return self.called or self.inside.startswith(TRAINERS)


def top_site(view: RunView, phase: str, rank: int | None = None, *, nested: int = 0) -> Site | None:
    """Where a phase's samples lie, on one rank or on all; None with fewer than 5 samples.

    Of evaluations it is the line of the training's loop that asks for them: there they are made
    less often. With ``nested``, operators on tensors inside so many loops in which no model runs
    count as host code: such a loop goes through the elements of tensors.
    """
    ran = {sample.path for sample in _in_modules(view, (*TRAINING, "eval"), rank)}
    samples = [
        replace(sample, runs_model=sample.path in ran) for sample in _samples(view, (phase,), rank)
    ]
    samples = _with_trainers(view, _with_networks(view, samples, rank), rank)
    if phase == "eval":
        trained = _prefixes(view, rank, COMPUTE)
        samples = [_in_loop(sample, trained) for sample in samples]
    total = sum(sample.count for sample in samples)
    if total < ENOUGH:
        return None
    if nested:
        samples = _with_loops(samples, _working_loops(view, rank), nested)
    ours = [sample for sample in samples if not sample.in_torch]
    users = [sample for sample in ours if not sample.in_trainer]
    enough = sum(sample.count for sample in users) >= ENOUGH
    judged = (users if enough else ours) or samples
    in_torch = total - sum(sample.count for sample in ours)
    in_trainers = sum(sample.count for sample in samples if sample.in_trainer)
    line = surest(judged, _lines(view, rank), _working_loops(view, rank))
    shares = in_torch / total, in_trainers / total
    if line is None:
        return _pair(judged, total, *shares) or _spread(judged, total, *shares)
    at_line = [sample for sample in judged if line in sample.path]
    insides = Counter[str]()
    for sample in at_line:
        insides[sample.inside if sample.path[-1] == line else ""] += sample.count
    share = sum(sample.count for sample in at_line) / total
    return Site(
        line.removeprefix(LOOP),
        share,
        total,
        shares[0],
        insides.most_common(1)[0][0],
        shares[1],
        is_loop=line.startswith(LOOP),
    )


def _in_loop(sample: _Sample, trained: set[Path]) -> _Sample:
    """The sample at the line where its path leaves those of training, or as it is."""
    functions = {_functions(path) for path in trained}
    prefixes = [sample.path[:i] for i in range(1, len(sample.path))]
    lines = [prefix for prefix in prefixes if not prefix[-1].startswith(LOOP)]
    apart = [
        prefix for prefix in lines if prefix not in trained and _functions(prefix) in functions
    ]
    if not apart:
        return sample
    inside = sample.path[len(apart[0])].removeprefix(LOOP)
    return replace(sample, path=apart[0], inside=inside, code="")


def _with_networks(view: RunView, samples: list[_Sample], rank: int | None) -> list[_Sample]:
    """The samples, with those marked that a package of networks computes."""
    computing = list(_samples(view, COMPUTE, rank))
    packages = {_package(sample) for sample in computing} - {""}
    begin = {sample.path for sample in computing}
    return [
        replace(
            sample,
            of_networks=_package(sample) in packages
            and (sample.path in begin or bool(_MAKES_LOSS.search(sample.code))),
        )
        for sample in samples
    ]


def _package(sample: _Sample) -> str:
    """The package that a sample lies inside of; empty where it is the user's own code, or torch."""
    name, _, rest = sample.inside.partition("/")
    return name if rest and name != "torch" else ""


def _with_trainers(view: RunView, samples: list[_Sample], rank: int | None) -> list[_Sample]:
    """The samples, those marked that a trainer's call holds with another package inside."""
    packages = _loop_owners(view, rank)
    calls = {
        sample.path
        for sample in _samples(view, TRAINING, rank)
        if sample.inside.startswith(packages)
    }
    return [
        replace(sample, called=bool(sample.inside) and sample.path in calls) for sample in samples
    ]


def _loop_owners(view: RunView, rank: int | None) -> tuple[str, ...]:
    """The trainers, and each package whose own code calls the backward (fastai, Pyro, skorch):
    what the user's line calls there is a whole step.
    """
    packages = {
        _package(sample)
        for sample in _samples(view, ("backward",), rank)
        if "backward(" not in sample.code
    }
    return (*TRAINERS, *sorted(f"{name}/" for name in packages - {""}))


def _with_loops(samples: list[_Sample], working: set[Path] | None, nested: int) -> list[_Sample]:
    """The samples, with those counted that lie in loops of which none runs a model."""
    if working is None:
        return samples
    counted = []
    for sample in samples:
        prefixes = (sample.path[:i] for i in range(1, len(sample.path) + 1))
        loops = sum(path[-1].startswith(LOOP) and path not in working for path in prefixes)
        counted.append(replace(sample, loops=loops if loops >= nested else 0))
    return counted


def trainers_call(view: RunView, rank: int | None) -> str | None:
    """The line of the user's that runs a trainer, such as ``trainer.fit(...)``: the innermost one
    below which nearly all samples of the training lie. None without a trainer.
    """
    samples = list(_samples(view, TRAINING, rank))
    if not any(sample.inside.startswith(TRAINERS) for sample in samples):
        return None
    least = NEARLY_ALL * sum(sample.count for sample in samples)
    line, prefix = None, ()
    while True:
        depth = len(prefix)
        below: Counter[str] = Counter()
        for sample in samples:
            if len(sample.path) > depth and sample.path[:depth] == prefix:
                below[sample.path[depth]] += sample.count
        label, count = below.most_common(1)[0] if below else ("", 0)
        if not label or count < least:
            return line
        prefix = (*prefix, label)
        if not label.startswith(("(", LOOP)):
            line = label


def called_from(view: RunView, phase: str, rank: int) -> str | None:
    """The line of the training's own loop, the function that calls the backward, that surely most
    samples of a phase come from.
    """
    loops = {_functions(path) for path in _backward_calls(view, rank)}
    lines: Counter[str] = Counter()
    for sample in _samples(view, (phase,), rank):
        prefixes = (sample.path[:i] for i in range(len(sample.path), 0, -1))
        calls = (path for path in prefixes if not path[-1].startswith(LOOP))
        line = next((path[-1] for path in calls if _functions(path) in loops), "")
        lines[line] += sample.count
    line, count = lines.most_common(1)[0] if lines else ("", 0)
    enough = count >= ENOUGH and surely(count, sum(lines.values())) > MOSTLY
    return line or None if enough else None


def _backward_calls(view: RunView, rank: int) -> set[Path]:
    """Paths to the lines of the user's that call a backward."""
    samples = _samples(view, ("backward",), rank)
    inside = ("torch/autograd/", *TRAINERS)
    return {sample.path for sample in samples if sample.inside.startswith(inside)}


def reading_loops(view: RunView, phase: str, rank: int) -> Site | None:
    """Python loops inside a phase that take values out of tensors, and what makes a tensor of them
    again in the same function; None where they were seen less than five times.

    Loops that run modules, and those of the training itself, are none.
    """
    samples = list(_samples(view, (phase,), rank))
    elsewhere = _prefixes(view, rank, [other for other in TRAINING if other != phase])
    of_modules = [sample.path for sample in samples if sample.inside.startswith(_MODULES)]
    elsewhere |= {path[:i] for path in of_modules for i in range(1, len(path) + 1)}
    loops = set()
    for sample in samples:
        prefixes = (sample.path[:i] for i in range(1, len(sample.path) + 1))
        own = [path for path in prefixes if path[-1].startswith(LOOP) and path not in elsewhere]
        if own and _READS_OUT.search(sample.code):
            loops.add(own[0])
    functions = {_functions((*loop, loop[-1].removeprefix(LOOP))) for loop in loops}
    inside = [
        sample
        for sample in samples
        if any(sample.path[: len(loop)] == loop for loop in loops)
        or (_MAKES_TENSOR.search(sample.code) and _functions(sample.path) in functions)
    ]
    count, total = (sum(sample.count for sample in some) for some in (inside, samples))
    if count < ENOUGH:
        return None
    lines: Counter[str] = Counter()
    for sample in inside:
        lines[sample.path[-1]] += sample.count
    return Site(lines.most_common(1)[0][0], count / total, total)


def line_with(view: RunView, words: str, rank: int) -> str | None:
    """The most sampled line of source with certain words in it; None where none was seen."""
    lines: Counter[str] = Counter()
    for event in view.events("stacks", rank=rank):
        for sample in event.get("samples", ()):
            if words in str(sample.get("code") or ""):
                site = f"{sample.get('site') or ''} {sample.get('function') or ''}".strip()
                lines[site] += int(sample.get("count", 1))
    return lines.most_common(1)[0][0] if lines else None


def samples_where(
    view: RunView, phase: str, rank: int, wanted: Callable[[Event], bool]
) -> tuple[int, int]:
    """Stack samples of a phase on a rank: those that are wanted, and all of them."""
    samples = [
        sample
        for e in view.events("stacks", rank=rank)
        if e.get("phase") == phase
        for sample in e.get("samples", ())
    ]
    counts = [(wanted(sample), int(sample.get("count", 1))) for sample in samples]
    return sum(n for chosen, n in counts if chosen), sum(n for _, n in counts)


def _pair(
    samples: Sequence[_Sample], total: int, torch_share: float, trainers_share: float
) -> Site | None:
    """The first of two lines that together surely hold most samples; None where no two do."""
    lines: Counter[str] = Counter()
    for sample in samples:
        if not sample.in_trainer:
            lines[sample.path[-1]] += sample.count
    top_two = lines.most_common(2)
    together = sum(count for _, count in top_two)
    if surely(together, sum(sample.count for sample in samples)) <= MOSTLY_OF_TWO:
        return None
    (line_, count), *remaining = top_two
    detail = "".join(f" and {100 * n / total:.0f} % at {line}" for line, n in remaining)
    return Site(line_, count / total, total, torch_share, "", trainers_share, beside=detail)


def _spread(
    samples: Sequence[_Sample], total: int, torch_share: float, trainers_share: float
) -> Site:
    """Samples of which no line surely holds most: the few most frequent ones."""
    lines: Counter[str] = Counter()
    for sample in samples:
        inside = f", inside {sample.inside}" if sample.in_trainer else ""
        lines[sample.path[-1] + inside] += sample.count
    most_common = lines.most_common(SHOWN)
    lines_text = "; ".join(f"{line} {100 * count / total:.0f} %" for line, count in most_common)
    if len(lines) > 1:
        words = f"spread over {len(lines)} lines: {lines_text}"
    else:
        words = lines_text
    return Site(None, most_common[0][1] / total, total, torch_share, "", trainers_share, words)


def named(site: Site | None, words: str = "{}") -> str:
    """Words with the place in them; empty where none is sure."""
    return words.format(site.site) if site is not None and site.site else ""


def surest(
    samples: Sequence[_Sample], lines: Counter[Path], working: set[Path] | None = None
) -> str | None:
    """The innermost line or loop below which surely most of the samples lie.

    A line of the loop or deeper: one at which its function stands in all samples, such as the call
    of ``main``, is where everything happens and tells nothing. ``lines`` counts the lines that each
    function was seen at. Loops that are ``working`` are no place: what they do is the training.
    """
    total = sum(sample.count for sample in samples)
    chosen, prefix = None, ()
    while True:
        depth = len(prefix)
        below: Counter[str] = Counter()
        for sample in samples:
            if len(sample.path) > depth and sample.path[:depth] == prefix:
                below[sample.path[depth]] += sample.count
        label, count = below.most_common(1)[0] if below else ("", 0)
        if not label or surely(count, total) <= MOSTLY:
            return chosen
        prefix = (*prefix, label)
        if label.startswith(LOOP):
            if working is not None and prefix not in working:
                chosen = label
            continue
        ends = sum(
            sample.count for sample in samples if sample.path == prefix and not sample.in_trainer
        )
        moves = lines[_functions(prefix)] > 1
        if not label.startswith("(") and (moves or surely(ends, total) > MOSTLY):
            chosen = label


def _working_loops(view: RunView, rank: int | None) -> set[Path] | None:
    """Paths to loops in which models run: the training's own, evaluation's, a rollout's.

    None where no model was seen to run.
    """
    samples = list(_samples(view, COMPUTE, rank))
    if not samples:
        return None
    samples += _in_modules(view, TRAINING, rank)
    paths = {sample.path[:i] for sample in samples for i in range(1, len(sample.path))}
    return {path for path in paths if path[-1].startswith(LOOP)}


def _in_modules(view: RunView, phases: Sequence[str], rank: int | None) -> list[_Sample]:
    """Samples of lines that run a model."""
    return [
        sample
        for sample in _samples(view, phases, rank)
        if sample.inside.startswith(_MODULES) and not _ABOUT_MODULES.match(sample.inside)
    ]


def _lines(view: RunView, rank: int | None) -> Counter[Path]:
    """By functions from the outermost one: in how many lines each was seen in training."""
    lines = (path for path in _prefixes(view, rank) if not path[-1].startswith(LOOP))
    return Counter(_functions(path) for path in lines)


def _prefixes(view: RunView, rank: int | None, phases: Sequence[str] = TRAINING) -> set[Path]:
    """Paths of the training's own phases, from their outermost line to each line further in."""
    return {
        sample.path[: i + 1]
        for sample in _samples(view, phases, rank)
        for i in range(len(sample.path))
    }


def _functions(path: Path) -> Path:
    lines = [label for label in path if not label.startswith(LOOP)]
    return tuple(f"{label.partition(':')[0]} {label.rpartition(' ')[2]}" for label in lines)


def _samples(view: RunView, phases: Sequence[str], rank: int | None) -> Iterator[_Sample]:
    for event in view.events("stacks", rank=rank):
        for sample in event.get("samples", ()) if event.get("phase") in phases else ():
            site = f"{sample.get('site') or ''} {sample.get('function') or ''}".strip()
            path = tuple(str(label) for label in sample.get("path") or () if label) or (site,)
            if site:
                inside, code = str(sample.get("inside") or ""), str(sample.get("code") or "")
                yield _Sample(path, inside, int(sample.get("count", 1)), code)
