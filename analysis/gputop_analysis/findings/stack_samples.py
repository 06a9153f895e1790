"""Stack samples of the agent's, as places in the user's code, and what each is: tensor work, host
code or a trainer's.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
_CALL_HOOKS = {f"({package.partition('/')[0]})" for package in TRAINERS}
"""How these packages stand in a path."""
LOOP = "loop "
"""Before the first line of a loop, in a path."""
TRAINING = ("data", "h2d", "forward", "backward", "optimizer", "other")
"""Phases of the loop itself."""
COMPUTE = ("forward", "backward", "optimizer")
WORKERS = "workers"
"""In the place of a phase: what the loader's worker processes do while they make batches."""
ASKED = ("eval",)
"""Forwards without a backward: evaluations, and those of rollouts."""

Path = tuple[str, ...]

_READS_OUT = re.compile(r"\.(item|tolist)\(|(?<![\w.])float\(")
_UPDATES = re.compile(
    r"\.(add|addcdiv|addcmul|addmm|clamp|copy|div|fill|lerp|mul|sub|zero)_\(|=.*\.data\b"
)
_NETWORKS = ("torch/nn/", "torch/distributions/")
_MODULES = "torch/nn/modules/"
_FILES = (
    "torch/serialization.py",
    "torch/hub.py",
    "torch/utils/tensorboard/",
    "torch/_tensor_str.py",
    "torch/distributed/optim/",
)
"""Parts of torch that read and write files, what tensors look like, or objects to be sent."""
_WAITS = re.compile(r"(connection|selectors|threading|queue|socket|subprocess)\.py:")
_ABOUT_MODULES = re.compile(
    r"^torch/nn/modules/module\.py:\d+ (_?named_|_?(save|load)|parameters|buffers|children|modules"
    r"|state_dict|apply)"
)
"""What is asked of a module without running it."""
_NO_OPERATORS = (
    "tensor|as_tensor|from_numpy|save|load|no_grad|enable_grad|set_grad_enabled|inference_mode"
    "|autocast"
)
_TENSOR_CALL = re.compile(rf"\b(?:torch|F|functional)\.(?:\w+\.)*(?!(?:{_NO_OPERATORS})\b)\w+\(")
_ON_GRADIENTS = re.compile(r"^(?!.*\.(?:cpu|numpy)\().*\.grad\b(?!\s*(?:is|for)\b)")
_MAKES_TENSOR = re.compile(r"\b(?:as_)?tensor\(")
_LOOP = re.compile(r"\bfor\b")
_MAKES_LOSS = re.compile(r"^\s*\w*loss\w*\s*\+?=[^=]")
_STUDIES = re.compile(
    r"\blinalg\.(?:svd\w*|eig\w*|cond|matrix_rank|pinv|slogdet|det|lstsq|qr)\("
    r"|\b(?:svd|histc|histogram|quantile|unique|corrcoef|cov|median|mode|kthvalue|cdist|pdist)\("
)
"""What says something of weights or data; no update and no batch is made so."""
_OPERATORS = "torch/_C"
"""An operator of torch's that the line itself calls."""
_BY_ROWS = "torch/_tensor.py"
"""Iterating over a tensor in Python ends in its ``__iter__``."""


