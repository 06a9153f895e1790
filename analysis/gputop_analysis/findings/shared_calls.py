"""Places that lie in functions called from several lines, and in comprehensions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Sequence

from gputop_analysis.findings.site import MOSTLY, Site
from gputop_analysis.findings.stack_samples import (
    LOOP,
    PlacedSample,
    lines_in,
    total,
)

NEAR_LINES = 3
_NAMELESS = ("<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>", "<lambda>")


def where_it_is_called(
    site: Site, judged: Sequence[PlacedSample], around: Container[str] = ()
) -> Site:
    """The place, or the call of its function where that is one of several lines that call it: a
    tool is not to be mended for one of its users. Not one of the lines ``around`` all training.
    """
    if site.site is None:
        return site
    labels = {site.site, f"{LOOP}{site.site}"}
    call = _shared_call(
        site.site, [sample for sample in judged if not labels.isdisjoint(sample.path)]
    )
    if not call or call in around:
        return site
    through = total(sample for sample in judged if call in sample.path)
    return Site(site=call, share=through / site.samples, samples=site.samples, detail=site.site)


def _shared_call(line: str, at_line: Sequence[PlacedSample]) -> str:
    """The line that calls the function of most samples at a line, where other lines call it, too;
    empty where none does.
    """
    calls: Counter[str] = Counter()
    for sample in at_line:
        reached = line if line in sample.path else f"{LOOP}{line}"
        outer = list(lines_in(sample.path[: sample.path.index(reached)]))
        innermost = line
        while is_nameless(innermost) and outer:
            innermost = outer.pop()
        if outer and outer[-1] in sample.shared_calls:
            calls[outer[-1]] += sample.count
    call, count = calls.most_common(1)[0] if calls else ("", 0)
    return call if count > MOSTLY * total(at_line) else ""


def is_nameless(label: str) -> bool:
    """Whether it lies in a comprehension or a lambda."""
    return label.rpartition(" ")[2] in _NAMELESS


def is_of_comprehension(line: str, caller: str) -> bool:
    """Whether a line is a comprehension's in the statement that goes through it, or right above."""
    file, _, rest = line.partition(":")
    number, _, function = rest.partition(" ")
    calls_file, _, calls = caller.partition(":")
    calls_number = calls.partition(" ")[0]
    return (
        function in _NAMELESS
        and file == calls_file
        and number.isdigit()
        and calls_number.isdigit()
        and 0 <= int(calls_number) - int(number) <= NEAR_LINES
    )
