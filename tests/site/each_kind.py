"""For scripts that try several kinds of one thing: torch is imported once, then a child is forked
for each argument of the command line.
"""

import os
import sys

import torch


def fork():
    """In the child: its argument, whose number is its seed; the parent waits, and ends here."""
    torch.set_num_threads(1)
    for number, kind in enumerate(sys.argv[1:], 1):
        pid = os.fork()
        if pid == 0:
            torch.manual_seed(number)
            return kind
        assert os.waitpid(pid, 0)[1] == 0
    return sys.exit()
