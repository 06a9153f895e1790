"""The estimator: form on the left, answer on the right; changes are estimated at once."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from time import monotonic

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.events import Key
from textual.message import Message
from textual.screen import Screen
from textual.timer import Timer

from gputop.feed.estimator import Estimator, Result, RunSetup, RunSetupLoader, Tracer
from gputop.feed.examples import EXAMPLES
from gputop.feed.form import MODEL, Form
from gputop.feed.plots import Trouble
from gputop.feed.refinement import LIMIT_S
from gputop.feed.snapshot import Snapshot
from gputop.messages import PageClosed
from gputop.screens.moving import Moving
from gputop.screens.page import Reads, bindings
from gputop.screens.typed import Typed
from gputop.screens.typed_text import begins_figure, typed_text
from gputop.tracing import Watch
from gputop.widgets.estimate_answer import EstimateAnswer, ShownEstimate
from gputop.widgets.estimate_form import EstimateForm
from gputop.widgets.estimate_title import EstimateTitle
from gputop.widgets.footer import Footer
from gputop_analysis.vram.options import OPTION
from gputop_analysis.vram.setup import Setup

UNKNOWN = "an example: the run's model is not known"
_TYPED = ("count", "share", "text", "words", "release", "adapter")


class Estimated(Message):
    """A form has been answered."""

    def __init__(self, result: Result):
        super().__init__()
        self.result = result


class Traced(Estimated):
    """A form has been answered by a trace, or the trace failed."""

    def __init__(self, result: Result, watch: Watch):
        super().__init__(result)
        self.watch = watch


class TraceProgressed(Message):
    """A trace goes on."""

    def __init__(self, watch: Watch, text: str):
        super().__init__()
        self.watch = watch
        self.text = text


class EstimatorScreen(Typed, Moving, Screen[None]):
    """Reads nothing from disk itself; a worker thread estimates."""

    NAME = "estimator"
    BINDINGS = bindings(NAME)
    PAGE = 8
    DEFAULT_CSS = """
    EstimatorScreen { layout: vertical; background: $background; color: $role-text; }
    EstimatorScreen #title { dock: top; height: 2; }
    EstimatorScreen #form { width: 42; height: 1fr; }
    EstimatorScreen #answer { width: 1fr; height: 1fr; }
    EstimatorScreen.narrow #form { width: 32; }
    EstimatorScreen.wide #form { width: 48; }
    EstimatorScreen #footer { dock: bottom; height: 1; }
    """
    AUTO_FOCUS = "#form"

    def __init__(
        self,
        setup: Setup,
        tracer: Tracer | None = None,
        source: str = "",
        gpu: str = "",
        refine_s: float | None = None,
    ):
        """Seconds ``refine_s`` that a form stands before a trace refines its answer by itself;
        None: only the key traces.
        """
        super().__init__()
        self.form = Form(setup, gpu)
        self.page = Reads(RunSetupLoader)
        self._source = source
        self._run: RunSetup | None = None
        self._estimator = Estimator(tracer)
        self._answered: Form | None = None
        self._busy = False
        self._tracing = ""
        self._watch: Watch | None = None
        self._since = 0.0
        self._last: Result | None = None
        self._refine_s = refine_s
        self._refining: Form | None = None
        """The form that is traced without having been asked for."""
        self._refined: set[Form] = set()
        self._timer: Timer | None = None

    def compose(self) -> ComposeResult:
        yield EstimateTitle(id="title")
        with Horizontal():
            yield EstimateForm(id="form")
            yield EstimateAnswer(id="answer")
        yield Footer("live", False, self.NAME, id="footer")

    def on_mount(self) -> None:
        self._show(self.form)
        self.set_interval(1.0, self._tick_trace)

    def on_resize(self) -> None:
        self.set_class(self.size.width < 100, "narrow")
        self.set_class(self.size.width >= 160, "wide")

    # ---- what the app asks of a screen above the main one

    def receive(self, snapshot: Snapshot, missed_steps: int | None) -> None:
        """From the live run: what it trains, until something was changed here."""
        page = snapshot.page
        if isinstance(page, RunSetup) and self._source in ("", UNKNOWN):
            self._source, self._run = f"from run {page.name}", page
            if not self.form.past:
                self._show(Form(page.setup, self.form.gpu))
            self._title()
        elif isinstance(page, Trouble) and not self._source:
            self._source = UNKNOWN
            self._title()

    def copy_text(self) -> str:
        """The command that gives the same answer."""
        from gputop.feed.form import command

        if self._run is None:
            return command(self.form)
        return command(self.form, self._run.name, self._run.setup)

    # ---- the form and its answer

    @property
    def _form_widget(self) -> EstimateForm:
        return self.query_one(EstimateForm)

    def _show(self, form: Form) -> None:
        self.form = form
        self._form_widget.form = form
        self._title()
        if self._refining not in (None, form):
            self._stop_trace()
        self._estimate()

    def _estimate(self) -> None:
        """Have the present form answered, as soon as the worker is free: the newest one wins."""
        if self._busy or self.form == self._answered:
            return
        self._busy = True
        self.run_worker(
            partial(self._work, self.form), thread=True, group="estimate", exit_on_error=False
        )

    def _work(self, form: Form) -> None:
        self.post_message(Estimated(self._estimator.answer(form)))

    def on_estimated(self, message: Estimated) -> None:
        self._busy = False
        self._answered = message.result.form
        self._present(message.result)
        self._estimate()
        self._refine_later()

    def _present(self, result: Result) -> None:
        """Show a result; where there is no estimate, the one before stays beside the reason."""
        shown = result.estimate or (self._last.estimate if self._last else None)
        if result.estimate is not None:
            self._last = result
        self.query_one(EstimateAnswer).answer = ShownEstimate(
            shown, result.base, result.problem, self._working(), result.quick
        )

    def _title(self) -> None:
        line = self._form_widget.line
        self.query_one(EstimateTitle).show(self.form, self._source, line.help if line else "")

    # ---- moving

    @property
    def _on_levers(self) -> bool:
        return self.query_one(EstimateAnswer).has_focus

    def _move(self, step: int) -> None:
        self._commit()
        (self.query_one(EstimateAnswer) if self._on_levers else self._form_widget).move(step)
        self._title()

    def action_next_pane(self) -> None:
        self._commit()
        self.set_focus(
            self._form_widget if self._on_levers else self.query_one(EstimateAnswer),
            scroll_visible=False,
        )

    # ---- changing

    def action_less(self) -> None:
        self._step(-1)

    def action_more(self) -> None:
        self._step(1)

    def _step(self, direction: int) -> None:
        line = self._form_widget.line
        if line is None or self._on_levers:
            return
        self._form_widget.typed = None
        self._try(lambda: self.form.stepped(line.name, direction))

    def _try(self, change) -> None:
        try:
            self._show(change())
        except ValueError as error:
            self.notify(str(error), severity="warning")

    def action_take(self) -> None:
        """Enter: apply the lever, search a model, or begin and end typing."""
        widget, line = self._form_widget, self._form_widget.line
        if self._on_levers:
            self._apply_lever()
        elif line is not None and line.name == MODEL:
            self.action_find_model()
        elif widget.typed is not None:
            self._commit()
        elif self._takes_figures:
            widget.typed = ""
        else:
            self._step(1)

    @property
    def _takes_figures(self) -> bool:
        """Whether the line at the cursor is one to type into."""
        line = self._form_widget.line
        return line is not None and line.name in OPTION and OPTION[line.name].kind in _TYPED

    def on_key(self, event: Key) -> None:
        """Type figures into the line at the cursor; while typing, letters go there too."""
        widget = self._form_widget
        if self._on_levers or not self._takes_figures:
            return
        if widget.typed is None and not begins_figure(event):
            return
        text = typed_text(widget.typed or "", event)
        if text is not None:
            widget.typed = text

    def _commit(self) -> None:
        """What was typed becomes the value."""
        widget, line = self._form_widget, self._form_widget.line
        typed, widget.typed = widget.typed, None
        if typed and line is not None:
            self._try(lambda: self.form.given(line.name, typed))

    def _apply_lever(self) -> None:
        widget = self.query_one(EstimateAnswer)
        estimated = widget.answer.estimate
        if estimated is not None and widget.cursor < len(estimated.levers):
            self._show(self.form.changed(estimated.levers[widget.cursor].setup))

    def action_undo(self) -> None:
        self._show(self.form.undone())

    def action_mark_base(self) -> None:
        self._show(self.form.marked())

    def action_back(self) -> None:
        if self._form_widget.typed is not None:
            self._form_widget.typed = None
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
                self._show(self.form.of_model(resolve(name)))
            except (LookupError, ValueError) as error:
                self.notify(str(error), severity="warning")

        self.app.push_screen(ModelDialog(self.form.setup.model.name), take)

    def action_examples(self) -> None:
        from gputop.screens.dialog import ChoiceDialog, DialogChoice

        keys = "123456789abcdefghi"
        choices = [
            DialogChoice(keys[i], example.title, "", i) for i, example in enumerate(EXAMPLES)
        ]

        def take(index: int | None) -> None:
            if index is not None:
                from gputop.api import shape_of
                from gputop_analysis.vram.options import setup_of

                example_ = EXAMPLES[index]
                self._show(self.form.changed(setup_of(shape_of(example_.model), example_.values)))

        self.app.push_screen(ChoiceDialog("Examples", "Start from", choices), take)

    def action_notes(self) -> None:
        from textual.content import Content

        from gputop.render.rows import row_text
        from gputop.render.vram import notes
        from gputop.screens.dialog import TextDialog, Words, text_columns

        estimated = self.query_one(EstimateAnswer).answer.estimate
        if estimated is None:
            return

        def notes_at(size: tuple[int, int]) -> Words:
            rows = notes(estimated, text_columns(size[0]))
            text = "\n".join(row_text(row) for row in rows)
            return Words(Content(text), text)

        self.app.push_screen(TextDialog("Assumptions and sources", notes_at))

    # ---- the trace

    def action_trace(self) -> None:
        """Begin a trace of the present form; the same key ends one that runs."""
        if self._watch is not None:
            self._stop_trace()
        else:
            self._begin_trace()

    def _refine_later(self) -> None:
        """Trace the present form by itself, once it has stood for a while."""
        if self._timer is not None:
            self._timer.stop()
        if self._refine_s is not None:
            self._timer = self.set_timer(self._refine_s, self._refine)

    def _refine(self) -> None:
        last = self._last
        if last is None or last.estimate is None or last.form != self.form:
            return
        if self._watch is not None or self.form in self._refined:
            return
        if last.estimate.peak.tier != "trace":
            self._refined.add(self.form)
            self._refining = self.form
            self._begin_trace()
            self._timer = self.set_timer(LIMIT_S, partial(self._give_up, self._watch))

    def _give_up(self, watch: Watch | None) -> None:
        """End a trace that nobody asked for and that takes long."""
        if watch is self._watch and self._refining is not None:
            self._stop_trace()
            self.notify(f"not refined: the trace takes over {LIMIT_S:g} s; t traces to the end")

    def _begin_trace(self) -> None:
        watch = self._watch = Watch(lambda text: self.post_message(TraceProgressed(watch, text)))
        self._since = monotonic()
        self._progress("starting")
        self.run_worker(
            partial(self._trace, self.form, watch), thread=True, group="trace", exit_on_error=False
        )

    def _trace(self, form: Form, watch: Watch) -> None:
        self.post_message(Traced(self._estimator.trace(form, watch), watch))

    def _stop_trace(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        self._watch = self._refining = None
        self._progress("")

    def on_unmount(self) -> None:
        """Whoever leaves does not wait for a trace."""
        if self._watch is not None:
            self._watch.stop()

    def _progress(self, text: str) -> None:
        self._tracing = text
        self._tick()

    def _tick(self) -> None:
        """Show what the trace does, and for how long already."""
        widget = self.query_one(EstimateAnswer)
        answer = widget.answer
        widget.answer = replace(answer, working=self._working())

    def _working(self) -> str:
        if self._tracing:
            return f"{monotonic() - self._since:.0f} s: {self._tracing}"
        return ""

    def _tick_trace(self) -> None:
        if self._tracing:
            self._tick()

    def on_trace_progressed(self, message: TraceProgressed) -> None:
        if message.watch is self._watch:
            self._progress(message.text)

    def on_traced(self, message: Traced) -> None:
        message.stop()
        if message.watch is not self._watch:
            return
        asked = self._refining is None
        self._watch, self._refining, self._tracing = None, None, ""
        if message.result.problem and not asked:
            self._progress("")
            self.notify(f"not refined: {message.result.problem}")
        elif message.result.form == self.form:
            self._present(message.result)
        else:
            self._progress("")
            self.notify("the trace answers the setup as it was: undo with u to see it")
