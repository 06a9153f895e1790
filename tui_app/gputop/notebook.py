"""``%load_ext gputop``, and ``%%gputop`` above a training cell: a live panel, then the report."""

from __future__ import annotations

import ast
import html
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

from gputop.recording import Recording, begin
from gputop_agent import wire
from gputop_analysis.text import whole_percent

_PERIOD_S = 1.0
_BAR = 32
_REPORT_S = 120.0
_INTERRUPTED = 130
_FRAME = (
    '<iframe srcdoc="{page}" sandbox="allow-scripts" '
    'style="width:100%;height:640px;border:0"></iframe>'
)


def load(shell: Any) -> None:
    """Register the magic with IPython."""
    shell.register_magic_function(
        lambda line, cell: run_cell(shell, line, cell), magic_kind="cell", magic_name="gputop"
    )


def run_cell(shell: Any, name: str, cell: str) -> Any:
    """Run a cell as it is, recorded as a run called ``name``; what it raises, it raises."""
    recording = begin(name.strip())
    panel = _Panel(recording)
    panel.start()
    exit_code = 0
    try:
        return _executed(shell, cell)
    except BaseException as error:
        exit_code = _exit_code(error)
        recording.raised(error, _of_the_cell(error.__traceback__))
        raise
    finally:
        run_dir = recording.run_dir
        panel.stop()
        recording.finish(exit_code)
        if run_dir is not None:
            show_report(run_dir)


def _exit_code(error: BaseException) -> int:
    """What a script that raised this would end with."""
    if isinstance(error, KeyboardInterrupt):
        return _INTERRUPTED
    if not isinstance(error, SystemExit):
        return 1
    if error.code is None or isinstance(error.code, int):
        return (error.code or 0) & 0xFF
    return 1


def _of_the_cell(traceback: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that lies below this module."""
    while traceback is not None and traceback.tb_frame.f_code.co_filename == __file__:
        traceback = traceback.tb_next
    return traceback


def panel_text(figures: dict[str, float]) -> str:
    """The live panel: how fast steps are, and what they are spent on."""
    step_ms = figures.get("step_ms")
    if not step_ms:
        return "gputop: no step yet"
    rates = ""
    if "samples_per_s" in figures:
        rates = f", {figures['samples_per_s']:,.0f} samples/s"
    lines = [f"step {figures['step']:,.0f}: {step_ms:,.2f} ms a step{rates}"]
    for phase in wire.PHASES:
        spent_ms = figures.get(f"{phase}_ms", 0.0)
        share = spent_ms / step_ms
        if share >= 0.005:
            bar = "#" * round(share * _BAR)
            lines.append(f"{phase:<11}{spent_ms:>9.2f} ms {whole_percent(share):>6}  {bar}")
    for label, key in (("GPU memory", "allocated_gib"), ("process", "rss_gib")):
        if key in figures:
            lines.append(f"{label:<11}{figures[key]:>9.2f} GiB")
    return "\n".join(lines)


class _Panel:
    """A display renewed by a thread, which only asks for sums: the training keeps its core."""

    def __init__(self, recording: Recording):
        from IPython.display import display

        self._recording = recording
        self._ended = threading.Event()
        self._handle: Any = display(_Text(panel_text({})), display_id=True)
        self._thread = threading.Thread(target=self._renew, name="gputop panel", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._ended.wait(_PERIOD_S):
            self._show()
        self._show()

    def _show(self) -> None:
        figures = self._recording.figures()
        if figures:
            self._handle.update(_Text(panel_text(figures)))


class _Text:
    """Text as a display takes it."""

    def __init__(self, text: str):
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _executed(shell: Any, cell: str) -> Any:
    """Run the cell in the notebook's namespace. Returns its last line's value, if any."""
    source = shell.transform_cell(cell)
    file = shell.compile.cache(source, raw_code=cell)
    tree = ast.parse(source, file)
    last = None
    if tree.body and isinstance(tree.body[-1], ast.Expr):
        last = ast.Expression(tree.body.pop().value)  # type: ignore[attr-defined]
    flags = shell.compile.flags  # of the notebook: this module's own are not inherited
    exec(compile(tree, file, "exec", flags, dont_inherit=True), shell.user_ns)
    if last is None:
        return None
    return eval(compile(last, file, "eval", flags, dont_inherit=True), shell.user_ns)


def show_report(run_dir: Path) -> None:
    """Display the report, made by its own process: the kernel loads nothing for it."""
    from IPython.display import display

    text = _gputop("report", str(run_dir), "--format", "text")
    with tempfile.TemporaryDirectory(prefix="gputop-") as folder:
        page = Path(folder) / "report.html"
        _gputop("report", str(run_dir), "--html", str(page))
        shown = {"text/plain": text}
        if page.exists():
            shown["text/html"] = _FRAME.format(page=html.escape(page.read_text("utf-8")))
    display(shown, raw=True)


def _gputop(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "gputop", *words],
        capture_output=True,
        text=True,
        timeout=_REPORT_S,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    return done.stdout or done.stderr
