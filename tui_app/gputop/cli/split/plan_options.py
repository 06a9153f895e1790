"""What `plan`, `scan`, `pareto` and `launch` share: job, GPUs, what is pinned, rents."""

from __future__ import annotations

import argparse
import difflib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.named import (
    gpu_named,
    gpus_named,
    model_of,
    refuse_two_counts,
    refuse_two_names,
    refuse_uneven,
)
from gputop.cli.notices import notice
from gputop.cli.parsing import Parser, refuse_below_one
from gputop.cli.split.plan_run import gpus_of
from gputop_analysis.catalog.positions import default_seq
from gputop_analysis.parallelism.split import RECOMPUTES
from gputop_analysis.vram.options import OPTION

if TYPE_CHECKING:
    from gputop.fleet import Fleet
    from gputop_analysis.planner.frameworks import Framework
    from gputop_analysis.planner.job import Job
    from gputop_analysis.planner.questions import Wanted
    from gputop_analysis.planner.space import Limits
    from gputop_analysis.vram.setup import Lora, ModelShape, Setup

WHAT_IS_TRAINED = "what is trained? give --model NAME (gputop models lists them) or --run RUN"
PINNED = ("tp", "pp", "vpp", "cp", "ep", "replicas", "micro_batch")
SCHEDULES = {"1f1b": (False,), "zero-bubble": (True,), "any": (False, True)}
TOKENS_A_STEP = 2**20
"""Default batch: a million tokens a step; published runs of 1B to 70B use 0.5 to 4 M."""
TOKENS_OF_ADAPTERS = 2**15
"""The same of adapters: PEFT and torchtune take 16 to 128 samples of 100 to 2,048 tokens."""
DEFAULT_SEQ = OPTION["seq"].default
"""As ``gputop estimate`` has it."""
DTYPES = ("bf16", "fp16", "fp8", "fp4", "fp32")
_GRADIENT_BYTES = {"fp32": 4, "bf16": 2}
_NETWORKS = r"infiniband|\bib\b|omni|efa|roce|ethernet|gbe|tcp"


def add_job(parser: Parser) -> None:
    """The options that say what is trained."""
    parser.elsewhere = "a model is named with --model"
    parser.add_argument(
        "--model", metavar="NAME|PATH", help="a name of the catalog, a Hugging Face name or a path"
    )
    parser.add_argument(
        "--run",
        metavar="RUN",
        help="the model, batch and precision of a recorded run, and its speed",
    )
    parser.add_argument(
        "--seq", type=int, metavar="TOKENS", help=f"sequence length (default {DEFAULT_SEQ})"
    )
    parser.add_argument(
        "--global-batch", type=int, metavar="N", help="sequences of an optimizer step"
    )
    parser.add_argument(
        "--dtype", type=_dtype, choices=DTYPES, help="of the products (default bf16)"
    )
    parser.add_argument(
        "--weights",
        choices=("fp32", "bf16"),
        help="of the weights that are updated: bf16 has no fp32 copy, and gradients and moments in "
        "bf16 too (default as the framework has them, mostly fp32)",
    )
    parser.add_argument(
        "--grad-dtype",
        choices=tuple(_GRADIENT_BYTES),
        help="of the gradients that are kept and reduced (default as the framework has them)",
    )
    parser.add_argument(
        "--compile",
        action="store_true",
        help="torch.compile, which fuses what is elementwise (Megatron does so anyway)",
    )
    parser.add_argument(
        "--framework",
        metavar="NAME[==RELEASE]",
        help="what trains: megatron, megatron-core, nemo, torchtitan, fsdp, deepspeed, jax, ...",
    )
    parser.add_argument(
        "--optimizer", metavar="NAME", help="as gputop estimate has them (default adamw)"
    )
    parser.add_argument("--lora", action="store_true", help="train adapters of rank 16 only")
    parser.add_argument(
        "--qlora", action="store_true", help="the same on all linear layers, over weights in nf4"
    )
    parser.add_argument("--lora-rank", type=int, metavar="N", help="train adapters of this rank")
    parser.add_argument(
        "--lora-targets", metavar="A,B", help="adapted layers as in peft, or all-linear"
    )


