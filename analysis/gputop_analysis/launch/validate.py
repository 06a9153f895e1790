"""Which kind of configuration a text or a command is, and what is wrong with it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gputop_analysis.launch import check_accelerate, check_deepspeed, check_megatron, flags
from gputop_analysis.launch.check_megatron import Arguments
from gputop_analysis.launch.problems import Problem, whole
from gputop_analysis.launch.texts import kind_of, parsed


def check_text(text: str, name: str, ranks: int | None = None) -> tuple[str, list[Problem]]:
    """``(kind, problems)`` of a configuration file's text.

    Raises:
        UnknownFormatError: not a configuration that is known, or not readable.
    """
    config = parsed(text, name)
    kind = kind_of(config, name)
    if kind == "accelerate":
        return kind, check_accelerate.check(config)
    return kind, check_deepspeed.check(config, ranks)


def check_command(words: Sequence[str], world: int | None = None) -> tuple[str, list[Problem]]:
    """``(launcher, problems)`` of a command line: the launcher's flags, and Megatron-LM's where it
    starts that.
    """
    # assignments before the command
    words = [word for word in words if not re.fullmatch(r"[A-Z_]+=\S*", word)]
    at = next((i for i, word in enumerate(words) if _is_script(words, i)), len(words))
    launcher, launcher_words, launcher_rest = words[0] if words else "", words[:at], words[at:]
    program = "accelerate launch" if launcher == "accelerate" else launcher
    problems = []
    if program in ("torchrun", "deepspeed", "accelerate launch"):
        problems += [
            Problem("error", program, text) for text in flags.wrong(program, launcher_words)
        ]
    problems += _rendezvous(launcher_words)
    if _is_megatron(launcher_rest):
        problems += check_megatron.check(
            launcher_rest[1:], world if world is not None else world_of(launcher_words)
        )
        return "megatron", problems
    return launcher, problems


def _is_script(words: Sequence[str], at: int) -> bool:
    if at == 0:
        return False
    return words[at] in ("-m", "--module") or words[at].endswith(".py")


def _is_megatron(rest: Sequence[str]) -> bool:
    named = bool(rest) and rest[0].rpartition("/")[2].startswith("pretrain_")
    return named or any("model-parallel-size" in word for word in rest)


def _rendezvous(own: Sequence[str]) -> list[Problem]:
    options = _torchrun_options(own)
    if not own or own[0] != "torchrun":
        return []
    several = options.values.get("--nnodes", "1") not in ("1", "1:1", "")
    problems = []
    if several and options.has("--standalone"):
        problems.append(
            Problem("error", "--standalone", "is for one node; several need --rdzv-endpoint")
        )
    endpoint = options.values.get("--rdzv-endpoint", "")
    if several and endpoint.split(":")[0] in ("localhost", "127.0.0.1"):
        problems.append(
            Problem("error", "--rdzv-endpoint", "localhost gives each node a world of its own")
        )
    if several and options.has("--node-rank") and options.values.get("--rdzv-backend") == "c10d":
        problems.append(Problem("warning", "--node-rank", "is ignored under the c10d backend"))
    return problems


def _torchrun_options(own: Sequence[str]) -> Arguments:
    """torchrun's flags, which it takes with underscores as well as with dashes."""
    return check_megatron.read(
        [word.replace("_", "-") if word.startswith("--") else word for word in own]
    )


def world_of(own: Sequence[str]) -> int | None:
    """GPUs that torchrun's flags ask for; None where they do not tell."""
    options = _torchrun_options(own)
    ranks = whole(options.values.get("--nproc-per-node"))
    nodes = 1
    if options.has("--nnodes"):
        nodes = whole(options.values.get("--nnodes"))
    return None if ranks is None or nodes is None else ranks * nodes
