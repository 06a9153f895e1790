"""GPU runs for tests, synthetic: no GPU was there. Samples and hellos as recorder and guest would
write them.
"""

from typing import Any

from analysis_support import T0, Builder, pack

GIB = 1 << 30


def gpu_run(
    path,
    ranks: int = 1,
    steps: int = 150,
    hello: dict[str, Any] | None = None,
    thread_cpu: float = 0.97,
    **phases: float,
) -> Builder:
    """Steps of 20 ms on as many GPUs as ranks, on the device's clock too; memory of 80
    GiB a GPU.
    """
    phases = phases or {"forward": 6.0, "backward": 12.0, "optimizer": 2.0}
    build = Builder(path / "r")
    build.state["gpus"] = [
        {"index": i, "uuid": f"GPU-{i}", "name": "NVIDIA H200"} for i in range(ranks)
    ]
    build.writer.write_state(build.state)
    for rank in range(ranks):
        said = {
            "device": "cuda",
            "device_uuid": f"GPU-{rank}",
            "device_capability": "9.0",
            "world_size": ranks,
        }
        build.hello(rank, **{**said, "device_name": "NVIDIA H200", **(hello or {})})
        for step in range(steps):
            build.step(rank, **{**phases, "cpu_ns": int(sum(phases.values()) * thread_cpu * 1e6)})
            on_clock(build, rank, step, **phases)
    return build


def on_clock(build: Builder, rank: int, step: int, **phases: float) -> None:
    """The same step as CUDA events would time it."""
    parts = {
        f"{name}_ms": phases.get(name, 0.0)
        for name in ("data", "h2d", "forward", "backward", "optimizer", "other")
    }
    row = pack(
        "device", t_end_ns=build.clock[rank], step=step, total_ms=sum(parts.values()), **parts
    )
    build.writer.append_rank("device", rank, row)


def gpu_samples(
    build: Builder, index: int = 0, count: int = 12, used_gib: float = 20.0, **columns: Any
) -> None:
    """Samples spread over the run so far; columns not given are not told."""
    span = max(build.clock.values()) - T0
    for tick in range(count):
        values = {
            "memory_used_bytes": int(used_gib * GIB),
            "memory_total_bytes": 80 * GIB,
            **columns,
        }
        build.sample("gpu", t_ns=T0 + span * (tick + 1) // (count + 1), index=index, **values)
