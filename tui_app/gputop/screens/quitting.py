"""The question on leaving while the training runs."""

from __future__ import annotations

from gputop.screens.dialog import ChoiceDialog, DialogChoice
from gputop_probes.stop import ESCALATION_WINDOW_S

STILL_RUNS = (
    "The training has been asked to stop and still runs. Asking again sends SIGINT; "
    f"within {ESCALATION_WINDOW_S:g} s of the last time SIGTERM, a third time SIGKILL."
)


def quit_dialog(stopping: bool) -> ChoiceDialog[str]:
    """Stop, leave running or stay; once a stop was asked for, a sterner one is offered."""
    if stopping:
        choices = [
            DialogChoice("s", "ask again", "as Ctrl-C does", "stop"),
            DialogChoice("k", "kill it", "SIGKILL to all its processes", "kill"),
            DialogChoice("l", "leave it", "gputop goes, the training stays", "leave"),
        ]
        return ChoiceDialog("Stopping", STILL_RUNS, choices, escape="keep waiting")
    choices = [
        DialogChoice("l", "leave it running", "back by gputop attach", "leave"),
        DialogChoice("s", "stop the training", "as Ctrl-C does", "stop"),
    ]
    return ChoiceDialog("Leave", "The training is still running.", choices, escape="stay")
