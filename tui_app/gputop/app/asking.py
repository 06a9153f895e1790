"""An app that asks the ranks of a training for something, and shows what they send."""

from __future__ import annotations

from textual.app import SuspendNotSupported
from textual.screen import Screen

from gputop.app.paged import PagedApp
from gputop.feed.snapshot import Notice, Snapshot

TOGETHER_NS = 10 * 10**9
"""Stacks that come within this belong to one look at all ranks."""


class AskingApp(PagedApp):
    """Where nobody can be asked, what the record holds is shown."""

    layers_asked = False
    """Layers are watched once; later on they are in the record."""

    _notices_seen: int | None = None
    """None before the first snapshot: what is in the record by then is no news."""

    # ---- asking

    @property
    def listens(self) -> bool:
        """Whether there is a training that can be asked: what asks one is not offered after it."""
        return self.source.control is not None and not self.ended

    @property
    def ended(self) -> bool:
        """Whether the run is over, as far as the screen knows."""
        return self.main.snapshot is not None and self.main.snapshot.ended

    def action_profile(self) -> None:
        self._command(lambda control: control.profile(3), "profiling the next three steps")

    def action_layers(self) -> None:
        from gputop.screens.layers import LayersScreen

        if self.listens and self.still_running() and not self.layers_asked:
            self.layers_asked = True
            self._command(lambda control: control.layers(), "watching three steps layer by layer")
        self._open(LayersScreen, self.layers_asked)

    def action_dump(self) -> None:
        if self.still_running():
            self._command(lambda control: control.dump(), "asked every rank for its stacks")
        else:
            self.show_recorded_stacks()

    def show_recorded_stacks(self) -> None:
        """The newest stacks in the record: nobody is there to be asked for others."""
        if self.main.snapshot is not None:
            notices = self.main.snapshot.notices
        else:
            notices = ()
        dumps = [notice for notice in notices if notice.kind == "stack_dump"]
        if dumps:
            self.show_notice(max(dumps, key=lambda notice: notice.t_ns))
        else:
            self.notify("no stacks were recorded")

    def action_memory_snapshot(self) -> None:
        self._command(
            lambda control: control.memory_snapshot(), "asked every rank for a memory snapshot"
        )

    def action_hand_over(self) -> None:
        control = self.source.control
        if control is None or not self.still_running():
            self._nobody_to_ask()
            return
        self.clear_notifications()
        try:
            with self.suspend():
                control.hand_over()
        except (SuspendNotSupported, ValueError) as error:
            self.notify(f"{error}", title="cannot hand the terminal over", severity="warning")
        self.input_watch.forget()
        self.refresh(layout=True)

    def _command(self, send, said: str) -> None:
        if not self.still_running():
            self._nobody_to_ask()
            return
        try:
            send(self.source.control)
        except Exception as error:
            self.notify(f"{error}", title="not sent", severity="warning")
        else:
            self.notify(said)

    def _nobody_to_ask(self) -> None:
        if self.source.mode != "live":
            self.notify("a recording: no training is there to be asked")
        elif self.source.control is None:
            self.notify("this screen only watches: the training is asked where it was started")
        else:
            self.notify("the command has ended: nobody is there to be asked")

    # ---- what they sent

    def _announce(self, snapshot: Snapshot) -> None:
        if self._takes_keys():
            return  # what came is shown once it is closed: its keys must not go elsewhere
        count = len(snapshot.notices)
        last_count, self._notices_seen = self._notices_seen, count
        if last_count is not None and count > last_count and self.source.mode == "live":
            self.show_notice(snapshot.notices[-1])

    def _takes_keys(self) -> bool:
        """Whether a dialog waits for an answer, or for what is typed into it."""
        from textual.screen import ModalScreen

        from gputop.screens.dialog import TextDialog

        return isinstance(self.screen, ModalScreen) and not isinstance(self.screen, TextDialog)

    def show_notice(self, notice: Notice) -> None:
        """Open what an agent sent."""
        if notice.kind == "memory_snapshot":
            from gputop.screens.texts import memory_snapshot_text

            self.notify(memory_snapshot_text(notice, self.source.run_dir.name))
            return
        from textual.content import Content

        from gputop.screens import texts
        from gputop.screens.dialog import TextDialog, Words, text_columns

        if isinstance(self.screen, TextDialog) and notice.kind == "stack_dump":
            self.pop_screen()
        together = self._dumped_with(notice)
        if len(together) > 1:
            self.push_screen(self._stacks_of(together))
            return

        def notice_at(size: tuple[int, int]) -> Words:
            text = texts.notice_text(notice, text_columns(size[0]))
            return Words(Content(text), text)

        self.push_screen(TextDialog(texts.notice_title(notice), notice_at))

    def _stacks_of(self, notices: list[Notice]) -> Screen[None]:
        """All side by side, with the rank of a critical finding, and since when the run stands."""
        from gputop.screens.stacks import MOVING, StacksDialog, why

        snapshot = self.newest or self.main.snapshot
        judged = why(snapshot) if snapshot is not None else MOVING
        return StacksDialog(notices, self.theme_variables, judged)

    def _judge_stacks(self, snapshot: Snapshot) -> None:
        """Tell stacks that are open what has been found since."""
        if self.source.mode != "live" or len(self.screen_stack) < 2:
            return
        from gputop.screens.stacks import StacksDialog, why

        if isinstance(self.screen, StacksDialog) and self.screen.is_mounted:
            self.screen.judge(why(snapshot))

    def _dumped_with(self, notice: Notice) -> list[Notice]:
        """The newest stack of each rank that came within seconds of this one."""
        newest = self.newest or self.main.snapshot
        if notice.kind != "stack_dump" or newest is None:
            return []
        near = [
            notice_
            for notice_ in newest.notices
            if notice_.kind == "stack_dump" and abs(notice_.t_ns - notice.t_ns) < TOGETHER_NS
        ]
        return list({notice_.rank: notice_ for notice_ in near}.values())
