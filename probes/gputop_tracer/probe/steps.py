"""A few real training steps of a setup, measured: ``--probe --setup FILE --out FILE [--device
cuda|cpu] [--steps N]``.

On a GPU the caching allocator's own counters are read, the peak of each phase apart. A CPU has no
such counter, so that only weights, gradients, optimizer states and what the forward keeps for the
backward are counted there.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import nullcontext
from typing import Any, Callable, Dict, List, Optional, Tuple

import torch

from gputop_tracer.model import checkpointing, parts
from gputop_tracer.model.build import config_of, quiet, weights_dtype
from gputop_tracer.model.heads import auto_class, task
from gputop_tracer.model_trace import autocast_dtype, versions
from gputop_tracer.progress import NO_LIBRARY, say
from gputop_tracer.training.steps import loss_of

from . import factory

WARM = 2
"""Steps before the measured one: the first makes the optimizer's states, the second settles the
allocator.
"""


def main(arguments: List[str]) -> int:
    """Run the steps and write what was measured; the exit code."""
    options = _parser().parse_args(arguments)
    with open(options.setup, encoding="utf-8") as text:
        setup = json.load(text)
    try:
        device = _device(options.device)
        probe = Probe(setup, options.config, device, options.factory)
        measured = probe.run(max(options.steps, WARM + 1))
    except ImportError as error:
        say(
            "error: %s has no %s: install it there, or name another with --python"
            % (sys.executable, error.name)
        )
        return NO_LIBRARY
    except Exception as error:  # one line: the caller shows it
        lines = str(error).strip().splitlines()
        if isinstance(error, ValueError) and lines:
            prefix = ""
        else:
            prefix = type(error).__name__ + ": "
        say("error: %s%s" % (prefix, lines[0] if lines else "no message"))
        return 1
    with open(options.out, "w", encoding="utf-8") as out:
        json.dump(measured, out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="gputop_tracer --probe", description=__doc__)
    parser.add_argument("--setup", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--config")
    parser.add_argument("--factory", default="")
    parser.add_argument("--device", default="")
    parser.add_argument("--steps", type=int, default=WARM + 1)
    return parser


def _device(asked: str) -> str:
    if asked == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            "this Python's torch sees no GPU: probe with --device cpu, or "
            "name another with --python"
        )
    return asked or ("cuda" if torch.cuda.is_available() else "cpu")


class Probe:
    """One setup on one device."""

    def __init__(
        self, setup: Dict[str, Any], source: Optional[str], device: str, made_by: str = ""
    ):
        self.setup, self.device = setup, device
        self.cuda = device == "cuda"
        self.phases: Dict[str, int] = {}
        _refuse(setup)
        torch.manual_seed(0)
        if self.cuda:
            torch.cuda.reset_peak_memory_stats()
        if made_by:
            self._of_factory(made_by)
        else:
            self._of_transformers(source)
        self.trained = [
            parameter for parameter in self.model.parameters() if parameter.requires_grad
        ]
        self.optimizer = _optimizer(setup.get("optimizer") or "adamw", self.trained)
        self.autocast = autocast_dtype(setup)

    def _of_transformers(self, source: Optional[str]) -> None:
        config = config_of(self.setup, source)
        if task(config) not in ("causal", "masked", "seq2seq"):
            raise ValueError(
                "a probe makes batches of text only: probe the script, `gputop probe train.py`"
            )
        self.model = self._build(config)
        rows, seq = int(self.setup.get("micro_batch") or 1), int(self.setup.get("seq") or 2048)
        vocab = int(getattr(config, "vocab_size", 2))

        def batch() -> Any:
            ids = torch.randint(0, vocab, (rows, seq), device=self.device)
            return (), {"input_ids": ids, "labels": ids}

        self.make_batch: Callable[[], Any] = batch

    def _of_factory(self, name: str) -> None:
        model, module = factory.made(name, self.device)
        self.model = self._prepared(model.to(weights_dtype(self.setup)))
        self.make_batch = factory.batches(model, module, self.setup, self.device)

    def run(self, steps: int) -> Dict[str, Any]:
        """The measurements of the last of ``steps`` steps."""
        figures: Dict[str, Any] = {}
        for step in range(steps):
            say("step %d of %d" % (step + 1, steps))
            figures = self._step()
        tensors = [*self.model.parameters(), *self.model.buffers()]
        figures["weights_bytes"] = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        figures["optimizer_bytes"] = _state_bytes(self.optimizer)
        figures.update(
            self._totals(),
            device=self.device,
            steps=steps,
            phases_bytes=self.phases,
            versions=versions(),
        )
        return figures

    def _build(self, config: Any) -> Any:
        make = auto_class(config).from_config
        attention = {"flash": "flash_attention_2"}.get(
            self.setup.get("attention") or "sdpa", self.setup.get("attention") or "sdpa"
        )
        with quiet(), torch.device(self.device):
            model = make(
                config, attn_implementation=attention, torch_dtype=weights_dtype(self.setup)
            )
            model.train()
            if hasattr(model.config, "use_cache"):
                model.config.use_cache = False
            return self._prepared(model)

    def _prepared(self, model: Any) -> Any:
        """Frozen, adapted and checkpointed as the setup says."""
        parts.freeze(model, self.setup.get("freeze") or ())
        if self.setup.get("lora"):
            model = _adapted(model, self.setup["lora"])
        checkpointing.apply(model, self.setup, [])
        return model

    def _step(self) -> Dict[str, Any]:
        figures: Dict[str, Any] = {}
        kept_tensors = _Kept(self.model) if not self.cuda else None
        for _ in range(int(self.setup.get("accumulation") or 1)):
            before = self._allocated()
            with _hooks(kept_tensors):
                loss = self._phase("forward", self._forward)
            if kept_tensors is not None:
                figures["activations_bytes"] = kept_tensors.bytes
            else:
                figures["activations_bytes"] = self._allocated() - before
            self._phase("backward", loss.backward)
            del loss
        figures["gradients_bytes"] = sum(_size(parameter.grad) for parameter in self.trained)
        if self.optimizer is not None:
            if self.setup.get("clip_grad", True):
                self._phase("clip", lambda: torch.nn.utils.clip_grad_norm_(self.trained, 1.0))
            self._phase("optimizer", self.optimizer.step)
            self.optimizer.zero_grad(set_to_none=True)
        return figures

    def _forward(self) -> torch.Tensor:
        positional, named = self.make_batch()
        precision: Any = nullcontext()
        if self.autocast is not None:
            precision = torch.autocast(self.device, dtype=self.autocast)
        with precision:
            return loss_of(self.model(*positional, **named))

    def _phase(self, name: str, work: Any) -> Any:
        """Run one phase; on CUDA with its own peak."""
        if not self.cuda:
            return work()
        torch.cuda.reset_peak_memory_stats()
        result = work()
        torch.cuda.synchronize()
        self.phases[name] = max(self.phases.get(name, 0), torch.cuda.max_memory_allocated())
        return result

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated() if self.cuda else 0

    def _totals(self) -> Dict[str, Any]:
        if not self.cuda:
            return {
                "peak_allocated_bytes": None,
                "peak_reserved_bytes": None,
                "gpu": None,
                "device_used_bytes": None,
            }
        free, total = torch.cuda.mem_get_info()
        return {
            "peak_allocated_bytes": max(self.phases.values()),
            "peak_reserved_bytes": torch.cuda.max_memory_reserved(),
            "device_used_bytes": total - free,
            "gpu": torch.cuda.get_device_name(),
        }


class _Kept:
    """Bytes that the forward keeps for the backward, each storage once, the weights left out."""

    def __init__(self, model: Any):
        self._seen = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self.bytes = 0

    def pack(self, tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self._seen:
            self._seen.add(storage.data_ptr())
            self.bytes += storage.nbytes()
        return tensor


def _hooks(kept: Optional[_Kept]) -> Any:
    if kept is None:
        return nullcontext()
    return torch.autograd.graph.saved_tensors_hooks(kept.pack, lambda tensor: tensor)


def _refuse(setup: Dict[str, Any]) -> None:
    """What real steps on one GPU cannot show."""
    parallel = setup.get("parallel") or {}
    if any(int(parallel.get(name) or 1) > 1 for name in ("dp", "tp", "pp", "cp", "ep")):
        raise ValueError(
            "a probe runs on one GPU: leave the parallel options away, or run "
            "the script under `gputop run`"
        )
    for name, plain in (
        ("quantized", ""),
        ("loss", "plain"),
        ("roles", []),
        ("kernels", False),
        ("optimizer_in_backward", False),
    ):
        if (setup.get(name) or plain) != plain:
            raise ValueError(
                "a probe has no %s of its own: probe the script that does "
                "it, `gputop probe train.py`" % name
            )


def _adapted(model: Any, lora: Dict[str, Any]) -> Any:
    from peft import LoraConfig, get_peft_model

    targets = list(lora.get("targets") or ["q_proj", "v_proj"])
    config = LoraConfig(
        r=int(lora.get("rank") or 16),
        lora_dropout=float(lora.get("dropout") or 0.0),
        target_modules="all-linear" if targets == ["all-linear"] else targets,
        use_dora=bool(lora.get("dora")),
    )
    return get_peft_model(model, config, autocast_adapter_dtype=lora.get("dtype", "fp32") == "fp32")


def _optimizer(name: str, trained: List[Any]) -> Any:
    if name == "none" or not trained:
        return None
    simple: Dict[str, Tuple[Any, Dict[str, Any]]] = {
        "adamw": (torch.optim.AdamW, {"lr": 1e-4}),
        "adamw-fused": (torch.optim.AdamW, {"lr": 1e-4, "fused": True}),
        "adamw-loop": (torch.optim.AdamW, {"lr": 1e-4, "foreach": False}),
        "sgd": (torch.optim.SGD, {"lr": 1e-3}),
        "sgd-momentum": (torch.optim.SGD, {"lr": 1e-3, "momentum": 0.9}),
    }
    if name in simple:
        optimizer_class, options = simple[name]
        return optimizer_class(trained, **options)
    if name == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(trained, lr=1e-3, scale_parameter=False, relative_step=False)
    eight = {
        "adamw-8bit": "AdamW8bit",
        "adamw-paged": "PagedAdamW",
        "adamw-paged-8bit": "PagedAdamW8bit",
        "lion-8bit": "Lion8bit",
    }
    if name in eight:
        import bitsandbytes  # pyright: ignore[reportMissingImports]

        return getattr(bitsandbytes.optim, eight[name])(trained, lr=1e-4)
    raise ValueError("a probe has no optimizer %s: probe the script that brings it" % name)


def _state_bytes(optimizer: Any) -> int:
    state = getattr(optimizer, "state", None) or {}
    return sum(_size(value) for entry in state.values() for value in entry.values())


def _size(tensor: Any) -> int:
    if isinstance(tensor, torch.Tensor):
        return tensor.numel() * tensor.element_size()
    return 0
