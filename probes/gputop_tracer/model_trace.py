"""The trace of a model: build it, make it fake, run two steps."""

from __future__ import annotations

import json
import os
import platform
import sys
from contextlib import ExitStack, nullcontext
from importlib import metadata
from typing import Any, Callable, Dict, List, Optional

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from gputop_tracer.model import (
    adapters,
    build,
    checkpointing,
    diffusion,
    factory,
    fused,
    heads,
    losses,
    networks,
    parts,
    state_space,
    vision,
)
from gputop_tracer.model.hf import FLASH, as_for_real_tensors, register_flash
from gputop_tracer.operators.kernels import as_on_cuda
from gputop_tracer.operators.known_values import Knowing
from gputop_tracer.parallel import (
    expert_parallel,
    pipeline,
    tensor_parallel,
    wrappers,
    zero,
    zero_stages,
)
from gputop_tracer.tracking.garbage import passed_over
from gputop_tracer.tracking.tracker import LOSS_PHASES, Tracker
from gputop_tracer.training import interleaved, optimizers, precision
from gputop_tracer.training.interleaved import InterleavedLoop
from gputop_tracer.training.steps import Loop

SHALLOW = 4
"""Layers of a shallow trace for `gputop_analysis.vram.deepen`: a first, two alike, a last."""
_LOSS = "the loss of a model that returns none is the mean of its output"
_LOW = (torch.float16, torch.bfloat16)
_WHOLE_EXPERTS = (5, 0)
"""The version of transformers from which on the experts of a layer are one tensor."""


