"""What the hooks ask of torch at every call, bound once."""

from typing import Any

CALL_SLOT = "_compiled_call_impl"  # what ``Module.__call__`` calls where an instance has it


class Bound:
    """Functions and types of torch; None until ``install``."""

    def __init__(self):
        self.is_compiling: Any = None  # torch.compiler.is_compiling
        #: holds what ``is_compiling()`` returns, where dynamo does not trace through us
        self.compiling_flags: "dict[str, Any]" = {}
        self.is_grad_enabled: Any = None
        self.tensor_type: Any = None
        self.count_dispatch_modes: Any = None  # of this thread
        self.count_function_modes: Any = None  # of this thread
        self.without_function_modes: Any = None  # a context in which none of them is asked


bound = Bound()


def install(torch):
    """Bind all that this version of torch has."""
    flags = vars(torch.compiler)
    bound.is_compiling = torch.compiler.is_compiling
    if "_is_compiling_flag" in flags:
        bound.compiling_flags = flags
    else:
        bound.compiling_flags = {"_is_compiling_flag": False}
    bound.is_grad_enabled = torch.is_grad_enabled
    bound.tensor_type = torch.Tensor
    bound.count_dispatch_modes = getattr(torch._C, "_len_torch_dispatch_stack", _none)
    bound.count_function_modes = getattr(torch._C, "_len_torch_function_stack", _none)
    bound.without_function_modes = getattr(torch._C, "DisableTorchFunction", None)


def _none():
    return 0
