"""Differences of two set-ups: command, code, versions, hardware, model, optimizer, loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from gputop_analysis.diff.model import SettingChange
from gputop_analysis.summary import context
from gputop_analysis.view import RunView

Group = Literal["code", "environment", "config"]

_CONFIG = (
    "world_size",
    "model",
    "optimizer",
    "amp",
    "checkpointing",
    "parallel",
    "dataloader",
    "batch",
    "threads",
    "flags",
    "create_graph",
    "debug",
)
_ENVIRONMENT = (
    "python",
    "torch",
    "libraries",
    "cuda_version",
    "hip_version",
    "launcher",
    "device",
    "device_name",
    "device_memory_bytes",
    "device_capability",
    "allocator",
    "env",
)
_PASSING = {
    "optimizer.lr",
    "optimizer.state",
    "model.truncated",
    "dataloader.site",
    "dataloader.loop",
    "env.MASTER_PORT",
    "env.MASTER_ADDR",
    "env.TORCHELASTIC_RUN_ID",
    "env.TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "context.slurm.JOB_ID",
    "context.cwd",
    "context.command",
}
"""Differ from run to run, or change while one goes on, or are a launcher's own."""
_LAUNCHERS = (
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "GROUP_",
    "ROLE_",
    "TORCHELASTIC_",
    "MASTER_",
    "GPUTOP",
)
"""Beginnings of a launcher's variables for its ranks, whose number is ``world_size``."""
_VARIABLES = ("env.", "context.environment.")
_SKIPPED_ENDINGS = (".site", "_site")


def changes(a: RunView, b: RunView) -> tuple[SettingChange, ...]:
    """Settings whose values differ, by group and name. What one run alone told is left out."""
    differences: list[SettingChange] = []
    if a.record.manifest.command != b.record.manifest.command:
        differences.append(
            SettingChange(
                "command",
                " ".join(a.record.manifest.command),
                " ".join(b.record.manifest.command),
                "code",
            )
        )
    differences += _of(
        context(a.record), context(b.record), "context", lambda name: _group_of_context(name)
    )
    hello_a, hello_b = a.hello(), b.hello()
    for names, group in ((_ENVIRONMENT, "environment"), (_CONFIG, "config")):
        for name in names:
            differences += _of(
                hello_a.get(name), hello_b.get(name), name, lambda _, group=group: group
            )
    order: tuple[Group, ...] = ("code", "environment", "config")
    return tuple(
        sorted(_once(differences), key=lambda change: (order.index(change.group), change.name))
    )


def _once(differences: list[SettingChange]) -> list[SettingChange]:
    """Differences without a launcher's variable that differs in the same way in the ranks'."""
    of_ranks = {_under(change, "env.") for change in differences if change.name.startswith("env.")}
    return [
        change for change in differences if _under(change, "context.environment.") not in of_ranks
    ]


def _under(change: SettingChange, prefix: str) -> tuple[str, str, str]:
    """Name below a prefix, and both values as text: what makes two changes the same one."""
    return change.name.removeprefix(prefix), str(change.a), str(change.b)


def _of(a: Any, b: Any, name: str, group: Any) -> Iterator[SettingChange]:
    """The leaves below ``name`` that both have and that differ; a variable of one alone differs."""
    if name in _PASSING or name.endswith(_SKIPPED_ENDINGS) or _is_launchers(name):
        return
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({*a, *b}, key=str):
            yield from _of(a.get(key), b.get(key), f"{name}.{key}", group)
        return
    only_one = a is None or b is None
    if a == b or (only_one and not name.startswith((*_VARIABLES, "libraries."))):
        return
    yield SettingChange(name, a, b, group(name))


def _is_launchers(name: str) -> bool:
    variable = next((name.removeprefix(head) for head in _VARIABLES if name.startswith(head)), "")
    return variable.startswith(_LAUNCHERS)


def _group_of_context(name: str) -> Group:
    if name.startswith("context.git"):
        return "code"
    return "environment"