class TraceJob:
    """One setup on its way through a trace."""

    def __init__(self, setup: Dict[str, Any], full: bool) -> None:
        self.setup = setup
        self.full = full
        self.notes: List[str] = []
        self.tracker = Tracker()
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.below: Any = nullcontext()
        """A mode between the fake tensors and the tracker."""
        self.rotary: Any = nullcontext()
        """While it is on, queries and keys are rotated as the setup's kernels do it."""
        self.scans: Any = nullcontext()
        """While it is on, state-space layers are computed as their kernels do it."""
        self.depth = self.layers = 0
        self.model: Any = None
        self.loop: Optional[Loop] = None
        self.make_batch: Callable[[], Any] = lambda: ((), {})
        self.around: Callable[[Any], Any] = lambda model: model
        """Puts what is not trained around the model, once that lies on the device."""

    def of_transformers(self, source: Optional[str]) -> None:
        """A model of transformers, by its configuration."""
        setup = self.setup
        config = build.config_of(setup, source)
        self._set_depth(config)
        heads.experts_in_one_product(config)
        heads.without_chance(config)
        self.model = build.build(config, build.weights_dtype(setup), attention_of(setup))
        self.scans = state_space.kernels(self.model)
        self._note_what_differs(config)
        if losses.behave_like(self.model, setup.get("transformers") or ""):
            self.notes.append(
                "the loss is computed as transformers %s does" % setup["transformers"]
            )
        if setup.get("kernels"):
            fused.apply(
                self.model, self.tracker.operator, self.notes, bool(setup.get("gated_kernel", True))
            )
            losses.of_kernel(self.model, fused.cross_entropy)
            self.rotary = fused.rotary(self.model)
        self._set_loss(config)
        self.make_batch = lambda: ((), self._batch(config))
        if heads.task(config) == "image_text":
            self.below = Knowing(lambda: self.tracker.phase in LOSS_PHASES)
            vision_inputs = vision.inputs(config, setup)
            self.make_batch = lambda: ((), vision.fake(self.mode, vision_inputs))

    def _set_depth(self, config: Any) -> None:
        """A stage has its own layers only; of layers that are alike a few stand for all."""
        setup = self.setup
        if pipeline.stages(setup) > 1:
            build.set_depth(config, pipeline.depth(build.depth_of(config), setup))
        self.depth = self.layers = build.depth_of(config)
        if self.full or self.depth <= SHALLOW or adapters.tells_layers_apart(setup):
            return
        if build.uniform(config) and interleaved.chunks(setup) == 1:
            build.set_depth(config, SHALLOW)
            self.layers = SHALLOW

    def _note_what_differs(self, config: Any) -> None:
        """From the training that the setup means."""
        if state_space.are_in(self.model):
            self.notes.append(state_space.NOTE)
        elif "mamba" in config.model_type:
            self.notes.append(state_space.WITHOUT)
        if heads.task(config) == "sound":
            self.notes.append(
                "%d s of sound a sample; the loss is the mean of the output, without CTC's own "
                "temporaries" % heads.SECONDS
            )
        used = getattr(build.text_config(self.model.config), "_attn_implementation", "")
        if self.setup.get("attention") == "flash" and used not in ("", FLASH):
            self.notes.append(
                "transformers has no FlashAttention that can be traced for %s: its %s attention is"
                % (config.model_type, used)
            )

    def _set_loss(self, config: Any) -> None:
        """In the place of the model's own, where the setup says another."""
        setup = self.setup
        kind = setup.get("loss") or "plain"
        if setup.get("recipe") == "litgpt" and kind != "fused":
            pieces = losses.LITGPT_PIECE if kind == "chunked" else setup["seq"]
            self.model.loss_function = losses.Litgpt(self.model, int(pieces))
            return
        if kind == "plain":
            return
        if not losses.fuse(self.model, kind, self.tracker.operator, bool(setup.get("compile"))):
            self.notes.append(
                "%s has no head over a vocabulary that a %s loss could take"
                % (config.model_type, kind)
            )

    def _batch(self, config: Any) -> Dict[str, Any]:
        inputs = heads.batch(config, self.setup, self._input_dtype())
        if pipeline.stages(self.setup) == 1:
            return inputs
        hidden = int(build.text_config(config).hidden_size)
        chunk = getattr(self.loop, "chunk", 0)
        begins = pipeline.number(self.setup) == chunk == 0
        last = pipeline.is_last(self.setup) and chunk == interleaved.chunks(self.setup) - 1
        return pipeline.inputs(
            inputs,
            hidden,
            build.compute_dtype(self.setup),
            setup=self.setup,
            begins=begins,
            ends_here=last,
        )

    def _input_dtype(self) -> torch.dtype:
        """Of pixels and sound as they come from a loader."""
        if autocast_dtype(self.setup) is not None:
            return torch.float32
        return build.weights_dtype(self.setup)

    def of_diffusers(self, values: Dict[str, Any]) -> None:
        """A denoiser of diffusers, by its configuration."""
        training = diffusion.DenoiserTraining(values, self.setup)
        frozen = diffusion.frozen(training)
        self.model = diffusion.build(values, build.weights_dtype(self.setup))
        config = self.model.config
        self.make_batch = lambda: ((), diffusion.batch(config, training))
        self.around = lambda model: diffusion.step(model, training, frozen, self.tracker)
        self.notes += training.notes()

    def of_network(self, name: str) -> None:
        """A network of timm or torchvision, by its name."""
        network, shape = networks.build(name, int(self.setup.get("image_size") or 0))
        self.model = networks.Classifier(network).to(build.weights_dtype(self.setup))
        rows, dtype = int(self.setup.get("micro_batch") or 1), self._input_dtype()
        self.make_batch = lambda: ((), networks.batch(shape, rows, dtype))
        self.notes.append("images of %d x %d pixels, cross-entropy over their classes" % shape[1:])

    def of_factory(self, name: str) -> None:
        """Any ``nn.Module``, by ``module:callable``."""
        self.model, module = factory.load(name)
        self.model.to(build.weights_dtype(self.setup))
        self.make_batch = factory.batch_maker(self.model, module, self.setup)
        self.notes.append(_LOSS)

    def of_module(self, model: Any, inputs: Any) -> None:
        """An ``nn.Module`` that is there, with what one call of it takes."""
        self.model = factory.without_data(model)
        if self.setup.get("weights"):
            self.model.to(build.weights_dtype(self.setup))
        if inputs is not None:
            self.make_batch = factory.batch_like(inputs)
        else:
            self.make_batch = self._named_batch()
        self.notes.append(_LOSS)

    def _named_batch(self) -> Callable[[], Any]:
        try:
            return factory.batch_maker(self.model, None, self.setup)
        except factory.NoBatchError as error:
            problem = str(error).partition("?")[0]
            raise factory.NoBatchError(
                "%s? Give `inputs`, what one call takes" % problem
            ) from error

    def prepare(self) -> None:
        """Freeze, adapt, checkpoint; all on the meta device."""
        with build.quiet():
            optimizers.load(optimizers.of_recipe(self.setup))
            if expert_parallel.degree(self.setup) > 1:
                expert_parallel.spread(self.model, self.setup, self.notes)
            if tensor_parallel.degree(self.setup) > 1:
                tensor_parallel.split(self.model, self.setup, self.notes)
            if pipeline.stages(self.setup) > 1:
                if interleaved.chunks(self.setup) > 1:
                    schedule = interleaved
                else:
                    schedule = pipeline
                self.model = schedule.cut(self.model, self.setup, self.notes)
            parts.freeze(self.model, self.setup.get("freeze") or ())
            self.model = adapters.adapt(self.model, self.setup, self.tracker, self.notes)
            checkpointing.apply(self.model, self.setup, self.notes)
            if zero.stage_of(self.setup):
                zero.in_one_type(self.model, build.compute_dtype(self.setup))

    def run(self, steps: int) -> None:
        """The steps, on fake tensors."""
        setup, tracker = self.setup, self.tracker
        with ExitStack() as contexts:
            for context in (
                build.quiet(),
                as_on_cuda(),
                as_for_real_tensors(),
                self.rotary,
                self.scans,
                self.mode,
                self.below,
                tracker,
            ):
                contexts.enter_context(context)
            tracker.mark("init", 0)
            shared = {**setup, "repeated": self._repeated}
            self.model = wrappers.place(self.model, shared, tracker, _head(self.model), self.notes)
            placed, self.model = self.model, self.around(self.model)
            trained = [weight for weight in self.model.parameters() if weight.requires_grad]
            loop = self.loop = self._loop(trained)
            if wrappers.casts(setup) or zero.stage_of(setup):
                loop.autocast = None
            else:
                loop.autocast = autocast_dtype(setup)
            loop.on_host = bool(setup.get("offload_activations"))
            steps_itself = setup.get("optimizer_in_backward") or zero.stage_of(setup)
            loop.clip = bool(setup.get("clip_grad", True)) and not steps_itself
            loop.accumulation = int(setup.get("accumulation") or 1)
            loop.in_flight = pipeline.in_flight(setup)
            if loop.in_flight == 1:
                loop.no_sync = wrappers.waiting(placed, setup)
            loop.announce = wrappers.announcing(placed, setup)
            loop.passes_on = not pipeline.is_last(setup)
            loop.run(steps)
            self._write_meta(trained)

    def _loop(self, trained: List[Any]) -> Loop:
        arguments = self.tracker, self.model, self._optimizer(trained), self.make_batch
        if interleaved.chunks(self.setup) > 1:
            return InterleavedLoop(self.setup, *arguments)
        return Loop(*arguments)

    @property
    def _repeated(self) -> float:
        """Layers that one of the traced ones stands for, in the mean."""
        return self.depth / self.layers if self.layers else 1.0

    def _optimizer(self, trained: List[Any]) -> Any:
        setup = self.setup
        name = optimizers.of_recipe(setup)

        def make(weights: List[Any]) -> Any:
            rank = int(setup.get("galore_rank") or 128)
            return optimizers.make(name, weights, self.model, rank)

        if zero.stage_of(setup) and trained and name != "none":
            return zero_stages.optimizer(setup, self.tracker, trained, self._repeated, make)
        if setup.get("optimizer_in_backward"):
            return precision.InBackward(self.tracker, trained, make)
        if setup.get("master_weights") and any(weight.dtype in _LOW for weight in trained):
            return precision.MasterWeights(
                self.tracker, trained, make, setup.get("grad_dtype") == "fp32"
            )
        groups = expert_parallel.by_mesh(trained)
        if len(groups) < 2:
            return make(trained)
        return optimizers.Several([make(group) for group in groups])

    def _write_meta(self, trained: List[Any]) -> None:
        self.tracker.meta = {
            "versions": versions(),
            "setup": self.setup,
            "layers": self.layers,
            "depth": self.depth,
            "notes": self.notes,
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "trained": sum(weight.numel() for weight in trained),
        }


