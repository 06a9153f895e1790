"""The strategy screen: a question on the left, ranked splits on the right, times below."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from textual.app import ComposeResult
from textual.containers import Horizontal, Vertical
from textual.events import Key
from textual.message import Message
from textual.screen import Screen

from gputop.feed.planning import MODEL, Ask, Planned, solve
from gputop.feed.presets import Preset, apply
from gputop.feed.run_base import RunBase, RunBaseLoader
from gputop.feed.snapshot import Snapshot
from gputop.feed.unknown_run import Unknown
from gputop.feed.whatif import WhatIf, of_choice, of_run
from gputop.messages import PageClosed, ScreenAsked
from gputop.screens.moving import Moving
from gputop.screens.page import Reads, bindings
from gputop.screens.typed import Typed
from gputop.screens.typed_text import begins_figure, typed_text
from gputop.widgets.footer import Footer
from gputop.widgets.plan_panes import (
    ROWS_FOR_NOTICE,
    PlanForm,
    PlanParts,
    PlanTable,
    PlanTitle,
)
from gputop_analysis.parallelism.split import RECOMPUTES

_TYPED = ("seq", "global_batch", "gpus", "gpu")
REMEMBERED = 8
"""Answers that are kept, of about 0.6 MB each, so that a key back and forth does not plan again."""
BESIDE_FROM = 190
"""Columns from which on the parts of a step stand beside the table, which is as wide as it gets."""


SHORT = {
    "pretrain": "4096 tokens, 4M a step",
    "finetune": "instructions, 128 x 4096",
    "lora": "adapters, 16 x 2048",
    "rlhf": "PPO, by iterations",
    "long-context": "131,072 tokens",
    "moe": "experts, 4M a step",
    "inference-batch": "serving, most tokens a GPU",
    "inference-streaming": "serving, for waiting readers",
    "cheapest": "fewest GPU hours",
}
"""What is said of a workload in the list."""


class PresetFound(Message):
    """A workload was chosen and worked out, or it cannot be."""

    def __init__(self, name: str, preset: Preset | None, problem: str = ""):
        super().__init__()
        self.name = name
        self.preset = preset
        self.problem = problem


class ChangesFound(Message):
    """What single changes would do, or why that cannot be told."""

    def __init__(self, found: WhatIf | None, problem: str = ""):
        super().__init__()
        self.found = found
        self.problem = problem


class Solved(Message):
    """A question was answered: the screen's, or (``ahead``) what a key would ask next."""

    def __init__(self, planned: Planned, base: RunBase | None, ahead: bool):
        super().__init__()
        self.planned = planned
        self.base = base
        self.ahead = ahead


