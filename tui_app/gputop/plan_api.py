"""``gputop.plan(...)``: how to split a training over GPUs, from Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gputop_analysis.planner.calibrate import Calibration
    from gputop_analysis.planner.choices import Choice


def plan(
    model: Any,
    *,
    gpu: str,
    gpus: int,
    seq: int = 2048,
    global_batch: int = 256,
    dtype: str = "bf16",
    optimizer: str = "adamw",
    lora: bool = False,
    gpus_per_node: int = 0,
    network: str = "",
    objective: str = "throughput",
    top: int = 10,
    usd_per_gpu_hour: float | None = None,
    calibration: Calibration | None = None,
    **pinned: int,
) -> list[Choice]:
    """The best ways to split a training.

    Args:
        model: a name or path, a Hugging Face configuration, or a ``ModelShape``.
        gpu, gpus: which chip, and how many in all.
        seq, global_batch: tokens of a sample, samples of an optimizer step.
        lora: adapters are trained, the model is frozen.
        gpus_per_node, network: as the vendor's own server has them where left out.
        objective: ``throughput`` or ``memory``.
        usd_per_gpu_hour: rent; the catalog's median without.
        calibration: of ``gputop_analysis.planner.measured``, from runs that were measured.
        **pinned: only this value: ``tp=2, pp=4, vpp=1, cp=1, ep=1, micro_batch=1, zero=1,
        recompute=0``,
            ``zero_bubble=True``; ``zero=3, replicas=8`` is HSDP.

    Returns:
        Choices, best first; ``to_json()`` has each with units in the names.

    Raises:
        LookupError: no such model or GPU.
        ValueError: no split keeps the rules, or none fits; the message says which rule, or how much
            is missing.
    """
    from gputop import own_prices
    from gputop.api import shape_of
    from gputop_analysis import catalog
    from gputop_analysis.planner.choices import ranked
    from gputop_analysis.planner.job import Job, trainable_share
    from gputop_analysis.planner.questions import Wanted, best
    from gputop_analysis.planner.space import Limits

    names = (
        "tp",
        "pp",
        "vpp",
        "cp",
        "ep",
        "replicas",
        "micro_batch",
        "zero",
        "recompute",
        "zero_bubble",
    )
    if unknown := set(pinned) - set(names):
        raise ValueError(f"nothing of a split is called {sorted(unknown)[0]!r}: {', '.join(names)}")
    name = catalog.gpu(gpu).name
    if usd_per_gpu_hour is None:
        rent = own_prices.usd_per_gpu_hour(name)
    else:
        rent = usd_per_gpu_hour
    values: dict[str, Any] = {key: (value,) for key, value in pinned.items()}
    job = Job(
        shape_of(model), seq, global_batch, dtype, optimizer, trainable_share=trainable_share(lora)
    )
    solved = best(
        job,
        Wanted(name, gpus_per_node, network, rent),
        gpus,
        limits=Limits(**values),
        objective=objective,
        calibration=calibration,
    )
    return ranked(solved, top, rent)
