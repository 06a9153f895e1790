"""Rules of a Megatron-LM command line (`megatron/training/arguments.py`, in our words)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputop_analysis.launch import flags
from gputop_analysis.launch.problems import Problem, error, warning, whole
from gputop_analysis.parallelism.rules import SPLIT_RULES, STEP_RULES, StepOfSplit, Training, broken
from gputop_analysis.parallelism.split import Split


@dataclass(frozen=True, slots=True)
class Arguments:
    """The flags of a command and their values."""

    values: dict[str, str]

    def has(self, flag: str) -> bool:
        return flag in self.values

    def number(self, flag: str, default: int = 1) -> int:
        """A count; the default where the flag is missing or is no number."""
        written = whole(self.values.get(flag))
        return default if written is None else written


def read(words: Sequence[str]) -> Arguments:
    """Flags with the word that follows each, empty for a switch."""
    values: dict[str, str] = {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            name, _, inline = word.partition("=")
            if at + 1 < len(words) and not words[at + 1].startswith("--"):
                following = words[at + 1]
            else:
                following = ""
            values[name] = inline or following
    return Arguments(values)


def check(words: Sequence[str], world: int | None = None) -> list[Problem]:
    """All broken rules. ``world`` is the number of GPUs; None leaves out what needs it."""
    megatron = read(words)
    unknown = [error(text.split()[-1].rstrip("?"), text) for text in flags.wrong("megatron", words)]
    return [*unknown, *_split(megatron, world), *_habits_of_split(megatron), *_habits(megatron)]


FLAGS = {
    "heads": "--tensor-model-parallel-size",
    "kv_heads": "--num-query-groups",
    "chunks": "--num-layers",
    "layers": "--num-layers",
    "interleaving": "--pipeline-model-parallel-size",
    "context": "--context-parallel-size",
    "sequence length": "--sequence-parallel",
    "no experts": "--expert-model-parallel-size",
    "experts": "--num-experts",
    "expert ranks": "--expert-model-parallel-size",
    "experts with tensor parallelism": "--sequence-parallel",
    "batch": "--global-batch-size",
    "interleaved batches": "--global-batch-size",
}
"""The flag that a rule is told beside."""
_NEEDS_WORLD = ("expert ranks", "batch", "interleaved batches")
_LAYOUTS = (
    "--pipeline-model-parallel-layout",
    "--decoder-first-pipeline-num-layers",
    "--decoder-last-pipeline-num-layers",
    "--account-for-embedding-in-pipeline-split",
)
"""Flags that make stages of different lengths."""


def _split(arguments: Arguments, world: int | None) -> list[Problem]:
    tp, pp, cp = (
        arguments.number(f"--{name}-parallel-size")
        for name in ("tensor-model", "pipeline-model", "context")
    )
    problems = []
    if world is not None and world % (tp * pp * cp):
        problems.append(
            error("world", f"{world} GPUs do not divide by tp x pp x cp = {tp * pp * cp}")
        )
        world = None
    split = Split(
        dp=(world or tp * pp * cp) // (tp * pp * cp),
        tp=tp,
        pp=pp,
        vpp=arguments.number("--num-virtual-stages-per-pipeline-rank"),
        cp=cp,
        ep=arguments.number("--expert-model-parallel-size"),
        etp=arguments.number("--expert-tensor-parallel-size", 0),
        sequence_parallel=arguments.has("--sequence-parallel"),
    )
    heads = arguments.number("--num-attention-heads", 0)
    if arguments.has("--group-query-attention"):
        kv_heads = arguments.number("--num-query-groups", 0)
    else:
        kv_heads = 0
    training = Training(
        heads=heads,
        kv_heads=kv_heads,
        layers=arguments.number("--num-layers", 0),
        experts=arguments.number("--num-experts", 0),
        seq=arguments.number("--seq-length", 0),
        uneven_stages=any(map(arguments.has, _LAYOUTS)),
        global_batch=arguments.number("--global-batch-size", 0),
    )
    step = StepOfSplit(split, arguments.number("--micro-batch-size"))
    wrong = broken(training, step, (*SPLIT_RULES, *STEP_RULES))
    relevant = [
        (rule, why) for rule, why in wrong if world is not None or rule.name not in _NEEDS_WORLD
    ]
    return [
        *problems,
        *(error(FLAGS[rule.name], why) for rule, why in relevant if rule.name in FLAGS),
    ]


def _habits_of_split(arguments: Arguments) -> list[Problem]:
    """What goes beyond the rules: sizes that Megatron-LM wants given, and flags that do nothing."""
    problems = []
    heads, hidden = (
        arguments.number("--num-attention-heads", 0),
        arguments.number("--hidden-size", 0),
    )
    if hidden and heads and not arguments.has("--kv-channels") and hidden % heads:
        problems.append(
            error("--hidden-size", f"{hidden} does not divide by {heads} heads: give --kv-channels")
        )
    if (
        arguments.has("--sequence-parallel")
        and arguments.number("--tensor-model-parallel-size") == 1
    ):
        problems.append(warning("--sequence-parallel", "does nothing without tensor parallelism"))
    pp, layers = (
        arguments.number("--pipeline-model-parallel-size"),
        arguments.number("--num-layers", 0),
    )
    per = arguments.number("--num-layers-per-virtual-pipeline-stage", 0)
    if per and pp == 1:
        problems.append(
            error("--pipeline-model-parallel-size", "interleaved stages need pp above 1")
        )
    if per and pp and layers // pp % per:
        problem = f"{layers // pp} layers a stage do not divide by {per}"
        problems.append(error("--num-layers-per-virtual-pipeline-stage", problem))
    return problems


def _habits(arguments: Arguments) -> list[Problem]:
    problems = []
    if arguments.values.get("--recompute-granularity") == "selective" and arguments.has(
        "--recompute-method"
    ):
        problems.append(error("--recompute-method", "selective recomputation takes no method"))
    if arguments.values.get("--recompute-granularity") == "full" and not arguments.has(
        "--recompute-method"
    ):
        problems.append(
            error("--recompute-method", "full recomputation needs one: uniform or block")
        )
    sharded = arguments.has("--use-distributed-optimizer") or arguments.has("--use-megatron-fsdp")
    if arguments.has("--overlap-param-gather") and not sharded:
        problems.append(error("--overlap-param-gather", "needs --use-distributed-optimizer"))
    if arguments.has("--overlap-param-gather") and not arguments.has("--overlap-grad-reduce"):
        problems.append(error("--overlap-param-gather", "needs --overlap-grad-reduce"))
    if arguments.has("--tp-comm-overlap") and not arguments.has("--sequence-parallel"):
        problems.append(error("--tp-comm-overlap", "needs --sequence-parallel"))
    if arguments.has("--bf16") and arguments.has("--fp16"):
        problems.append(error("--bf16", "with --fp16: choose one"))
    return problems
