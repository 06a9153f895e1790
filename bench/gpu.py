"""All that only hardware can show, in one call of under ten minutes on a machine with one NVIDIA
GPU.

    python bench/gpu.py [--out FOLDER] [--only NAME ...] [--keep FOLDER]

Writes gpu.json and gpu.md after each check, so that what was measured is there when the machine
goes away. Exit code 3 and one line where there is no GPU.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
PACKAGES = [str(HERE.parent / name) for name in ("tui_app", "analysis", "probes")]
sys.path += [str(HERE), *PACKAGES]

from gpu_training import FAULTS, PHASES, SHAPES, TUNED  # noqa: E402

BUDGET_S = 570.0
NO_GPU = 3
_RUN_S = 100.0
_CONFS = ("", "expandable_segments:True", "max_split_size_mb:64")
_SECONDS = "6"
"""So long trains each that is to be diagnosed: trends take some windows of time."""
_TOGETHER = 6
"""Trainings at a time where only memory and values are looked at."""


def missing() -> str:
    """Why nothing can be measured here; empty where it can."""
    try:
        import torch
    except ImportError:
        return "no PyTorch here: install it with CUDA"
    if not torch.cuda.is_available():
        return f"no GPU: torch {torch.__version__} sees no CUDA device here"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("gpu-pack"), help="folder for JSON and page"
    )
    parser.add_argument("--only", nargs="+", choices=CHECKS, help="some of the checks")
    parser.add_argument("--keep", type=Path, help="folder in which records and traces stay")
    options = parser.parse_args()
    reason = missing()
    if reason:
        print(f"bench/gpu.py: {reason}; nothing was measured", file=sys.stderr)
        return NO_GPU
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {}
    for results in measured(options.only or list(CHECKS), options.keep):
        (options.out / "gpu.json").write_text(json.dumps(results, indent=2) + "\n")
        (options.out / "gpu.md").write_text(page(results))
    print(page(results))
    return 0 if all(check["ok"] for check in results["checks"].values()) else 1


def measured(names: list[str], keep: Path | None) -> Iterator[dict[str, Any]]:
    """The results after each check; those for which no time is left are said not to have run."""
    import torch

    began = time.monotonic()
    properties = torch.cuda.get_device_properties(0)
    checks: dict[str, Any] = {}
    for name in names:
        started = time.monotonic()
        print(f"gpu.py: {name}, {started - began:.0f} s gone", file=sys.stderr, flush=True)
        if started - began > BUDGET_S - _RUN_S:
            checks[name] = {"ok": False, "why": "no time was left"}
        else:
            checks[name] = _checked(name, keep)
        checks[name]["seconds"] = round(time.monotonic() - started, 1)
        yield {
            "gpu": properties.name,
            "memory_bytes": properties.total_memory,
            "torch": torch.__version__,
            "seconds": round(time.monotonic() - began, 1),
            "checks": checks,
        }


def _checked(name: str, keep: Path | None) -> dict[str, Any]:
    """What one check gives, in a folder that stays if it is to be kept."""
    with contextlib.ExitStack() as stack:
        if keep is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            folder = keep / name
            folder.mkdir(parents=True, exist_ok=True)
        try:
            return CHECKS[name](folder)
        except Exception as error:  # the other checks are to run
            return {"ok": False, "why": f"{type(error).__name__}: {error}"[:500]}


def page(results: dict[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        f"# {results['gpu']}, torch {results['torch']}: {results['seconds']:.0f} s",
        "",
        "| check | ok | figures |",
        "|---|---|---|",
    ]
    for name, check in results["checks"].items():
        figures = {key: value for key, value in check.items() if key != "ok"}
        text = json.dumps(figures).replace("|", "/")
        lines.append(f"| {name} | {'yes' if check['ok'] else 'NO'} | {text[:600]} |")
    return "\n".join(lines) + "\n"


def training(*words: str) -> list[str]:
    """The command of the training with these options."""
    return [sys.executable, str(HERE / "gpu_training.py"), *words]


def bare(*words: str, conf: str = "", **environment: str) -> dict[str, Any]:
    """The training alone; what it says of itself."""
    return _last_json(_run(training(*words), conf, **environment))


def watched(
    folder: Path, *words: str, options: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The training under gputop; what it says of itself, and gputop's report."""
    told = recorded(folder, training(*words), options)
    return told, reported(folder)


