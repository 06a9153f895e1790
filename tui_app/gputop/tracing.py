"""Start a trace in the user's interpreter and read the event log that it writes."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputop.tracer_process import FAILS, Progress, follow, last_line, tracer
from gputop_tracer.progress import NO_LIBRARY

if TYPE_CHECKING:
    from gputop_analysis.vram.eventlog import EventLog
    from gputop_analysis.vram.setup import Setup


class Watch:
    """Told of a trace's progress in one thread; ends it from another."""

    def __init__(self, tell: Progress) -> None:
        self._tell = tell
        self._process: subprocess.Popen[str] | None = None
        self.stopped = False

    def __call__(self, line: str) -> None:
        self._tell(line)

    def began(self, process: subprocess.Popen[str]) -> None:
        """The process that traces now; of a pipeline there are several, one after another."""
        self._process = process
        if self.stopped:
            process.kill()

    def stop(self) -> None:
        """End what runs, and whatever would begin."""
        self.stopped = True
        if self._process is not None:
            self._process.kill()


class BackgroundWatch(Watch):
    """Of a trace that gives way to whatever else wants the processor."""

    def began(self, process: subprocess.Popen[str]) -> None:
        super().began(process)
        try:
            os.setpriority(os.PRIO_PROCESS, process.pid, 19)
        except (AttributeError, OSError):  # not on this system, or it has ended already
            return


def trace(
    setup: Setup,
    python: str | None = None,
    *,
    config: str | Mapping[str, Any] = "",
    factory: str = "",
    full: bool = False,
    progress: Progress | None = None,
) -> EventLog:
    """The memory events of two steps of a setup, all layers of the model in them.

    Of a pipeline both ends are traced where no stage is named, and the one that needs more is the
    answer: the first holds the most micro-batches, the last head and loss.

    Args:
        setup: the model and how it is trained.
        python: the interpreter whose torch and transformers run; None: this one.
        config: a Hugging Face configuration to take instead of the setup's shape: a file, a
            directory, a cached name, or its values.
        factory: ``module:callable`` that gives the ``nn.Module``, instead of a model of
            transformers.
        full: trace every layer instead of four that stand for all.
        progress: told each line of what happens; None: they go to stderr.

    Raises:
        ImportError: the interpreter has no torch or no transformers.
        ValueError: the model cannot be built or traced; the message says why.
    """
    from gputop_analysis.vram.replay import peak

    setups = [setup]
    if setup.parallel.pp > 1 and not setup.parallel.pipeline_stage:
        setups.append(setup.but(pipeline_stage=setup.parallel.pp - 1))
    logs = [
        _traced(depth_setup, python, config, factory=factory, full=full, progress=progress)
        for depth_setup in setups
    ]
    if len(logs) > 1:
        return max(logs, key=lambda log: peak(log).reserved)
    return logs[0]


def _traced(
    setup: Setup,
    python: str | None,
    config: str | Mapping[str, Any],
    *,
    factory: str,
    full: bool,
    progress: Progress | None,
) -> EventLog:
    """The events of the one rank that the setup names."""
    from gputop_analysis.vram.deepen import deepen

    with tempfile.TemporaryDirectory(prefix="gputop-trace-") as folder:
        setup_file = Path(folder, "setup.json")
        setup_file.write_text(json.dumps(asdict(setup)), encoding="utf-8")
        arguments = ["--setup", str(setup_file)]
        if not isinstance(config, str):
            values, config = config, str(Path(folder, "config.json"))
            Path(config).write_text(json.dumps(dict(values)), encoding="utf-8")
        arguments += ["--config", config] if config else []
        arguments += ["--factory", factory] if factory else []
        out = Path(folder, "log.json.gz")
        log = run(arguments + (["--full"] if full else []), out, python, progress)
        depth = int(log.meta.get("depth") or 0)
        if depth <= int(log.meta.get("layers") or 0):
            return log
        try:
            return deepen(log, depth)
        except ValueError:  # its layers are unlike in a way that its configuration does not tell
            return run([*arguments, "--full"], out, python, progress)


def run(
    arguments: Sequence[str], out: Path, python: str | None = None, progress: Progress | None = None
) -> EventLog:
    """Run the trace command of the guest with ``arguments``; it writes ``out``, which is read.

    Raises:
        ImportError, ValueError: as of ``trace``.
    """
    from gputop_analysis.vram.eventlog import load

    command = [*arguments, "--out", str(out)]
    with tracer(command, python, without_gpu_and_network(), stdin=subprocess.DEVNULL) as process:
        if isinstance(progress, Watch):
            progress.began(process)
        lines = follow(process, progress)
        code = process.wait()
    if code == 0 and out.exists():
        return load(out)
    raise (ImportError if code == NO_LIBRARY else ValueError)(_reason(lines, code))


def without_gpu_and_network() -> dict[str, str]:
    """Our variables, but no GPU and no network: configurations come from the local cache."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "HF_HUB_OFFLINE": "1",
        "PYTHONUNBUFFERED": "1",
    }


def _reason(lines: list[str], code: int) -> str:
    """The trace's own one line, or the last that its interpreter printed."""
    reasons = [line[len(FAILS) :] for line in lines if line.startswith(FAILS)]
    if reasons:
        return reasons[-1]
    if last := last_line(lines):
        return f"the trace ended with exit code {code}: {last}"
    return f"the trace ended with exit code {code}"
