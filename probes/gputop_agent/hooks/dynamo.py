"""torch.compile: its compile time, and keeping it from tracing or breaking on our code."""

import sys
import types
from _thread import get_ident

from gputop_agent import clock, finder, guard, lane, transport, wire
from gputop_agent.cycle import C
from gputop_agent.state import COMPILE, S

_began_ns = 0
_depth = -1


def install(torch):
    """Dynamo is imported late, if at all."""
    finder.after_import("torch._dynamo.eval_frame", skip_agent)
    finder.after_import("torch._dynamo.callback", _listen)


def skip_agent(module):
    """Put every code object of the guest on dynamo's skip list; it does not reach into callees by itself."""
    skip_code = module.skip_code
    prefix = __name__.split(".")[0]
    for name, part in list(sys.modules.items()):
        if part is not None and (name == prefix or name.startswith(prefix + ".")):
            skip_module(part, skip_code)
    for code in guard.hidden_codes:
        skip_code(code)
    S.skip_code = skip_code
    finder.after_own_import(lambda part: skip_module(part, skip_code))


def skip_module(module, skip_code):
    """Skip all functions and methods that a module of ours defines."""
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        members = vars(value).values() if isinstance(value, type) else (value,)
        for member in members:
            code = getattr(getattr(member, "__func__", member), "__code__", None)
            if isinstance(code, types.CodeType):
                _skip_nested(code, skip_code)


def _skip_nested(code, skip_code):
    skip_code(code)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            _skip_nested(constant, skip_code)


def _listen(module):
    handler = module.callback_handler
    for add, remove, callback in (
        (handler.register_start_callback, "remove_start_callback", compile_begins),
        (handler.register_end_callback, "remove_end_callback", compile_ended),
    ):
        add(callback)
        S.undo.append(lambda remove=remove, callback=callback: getattr(handler, remove)(callback))


def compile_begins(*_):
    """Begin the phase."""
    try:
        _begin()
    except Exception:
        guard.failed("compile_begins")


def compile_ended(*_):
    """End the phase."""
    try:
        _end()
    except Exception:
        guard.failed("compile_ended")


def _begin():
    global _began_ns, _depth
    S.compile_seen = True
    if get_ident() == S.thread_ident and _depth < 0:
        lane.leave()
        _depth = len(clock.stack)
        _began_ns = clock.enter(COMPILE)
        C.flags |= wire.F_COMPILE


def _end():
    global _depth
    if get_ident() != S.thread_ident or _depth < 0:
        return
    clock.unwind(_depth)
    _depth = -1
    C.flags |= wire.F_COMPILE
    counters = sys.modules["torch._dynamo.utils"].counters
    transport.send_event(
        "compile",
        step=S.step,
        duration_ms=round((S.last_ns - _began_ns) / 1e6, 3),
        graphs=counters["stats"].get("unique_graphs", 0),
        graph_breaks=sum(counters["graph_break"].values()),
        recompiles=_recompiles(),
    )


def _recompiles():
    metrics = sys.modules["torch._dynamo.utils"].get_compilation_metrics()
    return sum(bool(getattr(entry, "recompile_reason", None)) for entry in metrics)


def reset():
    """In a forked child."""
    global _depth
    _depth = -1
