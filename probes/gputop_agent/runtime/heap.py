"""What the C heap of this process holds: nodes of graphs are there, and no Python object tells of
them.
"""

import ctypes

from gputop_agent.runtime import interrupts

_FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()


class _Mallinfo(ctypes.Structure):
    """``struct mallinfo2`` of glibc."""

    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]


def allocated_bytes():
    """Bytes that are handed out in pieces below the size that is mapped; 0 where nothing tells:
    another C library, or glibc before 2.33. Takes 0.2 to 1 ms.
    """
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (OSError, AttributeError):
        interrupts.pass_on()
        return 0
    mallinfo.restype, mallinfo.argtypes = _Mallinfo, ()
    return mallinfo().uordblks
