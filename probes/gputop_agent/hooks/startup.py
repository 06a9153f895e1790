"""What a process does before it trains: device, process group, model, weights.

All of it is taken out again at the first backward.
"""

import sys
from time import monotonic_ns

from gputop_agent.runtime import finder, guard
from gputop_agent.runtime.session import session
from gputop_agent.timing import startup


def install(torch):
    """Wrap what there is now, and the rest when it is imported."""
    _watch_parameters()
    _watch_cuda(torch)
    _wrap(torch.nn.Module, "load_state_dict", "weights")
    load = _wrap(sys.modules["torch.serialization"], "load", "torch.load")
    if load is not None and torch.load is load.original:
        _put_in(guard.AppliedPatch(torch, "load", load.replacement))
    finder.after_import("torch.distributed.distributed_c10d", _wrap_process_group)
    finder.after_import("safetensors.torch", _wrap_safetensors)


def _watch_parameters():
    module = sys.modules["torch.nn.modules.module"]
    register = getattr(module, "register_module_parameter_registration_hook", None)
    if register is not None:
        take_out = register(startup.parameter_made).remove
        _until_training(take_out)


def _watch_cuda(torch):
    """Its initialisation; the function is called again and again afterwards."""
    cuda = torch.cuda
    _wrap(cuda, "_lazy_init", "CUDA", lambda: not cuda.is_initialized())


def _wrap_process_group(module):
    patch = _wrap(module, "init_process_group", "process group")
    package = sys.modules.get("torch.distributed")
    if patch is not None and getattr(package, patch.name, None) is patch.original:
        _put_in(guard.AppliedPatch(package, patch.name, patch.replacement))


def _wrap_safetensors(module):
    _wrap(module, "load_file", "weights")


def _always():
    return True


def _wrap(owner, name, milestone, counts=_always):
    """Time the calls of ``owner.name``; None where there is no such function."""
    original = getattr(owner, name, None)
    if original is None:
        return None
    patch = guard.AppliedPatch(owner, name, _timed(original, milestone, counts))
    _put_in(patch)
    return patch


def _until_training(take_out):
    session.undo.append(take_out)
    startup.until_training(take_out)


def _put_in(patch):
    patch.put_in()
    _until_training(patch.take_out)


def _timed(original, milestone, counts):
    where = getattr(original, "__name__", "?")

    def wrapper(*args, **kwargs):
        try:
            began_ns, outermost = monotonic_ns(), None
            try:
                if counts() and not startup.is_over():
                    outermost = startup.begins(milestone, began_ns)
            except Exception:
                guard.failed(where)
            try:
                return original(*args, **kwargs)
            finally:
                try:
                    if outermost is not None:
                        startup.ends(milestone, began_ns, outermost)
                except Exception:
                    guard.failed(where)
        except BaseException as error:
            guard.vanish(error, where)
            raise

    return guard.dress(wrapper, original)
