"""Checks of JSON objects, derived from the TypedDicts that define them."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints, is_typeddict

from gputop_agent.contracts.kinds import NEEDED, Range
from gputop_probes.record.fields import (
    KINDS,
    Check,
    anything,
    between,
    flag,
    integer,
    many,
    mapping,
    one_of,
    record,
)

_PLAIN: dict[Any, Check] = {bool: flag, int: integer, Any: anything}


@cache
def fields_of(contract: Any) -> dict[str, Any]:
    """The type of each field of a TypedDict."""
    return get_type_hints(contract, include_extras=True)


def needed(contract: Any) -> tuple[str, ...]:
    """Fields without which an object may not stay."""
    return tuple(
        name
        for name, annotation in fields_of(contract).items()
        if NEEDED in getattr(annotation, "__metadata__", ())
    )


def checks_of(contract: Any) -> dict[str, Check]:
    """The check of each field of a TypedDict."""
    return {name: check_of(annotation) for name, annotation in fields_of(contract).items()}


def check_of(kind: Any) -> Check:
    """The check of one type.

    Raises:
        KeyError: the type is none of those that contracts are written in.
    """
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotated(*arguments)
    if is_typeddict(kind):
        return record(checks_of(kind), needed(kind))
    if origin is list:
        return many(check_of(arguments[0]))
    if origin is dict:
        return mapping(check_of(arguments[1]))
    if origin is Union:
        return one_of(*map(check_of, arguments))
    return _PLAIN[kind]


def _annotated(kind: Any, *marks: Any) -> Check:
    """By the mark that says which values are right; without one, by the type itself."""
    for mark in marks:
        if isinstance(mark, Range):
            return between(*mark)
        if mark in KINDS:
            return KINDS[mark]
    return check_of(kind)
