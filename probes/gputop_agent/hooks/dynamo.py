"""torch.compile: its compile time, and keeping it from tracing or breaking on our code."""

import sys
import types
from _thread import get_ident

from gputop_agent import wire
from gputop_agent.runtime import finder, frames, guard, transport
from gputop_agent.runtime.session import COMPILE, session
from gputop_agent.timing import clock
from gputop_agent.timing.step_state import open_step

_MAX_BREAKS, _MAX_REASONS = 8, 500
_MAX_REASON_CHARS = 200


class OngoingCompilation:
    """What dynamo is compiling."""

    def __init__(self):
        self.began_ns = 0
        self.depth = -1
        self.running = 0  # compilations, in any thread


compilation = OngoingCompilation()


def is_compiling():
    """Whether dynamo compiles something just now, in whichever thread."""
    return compilation.running > 0


def install(torch):
    """Dynamo is imported late, if at all."""
    finder.after_import("torch._dynamo.eval_frame", skip_agent)
    finder.after_import("torch._dynamo.callback", _listen)


def skip_agent(module):
    """Put every code object of the guest on dynamo's skip list; it skips no callees by itself."""
    skip_code = module.skip_code
    prefix = __name__.split(".")[0]
    for name, part in list(sys.modules.items()):
        if part is not None and (name == prefix or name.startswith(prefix + ".")):
            skip_module(part, skip_code)
    for code in guard.hidden_codes:
        skip_code(code)
    session.skip_code = skip_code
    finder.after_own_import(lambda part: skip_module(part, skip_code))


def skip_module(module, skip_code):
    """Skip all functions and methods that a module of ours defines."""
    for value in list(vars(module).values()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if isinstance(value, type):
            members = vars(value).values()
        else:
            members = (value,)
        for member in members:
            function = getattr(member, "__func__", member)
            while function is not None:  # and what a decorator was put around
                code = getattr(function, "__code__", None)
                if isinstance(code, types.CodeType):
                    _skip_nested(code, skip_code)
                function = getattr(function, "__wrapped__", None)


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
        session.undo.append(
            lambda remove=remove, callback=callback: getattr(handler, remove)(callback)
        )


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
    session.compile_seen = True
    compilation.running += 1
    if get_ident() == session.thread_ident and compilation.depth < 0:
        compilation.depth = len(clock.stack)
        compilation.began_ns = clock.enter(COMPILE)
        open_step.flags |= wire.F_COMPILE


def _end():
    compilation.running = max(0, compilation.running - 1)
    if get_ident() != session.thread_ident or compilation.depth < 0:
        return
    clock.unwind(compilation.depth)
    compilation.depth = -1
    open_step.flags |= wire.F_COMPILE
    utils = sys.modules["torch._dynamo.utils"]
    transport.send_event(
        "compile",
        step=session.step,
        duration_ms=round((session.last_ns - compilation.began_ns) / 1e6, 3),
        **_graphs(utils),
        **_last_recompile(utils),
    )


def describe():
    """The ``compile`` entry of the hello: ``used``, and dynamo's counts; from either thread."""
    if not session.compile_seen:
        return {"used": False}
    utils = sys.modules["torch._dynamo.utils"]
    return dict(_graphs(utils), used=True, breaks=_breaks(utils))


def _graphs(utils):
    return {
        "graphs": utils.counters.get("stats", {}).get(
            "unique_graphs", 0
        ),  # looking one up would make it
        "graph_breaks": sum(list(utils.counters.get("graph_break", {}).values())),
        "recompiles": len(_compiled_again(utils)),
    }


def _compiled_again(utils):
    return [
        metrics
        for metrics in utils.get_compilation_metrics()
        if getattr(metrics, "recompile_reason", None)
    ]


def _last_recompile(utils):
    """Of the frame last compiled again: its function and line, and the guard that failed."""
    recompilations = _compiled_again(utils)
    if not recompilations:
        return {}
    last = recompilations[-1]
    site = "%s:%s" % (frames.short_name(last.co_filename or ""), last.co_firstlineno)
    return {"function": last.co_name, "site": site, "reason": _first_line(last.recompile_reason)}


def _breaks(utils):
    """``[{"site", "function", "reason"}]`` of the first places where a graph ends early."""
    places = {}
    for reason in list(getattr(utils, "graph_break_reasons", ()))[:_MAX_REASONS]:
        if reason.graph_break and reason.user_stack:
            frame = reason.user_stack[-1]
            site = "%s:%d" % (frames.short_name(frame.filename), frame.lineno or 0)
            places.setdefault(
                site, {"site": site, "function": frame.name, "reason": _first_line(reason.reason)}
            )
    return list(places.values())[:_MAX_BREAKS]


def _first_line(text):
    return str(text).partition("\n")[0][:_MAX_REASON_CHARS]


@session.after_fork
def reset():
    """In a forked child."""
    compilation.__init__()
