"""The optimizer, mixed precision and its scaler, as the hello tells them."""

import math

from gputop_agent.runtime import interrupts

_FLAGS = (
    "fused",
    "foreach",
    "capturable",
    "amsgrad",
    "nesterov",
    "maximize",
    "weight_decay",
    "momentum",
    "eps",
)


def describe_optimizer(optimizers):
    """The ``optimizer`` entry: the first live optimizer in full, the others by class; or None."""
    if not optimizers:
        return None
    main = unwrap(optimizers[0])
    groups = getattr(main, "param_groups", None) or [{}]
    first = groups[0]
    description = {
        "class": type(main).__name__,
        "module": type(main).__module__.split(".")[0],
        "groups": len(groups),
        "parameters": _values([main]),
        "all_parameters": _values([unwrap(optimizer) for optimizer in optimizers]),
        "tensors": sum(len(group.get("params", ())) for group in groups),
        "lr": number(first.get("lr")),
        "betas": [number(beta) for beta in first["betas"]]
        if isinstance(first.get("betas"), (tuple, list))
        else None,
        "state": _state(main),
        "others": [type(unwrap(other)).__name__ for other in optimizers[1:8]],
    }
    for name in _FLAGS:
        if name in first:
            description[name] = plain(first[name])
    return description


def _values(optimizers):
    """Values of the parameters that the optimizers were given, each counted once."""
    parameters = {
        id(parameter): parameter
        for optimizer in optimizers
        for group in getattr(optimizer, "param_groups", None) or ()
        for parameter in group.get("params", ())
    }
    return sum(map(_numel, parameters.values()))


def unwrap(optimizer):
    """The torch optimizer inside Accelerate's, Lightning's or DeepSpeed's wrapper."""
    for _ in range(4):
        fields = getattr(optimizer, "__dict__", {})
        inner = fields.get("optimizer", fields.get("_optimizer"))
        if inner is None or not hasattr(inner, "param_groups"):
            return optimizer
        optimizer = inner
    return optimizer


def describe_amp(autocast, scaler):
    """The ``amp`` entry: ``autocast`` and ``scaler`` are what the hooks saw (False, True or the
    dtype; the scaler).
    """
    enabled = bool(autocast)
    if enabled and autocast is not True:
        dtype = str(autocast).replace("torch.", "")
    else:
        dtype = None
    return {"autocast": enabled, "dtype": dtype, "grad_scaler": bool(scaler)}


def plain(value):
    """``value`` if JSON can carry it, else a float, else None. Reads no CUDA tensor."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return number(value)


def number(value):
    """A finite float out of a number or a one-element CPU tensor; None otherwise."""
    if getattr(value, "is_cuda", False):
        return None
    try:
        number_ = float(value)
    except (TypeError, ValueError, RuntimeError):
        interrupts.pass_on()
        return None
    return number_ if math.isfinite(number_) else None


def _numel(parameter):
    try:
        return parameter.numel()
    except (RuntimeError, ValueError, TypeError):
        interrupts.pass_on()
        return 0


def _state(optimizer):
    """``{name: dtype}`` of the tensors that the optimizer keeps for its first parameter; {} before
    its first step.
    """
    state = getattr(optimizer, "state", None)
    if not isinstance(state, dict):
        return {}
    for entry in state.values():
        if isinstance(entry, dict):
            return {
                str(name): str(value.dtype).replace("torch.", "")
                for name, value in entry.items()
                if hasattr(value, "dtype") and hasattr(value, "numel") and value.numel() > 1
            }
    return {}
