"""Where a script runs: an empty folder, no network, no GPU. Files of the user are read as from where they are."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import sys
from typing import Any

from . import script_files, script_landlock
from .script_overlay import Overlay

_DEATH_SIGNAL = 1
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_QUIET = {
    "CUDA_VISIBLE_DEVICES": "",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_DATASETS_OFFLINE": "1",
    "WANDB_MODE": "disabled",
    "WANDB_DISABLED": "true",
    "MLFLOW_TRACKING_URI": "",
    "COMET_MODE": "DISABLED",
    "NEPTUNE_MODE": "offline",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCHDYNAMO_DISABLE": "1",
    "TQDM_DISABLE": "1",
    "CUDA_LAUNCH_BLOCKING": "0",
}
_CACHES = ("TMPDIR", "MPLCONFIGDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "NUMBA_CACHE_DIR")


def enter(folder: str, script: str, outcomes: str) -> None:
    """Make ``folder`` the working directory and shut the network; to be called before threads are started.

    Nothing is written outside it and ``outcomes``, where the trace leaves its answer.
    """
    home = os.getcwd()
    _end_with_parent()
    os.environ.update(_QUIET)
    os.environ.update(dict.fromkeys(_CACHES, folder))
    _leave_network()
    _refuse_connections()
    os.chdir(folder)
    locked = script_landlock.keep_writes_in(folder, outcomes)
    script_files.redirect(Overlay(home, folder, links=locked))
    sys.path[0:0] = [os.path.dirname(os.path.abspath(script))]


def _end_with_parent() -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def ranks(world: int) -> None:
    """The variables that torchrun would set for the first rank."""
    settings = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": min(world, 8)}
    settings.update({"GROUP_RANK": 0, "MASTER_PORT": 29500})
    os.environ.update({name: str(value) for name, value in settings.items()})
    os.environ.update({"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "none"})


def _leave_network() -> None:
    """A network namespace of its own where the kernel permits it; it holds for processes that the script starts too."""
    user, group = os.getuid(), os.getgid()
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNET) != 0:
            return
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", "%d %d 1" % (user, user)),
            ("gid_map", "%d %d 1" % (group, group)),
        ):
            with open("/proc/self/" + name, "w") as lines:
                lines.write(text)
    except (OSError, AttributeError):
        return


def _refuse_connections() -> None:
    original = socket.socket.connect

    def connect(self: Any, address: Any) -> Any:
        if self.family == getattr(socket, "AF_UNIX", None):
            return original(self, address)
        raise OSError("the network is off while gputop traces a script")

    def lookup(*_arguments: Any, **_options: Any) -> Any:
        raise socket.gaierror("the network is off while gputop traces a script")

    socket.socket.connect = connect  # type: ignore[method-assign]
    socket.socket.connect_ex = connect  # type: ignore[method-assign,assignment]
    socket.getaddrinfo = lookup
    socket.create_connection = lookup
