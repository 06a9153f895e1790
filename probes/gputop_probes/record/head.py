"""A first, quick look at ``run.json``: whether it is a record, and one that we can read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gputop_probes.record import files, layout
from gputop_probes.record.plain import plain_line


class RecordError(ValueError):
    """A record that cannot be read; the message is a line for the user, says how to mend it."""

    def __init__(self, message: str):
        super().__init__(plain_line(message))


def read_head(run_dir: Path) -> dict[str, Any]:
    """The content of ``run.json``, checked for format and version but not for its fields.

    Raises:
        RecordError: no record there, a foreign or damaged one, or one of a newer version.
    """
    path = run_dir / layout.MANIFEST_FILE
    if not files.exists(run_dir):
        raise RecordError(f"no run record at {run_dir}: `gputop runs` lists the ones there are")
    try:
        raw = files.parse_json(files.read_bytes(path))
    except FileNotFoundError:
        raise RecordError(f"{run_dir} is no gputop record: it has no run.json") from None
    except NotADirectoryError:
        raise RecordError(f"{run_dir} is a file: a run's record is a directory") from None
    except OSError as error:
        raise RecordError(f"cannot read {path}: {error.strerror}") from None
    except ValueError:
        raise RecordError(f"{path} is damaged: it is not JSON") from None
    if not isinstance(raw, dict) or raw.get("format") != layout.FORMAT:
        raise RecordError(f"{path} was not written by gputop")
    version = raw.get("version")
    if isinstance(version, int) and version > layout.FORMAT_VERSION:
        raise RecordError(
            f"{run_dir} was written by a newer gputop (format {version}, this one reads up to "
            f"{layout.FORMAT_VERSION}): upgrade gputop to open it"
        )
    return raw
