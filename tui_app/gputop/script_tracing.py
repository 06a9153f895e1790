"""Start the trace of a user's script in their interpreter, and read what it says of itself."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gputop.tracer_process import Progress, follow, last_line, tracer

if TYPE_CHECKING:
    from gputop_analysis.vram.eventlog import EventLog
    from gputop_analysis.vram.setup import ModelShape

_HUB_NAME = re.compile(r"""["']([\w.-]+/[\w.-]+|[\w.-]+)["']""")
_CONFIG = {
    "hidden": "hidden_size",
    "layers": "num_hidden_layers",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "max_position": "max_position_embeddings",
}
_SIMPLE = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "phi3",
    "gpt2",
    "gpt_neox",
    "opt",
    "olmo2",
)
"""Families whose configuration these keys describe in full."""


@dataclass(frozen=True, slots=True)
class ScriptTrace:
    """What came of a script."""

    log: EventLog | None
    how: str
    """``ran``, ``module`` (a model class of it was built), ``source`` (only read), or empty."""
    tried: tuple[dict[str, str], ...] = ()
    """Each way that was tried: ``way`` and ``outcome``."""
    traceback: str = ""
    """The script's own, where it failed."""
    pretrained: tuple[str, ...] = ()
    """Models that the source names."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of a setup that the source gives."""
    notes: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()
    """What of the answer is not the script's own, in few words each."""
    syntax_error: str = ""
    """Why the source cannot be parsed."""


def trace_script(
    script: Path,
    arguments: Sequence[str] = (),
    python: str | None = None,
    *,
    world: int = 0,
    execute: bool = True,
    progress: Progress | None = None,
) -> ScriptTrace:
    """Trace a script: run it on fake tensors, else build a model class of it, else read which model
    it names.

    Args:
        script: a Python file.
        arguments: its own.
        python: the interpreter; this one by default.
        world: ranks that it is to believe in; 0: as it says itself.
        execute: whether its code may run at all.
        progress: told each line of what happens; None: they go to stderr.

    Raises:
        ValueError: the interpreter cannot be started, or the trace ended without an answer.
    """
    from gputop.tracing import without_gpu_and_network
    from gputop_analysis.vram.eventlog import load
    from gputop_tracer.sandbox.scratch import scratch

    with scratch() as folder:
        out, configs = Path(folder, "log.json.gz"), Path(folder, "configs.json")
        configs.write_text(json.dumps(known_configs(script, arguments)), encoding="utf-8")
        command = [str(script), "--out", str(out), "--configs", str(configs)]
        command += ["--world", str(world)] if world else []
        command += [] if execute else ["--no-execute"]
        environment = without_secrets(without_gpu_and_network())
        environment["TMPDIR"] = folder  # which goes when we do
        with tracer(
            [*command, "--", *arguments],
            python,
            environment,
            stdin=_input(),
            stdout=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            last = last_line(follow(process, progress, errors=True)).strip()
            output = process.stdout.read()
        try:
            result = json.loads(output)
        except ValueError:
            raise ValueError(
                f"the trace of {script} ended without an answer: {last or 'it said nothing'}"
            ) from None
        return _script_trace(result, load(out) if out.exists() else None)


def _script_trace(result: dict[str, Any], log: EventLog | None) -> ScriptTrace:
    """What the tracer says of itself, as JSON."""
    return ScriptTrace(
        log=log,
        how=str(result.get("how") or ""),
        tried=tuple(result.get("tried") or ()),
        traceback=str(result.get("traceback") or ""),
        pretrained=tuple(result.get("pretrained") or ()),
        options=dict(result.get("options") or {}),
        notes=tuple(result.get("notes") or ()),
        guessed=tuple(result.get("guessed") or ()),
        syntax_error=str(result.get("syntax_error") or ""),
    )


def without_secrets(environment: dict[str, str]) -> dict[str, str]:
    """The variables for a stranger's script: what looks like a credential says nothing."""
    from gputop_probes.redact import HIDDEN, is_secret_name, is_secret_value

    return {
        name: HIDDEN if is_secret_name(name) or is_secret_value(value) else value
        for name, value in environment.items()
    }


def known_configs(script: Path, arguments: Sequence[str] = ()) -> dict[str, dict[str, Any]]:
    """Hugging Face configurations of catalog models in a source or arguments, undownloaded."""
    from gputop_analysis import catalog

    try:
        source = script.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    named = {catalog.hf_id(shape): shape for shape in catalog.models() if shape.family in _SIMPLE}
    names = {word.rpartition("=")[2] for word in arguments}
    return {
        name: _config(named[name]) for name in {*_HUB_NAME.findall(source), *names} if name in named
    }


def _config(shape: ModelShape) -> dict[str, Any]:
    config = {key: value for name, key in _CONFIG.items() if (value := getattr(shape, name))}
    return {"model_type": shape.family, "tie_word_embeddings": shape.tied_embeddings, **config}


def _input() -> int | None:
    """What is piped into this command is the script's; of a terminal it reads nothing."""
    try:
        return None if not os.isatty(0) else subprocess.DEVNULL
    except OSError:  # there is no standard input
        return subprocess.DEVNULL
