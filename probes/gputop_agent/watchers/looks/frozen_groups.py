"""Groups of an optimizer all of whose parameters are frozen, beside others or alone."""

import ast

from gputop_agent.runtime import source, syntax
from gputop_agent.watchers.looks import gradients

_EXCHANGES = r"\.(?:load|set|add)_adapter\("


def fields(optimizer):
    """``{"frozen_group", "frozen_group_names", "frozen_group_at"}``: values and names of such
    groups, and the only call of ``Embedding.from_pretrained`` that does not say ``freeze``, which
    freezes; empty without such a group. ``"frozen_whole"`` where there is no other group.
    """
    groups = [group["params"] for group in optimizer.param_groups if group["params"]]
    frozen = [group for group in groups if not any(part.requires_grad for part in group)]
    if not frozen:
        return {}
    parameters = [parameter for group in frozen for parameter in group]
    values = sum(parameter.numel() for parameter in parameters)
    if len(frozen) == len(groups):
        exchanged_at = source.place_matching(_EXCHANGES)
        return {"frozen_group": values, "frozen_whole": True, "frozen_group_at": exchanged_at}
    names = gradients.names(parameters[: gradients.MAX_NAMES])
    return {
        "frozen_group": values,
        "frozen_group_names": names,
        "frozen_group_at": _by_default(names),
    }


def _by_default(names):
    """Of several such calls the only one whose result is given one of these names' parts."""
    calls = [
        (file, node)
        for file in source.users_files()
        for node in syntax.nodes(file)
        if isinstance(node, ast.Assign) and _freezes_unsaid(node.value)
    ]
    parts = {part for name in names if name for part in name.split(".")}
    named = [(file, node) for file, node in calls if parts & _targets(node)]
    likely = named if len(named) == 1 else calls
    if len(likely) != 1:
        return None
    file, assignment = likely[0]
    return source.place(file, assignment.lineno)


def _targets(assign):
    """``elements`` of ``self.elements = ...``."""
    return {getattr(target, "attr", getattr(target, "id", "")) for target in assign.targets}


def _freezes_unsaid(call):
    """``Embedding.from_pretrained(table)``, or of an ``EmbeddingBag``."""
    if not isinstance(call, ast.Call) or len(call.args) > 1:
        return False
    if getattr(call.func, "attr", "") != "from_pretrained":
        return False
    of = getattr(call.func, "value", None)
    owner = getattr(of, "attr", getattr(of, "id", ""))
    is_said = any(keyword.arg == "freeze" for keyword in call.keywords)
    return owner in ("Embedding", "EmbeddingBag") and not is_said
