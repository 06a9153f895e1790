"""The strategy screen's question and answer: a job as plain data, its plan by a worker."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gputop_analysis.catalog.gpus import COMMON
from gputop_analysis.parallelism.split import RECOMPUTES

if TYPE_CHECKING:
    from gputop_analysis.planner.calibrate import Calibration
    from gputop_analysis.planner.choices import Choice
    from gputop_analysis.planner.job import Job
    from gputop_analysis.planner.search import Plan
    from gputop_analysis.vram.setup import ModelShape

AUTO = "auto"
FIRST_MODEL = "llama-3-8b"
MODEL = "model"
SHOWN = 400
"""Rows of the table at most."""
_POWERS = tuple(2**n for n in range(13))
_OPTIMIZERS = ("adamw", "adamw-8bit", "adafactor", "lion", "sgd", "muon")


class Entry(NamedTuple):
    """One line of the form."""

    name: str
    label: str
    group: str
    values: tuple[Any, ...]
    """What the arrow keys step through."""
    meaning: str


ENTRIES = (
    Entry(MODEL, "model", "Job", (), "what is trained; / searches one by name"),
    Entry(
        "seq",
        "sequence",
        "Job",
        (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072),
        "tokens of a sample",
    ),
    Entry("global_batch", "global batch", "Job", _POWERS, "samples that an optimizer step sees"),
    Entry("dtype", "precision", "Job", ("bf16", "fp16", "fp8", "fp32"), "of the matrix products"),
    Entry("optimizer", "optimizer", "Job", _OPTIMIZERS, "its states take memory, its update time"),
    Entry("gpu", "GPU", "GPUs", COMMON, "which chip; rents are the catalog's, or yours"),
    Entry("gpus", "GPUs", "GPUs", _POWERS, "how many in all"),
    Entry("objective", "rank by", "GPUs", ("throughput", "memory"), "the order of the table"),
    Entry("tp", "tensor", "Split", (AUTO, 1, 2, 4, 8, 16), "TP: each layer over so many GPUs"),
    Entry("pp", "pipeline", "Split", (AUTO, 1, 2, 4, 8, 16, 32), "PP: stages of layers"),
    Entry(
        "vpp",
        "interleave",
        "Split",
        (AUTO, 1, 2, 4, 8),
        "VPP: chunks of each stage, which shrink the bubble",
    ),
    Entry("cp", "context", "Split", (AUTO, 1, 2, 4, 8, 16), "CP: each sequence over so many GPUs"),
    Entry(
        "ep",
        "expert",
        "Split",
        (AUTO, 1, 2, 4, 8, 16, 32),
        "EP: experts over so many data-parallel ranks",
    ),
    Entry(
        "micro_batch",
        "micro-batch",
        "Split",
        (AUTO, 1, 2, 4, 8, 16, 32),
        "samples at a time on a replica",
    ),
    Entry("zero", "sharding", "Split", (AUTO, 0, 1, 2, 3), "DDP, ZeRO-1, ZeRO-2 or FSDP (ZeRO-3)"),
    Entry(
        "replicas",
        "copies",
        "Split",
        (AUTO, 1, 2, 4, 8, 16, 32, 64),
        "HSDP: each is sharded over dp / copies",
    ),
    Entry(
        "recompute",
        "recompute",
        "Split",
        (AUTO, 0, 1, 2),
        "activations computed again in the backward pass",
    ),
)
"""The form. What is ``auto`` is searched."""
ENTRY = {entry.name: entry for entry in ENTRIES}
PINS = tuple(entry.name for entry in ENTRIES if entry.group == "Split")
_WORDS = {
    "zero": {0: "DDP", 1: "ZeRO-1", 2: "ZeRO-2", 3: "FSDP"},
    "recompute": dict(enumerate(RECOMPUTES)),
}


@dataclass(frozen=True, slots=True)
class Ask:
    """One question: what is trained, on what, and what of the split is fixed."""

    model: ModelShape
    seq: int = 4096
    global_batch: int = 256
    dtype: str = "bf16"
    optimizer: str = "adamw"
    gpu: str = "H100"
    gpus: int = 16
    objective: str = "throughput"
    pins: tuple[tuple[str, int], ...] = ()
    lora: bool = False

    @property
    def job(self) -> Job:
        """As the planner has it."""
        from gputop_analysis.planner.job import Job, trainable_share

        share = trainable_share(self.lora)
        return Job(
            self.model,
            self.seq,
            self.global_batch,
            self.dtype,
            self.optimizer,
            trainable_share=share,
        )

    def value(self, name: str) -> Any:
        """Of a line of the form."""
        if name == MODEL:
            return self.model.name
        if name in PINS:
            return dict(self.pins).get(name, AUTO)
        return getattr(self, name)

    def shown(self, name: str) -> str:
        """The same in words."""
        value = self.value(name)
        return str(_WORDS.get(name, {}).get(value, value))

    def given(self, name: str, value: Any) -> Ask:
        """With one line changed."""
        if name not in PINS:
            return replace(self, **{name: value})
        pins = dict(self.pins) | {name: value}
        return replace(
            self, pins=tuple(sorted((key, pin) for key, pin in pins.items() if pin != AUTO))
        )

    def stepped(self, name: str, direction: int) -> Ask:
        """The value before or after; from one between two of the ladder, the next one that way."""
        ladder, current = ENTRY[name].values, self.value(name)
        if not ladder:
            return self
        if current in ladder:
            rung = ladder.index(current) + direction
            return self.given(name, ladder[min(max(rung, 0), len(ladder) - 1)])
        further = [value for value in ladder if value != AUTO]
        if isinstance(current, int):
            further = [value for value in further if (value > current) == (direction > 0)]
        if not further:
            return self.given(name, current)
        return self.given(name, further[0] if direction > 0 else further[-1])

    def pinned_to(self, layout: dict[str, int | bool]) -> Ask:
        """With the whole split of a configuration fixed."""
        pins = tuple(sorted((name, int(layout[name])) for name in PINS if name in layout))
        return replace(self, pins=pins)


@dataclass(frozen=True, slots=True)
class Planned:
    """The answer to one question."""

    ask: Ask
    choices: tuple[Choice, ...] = ()
    fitting: int = 0
    searched: int = 0
    usd_per_gpu_hour: float | None = None
    problem: str = ""
    pareto: tuple[Choice, ...] = field(default=(), repr=False)
    pick: Choice | None = field(default=None, repr=False)
    """The one to run: as fast as the first within the error, with the model split least."""


def first_ask() -> Ask:
    """What is shown before anything is chosen: `.gputop.toml`'s GPUs, else 16 of a common kind."""
    from gputop.fleet import FleetError, load
    from gputop_analysis.catalog import model

    try:
        have = load().have[:1]
    except FleetError:
        have = ()
    ask = Ask(model(FIRST_MODEL))
    if have:
        return ask.given("gpu", have[0].gpu).given("gpus", have[0].count)
    return ask


