"""Rules about each step of the training loop. What is under a condition is passed over."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gputop_analysis.lint.edits import NONE, Edits, add_keywords, delete_statement, keyword
from gputop_analysis.lint.loops import Loop, Loops, loop_names, loops_of
from gputop_analysis.lint.model import Hit, rule
from gputop_analysis.lint.module import Module, constant, dotted
from gputop_analysis.lint.shielded import is_shielded
from gputop_analysis.lint.source import Edit

_WAITING = {"item", "cpu", "tolist"}


def _steps(module: Module) -> Iterator[tuple[Loops, Loop]]:
    loops = loops_of(module)
    for loop in loops.training:
        yield loops, loop


def _each(module: Module, *names: str) -> Iterator[tuple[ast.Call, Loop]]:
    """Calls of these things in every step, each once."""
    visited: set[ast.AST] = set()
    for loops, loop in _steps(module):
        for node in loops.every_step(loop):
            if (
                isinstance(node, ast.Call)
                and module.resolve(node.func) in names
                and node not in visited
            ):
                visited.add(node)
                yield node, loop


@rule(
    "sync-each-step",
    "HO02",
    "medium",
    "the host waits for the GPU to finish before it may launch more",
)
def waits_for_the_device(module: Module) -> Iterator[Hit]:
    if not module.uses_gpu:
        return
    visited: set[ast.AST] = set()
    for loops, loop in _steps(module):
        for node in loops.every_step(loop):
            waiting = None
            if node not in visited:
                waiting = _waiting(node, loops)
            if waiting is not None and isinstance(node, ast.Call):
                visited.add(node)
                yield Hit(
                    node,
                    f"{waiting} in every step waits for the GPU",
                    "do it every 50 steps, or once an epoch",
                )


def _waiting(node: ast.AST, loops: Loops) -> str | None:
    if not isinstance(node, ast.Call):
        return None
    if (
        isinstance(node.func, ast.Attribute)
        and node.func.attr in _WAITING
        and not (node.args or node.keywords)
    ):
        return f"{(dotted(node.func) or '.' + node.func.attr).removeprefix('self.')}()"
    if loops.module.resolve(node.func) == "torch.cuda.synchronize":
        return "torch.cuda.synchronize()"
    name = dotted(node.func)
    values = []
    if name in ("print", "float"):
        values = [_plain_loss(argument, loops) for argument in node.args]
    return next((f"{name}({value})" for value in values if value), None)


def _plain_loss(node: ast.AST, loops: Loops) -> str | None:
    """The loss itself as an argument, or inside an f-string."""
    if isinstance(node, ast.Name) and node.id in loops.losses:
        return node.id
    if isinstance(node, ast.JoinedStr):
        parts = []
        for value in node.values:
            if isinstance(value, ast.FormattedValue):
                parts.append(value.value)
        return next((loss for part in parts if (loss := _plain_loss(part, loops))), None)
    return None


@rule(
    "loss-keeps-graph",
    "ME02",
    "high",
    "every kept loss or output keeps the whole graph of its step in memory",
)
def keeps_graphs(module: Module) -> Iterator[Hit]:
    for loops, loop in _steps(module):
        for node in loops.anywhere(loop):
            value = _kept(node, loops)
            if value is None or _is_reset(node, loop) or is_shielded(module, node):
                continue
            if isinstance(value, ast.Name) and not _is_graph(value, loops):
                continue
            name = value.id if isinstance(value, ast.Name) else "the loss"
            is_tensor = not isinstance(value, ast.Name) or value.id in loops.losses
            yield Hit(
                value,
                f"{name} is kept with its graph",
                f"keep {name if isinstance(value, ast.Name) else 'it as loss'}.detach()",
                _detach(module, value) if is_tensor else NONE,
            )


def _is_graph(name: ast.Name, loops: Loops) -> bool:
    """Whether a kept loss or output is one of the training, and never cut from its graph."""
    if name.id in loops.losses and not loops.trains_on(name):
        return False  # an evaluation's loss of the same name
    values = loops.module.values.get(name.id, [])
    shielded = any(is_shielded(loops.module, value) for value in values)
    return not shielded and not _is_detached(name.id, loops)


def _kept(node: ast.AST, loops: Loops) -> ast.Name | ast.Call | None:
    """``losses.append(loss)`` or ``total += loss``, without a backward on what keeps it."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "append"
    ):
        keeper, value = dotted(node.func.value), node.args[0] if len(node.args) == 1 else None
    elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add):
        keeper, value = dotted(node.target), node.value
    else:
        return None
    if keeper is None or _feeds_backward(keeper, loops):
        return None
    if isinstance(value, ast.Name) and value.id in loops.losses | loops.outputs:
        return value
    if isinstance(value, ast.Call) and _is_loss_of_model(value, loops):
        return value
    return None


def _is_loss_of_model(call: ast.Call, loops: Loops) -> bool:
    """``F.mse_loss(model(x), y)`` of a model with an optimizer: a tensor with a graph."""
    function = loops.module.resolve(call.func) or ""
    if not function.startswith("torch.nn.functional."):
        return False
    return any(
        isinstance(node, ast.Call) and dotted(node.func) in loops.models
        for argument in call.args
        for node in ast.walk(argument)
    )


