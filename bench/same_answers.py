"""Whether two versions of gputop answer alike: stores answers as JSON, and lists every difference
of two folders.

    python bench/same_answers.py store FOLDER [--part 1/3]
    python bench/same_answers.py compare BEFORE AFTER

Answers are those of ``estimate`` for 60 setups over all tiers, ``plan`` for 30 jobs, ``launch`` for
ten, and ``catalog show`` and ``plan`` of one small job for every GPU. Times of answering are left
out.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MODELS = ("llama-3-8b", "mistral-7b", "gpt2", "qwen2.5-7b", "gemma-2-9b", "mixtral-8x7b")
WAYS = (
    "",
    "--lora --micro-batch 4",
    "--qlora --checkpointing full",
    "--fsdp --dp 8 --checkpointing selective",
    "--zero 3 --dp 8",
    "--zero 2 --dp 4 --optimizer adamw-8bit",
    "--amp --micro-batch 2 --gpu H100",
)
FURTHER = (
    "--model llama-3-70b --fsdp --dp 32 --tier formula",
    "--model llama-3-70b --fsdp --dp 32 --pp 2 --tier formula",
    "--model llama-3-70b --tp 8 --pp 4 --dp 4 --recipe megatron",
    "--model mixtral-8x7b --dp 4 --tp 2 --ep 8 --recipe megatron",
    "--model mixtral-8x7b --dp 8 --ep 8 --sharding fsdp2",
    "--model llama-3-8b --tp 4 --sequence-parallel --dp 2",
    "--model llama-3-8b --cp 4 --seq 32768 --sharding fsdp2 --dp 2",
    "--model llama-3-8b --hsdp 2 --dp 16",
    "--model llama-3-8b --pp 4 --vpp 2 --micro-batch 2 --recipe megatron",
    "--model llama-3-8b --zero 3 --dp 8 --offload all",
    "--model llama-3-8b --loss chunked --seq 8192",
    "--model llama-3-8b --loss fused --kernels --seq 8192",
    "--model llama-3-8b --gpu A100",
    "--model llama-3-8b --gpu MI250X",
    "--model llama-3-8b --gpu MI300X --lora",
    "--model gpt2 --trace --seq 512",
    "--model qwen2.5-0.5b --trace --seq 512 --lora",
    "--model qwen2.5-0.5b --trace --seq 512 --micro-batch 2 --checkpointing full --gpu T4",
)
JOBS = (
    "--model llama-3-8b --gpu H100 --gpus 8",
    "--model llama-3-8b --gpu H100 --gpus 64",
    "--model llama-3-8b --gpu A100-80GB --gpus 16",
    "--model llama-3-8b --gpu A100 --gpus 16",
    "--model llama-3-8b --gpu MI250X --gpus 16",
    "--model llama-3-8b --gpu MI250 --gpus 8 --what-if",
    "--model llama-3-8b --gpu MI300X --gpus 8",
    "--model llama-3-8b --gpu V100 --gpus 32 --dtype fp16",
    "--model llama-3-8b --gpu B200 --gpus 8 --dtype fp8",
    "--model llama-3-8b --gpu GB200 --gpus 72",
    "--model llama-3-8b --gpu L40S --gpus 8 --lora",
    "--model llama-3-8b --gpu 4090 --gpus 8 --lora --global-batch 64",
    "--model llama-3-8b --gpu H200 --gpus 8 --seq 131072 --global-batch 8",
    "--model llama-3-8b --gpu H100 --gpus 16 --zero 3 --replicas 2",
    "--model llama-3-8b --gpu H100 --gpus 16 --schedule any --pp 2",
    "--model llama-3-8b --gpu H100 --gpus 32 --objective memory",
    "--model llama-3-8b --gpu H100 --gpus 32 --objective cost",
    "--model llama-3-8b --gpu H100 --gpus 32 --objective fewest-gpus",
    "--model llama-3-8b --gpu H100 --gpus 64 --objective budget --budget-hourly 100",
    "--model llama-3-70b --gpu H100 --gpus 64",
    "--model llama-3-70b --gpu H100 --gpus 64 --zero 3",
    "--model llama-3-70b --gpu H100 --gpus 64 --zero 3 --pp 2",
    "--model llama-3-70b --gpu H100 --gpus 128 --tp 8 --pp 4 --what-if",
    "--model llama-3-70b --gpu A100-80GB --gpus 8 --lora",
    "--model mixtral-8x7b --gpu H100 --gpus 32",
    "--model mixtral-8x7b --gpu H100 --gpus 8 --tp 2 --ep 8",
    "--model mixtral-8x7b --gpu H800 --gpus 64 --ep 8",
    "--model gpt2 --gpu T4 --gpus 4",
    "--model qwen2.5-7b --gpu A100-40GB --gpus 8 --recompute full",
    "--model mistral-7b --gpu H100 --gpus 8 --optimizer adamw-8bit --tokens 1T",
)
LAUNCHED = (
    *(
        f"--model llama-3-8b --gpu H100 --gpus 16 --for {name}"
        for name in ("torchrun", "accelerate", "torchtitan")
    ),
    "--model llama-3-8b --gpu H100 --gpus 8 --for deepspeed --zero 3",
    "--model llama-3-70b --gpu H100 --gpus 64 --for megatron",
    "--model llama-3-70b --gpu H100 --gpus 64 --for megatron --slurm",
    "--model llama-3-8b --gpu A100-80GB --gpus 16 --for torchrun --slurm",
    "--model mixtral-8x7b --gpu H100 --gpus 32 --for megatron --ep 8",
    "--model llama-3-8b --gpu H100 --gpus 16 --for torchtitan --zero 3 --replicas 2",
    "--model llama-3-8b --gpu H100 --gpus 16 --for torchtitan --zero 3 --pp 2",
)
TIMES = re.compile(r"(^|_)(seconds_to_answer|took|elapsed)(_|$)")


def questions() -> Iterator[tuple[str, str]]:
    """``(command, options)`` of every question."""
    for model in MODELS:
        for at, way in enumerate(WAYS):
            tier = ("", " --tier formula", " --tier profile")[at % 3] if model in MODELS[:4] else ""
            yield "estimate", f"--model {model} {way}{tier}"
    yield from (("estimate", words) for words in FURTHER)
    yield from (("plan", words) for words in JOBS)
    yield from (("launch", words) for words in LAUNCHED)
    from gputop_analysis.catalog import gpus

    for spec in gpus():
        yield "catalog", f"show {json.dumps(spec.name)}"
        if spec.runs_torch:
            yield (
                "plan",
                f"--model gpt2 --gpu {json.dumps(spec.name)} --gpus 8 --global-batch 64 --seq "
                "1024 --top 1",
            )


def answer(command: str, words: str) -> dict[str, Any]:
    """What the command prints, as data; its first line on stderr and its exit code where it
    refuses.
    """
    import shlex

    from gputop.cli import main

    out, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        try:
            code = main([command, *shlex.split(words), "--json"])
        except SystemExit as left:
            code = left.code
    if code:
        return {"exit_code": code, "refused": errors.getvalue().strip()}
    return {"exit_code": 0, "answer": json.loads(out.getvalue())}


def store(folder: Path, part: int, parts: int) -> None:
    """Write one file for each question that is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as home:
        os.environ |= dict.fromkeys(
            ("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"), home
        )
        os.environ["COLUMNS"] = "120"
        os.chdir(home)
        for number, (command, words) in enumerate(questions()):
            name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{command} {words}").strip("-")
            file = folder / f"{name}.json"
            if number % parts != part - 1 or file.exists():
                continue
            file.write_text(
                json.dumps({"question": f"{command} {words}", **answer(command, words)}, indent=1)
            )
            print(file.name, flush=True)


