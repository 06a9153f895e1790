"""Meaning of the names of a file: imports and their aliases, assignments, the tree upwards."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from gputop_analysis.lint.source import SourceFile

Function = ast.FunctionDef | ast.AsyncFunctionDef

_SAME = {
    "torch.utils.data.dataloader.DataLoader": "torch.utils.data.DataLoader",
    "torch.utils.data.distributed.DistributedSampler": "torch.utils.data.DistributedSampler",
    "torch.nn.parallel.distributed.DistributedDataParallel": (
        "torch.nn.parallel.DistributedDataParallel"
    ),
    "torch.nn.parallel.DataParallel": "torch.nn.DataParallel",
    "torch.autograd.anomaly_mode.set_detect_anomaly": "torch.autograd.set_detect_anomaly",
    "torch.autograd.anomaly_mode.detect_anomaly": "torch.autograd.detect_anomaly",
    "torch.distributed.distributed_c10d.init_process_group": "torch.distributed.init_process_group",
}
_FRAMEWORKS = frozenset(
    ("lightning", "pytorch_lightning", "accelerate", "trl", "deepspeed", "fastai", "ignite")
)
_ACCELERATOR = "torch.accelerator"
_OTHER_DEVICES = ("xpu", "mps", "hpu", "npu")


class Module:
    """One parsed file with answers about its names. A name that is bound twice means
    nothing to us.

    At ``seen_line`` a run saw what a rule is about: conditions around that line held.
    """

    def __init__(self, source: SourceFile, seen_line: int = 0):
        self.source = source
        self.seen_line = seen_line
        self.tree = source.tree
        self.nodes = list(ast.walk(source.tree))
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    def resolve(self, node: ast.AST) -> str | None:
        """``torch.utils.data.DataLoader`` for any spelling of it; None for what is not imported."""
        if isinstance(node, ast.Name):
            name = self.imports.get(node.id)
        elif isinstance(node, ast.Attribute):
            base = self.resolve(node.value)
            name = None
            if base:
                name = f"{base}.{node.attr}"
        else:
            return None
        if name:
            return _SAME.get(name, name)
        return None

    @cached_property
    def imports(self) -> dict[str, str]:
        """Names by what they import, but those bound to something else as well."""
        names: dict[str, set[str]] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    name = alias.asname or alias.name.split(".")[0]
                    names.setdefault(name, set()).add(alias.name if alias.asname else name)
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    names.setdefault(alias.asname or alias.name, set()).add(
                        f"{node.module}.{alias.name}"
                    )
        return {
            name: next(iter(meant))
            for name, meant in names.items()
            if len(meant) == 1 and name not in self.bound
        }

    @cached_property
    def bound(self) -> set[str]:
        """Names that the file itself binds: assignments, parameters, functions, classes."""
        names = set()
        for n in self.nodes:
            if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Load):
                names.add(n.id)
        names |= {n.arg for n in self.nodes if isinstance(n, ast.arg)}
        return names | {n.name for n in self.nodes if isinstance(n, Function | ast.ClassDef)}

    @cached_property
    def calls(self) -> list[tuple[ast.Call, str]]:
        """Calls of imported things with their full names, in the file's order."""
        calls = []
        for node in self.nodes:
            if isinstance(node, ast.Call):
                calls.append((node, self.resolve(node.func)))
        named = [(call, name) for call, name in calls if name]
        return sorted(named, key=lambda pair: (pair[0].lineno, pair[0].col_offset))

    def calls_of(self, *names: str) -> Iterator[ast.Call]:
        """Calls of these full names."""
        return (call for call, name in self.calls if name in names)

    def mentions(self, *names: str) -> bool:
        """Whether an identifier, attribute, keyword or short string of that name stands there."""
        return not self.words.isdisjoint(names)

    @cached_property
    def words(self) -> set[str]:
        """See ``mentions``."""
        strings: set[str] = set()
        for node in self.nodes:
            if isinstance(node, ast.Name):
                strings.add(node.id)
            elif isinstance(node, ast.Attribute):
                strings.add(node.attr)
            elif isinstance(node, ast.keyword) and node.arg:
                strings.add(node.arg)
            elif isinstance(node, ast.alias):
                strings.update(node.name.split("."))
            elif (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and len(node.value) < 40
            ):
                strings.add(node.value)
        return strings

    @cached_property
    def values(self) -> dict[str, list[ast.expr]]:
        """Values assigned to each name or dotted target, as ``self.loader``."""
        assigned: dict[str, list[ast.expr]] = {}
        for node in self.nodes:
            targets = []
            if isinstance(node, ast.Assign):
                targets = node.targets
            if isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
                targets = [node.target]
            for target in targets:
                name = dotted(target)
                if name:
                    value = node.value  # type: ignore[union-attr]
                    assigned.setdefault(name, []).append(value)  # type: ignore[arg-type]
        return assigned

    def made_by(self, prefix: str) -> set[str]:
        """Names to which only calls of things under ``prefix`` are assigned: ``torch.optim.``."""
        names: set[str] = set()
        for name, values in self.values.items():
            if all(self._is_call(v, prefix) for v in values):
                names.add(name)
        return names

    def _is_call(self, value: ast.expr, prefix: str) -> bool:
        return isinstance(value, ast.Call) and (self.resolve(value.func) or "").startswith(prefix)

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around one, inside out."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    def is_seen(self, node: ast.AST) -> bool:
        """Whether the node spans the line that a run named."""
        first, last = getattr(node, "lineno", 0), getattr(node, "end_lineno", None) or 0
        return bool(self.seen_line) and first <= self.seen_line <= last

    def function_of(self, node: ast.AST) -> Function | None:
        """The function that a node stands in."""
        return next((n for n in self.above(node) if isinstance(n, Function)), None)

    def is_conditional(self, node: ast.AST) -> bool:
        """Whether it depends on more than being reached: an if, a handler, a short circuit."""
        if self.is_seen(node):
            return False
        for outer in self.above(node):
            if isinstance(outer, Function | ast.Lambda):
                return False
            if isinstance(outer, ast.If | ast.IfExp | ast.ExceptHandler | ast.BoolOp | ast.Match):
                return not (isinstance(outer, ast.If) and is_main_guard(outer))
        return False

    @cached_property
    def device(self) -> str:
        """Device type besides the CPU that the file trains on, by torch's name; ``accelerator``
        stands for the one that the machine has. Empty: none.
        """
        if any("cuda" in word for word in self.words):
            return "cuda"
        if self._is_agnostic():
            return "accelerator"
        return next(
            (name for name in _OTHER_DEVICES if any(name in _parts(word) for word in self.words)),
            "",
        )

    @property
    def uses_gpu(self) -> bool:
        """Whether anything in the file speaks of a device other than a CPU."""
        return bool(self.device)

    def _is_agnostic(self) -> bool:
        """Whether the device is asked of ``torch.accelerator``."""
        if any(name.startswith(_ACCELERATOR) for name in self.imports.values()):
            return True
        names = (self.resolve(node) for node in self.nodes if isinstance(node, ast.Attribute))
        return any(name is not None and name.startswith(_ACCELERATOR) for name in names)

    @cached_property
    def uses_framework(self) -> bool:
        """Whether a trainer is imported that does by itself what the rules look for."""
        roots = {name.split(".")[0] for name in self.imports.values()}
        if "transformers" in roots and any(word.endswith("Trainer") for word in self.words):
            return True  # else only its models are used, in a loop of the script's own
        return not roots.isdisjoint(_FRAMEWORKS)

    @cached_property
    def is_ddp(self) -> bool:
        """Whether a model is wrapped in DistributedDataParallel."""
        return any(self.calls_of("torch.nn.parallel.DistributedDataParallel"))


def dotted(node: ast.AST) -> str | None:
    """``self.loader`` of an attribute chain that begins with a name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = dotted(node.value)
        if base:
            return f"{base}.{node.attr}"
        return None
    return None


def is_main_guard(node: ast.If) -> bool:
    """``if __name__ == "__main__":``."""
    return isinstance(node.test, ast.Compare) and dotted(node.test.left) == "__name__"


def constant(node: ast.AST | None) -> object:
    """Value of a literal; the type ``object`` itself for what is not one."""
    if isinstance(node, ast.Constant):
        return node.value
    return object


def _parts(word: str) -> list[str]:
    """``xpu:0`` and ``xpu`` name the same device, ``steps`` none."""
    return word.split(":")
