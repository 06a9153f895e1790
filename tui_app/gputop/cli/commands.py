"""The table of commands: help, the docs page and dispatch are made from it, the tools of coding
agents, and what Python code may call as ``gputop.NAME``.

A command is a row here and a module with ``parser() -> Parser`` and ``execute(words) -> exit
code``. The table is plain data: the modules are imported when they are called, so that ``gputop
--help`` imports none of them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from gputop.cli.parsing import Parser

SLOW = "Why is it slow?"
FIT = "Will it fit?"
SPLIT = "How to split it?"
HAPPENED = "What happened?"
HOUSE = "House-keeping"
QUESTIONS = (SLOW, FIT, SPLIT, HAPPENED, HOUSE)
"""What commands are grouped by, in the order of the help."""


class Tool(NamedTuple):
    """What a coding agent calls of a command."""

    name: str
    function: str
    """In ``agents/tools``; what the tool says of itself is its first line."""
    acts: bool = False
    """Whether it changes anything; then it is refused unless the server allows it."""


class Command(NamedTuple):
    """One word after ``gputop``."""

    name: str
    question: str
    """The question that it answers, one of ``QUESTIONS``."""
    summary: str
    """At most 66 columns, so that a line of the help has at most 80."""
    module: str
    """Where ``execute`` and the option parsers are."""
    parsers: tuple[str, ...] = ("parser",)
    """Functions of the module that build its option parsers: one, or one for each part of the
    command.
    """
    tools: tuple[Tool, ...] = ()
    """What coding agents call of it, over MCP."""
    python: str = ""
    """``module:function`` of ``gputop.NAME(...)``, the same from Python; empty: there is none."""

    def load(self) -> Callable[[list[str]], int]:
        """Import the command's module and return its ``execute``."""
        return importlib.import_module(self.module).execute

    def options(self) -> list[Parser]:
        """Import the command's module and build its option parsers."""
        module = importlib.import_module(self.module)
        return [getattr(module, name)() for name in self.parsers]

    def call(self) -> Callable[..., Any]:
        """Import and return what Python code calls."""
        module, _, function = self.python.partition(":")
        return getattr(importlib.import_module(module), function)


