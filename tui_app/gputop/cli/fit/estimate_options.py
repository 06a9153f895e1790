"""Flags of ``gputop estimate`` and ``gputop probe``: the options, and aliases of several."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.notices import notice
from gputop.cli.parsing import Parser
from gputop_analysis.vram.methods import METHODS, SERVER_SHARE, spelled_out
from gputop_analysis.vram.options import OPTIONS, SetupOption, parse

if TYPE_CHECKING:
    from gputop_analysis.vram.setup import Setup

_TITLES = {"Training": "training", "Memory": "memory", "Parallel": "parallelism"}
_ALIASES = {"checkpointing": ("--recompute",), "micro_batch": ("--batch", "--batch-size")}
"""Further names of an option, as other commands call it."""
_OF_TRAINERS = {
    "seq": ("--seq-len", "--seq-length", "--sequence-len", "--max-length", "--max-seq-length"),
    "micro_batch": ("--micro-batch-size", "--mbs", "--per-device-train-batch-size"),
    "accumulation": ("--gradient-accumulation-steps", "--grad-accum"),
    "optimizer": ("--optim",),
    "attention": ("--attn", "--attn-implementation"),
    "lora_rank": ("--lora-r",),
    "lora_targets": ("--lora-target-modules", "--target-modules"),
}
"""What transformers, peft and Axolotl call it; not listed by ``--help``."""
_FSDP = {"full_shard": "1", "fully_shard": "2"}
"""Words of transformers' Trainer and of PyTorch for ``--fsdp``."""
_SWITCHES_OF_TRAINERS = {
    "--gradient-checkpointing": ("checkpointing", "full"),
    "--load-in-4bit": ("quant", "nf4"),
    "--load-in-8bit": ("quant", "int8"),
    "--torch-compile": ("compile", True),
    "--liger": ("kernels", True),
    "--use-liger-kernel": ("kernels", True),
}
"""Flags of theirs, and the option and value that say the same."""
_META = {
    "count": "N",
    "share": "X",
    "words": "A,B",
    "text": "TEXT",
    "release": "X.Y",
    "choice": "KIND",
    "adapter": "KIND|FILE",
}


def add_options(parser: Parser) -> None:
    """Every option of the table, and the short ways to say several at once."""
    groups = {name: parser.add_argument_group(title) for name, title in _TITLES.items()}
    for option in OPTIONS:
        flags = ["--" + option.name.replace("_", "-"), *_ALIASES.get(option.name, ())]
        group = groups[option.group]
        if option.kind == "flag":
            action = argparse.BooleanOptionalAction
            group.add_argument(*flags, action=action, default=None, help=_help(option))
        else:
            group.add_argument(*flags, metavar=_META[option.kind], default=None, help=_help(option))
    _add_names_of_trainers(parser)
    short = parser.add_argument_group("short for several of these")
    short.add_argument(
        "--zero", choices=("0", "1", "2", "3"), help="DeepSpeed's ZeRO stage: --sharding zeroN"
    )
    short.add_argument(
        "--fsdp",
        nargs="?",
        const="2",
        type=_of_fsdp,
        choices=("1", "2"),
        help="--sharding fsdp2, or fsdp1 with `--fsdp 1`",
    )
    short.add_argument(
        "--config",
        "--deepspeed",
        metavar="FILE",
        help="what a DeepSpeed or accelerate configuration says: sharding, offload, buckets, type",
    )
    short.add_argument("--hsdp", metavar="N", help="--sharding hsdp --replicas N")
    short.add_argument("--lora", action="store_true", help="--lora-rank 16")
    short.add_argument(
        "--qlora", action="store_true", help="--lora-rank 16 --quant nf4 --lora-targets all-linear"
    )
    short.add_argument(
        "--method",
        choices=tuple(METHODS),
        metavar="METHOD",
        help="of training: sft; dpo, orpo, simpo, cpo, reward and contrastive take a pair as two "
        "sequences, the last two and classification without logits; dpo and kto a reference model "
        "unless adapters "
        f"are trained; ppo three models; grpo a server beside it (--server-share {SERVER_SHARE})",
    )
    for name in METHODS:
        short.add_argument(
            f"--{name}", action="store_const", const=name, dest="method", help=argparse.SUPPRESS
        )
    short.add_argument("--amp", action="store_true", help="--weights fp32, computed in --dtype")


def _of_fsdp(text: str) -> str:
    return _FSDP.get(text, text)


def _add_names_of_trainers(parser: Parser) -> None:
    for option, flags in _OF_TRAINERS.items():
        parser.add_argument(*flags, dest=option, default=None, help=argparse.SUPPRESS)
    for flag, (option, value) in _SWITCHES_OF_TRAINERS.items():
        parser.add_argument(
            flag,
            dest=option,
            action="store_const",
            const=value,
            default=None,
            help=argparse.SUPPRESS,
        )


def given(options: argparse.Namespace) -> dict[str, Any]:
    """The options given, by plain names; short ones spelled out, what is at length wins.

    Raises:
        CliError: one has a value that it does not take.
    """
    _one_sharding(options)
    values, typed = _of_short_options(options), _typed(options)
    values |= typed
    if "quant" not in values and parse("lora_rank", values.get("lora_rank", 0)):
        values |= _of_name(options)
    if options.method:
        values |= _of_method(options.method, values, typed)
    return values


