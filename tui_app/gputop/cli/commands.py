"""The table of commands. Adding one is adding a row and a module with ``execute(words) -> exit code``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple


class Command(NamedTuple):
    """One word after ``gputop``."""

    name: str
    summary: str
    module: str

    def load(self) -> Callable[[list[str]], int]:
        """Import the command's module and return its ``execute``."""
        return importlib.import_module(self.module).execute


COMMANDS = (
    Command("run", "start a training command and watch it", "gputop.cli.run"),
    Command("attach", "watch a run that is already going", "gputop.cli.attach"),
    Command("open", "replay a finished run through the same screens", "gputop.cli.open"),
    Command("profile", "take a few steps of a running training under torch.profiler", "gputop.cli.profile"),
    Command("runs", "list the runs, newest first", "gputop.cli.runs"),
    Command("report", "print what a run shows, as text, Markdown, HTML or JSON", "gputop.cli.report"),
    Command("diff", "compare two runs: what changed, what got slower, where they part", "gputop.cli.diff"),
    Command("findings", "list every finding that gputop knows, or explain one", "gputop.cli.findings"),
    Command("lint", "read a training script for what will cost time, before it runs", "gputop.cli.lint"),
    Command("estimate", "how much GPU memory a training needs, and on which GPUs it fits", "gputop.cli.estimate"),
    Command("plan", "how to split a training over GPUs, how fast that is, what it costs", "gputop.cli.plan"),
    Command("scan", "one training on several GPUs: the fastest, the cheapest", "gputop.cli.scan"),
    Command("pareto", "splits that no other beats in time and memory; scaling over GPUs", "gputop.cli.pareto"),
    Command("launch", "the command and files of a split, for torchrun, DeepSpeed, Megatron...", "gputop.cli.launch"),
    Command("catalog", "GPUs: memory, speed, links, rent; sort, compare, add your own prices", "gputop.cli.catalog"),
    Command("models", "the model architectures that are known by name", "gputop.cli.models"),
    Command("init", "say once which GPUs you have and what a training may cost", "gputop.cli.init"),
    Command("validate", "check a DeepSpeed or accelerate file or a launch command by its rules", "gputop.cli.validate"),
    Command("topo", "show how the GPUs and network cards of a node hang together", "gputop.cli.topo"),
    Command("probe", "run a few real steps, and see how far the estimate is off", "gputop.cli.probe"),
    Command("dryrun", "a few real steps of a training: what fails, what it takes", "gputop.cli.dryrun"),
    Command("export", "write a run as JSON, CSV or SVG", "gputop.cli.export"),
    Command("demo", "open a bundled recording of a real run", "gputop.cli.demo"),
    Command("doctor", "check what works here, and what to do about what does not", "gputop.cli.doctor"),
)


def find(name: str) -> Command | None:
    """The command of that name, None if there is none."""
    return next((c for c in COMMANDS if c.name == name), None)
