"""The one table of actions: bindings, footer, help and palette are made from it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from gputop.panels import PANELS, PanelSpec, panel

Scope = Literal["always", "live", "replay", "control"]


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
        letter = self.group in ("Panels", "Screens")
        return self.shown.split(" ")[-1] if letter else self.shown

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


ACTIONS: tuple[Action, ...] = (
    Action("quit", "q,ctrl+c", "q", "quit", "Leave; asks first while the training runs.", footer=1),
    Action("help", "question_mark,f1", "?", "help", "Show this list.", footer=2),
    Action(
        "pause",
        "space",
        "space",
        "pause",
        "Hold the picture, or go on; in a replay, play or pause.",
        footer=9,
        label_in_replay="play/pause",
    ),
    Action(
        "palette",
        "colon",
        ":",
        "command",
        "Find an action, a run, a rank or a finding by name.",
        footer=11,
    ),
    Action(
        "export",
        "e",
        "e",
        "export",
        "Write what is seen as SVG, Markdown, JSON or CSV.",
        footer=10,
        command="export",
    ),
    Action(
        "runs",
        "R",
        "R",
        "runs",
        "All runs: open another one, or compare two.",
        group="Screens",
    ),
    Action("settings", "comma", ",", "settings", "Theme, notifications, title, panels."),
    Action("copy", "y,c", "y", "copy", "Copy the chosen row or the focused panel.", footer=20),
    Action(
        "profile",
        "p",
        "p",
        "profile",
        "Profile the next three steps on every rank.",
        "control",
        group="Training",
        footer=8,
        command="profile",
    ),
    Action(
        "dump",
        "d",
        "d",
        "stacks",
        "Show where every rank's threads stand.",
        "control",
        group="Training",
        footer=7,
    ),
    Action(
        "memory_snapshot",
        "M",
        "M",
        "memory snapshot",
        "Write a snapshot of each GPU's allocator, for gputop memory.",
        "control",
        group="Training",
    ),
    Action(
        "hand_over",
        "I",
        "I",
        "input",
        "Type into the command; Ctrl-] comes back.",
        "control",
        group="Training",
    ),
    *map(_panel_action, PANELS),
    Action(
        "budget",
        "8,b",
        "8 b",
        "budget",
        "Where all of the wall time went.",
        footer=5,
        group="Screens",
    ),
    Action(
        "numerics",
        "9,n",
        "9 n",
        "numerics",
        "Loss, norms and rates over all steps.",
        footer=6,
        group="Screens",
    ),
    Action(
        "layers",
        "l",
        "l",
        "layers",
        "Time and memory of each layer; watches some steps if none was.",
        group="Screens",
        command="layers",
    ),
    Action(
        "all_ranks",
        "0,w",
        "0 w",
        "all ranks",
        "Every rank, sorted by wait or what you like; w there: what stands out.",
        group="Screens",
        footer=4,
    ),
    Action(
        "what_if",
        "u",
        "u",
        "what if",
        "What each optimisation would win on this run.",
        footer=14,
        group="Screens",
    ),
    Action(
        "estimator",
        "v",
        "v",
        "estimate",
        "GPU memory of this or another setup.",
        footer=15,
        group="Screens",
        command="estimate",
    ),
    Action(
        "strategy",
        "t",
        "t",
        "plan",
        "How this or another job is best split over GPUs.",
        footer=16,
        group="Screens",
        command="plan",
    ),
    Action(
        "catalog",
        "x",
        "x",
        "catalog",
        "GPUs: memory, speed, rent, to sort and compare.",
        footer=17,
        group="Screens",
        command="catalog",
    ),
    Action(
        "links",
        "i",
        "i",
        "links",
        "How the GPUs of this machine or a server are wired.",
        footer=18,
        group="Screens",
        command="topo",
    ),
    Action(
        "zoom",
        "z",
        "z",
        "zoom",
        "Give the focused panel the whole screen, or back.",
        footer=12,
        group="Panels",
    ),
    Action(
        "hide",
        "h",
        "h",
        "hide",
        "Hide the focused panel; its number brings it back.",
        footer=19,
        group="Panels",
    ),
    Action("next_panel", "tab", "tab", "next", "Focus the next panel.", group="Panels"),
    Action(
        "previous_panel",
        "shift+tab",
        "shift+tab",
        "previous",
        "Focus the panel before.",
        group="Panels",
    ),
    Action(
        "back",
        "escape",
        "esc",
        "back",
        "Close what is open: screen, dialog, zoom, search, pause.",
        group="Panels",
    ),
    Action("up", "up,k", "↑", "up", "Move up in the focused panel.", group="Moving"),
    Action("down", "down,j", "↓", "down", "Move down in the focused panel.", group="Moving"),
    Action("page_up", "pageup", "pgup", "page up", "One screenful up.", group="Moving"),
    Action("page_down", "pagedown", "pgdn", "page down", "One screenful down.", group="Moving"),
    Action("home", "home", "home", "start", "First item; in a replay, the start.", group="Moving"),
    Action("end", "end", "end", "end", "Last item; in a replay, the end.", group="Moving"),
    Action(
        "open", "enter", "enter", "open", "Open what lies behind the focused panel.", group="Moving"
    ),
    Action(
        "worst",
        "w",
        "w",
        "worst",
        "In the findings: only those above info, the worst first; again all.",
        group="In a panel",
        screen="findings",
    ),
    Action(
        "earlier",
        "left,shift+left",
        "← →",
        "time cursor",
        "In the history: the values of a moment; of a replay when zoomed.",
        group="In a panel",
        screen="history",
    ),
    Action(
        "later",
        "right,shift+right",
        "→",
        "later",
        "The moment after.",
        group="In a panel",
        screen="history",
    ),
    Action(
        "wrap",
        "W",
        "W",
        "wrap",
        "In the output: long lines go on in the next row.",
        group="In a panel",
        screen="output",
    ),
    Action(
        "sideways(-1)",
        "less_than_sign,shift+left",
        "< >",
        "sideways",
        "In the output: to the left; > shows what stands further right.",
        group="In a panel",
        screen="output",
    ),
    Action(
        "sideways(1)",
        "greater_than_sign,shift+right",
        ">",
        "to the right",
        "To the right.",
        group="In a panel",
        screen="output",
    ),
    Action(
        "next_finding",
        "tab",
        "tab",
        "next finding",
        "The next finding.",
        group="Evidence",
        screen="evidence",
    ),
    Action(
        "previous_finding",
        "shift+tab",
        "shift+tab",
        "before",
        "The last one.",
        group="Evidence",
        screen="evidence",
    ),
    Action(
        "copy_all",
        "Y",
        "Y",
        "copy all",
        "Copy figures and fix.",
        group="Evidence",
        screen="evidence",
    ),
    Action(
        "next_rank",
        "tab",
        "tab",
        "next rank",
        "The next rank.",
        group="Numerics",
        screen="numerics",
    ),
    Action(
        "previous_rank",
        "shift+tab",
        "shift+tab",
        "before",
        "The last one.",
        group="Numerics",
        screen="numerics",
    ),
    Action(
        "sort_layers",
        "s",
        "s",
        "sort",
        "Sort by the next column.",
        group="Layers",
        screen="layers",
    ),
    Action(
        "fold_layers",
        "f",
        "f",
        "fold",
        "Alike layers one by one, or as one.",
        group="Layers",
        screen="layers",
    ),
    Action(
        "worst",
        "w",
        "w",
        "worst",
        "Only layers that take far longer than their like; again all.",
        group="Layers",
        screen="layers",
    ),
    Action(
        "layers_rank",
        "tab",
        "tab",
        "rank",
        "The next rank that was watched.",
        group="Layers",
        screen="layers",
    ),
    Action(
        "next_table",
        "tab",
        "tab",
        "next table",
        "The next table: held by, kinds, layers, fragmentation, other settings, difference.",
        group="Memory snapshot",
        screen="memory",
    ),
    Action(
        "table_before",
        "shift+tab",
        "shift+tab",
        "before",
        "The table before.",
        group="Memory snapshot",
        screen="memory",
    ),
    Action("sort", "s", "s", "sort", "Sort by the next column.", group="All ranks", screen="ranks"),
    Action(
        "worst",
        "w",
        "w",
        "worst",
        "Only ranks that stand out, the cursor on the worst; again all.",
        group="All ranks",
        screen="ranks",
    ),
    Action(
        "reverse", "S", "S", "reverse", "Turn the order round.", group="All ranks", screen="ranks"
    ),
    Action(
        "less",
        "left",
        "← →",
        "change",
        "The value before; → is the next one.",
        group="Estimate",
        screen="estimator",
    ),
    Action(
        "more", "right", "→", "next value", "The next value.", group="Estimate", screen="estimator"
    ),
    Action(
        "take",
        "enter",
        "enter",
        "type, apply",
        "Type a value, or apply a lever.",
        group="Estimate",
        screen="estimator",
    ),
    Action(
        "find_model",
        "slash",
        "/",
        "model",
        "Search a model by name.",
        group="Estimate",
        screen="estimator",
    ),
    Action(
        "next_pane",
        "tab,shift+tab",
        "tab",
        "levers",
        "To the levers, and back.",
        group="Estimate",
        screen="estimator",
    ),
    Action(
        "trace",
        "t",
        "t",
        "trace",
        "Run the real modules on fake tensors.",
        group="Estimate",
        screen="estimator",
    ),
    Action(
        "mark_base",
        "b",
        "b",
        "compare",
        "Compare with this setup from now on.",
        group="Estimate",
        screen="estimator",
    ),
    Action(
        "examples",
        "x",
        "x",
        "examples",
        "Pick a setup to start from.",
        group="Estimate",
        screen="estimator",
    ),
    Action(
        "undo", "u", "u", "undo", "Take the last change back.", group="Estimate", screen="estimator"
    ),
    Action(
        "notes",
        "n",
        "n",
        "notes",
        "What was assumed, and the sources.",
        group="Estimate",
        screen="estimator",
    ),
    Action(
        "less",
        "left",
        "← →",
        "change",
        "The value before; → is the next one.",
        group="Plan",
        screen="strategy",
    ),
    Action("more", "right", "→", "next value", "The next value.", group="Plan", screen="strategy"),
    Action(
        "take",
        "enter",
        "enter",
        "fix, type",
        "Fix this split, or type a value.",
        group="Plan",
        screen="strategy",
    ),
    Action(
        "next_pane",
        "tab,shift+tab",
        "tab",
        "table",
        "To the table, and back.",
        group="Plan",
        screen="strategy",
    ),
    Action(
        "mark",
        "space",
        "space",
        "mark",
        "Mark up to four to compare them.",
        group="Plan",
        screen="strategy",
    ),
    Action(
        "launch",
        "l",
        "l",
        "launch",
        "The command and files of this split.",
        group="Plan",
        screen="strategy",
    ),
    Action(
        "save",
        "e",
        "e",
        "export",
        "The table as CSV or JSON, the screen as SVG.",
        group="Plan",
        screen="strategy",
    ),
    Action(
        "pareto",
        "p",
        "p",
        "pareto",
        "Step time against memory as a plot.",
        group="Plan",
        screen="strategy",
    ),
    Action(
        "what_if_this",
        "u",
        "u",
        "what if",
        "What each change would win.",
        group="Plan",
        screen="strategy",
    ),
    Action(
        "workload",
        "w",
        "w",
        "workload",
        "Preset settings, servers and PPO.",
        group="Plan",
        screen="strategy",
    ),
    Action(
        "find_model",
        "slash",
        "/",
        "model",
        "Search a model by name.",
        group="Plan",
        screen="strategy",
    ),
    Action(
        "free", "a", "a", "auto", "Search the whole split again.", group="Plan", screen="strategy"
    ),
    Action(
        "topology",
        "i",
        "i",
        "links",
        "How the GPUs of a node hang together.",
        group="Plan",
        screen="strategy",
    ),
    Action("take", "enter", "enter", "open", "Open the run.", group="Runs", screen="runs"),
    Action(
        "mark",
        "space",
        "space",
        "mark",
        "Mark two runs; enter then compares them.",
        group="Runs",
        screen="runs",
    ),
    Action(
        "compare",
        "c",
        "c",
        "compare",
        "Compare the marked run with this one.",
        group="Runs",
        screen="runs",
    ),
    Action(
        "filter",
        "slash",
        "/",
        "filter",
        "Only runs with the words typed.",
        group="Runs",
        screen="runs",
    ),
    Action(
        "swap",
        "s",
        "s",
        "swap",
        "Take the other run as the baseline.",
        group="Comparison",
        screen="comparison",
    ),
    Action(
        "take",
        "enter",
        "enter",
        "plan",
        "Plan a job on this GPU.",
        group="Catalog",
        screen="catalog",
    ),
    Action(
        "estimate",
        "v",
        "v",
        "estimate",
        "GPU memory of a job on this GPU.",
        group="Catalog",
        screen="catalog",
    ),
    Action(
        "mark",
        "space",
        "space",
        "mark",
        "Mark up to four to compare them.",
        group="Catalog",
        screen="catalog",
    ),
    Action("sort", "s", "s", "sort", "Sort by the next column.", group="Catalog", screen="catalog"),
    Action(
        "filter",
        "slash",
        "/",
        "filter",
        "Only GPUs with the words typed.",
        group="Catalog",
        screen="catalog",
    ),
    Action(
        "plot", "p", "p", "plot", "Rent against speed or memory.", group="Catalog", screen="catalog"
    ),
    Action(
        "topology",
        "i",
        "i",
        "links",
        "How its servers are wired.",
        group="Catalog",
        screen="catalog",
    ),
    Action(
        "next_pane",
        "tab,shift+tab",
        "tab",
        "matrix",
        "To the matrix.",
        group="Topology",
        screen="topology",
    ),
    Action(
        "next_pane",
        "tab,shift+tab",
        "tab",
        "facts",
        "To the facts, and back.",
        group="Catalog",
        screen="catalog",
    ),
    Action(
        "search",
        "slash",
        "/",
        "search",
        "Search the output; again for the hit above.",
        group="Moving",
    ),
    Action(
        "seek_back",
        "left",
        "← →",
        "seek",
        "Go back in the recording; → goes on.",
        "replay",
        8,
        "Replay",
    ),
    Action(
        "seek_forward", "right", "→", "seek on", "Go on in the recording.", "replay", group="Replay"
    ),
    Action(
        "slower", "minus", "-", "slower", "Halve the speed of the replay.", "replay", group="Replay"
    ),
    Action(
        "faster",
        "plus,equals_sign",
        "+",
        "faster",
        "Double the speed of the replay.",
        "replay",
        9,
        "Replay",
    ),
)
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
    *("back", "quit", "compare", "swap", "worst", "sort"),
    *(*_STRATEGY_KEYS, *_ESTIMATOR_KEYS, *_CATALOG_KEYS, "free"),
    *("sort_layers", "fold_layers", "layers_rank", "next_table"),
    *("next_finding", "next_rank", "reverse", "copy", "copy_all", "export", "help"),
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


def in_footer(name: str, mode: str = "live", panel: str = "") -> list[Action]:
    """Actions of a screen's footer, the most important first; a replay's moves come early.

    Args:
        name: of the screen.
        mode: ``live`` or a replay's.
        panel: that has the focus; a key that means something else there stands with that meaning.
    """
    here = on_screen(name)
    if name == "main":
        moves = ("pause", "seek_back") if mode != "live" else ()
        shown = sorted(
            (a for a in here if a.footer), key=lambda a: 2.5 if a.id in moves else a.footer
        )
        own = {a.shown: a for a in ACTIONS if a.screen == panel and panel in OF_PANELS}
        return [own.get(a.key, a) if a.scope != "replay" else a for a in shown]
    return sorted(
        (action for action in here if action.id in PAGE_FOOTER),
        key=lambda a: PAGE_FOOTER.index(a.id),
    )


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


def applies(action: Action, mode: str, control: bool) -> bool:
    """Whether an action has any effect: seeking in a replay, profiling where someone listens."""
    if action.scope == "control":
        return control
    return action.scope == "always" or (action.scope == "replay") == (mode != "live")
