"""DataLoader rules. A call with ``**options`` is passed over: what it sets is not to be seen."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gputop_analysis.lint.edits import NONE, Edits, add_keywords, keyword, move, set_keyword
from gputop_analysis.lint.loops import Loop, loops_of
from gputop_analysis.lint.model import Hit, rule
from gputop_analysis.lint.module import Function, Module, constant, dotted
from gputop_analysis.mend import DATA_LOADER

_IN_MEMORY = ("torch.utils.data.TensorDataset",)
_MAP_STYLE = (
    "torch.utils.data.Dataset",
    "torch.utils.data.dataset.Dataset",
    "torchvision.datasets.",
)


def _loaders(module: Module) -> Iterator[ast.Call]:
    for call in module.calls_of(DATA_LOADER):
        star = any(argument.arg is None for argument in call.keywords) or any(
            isinstance(a, ast.Starred) for a in call.args
        )
        if not star and len(call.args) <= 2:
            # further positions may be workers, and nobody writes them so
            yield call


def _workers(call: ast.Call) -> object:
    """The literal number of workers, 0 where none is given, ``object`` where it is computed."""
    argument = keyword(call, "num_workers")
    if argument:
        return constant(argument.value)
    return 0


def _dataset(call: ast.Call) -> ast.expr | None:
    argument = keyword(call, "dataset")
    if call.args:
        return call.args[0]
    if argument:
        return argument.value
    return None


def _made(module: Module, node: ast.expr | None) -> ast.expr | None:
    """Value of a name to which only one thing is assigned."""
    values = []
    if node is not None:
        values = module.values.get(dotted(node) or "", [])
    if len(values) == 1:
        return values[0]
    return node


def _is_in_memory(module: Module, call: ast.Call) -> bool:
    """Tensors, lists and ranges: workers would only add copies."""
    dataset = _made(module, _dataset(call))
    if dataset is None or isinstance(dataset, ast.List | ast.ListComp | ast.Tuple):
        return True
    if isinstance(dataset, ast.Name | ast.Attribute) and module.mentions("TensorDataset"):
        return True  # it may come from there by ways that we do not follow
    made_of = []
    for node in ast.walk(dataset):
        if isinstance(node, ast.Call):
            made_of.append(node)
    return any(
        _gives_tensors(module, definition) or _only_indexes(module, definition)
        for definition in made_of
    )


def _only_indexes(module: Module, call: ast.Call) -> bool:
    """A dataset of this file that only picks what it holds: ``return self.x[i], self.y[i]``."""
    definition = _class_of(module, call)
    if definition is None:
        return False
    methods = [
        n for n in definition.body if isinstance(n, ast.FunctionDef) and n.name == "__getitem__"
    ]
    inside = [node for method in methods for node in ast.walk(method)]
    work = ast.Call | ast.For | ast.While | ast.ListComp | ast.GeneratorExp | ast.With | ast.Yield
    return len(methods) == 1 and not any(isinstance(node, work) for node in inside)


def _class_of(module: Module, call: ast.Call) -> ast.ClassDef | None:
    """The one class of this file that a call makes an object of."""
    classes = [
        node
        for node in module.nodes
        if isinstance(node, ast.ClassDef) and node.name == dotted(call.func)
    ]
    return classes[0] if len(classes) == 1 else None


def dataset_class(module: Module, call: ast.Call) -> ast.ClassDef | None:
    """The class of a DataLoader's dataset, where this file defines it."""
    dataset = _made(module, _dataset(call))
    return _class_of(module, dataset) if isinstance(dataset, ast.Call) else None


def _gives_tensors(module: Module, call: ast.Call) -> bool:
    name = module.resolve(call.func) or dotted(call.func) or ""
    is_function = name.startswith(("torch.", "numpy.")) and name.rpartition(".")[2].islower()
    return name in (*_IN_MEMORY, "range", "list") or (
        is_function and not name.startswith("torch.utils.")
    )


def _is_map_style(module: Module, call: ast.Call) -> bool:
    """Whether the dataset is surely no IterableDataset, which each worker would read."""
    dataset = _made(module, _dataset(call))
    if not isinstance(dataset, ast.Call):
        return False
    name = module.resolve(dataset.func) or ""
    if name.startswith("torchvision.datasets."):
        return True
    definition = _class_of(module, dataset)
    if definition:
        bases = [module.resolve(base) or "" for base in definition.bases]
    else:
        bases = []
    return bool(bases) and all(base.startswith(_MAP_STYLE) for base in bases)


@rule(
    "loader-workers",
    "IN02",
    "medium",
    "batches are made in the training process, between the steps",
)
def no_workers(module: Module) -> Iterator[Hit]:
    for call in _loaders(module):
        if (
            _workers(call) == 0
            and not _is_in_memory(module, call)
            and not keyword(call, "persistent_workers")
        ):
            yield Hit(
                call,
                "DataLoader makes its batches in the training process (num_workers=0)",
                (
                    "num_workers=4, persistent_workers=True; an IterableDataset must then share "
                    "its items by worker"
                ),
                _worker_edits(module, call),
            )