class StrategyScreen(Typed, Moving, Screen[None]):
    """Reads nothing from disk itself; a worker thread plans."""

    NAME = "strategy"
    BINDINGS = bindings(NAME)
    DEFAULT_CSS = """
    StrategyScreen { layout: vertical; background: $background; color: $role-text; }
    StrategyScreen #title { dock: top; height: 2; }
    StrategyScreen #form { width: 34; height: 1fr; }
    StrategyScreen #right { width: 1fr; height: 1fr; }
    StrategyScreen #table { height: 1fr; }
    StrategyScreen #parts { height: 8; }
    StrategyScreen.comparing #parts { height: 14; }
    StrategyScreen.narrow #form { width: 30; }
    StrategyScreen.short #parts { height: 6; }
    StrategyScreen.short.comparing #parts { height: 12; }
    StrategyScreen.low.comparing #parts { height: 10; }
    StrategyScreen.wide #right { layout: horizontal; }
    StrategyScreen.wide #table { width: 100; }
    StrategyScreen.wide #parts, StrategyScreen.wide.comparing #parts { width: 1fr; height: 1fr; }
    StrategyScreen #footer { dock: bottom; height: 1; }
    """
    AUTO_FOCUS = "#form"

    def __init__(self, ask: Ask, source: str = "", keep: bool = False, what_if: bool = False):
        """``keep``: the live run is the base line, but this question stays; ``what_if``: tell of
        the run at once.
        """
        super().__init__()
        self._tell_what_if = what_if
        self._unknown: Unknown | None = None
        self.ask = ask
        self.page = Reads(partial(RunBaseLoader, ask))
        self._source = source
        self._base: RunBase | None = None
        self._touched = keep
        self._known: dict[Ask, Planned] = {}
        self._direction = 1
        self._busy = False

    def compose(self) -> ComposeResult:
        yield PlanTitle(id="title")
        with Horizontal():
            yield PlanForm(id="form")
            with Vertical(id="right"):
                yield PlanTable(id="table")
                yield PlanParts(id="parts")
        yield Footer("live", False, self.NAME, id="footer")

    def on_mount(self) -> None:
        self._show(self.ask)

    def on_resize(self) -> None:
        self.set_class(self.size.width < 110, "narrow")
        self.set_class(self.size.width >= BESIDE_FROM, "wide")
        self.set_class(self.size.height < 34, "short")
        self.set_class(self.size.height < ROWS_FOR_NOTICE, "low")
        self.query_one(PlanTitle).fit(self.size)

    # ---- what the app asks of a screen above the main one

    def receive(self, snapshot: Snapshot, missed_steps: int | None) -> None:
        """From the live run: its own job as the base line, until something was changed here."""
        page = snapshot.page
        if isinstance(page, RunBase) and self._base is None:
            self._base = self.table.base = page
            self._source = "from " + page.source
            self._known.clear()
            self._show(self.ask if self._touched else page.ask)
            self.table.redraw()  # the same plan is drawn with another column
            if self._tell_what_if and not self._touched:
                self._tell(of_run, page)
        elif isinstance(page, Unknown) and self._base is None and self._unknown is None:
            self._unknown = page
            if not self._touched:
                self._show(page.ask)

    def copy_text(self) -> str:
        """The command that gives the same plan."""
        ask = self.ask
        words = [
            "gputop plan --model",
            ask.model.name,
            "--gpu",
            f'"{ask.gpu}"',
            "--gpus",
            str(ask.gpus),
        ]
        words += [
            "--seq",
            str(ask.seq),
            "--global-batch",
            str(ask.global_batch),
            "--dtype",
            ask.dtype,
        ]
        if ask.optimizer != "adamw":
            words += ["--optimizer", ask.optimizer]
        words += ["--lora"] if ask.lora else []
        for name, value in ask.pins:
            word = RECOMPUTES[value] if name == "recompute" else str(value)
            words += ["--" + name.replace("_", "-"), word]
        return " ".join(words)

    # ---- the question and its answer

    @property
    def form(self) -> PlanForm:
        return self.query_one(PlanForm)

    @property
    def table(self) -> PlanTable:
        return self.query_one(PlanTable)

    @property
    def _on_table(self) -> bool:
        return self.table.has_focus

    def _show(self, ask: Ask) -> None:
        self.ask = ask
        self.form.ask = ask
        self._title()
        self._plan()

    def _plan(self) -> None:
        """Show the answer to the present question where it is known; else have it worked out."""
        planned = self._known.get(self.ask)
        if planned is not None and planned is not self.table.planned:
            self._answer(planned)
        self._work_ahead()

    def _work_ahead(self) -> None:
        """Once the worker is free it answers the present question, then what the arrow keys would
        ask at this line: a plan takes longer than a key should, so it is ready before.
        """
        wanted = next((ask for ask in self._coming() if ask not in self._known), None)
        if self._busy or wanted is None:
            return
        self._busy = True
        work = partial(self._work, wanted, self._base, wanted != self.ask)
        self.run_worker(work, thread=True, group="plan", exit_on_error=False)

    def _coming(self) -> Iterator[Ask]:
        yield self.ask
        if not self._on_table:
            for direction in (self._direction, -self._direction):
                yield self.ask.stepped(self.form.entry.name, direction)

    def _work(self, ask: Ask, base: RunBase | None, ahead: bool) -> None:
        self.post_message(Solved(solve(ask, base.calibration if base else None), base, ahead))

    def on_solved(self, message: Solved) -> None:
        self._busy = False
        planned = message.planned
        if message.base is self._base:
            self._known[planned.ask] = planned
            if len(self._known) > REMEMBERED:
                self._known.pop(next(iter(self._known)))
            if planned.ask == self.ask or not message.ahead:
                self._answer(planned)
        self._work_ahead()

    def _answer(self, planned: Planned) -> None:
        self.table.marked = ()
        self.table.planned = planned
        self.table.cursor = 0
        self._parts()

    def _parts(self) -> None:
        table = self.table
        self.set_class(len(table.compared) > 1, "comparing")
        self.query_one(PlanParts).show(table.planned, table.chosen, table.compared)

    def _title(self) -> None:
        if self._on_table:
            meaning = "✓ is the one to run; space marks, enter fixes this split"
        else:
            meaning = self.form.entry.meaning
        example = self._unknown is not None and self.ask.model == self._unknown.ask.model
        if self._unknown and example:
            untold = "no what-if of this run: " if self._tell_what_if else ""
            notice = f"{untold}{self._unknown.text}; / chooses another"
        else:
            notice = ""
        self.query_one(PlanTitle).show(self.ask, self._source, meaning, notice)

    # ---- moving

    def _move(self, step: int) -> None:
        self._commit()
        (self.table if self._on_table else self.form).move(step)
        self._title()
        self._parts()
        self._work_ahead()

    def action_next_pane(self) -> None:
        self._commit()
        self.set_focus(self.form if self._on_table else self.table, scroll_visible=False)
        self._title()

    # ---- changing

    def _change(self, ask: Ask) -> None:
        self._touched = True
        self._show(ask)

    def action_less(self) -> None:
        self._step(-1)

    def action_more(self) -> None:
        self._step(1)

    def _step(self, direction: int) -> None:
        if not self._on_table:
            self.form.typed = None
            self._direction = direction
            self._change(self.ask.stepped(self.form.entry.name, direction))

    def action_take(self) -> None:
        """Enter: fix the split at the cursor of the table, search a model, begin or end typing."""
        name = self.form.entry.name
        if self._on_table:
            if self.table.chosen is not None:
                self._change(self.ask.pinned_to(self.table.chosen.layout))
        elif name == MODEL:
            self.action_find_model()
        elif self.form.typed is not None:
            self._commit()
        elif name in _TYPED:
            self.form.typed = ""
        else:
            self._step(1)

    def on_key(self, event: Key) -> None:
        """Type figures into the line at the cursor; while typing, letters go there too."""
        form = self.form
        if self._on_table or form.entry.name not in _TYPED:
            return
        if form.typed is None and not begins_figure(event):
            return
        text = typed_text(form.typed or "", event)
        if text is not None:
            form.typed = text

    def _commit(self) -> None:
        """What was typed becomes the value."""
        name, typed = self.form.entry.name, (self.form.typed or "").strip()
        self.form.typed = None
        if not typed:
            return
        if name == "gpu":
            self._change(self.ask.given(name, typed))
        elif typed.isdigit() and int(typed) > 0:
            self._change(self.ask.given(name, int(typed)))
        else:
            self.notify(f"{typed!r} is no count", severity="warning")

    def action_free(self) -> None:
        """Search the whole split again."""
        kept_fields = [name for name in Ask.__dataclass_fields__ if name != "pins"]
        self._change(Ask(**{name: getattr(self.ask, name) for name in kept_fields}))

    def action_mark(self) -> None:
        self.table.mark()
        self._parts()

    def action_back(self) -> None:
        if self.form.typed is not None:
            self.form.typed = None
        elif self.table.marked:
            self.table.marked = ()
            self._parts()
        else:
            self.post_message(PageClosed())

    # ---- dialogs

    def action_find_model(self) -> None:
        from gputop.screens.models import ModelDialog

        def take(name: str | None) -> None:
            if name is None:
                return
            from gputop.models import resolve

            try:
                self._change(self.ask.given(MODEL, resolve(name)))
            except (LookupError, ValueError) as error:
                self.notify(str(error), severity="warning")

        self.app.push_screen(ModelDialog(self.ask.model.name), take)

    def action_pareto(self) -> None:
        from gputop.screens.pareto import ParetoDialog

        planned = self.table.planned
        if planned is not None and planned.choices:
            base_s = self._base.step_s if self._base else 0.0
            table = self.table
            self.app.push_screen(ParetoDialog(planned, table.chosen, table.compared, base_s))

    def action_save(self) -> None:
        from gputop.screens.dialog import ChoiceDialog, DialogChoice

        if self.table.planned is None or not self.table.planned.choices:
            return
        choices = [
            DialogChoice("c", "CSV", "every strategy of the table", "csv"),
            DialogChoice("j", "JSON", "the same with the question", "json"),
            DialogChoice("s", "SVG", "a picture of the screen", "svg"),
        ]
        self.app.push_screen(
            ChoiceDialog("Export", "Write into this folder as", choices), self._save
        )

    def _save(self, kind: str | None) -> None:
        from gputop.feed.plan_export import exported
        from gputop.screens.exporting import write_new

        planned = self.table.planned
        if kind is None or planned is None:
            return
        if kind == "svg":
            text = self.app.export_screenshot(title="gputop plan")
        else:
            text = exported(planned, kind)
        try:
            path = write_new(
                Path.cwd(), f"gputop-plan-{planned.ask.model.name.rpartition('/')[2]}", kind, text
            )
        except OSError as error:
            self.notify(f"cannot write here: {error.strerror}", severity="error")
        else:
            self.notify(str(path), title="written")

    def action_what_if_this(self) -> None:
        """Of the run as it is while the form has the focus and nothing was changed, else of the
        split at the cursor.
        """
        if self._base is not None and not self._on_table and self.ask == self._base.ask:
            self._tell(of_run, self._base)
        elif self.table.chosen is not None:
            self._tell(of_choice, self.ask, self.table.chosen, self._base)
        else:
            self.notify(
                "nothing fits that could be changed; the left column asks otherwise",
                severity="warning",
            )

    def _tell(self, ask: Callable[..., WhatIf], *about: object) -> None:
        """The dialog comes with its answer: its words before would take longer than this."""
        self.run_worker(
            partial(self._changes, partial(ask, *about)),
            thread=True,
            group="what-if",
            exit_on_error=False,
        )

    def _changes(self, ask: Callable[[], WhatIf]) -> None:
        """In a worker thread."""
        try:
            self.post_message(ChangesFound(ask()))
        except (ValueError, LookupError) as error:
            self.post_message(ChangesFound(None, str(error.args[0])))

    def on_changes_found(self, message: ChangesFound) -> None:
        from gputop.screens.whatif import WhatIfDialog

        if message.found is None:
            self.notify(message.problem, title="what if", severity="warning")
        elif self.is_current:
            self.app.push_screen(WhatIfDialog(message.found, self.app.theme_variables))

    def action_workload(self) -> None:
        from gputop.screens.dialog import ChoiceDialog, DialogChoice
        from gputop_analysis.workloads.presets import WORKLOADS

        choices = [
            DialogChoice(str(i + 1), workload.name, SHORT[workload.name], workload.name)
            for i, workload in enumerate(WORKLOADS)
        ]

        def take(name: str | None) -> None:
            if name is not None:
                self.run_worker(
                    partial(self._preset, self.ask, name),
                    thread=True,
                    group="preset",
                    exit_on_error=False,
                )

        self.app.push_screen(
            ChoiceDialog("Workload", f"{self.ask.gpus} x {self.ask.gpu}", choices), take
        )

    def _preset(self, ask: Ask, name: str) -> None:
        """In a worker thread."""
        try:
            self.post_message(PresetFound(name, apply(ask, name)))
        except (ValueError, LookupError) as error:
            self.post_message(PresetFound(name, None, str(error.args[0])))

    def on_preset_found(self, message: PresetFound) -> None:
        from textual.content import Content

        from gputop.screens.dialog import TextDialog, Words

        preset = message.preset
        if preset is None:
            self.notify(message.problem, title=message.name, severity="warning")
            return
        if preset.ask != self.ask:
            self._change(preset.ask)
        if preset.text:
            words = Words(Content(preset.text), preset.text)
            self.app.push_screen(TextDialog(message.name, lambda size: words))
        else:
            self.notify(preset.said, title=message.name)

    def action_topology(self) -> None:
        from gputop.screens.topology import TopologyScreen

        self.post_message(ScreenAsked(TopologyScreen(self.ask.gpu)))

    def action_launch(self) -> None:
        from gputop.screens.dialog import ChoiceDialog, DialogChoice
        from gputop_analysis.launch.emit import LAUNCHERS

        if self.table.chosen is None:
            return
        choices = [DialogChoice(str(i + 1), name, "", name) for i, name in enumerate(LAUNCHERS)]

        def take(name: str | None) -> None:
            if name is not None:
                self._launch(name)

        dialog = ChoiceDialog("Launch command", self.table.chosen.name, choices, enter="show")
        self.app.push_screen(dialog, take)

    def _launch(self, launcher: str) -> None:
        from gputop.feed.launching import launch_text
        from gputop.screens.dialog import text_columns
        from gputop.screens.launching import LaunchDialog

        chosen = self.table.chosen
        if chosen is None:
            return
        try:
            launch = launch_text(self.ask, chosen, launcher, text_columns(self.size.width))
        except ValueError as error:
            self.notify(str(error), severity="warning")
        else:
            self.app.push_screen(LaunchDialog(launcher, *launch))
