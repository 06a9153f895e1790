"""Notes lifetimes of storages made while it is on, below autograd, above fake tensors."""

from __future__ import annotations

import weakref
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Set

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.utils._python_dispatch import TorchDispatchMode

from .log import LogWriter
from .place import LOSS, NOWHERE, Places, layer_of, repeated_layers
from .signatures import CUBLAS_WORKSPACE, MATMULS, temporaries

LOSS_PHASES = ("forward", "loss", "backward")
"""In which a storage may belong to the loss; in others to the layer of its inputs."""
_ITEM = torch.ops.aten._local_scalar_dense.default
_RESIZES = {torch.ops.aten.resize_.default}


class Tracker(TorchDispatchMode):
    """The storages of a run on fake tensors, with what each is held for, where it was made and when
    it was freed.

    Enter it inside a ``FakeTensorMode``. ``mark`` says which phase of a step begins; ``attach``
    makes a model known. Storages of a forward that are still held at its end are activations, those
    of a recomputation likewise; gradients, optimizer states and weights are tagged by ``tag``; the
    rest is temporary.
    """

    def __init__(self) -> None:
        super().__init__()
        self.log = LogWriter()
        self.places = Places()
        self.places.left_outermost = self._settle_fresh
        self.places.entered = self._entered
        self.phase = "init"
        self.step = 0
        self.stream: Callable[[], int] = lambda: 0
        """The stream that an allocation belongs to now."""
        self.meta: Dict[str, Any] = {}
        self.layers: Dict[str, int] = {}
        self._ids: Dict[int, int] = {}
        self._watchers: Dict[int, Any] = {}
        self._fresh: Set[int] = set()
        self._names: Dict[Any, str] = {}
        self._operator = ""
        self._exempt = 0
        self._workspaces: Set[bool] = set()
        self._resize = torch.UntypedStorage.resize_

    def __enter__(self) -> Any:
        self.places.watch()
        self._hook_resize()
        return super().__enter__()

    def __exit__(self, *error: Any) -> Any:
        torch.UntypedStorage.resize_ = self._resize  # type: ignore[method-assign]
        self.places.unwatch()
        self._watchers.clear()
        return super().__exit__(*error)

    def attach(self, model: nn.Module, head: Optional[nn.Module] = None, prefix: str = "") -> None:
        """Know a model's modules; parameters and buffers are weights, their gradients gradients."""
        layers = repeated_layers(model)
        self.layers = {**self.layers, **layers}
        self.places.add(model, layers, prefix)
        for path, module in model.named_modules():
            if module is head:
                self.places.heads.add(prefix + path)
            for tensor in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
                self.tag(tensor, "weights", prefix + path)
        for parameter in model.parameters():
            self.watch_gradient(parameter)

    def watch_gradient(self, parameter: torch.Tensor) -> None:
        """Tag what is accumulated into ``parameter.grad`` as a gradient."""
        if parameter.requires_grad and hasattr(parameter, "register_post_accumulate_grad_hook"):
            parameter.register_post_accumulate_grad_hook(self._tag_gradient)

    def mark(self, phase: str, step: Optional[int] = None) -> None:
        """A phase of a step begins."""
        self._settle_fresh()
        self.phase = phase
        self.step = self.step if step is None else step
        self.places.leave_to(LOSS if phase == "loss" else NOWHERE)
        self.log.mark(phase, self.step)

    def tag(self, tensor: torch.Tensor, category: str, place: str = "") -> None:
        """The storage of ``tensor`` is held for ``category``; an unknown one is allocated now."""
        for part in _parts(tensor):
            storage = part.untyped_storage()
            storage_id = self._ids.get(storage._cdata)
            if storage_id is not None:
                self._fresh.discard(storage_id)
                self.log.retag(storage_id, category)
                if place:
                    self.log.move(storage_id, place, layer_of(place, self.layers))
            else:
                self._allocate(storage, category, "", place)

    def tag_all(self, tensors: Iterable[Any], category: str) -> None:
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor):
                self.tag(tensor, category)

    @contextmanager
    def operator(self, name: str) -> Iterator[None]:
        """What is allocated here is the work of operator ``name``, as with a fused kernel."""
        outer, self._operator = self._operator, name
        try:
            yield
        finally:
            self._operator = outer

    @contextmanager
    def on_host(self) -> Iterator[None]:
        """What is allocated here lies in the host's memory and does not count."""
        self._exempt += 1
        try:
            yield
        finally:
            self._exempt -= 1

    def leave_out(self, tensor: torch.Tensor) -> None:
        """The storage of ``tensor`` is not counted, nor a view: other storages stand for it."""
        for part in _parts(tensor):
            self._ids[_data(part)] = 0

    def forget(self, tensor: torch.Tensor) -> None:
        """The storage of ``tensor`` lies elsewhere than on the device, or moves there now."""
        for part in _parts(tensor):
            self._freed(part.untyped_storage()._cdata)

    def track(self, value: Any) -> None:
        """Allocate the storages of a tensor or of a list of tensors that are not known."""
        if isinstance(value, torch.Tensor):
            for part in _parts(value):
                storage = part.untyped_storage()
                if storage._cdata not in self._ids:
                    self._allocate(storage, "temporaries")
        elif isinstance(value, (tuple, list)):
            for item in value:
                self.track(item)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(hasattr(tensor_type, "__tensor_flatten__") for tensor_type in types):
            return NotImplemented  # a DTensor comes back with the tensors that it wraps
        name = self._names.get(func)
        if name is None:
            name = self._names[func] = str(func).rpartition(".")[0].replace("aten.", "")
        self._running = name
        if func is _ITEM:
            return _item(func, args)
        if name in MATMULS and (self.phase == "backward") not in self._workspaces:
            self._keep_workspace()
        extra = [self._allocate_bytes(size) for size in temporaries(name, args)]
        out = func(*args, **(kwargs or {}))
        self._running = name
        if func in _RESIZES:
            self._forget_resized(out)
        if self.phase not in LOSS_PHASES:
            self._track_aligned(out, args)
        elif not self._exempt:
            self.track(out)
        for extra_id in extra:
            self.log.free(extra_id)
        return out

    def _keep_workspace(self) -> None:
        """cuBLAS keeps a workspace for each thread's handle, and the autograd engine has a thread
        of its own.
        """
        self._workspaces.add(self.phase == "backward")
        self.log.allocate(
            CUBLAS_WORKSPACE,
            self.stream(),
            category="temporaries",
            operator="cublas_workspace",
            module="",
            layer=-1,
        )

    def _allocate_bytes(self, size: int) -> int:
        """Of a kernel's own memory, which no tensor of the trace stands for."""
        module, layer = self.places.now()
        category = "logits_loss" if self._is_loss(module) else "temporaries"
        return self.log.allocate(
            size,
            self.stream(),
            category=category,
            operator=self._operator or self._running,
            module=module,
            layer=layer,
        )

    _running = ""
    _layer_hint: Optional[int] = None

    def _track_aligned(self, out: Any, args: Any) -> None:
        """In an update a list operation's ``i``-th result belongs to the ``i``-th input's layer."""
        if self._exempt:
            return
        if args and isinstance(args[0], (list, tuple)):
            sources = args[0]
        else:
            sources = [next(iter(_tensors(args)), None)]
        results = out if isinstance(out, (list, tuple)) else [out]
        for index, result in enumerate(results):
            source = sources[index] if index < len(sources) else None
            if isinstance(source, torch.Tensor):
                source_id = self._ids.get(_data(source))
            else:
                source_id = None
            self._layer_hint = source_id
            self.track(result)
        self._layer_hint = None

    def _allocate(
        self,
        storage: Any,
        category: str,
        operator: Optional[str] = None,
        place: Optional[str] = None,
    ) -> None:
        size = storage.nbytes()
        if not size:
            return
        module, layer = self._where(place)
        if category == "temporaries" and self.phase in LOSS_PHASES and self._is_loss(module):
            category = "logits_loss"
        if operator is None:
            operator = self._operator or self._running
        else:
            operator = operator
        key = storage._cdata
        storage_id = self._ids[key] = self.log.allocate(
            size, self.stream(), category=category, operator=operator, module=module, layer=layer
        )
        self._watchers[key] = weakref.ref(storage, lambda _, key=key: self._freed(key))
        if category == "temporaries" and (self.phase == "forward" or self.places.stack):
            self._fresh.add(storage_id)

    def _where(self, place: Optional[str]) -> Any:
        if place is not None:
            return place, layer_of(place, self.layers)
        if self._layer_hint is not None:
            return self.log.module(self._layer_hint), self.log.layer(self._layer_hint)
        return self.places.now()

    def _is_loss(self, module: str) -> bool:
        return module == LOSS[0] or module in self.places.heads

    def _freed(self, key: int) -> None:
        storage_id = self._ids.pop(key, None)
        self._watchers.pop(key, None)
        if storage_id is not None:
            self._fresh.discard(storage_id)
            self.log.free(storage_id)

    def _entered(self, path: str, outermost: bool) -> None:
        if path in self.places.heads and self.phase == "forward":
            self._begin("loss")
        elif outermost and path and self.phase == "loss" and path != LOSS[0]:
            self._begin("forward")

    def _settle_fresh(self) -> None:
        """What a forward or recomputation made and holds at its end is kept for the backward."""
        for storage_id in self._fresh:
            self.log.retag(storage_id, "activations")
        self._fresh.clear()
        if self.phase == "forward":
            self._begin("loss")

    def _begin(self, phase: str) -> None:
        self.phase = phase
        self.places.leave_to(LOSS if phase == "loss" else NOWHERE)
        self.log.mark(phase, self.step)

    def _tag_gradient(self, parameter: torch.Tensor) -> None:
        if parameter.grad is not None:
            self.tag(parameter.grad, "gradients")
            for part in _parts(parameter.grad):
                self._place_gradient(self._ids.get(_data(part)), parameter)

    def _place_gradient(self, known: Optional[int], parameter: torch.Tensor) -> None:
        if known is not None:
            module, layer = self.places.place_of(parameter)
            self.log.move(known, module, layer)

    def _forget_resized(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        storage_id = self._ids.get(storage._cdata)
        if storage_id is not None and self.log.storages[storage_id - 1][0] != storage.nbytes():
            self._freed(storage._cdata)

    def _hook_resize(self) -> None:
        """``storage.resize_`` is not dispatched, and FSDP frees unsharded parameters by it."""
        original = self._resize

        def resize_(storage: Any, size: int) -> Any:
            category, module = "communication", None
            storage_id = self._ids.get(storage._cdata)
            if storage_id is not None:
                category, module = self.log.category(storage_id), self.log.module(storage_id)
                self._freed(storage._cdata)
            result = original(storage, size)
            if size:
                self._allocate(storage, category, "resize_", module)
            return result

        torch.UntypedStorage.resize_ = resize_  # type: ignore[method-assign]


def _item(func: Any, args: Any) -> Any:
    """``.item()`` of what has no value, such as the step of an update of sharded tensors."""
    try:
        return func(*args)
    except DataDependentOutputException:
        return 1.0 if args[0].is_floating_point() else 1


def _data(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _parts(tensor: torch.Tensor) -> List[torch.Tensor]:
    """The plain tensors that a wrapper subclass or a sparse tensor holds, or the tensor itself."""
    if tensor.layout is torch.sparse_coo:
        return [tensor._indices(), tensor._values()]
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return [tensor]
    tensors = [getattr(tensor, name) for name in flatten()[0]]
    return [
        part for tensor_ in tensors if isinstance(tensor_, torch.Tensor) for part in _parts(tensor_)
    ]
