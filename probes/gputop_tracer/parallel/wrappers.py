"""Data-parallel wrappers around a model: a setup's, and the memory it takes on rank 0."""

from __future__ import annotations

import functools
import importlib
from contextlib import contextmanager, nullcontext
from typing import Any, Callable, Dict, Iterator, List

import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from gputop_tracer.model import build, checkpointing
from gputop_tracer.tracking.place import layer_of, repeated_layers
from gputop_tracer.tracking.tracker import Tracker

from . import expert_parallel, groups, zero

Setup = Dict[str, Any]
_PLAIN_LOOPS = ("litgpt", "plain")
"""Recipes whose loop is PyTorch's own: ``PLAIN_LOOPS`` of ``gputop_analysis/vram/setup.py``."""


def place(
    model: nn.Module, setup: Setup, tracker: Tracker, head: Any, notes: List[str]
) -> nn.Module:
    """Give the model its data parallelism's storages, tell the tracker of it, and wrap it."""
    sharding, world = sharding_of(setup)
    refuse(setup)
    if int((setup.get("parallel") or {}).get("cp") or 1) > 1:
        notes.append(
            "CP: a rank has its part of the sequence; what attention receives of "
            "others' is not counted"
        )
    if world == 1 or sharding == "none":
        build.materialize(model)
        tracker.attach(model, head)
        return model
    groups.start(world)
    groups.keep_shapes_aside(tracker)
    tracker.stream = groups.current_stream
    notes.append("rank 0 of %d data-parallel ranks; the others are not run" % world)
    return _WRAPPERS[sharding](model, setup, tracker, head)


def refuse(setup: Setup) -> None:
    """What the trace does not know.

    Raises:
        ValueError: a kind of parallelism that only the other tiers know.
    """
    parallel = setup.get("parallel") or {}
    sharding, world = sharding_of(setup)
    expert_parallel.refuse(setup)
    if int(parallel.get("cp") or 1) > 1 and (
        setup.get("attention") == "eager" or setup.get("images")
    ):
        raise ValueError(
            "CP is traced with fused attention over text; the formula tier knows the rest"
        )
    if world > 1 and sharding != "none" and sharding not in _WRAPPERS:
        raise ValueError("%s is not traced; the formula tier knows it" % sharding)
    if (parallel.get("offload") or "none") != "none":
        raise ValueError(
            "offload to the host is not traced under sharding; the formula tier knows it"
        )


def sharding_of(setup: Setup) -> Any:
    """(kind of sharding, ranks that share what it splits: data and context parallel ones)."""
    return (setup.get("parallel") or {}).get("sharding") or "none", zero.ranks(setup)


def attach_sharded(
    tracker: Tracker, model: nn.Module, head: Any, shard: Callable[[], nn.Module]
) -> nn.Module:
    """Materialise on the host, shard onto the device, name shards by unwrapped paths."""
    with tracker.on_host():
        build.materialize(model)
    layers = repeated_layers(model)
    tracker.layers = {**tracker.layers, **layers}
    tracker.places.add(model, layers)
    paths = {id(module): path for path, module in model.named_modules()}
    if head is not None:
        tracker.places.heads.add(paths[id(head)])
    wrapped = shard()
    for module in wrapped.modules():
        inner = getattr(module, "_fsdp_wrapped_module", None)
        if inner is not None:
            tracker.places.adopt(module, inner)
            _know_flat(tracker, module, paths.get(id(inner), ""))
        path = paths.get(id(module), "")
        for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            tracker.places.know(tensor, (path, layer_of(path, layers)))
            tracker.tag(tensor, "weights", path)
            tracker.watch_gradient(tensor)
    return wrapped


def _know_flat(tracker: Tracker, unit: Any, path: str) -> None:
    """An FSDP1 unit's flat parameter, and its gradient, which is set after the backward."""
    handle = unit._handle
    if handle is None:
        return
    flat = handle.flat_param
    tracker.places.know(flat, (path, layer_of(path, tracker.layers)))
    mark = tracker.mark

    def mark_and_tag(phase: str, step: Any = None) -> None:
        mark(phase, step)
        if phase in ("clip", "optimizer") and flat.grad is not None:
            tracker.tag(flat.grad, "gradients", path)

    tracker.mark = mark_and_tag  # type: ignore[method-assign]


