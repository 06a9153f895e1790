"""Where a script runs: an empty folder, no network, no GPU. Files of the user are read as from
where they are.

Three layers of the kernel, each of which may be missing, hold for the script and for whatever it
starts: namespaces, Landlock, and a filter on system calls. What none of them could hold is said.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import tempfile
from typing import Any, List

from . import files, landlock, namespaces, seccomp
from .connect import Connector
from .namespaces import Space
from .overlay import Overlay

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
_CACHES = (
    "TMPDIR",
    "MPLCONFIGDIR",
    "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_CACHE_DIR",
    "NUMBA_CACHE_DIR",
)


def enter(folder: str, script: str, outcomes: str) -> List[str]:
    """Make ``folder`` the working directory and shut the rest; to be called before threads are
    started.

    It returns in a child process. Nothing is written outside ``outcomes``, where the trace leaves
    its answer.

    Returns:
        What this kernel could not keep from the script, as sentences.
    """
    home = os.getcwd()
    outcomes = os.path.realpath(outcomes)
    namespaces.end_with_parent()
    _close_descriptors()
    os.environ.update(_QUIET)
    os.environ.update(dict.fromkeys(_CACHES, folder))
    tempfile.tempdir = None  # it remembers where the variables pointed
    connector = Connector(outcomes)
    space = namespaces.enter(outcomes, connector.answer)
    _refuse_connections(space.network)
    os.chdir(folder)
    devices = ["/dev/" + name for name in namespaces.DEVICES]
    own_devices = ["/dev/shm", "/dev/pts"] if space.files else []
    version = landlock.keep_writes_in(outcomes, *devices, *own_devices, connects=space.network)
    namespaces.drop_rights()
    filtered = _filter_calls(space, version, connector)
    files.redirect(Overlay(home, folder, links=bool(version or space.files)))
    sys.path[0:0] = [os.path.dirname(os.path.abspath(script))]
    return _lacking(space, version, filtered)


def _filter_calls(space: Space, version: int, connector: Connector) -> bool:
    truncation, signals = version >= landlock.TRUNCATES, version >= landlock.SIGNALS
    held_space = seccomp.HeldElsewhere(
        network=space.network,
        files=space.files,
        truncation=truncation,
        processes=space.processes,
        signals=signals,
        memory=space.memory,
    )
    connector.abstract = space.network
    listener = seccomp.restrict(held_space)
    connector.hand_over(-1 if listener is None else listener)
    return listener is not None


def _lacking(space: Space, version: int, filtered: bool) -> List[str]:
    """What no layer holds, each a sentence about this kernel."""
    result = []
    if not (version or space.files):
        result.append("programs that the script starts, and C code, from writing to your files")
    if not (filtered or space.network):
        result.append("the script from the network")
    if not (filtered or (space.files and space.processes)):
        result.append(
            "it from changing modes and times of your files and reaching your other processes"
        )
    return ["This kernel cannot keep %s." % lack for lack in result]


def _close_descriptors() -> None:
    """Whatever was open by inheritance, and the terminal as standard input."""
    with contextlib.suppress(OSError):
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
    with contextlib.suppress(OSError):
        if os.isatty(0):
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)


def _refuse_connections(own_network: bool) -> None:
    """Say it in words. In its own network a script may talk to itself, as ranks of a group do."""
    original, find, make = socket.socket.connect, socket.getaddrinfo, socket.create_connection
    off = "the network is off while gputop traces a script"

    def connect(self: Any, address: Any) -> Any:
        is_unix = self.family == getattr(socket, "AF_UNIX", None)
        if is_unix or (own_network and _is_local(address)):
            return original(self, address)
        raise OSError(off)

    def lookup(host: Any, *arguments: Any, **options: Any) -> Any:
        if own_network and (host is None or _is_local((host,))):
            return find("127.0.0.1" if host == "localhost" else host, *arguments, **options)
        raise socket.gaierror(off)

    def create(address: Any, *arguments: Any, **options: Any) -> Any:
        if own_network and _is_local(address):
            return make(address, *arguments, **options)
        raise socket.gaierror(off)

    socket.socket.connect = connect  # type: ignore[method-assign]
    socket.socket.connect_ex = connect  # type: ignore[method-assign,assignment]
    socket.getaddrinfo = lookup  # type: ignore[assignment]
    socket.create_connection = create


def _is_local(address: Any) -> bool:
    host = address[0] if isinstance(address, tuple) and address else ""
    if isinstance(host, bytes):
        host = host.decode("ascii", "replace")
    else:
        host = str(host)
    return host in ("localhost", "::1", "0.0.0.0") or host.startswith("127.")
