"""What a publisher's target must look like: what cannot work is said before a training starts."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import urllib.parse
from collections.abc import Callable
from pathlib import Path

ADDRESS = re.compile(r"(?P<host>[\w.-]*|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})")
"""``HOST:PORT`` to listen on; the host may be left out."""
_URL = re.compile(r"[A-Za-z][\w+.-]*://")
_HOST_AND_PORT = re.compile(r"[\w.-]+:\d+(/.*)?")
_DATABASES = ("mssql", "mysql", "postgresql", "sqlite")
"""Stores of MLflow that ``mlflow-skinny`` cannot open (mlflow/store/db/db_types.py)."""
_NOT_IN_A_PROJECT = "\\#?%:"
_LARGEST_PORT = 65535


def refused(publisher: str, target: str) -> str:
    """Why a target cannot work and how to mend it; empty where it may work."""
    check = _CHECKS.get(publisher)
    return check(target) if check else ""


def is_url(target: str) -> bool:
    """Whether it begins as a URL does, with any scheme."""
    return _URL.match(target) is not None


def _web(target: str) -> str:
    try:
        parts = urllib.parse.urlsplit(target)
        is_web = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # brackets that do not match, a port beyond all
        is_web = False
    return "" if is_web else "this is no web address: give one, as http://localhost:4318"


def _mlflow(target: str) -> str:
    if _HOST_AND_PORT.fullmatch(target):
        return f"to mean a server, give http://{target}; to mean a folder, ./{target}"
    if not is_url(target):
        return ""
    scheme = target.split(":")[0].lower()
    if scheme.split("+")[0] in _DATABASES and not importlib.util.find_spec("sqlalchemy"):
        return "a database needs the whole of MLflow: pip install mlflow"
    return _web(target) if scheme.startswith("http") else ""


def _prometheus(target: str) -> str:
    address = ADDRESS.fullmatch(target)
    if address:
        within = 0 < int(address["port"]) <= _LARGEST_PORT
        return "" if within else f"a port is a number from 1 to {_LARGEST_PORT}"
    if target.isdigit():
        return f"to mean a port, give :{target}"
    if is_url(target):
        return "it is scraped here: give [HOST]:PORT to listen on, as :9400, or a file"
    return "this is a folder: give a file in it" if Path(target).is_dir() else ""


def _tensorboard(target: str) -> str:
    path = Path(target)
    there = path.exists() and not path.is_dir()
    return "this is a file: give a folder" if there else ""


def _wandb(target: str) -> str:
    entity, _, project = target.rpartition("/")
    odd = any(character in _NOT_IN_A_PROJECT for character in target) or "/" in entity
    return "" if project and not odd else "give a project's name, as PROJECT or ENTITY/PROJECT"


def _notify(target: str) -> str:
    if is_url(target):
        return _web(target) and "this is no web address: give https://..., or a command"
    try:
        words = shlex.split(target)
    except ValueError as error:  # quotes that are not closed
        return f"this is no command: {error}"
    if not words:
        return "give a web address or a command"
    return "" if shutil.which(words[0]) else f"there is no command {words[0]!r} here"


_CHECKS: dict[str, Callable[[str], str]] = {
    "mlflow": _mlflow,
    "notify": _notify,
    "otlp": _web,
    "prometheus": _prometheus,
    "tensorboard": _tensorboard,
    "wandb": _wandb,
}
