"""The topology screen's rows: the list of servers, and the matrix with its links in colours."""

from __future__ import annotations

import re

from gputop.feed.topology import Server
from gputop.render.rows import Row, left, right, shorten
from gputop_analysis.topology.model import CODES, Topology
from gputop_analysis.topology.text import as_text

STYLES = {"PIX": "text", "PXB": "text", "PHB": "medium", "NODE": "medium", "SYS": "high"}
"""NVLink is good; what crosses the CPU or CPUs' link is not. Codes say it without colour."""
NAME, GPUS, NETWORK = 24, 20, 12
"""Cells of a server's name, of its GPUs and of its network's speed, each with the gap before."""
_CODE = re.compile(rf"(\bNV(?:\d+|#)|\b(?:{'|'.join(code for code in CODES if code != 'X')})\b)")


def line(server: Server, width: int, here: bool) -> Row:
    """One server of the list: its name, its GPUs and its network."""
    ground = ""
    if here:
        ground = "/cursor"
    gpus = f"{len(server.topology.gpus)} x {server.gpu or 'any GPU'}"
    net = ""
    if server.topology.nic_gbit:
        net = f"{server.topology.nic_gbit:g} Gbit/s"
    room = width - 2
    name = min(room, NAME)
    cells: Row = [
        ("▸ " if here else "  ", "accent" + ground),
        (left(shorten(server.name, name), name), "bold text" + ground),
    ]
    room -= name
    for text, wanted in ((left(" " + gpus, GPUS), GPUS), (right(net, NETWORK), NETWORK)):
        if room >= wanted:
            cells.append((text, "muted" + ground))
            room -= wanted
    return [*cells, (" " * room, ground)]


def matrix(topology: Topology, width: int) -> list[Row]:
    """The links, what the codes mean, and what follows for a training."""
    return [coloured(text) for text in as_text(topology, width).splitlines()]


def coloured(text: str) -> Row:
    """A line of text with each code of a link in the colour of its speed."""
    pieces = _CODE.split(text)
    cells = []
    for index, piece in enumerate(pieces):
        if piece:
            cells.append((piece, _style(piece) if index % 2 else "text"))
    return cells


def _style(code: str) -> str:
    if code.startswith("NV"):
        return "good"
    return STYLES[code]
