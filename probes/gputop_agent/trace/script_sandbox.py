"""Where a script runs: an empty folder, no network, no GPU. Its own folder stays importable and readable."""

from __future__ import annotations

import builtins
import ctypes
import io
import os
import socket
import sys
from typing import Any

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


def enter(folder: str, script: str) -> None:
    """Make ``folder`` the working directory and shut the network; to be called before threads are started."""
    home = os.getcwd()
    os.environ.update(_QUIET)
    os.environ["TMPDIR"] = folder
    _leave_network()
    _refuse_connections()
    os.chdir(folder)
    _read_from(home)
    sys.path[0:0] = [os.path.dirname(os.path.abspath(script))]


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


def _read_from(home: str) -> None:
    """A relative path that is read and not there is looked for where the command was given."""
    original = builtins.open

    def open_(file: Any, mode: Any = "r", *arguments: Any, **options: Any) -> Any:
        if isinstance(file, (str, os.PathLike)) and isinstance(mode, str) and not set(mode) & set("wax+"):
            name = os.fspath(file)
            if isinstance(name, str) and not os.path.isabs(name) and not os.path.exists(name):
                file = os.path.join(home, name) if os.path.exists(os.path.join(home, name)) else file
        return original(file, mode, *arguments, **options)

    builtins.open = open_  # type: ignore[assignment]
    io.open = open_  # type: ignore[assignment]
