"""Makes ``docs/events.md`` from the contracts: ``python bench/record_page.py > docs/events.md``."""

from __future__ import annotations

import ast
import inspect
from typing import Annotated, Any, Union, get_args, get_origin, is_typeddict

from gputop_agent import contracts
from gputop_agent.contracts.kinds import NEEDED, Range
from gputop_probes.record import recorder_events
from gputop_probes.record.derive import fields_of

_KINDS = {
    "line": "line",
    "text": "text",
    "scalar": "flag, number or line",
    "count": "whole number",
    "amount": "number from 0",
    "num": "number",
    "real": "number, NaN or infinite",
}
_PLAIN = {bool: "flag", int: "whole number", str: "line", Any: "any"}
_HEAD = """# Events, hello and commands

Made by `python bench/record_page.py` from `gputop_agent/contracts` and
`gputop_probes/record/recorder_events.py`, from which readers derive their checks, too.
`events.jsonl` holds what is rare, one JSON object a line. A field that was not learnt is null or
missing; fields are only added. What has another type than here is left out and counted (`gputop
report`: damaged lines or fields). An event without a field in **bold** is left out as a whole.
"""


def page() -> str:
    """The whole page."""
    sections = [
        _HEAD,
        _section("Every event", "", recorder_events.EveryEvent),
        "## From the training process\n",
    ]
    sections += [
        _section(f"`{name}`", "#", contract) for name, contract in contracts.EVENTS.items()
    ]
    sections.append("## From the recorder\n")
    sections += [
        _section(f"`{name}`", "#", contract) for name, contract in recorder_events.EVENTS.items()
    ]
    sections.append("## Objects inside events\n")
    sections += [_section(f"`{contract.__name__}`", "#", contract) for contract in _inner()]
    sections.append(
        "## Commands\n\nJSON in a `MSG_COMMAND` datagram, from the recorder "
        "to a training process.\n"
    )
    sections += [
        _section(f"`{name}`", "#", contract) for name, contract in contracts.COMMANDS.items()
    ]
    return "\n".join(sections)


def _section(title: str, deeper: str, contract: Any) -> str:
    lines = [f"##{deeper} {title}", "", " ".join((inspect.getdoc(contract) or "").split()), ""]
    words = _words_of(contract)
    if contract is contracts.HelloUpdate:
        return "\n".join(lines)
    lines += ["| field | type | what |", "|---|---|---|"]
    for name, kind in fields_of(contract).items():
        shown = f"**{name}**" if NEEDED in getattr(kind, "__metadata__", ()) else name
        lines.append(f"| {shown} | {_words(kind)} | {words.get(name, '')} |")
    return "\n".join([*lines, ""])


def _words(kind: Any) -> str:
    """A type for people."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        for mark in arguments[1:]:
            if isinstance(mark, Range):
                return f"whole number, {_bound(mark.low)} to {_bound(mark.high)}"
            if mark in _KINDS:
                return _KINDS[mark]
        return _words(arguments[0])
    if is_typeddict(kind):
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    if origin is list:
        return f"list of {_words(arguments[0])}"
    if origin is dict:
        return f"by name: {_words(arguments[1])}"
    if origin is Union:
        return " or ".join(map(_words, arguments))
    return _PLAIN.get(kind) or f"`{arguments[0]}`"


def _bound(value: int) -> str:
    power = abs(value).bit_length() - 1
    if power > 15 and abs(value) == 2**power:
        return f"{'-' if value < 0 else ''}2^{power}"
    return str(value)


def _inner() -> list[Any]:
    """The contracts that events hold and that are none themselves, in their order."""
    found: dict[str, Any] = {}
    waiting = [*contracts.EVENTS.values(), *recorder_events.EVENTS.values()]
    events = set(map(id, waiting))
    while waiting:
        for kind in fields_of(waiting.pop(0)).values():
            for contract in _dicts_in(kind):
                if contract.__name__ not in found and id(contract) not in events:
                    found[contract.__name__] = contract
                    waiting.append(contract)
    return list(found.values())


def _dicts_in(kind: Any) -> list[Any]:
    if is_typeddict(kind):
        return [kind]
    return [contract for argument in get_args(kind) for contract in _dicts_in(argument)]


def _words_of(contract: Any) -> dict[str, str]:
    """What is written below each field of a contract, and of those that it builds on."""
    module = inspect.getmodule(contract)
    tree = ast.parse(inspect.getsource(module) if module else "")
    node = next(
        (node for node in tree.body if getattr(node, "name", "") == contract.__name__), None
    )
    if not isinstance(node, ast.ClassDef):
        return {}
    words: dict[str, str] = {}
    for base in node.bases:
        if isinstance(base, ast.Name) and is_typeddict(getattr(module, base.id)):
            words |= _words_of(getattr(module, base.id))
    for field, below in zip(node.body, node.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(below, ast.Expr)
        ):
            words[field.target.id] = " ".join(ast.literal_eval(below.value).split())
    return words


if __name__ == "__main__":
    print(page(), end="")
