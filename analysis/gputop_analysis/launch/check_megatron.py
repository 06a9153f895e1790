"""Rules of a Megatron-LM command line (`megatron/training/arguments.py`, in our words)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gputop_analysis.launch import flags
from gputop_analysis.launch.problems import Problem, error, warning, whole


@dataclass(frozen=True, slots=True)
class Arguments:
    """The flags of a command and their values."""

    values: dict[str, str]

    def has(self, flag: str) -> bool:
        return flag in self.values

    def number(self, flag: str, default: int = 1) -> int:
        """A count; the default where the flag is missing or is no number."""
        found = whole(self.values.get(flag))
        return default if found is None else found


def read(words: Sequence[str]) -> Arguments:
    """Flags with the word that follows each, empty for a switch."""
    values: dict[str, str] = {}
    for at, word in enumerate(words):
        if word.startswith("--"):
            name, _, inline = word.partition("=")
            following = words[at + 1] if at + 1 < len(words) and not words[at + 1].startswith("--") else ""
            values[name] = inline or following
    return Arguments(values)


def check(words: Sequence[str], world: int | None = None) -> list[Problem]:
    """All broken rules. ``world`` is the number of GPUs; None leaves out what needs it."""
    found = read(words)
    unknown = [error(text.split()[-1].rstrip("?"), text) for text in flags.wrong("megatron", words)]
    return [*unknown, *_shape(found), *_world(found, world), *_pipeline(found), *_experts(found), *_habits(found)]


def _shape(found: Arguments) -> list[Problem]:
    tp, cp = found.number("--tensor-model-parallel-size"), found.number("--context-parallel-size")
    heads, seq = found.number("--num-attention-heads", 0), found.number("--seq-length", 0)
    groups = found.number("--num-query-groups", 0) if found.has("--group-query-attention") else 0
    problems = []
    if heads % tp:
        problems.append(error("--tensor-model-parallel-size", f"{heads} attention heads do not divide by tp {tp}"))
    if groups and groups % tp and tp % groups:
        said = f"{groups} query groups neither divide by tp {tp} nor into it"
        problems.append(error("--num-query-groups", said))
    if (hidden := found.number("--hidden-size", 0)) and heads and not found.has("--kv-channels") and hidden % heads:
        problems.append(error("--hidden-size", f"{hidden} does not divide by {heads} heads: give --kv-channels"))
    if cp > 1 and seq % (2 * cp):
        problems.append(error("--context-parallel-size", f"a sequence of {seq} does not divide by 2 x cp {cp}"))
    if found.has("--sequence-parallel") and tp == 1:
        problems.append(warning("--sequence-parallel", "does nothing without tensor parallelism"))
    if found.has("--sequence-parallel") and seq % tp:
        problems.append(error("--sequence-parallel", f"a sequence of {seq} does not divide by tp {tp}"))
    return problems


def _world(found: Arguments, world: int | None) -> list[Problem]:
    sizes = [found.number(f"--{name}-parallel-size") for name in ("tensor-model", "pipeline-model", "context")]
    model = sizes[0] * sizes[1] * sizes[2]
    if world is None:
        return []
    if world % model:
        return [error("world", f"{world} GPUs do not divide by tp x pp x cp = {model}")]
    dp = world // model
    micro, whole_batch = found.number("--micro-batch-size", 0), found.number("--global-batch-size", 0)
    if micro and whole_batch and whole_batch % (micro * dp):
        said = f"{whole_batch} is no multiple of micro-batch {micro} x dp {dp}"
        return [error("--global-batch-size", said)]
    ep = found.number("--expert-model-parallel-size")
    if (dp * sizes[2]) % ep and (world // sizes[1]) % ep:
        return [error("--expert-model-parallel-size", f"ep {ep} does not divide the {dp * sizes[2]} ranks of dp x cp")]
    return []


def _pipeline(found: Arguments) -> list[Problem]:
    pp, layers = found.number("--pipeline-model-parallel-size"), found.number("--num-layers", 0)
    chunks = found.number("--num-virtual-stages-per-pipeline-rank")
    per = found.number("--num-layers-per-virtual-pipeline-stage", 0)
    problems = []
    if (chunks > 1 or per) and pp == 1:
        problems.append(error("--pipeline-model-parallel-size", "interleaved stages need pp above 1"))
    given = any(
        found.has(flag)
        for flag in (
            "--pipeline-model-parallel-layout",
            "--decoder-first-pipeline-num-layers",
            "--decoder-last-pipeline-num-layers",
        )
    )
    if layers % (pp * chunks) and not given:
        said = f"{layers} layers do not divide by pp {pp}" + (f" x {chunks} virtual stages" if chunks > 1 else "")
        problems.append(error("--num-layers", said + ": give a layout"))
    if per and pp and layers // pp % per:
        problems.append(
            error("--num-layers-per-virtual-pipeline-stage", f"{layers // pp} layers a stage do not divide by {per}")
        )
    return problems


def _experts(found: Arguments) -> list[Problem]:
    ep, experts = found.number("--expert-model-parallel-size"), found.number("--num-experts", 0)
    tp = found.number("--tensor-model-parallel-size")
    if ep > 1 and not experts:
        return [error("--expert-model-parallel-size", "the model has no experts: give --num-experts")]
    if experts % ep:
        return [error("--num-experts", f"{experts} experts do not divide by ep {ep}")]
    if ep > 1 and tp > 1 and not found.has("--sequence-parallel"):
        return [error("--sequence-parallel", "needed by tensor together with expert parallelism")]
    return []


def _habits(found: Arguments) -> list[Problem]:
    problems = []
    if found.values.get("--recompute-granularity") == "selective" and found.has("--recompute-method"):
        problems.append(error("--recompute-method", "selective recomputation takes no method"))
    if found.values.get("--recompute-granularity") == "full" and not found.has("--recompute-method"):
        problems.append(error("--recompute-method", "full recomputation needs one: uniform or block"))
    sharded = found.has("--use-distributed-optimizer") or found.has("--use-megatron-fsdp")
    if found.has("--overlap-param-gather") and not sharded:
        problems.append(error("--overlap-param-gather", "needs --use-distributed-optimizer"))
    if found.has("--overlap-param-gather") and not found.has("--overlap-grad-reduce"):
        problems.append(error("--overlap-param-gather", "needs --overlap-grad-reduce"))
    if found.has("--tp-comm-overlap") and not found.has("--sequence-parallel"):
        problems.append(error("--tp-comm-overlap", "needs --sequence-parallel"))
    if found.has("--bf16") and found.has("--fp16"):
        problems.append(error("--bf16", "with --fp16: choose one"))
    return problems