def recorded(
    folder: Path, command: list[str], options: tuple[str, ...] = (), **environment: str
) -> dict[str, Any]:
    """A command under gputop, its record in ``run``; what it says of itself."""
    folder.mkdir(parents=True, exist_ok=True)
    run = [sys.executable, "-m", "gputop", "run", "--run-dir", str(folder / "run"), *options]
    return _last_json(_run([*run, "--", *command], **environment))


def in_turn(folder: Path, jobs: list[Callable[..., Any]]) -> list[Any]:
    """What the jobs return: they start side by side, and train one after the other."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(job, GPU_TURN=str(folder / "turn")) for job in jobs]
        return [future.result() for future in futures]


def reported(folder: Path) -> dict[str, Any]:
    """gputop's report of the record in ``run``."""
    return json.loads(
        _run([sys.executable, "-m", "gputop", "report", str(folder / "run"), "--json"])
    )


def _run(command: list[str], conf: str = "", **more: str) -> str:
    paths = [*PACKAGES, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **more}
    if conf:
        environment["PYTORCH_CUDA_ALLOC_CONF"] = conf
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=_RUN_S,
        env=environment,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no word"]
        print(f"gpu.py: exit code {done.returncode}: {lines[-1][:300]}", file=sys.stderr)
    return done.stdout


def _find(content: Any, key: str) -> dict[str, float]:
    """The first value of a key, however deep it lies; empty where there is none."""
    if isinstance(content, dict):
        if isinstance(content.get(key), dict):
            return content[key]
        content = list(content.values())
    for part in content if isinstance(content, list) else ():
        found = _find(part, key)
        if found:
            return found
    return {}


