"""What users ask: a plan for so many GPUs, the fewest that will do, the fastest within a budget."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gputop_analysis.planner.calibrate import Calibration
from gputop_analysis.planner.choices import Choice, choice
from gputop_analysis.planner.frameworks import in_16_bits
from gputop_analysis.planner.hardware import Cluster, cluster
from gputop_analysis.planner.job import Job
from gputop_analysis.planner.probed import Probed, applied
from gputop_analysis.planner.search import Plan, plan
from gputop_analysis.planner.space import Limits
from gputop_analysis.units import GIB

MOST_GPUS = 4096


class NothingFits(ValueError):
    """No configuration fits; the message says what is missing, ``nearest`` has three."""

    def __init__(self, message: str, nearest: tuple[Choice, ...] = ()):
        super().__init__(message)
        self.nearest = nearest


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to plan on: a kind of GPU and its node."""

    gpu: str
    gpus_per_node: int = 0
    """0: as in the vendor's own server."""
    network: str = ""
    usd_per_gpu_hour: float | None = None
    probed: Probed | None = None
    """What was measured on a node of it."""
    watts: float = 0.0
    """Power limit in force; 0: that of the catalog."""

    def cluster(self, gpus: int) -> Cluster:
        """So many of them.

        Raises:
            LookupError: no GPU of that name.
        """
        usual = cluster(self.gpu, gpus, self.gpus_per_node, self.network)
        if self.watts:
            usual = usual.but(device=replace(usual.device, watts=self.watts))
        return applied(usual, self.probed) if self.probed else usual


def best(
    job: Job,
    wanted: Wanted,
    gpus: int,
    *,
    limits: Limits | None = None,
    objective: str = "throughput",
    calibration: Calibration | None = None,
    unsure: bool = False,
) -> Plan:
    """The plan for so many GPUs; with ``unsure`` of splits that may fit where none surely does.

    Raises:
        NothingFits: every configuration needs more memory than the GPU has.
        ValueError: no split keeps the rules; the message says which.
        LookupError: no GPU of that name.
    """
    hardware = wanted.cluster(gpus)
    solved = plan(job, hardware, limits, objective, calibration, unsure=unsure)
    if not len(solved.order):
        nearest = tuple(choice(solved, int(i), wanted.usd_per_gpu_hour) for i in solved.nearest)
        least_gib, usable = nearest[0].reserved_gib, hardware.device.usable_bytes / GIB
        reason = f"the leanest split needs {least_gib:.1f} GiB of {usable:.1f} GiB"
        raise NothingFits(f"nothing fits on {gpus} x {hardware.device.name}: {reason}", nearest)
    return solved


def counts_up_to(most: int, per_node: int) -> list[int]:
    """Powers of two below a node, then whole nodes by powers of two, and ``most`` itself."""
    counts, count = [], 1
    while count <= most:
        counts.append(count)
        count *= 2
    whole_nodes = [n for n in counts if n < per_node or n % per_node == 0]
    return sorted({*whole_nodes, most})


def fewest(
    job: Job,
    wanted: Wanted,
    most: int,
    limits: Limits | None = None,
    calibration: Calibration | None = None,
) -> Plan:
    """The plan on the fewest GPUs on which the job fits.

    Raises:
        NothingFits: not on ``most`` either.
    """
    last: ValueError | None = None
    for gpus in counts_up_to(most, cluster(wanted.gpu, most).gpus_per_node):
        try:
            return best(job, wanted, gpus, limits=limits, calibration=calibration)
        except ValueError as error:
            last = error
    raise last or NothingFits(f"nothing fits on {most} GPUs")


def within(
    job: Job,
    wanted: Wanted,
    usd_per_hour: float,
    *,
    most: int,
    limits: Limits | None = None,
    calibration: Calibration | None = None,
) -> Plan:
    """The fastest plan whose GPUs cost no more.

    Raises:
        ValueError: the GPU has no known rent, or one of them costs more than that.
        NothingFits: not within the budget.
    """
    if not wanted.usd_per_gpu_hour:
        raise ValueError(
            f"no rent of the {wanted.gpu} is known: give --price, or import yours (gputop catalog "
            "import)"
        )
    able = min(most, int(usd_per_hour / wanted.usd_per_gpu_hour))
    if able < 1:
        raise ValueError(
            f"one {wanted.gpu} costs {wanted.usd_per_gpu_hour:.2f} dollars an hour, the budget is "
            f"{usd_per_hour:.2f}"
        )
    plans, last = [], None
    for gpus in counts_up_to(able, cluster(wanted.gpu, able).gpus_per_node):
        try:
            plans.append(best(job, wanted, gpus, limits=limits, calibration=calibration))
        except ValueError as error:
            last = error
    if not plans:
        raise last or NothingFits(f"nothing fits on the {able} GPUs that the budget pays for")
    return min(plans, key=lambda plan: float(plan.seconds[plan.order[0]]))


def would_fit(job: Job, wanted: Wanted, gpus: int, limits: Limits | None = None) -> list[str]:
    """The nearest changes that fit, in words: more GPUs, a larger GPU, a leaner training."""
    from gputop_analysis.catalog import gpu as spec_of
    from gputop_analysis.catalog import gpus as all_gpus

    changes = []
    counts = [
        n for n in counts_up_to(MOST_GPUS, cluster(wanted.gpu, gpus).gpus_per_node) if n > gpus
    ]
    if (more := next((n for n in counts if _fits(job, wanted, n, limits)), None)) is not None:
        changes.append(f"{more} x {wanted.gpu}")
    spec = spec_of(wanted.gpu)
    sure = (g for g in all_gpus() if g.vendor == spec.vendor and not g.doubtful)
    larger = sorted((g for g in sure if g.usable_gib > spec.usable_gib), key=lambda g: g.usable_gib)
    fitting = (g for g in larger if _fits(job, Wanted(g.name, wanted.gpus_per_node), gpus, limits))
    if (other := next(fitting, None)) is not None:
        changes.append(f"{gpus} x {other.name}")
    leaner = (
        ("adapters only (--lora)", job.but(trainable_share=0.01)),
        ("weights in bf16 (--weights bf16)", _in_16_bits(job)),
        ("--optimizer adamw-8bit", job.but(optimizer="adamw-8bit")),
    )
    changes += [
        text
        for text, leaner_job in leaner
        if leaner_job != job and _fits(leaner_job, wanted, gpus, limits)
    ]
    return changes[:4]


def _in_16_bits(job: Job) -> Job:
    """The same job where what trains keeps an fp32 copy of the weights anyway."""
    try:
        return in_16_bits(job)
    except ValueError:
        return job


def _fits(job: Job, wanted: Wanted, gpus: int, limits: Limits | None) -> bool:
    batch = max(job.global_batch, gpus)
    try:
        best(job.but(global_batch=batch // gpus * gpus or gpus), wanted, gpus, limits=limits)
    except (ValueError, LookupError):
        return False
    return True
