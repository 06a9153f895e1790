"""What the strategy screen asks and is answered: a job on GPUs as plain data, and its plan, made in a worker thread."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gputop.feed.plots import Trouble
from gputop.feed.snapshot import Snapshot

if TYPE_CHECKING:
    from gputop_analysis.planner.calibrate import Calibration
    from gputop_analysis.planner.choices import Choice
    from gputop_analysis.planner.job import Job
    from gputop_analysis.planner.measured import MeasuredRun
    from gputop_analysis.planner.search import Plan
    from gputop_analysis.vram.setup import ModelShape, Setup
    from gputop_probes.record.reader import RunRecord

AUTO = "auto"
MODEL = "model"
SHOWN = 400
"""Rows of the table at most."""
GPUS = ("T4", "L4", "A10G", "L40S", "RTX 4090", "A100-40GB", "A100-80GB", "H100", "H200", "B200", "GB200", "MI300X")
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
    Entry("seq", "sequence", "Job", (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072), "tokens of a sample"),
    Entry("global_batch", "global batch", "Job", _POWERS, "samples that an optimizer step sees"),
    Entry("dtype", "precision", "Job", ("bf16", "fp16", "fp8", "fp32"), "of the matrix products"),
    Entry("optimizer", "optimizer", "Job", _OPTIMIZERS, "its states take memory, its update time"),
    Entry("gpu", "GPU", "GPUs", GPUS, "which chip; rents are the catalog's, or yours"),
    Entry("gpus", "GPUs", "GPUs", _POWERS, "how many in all"),
    Entry("objective", "rank by", "GPUs", ("throughput", "memory"), "the order of the table"),
    Entry("tp", "tensor", "Split", (AUTO, 1, 2, 4, 8, 16), "TP: each layer over so many GPUs"),
    Entry("pp", "pipeline", "Split", (AUTO, 1, 2, 4, 8, 16, 32), "PP: stages of layers"),
    Entry("vpp", "interleave", "Split", (AUTO, 1, 2, 4, 8), "VPP: chunks of each stage, which shrink the bubble"),
    Entry("cp", "context", "Split", (AUTO, 1, 2, 4, 8, 16), "CP: each sequence over so many GPUs"),
    Entry("ep", "expert", "Split", (AUTO, 1, 2, 4, 8, 16, 32), "EP: experts over so many data-parallel ranks"),
    Entry("micro_batch", "micro-batch", "Split", (AUTO, 1, 2, 4, 8, 16, 32), "samples at a time on a replica"),
    Entry("zero", "sharding", "Split", (AUTO, 0, 1, 2, 3), "DDP, ZeRO-1, ZeRO-2 or FSDP (ZeRO-3)"),
    Entry("replicas", "copies", "Split", (AUTO, 1, 2, 4, 8, 16, 32, 64), "HSDP: each is sharded over dp / copies"),
    Entry("recompute", "recompute", "Split", (AUTO, 0, 1, 2), "activations computed again in the backward pass"),
)
"""The form. What is ``auto`` is searched."""
ENTRY = {entry.name: entry for entry in ENTRIES}
PINS = tuple(entry.name for entry in ENTRIES if entry.group == "Split")
_WORDS = {"zero": {0: "DDP", 1: "ZeRO-1", 2: "ZeRO-2", 3: "FSDP"}, "recompute": {0: "none", 1: "selective", 2: "full"}}


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
        return Job(self.model, self.seq, self.global_batch, self.dtype, self.optimizer, trainable_share=share)

    def value(self, name: str) -> Any:
        """Of a line of the form."""
        if name == MODEL:
            return self.model.name
        return dict(self.pins).get(name, AUTO) if name in PINS else getattr(self, name)

    def shown(self, name: str) -> str:
        """The same in words."""
        value = self.value(name)
        return str(_WORDS.get(name, {}).get(value, value))

    def given(self, name: str, value: Any) -> Ask:
        """With one line changed."""
        if name not in PINS:
            return replace(self, **{name: value})
        pins = dict(self.pins) | {name: value}
        return replace(self, pins=tuple(sorted((key, one) for key, one in pins.items() if one != AUTO)))

    def stepped(self, name: str, direction: int) -> Ask:
        """The value before or after; from one between two of the ladder, the next one that way."""
        values, now = ENTRY[name].values, self.value(name)
        if not values:
            return self
        if now in values:
            return self.given(name, values[min(max(values.index(now) + direction, 0), len(values) - 1)])
        numbers = [value for value in values if value != AUTO]
        further = [value for value in numbers if (value > now) == (direction > 0)] if isinstance(now, int) else numbers
        return self.given(name, (further[0] if direction > 0 else further[-1]) if further else now)

    def pinned_to(self, layout: dict[str, int | bool]) -> Ask:
        """With the whole split of a configuration fixed."""
        pins = tuple(sorted((name, int(layout[name])) for name in PINS if name in layout))
        return replace(self, pins=pins)


@dataclass(frozen=True, slots=True)
class RunBase:
    """A live run as the base line: what it trains, and how long its step takes."""

    ask: Ask
    step_s: float
    setup: Setup
    name: str
    calibration: Calibration | None = None
    peak_gib: float = 0.0
    """Measured, with the context; 0 where it was not."""

    @property
    def source(self) -> str:
        """Where the planner's figures start from."""
        if not self.step_s:
            return f"run {self.name}, not measured on a GPU"
        return f"run {self.name}, {1e3 * self.step_s:,.0f} ms a step"


