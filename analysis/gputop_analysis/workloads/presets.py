"""Workloads by name: each a set of settings of planner and estimator, no speed of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple


class Workload(NamedTuple):
    """A preset. Whatever the user gives himself goes before it."""

    name: str
    what: str
    settings: Mapping[str, Any]
    """Settings by the names of the options of ``gputop plan``."""
    source: str
    """Source of the sizes."""


_LLAMA_2 = "4M tokens a step (Touvron et al. 2023, arXiv:2307.09288, section 2.2)"
_SERVED = "1024 tokens in, 256 out: a choice, change it"

WORKLOADS: tuple[Workload, ...] = (
    Workload(
        "pretrain", "pre-training from scratch", {"seq": 4096, "global_batch": 1024}, _LLAMA_2
    ),
    Workload(
        "finetune",
        "full fine-tuning on instructions",
        {"seq": 4096, "global_batch": 128},
        "128 x 4096 (Lambert et al. 2024, arXiv:2411.15124, Tulu 3 SFT)",
    ),
    Workload(
        "lora",
        "fine-tuning of adapters on frozen weights",
        {"seq": 2048, "global_batch": 16, "lora": True},
        "batch 16 (Dettmers et al. 2023, arXiv:2305.14314, table 9)",
    ),
    Workload(
        "rlhf",
        (
            "PPO: actor and critic trained, reference and reward scored, answers generated, "
            "all on the same GPUs"
        ),
        {
            "prompt": 512,
            "output": 512,
            "global_batch": 512,
            "roles": ("critic", "reference", "reward"),
            "pp": 1,
        },
        "512 episodes an iteration (Ouyang et al. 2022, arXiv:2203.02155, appendix C.4)",
    ),
    Workload(
        "long-context",
        "training on long sequences, context parallelism searched",
        {"seq": 131072, "global_batch": 32},
        "4M tokens a step, as pretrain",
    ),
    Workload(
        "moe", "pre-training of a mixture of experts", {"seq": 4096, "global_batch": 1024}, _LLAMA_2
    ),
    Workload("inference-batch", "serving for throughput", {"prompt": 1024, "output": 256}, _SERVED),
    Workload(
        "inference-streaming",
        "serving to people who read along",
        {"prompt": 1024, "output": 256, "first_token_ms": 1000.0, "token_ms": 50.0},
        _SERVED + "; 20 tokens a second, the first within a second",
    ),
    Workload(
        "cheapest",
        "pre-training, cost first: the number of GPUs is chosen too",
        {"objective": "cost"},
        "",
    ),
)


def workload(name: str) -> Workload:
    """The preset of that name.

    Raises:
        LookupError: there is none.
    """
    workload_found = next((preset for preset in WORKLOADS if preset.name == name), None)
    if workload_found is None:
        raise LookupError(
            f"no workload is called {name!r}: "
            f"there are {', '.join(preset.name for preset in WORKLOADS)}"
        )
    return workload_found


def said(preset: Workload, settings: Mapping[str, Any]) -> str:
    """The settings that are used, as the options that would give them."""
    words = []
    for key, value in settings.items():
        flag = "--" + key.replace("_", "-")
        if value is True:
            words.append(flag)
        elif key != "roles":
            words.append(f"{flag} {value:g}" if isinstance(value, float) else f"{flag} {value}")
    besides = ""
    if settings.get("roles"):
        besides = f"; with {', '.join(settings['roles'])}"
    source = ""
    if preset.source:
        source = f" [{preset.source}]"
    return f"{preset.name}, {preset.what}: {' '.join(words)}{besides}{source}"
