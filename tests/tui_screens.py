"""Every screen, dialog and state of the app that looks different, in one table: the snapshot tests
and ``bench/screenshots.py`` draw the same ones.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from recordings_support import two_segments
from textual.app import App
from textual.widgets import Input
from tui_support import (
    START_NS,
    FakeControl,
    FixedClock,
    StillFeed,
    a_finding,
    write_layers,
    write_run,
)

from gputop.app import Source
from gputop.app.application import GputopApp
from gputop.app.evidence import EvidenceApp
from gputop.app.memory import MemoryApp
from gputop.app.runs import RunsApp
from gputop.app.theme import DARK, LIGHT
from gputop.feed.build import build
from gputop.feed.snapshot import Notice, Snapshot, first_snapshot
from gputop.render.numbers import clock
from gputop_analysis.snapshots import load
from gputop_analysis.snapshots.analyse import analyse
from gputop_probes.record.reader import RunRecord
from gputop_probes.record.writer import RecordWriter

SIZES = {"60x20": (60, 20), "80x24": (80, 24), "120x40": (120, 40)}
SIZES |= {"200x50": (200, 50), "300x80": (300, 80)}
USUAL = "120x40"
MODES = ("light", "16-colours", "ascii", "no-colour")
"""How a terminal can be that is not dark with all colours; shown at the usual size."""
HOUR_NS = 3600 * 10**9
SECOND_NS = 10**9
FIX = ("python", "train.py", "--workers", "4")


class Stage(NamedTuple):
    """What the screens are drawn from."""

    folder: Path
    """Where records are written."""
    running: Snapshot
    """Of a run of four ranks, a late one among them, that goes on."""
    recorded: Path | None = None
    """Replayed in its place where given, at ``MOMENT``."""
    many: int = 36
    """Ranks of the large run."""

    def path(self, name: str) -> Path:
        """A new place for a record."""
        return self.folder / name


MOMENT = 0.8
"""Share of a recording that has been played: the run goes on, and all panels are filled."""


def run(stage: Stage) -> GputopApp:
    """The run that all pages are about."""
    if stage.recorded is not None:
        return GputopApp(Source(stage.recorded, "replay"), FixedClock(), ticking=False)
    return still(stage.running)


def still(snapshot: Snapshot, mode: str = "live", control: Any = None) -> GputopApp:
    """A screen that stays as it is."""
    source = Source(snapshot.run_dir, mode, control)
    return GputopApp(source, FixedClock(), StillFeed(snapshot), ticking=False)


def controlled(stage: Stage) -> GputopApp:
    """A training that this gputop started."""
    return still(stage.running, control=FakeControl())


def stopping(stage: Stage) -> GputopApp:
    """One that has been asked to stop."""
    app = controlled(stage)
    app._stopping = True
    return app


def replayed(stage: Stage) -> GputopApp:
    """A bar with the moment above the footer."""
    run_dir = stage.recorded or stage.running.run_dir
    return GputopApp(Source(run_dir, "replay"), FixedClock(), ticking=False)


def before_the_first_step(stage: Stage) -> GputopApp:
    """A checklist with seconds, and the samples of these."""
    options = {"ranks": 0, "steps": 0, "gpus": 2, "state": "running"}
    folder = write_run(stage.path("starting"), standing_s=20, **options)
    (folder / "hosts" / "box" / "output.log").write_bytes(b"loading llama-3-8b ...\n")
    writer = RecordWriter(folder, "box")
    reached = (("import torch", 1, 4), ("CUDA", 4, 6), ("process group", 6, 7), ("model", 7, None))
    for rank in (0, 1):
        for name, began, ended in reached:
            event = {"type": "startup", "name": name, "rank": rank, "pid": 100 + rank}
            event["began_ns"] = START_NS + began * SECOND_NS
            event["ended_ns"] = None if ended is None else START_NS + ended * SECOND_NS
            writer.append_event({**event, "t_ns": START_NS + (ended or began) * SECOND_NS})
    writer.close()
    return still(at(folder, 20.0))


def at(folder: Path, seconds: float) -> Snapshot:
    """A record at so many seconds after its start, and nothing judged."""
    now_ns = START_NS + int(seconds * SECOND_NS)
    return build(RunRecord.open(folder), (), window_steps=500, now_ns=now_ns)


def a_hang(stage: Stage) -> GputopApp:
    """Rank 2 stands elsewhere than the others; nothing has moved for four minutes."""
    options = {"ranks": 4, "steps": 380, "gpus": 4, "total_steps": 400, "state": "running"}
    folder = write_run(stage.path("hang"), standing_s=246, **options)
    return still(hung(at(folder, 254)))


def hung(running: Snapshot) -> Snapshot:
    """With what is judged of it, and the stacks of all ranks."""
    title = "rank 2 stands in load at loader.py:7, the others wait for it"
    fix = "rank 2 must reach the same collective: see loader.py:7"
    since = clock(running.summary.silent_s)
    evidence = f"no step for {since}, where one took 16 ms; ranks 0, 1 and 3 wait in all_reduce"
    finding = a_finding(
        "critical", 2, id="HC01", name="hang", title=title, fix=fix, evidence=evidence,
        recoverable_ms_per_step=None, interval_ms_per_step=None, recoverable_hours=None,
        site="loader.py:7 load",
    )  # fmt: skip
    notices = []
    for rank in range(4):
        frames = ["all_reduce distributed.py:2810", "backward train.py:40", "main train.py:9"]
        if rank == 2:
            frames = ["load loader.py:7", "main train.py:9"]
        thread = {"name": "MainThread", "training": True, "frames": frames}
        body = {"phase": "data" if rank == 2 else "backward", "step": 380, "threads": [thread]}
        notices.append(Notice(running.summary.now_ns, "stack_dump", rank, body))
    verdict = running.verdict._replace(health="critical", headline=title)
    return running._replace(
        findings=(finding,), verdict=verdict, notices=tuple(notices), hang=title
    )


def not_a_number(stage: Stage) -> GputopApp:
    """The loss has become NaN."""
    folder = write_run(stage.path("nan"), ranks=1, steps=400, gpus=1, nan_from=120)
    return GputopApp(Source(folder, "replay"), FixedClock(), ticking=False)


def crashed(stage: Stage) -> GputopApp:
    """A run that has ended with an exception."""
    folder = write_run(stage.path("crashed"), ranks=1, steps=90, exit_code=1)
    writer = RecordWriter(folder, "box")
    trace = ["Traceback (most recent call last):", '  File "train.py", line 31, in <module>']
    event = {"type": "exception", "rank": 0, "class": "ValueError", "message": "bad batch"}
    event |= {"traceback": trace, "site": "train.py:31"}
    writer.append_event({**event, "t_ns": START_NS + 4 * SECOND_NS})
    writer.close()
    (folder / "hosts" / "box" / "output.log").write_bytes(
        b"step 89 loss 0.71\n" + "\n".join([*trace, "ValueError: bad batch"]).encode() + b"\n"
    )
    return GputopApp(Source(folder, "replay"), FixedClock(), ticking=False)


def on_a_cpu(stage: Stage) -> GputopApp:
    """One process without a GPU."""
    folder = write_run(stage.path("cpu"), ranks=1, steps=300, state="running")
    return still(at(folder, 7.0))


def many_ranks(stage: Stage) -> GputopApp:
    """A heat map beside the five worst."""
    folder = write_run(stage.path("many"), ranks=stage.many, steps=40, slow_rank=17)
    return GputopApp(Source(folder, "replay"), FixedClock(), ticking=False)


def unreadable(stage: Stage) -> GputopApp:
    """A record that was cut off; what it says of its place is the same everywhere."""
    run_dir = stage.running.run_dir
    told = first_snapshot(run_dir)._replace(
        problem="run.json: cut off in the middle", run_dir=Path("/home/you/runs/20240101-train")
    )
    return GputopApp(Source(run_dir, "live"), FixedClock(), StillFeed(told), ticking=False)


def profiled(stage: Stage) -> GputopApp:
    """Three steps of a rank were profiled."""
    table = [
        {"op": op, "calls": calls, "cpu_ms": cpu, "device_ms": device}
        for op, calls, cpu, device in (
            ("aten::mm", 288, 12.1, 31.0),
            ("aten::native_layer_norm", 72, 3.9, 4.2),
            ("aten::copy_", 40, 1.25, 0.9),
        )
    ]
    notice = Notice(START_NS, "profile", 0, {"steps": 3, "first_step": 120, "table": table})
    return still(stage.running._replace(notices=(notice,)))


async def show_profile(app: App[Any]) -> None:
    """As a live run opens it when it comes."""
    assert isinstance(app, GputopApp) and app.main.snapshot is not None
    app.show_notice(app.main.snapshot.notices[-1])


def layered(stage: Stage) -> GputopApp:
    """A run whose layers were watched."""
    folder = write_run(stage.path("layers"), steps=60)
    write_layers(folder)
    return GputopApp(Source(folder, "replay"), FixedClock(), ticking=False)


def runs(stage: Stage) -> RunsApp:
    """Two runs, the earlier with a straggler, and a folder that is no record."""
    root = stage.path("runs")
    if not root.exists():
        write_run(root / "20240101-slow", ranks=2, steps=120, slow_rank=1)
        late = START_NS + HOUR_NS
        write_run(root / "20240102-fast", ranks=2, steps=120, start_ns=late, command=FIX)
        (root / "notes").mkdir()
    os.chdir(stage.folder)
    return RunsApp(clock=FixedClock(START_NS + 3 * HOUR_NS))


def memory(stage: Stage) -> MemoryApp:
    """A snapshot, compared with an earlier one."""
    os.chdir(stage.folder)
    paths = [two_segments(stage.path(f"{kept}.pickle"), kept).name for kept in (1, 3)]
    before, later = (analyse(load(path)) for path in paths)
    return MemoryApp(later, before)


def recording_of_another_tool(stage: Stage) -> EvidenceApp:
    """A folder of torch.profiler's."""
    from gputop_analysis.evidence import gather

    os.chdir(stage.folder)
    path = Path("step.json")
    path.write_text(_TRACE, encoding="utf-8")
    return EvidenceApp(gather(path))


