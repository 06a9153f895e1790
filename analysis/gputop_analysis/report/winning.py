"""What the first thing to do would win of the whole run, in words."""

from __future__ import annotations

from gputop_analysis.prices import run_usd_per_hour
from gputop_analysis.report.build import Report
from gputop_analysis.text import counted, duration, ms
from gputop_analysis.win import Win, win_of

_ENDED = ("ended", "lost")


def first_win(report: Report) -> Win | None:
    """Win of the finding that the bottleneck rests on; None where it wins no time, and for a run
    that hangs, crashed or is broken: speed is then not the question.
    """
    finding = report.bottleneck.finding
    if finding is None or report.verdict.health in ("critical", "failed"):
        return None
    win = win_of(report.summary, finding)
    if win is None or win.factor < 1.005:
        return None
    return win


def win_words(win: Win) -> str:
    """``2.5x faster possible: 84.0 to 33.0 ms a step``."""
    digits = ".1f" if win.factor >= 1.95 else ".2f"
    return (
        f"{win.factor:{digits}}x faster possible: {ms(win.before_ms)} to {ms(win.after_ms)} "
        f"ms a step{_since(win)}"
    )


def _since(win: Win) -> str:
    return f" since step {win.since_step:,}" if win.since_step else ""


def saving(report: Report, win: Win) -> str:
    """``saves 1.2 h and $38.10 of rent over the 4,000 steps that are left``; of a run that ended
    what its own steps would have taken less.
    """
    summary = report.summary
    if summary.state in _ENDED:
        steps = summary.steps - win.since_step
        of_run = _since(win) or " of this run"
        over = f"would have saved {{}} over the {counted(steps, 'step')}{of_run}"
    elif summary.total_steps and summary.total_steps > summary.steps:
        steps = summary.total_steps - summary.steps
        over = f"saves {{}} over the {counted(steps, 'step')} that are left"
    else:
        steps, over = 1000, "saves {} in every 1,000 steps"
    hours = (win.before_ms - win.after_ms) * steps / 3.6e6
    amount = duration(3600 * hours)
    rent = run_usd_per_hour(report.view.record)  # none of GPUs that were added
    if rent is not None and hours * rent >= 0.01:
        amount += f" and ${hours * rent:,.2f} of rent"
    return over.format(amount)