def _ddp(model: nn.Module, setup: Setup, tracker: Tracker, head: Any) -> nn.Module:
    from .ddp import BucketedLayers

    build.materialize(model)
    tracker.attach(model, head)
    wrapped = BucketedLayers(model, tracker.places.place_of)
    for bucket, path in wrapped.buckets:
        tracker.tag(bucket, "communication", path)
    return wrapped


def _zero3(model: nn.Module, setup: Setup, tracker: Tracker, head: Any) -> nn.Module:
    from .zero3 import gather

    if setup.get("quantized"):
        raise ValueError("quantised weights under ZeRO-3 are not traced: use the formula tier")
    return gather(model, tracker, sharding_of(setup)[1], float(setup.get("repeated") or 1), head)


def _zero(model: nn.Module, setup: Setup, tracker: Tracker, head: Any) -> nn.Module:
    build.materialize(model)
    tracker.attach(model, head)
    return model


def _fsdp1(model: nn.Module, setup: Setup, tracker: Tracker, head: Any) -> nn.Module:
    from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision

    kinds = {type(layer) for layer in _layers(model)}
    mixed = None
    if mixes(setup):
        low = build.compute_dtype(setup)
        mixed = MixedPrecision(param_dtype=low, reduce_dtype=low, buffer_dtype=low)

    def shard() -> nn.Module:
        with tracker.on_host():
            for parameter in model.parameters():
                _store_as_floats(parameter, build.compute_dtype(setup))
        wrapped = FullyShardedDataParallel(
            model,
            auto_wrap_policy=_wrap_policy(kinds, _apart(setup)),
            mixed_precision=mixed,
            device_id=torch.device("cpu"),
            use_orig_params=True,
            limit_all_gathers=True,
        )
        checkpointing.around_units(wrapped, setup)
        return wrapped

    return attach_sharded(tracker, model, head, shard)


def _apart(setup: Setup) -> bool:
    """Whether adapters are units of their own: Fabric and plain loops wrap layers alone."""
    return bool(setup.get("lora")) and setup.get("recipe") not in _PLAIN_LOOPS


def waiting(model: Any, setup: Setup) -> Callable[[], Any]:
    """What Accelerate and Fabric put around all micro-batches of a step but the last: gradients
    are not reduced, and wait whole under FSDP.
    """
    sharding, world = sharding_of(setup)
    if world == 1 or setup.get("recipe") not in ("transformers", *_PLAIN_LOOPS):
        return nullcontext
    if sharding == "fsdp1":
        return model.no_sync
    if sharding in ("fsdp2", "hsdp"):
        return functools.partial(_not_reduced, model)
    return nullcontext


def stays_whole(setup: Setup) -> bool:
    """Whether FSDP2 keeps weights and gradients of a pipeline's stage unsharded for all
    micro-batches of a step, as torchtitan has it.
    """
    staged = int((setup.get("parallel") or {}).get("pp") or 1) > 1
    return (
        staged
        and sharding_of(setup)[0] in ("fsdp2", "hsdp")
        and setup.get("recipe") == "torchtitan"
    )


def announcing(model: Any, setup: Setup) -> Callable[[bool], None]:
    """What a pipeline's stage tells FSDP2 before each backward pass, with whether it is the last
    one (``_PipelineStageBase.backward_maybe_with_nosync`` of PyTorch).
    """

    def announce(is_last: bool) -> None:
        model.set_reshard_after_backward(False)
        model.set_requires_gradient_sync(is_last)

    return announce if stays_whole(setup) else lambda _is_last: None


@contextmanager
def _not_reduced(model: Any) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def _wrap_policy(kinds: Any, adapted: bool) -> Any:
    """Each repeated layer is a unit, as is each adapter (peft's ``fsdp_auto_wrap_policy``)."""
    from torch.distributed.fsdp.wrap import (
        _or_policy,
        lambda_auto_wrap_policy,
        transformer_auto_wrap_policy,
    )

    def trained_leaf(module: nn.Module) -> bool:
        weight = getattr(module, "weight", None)
        return weight is not None and weight.requires_grad and not list(module.named_children())

    policies = [functools.partial(transformer_auto_wrap_policy, transformer_layer_cls=kinds)]
    if adapted:
        policies.insert(0, functools.partial(lambda_auto_wrap_policy, lambda_fn=trained_leaf))
    return functools.partial(_or_policy, policies=policies)


