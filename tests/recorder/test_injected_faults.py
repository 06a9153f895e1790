"""Each system call of the recorder fails from some time on: the command does not notice, and the
record can be read.
"""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from recorder_faults import ALWAYS, CALLS, ERRORS, Fault, build_shim, harm

SELDOM = ("chmod", "ftruncate", "fallocate", "send", "kill", "fsync")
"""Not every run asks for these: ``bench/reliability.py`` tries them too."""
TRIED = [call for call in CALLS if call not in SELDOM]
LASTING = [number for number in ERRORS if number != errno.EINTR]
"""Python asks again after EINTR, for ever."""
FAULTS = [
    *(Fault(call, LASTING[place % len(LASTING)], 0, ALWAYS) for place, call in enumerate(TRIED)),
    *(
        Fault(call, errno.EINTR, 1)
        for call in ("open", "read", "close", "recv", "epoll_wait", "wait")
    ),
    Fault("close", errno.ENOMEM, 4, ALWAYS),
    *(Fault(call, errno.EMFILE, 12, ALWAYS) for call in ("open", "write", "stat", "close")),
]


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = build_shim(tmp_path_factory.mktemp("shim"))
    if built is None:
        pytest.skip("making system calls fail needs Linux and a C compiler")
    return built


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_call_that_fails(shim: Path, tmp_path: Path, fault: Fault) -> None:
    wrong, came_about = harm(fault, shim, tmp_path)
    assert wrong == ""
    assert came_about or fault.first, "the recorder never makes this call: it proves nothing"
