"""Whether a training fits on given GPUs: yes, tight or no, for what, and what it would take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gputop_analysis.catalog import GpuSpec
from gputop_analysis.catalog.params import params
from gputop_analysis.vram.adapters import adapters
from gputop_analysis.vram.estimate import Estimate
from gputop_analysis.vram.fits import usable
from gputop_analysis.vram.options import changed
from gputop_analysis.vram.question import estimate
from gputop_analysis.vram.rules import check
from gputop_analysis.vram.setup import Lora, Setup

YES, TIGHT, NO = "yes", "tight", "no"
PURPOSES = ("full fine-tuning", "LoRA", "QLoRA")
COUNTS = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""GPUs that are tried where those at hand are too few."""
HOPELESS = 1.6
"""Times the GPU's memory, above which the formula alone says no: nine in ten published runs lie
within 15 % of it, and a replay takes a hundred times as long.
"""
STATE_BYTES, WEIGHT_BYTES = 16, 2
"""Host bytes a trained parameter (fp32 weight, gradient, two moments), and a parameter."""
_SHARDED = ("fsdp1", "fsdp2", "hsdp", "zero1", "zero2", "zero3")


@dataclass(frozen=True, slots=True)
class Way:
    """A way to train, on so many GPUs of one kind; bytes of one of them."""

    purpose: str
    """One of ``PURPOSES``."""
    changes: tuple[str, ...]
    """What is done to need less, in words; empty: nothing beyond what was asked."""
    gpu: str
    gpus: int
    estimate: Estimate
    verdict: str
    """``yes``: the safe end has room; ``tight``: the estimate has, or the host helps; ``no``."""

    @property
    def host_bytes(self) -> int:
        """Memory that all ranks together need on the host for what is offloaded; 0: nothing is."""
        setup = self.estimate.setup
        offload = setup.parallel.offload
        if offload == "none":
            return 0
        counts = params(setup.model)
        total = sum(counts.values())
        trained = adapters(setup.model, setup.lora) if setup.lora else total
        return STATE_BYTES * trained + WEIGHT_BYTES * total * (offload == "all")

    @property
    def at_most(self) -> int:
        """The safe end: 19 of 20 runs of this kind took less."""
        return self.estimate.at_most

    @property
    def words(self) -> list[str]:
        """Options of ``gputop estimate`` that ask for this way again."""
        return options_of(self.estimate.setup)


@dataclass(frozen=True, slots=True)
class FittingWays:
    """Ways by purpose, the first of ``PURPOSES`` first: the mildest that fits, else the leanest."""

    ways: tuple[Way, ...]
    more: tuple[Way, ...]
    """With more of these GPUs, of the purposes that do not fit."""

    @property
    def verdict(self) -> str:
        """Of what was asked: the first way."""
        return self.ways[0].verdict


def fit(setup: Setup, gpu: GpuSpec, gpus: int) -> FittingWays:
    """What fits on ``gpus`` of that GPU.

    Args:
        setup: what is asked about: its purpose comes first, leaner ones after it.
        gpu: the kind of GPU.
        gpus: how many, all data-parallel unless the setup splits the model.

    Raises:
        ValueError: an impossible combination, with the rule.
    """
    asked_purpose = _purpose(setup)
    ways = []
    for purpose in PURPOSES[PURPOSES.index(asked_purpose) :]:
        wanted = _for(setup, purpose)
        way = _mildest(wanted, purpose, gpu, gpus) or _leanest(wanted, purpose, gpu, gpus)
        if way is not None:
            ways.append(way)
    if not ways:
        check(setup)
        raise ValueError(f"{setup.model.name} cannot be trained so on {gpus} x {gpu.name}")
    more = [_more(setup, way, gpu, gpus) for way in ways if way.verdict == NO or way.host_bytes]
    return FittingWays(tuple(ways), tuple(way for way in more if way is not None))


def options_of(setup: Setup) -> list[str]:
    """A setup as options of ``gputop estimate``; what is as by default is left out."""
    values = changed(setup)
    words: list[str] = []
    if setup.lora == Lora(targets=("all-linear",)) and setup.quantized == "nf4":
        words.append("--qlora")
        for name in ("lora_rank", "lora_targets", "quant"):
            values.pop(name, None)
    elif setup.lora == Lora():
        words.append("--lora")
        values.pop("lora_rank", None)
    for name, value in values.items():
        flag = "--" + name.replace("_", "-")
        if isinstance(value, bool):
            words.append(flag if value else "--no-" + flag[2:])
        else:
            if isinstance(value, tuple):
                written = ",".join(value)
            else:
                written = str(value)
            words += [flag, written]
    return words


def _purpose(setup: Setup) -> str:
    if setup.lora is None:
        return PURPOSES[0]
    return PURPOSES[2] if setup.quantized else PURPOSES[1]


def _for(setup: Setup, purpose: str) -> Setup:
    """The setup, made for a purpose."""
    if purpose == _purpose(setup):
        return setup
    if purpose == "LoRA":
        return setup.with_adapters(Lora())
    return setup.with_adapters(Lora(targets=("all-linear",)), "nf4")