def add_split(parser: Parser) -> None:
    """The options that pin a part of the split."""
    for name in PINNED:
        meaning = "only this value"
        if name == "replicas":
            meaning = "only so many copies of FSDP (HSDP)"
        parser.add_argument(f"--{_dashed(name)}", type=int, metavar="N", help=meaning)
    parser.add_argument(
        "--zero", type=int, choices=(0, 1, 2, 3), help="only this ZeRO stage; 3 is FSDP"
    )
    parser.add_argument(
        "--schedule",
        choices=tuple(SCHEDULES),
        help="pipeline schedules that are tried (default 1f1b)",
    )
    parser.add_argument(
        "--recompute",
        "--checkpointing",
        choices=RECOMPUTES,
        help="only this activation checkpointing",
    )


def add_nodes(parser: Parser) -> None:
    """The options that say how the GPUs are joined."""
    parser.add_argument(
        "--nodes",
        type=int,
        metavar="N",
        help="on so many nodes (default: as the vendor builds them)",
    )
    parser.add_argument(
        "--network",
        default="",
        metavar="TEXT",
        help='between nodes, as "8x NDR IB" or "EFA 3200 Gbps"',
    )


def add_gpus(parser: Parser) -> None:
    """The options that say on what."""
    parser.add_argument("--gpu", metavar="NAME", help="as H100; default: the first of .gputop.toml")
    parser.add_argument(
        "--gpus", type=gpus_word, metavar="N|NxNAME", help="how many in all, or as 64xH100"
    )
    add_nodes(parser)
    parser.add_argument(
        "--price",
        type=float,
        metavar="USD",
        help="an hour of one GPU; default: the catalog's median",
    )


def _dtype(text: str) -> str:
    """The type that a word of a framework or a chip means; others as they are."""
    from gputop_analysis.vram.spellings import PRODUCTS, plain

    return PRODUCTS.get(plain(text), text)


def job_of(options: argparse.Namespace, gpus: int) -> Job:
    """What is trained: what the options say, else as in the run, else the usual.

    Raises:
        CliError: no model, or a size that is none.
    """
    from gputop.cli.fit.estimate import setup_of_run
    from gputop_analysis.planner.job import Job, trainable_share

    if not options.model and not options.run:
        raise CliError(WHAT_IS_TRAINED)
    for name in ("seq", "global_batch"):
        refuse_below_one(f"--{_dashed(name)}", getattr(options, name))
    _check_optimizer(options.optimizer)
    named = model_of(options.model) if options.model else None
    in_run = setup_of_run(options.run, named) if options.run else None
    model = named or (in_run and in_run.model)
    assert model is not None
    seq = options.seq or _usual_seq(in_run, model)
    adapters = adapters_of(options) or (in_run and in_run.lora)
    job = Job(
        model=model,
        seq=seq,
        global_batch=options.global_batch or _usual_batch(options, in_run, seq, gpus),
        dtype=options.dtype or _usual_dtype(in_run),
        optimizer=options.optimizer or (in_run.optimizer if in_run else "adamw"),
        trainable_share=trainable_share(adapters is not None),
        lora=adapters,
        quantized=_quantized(options, in_run),
    )
    return _as_trained(job, options)


def _as_trained(job: Job, options: argparse.Namespace) -> Job:
    """The same by the framework that is named, and in the ways that the options say."""
    framework = framework_of(options)
    if framework:
        job = job.of_framework(framework.name, framework.recipe, framework.habits)
    if options.compile:
        job = job.but(compiled=True, fused_elementwise=True)
    if options.weights == "fp32":
        job = job.but(master_weights=True)
    elif options.weights:
        job = _with_16_bits(job)
    if options.grad_dtype:
        job = job.but(gradient_bytes=_GRADIENT_BYTES[options.grad_dtype])
    return job


def _with_16_bits(job: Job) -> Job:
    from gputop_analysis.planner.frameworks import in_16_bits

    try:
        return in_16_bits(job)
    except ValueError as error:
        raise CliError(f"--weights bf16: {error}") from None


def _usual_seq(in_run: Setup | None, model: ModelShape) -> int:
    if in_run:
        return in_run.seq
    return default_seq(model, DEFAULT_SEQ)