def _of_short_options(options: argparse.Namespace) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if options.config is not None:
        values |= _of_config(options.config)
    if options.zero is not None:
        if options.zero != "0":
            values["sharding"] = "zero" + options.zero
        else:
            values["sharding"] = "ddp"
        values["recipe"] = "deepspeed"
    if options.fsdp is not None:
        values["sharding"] = "fsdp" + options.fsdp
    if options.hsdp is not None:
        values |= {"sharding": "hsdp", "replicas": options.hsdp}
    if options.lora or options.qlora or options.dora:
        values["lora_rank"] = 16
    if options.qlora:
        values |= {"quant": "nf4", "lora_targets": "all-linear"}
    if options.amp:
        values["weights"] = "fp32"
    return values


def _typed(options: argparse.Namespace) -> dict[str, Any]:
    """What is given at length.

    Raises:
        CliError: an option has a value that it does not take.
    """
    values = {option.name: getattr(options, option.name) for option in OPTIONS}
    typed = {name: value for name, value in values.items() if value is not None}
    for name, value in typed.items():
        try:
            parse(name, value)
        except ValueError as error:
            written = f"--{name.replace('_', '-')}"
            raise CliError(str(error).replace(name, written, 1)) from None
    return typed


def _of_name(options: argparse.Namespace) -> dict[str, Any]:
    """A base of adapters that is called after its 4 bits has them."""
    from gputop_analysis.catalog.model_names import has_four_bits

    return {"quant": "nf4"} if has_four_bits(getattr(options, "model", None) or "") else {}


def _of_method(name: str, values: dict[str, Any], typed: dict[str, Any]) -> dict[str, Any]:
    """What a way to train adds to what else is asked; of what is typed out only the micro-batch
    changes, whose samples it counts in sequences.
    """
    samples = parse("micro_batch", values.get("micro_batch", 1))
    adapters = bool(values.get("adapter")) or parse("lora_rank", values.get("lora_rank", 0)) > 0
    added = spelled_out(name, samples, adapters)
    if "micro_batch" in added:
        notice(f"{name}: a micro-batch of {samples} is {added['micro_batch']} sequences")
    return {key: value for key, value in added.items() if key == "micro_batch" or key not in typed}


def _of_config(name: str) -> dict[str, Any]:
    """Options that a configuration decides; what it calls ``auto`` is left to the other options.

    Raises:
        CliError: no such file, or no configuration of that kind.
    """
    from gputop_analysis.launch import memory

    text = existing_file(name, or_else="").read_text(encoding="utf-8", errors="replace")
    with cli_errors(ValueError):
        values = memory.of_text(text, name, None)
    if values["sharding"] == "ddp":
        del values["sharding"]  # follows from --dp
    return values


def _one_sharding(options: argparse.Namespace) -> None:
    named = [
        f"--{name}"
        for name in ("config", "zero", "fsdp", "hsdp", "sharding")
        if getattr(options, name) is not None
    ]
    if len(named) > 1:
        raise CliError(
            f"{' and '.join(named)} are ways to shard, of which a training has one: leave all but "
            "one out"
        )


def refuse_idle(values: dict[str, Any], setup: Setup) -> None:
    """An option that changes nothing for this setup is a mistake, or a wish that was not
    understood.

    Raises:
        CliError: there is one; the message says what it needs.
    """
    from gputop_analysis.vram.idle import refuse

    with cli_errors(ValueError):
        refuse(values, setup)


def refuse_beside(options: argparse.Namespace, arguments: list[str]) -> None:
    """Options of ``gputop estimate`` that mean nothing for what is asked.

    Raises:
        CliError: one was given.
    """
    script, traces = bool(options.script), options.tier in (None, "trace")
    ways = {
        "--no-execute": (options.no_execute and not script, "it reads a script: name one"),
        "--": (bool(arguments) and not script, "a script's own words go after it: name one"),
        "--python": (
            bool(options.python) and (bool(options.csv) or not traces),
            "it names what traces, and nothing is traced",
        ),
        "--wait": (
            options.wait is not None and (bool(options.csv) or script),
            "it is for an answer that a trace refines",
        ),
        "--gpu": (bool(options.gpu and options.csv), "each row of the CSV has a gpu of its own"),
        "--no-calibration": (options.no_calibration and bool(options.csv), "it is for one answer"),
    }
    for name, (idle, why) in ways.items():
        if idle:
            raise CliError(f"{name} changes nothing here: {why}")


def existing_file(text: str, or_else: str = "a model is named with --model") -> Path:
    """A file that is there; ``or_else`` says what may have been meant.

    Raises:
        CliError: it is not.
    """
    path = Path(text)
    if path.is_dir():
        hint = ""
        if or_else:
            hint = "; a model in a folder is named with --model"
        raise CliError(f"{text} is a folder: a file is needed here{hint}")
    if not path.is_file():
        raise CliError(f"no file {text}" + (f"; {or_else}" if or_else else ""))
    if or_else and not path.stat().st_size:
        raise CliError(f"{text} is empty; {or_else}")
    return path


def _help(option: SetupOption) -> str:
    if option.choices:
        return f"{option.help}: {', '.join(choice for choice in option.choices if choice)}"
    if isinstance(option.default, tuple):
        default = ",".join(option.default)
    else:
        default = option.default
    if option.kind == "flag" or default == "":
        return option.help
    return f"{option.help} (default {default})"
