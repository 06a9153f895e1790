"""Finds the training loop: the innermost with a backward and a step, helpers followed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cached_property, lru_cache

from gputop_analysis.lint.module import Function, Module, dotted

Loop = ast.For | ast.AsyncFor | ast.While
_DEPTH = 3
_OPTIMIZER = re.compile(
    r"opt(im|imizer|imiser)?s?(_\w+)?$|(\w+_)?opt(im|imizer|imiser)?$|\w*scaler$"
)
_NESTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


@lru_cache(maxsize=4)
def loops_of(module: Module) -> Loops:
    """The loops of a file, looked for once."""
    return Loops(module)


class Loops:
    """The training loops of a file, and what each of their steps does without condition."""

    def __init__(self, module: Module):
        self.module = module

    @cached_property
    def training(self) -> list[Loop]:
        """Innermost loops that make a whole step."""
        loops = []
        for node in self.module.nodes:
            if isinstance(node, Loop) and self._trains(node):
                loops.append(node)
        outermost = []
        for loop in loops:
            if not any(inner in loops for inner in self._reached(loop.body, _DEPTH)):
                outermost.append(loop)
        return outermost

    def every_step(self, loop: Loop) -> Iterator[ast.AST]:
        """Nodes that run in each step whatever happens, in helpers of this file too."""
        yield from self._unconditional(loop.body, _DEPTH)

    def anywhere(self, loop: Loop) -> Iterator[ast.AST]:
        """All nodes of the loop's body and of the helpers that it calls."""
        yield from self._reached(loop.body, _DEPTH)

    def train_within(self, body: list[ast.stmt]) -> bool:
        """Whether these statements, or helpers that they call, have a training loop."""
        return any(node in self.training for node in self._reached(body, _DEPTH))

    def epochs_over(self, name: str) -> bool:
        """Whether ``for ... in NAME`` stands inside another loop of its function."""
        for node in self.module.nodes:
            if isinstance(node, ast.For) and name in _iterated(node) and self._is_repeated(node):
                return True
        return False

    def _is_repeated(self, node: ast.AST) -> bool:
        return any(isinstance(outer, Loop) for outer in self._above_in_function(node))

    def _above_in_function(self, node: ast.AST) -> Iterator[ast.AST]:
        for outer in self.module.above(node):
            if isinstance(outer, Function):
                return
            yield outer

    def _trains(self, loop: Loop) -> bool:
        backward = step = False
        for node in self._reached(loop.body, _DEPTH):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                backward = backward or node.func.attr in ("backward", "manual_backward")
                step = step or self.is_optimizer_step(node)
        return backward and step

    def is_optimizer_step(self, node: ast.AST) -> bool:
        """``optimizer.step()`` or ``scaler.step(optimizer)``."""
        if not (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == "step"
        ):
            return False
        receiver = dotted(node.func.value) or ""
        return (
            receiver in self.optimizers or _OPTIMIZER.match(receiver.rpartition(".")[2]) is not None
        )

    @cached_property
    def optimizers(self) -> set[str]:
        """Names of optimizers of torch."""
        return self.module.made_by("torch.optim.") - self.schedulers

    @cached_property
    def schedulers(self) -> set[str]:
        """Names of learning rate schedulers of torch."""
        return self.module.made_by("torch.optim.lr_scheduler.")

    def trains_on(self, name: ast.Name) -> bool:
        """Whether the function of this mention calls backward on the name."""
        function = self.module.function_of(name)
        return any(
            isinstance(node, ast.Name)
            and node.id == name.id
            and self.module.function_of(node) is function
            for call in self._backwards
            for node in ast.walk(call)
        )

    @cached_property
    def _backwards(self) -> list[ast.Call]:
        calls = []
        for node in self.module.nodes:
            if isinstance(node, ast.Call):
                calls.append(node)
        backward_calls = []
        for call in calls:
            if isinstance(call.func, ast.Attribute) and call.func.attr == "backward":
                backward_calls.append(call)
        return backward_calls

    @cached_property
    def losses(self) -> set[str]:
        """Names on which ``backward`` is called, or on a sum or a mean of them; not what a loss is
        computed from.
        """
        names = {name for call in self._backwards for name in _summands(call)}
        return names - self.module.imports.keys() - self.optimizers

    @cached_property
    def models(self) -> set[str]:
        """Names whose parameters are asked for: by an optimizer."""
        return {
            name
            for node in self.module.nodes
            if isinstance(node, ast.Attribute) and node.attr == "parameters"
            if (name := dotted(node.value))
        }

    @cached_property
    def outputs(self) -> set[str]:
        """Names of what a model with an optimizer returns, where a loss is computed from them."""
        sources = [value for loss in self.losses for value in self.module.values.get(loss, [])]
        inside = [node for source in [*sources, *self._backwards] for node in ast.walk(source)]
        used = set()
        for node in inside:
            if isinstance(node, ast.Name):
                used.add(node.id)
        names: set[str] = set()
        for name in used & self.module.values.keys():
            if any(
                isinstance(v, ast.Call) and dotted(v.func) in self.models
                for v in self.module.values[name]
            ):
                names.add(name)
        return names

    @cached_property
    def _functions(self) -> dict[str, list[Function]]:
        by_name: dict[str, list[Function]] = {}
        for node in self.module.nodes:
            if isinstance(node, Function):
                by_name.setdefault(node.name, []).append(node)
        return by_name

    def _helper(self, node: ast.AST) -> Function | None:
        """The one function of this file that a call runs: ``f(...)`` or ``self.f(...)``."""
        if not isinstance(node, ast.Call):
            return None
        name = dotted(node.func) or ""
        functions = self._functions.get(name.removeprefix("self."), [])
        if len(functions) == 1:
            return functions[0]
        return None

    def _reached(self, body: list[ast.stmt], depth: int) -> Iterator[ast.AST]:
        queue: list[ast.AST] = list(body)
        while queue:
            node = queue.pop(0)
            if isinstance(node, _NESTED):
                continue
            yield node
            helper = None
            if depth:
                helper = self._helper(node)
            if helper is not None:
                yield from self._reached(helper.body, depth - 1)
            queue.extend(ast.iter_child_nodes(node))

    def _unconditional(self, body: list[ast.stmt], depth: int) -> Iterator[ast.AST]:
        for statement in body:
            yield from self._sure(statement, depth)
            if _may_leave(statement):  # what follows runs only sometimes
                return

    def _sure(self, node: ast.AST, depth: int) -> Iterator[ast.AST]:
        if isinstance(node, _NESTED):
            return
        if isinstance(node, ast.If | ast.IfExp | ast.While):
            yield from self._sure(node.test, depth)
            return
        if isinstance(node, ast.BoolOp):
            yield from self._sure(node.values[0], depth)
            return
        yield node
        helper = None
        if depth:
            helper = self._helper(node)
        if helper is not None:
            yield from self._unconditional(helper.body, depth - 1)
        if isinstance(node, ast.Try | ast.Match):
            yield from self._unconditional(node.body if isinstance(node, ast.Try) else [], depth)
            return
        for name, value in ast.iter_fields(node):
            if name == "body" and isinstance(value, list):
                yield from self._unconditional(value, depth)
            elif name != "orelse":
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from self._sure(child, depth)