def _store_as_floats(parameter: Any, dtype: torch.dtype) -> None:
    """Packed weights are stored as what lies beside them, or else they could not be flattened
    together (``bnb_4bit_quant_storage``).
    """
    if parameter.dtype in (torch.uint8, torch.int8):
        parameter.data = parameter.data.flatten().view(dtype)[:, None]


def _fsdp2(model: nn.Module, setup: Setup, tracker: Tracker, head: Any) -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh

    sharding, world = sharding_of(setup)
    if sharding == "hsdp":
        replicas = int(setup["parallel"].get("replicas") or 1)
    else:
        replicas = 1
    with unset_fake_temporarily(), tracker.on_host():  # ranks are looked up by value
        if replicas > 1:
            mesh = init_device_mesh(
                "cpu", (replicas, world // replicas), mesh_dim_names=("replicate", "shard")
            )
        else:
            mesh = init_device_mesh("cpu", (world,))
        of_experts = _mesh_of_experts(setup, world)
    return attach_sharded(
        tracker, model, head, lambda: _fully_shard(model, setup, mesh, of_experts)
    )


def _mesh_of_experts(setup: Setup, world: int) -> Any:
    """The ranks that hold the same experts; None without expert parallelism."""
    from torch.distributed.device_mesh import init_device_mesh

    ways = expert_parallel.degree(setup)
    if ways == 1:
        return None
    return init_device_mesh("cpu", (max(world // ways, 1), ways), mesh_dim_names=("alike", "ep"))[
        "alike"
    ]


def _fully_shard(model: nn.Module, setup: Setup, mesh: Any, of_experts: Any) -> nn.Module:
    """Each repeated layer is a unit and the rest the root, as accelerate and torchtune do it.

    Under the recipe ``plain`` the embedding is a unit too, and head and last norm are one that
    stays gathered between forward and backward, as
    ``torchtitan/models/llama3/infra/parallelize.py`` does it.
    """
    try:
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    except ImportError:
        # torch 2.4 and 2.5
        fsdp: Any = importlib.import_module("torch.distributed._composable.fsdp")
        MixedPrecisionPolicy, fully_shard = fsdp.MixedPrecisionPolicy, fsdp.fully_shard

    reshards = bool(setup["parallel"].get("reshard_after_forward", True))
    options: Dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": reshards and not stays_whole(setup),
    }
    if mixes(setup):
        options["mp_policy"] = MixedPrecisionPolicy(build.compute_dtype(setup), torch.float32)
    for experts in expert_parallel.experts_of(model):
        fully_shard(experts, **dict(options, mesh=of_experts))
    for layer in _layers(model):
        fully_shard(layer, **options)
    if setup.get("recipe") in _PLAIN_LOOPS:
        embedding, last = _ends(model)
        if embedding is not None:
            fully_shard(embedding, **options)
            fully_shard(last, **dict(options, reshard_after_forward=False))
    fully_shard(model, **options)
    return model


def _ends(model: Any) -> Any:
    """(embedding, [last norm, head]) where they share no weights, else (None, [])."""
    get_in, get_out = (
        getattr(model, "get_input_embeddings", None),
        getattr(model, "get_output_embeddings", None),
    )
    embedding, head = get_in and get_in(), get_out and get_out()
    if embedding is None or head is None or embedding.weight is head.weight:
        return None, []
    norms = [
        module
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in ("norm", "ln_f", "final_layernorm")
    ]
    return embedding, [*norms[-1:], head]


def _layers(model: nn.Module) -> List[nn.Module]:
    modules = dict(model.named_modules())
    return [modules[path] for path in repeated_layers(model)]


def mixes(setup: Setup) -> bool:
    """Whether the wrapper itself casts fp32 shards to the dtype of the computation."""
    return build.weights_dtype(setup) == torch.float32 != build.compute_dtype(setup)


def casts(setup: Setup) -> bool:
    """Whether a wrapper takes the place of autocast."""
    sharding, world = sharding_of(setup)
    return world > 1 and (
        zero.stage_of(setup) > 0 or (sharding in ("fsdp2", "hsdp") and mixes(setup))
    )


_WRAPPERS = {
    "ddp": _ddp,
    "zero1": _zero,
    "zero2": _zero,
    "zero3": _zero3,
    "fsdp1": _fsdp1,
    "fsdp2": _fsdp2,
    "hsdp": _fsdp2,
}
