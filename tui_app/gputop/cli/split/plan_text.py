"""A plan for a terminal: the pick and why, the step's parts, the next ones and their cost."""

from __future__ import annotations

import shlex
import textwrap
from typing import TYPE_CHECKING

from gputop.cli.quantities import dollars, long_time, short
from gputop.short_words import legend
from gputop_analysis.text import counted, painted, step_time, whole_percent, wrap

if TYPE_CHECKING:
    from gputop_analysis.planner.calibrate import Calibration
    from gputop_analysis.planner.choices import Choice
    from gputop_analysis.planner.questions import Wanted
    from gputop_analysis.planner.search import Plan

_HUES = {
    "compute": "forward",
    "tensor_parallel": "comm",
    "context_parallel": "comm",
    "expert_parallel": "comm",
    "pipeline": "eval",
    "bubble": "other",
    "data_parallel": "high",
    "optimizer": "optimizer",
    "launch": "h2d",
    "input": "data",
}


def as_text(
    plan: Plan, wanted: Wanted, *, top: int, tokens: float | None, width: int, colour: bool
) -> str:
    """The whole answer."""
    from gputop_analysis.planner.choices import choice, difference, ranked, why

    choices = ranked(plan, max(top, 1), wanted.usd_per_gpu_hour)
    first = choice(plan, plan.pick, wanted.usd_per_gpu_hour)
    job, hardware = plan.job, plan.cluster
    lines = [
        f"{job.model.name} on {hardware.gpus} x {hardware.device.name}, {hardware.gpus_per_node} "
        f"a node: {job.global_batch:,} x {job.seq:,} tokens a step, {job.dtype}"
        + ("" if job.habits.master_weights else ", weights in 16 bits"),
        painted(f"{first.name}: {step_time(first.step_s)} a step", "bold", colour)
        + f" ({step_time(first.interval_s[0])} to {step_time(first.interval_s[1])} in 80 % of "
        f"cases), {first.tokens_per_s:,.0f} tokens/s, MFU {100 * first.mfu:.0f} %",
        *wrap(why(plan, first), width),
        *parts(first, width, colour),
        "",
        *table(choices, width),
    ]
    lines += wrap(legend("\n".join(lines)), width)
    for other in [choice_ for choice_ in choices if choice_.index != first.index][:2]:
        lines += wrap(
            f"not {other.name}: {difference(first, other)}", width, subsequent_indent="  "
        )
    if new := plan.never_calibrated(first.index):
        lines += wrap(
            f"the range is wider for what no published run has calibrated: {', '.join(new)}", width
        )
    lines += ["its memory by category:", *_pasted(estimate_command(plan, first.index), width)]
    lines += ["", *_whole_training(plan, first, wanted, tokens, width)]
    if note := corrected(plan.calibration):
        lines += wrap(note, width)
    lines.append(
        f"{counted(len(plan.layouts), 'configuration')} by the rules, "
        f"{f'{plan.fitting:,} fit' if plan.fitting else 'none surely fits'}"
    )
    return "\n".join(lines)


def estimate_command(plan: Plan, index: int) -> str:
    """The command that takes the memory of a configuration apart."""
    from gputop_analysis.planner.memory import setup_at
    from gputop_analysis.vram.fitting import options_of

    options = options_of(setup_at(plan.job, plan.layouts, index))
    words = ["gputop", "estimate", "--model", plan.job.model.name, *options]
    return shlex.join([*words, "--gpu", plan.cluster.device.name, "--tier", "formula"])


def _pasted(command: str, width: int) -> list[str]:
    """A command over several lines, as a shell takes it."""
    lines = textwrap.wrap(
        command,
        width - 4,
        initial_indent="  ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [*(f"{line} \\" for line in lines[:-1]), lines[-1]]


def corrected(by: Calibration) -> str:
    """By how many measured runs, and how well that predicts an unseen one; empty by none."""
    if not by.rows:
        return ""
    text = f"corrected by {counted(by.rows, 'measured run')}"
    if by.leave_one_out == by.leave_one_out:
        text += f": one left out is predicted {100 * by.leave_one_out:.1f} % off by the others"
    if by.memory_rows:
        text += f"; memory x {by.memory_factor:.2f}"
    if by.memory_leave_one_out == by.memory_leave_one_out:
        text += f", one left out {100 * by.memory_leave_one_out:.1f} % off"
    if by.input_s_per_sample:
        text += f"; {1000 * by.input_s_per_sample:.2f} ms of waiting for data a sample, as measured"
    return text


def parts(choice: Choice, width: int, colour: bool) -> list[str]:
    """The step as one bar, and what its letters mean."""
    from gputop_analysis.planner.choices import NAMES

    cells, bar, labels = width - 2, "", []
    for name, seconds in choice.parts_s.items():
        count = round(cells * seconds / choice.step_s)
        if count:
            letter = NAMES[name][0].upper() if name != "bubble" else "."
            bar += painted(("█" if colour else letter) * count, _HUES[name], colour)
            labels.append(painted(f"{NAMES[name]} {step_time(seconds)}", _HUES[name], colour))
    return [bar, "  ".join(labels)]


def table(choices: list[Choice], width: int) -> list[str]:
    """One line a configuration."""
    room = max(len(choice.name) for choice in choices)
    rents = any(choice.usd_per_million_tokens is not None for choice in choices)
    lines = [
        f"{'':<{room}} {'step':>8} {'tokens/s':>10} {'MFU':>5} {'GiB':>6} {'free':>6}"
        + ("   $/Mtok" if rents else "")
    ]
    for choice in choices:
        if choice.usd_per_million_tokens is None:
            rent = ""
        else:
            rent = f" {choice.usd_per_million_tokens:>8.3f}"
        lines.append(
            f"{choice.name:<{room}} {step_time(choice.step_s):>8} {choice.tokens_per_s:>10,.0f} "
            f"{whole_percent(choice.mfu):>5} {choice.reserved_gib:>6.1f} "
            f"{choice.headroom_gib:>6.1f}{rent}{_doubt(choice)}"[:width]
        )
    return lines


def _doubt(choice: Choice) -> str:
    if not choice.fits:
        return "  may not fit"
    return "  tight" if choice.tight else ""


def _whole_training(
    plan: Plan, first: Choice, wanted: Wanted, tokens: float | None, width: int
) -> list[str]:
    from gputop_analysis.planner.search import training_hours

    if wanted.usd_per_gpu_hour is None:
        text = f"no rent of the {wanted.gpu} is known: ranked by time (--price gives one)"
        hourly = None
    else:
        hourly = wanted.usd_per_gpu_hour * plan.cluster.gpus
        text = f"rent {dollars(wanted.usd_per_gpu_hour)}/h a GPU, {dollars(hourly)}/h in all"
    if not tokens:
        return wrap(f"{text}; --tokens 1T says how long a training takes and what it costs", width)
    hours = training_hours(plan, first.index, tokens)
    cost = "" if hourly is None else f" and {dollars(hours * hourly)}"
    return wrap(
        f"{text}; {short(tokens)} tokens take {long_time(hours)}{cost}, restarts not counted", width
    )
