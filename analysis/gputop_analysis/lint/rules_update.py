"""Rules about the update: gradients, schedulers, optimizer's options, evaluation."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gputop_analysis.lint.edits import NONE, Edits, insert_line, keyword, move, remove_keyword
from gputop_analysis.lint.loops import Loop, Loops, loops_of
from gputop_analysis.lint.model import Hit, rule
from gputop_analysis.lint.module import Function, Module, constant, dotted
from gputop_analysis.lint.rules_precision import SCALERS
from gputop_analysis.lint.shielded import NO_GRAD, is_shielded


@rule("no-zero-grad", "NU11", "high", "gradients of all steps so far are added up")
def never_zeroed(module: Module) -> Iterator[Hit]:
    if module.mentions("zero_grad", "functional_call", "grad_sampler") or module.uses_framework:
        return
    if any(isinstance(node, ast.Attribute) and node.attr == "grad" for node in module.nodes):
        return  # they may be cleared by hand
    loops = loops_of(module)
    for loop in loops.training:
        for node in loops.anywhere(loop):
            if (
                loops.is_optimizer_step(node)
                and isinstance(node, ast.Call)
                and _receiver(node) in loops.optimizers
            ):
                name = _receiver(node)
                edits = _zero_after(module, node, f"{name}.zero_grad()")
                yield Hit(
                    node,
                    f"{name} steps and nothing ever clears the gradients",
                    f"{name}.zero_grad()",
                    edits,
                )
                return


def _receiver(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return dotted(call.func.value) or ""
    return ""


def _zero_after(module: Module, call: ast.Call, line: str) -> Edits:
    statement = module.parents.get(call)
    if isinstance(statement, ast.Expr):
        return insert_line(module.source, statement, line, after=True)
    return NONE


@rule(
    "zero-grad-keeps-memory", "ME09", "medium", "gradients are filled with zeros and stay in memory"
)
def zeroed_in_place(module: Module) -> Iterator[Hit]:
    for node in module.nodes:
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "zero_grad"
        ):
            argument = keyword(node, "set_to_none")
            if argument and constant(argument.value) is False:
                edits = remove_keyword(module.source, node, "set_to_none")
                yield Hit(
                    node,
                    "zero_grad(set_to_none=False) keeps every gradient",
                    "leave the default",
                    edits,
                )


@rule(
    "scheduler-first",
    "NU06",
    "high",
    "the first value of the schedule is skipped; torch warns of it",
)
def scheduler_before_optimizer(module: Module) -> Iterator[Hit]:
    loops = loops_of(module)
    for node in module.nodes:
        for block in (getattr(node, "body", None), getattr(node, "orelse", None)):
            if isinstance(block, list):
                yield from _out_of_order(module, block, loops)


def _out_of_order(module: Module, block: list[ast.stmt], loops: Loops) -> Iterator[Hit]:
    calls = []
    for s in block:
        if isinstance(s, ast.Expr) and isinstance(s.value, ast.Call):
            calls.append((s, s.value))
    schedules = [
        index
        for index, (_, call) in enumerate(calls)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr == "step"
        and _receiver(call) in loops.schedulers
    ]
    updates = [index for index, (_, call) in enumerate(calls) if loops.is_optimizer_step(call)]
    if schedules and updates and max(schedules) < min(updates):
        schedule, call = calls[schedules[0]]
        edits = NONE
        if len(schedules) == 1:
            edits = move(module.source, schedule, block, after=calls[updates[-1]][0])
        yield Hit(
            call,
            f"{_receiver(call)}.step() comes before the optimizer's step",
            "put it behind optimizer.step()",
            edits,
        )


@rule("optimizer-foreach", "HO11", "medium", "each parameter is updated by kernels of its own")
def one_by_one(module: Module) -> Iterator[Hit]:
    for call, name in module.calls:
        foreach, fused = keyword(call, "foreach"), keyword(call, "fused")
        is_fused = fused is not None and constant(fused.value) is True
        if (
            name.startswith("torch.optim.")
            and foreach
            and constant(foreach.value) is False
            and not is_fused
        ):
            edits = remove_keyword(module.source, call, "foreach")
            yield Hit(
                call,
                "foreach=False updates the parameters one by one",
                "leave it out, or fused=True",
                edits,
            )


@rule(
    "clip-before-unscale",
    "NU05",
    "high",
    "the gradients are still scaled: nearly every step is clipped to nothing",
)
def clips_scaled_gradients(module: Module) -> Iterator[Hit]:
    scalers = _scalers(module)
    if not scalers or module.mentions("unscale_") or module.uses_framework:
        return
    scales = any(
        isinstance(n, ast.Attribute) and n.attr == "scale" and dotted(n.value) in scalers
        for n in module.nodes
    )
    clips = list(
        module.calls_of(
            "torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad.clip_grad_norm_"
        )
    )
    if scales and clips:
        yield Hit(
            clips[0],
            "gradients are clipped before they are unscaled",
            "scaler.unscale_(optimizer) before it",
        )


def _scalers(module: Module) -> set[str]:
    named = {name for prefix in SCALERS for name in module.made_by(prefix)}
    off = []
    for call in module.calls_of(*SCALERS):
        if (on := keyword(call, "enabled")) and constant(on.value) is False:
            off.append(call)
    if off:
        return set()
    return named


@rule(
    "eval-builds-graph",
    "ME10",
    "medium",
    "an evaluation that records gradients needs the memory of a training step",
)
def evaluates_with_gradients(module: Module) -> Iterator[Hit]:
    if module.uses_framework:
        return
    for node in module.nodes:
        name = _evaluated(node)
        function = None
        if name:
            function = module.function_of(node)
        if name is None or is_shielded(module, node):
            continue
        loop = _loop_after(module, node, name)
        if loop is None or is_shielded(module, loop):
            continue
        called = function is None or (
            _is_called(module, function) and not _is_called_shielded(module, function)
        )
        if called or module.is_seen(loop):
            fix = "put it under `with torch.no_grad():`, or @torch.no_grad() on its function"
            yield Hit(
                loop, f"{name} is evaluated with gradients on", fix, _decorate(module, function)
            )


def _evaluated(node: ast.AST) -> str | None:
    """``model`` of a statement ``model.eval()``."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        func = node.value.func
        if isinstance(func, ast.Attribute) and func.attr == "eval" and not node.value.args:
            return dotted(func.value)
    return None


