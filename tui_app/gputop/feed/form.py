"""The estimator's form as plain data: lines, what an arrow key does, what goes with what."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gputop_analysis.catalog.gpus import COMMON
from gputop_analysis.vram.idle import applies
from gputop_analysis.vram.options import OPTION, OPTIONS, setup_of, values_of

if TYPE_CHECKING:
    from gputop_analysis.vram.setup import ModelShape, Setup

MODEL, GPU = "model", "gpu"
GPUS = ("", *COMMON)
_LADDERS: dict[str, tuple[Any, ...]] = {
    "seq": (128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072),
    "micro_batch": (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128),
    "accumulation": (1, 2, 4, 8, 16, 32, 64, 128),
    "images": (0, 1, 2, 4, 8, 16),
    "image_size": (224, 336, 384, 448, 672, 896, 1344),
    "lora_rank": (0, 4, 8, 16, 32, 64, 128, 256),
    "lora_targets": (
        ("q_proj", "v_proj"),
        ("q_proj", "k_proj", "v_proj", "o_proj"),
        ("all-linear",),
    ),
    "lora_dropout": (0.0, 0.05, 0.1),
    "galore_rank": (32, 64, 128, 256, 512, 1024),
    "server_share": (0.0, 0.2, 0.3, 0.5, 0.7),
    "dropout": (0.0, 0.1, 0.2),
    "freeze": ((), ("vision",), ("vision", "projector"), ("language",), ("embeddings",)),
    "roles": ((), ("reference",), ("critic", "reference", "reward")),
    "allocator": ("", "expandable_segments:True", "max_split_size_mb:128"),
    **dict.fromkeys(("dp", "replicas"), (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)),
    **dict.fromkeys(("tp", "pp", "vpp", "cp", "ep", "etp"), (1, 2, 4, 8, 16, 32, 64)),
}
"""What the arrow keys step through; any other value can be typed."""
_SHARDS = ("zero1", "zero2", "zero3", "fsdp1", "fsdp2", "hsdp")
NODE = 8


class FormLine(NamedTuple):
    """One line of the form."""

    name: str
    group: str
    label: str
    value: Any
    help: str


@dataclass(frozen=True, slots=True)
class Form:
    """A setup that is being changed, and the one that it is compared with."""

    setup: Setup
    gpu: str = ""
    base: Setup | None = None
    """Side by side with this one; None: with none."""
    past: tuple[Setup, ...] = field(default=())
    """Setups before each change, for undoing."""

    def lines(self) -> list[FormLine]:
        """The lines that mean something for this setup, in the order of the table."""
        setup = self.setup
        lines_ = [
            FormLine(MODEL, "Model", "model", setup.model.name, "enter or / searches the models"),
            FormLine(
                GPU,
                "Model",
                "GPU",
                self.gpu,
                "for the largest micro-batch; any: the smallest that fits",
            ),
        ]
        values = values_of(setup)
        lines_ += [
            FormLine(option.name, option.group, option.label, values[option.name], option.help)
            for option in OPTIONS
            if applies(option.name, setup)
        ]
        return lines_

    def stepped(self, name: str, direction: int) -> Form:
        """With a line's next trainable value, or the one before; the same where there is none."""
        if name == MODEL:
            return self
        if name == GPU:
            return replace(
                self,
                gpu=GPUS[(GPUS.index(self.gpu) + direction) % len(GPUS) if self.gpu in GPUS else 0],
            )
        forms = [
            self.given(name, value)
            for value in _beyond(name, values_of(self.setup)[name], direction)
        ]
        return next((form for form in forms if _possible(form.setup)), self)

    def given(self, name: str, value: Any) -> Form:
        """With one option set, and with it what cannot stay as it was.

        Raises:
            ValueError: the option takes no such value.
        """
        return self.changed(
            setup_of(self.setup.model, {name: value, **_with(name, value, self.setup)}, self.setup)
        )

    def changed(self, setup: Setup) -> Form:
        """With another setup; the present one can be gone back to."""
        if setup == self.setup:
            return self
        return replace(self, setup=setup, past=(*self.past[-99:], self.setup))

    def of_model(self, model: ModelShape) -> Form:
        """With another model; what it cannot have is taken away."""
        longest = model.max_position or self.setup.seq
        setup = replace(self.setup, model=model, seq=min(self.setup.seq, longest))
        if not model.vision_layers:
            setup = replace(
                setup,
                images=0,
                freeze=tuple(part for part in setup.freeze if part not in ("vision", "projector")),
            )
        if not model.experts and setup.parallel.ep > 1:
            setup = setup.but(ep=1)
        return self.changed(setup)

    def undone(self) -> Form:
        """As it was before the last change."""
        if self.past:
            return replace(self, setup=self.past[-1], past=self.past[:-1])
        return self

    def marked(self) -> Form:
        """With the present setup to compare with; without one where it is compared with that."""
        return replace(self, base=None if self.base == self.setup else self.setup)


