"""Layer times of 20 models against torch.profiler: ``python bench/layers.py [MODEL:MODE ...]``, one
JSON line each.

Each case is one training: some steps are watched by the guest on command and run under
torch.profiler at the same time, with a range around every call of a module, so that both see the
same noise. Backward operations are put to the layer of the forward operation that has their
sequence number. Of each layer both sides count with their median over the steps, as ``gputop
layers`` shows it: one step that lost its core to another program says nothing of a layer. A case
holds where all shares are within 5 points and each of the five heaviest is among the five of the
profiler, or within 10 % of the fifth.

``reference_spread_points`` is how far the profiler parts from itself: the largest difference of a
layer's share between every other of its steps and the rest.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

from layer_models import CASES, build

WATCHED = 4
WITHIN = 0.05
HOOKS = "(the guest's own)"


def main(words: list[str]) -> None:
    """Every case, or those that are named."""
    chosen = [tuple(word.split(":")) for word in words] or CASES
    held = 0
    for name, mode in chosen:
        result = case(name, mode)
        held += result.get("holds", False)
        print(json.dumps(result), flush=True)
    print(json.dumps({"cases": len(chosen), "hold": held}))


def case(name: str, mode: str) -> dict[str, Any]:
    """Run one training and compare."""
    with tempfile.TemporaryDirectory() as folder:
        run_dir, reference = Path(folder) / "run", Path(folder) / "reference.json"
        command = [sys.executable, "-m", "gputop", "run", "--headless", "--run-dir", str(run_dir)]
        train = [sys.executable, __file__, "--train", name, mode, str(run_dir), str(reference)]
        done = subprocess.run(
            [*command, *train],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=400,
        )
        if not reference.exists():
            return {"model": name, "mode": mode, "error": (done.stdout + done.stderr)[-800:]}
        return {
            "model": name,
            "mode": mode,
            **compare(run_dir, json.loads(reference.read_text())),
        }


def compare(run_dir: Path, reference: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Shares of own time by layer in both, over the steps that both have seen."""
    from gputop_probes.record.reader import RunRecord

    record = RunRecord.open(run_dir)
    rows = [row for event in record.events("layer_table") for row in event["rows"]]
    looks = [event for event in record.events("layers") if "forward_us" in event]
    looks = [look for look in looks if str(look["step"]) in reference]
    if not looks or not rows:
        return {"error": "no layers"}
    paths = [row["path"] for row in rows]
    of_steps = [reference[str(look["step"])] for look in looks]
    mine = shares(medians([own_by_path(look, paths) for look in looks]))
    theirs = shares(medians(of_steps))
    off = {path: mine.get(path, 0) - share for path, share in theirs.items()}
    worst = max(off, key=lambda path: abs(off[path]))
    return {
        "holds": abs(off[worst]) <= WITHIN and same_heaviest(mine, theirs),
        "worst_points": round(100 * off[worst], 2),
        "worst_layer": worst,
        "same_five": same_heaviest(mine, theirs),
        "reference_spread_points": round(100 * spread(of_steps), 2),
        "parts_of_phase": [round(parts_of_phase(look), 3) for look in looks],
        "layers": len(mine),
    }


def own_by_path(look: dict[str, Any], paths: list[str]) -> dict[str, float]:
    """Own microseconds of each layer in a step."""
    own: dict[str, float] = {}
    for path, forward_us, backward_us in zip(
        paths, look["forward_us"], look["backward_us"], strict=False
    ):
        own[path] = own.get(path, 0.0) + forward_us + backward_us
    return own


def medians(of_steps: list[dict[str, float]]) -> dict[str, float]:
    """The median time of each layer over steps."""
    paths = {path for step in of_steps for path in step}
    return {path: median(step.get(path, 0.0) for step in of_steps) for path in paths}


def spread(of_steps: list[dict[str, float]]) -> float:
    """The largest difference of a layer's share between two halves of the steps."""
    halves = [shares(medians(of_steps[at::2])) for at in (0, 1)]
    paths = halves[0].keys() | halves[1].keys()
    return max((abs(halves[0].get(p, 0.0) - halves[1].get(p, 0.0)) for p in paths), default=0.0)