@dataclass(frozen=True, slots=True)
class PlacedSample:
    """Stack samples of one place, and what they count as."""

    path: Path
    """Lines and loops of the user's from the outermost one: ``train.py:30 main``."""
    inside: str
    """The line of a library that they fell into; empty: the user's own line."""
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
    shared_calls: Path = ()
    """Those of its lines that call a function which other lines call, too."""
    loops: int = 0
    """Loops around it in which no model runs, where they count as host code."""
    after_update: bool = False
    """Between an update and the next forward, so that it belongs to no loss."""

    @property
    def in_torch(self) -> bool:
        """Whether it is tensor work: inside torch, or an update of tensors in place.

        Not where a line takes values out of tensors, whatever part of that the sample fell into,
        unless that is a loss or a draw, which acts: what else is read out is for the eyes.
        """
        if self.reads_out and not self.inside.startswith(_NETWORKS):
            return False
        if self.loops and self.operates:
            return False
        if self.after_update and _STUDIES.search(self.code):
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
        """Whether a line calls torch, as a loss does, or changes gradients, and was seen between
        two such calls.
        """
        calls = _TENSOR_CALL.search(self.code) or _ON_GRADIENTS.search(self.code)
        return bool(calls) and not _LOOP.search(self.code)

    @property
    def in_trainer(self) -> bool:
        """Whether it is a trainer's own work. What a line of a hook of the user's asks a trainer
        for, as ``self.log`` does, is the user's; ``super()`` goes on with the trainer's.
        """
        if self.in_hook and "super(" not in self.code:
            return False
        return self.called or self.inside.startswith(TRAINERS)

    @property
    def in_hook(self) -> bool:
        """Whether a trainer has called a function of the user's above it."""
        return any(label in _CALL_HOOKS for label in self.path[:-1])

    @property
    def line(self) -> str:
        """The innermost line of the user's."""
        return self.path[-1]

    @property
    def reads_out(self) -> bool:
        """Whether its line takes values out of tensors."""
        return bool(_READS_OUT.search(self.code))

    @property
    def makes_tensor(self) -> bool:
        """Whether its line makes a tensor of values."""
        return bool(_MAKES_TENSOR.search(self.code))

    @property
    def in_module(self) -> bool:
        """Whether it lies in a module of torch's."""
        return self.inside.startswith(_MODULES)

    @property
    def waits(self) -> bool:
        """Whether it lies in a library's wait for another process or thread, which no line of this
        one mends.
        """
        return bool(_WAITS.match(self.inside))

    @property
    def runs_module(self) -> bool:
        """Whether it lies in a module of torch's that runs."""
        return self.in_module and not _ABOUT_MODULES.match(self.inside)

    @property
    def package(self) -> str:
        """The package that it lies inside of; empty: the user's own code, or torch."""
        name, _, rest = self.inside.partition("/")
        return name if rest and name != "torch" else ""


# ---- reading them


def samples_of(view: RunView, phases: Sequence[str], rank: int | None) -> Iterator[PlacedSample]:
    """The samples of some phases, on one rank or on all."""
    for event in view.events("stacks", "loader_worker", rank=rank):
        if event.get("phase", WORKERS) not in phases:
            continue
        for fields in event.get("samples", ()):
            line = line_of(fields)
            if line:
                path = tuple(str(label) for label in fields.get("path") or () if label)
                yield PlacedSample(
                    path=path or (line,),
                    inside=str(fields.get("inside") or ""),
                    count=int(fields.get("count", 1)),
                    code=str(fields.get("code") or ""),
                    shared_calls=tuple(map(str, fields.get("shared_calls") or ())),
                    after_update=fields.get("after_update") is True,
                )


def line_of(fields: Event) -> str:
    """``train.py:118 get_batch`` of a sample as the agent sent it."""
    return f"{fields.get('site') or ''} {fields.get('function') or ''}".strip()


def module_samples(view: RunView, phases: Sequence[str], rank: int | None) -> list[PlacedSample]:
    """Samples of lines that run a model."""
    return [sample for sample in samples_of(view, phases, rank) if sample.runs_module]


def total(samples: Iterable[PlacedSample]) -> int:
    """How many samples there are."""
    return sum(sample.count for sample in samples)


def counted_by_line(samples: Iterable[PlacedSample]) -> Counter[str]:
    """Samples by the innermost line of the user's."""
    lines: Counter[str] = Counter()
    for sample in samples:
        lines[sample.line] += sample.count
    return lines


# ---- paths


def prefixes(path: Path) -> list[Path]:
    """The path to each of its lines and loops, outermost first."""
    return [path[: index + 1] for index in range(len(path))]


def ends_at_loop(path: Path) -> bool:
    """Whether a path leads to a loop, not to a line."""
    return path[-1].startswith(LOOP)


