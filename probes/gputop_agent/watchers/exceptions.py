"""An exception that ends a process or thread: an event, and a traceback without us."""

import os
import re
import sys
import threading

from gputop_agent.runtime import current, guard, transport
from gputop_agent.runtime.session import session
from gputop_agent.timing.activation import before_training
from gputop_agent.watchers import dryrun
from gputop_agent.watchers.memory import memory_history, out_of_memory

MAX_MESSAGE = 1200
MAX_FRAMES = 12
_OPTIMIZER_FILE = os.path.join("torch", "optim", "optimizer.py")
_TENSOR_FILE = os.path.join("torch", "_tensor.py")
_MODULE_FILE = os.path.join("torch", "nn", "modules", "module.py")
#: by the name of what was wrapped; what is left are collectives
_PHASE_OF = {
    "forward": "forward",
    "backward": "backward",
    "grad": "backward",
    "__next__": "data",
    "_get_iterator": "data",
    "scale": "forward",
    "unscale_": "optimizer",
    "step": "optimizer",
    "clip_grad_norm_": "optimizer",
    "clip_grad_value_": "optimizer",
    "save": "checkpoint",
    "async_save": "checkpoint",
    "save_file": "checkpoint",
    "save_model": "checkpoint",
}
#: a line of the traceback that a DataLoader worker's exception carries as text
_QUOTED = re.compile(r'File "([^"]+)", line (\d+), in (\S+)')
_IGNORED = (KeyboardInterrupt, SystemExit)


def install():
    """Chain into ``sys.excepthook`` and ``threading.excepthook``, once."""
    if session.excepthooks_chained:
        return
    session.excepthooks_chained = True
    _chain(sys, _details_of_main)
    _chain(threading, _details_of_thread)


def _chain(owner, details):
    original = owner.excepthook

    def excepthook(*args):
        try:
            report(*details(args))
        except Exception:
            try:
                guard.failed("excepthook")
            except Exception:  # a signal's handler raised: nobody is left to catch it
                pass
        return original(*args)

    guard.patch(owner, "excepthook", guard.dress(excepthook, original))


def _details_of_main(args):
    return args[1], args[2], None


def _details_of_thread(args):
    return (
        args[0].exc_value,
        args[0].exc_traceback,
        str(getattr(args[0].thread, "name", None) or "a thread"),
    )


def report(error, traceback, thread=None):
    """Send the event, and take our frames out of the traceback and of those of its causes.

    ``thread`` is the name of the thread that the exception ended; None where it ended the process.
    """
    if error is None:
        return
    forget_our_frames(error, set())
    lacks_memory = out_of_memory.is_one(error)
    frames, phase = _frames(traceback), _phase(error, traceback)
    wanted = lacks_memory or dryrun.wants(error)
    if before_training() and not wanted:
        return  # of a process that may be anybody's: a launcher, a tokenizer, a worker
    if wanted:
        out_of_memory.introduce()
    more = out_of_memory.describe(traceback) if lacks_memory else {}
    if lacks_memory:
        memory_history.out_of_memory()
    if isinstance(error, _IGNORED):
        return
    if thread is None and not lacks_memory:
        more = {"bad_weight": guard.safely(_bad_weight)}
    transport.send_event(
        "exception",
        **{"class": type(error).__name__},
        message=_shortened(str(error)),
        site=_site(frames + _quoted(str(error))),
        phase=phase,
        step=current.step(),
        thread=thread,
        traceback=["%s:%d %s" % frame for frame in frames[-MAX_FRAMES:]],
        **more,
    )
    _send_collectives()


def _bad_weight():
    """A weight that is no number by now; imported late, as most processes train nothing."""
    from gputop_agent.watchers.nan import numeric_origin

    return numeric_origin.first_bad_weight()


def of_multiprocessing():
    """The exception that ends a child of multiprocessing, or None. Called by its finalizer.

    Such a child prints its traceback itself, and one of ``torch.multiprocessing.spawn`` hands it to
    its parent and calls ``sys.exit(1)``: neither comes to ``sys.excepthook``.
    """
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit) and error.code not in (None, 0):
        error = error.__context__
    return error if isinstance(error, Exception) else None


def _shortened(text):
    """Beginning and end: what a DataLoader worker died of stands at the end of a long message."""
    half = MAX_MESSAGE // 2
    if len(text) <= MAX_MESSAGE:
        return text
    return text[:half] + "\n[...]\n" + text[-half:]


def _send_collectives():
    """The last collectives too: ranks that called different ones die of it (14-38 ms, and the
    process ends anyway). What a handler called after one had failed tells nothing.
    """
    c10d = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is not None and c10d.is_initialized() and c10d.get_world_size() > 1:
        from gputop_agent.watchers import flight

        step, name, failed_ns = session.failure
        is_call = step == session.step and _PHASE_OF.get(name, "backward") == "backward"
        flight.send("exception", failed_ns if is_call else None)


def forget_our_frames(error, seen):
    """Relink the tracebacks of an exception and of its causes without the wrappers."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    entry = error.__traceback__
    while entry is not None:
        following = entry.tb_next
        while following is not None and guard.is_ours(following.tb_frame.f_code):
            following = following.tb_next
        entry.tb_next = following
        entry = following
    forget_our_frames(error.__cause__, seen)
    forget_our_frames(error.__context__, seen)


def _frames(traceback):
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not guard.is_ours(code):
            frames.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    return frames


def _quoted(message):
    """The frames in a DataLoader worker that raised: torch hands them on as text."""
    if not message.startswith("Caught "):
        return []
    return [
        (filename, int(line), function) for filename, line, function in _QUOTED.findall(message)
    ]


def _phase(error, traceback):
    """The innermost phase that the exception passed through: by then the clock has left it."""
    passed, name = session.passed_error
    if passed == id(error):
        return _PHASE_OF.get(name, "comm")
    phase = "other"
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_name == "wrapper" and code.co_filename.endswith(_OPTIMIZER_FILE):
            phase = "optimizer"
        elif code.co_name == "backward" and code.co_filename.endswith(_TENSOR_FILE):
            phase = "backward"
        elif phase == "other" and code.co_filename.endswith(_MODULE_FILE):
            phase = "forward"
        traceback = traceback.tb_next
    return phase


def _site(frames):
    from gputop_agent.runtime import frames as names

    for filename, line, function in reversed(frames):
        if names.origin(filename) == names.USER:
            return "%s:%d %s" % (names.short_name(filename), line, function)
    return None
