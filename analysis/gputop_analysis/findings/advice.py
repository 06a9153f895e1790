"""What may be advised: options with the conditions under which they can win something.

A finding offers options. Each may win so much at most, may pull a lever, and needs something of the
run: what it says itself, and what its words presuppose (``PRESUPPOSED``: who reads of cuDNN has a
GPU). ``offered`` leaves out what cannot help and bounds the promise by what the rest can win.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from gputop_analysis.findings.facts import Facts, facts
from gputop_analysis.findings.option import MovedSetting as MovedSetting
from gputop_analysis.findings.option import Option, RunNeed
from gputop_analysis.model import Finding
from gputop_analysis.view import RunView

WORTH = 0.05
"""Part of what a finding costs that an option must win to be offered, where known."""


def _has_loader(run: Facts) -> bool:
    return bool(run.loader) or bool(run.trainer)


def _map_style(run: Facts) -> bool:
    return not run.loader.get("iterable")


def _fp16(run: Facts) -> bool:
    amp = run.hello.get("amp") or {}
    dtypes = (run.hello.get("model") or {}).get("by_dtype") or {}
    return bool(amp.get("grad_scaler")) or amp.get("dtype") == "float16" or "float16" in dtypes


def _transformers_4(run: Facts) -> bool:
    return run.trainer == "transformers" and (4,) <= run.version("transformers") < (5,)


def at_least(library: str, *version: int) -> RunNeed:
    """A version of a library, or later; one that is not known passes."""
    words = f"{library} {'.'.join(map(str, version))}"
    return RunNeed(words, lambda run: not run.version(library) or run.version(library) >= version)


GPU = RunNeed("a GPU", lambda run: run.on_gpu)
SEVERAL_RANKS = RunNeed("several ranks", lambda run: run.world > 1)
DDP = RunNeed("DistributedDataParallel", lambda run: run.parallel.get("ddp") not in (None, False))
FSDP = RunNeed("FSDP", lambda run: run.parallel.get("fsdp") not in (None, False))
LOADER = RunNeed("a DataLoader", _has_loader)
WORKERS = RunNeed("workers", lambda run: run.loader.get("num_workers") != 0)
MAP_STYLE = RunNeed("a map-style dataset", _map_style)
OWN_LOOP = RunNeed("a training loop of one's own", lambda run: not run.trainer)
HALF = RunNeed("float16", _fp16)
NOT_COMPILED = RunNeed(
    "a model not compiled", lambda run: not (run.hello.get("compile") or {}).get("used")
)
NOT_FUSED = RunNeed(
    "an optimizer not fused", lambda run: not (run.hello.get("optimizer") or {}).get("fused")
)
FREE_CORES = RunNeed("cores that nothing else uses", lambda run: False)
"""Given to an option where the record shows that there are none."""
NOWHERE = RunNeed("an argument that the trainer has", lambda run: False)
"""Given to an option that the run's trainer does not expose."""
BFLOAT16 = RunNeed("hardware with bfloat16", lambda run: not run.on_gpu or run.capability >= 8.0)
CHECKPOINTED = RunNeed("activation checkpointing", lambda run: bool(run.hello.get("checkpointing")))
DISTRIBUTED = RunNeed("a process group", lambda run: bool(run.parallel.get("backend")))
FLOAT_BATCH = RunNeed("batches of floats", lambda run: run.batch_has("float32", "float64"))
ITERABLE = RunNeed("an IterableDataset", lambda run: bool(run.loader.get("iterable")))
LIGHTNING = RunNeed("Lightning's Trainer", lambda run: run.trainer == "lightning")
NOT_CHECKPOINTED = RunNeed("no checkpointing yet", lambda run: not run.hello.get("checkpointing"))
NOT_CLIPPED = RunNeed(
    "no clipping yet", lambda run: not (run.hello.get("clip") or {}).get("max_norm")
)
NOT_EXPANDABLE = RunNeed("segments not expandable yet", lambda run: not run.expandable)
OFFLOADED = RunNeed("offload", lambda run: run.offloads)
ONE_SHAPE = RunNeed("batches padded to one length", lambda run: run.shapes in (None, 1))
SEVERAL_SHAPES = RunNeed("batches of several lengths", lambda run: run.shapes != 1)
SHAPES_COST = RunNeed("a GPU or torch.compile", lambda run: run.on_gpu or run.compiled)
SPLIT_MODEL = RunNeed("a model split over ranks", lambda run: run.splits_model)
TOKENS = RunNeed("batches of tokens", lambda run: run.batch_has("int64", "int32"))
WRITTEN_OUT = RunNeed("attention written out", lambda run: run.attention in (None, "eager"))
TRAINERS_BATCHES = RunNeed(
    "batches by the Trainer's own sampler",
    # sentence-transformers' Trainer makes its own (base/trainer.py, get_batch_sampler)
    lambda run: not str(run.loader.get("collate_fn") or "").startswith("SentenceTransformer"),
)
TRANSFORMERS_5 = RunNeed(
    "transformers 5's Trainer",
    lambda run: run.trainer == "transformers" and run.version("transformers") >= (5,),
)
TRANSFORMERS_4 = RunNeed("transformers 4's Trainer", _transformers_4)