def _mildest(setup: Setup, purpose: str, gpu: GpuSpec, gpus: int) -> Way | None:
    """The first way that surely fits, else the first that fits; None where none does."""
    tight = None
    for changes, changed_setup in _ladder(setup, gpus):
        if _by_formula(changed_setup) > HOPELESS * usable(gpu, changed_setup):
            continue
        way = _way(changed_setup, purpose, changes, gpu, gpus)
        if way is not None and way.verdict == YES:
            return way
        if way is not None and way.verdict == TIGHT and tight is None:
            tight = way
    return tight


def _leanest(setup: Setup, purpose: str, gpu: GpuSpec, gpus: int) -> Way | None:
    """The way that needs least by the formula, however much that is."""
    needs = {_by_formula(rung[1]): rung for rung in _ladder(setup, gpus)}
    for need in sorted(needs):
        changes, changed_setup = needs[need]
        way = _way(changed_setup, purpose, changes, gpu, gpus)
        if way is not None:
            return way
    return None


def _by_formula(setup: Setup) -> float:
    """Bytes on the device, at once; 0 where the formula does not cover the setup."""
    try:
        return estimate(setup, "formula", advice=False).device_total
    except (ValueError, LookupError):
        return 0.0


def _ladder(setup: Setup, gpus: int) -> Iterator[tuple[tuple[str, ...], Setup]]:
    """Ways that need less and less, each with what it does."""
    yield (), _spread(setup, gpus, "")
    sharded = _spread(setup, gpus, "fsdp2")
    done: list[str] = []
    if gpus > 1 and setup.parallel.sharding not in _SHARDED:
        done.append("FSDP")
        yield tuple(done), sharded
    if sharded.checkpointing != "full":
        sharded = sharded.but(checkpointing="full")
        done.append("checkpointing")
        yield tuple(done), sharded
    if sharded.micro_batch > 1:
        steps = sharded.micro_batch * sharded.accumulation
        sharded = sharded.but(micro_batch=1, accumulation=steps)
        done.append("micro-batch 1")
        yield tuple(done), sharded
    if sharded.loss == "plain":
        sharded = sharded.but(loss="fused")
        done.append("fused loss")
        yield tuple(done), sharded
    if sharded.optimizer in ("adamw", "adamw-fused") and sharded.lora is None:
        eight = sharded.but(optimizer="adamw-8bit")
        yield (*done, "8-bit AdamW"), eight
    if sharded.quantized:
        return
    if gpus > 1 and sharded.parallel.stage == 3:
        yield (*done, "optimizer on the host"), sharded.but(offload="optimizer")
        yield (*done, "parameters on the host"), sharded.but(offload="all")
    elif sharded.parallel.world == 1 and sharded.recipe == "transformers":
        alone = sharded.but(recipe="deepspeed")
        done.append("DeepSpeed")
        yield (*done, "optimizer on the host"), alone.but(sharding="zero2", offload="optimizer")
        yield (*done, "parameters on the host"), alone.but(sharding="zero3", offload="all")


def _spread(setup: Setup, gpus: int, sharding: str) -> Setup:
    """The setup over all GPUs; with ``sharding`` where it names none itself."""
    split = setup.parallel
    dp = max(gpus // (split.tp * split.pp * split.cp), 1)
    is_sharded = split.sharding in _SHARDED
    if is_sharded:
        sharding_kind = split.sharding
    elif dp > 1:
        sharding_kind = sharding or "ddp"
    else:
        sharding_kind = "none"
    alone_by_engine = setup.by_deepspeed and sharding_kind.startswith("zero")
    if dp == 1 and not alone_by_engine:
        sharding_kind = "none"
    return setup.but(dp=dp, sharding=sharding_kind)


def _way(
    setup: Setup, purpose: str, changes: tuple[str, ...], gpu: GpuSpec, gpus: int
) -> Way | None:
    try:
        check(setup)
        capacity = usable(gpu, setup)
        estimated = estimate(setup, None, capacity, gpu=gpu.name, advice=False)
    except (ValueError, LookupError):
        return None
    way_verdict = verdict(estimated, capacity)
    if way_verdict == YES and setup.parallel.offload != "none":
        way_verdict = TIGHT
    return Way(purpose, changes, gpu.name, gpus, estimated, way_verdict)


def verdict(estimate: Estimate, capacity: int) -> str:
    """``yes``, ``tight`` or ``no`` on a GPU of so many bytes."""
    if not estimate.runs_in_capacity:
        return NO
    return YES if estimate.at_most <= capacity else TIGHT


def _more(setup: Setup, way: Way, gpu: GpuSpec, gpus: int) -> Way | None:
    """The fewest of these GPUs with which a purpose fits."""
    wanted = _for(setup, way.purpose)
    for count in COUNTS:
        if count <= gpus:
            continue
        mildest = _mildest(wanted, way.purpose, gpu, count)
        if mildest is not None and not mildest.host_bytes:
            return mildest
    return None