def lines_in(path: Path) -> Path:
    """The lines of a path, without its loops."""
    return tuple(label for label in path if not label.startswith(LOOP))


def functions(path: Path) -> Path:
    """The functions of a path, each with its file and without its line."""
    return tuple(
        f"{label.partition(':')[0]} {label.rpartition(' ')[2]}" for label in lines_in(path)
    )


def paths_within(view: RunView, rank: int | None, phases: Sequence[str] = TRAINING) -> set[Path]:
    """Paths of the training's own phases, from their outermost line to each line further in."""
    paths: set[Path] = set()
    for sample in samples_of(view, phases, rank):
        paths.update(prefixes(sample.path))
    return paths


def calls_around_training(view: RunView, rank: int | None) -> set[str]:
    """Lines that call what trains: of the functions that a backward or an update lies in."""
    calls: set[str] = set()
    for sample in samples_of(view, ("backward", "optimizer"), rank):
        calls.update(lines_in(sample.path)[:-1])
    return calls


def lines_by_function(view: RunView, rank: int | None) -> Counter[Path]:
    """By functions from the outermost one: in how many lines each was seen in training."""
    lines: Counter[Path] = Counter()
    for path in paths_within(view, rank):
        if not ends_at_loop(path):
            lines[functions(path)] += 1
    return lines


def working_loops(view: RunView, rank: int | None) -> set[Path] | None:
    """Paths to loops in which models run: the training's own, evaluation's, a rollout's.

    None where no model was seen to run.
    """
    samples = list(samples_of(view, COMPUTE, rank))
    if not samples:
        return None
    samples += module_samples(view, (*TRAINING, *ASKED), rank)
    loops: set[Path] = set()
    for sample in samples:
        loops.update(filter(ends_at_loop, prefixes(sample.path)[:-1]))
    return loops


# ---- what they count as


def marked(view: RunView, phase: str, rank: int | None) -> list[PlacedSample]:
    """A phase's samples, with what the samples of other phases tell of them."""
    packages_that_compute, begins = _networks(view, rank)
    calls_of_trainers = _trainers_calls(view, rank)
    runs_model = {sample.path for sample in module_samples(view, (*TRAINING, *ASKED), rank)}
    samples = []
    for sample in samples_of(view, (phase,), rank):
        of_networks = sample.package in packages_that_compute and (
            sample.path in begins or bool(_MAKES_LOSS.search(sample.code))
        )
        samples.append(
            replace(
                sample,
                runs_model=sample.path in runs_model,
                of_networks=of_networks,
                called=bool(sample.inside) and sample.path in calls_of_trainers,
            )
        )
    return samples


def _networks(view: RunView, rank: int | None) -> tuple[set[str], set[Path]]:
    """Packages that forwards and backwards run through, and the lines that they begin at."""
    computing = list(samples_of(view, COMPUTE, rank))
    packages = {sample.package for sample in computing}
    return packages - {""}, {sample.path for sample in computing}


def _trainers_calls(view: RunView, rank: int | None) -> set[Path]:
    """Paths to the lines that call a trainer, or a package whose own code calls the backward
    (fastai, Pyro, skorch): what the user's line calls there is a whole step.
    """
    packages = set()
    for sample in samples_of(view, ("backward",), rank):
        if sample.package and "backward(" not in sample.code:
            packages.add(f"{sample.package}/")
    owners = (*TRAINERS, *sorted(packages))
    samples = samples_of(view, TRAINING, rank)
    return {sample.path for sample in samples if sample.inside.startswith(owners)}


def with_loops(
    samples: list[PlacedSample], working: set[Path] | None, nested: int
) -> list[PlacedSample]:
    """The samples, with those counted that lie in loops of which none runs a model."""
    if working is None:
        return samples
    counted = []
    for sample in samples:
        idle = [
            path for path in prefixes(sample.path) if ends_at_loop(path) and path not in working
        ]
        counted.append(replace(sample, loops=len(idle) if len(idle) >= nested else 0))
    return counted