def trace(
    setup: Dict[str, Any],
    source: Optional[str] = None,
    *,
    full: bool = False,
    steps: int = 2,
    made_by: Any = "",
    inputs: Any = None,
) -> Tracker:
    """Trace the steps of a setup; the tracker's ``log`` and ``meta`` are the answer.

    ``source`` names a configuration to take instead of the setup's shape, ``made_by`` a
    ``module:callable`` or an ``nn.Module``, which is called with ``inputs``.
    """
    job = TraceJob(setup, full)
    job.notes += refuse(setup)
    values = _values(source)
    if isinstance(made_by, torch.nn.Module):
        job.of_module(made_by, inputs)
    elif made_by:
        job.of_factory(made_by)
    elif values.get(diffusion.CLASS):
        job.of_diffusers(values)
    elif values.get(networks.NAME):
        job.of_network(values[networks.NAME])
    else:
        job.of_transformers(source)
    job.prepare()
    with passed_over():
        job.run(steps)
    return job.tracker


def _values(source: Optional[str]) -> Dict[str, Any]:
    """What a configuration's file holds; nothing where the source is no file."""
    if not source or not os.path.isfile(source):
        return {}
    with open(source, encoding="utf-8") as text:
        return dict(json.load(text))


def refuse(setup: Dict[str, Any]) -> List[str]:
    """What the trace has no memory signatures for ends it; what it takes for something else is a
    note.

    Raises:
        ValueError: a kind of training that only the other tiers know.
    """
    if setup.get("kernels") and tensor_parallel.degree(setup) > 1:
        raise ValueError(
            "fused kernels under tensor parallelism are not traced: use the formula tier"
        )
    if setup.get("recipe") == "megatron":
        raise ValueError(
            "Megatron-LM runs modules of its own: fused norms and cross-entropy, weight gradients "
            "added straight into fp32 buffers. Those of transformers would come out too high: use "
            "the formula tier"
        )
    if setup.get("recipe") == "unsloth":
        raise ValueError(
            "Unsloth replaces layers by kernels of its own, which are not traced: use the formula "
            "tier"
        )
    if setup.get("quantized") and setup["model"].get("experts") and _had_single_experts(setup):
        raise ValueError(
            "transformers %s quantised each expert by itself; the one here "
            "keeps all experts of a layer in one tensor, which "
            "bitsandbytes leaves in 16 bits: use the formula tier" % setup["transformers"]
        )
    if setup.get("roles"):
        raise ValueError("several models on one GPU (RLHF) are not traced: use the formula tier")
    if setup.get("lengths") == "varied":
        raise ValueError("lengths varied is not traced: use the formula tier")
    notes = []
    if setup.get("compile"):
        notes.append("torch.compile is left out: the memory is that of the eager step")
    if setup.get("dtype") == "fp8":
        notes.append("fp8 products are traced in bf16: their scaled copies are not counted")
    return notes