def solve(ask: Ask, calibration: Calibration | None = None) -> Planned:
    """Plan a question. Never raises."""
    try:
        return _solved(ask, calibration)
    except (ValueError, LookupError) as error:
        return Planned(ask, problem=str(error))
    except Exception as error:  # a fault of ours: the screen says so and goes on
        return Planned(ask, problem=f"this could not be planned: {error!r}")


def _solved(ask: Ask, calibration: Calibration | None) -> Planned:
    from gputop.own_prices import usd_per_gpu_hour
    from gputop_analysis.catalog import gpu
    from gputop_analysis.planner.choices import choice, choices, ranked
    from gputop_analysis.planner.questions import Wanted, best
    from gputop_analysis.planner.space import Limits

    name = gpu(ask.gpu).name
    rent = usd_per_gpu_hour(name)
    pinned: dict[str, Any] = {key: (value,) for key, value in ask.pins}
    limits = Limits(**pinned)
    solved: Plan = best(
        ask.job,
        Wanted(name, usd_per_gpu_hour=rent),
        ask.gpus,
        limits=limits,
        objective=ask.objective,
        calibration=calibration,
        unsure=True,
    )
    return Planned(
        ask,
        tuple(ranked(solved, SHOWN, rent)),
        solved.fitting,
        len(solved.layouts),
        rent,
        pareto=tuple(choices(solved, solved.pareto, rent)),
        pick=choice(solved, solved.pick, rent),
    )