_PASS_ON = {"backward", "manual_backward", "scale", "sum", "mean", "stack", "cat", "add"}
"""Functions whose result holds the graph of what they are called with."""


def _summands(node: ast.AST) -> Iterator[str]:
    """Names of an expression without those that other functions are called with: ``loss`` of
    ``scale(loss / 2)``.
    """
    if isinstance(node, ast.Name):
        yield node.id
    passed = ast.iter_child_nodes(node)
    if isinstance(node, ast.Call):
        name = (dotted(node.func) or ast.unparse(node.func)).rpartition(".")[2]
        passed = iter([node.func, *node.args] if name in _PASS_ON else [node.func])
    for child in passed:
        yield from _summands(child)


def _may_leave(statement: ast.stmt) -> bool:
    leaves = (ast.Continue, ast.Break, ast.Return)
    return isinstance(statement, ast.If) and any(
        isinstance(node, leaves) for node in ast.walk(statement)
    )


def _iterated(loop: ast.For) -> set[str]:
    """Names in what a loop goes over: ``loader`` of ``enumerate(tqdm(loader))``."""
    return {name for node in ast.walk(loop.iter) if (name := dotted(node))}


def loop_names(loop: Loop) -> set[str]:
    """Names that the loop binds for each turn: the batch."""
    if isinstance(loop, ast.While):
        return set()
    return {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
