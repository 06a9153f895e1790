"""Snapshots of CUDA's caching allocator, with what it did before: on lack of memory, and on
command.

``gputop run --memory-history`` has torch record each allocation with its Python stack from the
moment that CUDA comes up, a bounded number of them. A snapshot on command is taken by the training
thread at the end of a step, since no other thread of ours calls CUDA.
"""

import os
from typing import Any

from gputop_agent import wire
from gputop_agent.runtime import guard, interrupts, transport
from gputop_agent.runtime.session import session
from gputop_agent.timing import steps

MAX_ENTRIES = 100_000  # about 100 MB of snapshot with deep stacks
MAX_SNAPSHOTS = 8  # of a process
ON_OOM, ON_COMMAND = "out of memory", "asked"


class AllocatorHistory:
    """What was armed and what was asked for."""

    def __init__(self):
        self.folder = ""  # where snapshots go
        self.is_recording = False
        self.taken = 0
        self.is_taking = False
        self.oom_errors = 0  # of which there are snapshots


history = AllocatorHistory()


@session.after_fork
def reset():
    """In a forked child, which cannot use its parent's CUDA."""
    folder = history.folder
    history.__init__()
    history.folder = folder


def install(torch):
    """Record from the moment that CUDA comes up, if the launcher asked for it."""
    history.folder = os.environ.get(wire.ENV_MEMORY_HISTORY, "")
    if history.folder:
        torch.cuda._lazy_call(_begin)


def _begin():
    guard.safely(_record)


def _record():
    """Called by torch when CUDA is initialised; what fails here must not fail there."""
    torch = session.torch
    if history.is_recording:
        return
    torch.cuda.memory._record_memory_history("all", stacks="python", max_entries=MAX_ENTRIES)
    history.is_recording = True
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is not None:
        attach(_on_out_of_memory)


def _on_out_of_memory(device, asked_bytes, device_bytes, free_bytes):
    """The allocator gives up, before the exception is raised: what was held is still there."""
    if history.oom_errors == 0:
        guard.safely(take, ON_OOM)
    history.oom_errors += 1


def out_of_memory():
    """An exception says so; where torch has no observer the snapshot is taken now."""
    if history.is_recording and history.oom_errors == 0:
        guard.safely(take, ON_OOM)


def request(command):
    """Take one at the end of this step, on command; from the agent's thread."""
    history.folder = command.get("folder") or history.folder
    if on_step_closed not in session.boundary_listeners:
        session.boundary_listeners.append(on_step_closed)


def on_step_closed(step, t_end_ns):
    """A step has ended: take the snapshot unless the stream is being captured."""
    if session.cuda and session.torch.cuda.is_current_stream_capturing():
        return
    session.boundary_listeners.remove(on_step_closed)
    steps.book_agent_time(take, ON_COMMAND)


def take(reason):
    """Write a snapshot and say where it lies."""
    if history.is_taking or history.taken >= MAX_SNAPSHOTS or not history.folder:
        return
    if not session.torch.cuda.is_initialized():
        transport.send_event("memory_snapshot", reason=reason, error="this process uses no CUDA")
        return
    history.is_taking = True
    name = "rank-%d-step-%d-%d.pickle" % (session.rank, session.step, history.taken)
    path = os.path.join(history.folder, name)
    try:
        size = _write(path)
    except OSError as error:
        interrupts.pass_on()
        transport.send_event("memory_snapshot", reason=reason, error=str(error)[:200])
        return
    finally:
        history.is_taking = False
    history.taken += 1
    fields: "dict[str, Any]" = {"path": path, "bytes": size, "recorded": history.is_recording}
    transport.send_event("memory_snapshot", reason=reason, step=session.step, **fields)


def _write(path):
    """Bytes of the file; under another name until it is whole."""
    os.makedirs(history.folder, mode=0o700, exist_ok=True)
    unfinished = path + ".part"
    try:
        session.torch.cuda.memory._dump_snapshot(unfinished)
        os.replace(unfinished, path)
    except BaseException:
        if os.path.exists(unfinished):
            os.unlink(unfinished)
        raise
    return os.path.getsize(path)