def _feeds_backward(keeper: str, loops: Loops) -> bool:
    """Whether the keeper, or something computed from it, is what backward is called on."""
    if keeper in loops.losses:
        return True
    sources = [value for loss in loops.losses for value in loops.module.values.get(loss, [])]
    return any(dotted(node) == keeper for value in sources for node in ast.walk(value))


def _is_detached(name: str, loops: Loops) -> bool:
    """Whether the name is somewhere made a number or cut from its graph."""
    values = loops.module.values.get(name, [])
    calls = [value for value in values if isinstance(value, ast.Call)]
    return any(
        (dotted(c.func) or ast.unparse(c.func)).rpartition(".")[2] in ("item", "detach", "float")
        for c in calls
    )


def _is_reset(node: ast.AST, loop: Loop) -> bool:
    """Whether what keeps is emptied in the loop: it never grows beyond a step."""
    if isinstance(node, ast.Call):
        keeper = dotted(node.func.value)  # type: ignore[attr-defined]
    else:
        keeper = dotted(node.target)  # type: ignore[attr-defined]
    for statement in ast.walk(loop):
        if isinstance(statement, ast.Assign) and keeper in [
            dotted(target) for target in statement.targets
        ]:
            return True
        if isinstance(statement, ast.Call) and dotted(statement.func) in (
            f"{keeper}.clear",
            f"{keeper}.pop",
            f"{keeper}.popleft",
        ):
            return True
    return False


def _detach(module: Module, value: ast.expr) -> Edits:
    end = module.source.end(value)
    return (Edit(end, end, ".detach()"),)


@rule(
    "empty-cache",
    "ME04",
    "medium",
    "the allocator gives its memory back and must ask the driver for it again",
)
def empties_the_cache(module: Module) -> Iterator[Hit]:
    for call, _ in _each(module, "torch.cuda.empty_cache"):
        edits = _delete(module, call)
        yield Hit(call, "torch.cuda.empty_cache() in every step", "take it out of the loop", edits)


def _delete(module: Module, call: ast.Call) -> Edits:
    statement = module.parents.get(call)
    block = None
    if statement is not None:
        block = module.parents.get(statement)
    siblings = getattr(block, "body", [])
    if isinstance(statement, ast.Expr) and statement in siblings:
        return delete_statement(module.source, statement, siblings)
    return NONE


@rule("gc-collect", "HO03", "medium", "a full collection looks at every object of the process")
def collects_garbage(module: Module) -> Iterator[Hit]:
    for call, _ in _each(module, "gc.collect"):
        yield Hit(
            call,
            "gc.collect() in every step",
            "every few hundred steps, on all ranks at the same one",
        )


@rule("save-each-step", "HO07", "medium", "the training stands still while a checkpoint is written")
def saves_every_step(module: Module) -> Iterator[Hit]:
    for call, _ in _each(module, "torch.save", "torch.distributed.checkpoint.save"):
        yield Hit(
            call,
            "a checkpoint is written in every step",
            "save every few hundred steps, or once an epoch",
        )


@rule("copy-blocks", "IN08", "info", "the host waits for the copy although the batch is pinned")
def blocking_copies(module: Module) -> Iterator[Hit]:
    pinned = []
    for call in module.calls_of("torch.utils.data.DataLoader"):
        pinned.append(keyword(call, "pin_memory"))
    if not any(argument and constant(argument.value) is True for argument in pinned):
        return
    for _, loop in _steps(module):
        names = loop_names(loop)
        for node in ast.walk(loop):
            if (
                isinstance(node, ast.Call)
                and _is_copy(node, names)
                and not keyword(node, "non_blocking")
            ):
                edits = add_keywords(module.source, node, non_blocking="True")
                yield Hit(
                    node, "the copy of a pinned batch waits for its end", "non_blocking=True", edits
                )


def _is_copy(call: ast.Call, batch: set[str]) -> bool:
    """``x.to(device)`` or ``x.cuda()`` of something that the loop's header binds."""
    func = call.func
    if not (
        isinstance(func, ast.Attribute)
        and isinstance(func.value, ast.Name)
        and func.value.id in batch
    ):
        return False
    if func.attr == "cuda":
        return not call.args and not call.keywords
    if func.attr != "to" or len(call.args) != 1 or call.keywords:
        return False
    where = call.args[0]
    text = constant(where)
    return (isinstance(text, str) and text.startswith("cuda")) or (dotted(where) or "").endswith(
        "device"
    )


@rule("retain-graph", "CE07", "info", "the graph of the step stays in memory after its backward")
def retains_the_graph(module: Module) -> Iterator[Hit]:
    for loops, loop in _steps(module):
        backwards = []
        for n in loops.anywhere(loop):
            if isinstance(n, ast.Call) and _is_backward(n):
                backwards.append(n)
        argument = None
        if len(backwards) == 1:
            argument = keyword(backwards[0], "retain_graph")
        if argument and constant(argument.value) is True:
            yield Hit(backwards[0], "retain_graph=True with one backward a step", "leave it out")


def _is_backward(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and call.func.attr == "backward"