def _had_single_experts(setup: Dict[str, Any]) -> bool:
    """Whether the run's transformers had a module for each expert, and the one here has not."""
    release = losses.version(setup.get("transformers") or "")
    return bool(release) and release < _WHOLE_EXPERTS <= losses.version(
        metadata.version("transformers")
    )


def attention_of(setup: Dict[str, Any]) -> str:
    """The kind of attention by the name that transformers knows here."""
    requested = setup.get("attention") or "sdpa"
    if requested != "flash":
        return requested
    is_registered = register_flash(
        setup["model"].get("family") or "", setup.get("transformers") or ""
    )
    return FLASH if is_registered else "sdpa"


def autocast_dtype(setup: Dict[str, Any]) -> Optional[torch.dtype]:
    """Autocast's type: where it is asked for, or fp32 weights meet a lower precision."""
    compute = build.compute_dtype(setup)
    on = bool(setup.get("autocast")) or build.weights_dtype(setup) == torch.float32
    return compute if compute in _LOW and on else None


def versions() -> Dict[str, str]:
    """Of what decides about the memory of a step."""
    versions_ = {"python": platform.python_version(), "torch": str(torch.__version__)}
    for name in ("transformers", "diffusers", "timm", "peft"):
        module = sys.modules.get(name)
        if module is not None:
            versions_[name] = str(getattr(module, "__version__", ""))
    return versions_


def _head(model: Any) -> Any:
    get = getattr(model, "get_output_embeddings", None)
    try:
        return get() if get is not None else None
    except NotImplementedError:
        return None