@dataclass(frozen=True, slots=True)
class Unknown:
    """A live run that does not tell its model's architecture: what else is known of it, with another model."""

    ask: Ask
    text: str
    """What is shown instead."""
    told: str = ""
    """What the run tells of its model."""


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
    """The one to run: as fast as the first within what predictions err, with the model split least."""


def solve(ask: Ask, calibration: Calibration | None = None) -> Planned:
    """Plan a question. Never raises."""
    try:
        return _solved(ask, calibration)
    except (ValueError, LookupError) as error:
        return Planned(ask, problem=str(error))
    except Exception as error:  # a fault of ours: the screen says so and goes on
        return Planned(ask, problem=f"this could not be planned: {error!r}")


def _solved(ask: Ask, calibration: Calibration | None) -> Planned:
    from gputop.own_prices import rent_of
    from gputop_analysis.catalog import gpu
    from gputop_analysis.planner.choices import choice, choices, ranked
    from gputop_analysis.planner.questions import Wanted, best
    from gputop_analysis.planner.space import Limits

    name = gpu(ask.gpu).name
    rent = rent_of(name)
    pinned: dict[str, Any] = {key: (value,) for key, value in ask.pins}
    limits = Limits(**pinned)
    found: Plan = best(ask.job, Wanted(name, usd_per_gpu_hour=rent), ask.gpus, limits, ask.objective, calibration)
    return Planned(
        ask,
        tuple(ranked(found, SHOWN, rent)),
        len(found.order),
        len(found.layouts),
        rent,
        pareto=tuple(choices(found, found.pareto, rent)),
        pick=choice(found, found.pick, rent),
    )


@dataclass(frozen=True)
class RunBaseLoader:
    """Reads the base line out of the live run's record; ``example`` is what is asked where its model is not known."""

    example: Ask | None = None

    def __call__(self, record: RunRecord, snapshot: Snapshot) -> RunBase | Unknown | Trouble:
        from gputop.feed.unknown_run import unknown
        from gputop_analysis.planner.measured import measured_run
        from gputop_analysis.view import RunView
        from gputop_analysis.vram.from_run import setup_of

        view = RunView(record, window_steps=200)
        setup = setup_of(view)
        if setup is None:
            told = Trouble("The run does not tell its model's architecture.")
            return unknown(view, self.example) if self.example else told
        return base_of(setup, measured_run(view), snapshot.name)


def base_of(setup: Setup, run: MeasuredRun | None, name: str) -> RunBase:
    """The question that a run answers itself; what it measured corrects the plan where it runs on a GPU of the catalog,
    and is None where there is none."""
    import numpy as np

    from gputop_analysis.planner import memory
    from gputop_analysis.planner.measured import from_run, job_of_setup

    job = job_of_setup(setup)
    chip = run.gpu if run else "H100"
    ask = Ask(job.model, job.seq, job.global_batch, job.dtype, job.optimizer, chip, setup.parallel.world)
    ask = replace(ask, lora=setup.lora is not None)
    try:
        calibration = from_run(run) if run else None
    except (ValueError, LookupError):
        calibration = None
    held = run.allocated_bytes if run else 0.0
    peak = float(memory.reserved_bytes(np.array(held))) / 2**30 if held else 0.0
    return RunBase(ask, run.step_s if run else 0.0, setup, name, calibration, peak)
