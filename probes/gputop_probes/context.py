"""The circumstances of a run: source, container, scheduler, machine, variables; no secrets."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path
from typing import Any

from gputop_probes import procfs, redact

_GIT_TIMEOUT_S = 1.0
_ALLOWED = re.compile(
    r"""^(?:
    (?: OMP | MKL | OPENBLAS | NUMEXPR ) _NUM_THREADS |
    OMP_PROC_BIND | OMP_PLACES | KMP_AFFINITY | KMP_BLOCKTIME |
    MALLOC_ARENA_MAX | MALLOC_ (?: TRIM | MMAP ) _THRESHOLD_ | LD_PRELOAD |
    PYTHONHASHSEED | PYTHONOPTIMIZE | PYTHONFAULTHANDLER |
    CUDA_ (?:
        VISIBLE_DEVICES | LAUNCH_BLOCKING | DEVICE_ORDER | DEVICE_MAX_CONNECTIONS | MODULE_LOADING
    ) |
    CUBLAS_WORKSPACE_CONFIG | NVIDIA_VISIBLE_DEVICES | NVIDIA_TF32_OVERRIDE |
    (?: HIP | ROCR ) _VISIBLE_DEVICES |
    PYTORCH_CUDA_ALLOC_CONF | PYTORCH_ALLOC_CONF | PYTORCH_JIT | PYTORCH_NO_CUDA_MEMORY_CACHING |
    (?:
        NCCL | GLOO | FI | UCX | TORCH | TORCHINDUCTOR | TORCHDYNAMO | ACCELERATE | DEEPSPEED
    ) _ [A-Z0-9_]+ |
    (?: LOCAL_ | GROUP_ )? RANK | (?: LOCAL_ )? WORLD_SIZE | MASTER_PORT |
    HF_HUB_OFFLINE | TRANSFORMERS_OFFLINE | TOKENIZERS_PARALLELISM | WANDB_MODE |
    SLURM_ (?:
        JOB_ID | JOB_NAME | JOB_PARTITION | NNODES | NTASKS | PROCID | NODEID | CPUS_PER_TASK |
        GPUS_ON_NODE
    )
    )$""",
    re.VERBOSE,
)
_MAX_VALUE_CHARS = 500


def collect(command: list[str], cwd: str, environment: dict[str, str]) -> dict[str, Any]:
    """All that can be learnt without the training process. What does not apply is left out."""
    parts = {
        "command": redact.command(command),
        "cwd": cwd,
        "git": git(cwd),
        "container": container(environment),
        "slurm": _with_prefix(
            environment, "SLURM_", ("JOB_ID", "JOB_NAME", "JOB_PARTITION", "NNODES", "NTASKS")
        ),
        "kubernetes": kubernetes(environment),
        "ray": _with_prefix(
            environment, "RAY_", ("JOB_ID", "JOB_NAME", "CLUSTER_NAME", "NODE_TYPE_NAME")
        ),
        "host": host(),
        "environment": matters(environment),
    }
    return {name: value for name, value in parts.items() if value}


def matters(environment: dict[str, str]) -> dict[str, str]:
    """Variables that change how a training runs, by an allow-list; none that may hold a secret."""
    return {
        name: value[:_MAX_VALUE_CHARS]
        for name, value in sorted(environment.items())
        if _ALLOWED.match(name)
        and not redact.is_secret_name(name)
        and not redact.is_secret_value(value)
    }


def git(cwd: str) -> dict[str, Any]:
    """Commit, branch and whether tracked files differ; empty outside a repository."""
    head = _git(cwd, "rev-parse", "HEAD", "--abbrev-ref", "HEAD")
    if head is None or len(head.split()) != 2:
        return {}
    commit, branch = head.split()
    changes = _git(cwd, "status", "--porcelain", "--untracked-files=no")
    return {
        "commit": commit,
        "branch": branch,
        "dirty": None if changes is None else bool(changes.strip()),
    }


def container(environment: dict[str, str]) -> str:
    """``docker``, ``podman``, ``kubernetes``, ``apptainer`` or ``enroot``; else empty."""
    if "KUBERNETES_SERVICE_HOST" in environment:
        return "kubernetes"
    if "APPTAINER_CONTAINER" in environment or "SINGULARITY_CONTAINER" in environment:
        return "apptainer"
    if Path("/run/.containerenv").exists():
        return "podman"
    if Path("/.dockerenv").exists():
        return "docker"
    return "enroot" if "ENROOT_ROOTFS" in environment else ""


def kubernetes(environment: dict[str, str]) -> dict[str, str]:
    """Pod and namespace, where the pod tells them."""
    if "KUBERNETES_SERVICE_HOST" not in environment:
        return {}
    raw = procfs.read_bytes("/var/run/secrets/kubernetes.io/serviceaccount/namespace") or b""
    namespace = environment.get("POD_NAMESPACE") or raw.decode(errors="replace").strip()
    pod = environment.get("POD_NAME") or environment.get("HOSTNAME", "")
    return {name: value for name, value in (("pod", pod), ("namespace", namespace)) if value}


def host() -> dict[str, Any]:
    """Kernel, processor and memory."""
    info = (procfs.read_bytes("/proc/cpuinfo") or b"").decode(errors="replace")
    model = re.search(r"^(?:model name|Model)\s*:\s*(.+)$", info, re.MULTILINE)
    return {
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpu_model": model.group(1).strip() if model else "",
        "cpu_count_machine": os.cpu_count() or 0,
    }


def _with_prefix(
    environment: dict[str, str], prefix: str, names: tuple[str, ...]
) -> dict[str, str]:
    return {
        name.lower(): environment[prefix + name] for name in names if prefix + name in environment
    }


def _git(cwd: str, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", "-C", cwd or ".", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_GIT_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    if done.returncode == 0:
        return done.stdout.decode(errors="replace")
    return None
