"""Keeps secrets out of the record: commands and variables are written to disk and shown, so they are cleaned first."""

from __future__ import annotations

import re

HIDDEN = "[hidden]"
_SECRET_PARTS = frozenset(
    ("token", "secret", "secrets", "password", "passwd", "passphrase", "pwd", "apikey", "key")
    + ("credential", "credentials", "auth", "pat", "cookie")
)
_SECRET_VALUE = re.compile(
    r"://[^/\s@]+@"  # credentials in an address
    r"|\beyJ[\w-]{10}"  # JSON web token
    r"|\b(?:sk|hf|ghp|gho|glpat|xox[abp])[-_][\w-]{8}"  # keys of well-known services
    r"|\bAKIA[0-9A-Z]{12}"
)


def is_secret_name(name: str) -> bool:
    """Whether an option or variable so called holds a secret: ``--hf-token``, ``WANDB_API_KEY``; not ``tokenizer``."""
    return not _SECRET_PARTS.isdisjoint(re.split(r"[-_.]+", name.lower()))


def is_secret_value(value: str) -> bool:
    """Whether a value looks like a credential whatever its name."""
    return _SECRET_VALUE.search(value) is not None


def command(words: list[str]) -> list[str]:
    """A command line with its secrets replaced by ``[hidden]``."""
    shown: list[str] = []
    hide_next = False
    for word in words:
        name, equals, _ = word.partition("=")
        if hide_next and not word.startswith("-"):
            shown.append(HIDDEN)
            hide_next = False
            continue
        named = is_secret_name(name) and (word.startswith("-") or name.isupper())
        if equals and named:
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(HIDDEN if is_secret_value(word) else word)
        hide_next = named and not equals
    return shown
