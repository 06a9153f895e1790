"""What `plan`, `scan`, `pareto` and `launch` share: job, GPUs, what is pinned, rents."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.named import gpu_named, gpus_named, model_of
from gputop.cli.parsing import Parser
from gputop.cli.plan_run import gpus_of
from gputop_analysis.parallelism.split import RECOMPUTES
from gputop_analysis.vram.options import OPTION

if TYPE_CHECKING:
    from gputop.fleet import Fleet
    from gputop_analysis.planner.frameworks import Framework
    from gputop_analysis.planner.job import Job
    from gputop_analysis.planner.questions import Wanted
    from gputop_analysis.planner.space import Limits
    from gputop_analysis.vram.setup import Lora

PINNED = ("tp", "pp", "vpp", "cp", "ep", "replicas", "micro_batch")
SCHEDULES = {"1f1b": (False,), "zero-bubble": (True,), "any": (False, True)}
TOKENS_A_STEP = 2**20
"""Default batch: a million tokens a step; published runs of 1B to 70B use 0.5 to 4 M."""
TOKENS_OF_ADAPTERS = 2**15
"""The same of adapters: PEFT and torchtune take 16 to 128 samples of 100 to 2,048 tokens."""
DEFAULT_SEQ = OPTION["seq"].default
"""As ``gputop estimate`` has it."""
DTYPES = ("bf16", "fp16", "fp8", "fp4", "fp32")
_NETWORKS = r"infiniband|\bib\b|omni|efa|roce|ethernet|gbe|tcp"


def add_job(parser: Parser) -> None:
    """The options that say what is trained."""
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
    parser.add_argument("--dtype", choices=DTYPES, help="of the products (default bf16)")
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
        if name == "replicas":
            meaning = "only so many copies of FSDP (HSDP)"
        else:
            meaning = "only this value"
        parser.add_argument("--" + name.replace("_", "-"), type=int, metavar="N", help=meaning)
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


def job_of(options: argparse.Namespace, gpus: int) -> Job:
    """What is trained.

    Raises:
        CliError: no model, or a size that is none.
    """
    from gputop.cli.estimate import setup_of_run
    from gputop_analysis.planner.job import Job, trainable_share

    if not options.model and not options.run:
        raise CliError("what is trained? give --model NAME (gputop models lists them) or --run RUN")
    named = model_of(options.model) if options.model else None
    base = setup_of_run(options.run, named) if options.run else None
    model = named or (base.model if base else None)
    assert model is not None
    for name in ("seq", "global_batch"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise CliError(f"--{name.replace('_', '-')} must be at least 1")
    longest = model.max_position or DEFAULT_SEQ
    seq = options.seq or (base.seq if base else min(DEFAULT_SEQ, longest))
    batch = options.global_batch or (_batch_of(base) if base else 0)
    if not batch:
        if adapters_of(options):
            tokens = TOKENS_OF_ADAPTERS
        else:
            tokens = TOKENS_A_STEP
        batch = max(1, tokens // seq // gpus) * gpus
        print(
            f"gputop: no --global-batch: planning for {batch:,} sequences of {seq:,} tokens a step",
            file=sys.stderr,
        )
    adapters = adapters_of(options) or (base.lora if base else None)
    if options.qlora:
        quantized = "nf4"
    elif base:
        quantized = base.quantized
    else:
        quantized = ""
    _check_optimizer(options.optimizer)
    dtype = options.dtype or (base.dtype if base and base.dtype in DTYPES else "bf16")
    share = trainable_share(adapters is not None)
    optimizer = options.optimizer or (base.optimizer if base else "adamw")
    job = Job(
        model,
        seq,
        batch,
        dtype,
        optimizer,
        trainable_share=share,
        lora=adapters,
        quantized=quantized,
    )
    framework = framework_of(options)
    if framework:
        return job.of_framework(framework.name, framework.recipe, framework.habits)
    return job


def framework_of(options: argparse.Namespace) -> Framework | None:
    """The framework that is named.

    Raises:
        CliError: there is none of that name.
    """
    from gputop_analysis.planner.frameworks import named

    if not getattr(options, "framework", None):
        return None
    with cli_errors(LookupError):
        return named(options.framework)


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
    if options.lora_rank is not None and options.lora_rank < 1:
        raise CliError("--lora-rank must be at least 1")
    by_default = ("all-linear",) if options.qlora else Lora().targets
    targets = tuple(
        word.strip() for word in (options.lora_targets or "").split(",") if word.strip()
    )
    return Lora(rank=options.lora_rank or Lora().rank, targets=targets or by_default)


def _check_optimizer(name: str | None) -> None:
    from gputop_analysis.vram.setup import OPTIMIZERS

    if name is not None and name not in OPTIMIZERS:
        near = difflib.get_close_matches(name, OPTIMIZERS, 3, 0.4) or sorted(OPTIMIZERS)
        raise CliError(f"no optimizer {name!r}; there is {', '.join(near)}")


def _batch_of(base: Any) -> int:
    return base.micro_batch * base.accumulation * base.parallel.dp


def limits_of(options: argparse.Namespace) -> Limits:
    """What the search may try.

    Raises:
        CliError: a degree below 1.
    """
    from gputop_analysis.planner.space import Limits

    pinned: dict[str, Any] = _of_framework(options)
    for name in PINNED:
        value = getattr(options, name)
        if value is not None:
            if value < 1:
                raise CliError(f"--{name.replace('_', '-')} must be at least 1")
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
    from gputop_analysis.vram.rules import MOST

    _split_gpus(options)
    named = gpus_named(options.gpu) if options.gpu else None
    have = next((g for g in fleet.have if named is None or named.spec.name == g.gpu), None)
    ran = gpus_of(options.run) if options.run and not options.gpu else None
    if named:
        name = named.spec.name
    elif ran:
        name = ran[0]
    elif have:
        name = have.gpu
    else:
        name = None
    if name is None:
        raise CliError(
            "on which GPU? give --gpu NAME --gpus N, or write .gputop.toml once with gputop init"
        )
    gpus = _count_of(options, named.count if named else 1) or (
        ran[1] if ran else have.count if have else 8
    )
    nodes = options.nodes
    if gpus < 1 or (nodes is not None and nodes < 1):
        raise CliError("--gpus and --nodes must be at least 1")
    if gpus > MOST:
        raise CliError(f"--gpus must be at most {MOST}, not {gpus}")
    if nodes is not None and gpus % nodes:
        raise CliError(
            f"{gpus} GPUs do not divide over {nodes} nodes: give --gpus as a multiple of --nodes"
        )
    if options.price is not None and not options.price >= 0:
        raise CliError("--price is dollars an hour of one GPU")
    check_network(options.network)
    if nodes:
        per_node = gpus // nodes
    elif have and not options.gpus and not ran:
        per_node = have.told_per_node
    else:
        per_node = 0
    wanted = _wanted(name, per_node, options.network, options.price)
    return replace(wanted, watts=_watts_of(options.gpu or "", name)), gpus


def _watts_of(written: str, name: str) -> float:
    """The power limit to plan with: what ``--gpu "H100 500W"`` says, else that in force on the GPUs
    of this machine where they are the same; 0: the catalog's.
    """
    from gputop.this_machine import lowered_limit_w
    from gputop_analysis.planner.hardware import watts_of

    if said := watts_of(written):
        return said
    limit = lowered_limit_w(name)
    if limit:
        print(
            f"gputop: the {name} here are limited to {limit:.0f} W: planned with that",
            file=sys.stderr,
        )
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
        raise CliError(
            f"--gpu {options.gpu!r} and --gpus {options.gpus!r} both name a GPU: leave one out"
        )
    options.gpu, options.gpus = options.gpus, None


def _count_of(options: argparse.Namespace, named: int) -> int | None:
    """How many GPUs the options say: ``--gpus 8``, or ``--gpu 8xA100``; None where they do not."""
    if options.gpus is None:
        return named if named > 1 else None
    if options.gpus < 1:
        raise CliError("--gpus and --nodes must be at least 1")
    if named not in (1, options.gpus):
        raise CliError(
            f"--gpu {options.gpu!r} says {named} GPUs, --gpus {options.gpus}: leave one out"
        )
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
    wider = next(
        (precision for precision in ("bf16", "fp16", "fp32") if chip.dense_flops.get(precision)),
        "fp32",
    )
    if dtype != "fp32" and not chip.dense_flops.get(dtype):
        if dtype == "fp4" and chip.dense_flops.get("fp8"):
            wider = "fp8"
        else:
            wider = wider
        print(
            f"gputop: {chip.name} has no {dtype} products: the rate of {wider} is taken",
            file=sys.stderr,
        )


def _wanted(name: str, per_node: int, network: str, price: float | None) -> Wanted:
    from gputop.own_prices import usd_per_gpu_hour
    from gputop_analysis.planner.questions import Wanted

    return Wanted(name, per_node, network, usd_per_gpu_hour(name) if price is None else price)