def _loop_after(module: Module, statement: ast.AST, name: str) -> ast.stmt | None:
    """The first loop or comprehension behind it in its block, if it calls the model untrained."""
    block = getattr(module.parents.get(statement), "body", [])
    if statement not in block:
        return None
    for later in block[block.index(statement) + 1 :]:
        if isinstance(later, Loop) or _comprehends(later, name):
            calls = [node for node in ast.walk(later) if isinstance(node, ast.Call)]
            methods = {call.func.attr for call in calls if isinstance(call.func, ast.Attribute)}
            shielded = any(module.resolve(call.func) in NO_GRAD for call in calls)
            trains = methods & {"backward", "grad", "train", "requires_grad_"}
            if any(dotted(call.func) == name for call in calls) and not shielded and not trains:
                return later
            return None
        if not isinstance(later, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr):
            return None
    return None


def _comprehends(statement: ast.stmt, name: str) -> bool:
    """Whether it calls the model in a comprehension: ``sum(model(x).loss for x in batches)``."""
    return any(
        isinstance(inside, ast.Call) and dotted(inside.func) == name
        for node in ast.walk(statement)
        if isinstance(node, ast.GeneratorExp | ast.ListComp | ast.SetComp | ast.DictComp)
        for inside in ast.walk(node)
    )


def _calls_to(module: Module, function: Function) -> list[ast.Call]:
    calls = [n for n in module.nodes if isinstance(n, ast.Call)]
    return [n for n in calls if (dotted(n.func) or "").rpartition(".")[2] == function.name]


def _is_called(module: Module, function: Function) -> bool:
    return bool(_calls_to(module, function))


def _is_called_shielded(module: Module, function: Function, depth: int = 3) -> bool:
    """Whether a caller, or a caller's caller, has switched gradients off."""
    calls = _calls_to(module, function)
    callers = []
    for call in calls:
        if (outer := module.function_of(call)) and depth and outer is not function:
            callers.append(outer)
    return any(is_shielded(module, call) for call in calls) or any(
        _is_called_shielded(module, caller, depth - 1) for caller in callers
    )


def _decorate(module: Module, function: Function | None) -> Edits:
    """Only a function of which all is evaluation, and where ``torch`` itself is imported."""
    if function is None or function.decorator_list or module.imports.get("torch") != "torch":
        return NONE
    trains = {"backward", "step", "train", "requires_grad_", "zero_grad"}
    attributes = set()
    for n in ast.walk(function):
        if isinstance(n, ast.Attribute):
            attributes.add(n.attr)
    yields = any(isinstance(n, ast.Yield | ast.YieldFrom | ast.Await) for n in ast.walk(function))
    if yields or attributes & (trains - {"train"}):
        return NONE
    return insert_line(module.source, function, "@torch.no_grad()", after=False)
