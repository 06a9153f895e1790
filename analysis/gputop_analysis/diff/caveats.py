"""Caveats, which precede any speed: how two runs differ so that the faster one is no winner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from gputop_agent import wire
from gputop_agent.contracts import Hello
from gputop_analysis.diff.model import SAMPLES_DIFFER, Caveat
from gputop_analysis.ending import ending
from gputop_analysis.hangs.episodes import newest_episode
from gputop_analysis.summary import run_state, steps_done
from gputop_analysis.text import counted
from gputop_analysis.view import RunView


def caveats(a: RunView, b: RunView) -> tuple[Caveat, ...]:
    """Differences between the runs: first those that make speeds incomparable."""
    hello_a, hello_b = a.hello(), b.hello()
    found_caveats = [*_not_finite(a, b), *_ends(a, b), *_model(hello_a, hello_b)]
    found_caveats += _data(hello_a, hello_b)
    found_caveats += _values(
        "device",
        _device(hello_a),
        b=_device(hello_b),
        says="{of} runs on {x}",
        other="on {y}",
        comparable=False,
    )
    found_caveats += _values(
        "world size",
        a.world_size,
        b=b.world_size,
        says="{of} runs {x} rank{s}",
        other="{y}",
        comparable=False,
    )
    batch_a, batch_b = _batches(a, b)
    found_caveats += _values(
        "batch",
        batch_a,
        b=batch_b,
        says="{of} takes {x} sample{s} a step of a rank",
        other="{y}",
    )
    found_caveats += _values(
        "precision",
        _precision(hello_a),
        b=_precision(hello_b),
        says="{of} trains in {x}",
        other="{y}",
    )
    found_caveats += _values(
        "torch",
        hello_a.get("torch"),
        b=hello_b.get("torch"),
        says="{of} runs torch {x}",
        other="{y}",
    )
    return tuple(sorted(found_caveats, key=lambda caveat: caveat.comparable))


def first_not_finite(view: RunView) -> int | None:
    """First step of any rank with a loss that is NaN or infinite; None for none."""
    steps = [int(e.get("step") or 0) for e in view.record.events("nonfinite")]
    for rank, series in view.per_rank.items():
        for rows in (series.rows, view.device(rank)):
            not_finite = ()
            if len(rows):
                not_finite = rows["step"][(rows["flags"] & wire.F_NONFINITE) != 0]
            steps += [int(step) for step in not_finite[:1]]
    return min(steps, default=None)


def _not_finite(a: RunView, b: RunView) -> Iterator[Caveat]:
    """The loss of B comes first: it is the run that is judged."""
    steps = first_not_finite(a), first_not_finite(b)
    for of, step in (("B", steps[1]), ("A", steps[0])):
        if step is not None:
            text = f"{of}'s loss is not finite (NaN or infinite) from step {step:,}"
            yield Caveat("loss", *steps, text, comparable=False)


def _ends(a: RunView, b: RunView) -> Iterator[Caveat]:
    """A run that hung or failed: what it did until then can be compared."""
    for of, view in (("B", b), ("A", a)):
        state, code, _ = run_state(view.record, 0)
        how = ending(view.record, state, code)
        episode = newest_episode(view.record)
        step = max((steps_done(view.record, rank) for rank in view.ranks), default=0)
        if episode is not None and not episode.over:
            yield Caveat("end", None, None, f"{of} hung at step {step:,}", comparable=True)
        elif how.kind == "failed":
            words = how.words.replace("ended, exit", "failed with exit code")
            yield Caveat("end", None, None, f"{of} {words} at step {step:,}", comparable=True)


def _model(a: Hello, b: Hello) -> Iterator[Caveat]:
    models = [hello.get("model") or {} for hello in (a, b)]
    (class_a, size_a), (class_b, size_b) = ((m.get("class"), m.get("parameters")) for m in models)
    other_class = None not in (class_a, class_b) and class_a != class_b
    other_size = None not in (size_a, size_b) and size_a != size_b
    if not (other_class or other_size):
        return
    words_a, words_b = (model_words(m) for m in models)
    text = f"B trains another model ({words_b}, for {words_a} of A)"
    yield Caveat("model", words_a, words_b, text, comparable=False)


def model_words(model: Mapping[str, Any]) -> str:
    """``Linear, 650 parameters``."""
    size = model.get("parameters")
    parts = [
        str(model.get("class") or ""),
        counted(size, "parameter") if isinstance(size, int) else "",
    ]
    return ", ".join(part for part in parts if part)


def _data(a: Hello, b: Hello) -> Iterator[Caveat]:
    loaders = [hello.get("dataloader") or {} for hello in (a, b)]
    sets = [loader.get("dataset") for loader in loaders]
    sizes = [loader.get("dataset_length") for loader in loaders]
    if None not in sets and sets[0] != sets[1]:
        text = f"B reads other data ({sets[1]}, for {sets[0]} of A)"
        yield Caveat("data", sets[0], sets[1], text, comparable=False)
    elif sizes[0] != sizes[1] and isinstance(sizes[0], int) and isinstance(sizes[1], int):
        text = f"B's data set has {counted(sizes[1], 'sample')}, A's {sizes[0]:,}"
        yield Caveat("data", sizes[0], sizes[1], text, comparable=True)


def _device(hello: Hello) -> str | None:
    device_type = str(hello.get("device") or "").partition(":")[0]
    return str(hello.get("device_name") or "") or device_type or None


def _batches(a: RunView, b: RunView) -> tuple[float | None, float | None]:
    """Samples a step of a rank; None where one did not count them, or both take as many."""
    x, y = _samples(a), _samples(b)
    if not x or not y or abs(x / y - 1) <= SAMPLES_DIFFER:
        return None, None
    return round(x, 1), round(y, 1)


def _samples(view: RunView) -> float:
    series = view.per_rank.values()
    samples = sum(
        float(rank_series.rows["samples"].sum(dtype=np.float64)) for rank_series in series
    )
    return samples / max(1, sum(rank_series.total_steps() for rank_series in series))


def _precision(hello: Hello) -> str | None:
    """Type of most of the arithmetic: autocast's, else that of most parameters."""
    amp, by_type = hello.get("amp") or {}, (hello.get("model") or {}).get("by_dtype") or {}
    if amp.get("autocast"):
        return f"autocast {amp.get('dtype') or ''}".strip()
    if by_type:
        return str(max(by_type, key=lambda name: by_type[name]))
    return None


def _values(
    subject: str, a: Any, *, b: Any, says: str, other: str, comparable: bool = True
) -> list[Caveat]:
    """One caveat where both are known and differ. ``says`` takes the run, B's value, a plural."""
    if a is None or b is None or a == b:
        return []
    x, y = _number(b), _number(a)
    text = says.format(of="B", x=x, s="" if b == 1 else "s") + ", A " + other.format(y=y)
    return [Caveat(subject, a, b=b, text=text, comparable=comparable)]


def _number(value: Any) -> str:
    if isinstance(value, (int, float)):
        return f"{value:,g}"
    return str(value)