_TRACE = """{"schemaVersion": 1, "traceEvents": [
{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", "pid": 1, "tid": 1,
 "ts": 0, "dur": 20000},
{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#4", "pid": 1, "tid": 1,
 "ts": 20000, "dur": 21000},
{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 900, "dur": 9000},
{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 21000, "dur": 9500}]}"""

Make = Callable[[Stage], App[Any]]
Act = Callable[[App[Any]], Any]


class Shown(NamedTuple):
    """One state of the app."""

    words: str
    """What is seen."""
    make: Make = run
    keys: tuple[str, ...] = ()
    act: Act | None = None
    """What is done in place of keys."""
    anew: bool = False
    """It is written for the size that it found, and opened again at another one."""


MARKED = ("space", "down", "space")
SCREENS: dict[str, Shown] = {
    "overview": Shown("the main screen"),
    "live": Shown("a training that this gputop started", controlled),
    "replay": Shown("a run played back", replayed),
    "starting": Shown("before the first step", before_the_first_step),
    "hang": Shown("a run that stands", a_hang),
    "nan": Shown("a loss that is no number", not_a_number),
    "crash": Shown("a run that has crashed", crashed),
    "cpu": Shown("a run without a GPU", on_a_cpu),
    "many-ranks": Shown("a heat map of ranks", many_ranks),
    "unreadable": Shown("a record that cannot be read", unreadable),
    "step": Shown("where a step goes, zoomed", keys=("1", "z")),
    "history": Shown("the machine over the run, a moment chosen", keys=("2", "z", *["left"] * 3)),
    "zoomed-ranks": Shown("ranks and GPUs, zoomed", keys=("r", "z")),
    "findings": Shown("findings, zoomed", keys=("f", "z")),
    "output": Shown("the command's output, wrapped", keys=("6", "z", "W")),
    "search": Shown("a search in the output", keys=("slash",)),
    "loss": Shown("the loss, zoomed", keys=("7", "z")),
    "finding": Shown("evidence and fix of a finding", keys=("f", "enter")),
    "budget": Shown("where the wall time went", keys=("b",)),
    "numerics": Shown("loss, norms and rates", keys=("n",)),
    "layers": Shown("time and memory of layers", layered, ("l",)),
    "all-ranks": Shown("every rank", keys=("w",)),
    "all-of-many": Shown("every rank of many", many_ranks, ("w",)),
    "stacks": Shown("stacks of all ranks", a_hang, ("d",)),
    "profile": Shown("operators of three steps", profiled, act=show_profile),
    "what-if": Shown("what each change would win", keys=("t", "tab", "u")),
    "estimate": Shown("GPU memory of a setup", keys=("v",)),
    "estimate-compared": Shown(
        "a setup beside another one",
        keys=("v", "down", "down", "b", "right", "right", "tab"),
    ),
    "model": Shown("models by name", keys=("v", "slash", *"qwen")),
    "examples": Shown("setups to start from", keys=("v", "x")),
    "assumptions": Shown("what an estimate assumes", keys=("v", "n")),
    "strategy": Shown("splits over GPUs", keys=("t",)),
    "strategy-compared": Shown("splits side by side", keys=("t", "tab", *MARKED)),
    "pareto": Shown("step time against memory", keys=("t", "p")),
    "workload": Shown("presets, servers and PPO", keys=("t", "w")),
    "launchers": Shown("launchers of a split", keys=("t", "tab", "l")),
    "launch": Shown("command and files of a split", keys=("t", "tab", "l", "enter"), anew=True),
    "catalog": Shown("GPUs", keys=("x",)),
    "catalog-compared": Shown("GPUs side by side", keys=("x", *["down"] * 9, *MARKED)),
    "catalog-plot": Shown("rent against speed", keys=("x", "p")),
    "topology": Shown("how GPUs are wired", keys=("i", *["down"] * 3)),
    "runs": Shown("all runs", runs),
    "two-marked": Shown("two runs marked", runs, MARKED),
    "comparison": Shown("two runs compared", runs, (*MARKED, "enter")),
    "memory": Shown("an allocator snapshot", memory),
    "memory-settings": Shown("the same at other settings", memory, ("shift+tab", "shift+tab")),
    "recording": Shown("a recording of another tool", recording_of_another_tool),
    "settings": Shown("settings", keys=("comma",)),
    "help": Shown("keys", keys=("question_mark",), anew=True),
    "commands": Shown("the palette before anything is typed", keys=("colon",)),
    "palette": Shown("commands, runs, ranks and findings by name", keys=("colon", *"rank")),
    "export": Shown("what is seen, as a file", keys=("e",)),
    "leave": Shown("leaving while the training runs", controlled, ("q",)),
    "stopping": Shown("a training that was asked to stop", stopping, ("q",)),
}


