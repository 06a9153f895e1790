"""Opening the record that the user named, with the user's kind of error."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gputop.cli.errors import CliError, cli_errors
from gputop.cli.notices import notice

if TYPE_CHECKING:
    from gputop_probes.record.reader import RunRecord


def find_record(name: str) -> Path:
    """Directory of the run called ``name``: a path, a run's name, a unique beginning of one, or
    ``last``.

    Raises:
        CliError: there is no such run, or more than one.
    """
    from gputop_probes.runs import RunNotFound, find_run

    with cli_errors(RunNotFound):
        return find_run(name)


def find_readable(name: str) -> Path:
    """Directory of the run called ``name``, after a first look at it that loads nothing heavy.

    Raises:
        CliError: there is no such run, or its record cannot be read.
    """
    from gputop_probes.record.head import RecordError, read_head

    path = find_record(name)
    with cli_errors(RecordError):
        read_head(path)
    return path


def refuse_without_steps(record: RunRecord, name: str) -> None:
    """Refuse what cannot be compared.

    Raises:
        CliError: the run, which the message calls ``name``, has no training step.
    """
    if not record.ranks():
        raise CliError(f"{name} has no training step: there is nothing to compare")


def open_record(name: str, *, says_damage: bool = True) -> RunRecord:
    """Open the run called ``name``; what of it is damaged is said on stderr, unless the caller says
    it.

    Raises:
        CliError: there is no such run, or its record cannot be read.
    """
    from gputop_probes.record.reader import RecordError, RunRecord

    with cli_errors(RecordError):
        record = RunRecord.open(find_record(name))
    if says_damage and (damage := record.damage.told()):
        notice(f"{name} is damaged: {damage}")
    return record