PRESUPPOSED: tuple[tuple[re.Pattern[str], tuple[RunNeed, ...]], ...] = tuple(
    (re.compile(words), needs)
    for words, needs in (
        (r"\bcuda|CUDA|cudnn|nvidia-smi|TF32|\bGPUs?\b|\bNVL|NCCL|\bnccl", (GPU,)),
        (
            r"non_blocking|pin_memory=True|channels_last|set_float32_matmul|expandable_segments|flash",
            (GPU,),
        ),
        (
            r"bucket_cap_mb|comm_hook|no_sync|find_unused_parameters|static_graph|as_bucket_view",
            (DDP,),
        ),
        (r"\bFSDP\b|forward_prefetch|backward_prefetch|HYBRID_SHARD|reduce_dtype", (FSDP,)),
        (
            r"DistributedSampler|on all ranks|balance tokens|all ranks with|each rank\b",
            (SEVERAL_RANKS,),
        ),
        (r"TORCH_DISTRIBUTED|another rank|fewer ranks|off this rank|world_size", (SEVERAL_RANKS,)),
        (r"DataLoader|prefetch_factor|collate_fn|drop_last", (LOADER,)),
        (r"persistent_workers", (LOADER,)),
        (r"in_order=", (WORKERS, at_least("torch", 2, 6))),
        (r"sampler=|batch sampler|\bsampler\.", (MAP_STYLE,)),
        (
            r"model\.no_sync|optimizer\.zero_grad|scheduler\.step\(\)|loss\.backward\(\)",
            (OWN_LOOP,),
        ),
        (r"GradScaler|unscale_", (HALF,)),
        (r"bf16 instead of fp16", (HALF,)),
        (r"torch\.compile\(model\)", (NOT_COMPILED,)),
        (r"fused=True in the optimizer", (NOT_FUSED,)),
        (r"group_by_length=True", (TRANSFORMERS_4,)),
        (
            r"torch\.compile|mode='reduce-overhead'|fused=True|set_to_none",
            (at_least("torch", 2, 0),),
        ),
        (r"mark_dynamic|expandable_segments", (at_least("torch", 2, 1),)),
        (r"sdpa_kernel|async_save", (at_least("torch", 2, 3),)),
        (r"eval_strategy=", (at_least("transformers", 4, 41),)),
        (r"adamw_torch_fused|torch_compile=", (at_least("transformers", 4, 27),)),
        (r"use_distributed_sampler|precision='\w+-mixed'", (at_least("lightning", 2, 0),)),
    )
)
"""Words of an option, and what must be true of a run for them to mean anything in it."""

Fix = str | Option | Sequence[str | Option]


def options_of(fix: Fix) -> tuple[Option, ...]:
    """A fix as options; plain text is one that needs what its words presuppose."""
    parts = [fix] if isinstance(fix, str | Option) else list(fix)
    return tuple(Option(part) if isinstance(part, str) else part for part in parts)


def as_text(options: Sequence[Option]) -> str:
    """Options in one line."""
    return "; ".join(option.text for option in options)


def lacking(option: Option, run: Facts) -> list[RunNeed]:
    """What an option needs and the run has not."""
    words = PRESUPPOSED if option.assumes else ()
    presupposed = [
        need for pattern, needs in words if pattern.search(option.text) for need in needs
    ]
    return [need for need in (*option.needs, *presupposed) if not need.holds(run)]


def offered(view: RunView, finding: Finding) -> Finding:
    """The finding with the options that can win something here, and a promise they keep."""
    run = facts(view, finding.rank)
    if run is None or not finding.options:
        return finding
    able = _able(finding, run)
    if not able:
        return _without_advice(finding, run)
    promises_ms = [option.wins_ms for option in able if option.promises]
    if not promises_ms:
        promised = replace(finding, recoverable_ms_per_step=None, interval_ms_per_step=None)
    elif None in promises_ms:  # one may win all of it
        promised = finding
    else:
        promised = promising(finding, max(ms for ms in promises_ms if ms is not None))
    return replace(promised, options=tuple(able), fix=as_text(able))


def _able(finding: Finding, run: Facts) -> list[Option]:
    """The options that can win something; the last resort only where there is no other."""
    able = []
    for option in finding.options:
        if not lacking(option, run) and _worth(option, finding):
            able.append(option)
    if not able and finding.recoverable_ms_per_step is None:
        # It is wrong, not slow: what to look at stands, whatever else its words mention.
        return [option for option in finding.options if _needs_nothing_more(option, run)]
    return [option for option in able if not option.last] or able


def _without_advice(finding: Finding, run: Facts) -> Finding:
    """The finding where no option can win anything, with what the usual ones lack."""
    words = "no setting is known that would win this back"
    missing = [need.words for option in finding.options for need in lacking(option, run)]
    if missing:
        words += f" (what is usual here needs {', '.join(dict.fromkeys(missing))})"
    is_slow = finding.recoverable_ms_per_step is not None
    severity = "info" if is_slow else finding.severity
    return replace(promising(finding, 0.0), options=(), fix=words, severity=severity)


def _needs_nothing_more(option: Option, run: Facts) -> bool:
    return all(need.holds(run) for need in option.needs)


def promising(finding: Finding, most_ms: float | None) -> Finding:
    """The finding with a promise of at most so many ms a step; None leaves it as it is."""
    promised = finding.recoverable_ms_per_step
    if most_ms is None or promised is None or promised <= most_ms:
        return finding
    low, high = finding.interval_ms_per_step or (promised, promised)
    scale = most_ms / promised if promised > 0 else 0.0
    proof = finding.proof
    if proof is not None:
        bound = f"; at most {most_ms:.3f} ms of it by what the advice can change"
        proof = replace(proof, formula=proof.formula + bound)
    return replace(
        finding,
        recoverable_ms_per_step=most_ms,
        interval_ms_per_step=(scale * low, scale * high) if finding.interval_ms_per_step else None,
        proof=proof,
    )


def _worth(option: Option, finding: Finding) -> bool:
    promised = finding.recoverable_ms_per_step
    return option.wins_ms is None or promised is None or option.wins_ms >= WORTH * promised
