"""Weights as FSDP2 gathers them, which stand in graphs where modules hold the sharded ones."""

from gputop_agent.runtime import interrupts


def owners(layers):
    """Index of the layer that holds a gathered weight, by the weight's id."""
    modules = [reference() for reference in layers.modules]
    indexes = {id(module): index for index, module in enumerate(modules) if module is not None}
    owner_of = {}
    for module in modules:
        for weight in _sharded_weights(module):
            index = indexes.get(id(weight._module_info.module))
            gathered = getattr(weight, "_unsharded_param", None)
            if index is not None and gathered is not None:
                owner_of[id(gathered)] = index
    return owner_of


def _sharded_weights(module):
    """Those that ``fully_shard`` manages for a module (``torch/distributed/fsdp/_fully_shard``)."""
    if not hasattr(module, "_get_fsdp_state"):
        return ()
    try:
        return module._get_fsdp_state()._fsdp_param_group.fsdp_params
    except AttributeError:  # it has none, or another release of torch keeps them elsewhere
        interrupts.pass_on()
        return ()
