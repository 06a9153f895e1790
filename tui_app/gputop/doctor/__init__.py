"""The checks behind ``gputop doctor``. Each is one function that returns one ``Check`` and never
raises.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gputop.doctor.check import Check
from gputop.doctor.environment import (
    check_gpus,
    check_host,
    check_install,
    check_records,
    check_terminal,
)
from gputop.doctor.injection import check_injection, check_torch, find_python

__all__ = ["Check", "run_checks"]


def run_checks(python: str | None = None) -> Iterator[Check]:
    """Yield the checks one by one, the slow ones last.

    Args:
        python: the interpreter that runs the training; ``python`` on the PATH where None.
    """
    for check in (check_install, check_terminal, check_records, check_host, check_gpus):
        yield _guarded(check.__name__.removeprefix("check_"), check)
    interpreter = find_python(python)
    torch = _guarded("torch", lambda: check_torch(interpreter))
    yield torch
    yield _guarded(
        "injection", lambda: check_injection(interpreter, has_torch=torch.status == "ok")
    )


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except Exception as error:
        return Check(name, "warn", f"this check itself failed: {type(error).__name__}: {error}")
