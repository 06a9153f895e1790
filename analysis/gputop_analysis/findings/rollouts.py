"""Rollouts: the loop asks its model without training it, and a world answers."""

from __future__ import annotations

from collections.abc import Sequence

from gputop_analysis.findings.facts import Facts
from gputop_analysis.findings.site import Site
from gputop_analysis.findings.sites import runs_training
from gputop_analysis.findings.stack_samples import (
    ASKED,
    COMPUTE,
    LOOP,
    Path,
    PlacedSample,
    functions,
    module_samples,
    paths_within,
    prefixes,
    samples_of,
    total,
)
from gputop_analysis.view import RunView

ROLLOUTS = 0.2
"""Of the samples between the phases."""


def is_the_world(view: RunView, rank: int, site: Site) -> bool:
    """Whether a place of host code is a rollout's world as a whole: a line of the function that
    asks the model, or that calls it, or below it a process of its own or a function over which the
    host code is spread.
    """
    rollouts, labels = _functions_of_rollouts(view, rank), {site.site, f"{LOOP}{site.site}"}
    between_phases = samples_of(view, ("other",), rank)
    samples = [sample for sample in between_phases if not labels.isdisjoint(sample.path)]
    if not rollouts or not samples:
        return False
    if any(_is_in_or_calls(sample.path, labels, rollouts) for sample in samples):
        return True
    below = [sample for sample in samples if _lies_below(sample.path, rollouts)]
    world = [sample for sample in below if site.is_function or sample.waits]
    return total(world) > 0.5 * total(samples)


def are_rollouts(view: RunView, rank: int, site: Site) -> bool:
    """Whether time between the phases is that of rollouts, although its most frequent line is one
    that trains: they ask the model, which is no host code that could be named.
    """
    if site.site is None or not runs_training(view, rank, site.site):
        return False
    rollouts = _functions_of_rollouts(view, rank)
    between_phases = list(samples_of(view, ("other",), rank))
    asking = [sample for sample in between_phases if _lies_below(sample.path, rollouts)]
    return total(asking) > ROLLOUTS * total(between_phases)


def has_package_draw(view: RunView, rank: int, site: Site) -> bool:
    """Whether a place of host code has a package ask the model for what it is trained on, as
    ``generate`` of transformers does.
    """
    if not Facts(view, rank).acts:
        return False
    asking = _below(view, ("forward", *ASKED), rank, site)
    between = _below(view, ("other",), rank, site)
    in_package = [sample for sample in between if sample.package]
    asks = any(sample.package for sample in asking)
    return asks and total(in_package) > 0.5 * total(between)


def _below(view: RunView, phases: Sequence[str], rank: int, site: Site) -> list[PlacedSample]:
    """Samples of phases at a place, or below it."""
    return [sample for sample in samples_of(view, phases, rank) if site.site in sample.path]


def calls_modules(view: RunView, rank: int, site: Site) -> bool:
    """Whether modules run at a place or below it, as below the line that asks a policy."""
    samples = module_samples(view, ("forward", *ASKED), rank)
    return any(site.site in sample.path for sample in samples)


def _functions_of_rollouts(view: RunView, rank: int) -> set[Path]:
    """Functions in which the model is asked and not trained; none where that is an evaluation of
    its own, which has its own time. Parts of a model that are called by themselves, as a policy's
    ``act`` does, are asked in the time between the phases.
    """
    asked_ns = 1e6 * sum(
        float(event.get("period_ms") or 0) * int(sample.get("count", 1))
        for event in view.events("stacks", rank=rank)
        if event.get("phase") in ASKED
        for sample in event.get("samples", ())
    )
    asked_paths: set[Path] = set()
    if asked_ns >= 2 * float(view.per_rank[rank].rows["eval_ns"].sum()):
        asked_paths = paths_within(view, rank, ASKED)
    for sample in module_samples(view, ("other",), rank):
        asked_paths.update(prefixes(sample.path))
    trained = paths_within(view, rank, COMPUTE)
    return {functions(path) for path in asked_paths} - {functions(path) for path in trained}


def _is_in_or_calls(path: Path, labels: set[str | None], rollouts: set[Path]) -> bool:
    """Whether the innermost of these labels stands in a rollout, or calls one."""
    innermost = max(at for at, label in enumerate(path) if label in labels)
    inside = functions((*path[:innermost], path[innermost].removeprefix(LOOP)))
    return inside in rollouts or functions(path)[: len(inside) + 1] in rollouts


def _lies_below(path: Path, rollouts: set[Path]) -> bool:
    below = functions(path)
    return any(below[: depth + 1] in rollouts for depth in range(len(below)))