def parts_of_phase(look: dict[str, Any]) -> float:
    """Layers, what lies outside of them and the hooks, as a part of forward and backward of that
    step.
    """
    parts = (sum(look["forward_us"]) + sum(look["backward_us"])) / 1e3
    parts += look["outside_forward_ms"] + look["outside_backward_ms"] + look["hook_ms"]
    return parts / (look["forward_ms"] + look["backward_ms"])


def shares(times: dict[str, float]) -> dict[str, float]:
    """Parts of the sum."""
    whole = sum(times.values()) or 1.0
    return {path: value / whole for path, value in times.items()}


def same_heaviest(mine: dict[str, float], theirs: dict[str, float]) -> bool:
    """Whether each of our five heaviest is within 10 % of the fifth of theirs, or above."""
    fifth = sorted(theirs.values(), reverse=True)[: min(5, len(theirs))][-1]
    top = sorted(mine, key=lambda path: -mine[path])[: min(5, len(theirs))]
    return all(theirs.get(path, 0.0) >= 0.9 * fifth for path in top)


# ------------------------------------------------------------------ inside the training


def train(name: str, mode: str, run_dir: str, reference: str) -> None:
    """The training of one case."""
    import torch

    torch.set_num_threads(1)
    model, loss_of = build(name)
    wrapped = wrap(model, mode)
    optimizer = torch.optim.AdamW([p for p in wrapped.parameters() if p.requires_grad], 1e-4)

    def step() -> None:
        loss_of(wrapped).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(12):
        step()
    ranges(wrapped)
    Path(reference).write_text(json.dumps(watch(run_dir, step)))
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def watch(
    run_dir: str, step: Any, times_of: Any = None, activities: Any = None
) -> dict[str, dict[str, float]]:
    """Own milliseconds by layer of the steps that the guest watches, under
    torch.profiler, by step.

    Args:
        times_of: own times from the profiler's events; None: ``own_times``, on the host.
        activities: what the profiler records; None: the CPU.
    """
    import torch

    from gputop_probes.client import send_command

    times_of = times_of or own_times
    activities = activities or [torch.profiler.ProfilerActivity.CPU]

    guest = sys.modules["gputop_agent.watchers.layers.layers"].watch
    session = sys.modules["gputop_agent.runtime.session"].session
    send_command(Path(run_dir), {"cmd": "layers", "steps": WATCHED})
    found: dict[str, dict[str, float]] = {}
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and len(found) < WATCHED:
        if guest.due - session.step not in (0, 1):
            step()
            continue
        with torch.profiler.profile(activities=activities) as profile:
            step()
        if guest.look is not None and guest.look.counter is None:
            found[str(guest.due)] = times_of(profile.events())
    step()
    step()
    return found


def wrap(model: Any, mode: str) -> Any:
    """The model as it is trained."""
    import torch

    if mode == "compiled":
        return torch.compile(model)
    if mode == "compiled_blocks":
        for block in model.blocks:
            block.compile()
        return model
    if mode in ("ddp", "fsdp2"):
        with tempfile.NamedTemporaryFile(delete=False) as store:
            pass
        torch.distributed.init_process_group(
            "gloo", init_method=f"file://{store.name}", rank=0, world_size=1
        )
    if mode == "ddp":
        return torch.nn.parallel.DistributedDataParallel(model)
    if mode == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in getattr(model, "blocks", list(model.children())):
            fully_shard(block)
        fully_shard(model)
    return model


def ranges(model: Any) -> None:
    """Put a range of the profiler around every call of a module, within the guest's own timer where
    there is one.
    """
    import torch

    time_the_guest()
    for path, module in named(model):
        timer = module.__dict__.get("_compiled_call_impl")
        has_timer = type(timer).__name__ == "CallSlot"
        inner = timer.inner if has_timer else timer

        def call(
            *args: Any, _path: str = path, _module: Any = module, _inner: Any = inner, **kw: Any
        ):
            with torch.profiler.record_function(f"layer:{_path}"):
                return (_inner or _module._call_impl)(*args, **kw)

        if has_timer:
            timer.inner = call
        else:
            module.__dict__["_compiled_call_impl"] = call