_CATALOG = ("list_parser", "show_parser", "prices_parser", "import_parser")
_REPORT = (
    Tool("verdict", "verdict"),
    Tool("findings", "findings"),
    Tool("explain", "explain_finding"),
    Tool("evidence", "evidence"),
)
COMMANDS: list[Command] = [
    Command("run", SLOW, "start a training command and watch it live", "gputop.cli.slow.run"),
    Command("attach", SLOW, "watch a run that is already going", "gputop.cli.slow.attach"),
    Command("serve", SLOW, "the live screen of a run in a browser", "gputop.cli.slow.serve"),
    Command(
        "profile",
        SLOW,
        "a few steps of a running training under torch.profiler",
        "gputop.cli.slow.profile",
        tools=(Tool("profile", "profile", acts=True),),
    ),
    Command(
        "layers",
        SLOW,
        "which layer takes the time and the memory",
        "gputop.cli.slow.layers",
    ),
    Command(
        "lint",
        SLOW,
        "what in a training script will cost time, before it runs",
        "gputop.cli.slow.lint",
        tools=(Tool("lint", "lint_script"),),
    ),
    Command(
        "why", SLOW, "the cause that matters most, of a run or a recording", "gputop.cli.slow.why"
    ),
    Command(
        "findings",
        SLOW,
        "all that gputop can find wrong, or one finding explained",
        "gputop.cli.slow.findings",
    ),
    Command(
        "fit", FIT, "yes, no or tight on your GPUs, and what it would take", "gputop.cli.fit.fit"
    ),
    Command(
        "estimate",
        FIT,
        "GPU memory that a training needs, and the GPUs it fits",
        "gputop.cli.fit.estimate",
        tools=(Tool("estimate", "estimate"),),
        python="gputop.api:estimate",
    ),
    Command(
        "probe",
        FIT,
        "a few real steps of a model: how far the estimate is off",
        "gputop.cli.fit.probe",
    ),
    Command(
        "dryrun",
        FIT,
        "a few real steps of your training: what fails, what it takes",
        "gputop.cli.fit.dryrun",
    ),
    Command(
        "memory",
        FIT,
        "who holds a GPU's memory, from an allocator snapshot",
        "gputop.cli.fit.memory",
    ),
    Command(
        "models", FIT, "the model architectures that are known by name", "gputop.cli.fit.models"
    ),
    Command(
        "plan",
        SPLIT,
        "how to split a training over GPUs, its speed and cost",
        "gputop.cli.split.plan",
        tools=(Tool("plan", "plan"),),
        python="gputop.plan_api:plan",
    ),
    Command(
        "scan",
        SPLIT,
        "one training on several GPUs: the fastest, the cheapest",
        "gputop.cli.split.scan",
    ),
    Command(
        "pareto",
        SPLIT,
        "splits that no other beats in time and memory; scaling",
        "gputop.cli.split.pareto",
    ),
    Command(
        "launch",
        SPLIT,
        "command and files of a split: torchrun, DeepSpeed, Megatron ...",
        "gputop.cli.split.launch",
    ),
    Command(
        "validate",
        SPLIT,
        "check a DeepSpeed or accelerate file, or a launch command",
        "gputop.cli.split.validate",
    ),
    Command(
        "catalog",
        SPLIT,
        "GPUs: memory, speed, links, rent; your own prices",
        "gputop.cli.split.catalog",
        _CATALOG,
    ),
    Command(
        "topo",
        SPLIT,
        "how the GPUs and network cards of a node hang together",
        "gputop.cli.split.topo",
    ),
    Command(
        "runs",
        HAPPENED,
        "list the runs, newest first",
        "gputop.cli.happened.runs",
        tools=(Tool("runs", "runs"),),
    ),
    Command(
        "status", HAPPENED, "where a run stands, in one line for tmux", "gputop.cli.happened.status"
    ),
    Command("open", HAPPENED, "replay a run through the same screens", "gputop.cli.happened.open"),
    Command(
        "report",
        HAPPENED,
        "what a run shows, as text, Markdown, HTML or JSON",
        "gputop.cli.happened.report",
        tools=_REPORT,
    ),
    Command(
        "diff",
        HAPPENED,
        "compare two runs: what changed, what got slower",
        "gputop.cli.happened.diff",
        tools=(Tool("diff", "diff_runs"),),
    ),
    Command(
        "check",
        HAPPENED,
        "is a command slower than before: a test for CI",
        "gputop.cli.happened.check",
    ),
    Command(
        "export",
        HAPPENED,
        "write a run as JSON, CSV, SVG or Perfetto timeline",
        "gputop.cli.happened.export",
    ),
    Command(
        "publish",
        HAPPENED,
        "hand figures to Prometheus, OTLP, W&B, MLflow, TensorBoard ...",
        "gputop.cli.happened.publish",
    ),
    Command(
        "mcp",
        HOUSE,
        "answer coding agents over MCP, on stdin and stdout",
        "gputop.agents.mcp_command",
    ),
    Command(
        "skill",
        HOUSE,
        "a SKILL.md that teaches a coding agent the loop",
        "gputop.agents.skill_command",
    ),
    Command("demo", HOUSE, "open a bundled recording of a real run", "gputop.cli.house.demo"),
    Command(
        "doctor", HOUSE, "what works here, and how to mend what does not", "gputop.cli.house.doctor"
    ),
    Command(
        "init",
        HOUSE,
        "say once which GPUs you have and what a training may cost",
        "gputop.cli.house.init",
    ),
    Command("completion", HOUSE, "what bash, zsh or fish complete", "gputop.cli.house.completion"),
    Command("man", HOUSE, "the manual page", "gputop.cli.house.man"),
]


def find(name: str) -> Command | None:
    """The command of that name, None if there is none."""
    return next((command for command in COMMANDS if command.name == name), None)


def by_question() -> Iterator[tuple[str, list[Command]]]:
    """Each question with its commands, in the order of the help."""
    for question in QUESTIONS:
        yield question, [command for command in COMMANDS if command.question == question]