def _worker_edits(module: Module, call: ast.Call) -> Edits:
    if not _is_map_style(module, call) or keyword(call, "prefetch_factor"):
        return NONE
    edits = set_keyword(module.source, call, "num_workers", "4")
    if keyword(call, "num_workers"):
        return edits + add_keywords(module.source, call, persistent_workers="True")
    return add_keywords(module.source, call, num_workers="4", persistent_workers="True")


@rule(
    "loader-worker-options",
    None,
    "high",
    "torch raises ValueError for worker options without workers",
)
def options_without_workers(module: Module) -> Iterator[Hit]:
    for call in _loaders(module):
        if _workers(call) != 0:
            continue
        for name in ("persistent_workers", "prefetch_factor"):
            argument = keyword(call, name)
            if argument and constant(argument.value) not in (None, False, object):
                yield Hit(call, f"{name} needs num_workers > 0: this call raises", "num_workers=4")


@rule(
    "loader-pin-memory",
    "IN08",
    "info",
    "a copy from pageable memory stops the host until it is done",
)
def not_pinned(module: Module) -> Iterator[Hit]:
    if not module.uses_gpu or module.uses_framework:
        return
    for call in _loaders(module):
        argument = keyword(call, "pin_memory")
        if argument is None or constant(argument.value) is False:
            edits = set_keyword(module.source, call, "pin_memory", "True")
            yield Hit(
                call, "batches are copied to the GPU from pageable memory", "pin_memory=True", edits
            )


@rule("loader-persistent-workers", "IN05", "medium", "workers are started anew in every epoch")
def restarted_workers(module: Module) -> Iterator[Hit]:
    loops = loops_of(module)
    for call in _loaders(module):
        workers, argument = _workers(call), keyword(call, "persistent_workers")
        name = _assigned_to(module, call)
        started_anew = argument is None or constant(argument.value) is False
        if (
            isinstance(workers, int)
            and workers > 0
            and started_anew
            and name
            and loops.epochs_over(name)
        ):
            edits = set_keyword(module.source, call, "persistent_workers", "True")
            yield Hit(
                call,
                f"the workers of {name} are started anew in every epoch",
                "persistent_workers=True",
                edits,
            )


def _assigned_to(module: Module, call: ast.Call) -> str | None:
    parent = module.parents.get(call)
    if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
        return dotted(parent.targets[0])
    return None


@rule(
    "loader-prefetch",
    "IN03",
    "info",
    "a worker that may be only one batch ahead waits for the training",
)
def little_prefetch(module: Module) -> Iterator[Hit]:
    for call in _loaders(module):
        argument = keyword(call, "prefetch_factor")
        if argument and constant(argument.value) == 1 and _workers(call) != 0:
            edits = set_keyword(module.source, call, "prefetch_factor", "2")
            yield Hit(
                call, "prefetch_factor=1 is less than the default", "prefetch_factor=2 or 4", edits
            )


@rule(
    "loader-in-loop",
    "IN15",
    "medium",
    "a new loader starts its workers and its prefetching from zero",
)
def made_in_a_loop(module: Module) -> Iterator[Hit]:
    for call in _loaders(module):
        loop = _loop_around(module, call)
        if loop is None or module.is_conditional(call) or _workers(call) == 0:
            continue
        changing = _bound_in(loop)
        used = set()
        for node in ast.walk(call):
            if isinstance(node, ast.Name):
                used.add(node.id)
        if not used & changing:
            yield Hit(
                call,
                "the same DataLoader is made anew in every turn of the loop",
                "make it once, before the loop",
                _before(module, call, loop),
            )


def _before(module: Module, call: ast.Call, loop: Loop) -> Edits:
    """``loader = DataLoader(...)`` moved out of the loop, where all that it takes is there before,
    and nothing else binds its name; with workers that outlive an epoch.
    """
    statement, source = module.parents.get(call), module.source
    if not isinstance(statement, ast.Assign) or statement not in loop.body:
        return NONE
    makes_more = any(isinstance(n, ast.Call) and n is not call for n in ast.walk(statement))
    name = _assigned_to(module, call)
    bindings = [n for n in module.nodes if isinstance(n, ast.Name) and n.id == name]
    bound_once = sum(isinstance(n.ctx, ast.Store) for n in bindings) == 1
    starts = keyword(call, "persistent_workers")
    if makes_more or not bound_once or (starts and constant(starts.value) is object):
        return NONE
    outlives = set_keyword(source, call, "persistent_workers", "True")
    return move(source, statement, loop.body, before=loop, changed=outlives)


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
    """Names that a turn may change: bound in the loop, or objects with methods called there."""
    bound = set()
    for n in ast.walk(loop):
        if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load):
            bound.add(n.id)
    for node in ast.walk(loop):
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and isinstance(node.func.value, ast.Name)
        ):
            bound.add(node.func.value.id)
    return bound