def compare(before: Path, after: Path) -> int:
    """Print each difference; the number of questions that have one."""
    names = sorted({file.name for folder in (before, after) for file in folder.glob("*.json")})
    changed = 0
    for name in names:
        files = (before / name, after / name)
        if missing := next((file for file in files if not file.exists()), None):
            print(f"{name}: not in {missing.parent}")
            changed += 1
            continue
        old, new = (json.loads(file.read_text(encoding="utf-8")) for file in files)
        differences = list(differing(old, new))
        changed += bool(differences)
        if differences:
            print(old["question"])
        for key, was, now in differences[:12]:
            print(f"    {key}: {json.dumps(was)[:150]} -> {json.dumps(now)[:150]}")
        if len(differences) > 12:
            print(f"    and {len(differences) - 12} more")
    print(f"{changed} of {len(names)} answers differ")
    return changed


def differing(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """``(key, before, after)`` of all that differs; numbers by more than a billionth."""
    if TIMES.search(key.rpartition(".")[2]):
        return
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*old, *new)):
            yield from differing(old.get(name), new.get(name), f"{key}.{name}" if key else name)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for at, (one, other) in enumerate(zip(old, new, strict=True)):
            yield from differing(one, other, f"{key}[{at}]")
    elif isinstance(old, float) and isinstance(new, (int, float)):
        if abs(old - new) > 1e-9 * max(abs(old), abs(new)):
            yield key, old, new
    elif old != new:
        yield key, old, new


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    actions = parser.add_subparsers(dest="action", required=True)
    storing = actions.add_parser("store")
    storing.add_argument("folder", type=Path)
    storing.add_argument("--part", default="1/1")
    comparing = actions.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.action == "compare":
        return int(compare(options.before, options.after) > 0)
    part, parts = map(int, options.part.split("/"))
    store(options.folder.resolve(), part, parts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
