"""The screen behind a finding."""

from __future__ import annotations

from gputop.feed.snapshot import Snapshot
from gputop.messages import PageWanted
from gputop.pages.evidence import EvidencePage
from gputop.screens.page import PageScreen, bindings
from gputop_analysis.model import Finding


class EvidenceScreen(PageScreen):
    """One finding; Tab goes to the next one."""

    NAME = "evidence"
    BINDINGS = bindings(NAME)

    def __init__(self, mode: str, control: bool, snapshot: Snapshot, finding: Finding):
        self.evidence = EvidencePage(finding, id="page")
        super().__init__(mode, control, snapshot, self.evidence)

    def action_next_finding(self) -> None:
        self._step(1)

    def action_previous_finding(self) -> None:
        self._step(-1)

    def _step(self, by: int) -> None:
        self.evidence.step(by)
        self.post_message(PageWanted())

    def action_copy_all(self) -> None:
        self.app.copy_to_clipboard(self.evidence.copy_all_text())
        self.notify("copied the finding")
