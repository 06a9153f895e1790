"""The one table of actions (``actions.csv``): bindings, footer, help and palette are made of it."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gputop.panels import PANELS, PanelSpec, panel

Scope = Literal["always", "live", "replay", "control", "moving"]


class Action(NamedTuple):
    """One thing that a key does."""

    id: str
    """Names the binding (users can remap it) and the method ``action_ID``."""
    keys: str
    """Textual key names, comma separated."""
    shown: str
    """The key as people read it."""
    label: str
    """One or two words for the footer."""
    description: str
    """One sentence for help and palette."""
    scope: Scope = "always"
    footer: int = 0
    """Place in the footer by importance, 1 first; 0: not in the footer."""
    group: str = "General"
    label_in_replay: str = ""
    """Where a replay gives the key another meaning."""
    screen: str = "main"
    """The screen on which the key works; those in ``SHARED`` work on every one."""
    command: str = ""
    """The command, of ``gputop.cli.commands``, that answers the same in a shell."""

    @property
    def key(self) -> str:
        """The one key that a line of keys has room for: of a number and a letter the letter."""
        return self.shown.split(" ")[-1] if self._has_letter else self.shown

    @property
    def each_key(self) -> str:
        """All keys that do it, in words: ``2, m, 4 or g``."""
        if not self._has_letter:
            return self.shown
        *first, last = self.shown.split(" ")
        return f"{', '.join(first)} or {last}" if first else last

    @property
    def _has_letter(self) -> bool:
        """Whether a number and letters do the same."""
        return self.group in ("Panels", "Screens")

    def label_in(self, mode: str) -> str:
        """The word for it in a live run or in a replay."""
        return (mode != "live" and self.label_in_replay) or self.label

    @property
    def words(self) -> str:
        """What the palette says: the description, and the command."""
        if self.command:
            shell = f" In a shell: gputop {self.command}."
        else:
            shell = ""
        return self.description + shell


def _panel_action(spec: PanelSpec) -> Action:
    shown = spec.keys.replace(",", " ")
    words = (spec.id, spec.keys, shown, spec.label, spec.description)
    return Action(*words, footer=spec.footer, group="Panels")


def _rows() -> Iterator[Action]:
    """Those of the table, the panels' own in the place of its row ``panels``; what a row leaves out
    is as by default.
    """
    with TABLE.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if row["id"] == "panels":
                yield from map(_panel_action, PANELS)
                continue
            fields: dict[str, Any] = {name: text for name, text in row.items() if text}
            fields["footer"] = int(row["footer"] or 0)
            yield Action(**fields)


TABLE = Path(__file__).with_name("actions.csv")
"""A row an action, its columns the fields of ``Action``."""
ACTIONS: tuple[Action, ...] = tuple(_rows())
OF_THE_APP = frozenset(
    [
        "quit",
        "palette",
        "help",
        "export",
        "settings",
        "runs",
        "copy",
        "profile",
        "dump",
        "memory_snapshot",
        "hand_over",
        "search",
        "budget",
        "numerics",
        "layers",
        "all_ranks",
        "what_if",
        "estimator",
        "strategy",
        "catalog",
        "links",
    ]
    + ["seek_back", "seek_forward", "slower", "faster"]
)
"""Actions that concern the run or the whole app; the others belong to a screen."""
OF_PANELS = frozenset(["findings", "history", "output"])
"""Panels of the main screen that have keys of their own while they have the focus."""
SCROLLED = frozenset(["ranks", "findings", "output"])
"""Panels of the main screen in which the arrows move."""
SHARED = (OF_THE_APP - {"search"}) | {
    "pause",
    "back",
    "up",
    "down",
    "page_up",
    "page_down",
    "home",
    "end",
}
"""Actions that work on the screens above the main one too."""
_ESTIMATOR_KEYS = (
    "take",
    "next_pane",
    "trace",
    "mark_base",
    "find_model",
    "examples",
    "undo",
    "notes",
)
_STRATEGY_KEYS = ("mark", "what_if_this", "workload", "launch", "less", "pareto")
_CATALOG_KEYS = ("filter", "estimate", "plot", "topology")
PAGE_FOOTER = (
    *("back", "help", "quit", "compare", "swap", "worst", "sort"),
    *(*_STRATEGY_KEYS, *_ESTIMATOR_KEYS, *_CATALOG_KEYS, "free"),
    *("sort_layers", "fold_layers", "layers_rank", "next_table"),
    *("next_finding", "next_rank", "reverse", "copy", "copy_all", "export"),
)
"""Footer of those screens, by importance."""
_FORM = frozenset(
    ["quit", "help", "copy", "back", "up", "down", "page_up", "page_down", "home", "end"]
)
_NARROWER: dict[str, frozenset[str]] = dict.fromkeys(
    ("estimator", "strategy", "catalog", "topology", "memory", "runs", "comparison"), _FORM
)
"""Screens on which fewer of the shared actions work, since keys mean something else there."""


def on_screen(name: str) -> list[Action]:
    """The actions whose keys work on a screen."""
    shared = frozenset() if name == "main" else _NARROWER.get(name, SHARED)
    here = [action for action in ACTIONS if action.screen == name]
    taken = {key for action in here for key in action.keys.split(",")}
    return [
        action if action.screen == name else _without(action, taken)
        for action in ACTIONS
        if action.screen == name or action.id in shared
    ]


def _without(action: Action, taken: set[str]) -> Action:
    """The action without the keys that mean something else on a screen."""
    keys = [key for key in action.keys.split(",") if key not in taken]
    return action._replace(keys=",".join(keys))


def of_panel(id: str) -> list[tuple[str, str, str]]:
    """Bindings of a panel's own keys, which work while it has the focus."""
    return [(a.keys, a.id, a.label) for a in ACTIONS if a.screen == id]