@asynccontextmanager
async def opened(
    shown: Shown, stage: Stage, size: tuple[int, int] = SIZES[USUAL]
) -> AsyncIterator[tuple[App[Any], Any]]:
    """The app as the table has it."""
    from tui_pilot import settle

    app = shown.make(stage)
    if not os.environ.get("NO_COLOR"):
        app.theme = DARK
    async with app.run_test(size=size) as pilot:
        if isinstance(app, GputopApp):
            app.tick()
            await settle(app, pilot)
            if stage.recorded is not None and app.source.run_dir == stage.recorded:
                app.action_seek_to(MOMENT)
                app.tick()
        for _ in range(4 if isinstance(app, RunsApp) else 1):
            await settle(app, pilot)  # one worker lists, one after the other reads what is in sight
        await _arrive(shown, app, pilot)
        yield app, pilot


async def _arrive(shown: Shown, app: App[Any], pilot: Any) -> None:
    from tui_pilot import press, settle

    await press(app, pilot, *shown.keys)
    if shown.act is not None:
        await shown.act(app)
    for field in app.screen.query(Input):
        field.cursor_blink = False
    await settle(app, pilot)


async def resized(shown: Shown, app: App[Any], pilot: Any, size: tuple[int, int]) -> None:
    """The same at another size."""
    from tui_pilot import settle

    if shown.anew:
        await _leave(app, pilot)
    await pilot.resize_terminal(*size)
    await settle(app, pilot)
    if shown.anew:
        await _arrive(shown, app, pilot)


async def _leave(app: App[Any], pilot: Any) -> None:
    from tui_pilot import settle

    while len(app.screen_stack) > 1:
        app.pop_screen()
        await settle(app, pilot)


async def change(shown: Shown, app: App[Any], pilot: Any, mode: str) -> None:
    """The same on another terminal; without colour an app is started so. A dialog takes its colours
    when it opens.
    """
    from tui_pilot import settle

    is_dialog = app.screen.is_modal
    if is_dialog:
        await _leave(app, pilot)
    app.theme = {"light": LIGHT, "16-colours": "ansi-dark"}.get(mode, DARK)
    app.ascii_only = mode == "ascii"  # type: ignore[attr-defined]
    from gputop.widgets.canvas import Canvas

    for screen in app.screen_stack:
        for canvas in screen.query(Canvas):
            canvas.redraw()
    await settle(app, pilot)
    if is_dialog:
        await _arrive(shown, app, pilot)
