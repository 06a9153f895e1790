"""Small pieces of the page. Every text is escaped here, unless it says ``html``."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from html import escape


def prose(text: str) -> str:
    """A text in which what stands between backticks is code."""
    return re.sub("`([^`]+)`", r"<code>\1</code>", escape(text))


def chip(name: str, value: str) -> str:
    """A labelled value in a rounded box."""
    return f'<span class="chip">{escape(name)} <b>{escape(value)}</b></span>'


def tile(name: str, value: str, unit: str) -> str:
    """One large figure."""
    small = ""
    if unit:
        small = f"<small>{escape(unit)}</small>"
    return (
        f'<div class="tile"><div class="k">{escape(name)}</div>'
        f'<div class="v">{escape(value)}{small}</div></div>'
    )


def section(title: str, html: str, note: str = "") -> str:
    """A card with a heading, and a line below it that says what is shown."""
    subtitle = ""
    if note:
        subtitle = f'<p class="note">{escape(note)}</p>'
    return f"<section><h2>{escape(title)}</h2>{subtitle}{html}</section>"


def table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    left: Collection[int] = (0,),
    sortable: bool = False,
) -> str:
    """A table of texts; the columns ``left`` are left-aligned, the others are figures. A click on
    a heading sorts where the table is ``sortable``.
    """
    mark = ' class="sortable"' if sortable else ""

    def cells(tag: str, row: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=l' if i in left else ''}>{escape(c)}</{tag}>"
            for i, c in enumerate(row)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table{mark}><thead><tr>{cells("th", head)}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def shares(head: Sequence[str], rows: Iterable[tuple[str, str, float, Sequence[str]]]) -> str:
    """A table of shares: colour, name, share and further cells of each row, with a meter."""
    cells = []
    for colour, name, share, more in rows:
        meter = (
            f'<span class="meter" style="--c:var(--{colour})">'
            f'<i style="width:{100 * share:.1f}%"></i></span>'
        )
        cells.append(
            f'<tr style="--c:var(--{colour})"><td><span class="key"></span>{escape(name)}</td>'
            + "".join(f"<td>{escape(cell)}</td>" for cell in more)
            + f'<td>{100 * share:.1f} %</td><td style="width:34%">{meter}</td></tr>'
        )
    top = "".join(f"<th>{escape(cell)}</th>" for cell in (*head, "share", ""))
    return (
        f'<div class="scroll"><table><thead><tr>{top}</tr></thead>'
        f"<tbody>{''.join(cells)}</tbody>"
        "</table></div>"
    )


def pairs(items: Iterable[tuple[str, str]]) -> str:
    """Names and values as a list; those without a value are left out."""
    return (
        "<dl>"
        + "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in items if v)
        + "</dl>"
    )


def details(summary: str, html: str) -> str:
    """Folded away until it is asked for."""
    return f"<details><summary>{escape(summary)}</summary>{html}</details>"
