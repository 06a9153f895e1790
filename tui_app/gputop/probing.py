"""Start a probe, a few real steps in the user's interpreter, and read what it measured."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputop.tracer_process import FAILS, Progress, follow, last_line, tracer
from gputop_tracer.progress import NO_LIBRARY

if TYPE_CHECKING:
    from gputop_analysis.vram.setup import Setup


def probe(
    setup: Setup,
    python: str | None = None,
    *,
    device: str = "",
    steps: int = 3,
    progress: Progress | None = None,
    factory: str = "",
) -> dict[str, Any]:
    """What a few steps took, in bytes: ``weights_bytes``, ``gradients_bytes``, ``optimizer_bytes``,
    ``activations_bytes`` (kept at the end of the forward), ``peak_allocated_bytes``,
    ``peak_reserved_bytes`` and ``phases_bytes`` (None and empty on a CPU), ``device``, ``gpu``,
    ``versions``.

    Args:
        setup: the model and how it is trained.
        python: the interpreter whose torch runs them; None: this one.
        device: ``cuda`` or ``cpu``; empty: the GPU if there is one.
        steps: how many.
        progress: told each line of what happens; None: they go to stderr.
        factory: ``module:callable`` that gives the ``nn.Module``, instead of a model of
            transformers.

    Raises:
        ImportError: the interpreter has no torch or no transformers.
        ValueError: the setup cannot be probed there; the message says why.
    """
    from gputop.models import configuration

    with tempfile.TemporaryDirectory(prefix="gputop-probe-") as folder:
        setup_file, out = Path(folder, "setup.json"), Path(folder, "measured.json")
        setup_file.write_text(json.dumps(asdict(setup)), encoding="utf-8")
        command = ["--probe", "--setup", str(setup_file), "--out", str(out)]
        command += ["--device", device] if device else []
        command += ["--steps", str(steps)]
        command += ["--factory", factory] if factory else []
        if config := configuration(setup.model):
            command += ["--config", config]
        env = {**os.environ, "HF_HUB_OFFLINE": "1"}
        if setup.allocator:
            env["PYTORCH_CUDA_ALLOC_CONF"] = setup.allocator
        with tracer(command, python, env) as process:
            last = last_line(follow(process, progress)).strip()
            code = process.wait()
        if code or not out.exists():
            error_type = ImportError if code == NO_LIBRARY else ValueError
            raise error_type(last.removeprefix(FAILS) or f"the probe ended with exit code {code}")
        return json.loads(out.read_text(encoding="utf-8"))
