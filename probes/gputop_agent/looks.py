"""When a look at the training thread's stack is fair.

A thread that wakes up waits for the interpreter's lock. It gets it where the training thread gives it up, or after
the switch interval (5 ms). So plain Python that runs for less than that would never be seen, and the next line that
gives up the lock would be blamed. A look that had to wait is therefore put off by a random moment for which the switch
interval is short, so that it falls wherever the training is by then. That is done only where no other Python thread is
there whose turns it would change; elsewhere such looks are counted as late and name no line.
"""

import sys
import threading
from time import sleep

LATE_S = 0.0003  # a look that waited longer came when it was let, not when it wanted
FINE_S = 0.0001
MOST_S = 0.006  # beyond the usual switch interval, so that a moment lies anywhere between two places that give it up


def fair(late_s, random):
    """Wait for a fair moment; ``late_s`` is how long the thread's waking was put off, ``random`` in [0, 1).

    Returns whether the moment is one.
    """
    usual = sys.getswitchinterval()
    if late_s <= LATE_S or late_s >= usual:  # at once, or in the middle of Python code that was made to give way
        return True
    if len(getattr(threading, "_active", ())) > 1 or usual <= FINE_S:
        return usual <= FINE_S
    sys.setswitchinterval(FINE_S)
    try:
        sleep(random * MOST_S)
    finally:
        if abs(sys.getswitchinterval() - FINE_S) < 1e-6:  # else the user has set another one
            sys.setswitchinterval(usual)
    return True
