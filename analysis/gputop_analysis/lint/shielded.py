"""Whether a place in a file runs with gradients switched off."""

from __future__ import annotations

import ast

from gputop_analysis.lint.module import Function, Module

NO_GRAD = (
    "torch.no_grad",
    "torch.inference_mode",
    "torch.set_grad_enabled",
    "torch.autograd.no_grad",
)


def is_shielded(module: Module, node: ast.AST) -> bool:
    """Whether it is under no_grad or inference_mode, or a plain call switches gradients off."""
    for outer in [node, *module.above(node)]:
        if isinstance(outer, ast.With | ast.AsyncWith):
            managers = [item.context_expr for item in outer.items]
            if any(_is_no_grad(module, manager) for manager in managers):
                return True
        if isinstance(outer, Function) and outer.decorator_list:
            return True  # whatever it is, it may do the same
    plain = []
    for call in module.calls_of("torch.set_grad_enabled"):
        plain.append(module.parents.get(call))
    return any(isinstance(statement, ast.Expr) for statement in plain)


def _is_no_grad(module: Module, manager: ast.expr) -> bool:
    """One of torch's, or anything that we cannot see through."""
    name = None
    if isinstance(manager, ast.Call):
        name = module.resolve(manager.func)
    return name is None or name in NO_GRAD