def in_panels() -> list[Action]:
    """The actions that belong to panels of the main screen."""
    return [action for action in ACTIONS if action.screen in OF_PANELS]


def in_footer(
    name: str, mode: str = "live", panel: str = "", *, zoomed: bool = False
) -> list[Action]:
    """Actions of a screen's footer, the most important first; a replay's moves come early.

    Args:
        name: of the screen.
        mode: ``live`` or a replay's.
        panel: that has the focus; a key that means something else there stands with that meaning.
        zoomed: whether it has the whole screen, where arrows are its own in a replay too.
    """
    here = on_screen(name)
    if name == "main":
        moves = ("pause", "seek_back") if mode != "live" else ()
        shown = sorted(
            (a for a in here if a.footer), key=lambda a: 2.5 if a.id in moves else a.footer
        )
        if zoomed:
            shown = [*_of_zoomed(panel), *(a for a in shown if a.id != "zoom")]
        panel_actions = {a.shown: a for a in ACTIONS if a.screen == panel and panel in OF_PANELS}
        meant = (panel_actions.get(a.key, a) if zoomed or a.scope != "replay" else a for a in shown)
        return list(dict.fromkeys(meant))
    return sorted(
        (action for action in here if action.id in PAGE_FOOTER),
        key=lambda a: PAGE_FOOTER.index(a.id),
    )


def _of_zoomed(panel: str) -> list[Action]:
    """How to leave a panel that has the whole screen, and its own keys."""
    named = {action.id: action for action in ACTIONS if action.screen == "main"}
    panel_actions = [action for action in ACTIONS if action.screen == panel and action.footer]
    if panel in SCROLLED:
        panel_actions.append(named["up"]._replace(shown="↑ ↓", label="scroll"))
    return [named["back"], *panel_actions]


SCREENS = {
    "main": "The main screen",
    "findings": "The findings, while they have the focus",
    "history": "The history, while it has the focus",
    "output": "The output, while it has the focus",
    "evidence": "Evidence of a finding",
    "numerics": "Numerics",
    "layers": "Layers",
    "ranks": "All ranks",
    "estimator": "Estimate",
    "strategy": "Plan",
    "catalog": "Catalog of GPUs",
    "runs": "Runs",
    "comparison": "Two runs compared",
    "topology": "Links between GPUs",
    "memory": "Memory snapshot",
}
"""Title of each screen that has keys of its own."""


def by_screen() -> Iterator[tuple[str, list[Action]]]:
    """Each screen's title and actions; what screens share stands at the main one."""
    for screen, title in SCREENS.items():
        yield title, [action for action in ACTIONS if action.screen == screen]


def target(action: Action) -> str:
    """The action string that Textual runs."""
    if action.screen in OF_PANELS:
        return f"focused.{action.id}"
    if action.screen == "main" and panel(action.id) is not None:
        return f"screen.panel('{action.id}')"
    if action.id in OF_THE_APP:
        return f"app.{action.id}"
    return f"screen.{action.id}"


def applies(action: Action, mode: str, control: bool, ended: bool = False) -> bool:
    """Whether an action has any effect: seeking in a replay, profiling where someone listens,
    holding a picture that moves, which that of an ended run does only in a replay.
    """
    if action.scope == "control":
        return control
    if action.scope == "moving":
        return mode != "live" or not ended
    return action.scope == "always" or (action.scope == "replay") == (mode != "live")