def _last_json(output: str) -> dict[str, Any]:
    lines = [line for line in output.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if lines else {}


def phases(folder: Path) -> dict[str, Any]:
    """Phases of gputop against CUDA events of the training itself, and against torch.profiler."""
    trace = folder / "trace.json"
    told, report = watched(folder, "--steps", "200")
    seen = _find(report, "phases_mean_ms")
    errors = _errors(seen, told["phases_ms"])
    bare("--steps", "40", "--trace", str(trace))
    profiled = _errors(seen, traced_phases(json.loads(trace.read_text())["traceEvents"]))
    from gputop_analysis.evidence import gather

    devices = [device.as_data() for device in gather(trace).devices]
    worst = max(*errors.values(), *profiled.values())
    return {
        "ok": worst < 0.1,
        "errors": errors,
        "errors_to_profiler": profiled,
        "devices": devices,
    }


def _errors(seen: dict[str, float], true: dict[str, float]) -> dict[str, float]:
    return {name: abs(seen.get(name, 0.0) - value) / value for name, value in true.items()}


def traced_phases(events: list[dict[str, Any]]) -> dict[str, float]:
    """Mean milliseconds of each phase on the device: from its first kernel to that of the next
    phase.

    A kernel is of the range of the host in which it was launched. The last phase ends with its last
    kernel.
    """
    launched = {
        event["args"]["correlation"]: event["ts"]
        for event in events
        if event.get("cat") in ("cuda_runtime", "cuda_driver")
        and "correlation" in event.get("args", {})
    }
    ranges = sorted(
        (event["ts"], event["ts"] + event["dur"], event["name"])
        for event in events
        if event.get("cat") == "user_annotation" and event["name"] in PHASES
    )
    work: list[tuple[float, float, int]] = []
    for event in events:
        at = launched.get(event.get("args", {}).get("correlation"))
        if at is None or event.get("cat") not in ("kernel", "gpu_memset", "gpu_memcpy"):
            continue
        for place, (begin, end, _) in enumerate(ranges):
            if begin <= at < end:
                work.append((event["ts"], event["ts"] + event["dur"], place))
    begins, ends = {}, {}
    for begin, end, place in work:
        begins[place] = min(begins.get(place, begin), begin)
        ends[place] = max(ends.get(place, end), end)
    times: dict[str, list[float]] = {name: [] for name in PHASES}
    for place, begin in begins.items():
        name = ranges[place][2]
        is_last = name == PHASES[-1] or place + 1 not in begins
        end = ends[place] if is_last else begins[place + 1]
        times[name].append((end - begin) / 1e3)
    return {name: sum(values) / len(values) for name, values in times.items() if values}


def shapes(folder: Path) -> dict[str, Any]:
    """Trainings of other shapes: losses equal to the bit, phases as their own events tell."""
    with ThreadPoolExecutor(_TOGETHER) as pool:
        jobs = {shape: pool.submit(_shape, folder / shape, shape) for shape in SHAPES}
        results = {shape: job.result() for shape, job in jobs.items()}
    worst = max(max(result["errors"].values()) for result in results.values())
    equal = all(result["equal_losses"] for result in results.values())
    return {"ok": equal and worst < 0.1, "shapes": results}


def _shape(folder: Path, shape: str) -> dict[str, Any]:
    words = ("--shape", shape, "--steps", "300" if shape == "short" else "120")
    alone = bare(*words)
    told, report = watched(folder, *words)
    seen = _find(report, "phases_mean_ms")
    return {
        "equal_losses": alone["losses"] == told["losses"],
        "errors": _errors(seen, told["phases_ms"]),
        "told_ms": told["phases_ms"],
        "seen_ms": {name: seen.get(name) for name in PHASES},
    }


def ranks(folder: Path) -> dict[str, Any]:
    """Two gloo ranks that share the GPU, one of which sleeps: the slow one is named."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    words = training("--shape", "short", "--steps", "150", "--slow-rank", "1")
    told = recorded(folder, [*launcher, *words[1:]])
    report = reported(folder)
    ids = _ids(report)
    return {"ok": bool({"CR01", "CR03", "CR04"} & set(ids)), "found": ids, "told": told}


def cost(folder: Path) -> dict[str, Any]:
    """What a step takes longer under gputop: medians of three runs each, in turn; steps of many
    milliseconds, and such as are bound by the host.
    """
    results: dict[str, Any] = {}
    for shape, steps in (("plain", "150"), ("short", "2500")):
        words = ("--shape", shape, "--steps", steps)
        jobs: list[Callable[..., Any]] = []
        for turn in range(3):
            jobs.append(functools.partial(bare, *words))
            run = folder / shape / str(turn)
            jobs.append(functools.partial(recorded, run, training(*words)))
        step_ms = [told["late_step_ms"] for told in in_turn(folder, jobs)]
        alone, under = step_ms[::2], step_ms[1::2]
        added_ms = median(under) - median(alone)
        results[shape] = {"bare_ms": alone, "watched_ms": under, "added_us": 1e3 * added_ms}
    factor = median(results["plain"]["watched_ms"]) / median(results["plain"]["bare_ms"])
    is_cheap = factor < 1.01 and results["short"]["added_us"] < 40
    return {"ok": is_cheap, "factor": factor, **results}


def nvml(folder: Path) -> dict[str, Any]:
    """Which fields the driver gives, as the sampler records them, and which it does not."""
    from gputop_probes.record.reader import RunRecord

    recorded(folder, training("--steps", "200"))
    (host,) = RunRecord.open(folder / "run").hosts.values()
    rows = host.gpu.rows
    told = [name for name in rows.dtype.names or () if bool((rows[name] >= 0).any())]
    missing_ = [name for name in rows.dtype.names or () if name not in told]
    basic = {"util_pct", "memory_used_bytes", "power_w", "temperature_c", "sm_clock_mhz"}
    return {"ok": basic <= set(told), "rows": len(rows), "told": told, "not_told": missing_}


def memory(folder: Path) -> dict[str, Any]:
    """Holders of the peak, against what torch counts, and their kinds."""
    from gputop_analysis.snapshots import load
    from gputop_analysis.snapshots.analyse import analyse

    path = folder / "snapshot.pickle"
    told = bare("--steps", "12", "--snapshot", str(path))
    found = analyse(load(path))
    error = abs(found.peak_allocated - told["peak_allocated_bytes"]) / told["peak_allocated_bytes"]
    return {"ok": error < 0.02, "error": error, "categories": found.categories}


def snapshots(folder: Path) -> dict[str, Any]:
    """Replay of this GPU's own snapshots, with three settings of the allocator."""
    with ThreadPoolExecutor(_TOGETHER) as pool:
        paths = [folder / f"{number}.pickle" for number in range(len(_CONFS))]
        differences = dict(zip(_CONFS, pool.map(_replayed, paths, _CONFS), strict=True))
    exact = all(result["first_difference"] is None for result in differences.values())
    return {"ok": exact, "settings": differences}


def _replayed(path: Path, conf: str) -> dict[str, Any]:
    from gputop_analysis.snapshots import load
    from gputop_analysis.snapshots.analyse import analyse

    told = bare("--steps", "12", "--snapshot", str(path), conf=conf)
    snapshot = analyse(load(path))
    return {
        "first_difference": snapshot.first_difference,
        "reserved_off": snapshot.peak_reserved - told["peak_reserved_bytes"],
    }


def vram_grid(folder: Path) -> dict[str, Any]:
    """Real steps of many setups against what the tiers say of them; see ``vram_grid.py``."""
    import vram_grid as grid

    asked, driver, rows = grid.grid(), grid.driver(), []
    with (
        ThreadPoolExecutor(_TOGETHER) as pool,
        (folder / "vram_grid.jsonl").open("w", encoding="utf-8") as lines,
    ):
        for row in pool.map(lambda pair: grid.measured(*pair, ("formula", "profile")), asked):
            rows.append(row)
            lines.write(json.dumps({**row, "driver": driver}) + "\n")
            lines.flush()
    failed = [
        f"{row['model']} {row['options']}: {row['failed']}" for row in rows if "failed" in row
    ]
    tiers = {tier: grid.errors(rows, tier) for tier in ("formula", "profile")}
    return {"ok": len(failed) < len(rows) / 10, "failed": failed, "rows": len(rows), **tiers}


def memory_history(folder: Path) -> dict[str, Any]:
    """A snapshot on lack of memory, with the lines that held it, and what the recording costs."""
    recorded(folder, training("--fault", "out-of-memory"), ("--memory-history",))
    told = json.loads(
        _run([sys.executable, "-m", "gputop", "memory", str(folder / "run"), "--json"])
    )
    sites = [holder["site"] for holder in told["holders"]]
    own = sum("gpu_training.py" in str(site) for site in sites)
    plain_ms = recorded(folder / "plain", training())["step_ms"]
    history_ms = recorded(folder / "history", training(), ("--memory-history",))["step_ms"]
    return {"ok": own > 0, "sites": sites[:5], "cost": history_ms / plain_ms - 1}


def faults(folder: Path) -> dict[str, Any]:
    """Each fault told by its finding, and none of these findings in the clean twins."""
    names = ["clean", TUNED, *FAULTS]
    jobs = []
    for name in names:
        words = ["--seconds", _SECONDS, *([] if name == "clean" else ["--fault", name])]
        jobs.append(functools.partial(recorded, folder / name, training(*words)))
    in_turn(folder, jobs)
    with ThreadPoolExecutor(_TOGETHER) as pool:
        reports = dict(
            zip(names, pool.map(reported, (folder / name for name in names)), strict=True)
        )
    ids = {name: _ids(report) for name, report in reports.items()}
    told = {fault: finding in ids[fault] for fault, finding in FAULTS.items()}
    false = sorted({*ids["clean"], *ids[TUNED]} & set(FAULTS.values()))
    return {"ok": all(told.values()) and not false, "told": told, "false": false, "ids": ids}


def calls(folder: Path) -> dict[str, Any]:
    """Microseconds of host time of what the guest calls at steps that are looked at."""
    import torch

    torch.ones(1, device="cuda")
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    end.record()
    torch.cuda.synchronize()
    loss = torch.ones((), device="cuda")
    slot = torch.empty(1, dtype=loss.dtype, pin_memory=True)
    functions: dict[str, Callable[[], Any]] = {
        "monotonic_ns": time.monotonic_ns,
        "thread_time_ns": time.thread_time_ns,
        "event record": begin.record,
        "event query": end.query,
        "elapsed_time": lambda: begin.elapsed_time(end),
        "capturing": torch.cuda.is_current_stream_capturing,
        "memory stats": lambda: torch._C._cuda_memoryStats(0),
        "copy of a loss": lambda: slot.copy_(loss.detach().reshape(1), non_blocking=True),
        "pinned memory": lambda: torch.empty(65536, dtype=torch.uint8, pin_memory=True),
    }
    costs_us = {}
    for name, function in functions.items():
        for _ in range(20):
            function()
        torch.cuda.synchronize()
        begin.record()
        end.record()
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(200):
            function()
        costs_us[name] = round((time.perf_counter() - began) / 200 * 1e6, 3)
        torch.cuda.synchronize()
    return {"ok": True, "us": costs_us}


def hardware(folder: Path) -> dict[str, Any]:
    """What ``doctor --hardware`` and ``plan --probe`` say of this machine."""
    import torch

    gputop = [sys.executable, "-m", "gputop"]
    doctor = _run([*gputop, "doctor", "--hardware", "--json"])
    gpu = torch.cuda.get_device_name(0)
    job = ["--model", "llama-3-8b", "--gpu", gpu, "--gpus", "8"]
    plan = _run([*gputop, "plan", *job, "--probe", "--json"])
    (folder / "doctor.json").write_text(doctor)
    (folder / "plan.json").write_text(plan)
    return {"ok": bool(doctor) and bool(plan), "doctor": doctor[:1500]}


def layers(folder: Path) -> dict[str, Any]:
    """Device time of layers against the kernels that torch.profiler saw of them."""
    result = json.loads(_run([sys.executable, str(HERE / "gpu_layers.py"), str(folder)]))
    return {"ok": result.get("holds", False), **result}


def nan_origin(folder: Path) -> dict[str, Any]:
    """The layer of an overflow in fp16, with the values watched from the start."""
    recorded(folder, [sys.executable, str(HERE / "gpu_nan.py")], ("--watch-numerics",))
    findings = reported(folder).get("findings", [])
    text = json.dumps([finding for finding in findings if finding["id"] in ("NU01", "NU02")])
    return {"ok": "body.3" in text, "findings": text[:1500]}


def _ids(report: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in report.get("findings", [])]


CHECKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "calls": calls,
    "nvml": nvml,
    "phases": phases,
    "cost": cost,
    "faults": faults,
    "layers": layers,
    "nan-origin": nan_origin,
    "ranks": ranks,
    "memory_history": memory_history,
    "hardware": hardware,
    "memory": memory,
    "snapshots": snapshots,
    "shapes": shapes,
    "vram-grid": vram_grid,
}

if __name__ == "__main__":
    sys.exit(main())
