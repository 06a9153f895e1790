"""How long until a record of 10 million steps is on the screen. One JSON line.

The file is really written (about 2.3 GB), so give TMPDIR room.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from pty_probe import start

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
STEPS = 10_000_000
CHUNK = 100_000
ROUNDS = 3
APP = """
import pathlib, sys
from gputop.app import Source, run_app
run_app(Source(pathlib.Path(sys.argv[1]), "replay"))
"""


def _write(folder: Path) -> Path:
    """A run of ten million steps; the whole file is written, half a megabyte at a time from one
    template.
    """
    import numpy as np
    from tui_support import START_NS, write_run

    from gputop_probes.record import layout
    from gputop_probes.record.reader import numpy_dtype

    run = write_run(folder, steps=1_000)
    path = run / "steps" / "rank-00000.bin"
    dtype = numpy_dtype([(n, t) for n, t in layout.dtype_description(layout.TABLES["steps"])])
    rows = np.resize(np.fromfile(path, dtype)[1:], CHUNK)
    with path.open("wb") as file:
        for first in range(0, STEPS, CHUNK):
            rows["step"] = np.arange(first, first + CHUNK)
            rows["t_end_ns"] = START_NS + (rows["step"].astype(np.int64) + 1) * 16_000_000
            file.write(rows.tobytes())
    return run


def main() -> None:
    """Time to the frame that shows the step count."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as name:
        run = _write(Path(name) / "run")
        frames, counts = [], []
        for _ in range(ROUNDS):
            probe = start([sys.executable, "-c", APP, str(run)], 120, 40)
            frames.append(probe.wait_for(b"Findings"))
            counts.append(probe.wait_for(b"10,000,000"))
            probe.close()
    result = {"first_frame_ms": round(1000 * statistics.median(frames)), "steps": STEPS}
    result["first_figures_ms"] = round(1000 * statistics.median(counts))
    print(json.dumps({"bench": "open_large", **result, "budget_ms": 1000}))


if __name__ == "__main__":
    main()
