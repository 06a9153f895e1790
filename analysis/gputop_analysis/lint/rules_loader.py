"""DataLoader rules. A call with ``**options`` is passed over: what it sets is not to be seen."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gputop_analysis.lint.edits import NONE, Edits, add_keywords, keyword, set_keyword
from gputop_analysis.lint.loops import Loop, loops_of
from gputop_analysis.lint.model import Hit, rule
from gputop_analysis.lint.module import Function, Module, constant, dotted

_NAME = "torch.utils.data.DataLoader"
_IN_MEMORY = ("torch.utils.data.TensorDataset",)
_MAP_STYLE = ("torch.utils.data.Dataset", "torch.utils.data.dataset.Dataset", "torchvision.datasets.")


def _loaders(module: Module) -> Iterator[ast.Call]:
    for call in module.calls_of(_NAME):
        star = any(one.arg is None for one in call.keywords) or any(isinstance(a, ast.Starred) for a in call.args)
        if not star and len(call.args) <= 2:  # further positions may be workers, and nobody writes them so
            yield call


def _workers(call: ast.Call) -> object:
    """The literal number of workers, 0 where none is given, ``object`` where it is computed."""
    given = keyword(call, "num_workers")
    return constant(given.value) if given else 0


def _dataset(call: ast.Call) -> ast.expr | None:
    given = keyword(call, "dataset")
    return call.args[0] if call.args else given.value if given else None


def _made(module: Module, node: ast.expr | None) -> ast.expr | None:
    """What a name holds where only one thing is assigned to it."""
    values = module.values.get(dotted(node) or "", []) if node is not None else []
    return values[0] if len(values) == 1 else node


def _is_in_memory(module: Module, call: ast.Call) -> bool:
    """Tensors, lists and ranges: workers would only add copies."""
    made = _made(module, _dataset(call))
    if made is None or isinstance(made, ast.List | ast.ListComp | ast.Tuple):
        return True
    if isinstance(made, ast.Name | ast.Attribute) and module.mentions("TensorDataset"):
        return True  # it may come from there by ways that we do not follow
    made_of = [node for node in ast.walk(made) if isinstance(node, ast.Call)]
    return any(_gives_tensors(module, one) or _only_indexes(module, one) for one in made_of)


def _only_indexes(module: Module, call: ast.Call) -> bool:
    """A dataset of this file that only picks an item of something it holds: ``return self.x[i], self.y[i]``."""
    classes = [n for n in module.nodes if isinstance(n, ast.ClassDef) and n.name == dotted(call.func)]
    methods = [n for one in classes for n in one.body if isinstance(n, ast.FunctionDef) and n.name == "__getitem__"]
    inside = [node for method in methods for node in ast.walk(method)]
    work = ast.Call | ast.For | ast.While | ast.ListComp | ast.GeneratorExp | ast.With | ast.Yield
    return len(methods) == 1 and not any(isinstance(node, work) for node in inside)


def _gives_tensors(module: Module, call: ast.Call) -> bool:
    name = module.resolve(call.func) or dotted(call.func) or ""
    is_function = name.startswith(("torch.", "numpy.")) and name.rpartition(".")[2].islower()
    return name in (*_IN_MEMORY, "range", "list") or (is_function and not name.startswith("torch.utils."))


def _is_map_style(module: Module, call: ast.Call) -> bool:
    """Whether the dataset is surely no IterableDataset, which workers would read several times over."""
    made = _made(module, _dataset(call))
    if not isinstance(made, ast.Call):
        return False
    name = module.resolve(made.func) or ""
    if name.startswith("torchvision.datasets."):
        return True
    classes = [n for n in module.nodes if isinstance(n, ast.ClassDef) and n.name == dotted(made.func)]
    bases = [module.resolve(base) or "" for one in classes for base in one.bases]
    return len(classes) == 1 and bool(bases) and all(base.startswith(_MAP_STYLE) for base in bases)


@rule("loader-workers", "IN02", "medium", "batches are made in the training process, between the steps")
def no_workers(module: Module) -> Iterator[Hit]:
    for call in _loaders(module):
        if _workers(call) == 0 and not _is_in_memory(module, call) and not keyword(call, "persistent_workers"):
            yield Hit(
                call,
                "DataLoader makes its batches in the training process (num_workers=0)",
                "num_workers=4, persistent_workers=True; an IterableDataset must then share its items by worker",
                _worker_edits(module, call),
            )


def _worker_edits(module: Module, call: ast.Call) -> Edits:
    if not _is_map_style(module, call) or keyword(call, "prefetch_factor"):
        return NONE
    edits = set_keyword(module.source, call, "num_workers", "4")
    if keyword(call, "num_workers"):
        return edits + add_keywords(module.source, call, persistent_workers="True")
    return add_keywords(module.source, call, num_workers="4", persistent_workers="True")


@rule("loader-worker-options", None, "high", "torch raises ValueError for worker options without workers")
def options_without_workers(module: Module) -> Iterator[Hit]:
    for call in _loaders(module):
        if _workers(call) != 0:
            continue
        for name in ("persistent_workers", "prefetch_factor"):
            given = keyword(call, name)
            if given and constant(given.value) not in (None, False, object):
                yield Hit(call, f"{name} needs num_workers > 0: this call raises", "num_workers=4")


@rule("loader-pin-memory", "IN08", "info", "a copy from pageable memory stops the host until it is done")
def not_pinned(module: Module) -> Iterator[Hit]:
    if not module.uses_gpu or module.uses_framework:
        return
    for call in _loaders(module):
        given = keyword(call, "pin_memory")
        if given is None or constant(given.value) is False:
            edits = set_keyword(module.source, call, "pin_memory", "True")
            yield Hit(call, "batches are copied to the GPU from pageable memory", "pin_memory=True", edits)


@rule("loader-persistent-workers", "IN05", "medium", "workers are started anew in every epoch")
def restarted_workers(module: Module) -> Iterator[Hit]:
    loops = loops_of(module)
    for call in _loaders(module):
        workers, given = _workers(call), keyword(call, "persistent_workers")
        name = _assigned_to(module, call)
        started_anew = given is None or constant(given.value) is False
        if isinstance(workers, int) and workers > 0 and started_anew and name and loops.epochs_over(name):
            edits = set_keyword(module.source, call, "persistent_workers", "True")
            yield Hit(call, f"the workers of {name} are started anew in every epoch", "persistent_workers=True", edits)


def _assigned_to(module: Module, call: ast.Call) -> str | None:
    parent = module.parents.get(call)
    return dotted(parent.targets[0]) if isinstance(parent, ast.Assign) and len(parent.targets) == 1 else None


@rule("loader-prefetch", "IN03", "info", "a worker that may be only one batch ahead waits for the training")
def little_prefetch(module: Module) -> Iterator[Hit]:
    for call in _loaders(module):
        given = keyword(call, "prefetch_factor")
        if given and constant(given.value) == 1 and _workers(call) != 0:
            edits = set_keyword(module.source, call, "prefetch_factor", "2")
            yield Hit(call, "prefetch_factor=1 is less than the default", "prefetch_factor=2 or 4", edits)


@rule("loader-in-loop", "IN15", "medium", "a new loader starts its workers and its prefetching from zero")
def made_in_a_loop(module: Module) -> Iterator[Hit]:
    for call in _loaders(module):
        loop = _loop_around(module, call)
        if loop is None or module.is_conditional(call) or _workers(call) == 0:
            continue
        changing = _bound_in(loop)
        used = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
        if not used & changing:
            yield Hit(
                call, "the same DataLoader is made anew in every turn of the loop", "make it once, before the loop"
            )


def _loop_around(module: Module, call: ast.Call) -> Loop | None:
    """The loop that the call stands in; a function made inside a loop is not followed."""
    inner: ast.AST = call
    for node in module.above(call):
        if isinstance(node, Function):
            return None
        if isinstance(node, Loop) and inner in node.body:
            return node
        inner = node
    return None


def _bound_in(loop: Loop) -> set[str]:
    """Names that a turn may change: bound in the loop, or of an object one of whose methods is called there."""
    bound = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load)}
    for node in ast.walk(loop):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            bound.add(node.func.value.id)
    return bound
