"""Limits on what a test trains, as markers of pytest; the test's own lines stay as they are.

``@pytest.mark.limit_vram("24 GiB", gpu="RTX 4090")``: the module and batch of the test's first
forward are traced on fake tensors, with the test's optimizer, so that no GPU is needed.
``@pytest.mark.limit_step("15 ms")``: the median time between two optimizer steps; the test fails
only where that is surely above.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from itertools import pairwise
from math import comb
from typing import Any

import pytest

_BYTES = {"B": 1, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "MB": 10**6, "GB": 10**9}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_WARM_UP = 3
_FEWEST_STEPS = 8
_ERROR = 0.025


def pytest_configure(config: pytest.Config) -> None:
    """Say which markers there are."""
    for line in (
        "limit_vram(size, gpu=None): GPU memory that the test's training may need, by trace",
        "limit_step(time): median time of an optimizer step that the test may take",
    ):
        config.addinivalue_line("markers", line)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Watch the test and judge what it trained; a test failing by itself keeps its failure."""
    memory, step = item.get_closest_marker("limit_vram"), item.get_closest_marker("limit_step")
    if memory is None and step is None:
        return (yield)
    limits = _Limits(memory, step)
    with _Watch() as watch:
        result = yield
    for problem in limits.problems(watch):
        pytest.fail(problem, pytrace=False)
    return result


class _Limits:
    """The arguments of the markers, read before the test runs."""

    def __init__(self, memory: pytest.Mark | None, step: pytest.Mark | None):
        _refuse_others(memory, {"gpu"})
        _refuse_others(step, set())
        self._size = _amount(memory, _BYTES, "24 GiB") if memory else None
        self._gpu = str(memory.kwargs.get("gpu") or "") if memory else ""
        self._seconds = _amount(step, _SECONDS, "15 ms") if step else None

    def problems(self, watch: _Watch) -> list[str]:
        """What is over its limit."""
        problems = []
        if self._seconds is not None:
            problems.append(_step_problem(watch.times, self._seconds))
        if self._size is not None:
            problems.append(_memory_problem(watch, self._size, self._gpu))
        return [problem for problem in problems if problem]


class _Watch:
    """The first outermost forward of a module that trains, the optimizer, and when it stepped."""

    def __init__(self) -> None:
        self.module: Any = None
        self.inputs: Any = None
        self.optimizer = ""
        self.times: list[float] = []
        self._stack = ExitStack()

    def __enter__(self) -> _Watch:
        try:
            from torch.nn.modules.module import register_module_forward_pre_hook
            from torch.optim.optimizer import register_optimizer_step_post_hook
        except ImportError:
            pytest.fail("limit_vram and limit_step need torch: pip install torch", pytrace=False)
        for handle in (
            register_module_forward_pre_hook(self._forward),
            register_optimizer_step_post_hook(self._stepped),
        ):
            self._stack.callback(handle.remove)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _forward(self, module: Any, inputs: tuple[Any, ...]) -> None:
        if self.module is None and any(weight.requires_grad for weight in module.parameters()):
            self.module = module
            self.inputs = _named_inputs(module, inputs)

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        self.optimizer = type(optimizer).__name__.lower()
        self.times.append(time.perf_counter())


def _named_inputs(module: Any, inputs: tuple[Any, ...]) -> Any:
    """What the forward was called with: its caller knows those that were named."""
    if inputs:
        return inputs
    frame = inspect.currentframe()
    while frame is not None and not (
        frame.f_code.co_name in ("_call_impl", "inner") and frame.f_locals.get("self") is module
    ):
        frame = frame.f_back
    if frame is not None:
        return dict(frame.f_locals.get("kwargs", {}))
    return {}


def _refuse_others(mark: pytest.Mark | None, names: set[str]) -> None:
    """Fail where a marker has arguments that it does not know: a limit left out would pass."""
    if mark is None:
        return
    unknown = [f"{name}=" for name in sorted(mark.kwargs.keys() - names)]
    unknown += [repr(argument) for argument in mark.args[1:]]
    if unknown:
        pytest.fail(f"{mark.name} does not take {', '.join(unknown)}", pytrace=False)


def _amount(mark: pytest.Mark, units: Mapping[str, float], example: str) -> float:
    text = str(mark.args[0]) if mark.args else ""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*", text)
    scale = None
    if match:
        scale = units.get(match[2], units.get(match[2].upper()))
    if match is None or scale is None:
        pytest.fail(f"{mark.name}({text!r}): give an amount such as {example!r}", pytrace=False)
    return float(match[1]) * scale


def _step_problem(times: list[float], limit_s: float) -> str:
    steady = times[_WARM_UP:]
    if len(steady) <= _FEWEST_STEPS:
        return (
            f"limit_step: {len(times)} optimizer steps in this test, "
            f"{_FEWEST_STEPS + _WARM_UP + 1} are needed to judge"
        )
    gaps = sorted(after - before for before, after in pairwise(steady))
    low = gaps[_low_rank(len(gaps))]
    if low <= limit_s:
        return ""
    median = gaps[len(gaps) // 2]
    return (
        f"limit_step: {median * 1e3:.3g} ms a step (median of {len(gaps)}, "
        f"surely above {low * 1e3:.3g} ms), limit {limit_s * 1e3:.3g} ms"
    )


def _low_rank(count: int) -> int:
    """Index of the sorted value that the median is surely not below (binomial)."""
    chance, rank = 0.0, 0
    while True:
        chance += comb(count, rank) / 2.0**count
        if chance > _ERROR:
            return max(0, rank - 1)
        rank += 1


def _memory_problem(watch: _Watch, limit: float, gpu: str) -> str:
    if watch.module is None:
        return "limit_vram: no module with weights to train was called in this test"
    from gputop.api import estimate
    from gputop_analysis.vram.setup import OPTIMIZERS

    options = {}
    if watch.optimizer in OPTIMIZERS:
        options["optimizer"] = watch.optimizer
    try:
        estimated = estimate(watch.module, inputs=watch.inputs, gpu=gpu, calibrate=False, **options)
    except (LookupError, ValueError) as error:
        return f"limit_vram: {error}"
    need = estimated.device_total
    low, high = (round(need * (1 + part / 100) / 2**30, 2) for part in estimated.interval_pct)
    size = f"{need / 2**30:.2f} GiB ({low} to {high}, {estimated.peak.tier} tier)"
    if need > limit:
        return f"limit_vram: {size}, limit {limit / 2**30:.4g} GiB"
    if estimated.runs_in_capacity is False:
        return f"limit_vram: {size} does not fit on {gpu}"
    return ""
