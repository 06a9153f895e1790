"""Groups of an optimizer all of whose parameters are frozen, though it updates others."""

import ast

from gputop_agent.runtime import source, syntax
from gputop_agent.watchers import gradients


def fields(optimizer):
    """``{"frozen_group", "frozen_group_names", "frozen_group_at"}``: values and names of such
    groups, and the only call of ``Embedding.from_pretrained`` that does not say ``freeze``, which
    freezes; empty without such a group.
    """
    groups = [group["params"] for group in optimizer.param_groups if group["params"]]
    frozen = [group for group in groups if not any(part.requires_grad for part in group)]
    if not frozen or len(frozen) == len(groups):
        return {}
    parameters = [parameter for group in frozen for parameter in group]
    return {
        "frozen_group": sum(parameter.numel() for parameter in parameters),
        "frozen_group_names": gradients.names(parameters[: gradients.MAX_NAMES]),
        "frozen_group_at": _by_default(),
    }


def _by_default():
    calls = [
        (file, node.lineno)
        for file in source.users_files()
        for node in syntax.nodes(file)
        if isinstance(node, ast.Call) and _freezes_unsaid(node)
    ]
    return source.place(*calls[0]) if len(calls) == 1 else None


def _freezes_unsaid(call):
    """``Embedding.from_pretrained(table)``, or of an ``EmbeddingBag``."""
    if getattr(call.func, "attr", "") != "from_pretrained" or len(call.args) > 1:
        return False
    owner = getattr(call.func.value, "attr", getattr(call.func.value, "id", ""))
    is_said = any(keyword.arg == "freeze" for keyword in call.keywords)
    return owner in ("Embedding", "EmbeddingBag") and not is_said
