"""How the GPUs of a server hang together, as a dialog: this machine where it has the GPU, else a known server."""

from __future__ import annotations

import textwrap
from functools import partial
from typing import TYPE_CHECKING

from textual.content import Content
from textual.screen import Screen

from gputop.screens.dialog import TextDialog

if TYPE_CHECKING:
    from gputop_analysis.topology.model import Topology

WIDEST = 92
BESIDE = 8
"""Cells of the dialog's border, padding and scroll bar."""


def open_topology(screen: Screen[None], gpu: str) -> None:
    """Show it above a screen; a worker thread asks the driver, which can take a while to start."""
    screen.run_worker(partial(_ask, screen, gpu), thread=True, group="topology", exclusive=True, exit_on_error=False)


def _ask(screen: Screen[None], gpu: str) -> None:
    width = min(WIDEST, int(screen.size.width * 0.96) - BESIDE)
    title, text = topology_text(gpu, this_machine(), width)
    dialog = partial(TextDialog, title, Content(text), text)
    screen.app.call_from_thread(lambda: screen.app.push_screen(dialog()))


def this_machine() -> Topology | None:
    """As the driver tells it; None without a driver or without GPUs."""
    from gputop.cli import topo
    from gputop.cli.errors import CliError

    try:
        found = topo.this_machine()
    except CliError:
        return None
    return found if found.gpus else None


def topology_text(gpu: str, machine: Topology | None, width: int = WIDEST) -> tuple[str, str]:
    """Title and text for a GPU by any of its names: the machine if it has this GPU, else the first server with it."""
    from gputop_analysis import catalog
    from gputop_analysis.topology.presets import PRESETS, topology
    from gputop_analysis.topology.text import as_text

    try:
        name = catalog.gpu(gpu).name
    except LookupError as error:
        return "Topology", str(error.args[0])
    if machine is not None and _is(machine.gpu_model, name):
        return "Topology: this machine", as_text(machine, width)
    known = [one for one in PRESETS if one.gpu == name]
    if not known:
        return "Topology", _nothing(name, width)
    others = ", ".join(one.name for one in known[1:])
    more = f"\n\n{textwrap.fill(f'Other servers with it, by `gputop topo --preset NAME`: {others}', width)}"
    text = as_text(topology(known[0]), width)
    return f"Topology: {known[0].name}, a known server", text + more if others else text


def _nothing(name: str, width: int) -> str:
    said = (
        f"No server with the {name} is known here, and this machine has none. `gputop topo --presets` lists those "
        "that are known; `gputop topo --from FILE` reads a text of `nvidia-smi topo -m`."
    )
    return textwrap.fill(said, width)


def _is(model: str, name: str) -> bool:
    from gputop_analysis import catalog

    try:
        return bool(model) and catalog.gpu(model).name == name
    except LookupError:
        return False