def time_the_guest() -> None:
    """A range around what the guest does at the begin and end of a call, and as it hooks the graph
    of a backward inside another one: it lies within the layer around that, and is no time of it.
    """
    import torch

    step = sys.modules["gputop_agent.watchers.layers.layers"].WatchedStep
    for name in ("enter", "leave", "hook_nodes"):
        original = getattr(step, name)

        def timed(*args: Any, _original: Any = original) -> None:
            with torch.profiler.record_function(f"layer:{HOOKS}"):
                _original(*args)

        setattr(step, name, timed)


def named(model: Any) -> list[tuple[str, Any]]:
    """Modules by path; what DDP and torch.compile wrap has the wrapper's."""
    import torch

    found, seen = [], set()
    todo = [("", model)]
    for path, module in todo:
        if id(module) in seen:
            continue
        seen.add(id(module))
        found.append((path, module))
        for name, child in module.named_children():
            wrapper = name == "module" and isinstance(
                module, torch.nn.parallel.DistributedDataParallel
            )
            if wrapper or name == "_orig_mod":
                todo.append((path, child))
            else:
                todo.append((f"{path}.{name}" if path else name, child))
    return found


def own_times(events: Any) -> dict[str, float]:
    """Milliseconds of each layer without the layers within, forward and backward."""
    marks = [e for e in events if e.name.startswith("layer:")]
    nodes = [e for e in events if e.name.startswith("autograd::engine::evaluate_function")]
    calls = [
        e
        for e in events
        if e.scope == 1 and e.sequence_nr >= 0 and not e.name.startswith("autograd::")
    ]
    forward_end = min((e.time_range.start for e in nodes), default=float("inf"))
    by_sequence: dict[int, str] = {}
    spans = [(e.time_range.start, e.time_range.end, e.name[6:]) for e in marks]
    for event in events:
        number = getattr(event, "sequence_nr", -1)
        if number >= 0 and not event.name.startswith(("autograd::", "layer:")):
            start, end = event.time_range.start, event.time_range.end
            inside = [s for s in spans if s[0] <= start and end <= s[1]]
            if inside and event.scope != 1:
                by_sequence[number] = min(inside, key=lambda s: s[1] - s[0])[2]
    found: dict[str, float] = {}
    for start, end, path in spans:
        if start < forward_end:
            within = _within(start, end, spans)
            found[path] = found.get(path, 0.0) + (end - start - within) / 1e3
    for node in nodes:
        start, end = node.time_range.start, node.time_range.end
        path = by_sequence.get(_sequence_number(node, calls))
        if path is None or "AccumulateGrad" in node.name:
            continue
        inner = [s for s in spans if start <= s[0] and s[1] <= end]
        nested = [n for n in nodes if n is not node and _holds(node, *_range(n))]
        inner += [(*_range(n), "") for n in nested]
        found[path] = found.get(path, 0.0) + (end - start - _union(inner)) / 1e3
    for start, end, path in spans:  # recomputed in the backward
        if start >= forward_end:
            within = _within(start, end, spans)
            found[path] = found.get(path, 0.0) + (end - start - within) / 1e3
    found.pop(HOOKS, None)
    return found


def _sequence_number(node: Any, calls: list[Any]) -> int:
    """Sequence number of a node of the backward; that of the call within it where the node has
    none, as under a hook on its output (FSDP2).
    """
    if node.sequence_nr >= 0:
        return node.sequence_nr
    name = node.name.rpartition(" ")[2]
    within = (e.sequence_nr for e in calls if e.name == name and _holds(node, *_range(e)))
    return next(within, -1)


def _range(event: Any) -> tuple[float, float]:
    return event.time_range.start, event.time_range.end


def _holds(event: Any, start: float, end: float) -> bool:
    return event.time_range.start <= start and end <= event.time_range.end


def _within(start: float, end: float, spans: list[Any]) -> float:
    return _union(
        [s for s in spans if start <= s[0] and s[1] <= end and (s[0], s[1]) != (start, end)]
    )


def _union(spans: list[Any]) -> float:
    total, upto = 0.0, float("-inf")
    for start, end, *_ in sorted(spans):
        total += max(0.0, end - max(start, upto))
        upto = max(upto, end)
    return total


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(*sys.argv[2:6])
    else:
        main(sys.argv[1:])
