"""All that only hardware can show, in one call of under ten minutes on a machine with one NVIDIA
GPU.

    python bench/gpu.py [--out FOLDER] [--only NAME ...]

Writes gpu.json and gpu.md. Exit code 3 and one line where there is no GPU. Untried on hardware so
far.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path += [str(HERE), *(str(ROOT / name) for name in ("tui_app", "analysis", "probes"))]

from gpu_training import FAULTS, PHASES, TUNED  # noqa: E402

BUDGET_S = 570.0
NO_GPU = 3
_RUN_S = 60.0
_CONFS = ("", "expandable_segments:True", "max_split_size_mb:64")
_GRID = ((256, 1), (512, 2), (1024, 1))
"""Tokens and sequences of the models that are probed."""


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
    options = parser.parse_args()
    reason = missing()
    if reason:
        print(f"bench/gpu.py: {reason}; nothing was measured", file=sys.stderr)
        return NO_GPU
    options.out.mkdir(parents=True, exist_ok=True)
    results = measured(options.only or list(CHECKS))
    (options.out / "gpu.json").write_text(json.dumps(results, indent=2) + "\n")
    (options.out / "gpu.md").write_text(page(results))
    print(page(results))
    return 0 if all(check["ok"] for check in results["checks"].values()) else 1


def measured(names: list[str]) -> dict[str, Any]:
    """Each check with its figures; those for which no time is left are said not to have run."""
    import torch

    began = time.monotonic()
    checks: dict[str, Any] = {}
    for name in names:
        started = time.monotonic()
        if started - began > BUDGET_S - _RUN_S:
            checks[name] = {"ok": False, "why": "no time was left"}
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                checks[name] = CHECKS[name](Path(folder))
            except Exception as error:  # the other checks are to run
                checks[name] = {"ok": False, "why": f"{type(error).__name__}: {error}"[:500]}
        checks[name]["seconds"] = round(time.monotonic() - started, 1)
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "memory_bytes": properties.total_memory,
        "torch": torch.__version__,
        "seconds": round(time.monotonic() - began, 1),
        "checks": checks,
    }


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


def bare(*words: str, conf: str = "") -> dict[str, Any]:
    """The training alone; what it says of itself."""
    return _last_json(_run([sys.executable, str(HERE / "gpu_training.py"), *words], conf))


def watched(
    folder: Path, *words: str, options: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The training under gputop; what it says of itself, and gputop's report."""
    run = folder / "run"
    training = [sys.executable, str(HERE / "gpu_training.py"), *words]
    command = [sys.executable, "-m", "gputop", "run", "--run-dir", str(run), *options, "--"]
    output = _run([*command, *training])
    report = _run([sys.executable, "-m", "gputop", "report", str(run), "--json"])
    return _last_json(output), json.loads(report)


def _run(command: list[str], conf: str = "") -> str:
    import os

    paths = os.pathsep.join(str(ROOT / name) for name in ("tui_app", "analysis", "probes"))
    environment = {**os.environ, "PYTHONPATH": paths}
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
    """Mean milliseconds of each phase on the device: from its first kernel to that of the next phase.

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


def cost(folder: Path) -> dict[str, Any]:
    """What a step takes longer under gputop: medians of three runs each, in turn."""
    alone, under = [], []
    for turn in range(3):
        alone.append(bare("--steps", "150")["step_ms"])
        under.append(watched(folder / str(turn), "--steps", "150")[0]["step_ms"])
    factor = sorted(under)[1] / sorted(alone)[1]
    return {"ok": factor < 1.01, "factor": factor, "bare_ms": alone, "watched_ms": under}


def nvml(folder: Path) -> dict[str, Any]:
    """Which fields the driver gives, as the sampler records them, and which it does not."""
    from gputop_probes.record.reader import RunRecord

    watched(folder, "--steps", "200")
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
    from gputop_analysis.snapshots import load
    from gputop_analysis.snapshots.analyse import analyse

    differences: dict[str, Any] = {}
    for number, conf in enumerate(_CONFS):
        path = folder / f"{number}.pickle"
        told = bare("--steps", "12", "--snapshot", str(path), conf=conf)
        found = analyse(load(path))
        differences[conf or "default"] = {
            "first_difference": found.first_difference,
            "reserved_off": found.peak_reserved - told["peak_reserved_bytes"],
        }
    exact = all(one["first_difference"] is None for one in differences.values())
    return {"ok": exact, "settings": differences}


def vram_grid(folder: Path) -> dict[str, Any]:
    """The estimate of a model against what real steps of it take, over some setups."""
    answers = []
    for seq, batch in _GRID:
        words = ["--model", "gpt2", "--seq", str(seq), "--micro-batch", str(batch), "--json"]
        output = _run([sys.executable, "-m", "gputop", "probe", *words])
        answers.append({"seq": seq, "micro_batch": batch, "answer": json.loads(output)})
    return {"ok": len(answers) == len(_GRID), "answers": answers}


def out_of_memory(folder: Path) -> dict[str, Any]:
    """An allocation that no GPU has is explained."""
    _, report = watched(folder, "--fault", "out-of-memory")
    found = _ids(report)
    return {"ok": "HC04" in found, "found": found}


def memory_history(folder: Path) -> dict[str, Any]:
    """A snapshot on lack of memory, with the lines that held it, and what the recording costs."""
    words = ("--fault", "out-of-memory")
    watched(folder, *words, options=("--memory-history",))
    told = json.loads(
        _run([sys.executable, "-m", "gputop", "memory", str(folder / "run"), "--json"])
    )
    sites = [holder["site"] for holder in told["holders"]]
    own = sum("gpu_training.py" in str(site) for site in sites)
    plain = watched(folder / "plain")[0]["step_ms"]
    recorded = watched(folder / "recorded", options=("--memory-history",))[0]["step_ms"]
    return {"ok": own > 0, "sites": sites[:5], "cost": recorded / plain - 1}


def faults(folder: Path) -> dict[str, Any]:
    """Each fault told by its finding, and none of these findings in the clean twins."""
    clean = _ids(watched(folder / "clean")[1])
    clean += _ids(watched(folder / TUNED, "--fault", TUNED)[1])
    told = {}
    for fault, finding in FAULTS.items():
        try:
            told[fault] = finding in _ids(watched(folder / fault, "--fault", fault)[1])
        except (subprocess.TimeoutExpired, ValueError) as error:
            told[fault] = f"{type(error).__name__}"
    false = sorted(set(clean) & set(FAULTS.values()))
    right = sum(answer is True for answer in told.values())
    return {"ok": right == len(told) and not false, "told": told, "false_alarms": false}


def _ids(report: dict[str, Any]) -> list[str]:
    return [finding["id"] for finding in report.get("findings", [])]


CHECKS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "phases": phases,
    "cost": cost,
    "nvml": nvml,
    "memory": memory,
    "snapshots": snapshots,
    "memory_history": memory_history,
    "vram-grid": vram_grid,
    "out-of-memory": out_of_memory,
    "faults": faults,
}

if __name__ == "__main__":
    sys.exit(main())