def _usual_batch(options: argparse.Namespace, in_run: Setup | None, seq: int, gpus: int) -> int:
    """The run's batch; without one a usual number of tokens, as stderr is told."""
    batch = 0
    if in_run:
        batch = in_run.micro_batch * in_run.accumulation * in_run.parallel.dp
    if batch:
        return batch
    tokens = TOKENS_OF_ADAPTERS if adapters_of(options) else TOKENS_A_STEP
    batch = max(1, tokens // seq // gpus) * gpus
    notice(f"no --global-batch: planning for {batch:,} sequences of {seq:,} tokens a step")
    return batch


def _usual_dtype(in_run: Setup | None) -> str:
    return in_run.dtype if in_run and in_run.dtype in DTYPES else "bf16"


def _quantized(options: argparse.Namespace, in_run: Setup | None) -> str:
    if options.qlora:
        return "nf4"
    return in_run.quantized if in_run else ""


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def framework_of(options: argparse.Namespace) -> Framework | None:
    """The framework that is named.

    Raises:
        CliError: there is none of that name.
    """
    from gputop_analysis.planner.frameworks import IN_16_BITS, named

    name = getattr(options, "framework", None)
    if not name and getattr(options, "weights", None) == "bf16":
        name = IN_16_BITS
    if not name:
        return None
    with cli_errors(LookupError):
        return named(name)


def adapters_of(options: argparse.Namespace) -> Lora | None:
    """The adapters that the options ask for, as ``gputop estimate`` reads them.

    Raises:
        CliError: a rank below 1, or targets without adapters.
    """
    from gputop_analysis.vram.setup import Lora

    wants_adapters = options.lora or options.qlora or options.lora_rank is not None
    if not wants_adapters:
        if options.lora_targets:
            raise CliError("--lora-targets changes nothing here: it needs --lora, or --lora-rank")
        return None
    refuse_below_one("--lora-rank", options.lora_rank)
    by_default = ("all-linear",) if options.qlora else Lora().targets
    targets = tuple(
        word.strip() for word in (options.lora_targets or "").split(",") if word.strip()
    )
    return Lora(rank=options.lora_rank or Lora().rank, targets=targets or by_default)


def _check_optimizer(name: str | None) -> None:
    from gputop_analysis.vram.setup import GALORE, OPTIMIZERS

    if name in GALORE:
        raise CliError(
            f"--optimizer {name} needs whole matrices on each GPU, so there is no split to "
            "compare: `gputop fit` says whether it fits"
        )
    if name is not None and name not in OPTIMIZERS:
        near = difflib.get_close_matches(name, OPTIMIZERS, 3, 0.4) or sorted(OPTIMIZERS)
        raise CliError(f"no optimizer {name!r}; there is {', '.join(near)}")


def limits_of(options: argparse.Namespace) -> Limits:
    """What the search may try.

    Raises:
        CliError: a degree below 1.
    """
    from gputop_analysis.planner.space import Limits

    pinned: dict[str, Any] = _of_framework(options)
    for name in PINNED:
        value = getattr(options, name)
        refuse_below_one(f"--{_dashed(name)}", value)
        if value is not None:
            pinned[name] = (value,)
    if options.zero is not None:
        pinned["zero"] = (options.zero,)
    if options.recompute is not None:
        pinned["recompute"] = (RECOMPUTES.index(options.recompute),)
    if options.schedule is not None:
        pinned["zero_bubble"] = SCHEDULES[options.schedule]
    return Limits(**pinned)


def _of_framework(options: argparse.Namespace) -> dict[str, Any]:
    """What the framework cannot be given is not tried."""
    from gputop_analysis.planner.frameworks import stages_of

    framework = framework_of(options)
    if framework is None:
        return {}
    alone = {name: (1,) for name in ("tp", "pp", "cp", "ep") if name not in framework.splits}
    return {**alone, "zero": stages_of(framework)}


def fleet_of() -> Fleet:
    """`.gputop.toml`.

    Raises:
        CliError: it cannot be used.
    """
    from gputop.fleet import FleetError, load

    with cli_errors(FleetError):
        return load()


def wanted_of(options: argparse.Namespace, fleet: Fleet) -> tuple[Wanted, int]:
    """The GPU and how many.

    Raises:
        CliError: neither the options nor the file say, or a number is none.
    """
    _split_gpus(options)
    chosen = _chosen_gpus(options, fleet)
    _check_nodes(options, chosen.gpus)
    if options.price is not None and not options.price >= 0:
        raise CliError("--price is dollars an hour of one GPU")
    check_network(options.network)
    per_node = chosen.gpus // options.nodes if options.nodes else chosen.per_node
    wanted = _wanted(chosen.name, per_node, options.network, options.price)
    return replace(wanted, watts=_watts_of(options.gpu or "", chosen.name)), chosen.gpus


class _Chosen(NamedTuple):
    name: str
    gpus: int
    per_node: int
    """0: as the vendor builds the nodes."""


def _chosen_gpus(options: argparse.Namespace, fleet: Fleet) -> _Chosen:
    """The GPUs of the options, else of the run, else of the fleet.

    Raises:
        CliError: none of them names any.
    """
    named = gpus_named(options.gpu) if options.gpu else None
    count = _count_of(options, named.count if named else 1)
    owned = next((g for g in fleet.have if named is None or named.spec.name == g.gpu), None)
    if options.run and not named:
        ran = gpus_of(options.run)
        if ran:
            name, gpus = ran
            return _Chosen(name, count or gpus, per_node=0)
    if owned:
        # so many GPUs that are asked for need not lie in nodes as the owned ones do
        per_node = 0 if options.gpus else owned.told_per_node
        return _Chosen(owned.gpu, count or owned.count, per_node)
    if named:
        return _Chosen(named.spec.name, count or 8, per_node=0)
    raise CliError(
        "on which GPU? give --gpu NAME --gpus N, or write .gputop.toml once with gputop init"
    )


def _check_nodes(options: argparse.Namespace, gpus: int) -> None:
    from gputop_analysis.vram.rules import MOST

    nodes = options.nodes
    if gpus < 1 or (nodes is not None and nodes < 1):
        raise CliError("--gpus and --nodes must be at least 1")
    if gpus > MOST:
        raise CliError(f"--gpus must be at most {MOST}, not {gpus}")
    refuse_uneven(gpus, nodes)


def _watts_of(written: str, name: str) -> float:
    """The power limit to plan with: what ``--gpu "H100 500W"`` says, else that in force on the GPUs
    of this machine where they are the same; 0: the catalog's.
    """
    from gputop.this_machine import lowered_limit_w
    from gputop_analysis.planner.hardware import watts_of

    if watts := watts_of(written):
        return watts
    limit = lowered_limit_w(name)
    if limit:
        notice(f"the {name} here are limited to {limit:.0f} W: planned with that")
    return limit


def gpus_word(text: str) -> int | str:
    """A number of GPUs, or a number and their name; an argparse type."""
    if re.fullmatch(r"\s*-?\d+\s*", text):
        return int(text)
    if re.match(r"\s*[a-z0-9]", text, re.IGNORECASE) and re.search(r"[a-z]", text, re.IGNORECASE):
        return text
    raise argparse.ArgumentTypeError(f"{text!r} says no GPUs: write it as 64, or as 64xH100")


def _split_gpus(options: argparse.Namespace) -> None:
    """``--gpus 64xH100`` as ``--gpu 64xH100``.

    Raises:
        CliError: both name a GPU.
    """
    if not isinstance(options.gpus, str):
        return
    if options.gpu:
        refuse_two_names(options.gpu, options.gpus)
    options.gpu, options.gpus = options.gpus, None


def _count_of(options: argparse.Namespace, named: int) -> int | None:
    """How many GPUs the options say: ``--gpus 8``, or ``--gpu 8xA100``; None where they do not."""
    if options.gpus is None:
        return named if named > 1 else None
    if options.gpus < 1:
        raise CliError("--gpus and --nodes must be at least 1")
    refuse_two_counts(options.gpu, named, options.gpus)
    return int(options.gpus)


def check_network(text: str) -> None:
    """Raises CliError for a description that says neither a kind of network nor a rate."""
    from gputop_analysis.planner.hardware import network_gbps

    if text and not network_gbps(text) and not re.search(_NETWORKS, text.lower()):
        raise CliError(
            f'--network {text!r} says no network: as "8x NDR IB", "EFA 3200 Gbps" or "4x 100G RoCE"'
        )


def tell_precision(name: str, dtype: str) -> None:
    """Says on stderr what products run in where the chip does not have the type."""
    chip = gpu_named(name)
    if dtype == "fp32" or chip.dense_flops.get(dtype):
        return
    wider = ("bf16", "fp16", "fp32")
    if dtype == "fp4":
        wider = ("fp8", *wider)
    taken = next((precision for precision in wider if chip.dense_flops.get(precision)), "fp32")
    notice(f"{chip.name} has no {dtype} products: the rate of {taken} is taken")


def _wanted(name: str, per_node: int, network: str, price: float | None) -> Wanted:
    from gputop.own_prices import usd_per_gpu_hour
    from gputop_analysis.planner.questions import Wanted

    return Wanted(name, per_node, network, usd_per_gpu_hour(name) if price is None else price)