def _with(name: str, value: Any, setup: Setup) -> dict[str, Any]:
    """What has to change together with an option, so that an arrow key does not end at a rule."""
    parallel = setup.parallel
    if name == "sharding" and value in _SHARDS:
        more: dict[str, Any] = {"dp": NODE} if parallel.dp == 1 else {}
        return more | {"replicas": 2 if value == "hsdp" else 1}
    if name == "sharding":
        return {"replicas": 1, "offload": "none", **({"dp": 1} if value == "none" else {})}
    if name == "dp" and int(value) == 1:
        return {"sharding": "none", "replicas": 1, "offload": "none"}
    if name == "lora_rank":
        return {"quant": ""} if int(value) == 0 else {"adapter": ""}
    if name == "adapter" and value:
        return {"lora_rank": 0, "quant": ""}
    if name == "tp" and int(value) == 1:
        return {"sequence_parallel": False}
    if name == "pp":
        return {"pipeline_stage": 0, **({"vpp": 1} if int(value) == 1 else {})}
    return {}


def _beyond(name: str, value: Any, direction: int) -> list[Any]:
    """The values that lie ahead of one, the nearest first; kinds come round again, amounts end."""
    option = OPTION[name]
    ladder: tuple[Any, ...] = _LADDERS.get(name, ())
    if option.kind in ("flag", "choice"):
        ladder = (False, True) if option.kind == "flag" else option.choices
    if isinstance(value, (int, float)) and option.kind != "flag":
        if direction > 0:
            return [step for step in ladder if step > value]
        return [step for step in reversed(ladder) if step < value]
    index = ladder.index(value) if value in ladder else 0
    if ladder:
        return [ladder[(index + direction * step) % len(ladder)] for step in range(1, len(ladder))]
    return []


def _possible(setup: Setup) -> bool:
    from gputop_analysis.vram.rules import check

    try:
        check(setup)
    except ValueError:
        return False
    return True


def shown(line: FormLine) -> str:
    """A value as people read it."""
    value = line.value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(value) or "none"
    empty = {
        "weights": "as computed",
        "grad_dtype": "as weights",
        "quant": "none",
        "lengths": "not said",
        "allocator": "default",
        GPU: "any",
    }
    empty["transformers"] = "as installed"
    return str(value) if value != "" else empty.get(line.name, "none")


def differences(setup: Setup, other: Setup) -> Iterator[tuple[str, str, str]]:
    """(label, value, other's value) of every option in which two setups differ, the model first."""
    if setup.model != other.model:
        yield "model", setup.model.name, other.model.name
    values_, other_values = values_of(setup), values_of(other)
    for option in OPTIONS:
        if values_[option.name] != other_values[option.name]:
            lines = (
                FormLine(option.name, "", option.label, values[option.name], "")
                for values in (values_, other_values)
            )
            first, second = (shown(line) for line in lines)
            yield option.label, first, second


def command(form: Form, run: str = "", trained: Setup | None = None) -> str:
    """The command line that asks the same; of a run's model the run, and what differs."""
    import shlex

    start = ["--model", form.setup.model.name]
    defaults = {option.name: option.default for option in OPTIONS}
    if trained is not None and form.setup.model == trained.model:
        start, defaults = ["--run", run], values_of(trained)
    words = ["gputop", "estimate", *start]
    for name, value in values_of(form.setup).items():
        option = OPTION[name]
        if value == defaults[name]:
            continue
        flag = "--" + name.replace("_", "-")
        if option.kind == "flag":
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, ",".join(value) if isinstance(value, tuple) else str(value or "none")]
    return shlex.join([*words, *(["--gpu", form.gpu] if form.gpu else [])])
