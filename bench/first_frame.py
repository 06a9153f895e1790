"""How long until the first frame, and until the first live numbers of a real training. One JSON
line.

Both from the start of the process: to its first panel on the terminal, and to the first rate of
steps. Beside the former stands what a Textual application of one label takes, beside the latter the
training's own start (importing torch up to its first step, without gputop).
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from pty_probe import start

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
ROUNDS = 5
MARKER = b"Findings"
NUMBERS = b"steps/s"
TRAINING = """
import time, torch
model = torch.nn.Linear(8, 8)
for i in range({steps}):
    model(torch.randn(4, 8)).sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter -= 1e-3 * parameter.grad
            parameter.grad = None
    time.sleep(0.01)
"""
# No torch.optim: making an optimizer imports torch._dynamo, and the first step comes after 2 s.
LABEL = """
import gc
gc.disable()
from textual.app import App
from textual.widgets import Static
class Label(App):
    def compose(self): yield Static({text!r})
Label().run()
"""  # what Textual itself takes for its least application


def _bare_python_s() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.perf_counter() - began


def _first_step_s() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", TRAINING.format(steps=1)], check=True)
    return time.perf_counter() - began


def _first_frame_s(command: list[str], marker: bytes = MARKER) -> float:
    probe = start(command)
    try:
        return probe.wait_for(marker)
    finally:
        probe.close()


def main() -> None:
    """Interleave opening a record, starting a run, a label and a bare interpreter; print the
    medians.
    """
    from tui_support import write_run

    gputop = [sys.executable, "-c", "import sys; from gputop.cli import main; sys.exit(main())"]
    with tempfile.TemporaryDirectory() as folder:
        record = write_run(Path(folder) / "run", ranks=4, steps=500)
        names = ("open", "run", "python", "label", "numbers", "first_step")
        rows: dict[str, list[float]] = {name: [] for name in names}
        for attempt in range(ROUNDS):
            rows["python"].append(_bare_python_s())
            rows["label"].append(
                _first_frame_s([sys.executable, "-c", LABEL.format(text=MARKER.decode())])
            )
            rows["open"].append(_first_frame_s([*gputop, "open", str(record)]))
            target = str(Path(folder) / f"live{attempt}")
            rows["run"].append(_first_frame_s([*gputop, "run", "--run-dir", target, "sleep", "2"]))
            if attempt % 2:
                continue  # importing torch twice takes 10 s and more
            training = [sys.executable, "-c", TRAINING.format(steps=400)]
            target = str(Path(folder) / f"training{attempt}")
            rows["numbers"].append(
                _first_frame_s([*gputop, "run", "--run-dir", target, *training], NUMBERS)
            )
            rows["first_step"].append(_first_step_s())
    medians = {
        f"{name}_ms": round(1000 * statistics.median(values)) for name, values in rows.items()
    }
    print(
        json.dumps({"bench": "first_frame", "budget_ms": 400, "numbers_budget_ms": 3000, **medians})
    )


if __name__ == "__main__":
    main()
