"""Anomaly mode for a forward, in which autograd's nodes know the lines that made them."""

import os
import re

from gputop_agent.runtime import frames
from gputop_agent.runtime.session import session
from gputop_agent.watchers.graphs import graph_nodes

MAX_NODES = 2000  # of a graph; each costs some 0.1 ms in that mode
_TENSOR_FILE = os.path.join("torch", "_tensor.py")  # ``**`` and its like go through it
_FILE_LINE = re.compile(r'File "([^"]+)", line (\d+), in ')


class AnomalyForward:
    """The mode, without its check for NaN; one that the script has on itself is left alone."""

    is_gputops = False
    """Whether the mode is on for one of these now, and not by the script."""

    def __init__(self):
        self.is_on = False

    def switch_on(self):
        """For the forward that comes; not where the script has the mode on, or torch compiles."""
        torch = session.torch
        if session.compile_seen or torch.is_anomaly_enabled():
            return
        if not hasattr(torch, "is_anomaly_check_nan_enabled"):
            return  # before torch 2.0 the mode has no part without that check
        self.is_on = AnomalyForward.is_gputops = True
        torch.set_anomaly_enabled(True, False)

    def switch_off(self):
        """As it was; what the script itself has switched on since checks for NaN, and stays."""
        if self.is_on:
            torch = session.torch
            self.is_on = AnomalyForward.is_gputops = False
            if torch.is_anomaly_enabled() and not torch.is_anomaly_check_nan_enabled():
                torch.set_anomaly_enabled(False, False)


def traceback_of(node):
    """The entries of a node that was made in that mode, the outermost first; empty of another."""
    return node.metadata.get("traceback_") or ()


def users_line(entries):
    """File and line of the innermost of the user's among such entries; None without."""
    for entry in reversed(entries):
        match = _FILE_LINE.search(entry)
        if match and frames.origin(match.group(1)) == frames.USER:
            return match.group(1), int(match.group(2))
    return None


def calling_line(entries):
    """File and line of what called the operation; None where that is not the user's."""
    callers = [entry for entry in entries if _TENSOR_FILE not in entry]
    return users_line(callers[-1:])


def is_small(node):
    """Whether the graph below a node has so few operations that the mode costs little."""
    return len(graph_nodes.below(node, MAX_NODES + 1)) <= MAX_NODES
