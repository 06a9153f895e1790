"""The trace of a model: build it, make it fake, run two steps, write the log."""

from __future__ import annotations

import platform
from typing import Any, Dict, List, Optional

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from . import adapters, build, heads, losses, optimizers
from .hf import FLASH, as_for_real_tensors, register_flash
from .kernels import as_on_cuda
from .steps import Loop
from .tracker import Tracker

SHALLOW = 4
"""Repeated layers of a shallow trace, as `gputop_analysis.vram.deepen` takes it: a first, two alike, a last."""


def trace(setup: Dict[str, Any], source: Optional[str] = None, full: bool = False, steps: int = 2) -> Tracker:
    """Trace the steps of a setup; the tracker's log and ``meta`` are the answer."""
    notes: List[str] = []
    config = build.config_of(setup, source)
    depth = build.depth_of(config)
    if not full and depth > SHALLOW and build.uniform(config):
        build.set_depth(config, SHALLOW)
    model = build.build(config, build.weights_dtype(setup), attention_of(setup))
    model.config.use_cache = False
    tracker = Tracker()
    if losses.behave_like(model, setup.get("transformers") or ""):
        notes.append("the loss is computed as transformers %s does" % setup["transformers"])
    if setup.get("loss") in ("fused", "chunked") and not losses.fuse(model, setup["loss"], tracker.operator):
        notes.append("%s has no head over a vocabulary that a %s loss could take" % (config.model_type, setup["loss"]))
    model = adapters.adapt(model, setup, tracker, notes)
    if setup.get("checkpointing") == "full":
        checkpoint(model, bool(setup.get("lora")))
    with build.quiet(), as_on_cuda(), as_for_real_tensors(), FakeTensorMode(allow_non_fake_inputs=True), tracker:
        tracker.mark("init", 0)
        build.materialize(model)
        tracker.attach(model, model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer = optimizers.make(setup.get("optimizer") or "adamw", trained, model)
        loop = Loop(tracker, model, optimizer, lambda: heads.batch(config, setup))
        loop.clip = bool(setup.get("clip_grad", True))
        loop.accumulation = int(setup.get("accumulation") or 1)
        loop.run(steps)
    tracker.meta = {
        "versions": versions(),
        "setup": setup,
        "layers": build.depth_of(config),
        "depth": depth,
        "notes": notes,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "trained": sum(parameter.numel() for parameter in trained),
    }
    return tracker


def attention_of(setup: Dict[str, Any]) -> str:
    """The kind of attention by the name that transformers knows here."""
    asked = setup.get("attention") or "sdpa"
    return asked if asked != "flash" else FLASH if register_flash() else "sdpa"


def checkpoint(model: Any, adapted: bool) -> None:
    """Recompute each repeated layer in the backward, as ``gradient_checkpointing=True`` of the Trainer does."""
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    if adapted:
        model.enable_input_require_grads()


def versions() -> Dict[str, str]:
    """Of what decides about the memory of a step."""
    found = {"python": platform.python_version(), "torch": str(torch.__version__)}
    import sys

    for name in ("transformers", "peft"):
        module = sys.modules.get(name)
        if module is not None:
            found[name] = str(getattr(module, "__version__", ""))
    return found
